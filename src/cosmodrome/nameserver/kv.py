"""The name server's own key-value store, the only thing it remembers across a restart."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cosmodrome import disk, state_file
from cosmodrome.errors import ProtocolError, QueryNotFound, ServiceNotAvailable, StoreError, SystemBusy
from cosmodrome.wire import fastjson

# "broker-a:8;broker-b:8" under the topic's name: which queues an orderly topic keeps even while a broker is away.
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"

MAX_ENTRIES = 100_000

Tables = dict[str, dict[str, str]]


class KvConfigs:
    """Keys and values by namespace, saved with every change in the shape of Apache's kvConfig.json.

    A change is saved before anybody can read it, so what was answered survives a crash. Two processes with one file
    would each undo what the other has saved, so the first keeps the others out until `close`. Without a path
    nothing is saved: the table then lives as long as the process.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = _locked(path) if path else None
        self._tables: Tables = (state_file.load(path, _decode) if path else None) or {}

    def close(self) -> None:
        """Let another process have the file; to be called once nothing is put any more."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def put(self, namespace: str, key: str, value: str) -> None:
        if sum(map(len, self._tables.values())) >= MAX_ENTRIES and key not in self._tables.get(namespace, ()):
            raise SystemBusy(f"the KV config holds {MAX_ENTRIES} entries; delete some first")
        self._replace(namespace, {**self._tables.get(namespace, {}), key: value})

    def delete(self, namespace: str, key: str) -> None:
        """Forget a key; one that is not there is no error. A namespace goes with its last key."""
        if key in self._tables.get(namespace, ()):
            self._replace(namespace, {k: v for k, v in self._tables[namespace].items() if k != key})

    def find(self, namespace: str, key: str) -> str | None:
        return self._tables.get(namespace, {}).get(key)

    def value(self, namespace: str, key: str) -> str:
        found = self.find(namespace, key)
        if found is None:
            raise QueryNotFound(f"No config item, Namespace: {namespace} Key: {key}")
        return found

    def find_namespace(self, namespace: str) -> Mapping[str, str] | None:
        return self._tables.get(namespace)

    def namespace(self, namespace: str) -> Mapping[str, str]:
        found = self.find_namespace(namespace)
        if found is None:
            raise QueryNotFound(f"No config item, Namespace: {namespace}")
        return found

    def _replace(self, namespace: str, table: dict[str, str]) -> None:
        tables = {**self._tables, namespace: table}
        if not table:
            del tables[namespace]
        if self._path:
            _save(self._path, tables)
        self._tables = tables


def _save(path: Path, tables: Tables) -> None:
    """Write the file; ServiceNotAvailable when the disk refuses, and then nothing has changed."""
    try:
        state_file.save(path, fastjson.dumps({"configTable": tables}, pretty=True))
    except OSError as error:
        raise ServiceNotAvailable(f"cannot save {path}: {error.strerror}; see to the disk, and try again") from error


def _locked(path: Path) -> int:
    """Return the open file that keeps other processes out; StoreError when one of them was here first."""
    state_file.make_folder(path.parent)
    lock = disk.open_file(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StoreError(
            f"{path} is in use by another name server; stop it, or choose another place with --kv-config, kvConfigPath "
            "or --data of `up`"
        ) from error
    return lock


def _decode(data: bytes) -> Tables:
    tables = _object(_object(fastjson.loads(data)).get("configTable", {}))
    return {
        str(namespace): {str(key): str(value) for key, value in _object(table).items()}
        for namespace, table in tables.items()
    }


def _object(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"a KV config holds objects, not {value!r:.50}")
    return value

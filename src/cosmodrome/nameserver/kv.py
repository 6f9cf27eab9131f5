"""The name server's own key-value store, the only thing it remembers across a restart."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cosmodrome import disk, state_file
from cosmodrome.config import KIB, MIB
from cosmodrome.errors import (
    InvalidParameter,
    ProtocolError,
    QueryNotFound,
    ServiceNotAvailable,
    StoreError,
    SystemBusy,
)
from cosmodrome.wire import fastjson

# "broker-a:8;broker-b:8" under the topic's name: which queues an orderly topic keeps even while a broker is away.
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"

_REFERENCE = "$ref"  # of fastjson: whoever reads an object with this key alone puts another object in its place
MAX_NAME_BYTES = 1_024  # of a namespace, and of a key
MAX_WAITING = 1_000  # changes that wait for the disk

Tables = dict[str, dict[str, str]]


class KvLimits(NamedTuple):
    """What a KV config may hold; all sizes are of UTF-8."""

    entries: int = 100_000
    value_bytes: int = 64 * KIB
    bytes: int = 8 * MIB


class _Change(NamedTuple):
    """A value to set; None deletes it."""

    namespace: str
    key: str
    value: str | None


class _Kept:
    """What the file holds, or is about to. The thread that writes has it for itself."""

    def __init__(self, path: Path | None, limits: KvLimits, tables: Tables) -> None:
        self._path = path
        self._limits = limits
        self.tables: Tables = {namespace: dict(table) for namespace, table in tables.items()}
        self._entries = sum(map(len, tables.values()))
        self._bytes = sum(_size(key, value) for table in tables.values() for key, value in table.items())

    def change(self, changes: Sequence[_Change]) -> list[SystemBusy | None]:
        """Make the changes and save them together; the refusal of each, if it is refused. An exception undoes all."""
        undo: list[_Change] = []
        refusals: list[SystemBusy | None] = []
        for change in changes:
            refusals.append(refusal := self._refusal(change))
            if refusal is None:
                before = self.tables.get(change.namespace, {}).get(change.key)
                if before != change.value:
                    undo.append(change._replace(value=before))
                    self._set(change)
        if undo and self._path is not None:
            try:
                _save(self._path, self.tables)
            except BaseException:
                for change in reversed(undo):
                    self._set(change)
                raise
        return refusals

    def _refusal(self, change: _Change) -> SystemBusy | None:
        if change.value is None:
            return None
        before = self.tables.get(change.namespace, {}).get(change.key)
        if before is None and self._entries >= self._limits.entries:
            return SystemBusy(
                f"the KV config holds {self._entries} entries; delete some first, or set kvConfigMaxEntries"
            )
        grown = _size(change.key, change.value) - (0 if before is None else _size(change.key, before))
        if grown > 0 and self._bytes + grown > self._limits.bytes:
            return SystemBusy(
                f"the KV config holds {self._bytes} bytes, and {self._limits.bytes} are allowed; delete some entries "
                "first, or set kvConfigMaxSize"
            )
        return None

    def _set(self, change: _Change) -> None:
        namespace, key, value = change
        table = self.tables.get(namespace, {})
        if (before := table.get(key)) is not None:
            self._entries -= 1
            self._bytes -= _size(key, before)
        if value is not None:
            self._entries += 1
            self._bytes += _size(key, value)
        _set(self.tables, change)


class KvConfigs:
    """Keys and values by namespace, saved with every change in the shape of Apache's kvConfig.json.

    A change is saved before anybody can read it, so what was answered survives a crash; changes that come while the
    file is written share the next write, which a thread does. Two processes with one file
    would each undo what the other has saved, so the first keeps the others out until `close`. Without a path
    nothing is saved: the table then lives as long as the process.
    """

    def __init__(self, path: Path | None = None, limits: KvLimits | None = None) -> None:
        self._limits = limits or KvLimits()
        self._lock = _locked(path) if path else None
        self._tables: Tables = (state_file.load(path, _decode) if path else None) or {}
        self._kept = _Kept(path, self._limits, self._tables)
        self._waiting: list[tuple[_Change, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Let another process have the file; to be called once nothing is put any more."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def settled(self) -> None:
        """Return once no change waits for the disk."""
        if self._writer is not None:
            await asyncio.shield(self._writer)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; return once that is on disk."""
        for what, name in (("namespace", namespace), ("key", key)):
            if name == _REFERENCE:
                raise InvalidParameter(f"a KV config takes no {what} {name}: in its file that would be a reference")
            if (size := len(name.encode())) > MAX_NAME_BYTES:
                raise InvalidParameter(f"the {what} has {size} bytes; a KV config takes {MAX_NAME_BYTES}")
        if (size := len(value.encode())) > self._limits.value_bytes:
            raise InvalidParameter(
                f"the value has {size} bytes, and kvConfigMaxValueSize allows {self._limits.value_bytes}; make it "
                "shorter, or set that key"
            )
        await self._change(_Change(namespace, key, value))

    async def delete(self, namespace: str, key: str) -> None:
        """Forget a key; one that is not there is no error. A namespace goes with its last key."""
        if self._writer is not None or key in self._tables.get(namespace, ()):
            await self._change(_Change(namespace, key, None))

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

    async def _change(self, change: _Change) -> None:
        if len(self._waiting) >= MAX_WAITING:
            raise SystemBusy(f"{MAX_WAITING} changes of the KV config wait for the disk; try again later")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((change, done))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        await done

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    refusals = await asyncio.to_thread(self._kept.change, [change for change, _ in batch])
                except Exception as error:  # a disk that refuses, or ours; whoever waits is told
                    _settle(batch, [error] * len(batch))
                    continue
                for (change, _), refusal in zip(batch, refusals, strict=True):
                    if refusal is None:
                        _set(self._tables, change)
                _settle(batch, refusals)
        finally:
            self._writer = None


def _settle(batch: Sequence[tuple[_Change, asyncio.Future[None]]], refusals: Sequence[Exception | None]) -> None:
    for (_, done), refusal in zip(batch, refusals, strict=True):
        if done.done():  # whoever asked has gone
            continue
        if refusal is None:
            done.set_result(None)
        else:
            done.set_exception(refusal)


def _set(tables: Tables, change: _Change) -> None:
    if change.value is not None:
        tables.setdefault(change.namespace, {})[change.key] = change.value
        return
    table = tables.get(change.namespace, {})
    table.pop(change.key, None)
    if not table:
        tables.pop(change.namespace, None)


def _size(key: str, value: str) -> int:
    return len(key.encode()) + len(value.encode())


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

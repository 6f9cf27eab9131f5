"""The key-value config: what was answered survives."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cosmodrome import state_file
from cosmodrome.errors import InvalidParameter, QueryNotFound, ServiceNotAvailable, StoreError, SystemBusy
from cosmodrome.nameserver.kv import KvConfigs, KvLimits


async def test_a_value_is_found_under_its_namespace_and_key() -> None:
    configs = KvConfigs()
    await configs.put("ns", "k", "v")
    await configs.put("other", "k", "w")
    assert configs.value("ns", "k") == "v"
    assert configs.namespace("ns") == {"k": "v"}
    await configs.put("ns", "k", "v2")
    assert configs.value("ns", "k") == "v2"


async def test_what_is_missing_is_refused_by_name() -> None:
    configs = KvConfigs()
    with pytest.raises(QueryNotFound, match="Namespace: ns Key: k"):
        configs.value("ns", "k")
    with pytest.raises(QueryNotFound, match="Namespace: ns"):
        configs.namespace("ns")
    assert configs.find("ns", "k") is None
    assert configs.find_namespace("ns") is None
    await configs.delete("ns", "k")


async def test_a_namespace_goes_with_its_last_key() -> None:
    configs = KvConfigs()
    await configs.put("ns", "a", "1")
    await configs.put("ns", "b", "2")
    await configs.delete("ns", "a")
    assert configs.find_namespace("ns") == {"b": "2"}
    await configs.delete("ns", "b")
    assert configs.find_namespace("ns") is None


@pytest.mark.parametrize(("namespace", "key"), [("ns", "$ref"), ("$ref", "k")])
async def test_a_name_that_its_file_could_not_hold_is_refused(tmp_path: Path, namespace: str, key: str) -> None:
    """Alone in its object, it would be a reference to somewhere else, and be gone after a start."""
    path = tmp_path / "kvConfig.json"
    configs = KvConfigs(path)
    await configs.put("ns", "kept", "v")
    with pytest.raises(
        InvalidParameter, match=r"takes no (namespace|key) \$ref: in its file that would be a reference"
    ):
        await configs.put(namespace, key, "v")
    configs.close()
    configs = KvConfigs(path)
    assert configs.namespace("ns") == {"kept": "v"}
    assert configs.find_namespace("$ref") is None


async def test_it_is_remembered_in_apaches_shape(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    configs = KvConfigs(path)
    await configs.put("ORDER_TOPIC_CONFIG", "T", "a:8;b:8")
    await configs.put("ns", "ключ", 'with "quotes"\n')
    await configs.put("ns", "gone", "x")
    await configs.delete("ns", "gone")
    assert json.loads(state_file.unsealed(path.read_bytes())) == {
        "configTable": {"ORDER_TOPIC_CONFIG": {"T": "a:8;b:8"}, "ns": {"ключ": 'with "quotes"\n'}}
    }
    again = KvConfigs(path)
    assert again.namespace("ns") == {"ключ": 'with "quotes"\n'}
    assert again.value("ORDER_TOPIC_CONFIG", "T") == "a:8;b:8"


@pytest.mark.parametrize("torn", [b"{", b"[]", b'{"configTable":7}', b'{"configTable":{"ns":"v"}}'])
async def test_it_starts_from_the_backup_when_the_file_is_bad(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "kvConfig.json"
    configs = KvConfigs(path)
    await configs.put("ns", "k", "1")
    await configs.put("ns", "k", "2")
    path.write_bytes(torn)
    assert KvConfigs(path).value("ns", "k") == "1"
    assert (tmp_path / "kvConfig.json.bad").read_bytes() == torn


def test_it_does_not_start_empty_over_what_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b"{")
    with pytest.raises(StoreError):
        KvConfigs(path)


def test_a_file_without_a_table_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b"{}")
    assert KvConfigs(path).find_namespace("ns") is None


async def test_a_change_that_cannot_be_saved_does_not_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = KvConfigs(tmp_path / "kvConfig.json")
    await configs.put("ns", "k", "1")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(
            ServiceNotAvailable, match=r"cannot save .*kvConfig.json: .*No space left on device; see to"
        ):
            await configs.put("ns", "k", "2")
    assert configs.value("ns", "k") == "1"
    assert KvConfigs(tmp_path / "kvConfig.json").value("ns", "k") == "1"


async def test_nothing_is_saved_when_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = KvConfigs(tmp_path / "kvConfig.json")

    def unexpected(path: Path, data: bytes) -> None:
        raise AssertionError("saved")

    monkeypatch.setattr(state_file, "save", unexpected)
    await configs.delete("ns", "k")


async def test_there_is_room_for_so_many_entries_and_no_more() -> None:
    configs = KvConfigs(limits=KvLimits(entries=2))
    await configs.put("ns", "a", "1")
    await configs.put("ns2", "b", "1")
    with pytest.raises(SystemBusy, match="kvConfigMaxEntries"):
        await configs.put("ns", "c", "1")
    await configs.put("ns", "a", "2")
    await configs.delete("ns2", "b")
    await configs.put("ns", "c", "1")


OTHER_NAME_SERVER = """
import sys
from pathlib import Path
from cosmodrome.nameserver.kv import KvConfigs
kept = KvConfigs(Path(sys.argv[1]))
print("kept", flush=True)
sys.stdin.read()
kept.close()
print("left", flush=True)
sys.stdin.close()
"""


def test_two_name_servers_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    command = [sys.executable, "-c", OTHER_NAME_SERVER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "kept\n"
        with pytest.raises(StoreError, match=r"kvConfig\.json is in use by another name server; stop it, or choose"):
            KvConfigs(path)
        told, _ = other.communicate("")
    assert told == "left\n"
    configs = KvConfigs(path)
    asyncio.run(configs.put("ns", "k", "v"))
    configs.close()

"""State files: whole or not at all, wherever a crash strikes."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import state_file
from cosmodrome.errors import StoreError


def load(path: Path) -> Any:
    return state_file.load(path, json.loads)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    state_file.save(path, b"1")
    assert load(path) == 1
    assert names(path.parent) == {"topics.json"}


def test_the_state_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    for state in (b"1", b"2", b"3"):
        state_file.save(path, state)
    assert load(path) == 3
    assert (tmp_path / "topics.json.bak").read_bytes() == b"2"
    assert names(tmp_path) == {"topics.json", "topics.json.bak"}


def test_nothing_there_is_a_fresh_start(tmp_path: Path) -> None:
    assert load(tmp_path / "topics.json") is None


@pytest.mark.parametrize("torn", [b'{"half": ', b"\x00\x00", b"\xff"])
def test_a_bad_file_is_set_aside_and_its_backup_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, torn: bytes
) -> None:
    path = tmp_path / "topics.json"
    state_file.save(path, b"1")
    state_file.save(path, b"2")
    path.write_bytes(torn)
    with caplog.at_level(logging.WARNING):
        assert load(path) == 1
    assert len(caplog.records) == 1
    assert (tmp_path / "topics.json.bad").read_bytes() == torn
    assert not path.exists()
    state_file.save(path, b"3")
    assert load(path) == 3
    assert (tmp_path / "topics.json.bak").read_bytes() == b"1", "what was good is not replaced by what was bad"


def test_an_empty_file_counts_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.touch()
    assert load(path) is None
    (tmp_path / "topics.json.bak").write_bytes(b"1")
    assert load(path) == 1


def test_every_bad_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    (tmp_path / "topics.json.bak").write_bytes(b"1")
    for torn in (b"{a", b"{b", b"{c"):
        path.write_bytes(torn)
        assert load(path) == 1
    kept = [tmp_path / f"topics.json{suffix}" for suffix in (".bad", ".bad2", ".bad3")]
    assert [file.read_bytes() for file in kept] == [b"{a", b"{b", b"{c"]


@pytest.mark.parametrize("backup", [None, b"", b"{worse"])
def test_when_nothing_can_be_read_we_refuse_and_touch_nothing(tmp_path: Path, backup: bytes | None) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b"{bad")
    if backup is not None:
        (tmp_path / "topics.json.bak").write_bytes(backup)
    before = names(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"topics\.json"):
            load(path)
    assert names(tmp_path) == before


@pytest.mark.parametrize("crash_at", [0, 1])
def test_a_crash_between_the_steps_leaves_a_whole_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    path = tmp_path / "topics.json"
    state_file.save(path, b"1")
    state_file.save(path, b"2")
    renames = iter(range(2))
    replace = Path.replace

    def crashing(self: Path, target: Path) -> Path:
        if next(renames) == crash_at:
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", crashing)
    with pytest.raises(KeyboardInterrupt):
        state_file.save(path, b"3")
    monkeypatch.undo()
    assert load(path) == 2
    state_file.save(path, b"4")
    assert load(path) == 4


def test_the_bytes_are_on_disk_before_they_get_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def seen_fsync(descriptor: int) -> None:
        steps.append("fsync folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "fsync file")
        fsync(descriptor)

    def seen_replace(self: Path, target: Path) -> Path:
        steps.append(f"rename to {target.name}")
        return replace(self, target)

    path = tmp_path / "t"
    state_file.save(path, b"1")
    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(Path, "replace", seen_replace)
    state_file.save(path, b"2")
    assert steps == ["fsync file", "rename to t.bak", "rename to t", "fsync folder"]


# --- rot


OFFSETS = {"offsetTable": {"orders@billing": {"0": 1234567, "1": 89}}, "dataVersion": {"counter": 7}}
OLDER = {"offsetTable": {"orders@billing": {"0": 1234560}}}


def save_both(path: Path) -> None:
    for state in (OLDER, OFFSETS):
        state_file.save(path, json.dumps(state, indent=1).encode())


def test_every_flipped_bit_is_noticed_though_it_leaves_json(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    save_both(path)
    for position in range(path.stat().st_size):
        save_both(path)
        data = bytearray(path.read_bytes())
        data[position] ^= 1 << position % 8
        path.write_bytes(data)
        found = load(path)
        told = {name: found[name] for name in OFFSETS if name in found}
        assert told in (OFFSETS, OLDER), f"byte {position}"
        for bad in tmp_path.glob("*.bad*"):
            bad.unlink()


def test_the_checksum_is_a_member_that_others_pass_over(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    save_both(path)
    assert json.loads(path.read_bytes()) == {"cosmodromeCrc32": path.read_text()[20:28], **OFFSETS}
    path.write_text(json.dumps(OLDER))  # an Apache broker wrote since
    assert load(path) == OLDER


def test_without_a_backup_the_refusal_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    state_file.save(path, json.dumps(OFFSETS).encode())
    path.write_bytes(path.read_bytes().replace(b"1234567", b"1234566"))
    with pytest.raises(StoreError, match=r"consumerOffset\.json: it does not match its checksum.*put a good copy back"):
        load(path)


def test_progress_never_starts_empty_because_its_file_is(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.touch()
    assert state_file.load(path, json.loads) is None
    with pytest.raises(StoreError, match=r"consumerOffset\.json: it is empty; put a good copy back"):
        state_file.load(path, json.loads, is_progress=True)


def test_an_expendable_state_is_no_reason_not_to_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "timermetrics"
    path.write_bytes(b"{bad")
    assert state_file.load_expendable(path, json.loads, "counted again") is None
    assert names(tmp_path) == {"timermetrics.bad"}
    assert "timermetrics.bad: counted again" in caplog.text

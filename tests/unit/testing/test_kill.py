"""Copies of a folder whose files come and go."""

from pathlib import Path

import pytest

from cosmodrome.errors import StoreError
from cosmodrome.testing import kill


def test_a_copy_has_a_renamed_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "a").write_bytes(b"old")
    (source / "table.tmp").write_bytes(b"new")
    copy_file, copied = kill._copy_file, []

    def copy_slowly(path: Path, place: Path) -> None:
        copied.append(path.name)
        if len(copied) == 2:  # a thread is done with it just now
            path.rename(source / "table")
        copy_file(path, place)

    monkeypatch.setattr(kill, "_copy_file", copy_slowly)
    kill.copy(source, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {"a": b"old", "table": b"new"}
    assert copied == ["a", "table.tmp", "a", "table"]


def test_a_copy_that_never_ends_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "table").write_bytes(b"1")

    def gone(path: Path, place: Path) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(kill, "_copy_file", gone)
    with pytest.raises(StoreError, match="come and go too often"):
        kill.copy(source, target)

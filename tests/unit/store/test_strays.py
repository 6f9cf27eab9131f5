"""Files that do not belong into the log are refused by name, and left alone."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome.config import KIB, StoreConfig
from cosmodrome.errors import StoreError
from cosmodrome.store import MessageStore
from tests.unit.store.kit import SMALL, kill, message, open_store

FIRST = "0" * 20


def store_folder(root: Path, leave: Callable[[MessageStore], None]) -> Path:
    store = open_store(root)
    store.append(message("first", UNIQ_KEY="u"))
    store.append(message("orders", body=b"kept"))
    leave(store)
    return root


@pytest.mark.parametrize("leave", [MessageStore.close, kill])
@pytest.mark.parametrize(
    ("path", "size", "words"),
    [
        (f"commitlog/{FIRST}", 1_000, "has 1000 bytes instead of 65536"),
        ("commitlog/notes.txt", 64 * KIB, "is not a file of this log"),
        (f"commitlog/{1:020d}", 64 * KIB, "is not a file of this log"),
        (f"commitlog/{FIRST}.bak", 64 * KIB, "is not a file of this log"),
    ],
)
def test_a_stray_file_keeps_the_store_from_opening(
    tmp_path: Path, path: str, size: int, words: str, leave: Callable[[MessageStore], None]
) -> None:
    root = store_folder(tmp_path, leave)
    (root / path).write_bytes(b"x" * size)
    with pytest.raises(StoreError, match=words) as refused:
        open_store(root)
    assert str(root / path) in str(refused.value)
    assert (root / path).stat().st_size == size


@pytest.mark.parametrize(
    "changed",
    [
        dataclasses.replace(SMALL, mapped_file_size_commit_log=128 * KIB),
        dataclasses.replace(SMALL, mapped_file_size_consume_queue=4_000),
    ],
)
def test_a_changed_file_size_is_named(tmp_path: Path, changed: StoreConfig) -> None:
    root = store_folder(tmp_path, MessageStore.close)
    with pytest.raises(StoreError, match="the configured file size was changed"):
        open_store(root, changed)

"""Files that do not belong into a store are refused by name, and left alone."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome.config import KIB, StoreConfig
from cosmodrome.errors import StoreError
from cosmodrome.store import MessageStore
from tests.unit.store.kit import SMALL, bodies, kill, message, open_store

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
        (f"consumequeue/first/0/{FIRST}", 60, "has 60 bytes instead of 2000"),
        ("consumequeue/first/0/notes.txt", 2_000, "is not a file of this log"),
        ("index/notes.txt", 10, "is not an index file"),
        ("index/20000101000000000", 10, "has 10 bytes instead of"),
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


def test_a_stray_file_of_one_queue_concerns_that_queue_only(tmp_path: Path) -> None:
    root = store_folder(tmp_path, MessageStore.close)
    stray = root / "consumequeue/orders/0/notes.txt"
    stray.write_bytes(b"x")
    store = open_store(root)
    for use in (lambda: store.read("orders", 0, 0, 1), lambda: store.append(message("orders"))):
        with pytest.raises(StoreError, match=r"notes\.txt is not a file of this log"):
            use()
    assert bodies(store, "first") == [b"body"]
    stray.unlink()
    assert bodies(store, "orders") == [b"kept"]


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

"""Our part of the checkpoint, in a store that another broker has used since: it says where the log ended once."""

from pathlib import Path

import pytest

from cosmodrome.testing.clock import FakeClock
from tests.unit.store.kit import bodies, message, open_store

PRIVATE_FROM = 2048  # Apache's brokers write below
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def add(root: Path, now_ms: int, texts: list[bytes]) -> None:
    """One broker's turn."""
    store = open_store(root, clock=FakeClock(now_ms))
    for text in texts:
        store.append(message(body=text))
    store.close()


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "crashed"])
@pytest.mark.parametrize("later_ms", [0, HOUR_MS], ids=["same time", "later"])
@pytest.mark.parametrize("size", [10, 30_000], ids=["same file", "next files"])
def test_what_another_broker_added_behind_our_mark_is_kept(
    tmp_path: Path, size: int, later_ms: int, crashed: bool
) -> None:
    checkpoint = tmp_path / "checkpoint"
    before = [b"%d" % number for number in range(5)]
    added = [b"%d" % number + b"." * size for number in range(5, 10)]
    add(tmp_path, START_MS, before)
    ours = checkpoint.read_bytes()
    assert any(ours[PRIVATE_FROM:]), "there is a mark"
    add(tmp_path, START_MS + later_ms, added)
    checkpoint.write_bytes(checkpoint.read_bytes()[:PRIVATE_FROM] + ours[PRIVATE_FROM:])
    if crashed:
        (tmp_path / "abort").write_text("4711")

    store = open_store(tmp_path)
    assert bodies(store) == before + added
    store.close()

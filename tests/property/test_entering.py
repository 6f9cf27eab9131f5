"""Records that enter queues and index together leave the bytes that they leave one by one; so does the native part."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmodrome.clock import SystemClock
from cosmodrome.errors import ProtocolError
from cosmodrome.store import dispatcher
from cosmodrome.store.dispatcher import Dispatcher
from cosmodrome.store.index_file import Index
from cosmodrome.wire import properties
from cosmodrome.wire.record import RecordHead, SysFlag, encode_record, head_at, heads_between
from tests.unit.store.kit import open_store

HOST_V4, HOST_V6 = bytes(8), bytes(20)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=8)
SLOTS, ENTRIES = 7, 12


@st.composite
def messages(draw: st.DrawFn) -> dict[str, object]:
    """What a record is made of, but for its places."""
    wanted = draw(st.sets(st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "DELAY", "other"])))
    return {
        "topic": draw(st.sampled_from(["a", "b", "SCHEDULE_TOPIC_XXXX", "é", "t" * 200])).encode(),
        "queue_id": draw(st.integers(0, 2)),
        "body": draw(st.binary(max_size=20)),
        "properties": properties.encode({name: draw(TEXT) for name in sorted(wanted)}).encode(),
        "sys_flag": draw(st.sampled_from([0, 0, 0, SysFlag.COMMIT, SysFlag.PREPARED, SysFlag.ROLLBACK])),
        "born_host": draw(st.sampled_from([HOST_V4, HOST_V6])),
        "queue_step": draw(st.sampled_from([1, 1, 1, 1, 1, 1, 0, 2])),
        "later_ms": draw(st.sampled_from([0, 0, 1, 999, 5_000, -3])),
    }


def make_log(parts: list[dict[str, object]]) -> bytes:
    log, now_ms, offsets = b"", 1_700_000_000_000, dict[tuple[object, object], int]()
    for part in parts:
        fields = dict(part)
        queue = (fields["topic"], fields["queue_id"])
        step, later_ms = fields.pop("queue_step"), fields.pop("later_ms")
        assert isinstance(step, int)
        assert isinstance(later_ms, int)
        now_ms += later_ms
        log += encode_record(
            **fields,  # type: ignore[arg-type]
            flag=0,
            born_timestamp=1,
            store_timestamp=now_ms,
            store_host=HOST_V4,
            queue_offset=offsets.get(queue, 0),
            physical_offset=len(log),
        )
        offsets[queue] = max(offsets.get(queue, 0) + step, 0)
    return log


def one_by_one(log: bytes) -> list[RecordHead]:
    heads, at = [], 0
    while at < len(log):
        try:
            heads.append(head_at(log, at, len(log)))
        except ProtocolError:
            break
        at += heads[-1].size
    return heads


def enter(heads: list[RecordHead], cuts: list[int]) -> tuple[dict[str, bytes], set[tuple[str, int, int]]]:
    """Return every file that is left, and up to where each queue was said to have arrived."""
    with TemporaryDirectory() as folder:
        store = open_store(Path(folder) / "store")
        index = Index(Path(folder) / "index", SLOTS, ENTRIES, SystemClock())
        arrived: dict[tuple[str, int], int] = {}
        entering = Dispatcher(store._queues, index)

        def note(topic: str, queue_id: int, end: int, _code: int) -> None:
            arrived[topic, queue_id] = max(end, arrived.get((topic, queue_id), 0))

        entering.on_arrival = note
        entering.is_recovering = True
        edges = [0, *sorted({min(cut, len(heads)) for cut in cuts}), len(heads)]
        for begin, end in pairwise(edges):
            if cuts:
                entering.dispatch_records(heads[begin:end])
            else:
                for head in heads:
                    entering.dispatch_record(head)
        index.close()
        files = sorted((Path(folder) / "index").iterdir())
        found = {str(number): file.read_bytes() for number, file in enumerate(files)}
        for topic in store.topics():
            for queue_id in store.queues(topic):
                queue = store._queues.queue(topic, queue_id)
                entries = [queue.entry(offset) for offset in range(queue.min_offset, queue.max_offset)]
                found[f"{topic}/{queue_id}"] = repr((queue.min_offset, entries)).encode()
        store.close()
        return found, {(topic, queue_id, end) for (topic, queue_id), end in arrived.items()}


@pytest.mark.parametrize("is_pure", [False, True])
@settings(max_examples=30)
@given(st.lists(messages(), max_size=25), st.lists(st.integers(1, 25), min_size=1, max_size=4))
def test_records_entered_together_leave_what_they_leave_one_by_one(
    is_pure: bool, parts: list[dict[str, object]], cuts: list[int]
) -> None:
    heads = one_by_one(make_log(parts))
    expected = enter(heads, [])
    with patch("cosmodrome.store.dispatcher._native", None) if is_pure else nullcontext():
        assert enter(heads, cuts) == expected


@pytest.mark.parametrize("is_pure", [False, True])
@given(st.lists(messages(), max_size=8), st.integers(0, 3_000), st.integers(0, 255), st.integers(0, 400))
def test_heads_are_read_together_as_one_by_one(
    is_pure: bool, parts: list[dict[str, object]], at: int, change: int, missing: int
) -> None:
    """Also where a byte has changed, or the end is cut off; nothing behind the first that is no record is read."""
    log = bytearray(make_log(parts))
    if at < len(log):
        log[at] ^= change
    del log[max(len(log) - missing, 0) :]
    expected, place = [], 0
    for head in one_by_one(bytes(log)):
        if head.physical_offset != place:
            break
        expected.append(head)
        place += head.size
    with patch("cosmodrome.wire.record._native_log", None) if is_pure else nullcontext():
        found = heads_between(memoryview(bytes(7) + log), 7, 7 + len(log), 0)
    assert found == ([head._replace(body_at=head.body_at + 7) for head in expected], 7 + place)


def test_a_mistake_of_ours_costs_no_record_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = one_by_one(make_log([PLAIN] * 10))
    expected = enter(heads, [])

    def broken(*_: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(dispatcher, "_native", None)
    monkeypatch.setattr(Index, "put_run", broken)
    assert dispatcher._WORTH_A_RUN < 10
    assert enter(heads, [10]) == expected


PLAIN: dict[str, object] = {
    "topic": b"a",
    "queue_id": 0,
    "body": b"x",
    "properties": b"UNIQ_KEY\x01u\x02",
    "sys_flag": 0,
    "born_host": HOST_V4,
    "queue_step": 1,
    "later_ms": 1,
}

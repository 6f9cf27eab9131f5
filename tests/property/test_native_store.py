"""What native code puts into a store is what pure Python puts there, byte for byte.

Where the native part is not used, these tests compare its twin with itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.errors import CosmodromeError
from cosmodrome.store import MessageStore, dispatcher
from cosmodrome.store.message import StoreMessage
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire import batch, java, properties, record
from cosmodrome.wire.batch import BatchItem, decode_batch, encode_batch
from cosmodrome.wire.record import encode_record, encode_records, pack_host
from tests.unit.store.kit import SMALL

ITEMS = [
    "UNIQ_KEY\x01id7\x02",
    "UNIQ_KEY\x01\x02",
    "KEYS\x01a b  c\x02",
    "KEYS\x01 \x02",
    "KEYS\x01é\x02",
    "TAGS\x01paid\x02",
]
ITEMS += [
    "TAGS\x01ü\x02",
    "TAGS\x01\x01x\x02",
    "TAGS\x01open",
    "MYTAGS\x01no\x02",
    "\x01x\x02",
    "\x02\x02",
    "KEYS",
    "é\x01ü\x02",
]
ITEMS += [
    "__CRC32#\x010123456789\x02",
    "a#b\x01c#\x02",
    "\ud800\x01x\x02",
    "k\x01" + "v" * 300 + "\x02",
    "KEYS\x01" + "k " * 300 + "\x02",
]
PROPERTIES = st.lists(st.sampled_from(ITEMS) | st.text("KEYSTAGU_ID #\x01\x02\x00é", max_size=20), max_size=5).map(
    "".join
)
PLAIN = st.builds("UNIQ_KEY\x01{}\x02KEYS\x01{}\x02TAGS\x01t\x02".format, st.integers(0, 99), st.integers(0, 9))
RAW = st.one_of(PLAIN, PLAIN, PROPERTIES)
BODIES = st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"x" * 3_000]))
HOSTS = st.sampled_from([pack_host("127.0.0.1", 1)] * 3 + [pack_host("::2", 1)])
FLAGS = st.sampled_from([0, 0, 0, 0, 1, 2, 4, 8, 12, 0x30])
STEPS = st.tuples(
    st.sampled_from(["orders", "orders", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "ü"]),
    st.integers(0, 1),
    st.one_of(st.tuples(RAW, BODIES), st.lists(st.builds(BatchItem, st.integers(0, 3), BODIES, RAW), max_size=5)),
    FLAGS,
    HOSTS,
    st.integers(0, 3_000),
)


@contextmanager
def pure_python() -> Iterator[None]:
    """Do the work of native code in pure Python until the end of the block."""
    with mock.patch.object(dispatcher, "_native", None), mock.patch.object(record, "_native", None):  # noqa: SIM117
        with mock.patch.object(batch, "_native", None):
            yield


def outcome(work: Callable[[], Any]) -> Any:
    """What some work returns, or how it fails."""
    try:
        return work()
    except (CosmodromeError, UnicodeEncodeError) as error:
        return type(error), str(error)


def filled(steps: Sequence[Any]) -> tuple[list[Any], dict[str, bytes]]:
    """What a store answers to these steps, tells of them, and leaves behind."""
    answers: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="store-") as folder:
        clock = FakeClock()

        def on_arrival(*arrival: Any) -> None:
            answers.append(arrival)

        store = MessageStore.open(Path(folder), SMALL, clock, on_arrival)
        for topic, queue_id, content, flags, host, wait_ms in steps:
            clock.step(wait_ms)
            made = StoreMessage(topic, queue_id, b"", "", 7, flags, 5, host, host, 2)
            if isinstance(content, tuple) and not isinstance(content, BatchItem):
                made.properties, made.body = content
                answers.append(outcome(partial(store.append, made)))
            else:
                answers.append(outcome(partial(store.append_batch, made, content)))
        store.close()
        parts = ("commitlog", "consumequeue", "index")
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for part in parts
            for path in sorted((Path(folder) / part).rglob("*"))
            if path.is_file()
        }
    return answers, files


@given(st.lists(STEPS, max_size=20), st.integers(1, 10))
def test_a_store_is_filled_as_by_pure_python(steps: list[Any], times: int) -> None:
    steps = (steps * times)[:60]
    native = filled(steps)
    with pure_python():
        assert native == filled(steps)


NUMBERS = st.one_of(st.integers(-5, 5), st.sampled_from([2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63]))


@given(st.binary(max_size=200), BODIES, PROPERTIES, st.lists(NUMBERS, min_size=8, max_size=8), HOSTS, st.booleans())
def test_records_are_laid_out_as_by_pure_python(
    topic: bytes, body: bytes, raw_properties: str, numbers: list[int], host: bytes, sealed: bool
) -> None:
    queue_id, flag, sys_flag, born, stored, offset, place, times = numbers
    raw = raw_properties.encode("utf-8", "replace")
    items = [BatchItem(flag, body, raw_properties), BatchItem(0, b"", "")]

    def one() -> bytes:
        parts = (topic, body, raw, queue_id, flag, sys_flag, born, host, stored, host, offset, place, times)
        return encode_record(*parts, sealed=sealed)

    def several() -> tuple[bytes, list[int]]:
        parts = (topic, items, queue_id, sys_flag, born, host, stored, host, offset, place, times)
        return encode_records(*parts, sealed=sealed)

    native = outcome(one), outcome(several)
    with pure_python():
        assert native == (outcome(one), outcome(several))


@given(st.lists(st.tuples(NUMBERS.filter(lambda n: -(2**31) <= n < 2**31), BODIES, PROPERTIES), max_size=5), st.data())
def test_a_batch_is_read_as_by_pure_python(items: list[tuple[int, bytes, str]], data: st.DataObject) -> None:
    items = [(flag, body, raw.replace("\ud800", "")) for flag, body, raw in items]
    damaged = bytearray(encode_batch(items))
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=2)):
        damaged[at % (len(damaged) + 1) : at % (len(damaged) + 1) + 1] = bytes([byte])
    cut = bytes(damaged[: len(damaged) - data.draw(st.sampled_from([0, 0, 1, 5]))])
    most = data.draw(st.integers(0, 6))
    native = outcome(lambda: decode_batch(cut, most))
    with pure_python():
        assert native == outcome(lambda: decode_batch(cut, most))


@given(
    PROPERTIES | PLAIN,
    st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "MYTAGS", "é", "k"]) | st.text("KEYSé#", min_size=1),
)
def test_a_property_is_found_as_by_pure_python(raw: str, name: str) -> None:
    assert properties.find(raw, name) == properties.pure_find(raw, name) == properties.decode(raw).get(name)


@given(
    st.text(max_size=40) | st.sampled_from(["a" * 1_500, "\ud800", "polygenelubricants"]),
    st.integers(-(2**31), 2**31 - 1),
)
def test_a_text_is_hashed_as_by_pure_python(text: str, seed: int) -> None:
    assert java.java_hash(text, seed) == java.pure_java_hash(text, seed)
    assert java.java_hash(text) == java.pure_java_hash(text)

"""Transactions on a store of their own, in virtual time."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from cosmodrome.broker import half_messages
from cosmodrome.broker.half_messages import FAR_BEHIND, Half, OpenHalves, Rules, Verdict, ended_by, judge, op_message
from cosmodrome.broker.transactions import GROUP as OFFSETS_GROUP
from cosmodrome.errors import IllegalOperation, MessageIllegal, NoPermission, RequestError, ServiceNotAvailable
from cosmodrome.model import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from cosmodrome.store import Appended, StoreMessage
from cosmodrome.testing import FakeClock
from cosmodrome.wire import properties as props
from cosmodrome.wire.record import Record, SysFlag, decode_records
from cosmodrome.wire.requests import EndTransaction
from tests.unit.broker.exchange import COMMIT, CONFIG, GROUP, ROLLBACK, TOPIC, Exchange
from tests.unit.store.kit import STORE, message

TIMEOUT_MS, INTERVAL_MS, MAX_CHECKS = 6_000, 30_000, 15
HOUR_MS = 3_600_000
RULES = Rules(TIMEOUT_MS, MAX_CHECKS, 72 * HOUR_MS)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# --- the decision


def half(offset: int = 0, first: int = 0, born_ms: int = 0, immunity_ms: int | None = None, checks: int = 0) -> Half:
    return Half(offset, 0, first, born_ms, immunity_ms, checks)


@pytest.mark.parametrize(
    ("changes", "now_ms", "verdict"),
    [
        ({}, 0, Verdict.WAIT),
        ({}, TIMEOUT_MS, Verdict.WAIT),
        ({}, TIMEOUT_MS + 1, Verdict.CHECK),
        ({"born_ms": 1}, 0, Verdict.CHECK),  # its producer's clock is wrong: nobody knows its age
        ({"immunity_ms": 60_000}, 60_000, Verdict.WAIT),
        ({"immunity_ms": 60_000}, 60_001, Verdict.CHECK),
        ({"immunity_ms": 60_000, "born_ms": 1}, 0, Verdict.WAIT),
        ({"immunity_ms": 0}, 1, Verdict.CHECK),
        ({"checks": MAX_CHECKS - 1}, TIMEOUT_MS + 1, Verdict.CHECK),
        ({"checks": MAX_CHECKS}, 0, Verdict.GIVE_UP),
        ({"immunity_ms": 100 * HOUR_MS}, 72 * HOUR_MS + 1, Verdict.GIVE_UP),
    ],
)
def test_the_age_of_a_transaction_decides(changes: dict[str, int], now_ms: int, verdict: Verdict) -> None:
    assert judge(half(**changes), now_ms, RULES, next_offset=1) is verdict


def test_an_immune_half_is_moved_when_it_holds_back_too_many() -> None:
    immune = half(immunity_ms=60_000)
    assert judge(immune, 0, RULES, FAR_BEHIND) is Verdict.WAIT
    assert judge(immune, 0, RULES, FAR_BEHIND + 1) is Verdict.MOVE


@pytest.mark.parametrize(("body", "ended"), [(b"7", [7]), (b"7,8,", [7, 8]), (b"7,x,-1,", [7]), (b"", [])])
def test_ops_of_every_apache_are_read(body: bytes, ended: list[int]) -> None:
    assert ended_by(op_record(body)) == ended


def test_a_long_op_that_repeats_itself_ends_each_half_once() -> None:
    """Each is remembered by itself until the op can be forgotten: 4 MiB of them would take a hundred times as much."""
    assert ended_by(op_record(b"7,8," * 100_000)) == [7, 8]


def test_an_op_with_another_tag_ends_nothing() -> None:
    assert ended_by(op_record(b"7", tag="x")) == []


def op_record(body: bytes, tag: str = "d") -> Record:
    op = op_message(0, 0)
    return Record(0, 0, 0, 0, 0, 0, 0, 0, 0, "", 0, 0, "", 0, 0, 0, body, op.topic, props.encode({"TAGS": tag}))


def test_a_restart_need_not_read_what_is_ended() -> None:
    halves = OpenHalves(0, 0)
    first, second = half(), half(offset=1, first=1)
    halves.put(first)
    halves.put(second)
    halves.note_op(0, 1)
    halves.end(second)
    assert (halves.start, halves.take_op_start()) == (0, 0)  # the op speaks of a half behind an open one
    halves.put(half(offset=2, checks=1))
    assert (halves.start, halves.take_op_start()) == (2, 1)
    halves.note_op(1, 2)
    halves.end(first)
    assert (halves.start, halves.take_op_start(), len(halves)) == (3, 2, 0)


# --- taking in and ending


async def test_a_half_is_seen_by_nobody_until_it_is_committed(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    sent = exchange.send(b"paid", TAGS="red", DELAY="3")
    assert not exchange.delivered
    (stored,) = exchange.halves()
    kept = props.decode(stored.properties)
    assert (stored.sys_flag, stored.queue_id, kept["REAL_TOPIC"], kept["REAL_QID"]) == (0, 0, TOPIC, "0")
    assert kept["__transactionId__"] == kept["UNIQ_KEY"]
    await exchange.end(sent, COMMIT)
    (final,) = exchange.messages()
    assert final.sys_flag == SysFlag.COMMIT
    assert final.prepared_transaction_offset == sent.physical_offset
    assert (final.body, final.flag, final.properties) == (stored.body, stored.flag, stored.properties)
    assert exchange.ops() == [b"0"]
    await exchange.stop()


async def test_a_rollback_leaves_nothing(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    await exchange.end(exchange.send(b"a"), ROLLBACK)
    producer = exchange.connect()
    await exchange.check_after(INTERVAL_MS)
    assert (exchange.delivered, exchange.ops(), producer.questions) == (Counter(), [b"0"], [])
    await exchange.stop()


@pytest.mark.parametrize(("how", "other"), [(COMMIT, ROLLBACK), (ROLLBACK, COMMIT)])
@pytest.mark.parametrize("restarted", [False, True])
async def test_the_first_end_counts(tmp_path: Path, clock: FakeClock, how: int, other: int, restarted: bool) -> None:
    exchange = Exchange(tmp_path, clock)
    sent = exchange.send(b"a")
    await exchange.end(sent, how)
    if restarted:
        await exchange.stop()
        exchange = Exchange(tmp_path, clock)
    await exchange.end(sent, how)
    with pytest.raises(IllegalOperation, match="before"):
        await exchange.end(sent, other)
    assert exchange.delivered == ({b"a": 1} if how == COMMIT else {})
    assert exchange.ops() == [b"0"]
    await exchange.stop()


async def test_an_end_must_name_its_half_in_full(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    plain = exchange.store.append(message(TOPIC, 0, PGROUP=GROUP))
    sent = exchange.send(b"a")
    wrong = {
        "group": EndTransaction("others", sent.queue_offset, sent.physical_offset, COMMIT),
        "state table": EndTransaction(GROUP, sent.queue_offset + 1, sent.physical_offset, COMMIT),
        "failed: no": EndTransaction(GROUP, sent.queue_offset, sent.physical_offset + 1, COMMIT),
        "failed: the": EndTransaction(GROUP, plain.queue_offset, plain.physical_offset, COMMIT),
    }
    for reason, request in wrong.items():
        with pytest.raises(RequestError, match=reason):
            await exchange.transactions.end(request)
    assert (len(exchange.transactions), exchange.ops()) == (1, [])
    await exchange.stop()


async def test_a_broker_may_refuse_transactions(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock, replace(CONFIG, reject_transaction_message=True))
    with pytest.raises(NoPermission, match="rejectTransactionMessage"):
        exchange.send(b"a")
    await exchange.stop()


async def test_a_forwarded_message_begins_a_transaction_of_its_own(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    exchange.send(b"a")
    sent = exchange.send(b"b", TRAN_PREPARED_QUEUE_OFFSET="0", TRANSACTION_CHECK_TIMES="15")
    await exchange.end(sent, COMMIT)
    assert exchange.delivered == {b"b": 1}
    assert len(exchange.transactions) == 1
    await exchange.stop()


async def test_a_commit_that_finds_no_room_for_its_op_is_still_one(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    producer = exchange.connect()
    sent = exchange.send(b"a")
    put = exchange.transactions._put

    def full(stored: StoreMessage) -> Appended:
        if stored.topic == OP_HALF_TOPIC:
            raise ServiceNotAvailable("no room")
        return put(stored)

    exchange.transactions._put = full
    await exchange.end(sent, COMMIT)
    await exchange.end(sent, COMMIT)
    await exchange.check_after(INTERVAL_MS)
    assert (exchange.delivered, producer.questions) == ({b"a": 1}, [])
    exchange.kill()
    again = Exchange(tmp_path, clock)
    assert len(again.transactions) == 0  # the message is found by its key
    await again.stop()


async def test_a_commit_that_finds_no_room_in_its_queue_is_one_all_the_same(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    exchange = Exchange(tmp_path, clock)
    producer = exchange.connect()
    sent = exchange.send(b"a")
    with monkeypatch.context() as full:
        full.setattr("cosmodrome.store.consume_queue.MappedFile.create", no_room)
        await exchange.end(sent, COMMIT)
        assert exchange.delivered == {}
    await exchange.store.cleaner.measure()
    await exchange.end(sent, COMMIT)
    await exchange.check_after(INTERVAL_MS)
    assert (exchange.delivered, producer.questions) == ({b"a": 1}, [])
    await exchange.stop()


# --- asking


async def test_a_silent_producer_is_asked_where_the_copy_lies(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    producer = exchange.connect()
    exchange.send(b"a")
    await exchange.check_after(TIMEOUT_MS)
    assert producer.take() == []
    await exchange.check_after(1)
    ((asked, half_message),) = producer.take()
    assert (half_message.topic, half_message.queue_id, half_message.body) == (TOPIC, 0, b"a")
    copy = exchange.halves()[1]
    assert (asked.tran_state_table_offset, asked.commit_log_offset) == (1, copy.physical_offset)
    assert asked.msg_id == asked.transaction_id == b"a".hex()
    assert asked.offset_msg_id == copy.offset_msg_id == half_message.offset_msg_id
    assert props.find(copy.properties, "TRANSACTION_CHECK_TIMES") == "1"
    await exchange.end(asked, COMMIT)
    assert (exchange.delivered, exchange.ops()) == ({b"a": 1}, [b"1"])
    await exchange.stop()


async def test_an_end_that_crosses_its_check_counts_once(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    producer = exchange.connect()
    sent = exchange.send(b"a")
    await exchange.check_after(TIMEOUT_MS + 1)
    await exchange.end(sent, COMMIT)  # names the half, which is not where the transaction is any more
    ((asked, _),) = producer.take()
    await exchange.end(asked, COMMIT)
    assert (exchange.delivered, exchange.ops()) == ({b"a": 1}, [b"1"])
    await exchange.check_after(INTERVAL_MS)
    assert producer.take() == []
    await exchange.stop()


async def test_who_asks_for_time_gets_it(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    producer = exchange.connect()
    exchange.send(b"slow", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    exchange.send(b"usual", CHECK_IMMUNITY_TIME_IN_SECONDS="-1")
    await exchange.check_after(INTERVAL_MS)
    assert [record.body for _, record in producer.take()] == [b"usual"]
    await exchange.check_after(INTERVAL_MS + 1)
    assert [record.body for _, record in producer.take()] == [b"slow", b"usual"]
    await exchange.stop()


async def test_producers_of_the_group_are_asked_in_turn(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    one, other, stranger = exchange.connect(), exchange.connect(), exchange.connect("strangers")
    for body in (b"a", b"b"):
        exchange.send(body)
    await exchange.check_after(INTERVAL_MS)
    assert [len(producer.take()) for producer in (one, other, stranger)] == [1, 1, 0]
    other.closed = True
    await exchange.check_after(INTERVAL_MS)
    assert [len(producer.take()) for producer in (one, other)] == [2, 0]
    await exchange.stop()


async def test_a_producer_that_cannot_read_is_not_asked_and_nothing_is_counted(
    tmp_path: Path, clock: FakeClock
) -> None:
    exchange = Exchange(tmp_path, clock)
    exchange.connect().is_stalled = True
    exchange.send(b"a")
    await exchange.check_after(INTERVAL_MS)
    assert len(exchange.halves()) == 1
    await exchange.stop()


async def test_a_transaction_is_given_up_after_so_many_checks(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    producer = exchange.connect()
    sent = exchange.send(b"a")
    for _ in range(MAX_CHECKS):
        await exchange.check_after(INTERVAL_MS)
    assert (len(producer.take()), exchange.given_up) == (MAX_CHECKS, [])
    await exchange.check_after(INTERVAL_MS)
    assert (producer.take(), exchange.given_up, len(exchange.transactions)) == ([], [b"a"], 0)
    assert exchange.topics.find_topic(CHECK_MAX_TIME_TOPIC) is not None
    await exchange.stop()

    # Whoever decides after all is heard, also by a broker that has forgotten.
    exchange = Exchange(tmp_path, clock)
    await exchange.end(sent, COMMIT)
    await exchange.end(sent, COMMIT)
    assert exchange.delivered == {b"a": 1}
    await exchange.stop()


async def test_a_transaction_that_was_given_up_can_be_resumed(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock, replace(CONFIG, transaction_check_max=1))
    exchange.send(b"a")
    for _ in range(2):  # counted although nobody is there
        await exchange.check_after(INTERVAL_MS)
    (lost,) = exchange.messages(CHECK_MAX_TIME_TOPIC)
    producer = exchange.connect()
    exchange.transactions.resume(lost.physical_offset)
    with pytest.raises(IllegalOperation, match="is open"):
        exchange.transactions.resume(exchange.halves()[-1].physical_offset)
    await exchange.check_after(INTERVAL_MS)
    ((asked, _),) = producer.take()
    await exchange.end(asked, COMMIT)
    assert exchange.delivered == {b"a": 1}
    with pytest.raises(IllegalOperation, match="was committed"):
        exchange.transactions.resume(exchange.halves()[-1].physical_offset)
    plain = exchange.messages()[0]
    with pytest.raises(RequestError, match="not a half message"):
        exchange.transactions.resume(plain.physical_offset)
    await exchange.stop()


# --- from one life to the next


async def test_open_transactions_outlive_a_kill(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    sent = [exchange.send(body) for body in (b"a", b"b", b"c", b"d")]
    await exchange.end(sent[0], COMMIT)
    await exchange.check_after(INTERVAL_MS)  # b, c and d now lie behind
    await exchange.end(sent[2], ROLLBACK)
    exchange.kill()
    exchange = Exchange(tmp_path, clock)
    assert len(exchange.transactions) == 2
    producer = exchange.connect()
    await exchange.check_after(INTERVAL_MS)
    taken = producer.take()
    assert [record.body for _, record in taken] == [b"b", b"d"]
    for asked, _ in taken:
        await exchange.end(asked, COMMIT)
    assert exchange.delivered == {b"a": 1, b"b": 1, b"d": 1}
    await exchange.stop()


async def test_what_is_done_is_saved_no_earlier_than_the_copies_are_on_disk(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    exchange.send(b"a")
    await exchange.check_after(INTERVAL_MS)
    exchange.transactions.settle()
    assert exchange.offsets.find_offset(OFFSETS_GROUP, HALF_TOPIC, 0) is None
    await exchange.flush()
    exchange.transactions.settle()
    assert exchange.offsets.of_group(OFFSETS_GROUP) == {HALF_TOPIC: {0: 1}, OP_HALF_TOPIC: {0: 0}}
    await exchange.stop()


async def test_offsets_of_another_store_hide_no_half(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    exchange.offsets.commit(OFFSETS_GROUP, HALF_TOPIC, 0, 1_000)
    await exchange.stop()
    exchange = Exchange(tmp_path, clock)
    exchange.send(b"a")
    await exchange.stop()
    exchange = Exchange(tmp_path, clock)
    assert len(exchange.transactions) == 1
    await exchange.stop()


async def test_apaches_batched_ops_end_their_halves(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    for body in (b"a", b"b", b"c"):
        exchange.send(body)
    exchange.store.append(message(OP_HALF_TOPIC, 0, b"0,2,", TAGS="d"))
    await exchange.stop()
    exchange = Exchange(tmp_path, clock)
    producer = exchange.connect()
    await exchange.check_after(INTERVAL_MS)
    assert [record.body for _, record in producer.take()] == [b"b"]
    await exchange.stop()


async def test_a_half_that_belongs_nowhere_is_given_up(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    lost = message(HALF_TOPIC, 0, b"lost", TRAN_MSG="true", PGROUP=GROUP)
    exchange.store.append(replace(lost, born_timestamp=clock.now_ms()))
    await exchange.stop()
    exchange = Exchange(tmp_path, clock)
    exchange.send(b"sound")
    producer = exchange.connect()
    await exchange.check_after(TIMEOUT_MS + 1)
    assert [record.body for _, record in producer.take()] == [b"sound"]
    assert exchange.given_up == [b"lost"]
    await exchange.stop()


async def test_a_half_without_room_for_checks_is_refused(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    exchange.send(b"a", note="x" * 32_000)
    with pytest.raises(MessageIllegal, match="bytes more"):
        exchange.send(b"b", note="x" * 32_600)
    await exchange.stop()


async def test_an_immune_half_is_moved_and_still_ends_once(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_messages, "FAR_BEHIND", 1)
    exchange = Exchange(tmp_path, clock)
    producer = exchange.connect()
    sent = exchange.send(b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
    await exchange.end(exchange.send(b"usual"), COMMIT)
    await exchange.check_after(INTERVAL_MS)
    moved = exchange.halves()[2]
    assert (moved.body, props.find(moved.properties, "TRANSACTION_CHECK_TIMES")) == (b"immune", None)
    assert producer.take() == []
    await exchange.end(sent, COMMIT)
    assert exchange.delivered == {b"usual": 1, b"immune": 1}
    await exchange.stop()


async def test_store_hosts_of_copies_are_this_brokers(tmp_path: Path, clock: FakeClock) -> None:
    exchange = Exchange(tmp_path, clock)
    exchange.send(b"a")
    await exchange.check_after(INTERVAL_MS)
    view = exchange.store.record_at(exchange.halves()[1].physical_offset)
    assert view is not None
    (copy,) = decode_records(view)
    assert copy.offset_msg_id.startswith(STORE.hex().upper())
    await exchange.stop()


@pytest.mark.parametrize("hours", [3, -3, 100, -100])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_clock_that_is_set_makes_no_transaction_older(
    tmp_path: Path, clock: FakeClock, hours: int, restarted: bool
) -> None:
    exchange = Exchange(tmp_path, clock)
    exchange.store.timeline.save()
    sent = exchange.send(b"a")
    clock.step(hours * HOUR_MS)
    if restarted:
        await exchange.stop()
        exchange = Exchange(tmp_path, clock)
    producer = exchange.connect()
    await exchange.check_after(TIMEOUT_MS)
    assert (producer.take(), exchange.given_up) == ([], [])
    await exchange.check_after(1)
    assert len(producer.take()) == 1
    await exchange.end(sent, COMMIT)
    exchange.transactions._ended.clear()
    clock.step(-hours * HOUR_MS)
    await exchange.end(sent, COMMIT)  # it finds the message that the first one stored
    assert exchange.delivered == {b"a": 1}
    await exchange.stop()

"""One record that a service cannot use: it is left out and named, and neither a start nor any other message suffers."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cosmodrome.broker.delays import LONGEST_RETRY_MS
from cosmodrome.broker.pop.ledger import ReviveLedger
from cosmodrome.broker.pop.messages import checkpoint_message
from cosmodrome.broker.skipping import ATTEMPTS
from cosmodrome.broker.topics import TIMER_TOPIC
from cosmodrome.errors import ProtocolError, ServiceNotAvailable
from cosmodrome.model import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, Message, Property
from cosmodrome.store import StoreMessage
from cosmodrome.store.skipped import read_skipped
from cosmodrome.testing import FakeClock, cluster
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import CheckPoint
from tests.simulation.test_pop_power_loss import GROUP, RETRY, REVIVE, Shop
from tests.unit.broker.exchange import COMMIT, Exchange
from tests.unit.broker.office import office
from tests.unit.broker.test_timers import office as timer_office
from tests.unit.store.kit import STORE, bodies, crash, message, open_store

SECOND = 1_000
DIGITS = "7" * 5_000  # int() refuses more than 4,300
CHECK_MS = 30_000


def poison(topic: str, properties: dict[str, str], body: bytes = b"bad") -> StoreMessage:
    bad = message(topic, 0, body)
    bad.properties = props.encode(properties)
    return bad


def reasons(folder: Path) -> list[tuple[str, str, int]]:
    return [(record.service, record.topic, record.queue_offset) for record in read_skipped(folder / "config")]


# --- transactions


@pytest.mark.parametrize(
    "properties",
    [
        {Property.CHECK_IMMUNITY_TIME_IN_SECONDS: DIGITS},
        {Property.TRAN_PREPARED_QUEUE_OFFSET: DIGITS},
        {Property.TRAN_PREPARED_QUEUE_OFFSET: "0"},
        {Property.TRAN_PREPARED_QUEUE_OFFSET: str(2**62)},
        {Property.TRANSACTION_CHECK_TIMES: DIGITS},
        {Property.REAL_TOPIC: "orders", Property.REAL_QID: DIGITS},
        {Property.REAL_TOPIC: HALF_TOPIC, Property.REAL_QID: "0"},
        {"shop": "x" * 32_700},
    ],
    ids=["immunity", "first", "first of another", "first to come", "checks", "queue", "half of halves", "no room"],
)
async def test_no_half_message_keeps_a_broker_from_starting(tmp_path: Path, properties: dict[str, str]) -> None:
    clock = FakeClock()
    exchange = Exchange(tmp_path, clock)
    first = exchange.send(b"first")
    exchange.store.append(poison(HALF_TOPIC, {"UNIQ_KEY": "P", **properties}, b"poison"))
    last = exchange.send(b"last")
    exchange.kill()
    exchange = Exchange(tmp_path, clock)
    for half in (first, last):
        await exchange.end(half, COMMIT)
    for _ in range(20):
        await exchange.check_after(CHECK_MS)
    assert exchange.delivered == {b"first": 1, b"last": 1}
    assert len(exchange.transactions) == 0  # it holds back nothing
    assert b"poison" in exchange.given_up
    await exchange.stop()


@pytest.mark.parametrize(
    "body", [DIGITS.encode(), b"0," + DIGITS.encode(), b"\xff\xfe,1_0, 1,", b"-1", str(2**80).encode()]
)
async def test_no_op_keeps_a_broker_from_starting(tmp_path: Path, body: bytes) -> None:
    clock = FakeClock()
    exchange = Exchange(tmp_path, clock)
    exchange.store.append(message(OP_HALF_TOPIC, 0, body, TAGS="d"))
    half = exchange.send(b"message")
    exchange.kill()
    exchange = Exchange(tmp_path, clock)
    assert len(exchange.transactions) == 1
    await exchange.end(half, COMMIT)
    assert exchange.delivered == {b"message": 1}
    await exchange.stop()


async def test_an_op_does_not_end_a_half_that_comes_later(tmp_path: Path) -> None:
    clock = FakeClock()
    exchange = Exchange(tmp_path, clock)
    exchange.store.append(message(OP_HALF_TOPIC, 0, b"0,1", TAGS="d"))
    for body in (b"a", b"b"):
        exchange.send(body)
    exchange.kill()
    exchange = Exchange(tmp_path, clock)
    assert len(exchange.transactions) == 2
    await exchange.stop()


async def test_a_half_whose_record_cannot_be_read_stays_open_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    exchange = Exchange(tmp_path, clock)
    lost, kept = exchange.send(b"lost"), exchange.send(b"kept")
    read = exchange.store.record_at
    monkeypatch.setattr(exchange.store, "record_at", lambda at: None if at == lost.physical_offset else read(at))
    await exchange.check_after(CHECK_MS)
    assert [half.offset for half in exchange.transactions._open.all()] == [2]  # the copy of the other one
    assert reasons(tmp_path) == [("transactions", HALF_TOPIC, 0)]
    await exchange.end(kept, COMMIT)
    await exchange.stop()


# --- delays


@pytest.mark.parametrize(
    "properties",
    [
        {"REAL_TOPIC": "orders", "REAL_QID": DIGITS},
        {"REAL_TOPIC": "orders", "REAL_QID": str(2**31)},
        {"REAL_TOPIC": "orders", "REAL_QID": "-1"},
        {"REAL_TOPIC": SCHEDULE_TOPIC, "REAL_QID": "0"},
        {"REAL_TOPIC": TIMER_TOPIC, "REAL_QID": "0"},
        {"REAL_TOPIC": OP_HALF_TOPIC, "REAL_QID": "0"},
        {"REAL_TOPIC": "x" * 32_000, "REAL_QID": "0"},
        {"REAL_TOPIC": "a\0b", "REAL_QID": "0"},
    ],
)
async def test_a_delayed_message_that_belongs_nowhere_is_named(tmp_path: Path, properties: dict[str, str]) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        post.store.append(poison(SCHEDULE_TOPIC, {"DELAY": "1", **properties}))
        post.send(b"good", 1)
        await clock.advance(SECOND)
        assert post.delivered == [b"good"]
        assert post.store.max_offset(SCHEDULE_TOPIC, 0) == 2  # nothing comes back
    assert reasons(tmp_path) == [("delays", SCHEDULE_TOPIC, 0)]


@pytest.mark.parametrize("level", [DIGITS, str(10**9), "-1", "٣", "1_0", " 1"])
async def test_no_delay_level_keeps_a_broker_from_starting(tmp_path: Path, level: str) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    store.append(message("orders", 0, b"first", DELAY=level))
    store.append(message(SCHEDULE_TOPIC, 0, b"bad", DELAY=level))
    store.append(message("orders", 0, b"last"))
    crash(store)
    store = open_store(tmp_path, clock=clock)
    assert bodies(store) == [b"first", b"last"]
    store.close()


async def test_an_error_nobody_thought_of_is_tried_again_and_then_costs_one_message(tmp_path: Path) -> None:
    clock = FakeClock()
    tries = 0

    def broken(delivered: StoreMessage) -> None:
        nonlocal tries
        if delivered.body == b"bad":
            tries += 1
            raise IndexError("ours")

    async with office(tmp_path, clock) as post:
        post.refuse = broken
        for body in (b"bad", b"good"):
            post.send(body, 1)
        await clock.advance(SECOND)
        assert post.delivered == []
        await clock.advance(ATTEMPTS * LONGEST_RETRY_MS)
        assert (post.delivered, tries) == ([b"good"], ATTEMPTS)
    assert reasons(tmp_path) == [("delays", SCHEDULE_TOPIC, 0)]


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "disk"), OSError(errno.ENOSPC, "full"), ServiceNotAvailable("full"), MemoryError()]
)
async def test_a_disk_that_refuses_never_costs_a_message(tmp_path: Path, error: Exception) -> None:
    clock = FakeClock()

    def refusing(_message: StoreMessage) -> None:
        raise error

    async with office(tmp_path, clock) as post:
        post.send(b"good", 1)
        post.refuse = refusing
        await clock.advance(SECOND + 2 * ATTEMPTS * LONGEST_RETRY_MS)
        post.refuse = lambda _message: None
        await clock.advance(LONGEST_RETRY_MS)
        assert post.delivered == [b"good"]
    assert reasons(tmp_path) == []


# --- timers


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_OUT_MS": DIGITS, "REAL_TOPIC": "orders", "REAL_QID": "0"},
        {"TIMER_OUT_MS": str(2**63 - 1), "REAL_TOPIC": "orders", "REAL_QID": "0"},
        {"TIMER_OUT_MS": "1", "REAL_TOPIC": "orders", "REAL_QID": DIGITS},
        {"TIMER_OUT_MS": "1", "REAL_TOPIC": "orders", "REAL_QID": str(2**31)},
        {"TIMER_OUT_MS": "1", "REAL_TOPIC": TIMER_TOPIC, "REAL_QID": "0"},
        {"TIMER_OUT_MS": "1", "REAL_TOPIC": "../etc", "REAL_QID": "0"},
        {},
    ],
)
async def test_a_timed_message_that_belongs_nowhere_is_named(tmp_path: Path, properties: dict[str, str]) -> None:
    clock = FakeClock()
    async with timer_office(tmp_path, clock) as post:
        post.store.append(poison(TIMER_TOPIC, properties))
        post.send(b"good", TIMER_DELAY_MS=2 * SECOND)
        await clock.advance(4 * SECOND)
        assert post.delivered == [b"good"]
    assert reasons(tmp_path) == [("timers", TIMER_TOPIC, 0)]
    async with timer_office(tmp_path, clock) as post:
        post.send(b"next", TIMER_DELAY_MS=2 * SECOND)
        await clock.advance(4 * SECOND)
        assert post.delivered == [b"next"]


async def test_a_timed_message_without_room_for_notes_is_delivered_without_them(tmp_path: Path) -> None:
    clock = FakeClock()
    async with timer_office(tmp_path, clock) as post:
        due = {"TIMER_OUT_MS": str(clock.now_ms() + SECOND), "REAL_TOPIC": "orders", "REAL_QID": "0"}
        post.store.append(poison(TIMER_TOPIC, {"x": "x" * 32_680, **due}, b"large"))
        await clock.advance(4 * SECOND)
        assert post.delivered == [b"large"]


# --- pop


async def test_no_checkpoint_holds_back_those_behind_it(tmp_path: Path) -> None:
    clock = FakeClock()
    shop = Shop(tmp_path, clock)
    shop.store.append(message("orders", 0, b"message"))
    far = CheckPoint("orders", GROUP, 0, 0, (0,), clock.now_ms(), 10**15, "elsewhere")
    shop.store.append(checkpoint_message(far, REVIVE, 0, clock.now_ms(), STORE))
    for body in (b"", b"{", b'{"so":%s}' % DIGITS.encode(), b'{"d":[%s]}' % b",".join([b"1"] * 100), b"[]"):
        shop.store.append(message(REVIVE, 0, body, TAGS="ck"))
        shop.store.append(message(REVIVE, 0, body, TAGS="bAck", TIMER_DELIVER_MS=DIGITS))
    long, lenient = b'{"x":"%s"}' % bytes(70_000), b"{'x':%s}" % (b" " * 20_000 + b"1")
    for body in (long, lenient):  # each is read on the loop
        shop.store.append(message(REVIVE, 0, body, TAGS="ck"))
    shop.store.append(message(REVIVE, 0, b'{"aol":[1]}', TAGS="bAck", TIMER_DELIVER_MS=str(2**62)))
    shop.pop("orders", 1)
    await clock.advance(60 * SECOND)
    await shop.revives.round()
    assert b"message" in bodies(shop.store, RETRY)
    assert shop.revives._ledgers[0].done == shop.store.max_offset(REVIVE, 0) - 1
    assert {service for service, _, _ in reasons(tmp_path)} == {"revives"}
    told = " ".join(record.reason for record in read_skipped(tmp_path / "config"))
    assert "its body has 70008 bytes" in told
    assert "20007 bytes that are not strict JSON" in told
    shop.store.close()


def test_a_checkpoint_is_due_when_its_record_says_so_at_the_latest() -> None:
    ledger = ReviveLedger(0)
    ledger.checkpoint(CheckPoint("t", "g", 0, 0, (0,), 0, 2**62, "b"), 5_000)
    assert ledger.first_due(5_999) is None
    assert ledger.first_due(6_000) is not None


def test_a_checkpoint_of_more_messages_than_a_pop_brings_is_none() -> None:
    with pytest.raises(ProtocolError, match="33 messages"):
        CheckPoint.decode(b'{"d":[%s]}' % b",".join([b"1"] * 33))


def test_properties_that_are_none_are_read_all_the_same() -> None:
    assert props.find("REAL_QID\x01\x02REAL_QID\x017", "REAL_QID") == "7"


# --- what a broker does every so often


async def test_no_turn_of_the_housekeeping_ends_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise ValueError("ours")

    async with cluster() as nodes:
        broker = nodes.brokers[0].broker
        monkeypatch.setattr(broker.statistics, "sampling", fail)
        monkeypatch.setattr(broker.pops.orders, "clean", fail)
        monkeypatch.setattr(broker.locks, "expire", fail)
        monkeypatch.setattr(broker.long_polls, "expiring", fail)
        await nodes.advance(minutes=3)
        async with nodes.producer() as producer:
            await producer.send(Message("orders", b"x"))
        monkeypatch.undo()
        assert len(await nodes.messages("orders")) == 1

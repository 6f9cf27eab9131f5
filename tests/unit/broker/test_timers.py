"""Delivery at any time, in virtual time: when a message comes, in which order, and how often after a stop or a kill."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.broker import timers as module
from cosmodrome.broker.timers import NEVER_SET, Timers, deliver_at, is_timed, recall_handle, slot_of
from cosmodrome.broker.topics import TIMER_TOPIC
from cosmodrome.config import MIB, StoreConfig
from cosmodrome.errors import MessageIllegal, RequestError, ServiceNotAvailable
from cosmodrome.store import MessageStore, StoreMessage
from cosmodrome.testing import FakeClock
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import TimerMetricsBody
from cosmodrome.wire.recall_handle import RecallHandle
from tests.unit.store.kit import SMALL, kill, message, records

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
STORE = replace(SMALL, mapped_file_size_commit_log=1 * MIB, mapped_file_size_timer_log=4_096)
# As long as FakeClock is asked to run in one go, so that a test need not walk through days second by second.
SHORT_WINDOW = replace(STORE, timer_roll_window_slot=30)


@dataclass
class Office:
    """A store with its timers at work, from one start to one end."""

    folder: Path
    clock: FakeClock
    config: StoreConfig = STORE
    refuse: Callable[[StoreMessage], None] = lambda message: None
    deliveries: list[tuple[bytes, int]] = field(default_factory=list)
    messages: list[StoreMessage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = MessageStore.open(self.folder, self.config, self.clock)
        self.timers = Timers(self.store, self.config, self.folder, self.clock, self._put)
        self._task = asyncio.create_task(self.timers.run())

    def _put(self, delivered: StoreMessage) -> None:
        self.refuse(delivered)
        self.store.append(delivered)
        if delivered.topic != TIMER_TOPIC:
            self.deliveries.append((delivered.body, self.clock.now_ms()))
            self.messages.append(delivered)

    def send(self, body: bytes, **properties: object) -> StoreMessage:
        words = {name: str(value) for name, value in properties.items()}
        sent = message("orders", 2, body)
        sent.properties = props.encode({"UNIQ_KEY": body.decode(), **words})
        self.timers.to_wheel(sent)
        self.store.append(sent)
        return sent

    def recall(self, sent: StoreMessage) -> None:
        handle = RecallHandle.decode(recall_handle(sent, "broker-a") or "")
        self.send(
            b"0",
            UNIQ_KEY=handle.unique_key,
            TIMER_DEL_UNIQKEY=f"orders+{handle.unique_key}",
            TIMER_DELIVER_MS=handle.deliver_ms,
        )

    async def flush(self) -> None:
        self.store.flusher.stop()  # a stopped flusher flushes once and ends
        await self.store.flusher.run()

    async def _end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def stop(self) -> None:
        """As a broker does it."""
        await self._end()
        await self.flush()
        await self.timers.close()
        self.store.close()

    async def kill(self) -> None:
        await self._end()
        self.timers.pending.close()
        kill(self.store)

    @property
    def delivered(self) -> list[bytes]:
        return [body for body, _ in self.deliveries]


@asynccontextmanager
async def office(folder: Path, clock: FakeClock, config: StoreConfig = STORE) -> AsyncIterator[Office]:
    opened = Office(folder, clock, config)
    try:
        yield opened
    finally:
        await opened.stop()


# When


@given(st.integers(1, 2**42))
def test_a_slot_is_emptied_at_its_messages_time_or_less_than_a_second_later(deliver_ms: int) -> None:
    emptied_ms = slot_of(deliver_ms) + SECOND
    assert slot_of(deliver_ms) % SECOND == 0
    assert deliver_ms <= emptied_ms < deliver_ms + SECOND


@pytest.mark.parametrize(
    ("properties", "deliver_ms"),
    [
        ({"TIMER_DELAY_SEC": "3"}, 10_000 + 3_000),
        ({"TIMER_DELAY_MS": "3"}, 10_000 + 3),
        ({"TIMER_DELIVER_MS": "13000"}, 13_000),
        ({"__STARTDELIVERTIME": "13000"}, 13_000),
        ({"__STARTDELIVERTIME": "1", "TIMER_DELIVER_MS": "13000"}, 13_000),
        ({"TIMER_DELIVER_MS": "1", "TIMER_DELAY_MS": "2", "TIMER_DELAY_SEC": "3"}, 13_000),
        ({"TIMER_DELIVER_MS": "1", "TIMER_DELAY_MS": "2"}, 10_002),
    ],
)
def test_the_first_of_several_properties_counts(properties: dict[str, str], deliver_ms: int) -> None:
    assert is_timed(props.encode(properties))
    assert deliver_at(props.encode(properties), 10_000) == deliver_ms


def test_what_has_been_through_the_wheel_is_not_timed_again() -> None:
    assert not is_timed(props.encode({"TIMER_DELAY_SEC": "3", "TIMER_OUT_MS": "12000"}))
    assert not is_timed(props.encode({"MY_TIMER_DELAY_SEC": "3"}))


@pytest.mark.parametrize("delay_ms", [1, 999, 1_000, 1_001, 90_007])
async def test_a_message_comes_within_a_second_of_its_time_and_never_before(tmp_path: Path, delay_ms: int) -> None:
    clock = FakeClock()
    await clock.advance(123)
    sent_ms = clock.now_ms()
    async with office(tmp_path, clock) as post:
        post.send(b"x", TIMER_DELAY_MS=delay_ms)
        await clock.advance(delay_ms + SECOND)
        ((body, at_ms),) = post.deliveries
        assert body == b"x"
        assert sent_ms + delay_ms <= at_ms < sent_ms + delay_ms + SECOND


async def test_a_message_whose_time_has_come_goes_straight_to_its_topic(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        sent = post.send(b"x", TIMER_DELIVER_MS=clock.now_ms())
        assert (sent.topic, sent.queue_id) == ("orders", 2)
        assert not (tmp_path / "timerwheel").exists()


async def test_messages_of_one_second_come_in_the_order_they_were_sent(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        sent = [b"%d" % number for number in range(300)]
        for body in sent:
            post.send(body, TIMER_DELAY_SEC=5)
        await clock.advance(10 * SECOND)
        assert post.delivered == sent


async def test_what_is_delivered_says_where_it_was(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        start_ms = clock.now_ms()
        post.send(b"x", TIMER_DELAY_SEC=5, TAGS="paid")
        await clock.advance(6 * SECOND)
        (delivered,) = post.messages
        assert (delivered.topic, delivered.queue_id, delivered.born_timestamp) == ("orders", 2, 1_600_000_000_000)
        assert props.decode(delivered.properties) == {
            "UNIQ_KEY": "x",
            "TIMER_DELAY_SEC": "5",
            "TAGS": "paid",
            "TIMER_OUT_MS": str(start_ms + 4 * SECOND),
            "REAL_TOPIC": "orders",
            "REAL_QID": "2",
            "TIMER_ENQUEUE_MS": str(start_ms),
            "TIMER_DEQUEUE_MS": str(start_ms + 5 * SECOND),
        }


# What is refused


async def test_a_time_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    async with office(tmp_path, FakeClock()) as post:
        post.send(b"x", TIMER_DELAY_SEC=40 * 86_400)
        with pytest.raises(MessageIllegal, match="max delay 3456000000ms"):
            post.send(b"y", TIMER_DELAY_SEC=40 * 86_400 + 1)


async def test_what_is_no_time_is_refused(tmp_path: Path) -> None:
    async with office(tmp_path, FakeClock()) as post:
        with pytest.raises(MessageIllegal, match="TIMER_DELAY_SEC is 'soon'"):
            post.send(b"x", TIMER_DELAY_SEC="soon")


async def test_a_broker_without_a_wheel_says_so(tmp_path: Path) -> None:
    async with office(tmp_path, FakeClock(), replace(STORE, timer_wheel_enable=False)) as post:
        with pytest.raises(RequestError, match="timerWheelEnable is false"):
            post.send(b"x", TIMER_DELAY_SEC=1)


async def test_properties_must_leave_room_for_what_delivery_adds(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        with pytest.raises(MessageIllegal, match="shorter"):
            post.send(b"x", TIMER_DELAY_SEC=1, much="x" * 32_600)
        post.send(b"x", TIMER_DELAY_SEC=1, much="x" * 32_450)
        await clock.advance(3 * SECOND)
        assert post.delivered == [b"x"]


async def test_too_many_in_one_second_are_refused(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock, replace(STORE, timer_congest_num_each_slot=3)) as post:
        for _ in range(3):
            post.send(b"x", TIMER_DELAY_SEC=60)
        await clock.advance(SECOND)
        with pytest.raises(RequestError, match="flow control"):
            post.send(b"x", TIMER_DELAY_SEC=59)
        post.send(b"x", TIMER_DELAY_SEC=58)


# Far ahead


async def test_a_message_beyond_the_window_is_put_behind_the_others_on_the_way(tmp_path: Path) -> None:
    clock = FakeClock()
    start_ms = clock.now_ms()
    async with office(tmp_path, clock, SHORT_WINDOW) as post:
        post.send(b"x", TIMER_DELAY_SEC=100)
        await clock.advance(99 * SECOND)
        assert post.deliveries == []
        assert post.store.max_offset(TIMER_TOPIC, 0) > 2
        await clock.advance(2 * SECOND)
        assert post.deliveries == [(b"x", start_ms + 100 * SECOND)]
        assert int(props.find(post.messages[0].properties, "TIMER_ROLL_TIMES") or 0) >= 3
        assert post.timers.metrics.pending("orders") == 0


async def test_the_window_is_shorter_than_the_store_keeps_records(tmp_path: Path) -> None:
    """Else the commit log would drop what waits in the wheel."""
    clock = FakeClock()
    async with office(tmp_path, clock, replace(STORE, file_reserved_time=3)) as post:
        post.send(b"x", TIMER_DELAY_SEC=10 * 3_600)
        await clock.advance(SECOND)
        (_, unit), *_ = post.timers.pending.log.units(0)
        assert unit.is_rolled
        assert unit.due_ms <= clock.now_ms() + 2 * HOUR


# Taking back


async def test_a_recalled_message_does_not_come(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        one, _two = post.send(b"one", TIMER_DELAY_SEC=10), post.send(b"two", TIMER_DELAY_SEC=10)
        await clock.advance(5 * SECOND)
        post.recall(one)
        await clock.advance(SECOND)
        assert post.timers.metrics.pending("orders") == 1
        await clock.advance(10 * SECOND)
        assert post.delivered == [b"two"]
        assert post.timers.metrics.pending("orders") == 0


async def test_a_recall_beyond_the_window_finds_its_message(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock, SHORT_WINDOW) as post:
        sent = post.send(b"one", TIMER_DELAY_SEC=100)
        post.send(b"two", TIMER_DELAY_SEC=100)
        await clock.advance(50 * SECOND)
        post.recall(sent)
        await clock.advance(60 * SECOND)
        assert post.delivered == [b"two"]


async def test_a_recall_in_the_last_moment_holds_also_through_a_stop(tmp_path: Path) -> None:
    """It is taken while the slot is still to come, and set only after the broker is back, later than the slot."""
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        sent = post.send(b"one", TIMER_DELAY_MS=9_500)
        await clock.advance(8_999)
        post.recall(sent)
    await clock.advance(MINUTE)
    async with office(tmp_path, clock) as post:
        post.send(b"two", TIMER_DELAY_SEC=1)
        await clock.advance(5 * SECOND)
        assert post.delivered == [b"two"]


async def test_a_recall_of_nothing_changes_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        post.send(b"one", TIMER_DELAY_SEC=10)
        post.send(b"0", UNIQ_KEY="other", TIMER_DEL_UNIQKEY="orders+other", TIMER_DELAY_SEC=10)
        await clock.advance(11 * SECOND)
        assert post.delivered == [b"one"]
        assert post.timers.metrics.pending("orders") == 0


# Stops, kills and full disks


async def test_a_clean_stop_neither_loses_nor_repeats(tmp_path: Path) -> None:
    clock = FakeClock()
    delivered: list[bytes] = []
    sent = [b"%d" % number for number in range(100)]
    async with office(tmp_path, clock) as post:
        for number, body in enumerate(sent):
            post.send(body, TIMER_DELAY_MS=number * 300 + 1)
    for _ in range(12):
        async with office(tmp_path, clock) as post:
            await clock.advance(3_456)
            delivered += post.delivered
    assert delivered == sent


async def test_a_stop_in_the_middle_of_a_second_neither_loses_nor_repeats(tmp_path: Path) -> None:
    clock = FakeClock()
    sent = [b"%d" % number for number in range(1_000)]
    delivered: list[bytes] = []
    async with office(tmp_path, clock) as post:
        for body in sent:
            post.send(body, TIMER_DELAY_SEC=5)
        await clock.advance(SECOND)
    await clock.advance(MINUTE)
    stops = 0
    while len(delivered) < len(sent):
        opened = Office(tmp_path, clock)
        for _ in range(4):
            await asyncio.sleep(0)  # a few turns of the loop: some of the slot, not all of it
        await opened.stop()
        delivered += opened.delivered
        stops += 1
    assert delivered == sent
    assert stops > 3


async def test_after_a_kill_nothing_is_lost_and_what_was_noted_is_not_repeated(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        for number in range(20):
            post.send(b"%d" % number, TIMER_DELAY_SEC=number + 1)
        await clock.advance(5 * SECOND)
        before = post.delivered
    killed = Office(tmp_path, clock)
    await clock.advance(5 * SECOND)
    assert killed.delivered == [b"%d" % number for number in range(5, 10)]
    await killed.kill()
    async with office(tmp_path, clock) as post:
        await clock.advance(MINUTE)
        assert before == [b"%d" % number for number in range(5)]
        assert set(post.delivered) >= {b"%d" % number for number in range(10, 20)}
        assert not set(post.delivered) & set(before)


async def test_a_broker_that_was_down_for_a_month_delivers_everything_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        for number in range(20):
            post.send(b"%d" % number, TIMER_DELAY_SEC=number * 8_000 + 100)
        await clock.advance(SECOND)
    await clock.advance(30 * DAY)
    async with office(tmp_path, clock) as post:
        post.send(b"new", TIMER_DELAY_SEC=5)
        await until(lambda: len(post.delivered) == 20)
        assert post.delivered == [b"%d" % number for number in range(20)]
        await clock.advance(7 * SECOND)
        assert post.delivered[-1] == b"new"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # what is waited for needs turns of this loop and is no event
            await asyncio.sleep(0)


async def test_a_message_set_too_late_is_delivered_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        post.send(b"first", TIMER_DELAY_SEC=1)
        await clock.advance(10 * SECOND)
        late = message("orders", 0, b"late", UNIQ_KEY="late", TIMER_DELIVER_MS=str(clock.now_ms() + SECOND))
        post.timers.to_wheel(late)
        late.properties = props.append(late.properties, "TIMER_OUT_MS", str(clock.now_ms() - 5 * SECOND))
        post.store.append(late)
        await clock.advance(SECOND)
        assert post.delivered == [b"first", b"late"]
        assert props.find(post.messages[-1].properties, "TIMER_ENQUEUE_MS") == str(NEVER_SET)


async def test_a_full_disk_delays_but_loses_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        post.send(b"one", TIMER_DELAY_SEC=2)
        post.send(b"two", TIMER_DELAY_SEC=2)
        full = [ServiceNotAvailable("the disk has no room")] * 3

        def refuse(delivered: StoreMessage) -> None:
            if delivered.body == b"two" and full:
                raise full.pop()

        post.refuse = refuse
        await clock.advance(4 * SECOND)
        assert post.delivered == [b"one"]
        await clock.advance(4 * SECOND)
        assert post.delivered == [b"one", b"two"]


async def test_a_disk_without_room_for_the_wheel_delays_but_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        post.send(b"one", TIMER_DELAY_SEC=2)

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "no space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(post.timers.pending.wheel, "put", full)
            await clock.advance(5 * SECOND)
        assert post.delivered == []
        await clock.advance(2 * SECOND)
        assert post.delivered == [b"one"]


async def test_a_bad_message_in_the_timer_topic_is_left_out(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        post.store.append(message(TIMER_TOPIC, 0, b"bad"))
        post.store.append(message(TIMER_TOPIC, 0, b"bad", TIMER_OUT_MS="soon", REAL_TOPIC="orders"))
        post.store.append(message(TIMER_TOPIC, 0, b"bad", TIMER_OUT_MS=str(clock.now_ms()), REAL_TOPIC="orders"))
        post.send(b"good", TIMER_DELAY_SEC=2)
        await clock.advance(4 * SECOND)
        assert post.delivered == [b"good"]


async def test_a_burst_leaves_the_loop_to_others_in_between(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        for number in range(2_000):
            post.send(b"%d" % number, TIMER_DELAY_SEC=1)
        longest = before = 0

        def refuse(_: StoreMessage) -> None:
            nonlocal longest
            longest = max(longest, len(post.deliveries) - before)

        post.refuse = refuse
        advancing = asyncio.create_task(clock.advance(SECOND))
        while len(post.deliveries) < 2_000:
            before = len(post.deliveries)
            await asyncio.sleep(0)
        await advancing
        assert 0 < longest <= module.MESSAGES_IN_A_ROW


async def test_pending_timers_are_counted(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        for _ in range(3):
            post.send(b"x", TIMER_DELAY_SEC=60)
        post.send(b"x", TIMER_DELAY_SEC=2)
        await clock.advance(5 * SECOND)
    counted = TimerMetricsBody.decode((tmp_path / "config" / "timermetrics").read_bytes())
    assert counted.pending["orders"][0] == 3


async def test_a_handle_leads_back_to_the_slot_of_its_message(tmp_path: Path) -> None:
    async with office(tmp_path, FakeClock()) as post:
        sent = post.send(b"x", TIMER_DELAY_MS=5_000)
        handle = RecallHandle.decode(recall_handle(sent, "broker-a") or "")
        assert (handle.topic, handle.broker_name, handle.unique_key) == ("orders", "broker-a", "x")
        assert slot_of(handle.deliver_ms) == int(props.find(sent.properties, "TIMER_OUT_MS") or 0)
        assert recall_handle(message("orders"), "broker-a") is None


async def test_the_record_of_a_timed_message_keeps_all_it_had(tmp_path: Path) -> None:
    async with office(tmp_path, FakeClock()) as post:
        post.send(b"x", TIMER_DELAY_SEC=5, KEYS="k")
        (stored,) = records(post.store.read(TIMER_TOPIC, 0, 0, 1).views)
        assert (stored.topic, stored.queue_id, stored.body) == (TIMER_TOPIC, 0, b"x")
        assert props.find(stored.properties, "KEYS") == "k"


# Rot


def rot(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("position", [30, 95])
async def test_a_rotten_timer_log_loses_no_timer_and_repeats_none(tmp_path: Path, running: bool, position: int) -> None:
    """Also not those that were put behind the others: several records of one message lie in the timer topic then."""
    clock = FakeClock()
    post = Office(tmp_path, clock, SHORT_WINDOW)
    sent = [b"%d" % seconds for seconds in (1, 2, 20, 25, 40, 70, 100, 110)]
    for body in sent:
        post.send(body, TIMER_DELAY_SEC=int(body))
    taken_back = post.send(b"never", TIMER_DELAY_SEC=105)
    await clock.advance(30 * SECOND)
    assert post.delivered == sent[:4]
    path = tmp_path / "timerlog" / f"{0:020}"
    if running:
        with path.open("r+b") as file:
            file.seek(4 * 52 + position)
            file.write(b"\x55")
    else:
        await post.stop()
        rot(path, 4 * 52 + position)
        first, post = post, Office(tmp_path, clock, SHORT_WINDOW)
        post.deliveries = first.deliveries
    await clock.advance(20 * SECOND)
    post.recall(taken_back)
    await clock.advance(35 * SECOND)
    await clock.advance(35 * SECOND)
    assert sorted(post.delivered, key=int) == sent
    assert post.timers.metrics.pending("orders") == 0
    await post.stop()


async def test_a_rotten_record_does_not_keep_timers_from_being_set_again(tmp_path: Path) -> None:
    """Of all timers that are set again, those whose records are sound are delivered."""
    clock = FakeClock()
    post = Office(tmp_path, clock, SHORT_WINDOW)
    for seconds in (40, 50, 60):
        post.send(b"%d" % seconds, TIMER_DELAY_SEC=seconds)
    place = post.store.entry(TIMER_TOPIC, 0, 1)
    assert place is not None
    await clock.advance(2 * SECOND)
    await post.stop()
    rot(tmp_path / "timerlog" / f"{0:020}", 30)
    rot(tmp_path / "commitlog" / f"{0:020}", place[0] + 89)
    first, post = post, Office(tmp_path, clock, SHORT_WINDOW)
    post.deliveries = first.deliveries
    await clock.advance(65 * SECOND)
    assert post.delivered == [b"40", b"60"]
    assert post.timers._superseded is None
    await post.stop()


async def test_a_message_that_was_lost_to_damage_lets_no_other_come_twice(tmp_path: Path) -> None:
    """Its entry in the queue leads to the beginning of the log, where another timed message may lie."""
    clock = FakeClock()
    post = Office(tmp_path, clock)
    post.send(b"5", TIMER_DELAY_SEC=5)
    post.send(b"6", TIMER_DELAY_SEC=6)
    place = post.store.entry(TIMER_TOPIC, 0, 1)
    assert place is not None
    post.send(b"7", TIMER_DELAY_SEC=7)
    await post.kill()
    rot(tmp_path / "commitlog" / f"{0:020}", place[0] + 89)
    post = Office(tmp_path, clock)
    await clock.advance(10 * SECOND)
    assert post.delivered == [b"5", b"7"]
    await post.stop()

"""Delay levels in virtual time: when a message comes, in which order, and how often after a stop or a kill."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from cosmodrome.broker.delays import FIRST_RETRY_MS, MAX_IN_A_ROW, delay_level, to_schedule
from cosmodrome.errors import MessageIllegal, ServiceNotAvailable
from cosmodrome.model import HALF_TOPIC, SCHEDULE_TOPIC
from cosmodrome.store import StoreMessage
from cosmodrome.testing import FakeClock
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import DelayOffsetsBody
from tests.unit.broker.office import FEW_LEVELS, FEW_LEVELS_MS, STORE, Office, office
from tests.unit.store.kit import bodies, message, records

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
EVERY_LEVEL = [
    *(1 * SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND),
    *(minutes * MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(1 * HOUR, 2 * HOUR),
]


@pytest.mark.parametrize("level", range(1, 19))
async def test_every_level_delivers_at_its_time_and_not_a_millisecond_before(tmp_path: Path, level: int) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        post.send(b"x", level)
        await clock.advance(EVERY_LEVEL[level - 1] - 1)
        assert post.deliveries == []
        await clock.advance(1)
        assert post.delivered == [b"x"]


async def test_all_levels_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    start_ms = clock.now_ms()
    async with office(tmp_path, clock) as post:
        for level in reversed(range(1, 19)):
            post.send(b"%d" % level, level)
        await clock.advance(2 * HOUR)
        assert [int(body) for body in post.delivered] == list(range(1, 19))
        assert [delivery.at_ms - start_ms for delivery in post.deliveries] == EVERY_LEVEL


async def test_configured_levels_are_obeyed_and_a_higher_one_means_the_highest(tmp_path: Path) -> None:
    clock = FakeClock()
    start_ms = clock.now_ms()
    async with office(tmp_path, clock, replace(STORE, message_delay_level="2s 3m 1h")) as post:
        for level in (9, 1, 3, 2):
            post.send(b"%d" % level, level)
        await clock.advance(HOUR)
    waits = {delivery.body: delivery.at_ms - start_ms for delivery in post.deliveries}
    assert waits == {b"1": 2 * SECOND, b"2": 3 * MINUTE, b"3": HOUR, b"9": HOUR}


async def test_a_delivered_message_is_the_one_that_was_sent(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        post.send(b"body", 1, queue_id=3, TAGS="paid", KEYS="k1", UNIQ_KEY="U", shop="Köln")
        (waiting,) = records(post.store.read(SCHEDULE_TOPIC, 0, 0, 1).views)
        await clock.advance(SECOND)
        (record,) = records(post.store.read("orders", 3, 0, 1).views)
        assert post.store.find_by_key("orders", "k1", 1, 0, clock.now_ms())
        assert post.store.read("orders", 3, 0, 1, codes=frozenset({1})).count == 0  # its tag is filtered again
    assert (waiting.topic, waiting.queue_id) == (SCHEDULE_TOPIC, 0)
    assert (record.topic, record.queue_id, record.body, record.flag) == ("orders", 3, b"body", waiting.flag)
    assert (record.born_timestamp, record.born_host) == (waiting.born_timestamp, waiting.born_host)
    assert record.store_timestamp == waiting.store_timestamp + SECOND
    kept = props.decode(record.properties)
    assert {"TAGS": "paid", "KEYS": "k1", "UNIQ_KEY": "U", "shop": "Köln"}.items() <= kept.items()
    assert (kept["DELAY"], kept["REAL_TOPIC"], kept["REAL_QID"]) == ("1", "orders", "3")


async def test_many_messages_of_one_level_keep_their_order(tmp_path: Path) -> None:
    clock = FakeClock()
    count = 3 * MAX_IN_A_ROW + 5
    async with office(tmp_path, clock) as post:
        for index in range(count):
            post.send(b"%d" % index, 2)
        post.send(b"other level", 1)
        await clock.advance(5 * SECOND)
        assert post.delivered == [b"other level", *[b"%d" % index for index in range(count)]]


async def test_nothing_wakes_while_nothing_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        looks: list[int] = []
        look = post.delays._look

        async def counted(level: int) -> None:
            looks.append(level)
            await look(level)

        monkeypatch.setattr(post.delays, "_look", counted)
        await clock.advance(MINUTE)
        assert looks == []
        post.send(b"a", 5)
        post.send(b"b", 5)
        await clock.advance(MINUTE - 1)
        assert looks == [5]  # when the first came; the second changes nothing
        await clock.advance(1)
        assert post.delivered == [b"a", b"b"]


# --- stopping and starting


async def test_a_clean_restart_repeats_nothing_and_delivers_late_what_came_due_meanwhile(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        post.send(b"first", 1)
        post.send(b"second", 2)
        await clock.advance(SECOND)
    await clock.advance(HOUR)
    async with office(tmp_path, clock) as post:
        await clock.advance(0)
        assert post.delivered == [b"second"]
        assert bodies(post.store) == [b"first", b"second"]
    saved = DelayOffsetsBody.decode((tmp_path / "config" / "delayOffset.json").read_bytes())
    assert dict(saved.offsets) == {1: 1, 2: 1}


async def test_the_file_has_apaches_shape_and_old_ones_without_a_version_are_read(tmp_path: Path) -> None:
    clock = FakeClock()
    path = tmp_path / "config" / "delayOffset.json"
    async with office(tmp_path, clock) as post:
        for index in range(3):
            post.send(b"%d" % index, 1)
        await clock.advance(SECOND)
    text = path.read_text()
    assert '"dataVersion":{' in text
    assert '"offsetTable":{1:3}' in "".join(text.split())
    path.write_text('{"offsetTable":{1:1}}')
    async with office(tmp_path, clock) as post:
        await clock.advance(0)
        assert post.delivered == [b"1", b"2"]


async def test_offsets_are_saved_only_up_to_what_is_on_disk(tmp_path: Path) -> None:
    clock = FakeClock()
    path = tmp_path / "config" / "delayOffset.json"
    async with office(tmp_path, clock) as post:
        post.send(b"x", 1)
        await clock.advance(SECOND)
        await post.delays.save()
        assert not path.exists()  # the copy may still be lost with the power, and then it must come again
        await post.flush()
        await post.delays.save()
        assert dict(DelayOffsetsBody.decode(path.read_bytes()).offsets) == {1: 1}


async def test_offsets_of_another_store_do_not_hold_back_what_comes(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock):
        pass  # its checkpoint says that the log is empty; else the offsets would prove one that is gone
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "delayOffset.json").write_text('{"offsetTable":{1:500,2:500}}')
    async with office(tmp_path, clock) as post:
        post.send(b"x", 1)
        await clock.advance(SECOND)
        assert post.delivered == [b"x"]


async def test_levels_that_are_configured_no_more_still_deliver(tmp_path: Path) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        post.send(b"x", 18)
    async with office(tmp_path, clock, replace(STORE, message_delay_level="1s")) as post:
        await clock.advance(2 * HOUR - 1)
        assert post.delivered == []
        await clock.advance(1)
        assert post.delivered == [b"x"]


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("seed", range(8))
async def test_each_message_comes_once_in_order_and_on_time_whatever_happens(
    tmp_path: Path, seed: int, ending: str
) -> None:
    random = Random(seed)
    draw: dict[str, Callable[[], int]] = {
        "send": lambda: random.randint(1, len(FEW_LEVELS_MS)),
        "wait": lambda: random.choice([1, 400, 999, 1_000, 5_000, 12_345]),
        "save": lambda: 0,
        ending: lambda: 0,
    }
    actions = random.choices(list(draw), weights=[6, 5, 1, 2], k=60)
    await _live_through(tmp_path, [(action, draw[action]()) for action in actions])


async def _live_through(folder: Path, steps: list[tuple[str, int]]) -> None:
    """At least once and in order after a kill; exactly once without. At its due time, or at once after a start."""
    clock = FakeClock()
    post, began_ms, killed = Office(folder, clock, FEW_LEVELS), clock.now_ms(), False
    sent: dict[bytes, tuple[int, int]] = {}  # body → level, when it is due
    seen: list[bytes] = []

    def check() -> None:
        for delivery in post.deliveries:
            assert delivery.at_ms == max(sent[delivery.body][1], began_ms)
        for level in range(1, len(FEW_LEVELS_MS) + 1):
            numbers = [int(body) for body in post.delivered if sent[body][0] == level]
            assert numbers == sorted(set(numbers))
        seen.extend(post.delivered)

    for action, number in [*steps, ("wait", FEW_LEVELS_MS[-1])]:
        if action == "send":
            body = b"%d" % len(sent)
            sent[body] = number, clock.now_ms() + FEW_LEVELS_MS[number - 1]
            post.send(body, number)
        elif action == "wait":
            await clock.advance(number)
        elif action == "save":
            await post.flush()
            await post.delays.save()
        else:
            await (post.stop() if action == "stop" else post.kill())
            check()
            killed |= action == "kill"
            post, began_ms = Office(folder, clock, FEW_LEVELS), clock.now_ms()
    await post.stop()
    check()
    assert set(seen) == set(sent)
    assert killed or len(seen) == len(sent)


# --- when something is wrong


async def test_a_store_that_refuses_delays_its_level_and_nothing_is_lost(tmp_path: Path) -> None:
    clock = FakeClock()

    def full(_message: StoreMessage) -> None:
        raise ServiceNotAvailable(f"the disk has no room: {errno.ENOSPC}")

    async with office(tmp_path, clock) as post:
        for index in range(3):
            post.send(b"%d" % index, 1)
        post.refuse = full
        await clock.advance(SECOND + 5 * FIRST_RETRY_MS)
        assert post.deliveries == []
        post.refuse = lambda _message: None
        await clock.advance(10 * FIRST_RETRY_MS)
        assert post.delivered == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    "bad",
    [
        message(SCHEDULE_TOPIC, 0, b"bad", DELAY="1"),
        message(SCHEDULE_TOPIC, 0, b"bad", DELAY="1", REAL_TOPIC="orders", REAL_QID="x"),
        message(SCHEDULE_TOPIC, 0, b"bad", DELAY="1", REAL_TOPIC="../etc", REAL_QID="0"),
        message(SCHEDULE_TOPIC, 0, b"bad", DELAY="1", REAL_TOPIC=HALF_TOPIC, REAL_QID="0"),
    ],
    ids=["nowhere", "no queue", "no topic", "half"],
)
async def test_a_message_that_cannot_be_delivered_does_not_hold_up_the_others(
    tmp_path: Path, bad: StoreMessage, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        post.store.append(bad)
        post.send(b"good", 1)
        await clock.advance(SECOND)
        assert post.delivered == [b"good"]
    assert "record skipped: service=delays" in caplog.text


async def test_a_clock_set_back_while_nobody_looked_keeps_a_message_for_no_longer_than_its_level(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        post.send(b"x", 3)
        await clock.advance(4 * SECOND)
        post.send(b"y", 1)
    clock = FakeClock(clock.now_ms() - 24 * HOUR)
    async with office(tmp_path, clock) as post:
        await clock.advance(6 * SECOND - 1)
        assert post.delivered == [b"y"]
        await clock.advance(1)
        assert post.delivered == [b"y", b"x"]


@pytest.mark.parametrize("hours", [3, -3, 100, -100])
async def test_a_clock_that_is_set_neither_hastens_nor_holds_up_a_message(tmp_path: Path, hours: int) -> None:
    clock = FakeClock()
    async with office(tmp_path, clock) as post:
        post.send(b"before", 4)
        await clock.advance(SECOND)
        clock.step(hours * HOUR)
        post.store.timeline.look()
        post.send(b"after", 3)
        await clock.advance(10 * SECOND - 1)
        assert post.delivered == []
        await clock.advance(1)
        assert post.delivered == [b"after"]
        await clock.advance(19 * SECOND - 1)
        assert post.delivered == [b"after"]
        await clock.advance(1)
        assert post.delivered == [b"after", b"before"]


# --- asking for a level


@pytest.mark.parametrize(("text", "level"), [("3", 3), ("0", 0), ("-1", -1), ("99", 99)])
def test_the_level_a_message_asks_for(text: str, level: int) -> None:
    assert delay_level(props.encode({"DELAY": text})) == level
    assert delay_level("") == delay_level(props.encode({"TIMER_DELAY_SEC": text})) == 0


def test_a_level_that_is_no_number_is_refused() -> None:
    with pytest.raises(MessageIllegal, match="delay level"):
        delay_level(props.encode({"DELAY": "soon"}))


def test_a_level_counts_more_than_a_time() -> None:
    sent = message(DELAY="2", TIMER_DELAY_SEC="60", TIMER_DELAY_MS="1", TIMER_DELIVER_MS="9", TAGS="a")
    to_schedule(sent, 2, 18)
    assert props.decode(sent.properties) == {"DELAY": "2", "TAGS": "a", "REAL_TOPIC": "orders", "REAL_QID": "0"}

"""Delivery at any time: Java 5.3.3 sends and recalls, and a store with pending timers goes from broker to broker."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from cosmodrome import Message, Producer
from cosmodrome.wire import properties
from cosmodrome.wire.recall_handle import RecallHandle
from cosmodrome.wire.record import Record
from interop.java import run_java
from interop.messages import body
from interop.ours import CosmodromeNameServer
from interop.stores import BROKER_NAME, StoreFolder, indexes, settled

CLIENT = SERVER = "5.3.3"  # 4.x knows no timers
TOPIC, TIMER_TOPIC = "timed", "rmq_sys_wheel_timer"
QUEUES = 2
SECOND_MS = 1_000
WAYS = ("setDelayTimeSec", "setDelayTimeMs", "setDeliverTimeMs")


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with CosmodromeNameServer(tmp_path_factory.mktemp("namesrv")) as server:
        yield server.address


@pytest.fixture
def folder(tmp_path: Path, namesrv: str) -> StoreFolder:
    return StoreFolder(tmp_path, namesrv)


@pytest.mark.parametrize("broker", ["ours", "apache"])
def test_java_sends_for_later_and_takes_back(folder: StoreFolder, broker: str) -> None:
    """Each way of asking for a time; of each three messages the second is recalled."""
    with folder.open_in_ours() if broker == "ours" else folder.open_in_apache(SERVER):
        folder.create_topic(TOPIC, QUEUES)
        for number, way in enumerate(WAYS):
            words = {"way": way, "delays": "8000,8000,6000", "first": 3 * number, "recall": 3 * number + 1}
            words |= {"namesrv": folder.namesrv, "group": "timed-app", "topic": TOPIC}
            sent = run_java(CLIENT, "Timed", words).messages
            check_recalled(sent)
        wanted = {3 * number + index for number in range(len(WAYS)) for index in (0, 2)}
        found = settled(partial(folder.messages, TOPIC, QUEUES), lambda found: len(found) >= len(wanted))
        assert indexes(found) == Counter(wanted)
        check_on_time(found)


def check_recalled(sent: list[dict[str, object]]) -> None:
    first, recalled, last = sent
    assert [line["status"] for line in sent] == ["SEND_OK"] * 3
    assert recalled["recalled"] == recalled["msgId"]
    for line in (first, recalled, last):
        handle = RecallHandle.decode(str(line["recallHandle"]))
        assert (handle.topic, handle.broker_name, handle.unique_key) == (TOPIC, BROKER_NAME, line["msgId"])


def check_on_time(found: list[Record]) -> None:
    """Never early; how late depends on the machine. What brokers note about a timed message is there."""
    for record in found:
        notes = properties.decode(record.properties)
        assert record.store_timestamp >= int(notes["TIMER_OUT_MS"]) + SECOND_MS
        if "TIMER_DELIVER_MS" in notes:
            assert record.store_timestamp >= int(notes["TIMER_DELIVER_MS"])
        assert notes["REAL_TOPIC"] == TOPIC
        assert {"REAL_QID", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"} <= notes.keys()


# Three turns of brokers. Each leaves timers to the next ones, and one that was taken back.
FIRST, SECOND, THIRD, LATER = range(100), range(100, 200), range(200, 220), range(220, 223)
RECALLED = (50, 150)
# One that is killed takes no time to stop, and what it is delivering may come again.
AFTER_A_KILL_S = 12
# What Apache is delivering while it stops in order comes again, so nothing may be due then. On a busy machine it takes
# 20 s to start, sometimes twice that, and its timers stop 10 to 20 s after it is told to.
APACHE_STOPS_S = 40
APACHE_STARTS_AND_STOPS_S = 65


full = pytest.mark.full  # stops of Apache's brokers, which take their time


@pytest.mark.parametrize("killed", [pytest.param("nobody", marks=full), pytest.param("ours", marks=full), "apache"])
def test_pending_timers_go_to_apache_and_come_back(folder: StoreFolder, killed: str) -> None:
    with folder.open_in_ours() as ours:
        folder.create_topic(TOPIC, QUEUES)
        second_s = AFTER_A_KILL_S + 18 if killed == "apache" else APACHE_STARTS_AND_STOPS_S
        send(folder, dict.fromkeys(FIRST, 12) | dict.fromkeys(SECOND, second_s) | dict.fromkeys(LATER, 7_200))
        folder.leave(ours, kill=killed == "ours")

    with folder.open_in_apache(SERVER) as apache:
        check_delivered(folder, FIRST, again=killed != "nobody")
        send(folder, dict.fromkeys(THIRD, AFTER_A_KILL_S if killed == "apache" else APACHE_STOPS_S))
        folder.leave(apache, kill=killed == "apache")

    with folder.open_in_ours() as ours:
        check_delivered(folder, FIRST, SECOND, THIRD, again=killed != "nobody")
        folder.leave(ours, kill=False)
    check_waiting(folder)


@pytest.mark.parametrize("kill", [pytest.param(False, marks=full), True], ids=["stopped", "killed"])
def test_apaches_pending_timers_are_delivered_by_ours(folder: StoreFolder, kill: bool) -> None:
    with folder.open_in_apache(SERVER) as apache:
        folder.create_topic(TOPIC, QUEUES)
        stops_s = AFTER_A_KILL_S if kill else APACHE_STOPS_S
        due = dict.fromkeys(FIRST, stops_s) | dict.fromkeys(SECOND, stops_s + 2)
        send(folder, due | dict.fromkeys(LATER, 7_200))
        folder.leave(apache, kill=kill)

    with folder.open_in_ours() as ours:
        check_delivered(folder, FIRST, SECOND, again=kill)
        folder.leave(ours, kill=False)
    check_waiting(folder)


def send(folder: StoreFolder, seconds: dict[int, int]) -> None:
    """Index → how many seconds later; those in RECALLED are taken back."""

    async def run() -> None:
        async with Producer(group="timed-app", namesrv=folder.namesrv) as producer:
            for index, delay in seconds.items():
                message = Message(TOPIC, body(index), keys=f"key-{index}", delay=timedelta(seconds=delay))
                result = await producer.send(message, timeout_ms=10_000)
                if index in RECALLED:
                    assert await producer.recall(TOPIC, result.recall_handle) == result.msg_id

    asyncio.run(run())


def check_delivered(folder: StoreFolder, *ranges: range, again: bool) -> None:
    """All of these came: once, or `again` after a kill."""
    wanted = Counter(index for span in ranges for index in span if index not in RECALLED)
    found = settled(partial(delivered, folder), lambda found: found.keys() >= wanted.keys())
    assert {index for index in found if index < LATER.start} >= wanted.keys()
    assert not found.keys() & {*RECALLED, *LATER}
    if not again:
        assert all(times == 1 for times in found.values())


def delivered(folder: StoreFolder) -> Counter[int]:
    return indexes(folder.messages(TOPIC, QUEUES))


def check_waiting(folder: StoreFolder) -> None:
    """What is due much later is still in the timer topic, with everything that its delivery needs."""
    recalls = b"0"
    waiting = [record for record in folder.stored(TIMER_TOPIC, 0) if record.body != recalls]
    assert indexes(waiting).keys() >= set(LATER)

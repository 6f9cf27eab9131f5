"""Pop consumption: Java 5.3.3 pops from our broker as from Apache's, and what is out goes with the store."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cosmodrome.wire import properties
from cosmodrome.wire.pop import Handle, marked_topic
from cosmodrome.wire.record import Record, decode_records
from interop.apache import ApacheBroker, ask
from interop.java import JavaProgram, mqadmin, run_java
from interop.messages import Load, seen_by_java
from interop.ours import CosmodromeBroker, CosmodromeNameServer
from interop.stores import BROKER_NAME, StoreFolder, indexes, once, settled

CLIENT = SERVER = "5.3.3"  # 4.x knows no pop
TOPIC, GROUP, QUEUES, COUNT = "popped", "poppers", 4, 20
INVISIBLE_MS = 10_000  # a Java consumer takes 5 s at least, and may need some to begin
# So long after the invisible time Apache has revived what it will; ours is quicker.
QUIET_MS = INVISIBLE_MS + 10_000

_POP_MESSAGE, _ACK_MESSAGE = 200050, 200051
_SUCCESS, _POLLING_TIMEOUT = 0, 210


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with CosmodromeNameServer(tmp_path_factory.mktemp("namesrv")) as server:
        yield server.address


@pytest.fixture
def folder(tmp_path: Path, namesrv: str) -> StoreFolder:
    return StoreFolder(tmp_path, namesrv)


@pytest.mark.parametrize("broker", ["ours", "apache"])
def test_a_java_consumer_that_pops_gets_everything_once(folder: StoreFolder, broker: str) -> None:
    with folder.open_in_ours() if broker == "ours" else folder.open_in_apache(SERVER):
        pop_from_now_on(folder)
        produce(folder)
        with start(folder) as consumer:
            seen = [seen_by_java(line) for line in consumer.wait_messages(COUNT)]
            consumer.end()
        assert Counter(message.index for message in seen) == once(range(COUNT))
        assert {(message.topic, message.reconsume_times) for message in seen} == {(TOPIC, 0)}
        assert all("POP_CK" in message.properties for message in seen), "they were pulled"
        later = run_java(CLIENT, "Consume", {**words(folder), "idleMs": QUIET_MS}).messages
        assert later == []


@pytest.mark.full  # more than a minute of invisible times
def test_what_a_java_consumer_refuses_or_never_finishes_comes_again(folder: StoreFolder) -> None:
    """A refusal is a change of the invisible time, to 10 s; who ends in the midst of a message says nothing at all."""
    with folder.open_in_ours():
        pop_from_now_on(folder)
        produce(folder)
        with start(folder, fail=True) as consumer:
            tries = [seen_by_java(line) for line in consumer.wait_messages(2 * COUNT)]
            consumer.end()
        assert Counter((message.index, message.reconsume_times) for message in tries[: 2 * COUNT]) == Counter(
            (index, times) for index in range(COUNT) for times in (0, 1)
        )
        assert {message.topic for message in tries} == {TOPIC}
        with start(folder, hang=True) as consumer:
            held = [seen_by_java(line) for line in consumer.wait_messages(1)]
            consumer.end()
        assert held[0].reconsume_times >= 2
        with start(folder) as consumer:
            rest = [seen_by_java(line) for line in consumer.wait_messages(COUNT)]
            consumer.end()
        assert Counter(message.index for message in rest) == once(range(COUNT))
        assert {message.reconsume_times for message in rest} <= {2, 3}


ACKED = range(0, COUNT, 2)
OPEN = range(1, COUNT, 2)


@pytest.mark.parametrize(
    ("first", "kill"), [pytest.param("ours", False, marks=pytest.mark.full), ("ours", True), ("apache", False)]
)
def test_what_is_out_goes_with_the_store(folder: StoreFolder, first: str, kill: bool) -> None:
    """One broker hands messages out and hears of half of them; the other brings back the rest, and only that."""
    openings: list[Callable[[], CosmodromeBroker | ApacheBroker]]
    openings = [folder.open_in_ours, partial(folder.open_in_apache, SERVER)]
    if first == "apache":
        openings.reverse()
    with openings[0]() as broker:
        folder.create_topic(TOPIC, QUEUES)
        produce(folder)
        taken = settled(partial(pop_more, folder, []), lambda taken: len(taken) == COUNT)
        for record, handle in taken:
            if index(record) in ACKED:
                ack(folder, handle)
        folder.wait_consumed(GROUP, TOPIC, COUNT)
        folder.leave(broker, kill=kill)

    found: list[tuple[Record, Handle]] = []
    with openings[1]() as broker:
        # Apache brings them back one queue at a time: the first must not come again before the last is here.
        more = partial(pop_more, folder, found, invisible_ms=120_000)
        settled(more, lambda found: indexes_of(found).keys() >= set(OPEN))
        assert indexes_of(found) == once(OPEN)
        assert {record.reconsume_times for record, _ in found} == {1}
        for _, handle in found:
            ack(folder, handle)
        folder.leave(broker, kill=False)

    with openings[0]() as broker:
        assert run_java(CLIENT, "Consume", {**words(folder), "idleMs": QUIET_MS}).messages == []
        assert pop_more(folder, []) == []
        folder.leave(broker, kill=False)
    folder.verify()


# --- Java


def pop_from_now_on(folder: StoreFolder) -> None:
    """As an operator does it, with mqadmin."""
    folder.create_topic(TOPIC, QUEUES)
    folder.create_group(GROUP, 16)
    words = ["-n", folder.namesrv, "-b", folder.address, "-t", TOPIC, "-g", GROUP, "-m", "POP", "-q", "0"]
    mqadmin(CLIENT, ["setConsumeMode", *words], "set consume mode to", folder.home)


def words(folder: StoreFolder) -> dict[str, object]:
    return {"namesrv": folder.namesrv, "topic": TOPIC, "group": GROUP, "popInvisibleMs": INVISIBLE_MS}


def start(folder: StoreFolder, **more: object) -> JavaProgram:
    consumer = JavaProgram(CLIENT, "Consume", {**words(folder), **more}, alone="hang" in more)
    try:
        consumer.wait_ready()
    except BaseException:
        consumer.stop()
        raise
    return consumer


def produce(folder: StoreFolder) -> None:
    sent = {**Load(TOPIC, COUNT).java_arguments(), "namesrv": folder.namesrv, "group": "pop-app"}
    run_java(CLIENT, "Produce", sent)


# --- by hand


def pop_more(
    folder: StoreFolder, found: list[tuple[Record, Handle]], invisible_ms: int = 15_000
) -> list[tuple[Record, Handle]]:
    """Add what can be popped now to what was found before."""
    fields: dict[str, Any] = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 32}
    fields |= {"invisibleTime": invisible_ms, "pollTime": 0, "bornTime": 0, "initMode": 0, "order": "false"}
    header, data = ask(folder.address, _POP_MESSAGE, fields)
    assert header["code"] in (_SUCCESS, _POLLING_TIMEOUT), header
    if header["code"] == _SUCCESS:
        found += [(record, handle_of(record, header["extFields"])) for record in decode_records(data)]
    return found


def handle_of(record: Record, fields: dict[str, str]) -> Handle:
    noted = properties.find(record.properties, "POP_CK")
    if noted is not None:
        return Handle.decode(noted)
    starts = dict(item.rsplit(" ", 1) for item in fields["startOffsetInfo"].split(";"))
    times = (int(fields["popTime"]), int(fields["invisibleTime"]), int(fields["reviveQid"]))
    start_offset = int(starts[f"0 {record.queue_id}"])
    return Handle(start_offset, *times, "0", BROKER_NAME, record.queue_id, record.queue_offset)


def ack(folder: StoreFolder, handle: Handle) -> None:
    fields = {"consumerGroup": GROUP, "topic": marked_topic(TOPIC, GROUP, handle.retry), "queueId": handle.queue_id}
    header, _ = ask(folder.address, _ACK_MESSAGE, {**fields, "extraInfo": handle.encode(), "offset": handle.offset})
    assert header["code"] == _SUCCESS, json.dumps(header)


def index(record: Record) -> int:
    return next(iter(indexes([record])))


def indexes_of(found: list[tuple[Record, Handle]]) -> Counter[int]:
    return indexes(record for record, _ in found)

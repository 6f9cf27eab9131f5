"""A store that one broker wrote is opened by another: ours and Apache's, after a clean stop and after kill -9."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cosmodrome.errors import StoreError
from cosmodrome.store.checkpoint import Checkpoint
from cosmodrome.wire import properties
from cosmodrome.wire.record import Record
from interop.java import JavaProgram, run_java
from interop.messages import Load, index_of, seen_by_java
from interop.our_client import send_ours
from interop.ours import CosmodromeNameServer
from interop.setup import CLIENT_VERSIONS, SERVER_VERSIONS
from interop.stores import (
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    StoreFolder,
    append_delayed,
    append_half,
    append_message,
    consume,
    indexes,
    once,
    send_delayed,
    settled,
)

QUEUES = 3
BODY_BYTES = 1_000
RETRIES = 5
GROUP = "billing"
HALF_GROUP = "payments-producer"
ORDERS, BATCHES, DELAYED, PAYMENTS = TOPICS = ("orders", "batches", "delayed", "payments")
SHORT, LONG = 1, 18  # delay levels: one second, and two hours, which no case outlasts
ROLLS = 3  # at least, of each kind of file

# The indexes that a broker's turn leaves in each topic.
CONSUMED, LEFT, ADDED = range(120), range(120, 220), range(220, 320)
BATCH, ADDED_BATCH = range(20), range(20, 40)
DUE, WAITING = range(3), range(3, 5)
ADDED_DUE, ADDED_WAITING = range(10, 12), range(12, 14)
CHECKED, PENDING = range(3), range(3, 4)
ADDED_COMMITTED, ADDED_CHECKED, ADDED_PENDING = range(10, 12), range(13, 14), range(14, 15)

both_versions = pytest.mark.parametrize("version", SERVER_VERSIONS)
both_ends = pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])

CLIENTS = dict(zip(SERVER_VERSIONS, CLIENT_VERSIONS, strict=True))


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with CosmodromeNameServer(tmp_path_factory.mktemp("namesrv")) as server:
        yield server.address


@pytest.fixture
def folder(tmp_path: Path, namesrv: str) -> StoreFolder:
    return StoreFolder(tmp_path, namesrv)


@both_ends
@both_versions
def test_our_store_goes_to_apache_and_comes_back(folder: StoreFolder, version: str, kill: bool) -> None:
    append_waiting(folder)
    with folder.open_in_ours() as ours:
        send_first(folder)
        if kill:
            folder.wait_consumed(GROUP, ORDERS, len(CONSUMED))
        folder.leave(ours, kill=kill)
    check_rolled(folder)

    with folder.open_in_apache(version) as apache:
        check_first(folder)
        check_consumed_on(folder, version)
        send_more(folder, version)
        delivered, paid = held(folder, DELAYED), held(folder, PAYMENTS)
        if kill:
            folder.wait_consumed(GROUP, ORDERS, len(CONSUMED) + len(LEFT))
            folder.wait_delivered(SHORT, len(DUE) + len(ADDED_DUE))
        folder.leave(apache, kill=kill)
    folder.verify()

    with folder.open_in_ours() as ours:
        check_all(folder, delivered, paid)
        assert consume(folder.namesrv, GROUP, ORDERS, len(ADDED)) == once(ADDED)
        folder.leave(ours, kill=False)
    folder.verify()
    check_waiting(folder, [*WAITING, *ADDED_WAITING], [*PENDING, *ADDED_PENDING])


@both_versions
def test_apache_takes_our_seals_for_its_own(folder: StoreFolder, version: str) -> None:
    """5.3.3 gives up a log where the checksum over a whole record is missing or wrong, if it is told to look at it."""
    folder.ours = {"enabledAppendPropCRC": "true"}
    if version == "5.3.3":
        folder.apaches = {"enabledAppendPropCRC": "true", "forceVerifyPropCRC": "true"}
    with folder.open_in_ours() as ours:
        folder.create_topic(ORDERS, QUEUES)
        folder.create_topic(BATCHES, QUEUES)
        send(folder, ORDERS, range(10))
        send(folder, BATCHES, range(10, 16), "batch")
        folder.leave(ours, kill=True)
    with folder.open_in_apache(version) as apache:
        assert held(folder, ORDERS) == once(range(10))
        assert held(folder, BATCHES) == once(range(10, 16))
        send(folder, ORDERS, range(16, 20))
        folder.leave(apache, kill=True)
    folder.verify()
    stored = [record for queue_id in range(QUEUES) for record in folder.stored(ORDERS, queue_id)]
    assert indexes(stored) == once(range(10), range(16, 20))
    log = next((folder.root / "commitlog").iterdir()).read_bytes()
    assert log.count(b"__CRC32#\x01") == (20 if version == "5.3.3" else 16)


@both_versions
def test_apache_adds_to_a_store_that_we_closed(folder: StoreFolder, version: str) -> None:
    """Our part of the checkpoint says where the log ended. Apache leaves that as it is, and then it is stale."""
    store = folder.open()
    for index in range(10):
        append_message(store, ORDERS, index % QUEUES, index, folder.address)
    store.close()
    assert Checkpoint(folder.root / "checkpoint").clean_end is not None
    with folder.open_in_apache(version) as apache:
        folder.create_topic(ORDERS, QUEUES)
        assert held(folder, ORDERS) == once(range(10))
        with pytest.raises(StoreError, match="in use"):
            folder.open()
        send(folder, ORDERS, range(10, 12))
        folder.leave(apache, kill=False)
    folder.verify()
    stored = [record for queue_id in range(QUEUES) for record in folder.stored(ORDERS, queue_id)]
    assert indexes(stored) == once(range(12))


@both_ends
@both_versions
def test_apaches_store_opens_in_ours(folder: StoreFolder, version: str, kill: bool) -> None:
    with folder.open_in_apache(version) as apache:
        send_first(folder)
        with transactions(folder, version, checked=len(CHECKED), pending=len(PENDING)) as producer:
            send_delayed(folder.namesrv, DELAYED, dict.fromkeys(DUE, SHORT) | dict.fromkeys(WAITING, LONG))
            check_delivered(folder, DELAYED, DUE)
            check_delivered(folder, PAYMENTS, CHECKED)
            producer.wait_ready()  # with the pending one
        delivered, paid = held(folder, DELAYED), held(folder, PAYMENTS)
        if kill:
            folder.wait_consumed(GROUP, ORDERS, len(CONSUMED))
            folder.wait_delivered(SHORT, len(DUE))
        folder.leave(apache, kill=kill)
    check_rolled(folder)
    folder.verify()

    with folder.open_in_ours() as ours:
        check_first(folder)
        check_topics(folder, {DELAYED: delivered, PAYMENTS: paid})
        assert consume(folder.namesrv, GROUP, ORDERS, len(LEFT)) == once(LEFT)
        folder.leave(ours, kill=kill)
    folder.verify()
    check_waiting(folder, list(WAITING), list(PENDING))


# What goes in


def append_waiting(folder: StoreFolder) -> None:
    """Delayed and half messages."""
    store = folder.open()
    for index in DUE:
        append_delayed(store, DELAYED, index, SHORT, folder.address)
    for index in WAITING:
        append_delayed(store, DELAYED, index, LONG, folder.address)
    for index in CHECKED:
        append_half(store, PAYMENTS, index, HALF_GROUP, "checked", folder.address)
    for index in PENDING:
        append_half(store, PAYMENTS, index, HALF_GROUP, "pending", folder.address)
    store.close()


def send_first(folder: StoreFolder) -> None:
    """Topics and a group by hand, messages of every ordinary kind, and a group that has consumed some of them."""
    for topic in TOPICS:
        folder.create_topic(topic, QUEUES)
    folder.create_group(GROUP, RETRIES)
    send(folder, ORDERS, CONSUMED)
    assert consume(folder.namesrv, GROUP, ORDERS, len(CONSUMED)) == once(CONSUMED)
    folder.settle_offsets(GROUP, ORDERS, QUEUES)
    send(folder, ORDERS, LEFT)
    send(folder, BATCHES, BATCH, "batch")


def send_more(folder: StoreFolder, version: str) -> None:
    """Every kind of message, to a broker that can be asked for every kind."""
    send(folder, ORDERS, ADDED)
    send(folder, BATCHES, ADDED_BATCH, "batch")
    send_delayed(folder.namesrv, DELAYED, dict.fromkeys(ADDED_DUE, SHORT) | dict.fromkeys(ADDED_WAITING, LONG))
    with transactions(folder, version, first=10, commit=2, rollback=1, checked=1, pending=1) as producer:
        check_delivered(folder, DELAYED, DUE, ADDED_DUE)
        check_delivered(folder, PAYMENTS, CHECKED, ADDED_COMMITTED, ADDED_CHECKED)
        producer.wait_ready()
        asked = {line["checked"] for line in producer.messages if "checked" in line}
    assert asked >= {*CHECKED, *ADDED_CHECKED}


def send(folder: StoreFolder, topic: str, added: range, way: str = "send") -> None:
    send_ours(folder.namesrv, f"{topic}-producer", Load(topic, len(added), BODY_BYTES, first=added.start), way)


def transactions(folder: StoreFolder, version: str, **words: object) -> JavaProgram:
    """A Java producer that sends half messages and answers what the broker asks about them and about older ones."""
    arguments = {"namesrv": folder.namesrv, "group": HALF_GROUP, "topic": PAYMENTS, **words}
    return JavaProgram(CLIENTS[version], "Transact", arguments)


# What is found


def check_first(folder: StoreFolder) -> None:
    """Everything of `send_first` is there."""
    tables = folder.topic_queues()
    assert {topic: tables[topic] for topic in TOPICS} == dict.fromkeys(TOPICS, QUEUES)
    assert folder.group_retries()[GROUP] == RETRIES
    expected = {ORDERS: once(CONSUMED, LEFT), BATCHES: once(BATCH)}
    check_topics(folder, expected)
    check_keys(folder, expected)


def check_all(folder: StoreFolder, delivered: Counter[int], paid: Counter[int]) -> None:
    """Everything of both turns is there as often as it was when the last broker left."""
    expected = {
        ORDERS: once(CONSUMED, LEFT, ADDED),
        BATCHES: once(BATCH, ADDED_BATCH),
        DELAYED: delivered,
        PAYMENTS: paid,
    }
    check_topics(folder, expected)
    check_keys(folder, expected)
    assert folder.group_retries()[GROUP] == RETRIES


def check_topics(folder: StoreFolder, expected: dict[str, Counter[int]]) -> None:
    """Each topic holds these messages, once; Apache may still be at delivering them."""
    for topic, wanted in expected.items():
        found = settled(partial(held, folder, topic), partial(reaches, wanted.total()))
        assert found == wanted, topic


def check_delivered(folder: StoreFolder, topic: str, *parts: range) -> None:
    """What waited for its time or its decision has come: at least once, which is all that is promised for it. A broker
    that is killed may deliver again, and Apache may ask twice about a transaction and then commits it twice."""
    wanted = set(once(*parts))
    assert set(settled(lambda: set(held(folder, topic)), wanted.issubset)) == wanted


def reaches(count: int, found: Counter[int]) -> bool:
    return found.total() >= count


def held(folder: StoreFolder, topic: str) -> Counter[int]:
    return indexes(folder.messages(topic, QUEUES))


def check_keys(folder: StoreFolder, expected: dict[str, Counter[int]]) -> None:
    """Some of the messages, old and new, are found by their key; Apache may still be at indexing them."""
    for topic, wanted in expected.items():
        all_indexes = list(wanted)
        for index in {all_indexes[0], all_indexes[len(all_indexes) // 2], all_indexes[-1]}:
            found = settled(partial(folder.find, topic, f"key-{index}"), bool)
            assert indexes(found) == {index: wanted[index]}


def check_consumed_on(folder: StoreFolder, version: str) -> None:
    """Apache's consumer goes on where its group stopped at our broker."""
    words: dict[str, object] = {"namesrv": folder.namesrv, "group": GROUP, "topic": ORDERS, "count": len(LEFT)}
    received = run_java(CLIENTS[version], "Consume", words).messages
    assert Counter(seen_by_java(line).index for line in received) == once(LEFT)
    folder.settle_offsets(GROUP, ORDERS, QUEUES)


def check_rolled(folder: StoreFolder) -> None:
    for part in ("commitlog", f"consumequeue/{ORDERS}/0", "index"):
        assert folder.files(part) >= ROLLS, part


def check_waiting(folder: StoreFolder, delayed: list[int], pending: list[int]) -> None:
    """What still waits for its time or its decision is in the store, with everything that its delivery needs."""
    schedule = folder.stored(SCHEDULE_TOPIC, LONG - 1)
    assert indexes(schedule) == once(delayed)
    for record in schedule:
        assert wanted_properties(record, "DELAY", "REAL_TOPIC") == [str(LONG), DELAYED]
    # Each time Apache asks for a decision it puts a copy of the half message behind the others.
    halves = [record for record in folder.stored(HALF_TOPIC, 0) if index_of(record.body) in pending]
    assert set(indexes(halves)) == set(pending)
    for record in halves:
        assert wanted_properties(record, "TRAN_MSG", "PGROUP", "REAL_TOPIC") == ["true", HALF_GROUP, PAYMENTS]


def wanted_properties(record: Record, *names: str) -> list[str | None]:
    found = properties.decode(record.properties)
    return [found.get(name) for name in names]

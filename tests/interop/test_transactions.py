"""Apache's transaction producers at our broker, and transactions that go from one kind of broker to the other."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cosmodrome import Message, ReceivedMessage, SendStatus, TransactionProducer, TransactionState
from interop.java import JavaProgram
from interop.lab import Cluster, Lab, other_version
from interop.messages import body, index_of, seen_by_java
from interop.our_client import SEND_TIMEOUT_MS
from interop.ours import CosmodromeBroker, CosmodromeNameServer
from interop.setup import CLIENT_VERSIONS, SERVER_VERSIONS
from interop.stores import StoreFolder, indexes, once, settled

GROUP, TOPIC, QUEUES = "payments-producer", "payments", 3
# Long enough for a producer to be gone before anyone asks about its transactions.
HASTY = {"transactionTimeOut": 6_000, "transactionCheckInterval": 500, "transactionCheckMax": 10_000}
# What one producer sends, in this order.
COMMITTED, ROLLED_BACK, CHECKED, PENDING = range(3), range(3, 5), range(5, 7), range(7, 8)
ADDED = range(10, 12)
ASKED_TIMEOUT_S = 60
ONE_MORE: dict[str, object] = {"first": ADDED.start, "commit": 1}
FATES: dict[str, object] = {
    "commit": len(COMMITTED),
    "rollback": len(ROLLED_BACK),
    "checked": len(CHECKED),
    "pending": len(PENDING),
}

every_client = pytest.mark.parametrize("version", CLIENT_VERSIONS)
every_server = pytest.mark.parametrize("version", SERVER_VERSIONS)
CLIENTS = dict(zip(SERVER_VERSIONS, CLIENT_VERSIONS, strict=True))


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with CosmodromeNameServer(tmp_path_factory.mktemp("namesrv")) as server:
        yield server.address


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, namesrv: str) -> Iterator[Cluster]:
    """Our broker, asking sooner than usual."""
    with CosmodromeBroker(namesrv, tmp_path_factory.mktemp("broker"), extra=HASTY) as broker:
        yield Cluster("hasty", namesrv, broker.broker_name, broker.address)


@every_client
def test_java_commits_rolls_back_and_is_asked(
    lab: Lab, hasty: Cluster, fresh: Callable[[str], str], version: str
) -> None:
    topic = made_topic(lab, hasty, fresh)
    with lab.start(version, "Transact", hasty, {"group": fresh("group"), "topic": topic, **FATES}) as producer:
        sent = [line for line in producer.messages if "fate" in line and "checked" not in line]
        assert {line["status"] for line in sent} == {"SEND_OK"}
        wait_asked(producer, {*CHECKED, *PENDING})
        assert received(lab, hasty, topic, version, 5) == once(COMMITTED, CHECKED)
        assert asked_about(producer) == {*CHECKED, *PENDING}


@every_client
def test_another_java_producer_answers_for_one_that_was_killed(
    lab: Lab, hasty: Cluster, fresh: Callable[[str], str], version: str
) -> None:
    topic, group = made_topic(lab, hasty, fresh), fresh("group")
    with lab.start(version, "Transact", hasty, {"group": group, "topic": topic, "checked": 2}, alone=True) as first:
        first.kill()
    # Java's producer makes itself known to a broker only when it sends.
    with lab.start(other_version(version), "Transact", hasty, {"group": group, "topic": topic, **ONE_MORE}) as heir:
        wait_asked(heir, {0, 1})
        assert received(lab, hasty, topic, version, 3) == once(range(2), ADDED[:1])


def made_topic(lab: Lab, cluster: Cluster, fresh: Callable[[str], str]) -> str:
    topic = fresh("topic")
    query = lab.query(cluster, CLIENT_VERSIONS[-1])
    query.call("createTopic", addr=cluster.broker_address, topic=topic, queues=QUEUES)
    return topic


def received(lab: Lab, cluster: Cluster, topic: str, version: str, count: int) -> Counter[int]:
    """What the other generation's consumer gets."""
    words = {"group": f"{topic}-consumer", "topic": topic, "count": count}
    lines = lab.run(other_version(version), "Consume", cluster, words).messages
    return Counter(seen_by_java(line).index for line in lines)


def asked_about(producer: JavaProgram) -> set[int]:
    return {line["checked"] for line in list(producer.messages) if "checked" in line}


def wait_asked(producer: JavaProgram, wanted: set[int]) -> None:
    producer.wait_until(
        lambda: True if asked_about(producer) >= wanted else None, ASKED_TIMEOUT_S, f"questions about {wanted}"
    )


def wait_quiet(producer: JavaProgram) -> None:
    """Return once a whole round of questions was about the open transaction alone. Apache may ask about another one
    while that ends; each question leaves a copy of the half message, and somebody must decide the last of them too."""

    def quiet() -> bool | None:
        asked = [line["checked"] for line in list(producer.messages) if "checked" in line]
        return asked[-3:] == 3 * [*PENDING] or None  # its threads may ask in another order than they were told

    producer.wait_until(quiet, ASKED_TIMEOUT_S, "a round of questions about nothing else")


# --- from one broker to the other, and our producer at Apache's


@pytest.fixture
def folder(tmp_path: Path, namesrv: str) -> StoreFolder:
    return StoreFolder(tmp_path, namesrv)


@every_server
def test_apache_goes_on_with_transactions_of_ours(folder: StoreFolder, version: str) -> None:
    with folder.open_in_ours() as ours:
        delivered = begin(folder, version)
        assert delivered == once(COMMITTED, CHECKED)
        folder.leave(ours, kill=False)
    folder.verify()
    with folder.open_in_apache(version) as apache:
        finish(folder, version, delivered)
        folder.leave(apache, kill=False)
    folder.verify()


@every_server
def test_we_go_on_with_transactions_of_apache(folder: StoreFolder, version: str) -> None:
    with folder.open_in_apache(version) as apache:
        delivered = begin(folder, version)
        folder.leave(apache, kill=False)
    folder.verify()
    with folder.open_in_ours() as ours:
        assert finish(folder, version, delivered) == once(ADDED)
        folder.leave(ours, kill=False)
    folder.verify()


@every_server
def test_our_producer_at_apache(folder: StoreFolder, version: str) -> None:
    with folder.open_in_apache(version) as apache:
        folder.create_topic(TOPIC, QUEUES)
        assert asyncio.run(our_transactions(folder)) >= {*CHECKED}
        folder.leave(apache, kill=True)


async def our_transactions(folder: StoreFolder) -> set[int]:
    """Transactions of every kind but the one that stays open; which of them our producer was asked about."""
    states = dict.fromkeys((*COMMITTED, *CHECKED), TransactionState.COMMIT)
    asked: set[int] = set()

    def execute(message: Message) -> TransactionState:
        index = index_of(message.body)
        return TransactionState.UNKNOWN if index in CHECKED else states.get(index, TransactionState.ROLLBACK)

    def check(message: ReceivedMessage) -> TransactionState:
        asked.add(index_of(message.body))
        return states.get(index_of(message.body), TransactionState.ROLLBACK)

    async with TransactionProducer(GROUP, folder.namesrv, check=check) as producer:
        for index in (*COMMITTED, *ROLLED_BACK, *CHECKED):
            message = Message(TOPIC, body(index))
            result = await producer.send_in_transaction(message, execute, timeout_ms=SEND_TIMEOUT_MS)
            assert result.sent.status is SendStatus.SEND_OK
        await asyncio.to_thread(held, folder, COMMITTED, CHECKED)
    return asked


def begin(folder: StoreFolder, version: str) -> Counter[int]:
    """Transactions of every kind, of which one stays open; how often each message is delivered."""
    folder.create_topic(TOPIC, QUEUES)
    with transact(folder, version, **FATES) as producer:
        wait_asked(producer, {*CHECKED, *PENDING})
        held(folder, COMMITTED, CHECKED)
        wait_quiet(producer)
        return held(folder, COMMITTED, CHECKED)


def finish(folder: StoreFolder, version: str, delivered: Counter[int]) -> Counter[int]:
    """The transaction that is open is asked about, those that ended are neither asked about nor delivered again, and
    new ones end as they should; how often each of these is delivered."""
    with transact(folder, version, first=ADDED.start, commit=1, checked=1) as producer:
        wait_asked(producer, {*PENDING, ADDED[-1]})
        found = held(folder, COMMITTED, CHECKED, ADDED)
        assert asked_about(producer) & {*COMMITTED, *ROLLED_BACK, *CHECKED} == set()
    assert found >= delivered
    added = found - delivered
    assert set(added) == set(ADDED)
    return added


def transact(folder: StoreFolder, version: str, **words: object) -> JavaProgram:
    arguments = {"namesrv": folder.namesrv, "group": GROUP, "topic": TOPIC, **words}
    program = JavaProgram(CLIENTS[version], "Transact", arguments)
    program.wait_ready()
    return program


def held(folder: StoreFolder, *parts: range) -> Counter[int]:
    """How often each message is in the topic, once all of these have come. At Apache some may be there twice: it asks
    about transactions that are about to end, and commits them again."""
    wanted = set(once(*parts))
    found = settled(lambda: indexes(folder.messages(TOPIC, QUEUES)), lambda found: wanted <= set(found))
    assert set(found) == wanted
    return found

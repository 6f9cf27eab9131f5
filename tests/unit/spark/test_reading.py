"""Reading ranges from brokers that lag, delete messages or have nothing to say."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from cosmodrome.codes import RequestCode
from cosmodrome.model import MessageQueue
from cosmodrome.spark import link, pool, reading
from cosmodrome.spark.batch import RocketMQReader
from cosmodrome.spark.link import NotReady
from cosmodrome.spark.options import source_options
from cosmodrome.spark.planning import Range
from cosmodrome.spark.progress import DataLoss
from cosmodrome.spark.reading import RangeReader
from cosmodrome.spark.schema import BatchMaker, table_schema
from tests.unit.spark.made_up_cluster import NAME_SERVER, MadeUpCluster, Node, at, read, stream_reader
from tests.unit.spark.own_time import set_time

MANY = {"fetchOffset.numRetries": "1100"}


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUpCluster:
    made = MadeUpCluster()
    monkeypatch.setattr(link, "Peer", made.peer)
    monkeypatch.setattr(pool, "_idle", {})
    return made


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """None is made."""
    made: list[float] = []
    set_time(monkeypatch, "reading", sleep=made.append)
    return made


def with_slave(made_up: MadeUpCluster, slave: Node) -> None:
    """Beside broker-a's master, which is away."""
    made_up.nodes["a:1"] = slave
    made_up.brokers["broker-a"] = {1: "a:1"}
    made_up.down.add("a:0")


def comes_back(made_up: MadeUpCluster) -> None:
    made_up.brokers["broker-a"] = {0: "a:0", 1: "a:1"}
    made_up.down.clear()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_worker_goes_back_to_the_master(made_up: MadeUpCluster, fail: str) -> None:
    reader = stream_reader(failOnDataLoss=fail)
    with_slave(made_up, Node())
    assert len(read(reader, 0, 100)) == 100
    comes_back(made_up)
    made_up.nodes["a:0"].high = 110
    made_up.nodes["a:1"].high = 105
    assert read(reader, 100, 110) == list(range(100, 110))
    assert made_up.count(RequestCode.PULL_MESSAGE, "a:1") == 1


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("is_slave", [True, False])
def test_a_slave_that_lags_is_waited_for(
    made_up: MadeUpCluster, monkeypatch: pytest.MonkeyPatch, fail: str, is_slave: bool
) -> None:
    """Whether it says that it has nothing there, or to ask again, as those of 5.x do."""
    with_slave(made_up, Node(high=95, is_slave=is_slave))
    pauses: list[float] = []

    def caught_up(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            made_up.nodes["a:1"].high = 100

    set_time(monkeypatch, "reading", sleep=caught_up)
    assert read(stream_reader(failOnDataLoss=fail), 90, 100) == list(range(90, 100))
    assert len(pauses) == 3
    pauses.clear()
    with pytest.raises(NotReady, match=r"queue 0 of orders on broker-a from 100 on.*it has 0 to 99"):
        read(stream_reader(failOnDataLoss=fail), 90, 101)
    assert made_up.count(RequestCode.PULL_MESSAGE) < 30


def test_pauses_have_an_end_however_often_a_broker_is_asked(made_up: MadeUpCluster, pauses: list[float]) -> None:
    made_up.nodes["a:0"].is_slave = True
    with pytest.raises(NotReady, match="gives nothing of queue 0"):
        read(stream_reader(**MANY), 100, 101)
    assert (len(pauses), max(pauses)) == (1099, 2.0)


@pytest.mark.parametrize("options", [{}, {"tags": "paid"}, {"sql": "price > 5"}])
def test_messages_that_a_broker_is_removing_are_a_loss(
    made_up: MadeUpCluster, caplog: pytest.LogCaptureFixture, options: dict[str, str]
) -> None:
    made_up.nodes["a:0"].missing = frozenset(range(10, 60))
    by_ten = {"pullBatchSize": "10", **options}
    with pytest.raises(DataLoss, match=r"messages 20 to 29 of queue 0 of orders .* are gone.*failOnDataLoss"):
        read(stream_reader(**by_ten), 20, 70)
    with caplog.at_level(logging.WARNING):
        found = read(stream_reader(failOnDataLoss="false", **by_ten), 20, 70)
    assert found == ([] if "tags" in options else list(range(60, 70)))
    assert [f"messages {first} to {first + 9}" in caplog.text for first in (10, 20, 30, 40, 50, 60)] == [
        *(False, True, True, True, True, False)
    ]


def moves_its_beginning(low: int, when_asked: int) -> Callable[[Node], None]:
    """Some time after messages were deleted."""
    left = [when_asked]

    def move(node: Node) -> None:
        left[0] -= 1
        if left[0] == 0:
            node.low = low

    return move


@pytest.mark.parametrize(
    ("missing", "begin", "gap"),
    [
        (range(60), 50, "50 to 59"),  # before the first that came
        (range(10, 60), 0, "10 to 59"),  # between them
        (range(90, 100), 0, "90 to 99"),  # behind the last
    ],
)
def test_a_gap_is_a_loss_if_the_queue_begins_behind_it_soon(
    made_up: MadeUpCluster, pauses: list[float], caplog: pytest.LogCaptureFixture, missing: range, begin: int, gap: str
) -> None:
    node = made_up.nodes["a:0"]
    node.missing = frozenset(missing)
    node.after_min_offset = moves_its_beginning(missing.stop, 2)
    with pytest.raises(DataLoss, match=f"messages {gap} of queue 0 of orders on broker-a are gone"):
        read(stream_reader(), begin, 100)
    assert pauses == [0.5, 0.5]
    node.low, node.after_min_offset = 0, moves_its_beginning(missing.stop, 1)
    with caplog.at_level(logging.WARNING):
        found = read(stream_reader(failOnDataLoss="false"), begin, 100)
    assert found == [number for number in range(begin, 100) if number not in missing]
    assert f"messages {gap} of queue 0" in caplog.text


@pytest.mark.parametrize("has_route", [True, False])
def test_a_topic_that_is_gone_when_a_batch_is_repeated_is_a_loss(
    made_up: MadeUpCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_route: bool
) -> None:
    """Spark repeats a batch from offsets it has written down, whatever has become of the topic."""
    made_up.nodes["a:0"].topics.clear()
    if has_route:
        monkeypatch.setattr(made_up, "_topics", lambda _: {"orders"})
    with pytest.raises(DataLoss, match="messages 10 to 19 of queue 0 of orders on broker-a are gone with their queue"):
        read(stream_reader(), 10, 20)
    with caplog.at_level(logging.WARNING):
        assert read(stream_reader(failOnDataLoss="false"), 10, 20) == []
    assert "are gone with their queue" in caplog.text


def test_a_queue_that_is_gone_is_a_loss_and_the_others_are_read(made_up: MadeUpCluster) -> None:
    made_up.nodes["a:0"].queues = 1
    reader = stream_reader(failOnDataLoss="false")
    tasks = reader.partitions(at(90, 90), at(100, 100))
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 10
    with pytest.raises(DataLoss, match="messages 90 to 99 of queue 1 of orders on broker-a are gone with their queue"):
        list(stream_reader().read(stream_reader().partitions(at(100, 90), at(100, 100))[0]))


def test_a_queue_that_has_gaps_by_nature_is_read_and_not_waited_for_twice(
    made_up: MadeUpCluster, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up.nodes["a:0"].missing = frozenset(range(0, 100, 7))
    monkeypatch.setattr(reading, "BATCH_ROWS", 20)
    options = source_options({"nameServer": NAME_SERVER, "subscribe": "orders", "pullBatchSize": "10"}, streaming=True)
    with pool.connected(options.link) as cluster:
        reader = RangeReader(cluster, options, BatchMaker(table_schema(options.properties, metadata=False)))
        batches = list(reader.batches([Range(MessageQueue("orders", "broker-a", 0), 0, 100)]))
    assert sum(batch.num_rows for batch in batches) == 85
    assert pauses == [0.5, 0.5]


def test_a_queue_without_gaps_costs_no_request_more(made_up: MadeUpCluster) -> None:
    assert len(read(stream_reader(pullBatchSize="10"), 0, 100)) == 100
    assert made_up.asked == [
        (NAME_SERVER, RequestCode.GET_ROUTEINFO_BY_TOPIC),
        *[("a:0", RequestCode.PULL_MESSAGE)] * 10,
    ]


@pytest.mark.parametrize(("option", "place"), [("startingOffsets", "from 500 on"), ("endingOffsets", "up to 500")])
def test_an_offset_behind_the_end_is_called_what_it_is(option: str, place: str) -> None:
    given = {"nameServer": NAME_SERVER, "subscribe": "orders", option: str(at(500)).replace("'", '"')}
    made = source_options(given, streaming=False)
    with pytest.raises(DataLoss, match=f"ends at 100, but is to be read {place}"):
        RocketMQReader(made, table_schema(made.properties, metadata=False)).partitions()


@pytest.mark.parametrize(
    "place", [1, 5, 15, 27, 86, 88, 90], ids=["size", "magic", "queue", "offset", "body size", "body", "topic"]
)
def test_a_rotten_message_fails_the_read_or_is_left_out_with_a_warning(
    made_up: MadeUpCluster, caplog: pytest.LogCaptureFixture, place: int
) -> None:
    made_up.nodes["a:0"].rotten = {30: place, 31: place, 99: place}
    by_ten = {"pullBatchSize": "10"}
    with pytest.raises(DataLoss, match=r"messages 30 to 39 of queue 0 of orders .* hold \d damaged.*failOnDataLoss"):
        read(stream_reader(**by_ten), 20, 70)
    with caplog.at_level(logging.WARNING):
        found = read(stream_reader(failOnDataLoss="false", **by_ten), 20, 100)
    assert set(found) <= set(range(20, 100)) - {30, 31, 99}
    assert set(found) >= {*range(20, 30), *range(40, 90)}
    assert "messages 30 to 39" in caplog.text
    if place > 10:  # where the size of a record is known, the others are found
        assert found == [offset for offset in range(20, 100) if offset not in (30, 31, 99)]

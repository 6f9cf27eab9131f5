"""Which queues a stream reads while topics and brokers come and go."""

from __future__ import annotations

import json
import logging

import pytest

from cosmodrome.codes import RequestCode
from cosmodrome.errors import ConfigError
from cosmodrome.spark import link
from cosmodrome.spark import stream as stream_module
from cosmodrome.spark.progress import DataLoss
from cosmodrome.wire.command import Command
from tests.unit.spark.made_up_cluster import ALL, NAME_SERVER, MadeUpCluster, Node, at, stream_reader
from tests.unit.spark.own_time import set_time

TWO_BROKERS = {"orders": {"broker-a": {"0": 5}, "broker-b": {"0": 7}}}
ASSIGNED = json.dumps({"orders": {"broker-a": [0], "broker-b": [0]}})


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUpCluster:
    """With routes that are asked for whenever offsets are."""
    made = MadeUpCluster()
    monkeypatch.setattr(link, "Peer", made.peer)
    monkeypatch.setattr(stream_module, "ROUTE_INTERVAL_SECONDS", 0.0)
    return made


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """None is made."""
    made: list[float] = []
    set_time(monkeypatch, "link", sleep=made.append)
    return made


def test_a_pattern_takes_no_topics_that_are_not_the_users(made_up: MadeUpCluster) -> None:
    made_up.nodes["a:0"].topics |= {
        *("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC", "TBW102", "SELF_TEST_TOPIC"),
        *("BenchmarkTest", "OFFSET_MOVED_EVENT", "rmq_sys_wheel_timer", "broker-a", "cluster-a"),
        *("cluster-a_REPLY_TOPIC", "SPARK_SINK_COMMITS", "%RETRY%readers", "%DLQ%readers", "rmq-systems"),
    }
    assert sorted(stream_reader(subscribePattern=".*").initialOffset()) == ["orders", "rmq-systems"]
    for prefix in ("%RETRY%", "%DLQ%"):
        assert sorted(stream_reader(subscribePattern=f"{prefix}.*").initialOffset()) == [f"{prefix}readers"]
    assert stream_reader(subscribePattern="TBW.*").initialOffset() == {}


def test_a_topic_that_a_pattern_found_and_that_is_deleted_is_a_loss(
    made_up: MadeUpCluster, caplog: pytest.LogCaptureFixture
) -> None:
    reached = at(100) | at(5, topic="orders-b")
    made_up.nodes["a:0"].topics.add("orders-b")
    strict, lenient = (stream_reader(subscribePattern="orders.*", failOnDataLoss=fail) for fail in ("true", "false"))
    assert strict.latestOffset(reached, ALL) == at(100) | at(100, topic="orders-b")
    made_up.nodes["a:0"].topics.discard("orders-b")
    with pytest.raises(
        DataLoss,
        match="the topic orders-b is gone from broker broker-a; messages from 5 on in queue 0 were not read, if there",
    ):
        strict.latestOffset(reached, ALL)
    with caplog.at_level(logging.WARNING):
        assert [lenient.latestOffset(reached, ALL) for _ in range(3)] == [reached] * 3
    assert caplog.text.count("the topic orders-b is gone from broker broker-a") == 1
    assert made_up.count(RequestCode.PULL_MESSAGE) == 2, "it is not asked for again what it has said"
    made_up.nodes["a:0"].topics.add("orders-b")
    assert lenient.latestOffset(reached, ALL) == at(100) | at(100, topic="orders-b"), "it was made anew"


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("subscribed", [{"subscribe": "orders"}, {"subscribePattern": "ord.*"}, {"assign": ASSIGNED}])
def test_a_name_server_may_be_away_for_a_moment(
    made_up: MadeUpCluster, monkeypatch: pytest.MonkeyPatch, fail: str, subscribed: dict[str, str]
) -> None:
    pauses: list[float] = []

    def back(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            made_up.down.clear()

    set_time(monkeypatch, "link", sleep=back)
    reader = stream_reader(failOnDataLoss=fail, **subscribed)
    made_up.down = {NAME_SERVER}
    assert reader.latestOffset(at(100), ALL) == at(100)
    assert len(pauses) == 2


def test_a_topic_that_is_deleted_on_one_broker_of_two_is_a_loss(made_up: MadeUpCluster) -> None:
    made_up.brokers["broker-b"] = {0: "b:0"}
    made_up.nodes["b:0"] = Node(topics=set())
    with pytest.raises(DataLoss, match="the topic orders is gone from broker broker-b; messages from 7 on in queue 0"):
        stream_reader().latestOffset(TWO_BROKERS, ALL)


def test_a_broker_that_starts_anew_has_deleted_nothing(made_up: MadeUpCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name servers may know it before they know its topics; and before it answers itself."""
    made_up.brokers["broker-b"] = {0: "b:0"}
    made_up.nodes["b:0"] = Node()
    of_name_server = MadeUpCluster._topics
    monkeypatch.setattr(
        MadeUpCluster, "_topics", lambda made, name: set() if name == "broker-b" else of_name_server(made, name)
    )
    reached = {"orders": {"broker-a": {"0": 100}, "broker-b": {"0": 7}}}
    for down in ({"b:0"}, set[str]()):
        made_up.down = down
        assert stream_reader().latestOffset(reached, ALL) == reached
    made_up.brokers["broker-b"] = {1: "b:1"}
    made_up.nodes["b:1"] = Node(topics=set())  # a slave has its topics from its master
    assert stream_reader().latestOffset(reached, ALL) == reached


def test_assigned_queues_of_a_broker_that_is_gone_cost_no_pauses_and_come_back(
    made_up: MadeUpCluster, pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream_reader(assign=ASSIGNED)
    with caplog.at_level(logging.WARNING):
        for high in (100, 101, 102):
            made_up.nodes["a:0"].high = high
            left_out = reader.latestOffset(TWO_BROKERS, ALL)
            assert left_out == {"orders": {"broker-a": {"0": high}, "broker-b": {"0": 7}}}
    assert pauses == []
    assert caplog.text.count("brokers broker-b are gone; reading on without") == 1
    made_up.brokers["broker-b"] = {0: "b:0"}
    made_up.nodes["b:0"] = Node()
    assert reader.latestOffset(TWO_BROKERS, ALL) == {"orders": {"broker-a": {"0": 102}, "broker-b": {"0": 100}}}


def test_the_next_look_for_queues_is_counted_from_the_end_of_the_last(
    made_up: MadeUpCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one that takes long follows upon the other."""
    now = [0.0]
    monkeypatch.setattr(stream_module, "ROUTE_INTERVAL_SECONDS", 1.0)
    set_time(monkeypatch, "stream", monotonic=lambda: now[0])
    answer = made_up.answer

    def slowly(address: str, command: Command) -> Command:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            now[0] += 2.0
        return answer(address, command)

    monkeypatch.setattr(made_up, "answer", slowly)
    reader = stream_reader()
    for _ in range(5):
        reader.latestOffset(at(100), ALL)
    assert made_up.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 1


@pytest.mark.parametrize(("low", "high"), [(0, 0), (40, 100)])  # an empty queue, and one whose messages are all older
def test_a_queue_without_a_message_that_young_begins_at_its_end(made_up: MadeUpCluster, low: int, high: int) -> None:
    made_up.nodes["a:0"].low, made_up.nodes["a:0"].high = low, high
    since = "2026-11-18T10:00:00Z"
    assert stream_reader(startingTimestamp=since).initialOffset() == at(high)
    by_topic = json.dumps({"orders": since})
    assert stream_reader(startingOffsetsByTimestamp=by_topic).initialOffset() == at(high)
    strict = stream_reader(startingTimestamp=since, startingOffsetsByTimestampStrategy="error")
    with pytest.raises(ConfigError, match="accept that with startingOffsetsByTimestampStrategy=latest"):
        strict.initialOffset()

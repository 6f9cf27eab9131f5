"""What Apache's admin tools ask of running consumers: of ours, at every kind of broker, and of Java's at ours."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from cosmodrome.blocking import PushConsumer
from cosmodrome.config import ClientConfig
from cosmodrome.model import ConsumeFrom, ReceivedMessage
from interop.java import JavaProgram, Query
from interop.lab import ALL_CLUSTERS, OURS, Cluster, Lab
from interop.messages import Load, Sent, index_of, seen_by_java
from interop.our_client import send_ours
from interop.setup import CLIENT_VERSIONS

COUNT, QUEUES = 8, 4
TIMEOUT_S = 60
ASK_INTERVAL_S = 0.2
NOT_ONLINE, TOPIC_NOT_EXIST = 1, 17
CONSUMER_STATUS = "consumer.ConsumerStatusSubCommand"
RESET_BY_TIME = "offset.ResetOffsetByTimeCommand"

Fresh = Callable[[str], str]

pytestmark = pytest.mark.parametrize("version", CLIENT_VERSIONS)
at_every_broker = pytest.mark.parametrize("cluster_name", ALL_CLUSTERS)


class Inbox:
    """How often each message came, by index; fails while it is told to."""

    def __init__(self) -> None:
        self.failing = False
        self._seen: Counter[int] = Counter()
        self._came = threading.Condition()

    def __call__(self, message: ReceivedMessage) -> None:
        with self._came:
            self._seen[index_of(message.body)] += 1
            self._came.notify_all()
        if self.failing:
            raise ValueError("told to fail")

    def count(self, index: int) -> int:
        with self._came:
            return self._seen[index]

    def wait_all(self, indexes: range, times: int) -> None:
        with self._came:
            came = self._came.wait_for(lambda: all(self._seen[index] >= times for index in indexes), TIMEOUT_S)
            assert came, f"not every one of {indexes} came {times} times: {self._seen}"


@pytest.fixture
def query(lab: Lab, cluster: Cluster, version: str) -> Query:
    return lab.query(cluster, version)


@pytest.fixture
def cluster(lab: Lab, request: pytest.FixtureRequest) -> Cluster:
    chosen: dict[str, Any] = request.node.callspec.params
    return lab.cluster(chosen.get("cluster_name", OURS))


@pytest.fixture
def load(fresh: Fresh, cluster: Cluster, query: Query) -> Load:
    topic = fresh("topic")
    query.call("createTopic", addr=cluster.broker_address, topic=topic, queues=QUEUES)
    settled(partial(query.ask, "topicRoute", topic=topic), lambda answer: bool(answer["ok"]))
    return Load(topic, COUNT)


@contextmanager
def consuming(cluster: Cluster, group: str, load: Load, inbox: Inbox) -> Iterator[PushConsumer]:
    config = ClientConfig(namesrv=cluster.namesrv, persist_offset_interval_ms=200)
    consumer = PushConsumer(group, consume_from=ConsumeFrom.FIRST_OFFSET, config=config)
    consumer.subscribe(load.topic, "*", inbox)
    with consumer:
        yield consumer


def send_all(cluster: Cluster, load: Load) -> list[Sent]:
    """In turn to all queues, so that there is an offset of each."""
    return send_ours(cluster.namesrv, "senders", load, "selector")


@at_every_broker
def test_our_consumer_is_looked_into(
    fresh: Fresh, cluster: Cluster, query: Query, load: Load, cluster_name: str
) -> None:
    group, inbox = fresh("group"), Inbox()
    with consuming(cluster, group, load, inbox) as consumer:
        send_all(cluster, load)
        inbox.wait_all(load.indexes, 1)
        info = info_when_done(query, load.topic, group, consumer.client_id)
        printed = query.call("mqadmin", command=CONSUMER_STATUS, words=f"-g {group} -i {consumer.client_id} -s true")
        by_client = query.call("consumerStatus", topic=load.topic, group=group, client=consumer.client_id)
    assert info["subscribed"] == info["statuses"] == sorted([load.topic, f"%RETRY%{group}"])
    assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info["properties"]["PROP_NAMESERVER_ADDR"] == f"{cluster.namesrv};"
    assert "Thread" in info["stacks"]
    for part in ("PROP_CLIENT_VERSION", load.topic, "#Consumer Offset#", "#Consumer RT&TPS#", "Thread"):
        assert part in printed
    assert by_client == {consumer.client_id: {str(queue_id): COUNT // QUEUES for queue_id in range(QUEUES)}}


@at_every_broker
@pytest.mark.parametrize("by_command", [False, True])
def test_our_consumer_is_reset(
    fresh: Fresh, cluster: Cluster, query: Query, load: Load, cluster_name: str, by_command: bool
) -> None:
    group, inbox = fresh("group"), Inbox()
    with consuming(cluster, group, load, inbox):
        send_all(cluster, load)
        inbox.wait_all(load.indexes, 1)
        reset(cluster, query, load.topic, group, by_command=by_command)
        # Apache's 5.x broker tells a consumer of its reset only when a pull ends; these messages end them.
        send_all(cluster, Load(load.topic, QUEUES, first=COUNT))
        inbox.wait_all(load.indexes, 2)
        inbox.wait_all(range(COUNT, COUNT + QUEUES), 1)


@at_every_broker
def test_our_consumer_handles_what_it_is_handed(
    fresh: Fresh, cluster: Cluster, query: Query, load: Load, cluster_name: str
) -> None:
    group, inbox = fresh("group"), Inbox()
    with consuming(cluster, group, load, inbox) as consumer:
        (first, *_) = send_all(cluster, load)
        inbox.wait_all(load.indexes, 1)
        ask = partial(query.call, "consumeDirectly", group=group, client=consumer.client_id, topic=load.topic)
        went_well = ask(id=first.offset_msg_id)
        inbox.failing = True
        went_wrong = ask(id=first.offset_msg_id)
        assert inbox.count(first.index) == 3
    assert (went_well["result"], went_well["order"], went_well["remark"]) == ("CR_SUCCESS", False, None)
    assert (went_wrong["result"], went_wrong["remark"]) == ("CR_THROW_EXCEPTION", "ValueError: told to fail")


@at_every_broker
def test_a_consumer_that_is_not_there(
    fresh: Fresh, cluster: Cluster, query: Query, load: Load, cluster_name: str
) -> None:
    group = fresh("group")
    with consuming(cluster, group, load, Inbox()):
        ask = partial(query.ask, "runningInfo", group=group, client="nobody")
        answer = settled(ask, lambda answer: answer["code"] != TOPIC_NOT_EXIST)
    assert (answer["ok"], answer["code"]) == (False, NOT_ONLINE)
    assert "not online" in answer["error"]


def test_java_s_consumer_is_asked_through_our_broker(
    lab: Lab, fresh: Fresh, cluster: Cluster, query: Query, load: Load, version: str
) -> None:
    group = fresh("group")
    with lab.start(version, "Consume", cluster, {"group": group, "topic": load.topic}) as java:
        java.wait_assigned(QUEUES)
        (first, *_) = send_all(cluster, load)
        java.wait_messages(COUNT)
        ask = partial(query.ask, "consumerClients", group=group)
        (client_id,) = settled(ask, lambda answer: bool(answer["ok"]))["result"]
        info = info_when_done(query, load.topic, group, client_id)
        handed = query.call("consumeDirectly", group=group, client=client_id, topic=load.topic, id=first.offset_msg_id)
        by_client = query.call("consumerStatus", topic=load.topic, group=group, client=client_id)
        (*_, again) = java.wait_messages(COUNT + 1)
    assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert (handed["result"], seen_by_java(again).index) == ("CR_SUCCESS", first.index)
    assert by_client == {client_id: {str(queue_id): COUNT // QUEUES for queue_id in range(QUEUES)}}


@pytest.mark.parametrize("orderly", [False, pytest.param(True, marks=pytest.mark.full)])  # 4.9 takes 20 s
def test_java_s_consumer_is_reset_by_our_broker(
    lab: Lab, fresh: Fresh, cluster: Cluster, query: Query, load: Load, version: str, orderly: bool
) -> None:
    group = fresh("group")
    words = {"group": group, "topic": load.topic, "orderly": orderly}
    with lab.start(version, "Consume", cluster, words) as java:
        java.wait_assigned(QUEUES)
        send_all(cluster, load)
        java.wait_messages(COUNT)
        reset(cluster, query, load.topic, group, by_command=False)
        wait_twice(java, load.indexes)


def info_when_done(query: Query, topic: str, group: str, client_id: str) -> dict[str, Any]:
    """What the consumer tells once it has committed everything; the tools find it by way of its retry topic."""
    done = {f"{topic}:{queue_id}": COUNT // QUEUES for queue_id in range(QUEUES)}
    answer = settled(
        partial(query.ask, "runningInfo", group=group, client=client_id, stacks=True),
        lambda answer: answer["ok"] and done.items() <= answer["result"]["queues"].items(),
    )
    info: dict[str, Any] = answer["result"]
    return info


def reset(cluster: Cluster, query: Query, topic: str, group: str, *, by_command: bool) -> None:
    """To the beginning, once the broker has an offset of every queue: an Apache 4.x broker refuses before."""
    every_queue = {str(queue_id): 0 for queue_id in range(QUEUES)}
    if by_command:
        words = f"-g {group} -t {topic} -s 1"
        ask = partial(query.ask, "mqadmin", command=RESET_BY_TIME, words=words)
        answer = settled(ask, lambda answer: bool(answer["ok"]))
        assert cluster.broker_name in answer["result"]
    else:
        ask = partial(query.ask, "resetOffset", topic=topic, group=group, timestamp=1, force=True)
        answer = settled(ask, lambda answer: bool(answer["ok"]))
        assert answer["result"] == every_queue


def wait_twice(java: JavaProgram, indexes: range) -> None:
    def twice() -> bool | None:
        seen = Counter(seen_by_java(line).index for line in list(java.messages))
        return all(seen[index] >= 2 for index in indexes) or None

    java.wait_until(twice, TIMEOUT_S, f"every one of {indexes} twice")


def settled(ask: Callable[[], Any], is_settled: Callable[[Any], bool]) -> Any:
    """The first answer that will do."""
    deadline = time.monotonic() + TIMEOUT_S
    while not is_settled(answer := ask()):
        assert time.monotonic() < deadline, f"still {answer}"
        time.sleep(ASK_INTERVAL_S)
    return answer

"""Java's queries and admin calls. Each case also meets Apache's own servers, which keeps its expectations honest."""

import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from interop.java import Query
from interop.lab import ALL_CLUSTERS, Cluster, Lab
from interop.messages import Load, Seen, Sent, check_message, seen_by_java, sent_by_java
from interop.setup import CLIENT_VERSIONS

COUNT = 12
SETTLE_TIMEOUT_S = 60
ASK_INTERVAL_S = 0.1
FAR_FUTURE_MS = 4_000_000_000_000
NO_MESSAGE = 208  # the Java client's own code for a query that found nothing
TOPIC_NOT_EXIST = 17
REQUEST_CODE_NOT_SUPPORTED = 3
# A 5.x client asks for one topic's config with a request that Apache's 4.x brokers do not know.
CONFIG_UNKNOWN_TO = (("apache-4.9.7", "5.3.3"),)

Fresh = Callable[[str], str]

pytestmark = [
    pytest.mark.parametrize("version", CLIENT_VERSIONS),
    pytest.mark.parametrize("cluster_name", ALL_CLUSTERS),
]


@pytest.fixture
def cluster(lab: Lab, cluster_name: str) -> Cluster:
    return lab.cluster(cluster_name)


@pytest.fixture
def query(lab: Lab, cluster: Cluster, version: str) -> Query:
    return lab.query(cluster, version)


@pytest.fixture
def load(fresh: Fresh) -> Load:
    return Load(fresh("topic"), COUNT)


@pytest.fixture
def sent(lab: Lab, fresh: Fresh, cluster: Cluster, version: str, load: Load) -> list[Sent]:
    words = {**load.java_arguments(), "group": fresh("group")}
    return sent_by_java(lab.run(version, "Produce", cluster, words).messages)


def test_a_message_is_found_by_either_id(cluster: Cluster, query: Query, load: Load, sent: list[Sent]) -> None:
    for one in sent:
        by_place = query.call("viewMessage", topic=load.topic, id=one.offset_msg_id)
        by_id = settled(partial(query.ask, "queryByUniqueKey", topic=load.topic, key=one.msg_id), found)
        for line in (by_place, by_id["result"]):
            check_message(load, seen_by_java(line), one, cluster.broker_address)


def test_messages_are_found_by_key(cluster: Cluster, query: Query, load: Load, sent: list[Sent]) -> None:
    def all_shared(answer: dict[str, Any]) -> bool:
        return found(answer) and len(answer["result"]) == COUNT

    told = {one.index: one for one in sent}
    shared = settled(lambda: query.ask("queryByKey", topic=load.topic, key="shared"), all_shared)
    assert sorted(seen_by_java(line).index for line in shared["result"]) == list(load.indexes)
    for index in load.indexes:
        (line,) = query.call("queryByKey", topic=load.topic, key=f"key-{index}")
        check_message(load, seen_by_java(line), told[index], cluster.broker_address)


def test_a_key_nobody_used_finds_nothing(query: Query, load: Load, sent: list[Sent]) -> None:
    answer = query.ask("queryByKey", topic=load.topic, key="never-used")
    assert (answer["ok"], answer["code"]) == (False, NO_MESSAGE)


def test_offsets_and_times_of_a_queue(cluster: Cluster, query: Query, load: Load, sent: list[Sent]) -> None:
    cluster.settle(load.topic)
    queues: defaultdict[int, list[Seen]] = defaultdict(list)
    for one in sorted(sent, key=lambda one: one.queue_offset):
        line = query.call("viewMessage", topic=load.topic, id=one.offset_msg_id)
        queues[one.queue_id].append(seen_by_java(line))
    for queue_id, messages in queues.items():
        place = {"topic": load.topic, "broker": cluster.broker_name, "queue": queue_id}
        assert query.call("minOffset", **place) == 0
        assert query.call("maxOffset", **place) == len(messages)
        assert query.call("earliestMsgStoreTime", **place) == messages[0].store_timestamp
        assert query.call("searchOffset", **place, timestamp=0) == 0
        for message in messages:
            offset = query.call("searchOffset", **place, timestamp=message.store_timestamp)
            assert messages[offset].store_timestamp == message.store_timestamp


def test_the_cluster_names_its_broker(cluster: Cluster, query: Query) -> None:
    broker = {"cluster": "DefaultCluster", "addrs": {"0": cluster.broker_address}}
    assert query.call("clusterInfo") == {
        "brokers": {cluster.broker_name: broker},
        "clusters": {"DefaultCluster": [cluster.broker_name]},
    }


def test_a_topic_is_created_changed_and_deleted(fresh: Fresh, cluster: Cluster, query: Query, version: str) -> None:
    topic, address = fresh("topic"), cluster.broker_address
    query.call("createTopic", addr=address, topic=topic, queues=3)
    check_topic(cluster, query, version, topic, queues=3, perm=6)
    assert topic in query.call("topicList")
    assert query.call("publishQueues", topic=topic) == [f"{cluster.broker_name}:{queue}" for queue in range(3)]

    query.call("createTopic", addr=address, topic=topic, queues=5, perm=4)
    check_topic(cluster, query, version, topic, queues=5, perm=4)

    query.call("deleteTopic", addr=address, topic=topic, cluster="DefaultCluster")
    gone = settled(partial(query.ask, "topicRoute", topic=topic), lambda answer: not answer["ok"])
    assert gone["code"] == TOPIC_NOT_EXIST
    assert topic not in query.call("topicList")


def test_a_topic_nobody_made_has_no_route(fresh: Fresh, query: Query) -> None:
    answer = query.ask("topicRoute", topic=fresh("topic"))
    assert (answer["ok"], answer["code"]) == (False, TOPIC_NOT_EXIST)


def test_a_group_is_created_changed_and_deleted(fresh: Fresh, cluster: Cluster, query: Query) -> None:
    group, address = fresh("group"), cluster.broker_address
    query.call("createGroup", addr=address, group=group, retryMaxTimes=3)
    config = {"group": group, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 3}
    assert query.call("groupConfig", addr=address, group=group) == config
    query.call("createGroup", addr=address, group=group, retryMaxTimes=5)
    assert query.call("groupConfig", addr=address, group=group) == config | {"retryMaxTimes": 5}
    query.call("deleteGroup", addr=address, group=group)
    answer = query.ask("groupConfig", addr=address, group=group)
    assert not answer["ok"] or answer["result"] is None


def test_write_permission_is_wiped_and_given_back(fresh: Fresh, cluster: Cluster, query: Query) -> None:
    topic, broker = fresh("topic"), cluster.broker_name
    query.call("createTopic", addr=cluster.broker_address, topic=topic, queues=2)
    wait_for_queues(cluster, query, topic, {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6})
    try:
        assert query.call("wipeWritePerm", broker=broker) > 0
        assert query.call("topicRoute", topic=topic)["queues"][broker]["perm"] == 4
    finally:
        assert query.call("addWritePerm", broker=broker) > 0
    assert query.call("topicRoute", topic=topic)["queues"][broker]["perm"] == 6


def test_kv_config_is_kept_by_the_name_server(fresh: Fresh, query: Query) -> None:
    namespace = fresh("namespace")
    query.call("putKv", namespace=namespace, key="one", value="1; grün")
    query.call("putKv", namespace=namespace, key="two", value="2")
    assert query.call("getKv", namespace=namespace, key="one") == "1; grün"
    assert query.call("kvList", namespace=namespace) == {"one": "1; grün", "two": "2"}
    query.call("deleteKv", namespace=namespace, key="one")
    assert query.call("kvList", namespace=namespace) == {"two": "2"}


def found(answer: dict[str, Any]) -> bool:
    return bool(answer["ok"] and answer["result"])


def check_topic(cluster: Cluster, query: Query, version: str, topic: str, queues: int, perm: int) -> None:
    """The broker tells a topic's config at once; the name server tells the same once the broker has registered it."""
    numbers = {"readQueueNums": queues, "writeQueueNums": queues, "perm": perm}
    answer = query.ask("topicConfig", addr=cluster.broker_address, topic=topic)
    if (cluster.name, version) in CONFIG_UNKNOWN_TO:
        assert (answer["ok"], answer["code"]) == (False, REQUEST_CODE_NOT_SUPPORTED)
    else:
        assert answer["result"] == {"topic": topic, **numbers, "order": False}
    wait_for_queues(cluster, query, topic, numbers)


def wait_for_queues(cluster: Cluster, query: Query, topic: str, wanted: dict[str, int]) -> None:
    def registered(answer: dict[str, Any]) -> bool:
        return bool(answer["ok"] and answer["result"]["queues"].get(cluster.broker_name) == wanted)

    answer = settled(partial(query.ask, "topicRoute", topic=topic), registered)
    assert answer["result"]["brokers"][cluster.broker_name]["addrs"] == {"0": cluster.broker_address}


def settled(ask: Callable[[], dict[str, Any]], accept: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first acceptable answer before the deadline.

    Apache registers topics and fills its index behind the caller's back and tells nobody when it is done.
    """
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while not accept(answer := ask()):
        assert time.monotonic() < deadline, f"still {answer}"
        time.sleep(ASK_INTERVAL_S)
    return answer

"""Our producer and consumer on our broker and on Apache's, met from the other side by Java."""

from collections.abc import Callable

import pytest

from interop.java import Serialize
from interop.lab import ALL_CLUSTERS, APACHE_CLUSTERS, SERIALIZERS, Lab
from interop.messages import Load, check_arrived, check_same, seen_by_java, sent_by_java
from interop.our_client import WAYS, receive_ours, send_ours
from interop.setup import CLIENT_VERSIONS

COUNT = 20
LARGE_BODY_BYTES = 10_000

Fresh = Callable[[str], str]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cluster_name", ALL_CLUSTERS)
def test_what_we_send_reaches_java_and_us(lab: Lab, fresh: Fresh, cluster_name: str, way: str) -> None:
    cluster = lab.cluster(cluster_name)
    load = Load(fresh("topic"), COUNT)
    sent = send_ours(cluster.namesrv, fresh("group"), load, way)
    assert len(sent) == (0 if way == "oneway" else COUNT)

    mine = receive_ours(cluster.namesrv, fresh("group"), load.topic, COUNT)
    check_arrived(load, mine, sent, cluster.broker_address)
    for version in CLIENT_VERSIONS:
        words: dict[str, object] = {"topic": load.topic, "group": fresh("group"), "count": COUNT}
        javas = [seen_by_java(line) for line in lab.run(version, "Consume", cluster, words).messages]
        check_arrived(load, javas, sent, cluster.broker_address)
        check_same(mine, javas)


@pytest.mark.parametrize("cluster_name", ALL_CLUSTERS)
def test_what_we_send_large_java_decompresses(lab: Lab, fresh: Fresh, cluster_name: str) -> None:
    cluster = lab.cluster(cluster_name)
    load = Load(fresh("topic"), COUNT, body_size=LARGE_BODY_BYTES)
    sent = send_ours(cluster.namesrv, fresh("group"), load)
    words: dict[str, object] = {"topic": load.topic, "group": fresh("group"), "count": COUNT}
    lines = lab.run(CLIENT_VERSIONS[0], "Consume", cluster, words).messages
    assert all(line["storeSize"] < LARGE_BODY_BYTES for line in lines)
    check_arrived(load, [seen_by_java(line) for line in lines], sent, cluster.broker_address)


@pytest.mark.parametrize("serialize", SERIALIZERS)
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
@pytest.mark.parametrize("cluster_name", APACHE_CLUSTERS)
def test_what_java_sends_reaches_us_through_apache(
    lab: Lab, fresh: Fresh, cluster_name: str, version: str, serialize: Serialize
) -> None:
    cluster = lab.cluster(cluster_name)
    load = Load(fresh("topic"), COUNT)
    words = {**load.java_arguments(), "group": fresh("group")}
    produced = lab.run(version, "Produce", cluster, words, serialize)
    mine = receive_ours(cluster.namesrv, fresh("group"), load.topic, COUNT)
    check_arrived(load, mine, sent_by_java(produced.messages), cluster.broker_address)

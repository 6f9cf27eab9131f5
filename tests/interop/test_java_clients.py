"""Apache's Java clients, both generations, on `cosmodrome up`: they cannot tell the difference."""

from collections import Counter
from collections.abc import Callable

import pytest

from interop.java import Line, Serialize
from interop.lab import SERIALIZERS, Cluster, Lab, other_version
from interop.messages import Load, check_arrived, check_same, seen_by_java, sent_by_java
from interop.our_client import receive_ours
from interop.setup import CLIENT_VERSIONS

COUNT = 20
LARGE_BODY_BYTES = 10_000  # the Java producer compresses what is larger than 4 KiB
KINDS = {"LZ4": 1, "ZSTD": 2, "ZLIB": 3}  # and what a message's flags say of it

Fresh = Callable[[str], str]


@pytest.mark.parametrize("mode", ["sync", "async", "oneway", "batch"])
@pytest.mark.parametrize("serialize", SERIALIZERS)
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_java_messages_reach_our_consumer_and_javas(
    lab: Lab, ours: Cluster, fresh: Fresh, version: str, serialize: Serialize, mode: str
) -> None:
    load = Load(fresh("topic"), COUNT)
    words = {**load.java_arguments(), "group": fresh("group"), "mode": mode, "batchSize": 8}
    sent = sent_by_java(lab.run(version, "Produce", ours, words, serialize).messages)
    assert len(sent) == (0 if mode == "oneway" else COUNT)

    mine = receive_ours(ours.namesrv, fresh("group"), load.topic, COUNT)
    javas = [seen_by_java(line) for line in consume(lab, other_version(version), ours, load, fresh, serialize)]

    check_arrived(load, mine, sent, ours.broker_address)
    check_arrived(load, javas, sent, ours.broker_address)
    check_same(mine, javas)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_compressed_java_messages_are_stored_small_and_arrive_whole(
    lab: Lab, ours: Cluster, fresh: Fresh, version: str, kind: str
) -> None:
    load = Load(fresh("topic"), COUNT, body_size=LARGE_BODY_BYTES)
    words = {**load.java_arguments(), "group": fresh("group"), "compressType": kind}
    produced = lab.run(version, "Produce", ours, words)
    sent = sent_by_java(produced.messages)

    mine = receive_ours(ours.namesrv, fresh("group"), load.topic, COUNT)
    lines = consume(lab, other_version(version), ours, load, fresh)
    javas = [seen_by_java(line) for line in lines]

    assert {line["sysFlag"] >> 8 & 7 for line in lines} == {KINDS[kind]}
    assert all(line["storeSize"] < LARGE_BODY_BYTES for line in lines)
    check_arrived(load, mine, sent, ours.broker_address)
    check_arrived(load, javas, sent, ours.broker_address)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_java_clients_that_use_the_vip_channel_are_served(lab: Lab, ours: Cluster, fresh: Fresh, version: str) -> None:
    """By default those up to 4.4 do; without a listener there, nothing that they send arrives."""
    load = Load(fresh("topic"), COUNT)
    words = {**load.java_arguments(), "group": fresh("group"), "vip": True}
    sent = sent_by_java(lab.run(version, "Produce", ours, words).messages)
    words = {"topic": load.topic, "group": fresh("group"), "count": COUNT, "vip": True}
    javas = [seen_by_java(line) for line in lab.run(version, "Consume", ours, words).messages]
    check_arrived(load, javas, sent, ours.broker_address)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_a_java_consumer_that_waits_is_served_as_messages_come(
    lab: Lab, ours: Cluster, fresh: Fresh, version: str
) -> None:
    load = Load(fresh("topic"), COUNT)
    create_topic(lab, ours, load.topic, queues=4)
    words: dict[str, object] = {"topic": load.topic, "group": fresh("group")}
    with lab.start(version, "Consume", ours, words) as consumer:
        consumer.wait_assigned(4)
        produced = lab.run(version, "Produce", ours, {**load.java_arguments(), "group": fresh("group")})
        consumer.wait_messages(COUNT)
        seen = [seen_by_java(line) for line in consumer.end()]
    check_arrived(load, seen, sent_by_java(produced.messages), ours.broker_address)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_an_orderly_java_consumer_gets_each_queue_in_order(lab: Lab, ours: Cluster, fresh: Fresh, version: str) -> None:
    load = Load(fresh("topic"), COUNT)
    words = {**load.java_arguments(), "group": fresh("group"), "mode": "orderly"}
    sent = sent_by_java(lab.run(version, "Produce", ours, words).messages)
    lines = consume(lab, version, ours, load, fresh, extra={"orderly": True})
    seen = [seen_by_java(line) for line in lines]
    check_arrived(load, seen, sent, ours.broker_address)
    for queue_id in {message.queue_id for message in seen}:
        offsets = [message.queue_offset for message in seen if message.queue_id == queue_id]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_tags_are_filtered_for_java_and_for_us(lab: Lab, ours: Cluster, fresh: Fresh, version: str) -> None:
    load = Load(fresh("topic"), 30, tags=("red", "green", "blue"))
    lab.run(version, "Produce", ours, {**load.java_arguments(), "group": fresh("group")})
    wanted = [index for index in load.indexes if load.tag(index) != "green"]
    words = {"expression": "red || blue", "count": len(wanted)}
    javas = [seen_by_java(line) for line in consume(lab, version, ours, load, fresh, extra=words)]
    mine = receive_ours(ours.namesrv, fresh("group"), load.topic, len(wanted), "red || blue")
    assert sorted(message.index for message in javas) == wanted
    check_same(mine, javas)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_broadcasting_gives_every_java_consumer_every_message(
    lab: Lab, ours: Cluster, fresh: Fresh, version: str
) -> None:
    load = Load(fresh("topic"), COUNT)
    create_topic(lab, ours, load.topic, queues=4)
    words: dict[str, object] = {"topic": load.topic, "group": fresh("group"), "model": "BROADCASTING"}
    with (
        lab.start(version, "Consume", ours, words) as one,
        lab.start(version, "Consume", ours, words) as other,
    ):
        one.wait_assigned(4)
        other.wait_assigned(4)
        produced = lab.run(version, "Produce", ours, {**load.java_arguments(), "group": fresh("group")})
        for consumer in (one, other):
            consumer.wait_messages(COUNT)
            seen = [seen_by_java(line) for line in consumer.end()]
            check_arrived(load, seen, sent_by_java(produced.messages), ours.broker_address)


@pytest.mark.parametrize("mode", ["subscribe", "assign"])
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_a_lite_pull_consumer_reads_everything_seeks_back_and_commits(
    lab: Lab, ours: Cluster, fresh: Fresh, version: str, mode: str
) -> None:
    load = Load(fresh("topic"), COUNT)
    produced = lab.run(version, "Produce", ours, {**load.java_arguments(), "group": fresh("group")})
    words: dict[str, object] = {"topic": load.topic, "group": fresh("group"), "count": COUNT, "mode": mode, "seek": 0}
    pulled = lab.run(version, "LitePull", ours, words)
    seen = [seen_by_java(line) for line in pulled.messages[:COUNT]]
    again = [seen_by_java(line) for line in pulled.messages[COUNT:]]
    check_arrived(load, seen, sent_by_java(produced.messages), ours.broker_address)
    check_same(seen, again)
    per_queue = Counter(f"{ours.broker_name}:{message.queue_id}" for message in seen)
    committed = pulled.state["committed"]
    assert {queue: offset for queue, offset in committed.items() if offset > 0} == per_queue


def consume(
    lab: Lab,
    version: str,
    cluster: Cluster,
    load: Load,
    fresh: Fresh,
    serialize: Serialize = "JSON",
    extra: dict[str, object] | None = None,
) -> list[Line]:
    """What a Java push consumer of a new group is given."""
    words: dict[str, object] = {"topic": load.topic, "group": fresh("group"), "count": load.count}
    return lab.run(version, "Consume", cluster, {**words, **(extra or {})}, serialize).messages


def create_topic(lab: Lab, cluster: Cluster, topic: str, queues: int) -> None:
    query = lab.query(cluster, CLIENT_VERSIONS[0])
    query.call("createTopic", addr=cluster.broker_address, topic=topic, queues=queues)

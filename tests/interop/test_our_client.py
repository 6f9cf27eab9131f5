"""Our producer and consumer on our broker and on Apache's, met from the other side by Java."""

import asyncio
import time
from collections.abc import Callable

import pytest

from cosmodrome import ClientConfig, Message, Producer
from cosmodrome.client.finding import Finder
from cosmodrome.client.vip import vip_address
from interop.java import Serialize
from interop.lab import ALL_CLUSTERS, APACHE_CLUSTERS, SERIALIZERS, Lab
from interop.messages import Load, check_arrived, check_same, seen_by_java, sent_by_java
from interop.our_client import WAYS, receive_ours, send_ours
from interop.setup import CLIENT_VERSIONS

COUNT = 20
LARGE_BODY_BYTES = 10_000
FINDING_SECONDS = 60

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


@pytest.mark.parametrize("cluster_name", ALL_CLUSTERS)
def test_topics_are_made_and_messages_found(lab: Lab, fresh: Fresh, cluster_name: str) -> None:
    cluster, topic = lab.cluster(cluster_name), fresh("topic")

    async def run() -> None:
        async with Producer(fresh("group"), cluster.namesrv) as producer, asyncio.timeout(FINDING_SECONDS):
            await producer.create_topic(topic, 2)
            while len(queues := await producer.publish_queues(topic)) != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # until the name server has been told of it
            begun_ms = time.time_ns() // 1_000_000
            sent = [
                await producer.send(Message(topic, b"%d" % index, keys=["all", f"k{index}"]), queues[index % 2])
                for index in range(COUNT)
            ]
            while len(found := await producer.query_message(topic, "all", begun_ms)) < COUNT:  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # until Apache's broker has put them into its index
            assert sorted(int(message.body) for message in found) == list(range(COUNT))
            assert [message.body for message in await producer.query_message(topic, "k7")] == [b"7"]
            assert await producer.query_message(topic, "k7", 0, begun_ms - 1) == []
            for message_id in (sent[3].msg_id, sent[3].offset_msg_id):
                viewed = await producer.view_message(topic, message_id)
                assert (viewed.body, viewed.queue, viewed.queue_offset) == (b"3", queues[1], 1)
            times = {message.body: message.store_timestamp for message in found}
            assert await producer.earliest_msg_store_time(queues[0]) == times[b"0"]
            finder = Finder(producer._instance)
            ranged = (await finder.between(topic, times[b"2"], times[b"9"], COUNT)).all()
            assert {b"%d" % index for index in range(2, 10)} <= {message.body for message in ranged}
            assert all(times[b"2"] <= message.store_timestamp <= times[b"9"] for message in ranged)
            placed = await finder.at(queues[1], 4)
            assert placed is not None
            assert placed.body == b"9"

    asyncio.run(run())


@pytest.mark.parametrize("cluster_name", ALL_CLUSTERS)
def test_what_we_send_through_the_vip_channel_arrives(lab: Lab, fresh: Fresh, cluster_name: str) -> None:
    cluster, load = lab.cluster(cluster_name), Load(fresh("topic"), COUNT)

    async def run() -> None:
        config = ClientConfig(namesrv=cluster.namesrv, vip_channel_enabled=True)
        async with Producer(fresh("group"), config=config) as producer, asyncio.timeout(FINDING_SECONDS):
            sent = [await producer.send(Message(load.topic, b"%d" % index)) for index in range(COUNT)]
            assert vip_address(cluster.broker_address) in producer._instance.caller.connected()
            viewed = await producer.view_message(load.topic, sent[-1].offset_msg_id)
            assert (viewed.body, viewed.store_host) == (b"%d" % (COUNT - 1), cluster.broker_address)
            ends = [await producer.max_offset(queue) for queue in {result.queue for result in sent}]
            assert sum(ends) == COUNT

    asyncio.run(run())
    assert len(receive_ours(cluster.namesrv, fresh("group"), load.topic, COUNT)) == COUNT

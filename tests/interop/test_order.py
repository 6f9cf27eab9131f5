"""Order as Apache's Java clients, both generations, see it: who may read a queue, and which queues a topic has."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import pytest

from cosmodrome import Producer
from cosmodrome.net.loop import run
from interop.lab import Cluster, Lab, other_version
from interop.messages import Load, Seen, Sent, seen_by_java, sent_by_java
from interop.setup import CLIENT_VERSIONS

QUEUES = 4

Fresh = Callable[[str], str]


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_an_orderly_consumer_hands_its_queues_over_when_it_leaves(
    lab: Lab, ours: Cluster, fresh: Fresh, version: str
) -> None:
    topic, words = fresh("topic"), {"group": fresh("group"), "orderly": True}
    lab.query(ours, version).call("createTopic", addr=ours.broker_address, topic=topic, queues=QUEUES)
    consume = {"topic": topic, **words}
    with lab.start(version, "Consume", ours, consume) as first:
        first.wait_assigned(QUEUES)
        with lab.start(other_version(version), "Consume", ours, consume) as second:
            held = [{*one.wait_assigned(QUEUES // 2)} for one in (first, second)]
            assert held[0].isdisjoint(held[1])

            sent = produce(lab, ours, fresh, version, Load(topic, 40))
            for one, queues in zip((first, second), held, strict=True):
                one.wait_messages(sum(f"{place.broker_name}:{place.queue_id}" in queues for place in sent))
            left = [seen_by_java(line) for line in first.end()]
            assert {f"{ours.broker_name}:{seen.queue_id}" for seen in left} <= held[0]

            second.wait_assigned(QUEUES)
            sent += produce(lab, ours, fresh, version, Load(topic, 40, first=40))
            second.wait_messages(len(sent) - len(left))
            stayed = [seen_by_java(line) for line in second.end()]
    assert sorted(seen.index for seen in (*left, *stayed)) == [one.index for one in sent]
    for offsets in by_queue((*left, *stayed)):
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_the_queues_of_an_orderly_topic_are_those_it_is_configured_to_have(
    lab: Lab, ours: Cluster, fresh: Fresh, version: str
) -> None:
    """They stay the same while a broker is away, so a message does not change its queue."""
    query, topic = lab.query(ours, version), fresh("topic")
    query.call("createTopic", addr=ours.broker_address, topic=topic, queues=QUEUES)
    assert len(query.call("publishQueues", topic=topic)) == QUEUES
    query.call("enableOrderConf")
    query.call("putOrderConf", topic=topic, conf=f"{ours.broker_name}:2;broker-away:1")
    assert query.call("topicRoute", topic=topic)["orderTopicConf"] == f"{ours.broker_name}:2;broker-away:1"
    wanted = sorted([f"{ours.broker_name}:0", f"{ours.broker_name}:1", "broker-away:0"])
    assert query.call("publishQueues", topic=topic) == wanted
    assert sorted(run(our_queues(ours.namesrv, topic))) == wanted


async def our_queues(namesrv: str, topic: str) -> list[str]:
    async with Producer("p", namesrv) as producer:
        return [f"{queue.broker_name}:{queue.queue_id}" for queue in await producer.publish_queues(topic)]


def produce(lab: Lab, cluster: Cluster, fresh: Fresh, version: str, load: Load) -> list[Sent]:
    words = {**load.java_arguments(), "group": fresh("group"), "mode": "orderly"}
    lines = lab.run(version, "Produce", cluster, words).messages
    sent = sent_by_java(lines)
    assert len(sent) == load.count, [line for line in lines if "msgId" not in line]
    return sent


def by_queue(seen: Iterable[Seen]) -> Iterable[list[int]]:
    queues = defaultdict[int, list[int]](list)
    for message in seen:
        queues[message.queue_id].append(message.queue_offset)
    return queues.values()

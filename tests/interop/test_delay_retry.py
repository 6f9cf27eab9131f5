"""Delays, retries and dead letters as Apache's Java clients, both generations, see them."""

from collections.abc import Callable

import pytest

from interop.java import Line
from interop.lab import Cluster, Lab, other_version
from interop.messages import Load, Seen, seen_by_java, sent_by_java
from interop.our_client import receive_ours
from interop.setup import CLIENT_VERSIONS

LEVELS_MS = {1: 1_000, 2: 5_000}

Fresh = Callable[[str], str]


@pytest.mark.parametrize("level", LEVELS_MS)
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_a_delayed_java_message_comes_whole_and_not_before_its_time(
    lab: Lab, ours: Cluster, fresh: Fresh, version: str, level: int
) -> None:
    load = Load(fresh("topic"), 5)
    words = {**load.java_arguments(), "group": fresh("group"), "delayLevel": level}
    sent = {one.index: one for one in sent_by_java(lab.run(version, "Produce", ours, words).messages)}
    words = {"topic": load.topic, "group": fresh("group"), "count": load.count}
    javas = [seen_by_java(line) for line in lab.run(other_version(version), "Consume", ours, words).messages]
    mine = receive_ours(ours.namesrv, fresh("group"), load.topic, load.count)
    for seen in (javas, mine):
        assert sorted(message.index for message in seen) == list(load.indexes)
        for message in seen:
            index = message.index
            assert (message.topic, message.tags, message.keys) == (load.topic, load.tag(index), load.key(index))
            assert load.user_properties(index).items() <= message.properties.items()
            assert (message.msg_id, message.queue_id) == (sent[index].msg_id, sent[index].queue_id)
            assert message.store_timestamp - message.born_timestamp >= LEVELS_MS[level]


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_what_a_java_consumer_refuses_comes_again_and_then_it_is_a_dead_letter(
    lab: Lab, ours: Cluster, fresh: Fresh, version: str
) -> None:
    """The retry waits as long as the consumer asks: level 1 is a second."""
    load, group = Load(fresh("topic"), 3), fresh("group")
    refused = refuse(lab, ours, version, load, group, {"maxReconsumeTimes": 1, "retryLevel": 1})

    tries = [(seen_by_java(line).index, seen_by_java(line).reconsume_times) for line in refused]
    assert sorted(tries) == [(index, times) for index in load.indexes for times in (0, 1)]
    assert {line["topic"] for line in refused} == {load.topic}
    first = {seen.index: seen for seen in map(seen_by_java, refused) if seen.reconsume_times == 0}
    for dead in dead_letters(lab, ours, fresh, version, group, load.count):
        origin = first[dead.index]
        assert (dead.tags, dead.keys, dead.msg_id) == (origin.tags, origin.keys, origin.msg_id)
        assert (dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (2, load.topic)
        assert dead.properties["ORIGIN_MESSAGE_ID"] == origin.offset_msg_id


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_what_an_orderly_java_consumer_gives_up_is_a_dead_letter(
    lab: Lab, ours: Cluster, fresh: Fresh, version: str
) -> None:
    load, group = Load(fresh("topic"), 1), fresh("group")
    refuse(lab, ours, version, load, group, {"maxReconsumeTimes": 1, "orderly": True})
    (dead,) = dead_letters(lab, ours, fresh, version, group, 1)
    assert (dead.index, dead.properties["RETRY_TOPIC"]) == (0, load.topic)


def refuse(lab: Lab, cluster: Cluster, version: str, load: Load, group: str, extra: dict[str, object]) -> list[Line]:
    """Every try of a Java consumer that refuses each message twice."""
    lab.run(version, "Produce", cluster, {**load.java_arguments(), "group": f"{group}-producer"})
    words = {"topic": load.topic, "group": group, "fail": True, **extra}
    with lab.start(version, "Consume", cluster, words) as consumer:
        consumer.wait_messages(2 * load.count)
        lab.run(version, "Consume", cluster, {"topic": f"%DLQ%{group}", "group": f"{group}-dlq", "count": load.count})
        return consumer.end()


def dead_letters(lab: Lab, cluster: Cluster, fresh: Fresh, version: str, group: str, count: int) -> list[Seen]:
    """As our client and the other Java client see them, who must agree."""
    topic = f"%DLQ%{group}"
    mine = receive_ours(cluster.namesrv, fresh("group"), topic, count)
    words = {"topic": topic, "group": fresh("group"), "count": count}
    javas = [seen_by_java(line) for line in lab.run(other_version(version), "Consume", cluster, words).messages]
    assert sorted(seen.place for seen in mine) == sorted(seen.place for seen in javas)
    return mine

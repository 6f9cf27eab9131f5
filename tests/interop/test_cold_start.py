"""Where a Java group begins that is new to a topic: the broker's rules and the client's, together."""

import time
from collections.abc import Callable, Iterator

import pytest

from interop.lab import Cluster, Lab
from interop.messages import Load, seen_by_java
from interop.ours import CosmodromeBroker, CosmodromeNameServer
from interop.setup import CLIENT_VERSIONS

QUEUES = 2
OLD, LATER, NEW = range(6), range(6, 12), range(12, 18)
# Nothing counts as still being in memory, so that every queue is one with old messages.
FORGETFUL = {"accessMessageInMemoryMaxRatio": 0}

Fresh = Callable[[str], str]

every_client = pytest.mark.parametrize("version", CLIENT_VERSIONS)


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with (
        CosmodromeNameServer(tmp_path_factory.mktemp("namesrv")) as server,
        CosmodromeBroker(server.address, tmp_path_factory.mktemp("broker"), extra=FORGETFUL) as broker,
    ):
        yield Cluster("forgetful", server.address, broker.broker_name, broker.address)


@every_client
def test_a_new_group_begins_on_old_messages_where_its_consumer_wants(
    lab: Lab, forgetful: Cluster, fresh: Fresh, version: str
) -> None:
    topic = made_topic(lab, forgetful, fresh, version)
    produce(lab, forgetful, fresh, version, topic, OLD)
    moment = next_second()
    produce(lab, forgetful, fresh, version, topic, LATER)
    by_time: dict[str, object] = {"from": "timestamp", "consumeTimestamp": moment}
    wanted: dict[str, object] = {"topic": topic, "group": fresh("group"), "from": "last"}
    with lab.start(version, "Consume", forgetful, wanted) as last:
        last.wait_assigned(QUEUES)
        produce(lab, forgetful, fresh, version, topic, NEW)
        last.wait_messages(len(NEW))
        assert sorted(seen_by_java(line).index for line in last.end()) == [*NEW]
    assert consumed(lab, forgetful, fresh, version, topic, len(OLD) + 12, {"from": "first"}) == [*OLD, *LATER, *NEW]
    assert consumed(lab, forgetful, fresh, version, topic, len(LATER) + 6, by_time) == [*LATER, *NEW]


@every_client
def test_a_new_group_gets_everything_of_a_young_topic_even_if_it_wants_only_what_is_new(
    lab: Lab, ours: Cluster, fresh: Fresh, version: str
) -> None:
    """As long as the first message is in memory the broker says that the group is at 0, and the client believes it."""
    topic = made_topic(lab, ours, fresh, version)
    produce(lab, ours, fresh, version, topic, OLD)
    assert consumed(lab, ours, fresh, version, topic, len(OLD), {"from": "last"}) == [*OLD]


@every_client
def test_a_group_that_begins_on_an_empty_topic_gets_its_first_messages(
    lab: Lab, ours: Cluster, fresh: Fresh, version: str
) -> None:
    """They may land while the client still asks where its group is."""
    topic = made_topic(lab, ours, fresh, version)
    wanted: dict[str, object] = {"topic": topic, "group": fresh("group"), "from": "last"}
    with lab.start(version, "Consume", ours, wanted) as consumer:
        produce(lab, ours, fresh, version, topic, OLD)
        consumer.wait_messages(len(OLD))
        assert sorted(seen_by_java(line).index for line in consumer.end()) == [*OLD]


@every_client
def test_a_group_that_was_there_before_goes_on_where_it_was(
    lab: Lab, forgetful: Cluster, fresh: Fresh, version: str
) -> None:
    topic, group = made_topic(lab, forgetful, fresh, version), fresh("group")
    produce(lab, forgetful, fresh, version, topic, OLD)
    words: dict[str, object] = {"from": "first", "group": group}
    assert consumed(lab, forgetful, fresh, version, topic, len(OLD), words) == [*OLD]
    produce(lab, forgetful, fresh, version, topic, LATER)
    words["from"] = "last"
    assert consumed(lab, forgetful, fresh, version, topic, len(LATER), words) == [*LATER]


def made_topic(lab: Lab, cluster: Cluster, fresh: Fresh, version: str) -> str:
    topic = fresh("topic")
    lab.query(cluster, version).call("createTopic", addr=cluster.broker_address, topic=topic, queues=QUEUES)
    return topic


def produce(lab: Lab, cluster: Cluster, fresh: Fresh, version: str, topic: str, indexes: range) -> None:
    load = Load(topic, len(indexes), first=indexes.start)
    lab.run(version, "Produce", cluster, {**load.java_arguments(), "group": fresh("group")})


def consumed(
    lab: Lab, cluster: Cluster, fresh: Fresh, version: str, topic: str, count: int, extra: dict[str, object]
) -> list[int]:
    words: dict[str, object] = {"topic": topic, "group": fresh("group"), "count": count, **extra}
    return sorted(seen_by_java(line).index for line in lab.run(version, "Consume", cluster, words).messages)


def next_second() -> str:
    """The next full second, once it has come: everything stored until now is older."""
    now = int(time.time())
    while int(time.time()) <= now:
        time.sleep(0.01)
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now + 1))

"""Topics: which exist from the start, which come into being by a send, and who may send where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome.broker.topics import Topics
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import InvalidParameter, NoPermission, TopicNotFound
from cosmodrome.model import AUTO_CREATE_TOPIC, MAX_QUEUES, NOT_SENDABLE_TOPICS, Perm, TopicConfig
from cosmodrome.testing import FakeClock

RESERVED = {
    "TBW102": (8, 7),
    "DefaultCluster": (16, 7),
    "broker-a": (1, 6),
    "BenchmarkTest": (1_024, 6),
    "SCHEDULE_TOPIC_XXXX": (18, 6),
    "SELF_TEST_TOPIC": (1, 6),
    "OFFSET_MOVED_EVENT": (1, 6),
    "DefaultCluster_REPLY_TOPIC": (1, 6),
    "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
    "rmq_sys_wheel_timer": (1, 6),
    "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 6),
}

Open = Callable[..., Topics]


@pytest.fixture
def changes() -> list[str]:
    """Grows with every change the name servers would hear of."""
    return []


@pytest.fixture
def open_topics(tmp_path: Path, changes: list[str]) -> Open:
    def opened(**settings: object) -> Topics:
        config = BrokerConfig(**{"broker_name": "broker-a", **settings})  # type: ignore[arg-type]
        return Topics(config, tmp_path / "topics.json", FakeClock(), lambda: changes.append("changed"))

    return opened


@pytest.fixture
def topics(open_topics: Open) -> Topics:
    return open_topics()


def test_a_new_broker_has_apaches_own_topics(topics: Topics) -> None:
    assert {topic.name: (topic.read_queues, topic.perm) for topic in topics} == RESERVED
    assert all(topic.read_queues == topic.write_queues for topic in topics)
    assert all(topics.is_system(name) for name in RESERVED)
    assert len(topics) == len(RESERVED)


def test_system_topics_are_known_by_name(topics: Topics) -> None:
    for name in ("rmq_sys_wheel_timer", "RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"):
        assert topics.is_system(name)
    for name in ("T", "%RETRY%g", "DefaultClusters"):
        assert not topics.is_system(name)


@pytest.mark.parametrize("name", ["my.host.example", "..", ".", "h" * 200])
def test_a_broker_may_have_a_name_that_no_topic_may_have(open_topics: Open, name: str) -> None:
    """A host name with dots is the default broker name; a path must never come of it."""
    topics = open_topics(broker_name=name)
    assert topics.find_topic(name) is None
    assert topics.find_topic("SELF_TEST_TOPIC") is not None
    assert open_topics(broker_cluster_name=name).find_topic(name) is None


# --- created by a send


@pytest.mark.parametrize(("wanted", "queues"), [(4, 4), (8, 8), (100, 8), (1, 1), (0, 1), (-5, 1)])
def test_a_topic_comes_into_being_by_inheriting_from_tbw102(topics: Topics, wanted: int, queues: int) -> None:
    made = topics.sendable("T", AUTO_CREATE_TOPIC, wanted)
    assert made == TopicConfig("T", queues, queues, int(Perm.READ | Perm.WRITE))
    assert topics.find_topic("T") is made
    assert topics.sendable("T", AUTO_CREATE_TOPIC, 99) is made


def test_creation_follows_the_template(topics: Topics) -> None:
    topics.put(TopicConfig("template", 5, 3, int(Perm.READ | Perm.INHERIT), sys_flag=2))
    with pytest.raises(NoPermission):
        topics.sendable("T", "template", 9)
    made = topics.topic("T")
    assert (made.read_queues, made.write_queues, made.perm, made.sys_flag) == (3, 3, Perm.READ, 2)


@pytest.mark.parametrize("template", ["BenchmarkTest", "nowhere", ""])
def test_a_template_that_may_not_be_inherited_makes_nothing(topics: Topics, template: str) -> None:
    with pytest.raises(TopicNotFound):
        topics.sendable("T", template, 4)
    assert topics.find_topic("T") is None


def test_without_auto_creation_there_is_no_tbw102(open_topics: Open) -> None:
    topics = open_topics(auto_create_topic_enable=False)
    assert topics.find_topic(AUTO_CREATE_TOPIC) is None
    with pytest.raises(TopicNotFound):
        topics.sendable("T", AUTO_CREATE_TOPIC, 4)


async def test_the_permission_an_operator_gave_tbw102_outlives_restarts(
    open_topics: Open, caplog: pytest.LogCaptureFixture
) -> None:
    topics = open_topics()
    topics.put(TopicConfig(AUTO_CREATE_TOPIC, 8, 8, Perm.READ | Perm.WRITE))
    await topics.saved()
    for settings in ({}, {"auto_create_topic_enable": False}, {"default_topic_queue_nums": 4}):
        topics = open_topics(**settings)
        assert topics.topic(AUTO_CREATE_TOPIC).perm == Perm.READ | Perm.WRITE
        with pytest.raises(TopicNotFound):
            topics.sendable("T", AUTO_CREATE_TOPIC, 4)
        await topics.saved()
    assert topics.topic(AUTO_CREATE_TOPIC).write_queues == 4
    assert "automatic topic creation is off: topic=TBW102 perm=6" in caplog.text


async def test_switching_auto_creation_off_changes_nothing_in_the_table(open_topics: Open) -> None:
    await open_topics().saved()
    topics = open_topics(auto_create_topic_enable=False)
    assert topics.topic(AUTO_CREATE_TOPIC).perm == Perm.READ | Perm.WRITE | Perm.INHERIT


async def test_switching_auto_creation_off_outlives_a_stored_tbw102(open_topics: Open) -> None:
    await open_topics().saved()
    topics = open_topics(auto_create_topic_enable=False)
    with pytest.raises(TopicNotFound):
        topics.sendable("T", AUTO_CREATE_TOPIC, 4)
    await topics.saved()
    again = open_topics(auto_create_topic_enable=True)
    assert again.sendable("T", AUTO_CREATE_TOPIC, 4).write_queues == 4


def test_a_retry_topic_comes_into_being_even_without_a_template(open_topics: Open) -> None:
    topics = open_topics(auto_create_topic_enable=False)
    assert topics.sendable("%RETRY%g", AUTO_CREATE_TOPIC, 4) == TopicConfig("%RETRY%g", 1, 1)


def test_a_groups_retry_topic_is_made_once(topics: Topics) -> None:
    made = topics.ensure_retry_topic("g", 3)
    assert made == TopicConfig("%RETRY%g", 3, 3)
    assert topics.ensure_retry_topic("g", 5) is made


@pytest.mark.parametrize(
    "name", ["../../x", "..", ".", "a/b", "a\\b", "a b", "", "a\0", "ä", "T\n", "x" * 128, "%RETRY%" + "x" * 249]
)
def test_a_name_that_could_become_a_path_or_breaks_the_rules_is_refused(topics: Topics, name: str) -> None:
    with pytest.raises(InvalidParameter):
        topics.sendable(name, AUTO_CREATE_TOPIC, 4)
    with pytest.raises(InvalidParameter):
        topics.put(TopicConfig(name))
    with pytest.raises(InvalidParameter):
        topics.ensure_retry_topic(name + "/" + "x" * 250, 1)
    assert len(topics) == len(RESERVED)


# --- permissions


@pytest.mark.parametrize("name", sorted(NOT_SENDABLE_TOPICS))
def test_nobody_sends_to_the_brokers_own_topics_nor_makes_them(topics: Topics, name: str) -> None:
    before = len(topics)
    with pytest.raises(NoPermission, match="forbidden"):
        topics.sendable(name, AUTO_CREATE_TOPIC, 4)
    assert len(topics) == before


@pytest.mark.parametrize(
    "name", ["TBW102", "DefaultCluster", "broker-a", "BenchmarkTest", "DefaultCluster_REPLY_TOPIC"]
)
def test_other_reserved_topics_take_messages(topics: Topics, name: str) -> None:
    assert topics.sendable(name, AUTO_CREATE_TOPIC, 4).name == name


@pytest.mark.parametrize(("perm", "sendable"), [(6, True), (2, True), (4, False), (0, False), (7, True), (1, False)])
def test_sending_needs_the_write_permission(topics: Topics, perm: int, sendable: bool) -> None:
    topics.put(TopicConfig("T", perm=perm))
    if sendable:
        assert topics.sendable("T", AUTO_CREATE_TOPIC, 4).perm == perm
    else:
        with pytest.raises(NoPermission, match="T"):
            topics.sendable("T", AUTO_CREATE_TOPIC, 4)


@pytest.mark.parametrize(
    "config",
    [
        TopicConfig("T", perm=8),
        TopicConfig("T", perm=-1),
        TopicConfig("T", read_queues=-1),
        TopicConfig("T", write_queues=MAX_QUEUES + 1),
    ],
)
def test_a_config_out_of_range_is_refused(topics: Topics, config: TopicConfig) -> None:
    with pytest.raises(InvalidParameter, match="T"):
        topics.put(config)
    assert topics.find_topic("T") is None


# --- changes


def test_name_servers_hear_of_changes_and_only_of_changes(topics: Topics, changes: list[str]) -> None:
    changes.clear()
    version = topics.data_version
    topics.put(TopicConfig("T", 4, 4))
    topics.put(TopicConfig("T", 4, 4))
    topics.delete("nowhere")
    assert len(changes) == 1
    assert topics.data_version.counter == version.counter + 1
    topics.put(TopicConfig("T", 8, 8))
    topics.delete("T")
    assert len(changes) == 3
    with pytest.raises(TopicNotFound):
        topics.topic("T")


async def test_a_restart_finds_the_same_topics(open_topics: Open) -> None:
    topics = open_topics()
    topics.sendable("T", AUTO_CREATE_TOPIC, 4)
    topics.put(TopicConfig("ordered", 2, 3, 4, order=True, sys_flag=1, attributes={"message.type": "FIFO"}))
    topics.put(TopicConfig("SELF_TEST_TOPIC", 7, 7))
    await topics.saved()
    again = open_topics()
    assert list(again) == list(topics)
    assert again.data_version == topics.data_version
    assert not again.unsaved


async def test_the_file_has_apaches_shape(open_topics: Open, tmp_path: Path) -> None:
    topics = open_topics()
    topics.put(TopicConfig("T", 4, 4))
    await topics.saved()
    saved = json.loads((tmp_path / "topics.json").read_bytes())
    assert saved["dataVersion"]["counter"] == topics.data_version.counter
    stored = saved["topicConfigTable"]["T"]
    assert {
        "perm": 6,
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "topicName": "T",
        "order": False,
    }.items() <= stored.items()

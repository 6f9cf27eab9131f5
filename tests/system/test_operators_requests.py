"""Requests that operators' tools send to a broker: lists of topics and groups, settings, and questions about groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cosmodrome.broker.hot_config import HOT_KEYS
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, StoreConfig
from cosmodrome.filter.tags import subscription
from cosmodrome.model import GroupConfig, MessageQueue, TopicConfig
from cosmodrome.wire.bodies import (
    AllProducerInfo,
    ConsumeStatsList,
    CorrectionOffsets,
    GroupConfigList,
    QueueEntries,
    SubscriptionBody,
    TimeSpans,
    TopicConfigList,
    TopicList,
)
from cosmodrome.wire.header import Header
from cosmodrome.wire.requests import (
    BrokerConsumeStats,
    CloneGroupOffset,
    GroupHeader,
    QueryConsumeQueue,
    QueryCorrectionOffset,
    QuerySubscription,
    QueryTimeSpan,
    UpdateConsumerOffset,
)
from tests.system.wired import Wired, wired

TOPIC, GROUP = "orders", "billing"


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[Wired]:
    async with wired(tmp_path) as made:
        yield made


async def filled(client: Wired, messages: int = 3) -> None:
    """Store messages in queue 0 of a topic with one queue, and the offset 1 for the group."""
    topics = TopicConfigList((TopicConfig(TOPIC, 1, 1),))
    await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=topics.encode())
    groups = GroupConfigList((GroupConfig(GROUP), GroupConfig("audit")))
    await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=groups.encode())
    for number in range(messages):
        await client.send(TOPIC, b"%d" % number, TAGS="paid" if number % 2 else "open")
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(GROUP, TOPIC, 0, 1))


async def test_lists_of_topics_and_groups_are_made_at_once(client: Wired) -> None:
    await filled(client, messages=0)
    assert client.broker.topics.topic(TOPIC).read_queues == 1
    assert {GROUP, "audit"} <= {group.name for group in client.broker.groups}


async def test_a_list_with_an_illegal_name_changes_nothing(client: Wired) -> None:
    topics = TopicConfigList((TopicConfig("good"), TopicConfig("no good")))
    refused = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=topics.encode())
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert client.broker.topics.find_topic("good") is None
    groups = GroupConfigList((GroupConfig("good"), GroupConfig("no good")))
    refused = await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=groups.encode())
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "good" not in client.broker.groups


async def test_all_groups_tell_their_progress_in_one_answer(client: Wired) -> None:
    await filled(client)
    reply = await client.ask(RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStats())
    (stats,) = ConsumeStatsList.decode(reply.body).groups[GROUP]
    assert ConsumeStatsList.decode(reply.body).members == {}, "nobody is connected"
    (progress,) = stats.offsets.values()
    assert (progress.broker_offset, progress.consumer_offset) == (3, 1)
    reply = await client.ask(RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStats(is_order=True))
    assert ConsumeStatsList.decode(reply.body).groups == {}


async def test_questions_about_a_group(client: Wired) -> None:
    await filled(client)
    await client.heartbeat(subscription(TOPIC, "paid", 1), group=GROUP, producer="shop")
    reply = await client.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupHeader(GROUP))
    assert TOPIC in TopicList.decode(reply.body).topics
    reply = await client.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, QuerySubscription(GROUP, TOPIC))
    found = SubscriptionBody.decode(reply.body).subscription
    assert found is not None
    assert found.expression == "paid"
    reply = await client.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, QuerySubscription("audit", TOPIC))
    assert SubscriptionBody.decode(reply.body).subscription is None
    reply = await client.ask(RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStats())
    assert ConsumeStatsList.decode(reply.body).members == {GROUP: ("me",)}
    reply = await client.ask(RequestCode.GET_ALL_PRODUCER_INFO)
    assert [one.client_id for one in AllProducerInfo.decode(reply.body).groups["shop"]] == ["me"]


async def test_how_late_a_group_is(client: Wired) -> None:
    await filled(client)
    reply = await client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, QueryTimeSpan(TOPIC, GROUP))
    (span,) = TimeSpans.decode(reply.body).spans
    assert span.queue == MessageQueue(TOPIC, client.broker.config.broker_name, 0)
    assert 0 < span.min_ms == span.consumed_ms <= span.max_ms
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(GROUP, TOPIC, 0, 3))
    reply = await client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, QueryTimeSpan(TOPIC, GROUP))
    (span,) = TimeSpans.decode(reply.body).spans
    assert (span.consumed_ms, span.delay_ms) == (span.max_ms, 0)


async def test_the_smallest_offset_of_all_groups(client: Wired) -> None:
    await filled(client)
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("audit", TOPIC, 0, 2))

    async def smallest(*fields: str) -> dict[int, int]:
        reply = await client.ask(RequestCode.QUERY_CORRECTION_OFFSET, QueryCorrectionOffset(TOPIC, *fields))
        return dict(CorrectionOffsets.decode(reply.body).offsets)

    assert await smallest("audit") == {0: 1}
    assert await smallest("audit", GROUP) == {0: 2}
    assert await smallest(GROUP, GROUP) == {0: 2**63 - 1}, "the compared group is behind all others"


async def test_offsets_are_cloned_to_another_group(client: Wired) -> None:
    await filled(client)
    await client.ask(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffset(GROUP, "audit", TOPIC))
    assert client.broker.offsets.find_offset("audit", TOPIC, 0) == 1
    refused = await client.call(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffset(GROUP, "nobody", TOPIC))
    assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    refused = await client.call(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffset(GROUP, "CID_RMQ_SYS_TRANS", TOPIC))
    assert refused.code == ResponseCode.NO_PERMISSION


async def test_entries_of_a_queue_say_whether_a_group_wants_them(client: Wired) -> None:
    await filled(client)
    await client.heartbeat(subscription(TOPIC, "paid", 1), group=GROUP)

    async def entries(header: Header) -> QueueEntries:
        return QueueEntries.decode((await client.ask(RequestCode.QUERY_CONSUME_QUEUE, header)).body)

    found = await entries(QueryConsumeQueue(TOPIC, 0, 1, 10, GROUP))
    assert (found.min_offset, found.max_offset, found.subscription) == (0, 3, "paid")
    assert [entry.is_wanted for entry in found.entries] == [True, False]
    assert all(entry.size > 0 for entry in found.entries)
    assert (await entries(QueryConsumeQueue(TOPIC, 0, 3, 10))).entries == ()
    refused = await client.call(RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueue(TOPIC, 0, 0, 100_000))
    assert refused.code == ResponseCode.INVALID_PARAMETER


async def test_a_hot_key_is_obeyed_at_once_and_shown(client: Wired) -> None:
    body = b"autoCreateTopicEnable=false\nrejectTransactionMessage=true\nfileReservedTime=24\n"
    await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
    shown = bytes((await client.ask(RequestCode.GET_BROKER_CONFIG)).body)
    assert b"autoCreateTopicEnable=false\n" in shown
    assert b"fileReservedTime=24\n" in shown
    reply = await client.call(RequestCode.GET_TOPIC_CONFIG, GroupHeader(GROUP))
    assert reply.code != ResponseCode.SUCCESS
    with pytest.raises(AssertionError, match="new-topic"):
        await client.send("new-topic", b"1")
    await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"autoCreateTopicEnable=true")
    await client.send("new-topic", b"1")


@pytest.mark.parametrize(
    "key",
    ["storePathRootDir", "namesrvAddr", "aclFile", "filterServerNums", "rocketmqHome", "maxTopics", "bindAddress", "x"],
)
async def test_no_other_key_is_changed_over_the_wire(client: Wired, key: str) -> None:
    before = (client.broker.config, client.broker.store_config)
    body = f"slaveReadEnable=true\n{key}=1\n".encode()
    refused = await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=body)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert key in (refused.remark or "")
    assert (client.broker.config, client.broker.store_config) == before


async def test_a_value_that_cannot_be_is_refused(client: Wired) -> None:
    refused = await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=0")
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "fileReservedTime" in (refused.remark or "")


def test_each_hot_key_is_one_that_a_broker_knows() -> None:
    assert {*BrokerConfig.attributes_by_key(), *StoreConfig.attributes_by_key()} >= HOT_KEYS


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.SET_COMMITLOG_READ_MODE,
        RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.POP_ROLLBACK,
    ],
)
async def test_what_is_not_here_is_refused_in_words(client: Wired, code: RequestCode) -> None:
    refused = await client.call(code)
    assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert len((refused.remark or "").split()) > 10

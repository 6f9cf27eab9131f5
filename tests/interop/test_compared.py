"""The same questions to our broker and to Apache's: where the answers differ on purpose, it is written down here."""

import asyncio
from collections.abc import Callable

import pytest

from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.model import MessageQueue, Subscription
from cosmodrome.net.caller import Caller
from cosmodrome.wire.bodies import ConsumerData, ConsumeStats, HeartbeatData
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.properties import encode
from cosmodrome.wire.requests import (
    ConsumeStatsRequest,
    CreateTopic,
    DeleteGroup,
    OffsetReply,
    PullFlag,
    PullMessage,
    QueryConsumerOffset,
    SendMessage,
)
from interop.lab import APACHE_CLUSTERS, OURS, Cluster, Lab

TIMEOUT_MS = 10_000
OLD, NEW = APACHE_CLUSTERS
# Apache's brokers write these; each answers at once that its client may not.
CLOSED = (
    *("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"),
    *("SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"),
)
CLOSED_HERE = ("rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster")
OPEN = ("RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_cn", "BenchmarkTest", "TBW102", "DefaultCluster_REPLY_TOPIC")

Fresh = Callable[[str], str]

pytestmark = pytest.mark.parametrize("cluster_name", [OURS, *APACHE_CLUSTERS])


@pytest.fixture
def cluster(lab: Lab, cluster_name: str) -> Cluster:
    return lab.cluster(cluster_name)


def ask(cluster: Cluster, code: int, header: Header | None = None, body: bytes = b"") -> Command:
    (reply,) = ask_all(cluster, (code, header, body))
    return reply


def ask_all(cluster: Cluster, *questions: tuple[int, Header | None, bytes]) -> list[Command]:
    """Ask one after the other on one connection."""

    async def asked() -> list[Command]:
        caller = Caller()
        try:
            return [
                await caller.call(cluster.broker_address, Command.request(code, header, body), TIMEOUT_MS)
                for code, header, body in questions
            ]
        finally:
            await caller.close()

    return asyncio.run(asked())


def sent(topic: str, **properties: str) -> tuple[int, Header, bytes]:
    header = SendMessage("compared", topic, "TBW102", 1, 0, 0, 0, 0, encode({"UNIQ_KEY": "k", **properties}))
    return RequestCode.SEND_MESSAGE, header, b"body"


def created(topic: str, attributes: str | None = None) -> tuple[int, Header, bytes]:
    return RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic(topic, 1, 1, 6, "TBW102", attributes=attributes), b""


def test_a_group_that_is_new_to_an_empty_queue(cluster: Cluster, fresh: Fresh) -> None:
    """5.3.3 has the client ask for the end of the queue next, and skip what lands in between."""
    topic, group = fresh("topic"), fresh("group")
    assert ask(cluster, *created(topic)).code == ResponseCode.SUCCESS
    reply = ask(cluster, RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset(group, topic, 0))
    if cluster.name == NEW:
        assert reply.code == ResponseCode.QUERY_NOT_FOUND
    else:
        assert OffsetReply.decode(reply).offset == 0


def test_what_was_pulled_is_told_apart_from_what_was_committed(cluster: Cluster, fresh: Fresh) -> None:
    """4.9.7 knows no pullOffset, and its answer has none."""
    topic, group = fresh("topic"), fresh("group")
    beat = HeartbeatData("compared", (), (ConsumerData(group, subscriptions=(Subscription(topic),)),))
    pull = PullMessage(group, topic, 0, 0, 2, PullFlag.SUBSCRIPTION, 0, 1_000, "*")
    replies = ask_all(
        cluster,
        created(topic),
        *(sent(topic) for _ in range(3)),
        (RequestCode.HEART_BEAT, None, beat.encode()),
        (RequestCode.PULL_MESSAGE, pull, b""),
        (RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest(group, topic), b""),
    )
    place = ConsumeStats.decode(bytes(replies[-1].body)).offsets[MessageQueue(topic, cluster.broker_name, 0)]
    assert (place.broker_offset, place.consumer_offset) == (3, 0)
    assert place.pull_offset == (0 if cluster.name == OLD else 2)


def test_deleting_a_group_that_is_not_there(cluster: Cluster, fresh: Fresh) -> None:
    reply = ask(cluster, RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup(fresh("group")))
    assert reply.code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "attributes", ["+message.type=nonsense", "+nonsense=1", "-message.type", "message.type=FIFO", "+message-type=FIFO"]
)
def test_an_attribute_that_no_one_knows(cluster: Cluster, fresh: Fresh, attributes: str) -> None:
    """4.9.7 does not look at them."""
    reply = ask(cluster, *created(fresh("topic"), attributes))
    assert (reply.code == ResponseCode.SUCCESS) == (cluster.name == OLD), reply.remark


@pytest.mark.parametrize("attributes", ["+queue.type=BatchCQ", "+cleanup.policy=COMPACTION"])
def test_an_attribute_that_only_apaches_keep(cluster: Cluster, fresh: Fresh, attributes: str) -> None:
    reply = ask(cluster, *created(fresh("topic"), attributes))
    assert (reply.code == ResponseCode.SUCCESS) == (cluster.name != OURS), reply.remark


@pytest.mark.parametrize("changes", [("+message.type=FIFO", "+message.type=DELAY", "-message.type")])
def test_a_type_of_messages_is_set_changed_and_removed(cluster: Cluster, fresh: Fresh, changes: list[str]) -> None:
    topic = fresh("topic")
    for change in changes:
        assert ask(cluster, *created(topic, change)).code == ResponseCode.SUCCESS


def test_a_static_topic(cluster: Cluster, fresh: Fresh) -> None:
    """4.9.7 has none either, and says only that it does not know the request."""
    reply = ask(cluster, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, created(fresh("topic"))[1], b"{}")
    assert (reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED) == (cluster.name != NEW)
    assert ("static topics" in (reply.remark or "")) == (cluster.name == OURS)


def test_topics_of_the_brokers_own(cluster: Cluster) -> None:
    """Apache's brokers take what is sent to the two topics that begin with rmq_sys_ and keep it, so nothing is sent."""
    for topic in (*CLOSED, *(CLOSED_HERE if cluster.name == OURS else ())):
        assert ask(cluster, *sent(topic)).code == ResponseCode.NO_PERMISSION, topic
        assert ask(cluster, *created(topic)).code != ResponseCode.SUCCESS, topic


@pytest.mark.parametrize("topic", OPEN)
def test_a_system_topic_that_clients_may_write_to(cluster: Cluster, topic: str) -> None:
    assert ask(cluster, *sent(topic)).code == ResponseCode.SUCCESS


def test_a_half_message_for_a_topic_that_takes_none(cluster: Cluster, fresh: Fresh) -> None:
    """Apache's brokers leave that to their clients, and deliver it into the topic."""
    topic = fresh("topic")
    read_only = CreateTopic(topic, 1, 1, 4, "TBW102")
    half = sent(topic, TRAN_MSG="true", PGROUP="compared")
    replies = ask_all(cluster, (RequestCode.UPDATE_AND_CREATE_TOPIC, read_only, b""), half)
    assert (replies[-1].code == ResponseCode.NO_PERMISSION) == (cluster.name == OURS)

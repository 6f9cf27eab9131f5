"""Pulling by hand, against a broker that remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import ClientConfig, MessageModel, MessageQueue, PullConsumer, PullStatus, Sql
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import BrokerError, ClientError, RouteNotFound, SubscriptionParseFailed
from cosmodrome.testing import FakeClock
from cosmodrome.wire.bodies import ConsumerIds, HeartbeatData
from cosmodrome.wire.command import Command
from cosmodrome.wire.compression import compress
from cosmodrome.wire.record import offset_msg_id, pack_host
from cosmodrome.wire.requests import PullFlag, PullMessage, PullReply, SendBack, UpdateConsumerOffset, ViewMessage
from tests.unit.client.fake_cluster import PATIENCE_SECONDS, FakeCluster, fake_cluster
from tests.unit.client.messages import record

GROUP = "g"
PULL = RequestCode.PULL_MESSAGE
Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


@asynccontextmanager
async def pulling(count: int = 0, **options: Any) -> AsyncIterator[tuple[FakeCluster, PullConsumer]]:
    """A consumer, and T with two queues, of which the first has so many messages."""
    async with fake_cluster(T=2) as cluster:
        for number in range(count):
            await cluster.broker.append("T", 0, b"%d" % number, f"TAGS\x01{'even' if number % 2 == 0 else 'odd'}\x02")
        async with PullConsumer(GROUP, cluster.namesrv, **options) as consumer:
            yield cluster, consumer


def answering(cluster: FakeCluster, code: int, offsets: PullReply) -> None:
    cluster.broker.answers[PULL] = lambda command: command.reply(code, header=offsets)


# --- pulling


async def test_messages_are_pulled_from_where_one_says() -> None:
    async with pulling(10) as (cluster, consumer):
        assert await consumer.fetch_subscribe_queues("T") == [Q0, Q1]
        result = await consumer.pull(Q0, "*", 4, 3)
        assert result.status is PullStatus.FOUND
        assert [message.queue_offset for message in result.messages] == [4, 5, 6, 7, 8, 9]  # it gives what it likes
        assert (result.next_begin_offset, result.min_offset, result.max_offset) == (10, 0, 10)
        (command,) = cluster.broker.asked.of(PULL)
        request = PullMessage.decode(command)
        assert (request.max_msg_nums, request.subscription, request.commit_offset) == (3, "*", 0)
        assert request.sys_flag == PullFlag.SUBSCRIPTION


async def test_only_wanted_tags_are_found_and_none_is_no_match() -> None:
    async with pulling(4) as (_, consumer):
        odd = await consumer.pull(Q0, "odd")
        assert [message.body for message in odd.messages] == [b"1", b"3"]
        other = await consumer.pull(Q0, "other")
        assert (other.status, other.messages, other.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, [], 4)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.PULL_NOT_FOUND, PullStatus.NO_NEW_MSG),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, PullStatus.NO_MATCHED_MSG),
        (ResponseCode.PULL_OFFSET_MOVED, PullStatus.OFFSET_ILLEGAL),
    ],
)
async def test_an_answer_without_messages_says_why_and_where_to_go_on(code: ResponseCode, status: PullStatus) -> None:
    async with pulling() as (cluster, consumer):
        answering(cluster, code, PullReply(0, 7, 5, 9))
        result = await consumer.pull(Q0, offset=3)
        assert (result.status, result.messages) == (status, [])
        assert (result.next_begin_offset, result.min_offset, result.max_offset) == (7, 5, 9)


async def test_a_refused_pull_raises() -> None:
    async with pulling() as (cluster, consumer):
        cluster.broker.answers[PULL] = lambda command: command.reply(ResponseCode.NO_PERMISSION, remark="not you")
        with pytest.raises(BrokerError, match="not you"):
            await consumer.pull(Q0)


async def test_a_blocking_pull_waits_on_the_broker() -> None:
    async with pulling() as (cluster, consumer):
        answering(cluster, ResponseCode.PULL_NOT_FOUND, PullReply(0, 0, 0, 0))
        result = await consumer.pull_block_if_not_found(Q0, Sql("price > 5"), block_ms=700)
        assert result.status is PullStatus.NO_NEW_MSG
        (command,) = cluster.broker.asked.of(PULL)
        request = PullMessage.decode(command)
        assert request.sys_flag == PullFlag.SUBSCRIPTION | PullFlag.SUSPEND
        assert (request.suspend_timeout_millis, request.expression_type) == (700, "SQL92")


@pytest.mark.parametrize("refusals", [1, 2])
async def test_an_offset_that_overtakes_the_groups_first_heartbeat_is_stored_once_the_broker_knows_the_group(
    refusals: int,
) -> None:
    """Apache 5 refuses an offset of a group that it does not know; one that it never gets to know is an error."""
    async with pulling() as (cluster, consumer):
        asked: list[Command] = []

        def update(command: Command) -> Command:
            asked.append(command)
            unknown = len(asked) <= refusals
            code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST if unknown else ResponseCode.SUCCESS
            return command.reply(code, remark="Group g not exist!" if unknown else None)

        cluster.broker.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = update
        consumer.update_consume_offset(Q0, 5)
        if refusals == 1:
            await consumer.persist_consume_offset()
        else:
            with pytest.raises(BrokerError, match="Group g not exist!"):
                await consumer.persist_consume_offset()
        assert [UpdateConsumerOffset.decode(command).commit_offset for command in asked[:2]] == [5, 5]
        assert cluster.broker.asked.of(RequestCode.HEART_BEAT)


async def test_compressed_bodies_are_unpacked() -> None:
    async with pulling() as (cluster, consumer):
        packed, sys_flag = compress(b"x" * 9_000)
        await cluster.broker.append("T", 0, packed, sys_flag=sys_flag)
        (message,) = (await consumer.pull(Q0)).messages
        assert message.body == b"x" * 9_000


async def test_what_makes_no_sense_is_refused_before_it_is_asked() -> None:
    async with pulling() as (cluster, consumer):
        with pytest.raises(ValueError, match="offset is -1"):
            await consumer.pull(Q0, offset=-1)
        with pytest.raises(ValueError, match="max_messages is 0"):
            await consumer.pull(Q0, max_messages=0)
        with pytest.raises(ValueError, match="offset is -2"):
            consumer.update_consume_offset(Q0, -2)
        with pytest.raises(SubscriptionParseFailed):
            await consumer.pull(Q0, "||")
        with pytest.raises(RouteNotFound):
            await consumer.pull(MessageQueue("unknown", "broker-a", 0))
        assert not cluster.broker.asked.of(PULL)
    with pytest.raises(ClientError, match="is stopped"):
        await consumer.pull(Q0)


# --- offsets


async def test_offsets_are_stored_though_nothing_was_pulled() -> None:
    async with pulling(5) as (cluster, consumer):
        consumer.update_consume_offset(Q0, 3)
        await consumer.persist_consume_offset()
        assert cluster.broker.offsets[GROUP, "T", 0] == 3


async def test_an_updated_offset_is_known_here_and_stored_when_asked() -> None:
    async with pulling(5) as (cluster, consumer):
        assert await consumer.fetch_consume_offset(Q0) is None
        consumer.update_consume_offset(Q0, 3)
        assert await consumer.fetch_consume_offset(Q0) == 3
        assert await consumer.fetch_consume_offset(Q0, from_store=True) is None
        await consumer.persist_consume_offset(Q0)
        assert await consumer.fetch_consume_offset(Q0, from_store=True) == 3
        consumer.update_consume_offset(Q0, 4)
        await consumer.persist_consume_offset()
        assert cluster.broker.offsets[GROUP, "T", 0] == 4
        consumer.update_consume_offset(Q0, 5)
    assert cluster.broker.offsets[GROUP, "T", 0] == 5


async def test_offsets_are_stored_in_their_time() -> None:
    async with fake_cluster(T=1) as cluster:
        config = ClientConfig(namesrv=cluster.namesrv, persist_offset_interval_ms=1)
        async with PullConsumer(GROUP, config=config) as consumer:
            await consumer.fetch_subscribe_queues("T")
            consumer.update_consume_offset(Q0, 3)
            await cluster.broker.asked.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET)
            assert cluster.broker.offsets[GROUP, "T", 0] == 3


async def test_a_persist_that_fails_is_told() -> None:
    async with pulling() as (cluster, consumer):
        cluster.broker.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda command: command.reply(
            ResponseCode.SYSTEM_ERROR, remark="full"
        )
        await consumer.fetch_subscribe_queues("T")
        consumer.update_consume_offset(Q0, 3)
        with pytest.raises(BrokerError, match="full"):
            await consumer.persist_consume_offset()


async def test_a_broadcasting_consumer_keeps_them_in_a_file(tmp_path: Path) -> None:
    broadcast = {"model": MessageModel.BROADCASTING, "offsets_file": tmp_path / "offsets.json"}
    async with pulling(5, **broadcast) as (cluster, consumer):
        consumer.update_consume_offset(Q0, 3)
    assert not cluster.broker.offsets
    async with pulling(5, **broadcast) as (_, consumer):
        assert await consumer.fetch_consume_offset(Q0) == 3


async def test_the_edges_of_a_queue() -> None:
    async with pulling(5) as (_, consumer):
        assert await consumer.min_offset(Q0) == 0
        assert await consumer.max_offset(Q0) == 5
        assert await consumer.search_offset(Q0, 0) == 0


# --- being a member


async def test_it_says_what_it_is() -> None:
    async with pulling() as (cluster, consumer):
        await consumer.fetch_subscribe_queues("T")
        (beat, *_) = await cluster.broker.asked.wait_for(RequestCode.HEART_BEAT)
        (data,) = HeartbeatData.decode(beat.body).consumers
        assert (data.group, data.consume_type) == (GROUP, "CONSUME_ACTIVELY")
    assert cluster.broker.asked.of(RequestCode.UNREGISTER_CLIENT)


async def test_queues_of_registered_topics_are_shared() -> None:
    async with fake_cluster(T=2) as cluster:
        told: list[tuple[str, list[MessageQueue], list[MessageQueue]]] = []
        consumer = PullConsumer(GROUP, cluster.namesrv)
        consumer.register_topics(["T"], lambda *balance: told.append(balance))
        async with consumer:
            assert consumer.message_queues_in_balance("T") == [Q0, Q1]
            assert told == [("T", [Q0, Q1], [Q0, Q1])]
            with pytest.raises(ClientError, match="register_topics"):
                consumer.message_queues_in_balance("U")


async def test_a_queue_that_went_to_another_member_is_not_set_back() -> None:
    clock = FakeClock()
    async with fake_cluster(T=2) as cluster:
        consumer = PullConsumer(GROUP, cluster.namesrv, clock=clock)
        consumer.register_topics(["T"])
        async with consumer, asyncio.timeout(PATIENCE_SECONDS):
            consumer.update_consume_offset(Q0, 3)
            consumer.update_consume_offset(Q1, 4)
            ids = ConsumerIds((consumer.client_id, "~")).encode()
            cluster.broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda command: command.reply(body=ids)
            while consumer.message_queues_in_balance("T") != [Q0]:
                cluster.broker.notify_members(GROUP)
                await asyncio.sleep(0.001)
                await clock.advance(1_000)
            assert cluster.broker.offsets[GROUP, "T", 1] == 4
            cluster.broker.offsets[GROUP, "T", 1] = 9  # the other member is further
            consumer.update_consume_offset(Q1, 5)
            assert await consumer.fetch_consume_offset(Q1) == 9
            await consumer.persist_consume_offset()
        assert (cluster.broker.offsets[GROUP, "T", 0], cluster.broker.offsets[GROUP, "T", 1]) == (3, 9)


# --- single messages


async def test_a_message_is_sent_back() -> None:
    async with pulling(1, max_reconsume_times=3) as (cluster, consumer):
        cluster.broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: command.reply()
        (message,) = (await consumer.pull(Q0)).messages
        await consumer.send_message_back(message, 4)
        (command,) = cluster.broker.asked.of(RequestCode.CONSUMER_SEND_MSG_BACK)
        request = SendBack.decode(command)
        assert (request.group, request.delay_level, request.offset) == (GROUP, 4, message.commit_log_offset)
        cluster.broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: command.reply(
            ResponseCode.SYSTEM_ERROR, remark="no"
        )
        with pytest.raises(BrokerError, match="no"):
            await consumer.send_message_back(message)


async def test_a_message_is_found_by_its_id() -> None:
    def view(command: Command) -> Command:
        assert ViewMessage.decode(command).offset == 77
        return command.reply(body=record(b"there", queue_id=1).encode())

    async with pulling() as (cluster, consumer):
        cluster.broker.answers[RequestCode.VIEW_MESSAGE_BY_ID] = view
        host, _, port = cluster.broker.address.rpartition(":")
        message = await consumer.view_message("T", offset_msg_id(pack_host(host, int(port)), 77))
        assert (message.body, message.queue) == (b"there", Q1)
        new = await consumer.view_message("Unknown", offset_msg_id(pack_host(host, int(port)), 77))
        assert (new.body, new.queue.broker_name) == (b"there", "")


async def test_names_of_a_namespace_are_the_applications_own() -> None:
    async with fake_cluster(**{"NS%T": 1}) as cluster:
        await cluster.broker.append("NS%T", 0, b"x")
        config = ClientConfig(namesrv=cluster.namesrv, namespace="NS")
        async with PullConsumer(GROUP, config=config) as consumer:
            (queue,) = await consumer.fetch_subscribe_queues("T")
            (message,) = (await consumer.pull(queue)).messages
            assert (queue, message.topic, message.queue) == (Q0, "T", Q0)
            consumer.update_consume_offset(message.queue, 1)
            cluster.broker.answers[RequestCode.VIEW_MESSAGE_BY_ID] = lambda command: command.reply(
                body=record(b"x", topic="NS%T").encode()
            )
            host, _, port = cluster.broker.address.rpartition(":")
            viewed = await consumer.view_message("T", offset_msg_id(pack_host(host, int(port)), 0))
            assert (viewed.topic, viewed.queue) == ("T", Q0)
        assert cluster.broker.offsets["NS%g", "NS%T", 0] == 1


async def test_a_broker_that_was_away_is_told_again_how_far_the_group_is() -> None:
    config = ClientConfig(persist_offset_interval_ms=20)
    async with pulling(3, config=config) as (cluster, consumer):
        await consumer.pull(Q0)
        consumer.update_consume_offset(Q0, 2)
        await consumer.persist_consume_offset()
        told = cluster.broker.asked.count(RequestCode.UPDATE_CONSUMER_OFFSET)
        for connection in list(cluster.broker.connections):
            connection.close()  # it may have been killed before it saved them
        commits = await cluster.broker.asked.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET, told + 1)
        assert UpdateConsumerOffset.decode(commits[-1]).commit_offset == 2

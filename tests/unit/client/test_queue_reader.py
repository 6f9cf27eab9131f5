"""Reading a topic from outside."""

from __future__ import annotations

import asyncio

import pytest

from cosmodrome.client.queue_reader import TopicReader
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import ClientError
from cosmodrome.model import MessageQueue, ReceivedMessage
from cosmodrome.testing import FakeClock
from cosmodrome.wire.compression import compress
from cosmodrome.wire.requests import PullFlag, PullMessage, PullReply
from tests.unit.client.fake_cluster import PATIENCE_SECONDS, fake_cluster


async def take(reader: TopicReader, count: int) -> list[ReceivedMessage]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [await anext(reader) for _ in range(count)]


async def test_from_the_earliest_everything_is_read_and_then_followed() -> None:
    async with fake_cluster("a", "b", T=2) as cluster:
        for broker in cluster.brokers:
            await broker.append("T", 0, b"0")
            await broker.append("T", 1, b"1")
        async with TopicReader("T", namesrv=cluster.namesrv, from_earliest=True) as reader:
            assert sorted(message.body for message in await take(reader, 4)) == [b"0", b"0", b"1", b"1"]
            await cluster.brokers[1].append("T", 1, b"new")
            assert [message.body for message in await take(reader, 1)] == [b"new"]


async def test_from_now_on_only_what_comes_is_read() -> None:
    async with fake_cluster(T=1) as cluster:
        await cluster.broker.append("T", 0, b"old")
        async with TopicReader("T", namesrv=cluster.namesrv) as reader:
            await cluster.broker.append("T", 0, b"new")
            assert [message.body for message in await take(reader, 1)] == [b"new"]


async def test_it_leaves_no_trace_on_the_broker() -> None:
    async with fake_cluster(T=1) as cluster:
        async with TopicReader("T", "paid", namesrv=cluster.namesrv) as reader:
            await cluster.broker.append("T", 0, b"no", "TAGS\x01other\x02")
            await cluster.broker.append("T", 0, b"yes", "TAGS\x01paid\x02")
            assert [message.body for message in await take(reader, 1)] == [b"yes"]
        request = PullMessage.decode(cluster.broker.asked.of(RequestCode.PULL_MESSAGE)[0])
        assert request.consumer_group == "TOOLS_CONSUMER"
        assert request.sys_flag == PullFlag.SUSPEND | PullFlag.SUBSCRIPTION
        assert (request.subscription, request.expression_type) == ("paid", "TAG")
        assert cluster.broker.offsets == {}
        codes = {command.code for command in cluster.broker.asked.requests}
        assert codes == {RequestCode.GET_MAX_OFFSET, RequestCode.PULL_MESSAGE}


async def test_the_topic_of_a_namespace_is_read_and_shown_by_its_own_name() -> None:
    async with fake_cluster(**{"NS%T": 1}) as cluster:
        await cluster.broker.append("NS%T", 0, b"x")
        config = ClientConfig(namesrv=cluster.namesrv, namespace="NS")
        async with TopicReader("T", config=config, from_earliest=True) as reader:
            (message,) = await take(reader, 1)
        assert (message.topic, message.queue) == ("T", MessageQueue("T", "broker-a", 0))


async def test_a_topic_born_later_is_read_from_its_first_message() -> None:
    clock = FakeClock()
    async with fake_cluster() as cluster, TopicReader("T", namesrv=cluster.namesrv, clock=clock) as reader:
        await cluster.broker.append("T", 0, b"long ago")
        cluster.broker.queues["T", 0][0].store_timestamp = clock.now_ms() - 60_000
        await cluster.broker.append("T", 0, b"first")
        cluster.broker.queues["T", 0][1].store_timestamp = clock.now_ms()
        cluster.topics["T"] = 1
        reading = asyncio.create_task(take(reader, 1))
        while not reading.done():
            await clock.advance(1_000)
            await asyncio.sleep(0.001)
        assert [message.body for message in await reading] == [b"first"]


async def test_bodies_are_unpacked_and_one_that_cannot_be_is_shown_as_it_is() -> None:
    async with fake_cluster(T=1) as cluster, TopicReader("T", namesrv=cluster.namesrv) as reader:
        packed, sys_flag = compress(b"x" * 5_000)
        await cluster.broker.append("T", 0, packed, sys_flag=sys_flag)
        await cluster.broker.append("T", 0, b"damaged", sys_flag=sys_flag)
        assert [message.body for message in await take(reader, 2)] == [b"x" * 5_000, b"damaged"]


async def test_an_offset_the_broker_no_longer_has_is_moved() -> None:
    async with fake_cluster(T=1) as cluster:
        for body in (b"gone", b"kept"):
            await cluster.broker.append("T", 0, body)

        def moved(command):  # type: ignore[no-untyped-def]
            del cluster.broker.answers[RequestCode.PULL_MESSAGE]
            return command.reply(ResponseCode.PULL_OFFSET_MOVED, header=PullReply(0, 1, 1, 2))

        cluster.broker.answers[RequestCode.PULL_MESSAGE] = moved
        async with TopicReader("T", namesrv=cluster.namesrv, from_earliest=True) as reader:
            assert [message.body for message in await take(reader, 1)] == [b"kept"]


async def test_nobody_but_who_moves_it_sends_it_back() -> None:
    async with fake_cluster(T=1) as cluster:
        await cluster.broker.append("T", 0, b"old")

        def lagging(command):  # type: ignore[no-untyped-def]
            del cluster.broker.answers[RequestCode.PULL_MESSAGE]
            return command.reply(ResponseCode.PULL_NOT_FOUND, header=PullReply(0, 0, 0, 0))

        cluster.broker.answers[RequestCode.PULL_MESSAGE] = lagging
        async with TopicReader("T", namesrv=cluster.namesrv) as reader:
            await cluster.broker.asked.wait_for(RequestCode.PULL_MESSAGE, 2)
            await cluster.broker.append("T", 0, b"new")
            assert [message.body for message in await take(reader, 1)] == [b"new"]


async def test_a_reader_that_is_stopped_ends_the_loop_over_it() -> None:
    async with fake_cluster(T=1) as cluster:
        reader = TopicReader("T", namesrv=cluster.namesrv)
        await reader.start()
        reading = [asyncio.create_task(_read_all(reader)) for _ in range(3)]
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reader.stop()
            assert await asyncio.gather(*reading) == [[], [], []]
        assert await _read_all(reader) == []
        with pytest.raises(ClientError, match="stopped"):
            await reader.start()


async def _read_all(reader: TopicReader) -> list[ReceivedMessage]:
    return [message async for message in reader]

"""Clients of a unit: what brokers and name servers learn of the topics that they make and consume."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cosmodrome import ClientConfig, LitePullConsumer, Message, Producer, PullConsumer, PushConsumer
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import ConfigError
from cosmodrome.model import TopicConfig, TopicFlag
from cosmodrome.wire.bodies import TopicList
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import SendBack, SendMessage
from tests.system.wired import Wired, until, wired
from tests.unit.client.fake_cluster import fake_cluster

PATIENCE_SECONDS = 30


async def topics(client: Wired, code: RequestCode) -> set[str]:
    reply = await client.caller.call(client.namesrv, Command.request(code), 5_000)
    assert reply.code == ResponseCode.SUCCESS
    return set(TopicList.decode(reply.body).topics)


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer, PullConsumer])
async def test_topics_that_a_unit_makes_and_consumes_are_marked(
    tmp_path: Path, kind: type[PushConsumer | LitePullConsumer | PullConsumer]
) -> None:
    async with wired(tmp_path) as client, asyncio.timeout(PATIENCE_SECONDS):
        marked = client.broker.topics
        for config, suffix in (
            (ClientConfig(namesrv=client.namesrv, unit_mode=True, unit_name="u"), "unit"),
            (ClientConfig(namesrv=client.namesrv), "plain"),
        ):
            async with Producer("p", config=config) as producer:
                await producer.send(Message(f"t-{suffix}", b"x"))
            await client.broker.registration.announce()
            consumer = kind(f"g-{suffix}", config=config)
            if isinstance(consumer, PushConsumer):
                consumer.subscribe(f"t-{suffix}", "*", print)
            elif isinstance(consumer, LitePullConsumer):
                consumer.subscribe(f"t-{suffix}")
            else:
                consumer.register_topics([f"t-{suffix}"])
            async with consumer:
                await until(lambda name=f"%RETRY%g-{suffix}": marked.find_topic(name) is not None)  # type: ignore[misc]
        flags = {name: marked.topic(name).sys_flag for name in ("t-unit", "t-plain", "%RETRY%g-unit", "%RETRY%g-plain")}
        assert flags == {"t-unit": 1, "t-plain": 0, "%RETRY%g-unit": 2, "%RETRY%g-plain": 0}
        await client.broker.registration.announce()
        assert await topics(client, RequestCode.GET_UNIT_TOPIC_LIST) == {"t-unit"}
        assert await topics(client, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == {"%RETRY%g-unit"}


async def test_what_a_client_of_a_unit_sends_back_says_so(tmp_path: Path) -> None:
    async with fake_cluster(T=1) as fake:
        await fake.broker.append("T", 0, b"x")
        answers = [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR]
        fake.broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: command.reply(answers.pop(0))
        fake.broker.answers[RequestCode.SEND_MESSAGE] = lambda command: command.reply()
        fake.topics["%RETRY%g"] = 1
        async with PullConsumer("g", config=ClientConfig(namesrv=fake.namesrv, unit_mode=True)) as consumer:
            (queue,) = await consumer.fetch_subscribe_queues("T")
            (message,) = (await consumer.pull(queue)).messages
            for _ in range(2):
                await consumer.send_message_back(message)
        returned = fake.broker.asked.of(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert [SendBack.decode(one).unit_mode for one in returned] == [True, True]
        (copy,) = fake.broker.asked.of(RequestCode.SEND_MESSAGE)
        assert SendMessage.decode(copy).unit_mode


async def test_a_send_back_or_a_copy_of_a_unit_marks_the_retry_topic_it_makes(tmp_path: Path) -> None:
    async with wired(tmp_path) as client:
        await client.send("t", b"x")
        (record,) = client.stored("t")
        back = SendBack(record.physical_offset, "TOOLS_CONSUMER", 0, unit_mode=True)
        await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        made = client.broker.topics.topic("%RETRY%TOOLS_CONSUMER")
        assert made.sys_flag == TopicFlag.UNIT_SUBSCRIPTION
        copy = SendMessage("p", "%RETRY%CID_ONSAPI_PULL", "none", 1, 0, 0, 0, 0, "", 1, unit_mode=True)
        await client.ask(RequestCode.SEND_MESSAGE, copy, b"x")
        assert client.broker.topics.topic("%RETRY%CID_ONSAPI_PULL") == TopicConfig(
            "%RETRY%CID_ONSAPI_PULL", 1, 1, sys_flag=2
        )


def test_a_unit_mode_is_true_or_false() -> None:
    with pytest.raises(ConfigError, match="unit_mode must be True or False"):
        ClientConfig(unit_mode="yes")  # type: ignore[arg-type]

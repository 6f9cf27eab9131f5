"""Messages that come again: after a failure, when a handler says so, and at last as dead letters."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from cosmodrome import Message, ReceivedMessage
from cosmodrome.errors import RetryLater
from cosmodrome.model import dead_letter_topic
from tests.behaviour.clusters import DELAYS_S, Cluster
from tests.behaviour.support import Inbox, bodies, consumer, fresh, send, send_bodies, until

FIRST_RETRY_LEVEL = 3


async def test_messages_come_again(cluster: Cluster) -> None:
    await asyncio.gather(
        what_fails_comes_again_a_level_later_each_time(cluster),
        a_handler_says_what_comes_again_and_when(cluster),
        a_handler_that_takes_too_long_is_given_up(cluster),
        dies_after(cluster, times=1, consumer_limit=1),
        dies_after(cluster, times=2, group_limit=2),
        dies_after(cluster, times=0, delay_level=-1),
    )


async def what_fails_comes_again_a_level_later_each_time(cluster: Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    cluster.create_topic(topic, 1)
    seen = Inbox()

    def fail_twice(message: ReceivedMessage) -> None:
        seen(message)
        if len(seen.messages) < 3:
            raise RuntimeError("not now")

    async with consumer(cluster, group, topic, fail_twice):
        (sent,) = await send(cluster, Message(topic, b"a", tags="red", keys="k", properties={"colour": "rot"}))
        await until(lambda: len(seen.messages) == 3)
    assert [message.reconsume_times for message in seen.messages] == [0, 1, 2]
    for message in seen.messages:
        assert (message.topic, message.body, message.tags, message.keys) == (topic, b"a", "red", "k")
        assert message.msg_id == sent.msg_id
        assert message.properties["colour"] == "rot"
    for times, (before, after) in enumerate(zip(seen.messages, seen.messages[1:], strict=False)):
        delay_ms = DELAYS_S[FIRST_RETRY_LEVEL + times - 1] * 1_000
        assert after.store_timestamp - before.store_timestamp >= delay_ms


async def a_handler_says_what_comes_again_and_when(cluster: Cluster) -> None:
    """Of a list the first are done; the rest comes again after the level it names."""
    topic, group = fresh("topic"), fresh("group")
    cluster.create_topic(topic, 1)
    sent, level = bodies(4), 2
    first: list[list[bytes]] = []
    again: list[ReceivedMessage] = []

    async def later(messages: list[ReceivedMessage]) -> None:
        if messages[0].reconsume_times:
            again.extend(messages)
        else:
            first.append([message.body for message in messages])
            raise RetryLater(done=1, delay_level=level)

    await send_bodies(cluster, topic, sent)
    async with consumer(cluster, group, topic, later):
        await until(lambda: first and len(again) >= len(sent) - len(first))
    assert sorted(message.body for message in again) == sorted(body for part in first for body in part[1:])
    for message in again:
        assert message.store_timestamp - message.born_timestamp >= DELAYS_S[level - 1] * 1_000


async def dies_after(
    cluster: Cluster,
    times: int,
    *,
    consumer_limit: int | None = None,
    group_limit: int | None = None,
    delay_level: int = 0,
) -> None:
    """After the consumer's limit a message is a dead letter, or after the group's own, or as soon as a handler says."""
    topic, group = fresh("topic"), fresh("group")
    cluster.create_topic(topic, 1)
    if group_limit is not None:
        cluster.create_group(group, retry_max_times=group_limit)
    tries: dict[bytes, int] = defaultdict(int)

    def fail(message: ReceivedMessage) -> None:
        tries[message.body] += 1
        raise RetryLater("never", delay_level=delay_level)

    dead, sent = Inbox(), bodies(3)
    results = await send_bodies(cluster, topic, sent)
    async with (
        consumer(cluster, group, topic, fail, max_reconsume_times=consumer_limit),
        consumer(cluster, fresh("group"), dead_letter_topic(group), dead),
    ):
        await dead.has(sent)
    assert tries == dict.fromkeys(sent, times + 1)
    assert {message.msg_id for message in dead.messages} == {result.msg_id for result in results}


async def a_handler_that_takes_too_long_is_given_up(cluster: Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    cluster.create_topic(topic, 1)
    seen, stuck = Inbox(), asyncio.Event()

    async def get_stuck(message: ReceivedMessage) -> None:
        seen(message)
        if message.reconsume_times == 0:
            await stuck.wait()

    async with consumer(cluster, group, topic, get_stuck, consume_timeout_ms=200):
        await send_bodies(cluster, topic, [b"a"])
        await seen.has([b"a", b"a"])
        stuck.set()

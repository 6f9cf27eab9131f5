"""When a message is delivered, and to whom: delays, delivery times, tags and SQL92."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from cosmodrome import Message, Producer, PushConsumer, Sql
from cosmodrome.client.subscribing import Expression
from cosmodrome.errors import SubscriptionParseFailed
from tests.behaviour.clusters import DELAYS_S, Cluster
from tests.behaviour.support import PATIENCE_S, SEND_TIMEOUT_MS, Inbox, consumer, fresh, send, until


async def test_messages_for_later(cluster: Cluster) -> None:
    await asyncio.gather(
        a_delay_level_is_how_long_a_message_waits(cluster),
        a_delivery_time_is_kept(cluster),
        a_message_is_taken_back_before_its_time(cluster),
    )


async def a_delay_level_is_how_long_a_message_waits(cluster: Cluster) -> None:
    topic, inbox = fresh("topic"), Inbox()
    cluster.create_topic(topic, 1)
    levels = {f"level-{level}".encode(): level for level in range(1, len(DELAYS_S) + 1)}
    messages = [Message(topic, body, tags="late", delay_level=level) for body, level in levels.items()]
    async with consumer(cluster, fresh("group"), topic, inbox, "late"):
        results = await send(cluster, *messages, Message(topic, b"now", tags="late"))
        await inbox.has([*levels, b"now"])
    assert {message.msg_id for message in inbox.messages} == {result.msg_id for result in results}
    for message in inbox.messages:
        delay_ms = DELAYS_S[levels[message.body] - 1] * 1_000 if message.body in levels else 0
        assert message.store_timestamp - message.born_timestamp >= delay_ms
        assert message.topic == topic


async def a_delivery_time_is_kept(cluster: Cluster) -> None:
    """4.x knows of none and delivers at once."""
    topic, inbox = fresh("topic"), Inbox()
    cluster.create_topic(topic, 1)
    delay = timedelta(seconds=2)
    at = datetime.now(UTC) + delay
    due_ms = {b"in": 2_000, b"at": 0, b"now": 0}
    timed = [Message(topic, b"in", delay=delay), Message(topic, b"at", deliver_at=at)]
    async with consumer(cluster, fresh("group"), topic, inbox):
        await send(cluster, *timed, Message(topic, b"now"))
        await inbox.has(due_ms)
    if not cluster.has_timers:
        return
    for message in inbox.messages:
        assert message.store_timestamp - message.born_timestamp >= due_ms[message.body]
    (by_clock,) = [message for message in inbox.messages if message.body == b"at"]
    assert by_clock.store_timestamp >= int(at.timestamp() * 1_000)


async def a_message_is_taken_back_before_its_time(cluster: Cluster) -> None:
    topic, inbox = fresh("topic"), Inbox()
    cluster.create_topic(topic, 1)
    delays = {b"recalled": timedelta(seconds=8), b"kept": timedelta(seconds=9)}
    async with Producer(fresh("producer"), cluster.namesrv) as producer:
        if not cluster.has_timers:
            result = await producer.send(Message(topic, b"kept", delay=delays[b"kept"]), timeout_ms=SEND_TIMEOUT_MS)
            assert result.recall_handle == ""
            return
        async with consumer(cluster, fresh("group"), topic, inbox):
            results = {
                body: await producer.send(Message(topic, body, delay=delay), timeout_ms=SEND_TIMEOUT_MS)
                for body, delay in delays.items()
            }
            recalled = results[b"recalled"]
            assert await producer.recall(topic, recalled.recall_handle) == recalled.msg_id
            await inbox.has([b"kept"])


# --- filters

COLOURS = ("red", "green", "blue", "")


async def test_tags_and_sql92_choose_what_comes(cluster: Cluster) -> None:
    topic = fresh("topic")
    cluster.create_topic(topic, 1)
    messages = [
        Message(topic, f"{colour}-{price}".encode(), tags=colour, properties={"price": str(price), "größe": "klein"})
        for colour in COLOURS
        for price in range(4)
    ]
    every = [message.body for message in messages]
    wanted: dict[Expression, list[bytes]] = {
        "*": every,
        "red": [body for body in every if body.startswith(b"red")],
        "red || blue": [body for body in every if body.startswith((b"red", b"blue"))],
        "mauve || red": [body for body in every if body.startswith(b"red")],
        Sql("price > 1"): [body for body in every if body[-1:] in b"23"],
        Sql("TAGS = 'green' AND price BETWEEN 1 AND 2"): [b"green-1", b"green-2"],
        Sql("TAGS IS NULL OR price IN ('0')"): [body for body in every if body[:1] == b"-" or body[-1:] == b"0"],
    }
    await send(cluster, *messages)
    await asyncio.gather(*(gets(cluster, topic, expression, bodies) for expression, bodies in wanted.items()))


async def gets(cluster: Cluster, topic: str, expression: Expression, wanted: list[bytes]) -> None:
    inbox = Inbox()
    async with consumer(cluster, fresh("group"), topic, inbox, expression):
        await inbox.has(wanted)


async def test_a_wrong_expression_is_refused_before_anything_starts(cluster: Cluster) -> None:
    member = PushConsumer(fresh("group"), cluster.namesrv)
    with pytest.raises(SubscriptionParseFailed, match="character"):
        member.subscribe("orders", Sql("price >"), Inbox())


async def test_a_subscription_changes_at_run_time(cluster: Cluster) -> None:
    """Another expression of another kind, another topic, and one less; each from its next message on."""
    topic, other, inbox = fresh("topic"), fresh("topic"), Inbox()
    for name in (topic, other):
        cluster.create_topic(name, 1)
    async with consumer(cluster, fresh("group"), topic, inbox, "red") as member:
        await send(cluster, Message(topic, b"blue-0", tags="blue"), Message(topic, b"red-0", tags="red"))
        await inbox.has([b"red-0"])
        member.subscribe(topic, "blue", inbox, replace=True)
        await until_wanted(cluster, topic, "blue", inbox)
        assert b"blue-0" not in inbox.bodies
        member.subscribe(topic, Sql("TAGS = 'green'"), inbox, replace=True)
        await until_wanted(cluster, topic, "green", inbox)
        seen = len(inbox.messages)
        await send(cluster, Message(topic, b"red-1", tags="red"), Message(topic, b"green-1", tags="green"))
        await until(lambda: b"green-1" in inbox.bodies)
        assert {message.tags for message in inbox.messages[seen:]} == {"green"}
        member.unsubscribe(topic)
        member.subscribe(topic, "white", inbox)
        await until_wanted(cluster, topic, "white", inbox)
        member.subscribe(other, "*", inbox)
        await until_wanted(cluster, other, "any", inbox)
        member.unsubscribe(topic)
        await until(lambda: topic not in {queue.topic for queue in member.assigned_queues})
        await send(cluster, Message(topic, b"unheard", tags="white"), Message(other, b"last"))
        await until(lambda: b"last" in inbox.bodies)
        assert b"unheard" not in inbox.bodies


async def until_wanted(cluster: Cluster, topic: str, tag: str, inbox: Inbox) -> None:
    """A broker hears of a new subscription soon, not at once, and a pull that waits there knows only the old one: send
    for both until one comes through."""
    body = f"{tag}-through".encode()
    async with Producer(fresh("producer"), cluster.namesrv) as producer, asyncio.timeout(PATIENCE_S):
        while body not in inbox.bodies:
            for colour in ("red", "blue", tag):
                message = Message(topic, body if colour == tag else b"passing", tags=colour)
                await producer.send(message, timeout_ms=SEND_TIMEOUT_MS)
            await asyncio.sleep(0.1)

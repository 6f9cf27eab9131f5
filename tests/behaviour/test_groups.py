"""Members of a group: who gets what, and what happens when one comes, pauses, leaves or dies."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from cosmodrome import (
    ClientConfig,
    ConsistentHash,
    ConsumeFrom,
    Message,
    MessageModel,
    MessageQueue,
    PushConsumer,
    ReceivedMessage,
    averagely,
    by_circle,
)
from cosmodrome.client.handlers import Handler
from cosmodrome.client.rebalance import Strategy
from interop.child import Child
from tests.behaviour.clusters import Cluster
from tests.behaviour.support import (
    PATIENCE_S,
    Inbox,
    bodies,
    consumer,
    fresh,
    owned,
    send,
    send_bodies,
    stored_at_ms,
    until,
)

# Members hear of each other only because brokers tell them.
PATIENT = ClientConfig(rebalance_interval_ms=3_600_000)


async def test_two_members_share_and_each_message_comes_once(cluster: Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    queues = cluster.create_topic(topic, 4)
    inboxes = Inbox(), Inbox()
    first, second = (consumer(cluster, group, topic, inbox, config=PATIENT) for inbox in inboxes)
    async with first, second:
        await until(lambda: len(owned(first, topic)) == len(owned(second, topic)) == 2)
        assert sorted(owned(first, topic) + owned(second, topic)) == queues
        assert cluster.members(group) == sorted([first.client_id, second.client_id])
        sent = bodies(20)
        await send_bodies(cluster, topic, sent)
        await until(lambda: len(inboxes[0].bodies + inboxes[1].bodies) >= len(sent))
    assert sorted(inboxes[0].bodies + inboxes[1].bodies) == sorted(sent)
    assert all(inbox.messages for inbox in inboxes)


async def test_every_strategy_gives_each_queue_one_owner(cluster: Cluster) -> None:
    await asyncio.gather(*(has_one_owner_each(cluster, one) for one in (by_circle, ConsistentHash(), averagely)))


async def has_one_owner_each(cluster: Cluster, strategy: Strategy) -> None:
    topic, group, inbox = fresh("topic"), fresh("group"), Inbox()
    queues = cluster.create_topic(topic, 5)
    members = [consumer(cluster, group, topic, inbox, strategy=strategy, config=PATIENT) for _ in range(3)]
    async with members[0], members[1], members[2]:
        ids = sorted(member.client_id for member in members)
        for member in members:
            mine = sorted(strategy(queues, ids, member.client_id))
            await until(partial(has_exactly, member, topic, mine))
        assert sorted(queue for member in members for queue in owned(member, topic)) == queues


def has_exactly(member: PushConsumer, topic: str, queues: list[MessageQueue]) -> bool:
    return owned(member, topic) == queues


async def test_a_member_that_leaves_is_replaced_at_once(cluster: Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    queues = cluster.create_topic(topic, 4)
    inbox, sent = Inbox(), bodies(8)
    async with consumer(cluster, group, topic, inbox, config=PATIENT) as staying:
        async with consumer(cluster, group, topic, inbox, config=PATIENT):
            await until(lambda: len(owned(staying, topic)) == 2)
        await until(lambda: owned(staying, topic) == queues)
        await send_bodies(cluster, topic, sent)
        await inbox.has(sent)


async def test_a_member_that_is_killed_is_replaced_at_once(cluster: Cluster, tmp_path: Path) -> None:
    topic, group = fresh("topic"), fresh("group")
    queues = cluster.create_topic(topic, 4)
    inbox, sent = Inbox(), bodies(8)
    command = [sys.executable, "-m", "tests.behaviour.member", cluster.namesrv, group, topic]
    async with consumer(cluster, group, topic, inbox, config=PATIENT) as staying:
        with Child("member", command, tmp_path / "member.log") as member:
            await asyncio.to_thread(member.wait_line, "ready", PATIENCE_S)
            await until(lambda: len(owned(staying, topic)) == 2)
            member.kill()
        await until(lambda: owned(staying, topic) == queues)
        await send_bodies(cluster, topic, sent)
        await inbox.has(sent)


async def test_a_member_that_stops_has_committed_what_it_did(cluster: Cluster) -> None:
    """Its handlers finish, and whoever comes next goes on behind them."""
    topic, group = fresh("topic"), fresh("group")
    cluster.create_topic(topic, 2)
    first, second = bodies(10, "first"), bodies(10, "second")
    done: list[bytes] = []

    async def slow(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.1)
        done.append(message.body)

    await send_bodies(cluster, topic, first)
    async with consumer(cluster, group, topic, slow):
        await until(lambda: len(done) >= 5, lambda: done)
    inbox = Inbox()
    await send_bodies(cluster, topic, second)
    async with consumer(cluster, group, topic, inbox):
        await until(lambda: len(done) + len(inbox.messages) >= len(first) + len(second))
    assert sorted(done + inbox.bodies) == sorted(first + second)


async def test_everybody_gets_what_is_broadcast_and_goes_on_where_its_file_says(
    cluster: Cluster, tmp_path: Path
) -> None:
    topic, group = fresh("topic"), fresh("group")
    cluster.create_topic(topic, 2)
    first, second = bodies(6, "first"), bodies(6, "second")
    files = tmp_path / "one" / "offsets.json", tmp_path / "two" / "offsets.json"
    await send_bodies(cluster, topic, first)
    for sent, file in ((first, files[0]), (first, files[1])):
        inbox = Inbox()
        async with broadcast(cluster, group, topic, inbox, file):
            await inbox.has(sent)
    again, late = Inbox(), Inbox()
    async with broadcast(cluster, group, topic, again, files[0]), broadcast(cluster, group, topic, late, None):
        await send_bodies(cluster, topic, second)
        await again.has(second)
        await late.has(first + second)
    assert sorted(path.name for path in files[0].parent.iterdir()) == [
        "offsets.json",
        "offsets.json.bak",
        "offsets.json.lock",
    ]
    files[0].unlink()  # as a crash between two renames leaves it
    inbox = Inbox()
    async with broadcast(cluster, group, topic, inbox, files[0]):
        await inbox.has(second)


async def test_what_fails_of_what_is_broadcast_does_not_come_again(cluster: Cluster) -> None:
    topic = fresh("topic")
    cluster.create_topic(topic, 1)
    seen = Inbox()

    def fail_once(message: ReceivedMessage) -> None:
        seen(message)
        if len(seen.messages) == 1:
            raise RuntimeError("not now")

    async with broadcast(cluster, fresh("group"), topic, fail_once, None):
        sent = bodies(4)
        await send_bodies(cluster, topic, sent)
        await seen.has(sent)


async def test_a_new_group_starts_where_it_says(cluster: Cluster) -> None:
    topic = fresh("topic")
    cluster.create_topic(topic, 1)
    old, middle, new = b"old", b"middle", b"new"
    await send_bodies(cluster, topic, [old])
    await asyncio.sleep(0.01)  # a place in time is a millisecond; these two must not share one
    await send_bodies(cluster, topic, [middle])
    wanted = {
        ConsumeFrom.FIRST_OFFSET: [old, middle, new],
        ConsumeFrom.TIMESTAMP: [middle, new],
        ConsumeFrom.LAST_OFFSET: [new],
    }
    if cluster.reads_young_queues_whole:
        wanted = {start: [old, middle, new] for start in wanted}
    since_ms = await stored_at_ms(cluster, topic, middle)
    inboxes = {start: Inbox() for start in wanted}
    async with AsyncExitStack() as stack:
        for start, inbox in inboxes.items():
            at_ms = since_ms if start is ConsumeFrom.TIMESTAMP else None
            member = consumer(cluster, fresh("group"), topic, inbox, consume_from=start, consume_timestamp_ms=at_ms)
            await stack.enter_async_context(member)
            await until(partial(owned, member, topic))
        await send(cluster, Message(topic, new))
        await asyncio.gather(*(inbox.has(wanted[start]) for start, inbox in inboxes.items()))


async def test_a_paused_member_keeps_its_queues_and_gets_nothing(cluster: Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    queues = cluster.create_topic(topic, 2)
    inbox, watcher = Inbox(), Inbox()
    first, second = bodies(4, "first"), bodies(4, "second")
    async with consumer(cluster, group, topic, inbox) as member, consumer(cluster, fresh("group"), topic, watcher):
        await send_bodies(cluster, topic, first)
        await inbox.has(first)
        member.pause()
        assert member.paused
        await send_bodies(cluster, topic, second)
        await until(lambda: len(watcher.messages) >= 8)
        assert inbox.sorted == sorted(first)
        assert owned(member, topic) == queues
        member.resume()
        await inbox.has(first + second)


async def test_a_member_goes_on_where_its_offsets_are_reset_to(cluster: Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    (queue,) = cluster.create_topic(topic, 1)
    sent = bodies(6)
    inbox = Inbox()
    async with consumer(cluster, group, topic, inbox) as member:
        await send_bodies(cluster, topic, sent)
        await inbox.has(sent)
        await member.reset_offsets({queue: 4, MessageQueue(topic, "elsewhere", 0): 0})
        await inbox.has(sent + sent[4:])
        await member.reset_offsets({queue: 0})
        await inbox.has(sent + sent[4:] + sent)
    again = Inbox()
    async with consumer(cluster, group, topic, again):
        await send(cluster, Message(topic, b"last"))
        await again.has([b"last"])


async def test_handlers_of_every_kind(cluster: Cluster) -> None:
    """`def` and `async def`, with one message or a list, given to subscribe or by a decorator."""
    topics = [fresh("topic") for _ in range(4)]
    for topic in topics:
        cluster.create_topic(topic, 1)
    got: dict[str, list[bytes]] = {topic: [] for topic in topics}
    sizes: list[int] = []
    member = PushConsumer(fresh("group"), cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)

    def one(message: ReceivedMessage) -> None:
        got[message.topic].append(message.body)

    async def one_async(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        one(message)

    @member.handles(topics[2])
    def many(messages: list[ReceivedMessage]) -> None:
        sizes.append(len(messages))
        for message in messages:
            one(message)

    async def many_async(messages: list[ReceivedMessage]) -> None:
        assert len(messages) <= 3
        many(messages)

    member.subscribe(topics[0], "*", one)
    member.subscribe(topics[1], "*", one_async)
    member.subscribe(topics[3], "*", many_async, batch=3)
    sent = bodies(10)
    await asyncio.gather(*(send_bodies(cluster, topic, sent) for topic in topics))
    async with member:
        await until(lambda: all(len(found) >= len(sent) for found in got.values()), lambda: got)
    assert {topic: sorted(found) for topic, found in got.items()} == dict.fromkeys(topics, sorted(sent))
    assert max(sizes) > 1


def broadcast(cluster: Cluster, group: str, topic: str, handler: Handler, file: Path | None) -> PushConsumer:
    """It saves its offsets when it stops, and not in the middle of what comes."""
    config = ClientConfig(persist_offset_interval_ms=3_600_000)
    return consumer(cluster, group, topic, handler, model=MessageModel.BROADCASTING, offsets_file=file, config=config)

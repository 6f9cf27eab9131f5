"""Consumers that ask: lite pull, `async for`, and pulls by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cosmodrome import ConsumeFrom, LitePullConsumer, Message, MessageQueue, Producer, PullConsumer, PullStatus, Sql
from cosmodrome.errors import ClientError
from interop.lab import OURS
from tests.behaviour.clusters import Cluster
from tests.behaviour.support import (
    PATIENCE_S,
    SEND_TIMEOUT_MS,
    Inbox,
    bodies,
    consumer,
    fresh,
    limited,
    readable,
    send,
    send_bodies,
    stored_at_ms,
    until,
)


def lite(cluster: Cluster, group: str, topic: str = "", **options: Any) -> LitePullConsumer:
    """One that reads from the beginning; subscribed, unless there is no topic."""
    made = LitePullConsumer(group, cluster.namesrv, **{"consume_from": ConsumeFrom.FIRST_OFFSET, **options})
    if topic:
        made.subscribe(topic)
    return made


async def polled(member: LitePullConsumer, count: int) -> list[bytes]:
    """The bodies of so many messages, taken by `poll`."""
    found: list[bytes] = []
    async with limited(lambda: found):
        while len(found) < count:
            found += [message.body for message in await member.poll(PATIENCE_S * 1_000)]
    return found


# --- lite pull


async def test_polls_share_and_go_on_where_the_group_was(cluster: Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    queues = cluster.create_topic(topic, 4)
    first, second, third = bodies(12, "first"), bodies(12, "second"), bodies(4, "third")
    await send_bodies(cluster, topic, first)
    async with lite(cluster, group, topic) as one:
        assert sorted(await polled(one, len(first))) == sorted(first)
        await one.commit()
        async with lite(cluster, group, topic) as two:
            await until(lambda: len(one.assigned_queues) == len(two.assigned_queues) == 2)
            assert sorted(one.assigned_queues + two.assigned_queues) == queues
            await send_bodies(cluster, topic, second)
            found = await asyncio.gather(polled(one, 6), polled(two, 6))
            assert sorted(found[0] + found[1]) == sorted(second)
            await two.commit()
        await until(lambda: one.assigned_queues == queues)
        await one.commit()
    await send_bodies(cluster, topic, third)
    async with lite(cluster, group, topic) as later:
        assert sorted(await polled(later, len(third))) == sorted(third)


async def test_what_was_only_handed_out_is_not_committed(cluster: Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    (queue,) = cluster.create_topic(topic, 1)
    sent = bodies(4)
    await send_bodies(cluster, topic, sent)
    await readable(cluster, topic, sent[-1])  # so that one poll gets them all
    async with lite(cluster, group, topic) as member:
        assert await polled(member, len(sent)) == sent  # and no poll or commit follows
    async with lite(cluster, group, topic, auto_commit=False) as member:
        assert await polled(member, len(sent)) == sent
        await member.commit({queue: 3})
        assert await member.committed(queue) == 3
    async with lite(cluster, group, topic) as member:
        assert await polled(member, 1) == sent[3:]


async def test_assigned_queues_and_seeking(cluster: Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    queues = cluster.create_topic(topic, 2)
    sent = bodies(6)
    async with Producer(fresh("producer"), cluster.namesrv) as producer:
        for body in sent:
            await producer.send(Message(topic, body), queues[0], timeout_ms=SEND_TIMEOUT_MS)
        await producer.send(Message(topic, b"elsewhere"), queues[1], timeout_ms=SEND_TIMEOUT_MS)
    await readable(cluster, topic, sent[-1])
    member = lite(cluster, group)
    member.assign(queues[:1])
    async with member:
        assert await member.fetch_message_queues(topic) == queues
        assert (await member.min_offset(queues[0]), await member.max_offset(queues[0])) == (0, 6)
        assert await polled(member, 6) == sent
        await member.seek(queues[0], 4)
        assert await polled(member, 2) == sent[4:]
        await member.seek_to_begin(queues[0])
        assert await polled(member, 6) == sent
        await member.seek_to_end(queues[0])
        assert member.position(queues[0]) == 6
        with pytest.raises(ClientError, match="offsets from 0 to 6"):
            await member.seek(queues[0], 7)
        with pytest.raises(ClientError, match="not assigned"):
            await member.seek(queues[1], 0)
        stored_ms = await stored_at_ms(cluster, topic, sent[2])
        assert await member.offset_for_timestamp(queues[0], stored_ms) <= 2
        member.assign(queues[1:])
        assert await polled(member, 1) == [b"elsewhere"]
        assert member.assigned_queues == queues[1:]


async def test_listeners_hear_of_queues_that_come_and_go(cluster: Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    queues = cluster.create_topic(topic, 4)
    came: list[MessageQueue] = []
    went: list[MessageQueue] = []
    member = lite(cluster, group, topic)
    member.on_assigned(came.extend)

    @member.on_revoked
    async def revoked(gone: list[MessageQueue]) -> None:
        went.extend(gone)

    async with member:
        await until(lambda: sorted(came) == queues, lambda: came)
        async with lite(cluster, group, topic) as other:
            await until(lambda: len(went) == 2)
            await until(lambda: other.assigned_queues == sorted(went))
        await until(lambda: len(came) == 6)
    assert sorted(came[4:]) == sorted(went)


async def test_paused_queues_rest(cluster: Cluster) -> None:
    topic = fresh("topic")
    queues = cluster.create_topic(topic, 2)
    async with lite(cluster, fresh("group"), topic) as member, Producer(fresh("p"), cluster.namesrv) as producer:
        member.pause(queues[:1])
        for queue in queues:
            await producer.send(Message(topic, str(queue.queue_id).encode()), queue, timeout_ms=SEND_TIMEOUT_MS)
        assert await polled(member, 1) == [b"1"]
        assert await member.poll(300) == []
        member.resume(queues[:1])
        assert await polled(member, 1) == [b"0"]


# --- async for


async def test_leaving_the_loop_body_acknowledges(cluster: Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    cluster.create_topic(topic, 1)
    sent = bodies(6)
    await send_bodies(cluster, topic, sent)
    found: list[bytes] = []
    async with limited(lambda: found), lite(cluster, group, topic) as member:
        async for message in member:
            if message.body == sent[3]:
                break  # this one is not acknowledged
            found.append(message.body)
    assert found == sent[:3]
    async with limited(lambda: found), lite(cluster, group, topic) as member:
        async for messages in member.batches(10):
            found += [message.body for message in messages]
            if len(found) >= len(sent):
                break
    assert found == sent


async def test_a_message_that_fails_in_its_block_comes_again(cluster: Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    cluster.create_topic(topic, 2)
    sent = bodies(4)
    await send_bodies(cluster, topic, sent)
    done: list[tuple[bytes, int]] = []
    async with limited(lambda: done), lite(cluster, group, topic) as member:
        async for message in member.messages(auto_ack=False):
            try:
                async with message:
                    if message.body == sent[1] and message.reconsume_times == 0:
                        raise RuntimeError("not now")
                    done.append((message.body, message.reconsume_times))
            except RuntimeError:
                continue
            if len(done) >= len(sent):
                break
    assert sorted(done) == [(body, int(body == sent[1])) for body in sent]


async def test_several_tasks_share_one_consumer(cluster: Cluster) -> None:
    topic = fresh("topic")
    cluster.create_topic(topic, 2)
    sent, found, all_here = bodies(60), Inbox(), asyncio.Event()

    async def work(member: LitePullConsumer) -> None:
        async for message in member:
            await asyncio.sleep(0)
            found(message)
            if len(found.messages) >= len(sent):
                all_here.set()

    async with lite(cluster, fresh("group"), topic) as member:
        tasks = [asyncio.create_task(work(member)) for _ in range(4)]
        await send_bodies(cluster, topic, sent)
        async with limited(lambda: found.bodies):
            await all_here.wait()
    async with limited(lambda: [task for task in tasks if not task.done()]):
        await asyncio.gather(*tasks)  # the loops end with the consumer
    assert found.sorted == sorted(sent)


# --- by hand


async def test_pulls_by_hand(cluster: Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    (queue,) = cluster.create_topic(topic, 1)
    sent = await send(
        cluster,
        *(
            Message(topic, body, tags=("red", "blue")[place % 2], properties={"place": str(place)})
            for place, body in enumerate(bodies(6))
        ),
    )
    await readable(cluster, topic, bodies(6)[-1])
    async with PullConsumer(group, cluster.namesrv) as puller:
        assert await puller.fetch_subscribe_queues(topic) == [queue]
        assert (await puller.min_offset(queue), await puller.max_offset(queue)) == (0, 6)
        result = await puller.pull(queue, offset=0, max_messages=4)
        assert (result.status, result.next_begin_offset) == (PullStatus.FOUND, 4)
        assert [message.body for message in result.messages] == bodies(6)[:4]
        red = await puller.pull(queue, "red", 0)
        assert [message.body for message in red.messages] == bodies(6)[::2]
        late = await puller.pull(queue, Sql("place > 3"), 0)
        assert [message.body for message in late.messages] == bodies(6)[4:]
        none = await puller.pull(queue, "mauve", 0)
        assert (none.status, none.messages) == (PullStatus.NO_MATCHED_MSG, [])
        assert (await puller.pull(queue, offset=6)).status is PullStatus.NO_NEW_MSG
        beyond = await puller.pull(queue, offset=100)
        # Apache's brokers go to the end, past what such a reader may not have seen.
        assert (beyond.status, beyond.next_begin_offset) == (
            PullStatus.OFFSET_ILLEGAL,
            0 if cluster.name == OURS else 6,
        )
        waiting = asyncio.create_task(puller.pull_block_if_not_found(queue, offset=6))
        await send_bodies(cluster, topic, [b"new"])
        async with limited():
            assert [message.body for message in (await waiting).messages] == [b"new"]
        puller.update_consume_offset(queue, 3)
        await puller.persist_consume_offset(queue)
        assert await puller.fetch_consume_offset(queue, from_store=True) == 3
        seen = await puller.view_message(topic, sent[2].offset_msg_id)
        assert (seen.body, seen.queue_offset, seen.msg_id) == (b"body-2", 2, sent[2].msg_id)
    inbox = Inbox()
    async with consumer(cluster, group, topic, inbox):
        await inbox.has([*bodies(6)[3:], b"new"])


async def test_pullers_share_registered_topics(cluster: Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    queues = cluster.create_topic(topic, 4)
    heard: list[tuple[str, int, int]] = []
    one, two = PullConsumer(group, cluster.namesrv), PullConsumer(group, cluster.namesrv)
    one.register_topics([topic], lambda name, every, mine: heard.append((name, len(every), len(mine))))
    two.register_topics([topic])
    async with one:
        await until(lambda: one.message_queues_in_balance(topic) == queues)
        async with two:
            await until(lambda: len(one.message_queues_in_balance(topic)) == 2)
            await until(lambda: len(two.message_queues_in_balance(topic)) == 2)
    assert heard[:2] == [(topic, 4, 4), (topic, 4, 2)]

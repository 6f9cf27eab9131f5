"""Consumers that ask for messages, against a real name server and broker."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cosmodrome import (
    ConsumeFrom,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    RetryLater,
    Sql,
)
from cosmodrome.client.tracing import find_traces
from cosmodrome.errors import RouteNotFound
from cosmodrome.wire.trace import Outcome, SubAfter, SubBefore, TraceRecord
from tests.system.cluster import Cluster, running_cluster

PATIENCE_SECONDS = 60
FIRST = ConsumeFrom.FIRST_OFFSET

# Takes messages until it is killed, and says which: its last one is not acknowledged when the next line comes.
MEMBER = """
import asyncio, sys
from cosmodrome import ConsumeFrom, LitePullConsumer

async def main():
    consumer = LitePullConsumer("g", sys.argv[1], consume_from=ConsumeFrom.FIRST_OFFSET, auto_commit_interval_ms=20)
    consumer.subscribe("t")
    async with consumer:
        async for message in consumer:
            print(message.body.decode(), flush=True)
            await asyncio.sleep(0.001)

asyncio.run(main())
"""


@asynccontextmanager
async def member(namesrv: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", MEMBER, namesrv, stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def send(cluster: Cluster, numbers: range, topic: str = "t") -> None:
    async with Producer("p", cluster.namesrv) as producer:
        for number in numbers:
            await producer.send(Message(topic, b"%d" % number, tags="odd" if number % 2 else "even"))


async def test_every_message_once_over_a_restart_that_commits(tmp_path: Path) -> None:
    seen: Counter[int] = Counter()
    async with running_cluster(tmp_path) as cluster, asyncio.timeout(PATIENCE_SECONDS):
        await send(cluster, range(200))
        for enough in (120, 200):
            consumer = LitePullConsumer("g", cluster.namesrv, consume_from=FIRST)
            consumer.subscribe("t")
            async with consumer:
                async for message in consumer:
                    async with message:
                        seen[int(message.body)] += 1
                    if len(seen) >= enough:
                        break
    assert seen == Counter(range(200))


async def test_a_failed_message_comes_again_later_under_its_own_topic(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, asyncio.timeout(PATIENCE_SECONDS):
        consumer = LitePullConsumer("g", cluster.namesrv, consume_from=FIRST)
        consumer.subscribe("t")
        await send(cluster, range(1))
        async with consumer:
            seen = []
            async for message in consumer:
                seen.append((message.topic, message.body, message.reconsume_times))
                if message.reconsume_times:
                    break
                with pytest.raises(RetryLater):
                    async with message:
                        raise RetryLater("not yet", delay_level=1)
    assert seen == [("t", b"0", 0), ("t", b"0", 1)]


async def test_a_member_that_is_killed_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    seen: Counter[int] = Counter()
    async with running_cluster(tmp_path) as cluster, asyncio.timeout(PATIENCE_SECONDS):
        await send(cluster, range(4))  # so that the topic is there
        consumer = LitePullConsumer("g", cluster.namesrv, consume_from=FIRST, auto_commit_interval_ms=20)
        consumer.subscribe("t")
        revoked: list[MessageQueue] = []
        consumer.on_revoked(revoked.extend)
        async with consumer, member(cluster.namesrv) as other:
            assert other.stdout is not None
            taking = asyncio.create_task(take(consumer, seen))
            while not len(consumer.assigned_queues) == len(revoked) == 2:  # noqa: ASYNC110  # until the two share them
                await asyncio.sleep(0.01)
            await send(cluster, range(4, 1_000))
            for _ in range(20):
                seen[int(await other.stdout.readline())] += 1
            other.kill()
            seen.update(map(int, (await other.stdout.read()).split()))
            while len(seen) < 1_000:  # noqa: ASYNC110  # another process takes part
                await asyncio.sleep(0.01)
            taking.cancel()
    repeated = seen.total() - len(seen)
    assert set(seen) == set(range(1_000))
    assert repeated < 100, "only what the killed member had not committed comes again"


async def take(consumer: LitePullConsumer, seen: Counter[int]) -> None:
    async for message in consumer:
        seen[int(message.body)] += 1
        await asyncio.sleep(0.001)


async def test_assigned_queues_are_polled_from_where_one_seeks(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, asyncio.timeout(PATIENCE_SECONDS):
        await send(cluster, range(40))
        consumer = LitePullConsumer("g", cluster.namesrv, consume_from=FIRST, auto_commit=False)
        async with consumer:
            queues = await consumer.fetch_message_queues("t")
            consumer.assign(queues[:1], Sql("TAGS IN ('even', 'odd')"))
            first = await consumer.poll()
            assert {message.queue for message in first} == {queues[0]}
            await consumer.commit({queues[0]: 3})
            await consumer.seek(queues[0], 2)
            assert (await consumer.poll())[0].queue_offset == 2
            assert await consumer.committed(queues[0]) == 3
            stored_ms = first[4].store_timestamp
            assert first[await consumer.offset_for_timestamp(queues[0], stored_ms)].store_timestamp == stored_ms


async def test_what_is_taken_is_traced(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, asyncio.timeout(PATIENCE_SECONDS):
        async with Producer("p", cluster.namesrv) as producer:
            sent = await producer.send(Message("t", b"x"))
        consumer = LitePullConsumer("g", cluster.namesrv, consume_from=FIRST, trace=True)
        consumer.subscribe("t")
        async with consumer:
            async for message in consumer:
                message.ack()
                break
        found: list[TraceRecord] = []
        while len(found) < 2:
            await asyncio.sleep(0.02)
            with contextlib.suppress(RouteNotFound):  # the topic is made by the first trace
                found = await find_traces(sent.msg_id, namesrv=cluster.namesrv)
    assert {type(record) for record in found} == {SubBefore, SubAfter}
    assert [record.outcome for record in found if isinstance(record, SubAfter)] == [Outcome.SUCCESS]


async def test_pulling_by_hand(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, asyncio.timeout(PATIENCE_SECONDS):
        await send(cluster, range(40))
        async with PullConsumer("g", cluster.namesrv) as consumer:
            bodies: list[bytes] = []
            for queue in await consumer.fetch_subscribe_queues("t"):
                offset = await consumer.fetch_consume_offset(queue) or 0
                while (result := await consumer.pull(queue, "even", offset, 4)).status is not PullStatus.NO_NEW_MSG:
                    bodies += (message.body for message in result.messages)
                    offset = result.next_begin_offset
                consumer.update_consume_offset(queue, offset)
            assert sorted(map(int, bodies)) == list(range(0, 40, 2))

            high = await consumer.max_offset(queue)
            beyond = await consumer.pull(queue, offset=high + 5)
            assert (beyond.status, beyond.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 0)

            waiting = asyncio.create_task(consumer.pull_block_if_not_found(queue, offset=high))
            async with Producer("p", cluster.namesrv) as producer:
                sent = await producer.send(Message("t", b"late"), queue)
            (message,) = (await waiting).messages
            assert message.body == b"late"
            viewed = await consumer.view_message("t", sent.offset_msg_id)
            assert (viewed.body, viewed.queue, viewed.queue_offset) == (b"late", queue, high)

            await consumer.send_message_back(message, -1)
            (dead,) = await queues_of(consumer, "%DLQ%g")
            assert [one.body for one in (await consumer.pull(dead)).messages] == [b"late"]
        async with PullConsumer("g", cluster.namesrv) as consumer:
            assert await consumer.fetch_consume_offset(queue) == high


async def queues_of(consumer: PullConsumer, topic: str) -> list[MessageQueue]:
    """Its broker tells the name server of a new topic in its own time."""
    while True:
        try:
            return await consumer.fetch_subscribe_queues(topic)
        except RouteNotFound:
            await asyncio.sleep(0.01)

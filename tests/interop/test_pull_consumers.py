"""Our pull consumers on our broker and on Apache's, alone and in one group with Java's."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from cosmodrome import (
    ConsumeFrom,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PullStatus,
    RetryLater,
    SendResult,
)
from interop.java import JavaProgram
from interop.lab import ALL_CLUSTERS, OURS, Cluster, Lab
from interop.messages import Load, check_arrived, seen_by_java
from interop.our_client import SEND_TIMEOUT_MS, seen_by_us, send_ours

COUNT = 40
PATIENCE_SECONDS = 120
FIRST = ConsumeFrom.FIRST_OFFSET

Fresh = Callable[[str], str]


@asynccontextmanager
async def lite(cluster: Cluster, group: str, topic: str) -> AsyncIterator[LitePullConsumer]:
    consumer = LitePullConsumer(group, cluster.namesrv, consume_from=FIRST)
    consumer.subscribe(topic)
    async with asyncio.timeout(PATIENCE_SECONDS), consumer:
        yield consumer


@pytest.mark.parametrize("cluster_name", ALL_CLUSTERS)
def test_async_for_receives_all_and_goes_on_where_it_was(lab: Lab, fresh: Fresh, cluster_name: str) -> None:
    cluster, group, load = lab.cluster(cluster_name), fresh("group"), Load(fresh("topic"), COUNT)
    sent = send_ours(cluster.namesrv, fresh("group"), load)

    async def run() -> None:
        messages = []
        for enough in (COUNT // 2, COUNT):
            async with lite(cluster, group, load.topic) as consumer:
                async for message in consumer:
                    async with message:
                        messages.append(message)
                    if len(messages) == enough:
                        break
        check_arrived(load, [seen_by_us(message) for message in messages], sent, cluster.broker_address)

    asyncio.run(run())


@pytest.mark.parametrize("cluster_name", ALL_CLUSTERS)
def test_what_fails_comes_again_under_its_own_topic(lab: Lab, fresh: Fresh, cluster_name: str) -> None:
    cluster, load = lab.cluster(cluster_name), Load(fresh("topic"), 1)
    send_ours(cluster.namesrv, fresh("group"), load)

    async def run() -> None:
        seen = []
        async with lite(cluster, fresh("group"), load.topic) as consumer:
            async for message in consumer:
                seen.append((message.topic, message.reconsume_times))
                if message.reconsume_times:
                    break
                with pytest.raises(RetryLater):
                    async with message:
                        raise RetryLater(delay_level=1)
        assert seen == [(load.topic, 0), (load.topic, 1)]

    asyncio.run(run())


@pytest.mark.parametrize("cluster_name", ALL_CLUSTERS)
def test_assigned_queues_are_polled_from_where_one_seeks(lab: Lab, fresh: Fresh, cluster_name: str) -> None:
    cluster, load = lab.cluster(cluster_name), Load(fresh("topic"), COUNT)
    send_ours(cluster.namesrv, fresh("group"), load)
    cluster.settle(load.topic)

    async def run() -> None:
        consumer = LitePullConsumer(fresh("group"), cluster.namesrv, consume_from=FIRST, auto_commit=False)
        async with asyncio.timeout(PATIENCE_SECONDS), consumer:
            queue, *_ = await consumer.fetch_message_queues(load.topic)
            consumer.assign([queue])
            first = await consumer.poll(PATIENCE_SECONDS * 1_000)
            assert {message.queue for message in first} == {queue}
            assert await consumer.committed(queue) in (None, 0)  # brokers say 0 of a queue that is in memory as a whole
            await consumer.commit({queue: 3})
            assert await consumer.committed(queue) == 3
            await consumer.seek(queue, 2)
            assert (await consumer.poll(PATIENCE_SECONDS * 1_000))[0].queue_offset == 2
            stored_ms = first[4].store_timestamp
            assert first[await consumer.offset_for_timestamp(queue, stored_ms)].store_timestamp == stored_ms

    asyncio.run(run())


@pytest.mark.parametrize("cluster_name", ALL_CLUSTERS)
def test_pulling_by_hand(lab: Lab, fresh: Fresh, cluster_name: str) -> None:
    cluster, group, load = lab.cluster(cluster_name), fresh("group"), Load(fresh("topic"), COUNT)
    send_ours(cluster.namesrv, fresh("group"), load)
    cluster.settle(load.topic)
    tag = load.tag(0)

    async def run() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), PullConsumer(group, cluster.namesrv) as consumer:
            bodies: list[bytes] = []
            for queue in await consumer.fetch_subscribe_queues(load.topic):
                offset, high = await consumer.fetch_consume_offset(queue) or 0, await consumer.max_offset(queue)
                while offset < high:
                    result = await consumer.pull(queue, tag, offset, 4)
                    bodies += (message.body for message in result.messages)
                    offset = result.next_begin_offset
                consumer.update_consume_offset(queue, offset)
            assert sorted(bodies) == sorted(load.body(index) for index in load.indexes if load.tag(index) == tag)

            beyond = await consumer.pull(queue, offset=high + 5)
            expected = 0 if cluster_name == OURS else high  # Apache's go past what such a reader may not have seen
            assert (beyond.status, beyond.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, expected)
            assert (await consumer.pull(queue, offset=high)).status is PullStatus.NO_NEW_MSG

            waiting = asyncio.create_task(consumer.pull_block_if_not_found(queue, offset=high))
            async with Producer(fresh("group"), cluster.namesrv) as producer:
                late = await producer.send(Message(load.topic, b"late"), queue, timeout_ms=SEND_TIMEOUT_MS)
            assert [message.body for message in (await waiting).messages] == [b"late"]
            assert (await consumer.view_message(load.topic, late.offset_msg_id)).body == b"late"
        async with PullConsumer(group, cluster.namesrv) as consumer:
            assert await consumer.fetch_consume_offset(queue) == high

    asyncio.run(run())


# Not 5.3.3 at 4.9.7: that broker knows no LITE_PULL_MESSAGE, and refuses all that Java's lite pull consumer pulls.
@pytest.mark.parametrize(
    ("cluster_name", "version"), [(OURS, "5.3.3"), ("apache-4.9.7", "4.9.8"), ("apache-5.3.3", "5.3.3")]
)
def test_a_group_of_javas_and_ours_shares_the_queues(lab: Lab, fresh: Fresh, cluster_name: str, version: str) -> None:
    cluster, group, load = lab.cluster(cluster_name), fresh("group"), Load(fresh("topic"), COUNT)
    words: dict[str, object] = {"topic": load.topic, "group": group, "count": 10 * COUNT}
    words |= {"idleMs": PATIENCE_SECONDS * 1_000}

    async def run() -> Counter[int]:
        ours: Counter[int] = Counter()
        async with Producer(fresh("group"), cluster.namesrv) as producer:
            await send_one(producer, load, 0)  # so that the topic is there
            async with lite(cluster, group, load.topic) as consumer:
                (first,) = await consumer.poll(PATIENCE_SECONDS * 1_000)
                ours[seen_by_us(first).index] += 1
                await consumer.commit()
                alone = len(consumer.assigned_queues)
                with await asyncio.to_thread(lab.start, version, "LitePull", cluster, words) as java:
                    while len(consumer.assigned_queues) == alone:  # noqa: ASYNC110  # until Java is there
                        await asyncio.sleep(0.05)
                    sent = {index: await send_one(producer, load, index) for index in load.indexes[1:]}
                    mine = {index for index, result in sent.items() if result.queue in consumer.assigned_queues}
                    assert 0 < len(mine) < len(sent)
                    while not ours.keys() >= mine:
                        ours.update(seen_by_us(message).index for message in await consumer.poll())
                    await consumer.commit()
                    await asyncio.to_thread(wait_seen, java, sent.keys() - mine)
                    javas = await asyncio.to_thread(java.end)
        return ours + Counter(seen_by_java(line).index for line in javas)

    seen = asyncio.run(run())
    again = seen - Counter(load.indexes)
    assert seen.keys() == set(load.indexes), "each message goes to one of the two"
    assert again.total() < COUNT // 2, "and few to both, around the moment when queues change hands"


def wait_seen(java: JavaProgram, wanted: set[int]) -> None:
    def seen() -> bool | None:
        return wanted <= {seen_by_java(line).index for line in java.messages} or None

    java.wait_until(seen, PATIENCE_SECONDS, f"messages {wanted}")


async def send_one(producer: Producer, load: Load, index: int) -> SendResult:
    return await producer.send(Message(load.topic, load.body(index)), timeout_ms=SEND_TIMEOUT_MS)

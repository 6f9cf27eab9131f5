"""Taking messages when one likes, against a broker that remembers what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import ClientConfig, ConsumeFrom, LitePullConsumer, MessageModel, MessageQueue, RetryLater, blocking
from cosmodrome.client.hooks import ConsumeContext, FilterContext
from cosmodrome.client.sending_back import LOCAL_RETRY_MS
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import BrokerError, ClientError
from cosmodrome.model import ReceivedMessage
from cosmodrome.testing import FakeClock
from cosmodrome.wire.bodies import ConsumerIds, HeartbeatData
from cosmodrome.wire.command import Command
from cosmodrome.wire.compression import compress
from cosmodrome.wire.record import SysFlag
from cosmodrome.wire.requests import PullFlag, PullMessage, SendBack, UnregisterClient
from cosmodrome.wire.trace import Outcome
from tests.bounded import in_thread
from tests.unit.client.fake_cluster import PATIENCE_SECONDS, FakeCluster, fake_cluster
from tests.unit.client.messages import received

GROUP = "g"
RETRY = "%RETRY%g"
PULL = RequestCode.PULL_MESSAGE
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


def made(cluster: FakeCluster, **options: Any) -> LitePullConsumer:
    options.setdefault("consume_from", ConsumeFrom.FIRST_OFFSET)
    return LitePullConsumer(GROUP, cluster.namesrv, **options)


@asynccontextmanager
async def reading(cluster: FakeCluster, count: int = 0, **options: Any) -> AsyncIterator[LitePullConsumer]:
    """A consumer of T, which has so many messages, 0 to count - 1."""
    await sent(cluster, count)
    consumer = made(cluster, **options)
    consumer.subscribe("T")
    async with asyncio.timeout(PATIENCE_SECONDS), consumer:
        yield consumer


async def sent(cluster: FakeCluster, count: int, topic: str = "T", queue_id: int = 0) -> None:
    for number in range(count):
        await cluster.broker.append(topic, queue_id, b"%d" % number)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110  # the fake broker has no event for it
            await asyncio.sleep(0.001)


def committed(cluster: FakeCluster, queue_id: int = 0) -> int | None:
    return cluster.broker.offsets.get((GROUP, "T", queue_id))


def agreeing(cluster: FakeCluster) -> None:
    cluster.broker.answers[SEND_BACK] = lambda command: command.reply()


# --- polling


async def test_what_a_poll_returned_is_committed_once_the_next_one_is_asked_for() -> None:
    async with fake_cluster(T=1) as cluster:
        async with reading(cluster, 40, pull_batch=32) as consumer:
            first = await consumer.poll()
            assert [message.body for message in first] == [b"%d" % number for number in range(32)]
            second = await consumer.poll()
            assert [message.body for message in second] == [b"%d" % number for number in range(32, 40)]
        assert committed(cluster) == 32


async def test_commit_counts_in_what_was_polled_last() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster, 5, auto_commit=False) as consumer:
        assert len(await consumer.poll()) == 5
        await consumer.commit()
        assert committed(cluster) == 5
        assert await consumer.committed(Q0) == 5


async def test_without_auto_commit_nothing_else_is_committed() -> None:
    async with fake_cluster(T=1) as cluster:
        async with reading(cluster, 5, auto_commit=False, auto_commit_interval_ms=1) as consumer:
            await consumer.poll()
            assert await consumer.poll(1) == []
            await cluster.broker.append("T", 0, b"more")
            await consumer.poll()
            assert await consumer.committed(Q0) is None
        assert committed(cluster) is None
        assert not any(
            PullMessage.decode(pull).sys_flag & PullFlag.COMMIT_OFFSET for pull in cluster.broker.asked.of(PULL)
        )


async def test_a_pull_that_is_late_undoes_no_commit() -> None:
    """The application commits when it likes, so pulls of its consumer carry no offset at all."""
    async with fake_cluster(T=1) as cluster:
        cluster.broker.offsets[GROUP, "T", 0] = 1
        async with reading(cluster, 3) as member:
            await member.poll()
            await member.commit()
            await sent(cluster, 1)
            pulls = [PullMessage.decode(pull) for pull in await cluster.broker.asked.wait_for(PULL, 3)]
        assert {pull.sys_flag & PullFlag.COMMIT_OFFSET for pull in pulls} == {0}
        assert committed(cluster) == 3


async def test_auto_commit_comes_in_its_time() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster, 5, auto_commit_interval_ms=1) as consumer:
        await consumer.poll()
        assert await consumer.poll(1) == []
        await until(lambda: committed(cluster) == 5)


async def test_a_commit_that_is_refused_is_told() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster, 1, auto_commit=False) as consumer:
        await consumer.poll()
        cluster.broker.answers[COMMIT] = lambda command: command.reply(ResponseCode.SYSTEM_ERROR, remark="no")
        with pytest.raises(BrokerError, match="no"):
            await consumer.commit()


async def test_offsets_of_ones_own_are_committed_as_they_are() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster, 5, auto_commit=False) as consumer:
        await consumer.commit({Q0: 3})
        assert committed(cluster) == 3
        with pytest.raises(ClientError, match="not assigned"):
            await consumer.commit({MessageQueue("T", "broker-a", 7): 3})


async def test_an_empty_poll_ends_after_its_time() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster) as consumer:
        assert await consumer.poll(1) == []


async def test_a_cancelled_poll_loses_nothing() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster) as consumer:
        polling = asyncio.create_task(consumer.poll())
        await asyncio.sleep(0.01)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        await cluster.broker.append("T", 0, b"x")
        assert [message.body for message in await consumer.poll()] == [b"x"]


async def test_two_polls_at_once_are_refused() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster) as consumer:
        polling = asyncio.create_task(consumer.poll())
        await asyncio.sleep(0)
        with pytest.raises(ClientError, match="async for"):
            await consumer.poll()
        await cluster.broker.append("T", 0, b"x")
        assert len(await polling) == 1


async def test_a_poll_ends_with_the_consumer() -> None:
    async with fake_cluster(T=1) as cluster:
        async with reading(cluster) as consumer:
            polling = asyncio.create_task(consumer.poll())
            await asyncio.sleep(0)
        assert await polling == []
        with pytest.raises(ClientError, match="is stopped"):
            await consumer.poll()


async def test_without_a_topic_there_is_nothing_to_read() -> None:
    async with fake_cluster(T=1) as cluster, made(cluster) as consumer:
        with pytest.raises(ClientError, match="subscribe to a topic, or assign"):
            await consumer.poll()
        with pytest.raises(ClientError, match="subscribe to a topic, or assign"):
            aiter(consumer)


# --- async for


async def test_leaving_the_body_acknowledges() -> None:
    async with fake_cluster(T=1) as cluster:
        async with reading(cluster, 5) as consumer:
            bodies = []
            async for message in consumer:
                bodies.append(message.body)
                if len(bodies) == 5:
                    break
        assert bodies == [b"0", b"1", b"2", b"3", b"4"]
        assert committed(cluster) == 4  # the one of the break is not acknowledged


async def test_a_message_left_by_break_is_given_out_again_first() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster, 3) as consumer:
        async for message in consumer:
            assert message.body == b"0"
            break
        async for message in consumer:
            assert message.body == b"0"
            message.ack()
            break
        async for message in consumer:
            assert message.body == b"1"
            break


async def test_what_is_acknowledged_after_its_loop_was_left_is_not_given_out_again() -> None:
    async with fake_cluster(T=1) as cluster:
        async with reading(cluster, 5) as consumer:
            bodies = []
            for _ in range(3):
                message = await anext(aiter(consumer))  # nobody keeps the stream: it ends here, and puts this back
                async with message:
                    bodies.append(message.body)
            message = await anext(aiter(consumer))
            message.ack()
            assert consumer.position(Q0) == 4
            bodies += [message.body for message in await consumer.poll()]
            assert bodies == [b"0", b"1", b"2", b"4"]
            await consumer.commit()
        assert committed(cluster) == 5


async def test_without_await_neither() -> None:
    def use(namesrv: str) -> list[bytes]:
        consumer = blocking.LitePullConsumer(GROUP, namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("T")
        bodies = []
        with consumer:
            for _ in range(3):
                with next(iter(consumer)) as message:
                    bodies.append(message.body)
        return bodies

    async with fake_cluster(T=1) as cluster:
        await sent(cluster, 3)
        assert await in_thread(use, cluster.namesrv) == [b"0", b"1", b"2"]


async def test_what_somebody_has_in_a_block_is_given_to_nobody_else_and_comes_again_if_that_is_cancelled() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster, 1) as consumer:
        message, polled = await anext(aiter(consumer)), None
        with contextlib.suppress(asyncio.CancelledError):
            async with message:
                polled = await consumer.poll(1)
                raise asyncio.CancelledError
        assert polled == []
        assert await consumer.poll() == [message]


async def test_a_stream_that_is_gone_over_again_begins_with_what_was_left() -> None:
    async with fake_cluster(T=1) as cluster:
        async with reading(cluster, 2) as consumer:
            stream, bodies = consumer.messages(), []
            async for message in stream:
                bodies.append(message.body)
                break
            async for message in stream:
                bodies.append(message.body)
                break
            assert bodies == [b"0", b"0"]
        assert committed(cluster) in (None, 0)


async def test_an_exception_leaves_the_message_unacknowledged() -> None:
    async def work(consumer: LitePullConsumer) -> None:
        async for message in consumer:
            if message.body == b"1":
                raise RuntimeError("told to fail")

    async with fake_cluster(T=1) as cluster:
        async with reading(cluster, 3) as consumer:
            with pytest.raises(RuntimeError):
                await work(consumer)
        assert committed(cluster) == 1
        assert not cluster.broker.asked.of(SEND_BACK)


async def test_a_block_of_its_own_acknowledges_also_at_a_break() -> None:
    async with fake_cluster(T=1) as cluster:
        async with reading(cluster, 2) as consumer:
            async for message in consumer:
                async with message:
                    pass
                if message.body == b"1":
                    break
        assert committed(cluster) == 2


async def test_a_block_that_fails_sends_the_message_back_and_raises() -> None:
    async with fake_cluster(T=1) as cluster:
        agreeing(cluster)
        async with reading(cluster, 2, max_reconsume_times=7) as consumer:
            async for message in consumer:
                if message.body == b"1":
                    break
                with pytest.raises(RuntimeError, match="told to fail"):
                    async with message:
                        raise RuntimeError("told to fail")
        (command,) = cluster.broker.asked.of(SEND_BACK)
        request = SendBack.decode(command)
        assert (request.group, request.delay_level, request.origin_topic) == (GROUP, 0, "T")
        assert request.max_reconsume_times == 7
        assert committed(cluster) == 1


async def test_retry_later_says_when() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster, 1) as consumer:
        agreeing(cluster)
        async for message in consumer:
            with pytest.raises(RetryLater):
                async with message:
                    raise RetryLater(delay_level=5)
            break
        (command,) = cluster.broker.asked.of(SEND_BACK)
        assert SendBack.decode(command).delay_level == 5


async def test_what_the_broker_does_not_take_back_comes_again_here() -> None:
    clock = FakeClock()
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[SEND_BACK] = lambda command: command.reply(ResponseCode.SYSTEM_ERROR)
        async with reading(cluster, 1, clock=clock) as consumer:
            async for message in consumer:
                with pytest.raises(RuntimeError):
                    async with message:
                        raise RuntimeError("told to fail")
                break
            stream = aiter(consumer)
            coming = asyncio.ensure_future(anext(stream))
            while not coming.done():
                await clock.advance(LOCAL_RETRY_MS)
                await asyncio.sleep(0.001)
            again = coming.result()
            assert (again.body, again.reconsume_times) == (b"0", 1)
        assert committed(cluster) in (None, 0)


async def test_a_cancelled_block_gives_the_message_to_the_next() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster, 1) as consumer:
        entered = asyncio.Event()

        async def work() -> None:
            async for message in consumer:
                async with message:
                    entered.set()
                    await asyncio.Event().wait()

        working = asyncio.create_task(work())
        await entered.wait()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        async for message in consumer:
            assert message.body == b"0"
            break
        assert not consumer._feed.ready.first_offset(message.process), "it is there twice"


async def test_a_cancelled_wait_loses_nothing() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster) as consumer:
        stream = aiter(consumer)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(stream)
        await cluster.broker.append("T", 0, b"x")
        assert (await anext(stream)).body == b"x"


async def test_several_tasks_share_a_consumer_and_each_acknowledges_on_its_own() -> None:
    async with fake_cluster(T=2) as cluster:
        await sent(cluster, 50, queue_id=1)
        async with reading(cluster, 50) as consumer:
            bodies: list[bytes] = []
            held = asyncio.Event()

            async def work() -> None:
                async for message in consumer:
                    bodies.append(message.body)
                    if len(bodies) == 1:
                        await held.wait()
                    await asyncio.sleep(0)

            tasks = [asyncio.create_task(work()) for _ in range(4)]
            # The last message of a queue has come before its task acknowledges it.
            await until(lambda: len(bodies) == 100 and 50 in consumer.consumed_offsets("T").values())
            await consumer.commit()
            offsets = {committed(cluster, 0), committed(cluster, 1)}
            assert 50 in offsets
            assert min(offset or 0 for offset in offsets) < 50  # a task has the first one in hand
            held.set()
        await asyncio.gather(*tasks)
        assert sorted(bodies) == sorted(b"%d" % number for number in range(50) for _ in range(2))
        assert (committed(cluster, 0), committed(cluster, 1)) == (50, 50)


async def test_stop_waits_for_bodies_and_ends_loops() -> None:
    async with fake_cluster(T=1) as cluster:
        async with reading(cluster, 3) as consumer:
            began = asyncio.Event()

            async def work() -> None:
                async for _ in consumer:
                    began.set()
                    await until(lambda: consumer._feed.stopped)
                    await asyncio.sleep(0.01)

            working = asyncio.create_task(work())
            await began.wait()
        await working
        assert committed(cluster) == 1


async def test_stop_from_within_a_body_does_not_wait_for_itself() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster, 3) as consumer:
        async for _ in consumer:
            await consumer.stop()
        assert not consumer.running


async def test_stop_gives_up_on_a_body_that_does_not_end() -> None:
    async with fake_cluster(T=1) as cluster:
        async with reading(cluster, 1, stop_timeout_ms=10) as consumer:

            async def work() -> None:
                async for _ in consumer:
                    await asyncio.Event().wait()

            working = asyncio.create_task(work())
            await until(lambda: consumer.position(Q0) == 1)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        assert committed(cluster) in (None, 0)


async def test_messages_handed_to_other_tasks_acknowledge_themselves() -> None:
    async with fake_cluster(T=1) as cluster:
        async with reading(cluster, 10) as consumer:
            release = asyncio.Event()

            async def work(message: Any) -> None:
                async with message:
                    if message.body == b"0":
                        await release.wait()

            tasks = []
            async for message in consumer.messages(auto_ack=False):
                tasks.append(asyncio.create_task(work(message)))
                if len(tasks) == 10:
                    break
            await asyncio.gather(*tasks[1:])
            await consumer.commit()
            assert committed(cluster) == 0
            release.set()
        assert committed(cluster) == 10


async def test_batches() -> None:
    async with fake_cluster(T=1) as cluster:
        async with reading(cluster, 10) as consumer:
            sizes = []
            async for batch in consumer.batches(4):
                sizes.append(len(batch))
                if sum(sizes) == 10:
                    break
            assert sizes == [4, 4, 2]
        assert committed(cluster) == 8
        with pytest.raises(ValueError, match="at least 1"):
            consumer.batches(0)


async def test_retried_messages_come_under_their_own_topic() -> None:
    async with fake_cluster(**{"T": 1, RETRY: 1}) as cluster, reading(cluster) as consumer:
        await cluster.broker.append(RETRY, 0, b"again", "RETRY_TOPIC\x01T\x02")
        async for message in consumer:
            assert (message.topic, message.body, message.reconsume_times) == ("T", b"again", 1)
            break
        assert consumer.assigned_queues == [Q0]


async def test_a_compressed_body_arrives_unpacked_and_a_broken_one_goes_back() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster) as consumer:
        agreeing(cluster)
        packed, sys_flag = compress(b"x" * 9_000)
        await cluster.broker.append("T", 0, b"broken", sys_flag=SysFlag.COMPRESSED)
        await cluster.broker.append("T", 0, packed, sys_flag=sys_flag)
        (message,) = await consumer.poll()
        assert message.body == b"x" * 9_000
        await cluster.broker.asked.wait_for(SEND_BACK)


# --- where to read


async def test_after_a_seek_nothing_fetched_before_is_handed_out() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster, 40) as consumer:
        await consumer.poll()
        await until(lambda: consumer._queues.processes[Q0].next_offset == 40)
        await consumer.seek(Q0, 10)
        assert consumer.position(Q0) == 10
        assert [message.queue_offset for message in await consumer.poll()][:2] == [10, 11]
        await consumer.seek_to_begin(Q0)
        assert [message.queue_offset for message in await consumer.poll()][:2] == [0, 1]
        await consumer.seek_to_end(Q0)
        assert await consumer.poll(1) == []
        assert consumer.position(Q0) == 40


async def test_what_was_polled_before_a_seek_is_not_acknowledged_by_the_poll_after_it() -> None:
    async with fake_cluster(T=1) as cluster:
        async with reading(cluster, 5) as consumer:
            await consumer.poll()
            await consumer.seek(Q0, 2)
            await consumer.poll()
        assert committed(cluster) == 2


async def test_a_seek_must_stay_within_the_queue() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster, 5) as consumer:
        with pytest.raises(ClientError, match="from 0 to 5"):
            await consumer.seek(Q0, 6)
        with pytest.raises(ClientError, match="not assigned"):
            await consumer.seek(Q1, 0)


async def test_a_paused_queue_gives_nothing_out_until_it_is_resumed() -> None:
    async with fake_cluster(T=2) as cluster:
        await sent(cluster, 3, queue_id=1)
        async with reading(cluster, 3) as consumer:
            await until(lambda: sum(map(len, consumer._queues.processes.values())) == 6)
            consumer.pause([Q0])
            assert {message.queue for message in await consumer.poll()} == {Q1}
            assert await consumer.poll(1) == []
            polling = asyncio.create_task(consumer.poll())
            await asyncio.sleep(0)
            consumer.resume([Q0])
            assert [message.queue_offset for message in await polling] == [0, 1, 2]


async def test_offsets_of_a_queue() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster, 5) as consumer:
        assert await consumer.min_offset(Q0) == 0
        assert await consumer.max_offset(Q0) == 5
        assert await consumer.offset_for_timestamp(Q0, 0) == 0
        assert await consumer.fetch_message_queues("T") == [Q0]


# --- assigning


async def test_assigned_queues_are_read_whoever_else_is_there() -> None:
    async with fake_cluster(T=2) as cluster:
        cluster.broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda command: command.reply(
            body=ConsumerIds(("somebody", "else")).encode()
        )
        await sent(cluster, 3)
        await sent(cluster, 3, queue_id=1)
        consumer = made(cluster)
        consumer.assign([Q1])
        async with consumer:
            assert consumer.assigned_queues == [Q1]
            assert {message.queue for message in await consumer.poll()} == {Q1}
            await consumer.commit()
            consumer.assign([Q0])
            await until(lambda: consumer.assigned_queues == [Q0])
            assert {message.queue for message in await consumer.poll()} == {Q0}
        assert committed(cluster, 1) == 3


async def test_a_queue_just_assigned_can_be_sought() -> None:
    async with fake_cluster(T=2) as cluster, made(cluster) as consumer:
        await sent(cluster, 5)
        consumer.assign(await consumer.fetch_message_queues("T"))
        await consumer.seek(Q0, 3)
        assert [message.queue_offset for message in await consumer.poll()] == [3, 4]


async def test_an_assigned_queue_that_is_not_there_is_named() -> None:
    clock = FakeClock()
    async with fake_cluster(T=1) as cluster:
        consumer = made(cluster, clock=clock)
        consumer.assign([Q1])
        async with consumer, asyncio.timeout(PATIENCE_SECONDS):
            seeking = asyncio.create_task(consumer.seek(Q1, 0))
            while not seeking.done():
                await clock.advance(1_000)
            with pytest.raises(ClientError, match=r"queue_id=1.* was assigned, but is not there"):
                await seeking


async def test_what_fails_of_an_assigned_queue_comes_again_here_and_then_goes_to_the_dead_letters() -> None:
    clock, tries = FakeClock(), list[int]()
    async with fake_cluster(T=1) as cluster:
        agreeing(cluster)
        await sent(cluster, 2)
        consumer = made(cluster, clock=clock, max_reconsume_times=2)
        consumer.assign([Q0])

        async def work() -> None:
            async for message in consumer:
                with contextlib.suppress(RuntimeError):
                    async with message:
                        if message.body == b"0":
                            tries.append(message.reconsume_times)
                            raise RuntimeError("told to fail")

        async with asyncio.timeout(PATIENCE_SECONDS), consumer:
            working = asyncio.create_task(work())
            while not cluster.broker.asked.of(SEND_BACK):
                await clock.advance(LOCAL_RETRY_MS)
                await asyncio.sleep(0.001)
            assert tries == [0, 1, 2]
        await working
        (request,) = map(SendBack.decode, cluster.broker.asked.of(SEND_BACK))
        assert (request.offset, request.delay_level) == (0, -1)
        assert committed(cluster) == 2


async def test_subscribe_and_assign_do_not_mix() -> None:
    consumer = LitePullConsumer(GROUP, "127.0.0.1:1")
    consumer.subscribe("T")
    with pytest.raises(ClientError, match="subscribed to topics, so it can't assign"):
        consumer.assign([Q0])
    consumer = LitePullConsumer(GROUP, "127.0.0.1:1")
    consumer.assign([Q0])
    with pytest.raises(ClientError, match="was assigned queues, so it can't subscribe"):
        consumer.subscribe("T")


async def test_queues_that_come_and_go_are_told() -> None:
    async with fake_cluster(T=2) as cluster:
        told: list[tuple[str, list[MessageQueue]]] = []
        await sent(cluster, 3)
        consumer = made(cluster, auto_commit=False)
        consumer.subscribe("T")

        @consumer.on_assigned
        async def came(queues: list[MessageQueue]) -> None:
            told.append(("came", queues))
            if Q0 in queues:
                await consumer.seek(Q0, 1)

        @consumer.on_revoked
        async def went(queues: list[MessageQueue]) -> None:
            told.append(("went", queues))
            await consumer.commit()

        async with consumer:
            assert told == [("came", [Q0, Q1])]
            assert [message.queue_offset for message in await consumer.poll()] == [1, 2]
            rivalled(cluster, consumer)
            await until(lambda: len(told) == 2)
            assert told[1] == ("went", [Q0])
            await until(lambda: consumer.assigned_queues == [Q1])
            assert committed(cluster) == 3


def rivalled(cluster: FakeCluster, consumer: LitePullConsumer) -> None:
    """Another member comes, who is first and gets the first queue."""
    cluster.broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda command: command.reply(
        body=ConsumerIds(("0", consumer.client_id)).encode()
    )
    cluster.broker.notify_members(GROUP)


async def test_offsets_of_a_queue_that_goes_can_be_committed_as_long_as_its_listener_runs() -> None:
    async with fake_cluster(T=2) as cluster:
        told: list[str] = []
        await sent(cluster, 3)
        consumer = made(cluster, auto_commit=False, pull_batch=1)  # the fake broker gives more
        consumer.subscribe("T")

        @consumer.on_revoked
        async def went(queues: list[MessageQueue]) -> None:
            consumer.resume(queues)  # of no use: it gives out nothing more
            assert await consumer.poll(1) == []
            await consumer.commit({queue: consumer.position(queue) for queue in queues})
            with pytest.raises(ClientError, match="is not assigned to this consumer"):
                await consumer.seek(Q0, 0)
            told.append("went")

        async with consumer:
            assert [message.queue_offset for message in await consumer.poll()] == [0]
            rivalled(cluster, consumer)
            await until(lambda: told == ["went"])
            assert committed(cluster) == 1, "what was not handed out is for the next owner"
            await until(lambda: consumer.assigned_queues == [Q1])
            with pytest.raises(ClientError, match="is not assigned to this consumer"):
                await consumer.commit({Q0: 2})


async def test_new_queues_of_a_topic_are_told() -> None:
    async with fake_cluster(T=1, U=1) as cluster:
        told: list[list[MessageQueue]] = []
        consumer = made(cluster)
        consumer.subscribe("T")
        consumer.on_queues_changed("U", told.append)
        async with consumer:
            cluster.topics["U"] = 2
            consumer._instance.routes.doubt()
            await until(lambda: bool(told))
        assert told == [[MessageQueue("U", "broker-a", 0), MessageQueue("U", "broker-a", 1)]]


async def test_also_of_a_topic_that_is_read_no_more_and_when_none_are_left() -> None:
    async with fake_cluster(T=1, U=1) as cluster:
        told: list[list[MessageQueue]] = []
        consumer = made(cluster)
        consumer.subscribe("T")
        consumer.subscribe("U")
        consumer.on_queues_changed("T", told.append)
        async with consumer:
            consumer.unsubscribe("T")
            await until(lambda: Q0 not in consumer.assigned_queues)
            cluster.topics["T"] = 2
            consumer._instance.routes.doubt()
            await until(lambda: told == [[Q0, Q1]])
            cluster.topics["T"] = 0
            consumer._instance.routes.doubt()
            await until(lambda: told == [[Q0, Q1], []])


async def test_of_the_retry_queue_nobody_is_told() -> None:
    async with fake_cluster(**{"T": 1, RETRY: 1}) as cluster:
        told: list[list[MessageQueue]] = []
        consumer = made(cluster)
        consumer.subscribe("T")
        consumer.on_assigned(told.append)
        async with consumer:
            assert told == [[Q0]]


# --- being a member


async def test_it_says_what_it_is_and_says_goodbye() -> None:
    async with fake_cluster(T=1) as cluster:
        async with reading(cluster, strategy=lambda queues, _ids, _me: list(queues)):
            (beat, *_) = await cluster.broker.asked.wait_for(RequestCode.HEART_BEAT)
        (consumer,) = HeartbeatData.decode(beat.body).consumers
        assert (consumer.group, consumer.consume_type) == (GROUP, "CONSUME_ACTIVELY")
        assert {one.topic for one in consumer.subscriptions} == {"T", RETRY}
        (goodbye,) = cluster.broker.asked.of(RequestCode.UNREGISTER_CLIENT)
        assert UnregisterClient.decode(goodbye).consumer_group == GROUP


async def test_the_subscription_goes_along_with_every_pull() -> None:
    async with fake_cluster(T=1) as cluster:
        consumer = made(cluster)
        consumer.subscribe("T", "paid || refunded")
        async with consumer:
            (command, *_) = await cluster.broker.asked.wait_for(PULL)
        request = PullMessage.decode(command)
        assert request.sys_flag & PullFlag.SUBSCRIPTION
        assert request.subscription == "paid || refunded"


async def test_operators_may_set_offsets_and_see_how_far_it_is() -> None:
    async with fake_cluster(T=1) as cluster, reading(cluster, 5) as consumer:
        await consumer.poll()
        await consumer.reset_offsets({Q0: 3, Q1: 7})
        assert committed(cluster) == 3
        assert [message.queue_offset for message in await consumer.poll()] == [3, 4]
        assert consumer.consumed_offsets("T") == {Q0: 3}
        info = consumer.running_info()
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        assert info.queues[Q0].cached_count == 2
        with pytest.raises(ClientError, match="takes messages itself"):
            await consumer.consume_directly(received())


async def test_broadcasting_keeps_offsets_in_a_file(tmp_path: Path) -> None:
    async with fake_cluster(T=1) as cluster:
        broadcast = {"model": MessageModel.BROADCASTING, "offsets_file": tmp_path / "offsets.json"}
        async with reading(cluster, 5, **broadcast) as consumer:
            assert len(await consumer.poll()) == 5
            await consumer.commit()
        async with reading(cluster, 0, **broadcast) as consumer:
            await cluster.broker.append("T", 0, b"new")
            assert [message.body for message in await consumer.poll()] == [b"new"]
        assert committed(cluster) is None


async def test_names_of_a_namespace_are_the_applications_own() -> None:
    async with fake_cluster(**{"NS%T": 1}) as cluster:
        await sent(cluster, 1, "NS%T")
        consumer = made(cluster, config=ClientConfig(namespace="NS"), auto_commit=False)
        consumer.subscribe("T")
        async with consumer:
            assert consumer.assigned_queues == [Q0]
            (message,) = await consumer.poll()
            assert (message.topic, message.queue) == ("T", Q0)
            await consumer.seek(message.queue, 0)
            (message,) = await consumer.poll()
            await consumer.commit({message.queue: 1})
        assert cluster.broker.offsets["NS%g", "NS%T", 0] == 1


async def test_queues_of_a_namespace_pause_and_go_and_their_messages_are_sent_back() -> None:
    retry, rest = "%RETRY%NS%g", MessageQueue(RETRY, "broker-a", 0)
    async with fake_cluster(**{"NS%T": 2, retry: 1}) as cluster:
        agreeing(cluster)
        await sent(cluster, 2, "NS%T")
        await cluster.broker.append(retry, 0, b"again", "RETRY_TOPIC\x01NS%T\x02")
        consumer = made(cluster, config=ClientConfig(namespace="NS"))
        consumer.subscribe("T")
        async with asyncio.timeout(PATIENCE_SECONDS), consumer:
            consumer.pause([Q0])
            (again,) = await consumer.poll()
            assert (again.topic, again.queue) == ("T", rest)
            assert await consumer.poll(1) == []
            consumer.resume([Q0])
            (first, _second) = await consumer.poll()
            with pytest.raises(RuntimeError):
                async with first:
                    raise RuntimeError("told to fail")
            assert SendBack.decode(cluster.broker.asked.of(SEND_BACK)[0]).origin_topic == "NS%T"
            consumer.pause([Q0])
            await consumer._queues.release([MessageQueue("NS%T", "broker-a", 0)])
            assert not consumer._feed.ready.is_paused(Q0), "its next owner reads it"
        assert cluster.broker.offsets["NS%g", retry, 0] == 1
        assert cluster.broker.offsets["NS%g", "NS%T", 0] == 1


async def test_hooks_see_what_is_handed_out_and_may_leave_some_out() -> None:
    class Hook:
        def __init__(self) -> None:
            self.seen: list[tuple[str, bytes, str]] = []

        def before_consume(self, context: ConsumeContext) -> None:
            self.seen.append(("before", context.messages[0].body, context.status))

        def after_consume(self, context: ConsumeContext) -> None:
            assert "CONSUME_START_TIME" in context.messages[0].properties
            self.seen.append(("after", context.messages[0].body, f"{context.status} {context.outcome!r}"))

    def even(context: FilterContext) -> list[ReceivedMessage]:
        return [message for message in context.messages if message.queue_offset % 2 == 0]

    hook = Hook()
    async with fake_cluster(T=1) as cluster:
        agreeing(cluster)
        async with reading(cluster, 4, consume_hooks=[hook], filter_hooks=[even]) as consumer:
            async for message in consumer:
                if message.body == b"2":
                    break
            async for message in consumer:
                with pytest.raises(RuntimeError):
                    async with message:
                        raise RuntimeError("told to fail")
                break
        assert committed(cluster) == 4
    assert hook.seen == [
        ("before", b"0", ""),
        ("after", b"0", f"CONSUME_SUCCESS {Outcome.SUCCESS!r}"),
        ("before", b"2", ""),
        ("after", b"2", f"RECONSUME_LATER {Outcome.FAILED!r}"),
        ("before", b"2", ""),
        ("after", b"2", f"RECONSUME_LATER {Outcome.EXCEPTION!r}"),
    ]


async def test_flow_control_holds_for_what_is_not_acknowledged() -> None:
    def pulls(command: Command) -> int:
        return PullMessage.decode(command).queue_offset

    async with fake_cluster(T=1) as cluster, reading(cluster, 1_200) as consumer:
        await until(lambda: max(map(pulls, cluster.broker.asked.of(PULL)), default=0) >= 992)
        taken = 0
        async for _ in consumer.messages(auto_ack=False):
            taken += 1
            if taken == 1_024:
                break
        await asyncio.sleep(0.1)
        assert max(map(pulls, cluster.broker.asked.of(PULL))) == 992

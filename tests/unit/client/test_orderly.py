"""Calling handlers in order: one at a time per queue, again and again where one fails."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from typing import Any

import pytest

from cosmodrome.client import handlers
from cosmodrome.client.burying import given_up
from cosmodrome.client.concurrent import Delivery
from cosmodrome.client.consume_stats import ConsumeStatistics
from cosmodrome.client.handlers import Calls, Consume
from cosmodrome.client.held_queues import QueuesInOrder
from cosmodrome.client.orderly import SUSPEND_MS, TURN_MS, OrderlyHandlers
from cosmodrome.client.process_queue import CacheLimits, ProcessQueue
from cosmodrome.client.push_consumer import PushConsumer
from cosmodrome.client.results import Ended, OrderlyStatus, in_order
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import RetryLater, SuspendQueue
from cosmodrome.model import ConsumeFrom, MessageModel, MessageQueue, ReceivedMessage
from cosmodrome.testing import FakeClock
from cosmodrome.wire import properties as props
from cosmodrome.wire.compression import compress
from cosmodrome.wire.record import SysFlag
from cosmodrome.wire.requests import PullMessage, SendMessage
from cosmodrome.wire.trace import Outcome
from tests.unit.client.fake_cluster import PATIENCE_SECONDS, FakeCluster, fake_cluster, quick
from tests.unit.client.messages import QUEUE, received

OTHER = MessageQueue("T", "broker-a", 1)
LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


class Desk:
    """Orderly handlers over some queues, and brokers that bury messages or do not."""

    def __init__(self, max_in_flight: int = 4, max_threads: int = 4, **options: Any) -> None:
        self.clock = FakeClock()
        self.is_ours = True
        self.buries = True
        self.buried: list[int] = []
        self.processes: dict[MessageQueue, ProcessQueue] = {}
        self.calls = Calls("g", self.clock, max_threads=max_threads, orderly=True, statistics=ConsumeStatistics(0))
        self.handlers = OrderlyHandlers(
            max_in_flight, self.calls, self._bury, self.clock, lambda _: self.is_ours, **options
        )

    async def _bury(self, message: ReceivedMessage) -> bool:
        self.buried.append(message.queue_offset)
        return self.buries

    def process(self, queue: MessageQueue = QUEUE) -> ProcessQueue:
        return self.processes.setdefault(queue, ProcessQueue(0))

    def deliver(self, handler: Any, count: int = 1, batch: int | None = None, queue: MessageQueue = QUEUE) -> None:
        consume, process = Consume.by(handler, batch), self.process(queue)
        first = process.next_offset
        messages = [dataclasses.replace(received(offset=offset), queue=queue) for offset in range(first, first + count)]
        process.put(messages, first + count)
        self.handlers.submit(Delivery(consume, messages, process))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Told:
    """A handler that notes its messages and ends as told, call by call; then it succeeds."""

    def __init__(self, *ends: Any) -> None:
        self.ends = list(ends)
        self.offsets: list[list[int]] = []
        self.times: list[list[int]] = []

    async def __call__(self, messages: list[ReceivedMessage]) -> Any:
        self.offsets.append([message.queue_offset for message in messages])
        self.times.append([message.reconsume_times for message in messages])
        end = self.ends.pop(0) if self.ends else None
        if isinstance(end, BaseException):
            raise end
        return end


# --- one after the other


async def test_a_queue_has_one_handler_at_a_time_and_others_go_on() -> None:
    desk, begun, gate = Desk(), [], asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        begun.append((message.queue, message.queue_offset))
        await gate.wait()

    desk.deliver(handler, 3)
    desk.deliver(handler, 2, queue=OTHER)
    await settle()
    assert begun == [(QUEUE, 0), (OTHER, 0)]
    assert desk.handlers.is_busy(QUEUE)
    gate.set()
    await settle()
    assert [offset for queue, offset in begun if queue == QUEUE] == [0, 1, 2]
    assert [offset for queue, offset in begun if queue == OTHER] == [0, 1]
    assert desk.process().commit_offset == 3


async def test_plain_functions_run_in_threads_and_in_order_too() -> None:
    desk, seen, done = Desk(), list[int](), threading.Event()

    def handler(message: ReceivedMessage) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(message.queue_offset)
        if len(seen) == 50:
            done.set()

    desk.deliver(handler, 50)
    assert await asyncio.to_thread(done.wait, PATIENCE_SECONDS)
    assert seen == list(range(50))
    await desk.handlers.stop(1_000)
    desk.calls.shutdown()


async def test_what_waited_comes_in_batches_across_pulls() -> None:
    desk, handler = Desk(), Told()
    desk.is_ours = False
    consume = Consume.by(handler, 4)
    for first in (0, 3):
        messages = [received(offset=offset) for offset in range(first, first + 3)]
        desk.process().put(messages, first + 3)
        desk.handlers.submit(Delivery(consume, messages, desk.process()))
    await settle()
    assert handler.offsets == []
    desk.is_ours = True
    desk.handlers._find_worker(desk.handlers._lanes[QUEUE])
    await settle()
    assert handler.offsets == [[0, 1, 2, 3], [4, 5]]


async def test_no_more_queues_at_a_time_than_allowed_and_each_gets_its_turn() -> None:
    desk, order = Desk(max_in_flight=1), list[tuple[int, int]]()

    async def handler(message: ReceivedMessage) -> None:
        order.append((message.queue.queue_id, message.queue_offset))
        await desk.clock.sleep(TURN_MS // 2)

    desk.deliver(handler, 4)
    desk.deliver(handler, 4, queue=OTHER)
    await desk.clock.advance(TURN_MS * 10)
    assert order == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]


async def test_nothing_is_handled_while_the_queue_is_not_ours() -> None:
    desk, handler = Desk(), Told()
    desk.is_ours = False
    desk.deliver(handler, 2)
    await settle()
    assert handler.offsets == []
    assert desk.process().commit_offset == 0


# --- failures


async def test_the_same_messages_come_again_after_a_pause_and_the_next_ones_wait() -> None:
    desk, handler = Desk(), Told(ValueError(), RetryLater())
    desk.deliver(handler, 2, batch=2)
    await settle()
    desk.deliver(handler, 1, batch=2)
    await desk.clock.advance(SUSPEND_MS - 1)
    assert handler.offsets == [[0, 1]]
    await desk.clock.advance(1 + SUSPEND_MS)
    assert handler.offsets == [[0, 1], [0, 1], [0, 1], [2]]
    assert handler.times == [[0, 0], [1, 1], [2, 2], [0]]
    assert desk.process().commit_offset == 3


class Boom(BaseException):
    """No Exception, as what pytest.fail raises is none."""


@pytest.mark.parametrize("in_thread", [False, True])
async def test_whatever_a_handler_raises_the_queue_goes_on_and_is_let_go_at_the_end(in_thread: bool) -> None:
    desk, told = Desk(), Told(Boom())

    def handler(messages: list[ReceivedMessage]) -> None:
        asyncio.run(told(messages))

    desk.deliver(handler if in_thread else told, 2, batch=1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while told.offsets != [[0], [0], [1]]:
            await asyncio.sleep(0.001)  # for the thread
            await desk.clock.advance(SUSPEND_MS)
    await desk.handlers.stop(1_000)
    assert desk.process().commit_offset == 2
    assert desk.handlers.unended == set()
    desk.calls.shutdown()


async def test_a_handler_says_how_long_its_queue_shall_rest_and_what_is_done() -> None:
    desk, handler = Desk(suspend_ms=10), Told(SuspendQueue(700, done=2), OrderlyStatus.SUSPEND)
    desk.deliver(handler, 3, batch=3)
    await desk.clock.advance(699)
    assert handler.offsets == [[0, 1, 2]]
    assert desk.process().commit_offset == 2
    await desk.clock.advance(1)
    await desk.clock.advance(10)
    assert handler.offsets == [[0, 1, 2], [2], [2]]
    assert desk.process().commit_offset == 3
    with pytest.raises(ValueError, match="at least 1"):
        SuspendQueue(0)


async def test_what_failed_too_often_is_buried_and_the_queue_goes_on() -> None:
    desk, handler = Desk(max_reconsume_times=2), Told(*[ValueError()] * 3)
    desk.deliver(handler, 2, batch=1)
    await desk.clock.advance(10 * SUSPEND_MS)
    assert handler.offsets == [[0], [0], [0], [1]]
    assert desk.buried == [0]
    assert desk.process().commit_offset == 2


async def test_what_cannot_be_buried_is_tried_again() -> None:
    desk, handler = Desk(max_reconsume_times=0), Told(ValueError(), ValueError())
    desk.buries = False
    desk.deliver(handler, 2, batch=1)
    await settle()
    assert desk.process().commit_offset == 0
    await desk.clock.advance(SUSPEND_MS)
    desk.buries = True
    assert desk.buried == [0, 0]
    await desk.clock.advance(SUSPEND_MS)
    assert handler.offsets == [[0], [0], [0], [1]]
    assert handler.times == [[0], [1], [2], [0]]


async def test_what_a_handler_gives_up_is_buried_at_once() -> None:
    desk, handler = Desk(), Told(RetryLater(delay_level=-1, done=1))
    desk.deliver(handler, 3, batch=2)
    await settle()
    assert handler.offsets == [[0, 1], [2]]
    assert desk.buried == [1]
    assert desk.process().commit_offset == 3


async def test_without_a_limit_nothing_is_ever_buried() -> None:
    desk, handler = Desk(), Told(*[ValueError()] * 50)
    desk.deliver(handler, 1, batch=1)
    await desk.clock.advance(50 * SUSPEND_MS)
    assert len(handler.offsets) == 51
    assert desk.buried == []


# --- committing by hand


async def test_success_holds_the_offset_until_commit() -> None:
    desk, handler = Desk(auto_commit=False), Told(None, OrderlyStatus.SUCCESS, OrderlyStatus.COMMIT)
    desk.deliver(handler, 2, batch=1)
    await settle()
    assert desk.process().commit_offset == 0
    desk.deliver(handler, 2, batch=1)
    await settle()
    assert handler.offsets == [[0], [1], [2], [3]]
    assert desk.process().commit_offset == 3


async def test_rollback_delivers_everything_since_the_last_commit_again() -> None:
    desk = Desk(auto_commit=False)
    handler = Told(
        OrderlyStatus.COMMIT, OrderlyStatus.SUCCESS, ValueError(), OrderlyStatus.SUCCESS, OrderlyStatus.ROLLBACK
    )
    desk.deliver(handler, 5, batch=1)
    await desk.clock.advance(SUSPEND_MS)
    assert handler.offsets == [[0], [1], [2], [2], [3]]
    assert desk.process().commit_offset == 1
    await desk.clock.advance(SUSPEND_MS)
    assert handler.offsets[5:] == [[1], [2], [3], [4]]
    assert desk.process().commit_offset == 1


async def test_with_auto_commit_a_rollback_is_of_one_call() -> None:
    desk, handler = Desk(), Told(None, OrderlyStatus.ROLLBACK, OrderlyStatus.COMMIT)
    desk.deliver(handler, 2, batch=1)
    await desk.clock.advance(SUSPEND_MS)
    assert handler.offsets == [[0], [1], [1]]
    assert desk.process().commit_offset == 2


async def test_a_queue_that_is_full_of_what_is_not_committed_says_so(caplog: pytest.LogCaptureFixture) -> None:
    desk, handler = Desk(auto_commit=False), Told()
    desk.processes[QUEUE] = ProcessQueue(0, CacheLimits(max_messages=1))
    desk.deliver(handler, 2, batch=1)
    await settle()
    assert "nothing committed" in caplog.text


# --- letting go


async def test_a_queue_is_let_go_when_its_handler_has_ended_and_no_sooner() -> None:
    desk, gate, seen = Desk(), asyncio.Event(), list[int]()

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        await gate.wait()

    desk.deliver(handler, 3)
    await settle()
    going = asyncio.ensure_future(desk.handlers.let_go(QUEUE))
    await settle()
    assert not going.done()
    gate.set()
    await going
    await settle()
    assert seen == [0]
    assert desk.process().commit_offset == 1
    assert not desk.handlers.is_busy(QUEUE)


async def test_a_queue_at_rest_is_let_go_at_once() -> None:
    desk, handler = Desk(), Told(ValueError())
    desk.deliver(handler, 1, batch=1)
    await settle()
    await desk.handlers.let_go(QUEUE)
    await desk.clock.advance(10 * SUSPEND_MS)
    assert handler.offsets == [[0]]
    await desk.handlers.let_go(OTHER)  # of which nothing ever came


async def test_a_queue_that_is_read_anew_waits_for_the_old_handler() -> None:
    desk, gate, seen = Desk(), asyncio.Event(), list[int]()

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        await gate.wait()

    desk.deliver(handler, 3)
    await settle()
    old = desk.process()
    old.released = True
    desk.processes[QUEUE] = old.starting_at(10)
    desk.deliver(handler, 2)
    await settle()
    assert seen == [0]
    gate.set()
    await settle()
    assert seen == [0, 10, 11]
    assert (old.commit_offset, desk.process().commit_offset) == (0, 12)


async def test_a_resting_queue_that_is_read_anew_goes_on_at_once() -> None:
    desk, handler = Desk(), Told(ValueError())
    desk.deliver(handler, 1, batch=1)
    await settle()
    desk.process().released = True
    desk.processes[QUEUE] = desk.process().starting_at(5)
    desk.deliver(handler, 1, batch=1)
    await settle()
    assert handler.offsets == [[0], [5]]


async def test_stop_waits_for_handlers_and_names_those_that_still_run() -> None:
    desk, gate = Desk(), threading.Event()

    def stubborn(message: ReceivedMessage) -> None:
        gate.wait(PATIENCE_SECONDS)

    async def slow(message: ReceivedMessage) -> None:
        await desk.clock.sleep(1_000_000)

    desk.deliver(stubborn, 2)
    desk.deliver(slow, 2, queue=OTHER)
    await settle()
    await desk.handlers.stop(10)
    gate.set()
    assert desk.handlers.unended == {QUEUE}
    desk.deliver(slow)
    await settle()
    assert not desk.handlers._working
    desk.calls.shutdown()


async def test_a_queue_that_is_lost_while_its_handler_waits_for_a_thread_is_not_handled() -> None:
    desk, gate, seen = Desk(max_threads=1), threading.Event(), list[MessageQueue]()

    def handler(message: ReceivedMessage) -> None:
        seen.append(message.queue)
        gate.wait(PATIENCE_SECONDS)

    desk.deliver(handler)
    desk.deliver(handler, queue=OTHER)
    await settle()
    desk.is_ours = False
    gate.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while desk.handlers.is_busy(QUEUE) or desk.handlers.is_busy(OTHER):  # noqa: ASYNC110  # a thread ends it
            await asyncio.sleep(0.001)
    assert seen == [QUEUE]
    desk.calls.shutdown()


async def test_what_a_handler_does_to_its_list_does_not_matter() -> None:
    desk, seen = Desk(), list[list[int]]()

    async def handler(messages: list[ReceivedMessage]) -> None:
        seen.append([message.queue_offset for message in messages])
        messages.clear()

    desk.deliver(handler, 3)
    desk.deliver(handler, 2)
    await settle()
    assert [offset for offsets in seen for offset in offsets] == [0, 1, 2, 3, 4]
    assert desk.process().commit_offset == 5


async def test_stop_names_queues_whose_handlers_do_not_end_even_when_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "CANCEL_SECONDS", 0.01)
    desk, gate = Desk(), asyncio.Event()

    async def deaf(message: ReceivedMessage) -> None:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()

    desk.deliver(deaf)
    await settle()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await desk.handlers.stop(1)
    assert desk.handlers.unended == {QUEUE}
    gate.set()


# --- what is said of a call, and what is sent


def test_hooks_and_traces_hear_of_it_in_rocketmqs_words() -> None:
    assert in_order(Ended(None, None, 0)) == (True, "SUCCESS", Outcome.SUCCESS)
    assert in_order(Ended(OrderlyStatus.COMMIT, None, 0)) == (True, "COMMIT", Outcome.SUCCESS)
    assert in_order(Ended(OrderlyStatus.ROLLBACK, None, 0)) == (False, "ROLLBACK", Outcome.FAILED)
    assert in_order(Ended(None, ValueError(), 0)) == (False, "SUSPEND_CURRENT_QUEUE_A_MOMENT", Outcome.EXCEPTION)


def test_a_message_that_is_given_up_says_where_it_came_from() -> None:
    message = received(b"x" * 9_000)
    message.properties |= {"TRAN_MSG": "true", "TIMER_DELIVER_MS": "9", "MIN_OFFSET": "0", "colour": "red"}
    message.reconsume_times = 2
    header, body = given_up(message, "g", "NS%T", 2, now_ms=7)
    assert (header.topic, header.reconsume_times, header.max_reconsume_times) == ("%RETRY%g", 2, 2)
    assert (body, header.sys_flag) == compress(b"x" * 9_000)
    assert props.decode(header.properties or "") == {
        "UNIQ_KEY": "id-0",
        "ORIGIN_MESSAGE_ID": "id-0",
        "RETRY_TOPIC": "NS%T",
        "DELAY": "5",
        "colour": "red",
    }


def test_a_body_that_cannot_be_unpacked_is_given_up_as_it_is() -> None:
    message = received(b"no zlib", sys_flag=SysFlag.COMPRESSED | 0x300 | SysFlag.COMMIT)
    header, body = given_up(message, "g", "T", 0, now_ms=7)
    assert (body, header.sys_flag) == (b"no zlib", SysFlag.COMPRESSED | 0x300)


# --- as a member of a group


def consumer_of(cluster: FakeCluster, handler: Any, batch: int | None = None, **options: Any) -> PushConsumer:
    config = quick(cluster.namesrv)
    consumer = PushConsumer("g", orderly=True, consume_from=ConsumeFrom.FIRST_OFFSET, config=config, **options)
    consumer.subscribe("T", "*", handler, batch=batch)
    return consumer


async def until(holds: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110  # what is waited for tells nobody
            await asyncio.sleep(0.001)


async def test_queues_are_locked_before_they_are_read_and_free_after_the_end() -> None:
    handler = Told()
    async with fake_cluster(T=2) as cluster:
        await cluster.broker.append("T", 0, b"x")
        async with consumer_of(cluster, handler) as consumer:
            assert set(cluster.broker.locks) == {QUEUE, OTHER}
            assert set(cluster.broker.locks.values()) == {consumer.client_id}
            await until(lambda: handler.offsets)
        codes = [request.code for request in cluster.broker.asked.requests]
        assert (
            codes.index(LOCK) < codes.index(RequestCode.QUERY_CONSUMER_OFFSET) < codes.index(RequestCode.PULL_MESSAGE)
        )
        last_commit = max(i for i, code in enumerate(codes) if code == RequestCode.UPDATE_CONSUMER_OFFSET)
        assert last_commit < codes.index(UNLOCK) < codes.index(RequestCode.UNREGISTER_CLIENT)
        assert cluster.broker.locks == {}
        assert cluster.broker.offsets["g", "T", 0] == 1


async def test_a_queue_somebody_else_has_is_left_alone_and_asked_for_again_soon() -> None:
    handler, clock = Told(), FakeClock()
    async with fake_cluster(T=2) as cluster:
        cluster.broker.locks[OTHER] = "somebody"
        async with consumer_of(cluster, handler, clock=clock) as consumer:
            assert consumer.assigned_queues == [QUEUE]
            pulls = [
                PullMessage.decode(pull).queue_id
                for pull in await cluster.broker.asked.wait_for(RequestCode.PULL_MESSAGE)
            ]
            assert pulls == [0]
            del cluster.broker.locks[OTHER]
            async with asyncio.timeout(PATIENCE_SECONDS):
                while consumer.assigned_queues != [QUEUE, OTHER]:
                    await clock.advance(1_000)
                    await asyncio.sleep(0.001)


async def test_a_lost_queue_is_dropped_without_a_commit_and_read_again_from_where_its_owner_got() -> None:
    clock, seen = FakeClock(), list[int]()
    gate = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        await gate.wait()

    async with fake_cluster(T=1) as cluster:
        for _ in range(4):
            await cluster.broker.append("T", 0, b"x")
        async with consumer_of(cluster, handler, clock=clock) as consumer:
            await until(lambda: seen == [0])
            cluster.broker.locks[QUEUE] = "somebody"
            assert consumer._locks is not None
            await consumer._locks.renew()
            assert consumer.assigned_queues == []
            gate.set()
            cluster.broker.offsets["g", "T", 0] = 2  # by the other one
            del cluster.broker.locks[QUEUE]
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(seen) < 3:
                    await clock.advance(1_000)
                    await asyncio.sleep(0.001)
        assert seen == [0, 2, 3]


async def test_a_queue_that_goes_is_unlocked_after_its_handler_has_ended_and_committed() -> None:
    clock, gate, seen = FakeClock(), asyncio.Event(), list[int]()

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        await gate.wait()

    async with fake_cluster(T=1) as cluster:
        for _ in range(2):
            await cluster.broker.append("T", 0, b"x")
        async with consumer_of(cluster, handler, clock=clock) as consumer:
            await until(lambda: seen == [0])
            assert not await consumer._queues.release([QUEUE])
            assert consumer.assigned_queues == []
            assert await consumer._queues.acquire([QUEUE], consumer._membership.subscribed["T"]) == set()
            assert cluster.broker.locks == {QUEUE: consumer.client_id}
            gate.set()
            queues = consumer._queues
            assert isinstance(queues, QueuesInOrder)
            await until(lambda: not (cluster.broker.locks or queues._leaving))
            assert cluster.broker.offsets["g", "T", 0] == 1
            assert seen == [0]
            assert await consumer._queues.acquire([QUEUE], consumer._membership.subscribed["T"]) == {QUEUE}
            await until(lambda: seen == [0, 1])


async def test_offsets_that_are_reset_wait_for_the_handler_and_the_lock_stays() -> None:
    gate, seen = asyncio.Event(), list[int]()

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        await gate.wait()

    async with fake_cluster(T=1) as cluster:
        for _ in range(4):
            await cluster.broker.append("T", 0, b"x")
        async with consumer_of(cluster, handler) as consumer:
            await until(lambda: seen == [0])
            await consumer.reset_offsets({QUEUE: 2})
            await cluster.broker.asked.wait_for(RequestCode.PULL_MESSAGE, 2)
            assert seen == [0]
            gate.set()
            await until(lambda: seen == [0, 2, 3])
            assert cluster.broker.asked.count(UNLOCK) == 0
        assert cluster.broker.offsets["g", "T", 0] == 4


async def test_a_thread_that_does_not_end_keeps_its_queue_locked() -> None:
    gate, begun = threading.Event(), threading.Event()

    def handler(message: ReceivedMessage) -> None:
        begun.set()
        gate.wait(PATIENCE_SECONDS)

    async with fake_cluster(T=2) as cluster:
        await cluster.broker.append("T", 0, b"x")
        consumer = consumer_of(cluster, handler, stop_timeout_ms=20)
        async with consumer:
            assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        assert set(cluster.broker.locks) == {QUEUE}
        gate.set()


async def test_what_failed_too_often_goes_to_the_retry_topic_and_the_queue_goes_on() -> None:
    handler = Told(ValueError(), ValueError())
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[RequestCode.SEND_MESSAGE] = lambda command: command.reply()
        await cluster.broker.append("T", 0, b"bad")
        await cluster.broker.append("T", 0, b"good")
        async with consumer_of(cluster, handler, batch=1, max_reconsume_times=1, suspend_ms=1):
            await until(lambda: len(handler.offsets) == 3)
        (request,) = cluster.broker.asked.of(RequestCode.SEND_MESSAGE)
        header = SendMessage.decode(request)
        assert (header.topic, header.reconsume_times, bytes(request.body)) == ("%RETRY%g", 1, b"bad")
        assert handler.offsets == [[0], [0], [1]]
        assert cluster.broker.offsets["g", "T", 0] == 2


async def test_one_that_could_not_be_given_up_stays_first() -> None:
    handler = Told(ValueError(), ValueError())
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[RequestCode.SEND_MESSAGE] = lambda command: command.reply(ResponseCode.SYSTEM_ERROR)
        await cluster.broker.append("T", 0, b"x")
        await cluster.broker.append("T", 0, b"y")
        async with consumer_of(cluster, handler, batch=1, max_reconsume_times=0, suspend_ms=1):
            await until(lambda: len(handler.offsets) == 4)
        assert handler.offsets == [[0], [0], [0], [1]]


@pytest.mark.parametrize(
    "code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE]
)
async def test_one_that_is_stored_less_safely_than_it_should_is_given_up(code: ResponseCode) -> None:
    handler = Told(ValueError())
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[RequestCode.SEND_MESSAGE] = lambda command: command.reply(code)
        await cluster.broker.append("T", 0, b"x")
        await cluster.broker.append("T", 0, b"y")
        async with consumer_of(cluster, handler, batch=1, max_reconsume_times=0, suspend_ms=1):
            await until(lambda: len(handler.offsets) >= 2)
        assert handler.offsets == [[0], [1]]
        assert cluster.broker.asked.count(RequestCode.SEND_MESSAGE) == 1


@pytest.mark.parametrize("limit", [None, 16])
async def test_one_that_is_given_up_before_its_time_has_reached_the_limit_its_broker_is_told(limit: int | None) -> None:
    handler = Told(RetryLater(), RetryLater(delay_level=-1))
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[RequestCode.SEND_MESSAGE] = lambda command: command.reply()
        await cluster.broker.append("T", 0, b"x")
        await cluster.broker.append("T", 0, b"y")
        async with consumer_of(cluster, handler, batch=1, max_reconsume_times=limit, suspend_ms=1):
            await until(lambda: len(handler.offsets) == 3)
        assert handler.offsets == [[0], [0], [1]]
        header = SendMessage.decode(*cluster.broker.asked.of(RequestCode.SEND_MESSAGE))
        assert (header.topic, header.reconsume_times, header.max_reconsume_times) == ("%RETRY%g", 1, 1)


async def test_broadcasting_needs_no_locks() -> None:
    handler = Told()
    async with fake_cluster(T=1) as cluster:
        async with consumer_of(cluster, handler, model=MessageModel.BROADCASTING):
            await cluster.broker.append("T", 0, b"x")
            await until(lambda: handler.offsets)
        assert cluster.broker.asked.count(LOCK) == 0


async def test_the_offsets_may_lie_as_far_apart_as_they_like() -> None:
    async with fake_cluster(T=1) as cluster:
        consumer = consumer_of(cluster, Told(), limits=CacheLimits(max_span=1))
        async with consumer:
            process, *_ = consumer._queues.processes.values()
            messages = [received(offset=offset) for offset in (0, 5_000)]
            process.put(messages, 5_001)
            assert not process.is_full

"""Consuming, against a broker that remembers what it was asked and answers as told."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import Sql, blocking
from cosmodrome.client.hooks import ConsumeContext, ConsumeHook, FilterContext, RpcHook
from cosmodrome.client.offsets import LocalOffsets
from cosmodrome.client.process_queue import CacheLimits
from cosmodrome.client.push_consumer import PushConsumer
from cosmodrome.client.sending_back import LOCAL_RETRY_MS
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import ClientError, InvalidParameter, RetryLater, SubscriptionParseFailed
from cosmodrome.model import ConsumeFrom, MessageModel, MessageQueue, ReceivedMessage
from cosmodrome.testing import FakeClock
from cosmodrome.wire.bodies import ConsumerIds, HeartbeatData
from cosmodrome.wire.command import Command
from cosmodrome.wire.compression import compress
from cosmodrome.wire.requests import (
    PullFlag,
    PullMessage,
    PullReply,
    SearchOffset,
    SendBack,
    SendMessage,
    UnregisterClient,
    UpdateConsumerOffset,
)
from tests.bounded import in_thread
from tests.unit.client.fake_cluster import PATIENCE_SECONDS, FakeBroker, FakeCluster, fake_cluster, quick

PULL = RequestCode.PULL_MESSAGE
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
GROUP = "g"
RETRY = "%RETRY%g"


class Inbox:
    """A handler that remembers, and fails as long as it is told to."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self.failing = False
        self._came = asyncio.Condition()

    async def __call__(self, message: ReceivedMessage) -> None:
        async with self._came:
            self.messages.append(message)
            self._came.notify_all()
        if self.failing:
            raise RuntimeError("told to fail")

    async def wait_for(self, count: int) -> list[ReceivedMessage]:
        async with asyncio.timeout(PATIENCE_SECONDS), self._came:
            await self._came.wait_for(lambda: len(self.messages) >= count)
        return self.messages

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


def consumer_of(cluster: FakeCluster, handler: Any, expression: str | Sql = "*", **options: Any) -> PushConsumer:
    consumer = PushConsumer(GROUP, config=quick(cluster.namesrv), **options)
    consumer.subscribe("T", expression, handler)
    return consumer


async def until(holds: Callable[[], bool], happens: Callable[[], Awaitable[Any]]) -> None:
    """Let something happen, again and again, until it had its effect."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await happens()


async def turn() -> None:
    await asyncio.sleep(0.001)


# --- receiving


async def test_what_was_sent_is_received_and_committed() -> None:
    inbox = Inbox()
    async with fake_cluster(T=2) as cluster:
        async with consumer_of(cluster, inbox) as consumer:
            assert consumer.assigned_queues == [MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)]
            for number in range(100):
                await cluster.broker.append("T", number % 2, b"%d" % number, "TAGS\x01x\x02UNIQ_KEY\x01U\x02")
            (first, *_) = await inbox.wait_for(100)
        assert sorted(inbox.bodies) == sorted(b"%d" % number for number in range(100))
        assert (first.topic, first.tags, first.msg_id) == ("T", "x", "U")
        assert {first.properties["MIN_OFFSET"]} == {"0"}
        assert cluster.broker.offsets[GROUP, "T", 0] == 50
        assert cluster.broker.offsets[GROUP, "T", 1] == 50


async def test_offsets_are_committed_while_it_runs_and_with_the_next_pull() -> None:
    inbox = Inbox()
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox):
        await cluster.broker.append("T", 0, b"x")
        (first,) = await cluster.broker.asked.wait_for(COMMIT)
        assert UpdateConsumerOffset.decode(first) == UpdateConsumerOffset(GROUP, "T", 0, 1)
        await cluster.broker.append("T", 0, b"y")
        await inbox.wait_for(2)
        (_, later) = await cluster.broker.asked.wait_for(COMMIT, 2)
        assert (first.is_oneway, later.is_oneway) == (False, True)
        await cluster.broker.append("T", 0, b"z")
        pulls = [PullMessage.decode(pull) for pull in await cluster.broker.asked.wait_for(PULL, 4)]
        assert pulls[0].sys_flag == PullFlag.SUSPEND
        assert (pulls[3].sys_flag, pulls[3].commit_offset) == (PullFlag.SUSPEND | PullFlag.COMMIT_OFFSET, 2)


async def test_the_last_commit_stands_though_the_broker_looks_at_a_pull_after_it() -> None:
    """As one with threads may, and it would go back to what the pull carries."""
    inbox, late_seconds = Inbox(), 0.02
    async with fake_cluster(T=1) as cluster:
        await cluster.broker.append("T", 0, b"before")
        cluster.broker.offsets[GROUP, "T", 0] = 1
        cluster.broker.takes_offsets_of_pulls_after_seconds = late_seconds
        async with consumer_of(cluster, inbox):
            await cluster.broker.asked.wait_for(PULL)
            await cluster.broker.append("T", 0, b"x")
            (*_, last) = await cluster.broker.asked.wait_for(PULL, 2)
            await inbox.wait_for(1)
        assert PullMessage.decode(last).commit_offset == 1
        await asyncio.sleep(late_seconds)
        assert cluster.broker.offsets[GROUP, "T", 0] == 2


async def test_only_wanted_tags_are_handed_over_and_the_rest_is_committed_as_well() -> None:
    inbox = Inbox()
    async with fake_cluster(T=1) as cluster:
        async with consumer_of(cluster, inbox, "AaAaAa"):
            await cluster.broker.append("T", 0, b"yes", "TAGS\x01AaAaAa\x02")
            await cluster.broker.append("T", 0, b"no", "TAGS\x01BBBBBB\x02")
            await inbox.wait_for(1)
            await cluster.broker.asked.wait_for(PULL, 2)
        assert inbox.bodies == [b"yes"]
        assert cluster.broker.offsets[GROUP, "T", 0] == 2


async def test_a_compressed_body_arrives_unpacked() -> None:
    inbox = Inbox()
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox):
        packed, sys_flag = compress(b"x" * 9_000)
        await cluster.broker.append("T", 0, packed, sys_flag=sys_flag)
        (message,) = await inbox.wait_for(1)
        assert message.body == b"x" * 9_000


async def test_a_handler_of_lists_gets_what_a_pull_brought() -> None:
    batches: list[int] = []
    seen = asyncio.Event()

    async def handler(messages: list[ReceivedMessage]) -> None:
        batches.append(len(messages))
        if sum(batches) == 10:
            seen.set()

    async with fake_cluster(T=1) as cluster:
        for _ in range(10):
            await cluster.broker.append("T", 0, b"x")
        consumer = PushConsumer(GROUP, cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("T", "*", handler, batch=4)
        async with consumer, asyncio.timeout(PATIENCE_SECONDS):
            await seen.wait()
    assert batches == [4, 4, 2]


# --- where a group begins


@pytest.mark.parametrize(
    ("consume_from", "expected"),
    [(ConsumeFrom.LAST_OFFSET, 3), (ConsumeFrom.FIRST_OFFSET, 0), (ConsumeFrom.TIMESTAMP, 1)],
)
async def test_a_new_group_begins_where_it_was_told(consume_from: ConsumeFrom, expected: int) -> None:
    async with fake_cluster(T=1, **{RETRY: 1}) as cluster:
        for offset, stored_ms in enumerate((0, 2, 2)):
            await cluster.broker.append("T", 0, b"x")
            await cluster.broker.append(RETRY, 0, b"x")
            cluster.broker.queues["T", 0][offset].store_timestamp = stored_ms
        since_ms = 2 if consume_from is ConsumeFrom.TIMESTAMP else None
        async with consumer_of(cluster, Inbox(), consume_from=consume_from, consume_timestamp_ms=since_ms):
            await until(lambda: len(_first_offsets(cluster)) == 2, turn)
    assert _first_offsets(cluster) == {"T": expected, RETRY: 3 if consume_from is ConsumeFrom.TIMESTAMP else 0}


async def test_by_timestamp_means_half_an_hour_ago_unless_said_otherwise() -> None:
    clock = FakeClock()
    options: dict[str, Any] = {"consume_from": ConsumeFrom.TIMESTAMP, "clock": clock}
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, Inbox(), **options):
        (search,) = cluster.broker.asked.of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    assert SearchOffset.decode(search).timestamp == clock.now_ms() - 30 * 60 * 1_000


async def test_a_stored_offset_counts_whatever_was_told() -> None:
    async with fake_cluster(T=1) as cluster:
        cluster.broker.offsets[GROUP, "T", 0] = 0
        await cluster.broker.append("T", 0, b"x")
        inbox = Inbox()
        async with consumer_of(cluster, inbox, consume_from=ConsumeFrom.LAST_OFFSET):
            await inbox.wait_for(1)


async def test_a_queue_whose_offset_cannot_be_found_out_is_left_for_the_next_round() -> None:
    clock = FakeClock()
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = _refusing(ResponseCode.SYSTEM_ERROR)
        async with consumer_of(cluster, Inbox(), clock=clock) as consumer:
            assert consumer.assigned_queues == []
            del cluster.broker.answers[RequestCode.QUERY_CONSUMER_OFFSET]
            await until(lambda: bool(consumer.assigned_queues), lambda: _pass_a_second(clock))


async def test_a_filter_that_a_broker_does_not_know_is_told_at_the_start() -> None:
    async with fake_cluster("broker-a", "broker-b", T=1) as cluster:
        check = RequestCode.CHECK_CLIENT_CONFIG
        cluster.named("broker-a").answers[check] = lambda command: command.reply()
        cluster.named("broker-b").answers[check] = _refusing(ResponseCode.SYSTEM_ERROR)
        consumer = consumer_of(cluster, Inbox(), Sql("price > 5"))
        with pytest.raises(ClientError, match=r"broker-b cannot choose .* T by 'price > 5': .*enablePropertyFilter"):
            await consumer.start()
        assert all(broker.asked.count(check) == 1 for broker in cluster.brokers)


async def test_a_slave_that_may_not_be_read_is_not_asked_without_a_pause() -> None:
    clock = FakeClock()
    async with fake_cluster(T=1) as cluster:
        nothing = PullReply(0, 0, 0, 0)
        cluster.broker.answers[PULL] = lambda command: command.reply(ResponseCode.PULL_RETRY_IMMEDIATELY, nothing)
        async with consumer_of(cluster, Inbox(), clock=clock):
            await cluster.broker.asked.wait_for(PULL)
            for _ in range(100):
                await asyncio.sleep(0.001)
            assert cluster.broker.asked.count(PULL) == 1
            await until(lambda: cluster.broker.asked.count(PULL) > 1, lambda: _pass(clock, 1_000))


async def test_a_slave_keeps_the_offsets_while_there_is_no_master() -> None:
    inbox = Inbox()
    async with fake_cluster(T=1) as cluster:
        cluster.broker.broker_id = 1
        async with consumer_of(cluster, inbox):
            await cluster.broker.append("T", 0, b"x")
            await inbox.wait_for(1)
        assert cluster.broker.offsets[GROUP, "T", 0] == 1


# --- failing


@pytest.mark.parametrize("limit", [None, 2])
async def test_a_failed_message_is_sent_back_and_done_with(limit: int | None) -> None:
    inbox = Inbox()
    inbox.failing = True
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[SEND_BACK] = lambda command: command.reply()
        async with consumer_of(cluster, inbox, max_reconsume_times=limit):
            await cluster.broker.append("T", 0, b"x", "UNIQ_KEY\x01U\x02")
            await cluster.broker.append("T", 0, b"y", "UNIQ_KEY\x01V\x02")
            sent_back = await cluster.broker.asked.wait_for(SEND_BACK, 2)
            first = SendBack.decode(min(sent_back, key=lambda command: int(command.fields["offset"])))
        told = SendBack(0, GROUP, 0, "U", "T", max_reconsume_times=limit, last_error="RuntimeError: told to fail")
        assert first == told
        assert cluster.broker.offsets[GROUP, "T", 0] == 2
        assert len(inbox.messages) == 2


async def test_a_message_the_broker_does_not_take_back_is_tried_again_and_never_committed_over() -> None:
    clock, inbox = FakeClock(), Inbox()
    inbox.failing = True
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[SEND_BACK] = _refusing(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        async with consumer_of(cluster, inbox, clock=clock):
            await cluster.broker.append("T", 0, b"x")
            await cluster.broker.asked.wait_for(SEND_BACK)
            inbox.failing = False
            await cluster.broker.append("T", 0, b"y")
            await inbox.wait_for(2)
            await _pass(clock, LOCAL_RETRY_MS // 2)  # many commits later
            assert cluster.broker.offsets.get((GROUP, "T", 0), 0) == 0
            await until(lambda: len(inbox.messages) == 3, lambda: _pass(clock, LOCAL_RETRY_MS))
        assert inbox.bodies == [b"x", b"y", b"x"]
        assert inbox.messages[2].reconsume_times == 1
        assert cluster.broker.offsets[GROUP, "T", 0] == 2


@pytest.mark.parametrize(
    ("asked", "delay", "limit"),
    [
        (RuntimeError("no\x02\nway"), "3", None),
        (RetryLater("no  way", delay_level=5), "5", None),
        (RetryLater("no  way", delay_level=-1), "3", 0),
    ],
)
async def test_what_its_broker_does_not_take_back_goes_to_another_as_a_copy(
    asked: Exception, delay: str, limit: int | None
) -> None:
    async def fail(_message: ReceivedMessage) -> None:
        raise asked

    async with fake_cluster("broker-a", "broker-b", **{"T": 1, RETRY: 1}) as cluster:
        mine, other = cluster.brokers
        for broker in cluster.brokers:
            broker.answers[SEND_BACK] = _refusing(ResponseCode.SYSTEM_ERROR)
            broker.answers[RequestCode.SEND_MESSAGE] = lambda command: command.reply()
        consumer = PushConsumer(GROUP, config=quick(cluster.namesrv), consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("T", "*", fail)
        async with consumer:
            await mine.append("T", 0, b"x", "UNIQ_KEY\x01U\x02")
            (command,) = await other.asked.wait_for(RequestCode.SEND_MESSAGE)
        copy = SendMessage.decode(command)
        told = (copy.topic, copy.reconsume_times, copy.max_reconsume_times, bytes(command.body))
        assert told == (RETRY, 1, limit, b"x")
        error = "no  way" if isinstance(asked, RetryLater) else "RuntimeError: no  way"
        assert copy.properties == (
            f"UNIQ_KEY\x01U\x02COSMODROME_LAST_ERROR\x01{error}\x02ORIGIN_MESSAGE_ID\x01U\x02"
            f"RETRY_TOPIC\x01T\x02DELAY\x01{delay}\x02"
        )
        assert mine.offsets[GROUP, "T", 0] == 1


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_message_that_a_hook_keeps_from_going_back_is_tried_again(orderly: bool) -> None:
    clock, inbox, refused = FakeClock(), Inbox(), list[int]()
    inbox.failing = True

    class Broken(RpcHook):
        def before_request(self, address: str, command: Command) -> None:
            if command.code in (SEND_BACK, RequestCode.SEND_MESSAGE) and not refused:
                refused.append(command.code)
                raise RuntimeError("a bad hook")

    async with fake_cluster(T=1) as cluster:
        options: dict[str, Any] = {"orderly": True, "max_reconsume_times": 0} if orderly else {}
        async with consumer_of(cluster, inbox, clock=clock, rpc_hooks=[Broken()], **options):
            await cluster.broker.append("T", 0, b"x")
            await until(lambda: bool(refused), turn)
            inbox.failing = False
            await until(lambda: len(inbox.messages) == 2, lambda: _pass(clock, LOCAL_RETRY_MS))


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.HEART_BEAT,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.LOCK_BATCH_MQ,
        COMMIT,
        PULL,
    ],
)
async def test_a_hook_that_raises_keeps_nothing_from_going_on(code: int, caplog: pytest.LogCaptureFixture) -> None:
    clock, inbox, raising, raised = FakeClock(), Inbox(), set[int](), list[int]()

    class Broken(RpcHook):
        def before_request(self, address: str, command: Command) -> None:
            if command.code in raising:
                raised.append(command.code)
                raise RuntimeError("a bad hook")

    async with fake_cluster(T=1) as cluster:
        async with consumer_of(cluster, inbox, clock=clock, orderly=True, rpc_hooks=[Broken()]):
            raising.add(code)
            await cluster.broker.append("T", 0, b"x")
            await until(lambda: bool(raised), lambda: _pass_a_second(clock))
            raising.clear()
            await cluster.broker.append("T", 0, b"y")
            await until(lambda: len(inbox.messages) >= 2, lambda: _pass_a_second(clock))
        assert cluster.broker.offsets[GROUP, "T", 0] == 2
    assert "no longer works" not in caplog.text


async def test_a_hook_that_raises_does_not_keep_it_from_stopping() -> None:
    inbox, raising = Inbox(), list[bool]()

    class Broken(RpcHook):
        def before_request(self, address: str, command: Command) -> None:
            if raising:
                raise RuntimeError("a bad hook")

    async with fake_cluster(T=1) as cluster:
        async with consumer_of(cluster, inbox, orderly=True, rpc_hooks=[Broken()]):
            await cluster.broker.append("T", 0, b"x")
            await inbox.wait_for(1)
            raising.append(True)
        await until(lambda: not cluster.broker.connections, turn)


async def test_a_stop_commits_up_to_the_message_that_is_not_taken_care_of() -> None:
    inbox = Inbox()
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[SEND_BACK] = _refusing(ResponseCode.SYSTEM_ERROR)
        async with consumer_of(cluster, inbox):
            await cluster.broker.append("T", 0, b"fine")
            await inbox.wait_for(1)
            inbox.failing = True
            await cluster.broker.append("T", 0, b"bad")
            await cluster.broker.asked.wait_for(SEND_BACK)
        assert cluster.broker.offsets[GROUP, "T", 0] == 1


async def test_a_retried_message_comes_back_to_the_handler_of_its_topic() -> None:
    inbox = Inbox()
    async with fake_cluster(T=1, **{RETRY: 1}) as cluster, consumer_of(cluster, inbox, "paid"):
        await cluster.broker.append(RETRY, 0, b"again", "RETRY_TOPIC\x01T\x02TAGS\x01paid\x02")
        (message,) = await inbox.wait_for(1)
        assert (message.topic, message.queue.topic, message.reconsume_times) == ("T", RETRY, 1)


# --- everybody gets everything


async def test_broadcasting_reads_every_queue_and_keeps_its_offsets_in_a_file(tmp_path: Path) -> None:
    path, options = tmp_path / "offsets.json", {"model": MessageModel.BROADCASTING}
    async with fake_cluster(T=2) as cluster:
        first, second, again = Inbox(), Inbox(), Inbox()
        async with (
            consumer_of(cluster, first, offsets_file=path, **options) as consumer,
            consumer_of(cluster, second, **options),
        ):
            assert len(consumer.assigned_queues) == 2
            await cluster.broker.append("T", 0, b"x")
            await cluster.broker.append("T", 1, b"y")
            await first.wait_for(2)
            await second.wait_for(2)
        await cluster.broker.append("T", 1, b"z")
        async with consumer_of(cluster, again, offsets_file=path, **options):
            await again.wait_for(1)
        assert again.bodies == [b"z"]
        assert cluster.broker.offsets == {}
        assert not cluster.broker.asked.count(COMMIT)
        assert RETRY not in str([beat.body for beat in cluster.broker.asked.of(RequestCode.HEART_BEAT)])


async def test_what_fails_while_broadcasting_is_dropped(tmp_path: Path) -> None:
    inbox = Inbox()
    inbox.failing = True
    async with fake_cluster(T=1) as cluster:
        options: dict[str, Any] = {"model": MessageModel.BROADCASTING, "offsets_file": tmp_path / "offsets.json"}
        async with consumer_of(cluster, inbox, **options):
            await cluster.broker.append("T", 0, b"x")
            await inbox.wait_for(1)
        assert not cluster.broker.asked.count(SEND_BACK)
        assert await LocalOffsets(tmp_path / "offsets.json").read(MessageQueue("T", "broker-a", 0)) == 1


def test_a_group_that_shares_keeps_no_offsets_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="offsets_file"):
        PushConsumer(GROUP, "127.0.0.1:9876", offsets_file=tmp_path / "offsets.json")


# --- while it runs


async def test_a_paused_consumer_pulls_no_more_until_it_goes_on() -> None:
    inbox = Inbox()
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox) as consumer:
        await cluster.broker.append("T", 0, b"x")
        await inbox.wait_for(1)
        await cluster.broker.asked.wait_for(PULL, 2)
        consumer.pause()
        pulls = cluster.broker.asked.count(PULL)
        await cluster.broker.append("T", 0, b"the pull that waits does not bring this")
        for _ in range(20):
            await turn()
        assert (cluster.broker.asked.count(PULL), inbox.bodies) == (pulls, [b"x"])
        consumer.resume()
        await inbox.wait_for(2)


async def test_a_decorated_function_is_a_handler() -> None:
    seen = asyncio.Event()
    async with fake_cluster(T=1) as cluster:
        consumer = PushConsumer(GROUP, config=quick(cluster.namesrv))

        @consumer.handles("T")
        async def handler(message: ReceivedMessage) -> None:
            seen.set()

        async with consumer, asyncio.timeout(PATIENCE_SECONDS):
            await cluster.broker.append("T", 0, b"x")
            await seen.wait()
        assert callable(handler)


async def test_offsets_set_back_bring_messages_again_and_drop_what_was_in_process() -> None:
    inbox = Inbox()
    queue = MessageQueue("T", "broker-a", 0)
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox) as consumer:
        for number in range(3):
            await cluster.broker.append("T", 0, b"%d" % number)
        await inbox.wait_for(3)
        await consumer.reset_offsets({queue: 1, MessageQueue("T", "elsewhere", 0): 7})
        await inbox.wait_for(5)
        assert inbox.bodies == [b"0", b"1", b"2", b"1", b"2"]
    assert cluster.broker.offsets[GROUP, "T", 0] == 3


async def test_a_filter_hook_decides_what_is_handled_and_the_rest_is_done() -> None:
    inbox = Inbox()

    def only_wanted(context: FilterContext) -> list[ReceivedMessage]:
        return [message for message in context.messages if message.body != b"no"]

    def broken(context: FilterContext) -> list[ReceivedMessage]:
        assert isinstance(context.messages, list)
        context.messages.clear()
        raise RuntimeError("a bad hook")

    async with fake_cluster(T=1) as cluster:
        async with consumer_of(cluster, inbox, filter_hooks=[only_wanted, broken]):
            for body in (b"yes", b"no", b"yes", b"no"):
                await cluster.broker.append("T", 0, body)
            await until(lambda: cluster.broker.offsets.get((GROUP, "T", 0)) == 4, turn)
        assert inbox.bodies == [b"yes", b"yes"]


async def test_a_new_expression_counts_at_once_not_after_the_pull_that_waits() -> None:
    clock, inbox = FakeClock(), Inbox()
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox, "old", clock=clock) as consumer:
        await cluster.broker.asked.wait_for(PULL)
        pulls = cluster.broker.asked.count(PULL)
        consumer.subscribe("T", "new", inbox, replace=True)
        await until(lambda: cluster.broker.asked.count(PULL) > pulls, lambda: _pass_a_second(clock))
        last = PullMessage.decode(cluster.broker.asked.of(PULL)[-1])
        (told,) = (HeartbeatData.decode(beat.body) for beat in cluster.broker.asked.of(RequestCode.HEART_BEAT)[-1:])
        (wanted,) = [each for each in told.consumers[0].subscriptions if each.topic == "T"]
        assert (wanted.expression, last.sub_version) == ("new", wanted.version)
        await cluster.broker.append("T", 0, b"x", "TAGS\x01new\x02")
        await inbox.wait_for(1)


async def test_a_hook_sees_what_is_asked_of_brokers_and_what_they_answer() -> None:
    asked: set[int] = set()
    answered: set[int] = set()

    class Watching:
        def before_request(self, address: str, command: Command) -> None:
            asked.add(command.code)

        def after_response(self, address: str, command: Command, reply: Command) -> None:
            answered.add(command.code)

    inbox = Inbox()
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox, rpc_hooks=[Watching()]):
        await cluster.broker.append("T", 0, b"x")
        await inbox.wait_for(1)
    assert {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.HEART_BEAT, PULL} <= asked & answered


async def test_two_consumers_of_a_group_cannot_share_a_client_id() -> None:
    async with fake_cluster(T=1) as cluster:
        config = dataclasses.replace(quick(cluster.namesrv), instance_name="same")
        first, second, other = (PushConsumer(group, config=config) for group in (GROUP, GROUP, "other"))
        for consumer in (first, second, other):
            consumer.subscribe("T", "*", print)
        async with first:
            with pytest.raises(ClientError, match="instance_name"):
                await second.start()
            async with other:
                pass


async def test_names_are_wrapped_in_the_namespace_and_come_back_bare() -> None:
    inbox = Inbox()
    inbox.failing = True
    async with fake_cluster(**{"N%T": 1}) as cluster:
        cluster.broker.answers[SEND_BACK] = lambda command: command.reply()
        config = dataclasses.replace(quick(cluster.namesrv), namespace="N")
        consumer = PushConsumer(GROUP, config=config)
        consumer.subscribe("T", "*", inbox)
        async with consumer:
            assert consumer.assigned_queues == [MessageQueue("T", "broker-a", 0)]
            await cluster.broker.append("N%T", 0, b"x")
            (message,) = await inbox.wait_for(1)
            (sent_back,) = await cluster.broker.asked.wait_for(SEND_BACK)
        assert (message.topic, message.queue) == ("T", MessageQueue("T", "broker-a", 0))
        assert (SendBack.decode(sent_back).group, SendBack.decode(sent_back).origin_topic) == ("N%g", "N%T")
        assert cluster.broker.offsets["N%g", "N%T", 0] == 1


async def test_hooks_and_statistics_know_the_queues_of_a_namespace() -> None:
    inbox, wrapped, bare = Inbox(), MessageQueue("N%T", "broker-a", 0), MessageQueue("T", "broker-a", 0)
    seen: list[MessageQueue] = []

    class Hook(ConsumeHook):
        def before_consume(self, context: ConsumeContext) -> None:
            seen.append(context.queue)

    async with fake_cluster(**{"N%T": 1}) as cluster:
        config = dataclasses.replace(quick(cluster.namesrv), namespace="N")
        consumer = PushConsumer(GROUP, config=config, consume_hooks=[Hook()])
        consumer.subscribe("T", "*", inbox)
        async with consumer:
            before_ms = consumer.running_info().queues[wrapped].last_consume_timestamp
            await asyncio.sleep(0.002)
            await cluster.broker.append("N%T", 0, b"x")
            await inbox.wait_for(1)
            await asyncio.sleep(0)
            assert seen == [bare]
            assert consumer.statistics("T").consume_ok_tps > 0
            assert consumer.running_info().queues[wrapped].last_consume_timestamp > before_ms


async def test_in_order_a_queue_of_a_namespace_is_kept_until_its_handler_has_ended() -> None:
    began, gate, wrapped = asyncio.Event(), asyncio.Event(), MessageQueue("N%T", "broker-a", 0)
    seen: list[ReceivedMessage] = []

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message)
        began.set()
        await gate.wait()

    async with fake_cluster(**{"N%T": 1}) as cluster:
        config = dataclasses.replace(quick(cluster.namesrv), namespace="N")
        consumer = PushConsumer(GROUP, config=config, orderly=True)
        consumer.subscribe("T", "*", handler)
        async with asyncio.timeout(PATIENCE_SECONDS), consumer:
            await cluster.broker.append("N%T", 0, b"0")
            await cluster.broker.append("N%T", 0, b"1")
            await began.wait()
            assert not await consumer._queues.release([wrapped]), "its handler runs"
            assert wrapped in cluster.broker.locks
            gate.set()
            await cluster.broker.asked.wait_for(RequestCode.UNLOCK_BATCH_MQ)
        assert [(message.body, message.topic, message.queue.topic) for message in seen] == [(b"0", "T", "T")]
        assert cluster.broker.offsets["N%g", "N%T", 0] == 1


async def test_the_limit_of_a_topic_is_shared_by_its_queues() -> None:
    gate = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        await gate.wait()

    async with fake_cluster(T=2) as cluster:
        for number in range(400):
            await cluster.broker.append("T", number % 2, b"x")
        limits = CacheLimits(max_messages_of_topic=100)
        async with consumer_of(cluster, handler, consume_from=ConsumeFrom.FIRST_OFFSET, limits=limits):
            await cluster.broker.asked.wait_for(PULL, 4)  # two of 32 pass the share of 50 of each queue
            for _ in range(20):
                await turn()
            assert cluster.broker.asked.count(PULL) == 4
            gate.set()
            await cluster.broker.asked.wait_for(PULL, 14)


# --- the answers of a pull


async def test_an_offset_the_broker_no_longer_has_is_moved_and_stored() -> None:
    inbox = Inbox()
    async with fake_cluster(T=1) as cluster:
        cluster.broker.offsets[GROUP, "T", 0] = 700
        moved = _pull_answer(cluster.broker, ResponseCode.PULL_OFFSET_MOVED, next_offset=0)
        cluster.broker.answers[PULL] = moved
        async with consumer_of(cluster, inbox):
            await cluster.broker.append("T", 0, b"x")
            await inbox.wait_for(1)
            first_commit = UpdateConsumerOffset.decode(_commits(cluster)[0])
        assert first_commit.commit_offset == 0
        assert cluster.broker.offsets[GROUP, "T", 0] == 1


@pytest.mark.parametrize("code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY])
async def test_nothing_found_goes_on_at_the_next_offset(code: ResponseCode) -> None:
    async with fake_cluster(T=1) as cluster:
        cluster.broker.offsets[GROUP, "T", 0] = 3
        cluster.broker.answers[PULL] = _pull_answer(cluster.broker, code, next_offset=40)
        async with consumer_of(cluster, Inbox()):
            pulls = [PullMessage.decode(pull) for pull in await cluster.broker.asked.wait_for(PULL, 2)]
        assert (pulls[1].queue_offset, pulls[1].commit_offset) == (40, 40)


@pytest.mark.parametrize("code", [ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST])
async def test_a_broker_that_does_not_know_us_is_told_again(code: ResponseCode) -> None:
    clock, inbox = FakeClock(), Inbox()
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[PULL] = _once(cluster.broker, lambda command: command.reply(code))
        async with consumer_of(cluster, inbox, clock=clock):
            await cluster.broker.asked.wait_for(PULL)
            beats = cluster.broker.asked.count(RequestCode.HEART_BEAT)
            await until(
                lambda: cluster.broker.asked.count(RequestCode.HEART_BEAT) > beats, lambda: _pass_a_second(clock)
            )
            await cluster.broker.append("T", 0, b"x")
            await until(lambda: bool(inbox.messages), lambda: _pass_a_second(clock))


async def test_a_damaged_answer_is_asked_for_again() -> None:
    clock, inbox = FakeClock(), Inbox()
    async with fake_cluster(T=1) as cluster:
        reply = PullReply(0, 1, 0, 1)
        cluster.broker.answers[PULL] = _once(
            cluster.broker, lambda command: command.reply(header=reply, body=b"not a record")
        )
        async with consumer_of(cluster, inbox, clock=clock):
            await cluster.broker.append("T", 0, b"x")
            await until(lambda: bool(inbox.messages), lambda: _pass_a_second(clock))
            assert inbox.bodies == [b"x"]


async def test_a_full_queue_is_not_pulled_until_handlers_catch_up() -> None:
    gate, inbox = asyncio.Event(), Inbox()

    async def handler(message: ReceivedMessage) -> None:
        await gate.wait()
        await inbox(message)

    async with fake_cluster(T=1) as cluster:
        for _ in range(1_200):
            await cluster.broker.append("T", 0, b"x")
        async with consumer_of(cluster, handler, consume_from=ConsumeFrom.FIRST_OFFSET):
            await cluster.broker.asked.wait_for(PULL, 32)  # 32 pulls of 32 pass the limit of 1000
            for _ in range(20):
                await turn()
            assert cluster.broker.asked.count(PULL) == 32
            gate.set()
            await inbox.wait_for(1_200)


async def test_a_lost_connection_loses_and_repeats_nothing() -> None:
    inbox, clock = Inbox(), FakeClock()
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox, clock=clock):
        await cluster.broker.append("T", 0, b"before")
        await inbox.wait_for(1)
        for connection in list(cluster.broker.connections):
            connection.abort()
        await cluster.broker.append("T", 0, b"after")
        await until(lambda: len(inbox.messages) >= 2, lambda: _pass_a_second(clock))
        assert inbox.bodies == [b"before", b"after"]


# --- sharing


async def test_members_share_the_queues_and_take_over_when_one_leaves() -> None:
    first_inbox, second_inbox, clock = Inbox(), Inbox(), FakeClock()
    async with fake_cluster(T=4) as cluster, consumer_of(cluster, first_inbox, clock=clock) as first:
        assert len(first.assigned_queues) == 4
        async with consumer_of(cluster, second_inbox, clock=clock) as second:
            cluster.broker.notify_members(GROUP)
            await until(lambda: len(first.assigned_queues) == 2, lambda: _pass_a_second(clock))
            assert sorted(first.assigned_queues + second.assigned_queues) == [
                MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)
            ]
            for queue_id in range(4):
                await cluster.broker.append("T", queue_id, b"%d" % queue_id)
            await first_inbox.wait_for(2)
            await second_inbox.wait_for(2)
        cluster.broker.notify_members(GROUP)
        await until(lambda: len(first.assigned_queues) == 4, lambda: _pass_a_second(clock))
        assert sorted(first_inbox.bodies + second_inbox.bodies) == [b"0", b"1", b"2", b"3"]


async def test_a_released_queue_is_committed_for_its_next_owner() -> None:
    inbox, clock = Inbox(), FakeClock()
    async with fake_cluster(T=2) as cluster, consumer_of(cluster, inbox, clock=clock) as consumer:
        await cluster.broker.append("T", 1, b"x")
        await inbox.wait_for(1)
        cluster.broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = _members("0-before-me", consumer.client_id)
        cluster.broker.notify_members(GROUP)
        await until(lambda: len(consumer.assigned_queues) == 1, lambda: _pass_a_second(clock))
        cluster.broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = _members(consumer.client_id, "~after-me")
        cluster.broker.notify_members(GROUP)
        first_only = [MessageQueue("T", "broker-a", 0)]
        await until(lambda: consumer.assigned_queues == first_only, lambda: _pass_a_second(clock))
        assert cluster.broker.offsets[GROUP, "T", 1] == 1


async def test_a_change_of_members_has_the_routes_looked_at_again() -> None:
    clock = FakeClock()
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, Inbox(), clock=clock) as consumer:
        cluster.topics["T"] = 2
        began_ms = clock.now_ms()
        cluster.broker.notify_members(GROUP)
        await until(lambda: len(consumer.assigned_queues) == 2, lambda: _pass_a_second(clock))
        assert clock.now_ms() - began_ms < 20_000  # not the regular poll


async def test_without_an_answer_who_the_members_are_the_queues_stay() -> None:
    clock = FakeClock()
    async with fake_cluster(T=2) as cluster, consumer_of(cluster, Inbox(), clock=clock) as consumer:
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        cluster.broker.answers[code] = _refusing(ResponseCode.SYSTEM_ERROR)
        asked = cluster.broker.asked.count(code)
        await until(lambda: cluster.broker.asked.count(code) > asked + 1, lambda: _pass_a_second(clock))
        assert len(consumer.assigned_queues) == 2


async def test_a_change_of_queues_is_announced_with_a_newer_version_before_it_is_used() -> None:
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, Inbox()):
        (pull, *_) = await cluster.broker.asked.wait_for(PULL)
        beats = cluster.broker.asked.of(RequestCode.HEART_BEAT)  # the start ends with the announcement
        assert _versions(beats[0])["T"] < _versions(beats[-1])["T"]
        assert PullMessage.decode(pull).sub_version == _versions(beats[0])["T"]


async def test_a_topic_that_appears_later_is_consumed(caplog: pytest.LogCaptureFixture) -> None:
    inbox, clock = Inbox(), FakeClock()
    async with fake_cluster() as cluster, consumer_of(cluster, inbox, clock=clock) as consumer:
        assert consumer.assigned_queues == []
        cluster.topics["T"] = 1
        await until(lambda: bool(consumer.assigned_queues), lambda: _pass_a_second(clock))
        await cluster.broker.append("T", 0, b"x")
        await inbox.wait_for(1)
    assert caplog.messages.count("topic does not exist, waiting for it: group=g topic=T") == 1


async def test_topics_come_and_go_while_it_runs() -> None:
    first, second, clock = Inbox(), Inbox(), FakeClock()
    async with fake_cluster(T=1, U=1) as cluster, consumer_of(cluster, first, clock=clock) as consumer:
        consumer.subscribe("U", "*", second)
        await until(lambda: len(consumer.assigned_queues) == 2, lambda: _pass_a_second(clock))
        await cluster.broker.append("U", 0, b"u")
        await second.wait_for(1)
        consumer.unsubscribe("T")
        await until(lambda: len(consumer.assigned_queues) == 1, lambda: _pass_a_second(clock))
        (subscribed,) = HeartbeatData.decode(cluster.broker.asked.of(RequestCode.HEART_BEAT)[-1].body).consumers
        assert {one.topic for one in subscribed.subscriptions} == {"U", RETRY}


async def test_a_topic_left_and_subscribed_to_again_is_read_by_the_new_expression() -> None:
    first, second, clock = Inbox(), Inbox(), FakeClock()
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, first, "a", clock=clock) as consumer:
        await cluster.broker.append("T", 0, b"x", "TAGS\x01a\x02")
        await first.wait_for(1)
        await cluster.broker.asked.wait_for(PULL, 2)
        before = cluster.broker.asked.count(PULL)
        consumer.unsubscribe("T")
        consumer.subscribe("T", "b", second)
        await until(lambda: cluster.broker.asked.count(PULL) > before, lambda: _pass_a_second(clock))
        await cluster.broker.append("T", 0, b"y", "TAGS\x01b\x02")
        await second.wait_for(1)
        assert (first.bodies, second.bodies) == ([b"x"], [b"y"])


async def test_what_comes_after_a_topic_was_left_is_neither_handled_nor_sent_back_nor_committed() -> None:
    inbox, clock = Inbox(), FakeClock()
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[SEND_BACK] = lambda command: command.reply()
        async with consumer_of(cluster, inbox, clock=clock) as consumer:
            await cluster.broker.append("T", 0, b"x")
            await inbox.wait_for(1)
            consumer.unsubscribe("T")
            await cluster.broker.append("T", 0, b"y")
            await cluster.broker.asked.wait_for(PULL, 3)
            await until(lambda: not consumer.assigned_queues, lambda: _pass_a_second(clock))
        assert inbox.bodies == [b"x"]
        assert cluster.broker.asked.count(SEND_BACK) == 0
        assert cluster.broker.offsets[GROUP, "T", 0] == 1


@pytest.mark.parametrize("answer", [None, 5, RuntimeError("told to fail")])
async def test_a_strategy_that_fails_is_asked_again(answer: Any) -> None:
    inbox, clock, answers = Inbox(), FakeClock(), [answer]

    def strategy(queues: Any, client_ids: Any, me: str) -> Any:
        if not answers:
            return list(queues)
        failure = answers.pop()
        if isinstance(failure, Exception):
            raise failure
        return failure

    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox, clock=clock, strategy=strategy) as consumer:
        await until(lambda: bool(consumer.assigned_queues), lambda: _pass_a_second(clock))


# --- life


async def test_brokers_hear_all_about_it_and_of_its_end() -> None:
    async with fake_cluster(T=1) as cluster:
        async with consumer_of(cluster, Inbox(), "a || b", consume_from=ConsumeFrom.FIRST_OFFSET) as consumer:
            (consumed,) = HeartbeatData.decode(cluster.broker.asked.of(RequestCode.HEART_BEAT)[0].body).consumers
        (bye,) = cluster.broker.asked.of(RequestCode.UNREGISTER_CLIENT)
        assert UnregisterClient.decode(bye) == UnregisterClient(consumer.client_id, None, GROUP)
    assert (consumed.group, consumed.consume_type, consumed.message_model, consumed.consume_from) == (
        GROUP,
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_FIRST_OFFSET",
    )
    assert {one.topic: one.expression for one in consumed.subscriptions} == {"T": "a || b", RETRY: "*"}


async def test_a_stop_waits_for_running_handlers_and_commits_them_only() -> None:
    gate, started = asyncio.Event(), asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        started.set()
        await gate.wait()

    async with fake_cluster(T=1) as cluster:
        for _ in range(5):
            await cluster.broker.append("T", 0, b"x")
        consumer = consumer_of(cluster, handler, consume_from=ConsumeFrom.FIRST_OFFSET, max_in_flight=2)
        await consumer.start()
        await started.wait()
        stopping = asyncio.create_task(consumer.stop())
        for _ in range(20):
            await turn()
        assert not stopping.done()
        gate.set()
        await stopping
        assert cluster.broker.offsets[GROUP, "T", 0] == 2


async def test_a_stop_does_not_wait_for_ever() -> None:
    started = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        started.set()
        await asyncio.Event().wait()

    async with fake_cluster(T=1) as cluster:
        async with consumer_of(cluster, handler, stop_timeout_ms=1):
            await cluster.broker.append("T", 0, b"x")
            await started.wait()
        assert cluster.broker.offsets.get((GROUP, "T", 0), 0) == 0


async def test_handlers_that_all_stop_their_consumer_do_not_wait_for_each_other() -> None:
    both, ended = asyncio.Barrier(2), list[bytes]()

    async def handler(message: ReceivedMessage) -> None:
        await both.wait()
        await consumer.stop()
        ended.append(message.body)

    async with fake_cluster(T=1) as cluster:
        consumer = consumer_of(cluster, handler, stop_timeout_ms=600_000)
        async with asyncio.timeout(PATIENCE_SECONDS), consumer:
            await cluster.broker.append("T", 0, b"x")
            await cluster.broker.append("T", 0, b"y")
            await until(lambda: len(ended) == 2, turn)


async def test_a_stop_within_a_function_does_not_wait_for_it() -> None:
    stopped = threading.Event()

    def use(namesrv: str) -> None:
        def handler(message: ReceivedMessage) -> None:
            consumer.stop()
            stopped.set()

        consumer = blocking.PushConsumer(GROUP, namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, stop_timeout_ms=600_000)
        consumer.subscribe("T", "*", handler)
        with consumer:
            assert stopped.wait(PATIENCE_SECONDS)

    async with fake_cluster(T=1) as cluster:
        await cluster.broker.append("T", 0, b"x")
        await in_thread(use, cluster.namesrv)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_stop_within_a_handler_does_not_wait_for_it(orderly: bool) -> None:
    stopped = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        await consumer.stop()
        stopped.set()

    async with fake_cluster(T=1) as cluster:
        consumer = consumer_of(cluster, handler, stop_timeout_ms=600_000, orderly=orderly)
        async with asyncio.timeout(PATIENCE_SECONDS), consumer:
            await cluster.broker.append("T", 0, b"x")
            await stopped.wait()
        assert cluster.broker.offsets.get((GROUP, "T", 0), 0) == 0
        assert (MessageQueue("T", "broker-a", 0) in cluster.broker.locks) == orderly


async def test_it_starts_without_brokers_and_finds_them_later() -> None:
    inbox, clock = Inbox(), FakeClock()
    async with fake_cluster(T=1) as cluster:
        broker, cluster.brokers = cluster.broker, []
        async with consumer_of(cluster, inbox, clock=clock) as consumer:
            assert consumer.assigned_queues == []
            cluster.brokers = [broker]
            await until(lambda: bool(consumer.assigned_queues), lambda: _pass(clock, 30_000))
            await broker.append("T", 0, b"x")
            await inbox.wait_for(1)


def test_a_subscription_that_cannot_work_is_refused_at_once() -> None:
    consumer = PushConsumer(GROUP, "127.0.0.1:9876")
    with pytest.raises(InvalidParameter, match="topic"):
        consumer.subscribe("bad topic", "*", print)
    with pytest.raises(SubscriptionParseFailed):
        consumer.subscribe("T", "||", print)
    with pytest.raises(ClientError, match="original topic"):
        consumer.subscribe(RETRY, "*", print)
    with pytest.raises(TypeError, match="the handler is None"):
        consumer.subscribe("T", "*", None)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="the expression for T is None"):
        consumer.subscribe("T", None, print)  # type: ignore[call-overload]
    consumer.unsubscribe("T")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_in_flight", 0),
        ("max_threads", 0),
        ("pull_batch", 0),
        ("pull_interval_ms", -1),
        ("max_reconsume_times", -1),
        ("auto_commit", False),
        ("consume_from", "somewhere"),
        ("model", "EVERYBODY"),
        ("strategy", "averagely"),
    ],
)
def test_settings_that_cannot_work_are_refused(option: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=str(value) if isinstance(value, str) else option):
        PushConsumer(GROUP, "127.0.0.1:9876", **{option: value})


async def test_models_and_starts_may_be_said_in_rocketmqs_words() -> None:
    model: Any = "BROADCASTING"
    async with fake_cluster(T=1) as cluster:
        async with consumer_of(cluster, Inbox(), model=model):
            await cluster.broker.asked.wait_for(PULL)
        assert cluster.broker.asked.count(RequestCode.QUERY_CONSUMER_OFFSET) == 0


# --- small tools


def _refusing(code: int) -> Callable[[Command], Command]:
    return lambda command: command.reply(code, remark="no")


def _once(broker: FakeBroker, answer: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def once(command: Command) -> Command:
        del broker.answers[command.code]
        return answer(command)

    return once


def _pull_answer(broker: FakeBroker, code: int, next_offset: int) -> Callable[[Command], Command]:
    """The first pull is answered so, later ones properly."""
    return _once(broker, lambda command: command.reply(code, header=PullReply(0, next_offset, 0, next_offset)))


def _members(*client_ids: str) -> Callable[[Command], Command]:
    return lambda command: command.reply(body=ConsumerIds(client_ids).encode())


def _first_offsets(cluster: FakeCluster) -> dict[str, int]:
    """Topic → where its first pull began that waits for messages; others only look at some."""
    pulls = reversed([PullMessage.decode(pull) for pull in cluster.broker.asked.of(PULL)])
    return {pull.topic: pull.queue_offset for pull in pulls if pull.sys_flag & PullFlag.SUSPEND}


def _commits(cluster: FakeCluster) -> list[Command]:
    return cluster.broker.asked.of(COMMIT)


def _versions(beat: Command) -> dict[str, int]:
    (consumed,) = HeartbeatData.decode(beat.body).consumers
    return {one.topic: one.version for one in consumed.subscriptions}


async def _pass(clock: FakeClock, ms: int) -> None:
    await clock.advance(ms)
    await turn()


async def _pass_a_second(clock: FakeClock) -> None:
    await _pass(clock, 1_000)

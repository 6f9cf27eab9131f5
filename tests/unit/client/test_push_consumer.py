"""Consuming, against a broker that remembers what it was asked and answers as told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cosmodrome.client.handlers import LOCAL_RETRY_MS
from cosmodrome.client.push_consumer import PushConsumer
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import ClientError, InvalidParameter, SubscriptionParseFailed
from cosmodrome.model import ConsumeFrom, MessageQueue, ReceivedMessage
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
    UnregisterClient,
    UpdateConsumerOffset,
)
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


def consumer_of(cluster: FakeCluster, handler: Any, expression: str = "*", **options: Any) -> PushConsumer:
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


async def test_offsets_are_committed_while_it_runs_oneway_and_with_the_next_pull() -> None:
    inbox = Inbox()
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox):
        await cluster.broker.append("T", 0, b"x")
        (command,) = await cluster.broker.asked.wait_for(COMMIT)
        assert command.is_oneway
        assert UpdateConsumerOffset.decode(command) == UpdateConsumerOffset(GROUP, "T", 0, 1)
        await cluster.broker.append("T", 0, b"y")
        await inbox.wait_for(2)
        pulls = [PullMessage.decode(pull) for pull in await cluster.broker.asked.wait_for(PULL, 3)]
        assert pulls[0].sys_flag == PullFlag.SUSPEND
        assert (pulls[2].sys_flag, pulls[2].commit_offset) == (PullFlag.SUSPEND | PullFlag.COMMIT_OFFSET, 1)


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
    [(ConsumeFrom.LAST_OFFSET, 3), (ConsumeFrom.FIRST_OFFSET, 0), (ConsumeFrom.TIMESTAMP, 2)],
)
async def test_a_new_group_begins_where_it_was_told(consume_from: ConsumeFrom, expected: int) -> None:
    async with fake_cluster(T=1, **{RETRY: 1}) as cluster:
        for offset in range(3):
            await cluster.broker.append("T", 0, b"x")
            await cluster.broker.append(RETRY, 0, b"x")
            cluster.broker.queues["T", 0][offset].store_timestamp = offset
        async with consumer_of(cluster, Inbox(), consume_from=consume_from, consume_timestamp_ms=2):
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
        assert first == SendBack(0, GROUP, 0, origin_msg_id="U", origin_topic="T", max_reconsume_times=limit)
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


async def test_a_topic_that_appears_later_is_consumed() -> None:
    inbox, clock = Inbox(), FakeClock()
    async with fake_cluster() as cluster, consumer_of(cluster, inbox, clock=clock) as consumer:
        assert consumer.assigned_queues == []
        cluster.topics["T"] = 1
        await until(lambda: bool(consumer.assigned_queues), lambda: _pass_a_second(clock))
        await cluster.broker.append("T", 0, b"x")
        await inbox.wait_for(1)


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
    with pytest.raises(ValueError, match="max_in_flight"):
        PushConsumer(GROUP, "127.0.0.1:9876", max_in_flight=0)


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
    """Topic → where its first pull began."""
    pulls = reversed([PullMessage.decode(pull) for pull in cluster.broker.asked.of(PULL)])
    return {pull.topic: pull.queue_offset for pull in pulls}


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

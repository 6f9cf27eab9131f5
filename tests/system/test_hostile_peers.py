"""Peers that ask for more than anyone needs: each is refused beyond a bound, and served in small steps below it.

How quick a healthy client is meanwhile, `tests/torture/test_hostile_peers.py` measures. Here the work of one turn of
the loop is counted, which no load of the machine changes.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cosmodrome import state_file
from cosmodrome.broker import assignments
from cosmodrome.broker.broker import LEAVING_STEP, Broker
from cosmodrome.broker.long_polls import TAKEN_STEP
from cosmodrome.broker.processors import ack, assignment, consumers, heartbeat, pop, topics
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.filter.sql92 import parser
from cosmodrome.model import MessageQueue, Subscription, TopicConfig
from cosmodrome.net.caller import Caller
from cosmodrome.store import index_file
from cosmodrome.store.consume_queue import ConsumeQueue
from cosmodrome.store.consume_queues import DELETED_STEP
from cosmodrome.store.dispatcher import KEYS_STEP, Dispatcher
from cosmodrome.wire import fastjson
from cosmodrome.wire.batch import encode_batch
from cosmodrome.wire.bodies import (
    Assignment,
    BatchAck,
    BatchAckBody,
    CheckClientConfig,
    ConsumerData,
    ConsumeStats,
    HeartbeatData,
    LockBatch,
    decode_locked,
)
from cosmodrome.wire.command import Command
from cosmodrome.wire.pop import marked_topic
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import (
    ConsumeStatsRequest,
    Notification,
    PeekMessage,
    PopMessage,
    PullFlag,
    PullMessage,
    QueryMessage,
    ResetOffset,
    SendMessage,
    TopicHeader,
    UpdateConsumerOffset,
)
from tests.system.cluster import SMALL_STORE, running_broker
from tests.system.daemons import up
from tests.system.healthy import ALL_AT_ONCE, live_through
from tests.system.test_abuse import all_open_files
from tests.turns import Turns

TIMEOUT_MS = 60_000
PATIENCE_SECONDS = 120
SQL = "SQL92"


@asynccontextmanager
async def broker_and_caller(folder: Path, **settings: Any) -> AsyncIterator[tuple[Broker, Caller]]:
    config = replace(BrokerConfig(broker_name="broker-a"), **settings)
    caller = Caller()
    async with running_broker(folder, "", config, SMALL_STORE) as broker:
        try:
            yield broker, caller
        finally:
            await caller.close()


def beat(
    *, producers: int = 0, consumers: int = 0, topics: int = 1, kind: str = "TAG", expression: str = "*"
) -> Command:
    """Return a heartbeat of a client with so many groups, whose consumers subscribe to so many topics each."""
    data = HeartbeatData(
        "client",
        tuple(f"p{number}" for number in range(producers)),
        tuple(
            ConsumerData(
                f"c{number}",
                subscriptions=tuple(
                    Subscription(f"t{topic}", expression + " " * topic, expression_type=kind) for topic in range(topics)
                ),
            )
            for number in range(consumers)
        ),
    )
    return Command.request(RequestCode.HEART_BEAT, body=data.encode())


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# --- heartbeats


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        (beat(producers=101), "maxGroupsPerConnection allows 100"),
        (beat(consumers=101), "maxGroupsPerConnection allows 100"),
        (beat(consumers=1, topics=51), "maxSubscriptionsPerGroup allows 50"),
        (beat(producers=3_000), "maxRequestBodyValues allows 5000"),
        (beat(consumers=1, topics=1, expression="x" * 70_000), "maxRequestBodySize allows 65536"),
    ],
)
async def test_a_heartbeat_beyond_a_bound_is_refused_and_leaves_nothing(
    tmp_path: Path, asked: Command, refusal: str
) -> None:
    bounds = {
        "max_groups_per_connection": 100,
        "max_subscriptions_per_group": 50,
        "max_request_body_size": 65_536,
        "max_request_body_values": 5_000,
    }
    async with broker_and_caller(tmp_path, **bounds) as (broker, caller):
        reply = await caller.call(broker.address, asked, TIMEOUT_MS)
        assert (reply.code, refusal in (reply.remark or "")) == (ResponseCode.INVALID_PARAMETER, True), reply.remark
        assert len(broker.clients) == 0
        fine = await caller.call(broker.address, beat(producers=50, consumers=50, topics=1), TIMEOUT_MS)
        assert fine.code == ResponseCode.SUCCESS, fine.remark
        assert len(broker.clients) == 100


async def test_many_small_heartbeats_come_no_further_than_a_large_one(tmp_path: Path) -> None:
    async with broker_and_caller(tmp_path, max_groups_per_connection=10) as (broker, caller):
        codes = []
        for number in range(20):
            data = HeartbeatData("client", (f"p{number}",))
            asked = Command.request(RequestCode.HEART_BEAT, body=data.encode())
            codes.append((await caller.call(broker.address, asked, TIMEOUT_MS)).code)
        assert codes == [ResponseCode.SUCCESS] * 10 + [ResponseCode.INVALID_PARAMETER] * 10
        assert len(broker.clients) == 10


async def test_a_client_with_many_groups_comes_and_goes_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_and_caller(tmp_path) as (broker, caller):
        with Turns() as coming:
            monkeypatch.setattr(broker.clients, "register_consumer", coming.counting(broker.clients.register_consumer))
            reply = await caller.call(broker.address, beat(consumers=1_000), TIMEOUT_MS)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        assert coming.total == 1_000
        assert coming.most <= heartbeat.STEP
        with Turns() as going:
            monkeypatch.setattr(broker, "member_left", going.counting(broker.member_left))
            await caller.close()
            await until(lambda: going.total == 1_000)
        assert going.most <= LEAVING_STEP
        assert len(broker.clients) == 0


async def test_of_connections_with_many_groups_that_are_lost_at_once_one_leaves_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_and_caller(tmp_path) as (broker, _caller):
        lost = [Caller() for _ in range(20)]
        for one in lost:
            await one.call(broker.address, beat(producers=LEAVING_STEP + 1), TIMEOUT_MS)
        with Turns() as turns:
            monkeypatch.setattr(broker.clients, "drop", turns.counting(broker.clients.drop))
            for connection in list(broker._servers[0].connections):
                connection.abort()
            await until(lambda: len(broker.clients) == 0)
        assert (turns.total, turns.most) == (20, 1)
        await asyncio.gather(*(one.close() for one in lost))


async def test_the_filters_of_one_consumer_are_compiled_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_and_caller(tmp_path) as (broker, caller):
        assert broker.filters is not None
        with Turns() as turns:
            monkeypatch.setattr(broker.filters, "_register", turns.counting(broker.filters._register))
            asked = beat(consumers=1, topics=500, kind=SQL, expression="a > 5")
            reply = await caller.call(broker.address, asked, TIMEOUT_MS)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        assert turns.total == len(broker.filters) == 500
        assert turns.most <= heartbeat.STEP


async def test_filters_have_a_limit_and_those_of_groups_that_left_make_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_and_caller(tmp_path, max_filter_characters=20_000) as (broker, caller):
        assert broker.filters is not None
        await caller.call(broker.address, beat(consumers=1, topics=1_000, kind=SQL, expression="a > 5"), TIMEOUT_MS)
        assert 0 < len(broker.filters) < 200
        assert "maxFilterCharacters allows 20000" in caplog.text
        full = len(broker.filters)
        await caller.close()
        await until(lambda: len(broker.clients) == 0)
        other = Caller()
        fresh = ConsumerData("other", subscriptions=(Subscription("t", "b = 'new'", expression_type=SQL),))
        asked = Command.request(RequestCode.HEART_BEAT, body=HeartbeatData("o", consumers=(fresh,)).encode())
        await other.call(broker.address, asked, TIMEOUT_MS)
        assert broker.filters.filter("t", "other", 0).matches_raw("b\x01new\x02")
        assert len(broker.filters) < full
        await other.close()


# --- what comes into being by itself


def commit(group: str, queue_id: int = 0) -> Command:
    return Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(group, "t", queue_id, 7))


def send_to(topic: str) -> Command:
    header = SendMessage("p", topic, "TBW102", 4, 0, 0, 0, 0)
    return Command.request(RequestCode.SEND_MESSAGE, header, b"hello")


def lock(count: int, client: str = "c") -> Command:
    queues = tuple(MessageQueue("t", "broker-a", number) for number in range(count))
    return Command.request(RequestCode.LOCK_BATCH_MQ, body=LockBatch("g", client, queues).encode())


async def first_refusal(caller: Caller, address: str, asked: Iterable[Command]) -> tuple[int, str]:
    """Return how many requests were served before the first that was refused, and the words of the refusal."""
    for number, command in enumerate(asked):
        reply = await caller.call(address, command, TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            return number, f"{reply.code} {reply.remark}"
    raise AssertionError("nothing was refused")


async def test_what_comes_by_itself_has_limits_with_words(tmp_path: Path) -> None:
    bounds = {"max_topics": 40, "max_subscription_groups": 30, "max_consumer_offsets": 50, "max_queue_locks": 60}
    async with broker_and_caller(tmp_path, **bounds) as (broker, caller):
        broker.topics.put(TopicConfig("t", 100, 100))
        ask = partial(first_refusal, caller, broker.address)
        topics, groups = len(broker.topics), len(list(broker.groups))
        count, words = await ask(send_to(f"new{number}") for number in range(100))
        assert (count, len(broker.topics)) == (40 - topics, 40)
        assert (
            words
            == f"{ResponseCode.INVALID_PARAMETER} topic new{count} is not made: there are 40, and maxTopics allows 40"
        )
        assert (await caller.call(broker.address, send_to("new0"), TIMEOUT_MS)).code == ResponseCode.SUCCESS

        count, words = await ask(commit(f"g{number}") for number in range(100))
        assert count == 30 - groups
        assert words.endswith("there are 30, and maxSubscriptionGroups allows 30")

        count, words = await ask(commit("g0", queue_id) for queue_id in range(100))
        assert len(broker.offsets) == 50
        assert words.endswith("there are 50 offsets, and maxConsumerOffsets allows 50")
        assert (await caller.call(broker.address, commit("g0", 0), TIMEOUT_MS)).code == ResponseCode.SUCCESS

        count, words = await ask(lock(number * 10) for number in range(1, 100))
        assert count == 6
        assert words.endswith("maxQueueLocks allows 60")


async def test_making_topics_does_not_keep_sends_to_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the table is on its way to a slow disk, only those wait whose topic is not there yet."""
    gate = threading.Event()
    real = state_file.save

    def slow(path: Path, data: bytes) -> None:
        if path.name == "topics.json":
            assert gate.wait(PATIENCE_SECONDS)
        real(path, data)

    async with broker_and_caller(tmp_path) as (broker, caller):
        await caller.call(broker.address, send_to("there"), TIMEOUT_MS)
        monkeypatch.setattr(state_file, "save", slow)
        making = asyncio.create_task(caller.call(broker.address, send_to("new"), TIMEOUT_MS))
        await until(lambda: broker.topics.find_topic("new") is not None)
        try:
            for _ in range(10):
                assert (await caller.call(broker.address, send_to("there"), TIMEOUT_MS)).code == ResponseCode.SUCCESS
            again = asyncio.create_task(caller.call(broker.address, send_to("new"), TIMEOUT_MS))
            await caller.call(broker.address, send_to("there"), TIMEOUT_MS)
            assert not making.done()
            assert not again.done()
        finally:
            gate.set()
        assert {(await making).code, (await again).code} == {ResponseCode.SUCCESS}


async def test_a_topic_table_that_cannot_be_saved_costs_only_sends_to_its_new_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = state_file.save
    is_full = True

    def save(path: Path, data: bytes) -> None:
        if is_full and path.name == "topics.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    async with broker_and_caller(tmp_path) as (broker, caller):
        await caller.call(broker.address, send_to("there"), TIMEOUT_MS)
        monkeypatch.setattr(state_file, "save", save)
        for _ in range(2):
            refused = await caller.call(broker.address, send_to("new"), TIMEOUT_MS)
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "cannot save topics.json" in (refused.remark or "")
            assert (await caller.call(broker.address, send_to("there"), TIMEOUT_MS)).code == ResponseCode.SUCCESS
        is_full = False
        assert (await caller.call(broker.address, send_to("new"), TIMEOUT_MS)).code == ResponseCode.SUCCESS


async def test_large_tables_are_encoded_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    real = fastjson.dumps

    def noting(value: object, *, pretty: bool = False) -> bytes:
        if pretty:
            threads.add(threading.current_thread() is threading.main_thread())
        return real(value, pretty=pretty)

    async with broker_and_caller(tmp_path) as (broker, caller):
        monkeypatch.setattr(fastjson, "dumps", noting)
        await caller.call(broker.address, send_to("new"), TIMEOUT_MS)
        await caller.call(
            broker.address,
            Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("g", "new", 0, 1)),
            TIMEOUT_MS,
        )
        for table in broker._tables():
            table.changed()
            await table.saved()
    assert threads == {False}


async def test_many_queues_are_locked_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 5 * heartbeat.LOCKS_STEP
    async with broker_and_caller(tmp_path) as (broker, caller):
        with Turns() as turns:
            monkeypatch.setattr(broker.locks, "lock", turns.counting(broker.locks.lock))
            reply = await caller.call(broker.address, lock(count), TIMEOUT_MS)
        assert len(decode_locked(reply.body)) == count
        assert (turns.total, turns.most) == (5, 1)


# --- messages that cost more than their bytes


def send_with(properties: str, body: bytes = b"x", *, batch: bool = False) -> Command:
    header = SendMessage("p", "t", "TBW102", 4, 0, 0, 0, 0, properties, batch=batch)
    return Command.request(RequestCode.SEND_MESSAGE, header, body)


def with_keys(count: int) -> str:
    return "KEYS\x01" + " ".join(["k"] * count) + "\x02"


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (send_with(with_keys(1_001)), "a message with 1001 keys; maxKeysPerMessage allows 1000"),
        (
            send_with("", encode_batch([(0, b"", "")] * 4_501), batch=True),
            "a batch of more than 4500 messages, as maxMessagesPerBatch allows: send several",
        ),
        (
            send_with("", encode_batch([(0, b"", with_keys(1_000))] * 21), batch=True),
            "a batch with 21000 keys; 20 times maxKeysPerMessage allow 20000: send several",
        ),
        (
            send_with("", encode_batch([(0, b"", ""), (0, b"", with_keys(1_001))]), batch=True),
            "a message with 1001 keys; maxKeysPerMessage allows 1000",
        ),
    ],
)
async def test_a_message_of_too_many_keys_or_a_batch_of_too_many_messages_is_refused(
    tmp_path: Path, message: Command, refusal: str
) -> None:
    async with broker_and_caller(tmp_path) as (broker, caller):
        reply = await caller.call(broker.address, message, TIMEOUT_MS)
        assert (reply.code, reply.remark) == (ResponseCode.MESSAGE_ILLEGAL, refusal)
        many_words = "about\x01" + "and so on " * 1_000 + "\x02"
        full_batch = send_with("", encode_batch([(0, b"", "")] * 4_500), batch=True)
        for fine in (send_with(with_keys(1_000)), send_with(many_words), full_batch):
            assert (await caller.call(broker.address, fine, TIMEOUT_MS)).code == ResponseCode.SUCCESS


async def test_a_long_expression_is_compiled_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    real = parser.parse

    def noting(expression: str) -> object:
        threads.append(threading.current_thread() is threading.main_thread())
        return real(expression)

    async with broker_and_caller(tmp_path) as (broker, caller):
        broker.topics.put(TopicConfig("t", 4, 4))
        monkeypatch.setattr("cosmodrome.filter.sql92.parse", noting)
        for wrong, code in (("", ResponseCode.PULL_NOT_FOUND), (" AND", ResponseCode.SUBSCRIPTION_PARSE_FAILED)):
            expression = " OR ".join(f"long = 'word {number}'" for number in range(100)) + wrong
            flags = PullFlag.SUBSCRIPTION
            header = PullMessage("g", "t", 0, 0, 32, flags, 0, 0, subscription=expression, expression_type=SQL)
            reply = await caller.call(broker.address, Command.request(RequestCode.PULL_MESSAGE, header), TIMEOUT_MS)
            assert reply.code == code, reply.remark
        assert threads == [False, False]
        words = " OR ".join(f"checked = 'word {number}'" for number in range(100))
        checked = Subscription("t", words, expression_type=SQL)
        request = Command.request(RequestCode.CHECK_CLIENT_CONFIG, body=CheckClientConfig("c", "g", checked).encode())
        assert (await caller.call(broker.address, request, TIMEOUT_MS)).code == ResponseCode.SUCCESS
        assert threads == [False, False, False]
        header = PullMessage("g", "t", 0, 0, 32, flags, 0, 0, subscription="a||" * 20_000)
        reply = await caller.call(broker.address, Command.request(RequestCode.PULL_MESSAGE, header), TIMEOUT_MS)
        assert (reply.code, "60000 characters" in (reply.remark or "")) == (
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            True,
        )


# --- figures of many queues


def ask(code: RequestCode, topic: str = "wide", group: str = "g") -> Command:
    match code:
        case RequestCode.GET_CONSUME_STATS:
            return Command.request(code, ConsumeStatsRequest(group, topic))
        case RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
            return Command.request(code, ResetOffset(topic, group, -1, True))
    return Command.request(code, TopicHeader(topic))


@pytest.mark.parametrize(
    ("code", "name", "step"),
    [
        (RequestCode.GET_CONSUME_STATS, "max_offset", topics.QUEUES_STEP),
        (RequestCode.GET_TOPIC_STATS_INFO, "max_offset", topics.QUEUES_STEP),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, "max_offset", consumers.TARGETS_STEP),
    ],
)
async def test_figures_of_a_wide_topic_are_gathered_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: RequestCode, name: str, step: int
) -> None:
    async with broker_and_caller(tmp_path) as (broker, caller):
        broker.topics.put(TopicConfig("wide", 1_000, 1_000))
        broker.groups.group("g")
        with Turns() as turns:
            monkeypatch.setattr(broker.store, name, turns.counting(getattr(broker.store, name)))
            replies = await asyncio.gather(*(caller.call(broker.address, ask(code), TIMEOUT_MS) for _ in range(3)))
        assert {reply.code for reply in replies} == {ResponseCode.SUCCESS}, replies
        assert turns.total >= 3_000
        assert turns.most <= step + 10, "others ask the store, too"


async def test_a_key_of_many_messages_is_looked_for_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys meet in one slot of the index, as a peer can choose them."""
    slots = SMALL_STORE.max_hash_slot_num
    slot = index_file.key_hash("t", "absent") % slots
    meeting = (key for key in map(str, count()) if index_file.key_hash("t", key) % slots == slot)
    keys = list(islice(meeting, 200))
    monkeypatch.setattr(index_file, "WALK_STEP", 50)
    async with broker_and_caller(tmp_path) as (broker, caller):
        batch = encode_batch([(0, key.encode(), f"KEYS\x01{key} k\x02") for key in keys])
        await caller.call(broker.address, send_with("", batch, batch=True), TIMEOUT_MS)
        looks = QueryMessage("t", "absent", 32, 0, 2**62)
        with Turns() as turns, monkeypatch.context() as patches:
            entry = SimpleNamespace(unpack_from=turns.counting(index_file.ENTRY.unpack_from))
            patches.setattr(index_file, "ENTRY", entry)
            reply = await caller.call(broker.address, Command.request(RequestCode.QUERY_MESSAGE, looks), TIMEOUT_MS)
        assert reply.code == ResponseCode.QUERY_NOT_FOUND
        assert turns.total >= 200
        assert turns.most <= 50
        looks = QueryMessage("t", "k", 32, 0, 2**62)
        reply = await caller.call(broker.address, Command.request(RequestCode.QUERY_MESSAGE, looks), TIMEOUT_MS)
        assert [record.body.decode() for record in decode_records(reply.body)] == keys[-32:]
        broker.max_reply_bytes = 1_000
        reply = await caller.call(broker.address, Command.request(RequestCode.QUERY_MESSAGE, looks), TIMEOUT_MS)
        few = [record.body for record in decode_records(reply.body)]
        assert 0 < len(few) < 32
        assert few[-1].decode() == keys[-1]


@pytest.mark.parametrize("kind", [PopMessage, PeekMessage, Notification])
async def test_a_wide_topic_is_popped_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[PopMessage | PeekMessage | Notification]
) -> None:
    code, request = {
        PopMessage: (RequestCode.POP_MESSAGE, PopMessage("g", "wide", -1, 32, 60_000, 0)),
        PeekMessage: (RequestCode.PEEK_MESSAGE, PeekMessage("g", "wide", -1, 32)),
        Notification: (RequestCode.NOTIFICATION, Notification("g", "wide", -1, 0)),
    }[kind]
    async with broker_and_caller(tmp_path) as (broker, caller):
        broker.topics.put(TopicConfig("wide", 1_000, 1_000))
        with Turns() as turns:
            monkeypatch.setattr(broker.offsets, "find_offset", turns.counting(broker.offsets.find_offset))
            await caller.call(broker.address, Command.request(code, request), TIMEOUT_MS)
        assert turns.total >= 1_000
        assert turns.most <= 2 * pop.PLACES_STEP + 10, "each is looked for once or twice"
        waiting = asyncio.create_task(
            caller.call(
                broker.address,
                Command.request(RequestCode.POP_MESSAGE, PopMessage("g", "wide", -1, 32, 60_000, 30_000)),
                TIMEOUT_MS,
            )
        )
        await until(lambda: len(broker.pops.polls) == 1)
        header = SendMessage("p", "wide", "TBW102", 4, 777, 0, 0, 0)
        await caller.call(broker.address, Command.request(RequestCode.SEND_MESSAGE, header, b"x"), TIMEOUT_MS)
        assert (await waiting).code == ResponseCode.SUCCESS


def assignment_of(topic: str, group: str = "c0", **more: str) -> Command:
    query = {"topic": topic, "consumerGroup": group, "clientId": "client", "strategyName": "AVG"}
    return Command.request(
        RequestCode.QUERY_ASSIGNMENT, body=fastjson.dumps({"messageModel": "CLUSTERING", **query, **more})
    )


@pytest.mark.parametrize("model", ["CLUSTERING", "BROADCASTING"])
async def test_a_wide_topic_is_assigned_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """To sort, share out and encode 65,535 queues took the loop up to 0.8 s, for each who asked."""
    on_loop = []

    def noting(function: Any) -> Any:
        def noted(*arguments: Any) -> Any:
            on_loop.append(threading.current_thread() is threading.main_thread())
            return function(*arguments)

        return noted

    async with broker_and_caller(tmp_path) as (broker, caller):
        broker.topics.put(TopicConfig("wide", 2_000, 2_000))
        await caller.call(broker.address, beat(consumers=1), TIMEOUT_MS)
        monkeypatch.setattr(assignments, "sorted", noting(sorted), raising=False)
        monkeypatch.setattr(assignment, "assigned", noting(assignments.assigned))
        monkeypatch.setattr(Assignment, "encode", noting(Assignment.encode))
        reply = await caller.call(broker.address, assignment_of("wide", messageModel=model), TIMEOUT_MS)
    assert len(Assignment.decode(reply.body).queues or ()) == 2_000
    assert len(on_loop) == (3 if model == "CLUSTERING" else 2)
    assert not any(on_loop)


async def test_the_queues_of_wide_topics_are_known_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignments, "MAX_KNOWN_QUEUES", 2_500)
    async with broker_and_caller(tmp_path) as (broker, caller):
        await caller.call(broker.address, beat(consumers=1), TIMEOUT_MS)
        for number in range(6):
            broker.topics.put(TopicConfig(f"wide{number}", 1_000, 1_000))
            reply = await caller.call(broker.address, assignment_of(f"wide{number}"), TIMEOUT_MS)
            assert len(Assignment.decode(reply.body).queues or ()) == 1_000
            assert sum(len(queues) for _, queues in broker.topic_queues._known.values()) <= 2_500


async def test_a_batch_of_many_acks_is_stored_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_and_caller(tmp_path) as (broker, caller):
        await caller.call(broker.address, send_to("t"), TIMEOUT_MS)
        one = BatchAck("g", "t", "0", 0, 0, 0, 1, 1, (0,))
        body = BatchAckBody("broker-a", (one,) * (5 * ack.ACKS_STEP)).encode()
        with Turns() as turns:
            monkeypatch.setattr(ack, "marked_topic", turns.counting(marked_topic))
            reply = await caller.call(
                broker.address, Command.request(RequestCode.BATCH_ACK_MESSAGE, body=body), TIMEOUT_MS
            )
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        assert turns.total == 5 * ack.ACKS_STEP
        assert turns.most <= ack.ACKS_STEP


async def test_figures_of_too_many_queues_are_refused_with_advice(tmp_path: Path) -> None:
    async with broker_and_caller(tmp_path, max_queues_in_stats=1_500) as (broker, caller):
        for name in ("wide", "wider"):
            broker.topics.put(TopicConfig(name, 1_000, 1_000))
            broker.offsets.commit("g", name, 0, 0)
        reply = await caller.call(broker.address, ask(RequestCode.GET_CONSUME_STATS, topic=""), TIMEOUT_MS)
        refusal = "figures of 2000 queues are too many; maxQueuesInStats allows 1500: name one topic"
        assert (reply.code, reply.remark) == (ResponseCode.INVALID_PARAMETER, refusal)
        one = await caller.call(broker.address, ask(RequestCode.GET_CONSUME_STATS), TIMEOUT_MS)
        assert len(ConsumeStats.decode(one.body).offsets) == 1_000


async def test_an_answer_that_fits_into_no_frame_is_refused(tmp_path: Path) -> None:
    async with broker_and_caller(tmp_path) as (broker, caller):
        broker.topics.put(TopicConfig("wide", 1_000, 1_000))
        broker.max_reply_bytes = 10_000
        reply = await caller.call(broker.address, ask(RequestCode.GET_TOPIC_STATS_INFO), TIMEOUT_MS)
        assert reply.code == ResponseCode.INVALID_PARAMETER
        assert "and a frame takes 10000; ask about less at once" in (reply.remark or "")


async def test_a_wide_topic_is_deleted_in_steps_and_not_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 5 * DELETED_STEP
    async with broker_and_caller(tmp_path) as (broker, caller):
        broker.topics.put(TopicConfig("wide", count, count))
        for queue_id in range(count):
            header = SendMessage("p", "wide", "TBW102", 4, queue_id, 0, 0, 0)
            sent = await caller.call(
                broker.address, Command.request(RequestCode.SEND_MESSAGE, header, b"x"), TIMEOUT_MS
            )
            assert sent.code == ResponseCode.SUCCESS
        with Turns() as turns:
            monkeypatch.setattr(ConsumeQueue, "close", turns.counting(ConsumeQueue.close))
            deleting = asyncio.create_task(
                caller.call(broker.address, ask(RequestCode.DELETE_TOPIC_IN_BROKER), TIMEOUT_MS)
            )
            await until(lambda: turns.total > 0 or deleting.done())
            early = await caller.call(broker.address, send_to("wide"), TIMEOUT_MS)
            assert (await deleting).code == ResponseCode.SUCCESS
        assert turns.total == count
        assert turns.most <= DELETED_STEP
        if early.code != ResponseCode.SUCCESS:
            assert early.remark == "topic wide is being deleted; try again in a moment"
            early = await caller.call(broker.address, send_to("wide"), TIMEOUT_MS)
        assert (early.code, early.fields["queueOffset"]) == (ResponseCode.SUCCESS, "0")
        assert broker.store.max_offset("wide", 0) == 1


# --- large batches


@pytest.mark.parametrize("is_saved", [True, False])
async def test_batches_that_come_at_once_enter_their_queue_in_order_and_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_saved: bool
) -> None:
    many = 4_000
    body = encode_batch([(0, b"", f"KEYS\x01a{number} b{number}\x02") for number in range(many)])
    header = SendMessage("p", "t", "TBW102", 4, 0, 0, 0, 0, "", batch=True)
    async with broker_and_caller(tmp_path) as (broker, caller):
        broker.topics.put(TopicConfig("t", 4, 4))
        if is_saved:
            await broker.topics.saved()
        visible: list[int] = []
        arrived = broker.store._dispatcher.on_arrival
        assert arrived is not None

        def noted(topic: str, queue_id: int, next_offset: int, tags_code: int) -> None:
            visible.append(next_offset)
            arrived(topic, queue_id, next_offset, tags_code)

        monkeypatch.setattr(broker.store._dispatcher, "on_arrival", noted)
        with Turns() as turns:
            monkeypatch.setattr(Dispatcher, "_dispatch_part", turns.counting(Dispatcher._dispatch_part))
            asked = [Command.request(RequestCode.SEND_MESSAGE, header, body) for _ in range(5)]
            asked.append(send())  # of the same connection: it overtakes none
            replies = await asyncio.gather(*(caller.call(broker.address, one, TIMEOUT_MS) for one in asked))
        assert [reply.fields["queueOffset"] for reply in replies] == [str(number * many) for number in range(6)]
        assert visible == sorted(set(visible))
        assert visible[-1] == broker.store.max_offset("t", 0) == 5 * many + 1
        steps = 2 * many // KEYS_STEP
        assert turns.total == 5 * steps
        assert not is_saved or turns.most < steps  # the last send lets what is left of a batch go before it


# --- pulls that wait


def pull(hold_ms: int = 60_000) -> Command:
    flags = PullFlag.SUBSCRIPTION | PullFlag.SUSPEND
    header = PullMessage("g", "t", 0, 0, 32, flags, 0, hold_ms, subscription="*")
    return Command.request(RequestCode.PULL_MESSAGE, header)


def send() -> Command:
    return Command.request(RequestCode.SEND_MESSAGE, SendMessage("p", "t", "TBW102", 4, 0, 0, 0, 0), b"hello")


async def asking(caller: Caller, address: str, count: int) -> list[asyncio.Task[Command]]:
    return [asyncio.create_task(caller.call(address, pull(), TIMEOUT_MS)) for _ in range(count)]


async def test_a_crowd_of_pulls_is_woken_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_and_caller(tmp_path) as (broker, caller):
        broker.topics.put(TopicConfig("t", 4, 4))
        pulls = await asking(caller, broker.address, 1_000)
        await until(lambda: len(broker.long_polls) == 1_000)
        with Turns() as turns:
            monkeypatch.setattr(broker.store, "read", turns.counting(broker.store.read, first="t"))
            await caller.call(broker.address, send(), TIMEOUT_MS)
            replies = await asyncio.gather(*pulls)
        assert {reply.code for reply in replies} == {ResponseCode.SUCCESS}
        assert turns.total == 1_000
        assert turns.most <= TAKEN_STEP


async def test_a_crowd_of_pulls_expires_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_and_caller(tmp_path) as (broker, caller):
        broker.topics.put(TopicConfig("t", 4, 4))
        with Turns() as turns:
            pulls = [asyncio.create_task(caller.call(broker.address, pull(2_000), TIMEOUT_MS)) for _ in range(500)]
            await until(lambda: len(broker.long_polls) == 500)
            monkeypatch.setattr(broker.store, "read", turns.counting(broker.store.read, first="t"))
            replies = await asyncio.gather(*pulls)
        assert {reply.code for reply in replies} == {ResponseCode.PULL_NOT_FOUND}
        assert turns.total == 500
        assert turns.most <= TAKEN_STEP


async def test_pulls_beyond_the_bound_of_a_queue_poll_shortly(tmp_path: Path) -> None:
    async with broker_and_caller(tmp_path, max_pull_hold_per_queue=10) as (broker, caller):
        broker.topics.put(TopicConfig("t", 4, 4))
        pulls = await asking(caller, broker.address, 25)
        await until(lambda: sum(task.done() for task in pulls) == 15)
        assert {task.result().code for task in pulls if task.done()} == {ResponseCode.PULL_NOT_FOUND}
        assert len(broker.long_polls) == 10
        await caller.call(broker.address, send(), TIMEOUT_MS)
        late = [reply for reply in await asyncio.gather(*pulls) if reply.code == ResponseCode.SUCCESS]
        assert len(late) == 10


# --- everything at once, for a moment; `make torture` does it at length


async def test_a_healthy_client_loses_nothing_beside_all_hostile_ones(tmp_path: Path) -> None:
    with all_open_files(), up(tmp_path / "data") as daemon:
        await live_through(daemon, seed=1, seconds=2, kinds=[ALL_AT_ONCE])
        assert daemon.interrupt() == 0

"""Topics in which a broker keeps its own records: no client writes to them, in whatever way it tries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.model import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, Perm, TopicConfig
from cosmodrome.wire import properties as props
from cosmodrome.wire.batch import encode_batch
from cosmodrome.wire.bodies import BatchAck, BatchAckBody
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.pop import ORDER_QUEUE_ID, Handle
from cosmodrome.wire.recall_handle import RecallHandle
from cosmodrome.wire.record import SysFlag
from cosmodrome.wire.requests import (
    AckMessage,
    ChangeInvisibleTime,
    CreateTopic,
    DeleteGroup,
    EndTransaction,
    PopMessage,
    PopReply,
    PullFlag,
    PullMessage,
    RecallMessage,
    ResetOffset,
    SendBack,
    SendMessage,
    SendReply,
    TopicHeader,
    UpdateConsumerOffset,
)
from tests.system.wired import Wired, until, wired

TOPIC = "orders"
WHEEL, REVIVE = "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster"
CLOSED = (
    *(HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, CHECK_MAX_TIME_TOPIC, "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"),
    *(WHEEL, REVIVE, "rmq_sys_REVIVE_LOG_another", "rmq_sys_anything"),
)
# Clients that trace, `mqadmin clusterRT` and `sendMsgStatus`, and Java's benchmark send to these.
OPEN = (
    *("RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_cn-hangzhou", "BenchmarkTest", "TBW102"),
    *("DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC", "%RETRY%g", "%DLQ%g"),
)
HALF = {"TRAN_MSG": "true", "PGROUP": "g"}
# As if the broker itself had stored it, for whoever believes it.
FORGED = {
    "REAL_TOPIC": OP_HALF_TOPIC,
    "REAL_QID": "0",
    "TIMER_OUT_MS": "1000",
    "TRAN_PREPARED_QUEUE_OFFSET": "0",
    "TAGS": "d",
}
CONFIG = BrokerConfig(broker_name="broker-a", auto_create_topic_enable=False, recall_message_enable=True)


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Wired]:
    """One with the topic `orders`, which makes no topics by itself."""
    async with wired(tmp_path, CONFIG) as there:
        there.broker.topics.put(TopicConfig(TOPIC, 1, 1))
        yield there


def header(topic: str, properties: dict[str, str] | None = None, **fields: object) -> SendMessage:
    return replace(
        SendMessage("g", topic, "TBW102", 1, 0, 0, 0, 0, props.encode({"UNIQ_KEY": "k", **(properties or {})})),
        **fields,  # type: ignore[arg-type]
    )


async def send(broker: Wired, sent: SendMessage, body: bytes = b"b") -> Command:
    return await broker.call(RequestCode.SEND_MESSAGE, sent, body)


def records_of_all(broker: Wired) -> int:
    return broker.broker.store.messages_put


# --- sending


@pytest.mark.parametrize("topic", CLOSED)
async def test_no_client_sends_to_a_topic_of_the_brokers_own(tmp_path: Path, topic: str) -> None:
    async with wired(tmp_path, replace(CONFIG, auto_create_topic_enable=True)) as broker:
        known = broker.broker.topics.find_topic(topic)
        ways = [
            {},
            FORGED,
            {"DELAY": "1"},
            {"TIMER_DELAY_SEC": "1"},
            {**HALF, **FORGED},
            {"DELAY": "0", "RETRY_TOPIC": topic},
        ]
        sends = [header(topic, way, reconsume_times=times) for way in ways for times in (0, 1)]
        for sent in sends:
            for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
                reply = await broker.call(code, sent, b"0")
                assert reply.code == ResponseCode.NO_PERMISSION, (code, sent, reply)
                assert topic in (reply.remark or "")
        batch = encode_batch([(0, b"a", ""), (0, b"b", "")])
        reply = await broker.call(RequestCode.SEND_MESSAGE, header(topic, batch=True), batch)
        assert reply.code == ResponseCode.NO_PERMISSION
        assert records_of_all(broker) == 0
        assert broker.broker.topics.find_topic(topic) == known


@pytest.mark.parametrize("topic", OPEN)
async def test_clients_still_send_where_apaches_do(tmp_path: Path, topic: str) -> None:
    config = replace(CONFIG, auto_create_topic_enable=True, trace_topic_enable=True)
    async with wired(tmp_path, config) as broker:
        reply = await send(broker, header(topic))
        assert reply.code == ResponseCode.SUCCESS, reply
        assert [record.body for record in broker.stored(topic)] == [b"b"]


async def test_an_operator_may_name_the_topic_of_traces_like_a_system_topic(tmp_path: Path) -> None:
    config = replace(CONFIG, msg_trace_topic_name="rmq_sys_traces", trace_topic_enable=True)
    async with wired(tmp_path / "a", config) as broker:
        assert (await send(broker, header("rmq_sys_traces"))).code == ResponseCode.SUCCESS
    async with wired(tmp_path / "b", replace(config, msg_trace_topic_name=WHEEL)) as broker:
        assert (await send(broker, header(WHEEL))).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("way", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1500"}, HALF])
async def test_what_a_client_says_of_the_real_topic_does_not_count(broker: Wired, way: dict[str, str]) -> None:
    forged = {"REAL_TOPIC": REVIVE, "REAL_QID": "7"}
    sent = await broker.ask(RequestCode.SEND_MESSAGE, header(TOPIC, {**forged, **way, **forged}), b"b")
    assert broker.stored(TOPIC) == []
    if way is HALF:
        (half,) = broker.stored(HALF_TOPIC)
        end = EndTransaction("g", SendReply.decode(sent).queue_offset, half.physical_offset, SysFlag.COMMIT)
        await broker.ask(RequestCode.END_TRANSACTION, end)
    await until(lambda: len(broker.stored(TOPIC)) == 1)
    assert all(broker.stored(REVIVE, queue_id) == [] for queue_id in range(8))


MARKS: dict[str, tuple[str, ...]] = {
    "DELAY": ("0", "1", "18", "99", "-1", "x"),
    "TIMER_DELAY_MS": ("1", "60000", "-1", "x"),
    "TIMER_DELIVER_MS": ("1", "99999999999999", "x"),
    "TIMER_OUT_MS": ("1", "1700000000000"),
    "TIMER_DEL_UNIQKEY": ("k", f"{TOPIC}+k", f"{REVIVE}+k"),
    "TIMER_ROLL_TIMES": ("1",),
    "TRAN_MSG": ("true", "TRUE", "false"),
    "PGROUP": ("g",),
    "TRANSACTION_CHECK_TIMES": ("1", "99"),
    "TRAN_PREPARED_QUEUE_OFFSET": ("0", "1"),
    "REAL_TOPIC": (*CLOSED, TOPIC, "../x"),
    "REAL_QID": ("0", "-1", "99", "x"),
    "RETRY_TOPIC": (*CLOSED, TOPIC),
    "TAGS": ("d", "ck", "ack", "a"),
    "POP_CK": ("0 0 0 0 0 broker-a 0 0",),
    "UNIQ_KEY": ("k", f"k\x02REAL_TOPIC\x01{REVIVE}", f"k\x01REAL_TOPIC\x01{REVIVE}"),
}
FLAGS = (0, SysFlag.PREPARED, SysFlag.COMMIT, SysFlag.ROLLBACK, SysFlag.COMPRESSED, SysFlag.NEED_UNWRAP)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_a_client_sends_the_brokers_own_topics_hold_what_the_broker_says(
    tmp_path: Path, seed: int
) -> None:
    """The general rule: a record in them is there because of a send to an open topic, and leads to that topic only."""
    random = Random(seed)
    config = replace(CONFIG, auto_create_topic_enable=True)
    topics = (TOPIC, "%RETRY%g", "%DLQ%g", "DefaultCluster_REPLY_TOPIC", *CLOSED)
    taken = 0
    async with wired(tmp_path, config) as broker:
        broker.broker.topics.put(TopicConfig(TOPIC, 1, 1))
        for number in range(250):
            topic = random.choice(topics)
            names = random.sample(sorted(MARKS), random.randrange(6))
            properties = {name: random.choice(MARKS[name]) for name in names}
            flag, times = random.choice(FLAGS), random.choice((None, -1, 0, 1, 99))
            sent = header(topic, {**properties, "SENT_TO": topic}, sys_flag=flag, reconsume_times=times)
            code = random.choice((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE))
            reply = await broker.call(code, sent, b"%d" % random.randrange(number + 1))
            assert topic not in CLOSED or reply.code == ResponseCode.NO_PERMISSION
            taken += reply.code == ResponseCode.SUCCESS
        for topic in (*CLOSED, *(topic for topic in broker.broker.store.topics() if topic.startswith("rmq_sys_"))):
            for queue_id in broker.broker.store.queues(topic):
                for record in broker.stored(topic, queue_id):
                    assert topic in (HALF_TOPIC, SCHEDULE_TOPIC, WHEEL), record
                    kept = props.decode(record.properties)
                    open_to = {kept["SENT_TO"], kept["SENT_TO"].replace("%RETRY%", "%DLQ%")}
                    assert kept["REAL_TOPIC"] in open_to
                    assert kept["REAL_QID"].isdigit()
    assert taken > 10


# --- taking back, sending back


async def test_no_client_takes_back_a_record_of_a_pop(broker: Wired) -> None:
    """The wheel holds the checkpoint of a pop like any timed message; its unique key can be guessed."""
    handle = RecallHandle(REVIVE, "broker-a", broker.broker.clock.now_ms() + 60_000, "orders@0@0@g@1@broker-a@ck")
    reply = await broker.call(RequestCode.RECALL_MESSAGE, RecallMessage(REVIVE, handle.encode()))
    assert (reply.code, REVIVE in (reply.remark or "")) == (ResponseCode.NO_PERMISSION, True)

    key = f"{REVIVE}+{handle.unique_key}"
    for way in ({"TIMER_DEL_UNIQKEY": key}, {"TIMER_DEL_UNIQKEY": "k"}):
        reply = await send(broker, header(TOPIC, {"TIMER_DELAY_SEC": "60", **way}))
        assert (reply.code, f"{TOPIC}+" in (reply.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)

    handle = RecallHandle(TOPIC, "broker-a", handle.deliver_ms, f"k\x02TIMER_DEL_UNIQKEY\x01{key}")
    reply = await broker.call(RequestCode.RECALL_MESSAGE, RecallMessage(TOPIC, handle.encode()))
    assert reply.code == ResponseCode.ILLEGAL_OPERATION
    assert records_of_all(broker) == 0


@pytest.mark.parametrize("way", ["a group", "a broker name"])
async def test_no_client_puts_properties_of_its_own_into_a_record_of_a_pop(broker: Wired, way: str) -> None:
    """A name in which another property begins would take back what another group popped: nobody would get it again."""
    await broker.ask(RequestCode.SEND_MESSAGE, header(TOPIC), b"b")
    popped = PopReply.decode(await broker.ask(RequestCode.POP_MESSAGE, PopMessage("g", TOPIC, 0, 1, 60_000, 0)))
    time = popped.pop_time
    key = f"{REVIVE}+{TOPIC}@0@0@g@{time}@broker-a@ck"
    forged = f"k\x02TIMER_DEL_UNIQKEY\x01{key}\x02UNIQ_KEY\x01x\x02z\x01"
    group, name = (forged, "broker-a") if way == "a group" else ("attackers", forged)
    handle = Handle(0, time, 59_000, 0, "0", name, 0, 0).encode()
    recalled = RecallHandle(TOPIC, "broker-a", broker.broker.clock.now_ms() + 60_000, "k").encode()
    requests: list[tuple[RequestCode, Header | None, bytes]] = [
        (RequestCode.ACK_MESSAGE, AckMessage(group, TOPIC, 0, handle, 0), b""),
        (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleTime(group, TOPIC, 0, handle, 0, 9_000), b""),
        (
            RequestCode.BATCH_ACK_MESSAGE,
            None,
            BatchAckBody(name, (BatchAck(group, TOPIC, "0", 0, 0, 0, time, 59_000, (0,)),)).encode(),
        ),
        (RequestCode.RECALL_MESSAGE, RecallMessage(TOPIC, recalled, producer_group=f"{forged}\x02"), b""),
    ]
    before = records_of_all(broker)
    for code, request, body in requests:
        reply = await broker.call(code, request, body)
        assert reply.code == ResponseCode.INVALID_PARAMETER, reply
        assert "separator" in (reply.remark or "") or "group name" in (reply.remark or "")
    assert records_of_all(broker) == before


async def test_a_client_still_takes_back_a_message_of_the_topic_it_sends_to(broker: Wired) -> None:
    reply = await send(broker, header(TOPIC, {"TIMER_DELAY_SEC": "60", "TIMER_DEL_UNIQKEY": f"{TOPIC}+other"}))
    assert reply.code == ResponseCode.SUCCESS


@pytest.mark.parametrize("way", [{"DELAY": "18"}, {"TIMER_DELAY_SEC": "60"}, HALF])
async def test_what_waits_is_not_sent_back(broker: Wired, way: dict[str, str]) -> None:
    """A group would get a message before its time, or before it is committed."""
    await broker.ask(RequestCode.SEND_MESSAGE, header(TOPIC, way), b"b")
    before = records_of_all(broker)
    reply = await broker.call(RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(0, "g", 0))
    assert (reply.code, records_of_all(broker)) == (ResponseCode.NO_PERMISSION, before)


# --- administration


@pytest.mark.parametrize("topic", CLOSED)
async def test_no_one_creates_changes_or_deletes_a_topic_of_the_brokers_own(broker: Wired, topic: str) -> None:
    known = broker.broker.topics.find_topic(topic)
    for request in (CreateTopic(topic, 1, 1, 2), CreateTopic(topic, 0, 0, 0)):
        reply = await broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, request)
        assert reply.code == ResponseCode.INVALID_PARAMETER, reply
    reply = await broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic))
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert broker.broker.topics.find_topic(topic) == known


@pytest.mark.parametrize("group", ["CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_REVIVE_GROUP"])
async def test_no_client_moves_the_offsets_of_the_brokers_own_services(broker: Wired, group: str) -> None:
    """A transaction service that is put forward forgets open transactions at the next start; a revive service set back
    brings again what was acked."""
    topic = HALF_TOPIC if "TRANS" in group else REVIVE
    for _ in range(3):
        await broker.ask(RequestCode.SEND_MESSAGE, header(TOPIC, HALF), b"b")
    broker.broker.offsets.commit(group, topic, 0, 1)
    handle = Handle(0, 0, 1_000, ORDER_QUEUE_ID, "0", "broker-a", 0, 2).encode()
    pull = PullMessage(group, HALF_TOPIC, 0, 0, 1, PullFlag.COMMIT_OFFSET | PullFlag.SUBSCRIPTION, 3, 0, "*")
    batch = BatchAck(group, topic, "0", 0, 0, ORDER_QUEUE_ID, 0, 1_000, (2,))
    requests: list[tuple[RequestCode, Header | None, bytes]] = [
        (RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(group, topic, 0, 3), b""),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffset(topic, group, 0, is_force=True), b""),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup(group, clean_offset=True), b""),
        (RequestCode.PULL_MESSAGE, pull, b""),
        (RequestCode.POP_MESSAGE, PopMessage(group, topic, 0, 1, 1_000, 0), b""),
        (RequestCode.ACK_MESSAGE, AckMessage(group, topic, 0, handle, 2), b""),
        (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleTime(group, topic, 0, handle, 2, 1_000), b""),
        (RequestCode.BATCH_ACK_MESSAGE, None, BatchAckBody("broker-a", (batch,)).encode()),
        (RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(0, group, 0), b""),
    ]
    for code, request, body in requests:
        reply = await broker.call(code, request, body)
        assert (reply.code, "the broker's own" in (reply.remark or "")) == (ResponseCode.NO_PERMISSION, True), reply
    assert broker.broker.offsets.find_offset(group, topic, 0) == 1


# --- half messages that could never be committed


@pytest.mark.parametrize(
    ("properties", "fields", "code", "word"),
    [
        ({"TRAN_MSG": "true"}, {}, ResponseCode.MESSAGE_ILLEGAL, "PGROUP"),
        ({**HALF, "TIMER_DEL_UNIQKEY": "orders+k"}, {}, ResponseCode.MESSAGE_ILLEGAL, "takes no"),
        ({**HALF, "TIMER_DELAY_SEC": "999999999"}, {}, ResponseCode.MESSAGE_ILLEGAL, "timerMaxDelaySec"),
        ({**HALF, "TIMER_DELAY_SEC": "soon"}, {}, ResponseCode.MESSAGE_ILLEGAL, "TIMER_DELAY_SEC"),
        ({**HALF, "DELAY": "soon"}, {}, ResponseCode.MESSAGE_ILLEGAL, "DELAY"),
        ({**HALF, "a": "x" * 32_600}, {}, ResponseCode.MESSAGE_ILLEGAL, "properties"),
        # There is room for the half message, but not for what the wheel notes in it when it is committed.
        ({**HALF, "TIMER_DELAY_SEC": "60", "a": "x" * 32_400}, {}, ResponseCode.MESSAGE_ILLEGAL, "properties"),
        (HALF, {"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST, "unknown"),
        (HALF, {"topic": "archive"}, ResponseCode.NO_PERMISSION, "archive"),
        (HALF, {"topic": HALF_TOPIC}, ResponseCode.NO_PERMISSION, HALF_TOPIC),
        (HALF, {"topic": WHEEL}, ResponseCode.NO_PERMISSION, WHEEL),
        (HALF, {"queue_id": 9}, ResponseCode.INVALID_PARAMETER, "queueId[9]"),
        ({}, {"sys_flag": SysFlag.PREPARED}, ResponseCode.MESSAGE_ILLEGAL, "TRAN_MSG"),
        ({}, {"sys_flag": SysFlag.ROLLBACK}, ResponseCode.MESSAGE_ILLEGAL, "TRAN_MSG"),
    ],
)
async def test_a_half_message_that_can_never_be_committed_is_refused_at_once(
    broker: Wired, properties: dict[str, str], fields: dict[str, object], code: int, word: str
) -> None:
    broker.broker.topics.put(TopicConfig("archive", 1, 1, Perm.READ))
    sent = replace(header(TOPIC, properties), **{"sys_flag": SysFlag.PREPARED, **fields})  # type: ignore[arg-type]
    reply = await send(broker, sent)
    assert (reply.code, word in (reply.remark or "")) == (code, True), reply
    assert records_of_all(broker) == 0
    assert len(broker.broker.transactions) == 0


async def test_a_half_message_whose_body_is_too_big_is_refused_at_once(broker: Wired) -> None:
    reply = await send(broker, header(TOPIC, HALF), b"b" * (broker.broker.store_config.max_message_size + 1))
    assert (reply.code, records_of_all(broker)) == (ResponseCode.MESSAGE_ILLEGAL, 0)


async def test_a_half_message_with_all_the_room_it_may_have_is_committed(broker: Wired) -> None:
    """What is taken can be committed: the largest properties that are not refused, of a message for the wheel."""
    for size in range(32_767, 30_000, -1):
        way = {**HALF, "TIMER_DELAY_SEC": "1", "a": "x" * size}
        sent = await send(broker, header(TOPIC, way))
        if sent.code == ResponseCode.SUCCESS:
            break
    (half,) = broker.stored(HALF_TOPIC)
    await broker.ask(RequestCode.END_TRANSACTION, EndTransaction("g", 0, half.physical_offset, SysFlag.COMMIT))
    await until(lambda: len(broker.stored(TOPIC)) == 1)


# --- the flag that says how a transaction stands


@pytest.mark.parametrize("flag", [SysFlag.PREPARED, SysFlag.COMMIT, SysFlag.ROLLBACK])
async def test_a_retried_message_that_was_in_a_transaction_comes_again(broker: Wired, flag: int) -> None:
    """Older Java clients send a retry with the flag of a half message; a record with that flag is in no queue."""
    await broker.ask(RequestCode.SEND_MESSAGE, header("%RETRY%g", HALF, sys_flag=flag, reconsume_times=1), b"b")
    assert [(record.body, record.sys_flag) for record in broker.stored("%RETRY%g")] == [(b"b", 0)]


async def test_no_sender_says_that_a_transaction_was_committed(broker: Wired) -> None:
    await broker.ask(RequestCode.SEND_MESSAGE, header(TOPIC, sys_flag=SysFlag.COMMIT | SysFlag.COMPRESSED), b"b")
    assert [record.sys_flag for record in broker.stored(TOPIC)] == [SysFlag.COMPRESSED]

"""Transactions, against a broker that refuses, says nothing, or asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cosmodrome.client.transactions import TransactionProducer, TransactionState
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.model import Message, ReceivedMessage, SendStatus
from cosmodrome.wire import properties as properties_string
from cosmodrome.wire import trace
from cosmodrome.wire.command import Command
from cosmodrome.wire.compression import compress
from cosmodrome.wire.record import SysFlag, offset_msg_id, pack_host
from cosmodrome.wire.requests import CheckTransactionState, EndTransaction, SendMessage, SendReply
from tests.unit.client.fake_cluster import Answer, FakeCluster, fake_cluster
from tests.unit.client.messages import record

SEND, END, CHECK = RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION, RequestCode.CHECK_TRANSACTION_STATE
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
MSG_ID = offset_msg_id(pack_host("127.0.0.1", 10911), 4_711)


def storing(code: int = ResponseCode.SUCCESS) -> Answer:
    return lambda command: command.reply(code, SendReply(MSG_ID, 1, 42, "transaction"))


def saying(state: TransactionState) -> Callable[[object], TransactionState]:
    return lambda message: state


def transactional(cluster: FakeCluster, check: TransactionState = UNKNOWN) -> TransactionProducer:
    cluster.broker.answers[SEND] = storing()
    cluster.broker.answers[END] = lambda command: command.reply()
    return TransactionProducer("g", cluster.namesrv, check=saying(check))


async def test_a_half_and_its_end_go_out_as_java_would_send_them() -> None:
    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        result = await producer.send_in_transaction(Message("T", b"hello"), saying(COMMIT))
        (sent,) = map(SendMessage.decode, cluster.broker.asked.of(SEND))
        (ended,) = map(EndTransaction.decode, cluster.broker.asked.of(END))
    properties = properties_string.decode(sent.properties or "")
    assert (properties["TRAN_MSG"], properties["PGROUP"], sent.sys_flag) == ("true", "g", SysFlag.PREPARED)
    assert ended == EndTransaction(
        "g", 42, 4_711, 8, False, result.sent.msg_id, "transaction", "T", broker_name="broker-a"
    )


@pytest.mark.parametrize(("state", "told"), [(COMMIT, [8]), (ROLLBACK, [12]), (UNKNOWN, [])])
async def test_the_broker_hears_what_was_decided(state: TransactionState, told: list[int]) -> None:
    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        result = await producer.send_in_transaction(Message("T", b"a"), saying(state))
        ends = [EndTransaction.decode(command).commit_or_rollback for command in cluster.broker.asked.of(END)]
    assert (result.state, ends) == (state, told)


class Noted:
    """What is written down, in place of a tracer."""

    def __init__(self) -> None:
        self.states: list[tuple[str, bool]] = []

    def note(self, record: trace.TraceRecord, _msg_ids: str, _keys: str) -> None:
        if isinstance(record, trace.EndTransaction):
            self.states.append((record.state, record.from_check))


async def test_every_decision_is_written_down_and_that_there_was_none() -> None:
    def fail(message: Message) -> TransactionState:
        raise ValueError("no")

    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        producer._tracer, noted = None, Noted()
        await producer.send_in_transaction(Message("T", b"a"), saying(COMMIT))
        producer._tracer = noted  # type: ignore[assignment]
        for state in (COMMIT, ROLLBACK, UNKNOWN):
            await producer.send_in_transaction(Message("T", b"a"), saying(state))
        with pytest.raises(ValueError, match="no"):
            await producer.send_in_transaction(Message("T", b"a"), fail)
        producer._tracer = None
    names = ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW", "UNKNOW"]
    assert noted.states == [(name, False) for name in names]


async def test_a_half_that_is_not_safe_is_rolled_back_before_anything_is_done() -> None:
    done: list[Message] = []

    def execute(message: Message) -> TransactionState:
        done.append(message)
        return COMMIT

    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        cluster.broker.answers[SEND] = storing(ResponseCode.FLUSH_DISK_TIMEOUT)
        result = await producer.send_in_transaction(Message("T", b"a"), execute)
    assert (result.sent.status, result.state, done) == (SendStatus.FLUSH_DISK_TIMEOUT, ROLLBACK, [])


@pytest.mark.parametrize(
    "answer", [lambda command: command.reply(ResponseCode.SYSTEM_ERROR, remark="no"), lambda command: None]
)
async def test_an_end_that_is_not_heard_is_left_to_the_brokers_question(
    answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        cluster.broker.answers[END] = answer
        result = await producer.send_in_transaction(Message("T", b"a"), saying(COMMIT), timeout_ms=300)
    assert result.state is COMMIT
    assert "the broker will ask" in caplog.text


# --- being asked


def question(group: str, body: bytes = b"a", sys_flag: int = 0) -> Command:
    half = record(body, topic="T", properties=properties_string.encode({"PGROUP": group}), sys_flag=sys_flag)
    header = CheckTransactionState(43, 4_712, "id", "id", MSG_ID, "T", "broker-a")
    return Command.request(CHECK, header, half.encode(), oneway=True)


async def asked(cluster: FakeCluster, producer: TransactionProducer, command: Command) -> None:
    await producer.publish_queues("T")
    await cluster.broker.asked.wait_for(RequestCode.HEART_BEAT)
    (connection,) = cluster.broker.connections
    connection.send(command)


async def test_a_question_is_answered_on_its_connection() -> None:
    bodies: list[bytes] = []

    async def check(message: ReceivedMessage) -> TransactionState:
        bodies.append(message.body)
        return COMMIT

    packed, sys_flag = compress(b"a" * 5_000)
    async with fake_cluster(T=4) as cluster:
        cluster.broker.answers[END] = lambda command: None
        async with TransactionProducer("g", cluster.namesrv, check=check) as producer:
            noted = Noted()
            producer._tracer = noted  # type: ignore[assignment]
            await asked(cluster, producer, question("g", packed, sys_flag))
            (end,) = await cluster.broker.asked.wait_for(END)
            producer._tracer = None
    assert EndTransaction.decode(end) == EndTransaction("g", 43, 4_712, 8, True, "id", "id", "T", "broker-a")
    assert bodies == [b"a" * 5_000]
    assert noted.states == [("COMMIT_MESSAGE", True)]


async def test_a_question_about_another_group_is_not_answered() -> None:
    async with fake_cluster(T=4) as cluster, transactional(cluster, COMMIT) as producer:
        await asked(cluster, producer, question("others"))
        await asked(cluster, producer, question("g"))
        (end,) = await cluster.broker.asked.wait_for(END)
    assert EndTransaction.decode(end).producer_group == "g"
    assert cluster.broker.asked.count(END) == 1


async def test_a_check_that_fails_says_nothing_and_the_next_one_does(caplog: pytest.LogCaptureFixture) -> None:
    outcomes: list[TransactionState | None] = [ROLLBACK, None]

    def check(_message: ReceivedMessage) -> TransactionState:
        state = outcomes.pop()
        if state is None:
            raise RuntimeError("the database is gone")
        return state

    async with fake_cluster(T=4) as cluster:
        cluster.broker.answers[END] = lambda command: None
        async with TransactionProducer("g", cluster.namesrv, check=check) as producer:
            await asked(cluster, producer, question("g"))
            await asked(cluster, producer, question("g"))
            (end,) = await cluster.broker.asked.wait_for(END)
    assert EndTransaction.decode(end).commit_or_rollback == 12
    assert "the database is gone" in caplog.text

"""Transactions, against a broker that refuses, says nothing, or asks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cosmodrome.client.hooks import EndTransactionContext, RpcHook
from cosmodrome.client.producer_options import ProducerOptions
from cosmodrome.client.transactions import TransactionProducer, TransactionState
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import ClientError, ConfigError, InvalidArgument, InvalidMessage
from cosmodrome.model import Message, ReceivedMessage, SendStatus
from cosmodrome.testing import FakeClock
from cosmodrome.wire import properties as properties_string
from cosmodrome.wire import trace
from cosmodrome.wire.bodies import HeartbeatData
from cosmodrome.wire.command import Command
from cosmodrome.wire.compression import compress
from cosmodrome.wire.record import SysFlag, offset_msg_id, pack_host
from cosmodrome.wire.requests import CheckTransactionState, EndTransaction, SendMessage, SendReply
from tests.unit.client.fake_cluster import PATIENCE_SECONDS, Answer, FakeCluster, fake_cluster
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


async def test_a_producer_that_has_sent_nothing_can_be_asked() -> None:
    """It may be a restarted one, and the only one that is left of its group."""
    async with fake_cluster(TBW102=8) as cluster, transactional(cluster):
        (heartbeat, *_) = await cluster.broker.asked.wait_for(RequestCode.HEART_BEAT)
        assert HeartbeatData.decode(bytes(heartbeat.body)).producers == ("g",)


async def test_a_cluster_that_makes_no_topics_is_asked_for_its_template_seldom() -> None:
    clock = FakeClock()
    async with (
        fake_cluster(T=4) as cluster,
        TransactionProducer("g", cluster.namesrv, check=saying(COMMIT), clock=clock) as producer,
    ):
        await cluster.asked.wait_for(RequestCode.GET_ROUTEINFO_BY_TOPIC, 2)  # for itself, and as its own template
        cluster.topics["TBW102"] = 8
        while not producer._instance.routes.find("TBW102"):
            await clock.advance(1_000)
        await cluster.broker.asked.wait_for(RequestCode.HEART_BEAT)
        assert cluster.asked.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) < 10


@pytest.mark.parametrize("wrong", [None, True, False, "yes", 8])
async def test_what_is_no_decision_leaves_the_transaction_open(wrong: Any) -> None:
    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        with pytest.raises(ClientError, match=r"execute returned .*TransactionState.COMMIT, ROLLBACK or UNKNOWN"):
            await producer.send_in_transaction(Message("T", b"a"), saying(wrong))
        assert cluster.broker.asked.count(SEND) == 1
        assert cluster.broker.asked.count(END) == 0


async def test_what_cannot_be_called_is_refused_before_anything_is_sent() -> None:
    nothing: Any = None
    with pytest.raises(ConfigError, match="check is None"):
        TransactionProducer("g", "127.0.0.1:9876", check=nothing)
    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        with pytest.raises(InvalidMessage, match="execute is None"):
            await producer.send_in_transaction(Message("T", b"a"), nothing)
        assert cluster.broker.asked.count(SEND) == 0


async def test_a_message_may_ask_to_be_left_alone_for_longer() -> None:
    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        message = Message("T", b"a", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
        await producer.send_in_transaction(message, saying(UNKNOWN))
        (sent,) = map(SendMessage.decode, cluster.broker.asked.of(SEND))
    assert properties_string.decode(sent.properties or "")["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "60"


async def test_a_sharding_key_chooses_the_queue_of_a_transaction_too() -> None:
    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        for _ in range(4):
            await producer.send_in_transaction(Message("T", b"a", sharding_key="k"), saying(COMMIT))
        (queue_id,) = {SendMessage.decode(sent).queue_id for sent in cluster.broker.asked.of(SEND)}
    assert queue_id == ord("k") % 4


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
        result = await producer.send_in_transaction(Message("T", b"a"), saying(COMMIT), timeout_ms=2_000)
    assert result.state is COMMIT
    assert "the broker will ask" in caplog.text


# --- being asked


def question(group: str, body: bytes = b"a", sys_flag: int = 0, topic: str = "T") -> Command:
    half = record(body, topic=topic, properties=properties_string.encode({"PGROUP": group}), sys_flag=sys_flag)
    header = CheckTransactionState(43, 4_712, "id", "id", MSG_ID, topic, "broker-a")
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


async def test_an_async_check_may_use_what_needs_a_task() -> None:
    async def check(_message: ReceivedMessage) -> TransactionState:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            asked = group.create_task(asyncio.sleep(0, COMMIT))
        return asked.result()

    async with fake_cluster(T=4) as cluster:
        cluster.broker.answers[END] = lambda command: None
        async with TransactionProducer("g", cluster.namesrv, check=check) as producer:
            await asked(cluster, producer, question("g"))
            (end,) = await cluster.broker.asked.wait_for(END)
    assert EndTransaction.decode(end).commit_or_rollback == 8


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


# --- what the application does


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_the_application_gets_what_was_given_for_it(is_coroutine: bool) -> None:
    seen: list[tuple[bytes, int, str]] = []

    def execute(message: Message, order: int, customer: str) -> TransactionState:
        seen.append((message.body, order, customer))
        return COMMIT

    async def execute_later(message: Message, order: int, customer: str) -> TransactionState:
        return execute(message, order, customer)

    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        way = execute_later if is_coroutine else execute
        assert (await producer.send_in_transaction(Message("T", b"a"), way, 7, "eve")).state is COMMIT
    assert seen == [(b"a", 7, "eve")]


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_a_failure_of_the_application_is_raised_and_leaves_the_transaction_open(
    is_coroutine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_message: Message) -> TransactionState:
        raise ValueError("no money")

    async def fail_later(_message: Message) -> TransactionState:
        raise ValueError("no money")

    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        with pytest.raises(ValueError, match="no money"):
            await producer.send_in_transaction(Message("T", b"a"), fail_later if is_coroutine else fail)
    assert cluster.broker.asked.count(END) == 0
    assert "never retrieved" not in caplog.text


async def test_a_cancelled_application_leaves_its_transaction_open() -> None:
    began = asyncio.Event()
    ended: list[str] = []

    async def execute(_message: Message) -> TransactionState:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("undone")
        return COMMIT

    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        sending = asyncio.create_task(producer.send_in_transaction(Message("T", b"a"), execute))
        await began.wait()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert sending.cancelled()
        assert ended == ["undone"]
        await producer.send_in_transaction(Message("T", b"b"), saying(COMMIT))  # the producer goes on
    assert cluster.broker.asked.count(END) == 1


async def test_what_is_executed_and_checked_needs_nothing_of_the_loops_own_threads() -> None:
    """They may be busy, are refused after the end of the main thread, and would keep the process from ending."""
    refusing = ThreadPoolExecutor()
    refusing.shutdown()
    asyncio.get_running_loop().set_default_executor(refusing)
    daemons: list[bool] = []

    def decide(_message: object) -> TransactionState:
        daemons.append(threading.current_thread().daemon)
        return COMMIT

    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        producer._check = decide
        assert (await producer.send_in_transaction(Message("T", b"a"), decide)).state is COMMIT
        await asked(cluster, producer, question("g"))
        await cluster.broker.asked.wait_for(END, 2)
    assert daemons == [True, True]


async def test_executes_may_send_much_themselves_however_many_they_are() -> None:
    count = min(32, (os.cpu_count() or 1) + 4)  # as many as the loop's own threads
    together, loop = threading.Barrier(count), asyncio.get_running_loop()

    def execute(_message: Message) -> TransactionState:
        together.wait(PATIENCE_SECONDS)
        large = producer.send(Message("T", b"x" * 100_000))
        asyncio.run_coroutine_threadsafe(large, loop).result(PATIENCE_SECONDS)
        return COMMIT

    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        sending = (producer.send_in_transaction(Message("T", b"a"), execute) for _ in range(count))
        results = await asyncio.gather(*sending)
    assert [result.state for result in results] == [COMMIT] * count


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_stopping_waits_for_a_transaction_and_its_end(is_coroutine: bool) -> None:
    async def execute_later(_message: Message) -> TransactionState:
        stopping.append(asyncio.create_task(producer.stop()))
        await asyncio.sleep(0.05)
        return COMMIT

    def execute(message: Message) -> TransactionState:
        return asyncio.run_coroutine_threadsafe(execute_later(message), loop).result(PATIENCE_SECONDS)

    loop, stopping = asyncio.get_running_loop(), list[asyncio.Task[None]]()
    async with fake_cluster(T=4) as cluster:
        producer = transactional(cluster)
        await producer.start()
        await producer.send_in_transaction(Message("T", b"a"), execute_later if is_coroutine else execute)
        await stopping[0]
        codes = [command.code for command in cluster.broker.asked.requests]
        assert codes.index(END) < codes.index(RequestCode.UNREGISTER_CLIENT)


async def test_what_a_thread_decides_after_a_cancellation_is_told_all_the_same() -> None:
    began, may_end = threading.Event(), threading.Event()

    def execute(_message: Message) -> TransactionState:
        began.set()
        may_end.wait(30)
        return COMMIT

    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        sending = asyncio.create_task(producer.send_in_transaction(Message("T", b"a"), execute))
        await asyncio.to_thread(began.wait, 30)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert cluster.broker.asked.count(END) == 0
        may_end.set()
        (end,) = await cluster.broker.asked.wait_for(END)
    assert EndTransaction.decode(end).commit_or_rollback == 8


async def test_an_outcome_is_told_even_if_its_sender_is_cancelled_meanwhile() -> None:
    async with fake_cluster(T=4) as cluster:
        async with transactional(cluster) as producer:
            cluster.broker.answers[END] = lambda command: None

            async def execute(_message: Message) -> TransactionState:
                asyncio.get_running_loop().call_soon(sending.cancel)
                return COMMIT

            sending = asyncio.create_task(producer.send_in_transaction(Message("T", b"a"), execute, timeout_ms=2_000))
            await asyncio.gather(sending, return_exceptions=True)
            assert sending.cancelled()
        assert cluster.broker.asked.count(END) == 1  # at the latest before the producer is stopped


async def test_a_namespace_is_on_what_the_broker_sees_and_off_what_the_application_sees() -> None:
    asked_about: list[tuple[str, str]] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked_about.append((message.topic, message.queue.topic))
        return COMMIT

    async with fake_cluster() as cluster:
        cluster.topics["INST%T"] = 1
        cluster.broker.answers[SEND] = storing()
        cluster.broker.answers[END] = lambda command: command.reply()
        config = ClientConfig(namesrv=cluster.namesrv, namespace="INST")
        async with TransactionProducer("g", check=check, config=config) as producer:
            result = await producer.send_in_transaction(Message("T", b"a"), saying(COMMIT))
            await asked(cluster, producer, question("INST%g", topic="INST%T"))
            ends = [EndTransaction.decode(end) for end in await cluster.broker.asked.wait_for(END, 2)]
        (sent,) = map(SendMessage.decode, cluster.broker.asked.of(SEND))
    assert properties_string.find(sent.properties or "", "PGROUP") == "INST%g"
    assert [(end.producer_group, end.topic) for end in ends] == [("INST%g", "INST%T")] * 2
    assert (result.sent.queue.topic, asked_about) == ("T", [("T", "T")])


async def test_the_answer_to_a_question_is_shown_to_request_hooks() -> None:
    class Signing(RpcHook):
        def before_request(self, address: str, command: Command) -> None:
            command.fields["Signature"] = "s"

    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[END] = lambda command: None
        async with TransactionProducer("g", cluster.namesrv, check=saying(COMMIT), rpc_hooks=[Signing()]) as producer:
            await asked(cluster, producer, question("g"))
            (end,) = await cluster.broker.asked.wait_for(END)
    assert end.fields["Signature"] == "s"


# --- what fails, and who watches


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_what_fails_may_have_been_done_so_the_transaction_stays_open(is_coroutine: bool) -> None:
    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        with pytest.raises(OSError, match="after the commit"):
            await producer.send_in_transaction(Message("T", b"a"), failing(is_coroutine))
        assert cluster.broker.asked.count(END) == 0


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_who_knows_that_nothing_was_done_has_the_message_dropped(is_coroutine: bool) -> None:
    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        with pytest.raises(OSError, match="after the commit"):
            await producer.send_in_transaction(Message("T", b"a"), failing(is_coroutine), on_error="rollback")
        (ended,) = map(EndTransaction.decode, cluster.broker.asked.of(END))
        assert ended.commit_or_rollback == ROLLBACK


async def test_no_decision_and_a_cancellation_leave_the_transaction_open_whatever_errors_do() -> None:
    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        nothing: Any = None
        with pytest.raises(ClientError, match="execute returned None"):
            await producer.send_in_transaction(Message("T", b"a"), saying(nothing), on_error="rollback")
        began = asyncio.Event()

        async def pay(_message: Message) -> TransactionState:
            began.set()
            return await asyncio.Future()

        sending = asyncio.create_task(producer.send_in_transaction(Message("T", b"a"), pay, on_error="rollback"))
        await began.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert cluster.broker.asked.count(END) == 0


async def test_another_word_for_what_errors_do_is_refused_before_anything_is_sent() -> None:
    wrong: Any = "commit"
    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        with pytest.raises(InvalidArgument, match="on_error is 'commit'"):
            await producer.send_in_transaction(Message("T", b"a"), saying(COMMIT), on_error=wrong)
        assert cluster.broker.asked.count(SEND) == 0


def failing(is_coroutine: bool) -> Callable[..., Any]:
    def fail(_message: Message) -> TransactionState:
        raise OSError("after the commit")

    async def fail_later(_message: Message) -> TransactionState:
        raise OSError("after the commit")

    return fail_later if is_coroutine else fail


async def test_what_is_executed_knows_the_id_of_its_transaction() -> None:
    seen = []

    def pay(message: Message, order: str) -> TransactionState:
        seen.append((message.transaction_id, message.body, order))
        return COMMIT

    message = Message("T", b"a")
    async with fake_cluster(T=4) as cluster, transactional(cluster) as producer:
        results = [await producer.send_in_transaction(message, pay, str(number)) for number in range(2)]
    assert seen == [(result.sent.msg_id, b"a", str(number)) for number, result in enumerate(results)]
    assert message.transaction_id == ""  # one message may be sent in several at once


class Watching:
    def __init__(self) -> None:
        self.seen: list[EndTransactionContext] = []

    def end_transaction(self, context: EndTransactionContext) -> None:
        self.seen.append(context)
        raise RuntimeError("a hook that only watches does no harm")


@pytest.mark.parametrize("state", TransactionState)
async def test_hooks_see_what_brokers_are_told(state: TransactionState) -> None:
    hook = Watching()
    async with fake_cluster(T=4) as cluster:
        cluster.broker.answers[SEND] = storing()
        cluster.broker.answers[END] = lambda command: command.reply()
        options = ProducerOptions(end_transaction_hooks=(hook,))
        async with TransactionProducer("g", cluster.namesrv, check=saying(state), options=options) as producer:
            result = await producer.send_in_transaction(Message("T", b"a"), saying(state))
            (at_once,) = hook.seen
            await asked(cluster, producer, question("g", b"x"))
            await cluster.broker.asked.wait_for(END, 1 if state is UNKNOWN else 2)
    when_asked = hook.seen[1]
    assert (at_once.group, at_once.message, at_once.msg_id) == ("g", Message("T", b"a"), result.sent.msg_id)
    assert (at_once.address, at_once.transaction_id) == (cluster.broker.address, result.sent.msg_id)
    assert (when_asked.message.body, when_asked.from_check, at_once.from_check) == (b"x", True, False)
    assert [context.state for context in hook.seen] == [state, state]


def test_a_hook_without_its_method_is_refused() -> None:
    nothing: Any = object()
    with pytest.raises(ConfigError, match=r"end_transaction_hooks: .* has no end_transaction"):
        ProducerOptions(end_transaction_hooks=(nothing,))

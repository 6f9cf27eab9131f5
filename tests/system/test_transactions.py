"""Transactions on a real broker, through the client, the wire and the command line."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cosmodrome import (
    ConsumeFrom,
    Message,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from cosmodrome.broker.broker import Broker
from cosmodrome.clock import SystemClock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, FlushDiskType, StoreConfig
from cosmodrome.errors import CosmodromeError, InvalidMessage
from cosmodrome.model import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from cosmodrome.net.caller import Caller
from cosmodrome.store.message_store import MessageStore
from cosmodrome.wire import properties as props
from cosmodrome.wire.batch import encode_batch
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import Record, decode_records
from cosmodrome.wire.requests import EndTransaction, ResumeCheckHalfMessage, SendMessage
from tests.system.cluster import SMALL_STORE, running_broker, running_name_server
from tests.system.daemons import BROKER_CONF, up

PATIENCE_SECONDS = 60
SENDERS = 8
TOPIC, GROUP = "orders", "payments"
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
# A producer is asked as soon and as often as possible, also while it is about to answer by itself.
HASTY = BrokerConfig(
    broker_name="broker-a", transaction_time_out=0, transaction_check_interval=20, transaction_check_max=10_000
)


@dataclass
class Bank:
    """A broker, what its consumers got, and what producers are asked."""

    namesrv: str
    broker: Broker
    received: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)

    def producer(self, check: Callable[[str], TransactionState] = lambda body: UNKNOWN) -> TransactionProducer:
        def checked(message: ReceivedMessage) -> TransactionState:
            assert message.topic == TOPIC
            self.asked[message.body.decode()] += 1
            return check(message.body.decode())

        return TransactionProducer(GROUP, self.namesrv, check=checked)

    def receive(self, message: ReceivedMessage) -> None:
        self.received[message.body.decode()] += 1

    def stored(self, topic: str) -> list[Record]:
        queues = self.broker.store.queues(topic)
        views = [view for queue_id in queues for view in self.broker.store.read(topic, queue_id, 0, 32).views]
        return decode_records(b"".join(views))


@asynccontextmanager
async def bank(folder: Path, config: BrokerConfig = HASTY, store: StoreConfig = SMALL_STORE) -> AsyncIterator[Bank]:
    async with (
        running_name_server() as name_server,
        running_broker(folder, name_server.address, config, store) as broker,
    ):
        yield Bank(name_server.address, broker)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110  # what a broker or consumer has seen is no event here
            await asyncio.sleep(0.01)


def saying(state: TransactionState) -> Callable[[Message], TransactionState]:
    return lambda message: state


# --- with our client


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_what_is_committed_arrives_once_and_nothing_else(tmp_path: Path, flush: FlushDiskType) -> None:
    store = dataclasses.replace(SMALL_STORE, flush_disk_type=flush)
    async with bank(tmp_path, store=store) as shop:
        consumer = PushConsumer("billing", shop.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe(TOPIC, "*", shop.receive)
        later = {"checked-commit": COMMIT, "checked-rollback": ROLLBACK}
        states = {"commit": COMMIT, "rollback": ROLLBACK, **dict.fromkeys(later, UNKNOWN)}
        async with shop.producer(check=lambda body: later.get(body, UNKNOWN)) as producer:
            for body, state in states.items():
                result = await producer.send_in_transaction(Message(TOPIC, body.encode()), saying(state))
                assert (result.sent.status, result.state) == (SendStatus.SEND_OK, state)
                assert result.sent.transaction_id == result.sent.msg_id
            async with consumer:
                await until(lambda: set(shop.received) == {"commit", "checked-commit"})
                await until(lambda: len(shop.broker.transactions) == 0)
    assert shop.received == {"commit": 1, "checked-commit": 1}
    assert set(shop.asked) >= set(later)


async def test_an_async_application_decides_too(tmp_path: Path) -> None:
    async def pay(message: Message) -> TransactionState:
        await asyncio.sleep(0)
        return COMMIT

    async with bank(tmp_path) as shop, shop.producer() as producer:
        await producer.send_in_transaction(Message(TOPIC, b"x" * 100_000), pay)
        await until(lambda: len(shop.stored(TOPIC)) == 1)


async def test_a_failing_application_leaves_its_transaction_open(tmp_path: Path) -> None:
    def fail(_message: Message) -> TransactionState:
        raise RuntimeError("no money")

    async with bank(tmp_path) as shop, shop.producer(check=lambda body: COMMIT) as producer:
        with pytest.raises(RuntimeError, match="no money"):
            await producer.send_in_transaction(Message(TOPIC, b"a"), fail)
        await until(lambda: len(shop.stored(TOPIC)) == 1)
        with pytest.raises(InvalidMessage, match="delayed"):
            await producer.send_in_transaction(Message(TOPIC, b"b", delay_level=1), saying(COMMIT))


async def test_another_producer_of_the_group_answers_for_one_that_is_gone(tmp_path: Path) -> None:
    async with bank(tmp_path) as shop:
        async with shop.producer() as gone:
            await gone.send_in_transaction(Message(TOPIC, b"a"), saying(UNKNOWN))
        assert len(shop.broker.transactions) == 1
        async with shop.producer(check=lambda body: COMMIT):  # which sends nothing
            await until(lambda: len(shop.stored(TOPIC)) == 1)


async def test_open_transactions_outlive_a_clean_restart(tmp_path: Path) -> None:
    async with bank(tmp_path) as shop, shop.producer() as producer:
        await producer.send_in_transaction(Message(TOPIC, b"a"), saying(UNKNOWN))
        await until(lambda: shop.asked["a"] > 1)
    async with bank(tmp_path) as shop, shop.producer(check=lambda body: COMMIT) as producer:
        assert len(shop.broker.transactions) == 1
        await producer.publish_queues(TOPIC)
        await until(lambda: len(shop.stored(TOPIC)) == 1)


async def test_a_committed_message_that_is_retried_is_no_new_transaction(tmp_path: Path) -> None:
    store = dataclasses.replace(SMALL_STORE, message_delay_level="1s 1s 1s")
    async with bank(tmp_path, store=store) as shop, shop.producer() as producer:

        def fail_once(message: ReceivedMessage) -> None:
            shop.receive(message)
            if message.reconsume_times == 0:
                raise RuntimeError("not now")

        consumer = PushConsumer("billing", shop.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe(TOPIC, "*", fail_once)
        await producer.send_in_transaction(Message(TOPIC, b"a"), saying(COMMIT))
        async with consumer:
            await until(lambda: shop.received["a"] == 2)
        assert len(shop.broker.transactions) == 0


# --- over the wire


async def test_what_nobody_decides_is_given_up_and_may_be_resumed(tmp_path: Path) -> None:
    config = dataclasses.replace(HASTY, transaction_check_max=3)
    async with bank(tmp_path, config) as shop:
        decided = UNKNOWN
        async with shop.producer(check=lambda body: decided) as producer:
            await producer.send_in_transaction(Message(TOPIC, b"a"), saying(UNKNOWN))
            await until(lambda: len(shop.stored(CHECK_MAX_TIME_TOPIC)) == 1)
            assert len(shop.broker.transactions) == 0
            await until(lambda: shop.asked["a"] >= 3)  # the last question may still be on its way to its thread
            assert shop.asked == {"a": 3}
            decided = COMMIT
            (lost,) = shop.stored(CHECK_MAX_TIME_TOPIC)
            header = ResumeCheckHalfMessage(lost.offset_msg_id)
            assert await told(shop, RequestCode.RESUME_CHECK_HALF_MESSAGE, header) == (ResponseCode.SUCCESS, "")
            await until(lambda: len(shop.stored(TOPIC)) == 1)


async def test_ends_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    async with bank(tmp_path) as shop:
        for how, code, reason in (
            (0, ResponseCode.SUCCESS, ""),
            (4, ResponseCode.INVALID_PARAMETER, "commitOrRollback is 4"),
            (8, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
        ):
            answer = await told(shop, RequestCode.END_TRANSACTION, EndTransaction(GROUP, 0, 0, how))
            assert answer[0] == code
            assert reason in answer[1]
        answer = await told(shop, RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessage("nonsense"))
        assert answer[0] == ResponseCode.INVALID_PARAMETER


async def test_a_batch_is_no_transaction(tmp_path: Path) -> None:
    async with bank(tmp_path) as shop:
        header = SendMessage(GROUP, TOPIC, "TBW102", 1, 0, 0, 0, 0, "", 0, batch=True)
        body = encode_batch([(0, b"a", props.encode({"TRAN_MSG": "true"}))])
        code, reason = await told(shop, RequestCode.SEND_MESSAGE, header, body)
        assert code == ResponseCode.MESSAGE_ILLEGAL
        assert "one by one" in reason


async def test_a_broker_may_refuse_transactions(tmp_path: Path) -> None:
    config = dataclasses.replace(HASTY, reject_transaction_message=True)
    async with bank(tmp_path, config) as shop:
        header = SendMessage(GROUP, TOPIC, "TBW102", 1, 0, 0, 0, 0, props.encode({"TRAN_MSG": "true"}))
        code, reason = await told(shop, RequestCode.SEND_MESSAGE, header, b"a")
        assert code == ResponseCode.NO_PERMISSION
        assert "rejectTransactionMessage" in reason
        assert not shop.stored(HALF_TOPIC)


async def told(shop: Bank, code: int, header: object, body: bytes = b"") -> tuple[int, str]:
    caller = Caller()
    reply = await caller.call(shop.broker.address, Command.request(code, header, body), 20_000)  # type: ignore[arg-type]
    await caller.close()
    return reply.code, reply.remark or ""


# --- kill -9


def fate_of(body: bytes) -> TransactionState:
    return ROLLBACK if int(body) % 3 == 1 else COMMIT


async def test_a_broker_killed_in_the_middle_loses_no_commit_and_repeats_none(tmp_path: Path) -> None:
    conf = tmp_path / "hasty.conf"
    conf.write_text(BROKER_CONF + "transactionTimeOut=0\ntransactionCheckInterval=50\ntransactionCheckMax=10000\n")
    acknowledged: set[bytes] = set()

    def check(message: ReceivedMessage) -> TransactionState:
        return fate_of(message.body)

    with up(tmp_path / "data", "-c", str(conf)) as first:
        producer = TransactionProducer(GROUP, first.address("name server"), check=check, max_tries=1)
        async with producer:
            senders = [
                asyncio.create_task(send_until_dead(producer, range(n, 10**9, 8), acknowledged)) for n in range(8)
            ]
            await until(lambda: len(acknowledged) > 150)
            first.kill()
            await asyncio.gather(*senders)

    with up(tmp_path / "data", "-c", str(conf)) as second:
        seen: set[bytes] = set()
        wanted = {body for body in acknowledged if fate_of(body) is COMMIT}
        consumer = PushConsumer("billing", second.address("name server"), consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe(TOPIC, "*", lambda message: seen.add(message.body))
        async with TransactionProducer(GROUP, second.address("name server"), check=check) as heir, consumer:
            await heir.publish_queues(TOPIC)
            await until(lambda: wanted <= seen)
        assert second.interrupt() == 0
    found = counted(next((tmp_path / "data").rglob("commitlog")).parent)
    assert wanted <= set(found)
    assert all(fate_of(body) is COMMIT for body in found)
    assert found.total() == len(found)


async def send_until_dead(producer: TransactionProducer, numbers: range, acknowledged: set[bytes]) -> None:
    """Every third transaction is rolled back; of the others, every second is decided only when the broker asks."""
    for number in numbers:
        body = b"%d" % number
        state = UNKNOWN if number % 2 else fate_of(body)
        try:
            result: TransactionResult = await producer.send_in_transaction(Message(TOPIC, body), saying(state))
        except CosmodromeError:
            return
        assert result.sent.status is SendStatus.SEND_OK
        acknowledged.add(body)


def counted(root: Path) -> Counter[bytes]:
    config = StoreConfig().with_properties(dict(line.split("=") for line in BROKER_CONF.splitlines()))
    store = MessageStore.open(root, config, SystemClock())
    found: Counter[bytes] = Counter()
    for queue_id in store.queues(TOPIC):
        offset = 0
        while offset < store.max_offset(TOPIC, queue_id):
            result = store.read(TOPIC, queue_id, offset, 32)
            found.update(record.body for record in decode_records(b"".join(result.views)))
            offset = result.next_offset
    store.close()
    return found

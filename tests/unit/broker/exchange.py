"""A store with its transactions at work, in virtual time, and a producer that is asked about them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from cosmodrome.broker.clients import Clients, Member
from cosmodrome.broker.consumer_offsets import ConsumerOffsets
from cosmodrome.broker.topics import Topics
from cosmodrome.broker.transactions import Transactions
from cosmodrome.config import MIB, BrokerConfig, StoreConfig
from cosmodrome.model import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from cosmodrome.store import Appended, MessageStore, StoreMessage
from cosmodrome.testing import FakeClock
from cosmodrome.wire import properties as props
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import Record, SysFlag, decode_records
from cosmodrome.wire.requests import CheckTransactionState, EndTransaction
from tests.unit.store.kit import SMALL, STORE, bodies, kill, records

TOPIC, GROUP = "orders", "payments"
COMMIT, ROLLBACK, UNDECIDED = SysFlag.COMMIT, SysFlag.ROLLBACK, 0
CONFIG = BrokerConfig(broker_name="broker-a")
STORE_CONFIG = replace(SMALL, mapped_file_size_commit_log=1 * MIB, mapped_file_size_consume_queue=500 * 20)


@dataclass(eq=False)
class Producer:
    """A connection, as far as transactions know one."""

    questions: list[Command] = field(default_factory=list)
    closed: bool = False
    is_stalled: bool = False

    def send(self, command: Command) -> None:
        self.questions.append(command)

    def take(self) -> list[tuple[CheckTransactionState, Record]]:
        taken = [(CheckTransactionState.decode(q), decode_records(q.body)[0]) for q in self.questions]
        self.questions.clear()
        return taken


class Exchange:
    """From one start to one end."""

    def __init__(
        self, folder: Path, clock: FakeClock, config: BrokerConfig = CONFIG, store: StoreConfig = STORE_CONFIG
    ) -> None:
        self.clock = clock
        self.store = MessageStore.open(folder, store, clock)
        self.offsets = ConsumerOffsets(folder / "config" / "consumerOffset.json", clock)
        self.topics = Topics(config, folder / "config" / "topics.json", clock, lambda: None)
        self.clients = Clients(120_000)
        self.transactions = Transactions(
            self.store,
            self.offsets,
            self.topics,
            self.clients,
            clock,
            config,
            reserved_hours=store.file_reserved_time,
            put=self._put,
            redirect=lambda _message: None,
        )

    def _put(self, message: StoreMessage) -> Appended:
        message.store_host = STORE
        return self.store.append(message)

    def connect(self, group: str = GROUP) -> Producer:
        producer = Producer()
        self.clients.register_producer(group, producer, Member("client", "peer", 0, 0, self.clock.now_ms()))
        return producer

    def send(self, body: bytes, *, group: str = GROUP, **properties: str) -> Appended:
        marks = {"UNIQ_KEY": body.hex(), "TRAN_MSG": "true", "PGROUP": group, **properties}
        now_ms = self.clock.now_ms()
        return self.transactions.prepare(
            StoreMessage(TOPIC, 0, body, props.encode(marks), 7, SysFlag.PREPARED, now_ms, STORE, STORE)
        )

    async def end(self, half: Appended | CheckTransactionState, how: int, group: str = GROUP) -> None:
        if isinstance(half, Appended):
            request = EndTransaction(group, half.queue_offset, half.physical_offset, how)
        else:
            request = EndTransaction(group, half.tran_state_table_offset, half.commit_log_offset, how, True)
        await self.transactions.end(request)

    async def check_after(self, ms: int) -> None:
        await self.clock.advance(ms)
        await self.transactions.check()

    # --- what is there

    @property
    def delivered(self) -> Counter[bytes]:
        return Counter(bodies(self.store, TOPIC))

    @property
    def given_up(self) -> list[bytes]:
        return bodies(self.store, CHECK_MAX_TIME_TOPIC)

    def halves(self) -> list[Record]:
        return records(self.store.read(HALF_TOPIC, 0, 0, 32).views)

    def ops(self) -> list[bytes]:
        return bodies(self.store, OP_HALF_TOPIC)

    def messages(self, topic: str = TOPIC) -> list[Record]:
        return records(self.store.read(topic, 0, 0, 32).views)

    # --- the end

    async def flush(self) -> None:
        self.store.flusher.stop()  # a stopped flusher flushes once and ends
        await self.store.flusher.run()
        self.store.flusher._stopping = False

    async def save(self) -> None:
        await self.transactions.save()

    async def stop(self) -> None:
        await self.flush()
        await self.save()
        self.store.close()

    def kill(self) -> None:
        kill(self.store)

"""Transactions: half messages wait for their producer's decision; those that wait too long are asked about."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from enum import Enum
from itertools import count
from typing import NamedTuple, TypeVar, cast

from cosmodrome.broker.clients import Clients
from cosmodrome.broker.consumer_offsets import ConsumerOffsets
from cosmodrome.broker.half_messages import (
    QUEUE_ID,
    Half,
    OpenHalves,
    Rules,
    Verdict,
    check_half,
    committed,
    ended_by,
    given_up,
    half_at,
    half_of,
    judge,
    next_copy,
    op_message,
    real_place,
    resumed,
    to_half,
)
from cosmodrome.broker.skipping import HOPELESS, Skipping, looking
from cosmodrome.broker.topics import (
    TIMER_TOPIC,
    Topics,
)
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import (
    FlushTimeout,
    IllegalOperation,
    MessageIllegal,
    NoPermission,
    ProtocolError,
    RequestError,
    ServiceNotAvailable,
)
from cosmodrome.model import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    Property,
    TopicConfig,
)
from cosmodrome.net.connection import Connection
from cosmodrome.store.message import Appended, Durability, StoreMessage
from cosmodrome.store.message_store import MessageStore
from cosmodrome.troubles import Trouble
from cosmodrome.wire import properties as props
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import Record, SysFlag, decode_records
from cosmodrome.wire.requests import CheckTransactionState, EndTransaction

log = logging.getLogger(__name__)

# Apache keeps under this group how far the queues of halves and of ops are done.
GROUP = "CID_RMQ_SYS_TRANS"
# Others have their turn after so many halves; their copies are synced together.
MAX_IN_A_ROW = 64
SETTLE_EVERY_MS = 1_000
# A producer that repeats itself does so soon; later repetitions are found in the index.
REMEMBERED_ENDS = 100_000
ESCAPE_EVERY_MS = 5_000
MAX_ESCAPE_FAILURES = 3  # in one round: then the fault is hardly that of the messages
_READ_AT_ONCE = 32
_MATCHES_LOOKED_AT = 32
_HOUR_MS = 3_600_000
_BEFORE_ALL = -1
_END_OF_TIME_MS = 2**63 - 1

T = TypeVar("T")


class End(Enum):
    """How a transaction ended; the values are the sys flag's."""

    COMMIT = SysFlag.COMMIT
    ROLLBACK = SysFlag.ROLLBACK
    GIVEN_UP = 0

    @property
    def past(self) -> str:
        return {End.COMMIT: "committed", End.ROLLBACK: "rolled back", End.GIVEN_UP: "given up"}[self]


class _Ended(NamedTuple):
    how: End
    log_end: int  # what must be on disk for it to be true after a power loss


class _Question(NamedTuple):
    first: int
    producer: Connection
    command: Command
    log_end: int


class _Snapshot(NamedTuple):
    """How far everything was done when the log ended at `log_end`."""

    log_end: int
    start: int
    op_start: int


class Transactions:
    """Takes half messages in, ends their transactions, and asks producers that say nothing.

    A commit stores the message and, right behind it in the log, the op that ends the half: whatever of the log a crash
    leaves, an op is never there without its message. Only a crash between the two leaves the half open; then the
    message is found by its key, and not stored again.
    """

    def __init__(
        self,
        store: MessageStore,
        offsets: ConsumerOffsets,
        topics: Topics,
        clients: Clients,
        clock: Clock,
        config: BrokerConfig,
        *,
        reserved_hours: int,
        put: Callable[[StoreMessage], Appended],
        redirect: Callable[[StoreMessage], None],
        durable: Callable[[int, bool], Awaitable[Durability]] | None = None,
    ) -> None:
        self._store = store
        self._skipping = Skipping("transactions", store)
        self._offsets = offsets
        self._topics = topics
        self._clients = clients
        self._clock = clock
        self._trouble = Trouble(log, "transactions cannot be checked now", clock)
        self.use_config(config, reserved_hours)
        self._put = put
        self._redirect = redirect
        self._durable = durable or (lambda end, wait: store.durable(end, wait=wait))
        self._ended: dict[int, _Ended] = {}
        self._turns = count()
        self._unasked: Counter[str] = Counter()  # by group, in this round
        self._settling: _Snapshot | None = None
        self._open = self._recovered()

    # --- what is open after a start

    def use_config(self, config: BrokerConfig, reserved_hours: int) -> None:
        """Obey a config that was changed, from the next round of checks on."""
        self._config = config
        self._rules = Rules(config.transaction_time_out, config.transaction_check_max, reserved_hours * _HOUR_MS)

    def _recovered(self) -> OpenHalves:
        start, op_start = self._done(HALF_TOPIC), self._done(OP_HALF_TOPIC)
        found = OpenHalves(start, op_start)
        end = self._store.max_offset(HALF_TOPIC, QUEUE_ID)
        ended: dict[int, int] = {}  # half offset → where in the log its last op lies
        for op in self._records(OP_HALF_TOPIC, op_start):
            for offset in self._looked_at(op, ended_by) or ():
                if offset < end:  # an op that speaks of what is not there yet ends nothing, now or later
                    ended[offset] = op.physical_offset
                    found.note_op(op.queue_offset, offset)
        halves = list(self._recovered_halves(start))
        for half in halves:
            found.put(half)
        for half in halves:
            # The op of any copy ends the transaction, if it came after it.
            if ended.get(half.offset, _BEFORE_ALL) > half.physical_offset:
                found.end(half)
        for half in found.all():
            if self._has_ended(half):
                found.end(half)  # a crash came between the message and the op
        if len(found):
            log.info("%d transactions are open", len(found))
        return found

    def _recovered_halves(self, start: int) -> Iterator[Half]:
        """Every copy of a half. One that names a transaction of another message is a transaction of its own."""
        keys: dict[int, str | None] = {}
        for record in self._records(HALF_TOPIC, start):
            half = self._looked_at(record, self._half_of)
            if half is None:
                continue
            key = props.find(record.properties, Property.UNIQ_KEY)
            if keys.setdefault(half.first, key) != key:
                half = half._replace(first=half.offset)
                keys[half.first] = key
            yield half

    def _looked_at(self, record: Record, look: Callable[[Record], T]) -> T | None:
        """What a record of the two topics says; None, and a note, if it says nothing that can be used."""
        try:
            with looking():
                return look(record)
        except HOPELESS as error:
            self._skipping.skip_record(record, error)
            return None

    def recover_again(self) -> None:
        """Find out anew what is open: how far the queues are done is known from elsewhere now."""
        self._settling = None
        self._ended.clear()
        self._open = self._recovered()

    def _done(self, topic: str) -> int:
        """How far a queue was done, as far as the queue knows of it."""
        low, high = self._store.min_offset(topic, QUEUE_ID), self._store.max_offset(topic, QUEUE_ID)
        stored = self._offsets.find_offset(GROUP, topic, QUEUE_ID)
        if stored is None or stored < low:
            return low
        if stored > high:
            log.warning("%s: done up to %d of %d messages? Going on at %d", topic, stored, high, high)
        return min(stored, high)

    def _records(self, topic: str, offset: int) -> Iterator[Record]:
        while offset < self._store.max_offset(topic, QUEUE_ID):
            found, records = self._skipping.read(topic, QUEUE_ID, offset, _READ_AT_ONCE)
            yield from records
            if found.next_offset <= offset:
                return
            offset = found.next_offset

    def __len__(self) -> int:
        """How many transactions are open."""
        return len(self._open)

    def needed_from(self) -> int | None:
        """Return where in the log the oldest half message lies that is open, or of which the end is not on disk."""
        done = self._offsets.find_offset(GROUP, HALF_TOPIC, QUEUE_ID) or 0
        first = max(done, self._store.min_offset(HALF_TOPIC, QUEUE_ID))
        entry = self._store.entry(HALF_TOPIC, QUEUE_ID, first)
        return entry[0] if entry is not None else None

    # --- taking in

    def prepare(self, message: StoreMessage) -> Appended:
        """Store a half message instead of the message a producer sent."""
        if self._config.reject_transaction_message:
            raise NoPermission(
                f"the broker[{self._config.broker_name}] sending transaction message is forbidden: "
                "rejectTransactionMessage is set"
            )
        check_half(message)
        to_half(message)
        return self._put_half(message)

    def resume(self, physical_offset: int) -> None:
        """Begin anew to ask about a half message that was given up; it lies there, or the copy of it does."""
        record = self._record(physical_offset)
        if record.topic not in (HALF_TOPIC, CHECK_MAX_TIME_TOPIC):
            raise RequestError(f"the message at {physical_offset} is of topic {record.topic}, not a half message")
        half = self._half_of(record)
        if record.topic == HALF_TOPIC and self._open.find(half.first) is not None:
            raise IllegalOperation("the transaction is open: its producers are asked about it anyway")
        if self._final(record, half) is not None:
            raise IllegalOperation("the transaction was committed before")
        self._put_half(resumed(record))

    def _put_half(self, message: StoreMessage) -> Appended:
        appended = self._put(message)
        offset, physical_offset = appended.queue_offset, appended.physical_offset
        born_ms = self._store.timeline.of(message.born_timestamp)
        self._open.put(half_at(offset, physical_offset, born_ms, message.properties, self._rules))
        return appended

    # --- ending

    async def end(self, request: EndTransaction) -> None:
        """Commit or roll back, once; a repeated end is answered as the first was. RequestError when it cannot be."""
        how = End(request.commit_or_rollback)
        record = self._record(request.commit_log_offset)
        _check_named(record, request)
        half = self._half_of(record)
        last = self._open.find(half.first)
        log_end = self._end(last, record, how) if last is not None else self._end_again(half, record, how)
        wait = props.find(record.properties, Property.WAIT) != "false"
        if await self._durable(log_end, wait) is Durability.FLUSH_DISK_TIMEOUT:
            raise FlushTimeout("FLUSH_DISK_TIMEOUT: the disk did not answer in time")

    def _end(self, half: Half, record: Record, how: End) -> int:
        """End an open transaction; where the log ends then. No one else has a turn before both records are in it."""
        if how is End.ROLLBACK:
            return self._close(half, how, self._put_op(half))
        log_end = self._commit(record).end if how is End.COMMIT else self._put(given_up(record, half)).end
        try:
            log_end = self._put_op(half)
        except RequestError as error:  # what counts is stored; the op is needed only if we crash now
            log.warning("transaction %d is %s, but its op is not stored: %s", half.first, how.past, error)
        return self._close(half, how, log_end)

    def _commit(self, record: Record) -> Appended:
        message = committed(record)
        self._redirect(message)
        return self._put(message)

    def _put_op(self, half: Half) -> int:
        appended = self._put(op_message(half.offset, self._clock.now_ms()))
        self._open.note_op(appended.queue_offset, half.offset)
        return appended.end

    def _close(self, half: Half, how: End, log_end: int) -> int:
        self._open.end(half)
        self._ended[half.first] = _Ended(how, log_end)
        if len(self._ended) > REMEMBERED_ENDS:
            del self._ended[next(iter(self._ended))]
        return log_end

    def _end_again(self, half: Half, record: Record, how: End) -> int:
        """End a transaction that is not open any more: the same end is no news, another one comes too late."""
        ended = self._ended.get(half.first) or self._looked_up(half, record)
        if ended.how is End.GIVEN_UP:  # nobody expected its producer to speak again
            return self._close(half, how, self._commit(record).end if how is End.COMMIT else ended.log_end)
        if ended.how is not how:
            raise IllegalOperation(f"the transaction was {ended.how.past} before; it cannot be {how.past}")
        return ended.log_end

    def _looked_up(self, half: Half, record: Record) -> _Ended:
        """How a transaction ended that ended so long ago that it is forgotten."""
        final = self._final(record, half)
        if final is not None:
            return _Ended(End.COMMIT, final.physical_offset + final.total_size)
        found = self._find(CHECK_MAX_TIME_TOPIC, record)
        if any(self._half_of(copy).first == half.first for copy in found):
            return _Ended(End.GIVEN_UP, 0)
        return _Ended(End.ROLLBACK, 0)

    def _has_ended(self, half: Half) -> bool:
        try:
            return self._looked_up(half, self._record(half.physical_offset)).how is not End.ROLLBACK
        except (RequestError, ProtocolError):  # it does not say where it belongs
            return False

    def _final(self, record: Record, half: Half) -> Record | None:
        """The message that a commit of this transaction stored."""
        for topic in (real_place(record)[0], SCHEDULE_TOPIC, TIMER_TOPIC):
            for found in self._find(topic, record):
                if found.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.COMMIT and self._is_of(found, half):
                    return found
        return None

    def _is_of(self, final: Record, half: Half) -> bool:
        try:
            prepared = self._record(final.prepared_transaction_offset)
        except (RequestError, ProtocolError):
            return False
        return prepared.topic == HALF_TOPIC and self._half_of(prepared).first == half.first

    def _find(self, topic: str, record: Record) -> list[Record]:
        """Messages of a topic with the unique key of this one, and not older."""
        key = props.find(record.properties, Property.UNIQ_KEY)
        if key is None:
            return []
        since_ms, until_ms = record.store_timestamp, max(self._clock.now_ms(), record.store_timestamp)
        if self._store.timeline.was_set_since(record.physical_offset):
            since_ms, until_ms = 0, _END_OF_TIME_MS
        views = self._store.find_by_key(topic, key, _MATCHES_LOOKED_AT, since_ms, until_ms)
        return [record for view in views for record in self._sound(view)]

    def _sound(self, view: memoryview) -> list[Record]:
        """Return what a view holds; what has the same key may be damaged, and is then not what is looked for."""
        try:
            return decode_records(view)
        except ProtocolError:
            return []

    def _half_of(self, record: Record) -> Half:
        """Its age counts on the store's timeline, however the clock was set since."""
        return half_of(record, self._rules)._replace(born_ms=self._store.timeline.of(record.born_timestamp))

    def _record(self, physical_offset: int) -> Record:
        view = self._store.record_at(physical_offset)
        if view is None:
            raise RequestError(f"Find prepared transaction message failed: no message lies at {physical_offset}")
        (record,) = decode_records(view)
        return record

    # --- asking

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._checks())
            tasks.create_task(self._settlements())

    async def _checks(self) -> None:
        while True:
            await self._clock.sleep(self._config.transaction_check_interval)
            try:
                await self.check()
                self._trouble.over()
            except (OSError, RequestError) as error:  # a full disk passes; whatever waits, waits
                self._trouble.met(error)
            except Exception:  # ours; it must not end the broker
                log.exception("transactions cannot be checked now; trying again")

    # --- at a slave that acts as its master

    async def run_acting(self, escape: Callable[[StoreMessage, str], Awaitable[None]]) -> None:
        """Let every open transaction begin anew at another broker, which asks its producer."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._escapes(escape))
            tasks.create_task(self._settlements())

    async def _escapes(self, escape: Callable[[StoreMessage, str], Awaitable[None]]) -> None:
        while True:
            try:
                await self.escape_open(escape)
            except (OSError, RequestError) as error:
                log.error("open transactions cannot be handed to another broker now: %s; trying again", error)
            except Exception:  # ours; it must not end the broker
                log.exception("open transactions cannot be handed to another broker now; trying again")
            await self._clock.sleep(min(self._config.transaction_check_interval, ESCAPE_EVERY_MS))

    async def escape_open(self, escape: Callable[[StoreMessage, str], Awaitable[None]]) -> None:
        """Hand every open half to another broker. One that none takes stays open, for the master."""
        failures = 0
        for half in self._open.all():
            try:
                record = self._record(half.physical_offset)
                topic, queue_id = real_place(record)
                await escape(StoreMessage.again(record, topic, queue_id, record.properties), topic)
            except HOPELESS as error:  # the master will give it up
                log.error("half message %d cannot be handed to another broker: %s", half.offset, error)
                continue
            except RequestError as error:
                failures += 1
                if failures >= MAX_ESCAPE_FAILURES:
                    raise
                log.error("half message %d waits: %s", half.offset, error)
                continue
            self._open.end(half)

    async def check(self) -> None:
        """Ask about every transaction that has been open for too long; give up those asked about too often."""
        now_ms, end = self._store.timeline.now_ms(), self._open.next_offset
        verdicts = ((half, judge(half, now_ms, self._rules, end)) for half in self._open.all())
        due = [(half, verdict) for half, verdict in verdicts if verdict is not Verdict.WAIT]
        for begin in range(0, len(due), MAX_IN_A_ROW):
            questions = [self._handle(half, verdict) for half, verdict in due[begin : begin + MAX_IN_A_ROW]]
            await self._ask([question for question in questions if question is not None])
            await asyncio.sleep(0)
        for group, number in self._unasked.items():
            log.warning("no producer of group %r is connected; %d of its transactions wait for one", group, number)
        self._unasked.clear()

    def _handle(self, half: Half, verdict: Verdict) -> _Question | None:
        if self._open.find(half.first) != half:  # it ended meanwhile
            return None
        if half.physical_offset < self._store.min_physical_offset:
            log.error("half message %d was deleted from the store undecided", half.offset)
            self._open.end(half)
            return None
        try:
            if self._is_gone(half.physical_offset):
                raise MessageIllegal("its record is gone")
            return self._act(half, self._record(half.physical_offset), verdict)
        except Exception as error:  # whatever it is, it must not stop the other transactions
            if self._skipping.gives_up(HALF_TOPIC, QUEUE_ID, half.offset, error):
                self._drop(half, error)
            elif isinstance(error, RequestError):
                log.error("half message %d: %s; trying again at the next check", half.offset, error)
            else:
                log.exception("half message %d cannot be checked; trying again at the next check", half.offset)
        return None

    def _is_gone(self, physical_offset: int) -> bool:
        """Whether no record can be read there though the log is readable that far: trying again cannot mend that."""
        readable_to = self._store.max_physical_offset - self._store.dispatch_behind_bytes
        return physical_offset < readable_to and self._store.record_at(physical_offset) is None

    def _drop(self, half: Half, error: Exception) -> None:
        """End a transaction that can be neither asked about nor given up; an operator finds it in the register."""
        try:
            self._put_op(half)
        except RequestError as refusal:
            log.error("half message %d: %s; trying again at the next check", half.offset, refusal)
            return
        self._skipping.skip(HALF_TOPIC, QUEUE_ID, half.offset, error)
        self._open.end(half)

    def _act(self, half: Half, record: Record, verdict: Verdict) -> _Question | None:
        if verdict is not Verdict.GIVE_UP:
            try:
                if verdict is Verdict.CHECK:
                    return self._check(half, record)
                self._put_half(next_copy(record, half, half.checks))
                return None
            except HOPELESS as error:  # it could never be delivered, nor can another copy be stored
                self._skipping.skip_record(record, f"it is given up: {error}")
        self._give_up(half, record)
        return None

    def _give_up(self, half: Half, record: Record) -> None:
        if self._topics.find_topic(CHECK_MAX_TIME_TOPIC) is None:
            self._topics.put(TopicConfig(CHECK_MAX_TIME_TOPIC, 1, 1))
        self._end(half, record, End.GIVEN_UP)
        log.warning(
            "transaction %s is given up after %d checks; its message is in %s",
            props.find(record.properties, Property.UNIQ_KEY),
            half.checks,
            CHECK_MAX_TIME_TOPIC,
        )

    def _check(self, half: Half, record: Record) -> _Question | None:
        """Note in a copy of the half that it was asked about, also when nobody is there to be asked."""
        topic, queue_id = real_place(record)
        group = props.find(record.properties, Property.PGROUP) or ""
        producers = [cast(Connection, member) for member in self._clients.producers(group)]
        ready = [producer for producer in producers if not (producer.closed or producer.is_stalled)]
        if producers and not ready:
            return None  # they have more to read than they can; it does not count
        message = next_copy(record, half, half.checks + 1)
        appended = self._put_half(message)
        if not ready:
            self._unasked[group] += 1
            return None
        key = props.find(record.properties, Property.UNIQ_KEY)
        asked = CheckTransactionState(
            appended.queue_offset,
            appended.physical_offset,
            key,
            key,
            appended.msg_id,
            topic,
            self._config.broker_name,
        )
        copy = dataclasses.replace(
            record,
            topic=topic,
            queue_id=queue_id,
            properties=message.properties,
            queue_offset=appended.queue_offset,
            physical_offset=appended.physical_offset,
            store_timestamp=appended.store_timestamp,
        )
        command = Command.request(RequestCode.CHECK_TRANSACTION_STATE, asked, copy.encode(), oneway=True)
        return _Question(half.first, ready[next(self._turns) % len(ready)], command, appended.end)

    async def _ask(self, questions: list[_Question]) -> None:
        """Send what is still to be asked once the copies are on disk: an answer may name no half that is not there."""
        if not questions:
            return
        try:
            await self._store.durable(questions[-1].log_end)
        except RequestError as error:
            log.error("%d transactions are not asked about: %s", len(questions), error)
            return
        for question in questions:
            if self._open.find(question.first) is None:
                continue
            try:
                question.producer.send(question.command)
            except ProtocolError as error:  # its properties fit no frame of this producer's
                log.error("transaction %d: its producer cannot be asked: %s", question.first, error)

    # --- how far everything is done

    async def _settlements(self) -> None:
        while True:
            await self._clock.sleep(SETTLE_EVERY_MS)
            self.settle()

    async def save(self) -> list[str]:
        """Write down how far the queues are done. A full disk is logged and returned; a restart reads a little more."""
        self.settle()
        await self._store.skipped.saved()
        try:
            await self._offsets.saved()
        except ServiceNotAvailable as error:
            log.error("%s", error)
            return [str(error)]
        return []

    def settle(self) -> None:
        """Let be saved how far the queues are done. That never runs ahead of the disk: a copy of a half must be there
        before the half it stands for is passed."""
        self._settle_if_flushed()
        if self._settling is None and self._open.next_offset > 0:
            start = self._open.start
            self._settling = _Snapshot(self._store.max_physical_offset, start, self._open.take_op_start())
            self._settle_if_flushed()

    def _settle_if_flushed(self) -> None:
        done = self._settling
        if done is not None and done.log_end <= self._store.flusher.flushed:
            self._offsets.commit(GROUP, HALF_TOPIC, QUEUE_ID, done.start)
            self._offsets.commit(GROUP, OP_HALF_TOPIC, QUEUE_ID, done.op_start)
            self._settling = None


def _check_named(record: Record, request: EndTransaction) -> None:
    """The request speaks of the half message that lies there."""
    if record.topic != HALF_TOPIC:
        raise RequestError("Find prepared transaction message failed: the message there is none")
    if props.find(record.properties, Property.PGROUP) != request.producer_group:
        raise RequestError("The producer group wrong")
    if record.queue_offset != request.tran_state_table_offset:
        raise RequestError("The transaction state table offset wrong")

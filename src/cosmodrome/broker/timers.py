"""Any delivery time: messages wait in the timer topic, each in the wheel's slot of its second, until it has come."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from cosmodrome.broker.delays import delivered, put_done
from cosmodrome.broker.pop.messages import is_ack
from cosmodrome.broker.skipping import Skipping, looking
from cosmodrome.broker.timer_metrics import TimerMetrics
from cosmodrome.broker.topics import TIMER_TOPIC
from cosmodrome.clock import Clock
from cosmodrome.config import StoreConfig
from cosmodrome.errors import MessageIllegal, ProtocolError, RequestError, ServiceNotAvailable
from cosmodrome.model import RETRY_PREFIX, REVIVE_PREFIX, Property, check_topic
from cosmodrome.numbers import MAX_INT, parse_int, shown
from cosmodrome.store.consume_queues import is_topic
from cosmodrome.store.message import StoreMessage
from cosmodrome.store.message_store import MessageStore
from cosmodrome.store.rot import MessageDamaged
from cosmodrome.store.timer_checkpoint import TimerCheckpoint
from cosmodrome.store.timer_log import Unit, delete_files
from cosmodrome.store.timer_store import MAX_WINDOW_MS, SECOND_MS, Timer, TimerStore
from cosmodrome.store.timer_wheel import WheelDamaged
from cosmodrome.troubles import Trouble
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import TimerMetricsBody
from cosmodrome.wire.java import java_hash
from cosmodrome.wire.recall_handle import RecallHandle
from cosmodrome.wire.record import Record, RecordHead, decode_records, head_at

log = logging.getLogger(__name__)

_QUEUE = 0

# Others have their turn after so many messages, units of the timer log, or empty seconds.
MESSAGES_IN_A_ROW = 64
UNITS_IN_A_ROW = 2_000
SECONDS_IN_A_ROW = 5_000
FLUSH_POLL_MS = 50
CLEAN_EVERY_MS = 30_000

# What a timed message's properties grow by until it is delivered.
_NOTES_BYTES = 160
NEVER_SET = 2**63 - 1  # in TIMER_ENQUEUE_MS: its time had come before it could be set

# With the unit of each; of several, the first counts. Times from now on, except those in `_ABSOLUTE`.
_ASKS = {
    Property.TIMER_DELAY_SEC: 1_000,
    Property.TIMER_DELAY_MS: 1,
    Property.TIMER_DELIVER_MS: 1,
    Property.START_DELIVER_TIME: 1,
}
MAX_ASKED = 10**15  # more is no time: milliseconds of 30,000 years
DELIVER_MARK = "DELIVER"  # a part of the names of both absolute times; the others have Property.DELAY in theirs
_ABSOLUTE = (Property.TIMER_DELIVER_MS, Property.START_DELIVER_TIME)
_Origin = tuple[str | None, ...]  # of the records of one timed message


def is_timed(properties: str) -> bool:
    """Whether a message asks for a delivery time and has not been through the wheel yet."""
    if not any(name in properties for name in _ASKS):
        return False
    asks = any(props.find(properties, name) is not None for name in _ASKS)
    return asks and props.find(properties, Property.TIMER_OUT_MS) is None


def deliver_at(properties: str, now_ms: int) -> int:
    """The time a timed message asks for; MessageIllegal when that is no number."""
    for name, unit_ms in _ASKS.items():
        text = props.find(properties, name)
        if text is None:
            continue
        number = parse_int(text, low=-MAX_ASKED, high=MAX_ASKED)
        if number is None:
            raise MessageIllegal(f"the property {name} is {shown(text)}; write a whole number of up to {MAX_ASKED:,}")
        return (0 if name in _ABSOLUTE else now_ms) + number * unit_ms
    return now_ms


def slot_of(deliver_ms: int) -> int:
    """The second in whose slot a message waits. Slots are emptied when their second is over: none comes early."""
    return (deliver_ms - 1) // SECOND_MS * SECOND_MS


def recall_handle(message: StoreMessage, broker_name: str) -> str | None:
    """How its sender can take a message back; None for one that does not wait in the timer topic."""
    topic = props.find(message.properties, Property.REAL_TOPIC) or ""
    if message.topic != TIMER_TOPIC or topic.startswith(RETRY_PREFIX):
        return None
    deliver_ms = (parse_int(props.find(message.properties, Property.TIMER_OUT_MS)) or 0) + 1  # back into the same slot
    unique_key = props.find(message.properties, Property.UNIQ_KEY) or ""
    return RecallHandle(topic, broker_name, deliver_ms, unique_key).encode()


class Timers:
    """Delivers what waits in `rmq_sys_wheel_timer`, within a second of its time.

    At every full second new messages are entered into the wheel, in the order of their queue, and then the slots of the
    seconds that are over are emptied. A message further ahead than the window is put behind the others again in
    between, so that its record never grows older than the store keeps records. Seconds are those of the store's
    `Timeline`: a date is turned into a wait when the message comes, and setting the clock later changes nothing. A
    delivery and the note of it are one step: a clean stop neither loses nor repeats a message. After kill -9 the last
    ones may come again.
    """

    def __init__(
        self,
        store: MessageStore,
        config: StoreConfig,
        root: Path,
        clock: Clock,
        put: Callable[[StoreMessage], object],
        *,
        of_slave: bool = False,
    ) -> None:
        self._store = store
        self._root = root
        self._skipping = Skipping("timers", store)
        self._config = config
        self._clock = clock
        self._trouble = Trouble(log, "timed messages cannot be delivered now", clock)
        self._unsaved = Trouble(log, "cannot save how far timed messages are delivered", clock)
        self._put = put
        reserved_ms = config.file_reserved_time * 3_600_000
        self._window_ms = min(config.timer_roll_window_slot * SECOND_MS, MAX_WINDOW_MS, reserved_ms * 2 // 3)
        self.metrics = TimerMetrics(root / "config" / "timermetrics", clock)
        self.pending = TimerStore.of_slave(root, config.mapped_file_size_timer_log) if of_slave else self._opened(root)
        if self.pending.is_replaying:
            self.metrics.clear()
        self._superseded: dict[_Origin, int] | None = None  # while timers are set again: how often each was put back
        self._now_ms = self.pending.read_ms  # the second up to which slots may be emptied; never goes back
        self._aside: asyncio.Future[None] | None = None
        self._delivered_elsewhere: list[tuple[int, int]] = []  # below this queue offset, what was due before this time
        self._is_acting = False
        self._on_revive_record: Callable[[Record], None] = lambda _: None

    def _opened(self, root: Path) -> TimerStore:
        store = self._store
        return TimerStore.open(
            root,
            self._config.mapped_file_size_timer_log,
            store.timeline.now_ms(),
            store.max_physical_offset,
            range(store.min_offset(TIMER_TOPIC, _QUEUE), store.max_offset(TIMER_TOPIC, _QUEUE)),
            self._is_true,
        )

    # --- at a slave

    async def adopt(self, checkpoint: TimerCheckpoint) -> None:
        """Take over and save how far a slave's master has delivered."""
        work = self.pending.adopt(checkpoint)
        if work is not None:
            await self._in_thread(work)

    async def adopt_metrics(self, table: TimerMetricsBody) -> None:
        """Take over and save how many timers wait at a slave's master."""
        self.metrics.adopt(table)
        await self.metrics.saved()

    def fit(self) -> None:
        """Forget what a slave was told of messages that it has lost: its log was cut."""
        end, told = self._store.max_offset(TIMER_TOPIC, _QUEUE), self.pending.checkpoint
        if told.queue_offset > end and (work := self.pending.adopt(dataclasses.replace(told, queue_offset=end))):
            work()

    def begin_acting(self, on_revive_record: Callable[[Record], None]) -> None:
        """Set the timers from the timer topic, as the slave of a master that is away, and deliver from then on.

        `on_revive_record` is called for every checkpoint and ack of pops that is set.
        """
        if not self._config.timer_wheel_enable:
            return
        self._is_acting, self._on_revive_record = True, on_revive_record
        self.pending.close()
        self.pending = self._opened(self._root)
        if self.pending.is_replaying:
            self.metrics.clear()
        self._superseded, self._now_ms = None, self.pending.read_ms

    async def end_acting(self) -> None:
        """Keep how far everything is delivered, for the master to take back; `run` has ended."""
        if not self._is_acting:
            return
        self._is_acting, self._on_revive_record = False, lambda _: None
        if self._aside is not None:
            with suppress(OSError):
                await self._aside
        before = self.pending
        before.close()
        self.pending = TimerStore.of_slave(self._root, self._config.mapped_file_size_timer_log)
        if not before.is_replaying:  # else it has delivered nothing that counts
            await self.adopt(before.checkpoint)

    def take_back(self, checkpoint: TimerCheckpoint, known_to: Callable[[str, int, int], int]) -> None:
        """Leave out what the slave has delivered that acted as this master, as `Delays.take_back` does. That is known
        until the next start, which asks the slave again."""
        below = known_to(TIMER_TOPIC, _QUEUE, checkpoint.queue_offset)
        if below > 0:
            self._delivered_elsewhere.append((below, checkpoint.read_ms))

    def _was_delivered_elsewhere(self, queue_offset: int, out_ms: int, properties: str) -> bool:
        """Whether a slave has delivered it. Acks of pops never count: a checkpoint may be left that needs them."""
        due_ms = out_ms - out_ms % SECOND_MS
        told = any(queue_offset < below and due_ms < read_ms for below, read_ms in self._delivered_elsewhere)
        return told and not is_ack(properties)

    # --- taking messages in

    @property
    def max_delay_ms(self) -> int:
        return self._config.timer_max_delay_sec * 1_000

    @property
    def is_enabled(self) -> bool:
        return self._config.timer_wheel_enable

    @property
    def delivered_ms(self) -> int:
        """Everything that was due before this time has been put where it belongs."""
        return self.pending.read_ms

    @property
    def unset(self) -> int:
        """How many messages of the timer topic are not in the wheel yet."""
        return max(self._store.max_offset(TIMER_TOPIC, _QUEUE) - self.pending.queue_offset, 0)

    @property
    def has_set_all(self) -> bool:
        """Whether every message of the timer topic is in the wheel for which there is room."""
        return self.unset == 0 or not self.pending.has_room(self._now_ms)

    def needed_from(self) -> int | None:
        """Return where in the log the first message lies that is not delivered, or whose copy is not on disk."""
        first = max(self.pending.saved_queue_offset, self._store.min_offset(TIMER_TOPIC, _QUEUE))
        entry = self._store.entry(TIMER_TOPIC, _QUEUE, first)
        places = (self.pending.needed_from(), entry[0] if entry is not None else None)
        return min((place for place in places if place is not None), default=None)

    def to_wheel(self, message: StoreMessage) -> None:
        """Let a timed message wait in the timer topic, unless its time has already come."""
        timeline = self._store.timeline
        now_ms = timeline.date(timeline.now_ms())
        if not self._config.timer_wheel_enable:
            raise RequestError("accurate timer message is not enabled, timerWheelEnable is false")
        deliver_ms = deliver_at(message.properties, now_ms)
        if deliver_ms <= now_ms:
            if props.find(message.properties, Property.TIMER_DEL_UNIQKEY) is not None:
                raise MessageIllegal("it is too late to take the message back: its time has come")
            return
        self.check_time(deliver_ms, now_ms)
        _check_deletion(message)
        if len(message.properties.encode()) + len(message.topic) + _NOTES_BYTES > props.MAX_SIZE_BYTES:
            raise MessageIllegal("the properties leave no room for those of a timed message; make them shorter")
        slot_ms = slot_of(timeline.ahead(deliver_ms))
        if self.pending.count(slot_ms) >= self._config.timer_congest_num_each_slot:
            raise RequestError("timer message is under flow control, too many are due in the same second")
        notes = {
            Property.TIMER_OUT_MS: str(slot_ms),
            Property.REAL_TOPIC: message.topic,
            Property.REAL_QID: str(message.queue_id),
        }
        message.properties = props.encode(props.decode(message.properties) | notes)
        message.topic, message.queue_id = TIMER_TOPIC, _QUEUE

    def check_time(self, deliver_ms: int, now_ms: int) -> None:
        """Refuse a time that lies too far ahead, and any time if the wheel is off."""
        if not self._config.timer_wheel_enable:
            raise RequestError("accurate timer message is not enabled, timerWheelEnable is false")
        if deliver_ms - now_ms > self.max_delay_ms:
            raise MessageIllegal(
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{self.max_delay_ms}ms (timerMaxDelaySec)"
            )

    # --- life

    async def run(self) -> None:
        if not self._config.timer_wheel_enable:
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._rounds())
            tasks.create_task(self._saves())

    async def _rounds(self) -> None:
        while True:
            try:
                await self._round()
                self._trouble.over()
            except (OSError, RequestError) as error:  # a full disk passes; whatever waits, waits
                self._trouble.met(error)
            except Exception:  # ours; it must not end the broker
                log.exception("timed messages cannot be delivered now; trying again")
            await self._clock.sleep(SECOND_MS - self._store.timeline.now_ms() % SECOND_MS)

    async def _round(self) -> None:
        now_ms = self._store.timeline.now_ms()
        self._now_ms = max(self._now_ms, now_ms - now_ms % SECOND_MS)
        try:
            await self._set_new()
            await self._empty_slots()
        except WheelDamaged as damage:
            self._mend(str(damage))
            await self._set_new()
            await self._empty_slots()

    def _mend(self, reason: str) -> None:
        """Build wheel or log again; what is pending is delivered as if nothing had been."""
        first, end = self._store.min_offset(TIMER_TOPIC, _QUEUE), self._store.max_offset(TIMER_TOPIC, _QUEUE)
        self.pending.mend(reason, range(first, end))
        self._superseded = None
        if self.pending.is_replaying:
            self.metrics.clear()

    async def _saves(self) -> None:
        rounds = max(CLEAN_EVERY_MS // self._config.timer_flush_interval_ms, 1)
        while True:
            for _ in range(rounds):
                await self._clock.sleep(self._config.timer_flush_interval_ms)
                await self._save()
                self.pending.needed_from()  # after a start, it finds its place a little at a time
            expired = self.pending.log.take_expired(self._store.min_physical_offset)
            if expired:
                await self._in_thread(partial(delete_files, expired))

    async def _save(self) -> None:
        """Note what is delivered, once it is on disk."""
        work = self.pending.take_checkpoint(self._clock.now_ms())
        if work is None or not await self._flushed(self._store.max_physical_offset):
            return
        await self._store.skipped.saved()
        try:
            await self._in_thread(work)
            await self.metrics.saved()
            self._unsaved.over()
        except (OSError, ServiceNotAvailable) as error:
            self._unsaved.met(error)

    async def _flushed(self, end: int) -> bool:
        """Return once the log is on disk up to `end`; False if it never will be."""
        flusher = self._store.flusher
        flusher.want(end)
        while flusher.flushed < end:
            if flusher.failure is not None:
                return False
            await self._clock.sleep(FLUSH_POLL_MS)
        return True

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Shielded, for a thread cannot be cancelled; `close` waits for it."""
        self._aside = asyncio.ensure_future(asyncio.to_thread(work))
        await asyncio.shield(self._aside)

    async def close(self) -> list[str]:
        """Note where everything stands and let go of the files; return what could not be noted. The service has ended,
        the flusher too."""
        if self._aside is not None:
            with suppress(OSError):
                await self._aside
        try:
            work = self.pending.take_checkpoint(self._clock.now_ms(), always=True)
            if work is not None and self._store.flusher.flushed >= self._store.max_physical_offset:
                await asyncio.to_thread(work)
            await self.metrics.saved()
        except (OSError, ServiceNotAvailable) as error:
            log.error("cannot save how far timed messages are delivered: %s; some may come again", error)
            return [f"how far timed messages are delivered: {error}"]
        finally:
            self.pending.close()
        return []

    # --- from the queue into the wheel

    async def _set_new(self) -> None:
        """Enter what is in the queue now; what comes meanwhile waits for the next second."""
        self._skip_deleted()
        if self.pending.is_replaying and self._superseded is None:
            self._superseded = await self._find_superseded()
        end = self._store.max_offset(TIMER_TOPIC, _QUEUE)
        while self.pending.queue_offset < end and self.pending.has_room(self._now_ms):
            for _ in range(min(MESSAGES_IN_A_ROW, end - self.pending.queue_offset)):
                await self._set_next()
            await asyncio.sleep(0)
        if not self.pending.is_replaying:
            self._superseded = None

    async def _find_superseded(self) -> dict[_Origin, int]:
        """How often each message was put behind the others: of several records of one, only the last is to be set."""
        found: dict[_Origin, int] = {}
        first, end = self.pending.queue_offset, self._store.max_offset(TIMER_TOPIC, _QUEUE)
        for offset in range(first, end):
            with suppress(ProtocolError, MessageDamaged):  # it is left out when it is to be set
                entry = self._store.entry(TIMER_TOPIC, _QUEUE, offset)
                view = self._store.record_at(entry[0]) if entry is not None else None
                if view is not None:
                    head = head_at(view, 0, len(view))
                    turns = _turns(head.properties)
                    if turns and props.find(head.properties, Property.UNIQ_KEY) is not None:
                        found[_origin(head)] = max(turns, found.get(_origin(head), 0))
            if offset % MESSAGES_IN_A_ROW == 0:
                await asyncio.sleep(0)
        return found

    def _skip_deleted(self) -> None:
        first = self._store.min_offset(TIMER_TOPIC, _QUEUE)
        if self.pending.queue_offset < first:
            gone = first - self.pending.queue_offset
            log.error("%d timed messages were deleted from the store before they could be set", gone)
            self.pending.queue_offset = first

    async def _set_next(self) -> None:
        pending = self.pending
        offset = pending.queue_offset
        try:
            await self._set(offset)
        except Exception as error:
            if not self._skipping.gives_up(TIMER_TOPIC, _QUEUE, offset, error):
                raise
            self._skipping.skip(TIMER_TOPIC, _QUEUE, offset, error)
        pending.queue_offset = offset + 1

    async def _set(self, offset: int) -> None:
        entry = self._store.entry(TIMER_TOPIC, _QUEUE, offset)
        view = self._store.record_at(entry[0]) if entry is not None else None
        if view is None:
            raise MessageIllegal("its record is gone")
        with looking():
            head = head_at(view, 0, len(view))
            timer, topic = _timer(head)
        if (head.topic, head.queue_id, head.queue_offset) != (TIMER_TOPIC, _QUEUE, offset):
            raise MessageIllegal("its place in the queue was never filled")
        if self._is_acting and topic.startswith(REVIVE_PREFIX):
            with looking():
                self._on_revive_record(decode_records(view)[0])
        if self.pending.is_known(timer.physical_offset) or self._was_delivered_elsewhere(
            offset, timer.due_ms, head.properties
        ):
            return
        if self._superseded and _turns(head.properties) < self._superseded.get(_origin(head), 0):
            return
        if self.pending.set(timer, self._now_ms, self._window_ms):
            self.metrics.add(topic, -1 if timer.deletes else 1)
        elif offset < self.pending.replayed_below:
            pass  # it was delivered, or taken back, before
        elif timer.deletes:
            log.warning("%s: too late to take a message back", topic)
        else:
            with looking():
                message = _noted(decode_records(view)[0], NEVER_SET, self._clock.now_ms())
            await put_done(self._put(message))

    # --- from the wheel to where they belong

    async def _empty_slots(self) -> None:
        pending = self.pending
        while pending.read_ms < self._now_ms:
            until_ms = min(pending.read_ms + SECONDS_IN_A_ROW * SECOND_MS, self._now_ms)
            pending.skip_empty(until_ms)
            if pending.read_ms < until_ms:
                await self._empty_slot()
                pending.next_second()
            await asyncio.sleep(0)

    async def _empty_slot(self) -> None:
        """Deliver what is due in the second being read, in the order it was set, but nothing that was taken back."""
        positions, deletions = await self._due()
        used: set[str] = set()
        for number in range(self.pending.delivered, len(positions)):
            unit = self.pending.log.find(positions[-1 - number])
            if unit is not None:
                await self._deliver(unit, deletions, used)
            self.pending.unit_delivered()
            if number % MESSAGES_IN_A_ROW == 0:
                await asyncio.sleep(0)
        for topic in (key.rpartition("+")[0] for key in deletions - used):  # there was nothing to take back
            if is_topic(topic):
                self.metrics.add(topic, 1)

    async def _due(self) -> tuple[array[int], set[str]]:
        """Where the units of the slot lie, the last one first, and which messages of it were taken back."""
        positions, deletions = array("q"), set[str]()
        for number, (position, unit) in enumerate(self.pending.due(), 1):
            if not unit.is_deletion or unit.is_rolled:
                positions.append(position)
            elif (key := self._deletion(unit)) is not None:
                deletions.add(key)
            if number % UNITS_IN_A_ROW == 0:
                await asyncio.sleep(0)
        return positions, deletions

    def _deletion(self, unit: Unit) -> str | None:
        record = self._record(unit)
        return props.find(record.properties, Property.TIMER_DEL_UNIQKEY) if record is not None else None

    async def _deliver(self, unit: Unit, deletions: set[str], used: set[str]) -> None:
        record = self._record(unit)
        if record is None:
            self._skipping.skip_lost(TIMER_TOPIC, _QUEUE, unit.physical_offset)
            return
        topic = props.find(record.properties, Property.REAL_TOPIC) or ""
        key = deletion_key(topic, props.find(record.properties, Property.UNIQ_KEY) or "")
        if key in deletions:
            used.add(key)
            return
        out_ms = parse_int(props.find(record.properties, Property.TIMER_OUT_MS), high=MAX_ASKED) or 0
        if self._was_delivered_elsewhere(record.queue_offset, out_ms, record.properties):
            self.metrics.add(topic, 1 if unit.is_deletion else -1)
            return
        try:
            if unit.is_rolled and self._is_acting and self._set_once_more(record, out_ms):
                return
            convert = _rolled if unit.is_rolled and not self._is_acting else _noted
            with looking():
                message = convert(record, unit.set_at_ms, self._clock.now_ms())
            await put_done(self._put(message))
        except Exception as error:
            if not self._skipping.gives_up(TIMER_TOPIC, _QUEUE, record.queue_offset, error):
                raise
            self._skipping.skip_record(record, error)
        self.metrics.add(topic, 1 if unit.is_deletion else -1)

    def _set_once_more(self, record: Record, out_ms: int) -> bool:
        """Set a timer that is too far ahead again by its old record: a slave writes no other. False if it is due."""
        topic = props.find(record.properties, Property.REAL_TOPIC) or ""
        deletes = props.find(record.properties, Property.TIMER_DEL_UNIQKEY) is not None
        timer = Timer(out_ms, record.physical_offset, record.total_size, java_hash(topic), deletes)
        return self.pending.set(timer, self._now_ms, self._window_ms)

    def _is_true(self, unit: Unit) -> bool:
        """Whether a unit without a checksum says what its message does; of one whose record is gone, nobody knows."""
        if unit.physical_offset < self._store.min_physical_offset:
            return True
        record = self._record(unit)
        if record is None:
            return False
        out_ms = props.find(record.properties, Property.TIMER_OUT_MS) or ""
        return unit.is_rolled or out_ms[:-3] == str(unit.due_ms)[:-3]

    def _record(self, unit: Unit) -> Record | None:
        """The record a unit was made for; None when it is gone or damaged, or something else lies there."""
        try:
            view = self._store.record_at(unit.physical_offset)
        except MessageDamaged:
            return None
        if view is None or len(view) != unit.size:
            return None
        try:
            (record,) = decode_records(view)
        except ProtocolError:
            return None
        return record if record.topic == TIMER_TOPIC else None


def deletion_key(topic: str, unique_key: str) -> str:
    """How a deletion names the message it takes back."""
    return f"{topic}+{unique_key}"


def _check_deletion(message: StoreMessage) -> None:
    """Refuse to take back a message of another topic: the wheel holds the records of pops and of other senders too."""
    key = props.find(message.properties, Property.TIMER_DEL_UNIQKEY)
    if key is not None and not key.startswith(deletion_key(message.topic, "")):
        raise MessageIllegal(
            f"the property {Property.TIMER_DEL_UNIQKEY} is {key[:200]!r}; write {message.topic}+ and the unique key of "
            "a message of this topic"
        )


def _timer(head: RecordHead) -> tuple[Timer, str]:
    """What to set for a record of the timer topic, and where it belongs."""
    time = props.find(head.properties, Property.TIMER_OUT_MS)
    out_ms = parse_int(time, high=MAX_ASKED)
    topic = props.find(head.properties, Property.REAL_TOPIC)
    if topic is None or out_ms is None:
        told = f"TIMER_OUT_MS is {shown(time or '')}, REAL_TOPIC is {shown(topic or '')}"
        raise MessageIllegal(f"it does not say when and where to deliver it: {told}")
    check_topic(topic)
    deletes = props.find(head.properties, Property.TIMER_DEL_UNIQKEY) is not None
    return Timer(out_ms, head.physical_offset, head.size, java_hash(topic), deletes), topic


def _origin(head: RecordHead) -> _Origin:
    """What the records of one timed message have in common, however often it was put behind the others."""
    names = (Property.REAL_TOPIC, Property.UNIQ_KEY, Property.TIMER_OUT_MS, Property.TIMER_DEL_UNIQKEY)
    return tuple(props.find(head.properties, name) for name in names)


def _turns(properties: str) -> int:
    """Return how often a timed message was put behind the others."""
    return parse_int(props.find(properties, Property.TIMER_ROLL_TIMES), high=MAX_INT) or 0


def _noted(record: Record, set_at_ms: int, now_ms: int) -> StoreMessage:
    """A timed message as it is when its time has come; what it asked for stays in its properties."""
    message = delivered(record)
    _note(message, {Property.TIMER_ENQUEUE_MS: str(set_at_ms), Property.TIMER_DEQUEUE_MS: str(now_ms)})
    return message


def _note(message: StoreMessage, notes: dict[str, str]) -> None:
    """Add to the properties, if there is room for that: the message counts more than the notes."""
    noted = props.encode(props.decode(message.properties) | notes)
    if len(noted.encode()) <= props.MAX_SIZE_BYTES:
        message.properties = noted


def _rolled(record: Record, set_at_ms: int, now_ms: int) -> StoreMessage:
    """A timed message that goes behind the others once more, because its time is too far ahead for one turn."""
    message = _noted(record, set_at_ms, now_ms)
    _note(message, {Property.TIMER_ROLL_TIMES: str(_turns(record.properties) + 1)})
    message.topic, message.queue_id = record.topic, record.queue_id
    return message

"""Bringing popped messages back that nobody acked in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cosmodrome.broker.consumer_offsets import ConsumerOffsets
from cosmodrome.broker.groups import Groups
from cosmodrome.broker.pop.ledger import AcksOfActing, ReviveLedger
from cosmodrome.broker.pop.messages import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_TAG,
    REVIVE_GROUP,
    revive_topic,
    revived,
)
from cosmodrome.broker.skipping import HOPELESS, Skipping, looking
from cosmodrome.broker.timers import slot_of
from cosmodrome.broker.topics import Topics
from cosmodrome.clock import Clock
from cosmodrome.config import KIB, BrokerConfig
from cosmodrome.errors import MessageIllegal, ProtocolError, RequestError, ServiceNotAvailable
from cosmodrome.model import RETRY_PREFIX, Property, TopicConfig
from cosmodrome.numbers import parse_int, shown
from cosmodrome.store.message import Durability, GetStatus, StoreMessage
from cosmodrome.store.message_store import MessageStore
from cosmodrome.troubles import Trouble
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import Ack, CheckPoint
from cosmodrome.wire.fastjson import lenient_up_to
from cosmodrome.wire.pop import normal_topic, pop_retry_topic
from cosmodrome.wire.record import Record, decode_records

log = logging.getLogger(__name__)

# Others have their turn after so many records of a revive queue, or checkpoints of it.
RECORDS_IN_A_ROW = 32
CHECKPOINTS_IN_A_ROW = 16
NOTHING_DONE = -1
# What is read on the loop: a broker's own records have some hundred bytes, and are strict JSON.
MAX_BODY_BYTES = 64 * KIB
LENIENT_BYTES = 16 * KIB

# Checkpoints and acks come into the queue when they are nearly due. One that says it is due much later is not
# believed: those behind it would wait for it.
MAX_AHEAD_MS = 10_000


class Revives:
    """Reads the revive topic and puts what was popped, but not acked in time, into the group's pop retry topic.

    `delivered_ms` says up to when the timer wheel has delivered: an ack made in time is then in the queue, and a
    checkpoint can be decided. How far a queue is decided is REVIVE_GROUP's offset on it: that of the last decided
    record, as Apache has it, saved once what comes again is on disk. A crash may repeat some, none is lost.
    """

    def __init__(
        self,
        store: MessageStore,
        offsets: ConsumerOffsets,
        topics: Topics,
        groups: Groups,
        clock: Clock,
        config: BrokerConfig,
        put: Callable[[StoreMessage], object],
        delivered_ms: Callable[[], int],
        escape: Callable[[StoreMessage, str], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._skipping = Skipping("revives", store)
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._clock = clock
        self._config = config
        self._put = put
        self._delivered_ms = delivered_ms
        self._topic = revive_topic(config.broker_cluster_name)
        self._ledgers: dict[int, ReviveLedger] = {}
        self._trouble = Trouble(log, "popped messages cannot be revived now", clock)
        self._escape = escape
        self._acks: AcksOfActing | None = None

    # --- at a slave that acts as its master

    def begin_acting(self, is_all_known: Callable[[], bool]) -> None:
        """Decide, while the master is away, what its pops left open. Nothing is added to the log meanwhile: every ack
        that counts is in it, in the revive topic or in the timer wheel, and `is_all_known` once the wheel is set."""
        self._ledgers.clear()
        self._acks = AcksOfActing(is_all_known)

    def end_acting(self) -> None:
        self._ledgers.clear()
        self._acks = None

    def note_timed(self, record: Record) -> None:
        """Remember an ack that is in the timer wheel: its checkpoint may be decided before the wheel brings it."""
        if self._acks is not None and props.find(record.properties, Property.TAGS) in (ACK_TAG, BATCH_ACK_TAG):
            self._acks.add(Ack.decode(record.body))

    async def decide_timed(self, message: StoreMessage) -> None:
        """Decide a checkpoint that the timer wheel brings: no record of it may be put into this log. Returns once all
        that was not acked is stored elsewhere."""
        if props.find(message.properties, Property.TAGS) != CHECKPOINT_TAG:
            return
        assert self._acks is not None, "the wheel delivers at a slave only while it acts"
        if not self._acks.is_all_known():
            raise ServiceNotAvailable("the acks of pops are not all known yet")
        with looking():
            point = CheckPoint.decode(message.body)
        for offset in point.offsets:
            if offset not in self._acks.of(point):
                await self._revive(point, offset)

    # --- its life

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._config.revive_interval)
            try:
                await self.round()
                self._trouble.over()
            except (OSError, RequestError) as error:  # a full disk passes; whatever waits, waits
                self._trouble.met(error)
            except Exception:  # ours; it must not end the broker
                log.exception("popped messages cannot be revived now; trying again")

    def needed_from(self) -> int | None:
        """Return where in the log the oldest record of a pop lies that is not decided, or not on disk as decided."""
        places = map(self._first_place, self._store.queues(self._topic))
        return min((place for place in places if place is not None), default=None)

    def _first_place(self, queue_id: int) -> int | None:
        done = self._offsets.settled_offset(REVIVE_GROUP, self._topic, queue_id)
        first = max((NOTHING_DONE if done is None else done) + 1, self._store.min_offset(self._topic, queue_id))
        entry = self._store.entry(self._topic, queue_id, first)
        return entry[0] if entry is not None else None

    async def round(self) -> None:
        """Decide everything that can be decided now."""
        if self._acks is not None and not self._acks.is_all_known():
            return
        read_ms = self._delivered_ms()
        # With group commit, what was delivered is seen only once it is on disk.
        if await self._store.durable(self._store.max_physical_offset) is not Durability.OK:
            return
        for queue_id in self._store.queues(self._topic):
            ledger = self._ledgers.get(queue_id) or self._begin(queue_id)
            await self._read(queue_id, ledger)
            try:
                await self._decide(ledger, read_ms)
            finally:
                self._save(queue_id, ledger)

    def _begin(self, queue_id: int) -> ReviveLedger:
        """A place behind the queue's end is of another store; what comes now would wait for ever."""
        done = self._offsets.find_offset(REVIVE_GROUP, self._topic, queue_id)
        end = self._store.max_offset(self._topic, queue_id)
        ledger = ReviveLedger(min((NOTHING_DONE if done is None else done) + 1, end))
        self._ledgers[queue_id] = ledger
        return ledger

    def _save(self, queue_id: int, ledger: ReviveLedger) -> None:
        if ledger.done > NOTHING_DONE and ledger.done != self._offsets.find_offset(REVIVE_GROUP, self._topic, queue_id):
            log_end = self._store.max_physical_offset
            self._offsets.commit_ahead(REVIVE_GROUP, self._topic, queue_id, ledger.done, log_end)

    # --- reading

    async def _read(self, queue_id: int, ledger: ReviveLedger) -> None:
        """Take in what is in the queue now."""
        end = self._store.max_offset(self._topic, queue_id)
        while (start := ledger.next_offset) < end:
            result, records = self._skipping.read(self._topic, queue_id, start, RECORDS_IN_A_ROW)
            if result.status is GetStatus.FOUND:
                for record in records:
                    self._note(ledger, record)
            else:
                gone = max(result.next_offset - start, 1)
                log.error("%d records of pops were deleted from the store before they could be read", gone)
            ledger.skip_to(max(result.next_offset, start + 1))
            await asyncio.sleep(0)

    def _note(self, ledger: ReviveLedger, record: Record) -> None:
        ledger.skip_to(record.queue_offset)
        timeline = self._store.timeline
        latest_ms = timeline.of_record(record.store_timestamp, record.physical_offset) + MAX_AHEAD_MS
        try:
            with looking(), lenient_up_to(LENIENT_BYTES):
                if len(record.body) > MAX_BODY_BYTES:
                    raise ProtocolError(f"its body has {len(record.body)} bytes; at most {MAX_BODY_BYTES} are read")
                tag = props.find(record.properties, Property.TAGS)
                if tag == CHECKPOINT_TAG:
                    ledger.checkpoint(CheckPoint.decode(record.body), latest_ms, self._shift_ms(record))
                elif tag in (ACK_TAG, BATCH_ACK_TAG):
                    ledger.ack(Ack.decode(record.body), min(_due_ms(record) - self._shift_ms(record), latest_ms))
                else:
                    raise ProtocolError(f"the tag {shown(tag or '')} is neither a checkpoint's nor an ack's")
        except HOPELESS as error:
            self._skipping.skip_record(record, error)

    def _shift_ms(self, record: Record) -> int:
        """How far the date in a record is ahead of the timeline. What came through the wheel was dated before."""
        timeline = self._store.timeline
        slot_ms = parse_int(props.find(record.properties, Property.TIMER_OUT_MS))
        if timeline.was_never_set or slot_ms is None:
            return timeline.shift_at(record.physical_offset)
        return timeline.likely_shift(slot_of(_due_ms(record)) - slot_ms)

    # --- deciding

    async def _decide(self, ledger: ReviveLedger, read_ms: int) -> None:
        number = 0
        while (popped := ledger.first_due(read_ms)) is not None:
            if self._acks is not None:
                popped.settled |= self._acks.of(popped.point)
            for offset in popped.open_offsets:
                await self._revive(popped.point, offset)
                popped.settled.add(offset)
            ledger.decided(popped)
            number += 1
            if number % CHECKPOINTS_IN_A_ROW == 0:
                await asyncio.sleep(0)

    async def _revive(self, point: CheckPoint, offset: int) -> None:
        if self._topics.find_topic(normal_topic(point.topic, point.group)) is None:
            log.info("%s is gone, and what %s popped of it", point.topic, point.group)
            return
        if self._groups.find_group(point.group, is_limited=False) is None:
            log.info("group %s is gone, and what it popped of %s", point.group, point.topic)
            return
        try:
            record = self._record(point, offset)
            if self._acks is not None and self._escape is not None:
                with looking():
                    message = revived(record, self._retry_name(point), point.pop_time_ms)
                await self._escape(message, normal_topic(point.topic, point.group))
                return
            retry = await self._retry_topic(point)
            with looking():
                message = revived(record, retry.name, point.pop_time_ms)
            self._put(message)
        except Exception as error:
            if not self._skipping.gives_up(point.topic, point.queue_id, offset, error):
                raise
            self._skipping.skip(point.topic, point.queue_id, offset, f"it cannot come again: {error}")

    def _record(self, point: CheckPoint, offset: int) -> Record:
        entry = self._store.entry(point.topic, point.queue_id, offset)
        view = self._store.record_at(entry[0]) if entry is not None else None
        if view is None:
            raise MessageIllegal("its record is gone")
        (record,) = decode_records(view)
        return record

    def _retry_name(self, point: CheckPoint) -> str:
        if point.topic.startswith(RETRY_PREFIX):
            return point.topic
        return pop_retry_topic(point.topic, point.group, v2=self._config.enable_retry_topic_v2)

    async def _retry_topic(self, point: CheckPoint) -> TopicConfig:
        """Where the message goes; a topic made for it is on disk before it is used."""
        name = self._retry_name(point)
        found = self._topics.find_topic(name)
        if found is None:
            found = self._topics.put(TopicConfig(name, 1, 1))
            if self._offsets.find_offset(point.group, name, 0) is None:
                self._offsets.commit(point.group, name, 0, 0)
            await self._topics.saved()
        return found


def _due_ms(record: Record) -> int:
    due_ms = parse_int(props.find(record.properties, Property.TIMER_DELIVER_MS))
    return record.store_timestamp if due_ms is None else due_ms

"""Delay levels: messages wait in the queue of their level and are delivered, in order, when they are due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from cosmodrome.broker.delay_offsets import DelayOffsets
from cosmodrome.broker.skipping import Skipping, looking
from cosmodrome.clock import Clock, sleep_unless
from cosmodrome.errors import MessageIllegal, ServiceNotAvailable
from cosmodrome.model import MAX_QUEUES, REVIVE_PREFIX, SCHEDULE_TOPIC, Property, check_topic, is_broker_only
from cosmodrome.numbers import MIN_LONG, parse_int, shown
from cosmodrome.store.message import StoreMessage
from cosmodrome.store.message_store import MessageStore
from cosmodrome.troubles import Trouble
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import DelayOffsetsBody
from cosmodrome.wire.record import Record, decode_records

log = logging.getLogger(__name__)

# Others have their turn after so many deliveries of one level.
MAX_IN_A_ROW = 64
# The longest sleep: whatever the timers of this process miss, as those of a suspended machine do, waits no longer.
LONGEST_SLEEP_MS = 10_000
FIRST_RETRY_MS = 100
LONGEST_RETRY_MS = 10_000

# A time that a message asks for; its delay level counts more.
_TIMES = (
    Property.TIMER_DELAY_SEC,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
    Property.START_DELIVER_TIME,
)


def delay_level(properties: str) -> int:
    """The level a message asks for; 0 for none."""
    text = props.find(properties, Property.DELAY)
    if text is None:
        return 0
    level = parse_int(text, low=MIN_LONG)
    if level is None:
        raise MessageIllegal(f"the property DELAY is {shown(text)}; write a delay level such as 3")
    return level


def to_schedule(message: StoreMessage, level: int, levels: int) -> None:
    """Let the message wait in the queue of its level; too high a level means the highest."""
    level = min(level, levels)
    kept = {name: value for name, value in props.decode(message.properties).items() if name not in _TIMES}
    kept[Property.DELAY] = str(level)
    kept[Property.REAL_TOPIC] = message.topic
    kept[Property.REAL_QID] = str(message.queue_id)
    message.properties = props.encode(kept)
    message.topic, message.queue_id = SCHEDULE_TOPIC, level - 1


def delivered(record: Record) -> StoreMessage:
    """A delayed message as it is when its time has come. Its properties stay, as Apache leaves them."""
    topic = props.find(record.properties, Property.REAL_TOPIC)
    queue = props.find(record.properties, Property.REAL_QID)
    queue_id = parse_int(queue, high=MAX_QUEUES)
    if topic is None or queue_id is None:
        told = f"REAL_TOPIC is {shown(topic or '')}, REAL_QID is {shown(queue or '')}"
        raise MessageIllegal(f"it does not say where it belongs: {told}")
    if is_broker_only(topic) and not topic.startswith(REVIVE_PREFIX):  # pops keep their records in the wheel
        raise MessageIllegal(f"it is meant for {topic}, which only the broker itself writes to")
    return StoreMessage.again(record, check_topic(topic), queue_id, record.properties)


async def put_done(putting: object) -> None:
    """Return once a message is where it belongs. A master has then put it already, and nothing is waited for; a slave
    that acts as its master waits for another broker."""
    if isinstance(putting, Awaitable):
        await putting


class Delays:
    """Delivers what waits in SCHEDULE_TOPIC_XXXX, the queue of each level in its order.

    The messages of a level wait equally long, so its first one is the first due; how long is measured on the store's
    `Timeline`, so that a clock that is set makes nothing come earlier or later. A level is looked at when that one is
    due, or when a message comes while it is empty. A master's `put` does not wait, so that a delivery and its new
    offset are one step: a clean stop neither loses nor repeats a message. After kill -9 the last ones may come again.
    """

    def __init__(
        self,
        store: MessageStore,
        delays_ms: Sequence[int],
        path: Path,
        clock: Clock,
        put: Callable[[StoreMessage], object],
        *,
        save_every_ms: int,
    ) -> None:
        self._store = store
        self._skipping = Skipping("delays", store)
        self._delays_ms = delays_ms
        self._clock = clock
        self._troubles: dict[int, Trouble] = {}  # level → why its messages wait
        self._unsaved = Trouble(log, "cannot save how far delayed messages are delivered", clock)
        self._put = put
        self._save_every_ms = save_every_ms
        self._offsets = DelayOffsets(path, clock)
        self._wake = asyncio.Event()
        self._look_at: dict[int, int] = {}  # level → when to look at it again; empty levels are not here
        self._pause_ms: dict[int, int] = {}  # level → how long it waits after its next failure
        # Also the levels that are configured no more: what waits there was promised.
        self.begin_again()

    def begin_again(self) -> None:
        """Look at every level anew: how far they are delivered is known from elsewhere now."""
        self._look_at.clear()
        self._pause_ms.clear()
        for level in self._levels_there():
            self._begin(level)

    def _levels_there(self) -> set[int]:
        return self._offsets.levels | {queue_id + 1 for queue_id in self._store.queues(SCHEDULE_TOPIC)}

    def _begin(self, level: int) -> None:
        """An offset behind the queue's end is of another store; what comes now would wait for ever."""
        offset, end = self._offsets.next(level), self._store.max_offset(SCHEDULE_TOPIC, level - 1)
        if offset > end:
            log.warning("delay level %d: delivered up to %d of %d messages? Going on at %d", level, offset, end, end)
            self._offsets.move(level, end)
        self._look_at[level] = 0

    @property
    def levels(self) -> int:
        return len(self._delays_ms)

    def progress(self) -> dict[int, tuple[int, int]]:
        """Level → how far it is delivered, and where its queue ends."""
        levels = sorted(self._offsets.levels)
        return {
            level: (self._offsets.next(level), self._store.max_offset(SCHEDULE_TOPIC, level - 1)) for level in levels
        }

    def body(self) -> DelayOffsetsBody:
        """How far each level is delivered."""
        return self._offsets.body()

    async def adopt(self, table: DelayOffsetsBody) -> None:
        """Take over and save how far a slave's master has delivered."""
        self._offsets.adopt(table)
        await self._offsets.saved()

    async def take_back(self, table: DelayOffsetsBody, known_to: Callable[[str, int, int], int]) -> None:
        """Take over and save how far the slave has delivered that acted as this master. `known_to` says up to where a
        queue's offsets mean the same messages for both."""
        for level, offset in table.offsets.items():
            if 0 < level <= MAX_QUEUES:
                offset = known_to(SCHEDULE_TOPIC, level - 1, offset)
                self._offsets.move(level, max(offset, self._offsets.next(level)))
        self.begin_again()
        await self.save()

    def arrived(self, queue_id: int) -> None:
        """A message came into a queue of SCHEDULE_TOPIC_XXXX."""
        if queue_id + 1 not in self._look_at:
            self._look_at[queue_id + 1] = 0
            self._wake.set()

    def needed_from(self) -> int | None:
        """Return where in the log the first message lies that is not delivered, or whose copy is not on disk."""
        levels = self._levels_there()
        return min((place for place in map(self._first_place, levels) if place is not None), default=None)

    def _first_place(self, level: int) -> int | None:
        first = max(self._offsets.settled(level), self._store.min_offset(SCHEDULE_TOPIC, level - 1))
        entry = self._store.entry(SCHEDULE_TOPIC, level - 1, first)
        return entry[0] if entry is not None else None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._deliveries())
            tasks.create_task(self._saves())

    async def _deliveries(self) -> None:
        while True:
            self._wake.clear()
            pause_ms = await self._round()
            await sleep_unless(self._wake, self._clock, pause_ms)

    async def _round(self) -> int:
        """Deliver what is due; for how long nothing more will be."""
        now_ms = self._store.timeline.now_ms()
        for level in sorted(level for level, at_ms in self._look_at.items() if at_ms <= now_ms):
            await self._look(level)
            await asyncio.sleep(0)
        self._offsets.settle(self._store.flusher.flushed, self._store.max_physical_offset)
        pause_ms = min(self._look_at.values(), default=now_ms + LONGEST_SLEEP_MS) - self._store.timeline.now_ms()
        return min(max(pause_ms, 0), LONGEST_SLEEP_MS)

    async def _look(self, level: int) -> None:
        """Deliver the first messages of a level that are due, and note when to look again."""
        now_ms = self._store.timeline.now_ms()
        try:
            for _ in range(MAX_IN_A_ROW):
                due_ms = self._due_ms(level, now_ms)
                if due_ms is None:
                    self._look_at.pop(level, None)
                    break
                self._look_at[level] = due_ms
                if due_ms > now_ms:
                    break
                await self._deliver(level)
            if (trouble := self._troubles.pop(level, None)) is not None:
                trouble.over()
        except Exception as error:  # whatever it is, it must not stop the other levels
            pause_ms = self._pause_ms.get(level, FIRST_RETRY_MS)
            self._pause_ms[level] = min(2 * pause_ms, LONGEST_RETRY_MS)
            self._look_at[level] = now_ms + pause_ms
            trouble = self._troubles.setdefault(level, Trouble(log, f"delay level {level}", self._clock))
            trouble.met(repr(error))

    def _due_ms(self, level: int, now_ms: int) -> int | None:
        """When the next message of a level is due; None when there is none."""
        first = self._store.min_offset(SCHEDULE_TOPIC, level - 1)
        if self._offsets.next(level) < first:
            gone = first - self._offsets.next(level)
            log.error("delay level %d: %d messages were deleted from the store undelivered", level, gone)
            self._offsets.move(level, first)
        entry = self._store.entry(SCHEDULE_TOPIC, level - 1, self._offsets.next(level))
        if entry is None:
            return None
        due_ms = self._store.timeline.of_record(entry[2], entry[0])  # however the clock was set since
        # Later than possible: the levels are others than when it was stored, or a clock was set that nobody watched.
        return now_ms if level <= self.levels and due_ms > now_ms + self._delays_ms[level - 1] else due_ms

    async def _deliver(self, level: int) -> None:
        offset = self._offsets.next(level)
        try:
            record = self._record(level, offset)
            with looking():
                message = delivered(record)
            await put_done(self._put(message))
        except Exception as error:
            if not self._skipping.gives_up(SCHEDULE_TOPIC, level - 1, offset, error):
                raise
            self._skipping.skip(SCHEDULE_TOPIC, level - 1, offset, error)
        self._offsets.move(level, offset + 1)
        self._pause_ms.pop(level, None)

    def _record(self, level: int, offset: int) -> Record:
        entry = self._store.entry(SCHEDULE_TOPIC, level - 1, offset)
        view = self._store.record_at(entry[0]) if entry is not None else None
        if view is None:
            raise MessageIllegal("its record is gone")
        with looking():
            (record,) = decode_records(view)
        if (record.topic, record.queue_id, record.queue_offset) != (SCHEDULE_TOPIC, level - 1, offset):
            raise MessageIllegal("its place in the queue was never filled")
        return record

    # --- the file

    async def _saves(self) -> None:
        while True:
            await self._clock.sleep(self._save_every_ms)
            await self.save()

    async def save(self) -> list[str]:
        """Write down what is delivered and on disk. A full disk is logged, and returned: some would come again."""
        self._offsets.settle(self._store.flusher.flushed, self._store.max_physical_offset)
        await self._store.skipped.saved()
        try:
            await self._offsets.saved()
            self._unsaved.over()
        except ServiceNotAvailable as error:
            self._unsaved.met(error)
            return [str(error)]
        return []

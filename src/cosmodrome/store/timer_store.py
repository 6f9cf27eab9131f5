"""Pending timers on disk: the door to the wheel, the timer log and their checkpoint."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from cosmodrome.errors import StoreError
from cosmodrome.mapped_file import sync_directory
from cosmodrome.store.paths import free_name
from cosmodrome.store.timer_checkpoint import TimerCheckpoint
from cosmodrome.store.timer_log import DELETES, NO_UNIT, ROLLED, UNIT_SIZE, TimerLog, Unit
from cosmodrome.store.timer_wheel import TURN_MS, WHEEL_DAYS, TimerWheel, WheelDamaged, WheelFull

log = logging.getLogger(__name__)

SECOND_MS = 1_000
LOOKED_AT_ONCE = 2_000  # units of the timer log, while others wait
# How far ahead a timer may lie in the wheel, with a minute to spare for a clock that is not quite right.
MAX_WINDOW_MS = (WHEEL_DAYS * 86_400 - 60) * SECOND_MS


class Timer(NamedTuple):
    """A record of the timer topic that is to be set."""

    due_ms: int
    physical_offset: int
    size: int
    topic_hash: int
    deletes: bool = False


class Place(NamedTuple):
    """In which second a timer is due; a rolled one is then set again."""

    due_ms: int
    is_rolled: bool


def placed(due_ms: int, now_ms: int, window_ms: int) -> Place:
    """Where a timer goes: into its own second if that lies within the window, else to where it is set again.

    The last hop is at least a third of a window, so that a timer is never set again for a few seconds.
    """
    ahead_ms = due_ms - now_ms
    if ahead_ms < window_ms:
        return Place(due_ms, False)
    hop_ms = window_ms // 2 if ahead_ms - window_ms < window_ms // 3 else window_ms
    return Place(now_ms + hop_ms - hop_ms % SECOND_MS, True)


def delete_wheel_and_log(root: Path) -> None:
    """Delete what a timer topic can be read for again."""
    (root / "timerwheel").unlink(missing_ok=True)
    shutil.rmtree(root / "timerlog", ignore_errors=True)


class TimerStore:
    """Timers by the second in which they are due. Setting one and taking a second's are a few looks, never a search.

    `read_ms` is the second being delivered: everything before it is done, and so are `delivered` units of it.
    `queue_offset` is the next message of the timer topic to set. Both move in memory; `take_checkpoint` says what to do
    so that a crash repeats no more than what came since. Nothing is on disk until the first timer is set.
    """

    def __init__(self, root: Path, file_size: int) -> None:
        self._check_path = root / "config" / "timercheck"
        self._wheel_path, self._log_path, self._file_size = root / "timerwheel", root / "timerlog", file_size
        self._unusable: str | None = None
        self.wheel = TimerWheel(self._wheel_path)
        self.log = self._open_log()
        self.read_ms = 0
        self.delivered = 0
        self.queue_offset = 0
        # Set once more because the timer log lost them: of these, what was due before `read_ms` has been delivered.
        self.replayed_below = 0
        self._saved = TimerCheckpoint()
        # Records set since the checkpoint that was found, by the units from there on; the queue still brings them,
        # up to this offset.
        self._known: set[int] = set()
        self._known_from = self._known_below = 0
        self._deliveries = self._saved_deliveries = 0
        self._needed_at = 0  # no unit before this position in the timer log is needed

    @classmethod
    def open(
        cls, root: Path, file_size: int, now_ms: int, record_end: int, queue: range, is_whole: Callable[[Unit], bool]
    ) -> Self:
        """Make wheel, log and checkpoint agree with each other and with the commit log, which ends at `record_end`.

        `queue` are the offsets that the timer topic has; `is_whole` says whether a unit names a message of it.
        """
        store = cls(root, file_size)
        try:
            store._recover(now_ms - now_ms % SECOND_MS, record_end, queue, is_whole)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def of_slave(cls, root: Path, file_size: int) -> Self:
        """Open what a slave has: how far its master is, without wheel and log. Once it is a master, it sets the timers
        from the timer topic, as after the loss of both; what its master had delivered is left out."""
        delete_wheel_and_log(root)
        store = cls(root, file_size)
        store._saved = TimerCheckpoint.load(store._check_path) or TimerCheckpoint()
        store.read_ms, store.queue_offset = store._saved.read_ms, store._saved.queue_offset
        return store

    def adopt(self, checkpoint: TimerCheckpoint) -> Callable[[], None] | None:
        """Return the work for a thread after which a slave knows how far its master is; None if it knows already."""
        # Behind the end of a log that is not here: if any timer was set, all are set again.
        log_end = max(checkpoint.log_end, 1) if checkpoint.queue_offset > 0 else 0
        current = dataclasses.replace(checkpoint, log_end=log_end, delivered=0)
        if current == self._saved or checkpoint.read_ms <= 0:
            return None

        def work() -> None:
            current.save(self._check_path)
            self._saved = current
            self.read_ms, self.queue_offset = current.read_ms, current.queue_offset

        return work

    def _open_log(self) -> TimerLog:
        """The log that is there; one whose files cannot be used is set aside."""
        try:
            return TimerLog(self._log_path, self._file_size)
        except StoreError as error:
            self._unusable = str(error)
            self._set_aside(self._log_path)
            return TimerLog(self._log_path, self._file_size)

    def _recover(self, now_ms: int, record_end: int, queue: range, is_whole: Callable[[Unit], bool]) -> None:
        self._saved = saved = TimerCheckpoint.load(self._check_path) or TimerCheckpoint()
        self.log.recover(saved.log_end)
        self._cut_torn_unit(is_whole)
        self._cut_lost_records(record_end)
        self.read_ms, self.delivered = saved.read_ms, saved.delivered
        if self.read_ms <= 0:
            self.read_ms = min([now_ms, *(unit.due_ms for _, unit in self.log.units(0))])
            if self.read_ms < now_ms:
                log.warning("no timercheck: all timers still in the timer log are delivered, some perhaps again")
        damage = self._unusable or self.log.damage(lambda unit: unit.physical_offset < record_end and is_whole(unit))
        if damage is not None:
            self.queue_offset = max(queue.start, min(saved.queue_offset, queue.stop))
            self.start_over(damage, queue)
            return
        self._recover_wheel()
        self._find_queue_offset(queue)
        if self.wheel.lacks_units:
            self.start_over(f"{self._log_path} lacks the files before {self.log.start}, which timers wait in", queue)

    def start_over(self, reason: str, queue: range) -> None:
        """Set wheel and log aside and fill new ones from the timer topic, of which there are the offsets in `queue`.

        What was due before `read_ms` was delivered, and is left out; of the second being read, all is delivered again.
        Until the queue has come to where it was, no checkpoint is taken: a start in between begins here again.
        """
        kept = [self._set_aside(path) for path in (self._wheel_path, self._log_path) if path.exists()]
        names = ", ".join(path.name for path in kept)
        log.error(
            "%s; set aside as %s, all pending timers are set again from the timer topic", reason, names or "nothing"
        )
        self.wheel, self.log = TimerWheel(self._wheel_path), TimerLog(self._log_path, self._file_size)
        self.delivered = 0
        self.replayed_below = max(self.replayed_below, min(self.queue_offset, queue.stop))
        self.queue_offset = queue.start
        self._known.clear()
        self._known_from = self._known_below = self._needed_at = 0

    def _set_aside(self, path: Path) -> Path:
        kept = free_name(path)
        if path == self._wheel_path:
            self.wheel.close()
        elif hasattr(self, "log"):
            self.log.close()
        path.rename(kept)
        sync_directory(path.parent)
        return kept

    @property
    def is_replaying(self) -> bool:
        """Timers that were set before a damage are being set again."""
        return self.queue_offset < self.replayed_below

    def _cut_torn_unit(self, is_whole: Callable[[Unit], bool]) -> None:
        """A power cut may leave half of the last unit. Its other half is zero, so it names no message."""
        last = self.log.last()
        if last is not None and self.log.end > self._saved.log_end and not is_whole(last):
            self.log.truncate(self.log.end - UNIT_SIZE)

    def _cut_lost_records(self, record_end: int) -> None:
        """A crash may cost the commit log its newest records. They lie in the order of their units."""
        last = self.log.last()
        if last is None or last.physical_offset + last.size <= record_end:
            return
        lost = (position for position, unit in self.log.units(0) if unit.physical_offset + unit.size > record_end)
        self.log.truncate(next(lost))

    def _find_queue_offset(self, queue: range) -> None:
        """Go on where the checkpoint says. What was set since then stays set; what was delivered at once since then is
        delivered again, for a power cut may have cost the copy but not the units behind it."""
        wanted, begin = self._saved.queue_offset, self._saved.log_end
        if self.log.end < begin:  # some of the log is gone: what it held is set once more
            self.replayed_below = min(wanted, queue.stop)
            wanted = begin = 0
            log.warning("the timer log ends before its checkpoint: what it lost is set again from the timer topic")
        self.queue_offset = max(queue.start, min(wanted, queue.stop))
        self._known = {unit.physical_offset for _, unit in self.log.units(begin)}
        self._known_from, self._known_below = begin, queue.stop if self._known else 0

    def _recover_wheel(self) -> None:
        """Slots are written after their units, so those of the last units may be missing; any other is damage."""
        if not self.wheel.open():
            if self.log.end > self.log.start:
                log.error("%s is missing or damaged; it is built again from the timer log", self._wheel_path)
                if self._wheel_path.exists():
                    self._set_aside(self._wheel_path)
            self.wheel.clear()
        if self.log.end > self.log.start or self.wheel.exists:
            self._enter_units()

    def _enter_units(self) -> None:
        """Let the wheel say what the log says. Units that it has no room for are dropped with all behind them: the
        timer topic brings them again."""
        while True:
            try:
                self._mend_wheel(min(self._saved.log_end, self.log.end))
                return
            except WheelFull as full:
                log.error("%s; the timers from there on are set again from the timer topic", full)
                self.log.truncate(full.position)

    def _mend_wheel(self, sure_end: int) -> None:
        was_there = self.wheel.exists
        damaged = self.wheel.agree(self._pending_units(), self.read_ms, self.log.start, sure_end)
        if damaged and was_there:
            log.error(
                "%s was damaged: %d of its slots were written again from the timer log", self._wheel_path, damaged
            )

    def _pending_units(self) -> Iterator[tuple[int, int, int]]:
        for position, unit in self.log.units(self.log.start):
            if unit.due_ms >= self.read_ms:
                yield unit.due_ms, position, -1 if unit.is_deletion else 1

    def mend(self, reason: str, queue: range) -> None:
        """Something was found damaged while timers are delivered: build the wheel again, or both from the topic."""
        damage = self.log.damage(lambda _unit: True)
        if damage is not None:
            self.start_over(damage, queue)
            return
        log.error("%s; it is built again from the timer log", reason)
        if self._wheel_path.exists():
            self._set_aside(self._wheel_path)
        self.wheel = TimerWheel(self._wheel_path)
        try:
            self._mend_wheel(0)
        except WheelFull as full:
            self.start_over(str(full), queue)

    def set(self, timer: Timer, now_ms: int, window_ms: int) -> bool:
        """Enter a timer; False when its second is over, so that it is to be delivered at once.

        OSError when the disk has no room; then nothing has changed.
        """
        wanted_ms = timer.due_ms - timer.due_ms % SECOND_MS
        if wanted_ms < self.read_ms:
            return False
        due_ms, is_rolled = placed(wanted_ms, now_ms, window_ms)
        slot = self.wheel.find(due_ms)
        unit = Unit(
            slot.last if slot else NO_UNIT,
            (ROLLED if is_rolled else 0) | (DELETES if timer.deletes else 0),
            min(now_ms, due_ms),
            due_ms,
            timer.physical_offset,
            timer.size,
            timer.topic_hash,
        )
        position = self.log.append(unit)
        try:
            self.wheel.add(due_ms, position, -1 if timer.deletes else 1)
        except OSError:
            self.log.truncate(position)
            raise
        return True

    def is_known(self, physical_offset: int) -> bool:
        """Whether a message that comes out of the queue was set before a crash."""
        return physical_offset in self._known

    def has_room(self, now_ms: int) -> bool:
        """Whether every second that a timer may be set to now has a slot of its own."""
        return now_ms + MAX_WINDOW_MS < self.read_ms + TURN_MS

    def due(self) -> Iterator[tuple[int, Unit]]:
        """What is due in the second being read, with its place in the log; the last one set comes first.

        WheelDamaged if the chain does not end where its slot says.
        """
        slot = self.wheel.find(self.read_ms)
        if slot is None:
            return
        position = slot.last + 1
        for position, unit in self.log.chain(slot.last):
            if unit.due_ms - unit.due_ms % SECOND_MS != self.read_ms:
                raise WheelDamaged(f"the timer log is damaged: the unit at {position} is not due at {self.read_ms}")
            yield position, unit
        if position > max(slot.first, self.log.start):
            raise WheelDamaged(f"the timer log is damaged: the timers due at {self.read_ms} end at {position}")

    def count(self, time_ms: int) -> int:
        """How many timers are due in this second; one that was taken back does not count."""
        try:
            slot = self.wheel.find(time_ms - time_ms % SECOND_MS)
        except WheelDamaged:  # found and mended when timers are set or delivered next
            return 0
        return slot.units if slot else 0

    def unit_delivered(self) -> None:
        """One more unit of the second being read is done."""
        self.delivered += 1
        self._deliveries += 1

    def next_second(self) -> None:
        """All of the second being read is delivered."""
        self.read_ms += SECOND_MS
        self.delivered = 0

    def skip_empty(self, until_ms: int) -> None:
        """Go on to the first second before `until_ms` in which something is due, or to `until_ms`."""
        next_ms = self.wheel.next_filled(self.read_ms, until_ms)
        if next_ms > self.read_ms:
            self.read_ms, self.delivered = next_ms, 0

    def needed_from(self) -> int | None:
        """Return where in the log the oldest record lies that is in the wheel, or of which the copy may not be on disk.

        Units lie in the order of their records, so one that is done is never looked at again. A long look is cut short,
        at a place that may be too early.
        """
        is_saved = self._deliveries == self._saved_deliveries
        read_ms = self.read_ms if is_saved else self._saved.read_ms
        for number, (position, unit) in enumerate(self.log.units(max(self._needed_at, self.log.start))):
            self._needed_at = position
            if unit.due_ms >= read_ms or number >= LOOKED_AT_ONCE:
                return unit.physical_offset
        return None

    @property
    def saved_queue_offset(self) -> int:
        """The message of the timer topic from which on a crash would set, or deliver, once more."""
        return min(self._saved.queue_offset, self.queue_offset) if self.is_replaying else self._saved.queue_offset

    @property
    def is_empty(self) -> bool:
        """No timer was ever set."""
        return not self.wheel.exists

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """How far everything is now. Units whose messages the queue has yet to bring again do not count as set."""
        log_end = self._known_from if self.queue_offset < self._known_below else self.log.end
        return TimerCheckpoint(self.read_ms, log_end, self.queue_offset, self.delivered, self._saved.version)

    def take_checkpoint(self, now_ms: int, *, always: bool = False) -> Callable[[], None] | None:
        """What a thread must do so that the checkpoint may speak of this moment; None when it need not.

        Every record delivered so far must be on disk before it is done, or a power cut could lose them. Seconds that
        passed without a timer are no reason to write: looking at them again finds nothing.
        """
        if self.is_replaying:
            return None
        current, saved, deliveries = self.checkpoint, self._saved, self._deliveries
        moved = (current.log_end, current.queue_offset) != (saved.log_end, saved.queue_offset)
        if not moved and deliveries == self._saved_deliveries and not (always and not self.is_empty):
            return None
        current = dataclasses.replace(current, version=saved.version.next(now_ms))

        def work() -> None:
            self.log.sync()
            self.wheel.sync()
            current.save(self._check_path)
            self._saved, self._saved_deliveries = current, deliveries

        return work

    def close(self) -> None:
        self.wheel.close()
        self.log.close()

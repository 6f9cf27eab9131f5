"""A store's own time, which nobody sets: what is to come after a while comes then, whatever becomes of the date."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

from cosmodrome import state_file
from cosmodrome.clock import Clock
from cosmodrome.errors import ProtocolError, StoreError
from cosmodrome.wire import fastjson

log = logging.getLogger(__name__)

# A date that is so far from where elapsed time puts it was set. Less is left alone: nobody is to come a second early.
STEP_MS = 500
# Of two readings of the steady clock with one of the date between them: further apart, they say nothing.
CLOSE_MS = 100
# A date may be this much ahead of the last reading and still be of the present.
PRESENT_MS = 1_000
TRIES = 5
MAX_STEPS = 256  # what is older counts as one step


class Step(NamedTuple):
    """The machine's date was set."""

    log_offset: int  # records from here on have dates from after it
    date_ms: int  # the first one
    shift_ms: int  # from here on, the date less the timeline: all steps so far together


class _Stored(NamedTuple):
    boot_id: str
    ahead_ms: int
    before_ms: int
    steps: list[Step]


class Timeline:
    """Time that passes evenly, and what the dates written into the store mean on it.

    It equals the date until the date is set; then it goes on, and the step is noted with its place in the log. So a
    date in a record, or in a file's name, can be told apart from the same date before the step: `of_record` and `of`
    say when that was. Steps are saved. They are also found after a restart, exactly if the machine ran on meanwhile,
    else only if the date is behind that of the last record.

        timeline |----------------------------->          never jumps
        date     |-----------/    |------------>          was set ahead once: `shift_ms` is how far
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._before_ms = 0  # the shift before the first step
        self._steps: list[Step] = []
        self._ahead_ms = 0  # by how much the date was ahead of the steady clock, as far as steps explain it
        self._boot_id = ""
        self._log_end: Callable[[], int] = lambda: 0
        self.unsaved = False
        self._saving = threading.Lock()
        self.gap_ms = 0  # from the last record to a start on another boot, as far as dates tell
        self.stepped_at_start_ms = 0
        self.foreign_end = 0  # records before have dates of another machine's clock
        self.on_step: list[Callable[[int], None]] = []  # told by how many ms the date was set

    @classmethod
    def open(cls, path: Path, clock: Clock, log_end: Callable[[], int], last_ms: int, *, foreign_end: int = 0) -> Self:
        """Go on where the file says; `last_ms` is the date of the log's last record, 0 if there is none.

        Records before `foreign_end` were dated by another machine: that one of them is ahead of our date says nothing
        about our clock.
        """
        timeline = cls(path, clock)
        timeline.foreign_end = foreign_end
        timeline._log_end = log_end
        try:
            stored = state_file.load(path, _decoded)
        except StoreError as error:
            log.error("what is known of the machine's clock cannot be read, and is begun anew: %s", error)
            stored = None
        if stored is not None:
            timeline._before_ms, timeline._steps = stored.before_ms, stored.steps
        timeline._begin(stored, last_ms)
        return timeline

    def _begin(self, stored: _Stored | None, last_ms: int) -> None:
        self._boot_id = self._clock.boot_id
        for _ in range(TRIES):
            if (ahead_ms := self._read_ahead_ms()) is not None:
                break
        now_ms = self._clock.now_ms()
        self._ahead_ms = now_ms - self._clock.steady_ms() if ahead_ms is None else ahead_ms
        self.unsaved = True
        if stored is not None and stored.boot_id == self._boot_id:
            stepped_ms, self._ahead_ms = self._ahead_ms - stored.ahead_ms, stored.ahead_ms
        else:
            own_ms = self._steps[-1].date_ms if self._steps else 0
            last_ms = max(last_ms, own_ms)
            self.gap_ms = max(now_ms - last_ms, 0) if last_ms else 0
            own_ms = last_ms if not self.foreign_end or self.foreign_end < self._log_end() else own_ms
            stepped_ms = min(now_ms - own_ms, 0)
            self._ahead_ms -= stepped_ms
        if abs(stepped_ms) >= STEP_MS:
            self.stepped_at_start_ms = stepped_ms
            self._stepped(stepped_ms)

    # --- now

    @property
    def shift_ms(self) -> int:
        """How far the date is ahead of the timeline."""
        return self._steps[-1].shift_ms if self._steps else self._before_ms

    def now_ms(self) -> int:
        """The time on the timeline; a step of the date is noticed."""
        self.look()
        return self._clock.steady_ms() + self._ahead_ms - self.shift_ms

    def today_ms(self) -> int:
        """Return the date, after a look at the clock: `on_step` reports every step that comes later, and no other."""
        self.look()
        return self._clock.now_ms()

    def look(self) -> None:
        """Notice it if the date was set. To be done before a record is stored whose date will count."""
        clock = self._clock
        if abs(clock.now_ms() - clock.steady_ms() - self._ahead_ms) < STEP_MS:
            return
        ahead_ms = self._read_ahead_ms()  # perhaps we only lost the processor between the two
        if ahead_ms is not None and abs(ahead_ms - self._ahead_ms) >= STEP_MS:
            self._stepped(ahead_ms - self._ahead_ms)

    def _read_ahead_ms(self) -> int | None:
        """How far the date is ahead of the steady clock; None if the processor was lost between the two readings."""
        before_ms = self._clock.steady_ms()
        ahead_ms = self._clock.now_ms() - before_ms
        return ahead_ms if self._clock.steady_ms() - before_ms <= CLOSE_MS else None

    def _stepped(self, ms: int) -> None:
        self._ahead_ms += ms
        log.error(
            "the machine's clock was set %s by %.3f s. Messages that wait are delivered when the time they asked for "
            "has passed; see that the clock is right",
            "forward" if ms > 0 else "back",
            abs(ms) / 1000,
        )
        self._steps.append(Step(self._log_end(), self._clock.now_ms(), self.shift_ms + ms))
        if len(self._steps) > MAX_STEPS:
            self._before_ms = self._steps.pop(0).shift_ms
        try:  # on whatever thread: before a record is stored whose date only this explains, and that is rare
            self.save()
        except OSError as error:
            log.error("cannot save how the machine's clock was set: %s; trying again", error)
        for tell in self.on_step:
            tell(ms)

    # --- dates, and when that was

    def date(self, time_ms: int) -> int:
        """What the clock shows, as it is set now, at a time of the timeline."""
        return time_ms + self.shift_ms

    def ahead(self, date_ms: int) -> int:
        """When the clock, as it is set now, will show a date."""
        return date_ms - self.shift_ms

    def of_record(self, date_ms: int, log_offset: int) -> int:
        """When it was, or will be, that a record stored at `log_offset` speaks of."""
        return date_ms - self.shift_at(log_offset)

    def shift_at(self, log_offset: int) -> int:
        """How far the date was ahead of the timeline when a record was stored. Another machine's dates are compared
        with ours as they are now."""
        if log_offset < self.foreign_end:
            return self.shift_ms
        number = bisect_right(self._steps, log_offset, key=lambda step: step.log_offset)
        return self._steps[number - 1].shift_ms if number else self._before_ms

    def of(self, date_ms: int) -> int:
        """When the clock showed a date, the last time it did; a date that a step left out counts as the step's."""
        now_ms = self.now_ms()
        end_ms = self.date(now_ms) + PRESENT_MS
        for step, before_ms in zip(reversed(self._steps), reversed(self._shifts_before()), strict=True):
            if step.date_ms <= date_ms <= end_ms:
                return date_ms - step.shift_ms
            end_ms = step.date_ms - step.shift_ms + before_ms
            if end_ms < date_ms < step.date_ms:
                return step.date_ms - step.shift_ms
        return date_ms - self._before_ms if date_ms <= end_ms else self.ahead(date_ms)

    def _shifts_before(self) -> list[int]:
        """For each step the shift before it."""
        return [self._before_ms, *(step.shift_ms for step in self._steps[:-1])] if self._steps else []

    def redated(self, date_ms: int) -> int:
        """The date that the clock would have shown instead, had it always been set as it is now."""
        return self.date(self.of(date_ms))

    def runs_back_between(self, first: int, last: int) -> bool:
        """Whether dates fall somewhere in this part of the log."""
        return any(first < offset <= last for offset in self.falls())

    @property
    def was_never_set(self) -> bool:
        """Date and timeline have always been the same."""
        return not self._steps and not self._before_ms

    def likely_shift(self, about_ms: int) -> int:
        """Return the shift there was at some time that is nearest to this."""
        shifts = [self._before_ms, *(step.shift_ms for step in self._steps)]
        return min(shifts, key=lambda shift_ms: abs(shift_ms - about_ms))

    def was_set_since(self, log_offset: int) -> bool:
        """Whether records behind this place may have dates that do not compare with those before it."""
        return bool(self._steps) and self._steps[-1].log_offset > log_offset

    def falls(self) -> list[int]:
        """Return where in the log dates fall: from one of these places to the next, they rise."""
        pairs = zip(self._steps, self._shifts_before(), strict=True)
        return [step.log_offset for step, before_ms in pairs if step.shift_ms < before_ms]

    # --- the file

    def save(self) -> None:
        """Write down the steps, and what it takes to find out after a restart about others. On any thread."""
        with self._saving:  # the last to come writes last, and knows most
            self.unsaved = False
            table = {
                "aheadMs": self._ahead_ms,
                "beforeMs": self._before_ms,
                "bootId": self._boot_id,
                "steps": [{"dateMs": date, "logOffset": at, "shiftMs": shift} for at, date, shift in self._steps],
            }
            try:
                state_file.save(self._path, fastjson.dumps(table, pretty=True))
            except BaseException:
                self.unsaved = True
                raise


_MAX_NUMBER = 2**62


def _decoded(data: bytes) -> _Stored:
    table = fastjson.loads(data)
    steps = [Step(*(_number(step, name) for name in ("logOffset", "dateMs", "shiftMs"))) for step in table["steps"]]
    steps.sort(key=lambda step: step.log_offset)  # several at one place keep their order
    return _Stored(str(table["bootId"]), _number(table, "aheadMs"), _number(table, "beforeMs"), steps[-MAX_STEPS:])


def _number(table: dict[str, Any], name: str) -> int:
    number = table[name]
    if type(number) is not int or abs(number) > _MAX_NUMBER:
        raise ProtocolError(f"{name} is {number!r:.40}, not a time or place")
    return number

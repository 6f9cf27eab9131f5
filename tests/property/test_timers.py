"""Pending timers against a model: whatever is set, delivered, killed or damaged, each comes, and none comes early."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cosmodrome.store.timer_log import Unit
from cosmodrome.store.timer_store import SECOND_MS, Timer, TimerStore

START_MS = 1_700_000_000_000
LAST_SECOND = 150
RECORD_BYTES = 64
FILE_SIZE = 4_096
SECTOR = 512


# A crash before the first checkpoint lets every message be set again, copies too: enough of that is enough.
few = precondition(lambda machine: len(machine.queue) < 300)


class TimersMachine(RuleBasedStateMachine):
    """The model is the topic's queue with the time each message is due, and which of them were delivered.

    With a small window messages are set several times, each time as a new message of the queue.
    """

    @initialize(window_seconds=st.sampled_from([20, 45, 1_000]))
    def begin(self, window_seconds: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="timers-"))
        self.now_ms = START_MS
        self.window_ms = window_seconds * SECOND_MS
        self.queue: list[int] = []  # number → when it is due
        self.first: list[int] = []  # number → the message as which it was sent
        self.delivered: Counter[int] = Counter()
        self.noted: Counter[int] = Counter()  # what the checkpoint knows to be delivered
        self.synced = 0  # so much of the timer log is on disk
        self.crashed = False
        self.open()

    def open(self) -> None:
        end = len(self.queue)
        self.store = TimerStore.open(
            self.root, FILE_SIZE, self.now_ms, end * RECORD_BYTES, range(end), lambda unit: unit.size == RECORD_BYTES
        )

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.root)

    @rule(seconds=st.lists(st.integers(-3, LAST_SECOND), min_size=1, max_size=60))
    def send(self, seconds: list[int]) -> None:
        for after in seconds:
            self.append(self.now_ms // SECOND_MS * SECOND_MS + after * SECOND_MS, len(self.queue))

    def append(self, due_ms: int, first: int) -> None:
        self.queue.append(due_ms)
        self.first.append(first)

    @rule(ms=st.integers(0, 90_000))
    def turn(self, ms: int) -> None:
        """What the broker does every second."""
        self.now_ms += ms
        now = self.now_ms // SECOND_MS * SECOND_MS
        while self.store.read_ms < now:
            self.set_all(min(self.store.read_ms + SECOND_MS, now))
            units = [unit for _, unit in self.store.due()][::-1]
            for unit in units[self.store.delivered :]:
                self.empty(unit)
                self.store.unit_delivered()
            self.store.next_second()

    def empty(self, unit: Unit) -> None:
        number = unit.physical_offset // RECORD_BYTES
        if unit.is_rolled:
            self.append(self.queue[number], self.first[number])
        else:
            self.deliver(number)

    def set_all(self, now: int) -> None:
        for number in range(self.store.queue_offset, len(self.queue)):
            self.set(number, now)
            self.store.queue_offset = number + 1

    def set(self, number: int, now: int) -> None:
        timer = Timer(self.queue[number], number * RECORD_BYTES, RECORD_BYTES, 0)
        if self.store.is_known(timer.physical_offset) or self.store.set(timer, now, self.window_ms):
            return
        if number >= self.store.replayed_below:
            self.deliver(number)

    def deliver(self, number: int) -> None:
        assert self.queue[number] <= self.now_ms, "nothing comes early"
        self.delivered[self.first[number]] += 1

    @rule()
    def save(self) -> None:
        work = self.store.take_checkpoint(self.now_ms)
        if work is not None:
            work()
        self.noted, self.synced = self.delivered.copy(), self.store.log.end

    @rule()
    def stop(self) -> None:
        self.save()
        self.store.close()
        self.open()

    @few
    @rule()
    def kill(self) -> None:
        self.crash()
        self.open()

    @few
    @rule(kept=st.integers(0, 2 * FILE_SIZE))
    def cut_power(self, kept: int) -> None:
        """Of what was not synced, sectors of the log may be lost; the wheel may point there all the same."""
        self.crash()
        begin = self.synced + kept
        begin += -begin % SECTOR
        file = self.root / "timerlog" / f"{begin // FILE_SIZE * FILE_SIZE:020}"
        if begin < self.end and file.exists():
            with file.open("r+b") as log:
                log.seek(begin % FILE_SIZE)
                log.write(bytes(SECTOR))
        self.open()

    @few
    @rule()
    def lose_the_wheel(self) -> None:
        self.crash()
        (self.root / "timerwheel").unlink(missing_ok=True)
        self.open()

    def crash(self) -> None:
        """What was delivered since the last checkpoint may come again."""
        self.end = self.store.log.end
        self.store.close()
        self.delivered = self.noted.copy()
        self.crashed = True

    @invariant()
    def nothing_comes_twice(self) -> None:
        """But after a crash, a message that was to be set again may have been set again twice."""
        if hasattr(self, "store") and not (self.crashed and self.window_ms <= LAST_SECOND * SECOND_MS):
            assert all(times == 1 for times in self.delivered.values())

    @rule()
    def everything_comes(self) -> None:
        self.turn((LAST_SECOND + 2) * SECOND_MS)
        assert set(self.delivered) == set(self.first)


TimersMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
test_every_timer_comes_in_its_time = TimersMachine.TestCase

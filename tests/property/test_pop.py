"""The pop ledger against a model of timer wheel and revive queue: whatever happens, what was acked in time stays away,
and everything else comes again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from cosmodrome.broker.pop.ledger import ReviveLedger
from cosmodrome.broker.pop.messages import LEAD_MS
from cosmodrome.wire.bodies import Ack, CheckPoint

START_MS = 1_700_000_000_000
SECOND_MS = 1_000


@dataclass(frozen=True)
class Stored:
    """A record of the revive topic, and when the wheel lets it out."""

    content: CheckPoint | Ack
    due_ms: int

    @property
    def slot_ms(self) -> int:
        return (self.due_ms - 1) // SECOND_MS * SECOND_MS


class PopMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = START_MS
        self.read_ms = START_MS  # the wheel has let out everything due before
        self.next_offset = 0
        self.wheel: list[Stored] = []
        self.queue: list[Stored] = []
        self.out: dict[int, CheckPoint] = {}  # message → its checkpoint
        self.acked_in_time: set[int] = set()
        self.acked_late: set[int] = set()
        self.revived: Counter[int] = Counter()
        self.saved = -1
        self.crashed = False
        self.ledger = ReviveLedger(0)

    def put(self, stored: Stored) -> None:
        (self.queue if stored.due_ms <= self.now_ms else self.wheel).append(stored)

    @rule(count=st.integers(1, 4), gap=st.integers(0, 2), invisible_ms=st.integers(0, 8_000))
    def pop(self, count: int, gap: int, invisible_ms: int) -> None:
        start = self.next_offset
        offsets = tuple(range(start + gap, start + gap + count))
        self.next_offset = offsets[-1] + 1
        point = CheckPoint("T", "g", 0, start, offsets, self.now_ms, invisible_ms, "b")
        self.out.update(dict.fromkeys(offsets, point))
        self.put(Stored(point, point.revive_ms - LEAD_MS))

    @precondition(lambda self: self.out)
    @rule(data=st.data(), in_batch=st.booleans())
    def ack(self, data: st.DataObject, in_batch: bool) -> None:
        offset = data.draw(st.sampled_from(sorted(self.out)))
        point = self.out[offset]
        offsets = point.offsets if in_batch else (offset,)
        ack = Ack("T", "g", 0, point.start_offset, offsets, point.pop_time_ms, "b", in_batch)
        (self.acked_in_time if self.now_ms < point.revive_ms else self.acked_late).update(offsets)
        self.put(Stored(ack, point.revive_ms))

    @rule(ms=st.integers(1, 4_000))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def wheel_turns(self) -> None:
        """It may be behind, for this need not follow time at once."""
        self.read_ms = max(self.read_ms, self.now_ms // SECOND_MS * SECOND_MS)
        due = [stored for stored in self.wheel if stored.slot_ms < self.read_ms]
        self.queue += sorted(due, key=lambda stored: stored.slot_ms)
        self.wheel = [stored for stored in self.wheel if stored.slot_ms >= self.read_ms]

    @rule()
    def decide(self) -> None:
        for stored in self.queue[self.ledger.next_offset :]:
            if isinstance(stored.content, CheckPoint):
                self.ledger.checkpoint(stored.content)
            else:
                self.ledger.ack(stored.content, stored.due_ms)
        acks = [stored.content for stored in self.queue if isinstance(stored.content, Ack)]
        known = {offset for ack in acks for offset in ack.offsets}
        while (popped := self.ledger.first_due(self.read_ms)) is not None:
            assert self.now_ms >= popped.point.revive_ms, "nothing comes again before its time"
            open_offsets = popped.open_offsets
            assert not self.acked_in_time & set(open_offsets), "an acked message came again"
            assert not known & set(open_offsets), "it came again although its ack was there"
            self.revived.update(open_offsets)
            self.ledger.decided(popped)

    @rule()
    def save(self) -> None:
        assert self.ledger.done >= self.saved
        self.saved = self.ledger.done

    @rule()
    def stop_and_start(self) -> None:
        self.save()
        self.ledger = ReviveLedger(self.saved + 1)

    @rule()
    def crash_and_start(self) -> None:
        self.crashed |= self.saved != self.ledger.done
        self.ledger = ReviveLedger(self.saved + 1)

    def teardown(self) -> None:
        self.now_ms += 60_000
        self.wheel_turns()
        self.decide()
        assert len(self.ledger) == 0
        assert self.ledger.done == len(self.queue) - 1
        missing = self.out.keys() - self.revived.keys() - self.acked_in_time - self.acked_late
        assert not missing, "some were lost"
        if not self.crashed:
            assert all(times == 1 for times in self.revived.values()), "after a clean stop nothing is decided twice"


TestPop = PopMachine.TestCase
TestPop.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

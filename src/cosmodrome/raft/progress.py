"""What a leader knows of one follower's log.

    probe ──an append was accepted──► replicate         probe: one append at a time, until the logs are known to agree
      ▲  │                                 │            replicate: appends follow each other, up to a window
      │  └──the leader's log begins later──┼──► reset   reset: the follower begins a new log; nothing else is sent
      └──── a rejection, or no answer ─────┴──────┘

What must hold: `match < next`; `match` never falls, for the follower has said that it holds that much durably.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum


class Sending(StrEnum):
    PROBE = "probe"
    REPLICATE = "replicate"
    RESET = "reset"


class Progress:
    """One follower, as its leader sees it."""

    __slots__ = (
        "_in_flight",
        "_window",
        "answered_ms",
        "heard_ms",
        "is_probing",
        "match",
        "next",
        "round",
        "sending",
        "told_commit",
    )

    def __init__(self, next_index: int, window: int, now_ms: int) -> None:
        self.match = -1  # the follower's log is ours up to here
        self.next = next_index  # the first entry that was not sent
        self.sending = Sending.PROBE
        self.is_probing = False  # the one append of a probe is under way
        self.round = 0  # of the newest heartbeat that was answered
        self.heard_ms = now_ms
        self.answered_ms = now_ms  # when an append was last answered, or sent while none was under way
        self.told_commit = -1
        self._in_flight: deque[int] = deque()  # the last index of each append under way
        self._window = window

    @property
    def is_paused(self) -> bool:
        """Whether no append may be sent before another is answered."""
        if self.sending is Sending.REPLICATE:
            return len(self._in_flight) >= self._window
        return self.is_probing

    def sent(self, last_index: int, now_ms: int) -> None:
        """Note that an append with entries up to `last_index` has been sent."""
        if not self._in_flight and not self.is_probing:
            self.answered_ms = now_ms
        if self.sending is Sending.REPLICATE:
            if last_index >= self.next:
                self._in_flight.append(last_index)
                self.next = last_index + 1
        else:
            self.is_probing = True

    def accepted(self, match: int, now_ms: int) -> bool:
        """Take an acknowledgement; return whether the follower is known to have more than before."""
        self.answered_ms = now_ms
        rises = match > self.match
        if rises:
            self.match = match
        while self._in_flight and self._in_flight[0] <= match:
            self._in_flight.popleft()
        self.next = max(self.next, match + 1)
        if rises or (self.sending is Sending.PROBE and match == self.match):
            # A probe of a follower that had everything adds nothing, but tells that the logs agree.
            if self.sending is not Sending.REPLICATE:
                self.next = self.match + 1
            self.sending, self.is_probing = Sending.REPLICATE, False
        return rises

    def rejected(self, prev_index: int, hint_index: int, now_ms: int) -> None:
        """Go back to the place that the follower hints at; ignore an answer that a later one has overtaken."""
        if self.sending is Sending.REPLICATE:
            if prev_index > self.match:
                self.probe(self.match + 1)
                self.answered_ms = now_ms
        elif self.sending is Sending.PROBE and self.next - 1 == prev_index:
            self.probe(max(min(prev_index, hint_index + 1), self.match + 1))
            self.answered_ms = now_ms

    def probe(self, next_index: int) -> None:
        """Send again from `next_index` on, one append at a time."""
        self.sending, self.is_probing, self.next = Sending.PROBE, False, next_index
        self._in_flight.clear()

    def reset(self) -> None:
        """Send nothing more until the follower has begun a new log."""
        self.sending, self.is_probing = Sending.RESET, True
        self._in_flight.clear()

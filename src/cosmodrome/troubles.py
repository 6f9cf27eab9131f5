"""What goes wrong again and again while its cause lasts, told in a few lines: a full disk stops services for hours."""

from __future__ import annotations

import logging

from cosmodrome.clock import Clock

TOLD_EVERY_MS = 60_000


class Trouble:
    """One kind of trouble of a service: a line when it begins, one a minute with a count, and one when it is over.

    What is told of it may change meanwhile; mistakes of ours, told with a trace, are no such trouble.
    """

    def __init__(self, log: logging.Logger, what: str, clock: Clock) -> None:
        self._log = log
        self._what = what
        self._clock = clock
        self._times = 0  # since it began
        self._told_ms = 0

    def met(self, error: object) -> None:
        """It is there, or still there."""
        self._times += 1
        now_ms = self._clock.steady_ms()
        if self._times == 1:
            self._log.error("%s: %s; trying again", self._what, error)
        elif now_ms - self._told_ms >= TOLD_EVERY_MS:
            self._log.error("%s, %d times by now: %s; trying again", self._what, self._times, error)
        else:
            return
        self._told_ms = now_ms

    def over(self) -> None:
        """What it kept from working works. Costs nothing when it did before."""
        if self._times:
            self._log.warning("no longer so, after %d times: %s", self._times, self._what)
            self._times = 0

"""Whether the store takes messages now."""

from __future__ import annotations

import logging

from cosmodrome.disk import NO_ROOM as NO_ROOM
from cosmodrome.errors import RequestError, ServiceNotAvailable, SystemBusy

log = logging.getLogger(__name__)

_FOLLOWS = "service not available now: this broker is a slave; send to the master of its group"
_BUSY = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"


class Gate:
    """What stands against writing, if anything. An append looks at `is_shut`, and at the rest only then.

    A failure is for good: what is on disk is no longer known. A full disk and a slow one are so for a while. `behind`
    says that messages in the log wait for room to enter their queues; none may overtake them. A store that follows
    another takes no messages of its own; that is no `reason`, for nothing is wrong.
    """

    def __init__(self) -> None:
        self.is_shut = False
        self.failure: str | None = None
        self._full: str | None = None
        self._behind: str | None = None
        self._fenced: str | None = None
        self.is_busy = False
        self.is_following = False

    @property
    def reason(self) -> str | None:
        """Why nothing can be written, or None; a busy disk is no reason."""
        return self.failure or self._fenced or self._behind or self._full

    @property
    def is_behind(self) -> bool:
        return self._behind is not None

    def refusal(self) -> RequestError | None:
        """What to answer a message with, or None when it may come in."""
        if self.reason is not None:
            return ServiceNotAvailable(self.reason)
        if self.is_following:
            return ServiceNotAvailable(_FOLLOWS)
        return SystemBusy(_BUSY) if self.is_busy else None

    def fail(self, reason: str) -> None:
        self.failure = _not_available(reason)
        self._update()

    def set_full(self, reason: str | None) -> None:
        if (reason is None) != (self._full is None):
            log.warning("%s", f"refusing messages: {reason}" if reason else "the disk has room again")
        self._full = reason and _not_available(reason)
        self._update()

    def set_behind(self, reason: str | None) -> None:
        if (reason is None) != (self._behind is None):
            log.warning("%s", f"refusing messages: {reason}" if reason else "every message is in its queue again")
        self._behind = reason and _not_available(reason)
        self._update()

    def set_fenced(self, reason: str | None) -> None:
        self._fenced = reason and _not_available(reason)
        self._update()

    def set_busy(self, busy: bool) -> None:
        self.is_busy = busy
        self._update()

    def set_following(self, following: bool) -> None:
        self.is_following = following
        self._update()

    def _update(self) -> None:
        self.is_shut = self.reason is not None or self.is_busy or self.is_following


def _not_available(reason: str) -> str:
    return f"service not available now: {reason}"

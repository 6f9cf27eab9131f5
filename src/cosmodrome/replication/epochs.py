"""Epochs of a log: which master wrote which of its bytes, and where two logs part.

A broker that becomes master begins an epoch with an id of its own at the end of its log. So an id names one stretch of
bytes that one process wrote: two logs with an epoch in common hold the same bytes up to where it ends in the shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cosmodrome.errors import CosmodromeError
from cosmodrome.store.epochs import LogEpoch as LogEpoch
from cosmodrome.store.raw_log import LogDiverged as LogDiverged


class CannotFollow(CosmodromeError):
    """A master whose log this slave must not take; the text says what to do about it."""


@dataclass(frozen=True, slots=True)
class MasterLog:
    """A master's log, as it answers: without epochs it is Apache's, and nothing can be compared."""

    epochs: Sequence[LogEpoch]
    begin: int
    end: int


def common_end(own: Sequence[LogEpoch], own_end: int, master: Sequence[LogEpoch], master_end: int) -> int | None:
    """Return the offset up to which two logs hold the same bytes; None if no epoch is in both.

    The last epoch in both decides, wherever the lists begin: a log that lost its first files has lost their epochs.
    """
    places = {epoch.id: place for place, epoch in enumerate(master)}
    for place in range(len(own) - 1, -1, -1):
        if (there := places.get(own[place].id)) is not None:
            return min(_end_of(own, place, own_end), _end_of(master, there, master_end))
    return None


def _end_of(epochs: Sequence[LogEpoch], place: int, log_end: int) -> int:
    """Return where an epoch ends. A list may name epochs beyond the end of its log: those are still to come."""
    return min(epochs[place + 1].begin, log_end) if place + 1 < len(epochs) else log_end


def place_to_follow(own: Sequence[LogEpoch], term: int, begin: int, end: int, master: MasterLog) -> int:
    """Return the offset that a slave must cut its log to before it follows `master`: its end if nothing is to be cut.

    `term` is the highest that the slave ever had, also of an epoch whose bytes it lost since. CannotFollow if the
    master is older than what the slave has followed, or if the slave would lose its whole log.
    """
    if not master.epochs:
        return end
    its_term = max(epoch.term for epoch in master.epochs)
    if term > its_term:
        raise CannotFollow(
            f"the master is stale: its term is {its_term}, this log has term {term}; stop that master and start it as "
            "a slave of the one that was promoted"
        )
    if begin == end == 0:
        return end
    if end < master.begin:
        raise _gone(end, master.begin)
    place = common_end(own, end, master.epochs, master.end)
    if place is None:
        if begin == end:
            return end
        raise CannotFollow(
            f"the master has another log: none of the {len(master.epochs)} epochs that it knows wrote any of "
            f"this log's bytes {begin} to {end}; {_REMEDY}"
        )
    if place < begin:
        raise CannotFollow(
            f"nothing of this log is the master's: it begins at {begin}, the two part at {place}; {_REMEDY}"
        )
    if place < master.begin:
        raise _gone(place, master.begin)
    return place


def _gone(place: int, begin: int) -> CannotFollow:
    return CannotFollow(
        f"the master no longer has what follows: this log continues at {place}, the master's begins at {begin}; "
        f"{_REMEDY}"
    )


_REMEDY = "if it is the right master, stop this slave, move its store folder away and start it empty"

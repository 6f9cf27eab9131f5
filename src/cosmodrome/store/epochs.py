"""Which master wrote which part of the log: an ordered list of epochs, kept in `config/logEpochs.json`.

A broker that becomes master begins an epoch at the end of its log, with an id that no other epoch has. Two logs are the
same as far as their lists are, so a slave finds out before it copies anything whether it holds bytes that its master
never had, or has lost.

    epochs      | X, from 0          | Y, from 700     | Z, from 910 ...
    log         0 .................. 700 ............. 910 ........... end

The list always speaks of bytes before the bytes are there: it is on disk before the first of them is appended.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from cosmodrome import state_file
from cosmodrome.errors import ProtocolError, StoreError

log = logging.getLogger(__name__)

LOG_EPOCHS = "logEpochs.json"
EVERYTHING = 2**63 - 1
_ID_BYTES = 8
_MAX_ID = 64  # characters
_NOT_OURS = -1
_NO_CUT = -1


class LogEpoch(NamedTuple):
    """A stretch of the log that one master wrote, from `begin` to where the next epoch begins.

    `term` counts promotions. It is the same after a restart of the same master, which only gets a new `id`.
    """

    term: int
    id: str
    begin: int


def new_id() -> str:
    return secrets.token_hex(_ID_BYTES)


def epoch_end(epochs: Sequence[LogEpoch], number: int, log_end: int) -> int:
    """Return where the epoch with this number ends in a log that ends at `log_end`."""
    return min(epochs[number + 1].begin, log_end) if number + 1 < len(epochs) else log_end


def common_end(ours: Sequence[LogEpoch], our_end: int, theirs: Sequence[LogEpoch], their_end: int) -> int | None:
    """Return up to where two logs hold the same bytes, as their epochs say; None if they share no epoch.

    Either list may lack its first epochs: their part of that log has expired. Of the last epoch that both have, the
    logs share as much as the shorter one has of it.
    """
    start = _first_shared(ours, theirs)
    if start is None:
        return None
    our_number, their_number = start
    while (
        our_number + 1 < len(ours)
        and their_number + 1 < len(theirs)
        and _is_same(ours[our_number + 1], theirs[their_number + 1])
    ):
        our_number, their_number = our_number + 1, their_number + 1
    return min(epoch_end(ours, our_number, our_end), epoch_end(theirs, their_number, their_end))


def _first_shared(ours: Sequence[LogEpoch], theirs: Sequence[LogEpoch]) -> tuple[int, int] | None:
    places = {epoch.id: number for number, epoch in enumerate(theirs)}
    return next(((number, places[epoch.id]) for number, epoch in enumerate(ours) if epoch.id in places), None)


def _is_same(one: LogEpoch, other: LogEpoch) -> bool:
    return one.id == other.id and one.begin == other.begin


class _State(NamedTuple):
    """The epochs of a log, as its file has them.

    `seen_term` is the highest term that a master told us. From `own_begin` on this broker wrote the log; None while it
    follows another. `cut_to` is where a cut of the log that was not finished is to end.
    """

    epochs: tuple[LogEpoch, ...] = ()
    seen_term: int = 0
    own_begin: int | None = 0
    cut_to: int | None = None


class Epochs:
    """The epochs of one store's log. Each change is on disk when its method returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_new = not (path.exists() or path.with_name(path.name + ".bak").exists())
        loss = "this log counts as unknown to other brokers: their copies of it, or this one, must be made again"
        state = state_file.load_expendable(path, _parse, loss)
        self.is_lost = state is None and not self.is_new
        self._state = state or _State()
        self._saved = state

    @property
    def list(self) -> list[LogEpoch]:
        return [*self._state.epochs]

    @property
    def last(self) -> LogEpoch | None:
        return self._state.epochs[-1] if self._state.epochs else None

    @property
    def term(self) -> int:
        """The highest term that this store has seen; 0 before the first epoch."""
        return max([self._state.seen_term, *(epoch.term for epoch in self._state.epochs)])

    @property
    def is_following(self) -> bool:
        """Return whether the last user of this store followed another broker."""
        return self._state.own_begin is None

    @property
    def own_begin(self) -> int:
        """Return where the part of the log begins whose records are dated by this machine's clock."""
        return EVERYTHING if self._state.own_begin is None else self._state.own_begin

    @property
    def cut_to(self) -> int | None:
        """Return where the log must end, if the process died while it cut it; None otherwise."""
        return self._state.cut_to

    def spans(self, log_end: int) -> Sequence[tuple[LogEpoch, int]]:
        """Return each epoch with where it ends."""
        epochs = self._state.epochs
        return [(epoch, epoch_end(epochs, number, log_end)) for number, epoch in enumerate(epochs)]

    def begin(self, log_start: int, log_end: int, *, new_term: bool, above: int = 0) -> LogEpoch:
        """Begin an epoch of our own at the log's end. Whoever has a part of the log that we lost can tell from now on.

        A new term is higher than every one that this store has seen, and than `above`.

        Raise OSError when the disk refuses; the epoch holds all the same, and `save` tries again.
        """
        kept = _before(self._state.epochs, log_end)
        seen = max(self.term, above) if new_term else self.last.term if self.last else 0
        term = max(seen, *(one.term for one in kept), 0)
        epoch = LogEpoch(max(term + new_term, 1), new_id(), log_end if kept else log_start)
        own_begin = log_end if self.is_following else self._state.own_begin
        self._change(self._state._replace(epochs=(*kept, epoch), own_begin=own_begin))
        return epoch

    def follow(self, log_start: int, log_end: int) -> None:
        """Note that what is appended from now on is another broker's. Of what we began, only what has bytes counts."""
        epochs = _before(_since(self._state.epochs, log_start), log_end)
        if self.is_lost and log_start < log_end and not epochs:
            epochs = (LogEpoch(1, new_id(), log_start),)  # unknown to all others: no master's log passes for this one
        self._change(self._state._replace(epochs=epochs, own_begin=None))

    def lead(self, log_start: int, log_end: int, *, is_continued: bool) -> None:
        """Begin what a start as master needs: nothing if it goes on where it left in order."""
        was_following, epochs = self.is_following, self._state.epochs
        known = _since(epochs, log_start)
        fits = bool(known) and known[-1].begin <= log_end
        if known != epochs:
            self._state = self._state._replace(epochs=known)
        if not is_continued or was_following or not fits:
            self.begin(log_start, log_end, new_term=was_following)
        elif known != epochs:
            self.save()

    def adopt(self, epochs: Iterable[LogEpoch]) -> None:
        """Take over the list of the master that is followed from now on."""
        adopted = tuple(epochs)
        seen_term = max([self._state.seen_term, *(epoch.term for epoch in adopted)])
        self._change(self._state._replace(epochs=adopted, seen_term=seen_term))

    def cut(self, end: int) -> None:
        """Note that the log is about to be cut at `end`: a start that finds this finishes it."""
        self._change(self._state._replace(cut_to=end))

    def cut_done(self) -> None:
        end = self._state.cut_to
        assert end is not None, "a cut was begun"
        self._change(self._state._replace(epochs=_before(self._state.epochs, end), cut_to=None))

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Take back what is changed within if the disk refuses it."""
        before = self._state
        try:
            yield
        except OSError:
            self._state = before
            raise

    def save_if_changed(self) -> None:
        """Write what the disk had no room for before."""
        if self._saved != self._state:
            self.save()

    def _change(self, state: _State) -> None:
        self._state = state
        self.save_if_changed()

    def save(self) -> None:
        """Write the list twice: its `.bak` must not say less, or a lost part of the log would pass for ours."""
        state = self._state
        table = {
            "seenTerm": state.seen_term,
            "ownBegin": _NOT_OURS if state.own_begin is None else state.own_begin,
            "cutTo": _NO_CUT if state.cut_to is None else state.cut_to,
            "epochs": [epoch._asdict() for epoch in state.epochs],
        }
        data = json.dumps(table, indent=1).encode()
        state_file.save(self._path, data)
        self._saved = state
        state_file.save(self._path, data)


def _before(epochs: tuple[LogEpoch, ...], log_end: int) -> tuple[LogEpoch, ...]:
    """The epochs that have bytes in a log that ends at `log_end`."""
    return tuple(epoch for epoch in epochs if epoch.begin < log_end)


def _since(epochs: tuple[LogEpoch, ...], log_start: int) -> tuple[LogEpoch, ...]:
    """The epochs without those that lie wholly before the log's start."""
    gone = sum(later.begin <= log_start for later in epochs[1:])
    return epochs[gone:]


def _parse(data: bytes) -> _State:
    table = json.loads(data)
    epochs = tuple(LogEpoch(_number(row, "term", 1), _id(row), _number(row, "begin", 0)) for row in table["epochs"])
    if any(one.begin > other.begin or one.term > other.term for one, other in pairwise(epochs)):
        raise StoreError("its epochs are out of order")
    own_begin, cut_to = _number(table, "ownBegin", _NOT_OURS), _number(table, "cutTo", _NO_CUT)
    return _State(
        epochs,
        _number(table, "seenTerm", 0),
        None if own_begin == _NOT_OURS else own_begin,
        None if cut_to == _NO_CUT else cut_to,
    )


def _number(row: dict[str, Any], name: str, low: int) -> int:
    number = row[name]
    if type(number) is not int or not low <= number <= EVERYTHING:
        raise ProtocolError(f"{name} is {number!r:.40}")
    return number


def _id(row: dict[str, Any]) -> str:
    name = row["id"]
    if type(name) is not str or not 0 < len(name) <= _MAX_ID:
        raise ProtocolError(f"id is {name!r:.40}")
    return name

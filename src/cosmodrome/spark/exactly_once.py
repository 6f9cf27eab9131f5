"""Which half messages of an epoch become visible, whatever happens to the driver. Pure: a ledger does the talking.

    a task        sends its rows as half messages, which nobody sees
    commit()      1. writes a marker: the handles of all half messages of this run. The first marker of an epoch, in
                     the order of one broker's log, is the decision; it stands for ever
                  2. commits the half messages that the decision names
    commit() of   finds a decision already made. Commits what that one names and is not visible yet, and rolls back
    a repetition  its own half messages

A row is called the same in every run, so "is it visible?" has one answer, whichever run made it so.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

import orjson

from cosmodrome.errors import ProtocolError, SendFailed
from cosmodrome.model import MessageQueue
from cosmodrome.numbers import parse_int
from cosmodrome.spark.encoding import RowNames
from cosmodrome.spark.progress import DataLoss
from cosmodrome.wire.record import SysFlag

log = logging.getLogger(__name__)

_SIZE_BYTES = 4
# What batch jobs are called begins so; a stream's batch is `query:number`.
JOB_SCOPE = "job:"


def scope_before(scope: str) -> str | None:
    """The epoch that was decided before anybody could decide this one: the batch before it in a stream. Jobs come in
    any order."""
    query, _, batch = scope.rpartition(":")
    number = parse_int(batch, low=1)
    if scope.startswith(JOB_SCOPE) or not query or number is None:
        return None
    return f"{query}:{number - 1}"


class Half(NamedTuple):
    """A half message: the row it carries, the queue it will be seen in, and where it lies until then."""

    row: str  # its unique id
    queue: MessageQueue
    state_offset: int  # in the queue of half messages
    log_offset: int
    group: str = ""  # that sent it, and alone may end it; old markers do not say

    @property
    def place(self) -> tuple[str, int]:
        return self.queue.broker_name, self.log_offset


class Verdict(IntEnum):
    COMMIT = SysFlag.COMMIT
    ROLLBACK = SysFlag.ROLLBACK


class Handle(NamedTuple):
    """What a task remembers of a half message; the rest follows from the task's name."""

    row: int
    queue: MessageQueue
    state_offset: int
    log_offset: int


@dataclass(frozen=True, slots=True)
class TaskHalves:
    """The half messages of one task."""

    scope: str
    partition: int
    handles: tuple[Handle, ...]
    group: str = ""

    def halves(self) -> list[Half]:
        names = RowNames(self.scope, self.partition)
        return [Half(names.unique_id(handle.row), *handle[1:], group=self.group) for handle in self.handles]

    def encode(self) -> bytes:
        queues = sorted({handle.queue for handle in self.handles})
        index = {queue: number for number, queue in enumerate(queues)}
        columns = {
            "scope": self.scope,
            "partition": self.partition,
            "group": self.group,
            "queues": [[queue.topic, queue.broker_name, queue.queue_id] for queue in queues],
            "rows": [handle.row for handle in self.handles],
            "in": [index[handle.queue] for handle in self.handles],
            "state": [handle.state_offset for handle in self.handles],
            "log": [handle.log_offset for handle in self.handles],
        }
        return zlib.compress(orjson.dumps(columns), 1)

    @classmethod
    def decode(cls, data: bytes) -> TaskHalves:
        columns = orjson.loads(zlib.decompress(data))
        queues = [MessageQueue(*queue) for queue in columns["queues"]]
        rows = zip(columns["rows"], columns["in"], columns["state"], columns["log"], strict=True)
        handles = tuple(Handle(row, queues[at], state, place) for row, at, state, place in rows)
        return cls(columns["scope"], columns["partition"], handles, columns.get("group", ""))


@dataclass(frozen=True, slots=True)
class Decision:
    """What the first marker of an epoch says: these half messages, and no others."""

    run: str
    tasks: Sequence[TaskHalves]

    def halves(self) -> list[Half]:
        return halves_of(self.tasks)


def halves_of(tasks: Iterable[TaskHalves]) -> list[Half]:
    return [half for task in tasks for half in task.halves()]


def pack_tasks(tasks: Iterable[TaskHalves]) -> bytes:
    """| size 4 | task | size 4 | task | …"""
    return b"".join(len(blob).to_bytes(_SIZE_BYTES) + blob for blob in (task.encode() for task in tasks))


def unpack_tasks(data: bytes) -> list[TaskHalves]:
    found, at = [], 0
    while at < len(data):
        begin = at + _SIZE_BYTES
        at = begin + int.from_bytes(data[at:begin])
        if at > len(data):
            raise ProtocolError(f"a marker is cut off: a task ends at byte {at} of {len(data)}")
        found.append(TaskHalves.decode(data[begin:at]))
    return found


class MarkerHead(NamedTuple):
    """The last message of a marker, without which the others count for nothing. It names where those lie."""

    run: str
    part_offsets: Sequence[int]
    last_part: bytes

    def encode(self) -> bytes:
        """| size 4 | run and places as JSON | last part |"""
        text = orjson.dumps({"run": self.run, "parts": list(self.part_offsets)})
        return len(text).to_bytes(_SIZE_BYTES) + text + self.last_part

    @classmethod
    def decode(cls, data: bytes) -> MarkerHead:
        end = _SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES])
        text = orjson.loads(data[_SIZE_BYTES:end])
        return cls(text["run"], text["parts"], data[end:])


def cut(data: bytes, part_bytes: int) -> list[bytes]:
    """Parts of that size, the last one smaller; at least one."""
    return [data[at : at + part_bytes] for at in range(0, len(data), part_bytes)] or [b""]


class Ended(NamedTuple):
    """What came of the half messages that were to be ended, those apart that are."""

    refused: Sequence[Half]  # their broker said no
    unclear: Sequence[Half]  # their broker was told, and did not answer
    untold: Sequence[Half]  # their broker was not reached


class Ledger(Protocol):
    """Brokers, as far as a decision needs them."""

    def decision(self, scope: str) -> Decision | None:
        """The decision, if it is seen. One just made may not be seen yet."""
        ...

    def decide(self, scope: str, run: str, tasks: Sequence[TaskHalves]) -> Decision:
        """Write a marker for durable, and say what the first one says: this one, or one that was there before."""
        ...

    def visible(self, halves: Sequence[Half], *, everywhere: bool = False) -> Collection[str]:
        """The rows of which consumers see a message: on the broker of the half message, or on any."""
        ...

    def end(self, halves: Sequence[Half], verdict: Verdict) -> Ended:
        """Tell their brokers, those of one queue one after the other in this order."""
        ...

    def is_gone(self, half: Half) -> bool:
        """Whether a half message that was refused does not exist any more, so that it cannot be committed ever."""
        ...

    def pause(self, tries: int) -> None: ...


class Committer:
    """What the driver does when the tasks of an epoch are done."""

    def __init__(self, ledger: Ledger, *, tries: int, fail_on_data_loss: bool = True) -> None:
        self._ledger = ledger
        self._tries = tries
        self._fail_on_data_loss = fail_on_data_loss

    def commit(self, scope: str, run: str, tasks: Sequence[TaskHalves]) -> None:
        """Make each row of the epoch visible once. `run` is a name that no other call has.

        Whenever this raises or dies, another call with the half messages of a repetition goes on from there.
        """
        own = halves_of(tasks)
        decision = self._ledger.decision(scope)
        if decision is None:
            if not own:
                return
            decision = self._ledger.decide(scope, run, tasks)
        if decision.run == run:
            self._commit(own, {}, are_new=True)
            return
        halves = decision.halves()
        log.warning("%s was decided by an earlier run: its %d messages stand", scope, len(halves))
        decided = {half.place for half in halves}
        spares = {half.row: half for half in own if half.place not in decided}
        used = self._commit(halves, spares, are_new=False)
        self.roll_back([half for half in spares.values() if half.row not in used])

    def _commit(self, halves: Sequence[Half], spares: Mapping[str, Half], *, are_new: bool) -> Collection[str]:
        """Commit what is not visible, each once: brokers that are told twice may show a message twice.

        Of half messages that are gone, `spares` carry the same rows; the rows for which they stand in are returned.
        """
        pending = list(halves) if are_new else self._invisible(halves)
        gone: list[Half] = []
        for tried in range(1, self._tries + 1):
            ended = self._ledger.end(pending, Verdict.COMMIT)
            refused = [half for half in ended.refused if not self._ledger.is_gone(half)]
            known = {half.place for half in refused}
            gone += [half for half in ended.refused if half.place not in known]
            if not refused and not ended.unclear and not ended.untold:
                break
            if tried == self._tries:
                open_count = len(refused) + len(ended.unclear) + len(ended.untold)
                raise SendFailed(
                    f"{open_count} of {len(halves)} messages could not be committed in {tried} tries; "
                    "start the query again: it goes on from here"
                )
            self._ledger.pause(tried)
            pending = [*self._invisible([*refused, *ended.unclear]), *ended.untold]
        return self._stand_in(gone, spares)

    def _stand_in(self, gone: Sequence[Half], spares: Mapping[str, Half]) -> Collection[str]:
        """A spare for each that is gone, unless an earlier run did that."""
        if not gone:
            return ()
        seen = self._ledger.visible(gone, everywhere=True)
        missing = [half for half in gone if half.row not in seen]
        found = [spares[half.row] for half in missing if half.row in spares]
        log.warning("%d half messages are gone; %d are replaced by those of this run", len(missing), len(found))
        if found:
            self._commit(found, {}, are_new=True)
        if len(found) < len(missing):
            self._lost(len(missing) - len(found))
        return {half.row for half in found}

    def _lost(self, count: int) -> None:
        text = f"{count} messages of this batch are lost: their half messages are gone from the broker"
        if self._fail_on_data_loss:
            raise DataLoss(f"{text}. Set the option failOnDataLoss to false to go on without them")
        log.error("%s", text)

    def _invisible(self, halves: Sequence[Half]) -> list[Half]:
        if not halves:
            return []
        seen = self._ledger.visible(halves)
        return [half for half in halves if half.row not in seen]

    def roll_back(self, halves: Sequence[Half]) -> None:
        """As far as it goes: what stays open is given up by its broker in time, and never seen."""
        if halves:
            self._ledger.end(halves, Verdict.ROLLBACK)

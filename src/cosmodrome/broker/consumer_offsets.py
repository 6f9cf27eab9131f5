"""How far each group has consumed each queue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cosmodrome import state_file
from cosmodrome.broker.pop.messages import REVIVE_GROUP
from cosmodrome.broker.tables import SavedTable
from cosmodrome.clock import Clock
from cosmodrome.errors import LimitReached
from cosmodrome.wire.bodies import ConsumerOffsetsBody

ADOPTED_STEP = 500  # topics of groups, taken over from a master in one step


class _Ahead(NamedTuple):
    """An offset that may be saved once the log is on disk up to `log_end`; until then the one before it is."""

    saved: int | None
    log_end: int
    offset: int


class ConsumerOffsets(SavedTable):
    """`topic@group` → queue id → next offset to consume.

    A commit overwrites, also with a smaller value: whoever resets an offset means it. Commits are saved every few
    seconds, so after a crash a group may see its last few messages again, never miss one. An offset that was moved
    because of something stored (`commit_ahead`) is not saved before that is on disk.

    A running consumer goes on from where it is and commits that. So a reset that it must follow is kept until it asks
    for messages again (`take_reset`); what is committed until then is of the time before, and does not count.
    """

    def __init__(self, path: Path, clock: Clock, limit: int = 1_000_000) -> None:
        super().__init__(path, clock)
        self._limit = limit
        self._count = 0
        self._offsets: dict[str, dict[int, int]] = {}
        self._own: set[str] = set()  # keys whose offsets no snapshot shares; all others are copied before they change
        self._topics: dict[str, dict[str, None]] = {}  # group → topics; to look through all offsets takes too long
        self._groups: dict[str, dict[str, None]] = {}  # topic → groups
        self._ahead: dict[tuple[str, int], _Ahead] = {}
        # Group → topic and queue id → offset, that a running consumer has not heard of.
        self._resets: dict[str, dict[tuple[str, int], int]] = {}
        stored = state_file.load(path, ConsumerOffsetsBody.decode, is_progress=True)
        if stored is not None:
            self._offsets.update({key: dict(queues) for key, queues in stored.offsets.items()})
            self._count = sum(map(len, self._offsets.values()))
            for key in self._offsets:
                self._enter(key)
            self.data_version = stored.data_version

    def __len__(self) -> int:
        """Return how many offsets there are: one for each queue of each group."""
        return self._count

    def accept(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit for a peer; LimitReached when that would be an offset too many."""
        if self._count >= self._limit and self.find_offset(group, topic, queue_id) is None:
            raise LimitReached(
                f"no offset of group {group} for {topic}, queue {queue_id}: there are {self._count} offsets, "
                f"and maxConsumerOffsets allows {self._limit}"
            )
        self.commit(group, topic, queue_id, offset)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        if not self.has_reset(group, topic, queue_id):
            self._commit(group, topic, queue_id, offset)

    def _commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        key = f"{topic}@{group}"
        before = self._offsets.get(key, {}).get(queue_id)
        if before != offset:
            if before is None:
                self._count += 1
            self._queues(key)[queue_id] = offset
            self.changed()
        if self._ahead:
            self._ahead.pop((f"{topic}@{group}", queue_id), None)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit for a consumer that runs and must hear of it."""
        self._commit(group, topic, queue_id, offset)
        self._resets.setdefault(group, {})[topic, queue_id] = offset

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        return bool(self._resets) and (topic, queue_id) in self._resets.get(group, ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where the consumer that asks now has to go on; None, nearly always, where it is."""
        if not self._resets or (resets := self._resets.get(group)) is None:
            return None
        offset = resets.pop((topic, queue_id), None)
        if not resets:
            del self._resets[group]
        return offset

    def drop_resets(self, group: str) -> None:
        """Nobody of the group runs any more: whoever comes next begins at what is committed."""
        self._resets.pop(group, None)

    def adopting(self, table: ConsumerOffsetsBody) -> Iterator[None]:
        """Take over the offsets of a slave's master, in steps; those that only this broker has stay."""
        is_changed = False
        for number, (key, queues) in enumerate(table.offsets.items(), 1):
            known = self._queues(key)
            if any(known.get(queue_id) != offset for queue_id, offset in queues.items()):
                self._count += len(queues.keys() - known.keys())
                known.update(queues)
                is_changed = True
            if number % ADOPTED_STEP == 0:
                yield
        if is_changed:
            self.replaced(table.data_version)

    def fit(self, end_of: Callable[[str, int], int]) -> None:
        """Set back what goes beyond the end of its queue: the log was cut, and others will get these offsets."""
        for key, queues in list(self._offsets.items()):
            topic, _, group = key.partition("@")
            for queue_id, offset in list(queues.items()):
                end = end_of(topic, queue_id)
                if offset > end:
                    self._commit(group, topic, queue_id, end)

    def taking_back(self, table: ConsumerOffsetsBody, known_to: Callable[[str, int, int], int]) -> Iterator[None]:
        """Take over, in steps, how far groups are that a slave has served meanwhile. No offset is set back, and none
        goes beyond what `known_to` says: up to there, a queue's offsets mean the same messages for both."""
        for number, (key, queues) in enumerate(table.offsets.items(), 1):
            topic, _, group = key.partition("@")
            for queue_id, told in queues.items():
                offset = (
                    min(told, known_to(topic, queue_id, told + 1) - 1)
                    if group == REVIVE_GROUP
                    else known_to(topic, queue_id, told)
                )
                before = self.find_offset(group, topic, queue_id)
                if offset > (-1 if before is None else before) and (before is not None or self._count < self._limit):
                    self._commit(group, topic, queue_id, offset)
            if number % ADOPTED_STEP == 0:
                yield

    def commit_ahead(self, group: str, topic: str, queue_id: int, offset: int, log_end: int) -> None:
        """Commit, but save it only once everything below `log_end` is on disk (`settle`)."""
        key = f"{topic}@{group}"
        queues = self._queues(key)
        ahead = self._ahead.get((key, queue_id))
        # While one waits, those behind it wait with it: `settle` then takes the newest.
        if ahead is None:
            self._ahead[key, queue_id] = _Ahead(queues.get(queue_id), log_end, offset)
        if queue_id not in queues:
            self._count += 1
        queues[queue_id] = offset

    def settle(self, flushed: int, log_end: int) -> None:
        """The log ends at `log_end` and is on disk up to `flushed`: let what that covers be saved."""
        for (key, queue_id), ahead in list(self._ahead.items()):
            newest = self._offsets.get(key, {}).get(queue_id)
            if ahead.log_end > flushed:
                continue
            if newest is None or newest == ahead.offset or log_end <= flushed:
                del self._ahead[key, queue_id]
            else:
                self._ahead[key, queue_id] = _Ahead(ahead.offset, log_end, newest)
            self.changed()

    def find_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        return self._offsets.get(f"{topic}@{group}", {}).get(queue_id)

    def settled_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset that may be saved now: for one that was moved ahead of the disk, the one before it."""
        ahead = self._ahead.get((f"{topic}@{group}", queue_id))
        return ahead.saved if ahead is not None else self.find_offset(group, topic, queue_id)

    def of_group(self, group: str) -> dict[str, Mapping[int, int]]:
        """Topic → queue id → offset, for the topics this group has consumed."""
        return {topic: self._offsets[f"{topic}@{group}"] for topic in self.topics_of(group)}

    def topics_of(self, group: str) -> list[str]:
        """The topics this group has consumed."""
        return list(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        return list(self._groups.get(topic, ()))

    def _queues(self, key: str) -> dict[int, int]:
        """Return the offsets under a key, to be changed."""
        queues = self._offsets.get(key)
        if queues is None:
            queues = self._offsets[key] = {}
            self._own.add(key)
            self._enter(key)
        elif key not in self._own:
            queues = self._offsets[key] = dict(queues)
            self._own.add(key)
        return queues

    def _enter(self, key: str) -> None:
        topic, _, group = key.partition("@")
        self._topics.setdefault(group, {})[topic] = None
        self._groups.setdefault(topic, {})[group] = None

    def forget_topic(self, topic: str) -> None:
        self._forget({f"{topic}@{group}" for group in self.groups_of(topic)})
        for group, resets in list(self._resets.items()):
            self._resets[group] = {place: offset for place, offset in resets.items() if place[0] != topic}
            if not self._resets[group]:
                del self._resets[group]

    def forget_group(self, group: str) -> None:
        self._forget({f"{topic}@{group}" for topic in self.topics_of(group)})
        self._resets.pop(group, None)

    def _forget(self, keys: Collection[str]) -> None:
        for key in keys:
            self._count -= len(self._offsets.pop(key))
            topic, _, group = key.partition("@")
            for index, name, other in ((self._topics, group, topic), (self._groups, topic, group)):
                del index[name][other]
                if not index[name]:
                    del index[name]
            self.changed()
        if self._ahead:
            self._ahead = {place: ahead for place, ahead in self._ahead.items() if place[0] not in keys}

    def body(self) -> ConsumerOffsetsBody:
        """All offsets as they are now, those too that may not be saved yet."""
        return ConsumerOffsetsBody(self.data_version, {key: dict(queues) for key, queues in self._offsets.items()})

    def encoded(self) -> bytes:
        return self.snapshot()()

    def snapshot(self) -> Callable[[], bytes]:
        """Share the offsets with the thread that encodes them: to copy a million takes seconds."""
        offsets = dict(self._offsets)
        self._own.clear()
        for key in {key for key, _ in self._ahead}:
            offsets[key] = dict(offsets[key])
        for (key, queue_id), ahead in self._ahead.items():
            if ahead.saved is not None:
                offsets[key][queue_id] = ahead.saved
            else:
                del offsets[key][queue_id]
        return partial(ConsumerOffsetsBody(self.data_version, offsets).encode, pretty=True)

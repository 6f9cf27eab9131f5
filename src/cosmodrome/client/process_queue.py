"""The messages of one queue that were pulled and are not finished. Pure."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

from cosmodrome.client.settings import at_least, at_least_or_none, between
from cosmodrome.config import MIB
from cosmodrome.errors import ProtocolError
from cosmodrome.model import ReceivedMessage


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """How much of a queue may be pulled and not finished before pulling waits; defaults are those of Java's client.

    What is said of a topic is shared evenly by the queues of it that this consumer has.
    """

    max_messages: int = 1_000
    max_bytes: int = 100 * MIB
    max_span: int = 2_000  # between the oldest and the newest offset; does not count where order does
    max_messages_of_topic: int | None = None
    max_bytes_of_topic: int | None = None

    def __post_init__(self) -> None:
        at_least(1, max_messages=self.max_messages, max_bytes=self.max_bytes, max_span=self.max_span)
        of_topic = {"max_messages_of_topic": self.max_messages_of_topic, "max_bytes_of_topic": self.max_bytes_of_topic}
        at_least_or_none(1, **of_topic)

    def check_bounds(self) -> None:
        """Raise ConfigError for what Java's push consumer refuses as too much."""
        between(1, 65_535, max_messages=self.max_messages, max_span=self.max_span)
        between(1, 1_024 * MIB, max_bytes=self.max_bytes)
        between(1, 6_553_500, max_messages_of_topic=self.max_messages_of_topic)
        between(1, 102_400 * MIB, max_bytes_of_topic=self.max_bytes_of_topic)

    def shared_by(self, queues: int) -> CacheLimits:
        """For each of so many queues of one topic."""
        messages, size = self.max_messages, self.max_bytes
        if self.max_messages_of_topic is not None:
            messages = max(1, self.max_messages_of_topic // max(queues, 1))
        if self.max_bytes_of_topic is not None:
            size = max(1, self.max_bytes_of_topic // max(queues, 1))
        return dataclasses.replace(self, max_messages=messages, max_bytes=size)


DEFAULT_LIMITS = CacheLimits()


class Hold(NamedTuple):
    """The limit that keeps a queue from being pulled, by the name of its setting; of a topic's, this queue's share."""

    limit: str
    cached: int
    allowed: int


class ProcessQueue:
    """What is in process, and how far the group may be committed.

    Every message below `commit_offset` is finished or was not wanted; it never goes back. Messages come in the order
    of their offsets and finish in any order. Once released, the queue belongs to somebody else: nothing that
    finishes later may be committed.
    """

    def __init__(self, start_offset: int, limits: CacheLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self._sizes: dict[int, int] = {}  # offset → bytes, of what is in process
        self._order: deque[int] = deque()  # the same, ascending; finished ones leave when they come to the front
        self._bytes = 0
        self.next_offset = start_offset
        self.released = False
        self.held_since_ms: int | None = None  # since when a limit keeps it from being pulled; its reader notes that

    def starting_at(self, offset: int) -> Self:
        """An empty one in its place."""
        return type(self)(offset, self.limits)

    def put(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Take what a pull brought; everything else before `next_offset` was not wanted.

        ProtocolError, and nothing is taken, unless the offsets go forward.
        """
        offsets = [self.next_offset - 1, *(message.queue_offset for message in messages)]
        if next_offset <= offsets[-1] or any(later <= earlier for earlier, later in pairwise(offsets)):
            raise ProtocolError(f"offsets {offsets[1:]} and then {next_offset} do not go on from {self.next_offset}")
        for message in messages:
            self._sizes[message.queue_offset] = message.store_size
            self._order.append(message.queue_offset)
            self._bytes += message.store_size
        self.next_offset = next_offset

    def finish(self, messages: Iterable[ReceivedMessage]) -> None:
        """These are taken care of; what was given up meanwhile is so already."""
        for message in messages:
            self._bytes -= self._sizes.pop(message.queue_offset, 0)
        while self._order and self._order[0] not in self._sizes:
            self._order.popleft()

    @property
    def commit_offset(self) -> int:
        """The smallest offset in process, or the next to be pulled."""
        return self._order[0] if self._order else self.next_offset

    @property
    def newest_offset(self) -> int:
        """The largest offset in process, or the one before the next to be pulled."""
        return next(reversed(self._sizes), self.next_offset - 1)

    @property
    def is_full(self) -> bool:
        """Whether to finish some before more are pulled."""
        return self.hold is not None

    @property
    def hold(self) -> Hold | None:
        """The limit that is passed, None if more may be pulled."""
        limits = self.limits
        if len(self._sizes) > limits.max_messages:
            of_topic = limits.max_messages_of_topic is not None
            return Hold(f"max_messages{'_of_topic' * of_topic}", len(self._sizes), limits.max_messages)
        if self._bytes > limits.max_bytes:
            of_topic = limits.max_bytes_of_topic is not None
            return Hold(f"max_bytes{'_of_topic' * of_topic}", self._bytes, limits.max_bytes)
        span = self._order[-1] - self._order[0] if self._order else 0
        return Hold("max_span", span, limits.max_span) if span > limits.max_span else None

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def __contains__(self, offset: object) -> bool:
        return offset in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

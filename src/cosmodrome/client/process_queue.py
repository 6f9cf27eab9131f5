"""The messages of one queue that were pulled and are not finished. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise

from cosmodrome.config import MIB
from cosmodrome.errors import ProtocolError
from cosmodrome.model import ReceivedMessage

MAX_MESSAGES = 1_000
MAX_BYTES = 100 * MIB
MAX_SPAN = 2_000


class ProcessQueue:
    """What is in process, and how far the group may be committed.

    Every message below `commit_offset` is finished or was not wanted; it never goes back. Messages come in the order
    of their offsets and finish in any order. Once released, the queue belongs to somebody else: nothing that
    finishes later may be committed.
    """

    def __init__(self, start_offset: int) -> None:
        self._sizes: dict[int, int] = {}  # offset → bytes, of what is in process
        self._order: deque[int] = deque()  # the same, ascending; finished ones leave when they come to the front
        self._bytes = 0
        self.next_offset = start_offset
        self.released = False

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
        for message in messages:
            self._bytes -= self._sizes.pop(message.queue_offset)
        while self._order and self._order[0] not in self._sizes:
            self._order.popleft()

    @property
    def commit_offset(self) -> int:
        """The smallest offset in process, or the next to be pulled."""
        return self._order[0] if self._order else self.next_offset

    @property
    def is_full(self) -> bool:
        """Whether to finish some before more are pulled."""
        if len(self._sizes) > MAX_MESSAGES or self._bytes > MAX_BYTES:
            return True
        return bool(self._order) and self._order[-1] - self._order[0] > MAX_SPAN

    def __len__(self) -> int:
        return len(self._sizes)

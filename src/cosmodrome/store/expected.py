"""What a record should have left in its queue and in the index, asked of the code that puts it there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from cosmodrome.store.consume_queue import ConsumeQueue, Entry
from cosmodrome.store.consume_queues import ConsumeQueues
from cosmodrome.store.dispatcher import Dispatcher
from cosmodrome.store.index_file import Index, Key
from cosmodrome.wire.record import RecordHead


class Traces(NamedTuple):
    """`entry` is None for a record that belongs into no queue."""

    entry: Entry | None
    keys: list[str]


class Expected:
    """A dispatcher that enters records into nothing and remembers what it was about to enter."""

    def __init__(self, deleted: Mapping[str, int] | None = None) -> None:
        self._queue = _QueueStandIn()
        self._index = _IndexStandIn()
        # They take the places of the real ones in the only calls a dispatcher makes.
        self._dispatcher = Dispatcher(cast(ConsumeQueues, self._queue), cast(Index, self._index))
        self._dispatcher.deleted = deleted or {}

    def traces(self, head: RecordHead) -> Traces:
        self._queue.entry, self._index.keys = None, []
        self._dispatcher.dispatch_record(head)
        return Traces(self._queue.entry, self._index.keys)


class _QueueStandIn:
    """Every queue there is."""

    def __init__(self) -> None:
        self.topic = ""
        self.entry: Entry | None = None

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """None, as for a topic not known yet: it has to be checked first."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        self.topic = topic
        return cast(ConsumeQueue, self)

    def put(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        self.entry = physical_offset, size, tags_code

    def lose(self, queue_offset: int, physical_offset: int) -> None:
        """A lost message has no entry."""


class _IndexStandIn:
    def __init__(self) -> None:
        self.indexed = -1
        self.keys: list[str] = []

    def put(self, topic: str, keys: list[Key], timestamp: int) -> None:
        self.keys = [key for key, _ in keys]

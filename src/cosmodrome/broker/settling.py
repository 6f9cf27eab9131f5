"""Sends to a topic that was just made: they wait until it is on disk, and keep their order."""

from __future__ import annotations

import asyncio

from cosmodrome.broker.topics import Topics
from cosmodrome.net.lane import Lane


class _Line:
    """The sends that wait for one topic, the first of them holding the lock."""

    __slots__ = ("count", "lock")

    def __init__(self) -> None:
        self.count = 0
        self.lock = asyncio.Lock()


class Settling:
    """The requests that wait for each topic.

    A send that comes when the topic is on disk, but not all before it have gone on, waits as well: nothing that a
    producer sends one after the other is stored in another order.
    """

    def __init__(self, topics: Topics, lane: Lane) -> None:
        self._topics = topics
        self._lane = lane
        self._lines: dict[str, _Line] = {}

    def must_wait(self, topic: str) -> bool:
        return topic in self._lines or (bool(self._topics.made) and self._topics.is_unsaved(topic))

    async def wait(self, topic: str) -> None:
        """Return when the topic is on disk and those that came before have gone on; store with no wait after this.

        They go on one after the other, in a turn of the loop each. Of many topics that waited for the same write, the
        first send of each makes files, so it waits for its turn among all long work.
        """
        line = self._lines.get(topic)
        is_first = line is None
        if line is None:
            line = self._lines[topic] = _Line()
        line.count += 1
        try:
            async with line.lock:
                if self._topics.is_unsaved(topic):
                    await self._topics.saved()
                if is_first:
                    await self._lane.turn()
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[topic]

"""Topics whose queues an application wants to be told of, whoever reads them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from cosmodrome.client.fetched_queues import OnQueues, tell
from cosmodrome.client.instance import Instance
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import MessageQueue

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Watched:
    queues: tuple[MessageQueue, ...] | None = None  # None: not looked at yet
    listeners: list[OnQueues] = dataclasses.field(default_factory=list)


class WatchedTopics:
    """Tells listeners of all queues of a topic when they change, as `shown` gives them."""

    def __init__(self, instance: Instance, shown: Callable[[Iterable[MessageQueue]], list[MessageQueue]]) -> None:
        self._instance = instance
        self._shown = shown
        self._topics: dict[str, _Watched] = {}

    @property
    def names(self) -> Set[str]:
        """As brokers know them; those that come later are among them as well."""
        return self._topics.keys()

    def add(self, topic: str, listener: OnQueues) -> None:
        self._topics.setdefault(topic, _Watched()).listeners.append(listener)

    async def look_at_all(self) -> None:
        await asyncio.gather(*map(self.look, self._topics))

    async def look(self, topic: str) -> None:
        """What its queues are, so that a change will be noticed."""
        try:
            await self._instance.routes.topic(topic)
        except CosmodromeError as error:
            log.warning("no route for %s: %s", topic, error)
        watched = self._topics[topic]
        if watched.queues is None:
            watched.queues = self._queues_of(topic)

    def routes_changed(self) -> None:
        for topic, watched in self._topics.items():
            queues = self._queues_of(topic)
            if watched.queues is not None and queues != watched.queues:
                watched.queues = queues
                self._instance.run(tell(watched.listeners, self._shown(queues)), f"queues of {topic}")

    def _queues_of(self, topic: str) -> tuple[MessageQueue, ...]:
        route = self._instance.routes.find(topic)
        return () if route is None else route.subscribe_queues

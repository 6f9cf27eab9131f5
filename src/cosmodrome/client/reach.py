"""The state of a consumer's connection to its cluster: what has answered, and what is missing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from cosmodrome.client.instance import Instance
from cosmodrome.clock import Clock
from cosmodrome.errors import ClientError, ConnectionFailed, CosmodromeError, RouteNotFound
from cosmodrome.model import RETRY_PREFIX

log = logging.getLogger(__name__)

# How long a start waits for a name server, how often it asks, and how often `ready` looks.
START_TIMEOUT_MS = 10_000
ASK_AGAIN_MS = 1_000
LOOK_AGAIN_MS = 50

_NO_ANSWER = (
    "no name server answered within {} ms ({}); check that one runs there, or pass require_connection=False to start "
    "without one"
)


class Reach:
    """The knowledge of a group member about its name servers and brokers.

    `topics` are those it is subscribed to, as brokers know them; the group's retry topic is one of them.
    """

    def __init__(
        self,
        instance: Instance,
        clock: Clock,
        group: str,
        topics: Collection[str],
        note_missing: Callable[[str], None],
    ) -> None:
        self._instance = instance
        self._clock = clock
        self._group = group
        self._topics = topics
        self._note_missing = note_missing
        self.is_reached = False  # a name server has answered, if only that it does not know a topic
        self.is_settled = False  # the last round of sharing out left nothing to do

    async def begin(self, timeout_ms: int, *, required: bool) -> None:
        """Ask the name servers for a topic until one answers; "no such topic" is an answer as well.

        ConnectionFailed after `timeout_ms`. A consumer that does not require an answer asks once and goes on.
        """
        deadline_ms = self._clock.steady_ms() + timeout_ms
        for topic in self._own_topics[:1]:
            while (failure := await self._ask(topic, deadline_ms - self._clock.steady_ms())) is not None:
                if not required:
                    log.warning("consumer starts without a connection: group=%s reason=%s", self._group, failure)
                    return
                if (left_ms := deadline_ms - self._clock.steady_ms()) <= 0:
                    raise ConnectionFailed(self._name_servers, _NO_ANSWER.format(timeout_ms, failure))
                await self._clock.sleep(min(ASK_AGAIN_MS, left_ms))

    async def _ask(self, topic: str, timeout_ms: int) -> str | None:
        """Return why no name server answered, None if one did. A refusal that waiting does not mend is raised."""
        try:
            async with asyncio.timeout(max(timeout_ms, 1) / 1000):
                await self._instance.routes.topic(topic)
        except RouteNotFound:
            self._note_missing(topic)
        except TimeoutError:
            return "no answer in time"
        except CosmodromeError as error:
            if error.is_lasting:
                raise
            return str(error)
        self.is_reached = True
        return None

    @property
    def _name_servers(self) -> str:
        return ";".join(self._instance.name_servers.addresses) or "the name servers"

    @property
    def _own_topics(self) -> list[str]:
        return [topic for topic in self._topics if not topic.startswith(RETRY_PREFIX)]

    def silent(self) -> list[str]:
        """Name what does not answer: the name servers until one has, then each broker that does not know us."""
        if not self.is_reached:
            return [f"name server {self._name_servers}"]
        return [f"broker {name}" for name, is_told in self._brokers().items() if not is_told]

    @property
    def is_cut_off(self) -> bool:
        """Return whether nothing answers: no name server ever did, or none of the brokers does."""
        brokers = self._brokers()
        return not self.is_reached or (bool(brokers) and not any(brokers.values()))

    def _brokers(self) -> dict[str, bool]:
        """Return the brokers of the topics, and whether one member of each broker group knows us."""
        routes = filter(None, map(self._instance.routes.find, self._topics))
        told = self._instance.told
        return {
            broker.broker_name: not told.isdisjoint(broker.addresses.values())
            for route in routes
            for broker in route.route.brokers
        }

    async def ready(self, timeout_ms: int) -> None:
        """Return once everything answers, every topic exists and our share is read; ClientError says what lacks."""
        deadline_ms = self._clock.steady_ms() + timeout_ms
        while lacking := self._lacking():
            if (left_ms := deadline_ms - self._clock.steady_ms()) <= 0:
                raise ClientError(f"consumer group {self._group} is not ready after {timeout_ms} ms: {lacking}")
            await self._clock.sleep(min(LOOK_AGAIN_MS, left_ms))

    def _lacking(self) -> str | None:
        if silent := self.silent():
            return f"no answer from {', '.join(silent)}"
        if not self._own_topics:
            return "it is subscribed to no topic"
        if missing := [topic for topic in self._own_topics if self._instance.routes.find(topic) is None]:
            return f"no name server knows topic {', '.join(missing)}"
        return None if self.is_settled else "its queues are not shared out yet"

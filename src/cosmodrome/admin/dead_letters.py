"""Dead letters: messages that a group has given up. They are read, and given to that group again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from cosmodrome.admin.core import unanswered
from cosmodrome.admin.results import TopicOnBroker, Unanswered
from cosmodrome.admin.topics import TopicsAdmin
from cosmodrome.client.finding import END_OF_TIME_MS, Finder, Found
from cosmodrome.client.retry_copies import retry_copy
from cosmodrome.codes import RequestCode
from cosmodrome.errors import CosmodromeError, RouteNotFound
from cosmodrome.model import DLQ_PREFIX, Property, ReceivedMessage, check_group, dead_letter_topic
from cosmodrome.wire.bodies import TopicStats
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import TopicHeader

REDRIVE_DELAY_LEVEL = 1  # brokers take a retry with a delay only
REDRIVE_MS = 5_000


@dataclass(frozen=True, slots=True)
class Redriven:
    """The outcome for one dead letter: `problem` is empty if the group gets it again."""

    message: ReceivedMessage
    problem: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """A group with dead letters: how many, on which brokers, and when the last message was given up."""

    group: str
    messages: int
    last_ms: int
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeadLetterGroups:
    """All groups with dead letters, by name."""

    groups: tuple[DeadLetterGroup, ...]
    unanswered: tuple[Unanswered, ...] = ()


def origin_topic(message: ReceivedMessage) -> str:
    """Return the topic that a dead letter was sent to."""
    return message.properties.get(Property.RETRY_TOPIC) or message.properties.get(Property.REAL_TOPIC, "")


class DeadLettersAdmin(TopicsAdmin):
    """The part of `Admin` about dead letters."""

    async def dead_letter_groups(self) -> DeadLetterGroups:
        """Return the groups that have dead letters; each broker is asked about the dead letter topics that it has."""
        configs = await self.topic_configs()
        asked = [one for one in configs.topics if one.config.name.startswith(DLQ_PREFIX)]
        found = await asyncio.gather(*(self._stored(one) for one in asked))
        by_group: dict[str, list[tuple[str, int, int]]] = {}
        for one, stored in zip(asked, found, strict=True):
            if isinstance(stored, TopicStats) and (count := _count(stored)):
                last_ms = max(queue.last_update_timestamp for queue in stored.offsets.values())
                group = one.config.name.removeprefix(DLQ_PREFIX)
                by_group.setdefault(group, []).append((one.node.broker_name, count, last_ms))
        failed = {one for one in found if isinstance(one, Unanswered)}
        groups = (
            DeadLetterGroup(
                group,
                sum(count for _, count, _ in parts),
                max(last_ms for _, _, last_ms in parts),
                tuple(sorted(name for name, _, _ in parts)),
            )
            for group, parts in sorted(by_group.items())
        )
        return DeadLetterGroups(tuple(groups), (*configs.unanswered, *failed))

    async def _stored(self, topic: TopicOnBroker) -> TopicStats | Unanswered:
        header = TopicHeader(topic.config.name)
        try:
            return TopicStats.decode((await self._ask(topic.node, RequestCode.GET_TOPIC_STATS_INFO, header)).body)
        except CosmodromeError as error:
            return unanswered(topic.node, error)

    async def dead_letters(
        self, group: str, begin_ms: int = 0, end_ms: int = END_OF_TIME_MS, limit: int = 1_000
    ) -> Found:
        """Return the oldest dead letters of a group that were given up within a time; none is no error."""
        self._require_running()
        topic = dead_letter_topic(check_group(group))
        try:
            return await Finder(self._instance, self._instance.namespace).between(topic, begin_ms, end_ms, limit)
        except RouteNotFound:
            return Found()

    async def redrive(self, group: str, messages: Iterable[ReceivedMessage]) -> list[Redriven]:
        """Give dead letters to their group again, and to no other; each is tried as often as a new message.

        They stay in the dead letter topic: what is given twice is delivered twice.
        """
        self._require_running()
        return [await self._redrive(check_group(group), message) for message in messages]

    async def _redrive(self, group: str, message: ReceivedMessage) -> Redriven:
        topic = origin_topic(message)
        if not topic:
            return Redriven(message, "its properties do not name the topic that it came from")
        header, body = retry_copy(message, group, topic, REDRIVE_DELAY_LEVEL, 0, None, self._clock.now_ms())
        command = Command.request(RequestCode.SEND_MESSAGE, header, body)
        try:
            (node,) = await self.targets(message.queue.broker_name)
            await self._instance.ask(node.address, command, REDRIVE_MS)
        except CosmodromeError as error:
            return Redriven(message, str(error))
        return Redriven(message)


def _count(stored: TopicStats) -> int:
    return sum(max(queue.max_offset - queue.min_offset, 0) for queue in stored.offsets.values())

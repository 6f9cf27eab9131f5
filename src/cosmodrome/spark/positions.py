"""Which queues a query reads, and where it begins and ends: asked of name servers and brokers."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from cosmodrome.client.pulling import NOTHING_THERE
from cosmodrome.client.time_search import first_since
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import KIB
from cosmodrome.errors import BrokerError, CallTimeout, ConfigError, ConnectionFailed, RouteNotFound
from cosmodrome.model import (
    DLQ_PREFIX,
    MASTER_ID,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    MessageQueue,
    Subscription,
)
from cosmodrome.spark.link import Cluster
from cosmodrome.spark.options import EARLIEST, LATEST, Position, SourceOptions, Where
from cosmodrome.spark.progress import Offsets, named
from cosmodrome.spark.pulling import pull_request
from cosmodrome.spark.sink_options import COMMIT_TOPIC
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.record import Record, decode_records
from cosmodrome.wire.requests import OffsetReply, QueryConsumerOffset, QueueHeader, SearchOffset

log = logging.getLogger(__name__)

# How many messages are looked at to guess the size of those that follow.
SAMPLE_ROWS = 32
SAMPLE_BYTES = 256 * KIB

NEW_TOPIC_SECONDS = 2.0
NEW_TOPIC_PAUSE_SECONDS = 0.1

# Topics of other topics' consumers, which a pattern means only if it says so.
_GROUP_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX)
_REPLY_SUFFIX = "_REPLY_TOPIC"  # behind the name of a cluster

T = TypeVar("T")


class Positions:
    """Asks patiently: a broker that is away for a moment must not end a query."""

    def __init__(self, cluster: Cluster, options: SourceOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._routeless: set[str] = set()  # topics of which that has been said

    def _patiently(self, work: Callable[[], T]) -> T:
        return self._cluster.patiently(
            work, self._options.offset_retries, self._options.offset_retry_interval_ms / 1000
        )

    # --- queues

    def queues(self, *, under_way: bool = False) -> tuple[MessageQueue, ...]:
        """All that the options name; ConfigError when a topic does not exist.

        A query `under_way` has seen it exist: a broker that starts anew has no route for a moment, and is waited for.
        """
        options = self._options
        if options.assigned:
            return self._assigned_now() if under_way else self._assigned()
        topics = options.topics if options.pattern is None else self._matching(options.pattern)
        of_topic = self._again_of_topic if under_way or options.pattern is not None else self._of_topic
        return tuple(sorted(queue for topic in topics for queue in of_topic(topic)))

    def check_named(self, queues: Iterable[MessageQueue]) -> None:
        """Offsets of a queue that is not among these are a slip, or of messages that are lost: ConfigError names it."""
        if not self._options.fail_on_data_loss:
            return
        sides = {"startingOffsets": self._options.starting.offsets, "endingOffsets": self._options.ending.offsets}
        for option, offsets in sides.items():
            if missing := sorted(set(offsets or ()).difference(queues)):
                raise ConfigError(
                    f"the option {option} names {named(missing[0])}, which is not there; "
                    "leave it out, or set failOnDataLoss to false"
                )

    def _assigned(self) -> tuple[MessageQueue, ...]:
        topics = {queue.topic for queue in self._options.assigned}
        there = {queue for topic in topics for queue in self._of_topic(topic)}
        if missing := [queue for queue in self._options.assigned if queue not in there]:
            raise ConfigError(f"the option assign names {named(missing[0])}, which does not exist")
        return self._options.assigned

    def _assigned_now(self) -> tuple[MessageQueue, ...]:
        """Without those of brokers that name servers do not know at the moment, unless there are no others."""
        there = self._patiently(self._cluster.brokers)
        return tuple(queue for queue in self._options.assigned if queue.broker_name in there) or self._options.assigned

    def _matching(self, pattern: str) -> list[str]:
        """A stream may find its first topic later; so nothing may match."""
        found = self._patiently(self._cluster.topics)
        matching = [topic for topic in found if re.fullmatch(pattern, topic)]
        clusters = self._patiently(self._cluster.clusters) if matching else {}
        return [topic for topic in matching if not _is_internal(topic, pattern, clusters)]

    def _of_topic(self, topic: str) -> tuple[MessageQueue, ...]:
        """A topic that was made a moment ago may not have come to the name servers yet."""
        deadline = time.monotonic() + NEW_TOPIC_SECONDS
        while (queues := self._patiently(lambda: self._new_queues(topic))) is None:
            if time.monotonic() >= deadline:
                raise ConfigError(f"the topic {topic} does not exist; create it, or send a first message to it")
            time.sleep(NEW_TOPIC_PAUSE_SECONDS)
        return queues

    def _new_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """None of a topic that no broker has; while there is no broker at all, one may be starting anew."""
        try:
            return self._cluster.queues(topic)
        except RouteNotFound:
            if self._cluster.brokers():
                return None
            raise

    def _again_of_topic(self, topic: str) -> tuple[MessageQueue, ...]:
        """None of a topic that is gone, where a user can do without."""
        tolerant = not self._options.fail_on_data_loss or self._options.pattern is not None

        def ask() -> tuple[MessageQueue, ...] | None:
            try:
                return self._cluster.queues(topic)
            except RouteNotFound:
                if tolerant:
                    return None
                raise

        found = self._patiently(ask)
        if found is not None:
            self._routeless.discard(topic)
            return found
        if topic not in self._routeless:
            log.warning("the topic %s has no route now", topic)
        self._routeless.add(topic)
        return ()

    def without_topic(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Those whose brokers are there and say that they have no such topic. They are asked themselves: a route may be
        missing as well because a broker starts anew. And they are asked for messages: that is what we may do."""
        brokers, found = self._patiently(self._cluster.brokers), list[MessageQueue]()
        for queue in queues:
            address = brokers.get(queue.broker_name, {}).get(MASTER_ID)
            if address is None:
                continue
            try:
                reply = self._cluster.call(address, pull_request(queue, 0, 1, Subscription(queue.topic)))
            except (ConnectionFailed, CallTimeout):  # and the next one would have to wait as long
                del brokers[queue.broker_name]
                continue
            if reply.code == ResponseCode.TOPIC_NOT_EXIST:
                found.append(queue)
        return found

    def is_gone(self, queue: MessageQueue) -> bool:
        """Whether its broker is there and has the topic no more, or the topic fewer queues."""
        if self.without_topic([queue]):
            return True
        try:
            there = self._patiently(lambda: self._cluster.queues(queue.topic))
        except RouteNotFound:
            return False
        return queue not in there and any(other.broker_name == queue.broker_name for other in there)

    # --- offsets

    def latest(self, queues: Iterable[MessageQueue], reached: Offsets | None = None) -> dict[MessageQueue, int]:
        """Where each queue ends. A slave that is behind its lost master takes nothing back of what was `reached`."""
        found = self._edges(queues, RequestCode.GET_MAX_OFFSET)
        behind = [queue for queue in reached or () if queue in found and not self._cluster.has_master(queue)]
        return found | {queue: max(found[queue], (reached or {})[queue]) for queue in behind}

    def earliest(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return self._edges(queues, RequestCode.GET_MIN_OFFSET)

    def _edges(self, queues: Iterable[MessageQueue], code: RequestCode) -> dict[MessageQueue, int]:
        """Asked for all at once. Apache says -1 of a queue that has never had a message."""
        wanted = list(queues)

        def ask() -> list[Command]:
            member = self._cluster.member
            headers = [QueueHeader(queue.topic, queue.queue_id) for queue in wanted]
            return self._cluster.ask_all(
                [(member(queue), Command.request(code, header)) for queue, header in zip(wanted, headers, strict=True)]
            )

        offsets = [max(OffsetReply.decode(reply).offset, 0) for reply in self._patiently(ask)]
        return dict(zip(wanted, offsets, strict=True))

    def _edge(self, queue: MessageQueue, code: RequestCode) -> int:
        return self._edges([queue], code)[queue]

    def _offset(self, queue: MessageQueue, code: RequestCode, header: Header) -> int:
        def ask() -> int:
            return OffsetReply.decode(self._cluster.ask(self._cluster.member(queue), code, header)).offset

        return self._patiently(ask)

    def committed(self, queue: MessageQueue) -> int | None:
        """What the group has committed, if it has."""
        header = QueryConsumerOffset(self._options.group, queue.topic, queue.queue_id)
        try:
            offset = self._offset(queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except BrokerError as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return offset if offset >= 0 else None

    def sample(self, queue: MessageQueue, offset: int, rows: int = SAMPLE_ROWS) -> list[Record]:
        """A few messages from `offset` on; none where there are none."""
        request = pull_request(queue, offset, rows, Subscription(queue.topic), SAMPLE_BYTES)

        def ask() -> list[Record]:
            address = self._cluster.member(queue)
            reply = self._cluster.call(address, request)
            if reply.code in NOTHING_THERE:
                return []
            if reply.code != ResponseCode.SUCCESS:
                raise BrokerError(reply.code, reply.remark or "", address)
            return decode_records(reply.body)

        return self._patiently(ask)

    # --- where to begin and end

    def start(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Where the options begin in each queue."""
        if self._options.starting == Position(Where.LATEST):
            return self.latest(queues)
        return {queue: self._resolve(self._options.starting, queue, self._since) for queue in queues}

    def end(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Where the options end in each queue."""
        if self._options.ending == Position(Where.LATEST):
            return self.latest(queues)
        return {queue: self._resolve(self._options.ending, queue, self.at_time) for queue in queues}

    def _resolve(self, position: Position, queue: MessageQueue, at_time: Callable[[MessageQueue, int], int]) -> int:
        since_ms = position.timestamp_ms
        if position.timestamps_ms is not None:
            by_queue = position.timestamps_ms
            since_ms = by_queue.get(queue, by_queue.get(queue.topic))
            if since_ms is None:
                raise ConfigError(f"no timestamp is given for {named(queue)}; name its topic, or all its queues")
        if since_ms is not None:
            return at_time(queue, since_ms)
        given = (position.offsets or {}).get(queue)
        if given is not None and given >= 0:
            return given
        return self._named(queue, position.where, given)

    def _named(self, queue: MessageQueue, where: Where | None, given: int | None) -> int:
        if given == EARLIEST or (given is None and where is Where.EARLIEST):
            return self._edge(queue, RequestCode.GET_MIN_OFFSET)
        if given != LATEST and where is Where.GROUP and (offset := self.committed(queue)) is not None:
            return offset
        if given != LATEST and where is Where.GROUP:  # a queue the group has never read
            return self._edge(queue, RequestCode.GET_MIN_OFFSET)
        return self._edge(queue, RequestCode.GET_MAX_OFFSET)

    def _since(self, queue: MessageQueue, since_ms: int) -> int:
        """ConfigError when nothing is that young, unless the user says that this is all right."""
        found = self.at_time(queue, since_ms)
        if self._options.missing_timestamp_is_latest or found < self._edge(queue, RequestCode.GET_MAX_OFFSET):
            return found
        raise ConfigError(
            f"{named(queue)} has no message from {since_ms} on; "
            "accept that with startingOffsetsByTimestampStrategy=latest"
        )

    def at_time(self, queue: MessageQueue, since_ms: int) -> int:
        """The first message stored at that time or later, or the queue's end."""
        newest = self._edge(queue, RequestCode.GET_MAX_OFFSET)
        header = SearchOffset(queue.topic, queue.queue_id, since_ms)
        search = first_since(since_ms, self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header), newest)
        try:
            offset = next(search)
            while True:
                shown = self.sample(queue, offset, rows=1)
                offset = search.send(shown[0].store_timestamp if shown else None)
        except StopIteration as found:
            return int(found.value)


def _is_internal(topic: str, pattern: str, clusters: Mapping[str, Iterable[str]]) -> bool:
    """Whether it is there for brokers, for Spark's own sink or for a single group: brokers and clusters have topics of
    their names."""
    if topic in SYSTEM_TOPICS or topic == COMMIT_TOPIC or topic.lower().startswith(SYSTEM_PREFIX):
        return True
    if any(topic in (cluster, f"{cluster}{_REPLY_SUFFIX}", *brokers) for cluster, brokers in clusters.items()):
        return True
    return any(topic.startswith(prefix) and prefix not in pattern for prefix in _GROUP_PREFIXES)

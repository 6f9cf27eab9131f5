"""The brokers behind a decision: where markers are kept, half messages ended, and messages looked for."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from cosmodrome.client.pulling import NOTHING_THERE
from cosmodrome.client.subscribing import subscription
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import MIB
from cosmodrome.errors import (
    BrokerError,
    CallTimeout,
    ClientError,
    ConfigError,
    ConnectionFailed,
    CosmodromeError,
    RouteNotFound,
)
from cosmodrome.model import HALF_TOPIC, MASTER_ID, READ_WRITE, READER_GROUP, MessageQueue, Property, Subscription
from cosmodrome.numbers import read_int
from cosmodrome.spark.encoding import Shipment, drawn_name
from cosmodrome.spark.exactly_once import (
    Decision,
    Ended,
    Half,
    MarkerHead,
    TaskHalves,
    Verdict,
    cut,
    pack_tasks,
    scope_before,
    unpack_tasks,
)
from cosmodrome.spark.link import MAX_PAUSE_SECONDS, Cluster, Peer
from cosmodrome.spark.pulling import pull_request
from cosmodrome.spark.sending import Sender
from cosmodrome.spark.sink_options import SinkOptions
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import KVTable
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import Record, decode_records, parse_offset_msg_id
from cosmodrome.wire.requests import CreateTopic, EndTransaction, PullReply, QueryMessage, SendReply, ViewMessage

log = logging.getLogger(__name__)

PART_BYTES = MIB
# How long a broker may take to find by key what it has stored, and how often it is asked.
FIND_SECONDS = 30.0
FIND_PAUSE_SECONDS = 0.01
# Where a broker does not say how far its index is, this must be enough.
INDEX_SECONDS = 3.0
MAX_QUESTIONS = 256  # under way at once
_FOUND_AT_MOST = 64
_EVER_MS = 2**63 - 1
_MARKER_QUEUE = 0

T = TypeVar("T")


class BrokerLedger:
    """Markers are kept on one broker only, in the order of whose log the first of an epoch is the decision."""

    def __init__(self, cluster: Cluster, options: SinkOptions, *, may_create: bool) -> None:
        self._cluster = cluster
        self._options = options
        self._may_create = may_create
        self._found_home: MessageQueue | None = None
        self._rolled_back: set[tuple[str, int]] = set()

    def _patiently(self, work: Callable[[], T]) -> T:
        return self._cluster.patiently(work, self._options.send_retries, self._options.send_retry_interval_ms / 1000)

    def pause(self, tries: int) -> None:
        time.sleep(min(self._options.send_retry_interval_ms / 1000 * 2 ** (tries - 1), MAX_PAUSE_SECONDS))
        self._cluster.forget_routes()

    # --- where markers are

    def _home(self) -> MessageQueue:
        if self._found_home is None:
            self._found_home = MessageQueue(self._options.commit_topic, self._home_broker(), _MARKER_QUEUE)
        return self._found_home

    def _home_broker(self) -> str:
        """The one broker that has the topic; it is made where there is none, if it cannot have been there before."""
        topic, wanted = self._options.commit_topic, self._options.commit_broker
        may_create = bool(wanted) or self._may_create

        def ask() -> list[str]:
            try:
                return sorted({data.broker_name for data in self._cluster.route(topic).queues})
            except RouteNotFound:
                if may_create:
                    return []
                raise

        try:
            names = self._patiently(ask)
        except RouteNotFound:
            names = []
        if wanted in names:
            return wanted
        if wanted or (not names and may_create):
            return self._create_home(topic, wanted)
        if not names:
            raise ConfigError(
                f"the topic {topic}, which holds the markers of exactlyOnce, has no route: start its broker. If it was "
                "deleted, or never was, name the broker to make it on with the option commitBroker"
            )
        if len(names) > 1:
            raise ConfigError(
                f"the topic {topic}, which holds the markers of exactlyOnce, is on the brokers {', '.join(names)}; "
                "name one of them with the option commitBroker, and never change it"
            )
        return names[0]

    def _create_home(self, topic: str, wanted: str) -> str:
        brokers = self._patiently(self._cluster.brokers)
        masters = {name: members[MASTER_ID] for name, members in sorted(brokers.items()) if MASTER_ID in members}
        if wanted and wanted not in masters:
            raise ConfigError(f"the option commitBroker is {wanted!r}; there are {', '.join(masters) or 'none'}")
        if not masters:
            raise ConnectionFailed("every name server", "no broker is known")
        name = wanted or next(iter(masters))
        header = CreateTopic(topic, 1, 1, READ_WRITE)
        try:
            self._patiently(lambda: self._cluster.ask(masters[name], RequestCode.UPDATE_AND_CREATE_TOPIC, header))
        except BrokerError as refusal:
            raise ConfigError(
                f"the topic {topic}, which holds the markers of exactlyOnce, cannot be made: {refusal}. Create it with "
                f"one queue, on one broker only"
            ) from refusal
        log.info("made the topic %s on broker %s", topic, name)
        return name

    # --- markers

    def decision(self, scope: str) -> Decision | None:
        """By key, and if none is found so, in the queue: Apache's brokers may forget keys when they are killed. In a
        stream the marker of the batch before says where to begin, so that nothing but new ones is looked at."""
        before = scope_before(scope)
        heads, *earlier = self._heads(scope, before) if before else self._heads(scope)
        if not heads:
            begin = next((records[0].queue_offset for records in earlier if records), 0)
            heads = self._listed(scope, begin)
        return self._read(heads[0]) if heads else None

    def decide(self, scope: str, run: str, tasks: Sequence[TaskHalves]) -> Decision:
        *parts, last = cut(pack_tasks(tasks), PART_BYTES)
        offsets = [self._store("", part) for part in parts]
        head = self._store(scope, MarkerHead(run, offsets, last).encode())
        first = self._until_found(scope, head)[0]
        return Decision(run, tasks) if first.physical_offset == head else self._read(first)

    def _until_found(self, scope: str, head: int) -> list[Record]:
        """All markers of the epoch up to ours: keys are entered in the order of the log."""
        deadline = time.monotonic() + FIND_SECONDS
        while True:
            (heads,) = self._heads(scope)
            if any(record.physical_offset == head for record in heads):
                return heads
            if time.monotonic() >= deadline:
                raise ClientError(
                    f"the marker of {scope} is stored in {self._home()}, but not found by its key; exactlyOnce needs a "
                    "broker with messageIndexEnable=true"
                )
            time.sleep(FIND_PAUSE_SECONDS)

    def _heads(self, *scopes: str) -> list[list[Record]]:
        """The heads of the markers that are found by key, of each epoch the first one first."""
        home = self._home()

        def ask() -> list[list[Record]]:
            address = self._cluster.master(home)
            replies = self._cluster.call_all([(address, _query(home.topic, scope)) for scope in scopes])
            return [_records(reply, home.broker_name) for reply in replies]

        return [_heads_of(scope, found) for scope, found in zip(scopes, self._patiently(ask), strict=True)]

    def _listed(self, scope: str, begin: int) -> list[Record]:
        """The heads of the first markers that are in the queue from `begin` on. A broker passes over others by their
        tags, hundreds at a time, without reading them."""
        home = self._home()
        wanted = subscription(home.topic, _tag(scope), version=0)
        offset = begin
        while True:
            try:
                reply = self._patiently(partial(self._pulled, home, offset, wanted))
            except BrokerError as refusal:
                if refusal.code != ResponseCode.NO_PERMISSION and not refusal.is_lasting:
                    raise
                log.warning(
                    "markers are looked for by key only, as %s may not read %s: %s", READER_GROUP, home, refusal
                )
                return []
            if reply.code == ResponseCode.SUCCESS and (heads := _heads_of(scope, decode_records(reply.body))):
                return heads
            answer = PullReply.decode(reply)
            if not offset < answer.next_begin_offset < answer.max_offset:
                return []
            offset = answer.next_begin_offset

    def _pulled(self, queue: MessageQueue, offset: int, wanted: Subscription) -> Command:
        address = self._cluster.master(queue)
        reply = self._cluster.call(address, pull_request(queue, offset, _FOUND_AT_MOST, wanted))
        if reply.code != ResponseCode.SUCCESS and reply.code not in NOTHING_THERE:
            raise BrokerError(reply.code, reply.remark or "", address)
        return reply

    def _read(self, head: Record) -> Decision:
        marker = MarkerHead.decode(head.body)
        parts = [self._at(self._home(), offset).body for offset in marker.part_offsets]
        return Decision(marker.run, unpack_tasks(b"".join([*parts, marker.last_part])))

    def _at(self, queue: MessageQueue, log_offset: int) -> Record:
        def ask() -> Record:
            header = ViewMessage(log_offset, queue.topic)
            reply = self._cluster.ask(self._cluster.master(queue), RequestCode.VIEW_MESSAGE_BY_ID, header)
            (record,) = decode_records(reply.body)
            return record

        return self._patiently(ask)

    def _store(self, key: str, body: bytes) -> int:
        """Where the message lies, once it is stored."""
        found: list[int] = []

        def stored(_shipment: Shipment, _queue: MessageQueue, reply: SendReply) -> None:
            found.append(parse_offset_msg_id(reply.msg_id)[2])

        properties = drawn_name()
        if key:
            properties = props.append(props.append(properties, Property.KEYS, key), Property.TAGS, _tag(key))
        home = self._home()
        sender = Sender(self._cluster, self._options, stored)
        sender.send(Shipment(home.topic, home, (0,), body, properties))
        sender.finish()
        return found[-1]

    # --- half messages

    def end(self, halves: Sequence[Half], verdict: Verdict) -> Ended:
        ending = _Ending(self._cluster, self._options, halves, verdict)
        ended = ending.run()
        self._rolled_back |= ending.illegal
        return ended

    def is_gone(self, half: Half) -> bool:
        """It was rolled back, or does not lie any more where it lay: then brokers speak of a system error."""
        if half.place in self._rolled_back:
            return True
        header = ViewMessage(half.log_offset, half.queue.topic)

        def ask() -> Command:
            command = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, header)
            return self._cluster.call(self._cluster.master(half.queue), command)

        reply = self._patiently(ask)
        if reply.code == ResponseCode.SYSTEM_ERROR:
            return True
        (record,) = _records(reply, half.queue.broker_name)
        return record.topic != HALF_TOPIC or props.find(record.properties, Property.UNIQ_KEY) != half.row

    # --- messages

    def visible(self, halves: Sequence[Half], *, everywhere: bool = False) -> Collection[str]:
        """Asked by key, after everything that the brokers had stored before is in their index."""
        topics = {half.queue.topic for half in halves}
        brokers = {half.queue.broker_name for half in halves}
        if everywhere:
            routes = self._patiently(lambda: [self._cluster.route(topic) for topic in sorted(topics)])
            brokers |= {broker.broker_name for route in routes for broker in route.brokers}
        found: set[str] = set()
        for name in sorted(brokers):
            asked = [half for half in halves if everywhere or half.queue.broker_name == name]
            found |= self._visible_on(name, asked)
        return found

    def _visible_on(self, broker_name: str, halves: Sequence[Half]) -> set[str]:
        def queue(half: Half) -> MessageQueue:
            return MessageQueue(half.queue.topic, broker_name, half.queue.queue_id)

        def ask(part: Sequence[Half]) -> set[str]:
            address = self._cluster.master(queue(part[0]))
            replies = self._cluster.call_all([(address, _query(half.queue.topic, half.row)) for half in part])
            return {
                half.row
                for half, reply in zip(part, replies, strict=True)
                if any(_is_of(record, half) for record in _records(reply, address))
            }

        self._patiently(lambda: self._until_indexed(self._cluster.master(queue(halves[0]))))
        found: set[str] = set()
        for at in range(0, len(halves), MAX_QUESTIONS):
            found |= self._patiently(partial(ask, halves[at : at + MAX_QUESTIONS]))
        return found

    def _until_indexed(self, address: str) -> None:
        """Wait until what the broker has in its log now can be found by key."""
        wanted: int | None = None
        deadline = time.monotonic() + FIND_SECONDS
        while True:
            try:
                reply = self._cluster.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
                table = KVTable.decode(bytes(reply.body)).table
                log_end, behind = read_int(table["commitLogMaxOffset"]), read_int(table["dispatchBehindBytes"])
            except (BrokerError, KeyError, ValueError) as error:
                log.warning("%s does not say how far its index is (%s)", address, error)
                time.sleep(INDEX_SECONDS)
                return
            wanted = log_end if wanted is None else wanted
            if log_end - behind >= wanted:
                return
            if time.monotonic() >= deadline:
                raise CallTimeout(address, FIND_SECONDS * 1000)
            time.sleep(FIND_PAUSE_SECONDS)


def _tag(scope: str) -> str:
    """What tells the markers of an epoch in their queue; a name may have characters that mean something there."""
    return hashlib.blake2b(scope.encode(), digest_size=8).hexdigest()


def _heads_of(scope: str, records: Iterable[Record]) -> list[Record]:
    """Those of the epoch, the first one first."""
    found = [record for record in records if props.find(record.properties, Property.KEYS) == scope]
    return sorted(found, key=lambda record: record.physical_offset)


def _query(topic: str, key: str) -> Command:
    return Command.request(RequestCode.QUERY_MESSAGE, QueryMessage(topic, key, _FOUND_AT_MOST, 0, _EVER_MS))


def _records(reply: Command, address: str) -> list[Record]:
    if reply.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    if reply.code != ResponseCode.SUCCESS:
        raise BrokerError(reply.code, reply.remark or "", address)
    return decode_records(reply.body)


def _is_of(record: Record, half: Half) -> bool:
    return record.topic == half.queue.topic and props.find(record.properties, Property.UNIQ_KEY) == half.row


class _UnderWay(NamedTuple):
    half: Half
    peer: Peer
    opaque: int
    is_answer: bool  # told as if the broker had asked


class _Ending:
    """Ends many half messages, of each queue one after the other: that is the order in which consumers see them."""

    def __init__(self, cluster: Cluster, options: SinkOptions, halves: Iterable[Half], verdict: Verdict) -> None:
        self._cluster = cluster
        self._options = options
        self._verdict = verdict
        self._waiting: dict[MessageQueue, deque[Half]] = {}
        for half in halves:
            self._waiting.setdefault(half.queue, deque()).append(half)
        self._under_way: deque[_UnderWay] = deque()
        self._refused: list[Half] = []
        self._unclear: list[Half] = []
        self._untold: list[Half] = []
        self.illegal: set[tuple[str, int]] = set()  # what was decided otherwise before

    def run(self) -> Ended:
        for queue in list(self._waiting):
            self._next(queue)
        while self._under_way:
            half, peer, opaque, is_answer = self._under_way.popleft()
            try:
                reply = peer.fetch(opaque, self._options.send_timeout_ms / 1000)
            except CosmodromeError as error:
                log.warning("%s; whether a message was %s is not known", error, self._verdict.name)
                self._cluster.drop(peer.address)
                self._unclear.append(half)
                self._untold += self._waiting.pop(half.queue)
                continue
            if reply.code == ResponseCode.ILLEGAL_OPERATION and not is_answer:
                # Apache 5 says so too of a half message that is older than a property of it allows, unless it asked.
                self._tell(half, is_answer=True)
                continue
            if reply.code != ResponseCode.SUCCESS:
                log.warning("%s answered %d to %s: %s", peer.address, reply.code, self._verdict.name, reply.remark)
                self._refused.append(half)
            if reply.code == ResponseCode.ILLEGAL_OPERATION:
                self.illegal.add(half.place)
            self._next(half.queue)
        return Ended(self._refused, self._unclear, self._untold)

    def _next(self, queue: MessageQueue) -> None:
        if waiting := self._waiting[queue]:
            self._tell(waiting.popleft())

    def _tell(self, half: Half, *, is_answer: bool = False) -> None:
        try:
            peer = self._cluster.peer(self._cluster.master(half.queue))
            opaque = peer.send(self._command(half, is_answer))
        except CosmodromeError as error:
            waiting = self._waiting.pop(half.queue)
            log.warning("%s; %d messages are not %s", error, len(waiting) + 1, self._verdict.name)
            if isinstance(error, ConnectionFailed):
                self._cluster.drop(error.address)
            self._untold += [half, *waiting]
        else:
            self._under_way.append(_UnderWay(half, peer, opaque, is_answer))

    def _command(self, half: Half, is_answer: bool) -> Command:
        header = EndTransaction(
            half.group or self._options.group,
            half.state_offset,
            half.log_offset,
            self._verdict,
            is_answer,
            msg_id=half.row,
            transaction_id=half.row,
            topic=half.queue.topic,
            broker_name=half.queue.broker_name,
        )
        return Command.request(RequestCode.END_TRANSACTION, header)

"""Writing down what happens to messages, and reading it again.

Traces are messages to RMQ_SYS_TRACE_TOPIC whose keys are the ids and keys of the messages they speak of. They are sent
in the background, some at a time, and never stand in the way: what cannot be sent is dropped, and that is logged.
A batch has one record, found by as many of its ids as there is room for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from cosmodrome.client.bell import Bell
from cosmodrome.client.hooks import RpcHook
from cosmodrome.client.incoming import MAX_DECOMPRESSED_BYTES
from cosmodrome.client.instance import Instance
from cosmodrome.client.lifecycle import cancelled
from cosmodrome.clock import Clock, SystemClock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import KIB, ClientConfig
from cosmodrome.errors import BrokerError, CosmodromeError, ProtocolError
from cosmodrome.model import TRACE_TOPIC, Message, Property, ReceivedMessage
from cosmodrome.wire import trace
from cosmodrome.wire.command import Command
from cosmodrome.wire.compression import decompress
from cosmodrome.wire.ids import UniqueIds
from cosmodrome.wire.record import Record, SysFlag, sound_records
from cosmodrome.wire.requests import QueryMessage

log = logging.getLogger(__name__)

FLUSH_INTERVAL_MS = 1_000
MAX_WAITING = 4_096
RECORDS_PER_MESSAGE = 50
# What the keys may take of the 32,767 bytes for all properties; clients and brokers add some of their own.
MAX_KEYS_BYTES = 28 * KIB
# A record that is larger goes alone.
MAX_BODY_BYTES = 128 * KIB
LAST_FLUSH_SECONDS = 3.0
MAX_FOUND = 64
_LAST_MS = 2**63 - 1


class Sender(Protocol):
    """The producer that sends the traces; it is not traced itself."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def send(self, message: Message) -> object: ...


class _Noted(NamedTuple):
    record: trace.TraceRecord
    keys: tuple[str, ...]
    keys_bytes: int


def _noted(record: trace.TraceRecord, keys: Iterable[str]) -> _Noted:
    """With as many of its keys as one message has room for."""
    kept, kept_bytes = [], 0
    for key in filter(None, keys):
        key_bytes = len(key.encode(errors="replace")) + 1  # a blank follows
        if kept_bytes + key_bytes <= MAX_KEYS_BYTES:
            kept.append(key)
            kept_bytes += key_bytes
    return _Noted(record, tuple(kept), kept_bytes)


class Tracer:
    def __init__(self, sender: Sender, group: str, clock: Clock, topic: str = TRACE_TOPIC) -> None:
        self._sender = sender
        self._group = group
        self._clock = clock
        self._topic = topic
        self._due = Bell(clock)
        self._waiting: deque[_Noted] = deque()
        self._dropped = 0
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._request_ids = UniqueIds(bytes(4))

    async def start(self) -> None:
        await self._sender.start()
        self._task = asyncio.create_task(self._run(), name=f"traces of {self._group}")

    async def stop(self) -> None:
        """Send what is left, as far as there is time, and stop."""
        try:
            if self._task is not None:
                self._stopping = True
                self._due.ring()
                await asyncio.wait([self._task], timeout=LAST_FLUSH_SECONDS)
                await cancelled([self._task])
                self._drop_rest()
        finally:
            await self._sender.stop()

    def note(self, record: trace.TraceRecord, msg_ids: str, keys: str) -> None:
        """Keep a record until it is sent. `msg_ids` are comma-joined, `keys` blank-joined."""
        if len(self._waiting) >= MAX_WAITING:
            self._dropped += 1
            return
        self._waiting.append(_noted(record, (*msg_ids.split(","), *keys.split())))
        if len(self._waiting) >= RECORDS_PER_MESSAGE:
            self._due.ring()

    async def _run(self) -> None:
        """Once per interval, and a full message at once: more than may wait can come within an interval."""
        while not self._stopping:
            await self._due.wait(FLUSH_INTERVAL_MS)
            waiting = len(self._waiting)
            await self._flush(waiting if waiting < RECORDS_PER_MESSAGE else 0)
        while self._waiting:
            await self._flush(len(self._waiting))

    async def _flush(self, count: int) -> None:
        """Send so many records, and on as long as there are enough for a full message."""
        while count > 0 or len(self._waiting) >= RECORDS_PER_MESSAGE:
            portion, body = self._take_portion()
            count -= len(portion)
            await self._send(portion, body)
        if self._dropped:
            log.warning("%d traces were dropped: more came than could be sent", self._dropped)
            self._dropped = 0

    def _take_portion(self) -> tuple[list[_Noted], bytes]:
        """The next records, at least one and as many as one message has room for, and its body."""
        portion: list[_Noted] = []
        body, keys_bytes = b"", 0
        while self._waiting and len(portion) < RECORDS_PER_MESSAGE:
            encoded = trace.encode([self._waiting[0].record])
            keys_bytes += self._waiting[0].keys_bytes
            if portion and (keys_bytes > MAX_KEYS_BYTES or len(body) + len(encoded) > MAX_BODY_BYTES):
                break
            portion.append(self._waiting.popleft())
            body += encoded
        return portion, body

    async def _send(self, portion: Sequence[_Noted], body: bytes) -> None:
        keys = list(dict.fromkeys(key for noted in portion for key in noted.keys))
        try:
            await self._sender.send(Message(self._topic, body, keys=keys))
        except CosmodromeError as error:
            log.warning("%d traces were not stored: %s", len(portion), error)
        except Exception:  # a hook may raise anything, and these traces must not be the last
            log.exception("%d traces were not stored", len(portion))
        except asyncio.CancelledError:
            self._dropped += len(portion)
            raise

    def _drop_rest(self) -> None:
        dropped = self._dropped + len(self._waiting)
        self._waiting.clear()
        if dropped:
            log.warning("%d traces were dropped: they could not be sent before the stop", dropped)

    # --- consuming

    def consuming(self, messages: Iterable[ReceivedMessage]) -> Consuming:
        """Write down that a handler is called with these, those apart that ask not to be traced."""
        traced = [message for message in messages if message.properties.get(Property.TRACE_ON) != "false"]
        return Consuming(self, traced)

    def request_id(self) -> str:
        return self._request_ids.next()

    @property
    def group(self) -> str:
        return self._group

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def steady_ms(self) -> int:
        return self._clock.steady_ms()


class Consuming:
    """One call of a handler."""

    def __init__(self, tracer: Tracer, messages: list[ReceivedMessage]) -> None:
        self._tracer = tracer
        self._messages = messages
        self._request_id = tracer.request_id()
        self._began_ms = tracer.steady_ms()
        date_ms = tracer.now_ms()
        for message in messages:
            region = message.properties.get(Property.MSG_REGION, "")
            before = trace.SubBefore(
                date_ms,
                region,
                tracer.group,
                self._request_id,
                message.msg_id,
                message.reconsume_times,
                message.keys,
            )
            tracer.note(before, message.msg_id, message.keys)

    def ended(self, outcome: trace.Outcome, success: bool) -> None:
        """Note how the call ended. As with Java's clients, what ended too late may be a success all the same."""
        now_ms = self._tracer.now_ms()
        each_ms = (self._tracer.steady_ms() - self._began_ms) // max(len(self._messages), 1)
        for message in self._messages:
            after = trace.SubAfter(
                self._request_id,
                message.msg_id,
                each_ms,
                success,
                message.keys,
                outcome,
                now_ms,
                self._tracer.group,
            )
            self._tracer.note(after, message.msg_id, message.keys)


async def find_traces(
    key: str,
    *,
    namesrv: str = "",
    topic: str = TRACE_TOPIC,
    rpc_hooks: Sequence[RpcHook] = (),
    config: ClientConfig | None = None,
) -> list[trace.TraceRecord]:
    """What clients have written down about the messages with this id or key, from every broker, in no special order."""
    config = config or ClientConfig(namesrv=namesrv)
    instance = Instance(config, SystemClock(), None, rpc_hooks=rpc_hooks)
    instance.start()
    try:
        route = (await instance.routes.topic(topic)).route
        addresses = [instance.member(broker.broker_name) for broker in route.brokers]
        bodies = [body for address in addresses for body in await _bodies(instance, address, topic, key)]
    finally:
        await instance.stop()
    return [record for body in bodies for record in trace.decode(body) if _speaks_of(record, key)]


def _speaks_of(record: trace.TraceRecord, key: str) -> bool:
    keys = "" if isinstance(record, trace.Recall) else record.keys
    return key in record.msg_id.split(",") or key in keys.split()


async def _bodies(instance: Instance, address: str, topic: str, key: str) -> list[bytes]:
    request = QueryMessage(topic, key, MAX_FOUND, 0, _LAST_MS)
    try:
        reply = await instance.ask(address, Command.request(RequestCode.QUERY_MESSAGE, request))
    except BrokerError as refusal:
        if refusal.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        raise
    return [_unpacked(record) for record in sound_records(bytes(reply.body), _tell_of_damage)]


def _tell_of_damage(error: ProtocolError) -> None:
    log.error("a trace is left out, its message is damaged: %s", error)


def _unpacked(record: Record) -> bytes:
    if not record.sys_flag & SysFlag.COMPRESSED:
        return record.body
    return decompress(record.body, record.sys_flag, limit_bytes=MAX_DECOMPRESSED_BYTES)

"""Hooks that watch what a broker is sent and what its consumers get and finish.

A hook is an object with some of the methods of `BrokerHook`. It is given to `Broker(…, hooks=[…])`, or installed as a
package with an entry point in the group `cosmodrome.broker_hooks`, which names a hook, or a class or function that
makes one. Hooks run on the broker's event loop, in their order, so they must not block; what they raise is logged and
changes nothing.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import ConfigError, ProtocolError, RequestError
from cosmodrome.net.connection import Answering, Connection, completed
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import BatchAckBody
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import Record, sound_records
from cosmodrome.wire.requests import (
    AckMessage,
    PopMessage,
    PullFlag,
    PullMessage,
    SendBack,
    SendMessage,
    SendReply,
    UpdateConsumerOffset,
)

log = logging.getLogger(__name__)

ENTRY_POINTS = "cosmodrome.broker_hooks"
METHODS = ("before_send", "after_send", "before_consume", "after_consume")
# A hook that fails with each message would fill the log: after the first failure it logs one in a thousand.
FAILURES_PER_LINE = 1_000

Handle = Callable[[Connection, Command], Answering]
Replying = Coroutine[Any, Any, Command]
Watch = Callable[[Replying, Connection, Command], Replying]


@dataclass(slots=True)
class SendContext:
    """One request to store a message, a batch or a reply. What stands below `state` is known in `after_send`.

    The body is as the producer sent it, perhaps compressed; that of a batch has its messages one behind the other.
    """

    group: str
    topic: str
    queue_id: int
    client: str
    properties: dict[str, str]
    body: bytes | memoryview
    is_batch: bool
    born_timestamp: int
    state: dict[str, Any] = field(default_factory=dict)
    code: int | None = None
    remark: str | None = None
    msg_id: str = ""
    queue_offset: int = -1

    @property
    def success(self) -> bool:
        """Return whether the message is stored, and as safe as the broker promises."""
        return self.code == ResponseCode.SUCCESS


@dataclass(frozen=True, slots=True)
class ConsumeContext:
    """Messages of a queue that a group is given (`status` FOUND), or what became of some.

    COMMITTED: the group has consumed everything below `offset`. ACKED: it has consumed the popped message at `offset`.
    RECONSUME_LATER: it could not consume the message at `offset` of the commit log, and `queue_id` is not known.
    """

    group: str
    topic: str
    queue_id: int
    client: str
    status: str
    offset: int
    body: bytes | memoryview = b""

    def records(self) -> list[Record]:
        """The messages that are given, as they are stored; those that are damaged are left out."""
        return sound_records(self.body)


class BrokerHook:
    """A hook that does nothing: extend it with what is of interest. None of its methods may be async."""

    def before_send(self, context: SendContext) -> None:
        """A producer asks to store something; nothing is checked yet."""

    def after_send(self, context: SendContext) -> None:
        """The answer is about to leave: `context.code` and what follows say how it ended."""

    def before_consume(self, context: ConsumeContext) -> None:
        """Messages are about to leave for a consumer."""

    def after_consume(self, context: ConsumeContext) -> None:
        """A consumer has said what became of messages, and the broker has accepted it."""


def load_hooks() -> list[object]:
    """Make the hooks of installed packages; ConfigError names the one that cannot be had."""
    from importlib.metadata import entry_points  # takes longer than all else of a broker's start

    hooks = []
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "?"
        try:
            loaded = point.load()
            made = loaded() if inspect.isclass(loaded) or inspect.isroutine(loaded) else loaded
        except Exception as error:
            raise ConfigError(
                f"the broker hook {point.name} ({point.value}) of the package {package} cannot be loaded: {error!r}; "
                "mend or uninstall the package"
            ) from error
        check_hooks([made])
        log.info("broker hook loaded: name=%s value=%s package=%s", point.name, point.value, package)
        hooks.append(made)
    return hooks


def check_hooks(hooks: Sequence[object]) -> None:
    """ConfigError for one that nothing would be told to, or that would not be awaited."""
    for hook in hooks:
        methods = [method for name in METHODS if callable(method := getattr(hook, name, None))]
        if not methods:
            raise ConfigError(f"the broker hook {hook!r} has none of {', '.join(METHODS)}")
        if any(map(inspect.iscoroutinefunction, methods)):
            raise ConfigError(f"the broker hook {hook!r} has an async def; no caller awaits it: make it a def")


class Hooks:
    """The hooks of a broker, around what handles its requests."""

    def __init__(self, hooks: Sequence[object]) -> None:
        check_hooks(hooks)
        self._told = {name: [hook for hook in hooks if callable(getattr(hook, name, None))] for name in METHODS}
        self._failures: Counter[tuple[int, str]] = Counter()
        self._watch: dict[int, Watch] = {}
        if self._watches("send"):
            self._watch |= dict.fromkeys(_SENDS, self._sending)
        if self._watches("consume"):
            self._watch |= dict.fromkeys(_CONSUMES, self._consuming)

    def _watches(self, what: str) -> bool:
        return bool(self._told[f"before_{what}"] or self._told[f"after_{what}"])

    def around(self, handle: Handle) -> Handle:
        """The same handler, with the hooks told of what passes."""

        def handle_watched(connection: Connection, command: Command) -> Answering:
            watch = self._watch.get(command.code)
            if watch is None:
                return handle(connection, command)
            return watch(handle_later(connection, command), connection, command)

        async def handle_later(connection: Connection, command: Command) -> Command:
            return await completed(handle(connection, command))

        return handle_watched

    async def _sending(self, answering: Replying, connection: Connection, command: Command) -> Command:
        try:
            context = _send_context(SendMessage.decode(command), connection, command)
        except (RequestError, ProtocolError):
            return await answering  # it will be refused
        self._tell("before_send", context)
        reply = await answering
        context.code, context.remark = reply.code, reply.remark
        if reply.fields:
            stored = SendReply.decode(reply)
            context.msg_id, context.queue_id, context.queue_offset = stored.msg_id, stored.queue_id, stored.queue_offset
        self._tell("after_send", context)
        return reply

    async def _consuming(self, answering: Replying, connection: Connection, command: Command) -> Command:
        reply = await answering
        try:
            for name, context in _CONSUMES[RequestCode(command.code)](command, reply, connection.peer):
                self._tell(name, context)
        except (RequestError, ProtocolError):
            pass  # it was refused
        return reply

    def _tell(self, name: str, context: SendContext | ConsumeContext) -> None:
        for hook in self._told[name]:
            try:
                getattr(hook, name)(context)
            except Exception:
                self._failures[id(hook), name] += 1
                failures = self._failures[id(hook), name]
                if failures % FAILURES_PER_LINE == 1:
                    log.exception(
                        "broker hook failed: hook=%r method=%s topic=%s failures=%d",
                        hook,
                        name,
                        context.topic,
                        failures,
                    )


def _send_context(request: SendMessage, connection: Connection, command: Command) -> SendContext:
    properties = props.decode(request.properties or "")
    return SendContext(
        request.producer_group,
        request.topic,
        request.queue_id,
        connection.peer,
        properties,
        command.body,
        request.batch,
        request.born_timestamp,
    )


_SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
_Told = Iterator[tuple[str, ConsumeContext]]


def _pulled(command: Command, reply: Command, client: str) -> _Told:
    request = PullMessage.decode(command)
    place = (request.consumer_group, request.topic, request.queue_id, client)
    if request.sys_flag & PullFlag.COMMIT_OFFSET and request.commit_offset >= 0 and reply.fields:
        yield "after_consume", ConsumeContext(*place, "COMMITTED", request.commit_offset)
    if reply.code == ResponseCode.SUCCESS:
        yield "before_consume", ConsumeContext(*place, "FOUND", request.queue_offset, reply.body)


def _popped(command: Command, reply: Command, client: str) -> _Told:
    request = PopMessage.decode(command)
    if reply.code == ResponseCode.SUCCESS:
        place = (request.consumer_group, request.topic, request.queue_id, client)
        yield "before_consume", ConsumeContext(*place, "FOUND", -1, reply.body)


def _committed(command: Command, reply: Command, client: str) -> _Told:
    request = UpdateConsumerOffset.decode(command)
    if reply.code == ResponseCode.SUCCESS:
        place = (request.consumer_group, request.topic, request.queue_id, client)
        yield "after_consume", ConsumeContext(*place, "COMMITTED", request.commit_offset)


def _sent_back(command: Command, reply: Command, client: str) -> _Told:
    request = SendBack.decode(command)
    if reply.code == ResponseCode.SUCCESS:
        place = (request.group, request.origin_topic or "", -1, client)
        yield "after_consume", ConsumeContext(*place, "RECONSUME_LATER", request.offset)


def _acked(command: Command, reply: Command, client: str) -> _Told:
    request = AckMessage.decode(command)
    if reply.code == ResponseCode.SUCCESS:
        place = (request.consumer_group, request.topic, request.queue_id, client)
        yield "after_consume", ConsumeContext(*place, "ACKED", request.offset)


def _batch_acked(command: Command, reply: Command, client: str) -> _Told:
    if reply.code == ResponseCode.SUCCESS:
        for ack in BatchAckBody.decode(command.body).acks:
            for offset in ack.offsets:
                place = (ack.group, ack.topic, ack.queue_id, client)
                yield "after_consume", ConsumeContext(*place, "ACKED", offset)


_CONSUMES: dict[RequestCode, Callable[[Command, Command, str], _Told]] = {
    RequestCode.PULL_MESSAGE: _pulled,
    RequestCode.LITE_PULL_MESSAGE: _pulled,
    RequestCode.POP_MESSAGE: _popped,
    RequestCode.UPDATE_CONSUMER_OFFSET: _committed,
    RequestCode.CONSUMER_SEND_MSG_BACK: _sent_back,
    RequestCode.ACK_MESSAGE: _acked,
    RequestCode.BATCH_ACK_MESSAGE: _batch_acked,
}

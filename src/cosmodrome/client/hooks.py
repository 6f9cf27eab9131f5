"""Where an application can look at, or refuse, what a client does.

A hook is any object with these methods; one that extends the class here needs to define only those it cares for. Hooks
run on the event loop, in the order they were given, so they must not block. A hook that only watches does no harm when
it fails: that is logged. `CheckForbidden` and `RpcHook` may refuse: what they raise, the caller gets.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cosmodrome.errors import ConfigError
from cosmodrome.model import Message, MessageQueue, ReceivedMessage, SendResult
from cosmodrome.wire.command import Command
from cosmodrome.wire.trace import Outcome

if TYPE_CHECKING:
    from cosmodrome.client.transactions import TransactionState

log = logging.getLogger(__name__)

Context = TypeVar("Context")


class SendMode(StrEnum):
    """`send` and its kind, `send_async`, or `send_oneway`."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    ONEWAY = "ONEWAY"


class MessageType(StrEnum):
    """The kind of message that is sent, in Java's words."""

    NORMAL = "Normal_Msg"
    TRANSACTION_HALF = "Trans_Msg_Half"
    DELAYED = "Delay_Msg"


@dataclass(slots=True)
class SendContext:
    """One try to send. `messages` has several members only for a batch; `namespace` is not part of their topics.

    What a `before_send` puts into `properties` travels with a message (not with a batch, which has no properties of its
    own). `state` is for a hook to keep things from `before_send` to `after_send`. One of `result` and `error` is set
    after the send; a one-way send has neither.
    """

    group: str
    messages: Sequence[Message]
    queue: MessageQueue
    address: str
    mode: SendMode
    msg_id: str
    namespace: str = ""
    result: SendResult | None = None
    error: BaseException | None = None
    properties: dict[str, str] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    message_type: MessageType = MessageType.NORMAL

    @property
    def message(self) -> Message:
        """The message, or the first of a batch."""
        return self.messages[0]


class SendHook(Protocol):
    """Watches a producer. Both methods are called for every try."""

    def before_send(self, context: SendContext) -> None:
        """A try is about to begin, and is not forbidden."""
        return

    def after_send(self, context: SendContext) -> None:
        """It has ended, as `context.result` or `context.error` says."""
        return


@dataclass(frozen=True, slots=True)
class EndTransactionContext:
    """A producer's decision about a transaction: sent at once, or when the broker asks (`from_check`).

    `message` is the one that was sent, or the one that the broker asks about. With UNKNOWN the broker asks again.
    """

    group: str
    message: Message | ReceivedMessage
    address: str
    msg_id: str
    transaction_id: str
    state: TransactionState
    from_check: bool = False
    namespace: str = ""


class EndTransactionHook(Protocol):
    """Watches the transactions of a producer."""

    def end_transaction(self, context: EndTransactionContext) -> None:
        """The outcome is known, and the broker is about to hear it."""
        return


# Called before every try. Whatever it raises, the sender gets, and nothing is sent.
CheckForbidden = Callable[[SendContext], None]


@dataclass(slots=True)
class ConsumeContext:
    """One call of a handler. `success`, `status` and `outcome` are set after it.

    `status` is RocketMQ's word for what the handler returned, and `outcome` the kind of end that traces show as well:
    SUCCESS, TIME_OUT, EXCEPTION, RETURNED_NULL or FAILED, which Java's hooks find as ConsumeContextType.
    """

    group: str
    messages: Sequence[ReceivedMessage]
    queue: MessageQueue
    namespace: str = ""
    success: bool = False
    status: str = ""
    error: BaseException | None = None
    state: dict[str, Any] = field(default_factory=dict)
    outcome: Outcome | None = None


class ConsumeHook(Protocol):
    """Watches a consumer."""

    def before_consume(self, context: ConsumeContext) -> None:
        """A handler is about to be called."""
        return

    def after_consume(self, context: ConsumeContext) -> None:
        """It has returned or raised."""
        return


@dataclass(frozen=True, slots=True)
class FilterContext:
    """Messages of one pull, before a handler sees them."""

    group: str
    messages: Sequence[ReceivedMessage]
    queue: MessageQueue


# Returns those messages that the application wants to see; the others count as consumed.
FilterMessageHook = Callable[[FilterContext], Iterable[ReceivedMessage]]


class RpcHook(Protocol):
    """Sees every request of a client and the reply to it. `before_request` may add fields, as a signature does."""

    def before_request(self, address: str, command: Command) -> None:
        """The request is about to leave; what is raised here, the caller gets instead of a reply."""
        return

    def after_response(self, address: str, command: Command, reply: Command) -> None:
        """The reply has come, whatever its code. A one-way request has none."""
        return


def check_hooks(name: str, hooks: Sequence[object], methods: Sequence[str]) -> None:
    """ConfigError for a hook that cannot do its part: when that came out, a message would be stored or handled."""
    if not isinstance(hooks, Sequence):
        raise ConfigError(f"{name} is {hooks!r}; give a list of hooks")
    for hook in hooks:
        for method in methods:
            called = getattr(hook, method, None)
            if not callable(called):
                raise ConfigError(f"{name}: {hook!r} has no {method}; extend the class in cosmodrome, which has all")
            if inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(hook):
                raise ConfigError(f"{name}: {hook!r} is async def; nobody would await it: make it a def")


def check_consumer_hooks(consume_hooks: Sequence[ConsumeHook], filter_hooks: Sequence[FilterMessageHook]) -> None:
    check_hooks("consume_hooks", consume_hooks, ("before_consume", "after_consume"))
    check_hooks("filter_hooks", filter_hooks, ("__call__",))


def tell(hooks: Iterable[Callable[[Context], None]], context: Context) -> None:
    """Call hooks that only watch; a failure of one is logged and stops nothing."""
    for hook in hooks:
        try:
            hook(context)
        except Exception:
            log.exception("the hook %r failed", hook)

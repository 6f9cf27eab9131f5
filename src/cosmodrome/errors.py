"""One family of exceptions, each saying what happened and what to do next.

`RequestError` is an expected refusal: the broker answers it with its `code`, the client raises it again with the
peer's code and remark. `ProtocolError` means the peer's bytes make no sense: its connection is closed. What refuses a
wrong value is a ValueError as well, and what refuses a wrong type a TypeError.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from cosmodrome.codes import ResponseCode


class CosmodromeError(Exception):
    """The root: catching it catches everything this package raises on purpose."""

    @property
    def is_lasting(self) -> bool:
        """Whether it stays as it is until somebody changes a key, a permission or a certificate."""
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: as it is, without asking its class again for the arguments its text was made of."""
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[CosmodromeError], args: tuple[object, ...]) -> CosmodromeError:
    error = kind.__new__(kind, *args)
    error.args = args  # an OSError with a constructor of its own leaves that to it
    return error


class ConfigError(CosmodromeError, ValueError):
    """A setting that cannot work; the text names the key and what it accepts."""


class ProtocolError(CosmodromeError):
    """Bytes that are not RocketMQ's protocol or formats."""


class DamagedRecord(ProtocolError):
    """A stored record whose bytes are no longer those that were written: a checksum does not match."""


class StoreError(CosmodromeError):
    """The store directory cannot be opened, or cannot be written any more."""


class RequestError(CosmodromeError):
    """A request that was understood and refused."""

    code: ClassVar[int] = ResponseCode.SYSTEM_ERROR


class SystemBusy(RequestError):
    code = ResponseCode.SYSTEM_BUSY


class InvalidParameter(RequestError, ValueError):
    code = ResponseCode.INVALID_PARAMETER


class MissingField(InvalidParameter):
    def __init__(self, header: str, field: str) -> None:
        super().__init__(f"{header} needs the field {field!r}")


class MessageIllegal(RequestError):
    code = ResponseCode.MESSAGE_ILLEGAL


class IllegalOperation(RequestError):
    code = ResponseCode.ILLEGAL_OPERATION


class LimitReached(InvalidParameter):
    """A request for more than a bound of the broker allows; the text names the bound's key."""


class NoMessage(RequestError):
    code = ResponseCode.NO_MESSAGE


class ServiceNotAvailable(RequestError):
    code = ResponseCode.SERVICE_NOT_AVAILABLE


class NotCommitted(ServiceNotAvailable):
    """A message that this member of a Raft group has written, and nobody knows yet whether the group keeps it."""

    code = ResponseCode.SYSTEM_ERROR


class SlaveNotAvailable(RequestError):
    """A request for a master that a slave got, or a slave that is missing."""

    code = ResponseCode.SLAVE_NOT_AVAILABLE


class TooFewCopies(RequestError):
    """A message that a SYNC_MASTER does not take while fewer copies than minInSyncReplicas are in sync."""


class FlushTimeout(RequestError):
    """The message is stored, but whether it is on disk is not known in time; it may be put again."""

    code = ResponseCode.FLUSH_DISK_TIMEOUT


class NoPermission(RequestError):
    code = ResponseCode.NO_PERMISSION


class TopicNotFound(RequestError):
    code = ResponseCode.TOPIC_NOT_EXIST

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic[{topic}] not exist, apply first please!")
        self.topic = topic


class RouteNotFound(RequestError):
    code = ResponseCode.TOPIC_NOT_EXIST

    def __init__(self, topic: str) -> None:
        super().__init__(f"No topic route info in name server for the topic: {topic}")
        self.topic = topic


class QueryNotFound(RequestError):
    code = ResponseCode.QUERY_NOT_FOUND


class GroupNotFound(RequestError):
    code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    def __init__(self, group: str) -> None:
        super().__init__(
            f"subscription group [{group}] does not exist; create it or enable autoCreateSubscriptionGroup"
        )
        self.group = group


class SubscriptionNotFound(RequestError):
    code = ResponseCode.SUBSCRIPTION_NOT_EXIST


class SubscriptionOutdated(RequestError):
    code = ResponseCode.SUBSCRIPTION_NOT_LATEST


class SubscriptionParseFailed(RequestError):
    code = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class FilterSyntaxError(SubscriptionParseFailed):
    """A SQL92 expression that cannot be compiled. `position` counts its characters from 0."""

    _NEAR = 24  # characters shown on each side of the fault

    def __init__(self, problem: str, expression: str, position: int) -> None:
        near = expression[max(0, position - self._NEAR) : position + self._NEAR]
        super().__init__(f"SQL92 expression, character {position + 1}, near {near!r}: {problem}")
        self.position = position


class FilterNotFound(RequestError):
    code = ResponseCode.FILTER_DATA_NOT_EXIST


class FilterOutdated(RequestError):
    code = ResponseCode.FILTER_DATA_NOT_LATEST


class ConsumerNotOnline(RequestError):
    code = ResponseCode.CONSUMER_NOT_ONLINE


class ConsumeTimeout(RequestError):
    """A consumer that was asked for something did not answer in time."""

    code = ResponseCode.CONSUME_MSG_TIMEOUT


class RequestCodeNotSupported(RequestError):
    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f" request type {code} not supported{f': {reason}' if reason else ''}")


class ClientError(CosmodromeError):
    """Something a producer or consumer could not do."""


class LifecycleError(ClientError):
    """A client that is used when, or where, it cannot be: on another event loop, in a forked process."""


class NotStarted(LifecycleError):
    """A client that is used before its start."""


class AlreadyStarted(LifecycleError):
    """A client that is started a second time, or beside another one with its client id and group."""


class Closed(LifecycleError):
    """A client that is used, or started again, after its stop."""


class ConnectionFailed(ClientError, ConnectionError):
    """The peer could not be reached, or the connection broke before the answer came."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class UntrustedServer(ConnectionFailed):
    """A certificate that is signed by nobody we trust, or is not for the address it was found at."""

    @property
    def is_lasting(self) -> bool:
        return True


class CallTimeout(ClientError, TimeoutError):
    """The peer did not answer before the deadline. Whether it did the work is unknown."""

    def __init__(self, address: str, timeout_ms: float) -> None:
        super().__init__(f"{address} did not answer within {timeout_ms:.0f} ms")
        self.address = address
        self.timeout_ms = timeout_ms


class BrokerError(ClientError):
    """A peer's refusal, as seen by the client."""

    def __init__(self, code: int, remark: str, address: str) -> None:
        name = ResponseCode(code).name if code in ResponseCode.__members__.values() else "?"
        super().__init__(f"{address} answered {code} {name}: {remark}")
        self.code = code
        self.remark = remark
        self.address = address

    @property
    def is_lasting(self) -> bool:
        """Apache's 4.x brokers have no code for a refused key; and 16 is also said by those that are read-only."""
        if self.code == ResponseCode.NO_PERMISSION:
            return "forbidden" not in self.remark
        return self.code == ResponseCode.SYSTEM_ERROR and "AclException" in self.remark


class MessageNotFound(ClientError):
    """An id that no broker of the topic has a message for."""


class DamagedMessage(ClientError):
    """A message whose stored bytes have changed: a checksum does not match, or it is not where it says it is.

    No consumer is given it. `msg_id` is its offset id, as far as the damage lets it be read.
    """

    def __init__(
        self, topic: str, broker_name: str, queue_id: int, queue_offset: int, reason: str, msg_id: str = ""
    ) -> None:
        super().__init__(
            f"message damaged: topic={topic} broker={broker_name or '?'} queue={queue_id} offset={queue_offset} "
            f"msg_id={msg_id or '?'}: {reason}; `cosmodrome store verify` looks for more in the broker's store"
        )
        self.topic = topic
        self.broker_name = broker_name
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.reason = reason
        self.msg_id = msg_id


class SendAttempt(NamedTuple):
    """One try to send a message: the name of the broker, and why it did not take the message."""

    broker: str
    error: Exception


class SendFailed(ClientError):
    """A message that no broker took; the text lists the tries, and so does `attempts`.

    `attempts` is empty if not even one was made. The error of the last one is the `__cause__`.
    """

    def __init__(self, reason: str, attempts: Iterable[SendAttempt] = ()) -> None:
        super().__init__(reason)
        self.attempts = tuple(attempts)
        self._explain()

    def _explain(self) -> None:
        if self.attempts:
            self.__cause__ = self.attempts[-1].error

    def __setstate__(self, state: dict[str, Any] | None) -> None:
        """Restore the cause as well, which pickle leaves behind."""
        self.__dict__.update(state or {})
        self._explain()

    @property
    def code(self) -> int | None:
        """The code of the last broker that answered, a ResponseCode if it is a known one; None if none answered."""
        codes = [attempt.error.code for attempt in self.attempts if isinstance(attempt.error, BrokerError)]
        return codes[-1] if codes else None


class TooManySends(ClientError):
    """More sends are under way than the producer may hold."""


class UnknownTopic(ClientError, RouteNotFound):
    """A topic to send to that does not exist, and that no broker makes by itself."""

    def __init__(self, topic: str) -> None:
        CosmodromeError.__init__(
            self,
            f"topic {topic!r} does not exist and no broker makes topics by itself: create it, "
            "or start a broker with autoCreateTopicEnable=true",
        )
        self.topic = topic


class InvalidArgument(ClientError, ValueError):
    """An argument that cannot work; the text names it and what it may be."""


class WrongType(InvalidArgument, TypeError):
    """An argument of a kind that cannot work, as a handler that is no function."""


def check_number(least: int, **arguments: int) -> None:
    """InvalidArgument for the first that is smaller, WrongType for one that is no whole number."""
    for name, value in arguments.items():
        accepted = f"{name} is {value!r}; it must be a whole number, at least {least}"
        if not isinstance(value, int) or isinstance(value, bool):
            raise WrongType(accepted)
        if value < least:
            raise InvalidArgument(accepted)


class InvalidMessage(InvalidArgument):
    """A message that no broker would take; refused before it is sent.

    `field` names what is wrong, a field of the message or an argument: `body`, `topic`, `keys`, `properties`. `name` is
    the name of the property, `topic` the message's topic. What is too large has a `size` and a `limit` in bytes. What
    does not apply, or is not known, is empty or None.
    """

    def __init__(
        self,
        reason: str,
        field: str = "",
        *,
        topic: str = "",
        name: str = "",
        size: int | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.field = field
        self.name = name
        self.size = size
        self.limit = limit
        self.topic = topic


class RetryLater(ClientError):
    """Raised by a handler that wants its messages again later.

    Of a list, the first `done` messages are done and only the others come again. They come after the delay of
    `delay_level`; with 0 the broker takes a longer one each time, and with -1 they go to the dead letters at once.
    """

    def __init__(self, reason: str = "the handler asked for it", *, delay_level: int = 0, done: int = 0) -> None:
        check_number(-1, delay_level=delay_level)
        check_number(0, done=done)
        super().__init__(reason)
        self.delay_level = delay_level
        self.done = done


class SuspendQueue(RetryLater):
    """Raised by an orderly handler that wants its messages again after `ms`; until then its queue rests.

    Of a list, the first `done` messages are done and only the others come again.
    """

    def __init__(self, ms: int, reason: str = "the handler asked for it", *, done: int = 0) -> None:
        check_number(1, ms=ms)
        super().__init__(reason, done=done)
        self.ms = ms

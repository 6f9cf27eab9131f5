"""What can be chosen about a producer; the defaults are those of Apache's Java client."""

from __future__ import annotations

from dataclasses import dataclass

from cosmodrome.client.faults import AVOIDED_MS, LATENCY_MS
from cosmodrome.client.hooks import CheckForbidden, EndTransactionHook, SendHook, check_hooks
from cosmodrome.client.outgoing import COMPRESS_FROM_BYTES, MAX_BODY_BYTES
from cosmodrome.client.routes import NEW_TOPIC_QUEUES
from cosmodrome.client.settings import at_least
from cosmodrome.config import MIB
from cosmodrome.errors import ConfigError
from cosmodrome.model import AUTO_CREATE_TOPIC, check_topic
from cosmodrome.wire.compression import DEFAULT_LEVEL, Compression, compress

__all__ = ["Compression", "ProducerOptions"]

SEND_TIMEOUT_MS = 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Everything about sending that most applications leave as it is."""

    # How long a send, a batch or a request may take with all its tries, unless the call says otherwise.
    send_timeout_ms: int = SEND_TIMEOUT_MS
    max_async_tries: int = 3
    # How long a broker is waited for while there are tries left; None: as long as there is time. One that is only slow
    # stores the message all the same, and the next try makes a second copy.
    max_try_ms: int | None = None
    # A broker that stored a message, but not as safely as it should, is followed by another: a duplicate is likely.
    retry_another_broker_when_not_store_ok: bool = False
    # Keep away from slow and failing brokers for a while: see `faults`.
    avoid_slow_brokers: bool = False
    # What a send must take for its broker to be avoided, and for how long then.
    latency_ms: tuple[int, ...] = LATENCY_MS
    avoided_ms: tuple[int, ...] = AVOIDED_MS
    compress_from_bytes: int = COMPRESS_FROM_BYTES
    compression: Compression = Compression.ZLIB
    compression_level: int = DEFAULT_LEVEL
    max_message_bytes: int = MAX_BODY_BYTES
    # From which topic a broker makes one that does not exist, and with how many queues.
    template_topic: str = AUTO_CREATE_TOPIC
    new_topic_queues: int = NEW_TOPIC_QUEUES
    # How much `send_async` takes before earlier sends are done.
    max_async_sends: int = 1_024
    max_async_bytes: int = 100 * MIB
    send_hooks: tuple[SendHook, ...] = ()
    check_forbidden: tuple[CheckForbidden, ...] = ()
    end_transaction_hooks: tuple[EndTransactionHook, ...] = ()

    def __post_init__(self) -> None:
        at_least(
            1,
            send_timeout_ms=self.send_timeout_ms,
            max_async_tries=self.max_async_tries,
            compress_from_bytes=self.compress_from_bytes,
            max_message_bytes=self.max_message_bytes,
            new_topic_queues=self.new_topic_queues,
            max_async_sends=self.max_async_sends,
            max_async_bytes=self.max_async_bytes,
            max_try_ms=1 if self.max_try_ms is None else self.max_try_ms,
        )
        if len(self.latency_ms) != len(self.avoided_ms) or list(self.latency_ms) != sorted(self.latency_ms):
            raise ConfigError("latency_ms must ascend, and avoided_ms have as many members")
        check_topic(self.template_topic)
        check_hooks("send_hooks", self.send_hooks, ("before_send", "after_send"))
        check_hooks("check_forbidden", self.check_forbidden, ("__call__",))
        check_hooks("end_transaction_hooks", self.end_transaction_hooks, ("end_transaction",))
        if not isinstance(self.compression, Compression):
            known = ", ".join(f"Compression.{kind.name}" for kind in Compression)
            raise ConfigError(f"compression is {self.compression!r}; it must be one of {known}")
        try:
            compress(b"", self.compression_level, self.compression)
        except Exception as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"compression_level {self.compression_level}: {error}") from None

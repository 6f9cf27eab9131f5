"""Messages and failures as log lines name them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from cosmodrome.config import DEFAULT_DELAY_LEVELS
from cosmodrome.errors import RetryLater
from cosmodrome.model import MessageQueue, Property, ReceivedMessage

MAX_REASON_BYTES = 256
_MAX_KEYS = 128
_UNPRINTABLE = dict.fromkeys((*range(32), 127), " ")  # also the separators of properties


# Delay levels that are none: the broker takes a longer one each time, or the message is not to come again.
BROKER_DECIDES_DELAY = 0
DEAD_LETTER = -1
FIRST_RETRY_LEVEL = 3
_DELAYS = DEFAULT_DELAY_LEVELS.split()


def described(group: str, messages: Sequence[ReceivedMessage]) -> str:
    """Return the ids of a call's first message, and how many more it has: `group=billing topic=orders …`."""
    first = messages[0]
    more = f" more={len(messages) - 1}" if len(messages) > 1 else ""
    keys = f" keys={quoted(first.keys[:_MAX_KEYS])}" if first.keys else ""
    queue = first.queue
    return (
        f"group={group} topic={first.topic} broker={queue.broker_name} queue={queue.queue_id} "
        f"offset={first.queue_offset} msg_id={first.msg_id}{keys} attempt={first.reconsume_times + 1}{more}"
    )


def described_queue(group: str, queue: MessageQueue) -> str:
    return f"group={group} {queue_ids(queue)}"


def queue_ids(queue: MessageQueue) -> str:
    return f"topic={queue.topic} broker={queue.broker_name} queue={queue.queue_id}"


def next_delay(message: ReceivedMessage, delay_level: int, limit: int | None = None) -> str:
    """Return how long the message waits for its next delivery by the default delay levels, or `dead-letters`.

    `limit` is the consumer's own limit of deliveries; that of the group is known to the broker only.
    """
    if delay_level < 0 or (limit is not None and message.reconsume_times >= limit):
        return "dead-letters"
    level = delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
    return _DELAYS[min(level, len(_DELAYS)) - 1]


def note_failure(messages: Iterable[ReceivedMessage], reason: str) -> None:
    """Have these messages carry why they failed, also to their next handler and to the dead letters."""
    for message in messages:
        message.properties[Property.LAST_ERROR] = reason


def reason_noted(message: ReceivedMessage) -> str:
    return message.properties.get(Property.LAST_ERROR, "")


def reason_of(error: BaseException) -> str:
    """Return what was raised as one line of at most `MAX_REASON_BYTES`; of a `RetryLater`, its reason only."""
    try:
        text = str(error)
    except Exception:  # a user may have written it
        text = "it has no text"
    if not isinstance(error, RetryLater):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return one_line(text)


def one_line(text: str) -> str:
    """Return the text without control characters, cut to `MAX_REASON_BYTES`."""
    clean = text[:MAX_REASON_BYTES].translate(_UNPRINTABLE).strip()
    return clean.encode(errors="replace")[:MAX_REASON_BYTES].decode(errors="ignore")


def quoted(text: str) -> str:
    """Return the text as it is if a log line can be cut at blanks all the same, else in quotes."""
    plain = text.isprintable() and not set(text) & set(' "=')
    return text if text and plain else json.dumps(text, ensure_ascii=False)


def duration(ms: int) -> str:
    """Return 750ms, 1.5s, 30s, 5m or 2h."""
    if ms < 1_000:
        return f"{ms}ms"
    for unit_ms, unit in ((3_600_000, "h"), (60_000, "m")):
        if ms % unit_ms == 0:
            return f"{ms // unit_ms}{unit}"
    return f"{ms / 1_000:g}s" if ms < 60_000 else f"{ms // 1_000}s"

"""The texts by which pop requests and answers name messages, and the topics that popped messages come again in.

    handle               startOffset popTime invisibleTime reviveQueue retry broker queueId offset
    start offsets        retry queueId startOffset;…
    message offsets      retry queueId offset,offset,…;…
    order counts         retry queueId count;…   and   retry qo<queueId>%<offset> count;…

`retry` is "0" for a message of the topic itself, "1" for one of the retry topic, "2" for one of the retry topic V2.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from cosmodrome.errors import InvalidParameter
from cosmodrome.model import RETRY_PREFIX
from cosmodrome.numbers import MAX_LONG, MIN_LONG, shown

ORDER_QUEUE_ID = 999  # the revive queue of an orderly pop, which has none
MAX_HANDLE_CHARACTERS = 1_000
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"


def pop_retry_topic(topic: str, group: str, *, v2: bool = False) -> str:
    """Where messages of the topic that the group did not ack come again."""
    return f"{RETRY_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def all_pop_retry_topics(topic: str, group: str) -> tuple[str, str]:
    """Both names: a broker may have been set to either."""
    return pop_retry_topic(topic, group, v2=True), pop_retry_topic(topic, group)


def retry_mark(topic: str) -> str:
    """Which kind of topic a popped message lies in."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def marked_topic(topic: str, group: str, mark: str) -> str:
    """The topic that a mark stands for."""
    if mark == NORMAL:
        return topic
    if mark not in (RETRY_V1, RETRY_V2):
        raise InvalidParameter(f"{mark!r} is no mark of a topic; 0, 1 and 2 are")
    return pop_retry_topic(topic, group, v2=mark == RETRY_V2)


def normal_topic(topic: str, group: str) -> str:
    """The topic a message was first popped from; the opposite of `pop_retry_topic`, for both of its forms."""
    for separator in "+_":
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return topic


class Handle(NamedTuple):
    """What an ack needs to know of a popped message: the property POP_CK."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    retry: str
    broker_name: str
    queue_id: int
    offset: int

    @property
    def is_orderly(self) -> bool:
        return self.revive_queue_id == ORDER_QUEUE_ID

    def encode(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def decode(cls, text: str) -> Self:
        """InvalidParameter unless it is a handle; the last two parts may be missing."""
        try:
            # `int` itself, for every ack comes here: so short a text holds no number that it refuses.
            words = text.split(" ") if len(text) <= MAX_HANDLE_CHARACTERS else []
            start, popped, invisible, revive_queue_id, retry, broker_name, *rest = words
            queue_id, offset = (int(word) for word in [*rest, "0", "0"][:2])
            handle = cls(
                int(start), int(popped), int(invisible), int(revive_queue_id), retry, broker_name, queue_id, offset
            )
            if handle.has_only_longs:
                return handle
        except ValueError:
            pass
        raise InvalidParameter(f"{shown(text)} is no handle of a popped message")

    @property
    def has_only_longs(self) -> bool:
        """Whether all its numbers fit the fields of Java."""
        low = min(self[0], self[1], self[2], self[3], self[6], self[7])
        high = max(self[0], self[1], self[2], self[3], self[6], self[7])
        return low >= MIN_LONG and high <= MAX_LONG


def start_offset_info(mark: str, queue_id: int, start_offset: int) -> str:
    return f"{mark} {queue_id} {start_offset}"


def message_offset_info(mark: str, queue_id: int, offsets: tuple[int, ...]) -> str:
    return f"{mark} {queue_id} {','.join(map(str, offsets))}"


def order_count_info(mark: str, queue_id: int, count: int, offset: int | None = None) -> str:
    """How often what was popped came before: the least of a queue, or of one message."""
    return f"{mark} {queue_id} {count}" if offset is None else f"{mark} qo{queue_id}%{offset} {count}"

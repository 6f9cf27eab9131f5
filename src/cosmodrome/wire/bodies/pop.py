"""Bodies of pop consumption: checkpoints and acks as they are stored, batch acks, assignments and request modes."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from cosmodrome.errors import ProtocolError
from cosmodrome.model import MessageModel, MessageQueue, RequestMode
from cosmodrome.wire.bodies.fields import Body, Fields, Json, as_int, queue_from

# What a checkpoint can name: Apache's bit set is an int.
MAX_POPPED = 32


@dataclass(frozen=True, slots=True)
class CheckPoint(Body):
    """What one pop took from one queue, and until when nobody else gets it."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    offsets: tuple[int, ...]
    pop_time_ms: int
    invisible_ms: int
    broker_name: str

    @property
    def revive_ms(self) -> int:
        """When what is not acked by then comes again."""
        return self.pop_time_ms + self.invisible_ms

    def to_json(self) -> Json:
        return {
            "bm": 0,
            "bn": self.broker_name,
            "c": self.group,
            "d": [offset - self.start_offset for offset in self.offsets],
            "it": self.invisible_ms,
            "n": len(self.offsets),
            "pt": self.pop_time_ms,
            "q": self.queue_id,
            "ro": 0,
            "so": self.start_offset,
            "t": self.topic,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        start = fields.int64("so")
        # Before 5.0.1 the offsets follow each other; newer brokers write the group as "CId".
        distances = _ints(fields, "d", 32) or range(min(max(fields.int32("n"), 0), MAX_POPPED))
        if len(distances) > MAX_POPPED:
            raise ProtocolError(
                f"the checkpoint names {len(distances)} messages; at most {MAX_POPPED} are popped at once"
            )
        return cls(
            topic=fields.text("t"),
            group=fields.text("c") or fields.text("CId"),
            queue_id=fields.int32("q"),
            start_offset=start,
            offsets=tuple(start + distance for distance in distances),
            pop_time_ms=fields.int64("pt"),
            invisible_ms=fields.int64("it"),
            broker_name=fields.text("bn"),
        )


@dataclass(frozen=True, slots=True)
class Ack(Body):
    """Messages of one checkpoint that were consumed. A batch names any number of them, a single ack one."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    offsets: tuple[int, ...]
    pop_time_ms: int
    broker_name: str
    is_batch: bool = False

    def to_json(self) -> Json:
        return {
            "ao": -1 if self.is_batch else self.offsets[0],
            **({"aol": list(self.offsets)} if self.is_batch else {}),
            "bn": self.broker_name,
            "c": self.group,
            "pt": self.pop_time_ms,
            "q": self.queue_id,
            "so": self.start_offset,
            "t": self.topic,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        is_batch = fields.get("aol") is not None
        return cls(
            topic=fields.text("t"),
            group=fields.text("c"),
            queue_id=fields.int32("q"),
            start_offset=fields.int64("so"),
            offsets=_ints(fields, "aol", 64) if is_batch else (fields.int64("ao"),),
            pop_time_ms=fields.int64("pt"),
            broker_name=fields.text("bn"),
            is_batch=is_batch,
        )


def _ints(fields: Fields, name: str, bits: int) -> tuple[int, ...]:
    return tuple(as_int(item, 0, bits, name) for item in fields.items(name))


@dataclass(frozen=True, slots=True)
class BatchAck:
    """What a client acks of one checkpoint; `retry` is the mark of the topic it was popped from."""

    group: str
    topic: str
    retry: str
    queue_id: int
    start_offset: int
    revive_queue_id: int
    pop_time_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchAckBody(Body):
    """BATCH_ACK_MESSAGE."""

    broker_name: str
    acks: tuple[BatchAck, ...] = ()

    def to_json(self) -> Json:
        return {"acks": [_batch_ack_to_json(ack) for ack in self.acks], "brokerName": self.broker_name}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(fields.text("brokerName"), tuple(_batch_ack_from(item) for item in fields.objects("acks")))


def _batch_ack_to_json(ack: BatchAck) -> Json:
    return {
        "b": _bits(offset - ack.start_offset for offset in ack.offsets),
        "c": ack.group,
        "it": ack.invisible_ms,
        "pt": ack.pop_time_ms,
        "q": ack.queue_id,
        "r": ack.retry,
        "rq": ack.revive_queue_id,
        "so": ack.start_offset,
        "t": ack.topic,
    }


def _batch_ack_from(fields: Fields) -> BatchAck:
    start = fields.int64("so", fields.int64("startOffset"))
    bits = fields.text("b") or fields.text("bitSet")
    return BatchAck(
        group=fields.text("c") or fields.text("consumerGroup"),
        topic=fields.text("t") or fields.text("topic"),
        retry=fields.text("r") or fields.text("retry"),
        queue_id=fields.int32("q", fields.int32("queueId")),
        start_offset=start,
        revive_queue_id=fields.int32("rq", fields.int32("reviveQueueId")),
        pop_time_ms=fields.int64("pt", fields.int64("popTime")),
        invisible_ms=fields.int64("it", fields.int64("invisibleTime")),
        offsets=tuple(start + distance for distance in _set_bits(bits)),
    )


def _bits(distances: Iterable[int]) -> str:
    """A Java BitSet in base64: the lowest bits come first."""
    number = 0
    for distance in distances:
        number |= 1 << distance
    return b64encode(number.to_bytes((number.bit_length() + 7) // 8, "little")).decode()


def _set_bits(text: str) -> list[int]:
    """The distances that a bit set names, counted first: the list takes hundreds of times as much as the text."""
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        raise ProtocolError("the bit set of an ack is not base64") from None
    number = int.from_bytes(data, "little")
    if (count := number.bit_count()) > MAX_POPPED:
        raise ProtocolError(f"an ack names {count} messages of one checkpoint; at most {MAX_POPPED} are popped at once")
    places = []
    while number:
        lowest = number & -number
        places.append(lowest.bit_length() - 1)
        number ^= lowest
    return places


# --- who pops what


_REQUEST_MODES = {mode.value: mode for mode in RequestMode}


@dataclass(frozen=True, slots=True)
class RequestModeBody(Body):
    """SET_MESSAGE_REQUEST_MODE; with `pop_share_queues` > 0 a member also pops the queues of so many others."""

    topic: str
    group: str
    mode: RequestMode = RequestMode.PULL
    pop_share_queues: int = 0

    def to_json(self) -> Json:
        return {
            "consumerGroup": self.group,
            "mode": self.mode,
            "popShareQueueNum": self.pop_share_queues,
            "topic": self.topic,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            fields.text("topic"),
            fields.text("consumerGroup"),
            fields.enum("mode", _REQUEST_MODES, RequestMode.PULL),
            fields.int32("popShareQueueNum"),
        )


@dataclass(frozen=True, slots=True)
class RequestModesBody(Body):
    """Topic → group → request mode: the file messageRequestMode.json, and GET_ALL_MESSAGE_REQUEST_MODE."""

    modes: Mapping[str, Mapping[str, RequestModeBody]] = field(default_factory=dict)

    def to_json(self) -> Json:
        table = {
            topic: {group: mode.to_json() for group, mode in groups.items()} for topic, groups in self.modes.items()
        }
        return {"messageRequestModeMap": table}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            {
                topic: {
                    str(group): RequestModeBody.from_fields(Fields.of(mode, "a request mode"))
                    for group, mode in groups.all_entries()
                }
                for topic, groups in fields.table("messageRequestModeMap")
            }
        )


_MODELS = {model.value: model for model in MessageModel}


@dataclass(frozen=True, slots=True)
class QueryAssignment(Body):
    """QUERY_ASSIGNMENT: which queues shall this client read?"""

    topic: str
    group: str
    client_id: str
    strategy: str = "AVG"
    message_model: MessageModel = MessageModel.CLUSTERING

    def to_json(self) -> Json:
        return {
            "clientId": self.client_id,
            "consumerGroup": self.group,
            "messageModel": self.message_model,
            "strategyName": self.strategy,
            "topic": self.topic,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            fields.text("topic"),
            fields.text("consumerGroup"),
            fields.text("clientId"),
            fields.text("strategyName"),
            fields.enum("messageModel", _MODELS, MessageModel.CLUSTERING),
        )


@dataclass(frozen=True, slots=True)
class Assignment(Body):
    """QUERY_ASSIGNMENT's answer; None means: keep what you have."""

    queues: tuple[MessageQueue, ...] | None
    mode: RequestMode = RequestMode.PULL

    def to_json(self) -> Json:
        if self.queues is None:
            return {}
        return {"messageQueueAssignments": [{"messageQueue": queue, "mode": self.mode} for queue in self.queues]}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        if fields.get("messageQueueAssignments") is None:
            return cls(None)
        items = fields.objects("messageQueueAssignments")
        modes = [item.enum("mode", _REQUEST_MODES, RequestMode.PULL) for item in items]
        return cls(
            tuple(queue_from(item.object("messageQueue")) for item in items), modes[0] if modes else RequestMode.PULL
        )


# --- orderly pop


@dataclass(slots=True)
class OrderInfo:
    """What was last popped of one queue in order. `acked` holds a bit for each of `offsets`."""

    offsets: tuple[int, ...]
    pop_time_ms: int
    invisible_ms: int
    popped_at_ms: int
    attempt_id: str | None = None
    acked: int = 0
    visible_ms: dict[int, int] = field(default_factory=dict)  # offset → when it may come again, if that was changed
    counts: dict[int, int] = field(default_factory=dict)  # offset → how often it came before

    def copy(self) -> OrderInfo:
        return replace(self, visible_ms=dict(self.visible_ms), counts=dict(self.counts))

    def to_json(self) -> Json:
        first = self.offsets[0] if self.offsets else 0
        return {
            **({"a": self.attempt_id} if self.attempt_id is not None else {}),
            "cm": self.acked,
            "i": self.invisible_ms,
            "l": self.popped_at_ms,
            "o": [first, *(offset - first for offset in self.offsets[1:])] if self.offsets else [],
            **({"oc": dict(self.counts)} if self.counts else {}),
            **({"ot": dict(self.visible_ms)} if self.visible_ms else {}),
            "popTime": self.pop_time_ms,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        first, *distances = _ints(fields, "o", 64) or (None,)
        return cls(
            offsets=() if first is None else (first, *(first + (distance or 0) for distance in distances)),
            pop_time_ms=fields.int64("popTime"),
            invisible_ms=fields.int64("i"),
            popped_at_ms=fields.int64("l"),
            attempt_id=fields.maybe_text("a"),
            acked=fields.int64("cm"),
            visible_ms={key: as_int(time, 0, 64, "ot") for key, time in fields.int_keys("ot")},
            counts={key: as_int(count, 0, 32, "oc") for key, count in fields.int_keys("oc")},
        )


@dataclass(frozen=True, slots=True)
class OrderInfosBody(Body):
    """`topic@group` → queue id → what was popped: the file consumerOrderInfo.json."""

    table: Mapping[str, Mapping[int, OrderInfo]] = field(default_factory=dict)

    def to_json(self) -> Json:
        table = {
            key: {queue_id: info.to_json() for queue_id, info in queues.items()} for key, queues in self.table.items()
        }
        return {"table": table}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            {
                key: {
                    as_int(queue_id, 0, 32, "a queue id"): OrderInfo.from_fields(Fields.of(info, "an order info"))
                    for queue_id, info in queues.all_entries()
                }
                for key, queues in fields.table("table")
            }
        )

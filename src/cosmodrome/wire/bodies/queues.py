"""Bodies about single queues: locks, resets, statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from cosmodrome.model import MessageQueue
from cosmodrome.wire import fastjson
from cosmodrome.wire.bodies.fields import Body, Fields, Json, QueueKeyed, as_int, as_text, queue_from, queues_from


def encode_locked(queues: Iterable[MessageQueue]) -> bytes:
    """LOCK_BATCH_MQ's answer: the queues its client now holds."""
    return fastjson.dumps({"lockOKMQSet": list(queues)})


def decode_locked(data: bytes | memoryview) -> tuple[MessageQueue, ...]:
    return queues_from(Fields.parse(data), "lockOKMQSet")


@dataclass(frozen=True, slots=True)
class LockBatch(Body):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: the queues one client wants to hold, or gives back."""

    consumer_group: str
    client_id: str
    queues: tuple[MessageQueue, ...] = ()
    only_this_broker: bool = False

    def to_json(self) -> Json:
        return {
            "clientId": self.client_id,
            "consumerGroup": self.consumer_group,
            "mqSet": list(self.queues),
            "onlyThisBroker": self.only_this_broker,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            consumer_group=fields.text("consumerGroup"),
            client_id=fields.text("clientId"),
            queues=queues_from(fields, "mqSet"),
            only_this_broker=fields.flag("onlyThisBroker"),
        )


@dataclass(frozen=True, slots=True)
class ResetOffsets(Body):
    """Where a group shall go on: RESET_CONSUMER_CLIENT_OFFSET. Go reads only the form with raw keys, written here."""

    offsets: Mapping[MessageQueue, int] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {"offsetTable": dict(self.offsets)}

    def encode_for_cpp(self) -> bytes:
        """As C++ clients are told: a list, since their JSON has only texts as keys."""
        table = [
            {"brokerName": queue.broker_name, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}
            for queue, offset in self.offsets.items()
        ]
        return fastjson.dumps({"offsetTable": table})

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        if isinstance(fields.get("offsetTable"), list):
            return cls({queue_from(item): item.int64("offset") for item in fields.objects("offsetTable")})
        return cls(_queue_offsets(fields, "offsetTable"))


@dataclass(frozen=True, slots=True)
class ConsumerStatus(Body):
    """How far a consumer is on its queues: GET_CONSUMER_STATUS_FROM_CLIENT. A broker tells it by client id."""

    offsets: Mapping[MessageQueue, int] = field(default_factory=dict)
    by_client: Mapping[str, Mapping[MessageQueue, int]] = field(default_factory=dict)

    def to_json(self) -> Json:
        by_client = {client_id: dict(offsets) for client_id, offsets in self.by_client.items()}
        return {"consumerTable": by_client, "messageQueueTable": dict(self.offsets)}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        clients = fields.object("consumerTable")
        return cls(
            _queue_offsets(fields, "messageQueueTable"),
            {as_text(client_id): _queue_offsets(clients, client_id) for client_id, _ in clients.all_entries()},
        )


def _queue_offsets(fields: Fields, name: str) -> dict[MessageQueue, int]:
    return {queue: as_int(offset, 0, 64, "an offset") for queue, offset in fields.queue_keys(name)}


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """What one queue holds."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class TopicStats(QueueKeyed):
    """What each queue of a topic holds: GET_TOPIC_STATS_INFO."""

    offsets: Mapping[MessageQueue, TopicOffset] = field(default_factory=dict)
    put_tps: float = 0.0

    def to_json(self) -> Json:
        table = {
            queue: {
                "lastUpdateTimestamp": offset.last_update_timestamp,
                "maxOffset": offset.max_offset,
                "minOffset": offset.min_offset,
            }
            for queue, offset in self.offsets.items()
        }
        return {"offsetTable": table, "topicPutTps": self.put_tps}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        table = {queue: Fields.of(item, "an offset") for queue, item in fields.queue_keys("offsetTable")}
        offsets = {
            queue: TopicOffset(item.int64("minOffset"), item.int64("maxOffset"), item.int64("lastUpdateTimestamp"))
            for queue, item in table.items()
        }
        return cls(offsets, fields.real("topicPutTps"))


@dataclass(frozen=True, slots=True)
class ConsumeOffset:
    """How far a group is on one queue; `last_timestamp` is when the last consumed message was stored."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeStats(QueueKeyed):
    """How far a group is on each of its queues: GET_CONSUME_STATS."""

    offsets: Mapping[MessageQueue, ConsumeOffset] = field(default_factory=dict)
    consume_tps: float = 0.0

    def to_json(self) -> Json:
        table = {
            queue: {
                "brokerOffset": offset.broker_offset,
                "consumerOffset": offset.consumer_offset,
                "lastTimestamp": offset.last_timestamp,
                "pullOffset": offset.pull_offset,
            }
            for queue, offset in self.offsets.items()
        }
        return {"consumeTps": self.consume_tps, "offsetTable": table}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        table = {queue: Fields.of(item, "an offset") for queue, item in fields.queue_keys("offsetTable")}
        offsets = {
            queue: ConsumeOffset(
                item.int64("brokerOffset"),
                item.int64("consumerOffset"),
                item.int64("lastTimestamp"),
                item.int64("pullOffset"),
            )
            for queue, item in table.items()
        }
        return cls(offsets, fields.real("consumeTps"))


@dataclass(frozen=True, slots=True)
class ConsumeStatsList(QueueKeyed):
    """How far every group of a broker is, topic by topic: GET_BROKER_CONSUME_STATS.

    `members` is ours: the connected clients of each group; None if they are not told.
    """

    broker_address: str
    groups: Mapping[str, tuple[ConsumeStats, ...]] = field(default_factory=dict)
    members: Mapping[str, tuple[str, ...]] | None = None

    def to_json(self) -> Json:
        queues = [one for stats in self.groups.values() for each in stats for one in each.offsets.values()]
        told: Json = {} if self.members is None else {"onlineMembers": {g: list(m) for g, m in self.members.items()}}
        return told | {
            "brokerAddr": self.broker_address,
            "consumeStatsList": [
                {group: [each.to_json() for each in stats]} for group, stats in self.groups.items() if stats
            ],
            "totalDiff": sum(one.broker_offset - one.consumer_offset for one in queues),
            "totalInflightDiff": sum(one.pull_offset - one.consumer_offset for one in queues),
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        groups: dict[str, tuple[ConsumeStats, ...]] = {}
        for one in fields.objects("consumeStatsList"):
            for group, _ in one.all_entries():
                name = as_text(group)
                groups[name] = tuple(ConsumeStats.from_fields(each) for each in one.objects(name))
        online = fields.object("onlineMembers")
        names = [as_text(group) for group, _ in online.all_entries()]
        members = None if fields.get("onlineMembers") is None else {name: online.texts(name) for name in names}
        return cls(fields.text("brokerAddr"), groups, members)


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """When the first, the last and the last consumed message of a queue were stored; by how much the group is late."""

    queue: MessageQueue
    min_ms: int = 0
    max_ms: int = 0
    consumed_ms: int = 0
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class TimeSpans(Body):
    """How late a group is on each queue of a topic: QUERY_CONSUME_TIME_SPAN."""

    spans: tuple[TimeSpan, ...] = ()

    def to_json(self) -> Json:
        return {
            "consumeTimeSpanSet": [
                {
                    "consumeTimeStamp": span.consumed_ms,
                    "delayTime": span.delay_ms,
                    "maxTimeStamp": span.max_ms,
                    "messageQueue": span.queue,
                    "minTimeStamp": span.min_ms,
                }
                for span in self.spans
            ]
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            tuple(
                TimeSpan(
                    queue_from(one.object("messageQueue")),
                    one.int64("minTimeStamp"),
                    one.int64("maxTimeStamp"),
                    one.int64("consumeTimeStamp"),
                    one.int64("delayTime"),
                )
                for one in fields.objects("consumeTimeSpanSet")
            )
        )


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """An entry of a consume queue; `is_wanted` is of the group that was named."""

    physical_offset: int
    size: int
    tags_code: int
    is_wanted: bool = True
    message: str = ""  # why its message cannot be shown

    def to_json(self) -> Json:
        json: Json = {"msg": self.message} if self.message else {}
        return json | {
            "eval": self.is_wanted,
            "physicOffset": self.physical_offset,
            "physicSize": self.size,
            "tagsCode": self.tags_code,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            fields.int64("physicOffset"),
            fields.int32("physicSize"),
            fields.int64("tagsCode"),
            fields.flag("eval", True),
            fields.text("msg"),
        )


@dataclass(frozen=True, slots=True)
class QueueEntries(Body):
    """Entries of a consume queue and where it begins and ends: QUERY_CONSUME_QUEUE."""

    min_offset: int
    max_offset: int
    entries: tuple[QueueEntry, ...] = ()
    subscription: str = ""  # of the group that was named, in words

    def to_json(self) -> Json:
        json: Json = {"filterData": self.subscription} if self.subscription else {}
        return json | {
            "maxQueueIndex": self.max_offset,
            "minQueueIndex": self.min_offset,
            "queueData": [entry.to_json() for entry in self.entries],
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        entries = tuple(QueueEntry.from_fields(one) for one in fields.objects("queueData"))
        low, high = fields.int64("minQueueIndex"), fields.int64("maxQueueIndex")
        return cls(low, high, entries, fields.text("filterData"))


@dataclass(frozen=True, slots=True)
class CorrectionOffsets(Body):
    """The smallest offset of any group, by queue id: QUERY_CORRECTION_OFFSET."""

    offsets: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {"correctionOffsets": dict(self.offsets)}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        pairs = fields.int_keys("correctionOffsets")
        return cls({queue_id: as_int(offset, 0, 64, "an offset") for queue_id, offset in pairs})

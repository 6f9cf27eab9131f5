"""Who is connected, and what a consumer says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from cosmodrome.codes import Language
from cosmodrome.model import ConsumeFrom, ConsumeType, MessageModel, MessageQueue, Subscription
from cosmodrome.wire.bodies.configs import subscription_from, subscription_to_json
from cosmodrome.wire.bodies.fields import Body, Fields, Json, as_text
from cosmodrome.wire.bodies.heartbeat import CONSUME_FROMS, CONSUME_TYPES, MESSAGE_MODELS

_LANGUAGES = {member.name: member for member in Language}


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """One connected client."""

    client_id: str
    address: str
    language: Language = Language.OTHER
    version: int = 0

    def to_json(self) -> Json:
        return {
            "clientAddr": self.address,
            "clientId": self.client_id,
            "language": self.language.name,
            "version": self.version,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            client_id=fields.text("clientId"),
            address=fields.text("clientAddr"),
            language=fields.enum("language", _LANGUAGES, Language.OTHER),
            version=fields.int32("version"),
        )


def _connections_from(fields: Fields) -> tuple[ClientConnection, ...]:
    return tuple(ClientConnection.from_fields(one) for one in fields.objects("connectionSet"))


@dataclass(frozen=True, slots=True)
class ProducerConnection(Body):
    """The clients of a producer group: GET_PRODUCER_CONNECTION_LIST."""

    connections: tuple[ClientConnection, ...] = ()

    def to_json(self) -> Json:
        return {"connectionSet": [connection.to_json() for connection in self.connections]}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(_connections_from(fields))


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """One connected producer; `seen_ms` is the time of its last heartbeat."""

    client_id: str
    address: str
    language: Language = Language.OTHER
    version: int = 0
    seen_ms: int = 0

    def to_json(self) -> Json:
        return {
            "clientId": self.client_id,
            "language": self.language.name,
            "lastUpdateTimestamp": self.seen_ms,
            "remoteIP": self.address,
            "version": self.version,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            client_id=fields.text("clientId"),
            address=fields.text("remoteIP").removeprefix("/"),
            language=fields.enum("language", _LANGUAGES, Language.OTHER),
            version=fields.int32("version"),
            seen_ms=fields.int64("lastUpdateTimestamp"),
        )


@dataclass(frozen=True, slots=True)
class AllProducerInfo(Body):
    """The clients of every producer group: GET_ALL_PRODUCER_INFO."""

    groups: Mapping[str, tuple[ProducerInfo, ...]] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {"data": {group: [one.to_json() for one in producers] for group, producers in self.groups.items()}}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        data = fields.object("data")
        names = [as_text(group) for group, _ in data.all_entries()]
        return cls({name: tuple(map(ProducerInfo.from_fields, data.objects(name))) for name in names})


@dataclass(frozen=True, slots=True)
class ConsumerConnection(Body):
    """The clients of a consumer group and what they subscribe to: GET_CONSUMER_CONNECTION_LIST.

    `disagreement` is ours, and there only if clients subscribe to different things: what each of them wants.
    """

    connections: tuple[ClientConnection, ...] = ()
    consume_type: ConsumeType = ConsumeType.PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)
    disagreement: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> Json:
        json: Json = {"differingSubscriptions": dict(self.disagreement)} if self.disagreement else {}
        return json | {
            "connectionSet": [connection.to_json() for connection in self.connections],
            "consumeFromWhere": self.consume_from,
            "consumeType": self.consume_type,
            "messageModel": self.message_model,
            "subscriptionTable": {topic: subscription_to_json(one) for topic, one in self.subscriptions.items()},
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            connections=_connections_from(fields),
            subscriptions={topic: subscription_from(one) for topic, one in fields.table("subscriptionTable")},
            consume_type=fields.enum("consumeType", CONSUME_TYPES, ConsumeType.PASSIVELY),
            message_model=fields.enum("messageModel", MESSAGE_MODELS, MessageModel.CLUSTERING),
            consume_from=fields.enum("consumeFromWhere", CONSUME_FROMS, ConsumeFrom.LAST_OFFSET),
            disagreement=fields.text_map("differingSubscriptions"),
        )


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """What a consumer holds of one queue."""

    commit_offset: int = 0
    cached_count: int = 0
    cached_min_offset: int = 0
    cached_max_offset: int = 0
    cached_mib: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0
    flow_control: str = ""  # ours: the limit that keeps the queue from being pulled; not sent while there is none

    def to_json(self) -> Json:
        held = {"flowControl": self.flow_control} if self.flow_control else {}
        return held | {
            "cachedMsgCount": self.cached_count,
            "cachedMsgMaxOffset": self.cached_max_offset,
            "cachedMsgMinOffset": self.cached_min_offset,
            "cachedMsgSizeInMiB": self.cached_mib,
            "commitOffset": self.commit_offset,
            "droped": self.dropped,  # Java's spelling
            "lastConsumeTimestamp": self.last_consume_timestamp,
            "lastLockTimestamp": self.last_lock_timestamp,
            "lastPullTimestamp": self.last_pull_timestamp,
            "locked": self.locked,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": self.try_unlock_times,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            commit_offset=fields.int64("commitOffset"),
            cached_count=fields.int32("cachedMsgCount"),
            cached_min_offset=fields.int64("cachedMsgMinOffset"),
            cached_max_offset=fields.int64("cachedMsgMaxOffset"),
            cached_mib=fields.int32("cachedMsgSizeInMiB"),
            locked=fields.flag("locked"),
            try_unlock_times=fields.int64("tryUnlockTimes"),
            last_lock_timestamp=fields.int64("lastLockTimestamp"),
            dropped=fields.flag("droped", fields.flag("dropped")),  # Java's spelling, then Go's
            last_pull_timestamp=fields.int64("lastPullTimestamp"),
            last_consume_timestamp=fields.int64("lastConsumeTimestamp"),
            flow_control=fields.text("flowControl"),
        )


@dataclass(frozen=True, slots=True)
class PopProgress:
    """What a consumer holds of one queue that it pops."""

    wait_ack_count: int = 0
    dropped: bool = False
    last_pop_timestamp: int = 0

    def to_json(self) -> Json:
        return {
            "droped": self.dropped,  # Java's spelling
            "lastPopTimestamp": self.last_pop_timestamp,
            "waitAckCount": self.wait_ack_count,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            wait_ack_count=fields.int32("waitAckCount"),
            dropped=fields.flag("droped", fields.flag("dropped")),
            last_pop_timestamp=fields.int64("lastPopTimestamp"),
        )


@dataclass(frozen=True, slots=True)
class ConsumeStatus:
    """How fast a consumer works on one topic; times in ms, rates per second."""

    consume_failed_msgs: int = 0
    consume_failed_tps: float = 0.0
    consume_ok_tps: float = 0.0
    consume_rt: float = 0.0
    pull_rt: float = 0.0
    pull_tps: float = 0.0

    def to_json(self) -> Json:
        return {
            "consumeFailedMsgs": self.consume_failed_msgs,
            "consumeFailedTPS": self.consume_failed_tps,
            "consumeOKTPS": self.consume_ok_tps,
            "consumeRT": self.consume_rt,
            "pullRT": self.pull_rt,
            "pullTPS": self.pull_tps,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            consume_failed_msgs=fields.int64("consumeFailedMsgs"),
            consume_failed_tps=fields.real("consumeFailedTPS"),
            consume_ok_tps=fields.real("consumeOKTPS"),
            consume_rt=fields.real("consumeRT"),
            pull_rt=fields.real("pullRT"),
            pull_tps=fields.real("pullTPS"),
        )


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo(Body):
    """What a consumer is doing: GET_CONSUMER_RUNNING_INFO."""

    properties: Mapping[str, str] = field(default_factory=dict)
    subscriptions: tuple[Subscription, ...] = ()
    queues: Mapping[MessageQueue, QueueProgress] = field(default_factory=dict)
    statuses: Mapping[str, ConsumeStatus] = field(default_factory=dict)
    user_info: Mapping[str, str] = field(default_factory=dict)
    stacks: str | None = None
    pop_queues: Mapping[MessageQueue, PopProgress] = field(default_factory=dict)

    def to_json(self) -> Json:
        json: Json = {} if self.stacks is None else {"jstack": self.stacks}
        return json | {
            "mqPopTable": {queue: progress.to_json() for queue, progress in self.pop_queues.items()},
            "mqTable": {queue: progress.to_json() for queue, progress in self.queues.items()},
            "properties": dict(self.properties),
            "statusTable": {topic: status.to_json() for topic, status in self.statuses.items()},
            "subscriptionSet": [subscription_to_json(one) for one in self.subscriptions],
            "userConsumerInfo": dict(self.user_info),
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        queues = {queue: Fields.of(item, "mqTable") for queue, item in fields.queue_keys("mqTable")}
        pop_queues = {queue: Fields.of(item, "mqPopTable") for queue, item in fields.queue_keys("mqPopTable")}
        return cls(
            properties=fields.text_map("properties"),
            subscriptions=tuple(subscription_from(one) for one in fields.objects("subscriptionSet")),
            queues={queue: QueueProgress.from_fields(item) for queue, item in queues.items()},
            statuses={topic: ConsumeStatus.from_fields(one) for topic, one in fields.table("statusTable")},
            user_info=fields.text_map("userConsumerInfo"),
            stacks=fields.maybe_text("jstack"),
            pop_queues={queue: PopProgress.from_fields(item) for queue, item in pop_queues.items()},
        )


class ConsumeResult(StrEnum):
    """How a listener ended; in Java's order, for Go sends the ordinal."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    RETURN_NULL = "CR_RETURN_NULL"


_CONSUME_RESULTS = {str(member): member for member in ConsumeResult}


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyResult(Body):
    """What a consumer did with a message it was handed: CONSUME_MESSAGE_DIRECTLY."""

    result: ConsumeResult = ConsumeResult.SUCCESS
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_ms: int = 0

    def to_json(self) -> Json:
        json: Json = {"autoCommit": self.auto_commit, "consumeResult": self.result, "order": self.order}
        if self.remark is not None:
            json["remark"] = self.remark
        return json | {"spentTimeMills": self.spent_ms}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            result=fields.enum("consumeResult", _CONSUME_RESULTS, ConsumeResult.RETURN_NULL),
            order=fields.flag("order"),
            auto_commit=fields.flag("autoCommit", True),
            remark=fields.maybe_text("remark"),
            spent_ms=fields.int64("spentTimeMills"),
        )

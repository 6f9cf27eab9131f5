"""Topics, groups and offsets as brokers tell them to each other and keep them in their config files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from cosmodrome.model import ALL_TAGS, READ_WRITE, DataVersion, GroupConfig, Subscription, TopicConfig
from cosmodrome.wire import fastjson
from cosmodrome.wire.bodies.fields import Body, Fields, Json, as_int, as_text


def data_version_to_json(version: DataVersion) -> Json:
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp}


def data_version_from_json(json: Mapping[str, Any] | None) -> DataVersion:
    return data_version_from(Fields(json or {}))


def data_version_from(fields: Fields) -> DataVersion:
    return DataVersion(fields.int64("timestamp"), fields.int64("counter"), fields.int64("stateVersion"))


def encode_data_version(version: DataVersion) -> bytes:
    return fastjson.dumps(data_version_to_json(version))


def decode_data_version(data: bytes | memoryview) -> DataVersion:
    return data_version_from(Fields.parse(data))


def topic_config_to_json(topic: TopicConfig) -> Json:
    return {
        "attributes": dict(topic.attributes),
        "order": topic.order,
        "perm": topic.perm,
        "readQueueNums": topic.read_queues,
        "topicFilterType": topic.filter_type,
        "topicName": topic.name,
        "topicSysFlag": topic.sys_flag,
        "writeQueueNums": topic.write_queues,
    }


def topic_config_from_json(json: Mapping[str, Any], name: str = "") -> TopicConfig:
    """`name` is the topic's key in its table, for configs that do not repeat it."""
    return topic_config_from(Fields(json), name)


def topic_config_from(fields: Fields, name: str = "") -> TopicConfig:
    return TopicConfig(
        name=fields.text("topicName", name),
        read_queues=fields.int32("readQueueNums", 16),
        write_queues=fields.int32("writeQueueNums", 16),
        perm=fields.int32("perm", READ_WRITE),
        filter_type=fields.text("topicFilterType", "SINGLE_TAG"),
        sys_flag=fields.int32("topicSysFlag"),
        order=fields.flag("order"),
        attributes=fields.text_map("attributes"),
    )


def group_config_to_json(group: GroupConfig) -> Json:
    return {
        "attributes": dict(group.attributes),
        "brokerId": group.broker_id,
        "consumeBroadcastEnable": group.consume_broadcast_enable,
        "consumeEnable": group.consume_enable,
        "consumeFromMinEnable": group.consume_from_min_enable,
        "consumeMessageOrderly": group.consume_message_orderly,
        "consumeTimeoutMinute": group.consume_timeout_minute,
        "groupName": group.name,
        "groupRetryPolicy": dict(group.retry_policy),
        "groupSysFlag": group.sys_flag,
        "notifyConsumerIdsChangedEnable": group.notify_consumer_ids_changed_enable,
        "retryMaxTimes": group.retry_max_times,
        "retryQueueNums": group.retry_queues,
        "whichBrokerWhenConsumeSlowly": group.which_broker_when_consume_slowly,
    }


def group_config_from_json(json: Mapping[str, Any], name: str = "") -> GroupConfig:
    """`name` is the group's key in its table, for configs that do not repeat it."""
    return group_config_from(Fields(json), name)


def group_config_from(fields: Fields, name: str = "") -> GroupConfig:
    policy = {as_text(key): value for key, value in fields.object("groupRetryPolicy").all_entries()}
    return GroupConfig(
        name=fields.text("groupName", name),
        consume_enable=fields.flag("consumeEnable", True),
        consume_from_min_enable=fields.flag("consumeFromMinEnable", True),
        consume_broadcast_enable=fields.flag("consumeBroadcastEnable", True),
        consume_message_orderly=fields.flag("consumeMessageOrderly"),
        retry_queues=fields.int32("retryQueueNums", 1),
        retry_max_times=fields.int32("retryMaxTimes", 16),
        broker_id=fields.int64("brokerId"),
        which_broker_when_consume_slowly=fields.int64("whichBrokerWhenConsumeSlowly", 1),
        notify_consumer_ids_changed_enable=fields.flag("notifyConsumerIdsChangedEnable", True),
        sys_flag=fields.int32("groupSysFlag"),
        consume_timeout_minute=fields.int32("consumeTimeoutMinute", 15),
        retry_policy=policy or {"type": "CUSTOMIZED"},
        attributes=fields.text_map("attributes"),
    )


def subscription_to_json(subscription: Subscription) -> Json:
    return {
        "classFilterMode": subscription.class_filter,
        "codeSet": sorted(subscription.codes),
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": sorted(subscription.tags),
        "topic": subscription.topic,
    }


def subscription_from_json(json: Mapping[str, Any]) -> Subscription:
    return subscription_from(Fields(json))


def subscription_from(fields: Fields) -> Subscription:
    return Subscription(
        topic=fields.text("topic"),
        expression=fields.text("subString") or ALL_TAGS,
        tags=frozenset(fields.texts("tagsSet")),
        codes=frozenset(as_int(code, 0, 32, "codeSet") for code in fields.items("codeSet")),
        version=fields.int64("subVersion"),
        expression_type=fields.text("expressionType") or "TAG",
        class_filter=fields.flag("classFilterMode"),
    )


def topic_table(fields: Fields) -> dict[str, TopicConfig]:
    return {name: topic_config_from(item, name) for name, item in fields.table("topicConfigTable")}


@dataclass(frozen=True, slots=True)
class TopicConfigBody(Body):
    """One topic: GET_TOPIC_CONFIG."""

    topic: TopicConfig

    def to_json(self) -> Json:
        return topic_config_to_json(self.topic)

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(topic_config_from(fields))


@dataclass(frozen=True, slots=True)
class GroupConfigBody(Body):
    """One group: UPDATE_AND_CREATE_SUBSCRIPTIONGROUP and GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: GroupConfig

    def to_json(self) -> Json:
        return group_config_to_json(self.group)

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(group_config_from(fields))


@dataclass(frozen=True, slots=True)
class TopicConfigList(Body):
    """Topics to make: UPDATE_AND_CREATE_TOPIC_LIST."""

    topics: tuple[TopicConfig, ...] = ()

    def to_json(self) -> Json:
        return {"topicConfigList": [topic_config_to_json(topic) for topic in self.topics]}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(tuple(topic_config_from(one) for one in fields.objects("topicConfigList")))


@dataclass(frozen=True, slots=True)
class GroupConfigList(Body):
    """Groups to make: UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    groups: tuple[GroupConfig, ...] = ()

    def to_json(self) -> Json:
        return {"groupConfigList": [group_config_to_json(group) for group in self.groups]}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(tuple(group_config_from(one) for one in fields.objects("groupConfigList")))


@dataclass(frozen=True, slots=True)
class SubscriptionBody(Body):
    """What a group wants of a topic: QUERY_SUBSCRIPTION_BY_CONSUMER. None while it wants nothing of it."""

    group: str
    topic: str
    subscription: Subscription | None = None

    def to_json(self) -> Json:
        json: Json = {"group": self.group, "topic": self.topic}
        return (
            json if self.subscription is None else json | {"subscriptionData": subscription_to_json(self.subscription)}
        )

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        found = fields.get("subscriptionData")
        subscription = None if found is None else subscription_from(fields.object("subscriptionData"))
        return cls(fields.text("group"), fields.text("topic"), subscription)


@dataclass(frozen=True, slots=True)
class TopicConfigWrapper(Body):
    """All topics of a broker: GET_ALL_TOPIC_CONFIG and topics.json."""

    data_version: DataVersion
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {
            "dataVersion": data_version_to_json(self.data_version),
            "topicConfigTable": {name: topic_config_to_json(topic) for name, topic in self.topics.items()},
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(data_version_from(fields.object("dataVersion")), topic_table(fields))


@dataclass(frozen=True, slots=True)
class GroupConfigWrapper(Body):
    """All groups of a broker: GET_ALL_SUBSCRIPTIONGROUP_CONFIG and subscriptionGroup.json."""

    data_version: DataVersion
    groups: Mapping[str, GroupConfig] = field(default_factory=dict)
    forbidden: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {
            "dataVersion": data_version_to_json(self.data_version),
            "forbiddenTable": {group: dict(topics) for group, topics in self.forbidden.items()},
            "subscriptionGroupTable": {name: group_config_to_json(group) for name, group in self.groups.items()},
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        groups = {name: group_config_from(item, name) for name, item in fields.table("subscriptionGroupTable")}
        forbidden = {
            group: {as_text(topic): as_int(bits, 0, 32, "forbiddenTable") for topic, bits in topics.all_entries()}
            for group, topics in fields.table("forbiddenTable")
        }
        return cls(data_version_from(fields.object("dataVersion")), groups, forbidden)


@dataclass(frozen=True, slots=True)
class ConsumerOffsetsBody(Body):
    """Offsets by "topic@group" and queue id: GET_ALL_CONSUMER_OFFSET and consumerOffset.json."""

    data_version: DataVersion
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {
            "dataVersion": data_version_to_json(self.data_version),
            "offsetTable": {name: dict(queues) for name, queues in self.offsets.items()},
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        offsets = {name: _offsets(queues) for name, queues in fields.table("offsetTable")}
        return cls(data_version_from(fields.object("dataVersion")), offsets)


@dataclass(frozen=True, slots=True)
class DelayOffsetsBody(Body):
    """Offsets by delay level: GET_ALL_DELAY_OFFSET and delayOffset.json. Apache 4.x writes no data version."""

    data_version: DataVersion
    offsets: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {"dataVersion": data_version_to_json(self.data_version), "offsetTable": dict(self.offsets)}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(data_version_from(fields.object("dataVersion")), _offsets(fields.object("offsetTable")))


@dataclass(frozen=True, slots=True)
class TimerMetricsBody(Body):
    """How many timers are pending, and since when that is so, by topic: GET_TIMER_METRICS and timermetrics."""

    data_version: DataVersion
    pending: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def to_json(self) -> Json:
        counts = {topic: {"count": count, "timeStamp": at_ms} for topic, (count, at_ms) in self.pending.items()}
        return {"dataVersion": data_version_to_json(self.data_version), "timingCount": counts}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        pending = {
            topic: (metric.int64("count"), metric.int64("timeStamp")) for topic, metric in fields.table("timingCount")
        }
        return cls(data_version_from(fields.object("dataVersion")), pending)


def _offsets(queues: Fields) -> dict[int, int]:
    return {
        as_int(queue_id, 0, 32, "a queue id"): as_int(offset, 0, 64, "an offset")
        for queue_id, offset in queues.all_entries()
    }

"""HEART_BEAT: what a client produces to and consumes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from cosmodrome.model import ConsumeFrom, ConsumeType, MessageModel, Subscription
from cosmodrome.wire.bodies.configs import subscription_from, subscription_to_json
from cosmodrome.wire.bodies.fields import Body, Fields, Json

# Java's enums in Java's order. Three deprecated starting points have long meant the first.
CONSUME_TYPES = {str(member): member for member in ConsumeType}
MESSAGE_MODELS = {str(member): member for member in MessageModel}
CONSUME_FROMS = {
    "CONSUME_FROM_LAST_OFFSET": ConsumeFrom.LAST_OFFSET,
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST": ConsumeFrom.LAST_OFFSET,
    "CONSUME_FROM_MIN_OFFSET": ConsumeFrom.LAST_OFFSET,
    "CONSUME_FROM_MAX_OFFSET": ConsumeFrom.LAST_OFFSET,
    "CONSUME_FROM_FIRST_OFFSET": ConsumeFrom.FIRST_OFFSET,
    "CONSUME_FROM_TIMESTAMP": ConsumeFrom.TIMESTAMP,
}


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """One consumer group of a client."""

    group: str
    consume_type: ConsumeType = ConsumeType.PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    subscriptions: tuple[Subscription, ...] = ()
    unit_mode: bool = False

    def to_json(self) -> Json:
        return {
            "consumeFromWhere": self.consume_from,
            "consumeType": self.consume_type,
            "groupName": self.group,
            "messageModel": self.message_model,
            "subscriptionDataSet": [subscription_to_json(one) for one in self.subscriptions],
            "unitMode": self.unit_mode,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            group=fields.text("groupName"),
            consume_type=fields.enum("consumeType", CONSUME_TYPES, ConsumeType.PASSIVELY),
            message_model=fields.enum("messageModel", MESSAGE_MODELS, MessageModel.CLUSTERING),
            consume_from=fields.enum("consumeFromWhere", CONSUME_FROMS, ConsumeFrom.LAST_OFFSET),
            subscriptions=tuple(subscription_from(one) for one in fields.objects("subscriptionDataSet")),
            unit_mode=fields.flag("unitMode"),
        )


@dataclass(frozen=True, slots=True)
class HeartbeatData(Body):
    """Everything one client does. `fingerprint` and `without_sub` belong to 5.x's shortened heartbeats."""

    client_id: str
    producers: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    fingerprint: int = 0
    without_sub: bool = False

    def to_json(self) -> Json:
        return {
            "clientID": self.client_id,
            "consumerDataSet": [consumer.to_json() for consumer in self.consumers],
            "heartbeatFingerprint": self.fingerprint,
            "producerDataSet": [{"groupName": group} for group in self.producers],
            "withoutSub": self.without_sub,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            client_id=fields.text("clientID"),
            producers=tuple(producer.text("groupName") for producer in fields.objects("producerDataSet")),
            consumers=tuple(ConsumerData.from_fields(one) for one in fields.objects("consumerDataSet")),
            fingerprint=fields.int32("heartbeatFingerprint"),
            without_sub=fields.flag("withoutSub"),
        )


@dataclass(frozen=True, slots=True)
class CheckClientConfig(Body):
    """CHECK_CLIENT_CONFIG: may this client subscribe like that? Asked for every subscription that is not by tag."""

    client_id: str
    group: str
    subscription: Subscription

    def to_json(self) -> Json:
        return {
            "clientId": self.client_id,
            "group": self.group,
            "subscriptionData": subscription_to_json(self.subscription),
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        subscription = subscription_from(fields.object("subscriptionData"))
        return cls(fields.text("clientId"), fields.text("group"), subscription)

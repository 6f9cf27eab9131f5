"""Bodies that are one list or one table of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from cosmodrome.wire.bodies.fields import Body, Fields, Json


@dataclass(frozen=True, slots=True)
class ConsumerIds(Body):
    """The clients of a group: GET_CONSUMER_LIST_BY_GROUP."""

    ids: tuple[str, ...] = ()

    def to_json(self) -> Json:
        return {"consumerIdList": list(self.ids)}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(fields.texts("consumerIdList"))


@dataclass(frozen=True, slots=True)
class TopicList(Body):
    """Names of topics; `broker_address` is left out when there is none."""

    topics: tuple[str, ...] = ()
    broker_address: str | None = None

    def to_json(self) -> Json:
        json: Json = {} if self.broker_address is None else {"brokerAddr": self.broker_address}
        return json | {"topicList": list(self.topics)}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(fields.texts("topicList"), fields.maybe_text("brokerAddr"))


@dataclass(frozen=True, slots=True)
class GroupList(Body):
    """Names of groups: QUERY_TOPIC_CONSUME_BY_WHO."""

    groups: tuple[str, ...] = ()

    def to_json(self) -> Json:
        return {"groupList": list(self.groups)}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(fields.texts("groupList"))


@dataclass(frozen=True, slots=True)
class KVTable(Body):
    """Names and values: a KV namespace, a broker's runtime figures."""

    table: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {"table": dict(self.table)}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(fields.text_map("table"))

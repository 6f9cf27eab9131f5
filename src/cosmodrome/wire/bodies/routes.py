"""What a name server tells: routes, the cluster, the members of a broker group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from cosmodrome.model import BrokerData, QueueData, Route
from cosmodrome.wire import fastjson
from cosmodrome.wire.bodies.fields import Body, Fields, Json, as_text


def encode_route(route: Route, *, quoted_keys: bool) -> bytes:
    """`quoted_keys` makes it standard JSON, for peers that asked for it or are new enough."""
    json: Json = {
        "brokerDatas": [_broker_to_json(broker, quoted_keys) for broker in route.brokers],
        "filterServerTable": {},
        "queueDatas": [_queue_to_json(queue) for queue in route.queues],
    }
    if route.order_conf is not None:
        json["orderTopicConf"] = route.order_conf
    return fastjson.dumps(json)


def decode_route(data: bytes | memoryview) -> Route:
    fields = Fields.parse(data)
    return Route(
        queues=tuple(_queue_from(queue) for queue in fields.objects("queueDatas")),
        brokers=tuple(_broker_from(broker) for broker in fields.objects("brokerDatas")),
        order_conf=fields.maybe_text("orderTopicConf"),
    )


def _queue_to_json(queue: QueueData) -> Json:
    return {
        "brokerName": queue.broker_name,
        "perm": queue.perm,
        "readQueueNums": queue.read_queues,
        "topicSysFlag": queue.sys_flag,
        "writeQueueNums": queue.write_queues,
    }


def _queue_from(fields: Fields) -> QueueData:
    return QueueData(
        broker_name=fields.text("brokerName"),
        read_queues=fields.int32("readQueueNums"),
        write_queues=fields.int32("writeQueueNums"),
        perm=fields.int32("perm"),
        sys_flag=fields.int32("topicSysFlag", fields.int32("topicSynFlag")),  # its name up to 4.8.0
    )


def _broker_to_json(broker: BrokerData, quoted_keys: bool = False) -> Json:
    return {
        "brokerAddrs": _addresses_to_json(broker.addresses, quoted_keys),
        "brokerName": broker.broker_name,
        "cluster": broker.cluster,
        "enableActingMaster": broker.acting_master,
    }


def _addresses_to_json(addresses: Mapping[int, str], quoted_keys: bool = False) -> Mapping[Any, str]:
    if quoted_keys:
        return {str(broker_id): address for broker_id, address in addresses.items()}
    return fastjson.IntKeys(addresses)


def _broker_from(fields: Fields, name: str = "") -> BrokerData:
    return BrokerData(
        cluster=fields.text("cluster"),
        broker_name=fields.text("brokerName", name),
        addresses=_addresses_from(fields),
        acting_master=fields.flag("enableActingMaster"),
    )


def _addresses_from(fields: Fields) -> dict[int, str]:
    return {broker_id: as_text(address) for broker_id, address in fields.int_keys("brokerAddrs")}


@dataclass(frozen=True, slots=True)
class ClusterInfo(Body):
    """Every broker group by name, and the names by cluster: GET_BROKER_CLUSTER_INFO."""

    brokers: Mapping[str, BrokerData] = field(default_factory=dict)
    clusters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {
            "brokerAddrTable": {name: _broker_to_json(broker) for name, broker in self.brokers.items()},
            "clusterAddrTable": {cluster: list(names) for cluster, names in self.clusters.items()},
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        brokers = {name: _broker_from(broker, name) for name, broker in fields.table("brokerAddrTable")}
        clusters = fields.object("clusterAddrTable")
        return cls(brokers, {as_text(name): clusters.texts(name) for name, _ in clusters.all_entries()})


@dataclass(frozen=True, slots=True)
class MemberGroup(Body):
    """The brokers of one broker group: GET_BROKER_MEMBER_GROUP."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str] = field(default_factory=dict)

    def to_json(self) -> Json:
        members = {
            "brokerAddrs": _addresses_to_json(self.addresses),
            "brokerName": self.broker_name,
            "cluster": self.cluster,
        }
        return {"brokerMemberGroup": members}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        members = fields.object("brokerMemberGroup")
        return cls(members.text("cluster"), members.text("brokerName"), _addresses_from(members))

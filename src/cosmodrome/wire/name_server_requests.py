"""Headers of what brokers, clients and operators ask of name servers."""

from __future__ import annotations

from cosmodrome.wire.header import Header, header


@header
class GetRoute(Header):
    topic: str
    accept_standard_json_only: bool = False


@header
class BrokerHeader(Header):
    """UNREGISTER_BROKER and QUERY_DATA_VERSION: which broker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int = 0


@header
class BrokerHeartbeat(Header):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int | None = None
    heartbeat_timeout_mills: int | None = None


@header
class SmallestBrokerChanged(Header):
    """NOTIFY_MIN_BROKER_ID_CHANGE: which broker of a name has the smallest id now."""

    min_broker_id: int | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


@header
class ExchangeHaInfo(Header):
    """EXCHANGE_BROKER_HA_INFO: a master that comes back tells a slave where it is; without the fields, a slave asks."""

    master_ha_address: str | None = None
    master_flush_offset: int | None = None
    master_address: str | None = None


@header
class RegisterBroker(Header):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int
    ha_server_addr: str = ""
    heartbeat_timeout_millis: int | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: int = 0


@header
class RegisterBrokerReply(Header):
    ha_server_addr: str | None = None
    master_addr: str | None = None
    master_term: int | None = None  # of our name servers: how often that master's log has been given another master


@header
class DataVersionReply(Header):
    changed: bool


@header
class KvConfig(Header):
    """PUT_KV_CONFIG (with value), GET_KV_CONFIG and DELETE_KV_CONFIG."""

    namespace: str
    key: str
    value: str | None = None


@header
class KvNamespace(Header):
    namespace: str


@header
class KvConfigReply(Header):
    value: str | None = None


@header
class WritePermission(Header):
    """WIPE_WRITE_PERM_OF_BROKER and ADD_WRITE_PERM_OF_BROKER: which broker."""

    broker_name: str


@header
class WipeWritePermissionReply(Header):
    wipe_topic_count: int


@header
class AddWritePermissionReply(Header):
    add_topic_count: int


@header
class DeleteTopicInNameServer(Header):
    topic: str
    cluster_name: str | None = None


@header
class RegisterTopic(Header):
    topic: str


@header
class TopicsByCluster(Header):
    cluster: str


@header
class GetMemberGroup(Header):
    cluster_name: str
    broker_name: str

"""One class per request and reply header, grouped as a reader meets them: clients, topics and groups, name server.

A header used under several codes stands once. Fields that nothing in this package reads are left out: decoding
ignores them.
"""

from __future__ import annotations

from typing import Self

from cosmodrome.codes import RequestCode
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header, compile_decode, compile_encode, header, short_names, wire

# --- sending

_LETTERED_CODES = frozenset(
    {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
)


@header
class SendMessage(Header):
    """SEND_MESSAGE and its lettered forms SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE; also SEND_REPLY_MESSAGE."""

    producer_group: str = wire("producerGroup", short="a")
    topic: str = wire("topic", short="b")
    default_topic: str = wire("defaultTopic", short="c")
    default_topic_queue_nums: int = wire("defaultTopicQueueNums", short="d")
    queue_id: int = wire("queueId", short="e")
    sys_flag: int = wire("sysFlag", short="f")
    born_timestamp: int = wire("bornTimestamp", short="g")
    flag: int = wire("flag", short="h")
    properties: str | None = wire("properties", default=None, short="i")
    reconsume_times: int | None = wire("reconsumeTimes", default=None, short="j")
    unit_mode: bool = wire("unitMode", default=False, short="k")
    max_reconsume_times: int | None = wire("maxReconsumeTimes", default=None, short="l")
    batch: bool = wire("batch", default=False, short="m")
    broker_name: str | None = wire("bname", default=None, short="n")

    @classmethod
    def decode(cls, command: Command) -> Self:
        decoded: Self = (_decode_lettered if command.code in _LETTERED_CODES else cls._decode)(command.fields)
        return decoded

    def lettered_fields(self) -> dict[str, str]:
        """The wire form for the codes in which every name is one letter."""
        return _encode_lettered(self)


_decode_lettered = compile_decode(SendMessage, short_names(SendMessage))
_encode_lettered = compile_encode(SendMessage, short_names(SendMessage))


@header
class SendReply(Header):
    """The ids are comma-joined for a batch; `queue_offset` is then its first."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    msg_region: str | None = wire("MSG_REGION", default=None)
    trace_on: bool | None = wire("TRACE_ON", default=None)


# --- pulling


class PullFlag:
    """Bits of a pull's sysFlag."""

    COMMIT_OFFSET = 0x1
    SUSPEND = 0x2
    SUBSCRIPTION = 0x4
    CLASS_FILTER = 0x8
    LITE_PULL = 0x10


@header
class PullMessage(Header):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_millis: int
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = None
    max_msg_bytes: int | None = None


@header
class PullReply(Header):
    """All four are needed in every answer: a Java client fails on a missing one."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int


@header
class SendBack(Header):
    """CONSUMER_SEND_MSG_BACK: deliver the message at `offset` of the commit log to the group again, later."""

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None


# --- offsets


@header
class QueryConsumerOffset(Header):
    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


@header
class UpdateConsumerOffset(Header):
    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


@header
class QueueHeader(Header):
    """GET_MAX_OFFSET, GET_MIN_OFFSET and GET_EARLIEST_MSG_STORETIME: which queue."""

    topic: str
    queue_id: int


@header
class SearchOffset(Header):
    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None


@header
class OffsetReply(Header):
    offset: int


@header
class TimestampReply(Header):
    timestamp: int


# --- messages by id and key


@header
class QueryMessage(Header):
    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    unique_key_query: bool = wire("_UNIQUE_KEY_QUERY", default=False)


@header
class QueryMessageReply(Header):
    index_last_update_timestamp: int
    index_last_update_phyoffset: int


@header
class ViewMessage(Header):
    offset: int
    topic: str | None = None


# --- clients and groups


@header
class UnregisterClient(Header):
    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@header
class ConsumerGroupHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP, GET_CONSUMER_CONNECTION_LIST and NOTIFY_CONSUMER_IDS_CHANGED: which group."""

    consumer_group: str


@header
class ProducerGroupHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST: which group."""

    producer_group: str


@header
class DeleteGroup(Header):
    group_name: str
    clean_offset: bool | None = None
    remove_offset: bool | None = None  # what 4.9 calls it


@header
class GroupHeader(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG, QUERY_TOPICS_BY_CONSUMER: which group."""

    group: str


@header
class ConsumeStatsRequest(Header):
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


# --- topics


@header
class CreateTopic(Header):
    """UPDATE_AND_CREATE_TOPIC; `attributes` is Apache's list of +key=value and -key."""

    topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    default_topic: str | None = None
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int | None = None
    order: bool = False
    attributes: str | None = None


@header
class TopicHeader(Header):
    """DELETE_TOPIC_IN_BROKER, GET_TOPIC_STATS_INFO, GET_TOPIC_CONFIG, QUERY_TOPIC_CONSUME_BY_WHO: which topic."""

    topic: str


# --- name server


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

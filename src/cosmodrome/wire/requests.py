"""One class per request and reply header, grouped as a reader meets them: what clients and
operators ask of brokers, and brokers of clients. `name_server_requests` has those of name servers.

A header used under several codes stands once. Fields that nothing in this package reads are left out: decoding
ignores them.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from cosmodrome.codes import RequestCode
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header, compile_codec, compile_decode, compile_encode, header, short_names, wire

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
    _lettered_codec: ClassVar[Any] = None

    @classmethod
    def decode(cls, command: Command) -> Self:
        is_lettered = command.code in _LETTERED_CODES
        if command.raw is not None:  # native code has not looked at its fields yet
            codec = (cls._lettered_codec or cls._make_lettered_codec()) if is_lettered else cls._codec or cls.codec()
            decoded: Self | None = codec.read(command)
            if decoded is not None:
                return decoded
        return (_decode_lettered if is_lettered else cls._decode)(command.fields)  # type: ignore[no-any-return]

    @classmethod
    def _make_lettered_codec(cls) -> Any:
        cls._lettered_codec = compile_codec(cls, short_names(cls))
        return cls._lettered_codec

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
    recall_handle: str | None = None


@header
class PushReply(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT: the reply to a message that the called producer sent."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    born_host: str
    store_host: str
    store_timestamp: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool = False


@header
class RecallMessage(Header):
    """RECALL_MESSAGE: take back the timed message that `recall_handle` names."""

    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: str | None = wire("bname", default=None)


@header
class RecallReply(Header):
    msg_id: str
    msg_region: str | None = wire("MSG_REGION", default=None)


# --- transactions


@header
class EndTransaction(Header):
    """END_TRANSACTION: what becomes of a half message; `commit_or_rollback` is a transaction value of the sys flag."""

    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None
    topic: str | None = None
    broker_name: str | None = wire("bname", default=None)


@header
class CheckTransactionState(Header):
    """CHECK_TRANSACTION_STATE: a broker asks a producer about a half message; END_TRANSACTION is the answer."""

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = wire("bname", default=None)


@header
class ResumeCheckHalfMessage(Header):
    """RESUME_CHECK_HALF_MESSAGE: ask again about the half message that lies where `msg_id` says."""

    msg_id: str
    topic: str | None = None


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
    """PULL_MESSAGE and LITE_PULL_MESSAGE. `bulk` is our own: as much as fits a frame; other brokers overlook it."""

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
    bulk: bool | None = None


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
    last_error: str | None = None  # ours; Apache's brokers do not look at it


# --- popping


@header
class PopMessage(Header):
    """POP_MESSAGE; `queue_id` -1 is any queue, `init_mode` says where a new group begins: 0 first, 1 last."""

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int
    invisible_time: int
    poll_time: int
    born_time: int = 0
    init_mode: int = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


@header
class PopReply(Header):
    pop_time: int
    invisible_time: int
    revive_qid: int
    rest_num: int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@header
class PeekMessage(Header):
    """PEEK_MESSAGE: what a pop would bring, without taking it."""

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int


@header
class AckMessage(Header):
    """ACK_MESSAGE; `extra_info` is the message's handle, `topic` where it was popped from."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int


@header
class ChangeInvisibleTime(Header):
    """CHANGE_MESSAGE_INVISIBLETIME: as an ack, but the message comes again in `invisible_time`."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    invisible_time: int


@header
class ChangeInvisibleTimeReply(Header):
    pop_time: int
    invisible_time: int
    revive_qid: int


@header
class Notification(Header):
    """NOTIFICATION: tell when there is something to pop."""

    consumer_group: str
    topic: str
    queue_id: int
    poll_time: int
    born_time: int = 0
    order: bool = False
    attempt_id: str | None = None


@header
class NotificationReply(Header):
    has_msg: bool
    polling_full: bool = False


@header
class PollingInfo(Header):
    """POLLING_INFO: how many pops wait."""

    consumer_group: str
    topic: str
    queue_id: int


@header
class PollingInfoReply(Header):
    polling_num: int


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
    # Left out unless it is true: whether it is part of what is signed, Apache's 4.x and 5.x brokers do not agree.
    unique_key_query: bool | None = wire("_UNIQUE_KEY_QUERY", default=None)


@header
class QueryMessageReply(Header):
    index_last_update_timestamp: int
    index_last_update_phyoffset: int


@header
class ViewMessage(Header):
    offset: int
    topic: str | None = None


# --- the broker itself


@header
class AclVersionReply(Header):
    """GET_BROKER_CLUSTER_ACL_INFO's answer: the versions are JSON, the second one for each file."""

    version: str
    all_acl_file_version: str
    broker_name: str
    broker_addr: str
    cluster_name: str


@header
class ViewBrokerStats(Header):
    """VIEW_BROKER_STATS_DATA: which figure, of what."""

    stats_name: str
    stats_key: str


@header
class BrokerConfigReply(Header):
    """GET_BROKER_CONFIG: a DataVersion as JSON; the configuration itself is the body."""

    version: str


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


@header
class BrokerConsumeStats(Header):
    """GET_BROKER_CONSUME_STATS: of all topics, or of those with `order` alone."""

    is_order: bool = False


@header
class QueryTimeSpan(Header):
    """QUERY_CONSUME_TIME_SPAN: of a group on a topic."""

    topic: str
    group: str


@header
class QuerySubscription(Header):
    """QUERY_SUBSCRIPTION_BY_CONSUMER: of a group to a topic."""

    group: str
    topic: str | None = None


@header
class QueryCorrectionOffset(Header):
    """QUERY_CORRECTION_OFFSET; `filter_groups` are left out, separated by commas."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


@header
class CloneGroupOffset(Header):
    """CLONE_GROUP_OFFSET; without a topic, of all that the source has consumed."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@header
class QueryConsumeQueue(Header):
    """QUERY_CONSUME_QUEUE: `count` entries from `index` on, and if the group's subscription wants them."""

    topic: str
    queue_id: int
    index: int
    count: int
    consumer_group: str | None = None


# --- what brokers ask of consumers


@header
class ResetOffset(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET, and RESET_CONSUMER_CLIENT_OFFSET with the offsets in its body.

    `timestamp` -1 is the end, `queue_id` -1 is every queue. An `offset` goes before the time, for one queue. Without
    `is_force` a group goes back at most.
    """

    topic: str
    group: str
    timestamp: int
    is_force: bool = False
    queue_id: int = -1
    offset: int | None = None


@header
class GetConsumerStatus(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS and GET_CONSUMER_STATUS_FROM_CLIENT; `client_addr` is a client id."""

    topic: str
    group: str
    client_addr: str | None = None


@header
class GetRunningInfo(Header):
    """GET_CONSUMER_RUNNING_INFO, to a broker and on to the consumer."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@header
class ConsumeDirectly(Header):
    """CONSUME_MESSAGE_DIRECTLY; the broker adds its name, and as body the stored message that `msg_id` names."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


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

"""The permission that each request code needs. Pure.

Every code of `RequestCode` has a rule in `RULES`; a test fails for one without. Apache's 4.x checks nine codes and lets
any account use all others; here a code that changes or reveals what belongs to others needs an administrator.

A resource is the name of a topic; that of a group is the name of its retry topic, as in Apache's own files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from cosmodrome.codes import RequestCode
from cosmodrome.model import RETRY_PREFIX, TRACE_TOPIC
from cosmodrome.wire.bodies import BatchAckBody, CheckClientConfig, HeartbeatData, LockBatch, QueryAssignment
from cosmodrome.wire.command import Command

# What an account may do with a resource, as bits.
PUB: Final = 4
SUB: Final = 8
ANY: Final = PUB | SUB
WORDS: Final = {PUB: "PUB", SUB: "SUB", ANY: "PUB or SUB"}

Needs = Iterator[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Rule:
    """The conditions of one request code beyond a valid signature."""

    needs: Callable[[Command], Needs] | None = None  # each resource that the request uses, and how
    is_admin: bool = False  # for administrators only
    is_signed: bool = False  # a white address alone is not enough
    reads_body: bool = False


def group_resource(group: str) -> str:
    """Return the resource that stands for a group."""
    return group if group.startswith(RETRY_PREFIX) else RETRY_PREFIX + group


def _send(command: Command) -> Needs:
    yield _sent_to(command.fields.get("topic", ""))


def _send_lettered(command: Command) -> Needs:
    yield _sent_to(command.fields.get("b", ""))


def _sent_to(topic: str) -> tuple[str, int]:
    """Return the need of a send: a consumer sends to its group's retry topic what it could not consume."""
    return topic, SUB if topic.startswith(RETRY_PREFIX) else PUB


def _end_transaction(command: Command) -> Needs:
    if topic := command.fields.get("topic"):  # clients of 4.x do not tell it
        yield topic, PUB


def _published(command: Command) -> Needs:
    yield command.fields.get("topic", ""), PUB


def _consumed(command: Command) -> Needs:
    fields = command.fields
    yield fields.get("topic", ""), SUB
    yield group_resource(fields.get("consumerGroup", "")), SUB


def _acked(command: Command) -> Needs:
    fields = command.fields
    yield from _acked_from(fields.get("topic", ""), fields.get("consumerGroup", ""))


def _acked_from(topic: str, group: str) -> Needs:
    """Yield the needs of an ack. Its topic is the one that the message was popped from, perhaps the group's retries."""
    resource = group_resource(group)
    yield resource, SUB
    if not topic.startswith((f"{resource}_", f"{resource}+")):
        yield topic, SUB


def _sent_back(command: Command) -> Needs:
    yield group_resource(command.fields.get("group", "")), SUB


def _group_and_topic(command: Command) -> Needs:
    fields = command.fields
    yield group_resource(fields.get("group", "")), SUB
    yield fields.get("topic", ""), SUB


def _subscribed(command: Command) -> Needs:
    yield command.fields.get("topic", ""), SUB


def _used(command: Command) -> Needs:
    topic = command.fields.get("topic", "")
    yield topic, SUB if topic.startswith(RETRY_PREFIX) else ANY


def _of_group(command: Command) -> Needs:
    yield group_resource(command.fields.get("consumerGroup", "")), SUB


def _named_group(command: Command) -> Needs:
    yield group_resource(command.fields.get("group", "")), SUB


def _unregister(command: Command) -> Needs:
    if group := command.fields.get("consumerGroup"):
        yield group_resource(group), SUB


def _heartbeat(command: Command) -> Needs:
    for consumer in HeartbeatData.decode(command.body).consumers:
        yield group_resource(consumer.group), SUB
        for subscription in consumer.subscriptions:
            yield subscription.topic, SUB


def _locks(command: Command) -> Needs:
    body = LockBatch.decode(command.body)
    yield group_resource(body.consumer_group), SUB
    for topic in {queue.topic for queue in body.queues}:
        yield topic, SUB


def _checked_client(command: Command) -> Needs:
    body = CheckClientConfig.decode(command.body)
    yield group_resource(body.group), SUB
    yield body.subscription.topic, SUB


def _assignment(command: Command) -> Needs:
    body = QueryAssignment.decode(command.body)
    yield group_resource(body.group), SUB
    yield body.topic, SUB


def _batch_acked(command: Command) -> Needs:
    for ack in BatchAckBody.decode(command.body).acks:
        yield from _acked_from(ack.topic, ack.group)


KNOWN: Final = Rule()  # any account
ADMIN: Final = Rule(is_admin=True)
# Changes of accounts and of settings: an address can be had by others, a signature cannot.
SIGNED_ADMIN: Final = Rule(is_admin=True, is_signed=True)

_CONSUME: Final = Rule(_consumed)
_ACK: Final = Rule(_acked)
_USE: Final = Rule(_used)
_SEND_LETTERED: Final = Rule(_send_lettered)

_CLIENTS: Final = {
    RequestCode.SEND_MESSAGE: Rule(_send),
    RequestCode.SEND_MESSAGE_V2: _SEND_LETTERED,
    RequestCode.SEND_BATCH_MESSAGE: _SEND_LETTERED,
    # An answer to a request is for the client that asked, whose topic its sender need not know.
    RequestCode.SEND_REPLY_MESSAGE: KNOWN,
    RequestCode.SEND_REPLY_MESSAGE_V2: KNOWN,
    RequestCode.END_TRANSACTION: Rule(_end_transaction),
    RequestCode.RECALL_MESSAGE: Rule(_published),
    RequestCode.PULL_MESSAGE: _CONSUME,
    RequestCode.LITE_PULL_MESSAGE: _CONSUME,
    RequestCode.POP_MESSAGE: _CONSUME,
    RequestCode.PEEK_MESSAGE: _CONSUME,
    RequestCode.NOTIFICATION: _CONSUME,
    RequestCode.POLLING_INFO: _CONSUME,
    RequestCode.ACK_MESSAGE: _ACK,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _ACK,
    RequestCode.POP_ROLLBACK: _ACK,
    RequestCode.BATCH_ACK_MESSAGE: Rule(_batch_acked, reads_body=True),
    RequestCode.CONSUMER_SEND_MSG_BACK: Rule(_sent_back),
    RequestCode.QUERY_CONSUMER_OFFSET: _CONSUME,
    RequestCode.UPDATE_CONSUMER_OFFSET: _CONSUME,
    RequestCode.GET_MAX_OFFSET: _USE,
    RequestCode.GET_MIN_OFFSET: _USE,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _USE,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _USE,
    RequestCode.QUERY_MESSAGE: Rule(_subscribed),
    RequestCode.HEART_BEAT: Rule(_heartbeat, reads_body=True),
    RequestCode.CHECK_CLIENT_CONFIG: Rule(_checked_client, reads_body=True),
    RequestCode.UNREGISTER_CLIENT: Rule(_unregister),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Rule(_of_group),
    RequestCode.LOCK_BATCH_MQ: Rule(_locks, reads_body=True),
    RequestCode.UNLOCK_BATCH_MQ: Rule(_locks, reads_body=True),
    RequestCode.QUERY_ASSIGNMENT: Rule(_assignment, reads_body=True),
    # The offset of a message says nothing of its topic, so this reads every topic.
    RequestCode.VIEW_MESSAGE_BY_ID: ADMIN,
}

_FIGURES: Final = {
    RequestCode.GET_TOPIC_STATS_INFO: _USE,
    RequestCode.GET_TOPIC_CONFIG: _USE,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _USE,
    RequestCode.QUERY_CONSUME_QUEUE: Rule(_subscribed),
    RequestCode.GET_CONSUME_STATS: Rule(_of_group),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Rule(_of_group),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Rule(_named_group),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: Rule(_named_group),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: Rule(_group_and_topic),
    RequestCode.QUERY_CONSUME_TIME_SPAN: Rule(_group_and_topic),
    RequestCode.GET_BROKER_RUNTIME_INFO: KNOWN,
    RequestCode.VIEW_BROKER_STATS_DATA: KNOWN,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: KNOWN,
}

# Reads of the name server: the names of topics and the addresses of brokers.
_ROUTES: Final = dict.fromkeys(
    (
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    ),
    KNOWN,
)

_SIGNED: Final = dict.fromkeys(
    (
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.UPDATE_CONTROLLER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_GET_USER,
        RequestCode.AUTH_LIST_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
        RequestCode.AUTH_GET_ACL,
        RequestCode.AUTH_LIST_ACL,
    ),
    SIGNED_ADMIN,
)

_ADMIN: Final = dict.fromkeys(
    (
        # topics, groups, offsets
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.SUSPEND_CONSUMER,
        RequestCode.RESUME_CONSUMER,
        RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER,
        RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER,
        RequestCode.ADJUST_CONSUMER_THREAD_POOL,
        RequestCode.WHO_CONSUME_THE_MESSAGE,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.QUERY_BROKER_OFFSET,
        RequestCode.GET_TOPIC_CONFIG_LIST,
        RequestCode.GET_TOPIC_NAME_LIST,
        # the broker itself
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_CLIENT_CONFIG,
        RequestCode.TRIGGER_DELETE_FILES,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
        RequestCode.SET_COMMITLOG_READ_MODE,
        RequestCode.REGISTER_FILTER_SERVER,
        RequestCode.REGISTER_MESSAGE_FILTER_CLASS,
        # between brokers
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        RequestCode.GET_TIMER_CHECK_POINT,
        RequestCode.GET_TIMER_METRICS,
        RequestCode.ADD_BROKER,
        RequestCode.REMOVE_BROKER,
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
        RequestCode.EXCHANGE_BROKER_HA_INFO,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.GET_BROKER_EPOCH_CACHE,
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        RequestCode.GET_BROKER_ROLE,
        RequestCode.HAND_OVER_BROKER,
        RequestCode.PROMOTE_BROKER,
        RequestCode.WITHDRAW_PROMOTION,
        RequestCode.AWAIT_TABLES,
        RequestCode.GET_RAFT_STATUS,
        RequestCode.TRANSFER_RAFT_LEADER,
        # what changes a name server
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.GET_NAMESRV_CONFIG,
        # controllers
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.GET_CONTROLLER_CONFIG,
        RequestCode.CLEAN_BROKER_DATA,
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        RequestCode.BROKER_CLOSE_CHANNEL_REQUEST,
        RequestCode.CHECK_NOT_ACTIVE_BROKER_REQUEST,
        RequestCode.GET_BROKER_LIVE_INFO_REQUEST,
        RequestCode.GET_SYNC_STATE_DATA_REQUEST,
        RequestCode.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST,
        # what brokers ask of clients; a broker is never asked
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    ),
    ADMIN,
)

RULES: Final[dict[int, Rule]] = {
    int(code): rule for table in (_CLIENTS, _FIGURES, _ROUTES, _SIGNED, _ADMIN) for code, rule in table.items()
}
# Every account may write traces, as with Apache's brokers.
FREE: Final = (TRACE_TOPIC, PUB)

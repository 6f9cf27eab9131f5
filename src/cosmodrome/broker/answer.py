"""From a request code to its processor, and from its outcome to a reply."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from cosmodrome.broker.processors import (
    accounts,
    ack,
    assignment,
    cleaning,
    consumers,
    end_transaction,
    group_queries,
    heartbeat,
    offsets,
    pop,
    pull,
    query,
    raft,
    recall,
    replication,
    reply,
    roles,
    runtime,
    send,
    send_back,
    topics,
)
from cosmodrome.broker.slave import BEFORE_SERVICE, REFUSED, refuse_resting, refuse_write, refuse_yet
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import ProtocolError, RequestCodeNotSupported, RequestError, StoreError
from cosmodrome.net.connection import Answering, Connection, completed
from cosmodrome.wire.command import Command

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)

Processor = Callable[["Broker", Connection, Command], Answering]

# What clients ask for again and again, and what costs the same whoever asks. All else waits for its turn in the lane:
# of the requests that may take long, the loop serves one in each of its turns, however many come at once.
AT_ONCE = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.END_TRANSACTION,
        RequestCode.RECALL_MESSAGE,
    }
)


def _in_turn(processor: Processor) -> Processor:
    async def wait_and_answer(broker: Broker, connection: Connection, command: Command) -> Command:
        await broker.lane.turn()
        return await completed(processor(broker, connection, command))

    return wait_and_answer


_ALL: dict[int, Processor] = {
    RequestCode.SEND_MESSAGE: send.send_message,
    RequestCode.SEND_MESSAGE_V2: send.send_message,
    RequestCode.SEND_BATCH_MESSAGE: send.send_message,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back.send_back,
    RequestCode.SEND_REPLY_MESSAGE: reply.send_reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: reply.send_reply,
    RequestCode.PULL_MESSAGE: pull.pull_message,
    RequestCode.LITE_PULL_MESSAGE: pull.pull_message,
    RequestCode.POP_MESSAGE: pop.pop_message,
    RequestCode.PEEK_MESSAGE: pop.peek_message,
    RequestCode.NOTIFICATION: pop.notification,
    RequestCode.POLLING_INFO: pop.polling_info,
    RequestCode.ACK_MESSAGE: ack.ack_message,
    RequestCode.BATCH_ACK_MESSAGE: ack.batch_ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ack.change_invisible_time,
    RequestCode.QUERY_ASSIGNMENT: assignment.query_assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: assignment.set_request_mode,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: assignment.get_request_modes,
    RequestCode.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
    RequestCode.GET_MAX_OFFSET: offsets.get_max_offset,
    RequestCode.GET_MIN_OFFSET: offsets.get_min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.get_earliest_store_time,
    RequestCode.HEART_BEAT: heartbeat.heartbeat,
    RequestCode.CHECK_CLIENT_CONFIG: heartbeat.check_client_config,
    RequestCode.UNREGISTER_CLIENT: heartbeat.unregister_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: heartbeat.get_consumer_list,
    RequestCode.LOCK_BATCH_MQ: heartbeat.lock_queues,
    RequestCode.UNLOCK_BATCH_MQ: heartbeat.unlock_queues,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: heartbeat.get_consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: heartbeat.get_producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: heartbeat.get_all_producers,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: consumers.reset_offset,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumers.get_consumer_status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: consumers.get_running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consumers.consume_directly,
    RequestCode.QUERY_MESSAGE: query.query_message,
    RequestCode.VIEW_MESSAGE_BY_ID: query.view_message,
    RequestCode.RECALL_MESSAGE: recall.recall_message,
    RequestCode.GET_TIMER_CHECK_POINT: replication.get_timer_checkpoint,
    RequestCode.GET_TIMER_METRICS: replication.get_timer_metrics,
    RequestCode.GET_ALL_CONSUMER_OFFSET: replication.get_all_consumer_offsets,
    RequestCode.GET_ALL_DELAY_OFFSET: replication.get_all_delay_offsets,
    RequestCode.GET_BROKER_HA_STATUS: replication.get_ha_status,
    RequestCode.GET_BROKER_EPOCH_CACHE: replication.get_epochs,
    RequestCode.GET_BROKER_ROLE: roles.get_role,
    RequestCode.HAND_OVER_BROKER: roles.hand_over,
    RequestCode.PROMOTE_BROKER: roles.promote,
    RequestCode.WITHDRAW_PROMOTION: roles.withdraw_promotion,
    RequestCode.AWAIT_TABLES: roles.await_tables,
    RequestCode.GET_RAFT_STATUS: raft.get_status,
    RequestCode.TRANSFER_RAFT_LEADER: raft.transfer_leader,
    RequestCode.EXCHANGE_BROKER_HA_INFO: replication.exchange_ha_info,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: replication.smallest_broker_changed,
    RequestCode.END_TRANSACTION: end_transaction.end_transaction,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: end_transaction.resume_check,
    RequestCode.UPDATE_AND_CREATE_TOPIC: topics.create_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.create_topics,
    RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete_topic,
    RequestCode.GET_ALL_TOPIC_CONFIG: topics.get_all_topics,
    RequestCode.GET_TOPIC_CONFIG: topics.get_topic,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.get_system_topics,
    RequestCode.GET_TOPIC_STATS_INFO: topics.get_topic_stats,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: topics.query_topic_groups,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: topics.put_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: topics.put_groups,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: topics.delete_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: topics.get_all_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: topics.get_group,
    RequestCode.GET_CONSUME_STATS: topics.get_consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: topics.get_all_consume_stats,
    RequestCode.QUERY_CONSUME_TIME_SPAN: group_queries.query_time_span,
    RequestCode.QUERY_CORRECTION_OFFSET: group_queries.query_correction_offset,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: group_queries.query_topics,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: group_queries.query_subscription,
    RequestCode.CLONE_GROUP_OFFSET: group_queries.clone_offsets,
    RequestCode.QUERY_CONSUME_QUEUE: group_queries.query_consume_queue,
    RequestCode.VIEW_BROKER_STATS_DATA: runtime.view_stats,
    RequestCode.GET_BROKER_RUNTIME_INFO: runtime.get_runtime_info,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: accounts.get_versions,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: accounts.get_accounts,
    RequestCode.UPDATE_BROKER_CONFIG: runtime.update_config,
    RequestCode.GET_BROKER_CONFIG: runtime.get_config,
    RequestCode.DELETE_EXPIRED_COMMITLOG: cleaning.delete_expired_commit_log,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: cleaning.clean_expired_queues,
    RequestCode.CLEAN_UNUSED_TOPIC: cleaning.clean_unused_topics,
}

PROCESSORS = {code: processor if code in AT_ONCE else _in_turn(processor) for code, processor in _ALL.items()}
SLAVE_PROCESSORS = {**PROCESSORS, **dict.fromkeys(REFUSED, refuse_write)}
RESTING_PROCESSORS = {**PROCESSORS, **dict.fromkeys(REFUSED, refuse_resting)}
# Of a master that is taking over from its slaves.
PRE_ONLINE_PROCESSORS = {code: PROCESSORS[code] if code in BEFORE_SERVICE else refuse_yet for code in PROCESSORS}


# What of Apache's is refused on purpose, and what to do instead.
_NO_COLD_DATA = "no group is slowed down for reading old messages here, so that there is no such limit to set or show"
_NO_ROCKSDB = "tables and queues are kept in files here, not in RocksDB"
_ACCOUNTS_IN_FILES = "accounts are changed in the broker's plain_acl.yml, which is read again, and never over the wire"
_NOT_HERE: dict[int, str] = {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _ACCOUNTS_IN_FILES,
    RequestCode.DELETE_ACL_CONFIG: _ACCOUNTS_IN_FILES,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _ACCOUNTS_IN_FILES,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _NO_COLD_DATA,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _NO_COLD_DATA,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: _NO_COLD_DATA,
    RequestCode.SET_COMMITLOG_READ_MODE: "the kernel's read-ahead is left as it is; no mode of it can be set",
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _NO_ROCKSDB,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: f"{_NO_ROCKSDB}; `mqadmin exportMetadata` exports them",
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: (
        "a group is not forbidden single topics here; refuse them by ACL, or set consumeEnable=false (updateSubGroup)"
    ),
    RequestCode.RESET_MASTER_FLUSH_OFFSET: (
        "a slave finds out by its master's terms where their logs part, so that there is no offset to reset"
    ),
    RequestCode.POP_ROLLBACK: "pops are recorded in one way here, so that there is nothing to export or roll back",
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: (
        "static topics, whose queues move between brokers, are not kept; create a plain topic (mqadmin updateTopic)"
    ),
}


async def unsupported(_broker: Broker, _connection: Connection, command: Command) -> Command:
    raise RequestCodeNotSupported(command.code, _NOT_HERE.get(command.code, ""))


def refuse(command: Command, refusal: RequestError) -> Command:
    """The answer to a request that is not looked at."""
    return command.reply(refusal.code, remark=str(refusal))


def answer(broker: Broker, connection: Connection, command: Command) -> Answering:
    """The only place where an outcome becomes a response code, together with `failed`."""
    try:
        answering = broker.processors.get(command.code, unsupported)(broker, connection, command)
    except Exception as error:
        return failed(connection, command, error)
    return answering if isinstance(answering, Command) else _finish(connection, command, answering)


async def _finish(connection: Connection, command: Command, answering: Coroutine[Any, Any, Command]) -> Command:
    """Await the reply of a request that may have to wait."""
    try:
        return await answering
    except Exception as error:
        return failed(connection, command, error)


def failed(connection: Connection, command: Command, error: Exception) -> Command:
    """Return the reply that tells of an error."""
    if isinstance(error, RequestError):  # expected: the peer asked for what it cannot have
        return refuse(command, error)
    if isinstance(error, StoreError):  # files of one queue are not as they should be; the text names them
        log.error("request %d (opaque %d) from %s: %s", command.code, command.opaque, connection.peer, error)
        return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
    if isinstance(error, ProtocolError):  # the frame was sound, so the connection stays; what it carried was not
        return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
    # Ours: full trace here, nothing leaked there.
    log.error("request %d (opaque %d) from %s failed", command.code, command.opaque, connection.peer, exc_info=error)
    return command.reply(ResponseCode.SYSTEM_ERROR, remark="internal error; see the broker log")

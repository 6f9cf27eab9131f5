"""The words of the system: messages, queues, topics, groups, subscriptions and routes.

Everything here is data without behaviour beyond its own invariants, so every layer may use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any

from cosmodrome.errors import InvalidParameter

MASTER_ID = 0

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_PREFIX = "rmq_sys_"
# The route of this topic is who the brokers of a name are, for those that ask a name server of Apache 4.
MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
REVIVE_PREFIX = SYSTEM_PREFIX + "REVIVE_LOG_"
TRACE_DATA_PREFIX = SYSTEM_PREFIX + "TRACE_DATA_"  # topics of trace clients with the access channel CLOUD
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
# Every broker has this group; it is nobody's, and nothing is committed under it.
READER_GROUP = "TOOLS_CONSUMER"
AUTO_CREATE_TOPIC = "TBW102"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
# Topics that only a broker itself may write to, with those of SYSTEM_PREFIX; see `is_broker_only`.
NOT_SENDABLE_TOPICS = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_EVENT}
)
# Of those, what operators' consumers may read, and so send back.
READABLE_SYSTEM_TOPICS = frozenset({CHECK_MAX_TIME_TOPIC, OFFSET_MOVED_EVENT, SELF_TEST_TOPIC})
SYSTEM_TOPICS = NOT_SENDABLE_TOPICS | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
CLIENT_INNER_PRODUCER = "CLIENT_INNER_PRODUCER"

MAX_TOPIC_LENGTH = 127
MAX_RETRY_TOPIC_LENGTH = 255
MAX_GROUP_LENGTH = 255

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_RETRY_NAME = re.compile(r"[%|a-zA-Z0-9_+-]+")  # the pop retry topic V2 is group+topic
MAX_QUEUES = 65_535  # of a topic on one broker


class Property:
    """Names of the message properties this package reads or writes."""

    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT = "WAIT"
    DELAY = "DELAY"
    RETRY_TOPIC = "RETRY_TOPIC"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QID = "REAL_QID"
    UNIQ_KEY = "UNIQ_KEY"
    MSG_REGION = "MSG_REGION"
    TRACE_ON = "TRACE_ON"
    CLUSTER = "CLUSTER"
    CORRELATION_ID = "CORRELATION_ID"
    REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
    PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
    MSG_TYPE = "MSG_TYPE"
    TTL = "TTL"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    CONSUME_START_TIME = "CONSUME_START_TIME"
    LAST_ERROR = "COSMODROME_LAST_ERROR"  # ours: why the last delivery to this group failed
    POP_CK = "POP_CK"
    FIRST_POP_TIME = "1ST_POP_TIME"
    TRAN_MSG = "TRAN_MSG"
    PGROUP = "PGROUP"
    SHARDING_KEY = "__SHARDINGKEY"
    INSTANCE_ID = "INSTANCE_ID"
    TRANSACTION_ID = "__transactionId__"
    TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
    CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
    # When a message is to be delivered; of these the first that is there counts.
    TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS = "TIMER_DELAY_MS"
    TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
    START_DELIVER_TIME = "__STARTDELIVERTIME"  # of ONS clients, in ms as well
    # What the broker notes about such a message.
    TIMER_OUT_MS = "TIMER_OUT_MS"
    TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
    TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"


class Perm(IntEnum):
    """What may be done with a topic's queues on one broker: bits of a plain int, for they are tested on every send."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


READ_WRITE = Perm.READ | Perm.WRITE


class TopicFlag(IntEnum):
    """Bits of a topic's sysFlag: clients of a unit made it, or consume it."""

    UNIT = 1
    UNIT_SUBSCRIPTION = 2


class MessageModel(StrEnum):
    """Whether every member of a group gets every message, or each message one of them."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeType(StrEnum):
    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class RequestMode(StrEnum):
    """How the members of a group get the messages of a topic."""

    PULL = "PULL"
    POP = "POP"


class ConsumeFrom(StrEnum):
    """Where a group starts on a queue for which no offset is stored."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


def check_topic(topic: str) -> str:
    """The topic itself, or InvalidParameter. Nothing may become a path before it passed here."""
    _check_text("topic", topic)
    limit = MAX_RETRY_TOPIC_LENGTH if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else MAX_TOPIC_LENGTH
    return _check_name("topic", topic, limit, _RETRY_NAME if topic.startswith(RETRY_PREFIX) else _NAME)


def check_group(group: str) -> str:
    """The group itself, or InvalidParameter."""
    _check_text("group", group)
    return _check_name("group", group, MAX_GROUP_LENGTH)


def _check_text(kind: str, name: str) -> None:
    if not isinstance(name, str):
        raise InvalidParameter(f"the {kind} is {name!r}; it must be text")


def _check_name(kind: str, name: str, limit: int, allowed: re.Pattern[str] = _NAME) -> str:
    if not name:
        raise InvalidParameter(f"the {kind} name is empty")
    if len(name) > limit:
        raise InvalidParameter(f"the {kind} name has {len(name)} characters; at most {limit} are allowed")
    if not allowed.fullmatch(name):
        raise InvalidParameter(f"the {kind} name {name!r} is illegal; allowed are letters, digits and % | _ -")
    return name


def is_broker_only(topic: str) -> bool:
    """Return whether no client may send to this topic: a broker keeps its own records in it, and believes them."""
    return topic in NOT_SENDABLE_TOPICS or (topic.startswith(SYSTEM_PREFIX) and not topic.startswith(TRACE_DATA_PREFIX))


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DLQ_PREFIX + group


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker. Sorting is Apache's: topic, broker, queue."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(slots=True)
class Message:
    """What an application sends.

    `keys` may be a string of blank-separated keys or a list of keys without blanks. System properties
    (TAGS, KEYS, …) are set through their own fields, never through `properties`. To be delivered later, a message has a
    `delay_level`, a `delay` from now on, or a time to `deliver_at`; only one of them. Messages with the same
    `sharding_key` go to the same queue, so that they are consumed in the order they were sent.
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: str | list[str] = ""
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    wait_store_ok: bool = True
    delay: timedelta | None = None
    deliver_at: datetime | None = None
    sharding_key: str = ""
    transaction_id: str = field(default="", compare=False)  # set for what executes in a transaction; not sent


@dataclass(slots=True)
class ReceivedMessage:
    """What an application receives; `body` is already decompressed, `properties` hold everything that was stored."""

    topic: str
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    queue: MessageQueue
    queue_offset: int
    commit_log_offset: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    offset_msg_id: str
    store_size: int

    @property
    def msg_id(self) -> str:
        """The producer's unique id, or the place of the message when there is none."""
        return self.properties.get(Property.UNIQ_KEY, self.offset_msg_id)

    @property
    def transaction_id(self) -> str:
        """The id of the transaction in which the message is, or was, sent: its message id."""
        return self.msg_id

    @property
    def tags(self) -> str:
        """The tag; empty if it has none."""
        return self.properties.get(Property.TAGS, "")

    @property
    def keys(self) -> str:
        """The keys, with a space between them; empty if it has none."""
        return self.properties.get(Property.KEYS, "")


class SendStatus(StrEnum):
    """How safe a stored message is: as its broker promises, or not yet on disk, or not on a slave."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message went. For a batch, both ids are comma-joined and `queue_offset` is the first message's."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str = ""
    recall_handle: str = ""  # for `Producer.recall`, if the message has a delivery time


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Which state of a config table this is. Equal only if all three agree."""

    timestamp: int = 0
    counter: int = 0
    state_version: int = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(now_ms, self.counter + 1, self.state_version)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic on one broker."""

    name: str
    read_queues: int = 16
    write_queues: int = 16
    perm: int = READ_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def readable(self) -> bool:
        return bool(self.perm & Perm.READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & Perm.WRITE)

    @property
    def inheritable(self) -> bool:
        return bool(self.perm & Perm.INHERIT)


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A consumer group on one broker (Apache's SubscriptionGroupConfig)."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queues: int = 1
    retry_max_times: int = 16
    broker_id: int = MASTER_ID
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    sys_flag: int = 0
    consume_timeout_minute: int = 15
    retry_policy: Mapping[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})  # as Apache's JSON has it
    attributes: Mapping[str, str] = field(default_factory=dict)


ALL_TAGS = "*"


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group wants of one topic. Use `filter.tags.subscription` to build one from an expression."""

    topic: str
    expression: str = ALL_TAGS
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()
    version: int = 0
    expression_type: str = "TAG"
    class_filter: bool = False


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues a topic has on one broker, as the name server tells it."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The addresses of one broker group: id 0 is the master."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]
    acting_master: bool = False

    @property
    def master(self) -> str | None:
        return self.addresses.get(MASTER_ID)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a topic lives."""

    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    order_conf: str | None = None

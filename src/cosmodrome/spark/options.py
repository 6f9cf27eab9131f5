"""What a user says in `.option(…)`, checked before anything is read. Pure.

Names and meanings are those of Spark's Kafka source and of the old rocketmq-spark where they have them. Spark hands
option names over in lower case, and values as text.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

import orjson

from cosmodrome.client.subscribing import Expression, Sql, subscription
from cosmodrome.config import TlsCheck, parse_addresses
from cosmodrome.errors import ConfigError, CosmodromeError
from cosmodrome.model import ALL_TAGS, MessageQueue, Subscription, check_group, check_topic
from cosmodrome.numbers import parse_int

T = TypeVar("T")
D = TypeVar("D")
E = TypeVar("E", bound=StrEnum)

MAX_NUMBER = (1 << 63) - 1
EARLIEST = -2
LATEST = -1


class Where(StrEnum):
    """A place in every queue that need not be named as a number."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"  # what the consumer group has committed


class PropertiesAs(StrEnum):
    MAP = "map"
    STRING = "string"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin or end: in general, and for single queues. Numbers below 0 are EARLIEST and LATEST."""

    where: Where | None = None
    offsets: Mapping[MessageQueue, int] | None = None
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[MessageQueue | str, int] | None = None  # by queue, or by topic for all its queues


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one micro-batch takes."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_ms: int = 15 * 60 * 1_000
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Slicing:
    """How ranges become tasks."""

    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_tasks: int = 8


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How brokers are reached; what is cached per process is cached by this."""

    name_servers: tuple[str, ...]
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    tls: bool = False
    tls_ca_file: str = ""
    tls_check: TlsCheck = TlsCheck.FULL
    idle_ms: int = 60_000  # how long an unused connection is good for another task


@dataclass(frozen=True, slots=True)
class SourceOptions:
    link: LinkOptions
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[MessageQueue, ...] = ()
    starting: Position = Position()
    ending: Position = Position(Where.LATEST)
    missing_timestamp_is_latest: bool = True  # else an error, when no message is that young
    limits: Limits = Limits()
    slicing: Slicing = Slicing()
    fail_on_data_loss: bool = True
    properties: PropertiesAs = PropertiesAs.MAP
    metadata_columns: bool = False
    group: str = ""
    commits_to_group: bool = False
    expression: Expression = ALL_TAGS
    pull_batch_size: int = 4_096
    pull_timeout_ms: int = 10_000
    offset_retries: int = 10
    offset_retry_interval_ms: int = 200
    offset_poll_interval_ms: int = 100
    push_filters: bool = False
    keys: frozenset[str] = frozenset()  # what the column must be one of, if a query says so

    def reads(self, topic: str) -> bool:
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or any(queue.topic == topic for queue in self.assigned)

    def wanted(self, topic: str) -> Subscription:
        return subscription(topic, self.expression, version=1)


class Given:
    """The options of one query. Each is taken once; what is left at the end is unknown."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._known: list[str] = []

    def has(self, name: str) -> bool:
        return name.lower() in self._options

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """ConfigError for the first of these that was given, and why not."""
        if used := next((name for name in reasons if self.has(name)), None):
            raise ConfigError(f"{used} {reasons[used]}")

    def take(self, name: str, read: Callable[[str], T], default: D, *aliases: str) -> T | D:
        """The value of an option as `read` makes it; ConfigError names the option when it can't."""
        self._known += (name, *aliases)
        found = {known: self._options.pop(known.lower()) for known in (name, *aliases) if self.has(known)}
        if not found:
            return default
        if len(set(found.values())) > 1:
            raise ConfigError(f"the options {' and '.join(found)} say different things; give one of them")
        used, value = next(iter(found.items()))
        try:
            return read(value.strip())
        except (ValueError, TypeError, CosmodromeError) as error:
            raise ConfigError(f"the option {used} is {value!r}: {error}") from error

    def finish(self) -> None:
        """Refuse what nobody asked for. Spark adds `path` where a user said load(path)."""
        for name in self._options:
            near = difflib.get_close_matches(name, [known.lower() for known in self._known], 1)
            meant = next((known for known in self._known if near and known.lower() == near[0]), None)
            hint = f"; did you mean {meant}?" if meant else ""
            if name.startswith("option."):
                raise ConfigError("Spark keeps no options of CREATE TABLE for this source; use CREATE TEMPORARY VIEW")
            if name == "path":
                hint = "; name topics with the option subscribe, or topic in a write"
            raise ConfigError(f"the option {name} is unknown{hint}")


# What the other kind of read has no use for.
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_LIMITS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")
_OF_BATCHES = {
    **dict.fromkeys(_ENDS, "is for batch reads; a stream has no end"),
    "pushFilters": "is for batch reads; Spark tells a stream of no filters: give subExpression or sql",
}
_OF_STREAMS = {
    **dict.fromkeys(_LIMITS, "is for streams; a batch read takes everything"),
    "commitGroupOffsets": "is for streams; a batch read tells its group nothing",
    "offsetPollIntervalMs": "is for streams; a batch read asks once",
}


def is_of_stream(options: Mapping[str, str]) -> bool:
    """Whether one of them makes sense in a stream only."""
    given = Given(options)
    return any(given.has(name) for name in _OF_STREAMS)


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """ConfigError says which option cannot be, and why."""
    given = Given(options)
    given.refuse(_OF_BATCHES if streaming else _OF_STREAMS)
    topics = given.take("subscribe", topic_list, (), "topic")
    pattern = given.take("subscribePattern", _pattern, None)
    assigned = given.take("assign", _assigned, ())
    group = _group(given, f"{topics} {pattern} {assigned}")
    made = SourceOptions(
        link=link_options(given),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_starting(given, streaming),
        ending=_ending(given),
        missing_timestamp_is_latest=given.take("startingOffsetsByTimestampStrategy", _strategy, True),
        limits=_limits(given),
        slicing=Slicing(
            given.take("minPartitions", positive, None),
            given.take("maxRecordsPerPartition", positive, None),
            given.take("maxTasksPerBatch", positive, 8),
        ),
        fail_on_data_loss=given.take("failOnDataLoss", flag, True),
        properties=_properties(given),
        metadata_columns=given.take("metadataColumns", flag, False),
        group=group,
        commits_to_group=given.take("commitGroupOffsets", flag, bool(group)),
        expression=_expression(given),
        pull_batch_size=given.take("pullBatchSize", positive, 4_096),
        pull_timeout_ms=given.take("pullTimeoutMs", positive, 10_000),
        offset_retries=given.take("fetchOffset.numRetries", positive, 10),
        offset_retry_interval_ms=given.take("fetchOffset.retryIntervalMs", positive, 200),
        offset_poll_interval_ms=given.take("offsetPollIntervalMs", natural, 100),
        push_filters=given.take("pushFilters", flag, False),
    )
    given.finish()
    _check(made)
    _check_range(made)
    return made


def link_options(given: Given) -> LinkOptions:
    name_servers = given.take("nameServer", parse_addresses, (), "namesrv", "endpoints", "rocketmq.namesrv.addr")
    if not name_servers:
        raise ConfigError("give the option nameServer: host:port, several separated by ';'")
    tls_options = [name for name in ("tlsCaFile", "tlsCheck") if given.has(name)]
    link = LinkOptions(
        name_servers,
        given.take("accessKey", str, "", "rocketmq.client.accessKey"),
        given.take("secretKey", str, "", "rocketmq.client.secretKey"),
        given.take("securityToken", str, "", "rocketmq.client.securityToken"),
        given.take("tls", flag, False, "rocketmq.client.tls"),
        given.take("tlsCaFile", _file, ""),
        given.take("tlsCheck", one_of(TlsCheck), TlsCheck.FULL),
        given.take("connectionIdleMs", natural, 60_000),
    )
    if bool(link.access_key) != bool(link.secret_key):
        raise ConfigError("accessKey and secretKey belong together; one of them is missing")
    if link.security_token and not link.access_key:
        raise ConfigError("securityToken needs accessKey and secretKey")
    if tls_options and not link.tls:
        raise ConfigError(f"{tls_options[0]} needs tls=true")
    return link


def _check(options: SourceOptions) -> None:
    if sum(map(bool, (options.topics, options.pattern, options.assigned))) != 1:
        raise ConfigError("give exactly one of the options subscribe, subscribePattern and assign")
    if options.starting.where is Where.GROUP and not options.group:
        raise ConfigError("startingOffsets is group: say which with the option group")
    if options.commits_to_group and not options.group:
        raise ConfigError("commitGroupOffsets needs the option group")
    minimum, maximum = options.limits.min_offsets, options.limits.max_offsets
    if minimum is not None and maximum is not None and minimum > maximum:
        raise ConfigError(f"minOffsetsPerTrigger ({minimum}) is above maxOffsetsPerTrigger ({maximum})")
    if maximum is not None and options.limits.max_bytes is not None:
        raise ConfigError("give maxOffsetsPerTrigger or maxBytesPerTrigger, not both: Spark takes one limit")
    try:
        options.wanted("any")
    except CosmodromeError as error:
        raise ConfigError(
            f"the option {'sql' if isinstance(options.expression, Sql) else 'subExpression'}: {error}"
        ) from None


def _check_range(options: SourceOptions) -> None:
    """Positions are of topics that are read, and the end is not before the start."""
    for side, position in (("starting", options.starting), ("ending", options.ending)):
        for option, places in (("Offsets", position.offsets), ("OffsetsByTimestamp", position.timestamps_ms)):
            topics = {place if isinstance(place, str) else place.topic for place in places or ()}
            if strange := sorted(topic for topic in topics if not options.reads(topic)):
                raise ConfigError(f"the option {side}{option} names the topic {strange[0]}, which is not read")
    since_ms, before_ms = options.starting.timestamp_ms, options.ending.timestamp_ms
    if since_ms is not None and before_ms is not None and since_ms > before_ms:
        raise ConfigError(f"startingTimestamp ({since_ms}) is after endingTimestamp ({before_ms})")
    starts = options.starting.offsets or {}
    for queue, end in (options.ending.offsets or {}).items():
        if end == EARLIEST:
            raise ConfigError(f"the option endingOffsets says -2 (earliest) of queue {queue.queue_id} of {queue.topic}")
        if 0 <= end < starts.get(queue, 0):
            raise ConfigError(
                f"startingOffsets ({starts[queue]}) is after endingOffsets ({end}) "
                f"in queue {queue.queue_id} of {queue.topic} on {queue.broker_name}"
            )


def _group(given: Given, what: str) -> str:
    """As it is named, or a prefix and a name for whoever reads this: the same after a restart."""
    ending = hashlib.blake2b(what.encode(), digest_size=4).hexdigest()
    group = given.take("group", check_group, "", "consumerGroup")
    made = given.take("groupIdPrefix", lambda prefix: check_group(f"{check_group(prefix)}-{ending}"), "")
    if group and made:
        raise ConfigError("give group or groupIdPrefix, not both")
    return group or made


def _properties(given: Given) -> PropertiesAs:
    """Kafka's readers know an option that says whether, ours how."""
    included = given.take("includeProperties", flag, None, "includeHeaders")
    properties = given.take("properties", one_of(PropertiesAs), None)
    if included is None or properties is None:
        return properties or (PropertiesAs.NONE if included is False else PropertiesAs.MAP)
    if included is (properties is PropertiesAs.NONE):
        raise ConfigError(
            f"includeProperties={str(included).lower()} and properties={properties} contradict each other"
        )
    return properties


def _expression(given: Given) -> Expression:
    tags, sql = given.take("subExpression", str, "", "tags"), given.take("sql", _sql, "")
    if tags and sql:
        raise ConfigError("give subExpression (tags) or sql, not both")
    return Sql(sql) if sql else tags or ALL_TAGS


# --- positions


def _starting(given: Given, streaming: bool) -> Position:
    default = Position(Where.LATEST if streaming else Where.EARLIEST)
    return _position(given, "starting", (*Where,), default)


def _ending(given: Given) -> Position:
    return _position(given, "ending", (Where.LATEST,), Position(Where.LATEST))


def _position(given: Given, side: str, words: tuple[Where, ...], default: Position) -> Position:
    """One of three options says it, and two that do not agree are refused."""

    def offsets(text: str) -> Position:
        if text.lower() in words:
            return Position(Where(text.lower()))
        allowed = ", ".join(words)
        if not text.startswith("{"):
            raise ValueError(f"it must be {allowed}, or JSON like {EXAMPLE_OFFSETS}")
        return Position(default.where, offsets=parse_offsets(text))

    found = [
        given.take(f"{side}Offsets", offsets, None),
        given.take(f"{side}Timestamp", lambda text: Position(timestamp_ms=instant_ms(text)), None),
        given.take(f"{side}OffsetsByTimestamp", lambda text: Position(timestamps_ms=_timestamps(text)), None),
    ]
    positions = [position for position in found if position is not None]
    if len(positions) > 1:
        raise ConfigError(f"give one of {side}Offsets, {side}Timestamp and {side}OffsetsByTimestamp")
    return positions[0] if positions else default


EXAMPLE_OFFSETS = '{"orders": {"broker-a": {"0": 23, "1": -2}}}'
A_TIME = "a time such as 2026-11-18T10:00:00Z"
EXAMPLE_QUEUES = '{"orders": {"broker-a": [0, 1]}}'


def parse_offsets(text: str) -> dict[MessageQueue, int]:
    """By topic, broker and queue id; -2 is the earliest, -1 the latest."""
    found: dict[MessageQueue, int] = {}
    for topic, brokers in _object(orjson.loads(text)).items():
        for broker, queues in _object(brokers).items():
            for queue_id, offset in _object(queues).items():
                if not _is_number(offset) or not EARLIEST <= offset <= MAX_NUMBER:
                    raise ValueError(f"the offset {offset!r} is no number, nor -2 (earliest) or -1 (latest)")
                queue = MessageQueue(check_topic(topic), broker, natural(queue_id))
                if queue in found:
                    raise ValueError(f"queue {queue.queue_id} of {topic} on {broker} is named twice")
                found[queue] = offset
    return found


def _timestamps(text: str) -> dict[MessageQueue | str, int]:
    """By topic, or by topic, broker and queue id."""
    found: dict[MessageQueue | str, int] = {}
    for topic, value in _object(_in_ms(orjson.loads(text))).items():
        by_place = parse_offsets(orjson.dumps({topic: value}).decode()) if isinstance(value, dict) else {topic: value}
        for place, at_ms in by_place.items():
            if not _is_number(at_ms) or not 0 <= at_ms <= MAX_NUMBER:
                raise ValueError(f"the timestamp {at_ms!r} is no number of milliseconds since 1970, nor {A_TIME}")
            found[check_topic(place) if isinstance(place, str) else place] = at_ms
    return found


def _in_ms(value: Any) -> Any:
    """The value with every text in it read as a time."""
    if isinstance(value, dict):
        return {name: _in_ms(inner) for name, inner in value.items()}
    return instant_ms(value) if isinstance(value, str) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _assigned(text: str) -> tuple[MessageQueue, ...]:
    """{"orders": {"broker-a": [0, 1]}}"""
    queues = {
        MessageQueue(check_topic(topic), broker, natural(str(queue_id)))
        for topic, brokers in _object(orjson.loads(text)).items()
        for broker, queue_ids in _object(brokers).items()
        for queue_id in _list(queue_ids)
    }
    if not queues:
        raise ValueError(f"it names no queue; write JSON like {EXAMPLE_QUEUES}")
    return tuple(sorted(queues))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} must be a list of queue ids, like {EXAMPLE_QUEUES}")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} must be an object by topic, broker and queue id, like {EXAMPLE_OFFSETS}")
    return value


# --- limits and single values


def _limits(given: Given) -> Limits:
    return Limits(
        given.take("maxOffsetsPerTrigger", positive, None),
        given.take("minOffsetsPerTrigger", positive, None),
        given.take("maxTriggerDelay", _duration_ms, 15 * 60 * 1_000),
        given.take("maxBytesPerTrigger", positive, None),
    )


def topic_list(text: str) -> tuple[str, ...]:
    return tuple(sorted({check_topic(topic.strip()) for topic in text.split(",")}))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:  # a{99999999999}, and brackets a thousand deep
        raise ValueError(f"it is no regular expression: {error}") from None
    return text


def flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def _file(text: str) -> str:
    """Looked for where it is used: that may be another machine."""
    if not text:
        raise ValueError("it names no file")
    return text


def natural(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError("it must be a whole number, 0 or more")
    number = parse_int(text, high=MAX_NUMBER)
    if number is None:
        raise ValueError(f"it must be {MAX_NUMBER} at most")
    return number


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant_ms(text: str) -> int:
    """Milliseconds since 1970: a whole number of them, or an ISO 8601 time. Without a zone it is this machine's."""
    if text.isascii() and text.isdecimal():
        return natural(text)
    try:
        since_ms = (datetime.fromisoformat(text).astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):  # a year whose start lies before the first there is
        raise ValueError(f"it must be milliseconds since 1970, or {A_TIME}") from None
    if since_ms < 0:
        raise ValueError("it is before 1970")
    return since_ms


def positive(text: str) -> int:
    if (number := natural(text)) == 0:
        raise ValueError("it must be at least 1")
    return number


def one_of(kind: type[E]) -> Callable[[str], E]:
    """Reads one of a few words, in any case."""

    def read(text: str) -> E:
        if text.lower() not in tuple(kind):
            raise ValueError(f"it must be {', '.join(tuple(kind)[:-1])} or {tuple(kind)[-1]}")
        return kind(text.lower())

    return read


def _strategy(text: str) -> bool:
    if text.lower() not in ("error", "latest"):
        raise ValueError("it must be error or latest")
    return text.lower() == "latest"


def _sql(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(text: str) -> int:
    match = re.fullmatch(rf"([0-9]{{1,18}})\s*({'|'.join(_UNITS_MS)})", text.lower())
    if match is None:
        raise ValueError("it must be a time like 500ms, 30s, 15m or 1h")
    return int(match[1]) * _UNITS_MS[match[2]]

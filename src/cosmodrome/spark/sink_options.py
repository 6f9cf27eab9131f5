"""What a user says in `.option(…)` of a write, checked before anything is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from cosmodrome.client.outgoing import MAX_BODY_BYTES, check_producer_group, check_sendable_topic
from cosmodrome.config import KIB
from cosmodrome.errors import ConfigError
from cosmodrome.spark.options import Given, LinkOptions, flag, link_options, natural, one_of, positive

# Nobody of this group may answer brokers that ask about half messages: only the driver knows what becomes of them.
PRODUCER_GROUP = "SPARK_SINK"
COMMIT_TOPIC = "SPARK_SINK_COMMITS"
BATCH_BYTES = 256 * KIB


class Reserved(StrEnum):
    """What to do with properties whose names are RocketMQ's own, as rows that were read from a topic have them."""

    REFUSE = "refuse"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    link: LinkOptions
    topic: str = ""
    group: str = PRODUCER_GROUP
    idempotent_keys: bool = True
    reserved_properties: Reserved = Reserved.REFUSE
    batch_bytes: int = BATCH_BYTES
    max_in_flight: int = 64
    max_rows_per_second: float = 0.0  # of each task; 0 is as fast as it goes
    send_retries: int = 10
    send_retry_interval_ms: int = 200
    send_timeout_ms: int = 10_000
    strict_acks: bool = False  # else FLUSH_DISK_TIMEOUT and its like count as stored
    job_id: str = ""
    exactly_once: bool = False
    commit_topic: str = COMMIT_TOPIC
    commit_broker: str = ""
    fail_on_data_loss: bool = True


def sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """ConfigError says which option cannot be, and why."""
    given = Given(options)
    given.take("checkpointLocation", str, "")  # Spark's own, handed on to us
    given.take("queryName", str, "")
    is_async = given.take("asyncProgressTrackingEnabled", flag, False)
    given.take("asyncProgressTrackingCheckpointIntervalMs", natural, 0)
    commit_options = [name for name in ("commitTopic", "commitBroker", "failOnDataLoss") if given.has(name)]
    made = SinkOptions(
        link=link_options(given),
        topic=given.take("topic", _sendable, ""),
        group=given.take("producerGroup", check_producer_group, PRODUCER_GROUP, "group"),
        idempotent_keys=given.take("idempotentKeys", flag, True),
        reserved_properties=given.take("reservedProperties", one_of(Reserved), Reserved.REFUSE),
        batch_bytes=given.take("batchBytes", _batch_bytes, BATCH_BYTES),
        max_in_flight=given.take("maxInFlight", positive, 64),
        max_rows_per_second=given.take("maxRowsPerSecond", _rate, 0.0),
        send_retries=given.take("sendRetries", positive, 10),
        send_retry_interval_ms=given.take("sendRetryIntervalMs", positive, 200),
        send_timeout_ms=given.take("sendTimeoutMs", positive, 10_000),
        strict_acks=given.take("strictAcks", flag, False),
        job_id=given.take("jobId", _job_id, ""),
        exactly_once=given.take("exactlyOnce", flag, False),
        commit_topic=given.take("commitTopic", _sendable, COMMIT_TOPIC),
        commit_broker=given.take("commitBroker", str, ""),
        fail_on_data_loss=given.take("failOnDataLoss", flag, True),
    )
    given.finish()
    if commit_options and not made.exactly_once:
        raise ConfigError(f"{commit_options[0]} is for exactlyOnce=true")
    if streaming and made.job_id:
        raise ConfigError("jobId is for batch writes; a stream is known by its checkpoint")
    if made.exactly_once:
        _check_exactly_once(made, streaming=streaming, is_async=is_async)
    return made


def _check_exactly_once(options: SinkOptions, *, streaming: bool, is_async: bool) -> None:
    if not options.idempotent_keys:
        raise ConfigError("exactlyOnce=true knows rows by their keys: it cannot be with idempotentKeys=false")
    if is_async:
        raise ConfigError(
            "exactlyOnce=true cannot be with asyncProgressTrackingEnabled=true: Spark would forget which batches it did"
        )
    if not streaming and not options.job_id:
        raise ConfigError(
            "exactlyOnce=true needs the option jobId in a batch write: a name of this job, the same whenever it is "
            "repeated and never used for another"
        )
    if options.topic and options.topic == options.commit_topic:
        raise ConfigError(
            f"the options topic and commitTopic are both {options.topic}; markers need a topic of their own"
        )


def _sendable(text: str) -> str:
    check_sendable_topic(text)
    return text


def _job_id(text: str) -> str:
    if not text or len(text) > 200 or any(letter.isspace() or not letter.isprintable() for letter in text):
        raise ValueError("it must have 1 to 200 characters without blanks")
    return text


def _rate(text: str) -> float:
    if not 0 < (rate := float(text)) < float("inf"):
        raise ValueError("it must be above 0")
    return rate


def _batch_bytes(text: str) -> int:
    if (number := positive(text)) > MAX_BODY_BYTES // 2:
        raise ValueError(f"it must be {MAX_BODY_BYTES // 2} at most; brokers take {MAX_BODY_BYTES}")
    return number

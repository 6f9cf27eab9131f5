"""Options and columns of writes."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cosmodrome.errors import ConfigError
from cosmodrome.spark.sink_columns import check_columns
from cosmodrome.spark.sink_options import Reserved, SinkOptions, sink_options


def given(*, streaming: bool = True, **options: str) -> SinkOptions:
    return sink_options({"nameServer": "host:9876", **options}, streaming=streaming)


def test_what_is_said_is_taken() -> None:
    made = given(
        topic="orders",
        BATCHBYTES="1000",
        reservedProperties="drop",
        exactlyOnce="true",
        commitTopic="MARKERS",
        commitBroker="broker-b",
        checkpointLocation="somewhere",
    )
    assert (made.topic, made.batch_bytes, made.reserved_properties) == ("orders", 1000, Reserved.DROP)
    assert (made.exactly_once, made.commit_topic, made.commit_broker) == (True, "MARKERS", "broker-b")
    assert given(streaming=False, jobId="nightly-2024-01-01").job_id == "nightly-2024-01-01"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"topic": "a b"}, "the option topic is 'a b'"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, "written by brokers only"),
        ({"reservedProperties": "keep"}, "reservedProperties is 'keep': it must be refuse or drop"),
        ({"batchBytes": "3000000"}, "batchBytes is '3000000': it must be 2097152 at most"),
        ({"maxRowsPerSecond": "0"}, "maxRowsPerSecond is '0': it must be above 0"),
        ({"maxRowsPerSecond": "nan"}, "maxRowsPerSecond is 'nan': it must be above 0"),
        ({"producerGroup": "DEFAULT_PRODUCER"}, "the group cannot be DEFAULT_PRODUCER"),
        ({"subscribe": "orders"}, "the option subscribe is unknown"),
        ({"jobId": "x"}, "jobId is for batch writes"),
        ({"commitTopic": "x"}, "commitTopic is for exactlyOnce=true"),
        ({"exactlyOnce": "true", "idempotentKeys": "false"}, "cannot be with idempotentKeys=false"),
        ({"exactlyOnce": "true", "asyncProgressTrackingEnabled": "true"}, "asyncProgressTrackingEnabled"),
        ({"exactlyOnce": "true", "topic": "x", "commitTopic": "x"}, "topic and commitTopic are both x"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        given(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("job_id", ["", "a b", "a\tb", "x" * 201])
def test_a_job_has_a_name_that_can_be_a_key(job_id: str) -> None:
    with pytest.raises(ConfigError, match="the option jobId is"):
        given(streaming=False, jobId=job_id)


def test_exactly_once_needs_a_job() -> None:
    with pytest.raises(ConfigError, match="needs the option jobId"):
        given(streaming=False, exactlyOnce="true")


TEXT, NUMBER, TIME = StringType(), IntegerType(), TimestampType()


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"topic": TEXT}, "the rows have no column body"),
        ({"body": TEXT}, "give the option topic, or the rows a column topic"),
        ({"body": NUMBER}, "the column body is int; it must be binary or string"),
        ({"body": NullType()}, "the column body is void; it must be binary or string"),
        ({"body": TEXT, "keys": ArrayType(NUMBER)}, "keys is array<int>; it must be string or array<string>"),
        ({"body": TEXT, "properties": MapType(TEXT, NUMBER)}, "properties is map<string,int>"),
        ({"body": TEXT, "deliverAt": TimestampNTZType()}, "deliverAt is timestamp_ntz; it must be timestamp"),
        ({"body": TEXT, "delaylevel": NUMBER}, r"no column delaylevel in a write; did you mean delayLevel\?"),
        ({"body": TEXT, "topic": TEXT, "queueId": NUMBER}, "brokerName and queueId belong together"),
    ],
)
def test_columns_that_cannot_be(columns: dict[str, DataType], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_columns(schema(**columns), given())


def test_columns_that_can_be() -> None:
    strings = MapType(TEXT, TEXT)
    columns = schema(
        body=BinaryType(), keys=ArrayType(TEXT), tags=NullType(), properties=strings, flag=NUMBER, deliverAt=TIME
    )
    check_columns(columns, given(topic="orders"))
    with pytest.raises(ConfigError, match="deliverAt cannot be with exactlyOnce"):
        check_columns(columns, given(topic="orders", exactlyOnce="true"))

"""Rows as they go on the wire: all columns at once must say what single messages would."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmodrome.config import MAX_BATCH, MIB
from cosmodrome.errors import InvalidMessage
from cosmodrome.model import MessageQueue
from cosmodrome.spark.encoding import Encoder, Place, RowNames
from cosmodrome.spark.sink_options import sink_options
from cosmodrome.wire import properties as props
from cosmodrome.wire.batch import decode_batch, encode_batch

STRINGS = pa.map_(pa.string(), pa.string())
QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(3)]

words = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
rows = st.fixed_dictionaries(
    {
        "body": st.binary(min_size=1, max_size=40),
        "keys": st.none() | words,
        "tags": st.none() | st.just("") | words,
        "properties": st.none() | st.dictionaries(words.map("p-{}".format), st.just("") | words, max_size=3),
        "flag": st.none() | st.integers(-(2**31), 2**31 - 1),
        "shardingKey": st.none() | st.sampled_from(["ann", "bob", "eve"]),
    }
)


def locate(place: Place) -> MessageQueue | None:
    return QUEUES[len(place.sharding_key) % 3] if place.sharding_key else None


def table(given_rows: list[dict[str, Any]]) -> pa.RecordBatch:
    types = {"body": pa.binary(), "properties": STRINGS, "flag": pa.int32()}
    columns = {
        name: pa.array(
            [list(row[name].items()) if isinstance(row[name], dict) else row[name] for row in given_rows],
            types.get(name, pa.string()),
        )
        for name in given_rows[0]
    }
    return pa.record_batch(columns)


def wanted(row: dict[str, Any], number: int) -> dict[str, str]:
    """The properties of one row."""
    names = RowNames("query:1", 5)
    found = {"UNIQ_KEY": names.unique_id(number), "WAIT": "true", "SPARK_ID": f"query:1:5:{number}"}
    found |= {"TAGS": row["tags"] or "", "KEYS": row["keys"] or "", "__SHARDINGKEY": row["shardingKey"] or ""}
    found |= row["properties"] or {}
    return {name: value for name, value in found.items() if value}


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=30), st.integers(1, 2_000), st.integers(0, 20), st.booleans())
def test_every_row_is_sent_once_as_it_is(
    given_rows: list[dict[str, Any]], batch_bytes: int, cut: int, exactly_once: bool
) -> None:
    options = {"nameServer": "host:1", "topic": "orders", "batchBytes": str(batch_bytes), "producerGroup": "g"}
    options |= {"exactlyOnce": "true"} if exactly_once else {}
    encoder = Encoder(sink_options(options, streaming=True), RowNames("query:1", 5), locate)
    whole = table(given_rows)
    seen: dict[int, tuple[bytes, dict[str, str], int, MessageQueue | None]] = {}
    for part in (whole.slice(0, cut), whole.slice(cut)):  # a task gets its rows in several batches
        for shipment in encoder.shipments(part):
            items = [(shipment.flag, shipment.body, shipment.properties)]
            if shipment.is_batch:
                items = list(decode_batch(shipment.body))
                assert encode_batch(items) == shipment.body
                assert len(items) > 1
                assert len(shipment.body) <= batch_bytes
            for number, (flag, body, properties) in zip(shipment.rows, items, strict=True):
                assert number not in seen
                seen[number] = (body, props.decode(properties), flag, shipment.queue)
    half = {"TRAN_MSG": "true", "PGROUP": "g"} if exactly_once else {}
    assert seen == {
        number: (row["body"], wanted(row, number) | half, row["flag"] or 0, locate(Place("", row["shardingKey"] or "")))
        for number, row in enumerate(given_rows)
    }


def test_a_batch_has_no_more_messages_than_brokers_take() -> None:
    count = 2 * MAX_BATCH + 1
    options = {"nameServer": "host:1", "topic": "orders", "batchBytes": str(2 * MIB)}
    encoder = Encoder(sink_options(options, streaming=True), RowNames("query:1", 0), locate)
    batch = pa.record_batch({"body": pa.array([b"x"] * count), "shardingKey": pa.array(["k"] * count)})
    assert [len(shipment.rows) for shipment in encoder.shipments(batch)] == [MAX_BATCH, MAX_BATCH, 1]


def test_spark_may_use_larger_types() -> None:
    large = pa.map_(pa.large_string(), pa.large_string())
    batch = pa.record_batch(
        {
            "body": pa.array([b"a", b"b"], pa.large_binary()),
            "tags": pa.array(["x", None], pa.large_string()),
            "properties": pa.array([[("p", "1")], None], large),
        }
    )
    options = sink_options({"nameServer": "host:1", "topic": "orders"}, streaming=True)
    (shipment,) = Encoder(options, RowNames("query:1", 0), locate).shipments(batch)
    first, second = decode_batch(shipment.body)
    assert (first.body, props.find(first.properties, "TAGS"), props.find(first.properties, "p")) == (b"a", "x", "1")
    assert (second.body, props.find(second.properties, "TAGS")) == (b"b", None)


@pytest.mark.parametrize("exactly_once", [False, True])
def test_how_long_another_transaction_was_left_alone_is_not_said_of_a_half_message(exactly_once: bool) -> None:
    given = {"nameServer": "host:1", "topic": "orders", "exactlyOnce": str(exactly_once).lower()}
    properties = [[("mine", "yes"), ("CHECK_IMMUNITY_TIME_IN_SECONDS", "30")], [("CHECK_IMMUNITY_TIME_IN_SECONDS", "")]]
    batch = pa.record_batch({"body": pa.array([b"a", b"b"]), "properties": pa.array(properties, STRINGS)})
    shipments = list(Encoder(sink_options(given, streaming=True), RowNames("query:1", 0), locate).shipments(batch))
    first = shipments[0] if exactly_once else decode_batch(shipments[0].body)[0]
    assert props.find(first.properties, "mine") == "yes"
    assert props.find(first.properties, "CHECK_IMMUNITY_TIME_IN_SECONDS") == (None if exactly_once else "30")


def encoder() -> Encoder:
    return Encoder(sink_options({"nameServer": "host:1", "topic": "orders"}, streaming=True), None, locate)


def test_columns_of_nothing_but_nulls_are_as_good_as_none() -> None:
    nothing = {
        name: pa.nulls(2) for name in ("keys", "tags", "properties", "flag", "shardingKey", "topic", "deliverAt")
    }
    (shipment,) = encoder().shipments(pa.record_batch({"body": pa.array([b"a", b"b"]), **nothing}))
    assert [message.body for message in decode_batch(shipment.body)] == [b"a", b"b"]


def test_a_flag_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="the column flag has a number that is no int"):
        list(encoder().shipments(pa.record_batch({"body": pa.array([b"a"]), "flag": pa.array([2**40])})))

"""Options say what they mean, and those that cannot be are refused by name."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cosmodrome.client.subscribing import Sql
from cosmodrome.config import TlsCheck
from cosmodrome.errors import ConfigError
from cosmodrome.model import MessageQueue
from cosmodrome.spark.options import PropertiesAs, SourceOptions, Where, source_options
from cosmodrome.spark.store_options import store_options


def options(*, streaming: bool = True, **given: Any) -> SourceOptions:
    named = {name.replace("__", "."): value for name, value in given.items()}
    return source_options({"nameServer": "127.0.0.1:9876", "subscribe": "orders"} | named, streaming=streaming)


def test_defaults() -> None:
    stream, batch = options(), options(streaming=False)
    assert (stream.starting.where, batch.starting.where) == (Where.LATEST, Where.EARLIEST)
    assert (stream.topics, stream.fail_on_data_loss, stream.properties) == (("orders",), True, PropertiesAs.MAP)
    assert not stream.commits_to_group


def test_names_are_taken_in_any_case_and_by_their_old_names() -> None:
    made = source_options({"NAMESERVER": "a:1;b:2", "topic": "y,x"}, streaming=True)
    assert made.link.name_servers == ("a:1", "b:2")
    assert made.topics == ("x", "y")


def test_offsets_by_queue_keep_their_special_numbers() -> None:
    made = options(startingOffsets='{"orders": {"broker-a": {"0": 23, "1": -2, "2": -1}}}')
    by_number = {queue.queue_id: offset for queue, offset in (made.starting.offsets or {}).items()}
    assert by_number == {0: 23, 1: -2, 2: -1}


def test_timestamps_by_topic_and_by_queue() -> None:
    made = options(subscribe="a,b", startingOffsetsByTimestamp='{"a": 5, "b": {"broker": {"1": 7}}}')
    assert made.starting.timestamps_ms == {"a": 5, MessageQueue("b", "broker", 1): 7}


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine is in Berlin."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1795000000123", 1_795_000_000_123),
        ("2026-11-18T10:00:00Z", 1_794_996_000_000),
        ("2026-11-18T10:00:00.250+00:00", 1_794_996_000_250),
        ("2026-11-18T10:00:00.001999Z", 1_794_996_000_001),
        ("2026-11-18T11:00:00+01:00", 1_794_996_000_000),
        ("2026-11-18T11:00", 1_794_996_000_000),  # without a zone it is this machine's
        ("2026-11-18 11:00:00", 1_794_996_000_000),
        ("2026-07-01T02:00", 1_782_864_000_000),  # and in summer its summer time
        ("2026-11-18", 1_794_956_400_000),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
def test_times_are_milliseconds_or_iso_8601(text: str, ms: int) -> None:
    made = options(streaming=False, startingTimestamp=text, endingTimestamp=text)
    assert (made.starting.timestamp_ms, made.ending.timestamp_ms) == (ms, ms)
    by_queue = json.dumps({"orders": {"broker-a": {"0": text}}})
    by_topic = json.dumps({"orders": text})
    assert options(startingOffsetsByTimestamp=by_topic).starting.timestamps_ms == {"orders": ms}
    named = options(startingOffsetsByTimestamp=by_queue).starting.timestamps_ms
    assert named == {MessageQueue("orders", "broker-a", 0): ms}
    stored = store_options({"path": "x", "startingTimestamp": text})
    assert stored.stored_from_ms == ms


def test_a_group_reports_its_progress_unless_told_not_to() -> None:
    assert options(group="g").commits_to_group
    assert not options(group="g", commitGroupOffsets="false").commits_to_group


def test_expressions() -> None:
    assert options(subExpression="a || b").wanted("orders").tags == {"a", "b"}
    assert options(sql="price > 5").expression == Sql("price > 5")


def test_durations() -> None:
    assert options(maxTriggerDelay="90s").limits.max_trigger_delay_ms == 90_000


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"nameServer": ""}, "nameServer"),
        ({"nameServer": "nonsense"}, "nameServer"),
        ({"subscribe": "bad topic"}, "subscribe"),
        ({"assign": '{"t": {"b": [0]}}'}, "exactly one of"),
        ({"startingOffsets": "yesterday"}, "startingOffsets"),
        ({"startingOffsets": '{"orders": 5}'}, "startingOffsets"),
        ({"startingOffsets": '{"orders": {"b": {"0": -3}}}'}, "startingOffsets"),
        ({"startingOffsets": "{not json"}, "startingOffsets"),
        ({"startingOffsets": '{"orders": {"b": {"0": 1, "00": 7}}}'}, "queue 0 of orders on b is named twice"),
        ({"startingOffsets": "group"}, "option group"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "give one of"),
        (
            {"startingTimestamp": "-5"},
            "startingTimestamp is '-5': it must be milliseconds since 1970, or a time",
        ),
        ({"startingTimestamp": "18.11.2026"}, "or a time such as 2026-11-18T10:00:00Z"),
        ({"startingTimestamp": "2026-11-31T10:00:00Z"}, "or a time such as 2026-11-18T10:00:00Z"),
        ({"startingTimestamp": "1969-12-31T23:00:00Z"}, "it is before 1970"),
        ({"startingTimestamp": "0001-01-01T00:00:00+05:00"}, "or a time such as"),
        ({"startingOffsetsByTimestamp": '{"orders": "soon"}'}, "or a time such as 2026-11-18T10:00:00Z"),
        ({"startingTimestamp": "99999999999999999999"}, "startingTimestamp is .* at most"),
        ({"startingOffsets": '{"order": {"b": {"0": 5}}}'}, "startingOffsets names the topic order, which is not read"),
        ({"startingOffsets": '{"orders": {"b": {"0": 9223372036854775808}}}'}, "startingOffsets"),
        ({"startingOffsetsByTimestamp": '{"order": 5}'}, "startingOffsetsByTimestamp names the topic order"),
        ({"startingOffsetsByTimestamp": '{"orders": true}'}, "the timestamp True is no number"),
        ({"startingOffsetsByTimestamp": '{"orders": {"b": {"0": -2}}}'}, "the timestamp -2 is no number"),
        ({"pushFilters": "true"}, "pushFilters is for batch reads"),
        ({"endingOffsets": "latest"}, "endingOffsets"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "9"}, "minOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "9"}, "maxBytesPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"properties": "xml"}, "properties is 'xml': it must be map, string or none"),
        ({"properties": "string", "includeProperties": "false"}, "includeProperties=false and properties=string"),
        ({"properties": "none", "includeHeaders": "true"}, "includeProperties=true and properties=none"),
        ({"group": "g", "groupIdPrefix": "p"}, "group or groupIdPrefix"),
        ({"groupIdPrefix": "p" * 250}, "the option groupIdPrefix is .*255"),
        ({"path": "orders"}, "path is unknown; name topics with the option subscribe"),
        ({"sql": ""}, "the option sql is '': it is empty"),
        ({"group": "bad group"}, "group"),
        ({"commitGroupOffsets": "true"}, "commitGroupOffsets"),
        ({"subExpression": "a", "sql": "b > 1"}, "subExpression"),
        ({"sql": "price >"}, "SQL92"),
        ({"accessKey": "me"}, "secretKey"),
        ({"tlsCaFile": "x.pem"}, "tls=true"),
        ({"tlsCheck": "some", "tls": "true"}, "tlsCheck"),
        ({"securityToken": "t"}, "accessKey"),
        ({"subscribePattern": "x"}, "exactly one"),
        ({"startingOffset": "latest"}, "did you mean startingOffsets"),
        ({"namesrv": "other:1"}, "say different things"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        options(**given)


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "commitGroupOffsets", "offsetPollIntervalMs"])
def test_batch_refuses_what_only_streams_have(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is for streams"):
        options(streaming=False, **{name: "5"})


def by_queue(offset: int) -> str:
    return f'{{"orders": {{"broker-a": {{"0": {offset}}}}}}}'


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"startingTimestamp": "6", "endingTimestamp": "5"}, r"startingTimestamp \(6\) is after endingTimestamp \(5\)"),
        ({"startingOffsets": by_queue(6), "endingOffsets": by_queue(5)}, r"startingOffsets \(6\) is after .* \(5\)"),
        ({"endingOffsets": by_queue(-2)}, "endingOffsets says -2"),
        ({"endingOffsets": "earliest"}, "endingOffsets is 'earliest'"),
    ],
)
def test_an_end_is_not_before_the_start(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        options(streaming=False, **given)
    options(streaming=False, startingOffsets=by_queue(5), endingOffsets=by_queue(-1))


@pytest.mark.parametrize(
    ("queues", "problem"),
    [
        ("0", "0 must be a list of queue ids"),
        ('"01"', "'01' must be a list"),
        ("[-1]", "whole number"),
        ("[]", "no queue"),
    ],
)
def test_queues_are_assigned_as_lists(queues: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"the option assign is .*{problem}"):
        source_options({"nameServer": "a:1", "assign": f'{{"orders": {{"broker-a": {queues}}}}}'}, streaming=True)


def test_words_are_taken_in_any_case() -> None:
    made = options(properties="STRING", startingOffsetsByTimestampStrategy="Latest", tls="True", tlsCheck="CA")
    assert (made.properties, made.missing_timestamp_is_latest) == (PropertiesAs.STRING, True)
    assert not options(startingOffsetsByTimestampStrategy="ERROR").missing_timestamp_is_latest
    assert (made.link.tls, made.link.tls_check) == (True, TlsCheck.CA)


def test_properties_are_left_out_by_the_name_that_readers_of_kafka_know() -> None:
    assert options(includeProperties="false").properties is PropertiesAs.NONE
    assert options(includeHeaders="true").properties is PropertiesAs.MAP
    assert options(includeProperties="true", properties="string").properties is PropertiesAs.STRING


def test_a_group_is_named_after_what_it_reads_where_only_a_prefix_is_given() -> None:
    group, other = options(groupIdPrefix="spark").group, options(groupIdPrefix="spark", subscribe="x").group
    assert options(groupIdPrefix="spark").group == group
    assert group.startswith("spark-")
    assert group != other


def test_connections_are_kept_as_long_as_is_said() -> None:
    assert (options().link.idle_ms, options(connectionIdleMs="5").link.idle_ms) == (60_000, 5)

"""What holds for every input of every codec: values come back, and garbage is a value or a ProtocolError."""

from __future__ import annotations

import inspect
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from operator import methodcaller
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmodrome.codes import Language
from cosmodrome.errors import ProtocolError
from cosmodrome.model import (
    BrokerData,
    ConsumeFrom,
    ConsumeType,
    DataVersion,
    GroupConfig,
    MessageModel,
    MessageQueue,
    QueueData,
    Route,
    Subscription,
    TopicConfig,
)
from cosmodrome.wire import bodies, fastjson, properties, record
from cosmodrome.wire.batch import BatchItem, decode_batch, encode_batch
from cosmodrome.wire.bodies.fields import Body
from cosmodrome.wire.compression import Compression, compress, decompress
from cosmodrome.wire.fastjson import ObjectKey
from cosmodrome.wire.java import java_hash

LIMIT_BYTES = 4096
quick = settings(max_examples=60, deadline=None)
thorough = settings(max_examples=300, deadline=None)

i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(max_size=12)  # Hypothesis' text() holds no surrogates
names = st.text("abcXYZ%_-0123", min_size=1, max_size=12)
flags = st.booleans()
reals = st.floats(allow_nan=False, allow_infinity=False)


# Strategies of the models


def table(values: st.SearchStrategy[Any], keys: st.SearchStrategy[Any] = text) -> st.SearchStrategy[dict[Any, Any]]:
    return st.dictionaries(keys, values, max_size=3)


def tuples(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=3).map(tuple)


queues = st.builds(MessageQueue, text, text, i32)
versions = st.builds(DataVersion, i64, i64, i64)
topics = st.builds(
    TopicConfig, names, i32, i32, i32, st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]), i32, flags, table(text)
)
groups = st.builds(
    GroupConfig, text, flags, flags, flags, flags, i32, i32, i64, i64, flags, i32, i32, attributes=table(text)
)
subscriptions = st.builds(
    Subscription,
    text,
    st.text(min_size=1, max_size=8),
    st.frozensets(text, max_size=3),
    st.frozensets(i32, max_size=3),
    i64,
    st.sampled_from(["TAG", "SQL92"]),
    flags,
)
brokers = st.builds(BrokerData, text, text, table(text, i64), flags)
consumers = st.builds(
    bodies.ConsumerData,
    text,
    st.sampled_from(ConsumeType),
    st.sampled_from(MessageModel),
    st.sampled_from(ConsumeFrom),
    tuples(subscriptions),
    flags,
)
connections = st.builds(bodies.ClientConnection, text, text, st.sampled_from(Language), i32)
BODIES: dict[type[Body], st.SearchStrategy[Any]] = {
    bodies.HeartbeatData: st.builds(bodies.HeartbeatData, text, tuples(text), tuples(consumers), i32, flags),
    bodies.ClusterInfo: st.builds(bodies.ClusterInfo, table(brokers), table(tuples(text))),
    bodies.MemberGroup: st.builds(bodies.MemberGroup, text, text, table(text, i64)),
    bodies.TopicConfigBody: st.builds(bodies.TopicConfigBody, topics),
    bodies.TopicConfigWrapper: st.builds(bodies.TopicConfigWrapper, versions, table(topics)),
    bodies.GroupConfigBody: st.builds(bodies.GroupConfigBody, groups),
    bodies.GroupConfigWrapper: st.builds(bodies.GroupConfigWrapper, versions, table(groups), table(table(i32))),
    bodies.ConsumerOffsetsBody: st.builds(bodies.ConsumerOffsetsBody, versions, table(table(i64, i32))),
    bodies.LockBatch: st.builds(bodies.LockBatch, text, text, tuples(queues), flags),
    bodies.ResetOffsets: st.builds(bodies.ResetOffsets, table(i64, queues)),
    bodies.ConsumerStatus: st.builds(bodies.ConsumerStatus, table(i64, queues), table(table(i64, queues))),
    bodies.TopicStats: st.builds(bodies.TopicStats, table(st.builds(bodies.TopicOffset, i64, i64, i64), queues), reals),
    bodies.ConsumeStats: st.builds(
        bodies.ConsumeStats, table(st.builds(bodies.ConsumeOffset, i64, i64, i64, i64), queues), reals
    ),
    bodies.ProducerConnection: st.builds(bodies.ProducerConnection, tuples(connections)),
    bodies.ConsumerConnection: st.builds(
        bodies.ConsumerConnection, tuples(connections), subscriptions=table(subscriptions)
    ),
    bodies.ConsumerRunningInfo: st.builds(
        bodies.ConsumerRunningInfo,
        table(text),
        tuples(subscriptions),
        table(st.builds(bodies.QueueProgress, i64, i32, locked=flags, dropped=flags), queues),
        table(st.builds(bodies.ConsumeStatus, i64, reals)),
        table(text),
        st.none() | text,
        table(st.builds(bodies.PopProgress, i32, flags, i64), queues),
    ),
    bodies.ConsumeDirectlyResult: st.builds(
        bodies.ConsumeDirectlyResult, st.sampled_from(bodies.ConsumeResult), flags, flags, st.none() | text, i64
    ),
    bodies.ConsumerIds: st.builds(bodies.ConsumerIds, tuples(text)),
    bodies.TopicList: st.builds(bodies.TopicList, tuples(text), st.none() | text),
    bodies.GroupList: st.builds(bodies.GroupList, tuples(text)),
    bodies.KVTable: st.builds(bodies.KVTable, table(text)),
}
# Every name of every body, at any level.
FIELD_NAMES = {name for body in BODIES for name in re.findall(r'"(\w+)"', inspect.getsource(body))}
routes = st.builds(Route, tuples(st.builds(QueueData, text, i32, i32, i32, i32)), tuples(brokers), st.none() | text)
registrations = st.builds(
    bodies.RegisterBrokerBody,
    versions,
    st.lists(topics, max_size=3).map(lambda found: {t.name: t for t in found}),
    tuples(text),
)
hosts = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
records = st.builds(
    record.encode_record,
    st.text(min_size=1, max_size=150).map(str.encode),
    st.binary(max_size=60),
    text.map(str.encode),
    queue_id=i32,
    flag=i32,
    sys_flag=i32,
    born_timestamp=i64,
    born_host=st.builds(record.pack_host, hosts, st.integers(0, 65535)),
    store_timestamp=i64,
    store_host=st.builds(record.pack_host, hosts, st.integers(0, 65535)),
    queue_offset=i64,
    physical_offset=i64,
    reconsume_times=i32,
    prepared_transaction_offset=i64,
)
batches = st.lists(st.builds(BatchItem, i32, st.binary(max_size=40), text), max_size=4)
json_values = st.recursive(
    st.none() | flags | i64 | reals | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text | i64, inner, max_size=3),
    max_leaves=12,
)


# What is written comes back


@pytest.mark.parametrize("kind", BODIES)
@quick
@given(data=st.data())
def test_every_body_comes_back(kind: type[Body], data: st.DataObject) -> None:
    body = data.draw(BODIES[kind])
    if not _holds_a_reference(body.to_json()):
        assert kind.decode(body.encode()) == body
        assert kind.decode(body.encode(pretty=True)) == body


def _holds_a_reference(value: Any) -> bool:
    """Whether "$ref" is somebody's only key: that alone is written as nothing."""
    if isinstance(value, Mapping):
        return set(value) == {"$ref"} or any(map(_holds_a_reference, value.values()))
    return isinstance(value, list | tuple) and any(map(_holds_a_reference, value))


@quick
@given(routes, flags)
def test_every_route_comes_back(route: Route, quoted_keys: bool) -> None:
    assert bodies.decode_route(bodies.encode_route(route, quoted_keys=quoted_keys)) == route


@quick
@given(registrations, flags, st.sampled_from([409, 475]))
def test_every_registration_comes_back(body: bodies.RegisterBrokerBody, compressed: bool, version: int) -> None:
    decoded = bodies.RegisterBrokerBody.decode(body.encode(compressed), version=version)
    assert (decoded.data_version, decoded.filter_servers) == (body.data_version, body.filter_servers)
    for name, topic in body.topics.items():
        there = decoded.topics[name]
        assert (there.read_queues, there.write_queues, there.perm) == (
            topic.read_queues,
            topic.write_queues,
            topic.perm,
        )
        assert there.attributes == topic.attributes
        assert compressed or there == topic  # the compressed form has no room for the rest


@thorough
@given(json_values, flags)
def test_every_json_value_comes_back(value: Any, pretty: bool) -> None:
    if not _holds_a_reference(value):
        assert fastjson.loads(fastjson.dumps(value, pretty=pretty)) == value


@quick
@given(st.dictionaries(queues, json_values, max_size=3))
def test_every_table_of_queues_comes_back(values: dict[MessageQueue, Any]) -> None:
    keys = {q: ObjectKey({"topic": q.topic, "queueId": q.queue_id, "brokerName": q.broker_name}) for q in values}
    if not _holds_a_reference(values):
        assert fastjson.loads(fastjson.dumps(values)) == {keys[queue]: value for queue, value in values.items()}


@quick
@given(st.lists(records, max_size=4))
def test_every_record_comes_back(encoded: list[bytes]) -> None:
    decoded = record.decode_records(b"".join(encoded))
    assert [one.encode() for one in decoded] == encoded
    position, view = 0, memoryview(b"".join(encoded))
    for one in decoded:
        head = record.head_at(view, position, len(view))
        assert (head.topic, head.properties, head.queue_offset) == (one.topic, one.properties, one.queue_offset)
        position += record.check_at(view, position, len(view))
    assert position == len(view)


@quick
@given(batches)
def test_every_batch_comes_back(items: list[BatchItem]) -> None:
    assert decode_batch(encode_batch(items)) == items


@thorough
@given(st.text("AB\x01\x02", max_size=30), st.text("AB", min_size=1, max_size=2))
def test_find_agrees_with_decode(raw: str, name: str) -> None:
    assert properties.find(raw, name) == properties.decode(raw).get(name)


@quick
@given(st.text("AB\x01\x02", max_size=20), names, names)
def test_an_appended_property_is_found(raw: str, name: str, value: str) -> None:
    longer = properties.append(raw, name, value)
    assert properties.find(longer, name) == value
    assert properties.decode(longer) == {**properties.decode(raw), name: value}


@quick
@given(st.dictionaries(names, names, max_size=5))
def test_all_properties_come_back(values: dict[str, str]) -> None:
    assert properties.decode(properties.encode(values)) == values


@quick
@given(st.binary(max_size=2000), st.sampled_from(Compression), st.integers(1, 9))
def test_every_compressed_body_comes_back(body: bytes, kind: Compression, level: int) -> None:
    packed, flag = compress(body, level, kind)
    assert decompress(packed, flag, limit_bytes=len(body)) == body


@quick
@given(hosts, st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_every_offset_id_comes_back(ip: str, port: int, offset: int) -> None:
    packed = record.pack_host(ip, port)
    assert record.parse_offset_msg_id(record.offset_msg_id(packed, offset)) == (*record.unpack_host(packed), offset)


@quick
@given(st.text(max_size=20))
def test_the_hash_is_the_polynomial_over_utf16_units(value: str) -> None:
    units = struct.unpack(f">{len(value.encode('utf-16-be')) // 2}H", value.encode("utf-16-be"))
    whole = sum(unit * 31**power for power, unit in enumerate(reversed(units)))
    assert java_hash(value) == (whole + 2**31) % 2**32 - 2**31


# Whatever else is read yields a value or a ProtocolError

Read = Callable[[bytes], object]


def _compressed(kind: Compression, body: bytes) -> bytes:
    return compress(body, kind=kind)[0]


def _decompressed(kind: Compression, data: bytes) -> bytes:
    return decompress(data, 1 | kind, limit_bytes=LIMIT_BYTES)


DECODERS: dict[str, tuple[Read, st.SearchStrategy[bytes]]] = {
    "route": (bodies.decode_route, routes.map(lambda route: bodies.encode_route(route, quoted_keys=False))),
    "data version": (bodies.decode_data_version, versions.map(bodies.encode_data_version)),
    "locked": (bodies.decode_locked, tuples(queues).map(bodies.encode_locked)),
    "registration": (
        lambda data: bodies.RegisterBrokerBody.decode(data, version=475),
        registrations.map(bodies.RegisterBrokerBody.encode),
    ),
    "compressed registration": (
        lambda data: bodies.RegisterBrokerBody.decode(zlib.compress(data), version=475),
        registrations.map(lambda body: zlib.decompress(body.encode(compressed=True))),
    ),
    "json": (fastjson.loads, json_values.map(fastjson.dumps)),
    "records": (record.decode_records, records),
    "record head": (lambda data: record.head_at(data, 0, len(data)), records),
    "record check": (lambda data: record.check_at(data, 0, len(data)), records),
    "offset id": (lambda data: record.parse_offset_msg_id(data.decode("latin-1")), st.binary(max_size=32)),
    "host": (record.unpack_host, st.binary(max_size=24)),
    "batch": (decode_batch, batches.map(encode_batch)),
    **{
        kind.name: (partial(_decompressed, kind), st.binary(max_size=300).map(partial(_compressed, kind)))
        for kind in Compression
    },
    **{body.__name__: (body.decode, drawn.map(methodcaller("encode"))) for body, drawn in BODIES.items()},
}


@st.composite
def mutated(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """A valid encoding with up to three places cut out, overwritten or filled in."""
    data = draw(valid)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(start + 8, len(data))))
        data = data[:start] + draw(st.binary(max_size=8)) + data[end:]
    return data


@pytest.mark.parametrize("name", DECODERS)
@quick
@given(data=st.data())
def test_any_bytes_yield_a_value_or_a_protocol_error(name: str, data: st.DataObject) -> None:
    read, valid = DECODERS[name]
    _read(read, data.draw(st.binary(max_size=200)))
    _read(read, data.draw(mutated(valid)))


@thorough
@given(st.text("{}[]:,\"'\\01-.eEu$/*x \n", max_size=40).map(str.encode))
def test_any_soup_of_json_tokens_yields_a_value_or_a_protocol_error(data: bytes) -> None:
    value = _read(fastjson.loads, data)
    fastjson.dumps(value)  # and what was read can be written
    for body in BODIES:
        _read(body.decode, b'{"offsetTable":' + data + b',"mqTable":' + data + b"}")


@thorough
@given(st.dictionaries(st.sampled_from(sorted(FIELD_NAMES)), json_values, max_size=4).map(fastjson.dumps))
def test_fields_of_any_kind_yield_a_value_or_a_protocol_error(data: bytes) -> None:
    for body in BODIES:
        _read(body.decode, data)


def _read(read: Read, data: bytes) -> object:
    try:
        return read(data)
    except ProtocolError:
        return None

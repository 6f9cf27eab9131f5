"""What goes over the wire, read and written as Apache's own classes write it."""

import json
from typing import Any

import pytest

from cosmodrome.codes import Language
from cosmodrome.model import BrokerData, DataVersion, MessageQueue, QueueData
from cosmodrome.wire import fastjson, properties
from cosmodrome.wire.batch import decode_batch, encode_batch
from cosmodrome.wire.bodies import (
    ConsumeDirectlyResult,
    ConsumeResult,
    ConsumerOffsetsBody,
    ConsumerRunningInfo,
    ConsumerStatus,
    ConsumeStatus,
    GroupConfigWrapper,
    QueueProgress,
    ResetOffsets,
    TopicConfigWrapper,
)
from cosmodrome.wire.bodies.fields import Body
from cosmodrome.wire.bodies.routes import decode_route, encode_route
from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import BINARY, JSON, FrameDecoder
from cosmodrome.wire.ids import UniqueIds
from cosmodrome.wire.record import MAGIC_V1, MAGIC_V2, SysFlag, decode_records, offset_msg_id, pack_host
from tests.unit.golden import V4, V5, VERSIONS, golden

BORN_MS = 1_700_000_000_123
STORED_MS = 1_700_000_001_456
STEP_MS = 700
V4_HOST, V6_HOST = "192.0.2.7", "2001:db8::7"
PROPERTIES = {
    "TAGS": "grün",
    "KEYS": "key-1 shared",
    "UNIQ_KEY": "7F000001000100000000000000000001",
    "colour ✓": " = ",
    "WAIT": "true",
}
VERSION = DataVersion(timestamp=BORN_MS, counter=3)
FIRST, SECOND = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)

both = pytest.mark.parametrize("version", VERSIONS)


def body(index: int) -> bytes:
    return f"body-{index}- grüße".encode() if index else b""


@both
def test_records(version: str) -> None:
    data = golden(version, "records.bin")
    records = decode_records(data)
    assert b"".join(record.encode() for record in records) == data
    hosts = [(record.born_host, record.store_host) for record in records]
    assert hosts[:6] == [
        (V4_HOST, V4_HOST),
        (V4_HOST, V4_HOST),
        (V6_HOST, V4_HOST),
        (V4_HOST, V6_HOST),
        (V6_HOST, V6_HOST),
        (V4_HOST, V4_HOST),
    ]
    place = 0
    for index, record in enumerate(records):
        assert (record.body, record.flag, record.reconsume_times) == (body(index), index * 7, index)
        assert (record.born_timestamp, record.store_timestamp) == (BORN_MS + index, STORED_MS + index * STEP_MS)
        assert (record.born_port, record.store_port, record.physical_offset) == (51234, 10911, place)
        assert properties.decode(record.properties)["KEYS"] == f"key-{index} shared"
        place += record.total_size
    assert records[3].sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.COMMIT
    assert records[3].prepared_transaction_offset == 2**32
    assert [record.magic for record in records] == [MAGIC_V1] * 6 + [MAGIC_V2] * (version == V5)


@both
def test_a_batch(version: str) -> None:
    data = golden(version, "batch.bin")
    items = decode_batch(data)
    assert [(item.flag, item.body) for item in items] == [(index * 7, body(index)) for index in range(3)]
    assert properties.decode(items[1].properties) == PROPERTIES
    assert encode_batch(items) == data


@both
def test_properties(version: str) -> None:
    text = golden(version, "properties.bin").decode()
    found = properties.decode(text)
    assert found == PROPERTIES
    written = properties.encode(found)
    assert (written[:-1] if version == V4 else written) == text  # 4.9 leaves out the last separator


@both
def test_ids(version: str) -> None:
    by_v4, by_v6, unique = golden(version, "ids.txt").decode().splitlines()
    place = 2**32 + 3
    assert [by_v4, by_v6] == [offset_msg_id(pack_host(host, 10911), place) for host in (V4_HOST, V6_HOST)]
    ours = UniqueIds(bytes((192, 0, 2, 7)), pid=0x1A2B, seed=0x00C0FFEE).next()
    read_by_java, ip, pid = unique.split(" ")
    assert (len(ours), ours[:20]) == (len(read_by_java), read_by_java[:20])
    assert (ip, int(pid)) == (V4_HOST, 0x1A2B)


SERIALIZERS = {"JSON": JSON, "ROCKETMQ": BINARY}


def read_command(version: str, kind: str, serializer: str) -> Command:
    decoder = FrameDecoder()
    decoder.feed(golden(version, f"command-{kind}-{serializer}.bin"))
    frame = decoder.take()
    assert frame is not None
    assert decoder.pending_bytes == 0
    return Command.decode(frame)


@both
@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_a_request(version: str, serializer: str) -> None:
    command = read_command(version, "request", serializer)
    assert (command.code, command.opaque, command.version, command.remark) == (310, 4711, 401, None)
    assert (command.language, command.serializer) == (Language.JAVA, SERIALIZERS[serializer])
    assert (command.is_response, command.is_oneway) == (False, False)
    text = golden(version, "properties.bin").decode()
    assert command.fields == {"a": "producers", "b": "orders", "i": text, "m": "false"}
    assert bytes(command.body) == "grüße".encode()
    assert command.encode() == golden(version, f"command-request-{serializer}.bin")


@both
@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_commands_without_fields(version: str, serializer: str) -> None:
    oneway = read_command(version, "oneway", serializer)
    reply = read_command(version, "reply", serializer)
    assert (oneway.code, oneway.is_oneway, oneway.fields) == (34, True, {})
    assert (reply.code, reply.is_response, reply.remark) == (17, True, 'no route for "orders" ✓')
    for kind, command in (("oneway", oneway), ("reply", reply)):
        data = golden(version, f"command-{kind}-{serializer}.bin")
        if serializer == "JSON":  # Java leaves out what it has not, and sorts
            assert header_of(command.encode()) == {"extFields": {}, **header_of(data)}
        else:
            assert command.encode() == data


def header_of(frame: bytes) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(frame[8:])
    return header


TABLES: dict[str, type[Body]] = {
    "topics": TopicConfigWrapper,
    "subscriptionGroup": GroupConfigWrapper,
    "consumerOffset": ConsumerOffsetsBody,
}


@both
@pytest.mark.parametrize("form", ["", "-sent"])
def test_tables_are_read(version: str, form: str) -> None:
    topics = TopicConfigWrapper.decode(golden(version, f"topics{form}.json"))
    groups = GroupConfigWrapper.decode(golden(version, f"subscriptionGroup{form}.json"))
    offsets = ConsumerOffsetsBody.decode(golden(version, f"consumerOffset{form}.json"))
    assert topics.data_version == groups.data_version == VERSION
    assert {name: (topic.read_queues, topic.write_queues, topic.perm) for name, topic in topics.topics.items()} == {
        "orders": (3, 4, 6),
        "%RETRY%billing": (1, 1, 6),
    }
    assert groups.groups["billing"].retry_max_times == 5
    assert offsets.offsets == {"orders@billing": {0: 12, 1: 2**32 + 3}, "%RETRY%billing@billing": {0: 1}}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_written_as_5x_writes_them(name: str) -> None:
    kept, sent = golden(V5, f"{name}.json"), golden(V5, f"{name}-sent.json")
    # Brokers keep a second table in the groups' file, which Apache's class for it leaves to its owner.
    written = TABLES[name].decode(sent).encode().replace(b'"forbiddenTable":{},', b"")
    assert written == sent
    written = TABLES[name].decode(kept).encode(pretty=True).replace(b'\t"forbiddenTable":{},\n', b"")
    assert fastjson.loads(written) == fastjson.loads(kept)
    if name != "consumerOffset":  # where fastjson breaks lines between numbers as keys is its secret
        assert written == kept


CALLS: dict[str, Body] = {
    "resetOffset": ResetOffsets({FIRST: 7, SECOND: 2**32 + 3}),
    "consumerStatus": ConsumerStatus({FIRST: 7, SECOND: 2**32 + 3}, {"192.0.2.9@1": {SECOND: 8}}),
    "consumeDirectly": ConsumeDirectlyResult(
        ConsumeResult.THROW_EXCEPTION, True, False, "java.lang.IllegalStateException: grün", 12
    ),
    "runningInfo": ConsumerRunningInfo(
        {"PROP_CONSUMEORDERLY": "true"},
        queues={
            FIRST: QueueProgress(7, 3, 7, 9, locked=True, last_pull_timestamp=BORN_MS, last_consume_timestamp=STORED_MS)
        },
        statuses={"orders": ConsumeStatus(consume_failed_msgs=2, pull_rt=1.5)},
        stacks="main\n\tat a.B.c(B.java:1)",
    ),
}


@both
@pytest.mark.parametrize("name", CALLS)
def test_what_consumers_are_asked(version: str, name: str) -> None:
    data, body = golden(version, f"{name}.json"), CALLS[name]
    assert type(body).decode(data) == body
    if version == V5 or name != "runningInfo":  # to which 5.x added fields
        assert body.encode() == data


@both
def test_a_route(version: str) -> None:
    data = golden(version, "route.json")
    route = decode_route(data)
    addresses = {0: f"{V4_HOST}:10911", 1: "192.0.2.8:10911"}
    assert route.brokers == (BrokerData("DefaultCluster", "broker-a", addresses),)
    assert route.queues == (QueueData("broker-a", 3, 4, 6),)
    if version == V5:
        assert encode_route(route, quoted_keys=False) == data

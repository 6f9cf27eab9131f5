"""Bodies: written as Java writes them, read whatever they look like."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from cosmodrome.codes import Language, Version
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
from cosmodrome.wire import bodies
from cosmodrome.wire.bodies import registration

VERSION = DataVersion(1700000000000, 3, 0)
VERSION_JSON = '{"counter":3,"stateVersion":0,"timestamp":1700000000000}'
TOPIC = TopicConfig("T", 4, 4)
TOPIC_JSON = (
    '{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T",'
    '"topicSysFlag":0,"writeQueueNums":4}'
)
GROUP_JSON = (
    '{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
    '"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},'
    '"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
    '"whichBrokerWhenConsumeSlowly":1}'
)
SUBSCRIPTION = Subscription(
    "T", "TagA || TagB", frozenset({"TagA", "TagB"}), frozenset({2598919, 2598920}), 1700000000000
)
SUBSCRIPTION_JSON = (
    '{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB",'
    '"subVersion":1700000000000,"tagsSet":["TagA","TagB"],"topic":"T"}'
)
CONSUMER = bodies.ConsumerData("g", subscriptions=(SUBSCRIPTION,))
QUEUE = MessageQueue("T", "b", 0)
QUEUE_JSON = '{"brokerName":"b","queueId":0,"topic":"T"}'
BROKER = BrokerData("C", "b", {0: "10.0.0.2:10911"})

# Every body that is its own encode() and decode(), with the bytes Java would send.
EXAMPLES: list[tuple[Any, str]] = [
    (
        bodies.HeartbeatData("10.0.0.1@12345#887766", ("CLIENT_INNER_PRODUCER",), (CONSUMER,)),
        '{"clientID":"10.0.0.1@12345#887766","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":['
        + SUBSCRIPTION_JSON
        + '],"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}],'
        '"withoutSub":false}',
    ),
    (
        bodies.ClusterInfo({"b": BROKER}, {"C": ("b",)}),
        '{"brokerAddrTable":{"b":{"brokerAddrs":{0:"10.0.0.2:10911"},"brokerName":"b","cluster":"C",'
        '"enableActingMaster":false}},"clusterAddrTable":{"C":["b"]}}',
    ),
    (
        bodies.EpochsBody("C", "b", 0, (bodies.EpochEntry(1, "0f", 0, 70), bodies.EpochEntry(2, "1e", 70, 90)), 90, 10),
        '{"brokerId":0,"brokerName":"b","clusterName":"C","epochList":[{"endOffset":70,"epoch":1,"id":"0f",'
        '"startOffset":0},{"endOffset":90,"epoch":2,"id":"1e","startOffset":70}],"maxOffset":90,"minOffset":10}',
    ),
    (
        bodies.HaStatusBody(True, 90, (bodies.SlaveOfMaster("10.0.0.3:5", 80, 10, True, begin=40),)),
        '{"haClientRuntimeInfo":{"activated":false,"lastReadTimestamp":0,"lastWriteTimestamp":0,"masterAddr":"",'
        '"masterFlushOffset":0,"maxOffset":0,"transferredByteInSecond":0},"haConnectionInfo":[{"addr":"10.0.0.3:5",'
        '"diff":10,"inSync":true,"slaveAckOffset":80,"transferFromWhere":40,"transferredByteInSecond":0}],'
        '"inSyncSlaveNums":1,"master":true,"masterCommitLogMaxOffset":90}',
    ),
    (
        bodies.MemberGroup("C", "b", {0: "ip:port", 2: "x:1"}),
        '{"brokerMemberGroup":{"brokerAddrs":{0:"ip:port",2:"x:1"},"brokerName":"b","cluster":"C"}}',
    ),
    (
        bodies.TopicConfigWrapper(VERSION, {"T": TOPIC}),
        f'{{"dataVersion":{VERSION_JSON},"topicConfigTable":{{"T":{TOPIC_JSON}}}}}',
    ),
    (
        bodies.GroupConfigWrapper(VERSION, {"g": GroupConfig("g")}, {"g": {"T": 1}}),
        f'{{"dataVersion":{VERSION_JSON},"forbiddenTable":{{"g":{{"T":1}}}},"subscriptionGroupTable":{{"g":{GROUP_JSON}}}}}',
    ),
    (bodies.TopicConfigBody(TOPIC), TOPIC_JSON),
    (bodies.GroupConfigBody(GroupConfig("g")), GROUP_JSON),
    (
        bodies.ConsumerOffsetsBody(VERSION, {"T@g": {0: 5, 1: 6}}),
        f'{{"dataVersion":{VERSION_JSON},"offsetTable":{{"T@g":{{0:5,1:6}}}}}}',
    ),
    (
        bodies.DelayOffsetsBody(VERSION, {1: 5, 18: 6}),
        f'{{"dataVersion":{VERSION_JSON},"offsetTable":{{1:5,18:6}}}}',
    ),
    (
        bodies.LockBatch("g", "c", (QUEUE,)),
        f'{{"clientId":"c","consumerGroup":"g","mqSet":[{QUEUE_JSON}],"onlyThisBroker":false}}',
    ),
    (
        bodies.ResetOffsets({QUEUE: 7, MessageQueue("T", "b", 1): 8}),
        f'{{"offsetTable":{{{QUEUE_JSON}:7,{{"brokerName":"b","queueId":1,"topic":"T"}}:8}}}}',
    ),
    (
        bodies.ConsumerStatus({QUEUE: 7}, {"c": {QUEUE: 8}}),
        f'{{"consumerTable":{{"c":{{{QUEUE_JSON}:8}}}},"messageQueueTable":{{{QUEUE_JSON}:7}}}}',
    ),
    (
        bodies.TopicStats({QUEUE: bodies.TopicOffset(0, 5, 0)}),
        f'{{"offsetTable":{{{QUEUE_JSON}:{{"lastUpdateTimestamp":0,"maxOffset":5,"minOffset":0}}}},"topicPutTps":0.0}}',
    ),
    (
        bodies.ConsumeStats({QUEUE: bodies.ConsumeOffset(9, 7, 1700000000000, 9)}),
        f'{{"consumeTps":0.0,"offsetTable":{{{QUEUE_JSON}:{{"brokerOffset":9,"consumerOffset":7,'
        '"lastTimestamp":1700000000000,"pullOffset":9}}}',
    ),
    (
        bodies.ConsumerConnection(
            (bodies.ClientConnection("c", "10.0.0.1:50000", Language.JAVA, 479),), subscriptions={"T": SUBSCRIPTION}
        ),
        '{"connectionSet":[{"clientAddr":"10.0.0.1:50000","clientId":"c","language":"JAVA","version":479}],'
        '"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
        f'"subscriptionTable":{{"T":{SUBSCRIPTION_JSON}}}}}',
    ),
    (
        bodies.ProducerConnection((bodies.ClientConnection("c", "a:1", Language.GO, 317),)),
        '{"connectionSet":[{"clientAddr":"a:1","clientId":"c","language":"GO","version":317}]}',
    ),
    (
        bodies.ConsumerRunningInfo(
            {"PROP_CONSUMEORDERLY": "false"},
            (SUBSCRIPTION,),
            {QUEUE: bodies.QueueProgress()},
            {"T": bodies.ConsumeStatus()},
            {},
            "stack",
        ),
        f'{{"jstack":"stack","mqPopTable":{{}},"mqTable":{{{QUEUE_JSON}:{{"cachedMsgCount":0,"cachedMsgMaxOffset":0,'
        '"cachedMsgMinOffset":0,"cachedMsgSizeInMiB":0,"commitOffset":0,"droped":false,"lastConsumeTimestamp":0,'
        '"lastLockTimestamp":0,"lastPullTimestamp":0,"locked":false,"transactionMsgCount":0,"transactionMsgMaxOffset":0,'
        '"transactionMsgMinOffset":0,"tryUnlockTimes":0}},"properties":{"PROP_CONSUMEORDERLY":"false"},'
        '"statusTable":{"T":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,"consumeOKTPS":0.0,"consumeRT":0.0,'
        f'"pullRT":0.0,"pullTPS":0.0}}}},"subscriptionSet":[{SUBSCRIPTION_JSON}],"userConsumerInfo":{{}}}}',
    ),
    (
        bodies.ConsumeDirectlyResult(remark="r", spent_ms=3),
        '{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"remark":"r","spentTimeMills":3}',
    ),
    (bodies.ConsumerIds(("c1", "c2")), '{"consumerIdList":["c1","c2"]}'),
    (bodies.TopicList(("T",), "ip:port"), '{"brokerAddr":"ip:port","topicList":["T"]}'),
    (bodies.TopicList(("T",)), '{"topicList":["T"]}'),
    (bodies.GroupList(("g",)), '{"groupList":["g"]}'),
    (bodies.KVTable({"k": "v"}), '{"table":{"k":"v"}}'),
]
ROUTE = Route((QueueData("b", 4, 4, 6),), (BROKER,), "b:4")
REGISTRATION = bodies.RegisterBrokerBody(VERSION, {"T": TOPIC, "U": TopicConfig("U", 1, 2, 4, attributes={"k": "v w"})})


@pytest.mark.parametrize(("body", "text"), EXAMPLES)
def test_a_body_is_what_java_sends(body: Any, text: str) -> None:
    assert body.encode().decode() == text
    assert type(body).decode(text.encode()) == body
    assert type(body).decode(body.encode(pretty=True)) == body


@pytest.mark.parametrize("body", [example for example, _ in EXAMPLES])
def test_missing_and_null_fields_are_defaults(body: Any) -> None:
    kind = type(body)
    empty = kind.decode(b"{}")
    nulls = ",".join(f'"{name}":null' for name in body.to_json())
    assert kind.decode(f'{{{nulls},"unknown":[{{}}]}}'.encode()) == empty


@pytest.mark.parametrize("body", [example for example, _ in EXAMPLES])
@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"7", b'"x"', b"{", b"\x00"])
def test_what_is_not_an_object_is_refused(body: Any, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        type(body).decode(data)


def test_route_keys_are_quoted_on_demand() -> None:
    quoted = bodies.encode_route(ROUTE, quoted_keys=True).decode()
    assert quoted == (
        '{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.2:10911"},"brokerName":"b","cluster":"C","enableActingMaster":false}],'
        '"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSysFlag":0,'
        '"writeQueueNums":4}],"orderTopicConf":"b:4"}'
    )
    bare = bodies.encode_route(ROUTE, quoted_keys=False).decode()
    assert bare == quoted.replace('"0":', "0:")
    assert bodies.decode_route(quoted.encode()) == bodies.decode_route(bare.encode()) == ROUTE
    assert b"orderTopicConf" not in bodies.encode_route(Route((), ()), quoted_keys=False)


def test_an_old_name_server_calls_the_queue_flag_otherwise() -> None:
    route = bodies.decode_route(b'{"queueDatas":[{"brokerName":"b","topicSynFlag":3}],"brokerDatas":null}')
    assert route == Route((QueueData("b", 0, 0, 0, 3),), ())


def test_data_version_is_its_own_body() -> None:
    assert bodies.encode_data_version(VERSION).decode() == VERSION_JSON
    assert bodies.decode_data_version(b'{"counter":3,"timestamp":1700000000000}') == VERSION
    assert bodies.data_version_from_json(None) == DataVersion()


def test_config_dicts_come_back() -> None:
    assert bodies.topic_config_from_json(bodies.topic_config_to_json(TOPIC)) == TOPIC
    assert bodies.topic_config_from_json({}, "named") == TopicConfig("named")
    assert bodies.group_config_from_json(bodies.group_config_to_json(GroupConfig("g"))) == GroupConfig("g")
    assert bodies.group_config_from_json({}, "named") == GroupConfig("named")
    assert bodies.subscription_from_json(bodies.subscription_to_json(SUBSCRIPTION)) == SUBSCRIPTION


def test_the_registration_is_what_java_sends() -> None:
    body = bodies.RegisterBrokerBody(VERSION, {"T": TOPIC})
    assert body.encode().decode() == (
        f'{{"filterServerList":[],"topicConfigSerializeWrapper":{{"dataVersion":{VERSION_JSON},'
        '"mappingDataVersion":{"counter":0,"stateVersion":0,"timestamp":1700000000000},'
        f'"topicConfigTable":{{"T":{TOPIC_JSON}}},"topicQueueMappingDetailMap":{{}},"topicQueueMappingInfoMap":{{}}}}}}'
    )


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("version", [Version.V4_9_8, Version.V5_3_1])
def test_a_registration_comes_back_in_either_form(compressed: bool, version: int) -> None:
    raw = REGISTRATION.encode(compressed)
    assert (raw[:1] == b"\x78") == compressed
    assert bodies.RegisterBrokerBody.decode(memoryview(raw), version=version) == REGISTRATION


def parts(*values: bytes | int) -> bytes:
    sized = (struct.pack(">i", v) if isinstance(v, int) else struct.pack(">i", len(v)) + v for v in values)
    return zlib.compress(b"".join(sized))


def test_a_4_9_registration_has_no_mappings_and_a_5_x_one_may_have_some() -> None:
    old = parts(VERSION_JSON.encode(), 1, b"T 4 4 6 SINGLE_TAG", b"[]")
    decoded = bodies.RegisterBrokerBody.decode(old, version=Version.V4_9_8)
    assert decoded == bodies.RegisterBrokerBody(VERSION, {"T": TOPIC})
    with pytest.raises(ProtocolError):
        bodies.RegisterBrokerBody.decode(old, version=Version.V5_0_0)
    new = parts(VERSION_JSON.encode(), 1, b"T 4 4 6 SINGLE_TAG {}", b"[]", 1, b'{"bname":"b"}')
    assert bodies.RegisterBrokerBody.decode(new, version=Version.V5_0_0) == decoded


@pytest.mark.parametrize(
    "raw",
    [
        b"\x78",
        b"\x78\x9cgarbage",
        parts(),
        parts(VERSION_JSON.encode()),
        parts(VERSION_JSON.encode(), -1),
        parts(VERSION_JSON.encode(), 1 << 30),
        parts(VERSION_JSON.encode(), 1, b"T 4 4 6", b"[]", 0),
        parts(VERSION_JSON.encode(), 1, b"T x 4 6 SINGLE_TAG", b"[]", 0),
        parts(VERSION_JSON.encode(), 0, b"7", 0),
        parts(VERSION_JSON.encode(), 0, b"[]", 5),
        parts(b"[]", 0, b"[]", 0),
        zlib.compress(bytes(registration.MAX_DECOMPRESSED_BYTES + 1)),
    ],
)
def test_a_damaged_registration_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        bodies.RegisterBrokerBody.decode(raw, version=Version.V5_3_1)


def test_a_topic_line_is_the_reference_line() -> None:
    assert registration.topic_line(TOPIC) == "T 4 4 6 SINGLE_TAG {}"
    assert registration.parse_topic_line("T 4 4 6 SINGLE_TAG {}") == TOPIC


def test_locked_queues_are_always_present() -> None:
    assert bodies.encode_locked(()) == b'{"lockOKMQSet":[]}'
    assert bodies.encode_locked([QUEUE]).decode() == f'{{"lockOKMQSet":[{QUEUE_JSON}]}}'
    assert bodies.decode_locked(bodies.encode_locked([QUEUE])) == (QUEUE,)
    assert bodies.decode_locked(b"{}") == ()


def test_queue_keys_may_be_text_and_resets_an_array() -> None:
    as_text = b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":0,\\"topic\\":\\"T\\"}":"7"}}'
    as_array = b'{"offsetTable":[{"brokerName":"b","offset":7,"queueId":0,"topic":"T"}]}'
    expected = bodies.ResetOffsets({QUEUE: 7})
    assert bodies.ResetOffsets.decode(as_text) == bodies.ResetOffsets.decode(as_array) == expected
    assert expected.encode_for_cpp() == as_array


def test_odd_spellings_and_types_are_understood() -> None:
    beat = bodies.HeartbeatData.decode(
        b"{'clientid':7,'producerDataSet':[null,{'groupName':'p'}],'heartbeat_fingerprint':'12','isWithoutSub':1,"
        b"'consumerDataSet':[{'groupName':'g','consumeType':'consume_actively','messageModel':0,"
        b"'consumeFromWhere':4,'subscriptionDataSet':null,'unitMode':'true'}]}"
    )
    consumer = bodies.ConsumerData(
        "g", ConsumeType.ACTIVELY, MessageModel.BROADCASTING, ConsumeFrom.FIRST_OFFSET, unit_mode=True
    )
    assert beat == bodies.HeartbeatData("7", ("p",), (consumer,), 12, True)


def test_an_unknown_enum_name_is_the_default_and_an_unknown_ordinal_an_error() -> None:
    result = bodies.ConsumeDirectlyResult.decode(b'{"consumeResult":"CR_WHATEVER"}')
    assert result.result is bodies.ConsumeResult.RETURN_NULL
    assert bodies.ConsumeDirectlyResult.decode(b'{"consumeResult":"1"}').result is bodies.ConsumeResult.LATER
    with pytest.raises(ProtocolError):
        bodies.ConsumeDirectlyResult.decode(b'{"consumeResult":6}')


def test_go_spells_dropped_otherwise() -> None:
    raw = f'{{"mqTable":{{{QUEUE_JSON}:{{"dropped":true}}}}}}'.encode()
    assert bodies.ConsumerRunningInfo.decode(raw).queues == {QUEUE: bodies.QueueProgress(dropped=True)}


@pytest.mark.parametrize("number", ["2147483648", '"2147483648"', '"x"', "{}", "[1]", '"1e3"', "1e300"])
def test_a_number_that_is_none_is_refused(number: str) -> None:
    with pytest.raises(ProtocolError):
        bodies.TopicConfigBody.decode(f'{{"perm":{number}}}'.encode())


@pytest.mark.parametrize("number", ["4", '"4"', '" 4 "', "4.0", '"4.0"'])
def test_a_number_may_come_as_text(number: str) -> None:
    assert bodies.TopicConfigBody.decode(f'{{"perm":{number}}}'.encode()).topic.perm == 4

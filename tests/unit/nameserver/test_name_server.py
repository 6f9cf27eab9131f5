"""The name server over real sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cosmodrome.codes import RequestCode, ResponseCode, Version
from cosmodrome.config import NameServerConfig, NetConfig
from cosmodrome.model import DataVersion, QueueData, Route, TopicConfig
from cosmodrome.nameserver.processors import PROCESSORS
from cosmodrome.nameserver.server import NameServer
from cosmodrome.net.caller import Caller
from cosmodrome.net.connection import Connection
from cosmodrome.testing import FakeClock
from cosmodrome.wire import fastjson
from cosmodrome.wire import name_server_requests as requests
from cosmodrome.wire.bodies import (
    RegisterBrokerBody,
    data_version_from_json,
    data_version_to_json,
    decode_route,
    encode_route,
)
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header

TIMEOUT_MS = 30_000
GO_CLIENT_VERSION = 317
VERSION = DataVersion(1_700_000_000_000, 3)


class Peer:
    """A name server and somebody who asks it."""

    def __init__(self, server: NameServer, caller: Caller) -> None:
        self.server = server
        self.caller = caller

    async def ask(
        self, code: int, header: Header | None = None, body: bytes = b"", *, version: int | None = None
    ) -> Command:
        command = Command.request(code, header, body)
        if version is not None:
            command.version = version
        return await self.caller.call(self.server.address, command, TIMEOUT_MS)

    async def ask_well(self, code: int, header: Header | None = None, body: bytes = b"") -> Command:
        reply = await self.ask(code, header, body)
        assert reply.code == ResponseCode.SUCCESS, reply
        return reply

    async def register(self, name: str = "a", broker_id: int = 0, *, topics: tuple[str, ...] = ("T", "U")) -> Command:
        return await self.ask_well(RequestCode.REGISTER_BROKER, registration(name, broker_id), topics_body(*topics))

    async def kv(self, namespace: str, key: str, value: str) -> None:
        await self.ask_well(RequestCode.PUT_KV_CONFIG, requests.KvConfig(namespace, key, value))


def registration(name: str = "a", broker_id: int = 0, *, crc: int = 0) -> requests.RegisterBroker:
    address = f"127.0.0.1:{10911 + broker_id}"
    return requests.RegisterBroker(name, address, "C", broker_id, f"ha-{address}", body_crc32=crc)


def topics_body(*names: str, compressed: bool = False) -> bytes:
    topics = {name: TopicConfig(name, 4, 4) for name in names}
    return RegisterBrokerBody(VERSION, topics, ()).encode(compressed=compressed)


def names_in(reply: Command) -> list[str]:
    names: list[str] = json.loads(bytes(reply.body))["topicList"]
    return names


@asynccontextmanager
async def serving(config: Mapping[str, object] | None = None, clock: FakeClock | None = None) -> AsyncIterator[Peer]:
    settings = dataclasses.replace(NameServerConfig(listen_port=0), **(config or {}))  # type: ignore[arg-type]
    server, caller, stop = NameServer(settings, NetConfig(), clock or FakeClock()), Caller(), asyncio.Event()
    await server.start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.run(stop))
        try:
            yield Peer(server, caller)
        finally:
            await caller.close()
            stop.set()


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with serving() as peer:
        yield peer


# --- routes


async def test_a_registered_topic_is_routed(peer: Peer) -> None:
    await peer.register()
    reply = await peer.ask_well(RequestCode.GET_ROUTEINFO_BY_TOPIC, requests.GetRoute("T"))
    route = decode_route(bytes(reply.body))
    assert route.queues == (QueueData("a", 4, 4, 6),)
    assert route.brokers[0].addresses == {0: "127.0.0.1:10911"}


async def test_an_unknown_topic_is_refused_as_apache_does(peer: Peer) -> None:
    reply = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, requests.GetRoute("nowhere"))
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert reply.remark is not None
    assert "No topic route info in name server for the topic: nowhere" in reply.remark


@pytest.mark.parametrize(
    ("version", "standard", "quoted"),
    [
        (GO_CLIENT_VERSION, False, False),
        (Version.V4_9_4 - 1, False, False),
        (Version.V4_9_4, False, True),
        (Version.V5_3_3, False, True),
        (GO_CLIENT_VERSION, True, True),
    ],
)
async def test_a_route_is_written_in_the_dialect_of_its_reader(
    peer: Peer, version: int, standard: bool, quoted: bool
) -> None:
    await peer.register()
    request = requests.GetRoute("T", standard)
    reply = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, request, version=version)
    key = b'"0"' if quoted else b"0"
    assert b'"brokerAddrs":{' + key + b':"127.0.0.1:10911"}' in bytes(reply.body)
    assert b" " not in bytes(reply.body), "the Go client splits addresses by hand"


async def test_an_orderly_topic_has_its_config_in_the_route_when_enabled() -> None:
    async with serving({"order_message_enable": True}) as peer:
        await peer.register()
        await peer.kv("ORDER_TOPIC_CONFIG", "T", "a:4")
        for topic, expected in (("T", "a:4"), ("U", None)):
            reply = await peer.ask_well(RequestCode.GET_ROUTEINFO_BY_TOPIC, requests.GetRoute(topic))
            assert decode_route(bytes(reply.body)).order_conf == expected


async def test_the_order_config_stays_out_of_routes_by_default(peer: Peer) -> None:
    await peer.register()
    await peer.kv("ORDER_TOPIC_CONFIG", "T", "a:4")
    reply = await peer.ask_well(RequestCode.GET_ROUTEINFO_BY_TOPIC, requests.GetRoute("T"))
    assert decode_route(bytes(reply.body)).order_conf is None


# --- registration


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("flag", [False, True])
async def test_a_body_is_read_compressed_or_not_whatever_the_flag_says(
    peer: Peer, compressed: bool, flag: bool
) -> None:
    body = topics_body("T", "U", compressed=compressed)
    header = dataclasses.replace(registration(crc=zlib.crc32(body) & 0x7FFFFFFF), compressed=flag)
    await peer.ask_well(RequestCode.REGISTER_BROKER, header, body)
    assert peer.server.routes.all_topics() == ("T", "U")


async def test_a_damaged_body_is_refused(peer: Peer) -> None:
    body = topics_body("T")
    reply = await peer.ask(RequestCode.REGISTER_BROKER, registration(crc=1), body)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "crc32" in (reply.remark or "")
    assert peer.server.routes.brokers == ()


async def test_a_broker_may_register_without_topics(peer: Peer) -> None:
    await peer.ask_well(RequestCode.REGISTER_BROKER, registration())
    assert [broker.broker_name for broker in peer.server.routes.brokers] == ["a"]


async def test_a_body_that_makes_no_sense_is_refused_and_the_connection_stays(peer: Peer) -> None:
    for garbage in (b"garbage", b"\x78\x9cgarbage", b'{"topicConfigSerializeWrapper":[]}'):
        reply = await peer.ask(RequestCode.REGISTER_BROKER, registration(), garbage)
        assert reply.code == ResponseCode.SYSTEM_ERROR
    assert peer.server.routes.brokers == ()
    await peer.register()


async def test_a_slave_is_told_its_master(peer: Peer) -> None:
    await peer.register()
    reply = requests.RegisterBrokerReply.decode(await peer.register(broker_id=1))
    assert reply == requests.RegisterBrokerReply("ha-127.0.0.1:10911", "127.0.0.1:10911", 0)


async def test_brokers_are_told_the_orderly_topics(peer: Peer) -> None:
    assert not (await peer.register()).body
    await peer.kv("ORDER_TOPIC_CONFIG", "T", "a:4")
    assert json.loads(bytes((await peer.register()).body)) == {"table": {"T": "a:4"}}


async def test_brokers_are_not_told_the_orderly_topics_when_disabled() -> None:
    async with serving({"return_order_topic_config_to_broker": False}) as peer:
        await peer.kv("ORDER_TOPIC_CONFIG", "T", "a:4")
        assert not (await peer.register()).body


async def test_an_unregistered_broker_is_gone(peer: Peer) -> None:
    await peer.register()
    header = requests.BrokerHeader("a", "127.0.0.1:10911", "C", 0)
    await peer.ask_well(RequestCode.UNREGISTER_BROKER, header)
    await peer.ask_well(RequestCode.UNREGISTER_BROKER, header)
    assert peer.server.routes.brokers == ()


async def test_a_broker_learns_whether_it_has_to_register_anew(peer: Peer) -> None:
    header = requests.BrokerHeader("a", "127.0.0.1:10911", "C", 0)

    async def changed(version: DataVersion) -> tuple[bool, bytes]:
        body = fastjson.dumps(data_version_to_json(version))
        reply = await peer.ask_well(RequestCode.QUERY_DATA_VERSION, header, body)
        return requests.DataVersionReply.decode(reply).changed, bytes(reply.body)

    assert await changed(VERSION) == (True, b"")
    await peer.register()
    same, stored = await changed(VERSION)
    assert not same
    assert data_version_from_json(fastjson.loads(stored)) == VERSION
    assert (await changed(VERSION.next(5)))[0]


async def test_members_of_a_group_are_told(peer: Peer) -> None:
    await peer.register()
    await peer.register(broker_id=1)
    reply = await peer.ask_well(RequestCode.GET_BROKER_MEMBER_GROUP, requests.GetMemberGroup("C", "a"))
    group = fastjson.loads(bytes(reply.body))["brokerMemberGroup"]
    assert {int(key): address for key, address in group["brokerAddrs"].items()} == {
        0: "127.0.0.1:10911",
        1: "127.0.0.1:10912",
    }
    assert (group["brokerName"], group["cluster"]) == ("a", "C")


# --- silence and lost connections


async def test_a_silent_broker_is_dropped_by_the_scan_after_two_minutes() -> None:
    clock = FakeClock()
    async with serving(clock=clock) as peer:
        await peer.register()
        connection = peer.server.routes.brokers[0].connection
        await clock.advance(119_999)
        assert len(peer.server.routes.brokers) == 1
        await clock.advance(1)
        assert len(peer.server.routes.brokers) == 0
        assert isinstance(connection, Connection)
        await connection.lost.wait()


@pytest.mark.parametrize("code", [RequestCode.BROKER_HEARTBEAT, RequestCode.QUERY_DATA_VERSION])
async def test_signs_of_life_keep_a_broker(code: RequestCode) -> None:
    clock = FakeClock()
    async with serving(clock=clock) as peer:
        await peer.register()
        for _ in range(3):
            await clock.advance(100_000)
            await peer.ask_well(code, requests.BrokerHeader("a", "127.0.0.1:10911", "C", 0), b"{}")
        assert len(peer.server.routes.brokers) == 1


async def test_a_oneway_heartbeat_counts_and_is_not_answered(peer: Peer) -> None:
    await peer.register()
    header = requests.BrokerHeartbeat("a", "127.0.0.1:10911", "C")
    oneway = Command.request(RequestCode.BROKER_HEARTBEAT, header, oneway=True)
    await peer.caller.oneway(peer.server.address, oneway)
    assert names_in(await peer.ask_well(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == ["T", "U"]


async def test_a_lost_connection_removes_its_broker(peer: Peer) -> None:
    other = Peer(peer.server, Caller())
    await other.register("b", topics=("B",))
    await peer.register("a", topics=("A",))
    (connection,) = (broker.connection for broker in peer.server.routes.brokers if broker.broker_name == "b")
    assert isinstance(connection, Connection)
    await other.caller.close()
    await connection.lost.wait()
    assert names_in(await peer.ask_well(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == ["A"]


# --- lists and operators


async def test_lists(peer: Peer) -> None:
    await peer.register()
    code = RequestCode
    assert names_in(await peer.ask_well(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == ["T", "U"]
    assert names_in(await peer.ask_well(code.GET_TOPICS_BY_CLUSTER, requests.TopicsByCluster("C"))) == ["T", "U"]
    assert names_in(await peer.ask_well(code.GET_TOPICS_BY_CLUSTER, requests.TopicsByCluster("D"))) == []
    system = json.loads(bytes((await peer.ask_well(code.GET_SYSTEM_TOPIC_LIST_FROM_NS)).body))
    assert system == {"brokerAddr": "127.0.0.1:10911", "topicList": ["C", "a"]}
    for unit in (
        code.GET_UNIT_TOPIC_LIST,
        code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    ):
        assert names_in(await peer.ask_well(unit)) == []


async def test_a_stale_master_is_told_who_was_promoted_since(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    def body(term: int) -> bytes:
        return RegisterBrokerBody(DataVersion(1, 1, term), {}, ()).encode()

    promoted = dataclasses.replace(registration(), broker_addr="10.0.0.2:10911")
    assert (await peer.ask_well(RequestCode.REGISTER_BROKER, promoted, body(2))).remark is None
    stale = await peer.ask_well(RequestCode.REGISTER_BROKER, registration(), body(1))
    assert requests.RegisterBrokerReply.decode(stale) == requests.RegisterBrokerReply(master_term=2)
    assert stale.remark is not None
    assert stale.remark.startswith("10.0.0.2:10911 is the master of a with term 2")
    assert any(
        line.startswith("registration refused: broker=a: 10.0.0.2:10911 is the master") for line in caplog.messages
    )


async def test_unit_lists_follow_the_flags(peer: Peer) -> None:
    topics = {f"flag{flag}": TopicConfig(f"flag{flag}", sys_flag=flag) for flag in range(4)}
    await peer.ask_well(RequestCode.REGISTER_BROKER, registration(), RegisterBrokerBody(VERSION, topics, ()).encode())
    assert names_in(await peer.ask_well(RequestCode.GET_UNIT_TOPIC_LIST)) == ["flag1", "flag3"]
    assert names_in(await peer.ask_well(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST)) == ["flag2", "flag3"]
    assert names_in(await peer.ask_well(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)) == ["flag2"]


async def test_the_cluster_in_fastjsons_dialect(peer: Peer) -> None:
    await peer.register()
    body = bytes((await peer.ask_well(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    assert b'"brokerAddrs":{0:"127.0.0.1:10911"}' in body
    info = fastjson.loads(body)
    assert info["clusterAddrTable"] == {"C": ["a"]}
    assert info["brokerAddrTable"]["a"]["cluster"] == "C"


async def test_write_permission_is_wiped_and_added(peer: Peer) -> None:
    async def perm() -> int:
        reply = await peer.ask_well(RequestCode.GET_ROUTEINFO_BY_TOPIC, requests.GetRoute("T"))
        return decode_route(bytes(reply.body)).queues[0].perm

    await peer.register()
    header = requests.WritePermission("a")
    wiped = await peer.ask_well(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
    assert wiped.fields["wipeTopicCount"] == "2"
    assert await perm() == 4
    added = await peer.ask_well(RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
    assert added.fields["addTopicCount"] == "2"
    assert await perm() == 6


async def test_topics_come_and_go_one_by_one(peer: Peer) -> None:
    await peer.register()
    queues = Route((QueueData("a", 2, 2, 6),), ())
    body = encode_route(queues, quoted_keys=True)
    await peer.ask_well(RequestCode.REGISTER_TOPIC_IN_NAMESRV, requests.RegisterTopic("N"), body)
    assert peer.server.routes.all_topics() == ("N", "T", "U")
    delete = RequestCode.DELETE_TOPIC_IN_NAMESRV
    await peer.ask_well(delete, requests.DeleteTopicInNameServer("N", "elsewhere"))
    await peer.ask_well(delete, requests.DeleteTopicInNameServer("T", "C"))
    await peer.ask_well(delete, requests.DeleteTopicInNameServer("U"))
    assert peer.server.routes.all_topics() == ("N",)


# --- key-value config


async def test_key_values_over_the_wire(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    async with serving({"kv_config_path": str(path)}) as peer:
        await peer.kv("ns", "k", "v")
    async with serving({"kv_config_path": str(path)}) as peer:
        reply = await peer.ask_well(RequestCode.GET_KV_CONFIG, requests.KvConfig("ns", "k"))
        assert reply.fields["value"] == "v"
        listed = await peer.ask_well(RequestCode.GET_KVLIST_BY_NAMESPACE, requests.KvNamespace("ns"))
        assert json.loads(bytes(listed.body)) == {"table": {"k": "v"}}
        await peer.ask_well(RequestCode.DELETE_KV_CONFIG, requests.KvConfig("ns", "k"))
        for code, header in (
            (RequestCode.GET_KV_CONFIG, requests.KvConfig("ns", "k")),
            (RequestCode.GET_KVLIST_BY_NAMESPACE, requests.KvNamespace("ns")),
        ):
            assert (await peer.ask(code, header)).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_key_needs_a_value(peer: Peer) -> None:
    reply = await peer.ask(RequestCode.PUT_KV_CONFIG, requests.KvConfig("ns", "k"))
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert "value" in (reply.remark or "")


# --- its own config


async def test_the_config_is_told_as_properties(peer: Peer) -> None:
    reply = await peer.ask_well(RequestCode.GET_NAMESRV_CONFIG)
    lines = bytes(reply.body).decode().splitlines()
    assert "orderMessageEnable=false" in lines
    assert "scanNotActiveBrokerInterval=10000" in lines


async def test_what_may_be_changed_is_changed(peer: Peer) -> None:
    body = b"# a comment\norderMessageEnable=true\n"
    await peer.ask_well(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
    assert peer.server.config.order_message_enable


@pytest.mark.parametrize("key", ["kvConfigPath", "configStorePath", "rocketmqHome", "listenPort", "nonsense"])
async def test_everything_else_may_not(peer: Peer, key: str) -> None:
    before = peer.server.config
    body = f"orderMessageEnable=true\n{key}=/tmp/x".encode()
    reply = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
    assert reply.code == ResponseCode.NO_PERMISSION
    assert key in (reply.remark or "")
    assert peer.server.config == before


async def test_what_the_black_list_names_may_not_be_changed() -> None:
    async with serving({"config_black_list": "x;orderMessageEnable"}) as peer:
        reply = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")
        assert reply.code == ResponseCode.NO_PERMISSION
        assert "configBlackList names it" in (reply.remark or "")
        assert not peer.server.config.order_message_enable


@pytest.mark.parametrize("body", [b"orderMessageEnable=perhaps", b"\xff\xfe"])
async def test_a_config_that_makes_no_sense_is_refused(peer: Peer, body: bytes) -> None:
    reply = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
    assert reply.code == ResponseCode.INVALID_PARAMETER


# --- refusals and failures


async def test_an_unknown_code_is_not_supported(peer: Peer) -> None:
    for code in (RequestCode.SEND_MESSAGE, 31_999):
        assert (await peer.ask(code)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_missing_field_is_a_refusal(peer: Peer) -> None:
    reply = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert "topic" in (reply.remark or "")


async def test_our_own_failure_is_logged_here_and_not_told_there(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(server: NameServer, connection: Connection, command: Command) -> Command:
        raise ZeroDivisionError("secret")

    monkeypatch.setitem(PROCESSORS, RequestCode.GET_BROKER_CLUSTER_INFO, broken)
    with caplog.at_level(logging.ERROR):
        reply = await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "secret" not in (reply.remark or "")
    assert "secret" in caplog.text


async def test_name_servers_stand_side_by_side() -> None:
    async with serving() as one, serving() as two:
        await one.register("a", topics=("A",))
        await two.register("b", topics=("B",))
        assert names_in(await one.ask_well(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == ["A"]
        assert names_in(await two.ask_well(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == ["B"]


async def test_it_stops_when_told_and_frees_its_port() -> None:
    async with serving() as peer:
        port = int(peer.server.address.rpartition(":")[2])
    async with serving({"listen_port": port}) as again:
        assert again.server.address == f"127.0.0.1:{port}"

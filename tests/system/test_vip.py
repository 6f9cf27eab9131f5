"""The VIP channel: a second listener of the broker, two ports below, and clients that use it."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import ClientConfig, ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from cosmodrome.broker.broker import NOT_FOR_VIP, Broker
from cosmodrome.client.vip import vip_address
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, ReplicationConfig
from cosmodrome.errors import ConfigError, ConnectionFailed
from cosmodrome.net.caller import Caller
from cosmodrome.net.connection import Connection
from cosmodrome.net.server import Server
from cosmodrome.wire.command import Command
from interop.child import free_port
from tests.system.cluster import SMALL_STORE, running, running_name_server

PATIENCE_SECONDS = 30


def new_broker(folder: Path, namesrv: str, port: int, *, enable: bool = True) -> Broker:
    config = BrokerConfig(namesrv_addr=namesrv, listen_port=port, vip_listener_enable=enable)
    store = dataclasses.replace(SMALL_STORE, store_path_root_dir=str(folder))
    return Broker(config, store, replication=ReplicationConfig(ha_listen_port=0))


@asynccontextmanager
async def vip_broker(folder: Path, *, enable: bool = True) -> AsyncIterator[tuple[Broker, str]]:
    async with running_name_server() as name_server, asyncio.timeout(PATIENCE_SECONDS):
        broker = new_broker(folder, name_server.address, free_port(before=2), enable=enable)
        await broker.start()
        async with running(broker.run):
            yield broker, name_server.address


class Seen:
    """A hook that remembers what it was shown."""

    def __init__(self) -> None:
        self.codes: set[int] = set()
        self.addresses: set[str] = set()

    def before_request(self, address: str, command: Command) -> None:
        self.codes.add(command.code)
        self.addresses.add(address)

    def after_response(self, address: str, command: Command, reply: Command | None) -> None: ...


def served_by(server: Server) -> set[int]:
    """The codes of what this server is asked, from now on."""
    codes, handler = set[int](), server._handler

    def noting(connection: Connection, command: Command) -> Coroutine[Any, Any, Command | None] | Command | None:
        codes.add(command.code)
        return handler(connection, command)

    server._handler = noting
    return codes


@pytest.mark.parametrize("hooked", [False, True])
async def test_sends_and_commits_take_the_vip_channel_and_pulls_do_not(tmp_path: Path, hooked: bool) -> None:
    async with vip_broker(tmp_path) as (broker, namesrv):
        main, vip = map(served_by, broker._servers)
        got = asyncio.Event()

        async def handler(_message: ReceivedMessage) -> None:
            got.set()

        client, hook = ClientConfig(namesrv=namesrv, vip_channel_enabled=True), Seen()
        hooks = [hook] if hooked else []
        consumer = PushConsumer("g", config=client, consume_from=ConsumeFrom.FIRST_OFFSET, rpc_hooks=hooks)
        consumer.subscribe("t", "*", handler)
        async with Producer("p", config=client, rpc_hooks=hooks) as producer:
            result = await producer.send(Message("t", b"x"))
            await producer.send_oneway(Message("t", b"y"))
            await broker.registration.announce()
            async with consumer:
                await got.wait()
            assert (await producer.view_message("t", result.offset_msg_id)).body == b"x"
            assert await producer.max_offset(result.queue) >= 1
        assert {RequestCode.SEND_MESSAGE_V2, RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.GET_MAX_OFFSET} <= vip
        assert {RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.UPDATE_CONSUMER_OFFSET} <= vip
        assert {RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT} <= main
        assert not main & vip
        if hooked:
            assert hook.addresses == {namesrv, broker.address}
            assert vip <= hook.codes


async def test_a_client_without_it_does_not_come_there(tmp_path: Path) -> None:
    async with vip_broker(tmp_path) as (broker, namesrv), Producer("p", namesrv) as producer:
        await producer.send(Message("t", b"x"))
        main, vip = broker._servers
        assert (vip.port, bool(main.connections), bool(vip.connections)) == (main.port - 2, True, False)


async def test_who_asks_there_for_messages_is_refused(tmp_path: Path) -> None:
    async with vip_broker(tmp_path) as (broker, _):
        caller = Caller()
        for code in sorted(NOT_FOR_VIP):
            reply = await caller.call(vip_address(broker.address), Command.request(code), 5_000)
            assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        await caller.close()


async def test_a_broker_that_stops_closes_its_vip_channel(tmp_path: Path) -> None:
    async with vip_broker(tmp_path) as (broker, namesrv):
        producer = Producer("p", config=ClientConfig(namesrv=namesrv, vip_channel_enabled=True))
        await producer.start()
        await producer.send(Message("t", b"x"))
        vip = broker._servers[1]
        assert vip.connections
    assert not vip.connections
    with socket.create_server(("127.0.0.1", vip.port)):
        pass
    await producer.stop()


async def test_a_vip_port_that_is_taken_names_the_key_that_switches_it_off(tmp_path: Path) -> None:
    port = free_port(before=2)
    with socket.create_server(("127.0.0.1", port - 2)):
        broker = new_broker(tmp_path, "127.0.0.1:1", port)
        with pytest.raises(ConfigError, match=rf"127.0.0.1:{port - 2}: .*set vipListenerEnable=false"):
            await broker.start()
        with socket.create_server(("127.0.0.1", port)):
            pass  # it was given back
        broker.store.close()


async def test_it_can_be_switched_off(tmp_path: Path) -> None:
    async with vip_broker(tmp_path, enable=False) as (broker, namesrv):
        assert len(broker._servers) == 1
        async with Producer("p", config=ClientConfig(namesrv=namesrv, vip_channel_enabled=True)) as producer:
            queue = (await producer.publish_queues("t"))[0]
            with pytest.raises(ConnectionFailed, match=vip_address(broker.address)):
                await producer.send(Message("t", b"x"), queue)


@pytest.mark.parametrize(
    ("address", "vip"), [("h:10911", "h:10909"), ("[::1]:10911", "[::1]:10909"), ("h:2", "h:2"), ("h", "h")]
)
def test_the_address_of_the_vip_channel(address: str, vip: str) -> None:
    assert vip_address(address) == vip

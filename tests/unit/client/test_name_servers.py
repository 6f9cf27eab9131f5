"""Several name servers, some of which are away."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cosmodrome.client import name_servers, routes
from cosmodrome.client.name_servers import LONGEST_WAIT_MS, NameServers
from cosmodrome.client.producer import Producer
from cosmodrome.codes import RequestCode
from cosmodrome.config import NameServerConfig, NetConfig
from cosmodrome.errors import CallTimeout, ClientError, ConnectionFailed, SendFailed, UnknownTopic
from cosmodrome.model import DataVersion, Message, Route, TopicConfig
from cosmodrome.nameserver.server import NameServer
from cosmodrome.net.caller import Caller
from cosmodrome.net.tls import connect_failure
from cosmodrome.testing import FakeClock, cluster
from cosmodrome.wire.bodies import RegisterBrokerBody, encode_route
from cosmodrome.wire.command import Command
from cosmodrome.wire.name_server_requests import BrokerHeader, RegisterBroker

NOWHERE = Route((), ())


class Peers(Caller):
    """Addresses that say by their names how they behave, on a clock that only those move that hang."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.now_ms = 0.0

    async def call(
        self, address: str, command: Command, timeout_ms: float, connect_timeout_ms: float | None = None
    ) -> Command:
        self.asked.append(address)
        await asyncio.sleep(0)
        if address.startswith("dead"):
            raise ConnectionFailed(address, "away")
        if address.startswith("hung"):
            self.now_ms += timeout_ms
            raise CallTimeout(address, timeout_ms)
        return command.reply(body=encode_route(NOWHERE, quoted_keys=True))


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Peers:
    peers = Peers()
    monkeypatch.setattr(name_servers, "_now_ms", lambda: peers.now_ms)
    return peers


def in_this_order(peers: Peers, *addresses: str, timeout_ms: int = 3_000) -> NameServers:
    servers = NameServers(peers, addresses, timeout_ms)
    while tuple(servers.addresses) != addresses:
        servers.use(addresses)
    return servers


async def test_those_who_ask_at_once_all_find_the_one_that_answers(peers: Peers) -> None:
    servers = in_this_order(peers, "dead:1", "good:2")
    assert await asyncio.gather(*(servers.route(topic) for topic in "ABCD")) == [NOWHERE] * 4
    assert peers.asked == ["dead:1"] * 4 + ["good:2"] * 4
    await servers.route("E")
    assert peers.asked[8:] == ["good:2"]


async def test_one_that_fails_many_goes_to_the_end_once(peers: Peers) -> None:
    servers = in_this_order(peers, "dead:1", "good:2", "good:3")
    await asyncio.gather(*(servers.route(topic) for topic in "AB"))
    assert servers.addresses == ["good:2", "good:3", "dead:1"]


async def test_only_when_each_has_failed_a_question_does(peers: Peers) -> None:
    servers = in_this_order(peers, "dead:1", "hung:2", "dead:3")
    failures = await asyncio.gather(*(servers.route(topic) for topic in "AB"), return_exceptions=True)
    assert [str(failure) for failure in failures] == ["dead:3: away"] * 2
    assert sorted(peers.asked) == sorted(2 * ["dead:1", "hung:2", "dead:3"])


@pytest.mark.parametrize("timeout_ms", [600, 3_000, 60_000])
async def test_one_that_hangs_leaves_time_for_the_next(peers: Peers, timeout_ms: int) -> None:
    servers = in_this_order(peers, "hung:1", "good:2", timeout_ms=timeout_ms)
    await servers.route("T")
    assert peers.now_ms == min(timeout_ms / 2, LONGEST_WAIT_MS)


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_all_that_hang_take_no_longer_than_one_call(peers: Peers, count: int) -> None:
    servers = in_this_order(peers, *(f"hung:{number}" for number in range(count)))
    with pytest.raises(CallTimeout):
        await servers.route("T")
    assert len(peers.asked) == count
    assert peers.now_ms == pytest.approx(3_000)


async def test_those_that_came_into_use_meanwhile_keep_their_order(peers: Peers) -> None:
    servers = in_this_order(peers, "dead:1", "good:2")
    asking = asyncio.create_task(servers.route("T"))
    await asyncio.sleep(0)
    servers.use(["good:3"])
    assert await asking == NOWHERE
    assert servers.addresses == ["good:3"]


# --- addresses of something else


@asynccontextmanager
async def http_server() -> AsyncIterator[str]:
    """A web server that does not understand the question."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def failure_of_a_send(namesrv: str) -> str:
    async with Producer("g", namesrv) as producer:
        with pytest.raises(ClientError) as failed:
            await producer.send(Message("T", b"x"))
    return str(failed.value)


async def test_a_port_of_http_is_told() -> None:
    async with http_server() as address:
        assert await failure_of_a_send(address) == (
            f"{address}: connection lost (it speaks HTTP, not RocketMQ's protocol)"
        )


async def test_a_brokers_port_is_told() -> None:
    async with cluster() as c:
        address = c.brokers[0].broker.address
        assert await failure_of_a_send(address) == (
            f"{address} answered 3 REQUEST_CODE_NOT_SUPPORTED: request type 105 not supported; "
            "it is no name server, which usually listens on port 9876; a broker's is usually 10911"
        )


async def test_a_port_where_nobody_listens_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed_soon:
        address = f"127.0.0.1:{closed_soon.getsockname()[1]}"
    assert (await failure_of_a_send(address)).startswith(f"{address}: nothing listens there: ")


def test_a_host_that_is_not_known_is_told() -> None:
    failure = connect_failure("namesrv:9876", socket.gaierror(-2, "Name or service not known"), None)
    assert str(failure) == "namesrv:9876: its host is not known: [Errno -2] Name or service not known"


# --- a cluster that has lost its master


@asynccontextmanager
async def name_server_with(*registered: RegisterBroker) -> AsyncIterator[str]:
    server = NameServer(NameServerConfig(listen_port=0), NetConfig(), FakeClock())
    await server.start()
    stop, caller = asyncio.Event(), Caller()
    serving = asyncio.create_task(server.run(stop))
    try:
        for header in registered:
            body = RegisterBrokerBody(DataVersion(1, 1), {"T": TopicConfig("T")}).encode()
            await caller.call(server.address, Command.request(RequestCode.REGISTER_BROKER, header, body), 5_000)
        yield server.address
    finally:
        await caller.close()
        stop.set()
        await serving


MASTER = RegisterBroker("a", "127.0.0.1:1", "C", 0)
SLAVE = RegisterBroker("a", "127.0.0.1:2", "C", 1)


async def test_a_send_to_slaves_alone_says_that_no_master_is_there() -> None:
    async with name_server_with(SLAVE) as address:
        assert await failure_of_a_send(address) == "topic 'T' has no queue: no master of a is registered, only slaves"


@pytest.mark.parametrize("registered", [[], [RegisterBroker("b", "127.0.0.1:3", "C", 0), SLAVE]])
async def test_a_topic_that_no_master_knows_does_not_exist(registered: list[RegisterBroker]) -> None:
    async with name_server_with(*registered) as address, Producer("g", address) as producer:
        with pytest.raises(UnknownTopic, match="no broker makes topics by itself"):
            await producer.send(Message("other", b"x"))


async def test_a_master_that_left_its_slave_behind_is_missed() -> None:
    goodbye = BrokerHeader("a", "127.0.0.1:1", "C", 0)
    async with name_server_with(MASTER, SLAVE) as address:
        caller = Caller()
        await caller.call(address, Command.request(RequestCode.UNREGISTER_BROKER, goodbye), 5_000)
        await caller.close()
        async with Producer("g", address) as producer:
            for send in (producer.send, producer.send_oneway):
                with pytest.raises(SendFailed, match="no master of a is registered, only slaves"):
                    await send(Message("T", b"x"))
            with pytest.raises(SendFailed, match="no master of a is registered, only slaves"):
                await producer.send(Message("T", b"x", sharding_key="k"))
            assert await producer.publish_queues("T") == ()


async def test_a_producer_that_tries_again_at_once_hears_of_a_promoted_slave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "RETRY_INTERVAL_MS", 1)
    goodbye = BrokerHeader("a", "127.0.0.1:1", "C", 0)
    async with name_server_with(MASTER, SLAVE) as address:
        caller = Caller()
        await caller.call(address, Command.request(RequestCode.UNREGISTER_BROKER, goodbye), 5_000)
        async with Producer("g", address) as producer:
            with pytest.raises(SendFailed, match="only slaves"):
                await producer.send(Message("T", b"x"))
            promoted = RegisterBroker("a", SLAVE.broker_addr, "C", 0)
            await caller.call(address, Command.request(RequestCode.REGISTER_BROKER, promoted), 5_000)
            text, deadline = "only slaves", asyncio.get_running_loop().time() + 5
            while "only slaves" in text and asyncio.get_running_loop().time() < deadline:
                with pytest.raises(SendFailed) as failed:
                    await producer.send(Message("T", b"x"))
                text = str(failed.value)
            await caller.close()
            assert f"{SLAVE.broker_addr}: nothing listens there" in text

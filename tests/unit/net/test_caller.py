"""The calling side: one connection per address, made when needed, made again when lost, and not tried in vain."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from cosmodrome.codes import ResponseCode
from cosmodrome.config import NetConfig
from cosmodrome.errors import CallTimeout, ConfigError, ConnectionFailed
from cosmodrome.net.caller import Caller, _Link, refuse
from cosmodrome.net.connection import Connection
from cosmodrome.net.server import Server
from cosmodrome.wire.command import Command

TIMEOUT_MS = 30_000
ECHO = 1
NEVER_AGAIN_MS = 3_600_000


async def echo(_connection: Connection, command: Command) -> Command:
    return command.reply(fields=command.fields)


def request(**fields: str) -> Command:
    return Command.request(ECHO, fields=fields)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def serve(stack: AsyncExitStack, port: int = 0) -> Server:
    server = Server(echo, "127.0.0.1", port, config=NetConfig(shutdown_grace_ms=200))
    await server.start()
    stack.push_async_callback(server.close)
    return server


def make_caller(stack: AsyncExitStack, config: NetConfig | None = None) -> Caller:
    caller = Caller(config=config)
    stack.push_async_callback(caller.close)
    return caller


@pytest.fixture
def full_address() -> Iterator[str]:
    """An address whose queue of connections is full, so that a connect is neither taken nor refused."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        filling = [socket.socket() for _ in range(4)]
        for sock in filling:
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        for sock in filling:
            sock.close()


# --- connecting


async def test_calls_made_at_once_share_one_connection(stack: AsyncExitStack) -> None:
    server, caller = await serve(stack), make_caller(stack)
    assert caller.connected() == []
    calls = (caller.call(server.address, request(n=str(number)), TIMEOUT_MS) for number in range(20))
    replies = await asyncio.gather(*calls)
    assert [reply.fields["n"] for reply in replies] == [str(number) for number in range(20)]
    assert len(server.connections) == 1
    assert caller.connected() == [server.address]


async def test_each_address_has_its_own_connection(stack: AsyncExitStack) -> None:
    caller, servers = make_caller(stack), [await serve(stack) for _ in range(3)]
    for server in servers:
        await caller.call(server.address, request(), TIMEOUT_MS)
    assert sorted(caller.connected()) == sorted(server.address for server in servers)


async def test_a_lost_connection_is_made_again(stack: AsyncExitStack) -> None:
    server, caller = await serve(stack), make_caller(stack)
    await caller.call(server.address, request(), TIMEOUT_MS)
    (connection,) = server.connections
    connection.abort()
    await connection.lost.wait()
    for _ in range(3):  # the caller hears of it a moment later
        try:
            reply = await caller.call(server.address, request(a="b"), TIMEOUT_MS)
        except ConnectionFailed:
            continue
        break
    assert reply.fields == {"a": "b"}


async def test_those_who_ask_hear_of_connections_that_open_and_close(stack: AsyncExitStack) -> None:
    server = await serve(stack)
    opened: list[str] = []
    closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    caller = Caller(
        on_open=lambda connection: opened.append(connection.peer),
        on_close=lambda connection: closed.set_result(connection.peer),
    )
    stack.push_async_callback(caller.close)
    await caller.oneway(server.address, request())
    assert opened == [server.address]
    await server.close()
    assert await closed == server.address


# --- back-off


async def test_after_a_failure_calls_fail_at_once_until_the_back_off_is_over(stack: AsyncExitStack) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    caller = make_caller(stack, NetConfig(reconnect_initial_ms=NEVER_AGAIN_MS, reconnect_max_ms=NEVER_AGAIN_MS))
    with pytest.raises(ConnectionFailed) as refused:
        await caller.call(address, request(), TIMEOUT_MS)
    assert "next try" not in str(refused.value)
    server = await serve(stack, port)
    for _ in range(3):
        with pytest.raises(ConnectionFailed, match=r"next try in \d+"):
            await caller.call(address, request(), TIMEOUT_MS)
        with pytest.raises(ConnectionFailed, match=r"next try in \d+"):
            await caller.oneway(address, request())
    assert server.connections == set(), "nobody tried"
    other = await serve(stack)
    assert (await caller.call(other.address, request(), TIMEOUT_MS)).code == ResponseCode.SUCCESS


async def test_after_the_back_off_the_connection_is_tried_again(stack: AsyncExitStack) -> None:
    window_ms = 30
    port = free_port()
    caller = make_caller(stack, NetConfig(reconnect_initial_ms=window_ms))
    with pytest.raises(ConnectionFailed):
        await caller.call(f"127.0.0.1:{port}", request(), TIMEOUT_MS)
    server = await serve(stack, port)
    await asyncio.sleep(2 * window_ms / 1000)  # the back-off itself, not a wait for somebody
    assert (await caller.call(server.address, request(a="b"), TIMEOUT_MS)).fields == {"a": "b"}


async def test_the_back_off_doubles_up_to_its_limit_and_a_success_ends_it(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = NetConfig(reconnect_initial_ms=50, reconnect_max_ms=1_000)
    caller = make_caller(stack, config)
    address = f"127.0.0.1:{free_port()}"
    delays_ms: list[int] = []
    back_off = caller._back_off

    def recorded(link: _Link, now: float) -> None:
        back_off(link, now)
        delays_ms.append(round((link.retry_at - now) * 1000))
        link.retry_at = now

    monkeypatch.setattr(caller, "_back_off", recorded)
    for _ in range(7):
        with pytest.raises(ConnectionFailed):
            await caller.call(address, request(), TIMEOUT_MS)
    assert delays_ms == [50, 100, 200, 400, 800, 1_000, 1_000]
    server = await serve(stack, int(address.rpartition(":")[2]))
    await caller.call(server.address, request(), TIMEOUT_MS)
    assert caller._links[address].failures == 0


# --- deadlines


async def test_the_deadline_of_a_call_covers_connecting(stack: AsyncExitStack, full_address: str) -> None:
    caller = make_caller(stack, NetConfig(connect_timeout_ms=NEVER_AGAIN_MS))
    with pytest.raises(CallTimeout, match="within 30 ms"):
        await caller.call(full_address, request(), 30)


async def test_a_connect_that_is_not_answered_fails(stack: AsyncExitStack, full_address: str) -> None:
    caller = make_caller(stack, NetConfig(connect_timeout_ms=30))
    with pytest.raises(ConnectionFailed, match="no answer to the connect"):
        await caller.call(full_address, request(), TIMEOUT_MS)
    with pytest.raises(ConnectionFailed, match="no answer to the connect"):
        await caller.oneway(full_address, request())


async def test_a_caller_that_gives_up_does_not_spoil_it_for_the_others(stack: AsyncExitStack) -> None:
    server, caller = await serve(stack), make_caller(stack)
    impatient = asyncio.create_task(caller.call(server.address, request(), TIMEOUT_MS))
    patient = asyncio.create_task(caller.call(server.address, request(a="b"), TIMEOUT_MS))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).fields == {"a": "b"}


# --- addresses


@pytest.mark.parametrize(
    "address", ["", "localhost", "127.0.0.1:", ":9876", "127.0.0.1:http", "127.0.0.1:²", "127.0.0.1:-1"]
)
async def test_what_is_no_address_is_refused(stack: AsyncExitStack, address: str) -> None:
    with pytest.raises(ConnectionFailed, match="write host:port"):
        await make_caller(stack).call(address, request(), TIMEOUT_MS)


@pytest.mark.parametrize("address", ["127.0.0.1:65536", "127.0.0.1:99999999999"])
async def test_a_port_that_cannot_be_is_a_failed_connection(stack: AsyncExitStack, address: str) -> None:
    with pytest.raises(ConnectionFailed):
        await make_caller(stack).call(address, request(), TIMEOUT_MS)


async def test_a_name_that_cannot_be_looked_up_is_a_failed_connection(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = make_caller(stack)

    async def no_such_name(_address: str) -> Connection:
        raise UnicodeError("label empty or too long")

    monkeypatch.setattr(caller, "_open", no_such_name)
    with pytest.raises(ConnectionFailed, match="label empty"):
        await caller.call("a..b:9876", request(), TIMEOUT_MS)


# --- the end


async def test_closing_ends_the_connections_and_later_calls_fail(stack: AsyncExitStack) -> None:
    server, caller = await serve(stack), make_caller(stack)
    await caller.call(server.address, request(), TIMEOUT_MS)
    (connection,) = server.connections
    await caller.close()
    await connection.lost.wait()
    assert caller.connected() == []
    with pytest.raises(ConnectionFailed, match="closed"):
        await caller.call(server.address, request(), TIMEOUT_MS)


async def test_closing_while_connecting_fails_the_call(stack: AsyncExitStack, full_address: str) -> None:
    caller = make_caller(stack)
    call = asyncio.create_task(caller.call(full_address, request(), TIMEOUT_MS))
    await asyncio.sleep(0)
    await caller.close()
    with pytest.raises(ConnectionFailed, match="closed"):
        await call


async def test_closing_fails_calls_that_wait(stack: AsyncExitStack) -> None:
    async def silent(_connection: Connection, _command: Command) -> None:
        asked.set()

    asked = asyncio.Event()
    server = Server(silent, "127.0.0.1", 0)
    await server.start()
    stack.push_async_callback(server.close)
    caller = make_caller(stack)
    call = asyncio.create_task(caller.call(server.address, request(), TIMEOUT_MS))
    await asked.wait()
    await caller.close()
    with pytest.raises(ConnectionFailed):
        await call


# --- the server's own door


async def test_a_server_says_where_it_listens(stack: AsyncExitStack) -> None:
    server = await serve(stack)
    assert server.port != 0
    assert server.address == f"127.0.0.1:{server.port}"


async def test_a_port_in_use_is_named(stack: AsyncExitStack) -> None:
    server = await serve(stack)
    with pytest.raises(ConfigError, match=f"127.0.0.1:{server.port}"):
        await Server(refuse, "127.0.0.1", server.port).start()


async def test_a_server_that_never_started_closes() -> None:
    await Server(refuse, "127.0.0.1", 0).close()

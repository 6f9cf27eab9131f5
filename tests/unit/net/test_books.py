"""The sums over all connections: who goes when there is too much, and that a healthy peer does not."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import pytest_asyncio

from cosmodrome.codes import ResponseCode
from cosmodrome.config import KIB, MIB, NetConfig
from cosmodrome.net.books import Books, Holdings
from cosmodrome.net.connection import Connection, Handler
from cosmodrome.net.server import Server
from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import FrameDecoder

PATIENCE_SECONDS = 60
SMALL = NetConfig(
    max_frame_bytes=1 * MIB, max_unfinished_bytes=1 * MIB, max_waiting_bytes=1 * MIB, shutdown_grace_ms=200
)


class Peer:
    def __init__(self, name: str, *, is_reading: bool = True) -> None:
        self.peer = name
        self.is_reading = is_reading
        self.reasons: list[str] = []

    def drop(self, reason: str) -> None:
        self.reasons.append(reason)


# --- sums


def test_the_oldest_goes_when_there_is_too_much() -> None:
    holdings = Holdings("half a frame", "maxHalves", 100)
    a, b, c = Peer("a"), Peer("b"), Peer("c")
    holdings.keep(a, 50, 1.0)
    holdings.keep(b, 40, 2.0)
    holdings.keep(b, 50, 3.0)
    assert not a.reasons
    assert not b.reasons
    holdings.keep(c, 1, 4.0)
    assert a.reasons == ["50 bytes of half a frame, and with all others more than maxHalves=100"]
    assert not b.reasons
    assert not c.reasons
    assert (holdings.total_bytes, len(holdings)) == (51, 2)


def test_a_frame_that_begins_is_the_newest() -> None:
    holdings = Holdings("half a frame", "maxHalves", 100)
    busy, idle = Peer("busy"), Peer("idle")
    holdings.keep(busy, 40, 1.0)
    holdings.keep(idle, 40, 2.0)
    for number in range(10):
        holdings.keep(busy, 60 - number, 3.0, is_new=True)
    assert not idle.reasons
    holdings.keep(busy, 61, 4.0)
    assert idle.reasons
    assert not busy.reasons


def test_what_is_forgotten_does_not_count() -> None:
    holdings = Holdings("half a frame", "maxHalves", 100)
    a, b = Peer("a"), Peer("b")
    holdings.keep(a, 100, 1.0)
    holdings.forget(a)
    holdings.forget(a)
    holdings.keep(b, 100, 2.0)
    assert not a.reasons
    assert not b.reasons
    assert holdings.total_bytes == 100


async def test_connections_have_a_limit_for_each_host_and_for_all() -> None:
    books = Books(NetConfig(max_connections=3, max_connections_per_host=2))
    assert [books.admit("a"), books.admit("a"), books.admit("a")] == [True, True, False]
    assert [books.admit("b"), books.admit("c")] == [True, False]
    books.dismiss("a")
    assert [books.admit("c"), books.admit("b")] == [True, False]
    assert len(books) == 3


# --- over sockets


class Stage:
    """A server and plain sockets to it."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def serve(self, handler: Handler, config: NetConfig) -> Server:
        self.server = Server(handler, "127.0.0.1", 0, config=config)
        await self.server.start()
        self._stack.push_async_callback(self.server.close)
        return self.server

    async def dial(self) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        self._stack.callback(sock.close)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.server.port))
        return sock


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(stack)


async def echo(_connection: Connection, command: Command) -> Command:
    return command.reply()


async def send(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)


async def ended(sock: socket.socket) -> None:
    """Return when the server has closed the connection; it has said nothing."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
        except ConnectionResetError:
            pass


async def answered(sock: socket.socket) -> int:
    """Return the code of the answer to a whole request."""
    await send(sock, Command.request(7, fields={}).encode())
    decoder = FrameDecoder()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (frame := decoder.take()) is None:
            data = await asyncio.get_running_loop().sock_recv(sock, 64 * KIB)
            assert data, "closed instead of answered"
            decoder.feed(data)
    return Command.decode(frame).code


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def half_frame(size: int) -> bytes:
    return struct.pack(">II", 1 * MIB - 4, 100) + bytes(size - 8)


async def test_the_figures_tell_connections_and_those_turned_away() -> None:
    books = Books(replace(NetConfig(), max_connections=2, max_connections_per_host=1))
    assert [books.admit(host) for host in ("a", "a", "b", "c")] == [True, False, True, False]
    figures = books.figures()
    assert (figures["connections"], figures["connectionsTurnedAway"]) == (2, 2)


async def test_half_frames_together_stay_within_their_budget(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    server = await stage.serve(echo, SMALL)
    healthy = await stage.dial()
    halves = []
    for _ in range(6):
        halves.append(await stage.dial())
        await send(halves[-1], half_frame(400 * KIB))
        books = server._books
        assert books is not None
        size = min(len(halves), 2) * 400 * KIB
        await until(lambda size=size, books=books: books.unfinished.total_bytes == size)  # type: ignore[misc]
        assert await answered(healthy) == ResponseCode.SUCCESS
    for sock in halves[:4]:
        await ended(sock)
    assert len(server.connections) == 3
    assert "more than maxUnfinishedBytes=1048576" in caplog.text


async def test_a_frame_has_a_deadline_which_bytes_do_not_put_off(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.serve(echo, replace(SMALL, frame_timeout_ms=300))
    slow, healthy = await stage.dial(), await stage.dial()

    async def trickle() -> None:
        for byte in half_frame(1 * MIB):
            await send(slow, bytes([byte]))
            await asyncio.sleep(0.02)

    trickling = asyncio.create_task(trickle())
    await ended(slow)
    trickling.cancel()
    await asyncio.gather(trickling, return_exceptions=True)
    assert "frameTimeoutMs" in caplog.text
    assert await answered(healthy) == ResponseCode.SUCCESS


async def test_a_deadline_is_of_one_frame_not_of_many(stage: Stage) -> None:
    """A busy connection nearly always has a part of the next frame; that is no fault."""
    server = await stage.serve(echo, replace(SMALL, frame_timeout_ms=1_500))
    busy, late = await stage.dial(), await stage.dial()
    await send(late, half_frame(100))
    whole = Command.request(7, fields={}).encode()
    await send(busy, whole[:10])
    ending = asyncio.create_task(ended(late))  # begun before the first of the busy one, and as long as all of it
    while not ending.done():
        await send(busy, whole[10:] + whole[:10])
        await asyncio.sleep(0.01)
    await ending
    assert len(server.connections) == 1


async def test_a_frame_that_we_keep_waiting_has_no_deadline(stage: Stage) -> None:
    gate = asyncio.Event()

    async def wait(_connection: Connection, command: Command) -> Command:
        await gate.wait()
        return command.reply()

    server = await stage.serve(wait, replace(SMALL, frame_timeout_ms=100, max_handlers_per_connection=1))
    peer, late = await stage.dial(), await stage.dial()
    whole = Command.request(7, fields={}).encode()
    await send(peer, whole + whole + whole[:10])
    await until(lambda: any(connection._tasks for connection in server.connections))
    await send(late, half_frame(100))
    await ended(late)  # so the time of the other is over, too
    gate.set()
    await send(peer, whole[10:])
    decoder = FrameDecoder()
    codes: list[int] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(codes) < 3:
            decoder.feed(await asyncio.get_running_loop().sock_recv(peer, 64 * KIB))
            codes += [Command.decode(frame).code for frame in iter(decoder.take, None)]
    assert codes == [ResponseCode.SUCCESS] * 3


async def test_the_time_in_which_we_did_not_read_counts_for_no_frame(stage: Stage) -> None:
    """Its deadline begins again when we read again, not only if it comes while we do not."""
    gate = asyncio.Event()

    async def wait(_connection: Connection, command: Command) -> Command:
        await gate.wait()
        return command.reply()

    server = await stage.serve(wait, replace(SMALL, max_handlers_per_connection=1))
    books = server._books
    assert books is not None
    peer = await stage.dial()
    whole = Command.request(7, fields={}).encode()
    await send(peer, whole + whole[:10])
    await until(lambda: len(books.unfinished) == 1)
    ((connection, _),) = books.unfinished.oldest()
    assert not connection.is_reading
    resumed = asyncio.get_running_loop().time()
    gate.set()
    await until(lambda: connection.is_reading)
    await asyncio.sleep(0)
    ((_, began),) = books.unfinished.oldest()
    assert began >= resumed


async def test_a_peer_that_reads_nothing_more_is_dropped_though_its_connection_closes(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """A closing connection keeps its unsent bytes until they are read."""

    async def tell_much(_connection: Connection, command: Command) -> Command:
        return command.reply(body=bytes(12 * MIB))

    limits = replace(SMALL, write_limit_bytes=16 * MIB, max_unsent_bytes=16 * MIB, stalled_peer_ms=60_000)
    server = await stage.serve(tell_much, limits)
    first, second = await stage.dial(), await stage.dial()
    await send(first, Command.request(7, fields={}).encode())
    await until(lambda: any(connection.is_stalled for connection in server.connections))
    (closing,) = (connection for connection in server.connections if connection.is_stalled)
    closing.close()
    await send(second, Command.request(7, fields={}).encode())
    await until(lambda: closing not in server.connections)
    assert "more than maxUnsentBytes" in caplog.text
    assert len(server.connections) == 1


async def test_connections_beyond_the_limit_are_closed_and_others_served(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    server = await stage.serve(echo, replace(SMALL, max_connections_per_host=3))
    first = [await stage.dial() for _ in range(3)]
    await until(lambda: len(server.connections) == 3)
    for _ in range(3):
        await ended(await stage.dial())
    assert [await answered(sock) for sock in first] == [ResponseCode.SUCCESS] * 3
    assert "maxConnectionsPerHost allows no more" in caplog.text
    first[0].close()
    await until(lambda: len(server.connections) == 2)
    assert await answered(await stage.dial()) == ResponseCode.SUCCESS


async def test_the_servers_of_a_daemon_share_their_books(stage: Stage) -> None:
    books = Books(replace(SMALL, max_connections=2))
    for _ in range(2):
        server = Server(echo, "127.0.0.1", 0, config=SMALL, books=books)
        await server.start()
        stage._stack.push_async_callback(server.close)
        stage.server = server
        assert await answered(await stage.dial()) == ResponseCode.SUCCESS
    assert len(books) == 2
    await ended(await stage.dial())


async def test_long_requests_that_wait_are_bounded_together(stage: Stage) -> None:
    """Ten megabytes are sent; what waits here is one megabyte, and one request more of each connection."""
    gate = asyncio.Event()
    most = 0

    async def wait(_connection: Connection, command: Command) -> Command:
        nonlocal most
        await gate.wait()
        return command.reply()

    server = await stage.serve(wait, SMALL)
    books = server._books
    assert books is not None
    request = Command.request(7, fields={}, body=bytes(256 * KIB)).encode()
    peers = [await stage.dial() for _ in range(4)]
    sending = [asyncio.create_task(send(peer, request * 10)) for peer in peers]
    await until(lambda: books.has_much_waiting)
    for _ in range(50):
        await asyncio.sleep(0.001)
        most = max(most, books.waiting_bytes)
    assert most <= 1 * MIB + len(peers) * 256 * KIB
    gate.set()
    decoders = [FrameDecoder() for _ in peers]
    for peer, decoder in zip(peers, decoders, strict=True):
        count = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while count < 10:
                decoder.feed(await asyncio.get_running_loop().sock_recv(peer, 64 * KIB))
                count += len(list(iter(decoder.take, None)))
    await asyncio.gather(*sending)
    await until(lambda: books.waiting_bytes == 0)

"""One connection over a real socket: who is answered, in what order, and what a bad peer can and can't do."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from cosmodrome.codes import ResponseCode
from cosmodrome.config import NetConfig
from cosmodrome.errors import CallTimeout, ConnectionFailed, ProtocolError
from cosmodrome.net.caller import Caller, refuse
from cosmodrome.net.connection import Connection, Handler
from cosmodrome.net.lane import OWNER
from cosmodrome.net.server import Server
from cosmodrome.release import ReleaseGroup
from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import BINARY, FrameDecoder

TIMEOUT_MS = 30_000
ECHO, WAIT, FAIL, LARGE, CALL_BACK = 1, 2, 3, 4, 5
LARGE_BYTES = 32 * 1024
SMALL_SOCKET_BYTES = 16 * 1024
CALM = NetConfig()
SMALL = NetConfig(write_high_water_bytes=64 * 1024, write_limit_bytes=256 * 1024)


class WatchedTransport:
    """A transport that tells what is done with it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.writes: list[int] = []
        self.paused = asyncio.Event()
        self.resumed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self.writes.append(len(data))
        self._transport.write(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self.writes.append(sum(map(len, pieces)))
        self._transport.writelines(pieces)

    def pause_reading(self) -> None:
        self.paused.set()
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self.resumed.set()
        self._transport.resume_reading()


def shrink_buffers(connection: Connection) -> None:
    """So that a peer which does not read is felt soon."""
    sock = connection._transport.get_extra_info("socket")
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, buffer, SMALL_SOCKET_BYTES)


class Served:
    """A server, and what it knows of its connections in the order they came."""

    def __init__(self, handler: Handler, config: NetConfig) -> None:
        self.server = Server(handler, "127.0.0.1", 0, config=config, on_open=self._opened)
        self.connections: list[Connection] = []
        self.transports: list[WatchedTransport] = []
        self.opened: asyncio.Queue[Connection] = asyncio.Queue()

    def _opened(self, connection: Connection) -> None:
        watched = WatchedTransport(connection._transport)
        shrink_buffers(connection)
        connection._transport = watched  # type: ignore[assignment]
        self.connections.append(connection)
        self.transports.append(watched)
        self.opened.put_nowait(connection)


class RawPeer:
    """The other end as plain bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = FrameDecoder()

    async def send(self, *commands: Command) -> None:
        await self.send_bytes(b"".join(command.encode() for command in commands))

    async def send_bytes(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def receive(self) -> Command:
        """The next command; EOFError when the connection ended."""
        while (frame := self._decoder.take()) is None:
            data = await asyncio.get_running_loop().sock_recv(self._sock, 1 << 16)
            if not data:
                raise EOFError
            self._decoder.feed(data)
        return Command.decode(frame)

    async def receive_all(self) -> list[Command]:
        """Everything until the connection ends."""
        received = []
        try:
            while True:
                received.append(await self.receive())
        except (EOFError, ConnectionResetError):
            return received

    def close(self) -> None:
        self._sock.close()


class Stage:
    """Starts servers and peers, and ends them with the test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def serve(self, handler: Handler, config: NetConfig = CALM) -> Served:
        served = Served(handler, replace(config, shutdown_grace_ms=min(config.shutdown_grace_ms, 200)))
        await served.server.start()
        self._stack.push_async_callback(served.server.close)
        return served

    async def raw(self, served: Served) -> RawPeer:
        """A peer that the server knows of."""
        peer = await self.dial(served)
        await served.opened.get()
        return peer

    async def dial(self, served: Served) -> RawPeer:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_SOCKET_BYTES)
        self._stack.callback(sock.close)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", served.server.port))
        return RawPeer(sock)

    def caller(self, handler: Handler = refuse, config: NetConfig = CALM) -> Caller:
        caller = Caller(handler, config=replace(config, shutdown_grace_ms=200), on_open=shrink_buffers)
        self._stack.push_async_callback(caller.close)
        return caller


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(stack)


async def echo(_connection: Connection, command: Command) -> Command:
    return command.reply(fields=command.fields, body=command.body)


def request(code: int, opaque: int = 0, *, oneway: bool = False, body: bytes = b"", **fields: str) -> Command:
    command = Command.request(code, body=body, oneway=oneway, fields=fields)
    command.opaque = opaque
    return command


def opaques(commands: Iterable[Command]) -> list[int]:
    return [command.opaque for command in commands]


class Gate:
    """A handler that holds every request of code WAIT until it is opened, and echoes the others."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.entered: list[int] = []
        self.left: list[int] = []
        self.cancelled: list[int] = []
        self.first = asyncio.Event()
        self._changed = asyncio.Event()

    async def wait_entered(self, count: int) -> None:
        """Return once so many requests are held: a busy machine hands them over in more than one turn."""
        while len(self.entered) < count:
            self._changed.clear()
            await self._changed.wait()

    async def __call__(self, connection: Connection, command: Command) -> Command:
        if command.code != WAIT:
            return await echo(connection, command)
        self.entered.append(command.opaque)
        self.first.set()
        self._changed.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled.append(command.opaque)
            raise
        self.left.append(command.opaque)
        return await echo(connection, command)


# --- answering


async def test_long_work_for_a_connection_is_known_to_be_its_own(stage: Stage) -> None:
    """Also after a wait, when others have been served."""
    owners: list[tuple[str, object, object]] = []

    async def note(connection: Connection, command: Command) -> Command:
        first = OWNER.get()
        await asyncio.sleep(0)
        owners.append((connection.peer, first, OWNER.get()))
        return command.reply()

    served = await stage.serve(note)
    peers = [await stage.raw(served) for _ in range(3)]
    for peer in peers:
        await peer.send(request(ECHO, 1), request(ECHO, 2))
    for peer in peers:
        assert opaques([await peer.receive(), await peer.receive()]) == [1, 2]
    assert len({name for name, _, _ in owners}) == 3
    assert all(name == first == then for name, first, then in owners)


async def test_all_requests_of_one_read_are_answered_in_one_write(stage: Stage) -> None:
    served = await stage.serve(echo)
    peer = await stage.raw(served)
    await peer.send(*(request(ECHO, number) for number in range(1, 51)))
    assert opaques([await peer.receive() for _ in range(50)]) == list(range(1, 51))
    assert len(served.transports[0].writes) == 1


async def test_late_answers_of_one_moment_share_a_write(stage: Stage) -> None:
    gate = Gate()
    served = await stage.serve(gate)
    peer = await stage.raw(served)
    await peer.send(*(request(WAIT, number) for number in range(1, 21)))
    await gate.wait_entered(20)
    gate.opened.set()
    assert opaques([await peer.receive() for _ in range(20)]) == list(range(1, 21))
    assert len(served.transports[0].writes) == 1


async def test_large_answers_are_not_gathered_without_end(stage: Stage) -> None:
    served = await stage.serve(large_replies)
    peer = await stage.raw(served)
    await peer.send(*(request(LARGE, number) for number in range(10)))
    replies = [await peer.receive() for _ in range(10)]
    assert opaques(replies) == list(range(10))
    assert all(len(reply.body) == LARGE_BYTES for reply in replies)
    assert max(served.transports[0].writes) < 4 * LARGE_BYTES


async def test_answers_come_when_they_are_ready_and_carry_their_opaque(stage: Stage) -> None:
    gate = Gate()
    served = await stage.serve(gate)
    peer = await stage.raw(served)
    await peer.send(request(WAIT, 1), request(ECHO, 2), request(WAIT, -3), request(ECHO, 4))
    assert opaques([await peer.receive(), await peer.receive()]) == [2, 4]
    gate.opened.set()
    assert opaques([await peer.receive(), await peer.receive()]) == [1, -3]


async def test_answers_are_encoded_like_their_requests(stage: Stage) -> None:
    served = await stage.serve(echo)
    peer = await stage.raw(served)
    binary = Command(ECHO, {"a": "b"}, opaque=1, serializer=BINARY)
    await peer.send(binary, request(ECHO, 2))
    assert [(await peer.receive()).serializer for _ in range(2)] == [BINARY, 0]


@pytest.mark.parametrize("code", [ECHO, FAIL, WAIT, 77])
async def test_a_oneway_request_gets_no_answer_whatever_becomes_of_it(stage: Stage, code: int) -> None:
    async def handler(connection: Connection, command: Command) -> Command:
        if command.code == FAIL:
            raise ValueError("broken")
        if command.code == WAIT:
            await asyncio.sleep(0)
            raise ValueError("broken later")
        return await (echo if command.code == ECHO else refuse)(connection, command)

    served = await stage.serve(handler)
    peer = await stage.raw(served)
    await peer.send(request(code, 1, oneway=True))
    await peer.send(request(ECHO, 2))
    assert (await peer.receive()).opaque == 2
    await served.server.close()
    assert await peer.receive_all() == []


async def test_a_handler_may_choose_not_to_answer(stage: Stage) -> None:
    async def silent_or_echo(connection: Connection, command: Command) -> Command | None:
        return None if command.code == WAIT else await echo(connection, command)

    served = await stage.serve(silent_or_echo)
    peer = await stage.raw(served)
    await peer.send(request(WAIT, 1), request(ECHO, 2))
    assert (await peer.receive()).opaque == 2


async def test_an_unknown_code_is_answered_with_not_supported(stage: Stage) -> None:
    served = await stage.serve(refuse)
    reply = await stage.caller().call(served.server.address, request(4711), TIMEOUT_MS)
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "4711" in (reply.remark or "")


# --- handlers that break down


async def broken_at_once(_connection: Connection, _command: Command) -> Command:
    raise ValueError("broken")


async def broken_later(_connection: Connection, _command: Command) -> Command:
    await asyncio.sleep(0)
    raise ValueError("broken")


async def broken_by_a_body(_connection: Connection, _command: Command) -> Command:
    raise ProtocolError("not a heartbeat")


async def broken_by_a_cancelled_future(_connection: Connection, _command: Command) -> Command:
    waiter: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
    waiter.cancel()
    return await waiter


async def unsendable(_connection: Connection, command: Command) -> Command:
    return command.reply(0x123456789 if command.serializer == BINARY else 0, fields={"a": "\ud800"})


@pytest.mark.parametrize(
    "handler", [broken_at_once, broken_later, broken_by_a_body, broken_by_a_cancelled_future, unsendable]
)
async def test_a_broken_handler_is_answered_for_and_the_others_go_on(
    stage: Stage, handler: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    async def some_broken(connection: Connection, command: Command) -> Command | None:
        answering = (handler if command.code == FAIL else echo)(connection, command)
        return await answering if isinstance(answering, Coroutine) else answering

    served = await stage.serve(some_broken)
    peer = await stage.raw(served)
    await peer.send(request(ECHO, 1), request(FAIL, 2), request(ECHO, 3))
    replies = {reply.opaque: reply for reply in [await peer.receive() for _ in range(3)]}
    assert replies[1].code == replies[3].code == ResponseCode.SUCCESS
    assert replies[2].code == ResponseCode.SYSTEM_ERROR
    assert "broken" not in (replies[2].remark or ""), "what broke is nobody's business but ours"
    assert "request 3 (opaque 2)" in caplog.text


# --- handlers that wait


async def test_a_handler_may_wait_many_times_for_many_things(stage: Stage) -> None:
    async def patient(_connection: Connection, command: Command) -> Command:
        steps = []
        await asyncio.sleep(0)
        steps.append("turn")
        async with asyncio.timeout(30):
            steps.append(await asyncio.to_thread(lambda: "thread"))
        with pytest.raises(KeyError):
            await failing_soon(KeyError("expected"))
        steps.append("error")
        steps += await asyncio.gather(later("a"), later("b"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        return command.reply(remark=" ".join(steps))

    served = await stage.serve(patient)
    reply = await stage.caller().call(served.server.address, request(WAIT), TIMEOUT_MS)
    assert reply.remark == "turn thread error a b"


async def later(value: str) -> str:
    await asyncio.sleep(0)
    return value


async def failing_soon(error: Exception) -> None:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(waiter.set_exception, error)
    await waiter


async def test_what_a_handler_waits_for_first_may_fail(stage: Stage) -> None:
    async def saved_by_the_bell(_connection: Connection, command: Command) -> Command:
        try:
            await failing_soon(KeyError("bell"))
        except KeyError as error:
            return command.reply(remark=str(error))
        raise AssertionError("not reached")

    served = await stage.serve(saved_by_the_bell)
    reply = await stage.caller().call(served.server.address, request(WAIT), TIMEOUT_MS)
    assert reply.remark == "'bell'"


async def test_what_a_handler_waits_for_may_come_before_its_task_runs(stage: Stage) -> None:
    waiters: list[asyncio.Future[None]] = []

    async def woken_by_the_next(_connection: Connection, command: Command) -> Command:
        if waiters:
            waiters.pop().set_result(None)
        else:
            waiters.append(asyncio.get_running_loop().create_future())
            await waiters[0]
        return command.reply()

    served = await stage.serve(woken_by_the_next)
    peer = await stage.raw(served)
    await peer.send(request(WAIT, 1), request(WAIT, 2))
    assert opaques([await peer.receive(), await peer.receive()]) == [2, 1]


async def test_a_full_house_takes_no_more_requests_until_one_leaves(stage: Stage) -> None:
    gate = Gate()
    served = await stage.serve(gate, NetConfig(max_handlers_per_connection=2))
    peer = await stage.raw(served)
    await peer.send(*(request(WAIT, number) for number in range(1, 6)), request(ECHO, 6))
    await served.transports[0].paused.wait()
    assert gate.entered == [1, 2]
    gate.opened.set()
    assert sorted(opaques([await peer.receive() for _ in range(6)])) == [1, 2, 3, 4, 5, 6]
    assert gate.entered == [1, 2, 3, 4, 5]
    assert served.transports[0].resumed.is_set()


async def test_what_a_full_house_does_not_take_stays_with_the_peer(stage: Stage) -> None:
    gate = Gate()
    served = await stage.serve(gate, NetConfig(max_handlers_per_connection=1))
    peer = await stage.raw(served)
    count, body = 200, bytes(LARGE_BYTES)
    sending = asyncio.create_task(peer.send(*(request(WAIT, number, body=body) for number in range(count))))
    await served.transports[0].paused.wait()
    assert not sending.done(), "the sockets' buffers are full, and nobody empties them"
    assert served.connections[0]._decoder.pending_bytes < 16 * LARGE_BYTES
    gate.opened.set()
    assert opaques([await peer.receive() for _ in range(count)]) == list(range(count))
    await sending


async def test_other_connections_are_served_while_one_is_full(stage: Stage) -> None:
    gate = Gate()
    served = await stage.serve(gate, NetConfig(max_handlers_per_connection=1))
    full = await stage.raw(served)
    await full.send(request(WAIT, 1), request(ECHO, 2))
    await served.transports[0].paused.wait()
    reply = await stage.caller().call(served.server.address, request(ECHO, a="b"), TIMEOUT_MS)
    assert reply.fields == {"a": "b"}


# --- calling


async def test_both_sides_may_ask_at_once_with_the_same_opaque(stage: Stage) -> None:
    async def asks_back(connection: Connection, command: Command) -> Command:
        answer = await connection.call(request(CALL_BACK, question="server"), TIMEOUT_MS)
        assert answer.opaque == command.opaque == 1
        return command.reply(remark=f"{answer.remark} and {command.fields['question']}")

    async def client_side(_connection: Connection, command: Command) -> Command:
        assert command.opaque == 1
        return command.reply(remark=f"asked by {command.fields['question']}")

    served = await stage.serve(asks_back)
    reply = await stage.caller(client_side).call(served.server.address, request(ECHO, question="client"), TIMEOUT_MS)
    assert reply.remark == "asked by server and client"
    assert len(served.connections) == 1


async def test_a_server_may_send_oneway_requests_to_its_clients(stage: Stage) -> None:
    noticed: asyncio.Future[Command] = asyncio.get_running_loop().create_future()

    async def client_side(_connection: Connection, command: Command) -> None:
        noticed.set_result(command)

    served = await stage.serve(echo)
    await stage.caller(client_side).call(served.server.address, request(ECHO), TIMEOUT_MS)
    served.connections[0].send(request(40, oneway=True, consumerGroup="g"))
    assert (await noticed).fields == {"consumerGroup": "g"}


async def test_many_calls_share_a_connection_and_get_their_own_replies(stage: Stage) -> None:
    async def shuffled(connection: Connection, command: Command) -> Command:
        for _ in range(int(command.fields["turns"])):
            await asyncio.sleep(0)
        return await echo(connection, command)

    served = await stage.serve(shuffled)
    caller = stage.caller()
    calls = [request(ECHO, turns=str(number * 7 % 10), name=str(number)) for number in range(100)]
    replies = await asyncio.gather(*(caller.call(served.server.address, call, TIMEOUT_MS) for call in calls))
    assert [reply.fields["name"] for reply in replies] == [str(number) for number in range(100)]
    assert len(served.connections) == 1


async def test_a_deadline_ends_the_call_and_not_the_connection(stage: Stage) -> None:
    gate = Gate()
    served = await stage.serve(gate)
    caller = stage.caller()
    with pytest.raises(CallTimeout, match=r"did not answer within \d+ ms"):
        await caller.call(served.server.address, request(WAIT), 20)
    gate.opened.set()  # its answer comes late and is nobody's
    reply = await caller.call(served.server.address, request(ECHO, a="b"), TIMEOUT_MS)
    assert reply.fields == {"a": "b"}
    assert len(served.connections) == 1


async def test_a_reply_that_nobody_waits_for_is_ignored(stage: Stage) -> None:
    served = await stage.serve(echo)
    peer = await stage.raw(served)
    await peer.send(request(ECHO, 99).reply(), request(ECHO, 1))
    assert (await peer.receive()).opaque == 1


async def test_a_lost_connection_fails_all_its_calls_at_once(stage: Stage) -> None:
    gate = Gate()
    served = await stage.serve(gate)
    caller = stage.caller()
    calls = [asyncio.create_task(caller.call(served.server.address, request(WAIT), 60_000)) for _ in range(10)]
    while len(gate.entered) < len(calls):
        await gate.first.wait()
        await asyncio.sleep(0)
    served.connections[0].abort()
    for failed in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(failed, ConnectionFailed)
        assert "connection lost" in str(failed)
    gate.opened.set()
    assert (await caller.call(served.server.address, request(ECHO), TIMEOUT_MS)).code == ResponseCode.SUCCESS
    assert len(served.connections) == 2


async def test_calls_on_a_closed_connection_fail(stage: Stage) -> None:
    served = await stage.serve(echo)
    peer = await stage.raw(served)
    await peer.send(request(ECHO, 1))
    await peer.receive()
    connection = served.connections[0]
    connection.close()
    assert connection.closed
    with pytest.raises(ConnectionFailed):
        await connection.call(request(ECHO), TIMEOUT_MS)
    with pytest.raises(ConnectionFailed):
        await connection.oneway(request(ECHO))
    connection.send(request(ECHO))  # dropped
    connection.close()  # twice is harmless
    assert await peer.receive_all() == []


async def test_waiting_calls_are_limited(stage: Stage) -> None:
    gate = Gate()
    served = await stage.serve(gate)
    caller = stage.caller(config=NetConfig(max_in_flight=2))
    calls = [asyncio.create_task(caller.call(served.server.address, request(WAIT), TIMEOUT_MS)) for _ in range(2)]
    await gate.first.wait()
    with pytest.raises(ConnectionFailed, match="2 calls are already waiting"):
        await caller.call(served.server.address, request(ECHO), TIMEOUT_MS)
    gate.opened.set()
    await asyncio.gather(*calls)
    assert (await caller.call(served.server.address, request(ECHO), TIMEOUT_MS)).code == ResponseCode.SUCCESS


# --- bad peers


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(8),
        bytes.fromhex("7fffffff 00000010"),
        bytes.fromhex("80000000 00000000"),
        bytes.fromhex("00000008 00000004") + b"[1,2",
        bytes.fromhex("00000008 09000004") + b"abcd",
        bytes.fromhex("00000008 01000004") + b"abcd",
    ],
)
async def test_garbage_ends_the_connection_after_what_came_before_it(stage: Stage, garbage: bytes) -> None:
    served = await stage.serve(echo)
    peer = await stage.raw(served)
    other = await stage.raw(served)
    await peer.send_bytes(request(ECHO, 1).encode() + garbage + request(ECHO, 2).encode())
    assert opaques(await peer.receive_all()) == [1]
    await other.send(request(ECHO, 3))
    assert (await other.receive()).opaque == 3


async def test_half_a_frame_and_then_the_end_is_no_trouble(stage: Stage) -> None:
    served = await stage.serve(echo)
    peer = await stage.raw(served)
    await peer.send_bytes(request(ECHO, 1).encode() + request(ECHO, 2).encode()[:20])
    assert (await peer.receive()).opaque == 1
    peer.close()
    await served.connections[0].lost.wait()
    assert served.server.connections == set()


async def large_replies(_connection: Connection, command: Command) -> Command:
    return command.reply(body=bytes(LARGE_BYTES))


async def test_a_peer_that_does_not_read_is_paused_and_then_dropped(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    handled = 0

    async def counting(connection: Connection, command: Command) -> Command:
        nonlocal handled
        handled += 1
        return await large_replies(connection, command)

    served = await stage.serve(counting, replace(SMALL, stalled_peer_ms=200))
    peer = await stage.raw(served)
    await peer.send(*(request(LARGE, number) for number in range(500)))
    await served.transports[0].paused.wait()
    await served.connections[0].lost.wait()
    assert handled < 50, "requests were taken although their answers had nowhere to go"
    assert served.transports[0].get_write_buffer_size() == 0
    assert "it does not read" in caplog.text


async def test_a_peer_that_reads_again_gets_everything(stage: Stage) -> None:
    served = await stage.serve(large_replies, SMALL)
    peer = await stage.raw(served)
    await peer.send(*(request(LARGE, number) for number in range(100)))
    await served.transports[0].paused.wait()
    assert opaques([await peer.receive() for _ in range(100)]) == list(range(100))
    assert served.transports[0].resumed.is_set()
    await peer.send(request(LARGE, 100))
    assert (await peer.receive()).opaque == 100


async def test_answers_that_come_late_to_a_stalled_peer_are_limited(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    count = 1_000
    gate, all_wait = asyncio.Event(), asyncio.Event()

    async def late(connection: Connection, command: Command) -> Command:
        if command.opaque == count - 1:
            all_wait.set()
        await gate.wait()
        return await large_replies(connection, command)

    served = await stage.serve(late, SMALL)
    peer = await stage.raw(served)
    await peer.send(*(request(LARGE, number) for number in range(count)))
    await all_wait.wait()
    gate.set()
    await served.connections[0].lost.wait()
    handed_over = sum(served.transports[0].writes)
    assert handed_over < 3 * SMALL.write_limit_bytes < count * LARGE_BYTES
    assert "it does not read" in caplog.text


async def test_a_peer_that_does_not_read_its_last_replies_is_gone_after_the_idle_time(stage: Stage) -> None:
    """Closing waits for what is unsent, but not forever."""
    served = await stage.serve(large_replies, NetConfig(idle_seconds=1))
    peer = await stage.raw(served)
    await peer.send(*(request(LARGE, number) for number in range(20)))
    await peer.send_bytes(b"garbage that closes the connection")
    await served.connections[0].lost.wait()
    assert served.server.connections == set()


async def test_an_idle_connection_is_closed(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    served = await stage.serve(echo, NetConfig(idle_seconds=1))
    peer = await stage.raw(served)
    await peer.send(request(ECHO, 1))
    assert opaques(await peer.receive_all()) == [1]
    assert re.search(r"idle for \d+ s", caplog.text)


async def test_two_sides_that_both_send_much_do_not_wait_for_each_other(stage: Stage) -> None:
    """With both directions full, each side must go on reading or neither would ever write again."""
    served = await stage.serve(echo, SMALL)
    caller = stage.caller(config=SMALL)
    body = bytes(LARGE_BYTES)
    calls = (caller.call(served.server.address, request(ECHO, body=body), 2 * TIMEOUT_MS) for _ in range(40))
    replies = await asyncio.gather(*calls)
    assert all(len(reply.body) == LARGE_BYTES for reply in replies)
    assert len(served.connections) == 1


# --- a server that does not read, seen from the calling side


class DeafServer:
    """Accepts connections and never reads."""

    def __init__(self) -> None:
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_SOCKET_BYTES)
        self._sock.bind(("127.0.0.1", 0))
        self._sock.listen()

    @property
    def address(self) -> str:
        host, port = self._sock.getsockname()
        return f"{host}:{port}"

    def close(self) -> None:
        self._sock.close()


async def flood(send: Callable[[], Awaitable[object]], sent: list[int]) -> None:
    while True:
        await send()
        sent.append(1)


async def test_oneway_commands_wait_for_a_peer_that_does_not_read(stage: Stage) -> None:
    deaf = DeafServer()
    caller = stage.caller(config=replace(SMALL, stalled_peer_ms=200))
    body = bytes(LARGE_BYTES)
    sent: list[int] = []
    with pytest.raises(ConnectionFailed):
        await flood(lambda: caller.oneway(deaf.address, request(ECHO, oneway=True, body=body)), sent)
    assert len(sent) * LARGE_BYTES < 16 * 1024 * 1024, "they were all taken into memory"
    deaf.close()


async def test_calls_wait_for_a_peer_that_does_not_read_until_their_deadline(stage: Stage) -> None:
    deaf = DeafServer()
    caller = stage.caller(config=SMALL)
    body = bytes(LARGE_BYTES)
    calls = (caller.call(deaf.address, request(ECHO, body=body), 300) for _ in range(1_000))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {CallTimeout}
    assert caller.connected() == [deaf.address], "a slow peer is no reason to drop the connection at once"
    deaf.close()


# --- the end


async def test_closing_answers_what_is_in_hand_and_takes_nothing_new(stage: Stage) -> None:
    gate = Gate()
    served = await stage.serve(gate, NetConfig(shutdown_grace_ms=5_000))
    served.server._config = NetConfig()
    peer = await stage.raw(served)
    await peer.send(request(WAIT, 1))
    await gate.first.wait()
    closing = asyncio.create_task(served.server.close())
    await served.transports[0].paused.wait()
    await peer.send(request(ECHO, 2))
    with pytest.raises(ConnectionRefusedError):
        await stage.dial(served)
    gate.opened.set()
    assert opaques(await peer.receive_all()) == [1]
    await closing
    assert gate.left == [1]
    assert served.server.connections == set()


async def test_a_handler_that_does_not_end_is_cancelled_after_the_grace(stage: Stage) -> None:
    gate = Gate()
    served = await stage.serve(gate, NetConfig(shutdown_grace_ms=50))
    peer = await stage.raw(served)
    await peer.send(request(WAIT, 1))
    await gate.first.wait()
    await served.server.close()
    assert gate.cancelled == [1]
    assert await peer.receive_all() == []


async def test_closing_does_not_wait_for_a_peer_that_does_not_read(stage: Stage) -> None:
    served = await stage.serve(large_replies, replace(SMALL, shutdown_grace_ms=50))
    peer = await stage.raw(served)
    await peer.send(*(request(LARGE, number) for number in range(100)))
    await served.transports[0].paused.wait()
    await served.server.close()
    assert served.server.connections == set()


async def test_closing_an_idle_server_ends_its_connections_and_twice_is_harmless(stage: Stage) -> None:
    served = await stage.serve(echo)
    peers = [await stage.raw(served) for _ in range(5)]
    for number, peer in enumerate(peers):
        await peer.send(request(ECHO, number))
        await peer.receive()
    await served.server.close()
    assert [await peer.receive_all() for peer in peers] == [[]] * 5
    await served.server.close()


async def test_a_connection_accepted_while_closing_is_not_left_over(stage: Stage) -> None:
    served = await stage.serve(echo)
    peers = [await stage.dial(served) for _ in range(20)]  # connected, but the server may not have seen them yet
    await served.server.close()
    assert [await peer.receive_all() for peer in peers] == [[]] * 20
    await asyncio.gather(*(connection.lost.wait() for connection in served.connections))
    assert served.server.connections == set()


# --- requests that are released together


async def test_requests_that_wait_for_one_group_need_no_task_and_leave_in_one_write(stage: Stage) -> None:
    group: ReleaseGroup[str] = ReleaseGroup()
    owners = []

    async def wait(_connection: Connection, command: Command) -> Command:
        remark = await group
        owners.append(OWNER.get())
        return command.reply(remark=remark)

    served = await stage.serve(wait)
    peer = await stage.raw(served)
    (connection,) = served.server.connections
    await peer.send(*(Command(code=1, opaque=opaque, fields={}) for opaque in range(5)))
    while len(connection._parked) < 5:  # noqa: ASYNC110 - nobody sets an event for it
        await asyncio.sleep(0)
    assert not connection._tasks
    group.release("stored")
    replies = [await peer.receive() for _ in range(5)]
    assert [(reply.opaque, reply.remark) for reply in replies] == [(opaque, "stored") for opaque in range(5)]
    assert len(served.transports[0].writes) == 1
    assert owners == [connection.peer] * 5
    assert OWNER.get() is None


async def test_a_released_request_may_wait_again_as_a_task_or_fail(stage: Stage) -> None:
    group: ReleaseGroup[str] = ReleaseGroup()

    async def wait(_connection: Connection, command: Command) -> Command:
        await group
        if command.opaque == 1:
            raise ValueError("broken")
        await asyncio.sleep(0)
        return command.reply()

    served = await stage.serve(wait)
    peer = await stage.raw(served)
    (connection,) = served.server.connections
    await peer.send(Command(code=1, opaque=1, fields={}), Command(code=1, opaque=2, fields={}))
    while len(connection._parked) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    group.release("stored")
    codes = {(reply := await peer.receive()).opaque: reply.code for _ in range(2)}
    assert codes == {1: ResponseCode.SYSTEM_ERROR, 2: ResponseCode.SUCCESS}


async def test_requests_that_wait_for_a_group_are_bounded_and_read_on_after_it(stage: Stage) -> None:
    groups: list[ReleaseGroup[None]] = []

    async def wait(_connection: Connection, command: Command) -> Command:
        groups.append(ReleaseGroup())
        await groups[-1]
        return command.reply()

    served = await stage.serve(wait, NetConfig(max_handlers_per_connection=2))
    peer = await stage.raw(served)
    (connection,) = served.server.connections
    await peer.send(*(Command(code=1, opaque=opaque, fields={}) for opaque in range(3)))
    await served.transports[0].paused.wait()
    assert len(connection._parked) == len(groups) == 2
    groups[0].release(True)  # type: ignore[arg-type]
    assert (await peer.receive()).opaque == 0
    while len(groups) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_closing_waits_for_groups_and_gives_up_those_that_are_not_released(stage: Stage) -> None:
    groups: list[ReleaseGroup[bool]] = []
    given_up = []

    async def wait(_connection: Connection, command: Command) -> Command:
        groups.append(ReleaseGroup())
        try:
            await groups[-1]
        except GeneratorExit:
            given_up.append(command.opaque)
            raise
        return command.reply()

    served = await stage.serve(wait)
    peer = await stage.raw(served)
    await peer.send(Command(code=1, opaque=1, fields={}), Command(code=1, opaque=2, fields={}))
    while len(groups) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    closing = asyncio.create_task(served.server.close())
    await asyncio.sleep(0)
    groups[0].release(True)
    await closing
    assert [reply.opaque for reply in await peer.receive_all()] == [1]
    assert given_up == [2]
    groups[1].release(True)  # too late, and of no harm

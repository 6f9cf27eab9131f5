"""A broker among bad peers: it goes on serving the good ones, and its memory stays bounded."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import resource
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from cosmodrome.broker.answer import PROCESSORS
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.net.caller import Caller
from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import FrameDecoder
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import PullFlag, PullMessage, QueueHeader, SendMessage
from tests.system.cluster import running_cluster
from tests.system.daemons import Daemon, up

TIMEOUT_MS = 30_000
PATIENCE_SECONDS = 180
TOPIC, FULL_TOPIC, GROUP = "Good", "Full", "good"
KIB, MIB = 1024, 1024 * 1024
PULL_COUNT = 32

DEFAULT_OPEN_FILES = 1_024  # what most systems give a process; the broker must help itself to more
IDLE_CONNECTIONS = 2_000
NEVER_READING = 4
PULLS_UNREAD = 3_000  # each worth 36 KB: 100 MB for every client that does not read
# What all the abuse below may cost together. Unbounded, the unread pulls alone would take 400 MB.
ALLOWED_GROWTH_BYTES = 60 * MIB


def send_request(topic: str, body: bytes, queue_id: int = 0) -> Command:
    header = SendMessage(GROUP, topic, "TBW102", 4, queue_id, 0, 1_700_000_000_000, 0)
    return Command.request(RequestCode.SEND_MESSAGE, header, body)


def pull_request(topic: str, offset: int) -> Command:
    header = PullMessage(GROUP, topic, 0, offset, PULL_COUNT, PullFlag.SUBSCRIPTION, 0, 0, subscription="*")
    return Command.request(RequestCode.PULL_MESSAGE, header)


def heap_bytes(pid: int) -> int:
    """Memory of its own; mapped store files are the page cache's business."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * KIB
    raise AssertionError("no RssAnon in /proc/<pid>/status")


class GoodClient:
    """Sends a message, pulls it back, compares; again and again, whatever the others do."""

    def __init__(self, address: str, pid: int) -> None:
        self._address = address
        self._pid = pid
        self._caller = Caller()
        self._round_done = asyncio.Condition()
        self.rounds = 0
        self.peak_bytes = 0

    async def run(self) -> None:
        while True:
            await self._exchange(f"message {self.rounds}".encode())
            self.peak_bytes = max(self.peak_bytes, heap_bytes(self._pid))
            self.rounds += 1
            async with self._round_done:
                self._round_done.notify_all()

    async def _exchange(self, body: bytes) -> None:
        sent = await self.ask(send_request(TOPIC, body))
        offset = int(sent.fields["queueOffset"])
        assert offset == self.rounds
        pulled = await self.ask(pull_request(TOPIC, offset))
        assert [record.body for record in decode_records(pulled.body)] == [body]

    async def ask(self, command: Command) -> Command:
        reply = await self._caller.call(self._address, command, TIMEOUT_MS)
        assert reply.code == ResponseCode.SUCCESS, reply
        return reply

    async def more_rounds(self, count: int = 5) -> None:
        """Return when so many more messages have gone back and forth."""
        wanted = self.rounds + count
        async with self._round_done:
            await self._round_done.wait_for(lambda: self.rounds >= wanted)

    async def close(self) -> None:
        await self._caller.close()


@asynccontextmanager
async def serving_others(address: str, pid: int) -> AsyncIterator[GoodClient]:
    """A good client at work; if it ever fails, so does the block."""
    client = GoodClient(address, pid)
    for _ in range(PULL_COUNT):
        for queue_id in (0, 1):  # in turn, so that the messages of a pull are gathered in memory and not in one piece
            await client.ask(send_request(FULL_TOPIC, bytes(KIB), queue_id))
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        working = tasks.create_task(client.run())
        await client.more_rounds(50)  # what a broker needs anyhow is not counted as growth
        yield client
        await client.more_rounds()
        working.cancel()
    await client.close()


class Sockets:
    """Plain connections to one address, closed at the end."""

    def __init__(self, address: str, stack: ExitStack) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._stack = stack

    async def connect(self, *, receive_buffer_bytes: int = 0) -> socket.socket:
        sock = self._stack.enter_context(socket.socket())
        sock.setblocking(False)
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(sock, self._address)
        return sock


async def send(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)


async def received_until_closed(sock: socket.socket) -> bytes:
    received = b""
    try:
        while data := await asyncio.get_running_loop().sock_recv(sock, 64 * KIB):
            received += data
    except ConnectionResetError:  # it closed with our bytes unread
        pass
    return received


async def receive_command(sock: socket.socket) -> Command:
    decoder = FrameDecoder()
    while (frame := decoder.take()) is None:
        data = await asyncio.get_running_loop().sock_recv(sock, 64 * KIB)
        assert data, "closed instead of answered"
        decoder.feed(data)
    return Command.decode(frame)


# --- the abuse


async def garbage(sockets: Sockets, client: GoodClient) -> None:
    """Bytes that are no frame, or frames that are no command: the connection is closed."""
    noise = random.Random(7)
    starts = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(64), b"\xff" * 64]
    starts += [noise.randbytes(noise.randrange(64, 4096)) for _ in range(40)]
    starts += [
        struct.pack(">II", 4 + len(header), len(header)) + header for header in (b"{", b"[]", noise.randbytes(99))
    ]
    for start in starts:
        sock = await sockets.connect()
        length = int.from_bytes(start[:4], "big")
        await send(sock, start if length < 16 or length > 16 * MIB else b"\x7f" + start)
        assert await received_until_closed(sock) == b""


async def half_frames(sockets: Sockets, client: GoodClient) -> None:
    """Frames of which half comes: some of these peers leave, some stay and say no more."""
    whole = send_request(TOPIC, bytes(100 * KIB)).encode()
    for number in range(60):
        sock = await sockets.connect()
        await send(sock, whole[: len(whole) // 2])
        if number % 2:
            sock.close()
    await client.more_rounds()


async def huge_length(sockets: Sockets, client: GoodClient) -> None:
    """2 GB announced: refused on sight, not waited for."""
    for length in (0x7FFFFFFF, 0x80000000, 16 * MIB + 1):
        sock = await sockets.connect()
        await send(sock, struct.pack(">II", length, 100))
        assert await received_until_closed(sock) == b""


async def never_reading(sockets: Sockets, client: GoodClient) -> None:
    """Pulls without end whose answers nobody reads: at some point the broker must stop taking them."""
    pulls = pull_request(FULL_TOPIC, 0).encode() * PULLS_UNREAD
    flooding = [
        asyncio.create_task(send(await sockets.connect(receive_buffer_bytes=16 * KIB), pulls))
        for _ in range(NEVER_READING)
    ]
    await client.more_rounds(100)
    for task in flooding:
        task.cancel()
    await asyncio.gather(*flooding, return_exceptions=True)


async def many_idle(sockets: Sockets, client: GoodClient) -> None:
    """Connections that do nothing; the last is as good as the first."""
    idle = [await sockets.connect() for _ in range(IDLE_CONNECTIONS)]
    for sock in (idle[0], idle[-1]):
        await send(sock, Command.request(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0)).encode())
        assert (await receive_command(sock)).code == ResponseCode.SUCCESS


async def slow_loris(sockets: Sockets, client: GoodClient) -> None:
    """Requests that come a byte at a time: they hold up nobody, and are answered when they are whole."""
    request = Command.request(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0)).encode()
    slow = [await sockets.connect() for _ in range(20)]
    before = client.rounds
    for position in range(len(request)):
        for sock in slow:
            await send(sock, request[position : position + 1])
        await asyncio.sleep(0)
    assert {(await receive_command(sock)).code for sock in slow} == {ResponseCode.SUCCESS}
    await client.more_rounds()
    assert client.rounds > before


@contextmanager
def all_open_files() -> Iterator[None]:
    """As many for this process as it may have: it holds the other ends."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with all_open_files(), up(tmp_path / "data", open_files=DEFAULT_OPEN_FILES) as started:
        yield started


async def test_bad_peers_neither_stop_the_broker_nor_fill_its_memory(daemon: Daemon) -> None:
    address = daemon.address("broker")
    with ExitStack() as stack:
        sockets = Sockets(address, stack)
        async with serving_others(address, daemon.pid) as client:
            calm_bytes = heap_bytes(daemon.pid)
            for abuse in (garbage, half_frames, huge_length, slow_loris, never_reading, many_idle):
                await abuse(sockets, client)
                await client.more_rounds()
                growth = max(client.peak_bytes, heap_bytes(daemon.pid)) - calm_bytes
                assert growth < ALLOWED_GROWTH_BYTES, f"{abuse.__name__}: {growth / MIB:.0f} MiB more"
        assert daemon.interrupt() == 0, "with all of them still connected"


# --- requests that are sound frames and odd inside

ODD_NUMBERS = ("-1", "5", str(2**31), str(-(2**31) - 1), str(2**63 - 1), str(-(2**63)), "x", "")
ODD_TEXTS = (
    "",
    "..",
    "../../x",
    "a b",
    "%RETRY%g",
    "T@g",
    "x" * 300,
    "x" * 40_000,
    "中文",
    "a\0b",
    "KEYS\x01k\x02",
    "A||B",
)
ODD_BODIES = (
    b"",
    b"{}",
    b"[]",
    b"\xff" * 50,
    b'{"clientID":1,"consumerDataSet":[{"groupName":"../x","subscriptionDataSet":[{"topic":"T"}]}]}',
    b'{"consumerGroup":"g","clientId":"c","mqSet":[{"brokerName":"a","queueId":0,"topic":"T"},1]}',
    b'{"groupName":"g","retryQueueNums":99999999999,"attributes":{"a":1}}',
)
EVERY_NUMBER = [
    *("queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis", "bornTimestamp"),
    *("flag", "defaultTopicQueueNums", "readQueueNums", "writeQueueNums", "perm", "offset", "maxNum", "timestamp"),
    *("beginTimestamp", "endTimestamp", "reconsumeTimes", "maxMsgBytes"),
    *"defghjl",  # of lettered sends
]
EVERY_TEXT = [
    *("topic", "consumerGroup", "producerGroup", "defaultTopic", "group", "groupName", "key", "clientID"),
    *"abci",
]


def odd_request(code: int, chance: random.Random) -> Command:
    """A request that has every field any request needs, a few of them odd."""
    plain = {**dict.fromkeys(EVERY_NUMBER, "0"), **dict.fromkeys(EVERY_TEXT, "T")}
    fields = {**plain, "c": "TBW102", "defaultTopic": "TBW102"}
    for name in chance.sample(sorted(fields), chance.randrange(4)):
        fields[name] = chance.choice(ODD_NUMBERS if name in EVERY_NUMBER else ODD_TEXTS)
    if chance.random() < 0.05:
        del fields[chance.choice(sorted(fields))]
    return Command.request(code, fields=fields, body=chance.choice(ODD_BODIES))


async def test_no_request_however_odd_is_more_than_a_refusal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(11)
    caller = Caller()
    caplog.set_level(logging.ERROR)
    async with running_cluster(tmp_path) as cluster:
        for code in sorted(PROCESSORS) * 40:
            request = odd_request(code, chance)
            reply = await caller.call(cluster.broker.address, request, TIMEOUT_MS)
            assert "internal error" not in (reply.remark or ""), request
        async with serving_others(cluster.broker.address, os.getpid()) as client:
            await client.more_rounds()
        await caller.close()
    assert caplog.text == ""

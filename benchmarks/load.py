"""The load generator: many connections, one thread, requests encoded beforehand.

It must cost less per message than any broker it drives, or it would measure itself. So a request is a slice of a
tape made before the clock starts, and a reply is a length, a code at a known place and nothing more; only the first
reply of each connection is read in full.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import JSON, Frame

CONNECT_TIMEOUT_S = 5
SILENCE_TIMEOUT_S = 15
REPLY_BUFFER_BYTES = 256 * 1024

_PREFIX = struct.Struct(">II")  # bytes that follow | serializer in the top byte, header size below
_TIMEVAL = struct.Struct("@ll")
_JSON_SUCCESS = b'"code":0,'
_NO_LIMIT = 1 << 62

Verify = Callable[[Command], None]


class LoadError(Exception):
    """The broker refused, fell silent or answered something else: there is no figure."""


class Tape:
    """Requests of one size, end to end, sent round and round. Long enough that a broker can't profit from repeats."""

    def __init__(self, requests: Sequence[Command]) -> None:
        frames = []
        for opaque, request in enumerate(requests, 1):
            request.opaque = FIRST_OPAQUE + opaque
            frames.append(request.encode())
        (self.frame_size,) = {len(frame) for frame in frames}
        self.size = self.frame_size * len(frames)
        self.view = memoryview(b"".join(frames))


FIRST_OPAQUE = 1_000_000  # as many digits for each request of a tape


class Link:
    """One connection: sends from its tape and counts the replies.

    The socket blocks, since a plain send is the cheapest call there is; kernel timeouts bound it. It is read only
    when epoll says so.
    """

    __slots__ = ("_at", "_buffer", "_filled", "_min_reply_bytes", "_tape", "_verify", "_view", "sent_ns", "socket")

    def __init__(self, address: str, tape: Tape, verify: Verify, min_reply_bytes: int) -> None:
        self.socket = connect(address)
        self.sent_ns = 0
        self._tape = tape
        self._at = 0
        self._verify: Verify | None = verify
        self._min_reply_bytes = min_reply_bytes
        self._buffer = bytearray(REPLY_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0

    def send(self, count: int) -> None:
        """The next `count` requests, which are at most one tape."""
        tape = self._tape
        end = self._at + count * tape.frame_size
        if end >= tape.size:
            self.socket.sendall(tape.view[self._at :])
            self._at = 0
            end -= tape.size
        if end:
            self.socket.sendall(tape.view[self._at : end])
            self._at = end

    def receive(self) -> int:
        """How many replies became whole by one read; LoadError unless each says success."""
        got = self.socket.recv_into(self._view[self._filled :])
        if not got:
            raise LoadError("the broker closed the connection")
        end = self._filled + got
        start = count = 0
        while end - start >= 8:
            size, word = _PREFIX.unpack_from(self._buffer, start)
            reply_end = start + 4 + size
            if reply_end > end:
                break
            if self._verify is not None or size < self._min_reply_bytes or not self._succeeded(start, word):
                self._read_in_full(start, reply_end, word)
            start = reply_end
            count += 1
        self._filled = end - start
        if self._filled and start:
            self._buffer[: self._filled] = self._buffer[start:end]
        elif self._filled == REPLY_BUFFER_BYTES:
            raise LoadError(f"a reply of more than {REPLY_BUFFER_BYTES} bytes")
        return count

    def _succeeded(self, start: int, word: int) -> bool:
        if word >> 24 == JSON:
            return self._buffer.find(_JSON_SUCCESS, start + 8, start + 8 + (word & 0xFFFFFF)) >= 0
        return self._buffer[start + 8] == self._buffer[start + 9] == 0

    def _read_in_full(self, start: int, end: int, word: int) -> None:
        body = start + 8 + (word & 0xFFFFFF)
        reply = Command.decode(Frame(word >> 24, bytes(self._view[start + 8 : body]), bytes(self._view[body:end])))
        if reply.code != 0 or not reply.is_response or reply.opaque <= FIRST_OPAQUE:
            raise LoadError(f"not a reply that says success: {reply}")
        if end - start - 4 < self._min_reply_bytes:
            raise LoadError(f"a reply of only {end - start - 4} bytes, not {self._min_reply_bytes}: {reply}")
        if self._verify is not None:
            self._verify(reply)
            self._verify = None


def connect(address: str) -> socket.socket:
    """A connected, blocking socket whose sends and reads end within SILENCE_TIMEOUT_S."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S)
    connection.settimeout(None)  # Python's own timeouts cost a poll() before every call
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(SILENCE_TIMEOUT_S, 0))
    return connection


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The number of answered requests and the time they took; latencies where each connection has one request."""

    requests: int
    elapsed_s: float
    p50_us: float | None
    p99_us: float | None
    p999_us: float | None


class Load:
    """All connections of one load, open while in use. Every request sent is answered when `run` returns."""

    def __init__(
        self, address: str, tapes: Sequence[Tape], in_flight: int, verify: Verify, min_reply_bytes: int = 0
    ) -> None:
        self._in_flight = in_flight
        self._poll = select.epoll()
        self._links: dict[int, Link] = {}
        try:
            for tape in tapes:
                link = Link(address, tape, verify, min_reply_bytes)
                self._links[link.socket.fileno()] = link
                self._poll.register(link.socket, select.EPOLLIN)
        except BaseException:
            self.close()
            raise

    def run(self, *, seconds: float = _NO_LIMIT, requests: int = _NO_LIMIT) -> LoadResult:
        """Keep `in_flight` requests under way on each connection until either bound is reached."""
        clock = time.perf_counter_ns
        began = now = clock()
        deadline = began + int(seconds * 1e9)
        latencies = array("q")
        sent = received = 0
        for link in self._links.values():
            count = min(self._in_flight, requests - sent)
            if count:
                link.sent_ns = clock()
                link.send(count)
                sent += count
        links, poll, alone = self._links, self._poll.poll, self._in_flight == 1
        while received < sent:
            ready = poll(SILENCE_TIMEOUT_S)
            if not ready:
                raise LoadError(f"{sent - received} requests unanswered for {SILENCE_TIMEOUT_S} s")
            for fd, _ in ready:
                link = links[fd]
                count = link.receive()
                if not count:
                    continue
                now = clock()
                received += count
                if alone:
                    latencies.append(now - link.sent_ns)
                if now < deadline and sent < requests:
                    link.sent_ns = now
                    count = min(count, requests - sent)
                    link.send(count)
                    sent += count
        return _result(received, now - began, latencies)

    def run_at_rate(self, per_second: float, seconds: float) -> LoadResult:
        """Send at fixed moments, however slowly the broker answers; each latency counts from its request's moment.

        A request whose moment comes while all connections wait for answers stays due and is sent as soon as one is
        free. The time it waits belongs to its latency: a stall of the broker shows up in all requests it delays.
        """
        clock = time.perf_counter_ns
        interval_ns = 1e9 / per_second
        count = max(1, int(per_second * seconds))
        idle = deque(self._links.values())
        latencies = array("q")
        sent = 0
        began = now = clock()
        silent_since = began
        while len(latencies) < count:
            while idle and sent < count and began + sent * interval_ns <= now:
                link = idle.popleft()
                link.sent_ns = began + int(sent * interval_ns)
                link.send(1)
                sent += 1
            until_ns = began + sent * interval_ns - now if idle and sent < count else SILENCE_TIMEOUT_S * 1e9
            ready = self._poll.poll(max(until_ns, 0) / 1e9)
            now = clock()
            for fd, _ in ready:
                link = self._links[fd]
                if link.receive():
                    latencies.append(now - link.sent_ns)
                    idle.append(link)
                    silent_since = now
            if sent > len(latencies) and now - silent_since > SILENCE_TIMEOUT_S * 1e9:
                raise LoadError(f"{sent - len(latencies)} requests unanswered for {SILENCE_TIMEOUT_S} s")
        return _result(count, now - began, latencies)

    def close(self) -> None:
        for link in self._links.values():
            link.socket.close()
        self._poll.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _result(requests: int, elapsed_ns: int, latencies: Sequence[int]) -> LoadResult:
    ordered = sorted(latencies)
    return LoadResult(requests, elapsed_ns / 1e9, *(percentile_us(ordered, percent) for percent in (50, 99, 99.9)))


def percentile_us(ordered_ns: Sequence[int], percent: float) -> float | None:
    """Return the sample that `percent` of all samples, which rise, do not exceed; in microseconds."""
    if not ordered_ns:
        return None
    return ordered_ns[int((len(ordered_ns) - 1) * percent / 100)] / 1000

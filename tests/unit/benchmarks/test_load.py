"""The load generator against a server that answers as told."""

import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from benchmarks import load
from benchmarks.load import Load, LoadError, LoadResult, Tape, percentile_us
from benchmarks.sheets import SHEETS
from benchmarks.workloads import BATCH, QUEUES, Workload, make_send, verify_batch, verify_pull, verify_send
from cosmodrome.codes import ResponseCode
from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import BINARY, JSON, FrameDecoder
from cosmodrome.wire.requests import SendMessage, SendReply
from tests.bounded import PATIENCE_SECONDS

ALL = [workload for sheet in SHEETS for workload in sheet.workloads]
Respond = Callable[[Command], bytes]


@contextmanager
def server(respond: Respond) -> Iterator[str]:
    """Answers every request with the bytes that `respond` gives; its address while it runs."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            decoder = FrameDecoder()
            while data := self.request.recv(65536):
                decoder.feed(data)
                replies = [respond(Command.decode(frame)) for frame in iter(decoder.take, None)]
                self.request.sendall(b"".join(replies))
                if b"" in replies:
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        serving = threading.Thread(target=listening.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield f"127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            serving.join()


def success(request: Command) -> bytes:
    return request.reply(0, SendReply("7F00000100002A9F0000000000000000", 0, 7)).encode()


def tape(length: int = 5, serializer: int = JSON, connection: int = 0) -> Tape:
    return Tape([make_send(serializer)("topic", connection, index) for index in range(length)])


@pytest.mark.parametrize("serializer", [JSON, BINARY])
@pytest.mark.parametrize("in_flight", [1, 4])
def test_every_request_is_answered_and_counted(serializer: int, in_flight: int) -> None:
    seen: Counter[str] = Counter()

    def respond(request: Command) -> bytes:
        seen[SendMessage.decode(request).properties or ""] += 1
        return success(request)

    tapes = [tape(serializer=serializer, connection=connection) for connection in range(3)]
    with server(respond) as address, Load(address, tapes, in_flight, verify_send) as running:
        result = running.run(requests=101)
    assert result.requests == 101 == seen.total()
    assert (result.p50_us is not None) == (in_flight == 1)


def test_a_tape_goes_round_and_round() -> None:
    seen: Counter[str] = Counter()

    def respond(request: Command) -> bytes:
        seen[SendMessage.decode(request).properties or ""] += 1
        return success(request)

    with server(respond) as address, Load(address, [tape()], 1, verify_send) as running:
        running.run(requests=12)
    assert sorted(seen.values()) == [2, 2, 2, 3, 3]


def test_requests_at_a_fixed_rate_are_all_sent_and_answered() -> None:
    seen: Counter[str] = Counter()

    def respond(request: Command) -> bytes:
        seen[SendMessage.decode(request).properties or ""] += 1
        return success(request)

    tapes = [tape(connection=connection) for connection in range(3)]
    with server(respond) as address, Load(address, tapes, 1, verify_send) as running:
        result = running.run_at_rate(1_000, 0.1)
    assert result.requests == 100 == seen.total()
    assert result.p50_us is not None


def test_a_stall_shows_up_in_every_request_it_delays() -> None:
    stalled = threading.Event()

    def respond(request: Command) -> bytes:
        if not stalled.is_set():
            stalled.set()
            time.sleep(0.2)  # one connection: the requests of this time wait for it
        return success(request)

    with server(respond) as address, Load(address, [tape()], 1, verify_send) as running:
        result = running.run_at_rate(100, 0.3)
    assert result.p50_us is not None
    assert result.p99_us is not None
    assert result.p99_us > 150_000
    assert result.p50_us > 1_000, "two thirds of the requests were due while the broker stalled"


def test_a_broker_that_falls_silent_ends_a_load_at_a_fixed_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SILENCE_TIMEOUT_S", 0)
    silent = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    with silent, Load(address, [tape()], 1, verify_send) as run, pytest.raises(LoadError, match="requests unanswered"):
        run.run_at_rate(10, 1)


def test_a_load_ends_when_its_time_is_up() -> None:
    with server(success) as address, Load(address, [tape()], 2, verify_send) as running:
        result = running.run(seconds=0.05)
    assert result.requests >= 2
    assert result.elapsed_s >= 0.05


def test_a_reply_may_come_in_pieces() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    replies: list[bytes] = []

    def drip() -> None:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        decoder = FrameDecoder()
        with connection:
            while data := connection.recv(65536):
                decoder.feed(data)
                stream = b"".join(success(Command.decode(frame)) for frame in iter(decoder.take, None))
                replies.append(stream)
                for start in range(0, len(stream), 50):
                    connection.sendall(stream[start : start + 50])

    dripping = threading.Thread(target=drip, daemon=True)
    dripping.start()
    with listener, Load(f"127.0.0.1:{listener.getsockname()[1]}", [tape()], 3, verify_send) as running:
        result = running.run(requests=20)
    dripping.join(PATIENCE_SECONDS)
    assert not dripping.is_alive(), "the load has left its connection open"
    assert result.requests == 20


def refusal_after(count: int) -> Respond:
    seen: list[Command] = []

    def respond(request: Command) -> bytes:
        seen.append(request)
        if len(seen) <= count:
            return success(request)
        return request.reply(ResponseCode.SYSTEM_BUSY, remark="broker busy").encode()

    return respond


def drive(address: str, serializer: int = JSON, min_reply_bytes: int = 0) -> LoadResult:
    with Load(address, [tape(serializer=serializer)], 1, verify_send, min_reply_bytes) as running:
        return running.run(requests=10)


@pytest.mark.parametrize("serializer", [JSON, BINARY])
@pytest.mark.parametrize("good", [0, 3])
def test_a_refusal_ends_the_load_whenever_it_comes(serializer: int, good: int) -> None:
    with server(refusal_after(good)) as address, pytest.raises(LoadError, match="broker busy"):
        drive(address, serializer)


def test_a_reply_that_is_too_short_ends_the_load() -> None:
    with server(success) as address, pytest.raises(LoadError, match="not 10000"):
        drive(address, min_reply_bytes=10_000)


def test_a_closed_connection_ends_the_load() -> None:
    with server(lambda _request: b"") as address, pytest.raises(LoadError, match="closed"):
        drive(address)


def test_a_silent_broker_ends_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SILENCE_TIMEOUT_S", 0)
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.raises(LoadError, match="requests unanswered"):
        drive(f"127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize("workload", {one.slug: one for one in ALL}.values(), ids=lambda workload: workload.slug)
def test_requests_of_a_tape_have_one_size_and_an_opaque_each(workload: Workload) -> None:
    (made,) = workload.tapes(1)
    decoder = FrameDecoder()
    decoder.feed(bytes(made.view))
    commands = [Command.decode(frame) for frame in iter(decoder.take, None)]
    assert len({command.opaque for command in commands}) == workload.tape_length == len(commands)
    assert made.size == made.frame_size * workload.tape_length
    assert workload.in_flight <= workload.tape_length


def test_answers_that_are_not_what_was_asked_for_are_seen() -> None:
    request = make_send(JSON)("topic", 0, 0)
    with pytest.raises(LoadError, match="not 1 messages"):
        verify_send(request.reply(0, SendReply("A,B", 0, 0)))
    with pytest.raises(LoadError, match="not 1 messages"):
        verify_send(request.reply(0, SendReply("A", QUEUES, 0)))
    with pytest.raises(LoadError, match=f"not {BATCH} messages"):
        verify_batch(request.reply(0, SendReply(",".join(["A"] * BATCH), 0, 0)))
    with pytest.raises(LoadError, match="not the 32 messages"):
        verify_pull(request.reply())


def test_percentiles_are_samples() -> None:
    samples = [n * 1000 for n in range(1, 101)]
    assert percentile_us(samples, 50) == 50
    assert percentile_us(samples, 99) == 99
    assert percentile_us([], 99) is None

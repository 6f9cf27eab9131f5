"""The steps of the hot path by themselves, in this process: what a message costs before any socket. Also what a short
command costs before its first line of work, in processes of its own.

Each benchmark checks its answer, says how much it did, and is timed by the best of a few runs.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import cycle, islice, repeat
from pathlib import Path

from benchmarks.replicating import measure as measure_replication
from benchmarks.workloads import BATCH, SEND_BODY, MakeRequest, make_batch, make_send, unique_key
from cosmodrome.access.accounts import Account, Accounts, Judge
from cosmodrome.access.permissions import PUB
from cosmodrome.broker.answer import answer
from cosmodrome.broker.broker import Broker
from cosmodrome.clock import SystemClock
from cosmodrome.config import MIB, BrokerConfig, NetConfig, SecurityConfig, StoreConfig
from cosmodrome.net.connection import Connection
from cosmodrome.net.loop import loop_factory
from cosmodrome.net.tls_server import ServerTls, TlsLink
from cosmodrome.store.message import StoreMessage
from cosmodrome.store.message_store import MessageStore
from cosmodrome.wire import properties
from cosmodrome.wire.acl import Credentials
from cosmodrome.wire.batch import BatchItem, decode_batch
from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import BINARY, JSON, FrameDecoder
from cosmodrome.wire.record import decode_records, pack_host
from cosmodrome.wire.requests import SendMessage, SendReply

FULL_RUNS = 7
FRAMES_PER_READ = 32
CONNECTIONS = 8
TOPIC = "bench"
STORED_BODY = b"x" * 256
UNKEYED = properties.encode({"TAGS": "TagA"})
KEYED = [
    properties.encode({"UNIQ_KEY": unique_key(0, index), "WAIT": "true", "TAGS": "TagA"})
    for index in range(BATCH * 128)
]
HOST = pack_host("127.0.0.1", 10911)


class Bench:
    """One run of one benchmark: how much to do, where to write, and how long the timed part took."""

    def __init__(self, folder: Path, *, smoke: bool) -> None:
        self.folder = folder
        self._smoke = smoke
        self.ns_each = 0.0

    def size(self, *, smoke: int, full: int) -> int:
        return smoke if self._smoke else full

    @contextmanager
    def timed(self, count: int) -> Iterator[None]:
        began = time.process_time_ns()  # not the wall's: others may want this core too
        yield
        self.ns_each = (time.process_time_ns() - began) / count


def _bench_command_decode(bench: Bench, serializer: int) -> None:
    """Cut frames out of reads of 32 and decode their headers."""
    reads = bench.size(smoke=2, full=500)
    requests = [make_send(serializer)(TOPIC, 0, index) for index in range(FRAMES_PER_READ)]
    frames = b"".join(request.encode() for request in requests)
    decoder = FrameDecoder()
    decoded: list[Command] = []
    with bench.timed(reads * FRAMES_PER_READ):
        for _ in repeat(None, reads):
            decoder.feed(frames)
            decoded = [Command.decode(frame) for frame in iter(decoder.take, None)]
    assert [command.fields for command in decoded] == [request.fields for request in requests]


def bench_decode_json_command(bench: Bench) -> None:
    _bench_command_decode(bench, JSON)


def bench_decode_binary_command(bench: Bench) -> None:
    _bench_command_decode(bench, BINARY)


def bench_decode_send_header(bench: Bench) -> None:
    count = bench.size(smoke=10, full=20_000)
    command = make_send(JSON)(TOPIC, 3, 7)
    header = SendMessage.decode(command)
    with bench.timed(count):
        for _ in repeat(None, count):
            header = SendMessage.decode(command)
    assert header.lettered_fields() == command.fields


def _bench_reply(bench: Bench, serializer: int) -> None:
    """From the outcome of a send to the bytes of its reply."""
    count = bench.size(smoke=10, full=20_000)
    request = make_send(serializer)(TOPIC, 0, 0)
    fields = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    data = b""
    with bench.timed(count):
        for offset in range(count):
            data = request.reply(
                0, SendReply("7F00000100002A9F0000000000000000", 0, offset, "id"), fields=fields
            ).encode()
    decoder = FrameDecoder()
    decoder.feed(data)
    frame = decoder.take()
    assert frame is not None
    assert Command.decode(frame).fields["queueOffset"] == str(count - 1)


def bench_encode_json_reply(bench: Bench) -> None:
    _bench_reply(bench, JSON)


def bench_encode_binary_reply(bench: Bench) -> None:
    _bench_reply(bench, BINARY)


def bench_decode_batch_of_32(bench: Bench) -> None:
    count = bench.size(smoke=2, full=1_000)
    body = bytes(make_batch(SEND_BODY)(TOPIC, 0, 0).body)
    items: list[BatchItem] = []
    with bench.timed(count):
        for _ in repeat(None, count):
            items = decode_batch(body)
    assert [item.body for item in items] == [SEND_BODY] * BATCH


def _bench_append(bench: Bench, raw_properties: list[str]) -> None:
    """Into log and queue, and into the index if there is a key, without flush: the ceiling every send sits under."""
    count = bench.size(smoke=20, full=20_000)
    messages = [store_message(STORED_BODY, raw) for raw in raw_properties]
    with open_store(bench) as store:
        with bench.timed(count):
            for message in islice(cycle(messages), count):
                store.append(message)
        assert store.max_offset(TOPIC, 0) == count


def bench_append(bench: Bench) -> None:
    _bench_append(bench, [UNKEYED])


def bench_append_keyed(bench: Bench) -> None:
    _bench_append(bench, KEYED)


def _bench_append_batch(bench: Bench, raw_properties: list[str]) -> None:
    count = bench.size(smoke=2, full=1_000)
    message = store_message(b"")
    items = [BatchItem(0, STORED_BODY, raw) for raw in raw_properties]
    batches = [items[at : at + BATCH] for at in range(0, len(items), BATCH)]
    with open_store(bench) as store:
        with bench.timed(count * BATCH):
            for batch in islice(cycle(batches), count):
                store.append_batch(message, batch)
        assert store.max_offset(TOPIC, 0) == count * BATCH


def bench_append_batch(bench: Bench) -> None:
    _bench_append_batch(bench, [UNKEYED] * BATCH)


def bench_append_batch_keyed(bench: Bench) -> None:
    _bench_append_batch(bench, KEYED)


def _bench_read(bench: Bench, queues: int) -> None:
    """Reads of 32 that memory can serve; what they return are slices of the log."""
    reads = bench.size(smoke=2, full=10_000)
    filled = bench.size(smoke=BATCH * 2, full=BATCH * 100)
    with open_store(bench) as store:
        for _ in range(filled):
            for queue_id in range(queues):
                store.append(store_message(STORED_BODY, queue_id=queue_id))
        with bench.timed(reads):
            for number in range(reads):
                store.read(TOPIC, 0, number * BATCH % filled, BATCH)
        records = decode_records(b"".join(store.read(TOPIC, 0, filled - BATCH, BATCH).views))
    assert [record.body for record in records] == [STORED_BODY] * BATCH


def bench_read_side_by_side(bench: Bench) -> None:
    _bench_read(bench, 1)


def bench_read_among_others(bench: Bench) -> None:
    _bench_read(bench, 4)


class Sink(asyncio.Transport):
    """A transport that counts writes; nothing leaves the process."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.writes = 0
        self.written = asyncio.Event()

    def write(self, _data: bytes | bytearray | memoryview) -> None:
        self.writes += 1
        self.written.set()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


def _bench_broker(bench: Bench, make: MakeRequest, units: int) -> None:
    """Requests from the read to the write of the reply: all a broker does for them but its system calls."""
    rounds = bench.size(smoke=1, full=500 // units)
    frames = [make(TOPIC, 0, index).encode() for index in range(CONNECTIONS)]

    async def main() -> None:
        broker = Broker(BrokerConfig(broker_name="bench", listen_port=0), store_config(bench))
        await broker.start()
        stop = asyncio.Event()
        serving = asyncio.create_task(broker.run(stop))
        sink = Sink()
        connections = [Connection(partial(answer, broker), NetConfig()) for _ in frames]
        for connection in connections:
            connection.connection_made(sink)
        connections[0].data_received(frames[0])  # makes the topic, which waits for the disk
        await sink.written.wait()
        with bench.timed(rounds * CONNECTIONS * units):
            for _ in repeat(None, rounds):
                for connection, frame in zip(connections, frames, strict=True):
                    connection.data_received(frame)
                await asyncio.sleep(0)  # the replies leave
        assert sink.writes == rounds * CONNECTIONS + 1
        assert broker.store.max_offset(TOPIC, 0) == sink.writes * units
        for connection in connections:
            connection.connection_lost(None)
        stop.set()
        await serving

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())


def bench_broker_json(bench: Bench) -> None:
    _bench_broker(bench, make_send(JSON), 1)


def bench_broker_binary(bench: Bench) -> None:
    _bench_broker(bench, make_send(BINARY), 1)


def bench_broker_batch(bench: Bench) -> None:
    _bench_broker(bench, make_batch(SEND_BODY), BATCH)


def bench_access(bench: Bench) -> None:
    """Check the account, the signature and the permission of a send of 128 B."""
    count = bench.size(smoke=10, full=20_000)
    account = Account("orders-app", "the-secret-of-orders", resources={TOPIC: PUB})
    judge = Judge(Accounts({account.access_key: account}))
    request = make_send(JSON)(TOPIC, 0, 0)
    Credentials(account.access_key, account.secret_key).sign(request)
    denial: object = request
    with bench.timed(count):
        for _ in repeat(None, count):
            denial = judge.denial(request, "127.0.0.1", is_white=False)
    assert denial is None
    request.fields["Signature"] = "x"
    assert judge.denial(request, "127.0.0.1", is_white=False) is not None


def bench_tls(bench: Bench) -> None:
    """Take a send of 128 B out of TLS and put an answer of 200 B into it, without a socket."""
    count = bench.size(smoke=10, full=5_000)
    reads, writes = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client = context.wrap_bio(reads, writes)

    class Socket(asyncio.Transport):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            reads.write(data)

        def is_closing(self) -> bool:
            return False

    class Echo(asyncio.Protocol):
        answered = 0

        def data_received(self, data: bytes) -> None:
            self.answered += 1
            links[0].write(reply)

        def use_transport(self, transport: asyncio.Transport) -> None: ...

    async def work() -> None:
        tls = ServerTls(SecurityConfig(), SystemClock())
        ready = await tls.context()
        assert ready is not None, "openssl makes the certificate"
        link = TlsLink(Socket(), echo, ready, tls)
        links.append(link)
        while not link.is_open or writes.pending:
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            link.data_received(writes.read())
        sent = []
        for _ in repeat(None, count):
            client.write(request)
            sent.append(writes.read())
        with bench.timed(count):
            for data in sent:
                link.data_received(data)

    links: list[TlsLink] = []
    echo, reply = Echo(), b"a" * 200
    request = make_send(JSON)(TOPIC, 0, 0).encode()
    asyncio.run(work())
    assert echo.answered == count
    assert client.read(len(reply)) == reply


def bench_replicate(bench: Bench) -> None:
    """A record of 400 B sent to one slave, of 32 appended in each turn of the loop."""
    bench.ns_each = measure_replication(bench.size(smoke=64, full=48_000), 32, waits=False)


def bench_replicate_and_wait(bench: Bench) -> None:
    """The same, with a sender of each that waits for the slave."""
    bench.ns_each = measure_replication(bench.size(smoke=64, full=48_000), 32, waits=True)


def _bench_start(bench: Bench, *words: str) -> None:
    """A Python process from its start to its end; its processor time is measured, system calls included."""
    count = bench.size(smoke=1, full=3)
    began = _children_ns()
    for _ in repeat(None, count):
        subprocess.run([sys.executable, *words], capture_output=True, check=True)
    bench.ns_each = (_children_ns() - began) / count


def _children_ns() -> int:
    """Processor time of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def bench_start_import(bench: Bench) -> None:
    _bench_start(bench, "-c", "import cosmodrome")


def bench_start_version(bench: Bench) -> None:
    _bench_start(bench, "-m", "cosmodrome", "--version")


def bench_start_send(bench: Bench) -> None:
    _bench_start(bench, "-c", "import cosmodrome.cli.main, cosmodrome.cli.messages, cosmodrome.client.producer")


def bench_start_clients(bench: Bench) -> None:
    _bench_start(bench, "-c", "from cosmodrome import Message, Producer, PushConsumer")


def open_store(bench: Bench) -> closing[MessageStore]:
    return closing(MessageStore.open(bench.folder, store_config(bench), SystemClock()))


def store_config(bench: Bench) -> StoreConfig:
    return StoreConfig(
        store_path_root_dir=str(bench.folder),
        mapped_file_size_commit_log=64 * MIB,
        max_hash_slot_num=100_000,
        max_index_num=400_000,
    )


def store_message(body: bytes, raw_properties: str = UNKEYED, queue_id: int = 0) -> StoreMessage:
    return StoreMessage(TOPIC, queue_id, body, raw_properties, 0, 0, 0, HOST, HOST)


BENCHMARKS: dict[str, Callable[[Bench], None]] = {
    "decode a SEND_MESSAGE_V2 command, JSON": bench_decode_json_command,
    "decode a SEND_MESSAGE_V2 command, binary": bench_decode_binary_command,
    "decode the typed send header": bench_decode_send_header,
    "make and encode a send reply, JSON": bench_encode_json_reply,
    "make and encode a send reply, binary": bench_encode_binary_reply,
    "decode a batch body of 32": bench_decode_batch_of_32,
    "store: append 256 B": bench_append,
    "store: append 256 B with a key": bench_append_keyed,
    "store: a record of a batch of 32 × 256 B": bench_append_batch,
    "store: a record of a batch of 32 × 256 B with keys": bench_append_batch_keyed,
    "store: read 32 × 256 B side by side": bench_read_side_by_side,
    "store: read 32 × 256 B among three other queues": bench_read_among_others,
    "broker: a send from read to write, JSON": bench_broker_json,
    "broker: a send from read to write, binary": bench_broker_binary,
    "broker: a message of a batch of 32": bench_broker_batch,
    "security: the account and signature of a send": bench_access,
    "security: a send out of TLS, and an answer into it": bench_tls,
    "replication: a message to one slave": bench_replicate,
    "replication: a message to one slave, waited for": bench_replicate_and_wait,
    "start: import cosmodrome": bench_start_import,
    "start: cosmodrome --version": bench_start_version,
    "start: the imports of cosmodrome send": bench_start_send,
    "start: import Message, Producer, PushConsumer": bench_start_clients,
}

# So many a second are promised, with or without keys.
FLOORS = {
    "store: append 256 B": 100_000,
    "store: append 256 B with a key": 100_000,
    "store: a record of a batch of 32 × 256 B": 500_000,
    "store: a record of a batch of 32 × 256 B with keys": 500_000,
    "replication: a message to one slave": 333_334,  # 3 µs
    "security: the account and signature of a send": 250_000,  # 4 µs
    "start: import cosmodrome": 7,  # 0.15 s
    "start: cosmodrome --version": 5,  # 0.2 s
    "start: the imports of cosmodrome send": 5,
}


def run(home: Path, *, smoke: bool) -> dict[str, float]:
    """Nanoseconds of each benchmark: the best of a few runs, since all that disturbs a run makes it slower."""
    timings = {}
    for number, (name, benchmark) in enumerate(BENCHMARKS.items()):
        results = []
        for attempt in range(1 if smoke else FULL_RUNS):
            bench = Bench(home / f"micro-{number}-{attempt}", smoke=smoke)
            benchmark(bench)
            results.append(bench.ns_each)
        timings[name] = min(results)
    return timings

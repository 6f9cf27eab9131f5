"""A broker that is offered twice what it can take, for a minute: `make torture`, with OVERLOAD_SECONDS for how long."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cosmodrome.clock import SystemClock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import KIB, FlushDiskType, StoreConfig
from cosmodrome.store.message_store import MessageStore
from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import FrameDecoder
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import SendMessage
from tests.system.daemons import Daemon

SECONDS = int(os.environ.get("OVERLOAD_SECONDS") or 60)
CALIBRATION_SECONDS = 5
CONNECTIONS = 16
IN_FLIGHT = 64  # of each connection, while it is measured what the broker can take
TICK_SECONDS = 0.01
PROBE_SECONDS = 0.05
DRAIN_SECONDS = 60
RECOVERY_SECONDS = 10
CALM_PROBES = 10  # so many in a row, all as quick as before
# What the broker may need in addition, log and queues apart: those are files.
MOST_GROWTH_KB = 256 * KIB
# The rest waits here, in the sender, until the broker reads on.
MOST_UNSENT_BYTES = 1_024 * KIB

TOPIC = "t"
BODY = b"x" * 100
# All numbers have nine digits, so that a request is made from another by writing over them.
FIRST_NUMBER = 100_000_000
CONF = "mappedFileSizeCommitLog=67108864\nmaxHashSlotNum=100000\nmaxIndexNum=400000\n"


def _request_parts() -> tuple[bytes, bytes]:
    """What stands before and between the two places of a request that hold its number: the header, and its end."""
    number = b"%d" % FIRST_NUMBER
    header = SendMessage("p", TOPIC, "TBW102", 1, 0, 0, 0, 0, "")
    command = Command.request(RequestCode.SEND_MESSAGE, header, BODY + number)
    command.opaque = FIRST_NUMBER
    before, between, end = command.encode().split(number)
    assert not end
    return before, between


_BEFORE, _BETWEEN = _request_parts()


def request(number: int) -> bytes:
    digits = b"%d" % number
    return b"".join((_BEFORE, digits, _BETWEEN, digits))


@dataclass
class Tally:
    accepted: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)  # written, but the disk was too slow for a promise
    turned_away: int = 0
    offered: int = 0
    unexpected: list[Command] = field(default_factory=list)

    @property
    def open(self) -> int:
        return self.offered - len(self.accepted) - len(self.late) - self.turned_away - len(self.unexpected)

    def take(self, reply: Command) -> None:
        match reply.code:
            case ResponseCode.SUCCESS:
                self.accepted.add(reply.opaque)
            case ResponseCode.FLUSH_DISK_TIMEOUT:
                self.late.add(reply.opaque)
            case ResponseCode.SYSTEM_BUSY:
                self.turned_away += 1
            case _:
                self.unexpected.append(reply)


class Line(asyncio.Protocol):
    """One connection: what it offers is counted, and so is every answer."""

    def __init__(self, tally: Tally, numbers: Iterator[int]) -> None:
        self._tally = tally
        self._numbers = numbers
        self._decoder = FrameDecoder()
        self.answered = asyncio.Event()
        self.refill = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def offer(self, count: int) -> None:
        self._tally.offered += count
        self.transport.write(b"".join([request(number) for number in itertools.islice(self._numbers, count)]))

    @property
    def is_full(self) -> bool:
        return self.transport.get_write_buffer_size() > MOST_UNSENT_BYTES

    def data_received(self, data: bytes) -> None:
        self._decoder.feed(data)
        count = 0
        for frame in iter(self._decoder.take, None):
            self._tally.take(Command.decode(frame))
            count += 1
        self.answered.set()
        if self.refill:
            self.offer(count)


async def lines(address: str, tally: Tally, numbers: Iterator[int], count: int) -> list[Line]:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(lambda: Line(tally, numbers), host, int(port)))[1] for _ in range(count)]


async def settled(tally: Tally) -> None:
    async with asyncio.timeout(DRAIN_SECONDS):
        while tally.open:  # noqa: ASYNC110  # answers come on many connections
            await asyncio.sleep(TICK_SECONDS)


async def capacity(flood: list[Line], tally: Tally) -> float:
    """Messages per second when the next one is offered only after one was answered."""
    for line in flood:
        line.refill = True
        line.offer(IN_FLIGHT)
    before = len(tally.accepted)
    await asyncio.sleep(CALIBRATION_SECONDS)
    taken = len(tally.accepted) - before
    for line in flood:
        line.refill = False
    await settled(tally)
    return taken / CALIBRATION_SECONDS


async def offer(flood: list[Line], tally: Tally, per_second: float, seconds: float) -> None:
    """So many messages per second, whatever becomes of them."""
    loop = asyncio.get_running_loop()
    began, before = loop.time(), tally.offered
    turns = itertools.cycle(flood)
    while (elapsed := loop.time() - began) < seconds:
        due = int(elapsed * per_second) - (tally.offered - before)
        for line in itertools.islice(turns, len(flood)):
            if not line.is_full:
                line.offer(max(due // len(flood), 0))
        await asyncio.sleep(TICK_SECONDS)


@dataclass
class Probe:
    """A sender with one message at a time: when it was answered, and how long that took."""

    line: Line
    latencies: list[tuple[float, float]] = field(default_factory=list)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            self.line.answered.clear()
            self.line.offer(1)
            await asyncio.wait_for(self.line.answered.wait(), DRAIN_SECONDS)
            self.latencies.append((loop.time(), loop.time() - began))
            await asyncio.sleep(PROBE_SECONDS)

    async def calm_after(self, moment: float, usual: float) -> float:
        """Seconds from `moment` to the first of so many probes in a row that took no longer than usual."""
        async with asyncio.timeout(RECOVERY_SECONDS):
            while True:
                after = [(at, took) for at, took in self.latencies if at - took >= moment]
                for index in range(len(after) - CALM_PROBES + 1):
                    if all(took <= usual for _, took in after[index : index + CALM_PROBES]):
                        return after[index][0] - moment
                await asyncio.sleep(PROBE_SECONDS)


def private_kb(pid: int) -> int:
    """The process's memory that is no file's."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in status if line.startswith("RssAnon:")]
    return int(line.split()[1])


async def watch_memory(pid: int, seen: list[int]) -> None:
    while True:
        seen.append(private_kb(pid))
        await asyncio.sleep(1)


@dataclass
class Report:
    taken_per_second: float
    offered: int
    seconds: float
    quiet_ms: float
    busy_ms: float
    recovered_seconds: float
    memory_kb: list[int]


async def overload(address: str, pid: int, tally: Tally) -> Report:
    loop, numbers = asyncio.get_running_loop(), itertools.count(FIRST_NUMBER)
    flood = await lines(address, tally, numbers, CONNECTIONS)
    (line,) = await lines(address, tally, numbers, 1)
    taken_per_second = await capacity(flood, tally)
    memory: list[int] = []
    probe = Probe(line)
    async with asyncio.TaskGroup() as tasks:
        watching = [tasks.create_task(probe.run()), tasks.create_task(watch_memory(pid, memory))]
        await asyncio.sleep(CALIBRATION_SECONDS)
        quiet = [took for _, took in probe.latencies]
        before, began = tally.offered, loop.time()
        await offer(flood, tally, 2 * taken_per_second, SECONDS)
        offered, ended = tally.offered - before, loop.time()
        busy = [took for at, took in probe.latencies if at > began]
        usual = max(2 * max(quiet), 0.05)
        recovered = await probe.calm_after(ended, usual)
        for task in watching:
            task.cancel()
    await settled(tally)
    for each in (*flood, line):
        each.transport.close()
    return Report(
        taken_per_second,
        offered,
        ended - began,
        statistics.median(quiet) * 1000,
        statistics.median(busy) * 1000,
        recovered,
        memory,
    )


def stored(root: Path) -> list[int]:
    """The numbers of the messages that are in the store."""
    store = MessageStore.open(root, StoreConfig(store_path_root_dir=str(root)).with_properties(_keys()), SystemClock())
    numbers: list[int] = []
    while views := store.read(TOPIC, 0, len(numbers), 32).views:
        numbers += [int(record.body[len(BODY) :]) for view in views for record in decode_records(view)]
    store.close()
    return numbers


def _keys() -> dict[str, str]:
    return dict(line.split("=") for line in CONF.splitlines())


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_twice_what_the_broker_can_take(tmp_path: Path, flush: FlushDiskType) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{CONF}flushDiskType={flush}\n")
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--console-port", "0")
    tally = Tally()
    with Daemon("up", "--data", str(tmp_path / "data"), "-c", str(conf), *ports) as daemon:
        report = asyncio.run(overload(daemon.address("broker"), daemon.pid, tally))
        assert daemon.interrupt() == 0, f"{signal.SIGINT!r}: {daemon.output}"
    memory = report.memory_kb
    print(
        f"{flush}: takes {report.taken_per_second:.0f}/s, was offered {report.offered / report.seconds:.0f}/s for "
        f"{report.seconds:.0f} s; {len(tally.accepted)} accepted, {len(tally.late)} late, "
        f"{tally.turned_away} turned away; "
        f"answers after {report.quiet_ms:.1f} ms, then {report.busy_ms:.0f} ms, normal again in "
        f"{report.recovered_seconds:.2f} s; memory {memory[0] // 1024} to {max(memory) // 1024} MiB",
        flush=True,
    )
    assert not tally.unexpected, tally.unexpected[:3]
    assert tally.turned_away > 0
    assert max(memory) - memory[0] < MOST_GROWTH_KB
    (folder,) = (tmp_path / "data").rglob("commitlog")
    found = stored(folder.parent)
    assert len(found) == len({*found})
    assert tally.accepted <= {*found} <= tally.accepted | tally.late

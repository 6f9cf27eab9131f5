"""What a slave costs its master: the CPU time of replication for each message, without store and senders."""

from __future__ import annotations

import asyncio
import mmap
import sys
import time
from collections.abc import Callable

from cosmodrome.clock import SystemClock
from cosmodrome.config import ReplicationConfig
from cosmodrome.net.loop import loop_factory
from cosmodrome.replication.leader import Leader
from cosmodrome.store.message import Durability

RECORD_BYTES = 400  # a message of 128 bytes as it is stored
PATIENCE_SECONDS = 60

# It reads what it is sent, and reports after each read, as a slave does; a process of its own, for its CPU time is not
# the master's.
_SLAVE = """
import socket, struct, sys
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
link.sendall(struct.pack(">q", 1))
pending, end = b"", 1
while data := link.recv(262144):
    pending += data
    place = 0
    while len(pending) - place >= 12:
        offset, size = struct.unpack_from(">qi", pending, place)
        if len(pending) - place < 12 + size:
            break
        assert offset == end
        place, end = place + 12 + size, end + size
    pending = pending[place:]
    if place:
        link.sendall(struct.pack(">q", end))
"""


class MappedLog:
    """A log in one mapped file, to which records are appended by moving its end."""

    min_physical_offset = 0
    log_file_size = 1 << 40
    on_append: Callable[[], None] | None = None

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size)
        self._map.write(b"x" * size)
        self._view = memoryview(self._map)
        self.max_physical_offset = 1

    def log_bytes(self, begin: int, size: int) -> memoryview | None:
        end = min(begin + size, self.max_physical_offset)
        return self._view[begin:end] if begin < end else None


def measure(messages: int, per_turn: int, *, waits: bool) -> float:
    """Return the CPU nanoseconds that replication to one slave costs the master for a message.

    `per_turn` messages are appended in each turn of the loop, as by so many connections. If `waits`, each has a sender
    that waits for the slave.
    """
    spent_ns = []
    for slaves in (0, 1):
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            spent_ns.append(runner.run(_measure(messages, per_turn, slaves=slaves, waits=waits)))
    alone_ns, with_slave_ns = spent_ns
    return max(with_slave_ns - alone_ns, 1) / messages


async def _measure(messages: int, per_turn: int, *, slaves: int, waits: bool) -> int:
    log = MappedLog(messages * RECORD_BYTES + 1)
    leader = Leader(log, ReplicationConfig(in_sync_replicas=1 + slaves), SystemClock())
    await leader.start("127.0.0.1", 0)
    command = [sys.executable, "-c", _SLAVE, str(leader.port)]
    processes = [await asyncio.create_subprocess_exec(*command) for _ in range(slaves)]
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while leader.in_sync_copies() < 1 + slaves:  # noqa: ASYNC110 - nobody sets an event for it
                await asyncio.sleep(0.01)
            began = time.process_time_ns()
            for _ in range(0, messages, per_turn):
                waiting = [_append(log) for _ in range(per_turn)]
                if waits:
                    outcomes = await asyncio.gather(*(leader.replicated(end) for end in waiting))
                    assert outcomes == [Durability.OK] * per_turn
                else:
                    await asyncio.sleep(0)
            while slaves and leader.slaves()[0].reported < log.max_physical_offset:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            return time.process_time_ns() - began
    finally:
        await leader.close()
        for process in processes:
            await asyncio.wait_for(process.wait(), PATIENCE_SECONDS)


def _append(log: MappedLog) -> int:
    log.max_physical_offset += RECORD_BYTES
    if log.on_append is not None:
        log.on_append()
    return log.max_physical_offset

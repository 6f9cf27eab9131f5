"""A Raft group of `cosmodrome up --replicas 3`: its processes, what it acknowledges, and what it holds."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from cosmodrome import Message, Producer, PullConsumer
from cosmodrome.admin import Admin
from cosmodrome.errors import ClientError
from cosmodrome.wire.raft_requests import RaftStatus
from tests.system.daemons import Daemon

PATIENCE_SECONDS = 60
MEMBERS = ("n0", "n1", "n2")
_CONF = re.compile(r"broker-a-(n\d)\.conf")


def processes(daemon: Daemon) -> dict[str, int]:
    """Return the process of each member that lives."""
    found = {}
    for pid in Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split():
        try:
            name = _CONF.search(Path(f"/proc/{pid}/cmdline").read_text())
        except OSError:
            continue
        if name is not None:
            found[name[1]] = int(pid)
    return found


def namesrv(daemon: Daemon) -> str:
    return daemon.address("name server")


async def status(daemon: Daemon) -> dict[str, RaftStatus]:
    """Return what each member that the name server knows says of itself."""
    async with Admin(namesrv(daemon)) as admin:
        return {one.status.member: one.status for one in await admin.raft_status() if one.status is not None}


async def until(what: str, is_so: Callable[[], Awaitable[bool]]) -> None:
    """Return once it is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await is_so():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.1)


async def all_known(daemon: Daemon) -> None:
    """Return once all members are registered, and one of them leads."""

    async def is_so() -> bool:
        roles = [one.role for one in (await status(daemon)).values()]
        return len(roles) == len(MEMBERS) and roles.count("leader") == 1

    await until("not all members come back", is_so)


async def leader(daemon: Daemon) -> str:
    """Return the member that leads, once one does."""
    found: list[str] = []

    async def leads() -> bool:
        found[:] = [member for member, one in (await status(daemon)).items() if one.role == "leader"]
        return bool(found)

    await until("no member leads", leads)
    return found[0]


async def all_equal(daemon: Daemon) -> None:
    """Return once all members have committed the same."""

    async def is_so() -> bool:
        told = (await status(daemon)).values()
        places = {(one.last_index, one.commit_index) for one in told}
        return len(told) == len(MEMBERS) and len(places) == 1 and len(set(*places)) == 1

    await until("the members do not become equal", is_so)


class Sends:
    """A producer that sends all the time, and what was acknowledged: queue, offset and number, in order."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._number = 0
        self.acknowledged: list[tuple[int, int, int]] = []
        self._news = asyncio.Event()

    async def more(self, count: int) -> None:
        """Return when so many more messages are acknowledged."""
        goal = len(self.acknowledged) + count
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.acknowledged) < goal:
                self._news.clear()
                await self._news.wait()

    async def run(self) -> None:
        while True:
            self._number += 1
            try:
                sent = await self._producer.send(Message(self._topic, b"%d" % self._number))
            except ClientError:
                await asyncio.sleep(0.02)
                continue
            self.acknowledged.append((sent.queue.queue_id, sent.queue_offset, self._number))
            self._news.set()


@asynccontextmanager
async def sending(daemon: Daemon, topic: str) -> AsyncIterator[Sends]:
    async with Producer(group=f"{topic}-senders", namesrv=namesrv(daemon)) as producer:
        sends = Sends(producer, topic)
        task = asyncio.ensure_future(sends.run())
        try:
            yield sends
        finally:
            task.cancel()
            await asyncio.wait({task})


async def held(daemon: Daemon, topic: str) -> dict[tuple[int, int], int]:
    """Return the number of every message, by queue and offset, as a consumer reads them."""
    found = {}
    async with PullConsumer(group=f"{topic}-readers", namesrv=namesrv(daemon)) as consumer:
        for queue in await consumer.fetch_subscribe_queues(topic):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                pulled = await consumer.pull(queue, offset=offset)
                assert pulled.next_begin_offset > offset, pulled
                for message in pulled.messages:
                    found[queue.queue_id, message.queue_offset] = int(message.body)
                offset = pulled.next_begin_offset
    return found


async def check(daemon: Daemon, topic: str, acknowledged: list[tuple[int, int, int]]) -> None:
    """Every acknowledged message is where it was acknowledged; no place was given away twice, and none is empty."""
    places = [(queue_id, offset) for queue_id, offset, _ in acknowledged]
    assert len(set(places)) == len(places), "two messages were acknowledged at one place"
    found = await held(daemon, topic)
    wrong = [one for one in acknowledged if found.get((one[0], one[1])) != one[2]]
    assert not wrong, f"acknowledged, but not there: {wrong[:10]} of {len(acknowledged)}"
    for queue_id in {queue_id for queue_id, _ in found}:
        offsets = sorted(offset for queue, offset in found if queue == queue_id)
        assert offsets == list(range(len(offsets))), "a queue has a hole"
        numbers = [number for queue, _, number in acknowledged if queue == queue_id]
        in_order = [found[queue_id, offset] for queue, offset, _ in acknowledged if queue == queue_id]
        assert in_order == numbers == sorted(numbers), "the order of a queue"


def kill(daemon: Daemon, member: str) -> None:
    os.kill(processes(daemon)[member], signal.SIGKILL)

"""A group goes on at the slave while the master is away: what is repeated, and that nothing is lost."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from cosmodrome import Message, Producer
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import SendFailed
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import OffsetReply, QueryConsumerOffset
from tests.system.daemons import Daemon
from tests.system.reader import LOOK_MS
from tests.system.replicated import TOPIC, Node, Pair, replicated, until

GROUP = "readers"
PORTION = 20
# So that what a kill leaves of a master's offsets is what it was last told.
CONFIG = "flushConsumerOffsetInterval=100\n"


@dataclass
class Group:
    """The only queue's reader of now, and what all readers handled."""

    namesrv: str
    handled: Counter[int] = field(default_factory=Counter)
    daemon: Daemon | None = None

    def start(self) -> None:
        program = ("-m", "tests.system.reader")
        self.daemon = Daemon(self.namesrv, TOPIC, GROUP, program=program).__enter__()

    def kill(self) -> None:
        assert self.daemon is not None
        self.daemon.kill()
        self._hear(self.daemon)
        self.close()

    def close(self) -> None:
        if self.daemon is not None:
            self.go_on()
            self.daemon.__exit__(None, None, None)
            self.daemon = None

    def hang(self) -> None:
        """Handle nothing until `go_on`."""
        assert self.daemon is not None
        os.kill(self.daemon.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.daemon is not None
        if self.daemon._process.poll() is None:
            os.kill(self.daemon.pid, signal.SIGCONT)

    def _hear(self, daemon: Daemon) -> None:
        self.handled.update(int(line.split()[1]) for line in daemon.rest() if line.startswith("handled"))

    async def has_handled(self, count: int) -> None:
        """Wait until so many messages were handled, repeated ones included."""

        async def holds() -> bool:
            assert self.daemon is not None
            self._hear(self.daemon)
            return self.handled.total() >= count

        await until(holds)


async def send_portion(producer: Producer, number: int) -> None:
    for one in range(number * PORTION, (number + 1) * PORTION):

        async def is_sent(body: bytes = b"%d" % one) -> bool:
            try:
                await producer.send(Message(TOPIC, body))
            except SendFailed:  # until the producer's route names the master of now
                return False
            return True

        await until(is_sent)


async def offset_at(pair: Pair, node: Node) -> int | None:
    reply = await pair.ask(
        node, Command.request(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset(GROUP, TOPIC, 0))
    )
    return OffsetReply.decode(reply).offset if reply.code == ResponseCode.SUCCESS else None


async def told(pair: Pair, node: Node, offset: int) -> None:
    """Wait until a broker has that offset of the group in its file."""
    file = node.folder / "config" / "consumerOffset.json"
    entry = re.compile(rf'"{TOPIC}@{GROUP}":{{\s*0:{offset}\s')

    async def holds() -> bool:
        is_saved = file.exists() and entry.search(file.read_text()) is not None
        return is_saved and await offset_at(pair, node) == offset

    await until(holds)


async def test_a_group_goes_on_at_the_slave_and_repeats_only_what_the_master_was_not_told(tmp_path: Path) -> None:
    async with (
        replicated(tmp_path, master="ASYNC_MASTER", extra=CONFIG) as pair,
        Producer("p", config=ClientConfig(namesrv=pair.namesrv, poll_route_interval_ms=LOOK_MS)) as producer,
    ):
        master, slave = pair.nodes
        group = Group(pair.namesrv)
        await send_portion(producer, 0)
        group.start()
        try:
            await group.has_handled(PORTION)
            await told(pair, master, PORTION)
            slave.start()
            await pair.connected(master)
            await pair.knows_offset(slave, GROUP, PORTION)

            # The master dies, and the reader goes on from memory.
            group.hang()
            await send_portion(producer, 1)
            await pair.connected(master)
            master.kill()
            group.go_on()
            await group.has_handled(2 * PORTION)
            await told(pair, slave, 2 * PORTION)
            assert group.handled == Counter(range(2 * PORTION)), "nothing is lost, and nothing repeated"

            # The master comes back with its old offset: it takes none from its slave, but the reader tells it.
            master.start()
            await told(pair, master, 2 * PORTION)
            await pair.connected(master)

            # It dies again; what is handled at the slave it is not told, and the reader dies before it can tell.
            group.hang()
            await send_portion(producer, 2)
            await pair.connected(master)
            master.kill()
            group.go_on()
            await group.has_handled(3 * PORTION)
            group.kill()
            master.start()
            assert await offset_at(pair, master) == 2 * PORTION
            group.start()
            await group.has_handled(4 * PORTION)
            await pair.connected(master)
            await send_portion(producer, 3)
            await group.has_handled(5 * PORTION)
            await told(pair, master, 4 * PORTION)
        finally:
            group.close()
    since_the_commit = Counter(range(2 * PORTION, 3 * PORTION))
    assert group.handled == Counter(range(4 * PORTION)) + since_the_commit

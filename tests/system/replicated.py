"""A name server, a master and its slave as processes, and a client that asks them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cosmodrome import Message, Producer
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import SendFailed
from cosmodrome.model import SendResult
from cosmodrome.net.caller import Caller
from cosmodrome.wire.bodies import EpochsBody, KVTable
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import (
    OffsetReply,
    PullFlag,
    PullMessage,
    PullReply,
    QueryConsumerOffset,
    QueueHeader,
    TopicHeader,
)
from tests.system.daemons import BROKER_CONF, Daemon

NAME = "broker-a"
TOPIC = "orders"
PATIENCE_SECONDS = 60
CALL_MS = 5_000
MASTER, SLAVE = "SYNC_MASTER", "SLAVE"


@dataclass
class Node:
    """One broker of the pair: its folder stays, its process and its role change."""

    folder: Path
    namesrv: str
    role: str
    extra: str = ""
    daemon: Daemon | None = None
    address: str = ""
    port: int = 0  # 0: another one with each start

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        conf = self.folder.with_suffix(".conf")
        broker_id = 1 if self.role == SLAVE else 0
        conf.write_text(
            f"{BROKER_CONF}brokerName={NAME}\nbrokerRole={self.role}\nbrokerId={broker_id}\nhaListenPort=0\n"
            f"flushDiskType=SYNC_FLUSH\nslaveTimeout=1000\ndefaultTopicQueueNums=1\n{self.extra}"
        )
        words = ("-n", self.namesrv, "-c", str(conf), "--store", str(self.folder), "--port", str(self.port))
        self.daemon = Daemon("-v", "broker", *words).__enter__()
        self.address = self.daemon.address("broker")

    @property
    def process(self) -> Daemon:
        assert self.daemon is not None, "started"
        return self.daemon

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.close()

    def stop(self) -> None:
        """Ctrl-C."""
        assert self.process.interrupt() == 0
        self.close()

    def hang(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        if self.daemon is not None:
            self.daemon.__exit__(None, None, None)
            self.daemon = None

    @property
    def log_files(self) -> dict[str, bytes]:
        return {
            path.name: path.read_bytes()
            for path in sorted((self.folder / "commitlog").iterdir())
            if path.stat().st_size
        }


@dataclass
class Pair:
    """Two brokers of one name."""

    namesrv: str
    nodes: tuple[Node, Node]
    caller: Caller = field(default_factory=Caller)
    acknowledged: dict[str, bytes] = field(default_factory=dict)

    async def ask(self, node: Node, command: Command) -> Command:
        return await self.caller.call(node.address, command, CALL_MS)

    async def figures(self, node: Node) -> dict[str, str]:
        reply = await self.ask(node, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        return dict(KVTable.decode(reply.body).table)

    async def term(self, node: Node) -> int:
        reply = await self.ask(node, Command.request(RequestCode.GET_BROKER_EPOCH_CACHE))
        return EpochsBody.decode(reply.body).epochs[-1].term

    async def connected(self, master: Node) -> None:
        """The master has a slave that is in sync, and has all of its log."""

        async def holds() -> bool:
            figures = await self.figures(master)
            return figures["slavesInSync"] == "1" and figures["slaveBehindBytesMax"] == "0"

        await until(holds)

    async def knows_topic(self, node: Node, topic: str = TOPIC) -> None:
        async def holds() -> bool:
            reply = await self.ask(node, Command.request(RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic)))
            return reply.code == ResponseCode.SUCCESS

        await until(holds)

    async def knows_offset(self, node: Node, group: str, offset: int) -> None:
        async def holds() -> bool:
            header = QueryConsumerOffset(group, TOPIC, 0)
            reply = await self.ask(node, Command.request(RequestCode.QUERY_CONSUMER_OFFSET, header))
            return reply.code == ResponseCode.SUCCESS and OffsetReply.decode(reply).offset == offset

        await until(holds)

    async def send(self, producer: Producer, count: int) -> list[SendResult]:
        """Send, and remember what the pair has promised to keep."""
        results: list[SendResult] = []
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while len(results) < count:
            body = b"%d" % (len(self.acknowledged) + len(results))
            try:
                result = await producer.send(Message(TOPIC, body))
            except SendFailed:  # until the producer's route names the master of now
                assert asyncio.get_running_loop().time() < deadline
                continue
            results.append(result)
            if result.status.name == "SEND_OK":
                self.acknowledged[result.msg_id] = body
        return results

    async def max_offset(self, node: Node, topic: str = TOPIC) -> int:
        reply = await self.ask(node, Command.request(RequestCode.GET_MAX_OFFSET, QueueHeader(topic, 0)))
        return OffsetReply.decode(reply).offset

    async def bodies(self, node: Node) -> list[bytes]:
        """All messages of the topic, pulled from one of the two."""
        found: list[bytes] = []
        offset, end = 0, await self.max_offset(node)
        while offset < end:
            pull = PullMessage("checker", TOPIC, 0, offset, 32, int(PullFlag.SUBSCRIPTION), 0, 0, "*")
            reply = await self.ask(node, Command.request(RequestCode.PULL_MESSAGE, pull))
            assert reply.code == ResponseCode.SUCCESS, (reply.code, reply.remark)
            found += [record.body for record in decode_records(bytes(reply.body))]
            offset = PullReply.decode(reply).next_begin_offset
        return found


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await holds():  # noqa: ASYNC110  # another process is no event
            await asyncio.sleep(0.05)


@asynccontextmanager
async def replicated(folder: Path, *, master: str = MASTER, extra: str = "") -> AsyncIterator[Pair]:
    """A pair whose master runs; the slave is started by the test."""
    with Daemon("namesrv", "--port", "0", "--kv-config", str(folder / "kv.json")) as server:
        namesrv = server.address("name server")
        pair = Pair(
            namesrv,
            (Node(folder / "first", namesrv, master, extra), Node(folder / "second", namesrv, SLAVE, extra)),
        )
        try:
            pair.nodes[0].start()
            yield pair
        finally:
            await pair.caller.close()
            for node in reversed(pair.nodes):
                if node.daemon is not None:
                    node.go_on()
                node.close()

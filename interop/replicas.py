"""A master and a slave of one name, each ours or Apache's, and the bytes that both must have."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path

from cosmodrome import Message, Producer
from cosmodrome.errors import ClientError
from cosmodrome.model import SendStatus
from interop.apache import ApacheBroker, ask, cluster_info, wait_settled
from interop.child import Child, free_port
from interop.messages import body
from interop.ours import CosmodromeBroker

OURS = "ours"
BROKER_NAME = "pair"
STOP_TIMEOUT_S = 90
SEND_TIMEOUT_MS = 10_000
IN_FLIGHT = 32
DELAY_LEVEL = 1  # one second
QUIET_S = 3.0

_MIB = 1024 * 1024
_GET_ALL_TOPIC_CONFIG = 21
_GET_BROKER_RUNTIME_INFO = 28
_SUCCESS = 0
# The same on both sides: a slave copies whole files. Apache's slaves are told to serve reads.
_COMMON = {
    "mappedFileSizeCommitLog": 4 * _MIB,
    "mappedFileSizeConsumeQueue": 20 * 10_000,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
    "mappedFileSizeTimerLog": _MIB,
    "slaveReadEnable": "true",
    "haSendHeartbeatInterval": 1_000,
    "fileReservedTime": 720,
}


class Replica:
    """One broker of the pair: a folder and a port that stay, whatever runs there.

    `kind` is OURS, or the version of an Apache broker.
    """

    def __init__(
        self, kind: str, role: str, broker_id: int, home: Path, namesrv: str, extra: Mapping[str, object] | None = None
    ) -> None:
        self.kind = kind
        self.home = home
        self.address = ""
        self._namesrv = namesrv
        port = free_port(before=2, after=1)
        self._config = {**_COMMON, "brokerRole": role, "brokerId": broker_id, "listenPort": port}
        self._config |= {"haListenPort": port + 1, **(extra or {})}
        self._child: Child | None = None

    def start(self) -> None:
        """Start it, for the first time or again; it is registered when this returns."""
        broker: ApacheBroker | CosmodromeBroker
        if self.kind == OURS:
            broker = CosmodromeBroker(self._namesrv, self.home, BROKER_NAME, self._config)
        else:
            broker = ApacheBroker(self.kind, self._namesrv, self.home, BROKER_NAME, extra=self._config)
        self._child, self.address = broker, broker.address
        wait_settled(lambda: self.address.encode() in cluster_info(self._namesrv), f"{self.address} is not registered")

    def configure(self, **config: object) -> None:
        """Change keys for the next start."""
        self._config |= config

    def kill(self) -> None:
        """End it as kill -9 does."""
        assert self._child is not None
        self._child.kill()

    def stop(self) -> None:
        """End it in good order, so that its files can be looked at."""
        assert self._child is not None
        if not self._child.has_ended:
            self._child.stop_in_order(STOP_TIMEOUT_S)

    def abandon(self) -> None:
        """End it, however far it has come."""
        if self._child is not None:
            self._child.kill()

    @property
    def log_end(self) -> int:
        """The end of its log, as it says; -1 while it does not."""
        try:
            header, reply = ask(self.address, _GET_BROKER_RUNTIME_INFO, {})
        except (OSError, EOFError):
            return -1
        return int(json.loads(reply)["table"]["commitLogMaxOffset"]) if header["code"] == _SUCCESS else -1

    def knows(self, topic: str) -> bool:
        """Return whether it has the topic in its table."""
        header, reply = ask(self.address, _GET_ALL_TOPIC_CONFIG, {})
        return header["code"] == _SUCCESS and f'"{topic}"'.encode() in reply

    def log(self) -> dict[str, bytes]:
        """The bytes of its log, by file."""
        folder = self.home / "store" / "commitlog"
        files = sorted(path for path in folder.iterdir() if path.is_file() and path.name.isdigit())
        return {path.name: path.read_bytes() for path in files}


def wait_level(master: Replica, slave: Replica) -> int:
    """Return the log's end once the slave has all that the master has, which stores nothing any more: what was delayed
    is delivered."""
    since: dict[int, float] = {}  # when both logs were seen to end there for the first time

    def is_level() -> bool:
        end = master.log_end
        if not 0 < end == slave.log_end:
            return False
        return time.monotonic() > since.setdefault(end, time.monotonic()) + QUIET_S

    wait_settled(is_level, f"{slave.kind} does not have what {master.kind} has")
    return max(since)


def check_equal(master: Replica, slave: Replica, end: int) -> None:
    """Compare the logs byte for byte. What lies behind the end is the reader's own."""
    theirs, ours = master.log(), slave.log()
    assert set(ours) <= set(theirs), "the slave has a file that its master has not"
    for name, content in ours.items():
        upto = min(max(end - int(name), 0), len(content))
        assert content[:upto] == theirs[name][:upto], f"file {name} differs below {end}"
    assert max(int(name) + len(content) for name, content in ours.items()) >= end


def send_mixed(namesrv: str, topic: str, count: int) -> list[int]:
    """Send messages of many sizes, single, in batches and delayed; return the indexes that a broker acknowledged."""

    async def run() -> list[int]:
        acknowledged: list[int] = []
        room = asyncio.Semaphore(IN_FLIGHT)

        async def send(producer: Producer, indexes: list[int]) -> None:
            async with room:
                delay = DELAY_LEVEL if len(indexes) == 1 and indexes[0] % 53 == 0 else 0
                messages = [_message(topic, index, delay) for index in indexes]
                try:
                    if len(messages) == 1:
                        result = await producer.send(messages[0], timeout_ms=SEND_TIMEOUT_MS)
                    else:
                        result = await producer.send_batch(messages, timeout_ms=SEND_TIMEOUT_MS)
                except ClientError:
                    return
                if result.status in (SendStatus.SEND_OK, SendStatus.SLAVE_NOT_AVAILABLE):
                    acknowledged.extend(indexes)

        async with Producer(group="pair-producer", namesrv=namesrv) as producer, asyncio.TaskGroup() as tasks:
            step, index = 0, 0
            while index < count:
                size = min(16, count - index) if step % 3 == 0 else 1
                tasks.create_task(send(producer, list(range(index, index + size))))
                step, index = step + 1, index + size
        return sorted(acknowledged)

    return asyncio.run(run())


def _message(topic: str, index: int, delay_level: int) -> Message:
    size = 20_000 if index % 97 == 0 else 100 + index % 900
    tags, keys = "red" if index % 2 else "blue", f"key-{index}"
    return Message(topic, body(index, size), tags=tags, keys=keys, delay_level=delay_level)

"""The brokers under load, each a process of its own with a name server of its own."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import LoadError, connect
from benchmarks.workloads import make_send
from cosmodrome.codes import RequestCode
from cosmodrome.config import StoreConfig
from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import JSON, FrameDecoder
from cosmodrome.wire.requests import CreateTopic, OffsetReply, QueueHeader
from interop.apache import ApacheBroker, ApacheNameServer, started_or_stopped, wait_registered
from interop.child import Child, free_port
from interop.ours import HOST, CosmodromeNameServer
from interop.setup import Build, SetupError

RECEIVE_BYTES = 64 * 1024
STORED_TIMEOUT_S = 10
STORED_INTERVAL_S = 0.05
SLAVE_TIMEOUT_S = 60
OUR_BROKER = "bench-broker"
OUR_COMMAND = (sys.executable, "-m", "cosmodrome.cli.main")
# A broker as it is meant to run: all of the compiler, and room for its threads.
APACHE_OPTIONS = ("-server", "-Xms1g", "-Xmx1g", "-Xmn512m", "-XX:MaxDirectMemorySize=1g")
APACHE_WARM_UP_S = 12.0  # the compiler's; below ten seconds it shows half its speed
OUR_WARM_UP_S = 1.0

_CPU_CLOCK = 2  # the kernel's CPUCLOCK_SCHED: all threads, the ended ones too, in nanoseconds


@dataclass(frozen=True, slots=True)
class Target:
    """A broker that runs: how to reach it and which process pays for the work."""

    name: str
    address: str
    namesrv: str
    process: Child
    warm_up_s: float

    @property
    def pid(self) -> int:
        return self.process.pid

    def cpu_ns(self) -> int:
        """CPU time the process has used so far, in user and kernel mode."""
        return time.clock_gettime_ns((~self.pid << 3) | _CPU_CLOCK)

    def create_topic(self, topic: str, queues: int) -> None:
        header = CreateTopic(
            topic=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            default_topic="TBW102",
            topic_sys_flag=0,
        )
        self.call(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))

    def stored(self, topic: str, queues: int) -> int:
        """Messages in the topic: the sum of its queues' ends."""
        ends = [
            OffsetReply.decode(self.call(Command.request(RequestCode.GET_MAX_OFFSET, QueueHeader(topic, queue_id))))
            for queue_id in range(queues)
        ]
        return sum(end.offset for end in ends)

    def wait_stored(self, topic: str, queues: int, count: int) -> None:
        """Return once the topic holds exactly `count` messages. Apache fills its queues a little behind the log."""
        deadline = time.monotonic() + STORED_TIMEOUT_S
        while (stored := self.stored(topic, queues)) != count:
            if stored > count or time.monotonic() > deadline:
                raise LoadError(f"{self.name} answered {count} sends to {topic} but holds {stored} messages")
            time.sleep(STORED_INTERVAL_S)

    def call(self, command: Command) -> Command:
        """The reply to a request that must succeed."""
        command.opaque = 1
        decoder = FrameDecoder()
        with connect(self.address) as connection:
            connection.sendall(command.encode())
            while (frame := decoder.take()) is None:
                data = connection.recv(RECEIVE_BYTES)
                if not data:
                    raise LoadError(f"{self.name} closed the connection instead of answering {command}")
                decoder.feed(data)
        reply = Command.decode(frame)
        if reply.code != 0:
            raise LoadError(f"{self.name} answered {command} with {reply}")
        return reply


def machine_busy_s() -> float:
    """CPU time that the whole machine has spent on anything but idling, waiting for disks and being robbed."""
    first_line = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(int, first_line.split()[1:])
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Memory of a process that lies in RAM, mapped files included."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class OurBroker(Child):
    """`cosmodrome broker`, registered once constructed. `command` may wrap it, for a profile."""

    def __init__(
        self, namesrv: str, home: Path, command: Sequence[str] = OUR_COMMAND, more: Sequence[str] = ()
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        port = free_port(before=2, after=1)
        self.address = f"{HOST}:{port}"
        words = ["broker", "-n", namesrv, "--name", OUR_BROKER, "--host", HOST, "--port", str(port), *more]
        super().__init__("cosmodrome broker", [*command, *words, "--store", str(home / "store")], home / "stderr.log")
        started_or_stopped(self, lambda: wait_registered(self, namesrv, OUR_BROKER))


def start_ours(
    home: Path, stack: ExitStack, command: Sequence[str] = OUR_COMMAND, config: Mapping[str, str] | None = None
) -> Target:
    """Start our broker, with these keys in its `broker.conf`."""
    namesrv = stack.enter_context(CosmodromeNameServer(home / "namesrv"))
    more: tuple[str, ...] = ()
    if config:
        file = home / "broker.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
        more = ("-c", str(file))
    broker = stack.enter_context(OurBroker(namesrv.address, home / "broker", command, more))
    return Target("Cosmodrome", broker.address, namesrv.address, broker, OUR_WARM_UP_S)


def start_our_pair(home: Path, stack: ExitStack, role: str) -> Target:
    """A master of this role and a slave that follows it; the target is the master."""
    return start_our_master_and_slave(home, stack, role)[0]


def start_our_master_and_slave(home: Path, stack: ExitStack, role: str) -> tuple[Target, OurBroker]:
    """The same, and the slave."""
    namesrv = stack.enter_context(CosmodromeNameServer(home / "namesrv"))
    master = stack.enter_context(OurBroker(namesrv.address, home / "master", more=("--role", role)))
    slave = stack.enter_context(OurBroker(namesrv.address, home / "slave", more=("--role", "SLAVE", "--id", "1")))
    slave.wait_line("follows", SLAVE_TIMEOUT_S)
    return Target(f"Cosmodrome {role}", master.address, namesrv.address, master, OUR_WARM_UP_S), slave


def why_no_apache(version: str, kind: str = "server") -> str | None:
    """Return None once Apache's jars are there, fetched if need be; otherwise the reason why they are not."""
    build = Build(kind, version)
    try:
        if not build.is_current():
            build.make()
    except SetupError as error:
        return str(error).partition("\n")[0]
    return None


def start_apache(version: str, home: Path, stack: ExitStack, config: Mapping[str, object] | None = None) -> Target:
    """Start Apache's broker with the file sizes of its own defaults, which are ours too, and with these keys."""
    # Killed in the end: they take ten seconds to stop in good order, and nothing reads what they leave behind.
    namesrv = ApacheNameServer(version, home / "namesrv")
    stack.callback(namesrv.kill)
    broker = _start_apache_broker(version, namesrv.address, home / "broker", stack, config)
    return Target(f"Apache {version}", broker.address, namesrv.address, broker, APACHE_WARM_UP_S)


def start_apache_pair(version: str, home: Path, stack: ExitStack, role: str) -> Target:
    """Apache's master of this role and its slave; the target is the master."""
    namesrv = ApacheNameServer(version, home / "namesrv")
    stack.callback(namesrv.kill)
    roles: dict[str, object] = {"brokerRole": role}
    if version.startswith("5."):
        roles["inSyncReplicas"] = 2  # else a SYNC_MASTER of Apache 5 waits for nobody
    master = _start_apache_broker(version, namesrv.address, home / "master", stack, roles)
    slave = {"brokerRole": "SLAVE", "brokerId": 1}
    _start_apache_broker(version, namesrv.address, home / "slave", stack, slave)
    target = Target(f"Apache {version} {role}", master.address, namesrv.address, master, APACHE_WARM_UP_S)
    _wait_followed(target)
    return target


def _wait_followed(master: Target) -> None:
    """Return once a send is answered with success: the slave connects some seconds after it has registered."""
    deadline = time.monotonic() + SLAVE_TIMEOUT_S
    message = make_send(JSON)("wait-followed", 0, 0)
    while True:
        try:
            master.call(message)
            return
        except LoadError:
            if time.monotonic() > deadline:
                raise
        time.sleep(STORED_INTERVAL_S)


def _start_apache_broker(
    version: str, namesrv: str, home: Path, stack: ExitStack, more: Mapping[str, object] | None = None
) -> ApacheBroker:
    files = StoreConfig()
    port = free_port(before=2, after=1)
    config = {
        "listenPort": port,
        "haListenPort": port + 1,
        "mappedFileSizeCommitLog": files.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": files.mapped_file_size_consume_queue,
        "maxHashSlotNum": files.max_hash_slot_num,
        "maxIndexNum": files.max_index_num,
        **(more or {}),
    }
    broker = ApacheBroker(version, namesrv, home, OUR_BROKER, options=APACHE_OPTIONS, extra=config)
    stack.callback(broker.kill)
    return broker

"""Brokers that copy one log, on a network and on disks that fail, in one thread and from one seed.

The pure parts are the real ones: `Sender` and `Progress` at the master, `FollowerSession` at the slaves. Around them
are a log that knows which of its bytes a crash may take, connections that delay, cut and lose bytes, and an operator
who restarts and promotes. What must hold is checked at every step.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from cosmodrome.config import BrokerRole, ReplicationConfig
from cosmodrome.errors import ProtocolError
from cosmodrome.replication.epochs import CannotFollow, LogDiverged, LogEpoch, MasterLog
from cosmodrome.replication.follower import FollowerSession, FollowerState
from cosmodrome.replication.leader import CannotServe, Sender
from cosmodrome.replication.progress import Progress
from cosmodrome.store.message import Durability

FILE_SIZE = 512
BLANK_SIZE = 8
STEP_MS = 20
STEPS = 600
HEALING_STEPS = 2_000
RETRY_MS = 200
SOCKET_BYTES = 400  # what may be under way to a slave before its master waits


class Crash(Exception):
    """A process that dies in the midst of something."""


class FakeEpochs:
    """The durable list of a log's epochs."""

    def __init__(self, first_id: str, fuse: Callable[[str], None]) -> None:
        self.list: Sequence[LogEpoch] = [LogEpoch(1, first_id, 0)]
        self.term = 1
        self._fuse = fuse

    def adopt(self, epochs: Sequence[LogEpoch], /) -> None:
        self._fuse("adopt")
        self.list, self.term = list(epochs), epochs[-1].term
        self._fuse("adopted")

    def begin(self, end: int, new_id: str, term: int) -> None:
        """As a broker does that becomes master."""
        self.list = [epoch for epoch in self.list if epoch.begin < end] + [LogEpoch(term, new_id, end)]
        self.term = term

    def load(self, end: int) -> None:
        """As a start does, which drops what lies beyond the log's end, but forgets no term."""
        self.list = [epoch for epoch in self.list if epoch.begin <= end] or list(self.list[:1])

    def forget(self, begin: int) -> None:
        """As retention does: epochs of which no byte is left go."""
        ends = [epoch.begin for epoch in self.list[1:]]
        kept = [epoch for epoch, end in zip(self.list, ends, strict=False) if end > begin]
        self.list = [*kept, self.list[-1]]


class FakeLog:
    """A log of records `| size 4 | bytes |` in files, with blanks at their ends; it knows what is synced."""

    def __init__(self, random: Random, name: str, syncs: bool) -> None:
        self._random = random
        self._name = name
        self.syncs = syncs
        self.fuse: str | None = None  # where in its work the process dies
        self.on_safe: Callable[[], None] | None = None
        self.on_append: Callable[[], None] | None = None
        self.log_file_size = FILE_SIZE
        self.epochs: FakeEpochs
        self.wipe()

    def wipe(self) -> None:
        self.epochs = FakeEpochs(f"{self._name}-{self._random.getrandbits(32):x}", self._burn)
        self.begin = 0
        self.bytes = bytearray()
        self.whole = 0  # behind the last whole record
        self.synced = 0

    def _burn(self, moment: str) -> None:
        if self.fuse == moment:
            self.fuse = None
            raise Crash(moment)

    @property
    def min_physical_offset(self) -> int:
        return self.begin

    @property
    def max_physical_offset(self) -> int:
        return self.begin + len(self.bytes)

    @property
    def safe_end(self) -> int:
        return self.durable_end

    @property
    def durable_end(self) -> int:
        """What a crash leaves, as far as this broker promises."""
        return self.synced if self.syncs else self.max_physical_offset

    def read(self, begin: int, end: int) -> bytes:
        return bytes(self.bytes[begin - self.begin : end - self.begin])

    def log_bytes(self, begin: int, size: int) -> memoryview | None:
        end = min(begin + size, self.max_physical_offset, begin - begin % FILE_SIZE + FILE_SIZE)
        return memoryview(self.read(begin, end)) if self.begin <= begin < end else None

    def append(self) -> tuple[int, int]:
        """Append a record as a master does; returns where it lies."""
        size = self._random.choice((8, 20, 20, 60, 150))
        left = FILE_SIZE - self.max_physical_offset % FILE_SIZE
        if size + BLANK_SIZE > left:
            self.bytes += left.to_bytes(4, "big") + bytes(left - 4)
        begin = self.max_physical_offset
        self.bytes += size.to_bytes(4, "big") + self._random.randbytes(size - 4)
        self.whole = self.max_physical_offset
        return begin, self.whole

    def append_raw(self, offset: int, data: bytes | memoryview, /) -> None:
        if not self.max_physical_offset and offset % FILE_SIZE == 0:
            self.begin = self.whole = self.synced = offset
        if offset != self.max_physical_offset:
            raise LogDiverged(f"{offset} is not the end, which is {self.max_physical_offset}")
        if offset // FILE_SIZE != (offset + len(data) - 1) // FILE_SIZE:
            raise LogDiverged(f"{len(data)} bytes at {offset} cross a file")
        self.bytes += data
        self._parse()

    def enter_raw(self) -> None:
        """It has no queues."""

    def _parse(self) -> None:
        while self.whole + 4 <= self.max_physical_offset:
            size = int.from_bytes(self.read(self.whole, self.whole + 4), "big")
            if size < 4:
                raise LogDiverged(f"no record at {self.whole}")
            if self.whole + size > self.max_physical_offset:
                break
            self.whole += size

    def _cut(self, end: int) -> None:
        del self.bytes[end - self.begin :]
        self.synced = min(self.synced, end)
        if self.whole > end:
            self.whole = self.begin
            self._parse()

    def settle(self) -> int:
        self._burn("settle")
        self._cut(self.whole)
        return self.whole

    def truncate_log(self, end: int, /) -> None:
        self._burn("truncate")
        assert self.begin <= end <= self.max_physical_offset
        self._cut(end)
        assert self.whole == end, "cut in the midst of a record"
        self._burn("truncated")

    def sync(self) -> None:
        self.synced = self.max_physical_offset
        if self.on_safe is not None:
            self.on_safe()

    def crash(self) -> None:
        """Lose some of what is not synced, and come up with whole records only."""
        self._cut(self._random.randint(self.synced, self.max_physical_offset))
        self._cut(self.whole)
        if not self.bytes:
            self.begin = self.whole = self.synced = 0
        self.epochs.load(self.max_physical_offset)

    def drop_first_file(self) -> None:
        end = self.begin - self.begin % FILE_SIZE + FILE_SIZE
        if end < self.max_physical_offset - FILE_SIZE:
            del self.bytes[: end - self.begin]
            self.begin = end
            self.epochs.forget(end)


class Pipe:
    """One direction of a connection: bytes arrive later, in pieces of any size, or not at all."""

    def __init__(self, random: Random, longest_delay_ms: int) -> None:
        self._random = random
        self._longest_delay_ms = longest_delay_ms
        self._under_way: list[tuple[int, bytes]] = []
        self._last_ms = 0
        self.ends_ms: int | None = None  # from when on nothing arrives

    @property
    def under_way_bytes(self) -> int:
        return sum(len(data) for _, data in self._under_way)

    def send(self, data: bytes, now_ms: int) -> None:
        if self.ends_ms is not None:
            return
        while data:
            size = self._random.choice((1, 5, 13, len(data), len(data), len(data)))
            self._last_ms = max(self._last_ms, now_ms + self._random.randint(1, self._longest_delay_ms))
            self._under_way.append((self._last_ms, data[:size]))
            data = data[size:]

    def take(self, now_ms: int) -> bytes:
        if self.ends_ms is not None:
            now_ms = min(now_ms, self.ends_ms)
        arrived = [data for ms, data in self._under_way if ms <= now_ms]
        del self._under_way[: len(arrived)]
        return b"".join(arrived)

    def cut(self, at_ms: int) -> None:
        if self.ends_ms is None:
            self.ends_ms = at_ms

    def is_over(self, now_ms: int) -> bool:
        return self.ends_ms is not None and now_ms > self.ends_ms


class Wire:
    """A connection between a slave and one life of a master."""

    def __init__(self, random: Random, delay_ms: int, master: Node, slave: Node) -> None:
        self.reports = Pipe(random, delay_ms)
        self.packets = Pipe(random, delay_ms)
        self.master, self.life = master, master.life
        self.slave, self.slave_life = slave, slave.life
        self.crashes_before = slave.crashes

    def cut(self, at_ms: int, later_ms: int = 0) -> None:
        """End both directions, the master's side `later_ms` after the slave's."""
        self.packets.cut(at_ms)
        self.reports.cut(at_ms + later_ms)

    @property
    def is_of_this_life(self) -> bool:
        return self.master.is_master and self.life == self.master.life


@dataclass(slots=True)
class Message:
    """One message of a SYNC_MASTER, and what its sender waits for."""

    begin: int
    end: int
    data: bytes
    outcome: Durability | None = None
    is_synced: bool = False
    is_acknowledged: bool = False


class Node:
    """A broker: its log, and what it does with it in this life."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"node-{number}"
        self.log = FakeLog(world.random, self.name, world.syncs)
        self.life = 0
        self.crashes = 0
        self.is_alive = True
        self.is_master = False
        self.was_slave = False
        # as a master
        self.progress = Progress[Message](1, 1, 1)
        self.senders: dict[Wire, Sender] = {}
        self.joined: set[Wire] = set()
        self.asked: list[Message] = []
        self.unsynced: list[Message] = []
        # as a slave
        self.wire: Wire | None = None
        self.session: FollowerSession | None = None
        self.answer: tuple[int, MasterLog] | None = None  # under way, and when it arrives
        self.retry_ms = 0

    # --- lives

    def lead(self, *, is_clean: bool) -> None:
        """Become master, in a new life."""
        self._end_life()
        if self.log.settle() == 0:
            self.world.was_led_empty = True
        if not is_clean or self.was_slave:
            self.log.epochs.begin(self.log.max_physical_offset, self.world.new_id(self), self._term())
        self.is_master, self.was_slave = True, False
        config = self.world.config
        self.progress = Progress[Message](
            config.copies, config.ha_max_gap_not_in_sync, config.slave_timeout, self.log.max_physical_offset
        )

    def _term(self) -> int:
        """A slave that is promoted may never have heard of the last master: the name server has, and tells its term."""
        term = self.log.epochs.term
        if self.was_slave:
            term = self.world.registered_term = max(term, self.world.registered_term) + 1
        return term

    def serve_as_slave(self) -> None:
        self._end_life()
        self.is_master, self.was_slave = False, True

    def crash(self) -> None:
        self._end_life()
        self.crashes += 1
        self.is_alive = False
        self.log.crash()
        self.world.report.events["crashes"] += 1

    def _end_life(self) -> None:
        now_ms, random = self.world.now_ms, self.world.random
        self.life += 1
        for wire in self.senders:
            wire.cut(now_ms + random.randint(0, 50))
        if self.wire is not None:
            self.wire.cut(now_ms, random.choice((0, 30, 500, 5_000)))
        self.senders, self.joined, self.asked, self.unsynced = {}, set(), [], []
        self.wire = self.session = self.answer = None
        self.log.on_safe = None
        self.log.fuse = None

    # --- a master's step

    def append(self) -> None:
        begin, end = self.log.append()
        message = Message(begin, end, self.log.read(begin, end))
        self.world.report.messages += 1
        self.asked.append(message)
        self.unsynced.append(message)
        outcome = self.progress.ask(message, end, self.world.now_ms)
        if outcome is not None:
            self._woken([(message, outcome)])

    def sync(self) -> None:
        self.log.sync()
        synced, self.unsynced = self.unsynced, []
        for message in synced:
            message.is_synced = True
            self._maybe_acknowledge(message)

    def _woken(self, woken: list[tuple[Message, Durability]]) -> None:
        for message, outcome in woken:
            assert message.outcome is None, "woken twice"
            message.outcome = outcome
            self.world.report.outcomes[outcome] += 1
            if outcome is Durability.OK:
                self.world.check_copies(self, message)
            self._maybe_acknowledge(message)

    def _maybe_acknowledge(self, message: Message) -> None:
        if message.outcome is Durability.OK and (message.is_synced or not self.log.syncs):
            message.is_acknowledged = True
            self.world.acknowledged.append(message)

    def step_as_master(self) -> None:
        now_ms = self.world.now_ms
        self.progress.advance(self.log.max_physical_offset)
        for wire, sender in tuple(self.senders.items()):
            try:
                self._step_sender(wire, sender, now_ms)
            except CannotServe as error:
                self.world.report.events["slaves refused by their master"] += 1
                self.world.check_refusal(wire, str(error))
                self._drop(wire)
            except ProtocolError as error:
                raise AssertionError(f"a slave sent nonsense: {error}") from error
        self._woken(self.progress.expire(now_ms))

    def _step_sender(self, wire: Wire, sender: Sender, now_ms: int) -> None:
        data = wire.reports.take(now_ms)
        offset = sender.receive(data, now_ms) if data else None
        if offset is not None:
            if wire in self.joined:
                self._woken(self.progress.report(wire, offset))
            else:
                self.joined.add(wire)
                self._woken(self.progress.join(wire, offset, self.world.host_of(wire.slave)))
        if wire.reports.is_over(now_ms) or sender.is_silent(now_ms):
            self._drop(wire)
            return
        while wire.packets.under_way_bytes < SOCKET_BYTES and (packet := sender.packet(now_ms)):
            wire.packets.send(packet, now_ms)
        if heartbeat := sender.heartbeat(now_ms):
            wire.packets.send(heartbeat, now_ms)

    def _drop(self, wire: Wire) -> None:
        wire.cut(self.world.now_ms)
        del self.senders[wire]
        self.joined.discard(wire)
        self._woken(self.progress.leave(wire))

    # --- a slave's step

    def step_as_slave(self) -> None:
        world, now_ms = self.world, self.world.now_ms
        master = world.followed(self)
        if self.wire is None:
            if now_ms >= self.retry_ms and master is not self and world.can_reach(self, master):
                self._connect(master)
            return
        wire, session = self.wire, self.session
        assert session is not None
        if self.answer is not None:
            answered_ms, answer = self.answer
            if now_ms >= answered_ms:
                self.answer = None
                session.answered(answer, now_ms)
        if session.state is FollowerState.ASKING:
            if self.answer is None and not self._ask(wire, now_ms):
                self._disconnect()
            return
        if data := wire.packets.take(now_ms):
            session.receive(data, now_ms)
        if wire.packets.is_over(now_ms) or session.is_silent(now_ms) or wire.master is not master:
            self._disconnect()
        else:
            self._report()

    def _connect(self, master: Node) -> None:
        random, world = self.world.random, self.world
        self.wire = wire = Wire(random, world.delay_ms, master, self)
        master.senders[wire] = Sender(master.log, world.config, world.now_ms)
        self.session = FollowerSession(self.log, world.config, world.now_ms)
        self.log.on_safe = self._report
        if random.random() < world.fuse_share:
            self.log.fuse = random.choice(("settle", "truncate", "truncated", "adopt", "adopted"))

    def _ask(self, wire: Wire, now_ms: int) -> bool:
        """Ask the process that serves now, which may be a later one than the one that is connected."""
        if not self.world.can_reach(self, wire.master) or self.world.random.random() < 0.05:
            return False
        log = wire.master.log
        answer = MasterLog(tuple(log.epochs.list), log.min_physical_offset, log.max_physical_offset)
        self.answer = now_ms + self.world.random.randint(0, 2 * self.world.delay_ms), answer
        return True

    def _report(self) -> None:
        if self.wire is not None and self.session is not None:
            report = self.session.take_report(self.world.now_ms)
            if report is not None:
                self.wire.reports.send(report, self.world.now_ms)

    def _disconnect(self) -> None:
        assert self.wire is not None
        if self.session is not None:
            events = self.world.report.events
            events["packets broken off"] += self.session._reader.pending_bytes > 0
            events["records broken off"] += self.log.whole < self.log.max_physical_offset
        self.wire.cut(self.world.now_ms, self.world.random.choice((0, 30, 500, 5_000)))
        self.wire = self.session = self.answer = None
        self.log.on_safe = None
        self.log.fuse = None
        self.retry_ms = self.world.now_ms + RETRY_MS


@dataclass
class Report:
    """One run, as it is told."""

    seed: int
    messages: int = 0
    events: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        parts = [f"{count} {what}" for what, count in sorted((self.events + self.outcomes).items())]
        return f"seed {self.seed}: {self.messages} messages; {', '.join(parts)}"


class World:
    """The nodes, what happens to them, and what must hold."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.report = Report(seed)
        self.now_ms = 1_000_000
        self.syncs = random.random() < 0.7
        self.delay_ms = random.choice((5, 30, 150))
        self._epoch_ids = 0
        self.registered_term = 1
        self.acknowledged: list[Message] = []
        count = random.choice((2, 2, 3))
        self.config = ReplicationConfig(
            broker_role=BrokerRole.SYNC_MASTER,
            in_sync_replicas=random.choice((2, count)),
            ha_send_heartbeat_interval=random.choice((100, 300)),
            ha_housekeeping_interval=1_200,
            ha_transfer_batch_size=random.choice((64, 100, 1_000)),
            ha_max_gap_not_in_sync=random.choice((300, 3_000, 1_000_000)),
            ha_fetch_history=random.random() < 0.5,
            ha_flow_control_enable=random.random() < 0.2,
            max_ha_transfer_byte_in_second=2_000,
            slave_timeout=random.choice((60, 400)),
        )
        self.fuse_share = random.choice((0, 0.3))
        self._busy = random.choice((0.1, 0.4))
        self._trouble = random.choice((0.0, 0.02, 0.06))
        self._sync_share = random.choice((0.05, 0.3))
        self._drops_files = random.random() < 0.3
        self._one_host = random.random() < 0.5
        self.partitioned: set[Node] = set()
        self.nodes = [Node(self, number) for number in range(count)]
        self.master = self.nodes[0]
        self.made_again: set[Node] = set()  # slaves that were emptied, and may not have everything yet
        self.misled: dict[Node, Node] = {}  # slaves that were told of a stale master
        self.was_led_empty = False  # later than at first: by a master that lost all, or had nothing yet
        self.master.lead(is_clean=False)
        self.was_led_empty = False
        for node in self.nodes[1:]:
            node.serve_as_slave()

    def new_id(self, node: Node) -> str:
        self._epoch_ids += 1
        return f"{node.name}-{self._epoch_ids}"

    def host_of(self, slave: Node) -> str:
        return "host" if self._one_host else slave.name

    def followed(self, slave: Node) -> Node:
        return self.misled.get(slave, self.master)

    def can_reach(self, slave: Node, master: Node) -> bool:
        return master.is_alive and master.is_master and slave not in self.partitioned and master not in self.partitioned

    # --- what happens

    def run(self) -> Report:
        """Live through trouble, then heal; AssertionError if something does not hold."""
        for _ in range(STEPS):
            self._happen()
            self._step()
        self._heal()
        return self.report

    def _happen(self) -> None:
        random = self.random
        master = self.master
        if master.is_alive and random.random() < self._busy:
            for _ in range(random.choice((1, 1, 3, 10))):
                master.append()
        for node in self.nodes:
            if node.is_alive and random.random() < self._sync_share:
                node.sync() if node.is_master else node.log.sync()
            if self._drops_files and node.is_alive and random.random() < 0.02:
                node.log.drop_first_file()
        if random.random() < self._trouble:
            self._trouble_somebody()
        if random.random() < 0.05:
            self._repair_somebody()

    def _trouble_somebody(self) -> None:
        node = self.random.choice(self.nodes)
        what = self.random.choice(("crash", "crash", "restart", "cut", "partition", "hand over"))
        if what == "crash" and node.is_alive:
            node.crash()
        elif what == "restart" and node.is_alive:
            node.log.sync()
            node.lead(is_clean=True) if node.is_master else node.serve_as_slave()
            self.report.events["restarts"] += 1
        elif what == "cut" and node.wire is not None:
            node.wire.cut(self.now_ms + self.random.randint(0, self.delay_ms), self.random.choice((0, 100, 2_000)))
            self.report.events["connections cut"] += 1
        elif what == "partition":
            self.partitioned.add(node)
            if node.wire is not None:
                node.wire.cut(self.now_ms, 2_000)
            for wire in node.senders:
                wire.cut(self.now_ms, 2_000)
            self.report.events["partitions"] += 1
        elif what == "hand over" and self.master.is_alive:
            self._promote_somebody(demotes=True)

    def _repair_somebody(self) -> None:
        node = self.random.choice(self.nodes)
        self.partitioned.discard(node)
        self.misled.pop(node, None)
        if node.is_alive:
            return
        if node is self.master and self.random.random() < 0.5 and self._promote_somebody(demotes=False):
            return
        node.is_alive = True
        if node is self.master:
            node.lead(is_clean=False)
        elif node.is_master and self.random.random() < 0.3:  # started by mistake as what it was
            node.lead(is_clean=False)
            self.misled = {other: node for other in self.nodes if other not in (node, self.master)}
            self.misled[self.random.choice(self.nodes)] = node
            for one in (node, self.master):
                self.misled.pop(one, None)
            self.report.events["stale masters"] += 1
        else:
            node.serve_as_slave()

    def _promote_somebody(self, *, demotes: bool) -> bool:
        """Make a slave the master that has all that was acknowledged, if there is one."""
        able = [node for node in self.nodes if node is not self.master and node.is_alive and not node.is_master]
        if self.syncs:
            for node in able:
                self._check_promotable(node)
            able = [node for node in able if self._missing(node) == 0]
        if not able:
            return False
        if demotes:
            self.master.serve_as_slave()
        self.master = self.random.choice(able)
        self.misled.pop(self.master, None)
        self.master.lead(is_clean=True)
        if not self.syncs:
            self.acknowledged.clear()  # which a crash may have taken
        self.report.events["promotions"] += 1
        return True

    def _check_promotable(self, slave: Node) -> None:
        """If every copy is waited for, a slave has all that was acknowledged, unless it was emptied and fills again."""
        missing = self._missing(slave)
        if not missing:
            self.made_again.discard(slave)
        elif self.config.copies == len(self.nodes) and slave not in self.made_again:
            raise AssertionError(f"{slave.name} lacks {missing} acknowledged messages, and cannot be promoted")

    def _missing(self, node: Node) -> int:
        return sum(not self._has(node, message) for message in self.acknowledged)

    def _has(self, node: Node, message: Message) -> bool:
        """Return whether a node has a message safely; those before the first of its files are not counted."""
        log = node.log
        if message.begin < log.begin:
            return log.begin > 0 and log.durable_end >= message.end
        return message.end <= log.durable_end and log.read(message.begin, message.end) == message.data

    def _step(self) -> None:
        self.now_ms += STEP_MS
        for node in self.nodes:
            if not node.is_alive:
                continue
            if node.is_master:
                node.step_as_master()
                continue
            try:
                node.step_as_slave()
            except Crash:
                node.crash()
                self.report.events["crashes while cutting"] += 1
            except CannotFollow as error:
                self._refused(node, str(error))
                node._disconnect()
        self._check_prefixes()

    def _refused(self, slave: Node, reason: str) -> None:
        assert slave.wire is not None
        master = slave.wire.master
        if "stale" in reason:
            assert master is not self.master, f"{slave.name} takes its master for stale: {reason}"
            self.report.events["stale masters refused"] += 1
            return
        self.check_refusal(slave.wire, reason)
        if master is self.master and (not self.syncs or self._missing(master) == 0):
            slave._disconnect()
            slave.wire = Wire(self.random, 1, master, slave)  # for the caller, who disconnects
            slave.log.wipe()
            slave.was_slave = True
            self.made_again.add(slave)
            self.report.events["slaves made again"] += 1

    # --- what must hold

    def check_refusal(self, wire: Wire, reason: str) -> None:
        """A slave is refused only where files were deleted, or where a master lost all that the slave has."""
        slave, master = wire.slave.log, wire.master.log
        is_due = master.begin > 0 or slave.begin > 0 or not wire.is_of_this_life
        is_due = is_due or self.was_led_empty
        assert is_due, f"refused without need: {reason}"

    def check_copies(self, master: Node, message: Message) -> None:
        """Called when a message is said to be safe: so many disks must have it now."""
        disks = 1
        for node in self.nodes:
            if node is master:
                continue
            # What is not synced by design may be gone with a crash that the master does not know of.
            was_excused = not self.syncs and any(
                wire.slave is node and node.crashes > wire.crashes_before for wire in master.joined
            )
            disks += was_excused or self._has(node, message)
        wanted = self.config.copies
        assert disks >= wanted, f"a message at {message.begin} is said to be on {wanted} disks, but is on {disks}"

    def _check_prefixes(self) -> None:
        for slave in self.nodes:
            session, wire = slave.session, slave.wire
            if session is None or wire is None or not wire.is_of_this_life or session.state is FollowerState.ASKING:
                continue
            ours, its = slave.log, wire.master.log
            end = ours.max_physical_offset
            begin = min(max(ours.begin, its.begin), end)
            assert end <= its.max_physical_offset, f"{slave.name} has {end}, its master {its.max_physical_offset}"
            assert ours.read(begin, end) == its.read(begin, end), f"{slave.name} has other bytes than its master"

    def _heal(self) -> None:
        """Stop all trouble, and wait until all logs are equal."""
        self.partitioned.clear()
        self.misled.clear()
        self.fuse_share = 0
        for node in self.nodes:
            node.log.fuse = None
        if not self.master.is_alive:
            self.master.is_alive = True
            self.master.lead(is_clean=False)
        for node in self.nodes:
            if node is not self.master and (node.is_master or not node.is_alive):
                node.is_alive = True
                node.serve_as_slave()
        for _ in range(3):
            self.master.append()
        slaves = [node for node in self.nodes if node is not self.master]
        for _ in range(HEALING_STEPS):
            for node in self.nodes:
                node.sync() if node.is_master else node.log.sync()
            self._step()
            if not self.master.progress.waiting and all(self._is_equal(slave) for slave in slaves):
                break
        else:
            raise AssertionError(f"not equal after {HEALING_STEPS} steps: {[self._place(node) for node in self.nodes]}")
        assert all(message.outcome is not None for message in self.master.asked), "a waiter was forgotten"
        if self.syncs:
            assert self._missing(self.master) == 0, "acknowledged messages are lost"

    def _is_equal(self, slave: Node) -> bool:
        ours, its = slave.log, self.master.log
        begin = max(ours.begin, its.begin)
        return ours.max_physical_offset == its.max_physical_offset and ours.read(
            begin, ours.max_physical_offset
        ) == its.read(begin, its.max_physical_offset)

    def _place(self, node: Node) -> str:
        state = node.session.state if node.session is not None else "away"
        return f"{node.name} {node.log.begin}..{node.log.max_physical_offset} {state} {node.log.epochs.list}"


def live_and_heal(seed: int) -> Report:
    """Run one world; AssertionError, or an error of the parts, if something does not hold."""
    logging.disable(logging.CRITICAL)
    try:
        return World(seed).run()
    except (AssertionError, LogDiverged, ProtocolError) as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        logging.disable(logging.NOTSET)

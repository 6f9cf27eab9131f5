"""A Raft group in a test's hands: messages, disks and time do what the test says, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

from cosmodrome.raft.core import Raft
from cosmodrome.raft.leader import Leader
from cosmodrome.raft.log import MemoryLog
from cosmodrome.raft.messages import Base, Entry, EntryKind, HardState, Message, SyncPoint
from cosmodrome.raft.options import RaftOptions
from cosmodrome.raft.quorum import Membership

OPTIONS = RaftOptions(heartbeat_ms=100, election_min_ms=1_000, election_max_ms=2_000, retry_ms=300, transfer_ms=1_000)


def entry(index: int, term: int, data: bytes = b"") -> Entry:
    return Entry(index, term, EntryKind.NORMAL, data or b"%d.%d" % (index, term))


def entries(*terms: int, first: int = 0) -> list[Entry]:
    """Return entries of these terms, one after the other."""
    return [entry(index, term) for index, term in enumerate(terms, first)]


class Group:
    """Members `a`, `b`, `c`, …; disks are quick unless a test holds them."""

    def __init__(
        self,
        size: int = 3,
        *,
        logs: dict[str, Sequence[int]] | None = None,
        learners: str = "",
        strangers: str = "",
        options: RaftOptions = OPTIONS,
        term: int | None = None,
    ) -> None:
        voters = "abcdefg"[:size]
        base = Base(-1, 0, Membership.of(voters, learners))
        self.options = options
        self.now_ms = 0
        self.members: dict[str, Raft] = {}
        self.logs: dict[str, MemoryLog] = {}
        self.hard_states: dict[str, HardState] = {}
        self.wire: list[Message] = []
        self.sent: list[Message] = []  # all there ever were
        self.cut: set[tuple[str, str]] = set()
        self.slow_logs: set[str] = set()  # whose syncs wait for `sync`
        self.slow_votes: set[str] = set()
        self.syncs: dict[str, list[SyncPoint]] = {}
        self.saves: dict[str, list[HardState]] = {}
        self.reads: list[tuple[object, int]] = []
        self.lost_reads: list[object] = []
        for name in (*voters, *learners, *strangers):
            start = base if name not in strangers else Base(-1, 0, Membership.of(()))
            self.logs[name] = MemoryLog(start, entries(*(logs or {}).get(name, ())))
            last_term = self.logs[name].term_at(self.logs[name].last_index)
            self.hard_states[name] = HardState(last_term if term is None else term)
            self.start(name)

    def __getitem__(self, name: str) -> Raft:
        return self.members[name]

    def start(self, name: str) -> Raft:
        """Start a member, or start it again from its log and its vote."""
        self.syncs[name], self.saves[name] = [], []
        raft = Raft(
            name,
            self.logs[name],
            self.hard_states[name],
            random=Random(f"{name} {self.now_ms}"),
            now_ms=self.now_ms,
            options=self.options,
        )
        self.members[name] = raft
        self.pump(name)
        return raft

    # --- one member

    def pump(self, name: str) -> None:
        """Do what a member says, until it says nothing more."""
        raft = self.members[name]
        while True:
            ready = raft.ready()
            self.reads += ready.reads
            self.lost_reads += ready.lost_reads
            self.wire += ready.messages
            self.sent += ready.messages
            if ready.hard_state is not None:
                self.saves[name].append(ready.hard_state)
            if ready.sync is not None:
                self.syncs[name].append(ready.sync)
            is_quiet = not ready.messages
            if name not in self.slow_votes and self.saves[name]:
                self.save(name)
                is_quiet = False
            if name not in self.slow_logs and self.syncs[name]:
                self.sync(name)
                is_quiet = False
            if is_quiet:
                return

    def save(self, name: str) -> None:
        """Let a member's term and vote reach the disk."""
        saves, self.saves[name] = self.saves[name], []
        for hard_state in saves:
            self.hard_states[name] = hard_state
            self.members[name].hard_state_synced(hard_state)

    def sync(self, name: str) -> None:
        """Let a member's log reach the disk."""
        points, self.syncs[name] = self.syncs[name], []
        for point in points:
            self.members[name].synced(point)

    def step(self, message: Message) -> None:
        """Give a message to its target."""
        self.members[message.target].step(message)
        self.pump(message.target)

    def do(self, name: str, call: Callable[[Raft], object]) -> None:
        """Ask a member for something."""
        call(self.members[name])
        self.pump(name)

    def leading(self, name: str) -> Leader:
        leading = self.members[name].leading
        assert leading is not None, f"{name} does not lead"
        return leading

    # --- all of them

    def deliver(self, only: Callable[[Message], bool] = lambda message: True) -> None:
        """Deliver messages until there are none; those of cut links, and not `only`, are lost."""
        for _ in range(10_000):
            if not self.wire:
                return
            message = self.wire.pop(0)
            if (message.source, message.target) not in self.cut and message.target in self.members and only(message):
                self.step(message)
        raise AssertionError("the members do not stop to talk")

    def isolate(self, *names: str) -> None:
        """Cut the links between these members and all others."""
        others = [other for other in self.members if other not in names]
        self.cut |= {pair for name in names for other in others for pair in ((name, other), (other, name))}

    def heal(self) -> None:
        self.cut.clear()

    def pass_time(self, ms: int, names: Iterable[str] | None = None, *, deliver: bool = True) -> None:
        """Let time pass in steps of 50 ms."""
        for _ in range(0, ms, 50):
            self.now_ms += 50
            for name in names or tuple(self.members):
                self.members[name].tick(self.now_ms)
                self.pump(name)
            if deliver:
                self.deliver()

    def elect(self, name: str) -> None:
        """Make a member leader by an election; the others have not heard of a leader for long."""
        for raft in self.members.values():
            raft._election._heard_ms = None
            if raft.leading is not None and raft.id != name and (raft.id, name) not in self.cut:
                raft._follow(raft.term)
        self.do(name, lambda raft: raft.campaign())
        self.deliver()
        assert self[name].leading is not None, f"{name} was not elected"

    def propose(self, name: str, *data: bytes) -> int:
        index = self[name].propose(data or [b"data"])
        self.pump(name)
        return index

    def terms(self, name: str) -> list[int]:
        """Return the terms of a member's entries."""
        return [entry.term for entry in self.logs[name].entries]

    def of_kind(self, kind: type, source: str | None = None) -> list[Message]:
        """Return the messages of a kind that were sent."""
        return [m for m in self.sent if type(m) is kind and source in (None, m.source)]

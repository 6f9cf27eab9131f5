"""Members at work: real files, real threads, and a network in the test's hands."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cosmodrome.raft.entry_files import DiskFiles
from cosmodrome.raft.entry_log import EntryLog, SyncJob
from cosmodrome.raft.errors import NotLeader
from cosmodrome.raft.log import LogFull
from cosmodrome.raft.messages import AppendRequest, HardState, Message, VoteRequest, VoteResponse
from cosmodrome.raft.node import LeadershipLost, Node, RoleChange
from cosmodrome.raft.options import RaftOptions
from cosmodrome.raft.quorum import Membership
from cosmodrome.raft.state import Role
from cosmodrome.raft.storage import HardStateFile
from cosmodrome.raft.wire_messages import decode, encode

OPTIONS = RaftOptions(heartbeat_ms=50, election_min_ms=400, election_max_ms=800, retry_ms=100, transfer_ms=5_000)
PATIENCE_SECONDS = 60


class Cluster:
    """Nodes in one process; what `cut` names hears and says nothing."""

    def __init__(self, folder: Path, names: str = "abc") -> None:
        self.folder = folder
        self.names = names
        self.cut: set[str] = set()
        self.nodes: dict[str, Node] = {}
        self.votes: dict[str, HardStateFile] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.commits: dict[str, list[int]] = {}
        self.roles: dict[str, list[RoleChange]] = {}
        self.gates: list[threading.Event] = []  # opened in the end
        self.drop: Callable[[Message], bool] = lambda message: False

    def start(self, name: str) -> Node:
        folder = self.folder / name
        is_new = not folder.exists()
        files = DiskFiles(folder)
        vote = self.votes[name] = HardStateFile(folder / "vote", is_new=is_new)
        log = EntryLog(files, Membership.of(self.names), file_size=100_000, index_file_size=32_000, now_ms=lambda: 5)
        node = self.nodes[name] = Node(name, log, vote, send=self._send, options=OPTIONS)
        commits = self.commits[name] = []
        roles = self.roles[name] = []
        node.on_commit, node.on_role = commits.append, roles.append
        self.tasks[name] = asyncio.ensure_future(node.run())
        return node

    def _send(self, message: Message) -> None:
        if not self.cut & {message.source, message.target} and not self.drop(message):
            asyncio.get_running_loop().call_soon(self._arrive, encode("g", message))

    def _arrive(self, data: bytes) -> None:
        message = decode("g", data)
        self.nodes[message.target].receive(message)

    async def stop(self, name: str) -> None:
        self.nodes[name].stop()
        await asyncio.wait((self.tasks[name],))
        self.nodes[name].log.close()
        self.votes[name].close()

    async def leader(self) -> Node:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for name, node in self.nodes.items():
                    if node.role is Role.LEADER and name not in self.cut:
                        return node
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running(folder: Path, names: str = "abc") -> AsyncIterator[Cluster]:
    cluster = Cluster(folder, names)
    for name in names:
        cluster.start(name)
    try:
        yield cluster
    finally:
        for gate in cluster.gates:
            gate.set()
        for name in names:
            if not cluster.tasks[name].done():
                await cluster.stop(name)
        assert not [task for task in cluster.tasks.values() if not task.done()]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Gate:
    """Syncs that wait until the test lets them go on, by the log they belong to."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cluster = cluster
        self.closed: dict[int, threading.Event] = {}
        self.failing: set[int] = set()
        original = SyncJob.run

        def run(job: SyncJob) -> None:
            name = id(job._lock)
            if (event := self.closed.get(name)) is not None:
                event.wait(PATIENCE_SECONDS)
            if name in self.failing:
                raise OSError(errno.EIO, "what was written did not reach the disk")
            original(job)

        monkeypatch.setattr(SyncJob, "run", run)

    def close(self, node: Node) -> None:
        event = self.closed[id(node.log.files_lock)] = threading.Event()
        self._cluster.gates.append(event)

    def open(self, node: Node) -> None:
        self.closed.pop(id(node.log.files_lock)).set()

    def fail(self, node: Node) -> None:
        self.failing.add(id(node.log.files_lock))


async def test_a_group_elects_a_leader_and_keeps_what_is_proposed(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        leader = await cluster.leader()
        index = leader.propose([b"one", b"two"])
        await leader.wait(index)
        await asyncio.gather(*(leader.wait(leader.propose([b"%d" % number])) for number in range(200)))
        last = leader.log.last_index
        assert leader.commit == last
        await until(lambda: all(node.commit == last for node in cluster.nodes.values()))
        await until(lambda: {one.match for one in leader.status().followers} == {last})
        status = leader.status()
        assert (status.role, status.commit, status.voters) == (Role.LEADER, last, ("a", "b", "c"))
        bytes_ = {bytes(node.log.files[0].view[: node.log.end]) for node in cluster.nodes.values()}
        assert len(bytes_) == 1
        assert cluster.roles[leader.id][-1] == RoleChange(Role.LEADER, leader.term, leader.id)
        for commits in cluster.commits.values():
            assert commits == sorted(set(commits))


async def test_an_entry_is_committed_when_two_of_three_have_synced_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as cluster:
        leader = await cluster.leader()
        await leader.wait(leader.propose([b"before"]))
        await until(lambda: all(node.commit == leader.commit for node in cluster.nodes.values()))
        gate = Gate(cluster, monkeypatch)
        slow, quick = (node for node in cluster.nodes.values() if node is not leader)
        gate.close(leader)
        gate.close(slow)
        index = leader.propose([b"m"])
        waiter = leader.wait(index)
        await until(lambda: quick.status().synced == index == slow.log.last_index)
        await leader.read_barrier()  # an answer of everybody has come since
        assert not waiter.done()
        assert leader.commit < index
        gate.open(slow)
        await waiter
        assert leader.status().synced < index
        gate.open(leader)
        await until(lambda: leader.status().synced == index)


async def test_a_vote_leaves_when_it_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as cluster:
        leader = await cluster.leader()
        await leader.wait(leader.propose([b"before"]))
        voter = next(node for node in cluster.nodes.values() if node is not leader)
        await until(lambda: voter.commit == leader.commit)
        gate, saved, votes, early = threading.Event(), cluster.votes[voter.id], 0, 0
        cluster.gates.append(gate)

        def save(self: HardStateFile, state: HardState) -> None:
            if self is saved:
                gate.wait(PATIENCE_SECONDS)
            original(self, state)

        def count(message: Message) -> bool:
            nonlocal votes, early
            if isinstance(message, VoteResponse) and message.source == voter.id and not message.is_pre:
                votes += message.is_granted
                early += saved.hard_state.term < message.term
            return False

        original = HardStateFile.save
        monkeypatch.setattr(HardStateFile, "save", save)
        cluster.drop = count
        term = leader.term
        voter.receive(VoteRequest(leader.id, voter.id, term + 1, leader.log.last_index, term, False, True))
        await until(lambda: voter.term == term + 1)
        for _ in range(20):
            await asyncio.sleep(0.001)
        gate.set()
        await until(lambda: votes > 0)
        assert not early


async def test_a_failed_sync_ends_the_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as cluster:
        leader = await cluster.leader()
        await leader.wait(leader.propose([b"before"]))
        gate = Gate(cluster, monkeypatch)
        cluster.cut = set("abc") - {leader.id}
        gate.fail(leader)
        waiter = leader.wait(leader.propose([b"m"]))
        with pytest.raises(OSError, match="did not reach the disk"):
            await cluster.tasks[leader.id]
        with pytest.raises(LeadershipLost):
            await waiter
        with pytest.raises(NotLeader):
            leader.propose([b"n"])
        leader.log.close()
        cluster.cut = {leader.id}
        heir = await cluster.leader()
        await heir.wait(heir.propose([b"after"]))


async def test_a_leader_without_a_majority_says_that_it_does_not_know(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        leader = await cluster.leader()
        await leader.wait(leader.propose([b"before"]))
        others = set("abc") - {leader.id}
        cluster.cut = others
        waiter = leader.wait(leader.propose([b"m"]))
        read = asyncio.ensure_future(leader.read_barrier())
        with pytest.raises(LeadershipLost, match="may be committed later, or never"):
            await waiter
        with pytest.raises(NotLeader):
            await read
        assert leader.role is not Role.LEADER
        cluster.cut = {leader.id}
        heir = await cluster.leader()
        await heir.wait(heir.propose([b"after"]))
        cluster.cut = set()
        await until(lambda: leader.commit == heir.commit)
        assert leader.log.read(leader.commit, 0)[0].data == b"after"


async def test_leadership_moves_to_the_member_that_is_named(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        leader = await cluster.leader()
        await leader.wait(leader.propose([b"before"]))
        heir = next(node for node in cluster.nodes.values() if node is not leader)
        await until(lambda: heir.commit == leader.commit)
        await leader.transfer(heir.id)
        assert leader.leader == heir.id
        assert heir.role is Role.LEADER
        await heir.wait(heir.propose([b"after"]))


async def test_a_member_knows_after_a_restart_what_was_committed(tmp_path: Path) -> None:
    async with running(tmp_path, "a") as cluster:
        leader = await cluster.leader()
        index = leader.propose([b"m"])
        await leader.wait(index)
        await cluster.stop("a")
        again = cluster.start("a")
        assert again.log.committed_index == index
        await until(lambda: bool(cluster.commits["a"]))
        assert cluster.commits["a"][0] == index
        await again.wait((await cluster.leader()).propose([b"n"]))


async def test_members_are_added_and_removed_one_by_one(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        leader = await cluster.leader()
        await leader.wait(leader.propose([b"m"]))
        gone = next(node for node in cluster.nodes.values() if node is not leader)
        await leader.change_members(leader.members.without(gone.id))
        assert leader.members == Membership.of(set("abc") - {gone.id})
        await leader.change_members(leader.members.with_learner(gone.id))
        last = leader.propose([b"n"])
        await until(lambda: gone.commit >= last)
        await leader.change_members(leader.members.with_voter(gone.id))
        assert leader.status().voters == ("a", "b", "c")


async def test_a_full_disk_refuses_and_the_member_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, "a") as cluster:
        leader = await cluster.leader()

        def full(*_: object) -> None:
            raise LogFull("no room on the disk")

        with monkeypatch.context() as patch:
            patch.setattr(EntryLog, "_reserve", full)
            with pytest.raises(LogFull):
                leader.propose([b"m"])
        await leader.wait(leader.propose([b"m"]))


async def test_nonsense_of_another_member_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as cluster:
        leader = await cluster.leader()
        await leader.wait(leader.propose([b"m"]))
        liar = next(name for name in "abc" if name != leader.id)
        leader.receive(AppendRequest(liar, leader.id, leader.term, -1, 0, (), 5))
        assert "Raft message dropped" in caplog.text
        await leader.wait(leader.propose([b"n"]))


async def test_a_burst_needs_few_syncs_and_few_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as cluster:
        leader = await cluster.leader()
        await leader.wait(leader.propose([b"before"]))
        appends = 0
        syncs = 0
        original = SyncJob.run

        def run(job: SyncJob) -> None:
            nonlocal syncs
            syncs += 1
            original(job)

        def count(message: Message) -> bool:
            nonlocal appends
            appends += isinstance(message, AppendRequest) and bool(message.entries)
            return False

        monkeypatch.setattr(SyncJob, "run", run)
        cluster.drop = count
        await asyncio.gather(*(leader.wait(leader.propose([b"m"])) for _ in range(500)))
        await until(lambda: all(node.status().synced == leader.log.last_index for node in cluster.nodes.values()))
        assert appends <= 20  # one to each follower, if nothing was slow
        assert syncs <= 20


async def test_a_node_that_is_stopped_before_it_runs_does_not_run(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "a")
    node = cluster.start("a")
    node.stop()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await cluster.tasks["a"]
    assert node.status().role is Role.FOLLOWER
    await cluster.stop("a")

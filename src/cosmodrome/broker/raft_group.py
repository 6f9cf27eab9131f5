"""A broker's place in its Raft group: the log's entries for the store, and a role that follows the group's leader.

    unknown ──a leader is known──► slave ──this member leads, and has shown everything──► master
                                     ▲                                                      │
                                     └──────────── it leads no more ────────────────────────┘

What must hold: the store takes messages only as the leader, and from the moment that ends it makes no promise. A master
serves when everything in its log is committed and in its queue: only then are the next queue offsets known. Changes
are made one after the other; what has come up meanwhile is looked at when one is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cosmodrome.broker.replicas import Replicas
from cosmodrome.broker.roles import Role
from cosmodrome.clock import Clock
from cosmodrome.config import BrokerConfig, BrokerRole, RaftConfig, ReplicationConfig, StoreConfig
from cosmodrome.errors import (
    IllegalOperation,
    MessageIllegal,
    RequestError,
    ServiceNotAvailable,
    StoreError,
    SystemBusy,
)
from cosmodrome.mapped_file import MappedFile, log_file_names
from cosmodrome.model import MASTER_ID
from cosmodrome.raft.entry_log import EntryTooLarge
from cosmodrome.raft.errors import Busy, NotLeader, Refused
from cosmodrome.raft.log import LogFull
from cosmodrome.raft.options import RaftOptions
from cosmodrome.raft.state import Role as RaftRole
from cosmodrome.replication.raft_member import RaftMember
from cosmodrome.store.message_store import MessageStore
from cosmodrome.wire.bodies import HaStatusBody, MasterOfSlave, SlaveOfMaster
from cosmodrome.wire.raft_requests import FollowerStatus, RaftStatus

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)

LOOK_MS = 10
SEARCH_MS = 500  # a slave that knows no master asks its name servers this often
TRANSFER_MS = 5_000
HAND_OVER_MS = 2_000  # at the end of a leader's process


class RaftGroup:
    """This member of the group; made before the store, which opens the log through it."""

    def __init__(self, raft: RaftConfig, store_config: StoreConfig, clock: Clock, bind_host: str) -> None:
        self._clock = clock
        self._bind_host = bind_host
        self.config = raft
        self._root = Path(raft.store_path or store_config.store_path_root_dir) / f"dledger-{raft.self_id}"
        self._file_size = store_config.mapped_file_size_commit_log
        # The store as it reads the group's log.
        self.store_config = replace(store_config, store_path_commit_log=str(self._root / "data"))
        self.member: RaftMember

    @property
    def role(self) -> Role:
        """The role of a member that does not lead."""
        return Role(BrokerRole.SLAVE, self.config.broker_id)

    def open(self) -> GroupEntries:
        """Open the log of this member; StoreError says what is in the way."""
        plain = Path(self.store_config.store_path_root_dir) / "commitlog"
        if log_file_names(plain):
            raise StoreError(
                f"{plain} holds the log of a broker outside of a group, which this version cannot take into one. Give "
                "this member a storePathRootDir of its own, and let consumers read the old broker to its end"
            )
        self.member = RaftMember(
            self._root,
            group=self.config.group,
            member=self.config.self_id,
            peers=self.config.members,
            now_ms=self._clock.now_ms,
            file_size=self._file_size,
            options=RaftOptions(preferred_leader=self.config.preferred_leader),
            bind_host=self._bind_host,
        )
        return GroupEntries(self.member)

    @property
    def is_leading(self) -> bool:
        return self.member.node.role is RaftRole.LEADER

    def status(self) -> RaftStatus:
        """Return what an operator is told."""
        node, status = self.member.node, self.member.node.status()
        return RaftStatus(
            self.config.group,
            self.config.self_id,
            node.role,
            node.term,
            node.leader or "",
            status.first_index,
            status.last_index,
            status.commit,
            self.member.log.end,
            tuple(sorted(status.voters)),
            tuple(
                FollowerStatus(one.id, one.match, status.last_index - one.match, one.heard_ms_ago)
                for one in status.followers
            ),
        )

    async def transfer(self, member: str) -> None:
        """Let another member lead; RequestError says why not."""
        try:
            async with asyncio.timeout(TRANSFER_MS / 1000):
                await self.member.node.transfer(member)
        except NotLeader as error:
            raise IllegalOperation(str(error)) from error
        except (Refused, TimeoutError) as error:
            raise RequestError(f"{member} does not lead: {error or 'it took too long'}; ask again") from error


class GroupEntries:
    """The entries of the group's log, as the store wants them."""

    def __init__(self, member: RaftMember) -> None:
        self._node, self._log = member.node, member.log
        self.files = self._log.files
        self.file_size = self._log.file_size
        self.places: Callable[[Sequence[int]], list[int]] = self._log.places

    @property
    def start(self) -> int:
        return self._log.start

    @property
    def end(self) -> int:
        return self._log.end

    @property
    def committed_end(self) -> int:
        return self._log.end_of(max(self._node.commit, self._log.committed_index))

    def propose(self, bodies: Sequence[bytes]) -> None:
        """Append entries; a RequestError says why not."""
        try:
            self._node.propose(bodies)
        except NotLeader as error:
            raise ServiceNotAvailable(f"service not available now: {error}") from error
        except Busy as error:
            raise SystemBusy(f"[PC_SYNCHRONIZED]broker busy, start flow control for a while: {error}") from error
        except EntryTooLarge as error:
            raise MessageIllegal(str(error)) from error
        except (LogFull, Refused) as error:
            raise ServiceNotAvailable(f"service not available now: {error}") from error

    def take_first(self) -> MappedFile | None:
        return self._log.take_first(self._node.commit)


class RaftReplicas(Replicas):
    """What stands for the copies by a master to its slaves: a group has none of them, its promise is the commit."""

    def __init__(
        self, config: BrokerConfig, replication: ReplicationConfig, store: MessageStore, group: RaftGroup
    ) -> None:
        self._group = group
        self._store = store
        self._config = config
        self._replication = replication
        self._leader = self._follower = None
        self.least_copies = 0
        self.is_waited_for = False

    async def run(self) -> None:
        await asyncio.Event().wait()

    def ha_status(self) -> HaStatusBody:
        """Return the members as a master names its slaves."""
        status, entry_log = self._group.status(), self._group.member.log
        if not self._group.is_leading:
            return HaStatusBody(False, follows=MasterOfSlave(status.leader, status.log_end, is_connected=True))
        slaves = []
        for one in status.followers:
            end = entry_log.end_of(one.match) if one.match >= status.first_index else entry_log.start
            is_in_sync = one.match >= status.commit_index
            slaves.append(SlaveOfMaster(one.member, end, status.log_end - end, is_in_sync))
        return HaStatusBody(True, status.log_end, tuple(slaves))

    def figures(self) -> dict[str, object]:
        """Return the figures for brokerStatus; their keys are our own."""
        status = self._group.status()
        return {
            "brokerRole": self._replication.broker_role,
            "logTerm": status.term,
            "raftGroup": status.group,
            "raftMember": status.member,
            "raftRole": status.role,
            "raftLeader": status.leader,
            "raftLastIndex": status.last_index,
            "raftCommitIndex": status.commit_index,
        }


class GroupRole:
    """Makes the broker what its member of the group is: master or slave."""

    def __init__(self, broker: Broker, group: RaftGroup) -> None:
        self._broker = broker
        self._group = group
        self._news = asyncio.Event()
        self._leads_term: int | None = None  # in which this broker is the master
        self._elected_in = 0  # the term in which it became the master last
        self._is_slave = False  # and registered as one
        self._leader: str | None = None  # the last other member that led
        self._led = asyncio.Event()  # this broker became the master
        self._announcing: set[asyncio.Task[None]] = set()
        self.is_known = asyncio.Event()
        member = group.member
        member.node.on_commit = self._committed
        member.node.on_role = lambda _change: self._role_changed()
        member.log.on_reset = broker.store.log_begun_again

    def _committed(self, index: int) -> None:
        self._broker.store.commit_to(self._group.member.log.end_of(index))

    def _role_changed(self) -> None:
        """Make no promise from this moment on, if the leadership is over; the rest may take its time."""
        if self._leads_term is not None and not self._leads_in(self._leads_term):
            self._leads_term = None
            self._broker.store.follow()
        self._news.set()

    async def keep_master(self) -> None:
        """Ask the name servers for the master until one is known: it registers a moment after it was elected.

        StoreError if this one leads and can store nothing any more.
        """
        broker = self._broker
        await self.is_known.wait()
        while True:
            await broker.clock.sleep(SEARCH_MS)
            if broker.store.failure is not None and self._group.is_leading:
                raise StoreError(f"this broker ends, so that another member leads its group: {broker.store.failure}")
            if broker.is_slave and broker.registration.master is None:
                broker.registration.topics_changed()
                await broker.registration.announce()

    @property
    def term(self) -> int:
        """The term to register with: of a master the one it was elected in, though it may have heard of a later one.

        With that one, a leader that was deposed while it slept would take the place of its successor.
        """
        return self._group.member.node.term if self._broker.is_slave else self._elected_in

    def _leads_in(self, term: int) -> bool:
        node = self._group.member.node
        return self._group.is_leading and node.term == term

    async def run(self) -> None:
        """Follow the group, change by change."""
        self._news.set()
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                await self._change()
        finally:
            for task in self._announcing:
                task.cancel()

    async def _change(self) -> None:
        node = self._group.member.node
        if self._group.is_leading:
            await self._become_master(node.term)
        elif node.leader is not None or not self._broker.is_slave:
            if node.leader != self._leader:
                self._leader = node.leader
                self._broker.registration.forget_master()
            await self._become_slave()

    async def _become_master(self, term: int) -> None:
        broker = self._broker
        if self._leads_term == term and not broker.is_slave:
            return
        await self._become_slave(is_quiet=True)  # of the leadership before, services may still be running
        while not broker.store.is_caught_up:
            if not self._leads_in(term):
                return
            await broker.clock.sleep(LOOK_MS)
        await broker.promotion.stop_services()
        await broker.close_services()
        if not self._leads_in(term) or not broker.store.is_caught_up:
            self._news.set()
            broker.promotion.settle_in(self._group.role)
            return
        self._leads_term, self._is_slave = term, False
        self._elected_in = term
        broker.store.lead()
        broker.topics.add_reserved()
        broker.restore_topics()
        broker.promotion.settle_in(Role(BrokerRole.SYNC_MASTER, MASTER_ID))
        log.warning("leading: group=%s member=%s term=%d", self._group.config.group, self._group.config.self_id, term)
        self._register()

    async def _become_slave(self, *, is_quiet: bool = False) -> None:
        broker = self._broker
        if not broker.is_slave:
            broker.take_role(self._group.role)
            await broker.promotion.stop_services()
            await broker.close_services()
            broker.promotion.settle_in(self._group.role)
            broker.let_go()
            self._is_slave = False
            log.warning(
                "leading no more: group=%s member=%s leader=%s",
                self._group.config.group,
                self._group.config.self_id,
                self._group.member.node.leader,
            )
        if not is_quiet and not self._is_slave:
            self._is_slave = True
            self._register()

    def _register(self) -> None:
        """Tell the name servers at once. The next change does not wait for one that does not answer."""
        self.is_known.set()
        self._broker.registration.topics_changed()
        task = asyncio.ensure_future(self._announce(self._leads_term))
        self._announcing.add(task)
        task.add_done_callback(self._announcing.discard)

    async def _announce(self, term: int | None) -> None:
        await self._broker.registration.announce()
        if term is not None and term == self._leads_term:
            self._led.set()

    async def leading(self) -> int:
        """Return the term once this broker has become the master, for the next time."""
        await self._led.wait()
        self._led.clear()
        return self._group.member.node.term

    async def leave(self) -> None:
        """Hand the leadership over, if there is one, so that the others need not wait for an election."""
        if not self._group.is_leading or len(self._group.config.members) == 1:
            return
        status = self._group.member.node.status()
        heirs = sorted(status.followers, key=lambda follower: follower.match, reverse=True)
        if heirs:
            try:
                async with asyncio.timeout(HAND_OVER_MS / 1000):
                    await self._group.member.node.transfer(heirs[0].id)
            except (Refused, TimeoutError) as error:
                log.warning("leadership not handed over: group=%s reason=%s", self._group.config.group, error)

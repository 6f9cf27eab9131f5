"""This broker's part in the copies of its log: it serves slaves, or it is one."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

from cosmodrome.broker.registration import Master, Registration
from cosmodrome.clock import Clock
from cosmodrome.codes import Language, RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, BrokerRole, ReplicationConfig
from cosmodrome.errors import ClientError, ConfigError, ProtocolError, TooFewCopies
from cosmodrome.net.caller import Caller
from cosmodrome.net.tls_server import ServerTls
from cosmodrome.numbers import MAX_PORT, parse_int
from cosmodrome.replication.epochs import LogEpoch, MasterLog
from cosmodrome.replication.follower import Follower, FollowerState
from cosmodrome.replication.leader import Leader, SlaveStatus
from cosmodrome.store.message import Durability
from cosmodrome.store.message_store import MessageStore
from cosmodrome.wire.bodies import EpochsBody, HaStatusBody, KVTable, MasterOfSlave, SlaveOfMaster
from cosmodrome.wire.command import Command

INQUIRY_TIMEOUT_MS = 3_000


class Replicas:
    """A master's `Leader` or a slave's `Follower`, and what the broker asks of it. A broker that changes its role gets
    another one."""

    def __init__(
        self,
        config: BrokerConfig,
        replication: ReplicationConfig,
        store: MessageStore,
        clock: Clock,
        caller: Caller,
        registration: Registration,
        admits: Callable[[str], bool],
        tls: ServerTls,
        client_tls: ssl.SSLContext | None,
    ) -> None:
        self._tls = tls
        self._config = config
        self._admits = admits
        self._replication = replication
        self._store = store
        self._caller = caller
        self._registration = registration
        self._leader: Leader | None = None
        self._follower: Follower | None = None
        self._coming: Master | None = None
        self.least_copies = 0  # with fewer in sync, messages are refused; 0: they never are
        self.is_waited_for = False
        if replication.is_slave:
            self._follower = Follower(store, replication, clock, self._inquire, client_tls)
            registration.is_searching = lambda: not self.is_connected
        else:
            self._leader = Leader(store, replication, clock)
            registration.is_searching = lambda: False
        if replication.broker_role is BrokerRole.SYNC_MASTER:
            self.is_waited_for = replication.copies > 1
            self.least_copies = replication.min_in_sync_replicas if replication.min_in_sync_replicas > 1 else 0

    # --- life

    async def start(self, host: str, service_port: int) -> None:
        """Listen for slaves, if this is a master."""
        if self._leader is not None:
            self._leader.admits, self._leader.encloses = self._admits, self._tls.around
            await self._leader.start(host, self.wanted_port(service_port))

    def wanted_port(self, service_port: int) -> int:
        """The port for slaves; 0 for any: where the service's port was any, the one above it may be another's."""
        if self._replication.ha_listen_port >= 0:
            return self._replication.ha_listen_port
        if not self._config.listen_port:
            return 0
        if service_port == MAX_PORT:
            raise ConfigError(f"listenPort={service_port} has no port above it for slaves: set one with haListenPort")
        return service_port + 1

    @property
    def port(self) -> int:
        """The port for slaves that is really listened on; 0 at a slave."""
        return self._leader.port if self._leader is not None else 0

    async def run(self) -> None:
        """Follow the master."""
        assert self._follower is not None, "a slave"
        await self._follower.run()

    async def close(self) -> None:
        """Leave slaves, or the master."""
        if self._leader is not None:
            await self._leader.close()
        if self._follower is not None:
            await self._follower.close()

    def cut_off(self) -> None:
        """Break every connection at once, as the end of the process would."""
        if self._leader is not None:
            self._leader.cut_off()
        if self._follower is not None:
            self._follower.cut_off()

    # --- a master's

    def replicated(self, end: int) -> Awaitable[Durability]:
        """Ask now; to be awaited: return once the log is on enough brokers up to `end`, or why it is not."""
        assert self._leader is not None, "only a master is asked"
        return self._leader.ask(end)

    @property
    def waiters(self) -> int:
        """How many wait for replicas now."""
        return self._leader.waiting if self._leader is not None else 0

    def check_copies(self) -> None:
        """Refuse a message before it is stored if fewer copies than minInSyncReplicas are in sync."""
        assert self._leader is not None, "only a master is asked"
        copies = self._leader.in_sync_copies()
        if copies < self.least_copies:
            raise TooFewCopies(
                f"in-sync replicas not enough: {copies} in sync, and minInSyncReplicas is {self.least_copies}"
            )

    def slaves(self) -> list[SlaveStatus]:
        """The slaves that are connected."""
        return self._leader.slaves() if self._leader is not None else []

    def ha_status(self) -> HaStatusBody:
        """Return the answer to GET_BROKER_HA_STATUS."""
        end = self._store.max_physical_offset
        if self._follower is not None:
            status = self._follower.status()
            return HaStatusBody(
                False,
                follows=MasterOfSlave(status.master or "", end, is_connected=status.state is FollowerState.FOLLOWING),
            )
        slaves = (
            SlaveOfMaster(slave.peer, slave.reported, slave.behind_bytes, slave.is_in_sync, begin=slave.begins)
            for slave in self.slaves()
        )
        return HaStatusBody(True, end, tuple(slaves))

    def figures(self) -> dict[str, object]:
        """Return the figures for brokerStatus; their keys are our own."""
        epoch = self._store.epochs.last
        table: dict[str, object] = {
            "brokerRole": self._replication.broker_role,
            "logTerm": self._store.epochs.term,
            "logEpoch": epoch.id if epoch is not None else "",
        }
        if self._follower is not None:
            status, master = self._follower.status(), self._registration.master
            return {
                **table,
                "masterAddr": master.address if master is not None else "",
                "masterHaAddr": status.master or "",
                "replicationState": status.state,
                "replicationProblem": status.problem,
                "logIsCheckedAgainstMaster": str(status.is_checked).lower(),
            }
        slaves = self.slaves()
        return {
            **table,
            "haListenPort": self.port,
            "slaves": len(slaves),
            "slavesInSync": sum(slave.is_in_sync for slave in slaves),
            "slaveBehindBytesMax": max((slave.behind_bytes for slave in slaves), default=0),
            "sendsWaitingForSlaves": self.waiters,
        }

    # --- a slave's

    async def following(self) -> str:
        """Return the address of the master once this slave has begun to follow it."""
        assert self._follower is not None, "a slave"
        return await self._follower.followed()

    def follow(self, ha_address: str) -> None:
        """Follow the master that serves slaves there, whatever haMasterAddress says: it was that of another one."""
        assert self._follower is not None, "a slave"
        self._follower.follow(ha_address)

    @property
    def is_following(self) -> bool:
        """Return whether a slave has agreed with its master, and copies its log."""
        return self._follower is not None and self._follower.status().state is FollowerState.FOLLOWING

    @property
    def is_connected(self) -> bool:
        """Return whether a slave has a connection to its master."""
        return self._follower is not None and self._follower.status().state is not FollowerState.AWAY

    def master_comes(self, master: Master) -> None:
        """Follow a master that has said itself that it comes back, unless one is followed that lives."""
        if self._follower is not None and self._follower.status().state is not FollowerState.FOLLOWING:
            self._coming = master
            self._follow(master)

    def master_found(self, master: Master) -> None:
        """Follow the master that a name server named, unless haMasterAddress names one."""
        self._coming = None
        self._follow(master)

    def _follow(self, master: Master) -> None:
        if self._follower is not None and master.ha_address and not self._replication.ha_master_address:
            self._follower.follow(master.ha_address)

    async def _inquire(self) -> MasterLog:
        """Ask the master which epochs its log has. Without any it is Apache's, and nothing can be compared.

        Only an answer that Apache's brokers give passes for that: one of ours that cannot tell now must be asked again.
        """
        master = self._coming or self._registration.master
        if master is None:
            raise ClientError(
                f"no name server knows the master of {self._config.broker_name}, so its log cannot be compared"
            )
        command = Command.request(RequestCode.GET_BROKER_EPOCH_CACHE)
        reply = await self._caller.call(master.address, command, INQUIRY_TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            if reply.language == Language.PYTHON:
                raise ClientError(f"{master.address} does not tell its epochs: {reply.remark}")
            return await self._apaches_log(master.address)
        body = EpochsBody.decode(reply.body)
        if (body.broker_name, body.broker_id) != (self._config.broker_name, 0):
            raise ClientError(
                f"{master.address} is not the master of {self._config.broker_name}, but broker {body.broker_id} of "
                f"{body.broker_name}"
            )
        epochs = [LogEpoch(entry.term, entry.id, entry.begin) for entry in body.epochs]
        return MasterLog(epochs, body.min_offset, body.max_offset)

    async def _apaches_log(self, address: str) -> MasterLog:
        command = Command.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        reply = await self._caller.call(address, command, INQUIRY_TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            raise ClientError(f"{address} does not tell where its log begins: {reply.remark}")
        table = KVTable.decode(reply.body).table
        begin, end = (parse_int(table.get(f"commitLog{which}Offset")) for which in ("Min", "Max"))
        if begin is None or end is None:
            raise ProtocolError(f"{address} does not tell where its log begins and ends")
        return MasterLog([], begin, end)

"""Changing a broker's role while it runs: a master hands over to its slave, or a slave whose master is lost takes over.

    master ──asked to hand over──► resting ──the slave has the log, and leads──► slave
      ▲                               │
      └──it has not, or does not──────┘

    slave ──asked to lead──► master

What must hold: of two brokers of a name, at most one takes messages. A resting master takes none. It goes on only if
it is certain that the slave does not lead and will not: the slave was not asked yet, or has answered a withdrawal.
Until then it rests, and asks. Before it asks a slave to lead, it notes on disk that it is a slave itself, so a crash at
any moment leaves at most one master. A slave begins a term higher than any it has heard of: that fences off the others.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from cosmodrome.broker.answer import PROCESSORS, RESTING_PROCESSORS
from cosmodrome.broker.registration import Master
from cosmodrome.broker.replicas import Replicas
from cosmodrome.broker.roles import MAX_TERM, Role, with_role
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BadSetting, BrokerRole, ReplicationConfig
from cosmodrome.errors import (
    ClientError,
    ConfigError,
    InvalidParameter,
    ProtocolError,
    RequestError,
    ServiceNotAvailable,
)
from cosmodrome.model import MASTER_ID
from cosmodrome.net.caller import Caller
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.role_requests import HandOver, Promote, RoleReply, WithdrawPromotion

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)

ASK_MS = 3_000
LEAD_MS = 15_000  # for the slave to take over the last of the tables, and to lead
LOOK_MS = 20
ASK_AGAIN_MS = 1_000
MAX_WAIT_MS = 600_000  # for the slave to have the log; the master takes no messages meanwhile
REMEMBERED_WITHDRAWALS = 1_000

T = TypeVar("T")

_MASTERS = (BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER)


class Promotion:
    """The services of the broker's role, and the change to another one. One change at a time."""

    def __init__(self, broker: Broker, caller: Caller) -> None:
        self._broker = broker
        self._caller = caller
        self._tasks: asyncio.TaskGroup | None = None
        self._services: list[asyncio.Task[None]] = []
        self._is_changing = False
        self._withdrawn: deque[str] = deque(maxlen=REMEMBERED_WITHDRAWALS)
        self.resting: str | None = None  # why this master takes no messages, while it hands over

    # --- the services

    async def run(self) -> None:
        """Run the services of the role of now. A change of the role that fails half-way ends the broker loudly."""
        async with asyncio.TaskGroup() as self._tasks:
            self._start_services()
            await asyncio.Event().wait()

    def _start_services(self) -> None:
        assert self._tasks is not None, "it runs"
        self._services = [self._tasks.create_task(service) for service in self._broker.services_of_role()]

    async def stop_services(self) -> None:
        stopping, self._services = self._services, []
        for service in stopping:
            service.cancel()
        if stopping:
            await asyncio.wait(stopping)

    # --- what is asked

    def state(self) -> RoleReply:
        """Return what this broker is, and how far its log is."""
        broker = self._broker
        master = broker.registration.master if broker.is_slave else None
        return RoleReply(
            broker.config.broker_name,
            broker.config.broker_id,
            broker.replication.broker_role,
            broker.registration_version.state_version,
            broker.store.safe_end,
            broker.address,
            "" if broker.is_slave else broker.ha_address(broker.replicas),
            master.address if master is not None else "",
            broker.metadata_sync.master_role if broker.is_slave else "",
            broker.replicas.is_following,
            broker.store.refusal or "",
        )

    async def hand_over(self, request: HandOver) -> RoleReply:
        """Make the slave at an address the master, and become its slave; RequestError if this broker stays master."""
        return await self._change(self._hand_over(request))

    async def promote(self, request: Promote) -> RoleReply:
        """Become the master, or say why not; a master is one already."""
        return await self._change(self._promote(request))

    def withdraw(self, token: str) -> RoleReply:
        """Let a promotion that is not done yet never be done; the state says whether it is."""
        self._withdrawn.append(token)
        return self.state()

    async def _change(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this on its own: it goes on when the one who asked has gone."""
        if self._broker.group is not None:
            work.close()
            raise RequestError(
                f"{self._broker.address} is a member of a Raft group, which elects its master; `cosmodrome admin "
                "transferLeader` asks for another one"
            )
        if self._is_changing or self._tasks is None:
            work.close()
            what = f": {self.resting}" if self.resting else ", or starts"
            raise RequestError(f"{self._broker.address} changes its role already{what}; ask again in a moment")
        self._is_changing = True
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(lambda done: done.exception())  # the one who asked may have gone

        async def change() -> None:
            try:
                outcome.set_result(await work)
            except RequestError as refusal:
                outcome.set_exception(refusal)
            except BaseException:
                outcome.set_exception(RequestError("the broker ends; see its log"))
                raise
            finally:
                self._is_changing = False

        self._tasks.create_task(change())
        return await asyncio.shield(outcome)

    async def _ask(self, address: str, code: RequestCode, header: Header | None = None, ms: int = ASK_MS) -> RoleReply:
        """Return what a broker answers to a request about roles. RequestError if it does not say its role."""
        try:
            reply = await self._caller.call(address, Command.request(code, header), ms)
            if reply.code == ResponseCode.SUCCESS:
                return RoleReply.decode(reply)
        except (ClientError, ProtocolError) as error:
            raise RequestError(f"{address} does not answer: {error}") from error
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RequestError(f"{address} cannot change its role while it runs: it is of another make, or older")
        raise RequestError(reply.remark or f"{address} answered {reply.code}")

    def _seen_term(self, *others: int) -> int:
        broker = self._broker
        seen = max(broker.store.epochs.term, broker.registration.seen_term, broker.roles.term, *others)
        if seen >= MAX_TERM:
            raise RequestError(f"somebody told of the term {seen}, behind which there is no other; look for who it was")
        return seen

    # --- a master's

    async def _hand_over(self, request: HandOver) -> RoleReply:
        broker, name = self._broker, self._broker.config.broker_name
        if broker.is_slave:
            raise RequestError(f"{broker.address} is a slave of {name} and has nothing to hand over; ask its master")
        if not (0 < request.timeout_millis <= MAX_WAIT_MS and 0 < request.broker_id < 2**63):
            raise InvalidParameter(f"timeoutMillis must be 1 to {MAX_WAIT_MS}, and brokerId at least 1")
        wanted = _master_role(request.broker_role or broker.replication.broker_role)
        heir = await self._ask(request.broker_addr, RequestCode.GET_BROKER_ROLE)
        self._check_heir(heir, request.broker_addr)
        if heir.broker_id == MASTER_ID:
            return await self._yield_to(heir, request)
        seen = self._seen_term(heir.term)
        before = broker.roles.role
        try:
            await self._rest(request)
            await self._caught_up(request)
            self._give(Role(BrokerRole.SLAVE, heir.broker_id), seen + 1)
            token = secrets.token_hex(8)
            promote = Promote(wanted, seen, token, broker.address)
            leader = await self._led_by(request.broker_addr, promote)
        except RequestError as refusal:
            self._go_on(before)
            raise RequestError(f"{refusal}. {broker.address} takes messages again") from refusal
        await self._step_down(leader, heir.broker_id)
        return self.state()

    def _check_heir(self, heir: RoleReply, address: str) -> None:
        """Refuse to hand over to a broker that is no slave of this one, unless it was promoted since."""
        broker, name = self._broker, self._broker.config.broker_name
        conflict = broker.registration.conflict
        if heir.broker_name != name or heir.broker_id < MASTER_ID:
            raise RequestError(f"{address} is broker {heir.broker_id} of {heir.broker_name}, and no slave of {name}")
        if heir.broker_id == MASTER_ID:
            if heir.term <= broker.store.epochs.term:
                raise RequestError(
                    f"{address} says that it is the master of {name}, too, with term {heir.term}; this one has term "
                    f"{broker.store.epochs.term}. Stop {address}, and start it again as a slave"
                )
        elif conflict is not None:
            raise RequestError(f"{broker.address} is stale: {conflict}")
        elif heir.master_addr != broker.address or not heir.is_following:
            whom = f"follows {heir.master_addr}" if heir.is_following else "follows no master now"
            raise RequestError(f"{address} {whom}, so it has not the log of {broker.address}; its log says why")
        elif broker.store.failure is not None:
            raise RequestError(f"{broker.address} cannot hand over: {broker.store.failure}")

    async def _yield_to(self, master: RoleReply, request: HandOver) -> RoleReply:
        """Follow a master that was promoted since, with what this one has beyond its log kept aside."""
        before = self._broker.roles.role
        try:
            await self._rest(request)
            self._give(Role(BrokerRole.SLAVE, request.broker_id), master.term)
        except RequestError:
            self._go_on(before)
            raise
        await self._step_down(master, request.broker_id)
        return self.state()

    async def _rest(self, request: HandOver) -> None:
        """Take no messages, and bring what there is onto the disk."""
        broker = self._broker
        self.resting = f"{broker.address} hands {broker.config.broker_name} over to {request.broker_addr}"
        broker.processors = RESTING_PROCESSORS
        broker.update_fence()
        log.warning("handing over: broker=%s to=%s", broker.config.broker_name, request.broker_addr)
        await self.stop_services()
        store, deadline_ms = broker.store, broker.clock.steady_ms() + request.timeout_millis
        while store.flusher.flushed < store.max_physical_offset:
            store.flusher.want(store.max_physical_offset)
            if store.failure is not None or broker.clock.steady_ms() >= deadline_ms:
                raise RequestError(store.failure or f"the disk did not take the log in {request.timeout_millis} ms")
            await broker.clock.sleep(LOOK_MS)
        await broker.close_services()

    async def _caught_up(self, request: HandOver) -> None:
        """Return once the slave has the whole log, and those who wait for it have heard. RequestError if it is slow."""
        broker, end = self._broker, self._broker.store.max_physical_offset
        deadline_ms = broker.clock.steady_ms() + request.timeout_millis
        while True:
            problem, is_there = "", False
            try:
                heir = await self._ask(request.broker_addr, RequestCode.GET_BROKER_ROLE)
                problem, is_there = f"it has {heir.log_end} bytes of {end}", heir.log_end >= end
            except RequestError as error:
                problem = str(error)
            is_late = broker.clock.steady_ms() >= deadline_ms
            if is_there and (is_late or not broker.replicas.waiters):
                return
            if is_late:
                raise RequestError(
                    f"{request.broker_addr} is not promoted: it was not ready in {request.timeout_millis} ms; {problem}"
                )
            await broker.clock.sleep(LOOK_MS)

    async def _led_by(self, address: str, promote: Promote) -> RoleReply | None:
        """Return the state of the slave that is master now; None if only a name server says so. RequestError once it
        is certain that it is none. Until one of both is certain, this broker rests."""
        try:
            return await self._ask(address, RequestCode.PROMOTE_BROKER, promote, LEAD_MS)
        except RequestError as error:
            problem = str(error)
        is_told = False
        while self._broker.registration.conflict is None:
            try:
                state = await self._ask(address, RequestCode.WITHDRAW_PROMOTION, WithdrawPromotion(promote.token))
            except RequestError as error:
                if not is_told:
                    is_told = True
                    log.error(
                        "no messages are taken until %s says whether it is the master: %s. If it is lost for good, "
                        "start this broker again: it is a slave then, and `cosmodrome admin promote` promotes it",
                        address,
                        error,
                    )
                await self._broker.clock.sleep(ASK_AGAIN_MS)
                continue
            if state.broker_id == MASTER_ID:
                return state
            raise RequestError(f"{address} is not promoted: {problem}")
        return None

    def _go_on(self, before: Role) -> None:
        """Be the master that it was."""
        broker = self._broker
        if not broker.roles.role.is_like(before):
            try:
                broker.roles.give(before, broker.roles.term)
            except OSError as error:
                log.error("cannot note that this broker stays the master: %s; it starts next time as a slave", error)
        broker.processors = PROCESSORS
        if not broker.has_services:
            broker.make_services()
        self.resting = None
        broker.update_fence()
        self._start_services()
        log.warning("not handed over: broker=%s; messages are taken again", broker.config.broker_name)

    async def _step_down(self, master: RoleReply | None, broker_id: int) -> None:
        """Follow the new master. What fails here ends the broker: its file says by now that it is a slave."""
        broker = self._broker
        await broker.replicas.close()
        broker.store.follow()
        known = Master(master.broker_addr, master.ha_server_addr) if master is not None else None
        self.settle_in(Role(BrokerRole.SLAVE, broker_id), None, known)
        broker.let_go()
        log.warning(
            "handed over: broker=%s id=%d master=%s", broker.config.broker_name, broker_id, known and known.address
        )
        await broker.registration.announce()

    # --- a slave's

    async def _promote(self, request: Promote) -> RoleReply:
        broker = self._broker
        if not broker.is_slave:
            return self.state()
        if broker.store.failure is not None:
            raise RequestError(f"{broker.address} cannot be the master: {broker.store.failure}")
        role = Role(_master_role(request.broker_role or broker.metadata_sync.master_role), MASTER_ID)
        try:
            _, replication = with_role(broker.config, broker.replication, role)
        except BadSetting as error:
            raise RequestError(f"{broker.address} cannot be a {role.broker_role}: {error}") from error
        if not request.token and not request.is_force:
            await self._check_master_is_gone()
        broker.registration.topics_changed()
        await broker.registration.announce()  # its answers tell the newest term
        seen = self._seen_term(request.seen_term)
        await self.stop_services()
        try:
            if request.token:
                await self._take_over_last(request.master_addr)
            replicas = await self._listening(replication)
        except RequestError:
            self._start_services()
            raise
        await broker.replicas.close()  # nothing is appended any more
        await broker.close_services()
        await self._lead(request.token, role, seen, replicas)
        await broker.registration.announce()
        return self.state()

    async def _check_master_is_gone(self) -> None:
        """Refuse to take the place of a master that may live."""
        broker, master = self._broker, self._broker.registration.master
        if broker.replicas.is_following:
            where = master.address if master is not None else "its master"
            raise RequestError(f"{broker.address} follows {where}, which lives: it must hand over")
        if master is None:
            return
        try:
            state = await self._ask(master.address, RequestCode.GET_BROKER_ROLE)
        except RequestError as error:
            if not await _refuses_connections(master.address):
                raise RequestError(
                    f"{error}; so it may live. If it is certain that it does not run, repeat this with --force"
                ) from error
            return
        if state.broker_id == MASTER_ID and state.broker_name == broker.config.broker_name:
            raise RequestError(f"{master.address}, the master of {broker.address}, lives: it must hand over")

    async def _take_over_last(self, master: str) -> None:
        """Take over the tables of a master that changes them no more."""
        sync = self._broker.new_metadata_sync()
        await sync.round(master)
        if not sync.rounds:
            raise RequestError(f"{self._broker.address} cannot take over from {master}: {'; '.join(sync.problems)}")

    async def _listening(self, replication: ReplicationConfig) -> Replicas:
        replicas = self._broker.new_replicas(replication)
        try:
            await self._broker.serve_slaves(replicas)
        except ConfigError as error:
            await replicas.close()
            raise RequestError(f"{self._broker.address} cannot serve slaves: {error}") from error
        return replicas

    async def _lead(self, token: str, role: Role, seen: int, replicas: Replicas) -> None:
        """Lead; or, if the promotion is withdrawn or the disk refuses, follow as before. Up to the outcome, nothing is
        awaited: a withdrawal finds a slave that will not lead, or a master."""
        broker, before = self._broker, self._broker.roles.role
        problem = "the promotion was withdrawn" if token and token in self._withdrawn else ""
        try:
            if not problem:
                self._give(role, seen + 1)
                broker.store.lead(seen)
        except (OSError, RequestError) as error:
            problem = str(error)
        if not problem:
            broker.topics.add_reserved()
            broker.restore_topics()
            self.settle_in(role, replicas, None)
            log.warning("promoted: broker=%s term=%d", broker.config.broker_name, broker.store.epochs.term)
            return
        if not broker.roles.role.is_like(before):
            broker.roles.give(before, broker.roles.term)
        await replicas.close()
        self.settle_in(before, None, broker.registration.master)
        raise RequestError(f"{broker.address} stays a slave: {problem}")

    def settle_in(self, role: Role, replicas: Replicas | None = None, master: Master | None = None) -> None:
        """Be what `role` says, with the services that belong to it."""
        broker = self._broker
        broker.take_role(role)
        broker.use_replicas(replicas or broker.new_replicas())
        broker.registration.become(role.broker_id, broker.ha_address(broker.replicas), master)
        broker.metadata_sync = broker.new_metadata_sync()
        broker.make_services()
        if master is not None and master.ha_address:
            broker.replicas.follow(master.ha_address)
        self.resting = None
        broker.update_fence()
        self._start_services()

    def _give(self, role: Role, term: int) -> None:
        """Note the role for the next start, before it counts."""
        try:
            self._broker.roles.give(role, term)
        except OSError as error:
            raise ServiceNotAvailable(f"the disk does not take the note that this broker is {role}: {error}") from error


def _master_role(text: str) -> BrokerRole:
    """Return the role of a master with this name. Where nothing is known, it promises more rather than less."""
    role = text or BrokerRole.SYNC_MASTER
    if role not in _MASTERS:
        raise InvalidParameter(f"brokerRole is {text[:40]!r}; write SYNC_MASTER or ASYNC_MASTER")
    return BrokerRole(role)


async def _refuses_connections(address: str) -> bool:
    """Return whether the machine is there, and says that no process listens at this address."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(ASK_MS / 1000):
            _, writer = await asyncio.open_connection(host.strip("[]"), port)
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    writer.close()
    return False

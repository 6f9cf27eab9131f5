"""What an operator can have done to brokers, as functions that return what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cosmodrome.client.instance import Instance
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import BrokerError, CallTimeout, ClientError, ConnectionFailed
from cosmodrome.model import MASTER_ID
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.role_requests import HandOver, Promote, RoleReply

LOOK_MS = 3_000
BESIDE_MS = 20_000  # what a change of roles may take beside the time for the slave to catch up
LEAD_MS = 20_000
DEMOTION_MS = 10_000


class NotPromoted(ClientError):
    """The text says why, and who is the master now."""


class NotDemoted(ClientError):
    """The text says why."""


@dataclass(frozen=True, slots=True)
class Member:
    """A broker of a name, as the name server names it, and what it says of itself; else why it says nothing."""

    broker_id: int
    address: str
    state: RoleReply | None = None
    problem: str = ""
    is_down: bool = False  # its machine refuses connections


@dataclass(frozen=True, slots=True)
class Promoted:
    """The outcome of a promotion; `follower` is the old master, if it follows the new one."""

    master: RoleReply
    before: str  # the address of the old master, if one was known
    follower: RoleReply | None


async def promote(
    instance: Instance, name: str, to: str, role: str, *, timeout_ms: int, force: bool, tell: Callable[[str], None]
) -> Promoted:
    """Make a slave the master of its name; `tell` hears what is done. NotPromoted if it is not."""
    members = await _members(instance, name)
    master = next((member for member in members if member.broker_id == MASTER_ID), None)
    heir = choose(name, members, to, force=force)
    check_master(name, master, force=force)
    living = master if master is not None and master.state is not None else None
    follower: RoleReply | None = None
    if living is not None:
        tell(f"{living.address} takes no messages until {heir.address} has its whole log and leads")
        header = HandOver(heir.address, timeout_ms, role)
        try:
            follower = await _ask(
                instance, living.address, RequestCode.HAND_OVER_BROKER, header, timeout_ms + BESIDE_MS
            )
        except ClientError as error:
            if not force:
                raise NotPromoted(f"{name} is not handed over by {living.address}: {_said(error)}") from error
            tell(f"{living.address} does not hand over: {_said(error)}")
    if follower is None:
        follower = await _promote_alone(instance, heir, master, role, force=force, tell=tell)
    leads = await _ask(instance, heir.address, RequestCode.GET_BROKER_ROLE)
    if leads.broker_id != MASTER_ID:
        raise NotPromoted(f"{heir.address} is {leads.broker_role} {leads.broker_id} of {name}; look into its log")
    return Promoted(leads, master.address if master is not None else "", follower)


async def _promote_alone(
    instance: Instance, heir: Member, master: Member | None, role: str, *, force: bool, tell: Callable[[str], None]
) -> RoleReply | None:
    """Promote a slave without its master; one that lives all the same is told, and its state returned."""
    tell(
        f"{heir.address} takes over alone: what only the old master had is not on it. Of what a SYNC_MASTER answered "
        "with SEND_OK, that is nothing; of an ASYNC_MASTER, it may be what it stored last"
    )
    try:
        header = Promote(role, is_force=force)
        promoted = await _ask(instance, heir.address, RequestCode.PROMOTE_BROKER, header, LEAD_MS)
    except ClientError as error:
        raise NotPromoted(f"{heir.address} is not promoted: {_said(error)}") from error
    if master is None or master.is_down:
        return None
    step_down = HandOver(promoted.broker_addr, LOOK_MS, broker_id=heir.broker_id)
    try:
        return await _ask(instance, master.address, RequestCode.HAND_OVER_BROKER, step_down, LOOK_MS + BESIDE_MS)
    except ClientError as error:
        tell(
            f"{master.address} does not follow it: {_said(error)}. Should it run, stop it: it takes messages that will "
            "be lost, until a name server tells it of the new master"
        )
        return None


async def demote(instance: Instance, address: str, broker_id: int | None) -> tuple[RoleReply, RoleReply]:
    """Let a stale master follow the one that was promoted since; return both. NotDemoted if it is none."""
    try:
        stale = await _ask(instance, address, RequestCode.GET_BROKER_ROLE)
    except ClientError as error:
        raise NotDemoted(f"{address} cannot be asked: {_said(error)}") from error
    name = stale.broker_name
    if stale.broker_id != MASTER_ID:
        raise NotDemoted(f"{address} is slave {stale.broker_id} of {name} already")
    groups = await instance.name_servers.brokers()
    members = groups[name].addresses if name in groups else {}
    master = members.get(MASTER_ID)
    if master is None or master == address:
        raise NotDemoted(
            f"{address} is the master of {name}, and no other was promoted: `cosmodrome admin promote {name}` makes "
            "one of its slaves the master, and it a slave"
        )
    wanted = broker_id or next(one for one in range(1, len(members) + 2) if one not in members)
    if wanted in members and members[wanted] != address:
        raise NotDemoted(f"{members[wanted]} is slave {wanted} of {name}; choose another --id")
    header = HandOver(master, DEMOTION_MS, broker_id=wanted)
    try:
        demoted = await _ask(instance, address, RequestCode.HAND_OVER_BROKER, header, DEMOTION_MS + BESIDE_MS)
    except ClientError as error:
        raise NotDemoted(f"{address} does not follow {master}: {_said(error)}") from error
    return demoted, await _ask(instance, master, RequestCode.GET_BROKER_ROLE)


def choose(name: str, members: Sequence[Member], to: str, *, force: bool) -> Member:
    """Return the slave to promote: the one that is named by its id or address, else the one with the longest log."""
    slaves = [member for member in members if member.broker_id != MASTER_ID]
    if not slaves:
        raise NotPromoted(f"{name} has no slave that a name server knows; start one, and let it follow its master")
    if to:
        named = [member for member in slaves if to in (str(member.broker_id), member.address)]
        if not named:
            known = ", ".join(f"{member.broker_id} at {member.address}" for member in slaves)
            raise NotPromoted(f"{name} has no slave {to}; it has {known}")
        slaves = named
    living = [member for member in slaves if member.state is not None]
    if not living:
        raise NotPromoted("; ".join(f"slave {member.broker_id} cannot be asked: {member.problem}" for member in slaves))
    chosen = max(living, key=_place)
    has_master = any(member.broker_id == MASTER_ID and member.state is not None for member in members)
    best = max((member for member in members if member.broker_id and member.state is not None), key=_place)
    if not has_master and not force and _place(best)[:2] > _place(chosen)[:2]:
        raise NotPromoted(
            f"{best.address} has more of the log than {chosen.address}: promote that one with --to {best.broker_id}, "
            "or give up what only it has with --force"
        )
    return chosen


def check_master(name: str, master: Member | None, *, force: bool) -> None:
    """Refuse to promote a slave beside a master that may live, and cannot be asked."""
    if force or master is None or master.state is not None or master.is_down:
        return
    raise NotPromoted(
        f"the name server knows {master.address} as the master of {name}, and it cannot be asked: {master.problem}. "
        "If it runs, two masters would take messages, and one of them lose its own. Stop it, or repeat this with "
        "--force if it is certain that it does not run"
    )


def _place(member: Member) -> tuple[int, int, int]:
    """How much of the log a slave has; of several that have the same, the first counts."""
    assert member.state is not None, "it answered"
    return member.state.term, member.state.log_end, -member.broker_id


async def _members(instance: Instance, name: str) -> list[Member]:
    groups = await instance.name_servers.brokers()
    if name not in groups:
        known = ", ".join(sorted(groups)) or "none"
        raise NotPromoted(f"{instance.name_servers.described} knows no broker {name}; it knows {known}")
    addresses = sorted(groups[name].addresses.items())
    return list(await asyncio.gather(*(_look(instance, broker_id, address) for broker_id, address in addresses)))


async def _look(instance: Instance, broker_id: int, address: str) -> Member:
    try:
        state = await _ask(instance, address, RequestCode.GET_BROKER_ROLE)
    except ClientError as error:
        is_down = isinstance(error, ConnectionFailed) and isinstance(error.__cause__, ConnectionRefusedError)
        return Member(broker_id, address, None, _said(error), is_down)
    return Member(broker_id, address, state)


async def _ask(
    instance: Instance, address: str, code: RequestCode, header: Header | None = None, timeout_ms: int = LOOK_MS
) -> RoleReply:
    return RoleReply.decode(await instance.ask(address, Command.request(code, header), timeout_ms))


def _said(error: ClientError) -> str:
    """Return an error's text as what stands in the middle of a sentence."""
    if isinstance(error, BrokerError):
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return f"{error.address} cannot change its role while it runs; set brokerRole and brokerId in its file"
        return error.remark
    if isinstance(error, CallTimeout):
        return f"{error}; it may be at it still: ask again"
    return str(error)

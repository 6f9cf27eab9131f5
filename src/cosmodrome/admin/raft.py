"""What an operator can ask of Raft groups, and have done to them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cosmodrome.admin.core import AdminCore
from cosmodrome.admin.results import BrokerNode
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import BrokerError, ClientError, InvalidArgument
from cosmodrome.wire.raft_requests import RaftStatus, TransferLeader

TRANSFER_MS = 10_000
LOOK_AGAIN_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class RaftNode:
    """A broker of a Raft group, and what it says of itself; else why it says nothing."""

    node: BrokerNode
    status: RaftStatus | None = None
    problem: str = ""


class RaftAdmin(AdminCore):
    """Raft groups: their members, and which of them leads."""

    async def raft_status(self, broker: str = "") -> tuple[RaftNode, ...]:
        """Return the members of every Raft group, or of that of a broker, by its name or address.

        Brokers that belong to no group are left out, unless one is asked for.
        """
        nodes = (await self.cluster()).brokers
        if broker:
            names = {node.broker_name for node in nodes if broker in (node.broker_name, node.address)}
            if not names:
                known = ", ".join(sorted({node.broker_name for node in nodes})) or "none"
                raise InvalidArgument(f"no broker {broker}; the name server knows {known}")
            nodes = tuple(node for node in nodes if node.broker_name in names)
        members = await asyncio.gather(*(self._look(node) for node in nodes))
        return tuple(one for one in members if broker or one.status is not None or one.problem)

    async def _look(self, node: BrokerNode) -> RaftNode:
        try:
            reply = await self._ask(node, RequestCode.GET_RAFT_STATUS)
        except BrokerError as error:
            is_ungrouped = error.code in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.ILLEGAL_OPERATION)
            return RaftNode(node, problem="" if is_ungrouped else str(error))
        except ClientError as error:
            return RaftNode(node, problem=str(error))
        return RaftNode(node, RaftStatus.decode(bytes(reply.body)))

    async def transfer_leader(self, broker: str, to: str) -> RaftStatus:
        """Let another member lead the group of a broker; return what it says of itself when it does.

        ClientError says why it does not; nothing acknowledged is lost in any case.
        """
        members = await self.raft_status(broker)
        leader = next((one for one in members if one.status is not None and one.status.role == "leader"), None)
        if leader is None or leader.status is None:
            raise ClientError(f"{broker} has no leader that answers: ask `cosmodrome admin raftStatus -b {broker}`")
        if to not in leader.status.voters:
            raise InvalidArgument(f"no member {to} of {broker}; its members are {', '.join(leader.status.voters)}")
        if to != leader.status.member:
            await self._ask(leader.node, RequestCode.TRANSFER_RAFT_LEADER, TransferLeader(to), timeout_ms=TRANSFER_MS)
        try:
            async with asyncio.timeout(TRANSFER_MS / 1000):
                while True:
                    for member in await self.raft_status(broker):
                        status = member.status
                        if status is not None and status.member == to and status.role == "leader":
                            return status
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
        except TimeoutError:
            raise ClientError(
                f"{to} does not lead {broker} yet: ask `cosmodrome admin raftStatus -b {broker}`"
            ) from None

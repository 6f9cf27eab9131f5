"""Requests of operators about the broker's Raft group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosmodrome.errors import IllegalOperation
from cosmodrome.net.connection import Connection
from cosmodrome.wire.command import Command
from cosmodrome.wire.raft_requests import TransferLeader

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker
    from cosmodrome.broker.raft_group import RaftGroup


async def get_status(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_RAFT_STATUS: the member's role, term and log."""
    return command.reply(body=_group(broker).status().encode())


async def transfer_leader(broker: Broker, _connection: Connection, command: Command) -> Command:
    """TRANSFER_RAFT_LEADER: let another member lead; answered when it does, or will not."""
    await _group(broker).transfer(TransferLeader.decode(command).member)
    return command.reply()


def _group(broker: Broker) -> RaftGroup:
    if broker.group is None:
        raise IllegalOperation(f"{broker.address} belongs to no Raft group: its enableDLegerCommitLog is not true")
    return broker.group

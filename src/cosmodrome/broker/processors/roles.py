"""Requests of operators, and of brokers of the same name, about which of them is the master."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cosmodrome.errors import LimitReached
from cosmodrome.net.connection import Connection
from cosmodrome.wire.command import Command
from cosmodrome.wire.role_requests import AwaitTables, HandOver, Promote, TableVersions, WithdrawPromotion

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker


async def get_role(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_BROKER_ROLE: master or slave, with which term, and how far its log is."""
    return command.reply(header=broker.promotion.state())


async def hand_over(broker: Broker, _connection: Connection, command: Command) -> Command:
    """HAND_OVER_BROKER: make a slave the master, and follow it; answered when that is done, or will not be."""
    return command.reply(header=await broker.promotion.hand_over(HandOver.decode(command)))


async def promote(broker: Broker, _connection: Connection, command: Command) -> Command:
    """PROMOTE_BROKER: become the master; answered when it is."""
    return command.reply(header=await broker.promotion.promote(Promote.decode(command)))


async def withdraw_promotion(broker: Broker, _connection: Connection, command: Command) -> Command:
    """WITHDRAW_PROMOTION: what is not done yet is not to be done; the answer says which of both it is."""
    return command.reply(header=broker.promotion.withdraw(WithdrawPromotion.decode(command).token))


MAX_AWAIT_MS = 30_000
MAX_AWAITING = 64  # slaves, at one master


async def await_tables(broker: Broker, _connection: Connection, command: Command) -> Command:
    """AWAIT_TABLES: the versions of topics and groups, once they are not those that the slave knows."""
    known = AwaitTables.decode(command)
    topics, groups = broker.topics, broker.groups
    if (topics.version_text, groups.version_text) == (known.topic_version, known.group_version):
        if topics.watchers >= MAX_AWAITING:
            raise LimitReached(f"{MAX_AWAITING} slaves wait for changes of topics and groups already; ask again later")
        topics.watchers += 1
        timeout = asyncio.ensure_future(broker.clock.sleep(min(max(known.timeout_millis, 0), MAX_AWAIT_MS)))
        try:
            changes = (topics.next_change(), groups.next_change())
            await asyncio.wait((timeout, *changes), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timeout.cancel()
            topics.watchers -= 1
    return command.reply(header=TableVersions(topics.version_text, groups.version_text))

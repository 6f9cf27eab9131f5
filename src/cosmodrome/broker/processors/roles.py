"""Requests of operators, and of brokers of the same name, about which of them is the master."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosmodrome.net.connection import Connection
from cosmodrome.wire.command import Command
from cosmodrome.wire.role_requests import HandOver, Promote, WithdrawPromotion

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

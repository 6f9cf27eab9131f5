"""What a replica asks about timers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosmodrome.net.connection import Connection
from cosmodrome.wire.command import Command

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker


async def get_timer_checkpoint(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_TIMER_CHECK_POINT: how far timers are set and delivered."""
    return command.reply(body=broker.timers.pending.checkpoint.encoded())


async def get_timer_metrics(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_TIMER_METRICS: how many timers are pending, by topic."""
    return command.reply(body=broker.timers.metrics.encoded())

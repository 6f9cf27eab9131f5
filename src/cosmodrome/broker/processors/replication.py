"""Requests of slaves and operators about the copies of this broker's log, and for the tables that slaves take over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosmodrome.broker.bodies import reply_with
from cosmodrome.broker.registration import Master
from cosmodrome.net.connection import Connection
from cosmodrome.wire.bodies import EpochEntry, EpochsBody
from cosmodrome.wire.command import Command
from cosmodrome.wire.name_server_requests import ExchangeHaInfo

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker


async def get_all_consumer_offsets(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_ALL_CONSUMER_OFFSET: how far every group is."""
    return await reply_with(broker, command, broker.offsets.body().encode, len(broker.offsets))


async def get_all_delay_offsets(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_ALL_DELAY_OFFSET: how far each delay level is delivered."""
    return command.reply(body=broker.delays.body().encode())


async def get_timer_checkpoint(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_TIMER_CHECK_POINT: how far timers are set and delivered."""
    return command.reply(body=broker.timers.pending.checkpoint.encoded())


async def get_timer_metrics(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_TIMER_METRICS: how many timers are pending, by topic."""
    return command.reply(body=broker.timers.metrics.encoded())


async def get_ha_status(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_BROKER_HA_STATUS: the slaves of a master, or how a slave follows its master."""
    return command.reply(body=broker.replicas.ha_status().encode())


async def get_epochs(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_BROKER_EPOCH_CACHE: which master wrote which stretch of the log. A slave asks before it follows."""
    config, store = broker.config, broker.store
    end = store.max_physical_offset
    entries = tuple(EpochEntry(*epoch, epoch_end) for epoch, epoch_end in store.epochs.spans(end))
    body = EpochsBody(
        config.broker_cluster_name, config.broker_name, config.broker_id, entries, end, store.min_physical_offset
    )
    return command.reply(body=body.encode())


async def exchange_ha_info(broker: Broker, _connection: Connection, command: Command) -> Command:
    """EXCHANGE_BROKER_HA_INFO: a slave makes way for a master that comes back, and has ended its services when it
    answers; a master says where it is."""
    request = ExchangeHaInfo.decode(command)
    if request.master_ha_address is None:
        if broker.is_slave:
            return command.reply()
        end = broker.store.max_physical_offset
        return command.reply(header=ExchangeHaInfo(broker.registration.ha_address, end, broker.address))
    if broker.is_slave:
        await broker.acting.make_way()
        if request.master_address is not None:
            broker.replicas.master_comes(Master(request.master_address, request.master_ha_address))
    return command.reply()


async def smallest_broker_changed(broker: Broker, _connection: Connection, command: Command) -> Command:
    """NOTIFY_MIN_BROKER_ID_CHANGE: a name server says that the brokers of this name are others now."""
    broker.acting.wake()
    return command.reply()

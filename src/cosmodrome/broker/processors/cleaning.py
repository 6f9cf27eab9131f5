"""Deleting what is no longer kept, when an operator asks for it. Each answers at once; the work goes on behind it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from cosmodrome.broker.processors.topics import delete_queues
from cosmodrome.net.connection import Connection
from cosmodrome.wire.command import Command

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)


async def delete_expired_commit_log(broker: Broker, _connection: Connection, command: Command) -> Command:
    """DELETE_EXPIRED_COMMITLOG: expired files of the log go now, whatever the hour."""
    log.info("asked to delete expired files of the log")
    broker.store.cleaner.delete_soon()
    return command.reply()


async def clean_expired_queues(broker: Broker, _connection: Connection, command: Command) -> Command:
    """CLEAN_EXPIRED_CONSUMEQUEUE: files of queues and index whose messages are gone.

    Apache also forgets queues that have lost every message, so that they begin at 0 again, and a group that is at
    offset 100 then misses the next hundred. Here a queue of a topic that exists goes on where it was.
    """
    await broker.store.cleaner.clean_queues()
    return command.reply()


async def clean_unused_topics(broker: Broker, _connection: Connection, command: Command) -> Command:
    """CLEAN_UNUSED_TOPIC: the queues of topics that this broker no longer has."""
    for name in broker.store.topics():
        if broker.topics.find_topic(name) is None and not broker.topics.is_system(name):
            log.info("deleting the queues of %s: the topic is not on this broker", name)
            with broker.topics.leaving([name]):
                await delete_queues(broker, name)
            await asyncio.sleep(0)
    return command.reply()

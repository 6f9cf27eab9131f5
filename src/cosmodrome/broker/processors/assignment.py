"""Telling clients which queues they read, and whether they pull or pop them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cosmodrome.broker.assignments import MANY_QUEUES, STRATEGIES, assigned
from cosmodrome.broker.bodies import read_body, reply_with
from cosmodrome.errors import NoPermission
from cosmodrome.model import RETRY_PREFIX, MessageModel, MessageQueue
from cosmodrome.net.connection import Connection
from cosmodrome.wire.bodies import Assignment, QueryAssignment, RequestModeBody
from cosmodrome.wire.command import Command

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker


async def query_assignment(broker: Broker, _connection: Connection, command: Command) -> Command:
    """QUERY_ASSIGNMENT: the queues of one member of a group; without an answer it keeps what it has."""
    query = await read_body(broker, QueryAssignment, command)
    mode = broker.request_modes.find(query.topic, query.group)
    queues = await _queues(broker, query, mode)
    return await reply_with(broker, command, Assignment(queues, mode.mode).encode, len(queues or ()))


async def _queues(broker: Broker, query: QueryAssignment, mode: RequestModeBody) -> tuple[MessageQueue, ...] | None:
    queues = await broker.topic_queues.find(query.topic)
    is_shared_out = query.message_model is MessageModel.CLUSTERING and broker.config.server_load_balancer_enable
    if queues is None or not is_shared_out:
        return queues
    consumers = broker.clients.find_consumers(query.group)
    strategy = STRATEGIES.get(query.strategy)
    if consumers is None or strategy is None:
        return None
    assign = partial(assigned, queues, tuple(consumers.client_ids), query.client_id, strategy, mode)
    return tuple(await broker.lane.aside(assign) if len(queues) > MANY_QUEUES else assign())


async def set_request_mode(broker: Broker, _connection: Connection, command: Command) -> Command:
    """SET_MESSAGE_REQUEST_MODE: a group pulls or pops a topic from now on."""
    mode = await read_body(broker, RequestModeBody, command)
    if mode.topic.startswith(RETRY_PREFIX):
        raise NoPermission("retry topic is not allowed to set mode")
    broker.topics.topic(mode.topic)
    broker.groups.group(mode.group)
    broker.request_modes.put(mode)
    await broker.request_modes.saved()
    return command.reply()


async def get_request_modes(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_ALL_MESSAGE_REQUEST_MODE."""
    body = broker.request_modes.body()
    return await reply_with(broker, command, body.encode, len(broker.request_modes))

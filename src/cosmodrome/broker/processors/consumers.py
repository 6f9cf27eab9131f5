"""What operators ask of consumers, through the broker that these are connected to."""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING

from cosmodrome.broker.bodies import ENCODED_AT_ONCE, reply_with
from cosmodrome.broker.clients import ConsumerGroup, Member
from cosmodrome.broker.groups import check_open
from cosmodrome.codes import Language, RequestCode, ResponseCode
from cosmodrome.errors import (
    CallTimeout,
    ClientError,
    ConsumerNotOnline,
    ConsumeTimeout,
    CosmodromeError,
    GroupNotFound,
    InvalidParameter,
    ProtocolError,
    RequestError,
)
from cosmodrome.model import MessageQueue, TopicConfig
from cosmodrome.net.connection import Connection
from cosmodrome.net.lane import steps_of
from cosmodrome.wire.bodies import ConsumerStatus, ResetOffsets
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import parse_offset_msg_id
from cosmodrome.wire.requests import ConsumeDirectly, GetConsumerStatus, GetRunningInfo, ResetOffset

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)

RELAY_TIMEOUT_MS = 10_000
STATUS_TIMEOUT_MS = 5_000
END_OF_QUEUE = -1  # in place of a time
NO_OFFSET = -1
TARGETS_STEP = 20  # queues searched for a time in one step
RESETS_STEP = 500  # queues reset in one step
TARGETS_TOLD = 100  # in the log


async def reset_offset(broker: Broker, _connection: Connection, command: Command) -> Command:
    """INVOKE_BROKER_TO_RESET_OFFSET: a group shall go on from a time, or from one offset of one queue.

    Those who are running learn of it from their next pull. Members of a broadcasting group, and every member if
    useServerSideResetOffset is off, are told to see to it themselves: the broker does not keep their offsets.
    """
    request = ResetOffset.decode(command)
    check_open(request.group)
    topic = broker.topics.topic(request.topic)
    if request.group not in broker.groups:
        raise GroupNotFound(request.group)
    targets: dict[int, int] = {}
    await broker.lane.run(
        targets.update({queue_id: _target(broker, request, queue_id) for queue_id in queue_ids})
        for queue_ids in steps_of(_queue_ids(request, topic), TARGETS_STEP)
    )

    def reset() -> ResetOffsets:
        name = broker.config.broker_name
        return ResetOffsets({MessageQueue(topic.name, name, queue_id): to for queue_id, to in targets.items()})

    offsets = await broker.lane.aside(reset) if len(targets) > ENCODED_AT_ONCE else reset()
    group = broker.clients.find_consumers(request.group)
    is_read = group is not None and topic.name in group.subscriptions
    if group is not None and is_read and (group.broadcasting or not broker.config.use_server_side_reset_offset):
        await _tell(broker, group, request, offsets)
    elif not broker.config.use_server_side_reset_offset:
        raise ConsumerNotOnline(
            f"Consumer not online, so can not reset offset, Group: {request.group} Topic: {request.topic} "
            f"Timestamp: {request.timestamp}"
        )
    else:
        for queue_id, to in targets.items():
            broker.reset_offset(request.group, topic.name, queue_id, to, is_read=is_read)
            if queue_id % RESETS_STEP == RESETS_STEP - 1:
                await broker.lane.turn()
    told = dict(islice(targets.items(), TARGETS_TOLD))
    log.info("group %s was reset on %s: queues=%d %s", request.group, topic.name, len(targets), told)
    return await reply_with(broker, command, offsets.encode, len(targets))


def _queue_ids(request: ResetOffset, topic: TopicConfig) -> range:
    if request.queue_id < 0:
        return range(topic.read_queues)
    if request.queue_id >= topic.read_queues:
        raise InvalidParameter(f"topic {topic.name} has {topic.read_queues} queues, and no queue {request.queue_id}")
    return range(request.queue_id, request.queue_id + 1)


def _target(broker: Broker, request: ResetOffset, queue_id: int) -> int:
    """An offset that is given must be one the queue has; a time leads forward only if it is forced to."""
    topic, store = request.topic, broker.store
    if request.queue_id >= 0 and request.offset is not None and request.offset != NO_OFFSET:
        first, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if not first <= request.offset <= end:
            raise RequestError(f"Target offset {request.offset} not in consume queue range [{first}-{end}]")
        return request.offset
    if request.timestamp == END_OF_QUEUE:
        offset = store.max_offset(topic, queue_id)
    else:
        offset = store.offset_by_time(topic, queue_id, request.timestamp)
    stored = broker.offsets.find_offset(request.group, topic, queue_id)
    return offset if request.is_force or stored is None else min(offset, stored)


async def _tell(broker: Broker, group: ConsumerGroup, request: ResetOffset, offsets: ResetOffsets) -> None:
    def bodies() -> tuple[bytes, bytes]:
        return offsets.encode_for_cpp(), offsets.encode()

    for_cpp, for_others = await broker.lane.aside(bodies) if len(offsets.offsets) > ENCODED_AT_ONCE else bodies()
    for connection, member in group.members.items():
        assert isinstance(connection, Connection)
        body = for_cpp if member.language == Language.CPP else for_others
        header = ResetOffset(request.topic, request.group, request.timestamp, request.is_force)
        connection.send(Command.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body, oneway=True))


async def get_consumer_status(broker: Broker, _connection: Connection, command: Command) -> Command:
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS: how far each member of a group says it is; who does not answer is left
    out."""
    request = GetConsumerStatus.decode(command)
    members = _members(broker, request.group, request.client_addr)
    if not members:
        whom = f"consumer {request.client_addr}" if request.client_addr else "Any Consumer"
        raise ConsumerNotOnline(f"No {whom} online in the consumer group: [{request.group}]")
    answers = await asyncio.gather(*(_status_of(connection, request) for connection, _ in members))
    by_client = {
        member.client_id: answer for (_, member), answer in zip(members, answers, strict=True) if answer is not None
    }
    return command.reply(body=ConsumerStatus(by_client=by_client).encode())


async def _status_of(connection: Connection, request: GetConsumerStatus) -> dict[MessageQueue, int] | None:
    header = GetConsumerStatus(request.topic, request.group)
    ask = Command.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)
    try:
        answer = await connection.call(ask, STATUS_TIMEOUT_MS)
        if answer.code == ResponseCode.SUCCESS:
            return dict(ConsumerStatus.decode(answer.body).offsets)
        log.warning("%s does not tell its offsets of %s: %s", connection.peer, request.topic, answer.remark)
    except CosmodromeError as error:
        log.warning("%s does not tell its offsets of %s: %s", connection.peer, request.topic, error)
    return None


async def get_running_info(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_CONSUMER_RUNNING_INFO: what one consumer says about itself."""
    request = GetRunningInfo.decode(command)
    return await _relay(broker, command, command.body, request.consumer_group, request.client_id)


async def consume_directly(broker: Broker, _connection: Connection, command: Command) -> Command:
    """CONSUME_MESSAGE_DIRECTLY: one consumer handles a stored message, and says how that went."""
    request = ConsumeDirectly.decode(command)
    try:
        _, _, physical_offset = parse_offset_msg_id(request.msg_id or "")
    except ProtocolError as error:
        raise InvalidParameter(str(error)) from error
    record = broker.store.record_at(physical_offset)
    if record is None:
        raise RequestError(f"can not find message by the offset, {physical_offset}")
    command.fields["brokerName"] = broker.config.broker_name
    return await _relay(broker, command, bytes(record), request.consumer_group, request.client_id)


async def _relay(
    broker: Broker, command: Command, body: bytes | memoryview, group: str, client_id: str | None
) -> Command:
    """Ask the consumer itself, and pass its answer on."""
    members = _members(broker, group, client_id) if client_id else []
    if not members:
        raise RequestError(f"The Consumer <{group}> <{client_id}> not online")
    connection, _ = members[-1]
    try:
        answer = await connection.call(Command(command.code, command.fields, body), RELAY_TIMEOUT_MS)
    except CallTimeout as error:
        raise ConsumeTimeout(f"consumer <{group}> <{client_id}> Timeout: {error}") from error
    except ClientError as error:
        raise RequestError(f"invoke consumer <{group}> <{client_id}> Exception: {error}") from error
    return command.reply(answer.code, body=bytes(answer.body), remark=answer.remark)


def _members(broker: Broker, group: str, client_id: str | None) -> list[tuple[Connection, Member]]:
    """The connected members of a group, all or those of one client id; the newest is the last."""
    consumers = broker.clients.find_consumers(group)
    found: list[tuple[Connection, Member]] = []
    for connection, member in consumers.members.items() if consumers is not None else ():
        assert isinstance(connection, Connection)
        if not client_id or member.client_id == client_id:
            found.append((connection, member))
    return found

"""A name server and brokers that do just enough, over real sockets, and remember what they were asked.

A test replaces the answer to a request code with `broker.answers[code] = function of the request`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.model import MASTER_ID, BrokerData, MessageQueue, QueueData, Route
from cosmodrome.net.connection import Connection
from cosmodrome.net.server import Server
from cosmodrome.wire.batch import decode_batch
from cosmodrome.wire.bodies import ConsumerIds, HeartbeatData, LockBatch, encode_locked, encode_route
from cosmodrome.wire.command import Command
from cosmodrome.wire.name_server_requests import GetRoute
from cosmodrome.wire.record import Record
from cosmodrome.wire.requests import (
    ConsumerGroupHeader,
    OffsetReply,
    PullFlag,
    PullMessage,
    PullReply,
    QueryConsumerOffset,
    QueueHeader,
    SearchOffset,
    SendMessage,
    SendReply,
    UpdateConsumerOffset,
)
from tests.unit.client.messages import record

PATIENCE_SECONDS = 30
PULL_COUNT = 32

Answer = Callable[[Command], Command | None]


class Asked:
    """Requests as they come, and a way to wait for one."""

    def __init__(self) -> None:
        self.requests: list[Command] = []
        self._came = asyncio.Condition()

    async def note(self, command: Command) -> None:
        async with self._came:
            self.requests.append(command)
            self._came.notify_all()

    def of(self, code: int) -> list[Command]:
        return [request for request in self.requests if request.code == code]

    def count(self, code: int) -> int:
        return len(self.of(code))

    async def wait_for(self, code: int, count: int = 1) -> list[Command]:
        async with asyncio.timeout(PATIENCE_SECONDS), self._came:
            await self._came.wait_for(lambda: self.count(code) >= count)
        return self.of(code)


class FakeBroker:
    """Queues in memory. Offsets of groups are kept; a group never seen has none."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.broker_id = MASTER_ID
        self.asked = Asked()
        self.answers: dict[int, Answer] = {}
        self.queues: dict[tuple[str, int], list[Record]] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.takes_offsets_of_pulls_after_seconds = 0.0
        self.members: dict[str, dict[Connection, str]] = {}
        self.locks: dict[MessageQueue, str] = {}  # by queue: the client id that has it
        self.silent = False
        self._arrived = asyncio.Condition()
        self._server = Server(self._handle, "127.0.0.1", 0, on_close=self._forget)

    async def start(self) -> None:
        await self._server.start()

    async def close(self) -> None:
        for connection in list(self._server.connections):
            connection.close()
        await self._server.close()

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def connections(self) -> set[Connection]:
        return self._server.connections

    async def append(self, topic: str, queue_id: int, body: bytes, properties: str = "", sys_flag: int = 0) -> int:
        async with self._arrived:
            queue = self.queues.setdefault((topic, queue_id), [])
            queue.append(
                record(
                    body,
                    topic=topic,
                    properties=properties,
                    queue_id=queue_id,
                    offset=len(queue),
                    sys_flag=sys_flag,
                    reconsume_times=1 if topic.startswith("%RETRY%") else 0,
                )
            )
            self._arrived.notify_all()
            return len(queue) - 1

    def notify_members(self, group: str) -> None:
        for connection in self.members.get(group, {}):
            header = ConsumerGroupHeader(group)
            connection.send(Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True))

    def _forget(self, connection: Connection) -> None:
        for group in self.members.values():
            group.pop(connection, None)

    async def _handle(self, connection: Connection, command: Command) -> Command | None:
        await self.asked.note(command)
        if self.silent:
            return None
        if command.code in self.answers:
            return self.answers[command.code](command)
        match command.code:
            case RequestCode.SEND_MESSAGE_V2 | RequestCode.SEND_BATCH_MESSAGE:
                return await self._send(command)
            case RequestCode.PULL_MESSAGE:
                return await self._pull(command)
            case RequestCode.HEART_BEAT:
                return self._heartbeat(connection, command)
            case RequestCode.UNREGISTER_CLIENT:
                self._forget(connection)
                return command.reply()
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                group = ConsumerGroupHeader.decode(command).consumer_group
                return command.reply(body=ConsumerIds(tuple(self.members.get(group, {}).values())).encode())
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                update = UpdateConsumerOffset.decode(command)
                self.offsets[update.consumer_group, update.topic, update.queue_id] = update.commit_offset
                return command.reply()
            case RequestCode.LOCK_BATCH_MQ:
                return self._lock(command)
            case RequestCode.UNLOCK_BATCH_MQ:
                for queue in LockBatch.decode(command.body).queues:
                    self.locks.pop(queue, None)
                return command.reply()
            case _:
                return self._offset(command)

    async def _send(self, command: Command) -> Command:
        request = SendMessage.decode(command)
        if request.batch:
            items = [(item.body, item.properties) for item in decode_batch(bytes(command.body))]
        else:
            items = [(bytes(command.body), request.properties or "")]
        offsets = [
            await self.append(request.topic, request.queue_id, body, properties, request.sys_flag)
            for body, properties in items
        ]
        ids = ",".join(f"{self.name}-{offset}" for offset in offsets)
        return command.reply(header=SendReply(ids, request.queue_id, offsets[0]))

    async def _pull(self, command: Command) -> Command:
        request = PullMessage.decode(command)
        if request.sys_flag & PullFlag.COMMIT_OFFSET:
            place = request.consumer_group, request.topic, request.queue_id
            take, seconds = self.offsets.__setitem__, self.takes_offsets_of_pulls_after_seconds
            asyncio.get_running_loop().call_later(seconds, take, place, request.commit_offset)
        queue = self.queues.setdefault((request.topic, request.queue_id), [])
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(queue) > request.queue_offset)
        found = queue[request.queue_offset : request.queue_offset + PULL_COUNT]
        reply = PullReply(0, request.queue_offset + len(found), 0, len(queue))
        return command.reply(header=reply, body=b"".join(one.encode() for one in found))

    def _heartbeat(self, connection: Connection, command: Command) -> Command:
        data = HeartbeatData.decode(command.body)
        for consumer in data.consumers:
            self.members.setdefault(consumer.group, {})[connection] = data.client_id
        return command.reply()

    def _lock(self, command: Command) -> Command:
        request = LockBatch.decode(command.body)
        me = request.client_id
        return command.reply(body=encode_locked(q for q in request.queues if self.locks.setdefault(q, me) == me))

    def _offset(self, command: Command) -> Command:
        match command.code:
            case RequestCode.QUERY_CONSUMER_OFFSET:
                query = QueryConsumerOffset.decode(command)
                offset = self.offsets.get((query.consumer_group, query.topic, query.queue_id))
                if offset is None:
                    return command.reply(ResponseCode.QUERY_NOT_FOUND)
            case RequestCode.GET_MAX_OFFSET:
                header = QueueHeader.decode(command)
                offset = len(self.queues.get((header.topic, header.queue_id), ()))
            case RequestCode.GET_MIN_OFFSET:
                offset = 0
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                search = SearchOffset.decode(command)
                stored = self.queues.get((search.topic, search.queue_id), [])
                offset = sum(one.store_timestamp <= search.timestamp for one in stored) - 1  # as Apache 4 may say
            case _:
                return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        return command.reply(header=OffsetReply(offset))


class FakeCluster:
    """One name server in front of some brokers; every topic it knows lives on all of them."""

    def __init__(self, brokers: list[str], topics: dict[str, int]) -> None:
        self.brokers = [FakeBroker(name) for name in brokers]
        self.topics = dict(topics)
        self.asked = Asked()
        self._server = Server(self._handle, "127.0.0.1", 0)

    @property
    def namesrv(self) -> str:
        return self._server.address

    @property
    def broker(self) -> FakeBroker:
        (only,) = self.brokers
        return only

    def named(self, name: str) -> FakeBroker:
        return next(broker for broker in self.brokers if broker.name == name)

    async def start(self) -> None:
        await self._server.start()
        for broker in self.brokers:
            await broker.start()

    async def close(self) -> None:
        for broker in self.brokers:
            await broker.close()
        await self._server.close()

    async def _handle(self, _connection: Connection, command: Command) -> Command:
        await self.asked.note(command)
        topic = GetRoute.decode(command).topic
        count = self.topics.get(topic)
        if count is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST)
        route = Route(
            tuple(QueueData(broker.name, count, count, 6) for broker in self.brokers),
            tuple(BrokerData("C", broker.name, {broker.broker_id: broker.address}) for broker in self.brokers),
        )
        return command.reply(body=encode_route(route, quoted_keys=True))


@asynccontextmanager
async def fake_cluster(*brokers: str, **topics: int) -> AsyncIterator[FakeCluster]:
    cluster = FakeCluster(list(brokers) or ["broker-a"], topics)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.close()


def quick(namesrv: str) -> ClientConfig:
    """A client whose regular rounds come often enough to be awaited."""
    return ClientConfig(namesrv=namesrv, persist_offset_interval_ms=20)

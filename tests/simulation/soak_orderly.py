"""An orderly consumer: it locks its queues, handles their messages one after the other, and retries where it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cosmodrome.client.instance import Instance
from cosmodrome.client.lifecycle import Startable, cancelled
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import BrokerError, CosmodromeError
from cosmodrome.filter.tags import subscription
from cosmodrome.model import ALL_TAGS, RETRY_PREFIX, MessageQueue, Property
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import ConsumerData, HeartbeatData, LockBatch, decode_locked
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import Record, decode_records
from cosmodrome.wire.requests import (
    OffsetReply,
    PullMessage,
    PullReply,
    QueryConsumerOffset,
    SendMessage,
    UpdateConsumerOffset,
)

log = logging.getLogger(__name__)

ROUND_MS = 3_000
MAX_MESSAGES = 32

Handle = Callable[[Record], bool]
GivenUp = Callable[[Record], None]


class OrderlyConsumer(Startable):
    """`handle` says whether it could handle a message; if not, it gets the same one again in the next round, and
    after `max_tries` it becomes a dead letter."""

    def __init__(
        self, group: str, topic: str, namesrv: str, clock: Clock, handle: Handle, given_up: GivenUp, max_tries: int
    ) -> None:
        super().__init__()
        self._group = group
        self._topic = topic
        self._clock = clock
        self._handle = handle
        self._given_up = given_up
        self._max_tries = max_tries
        self._tries: dict[tuple[int, int], int] = {}  # queue id, offset → failures
        self._subscription = subscription(topic, ALL_TAGS, clock.now_ms())
        self._instance = Instance(ClientConfig(namesrv=namesrv), clock, self._announce, heartbeat_to_slaves=True)

    def _announce(self, client_id: str) -> HeartbeatData:
        return HeartbeatData(client_id, consumers=(ConsumerData(self._group, subscriptions=(self._subscription,)),))

    async def _start(self) -> None:
        self._instance.start()
        self._rounds = asyncio.create_task(self._run())

    async def _stop(self) -> None:
        await cancelled([self._rounds])
        await self._instance.stop(consumer_group=self._group)

    async def _run(self) -> None:
        while True:
            try:
                for queue in await self._locked():
                    await self._consume(queue)
            except CosmodromeError as error:
                self._instance.routes.doubt()
                log.info("the next round may go better: %s", error)
            await self._clock.sleep(ROUND_MS)

    async def _locked(self) -> tuple[MessageQueue, ...]:
        """Every queue that nobody else holds. The locks last longer than a round."""
        route = await self._instance.routes.topic(self._topic)
        body = LockBatch(self._group, self._instance.client_id, route.subscribe_queues).encode()
        return decode_locked((await self._ask(RequestCode.LOCK_BATCH_MQ, body=body)).body)

    async def _consume(self, queue: MessageQueue) -> None:
        offset = await self._stored_offset(queue)
        while True:
            request = PullMessage(
                self._group, queue.topic, queue.queue_id, offset, MAX_MESSAGES, 0, 0, 0, expression_type="TAG"
            )
            reply = await self._call(Command.request(RequestCode.PULL_MESSAGE, request))
            if reply.code != ResponseCode.SUCCESS:
                return
            for record in decode_records(bytes(reply.body)):
                if not await self._handled(record):
                    return
                await self._commit(queue, record.queue_offset + 1)
            offset = PullReply.decode(reply).next_begin_offset

    async def _handled(self, record: Record) -> bool:
        if self._handle(record):
            return True
        place = record.queue_id, record.queue_offset
        self._tries[place] = self._tries.get(place, 0) + 1
        if self._tries[place] < self._max_tries:
            return False
        await self._bury(record, self._tries[place])
        self._given_up(record)
        return True

    async def _bury(self, record: Record, tries: int) -> None:
        """As Java's client gives up: a message for the group's retry topic, which the broker puts where it belongs."""
        notes = {Property.RETRY_TOPIC: record.topic}
        header = SendMessage(
            self._group,
            RETRY_PREFIX + self._group,
            "TBW102",
            1,
            0,
            record.sys_flag,
            record.born_timestamp,
            record.flag,
            props.encode(props.decode(record.properties) | notes),
            tries,
            max_reconsume_times=self._max_tries,
        )
        await self._ask(RequestCode.SEND_MESSAGE, header, record.body)

    async def _stored_offset(self, queue: MessageQueue) -> int:
        try:
            header = QueryConsumerOffset(self._group, queue.topic, queue.queue_id)
            return OffsetReply.decode(await self._ask(RequestCode.QUERY_CONSUMER_OFFSET, header)).offset
        except BrokerError as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                return 0
            raise

    async def _commit(self, queue: MessageQueue, offset: int) -> None:
        header = UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)
        await self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def _ask(self, code: RequestCode, header: object = None, body: bytes = b"") -> Command:
        return await self._instance.ask(self._address, Command.request(code, header, body))  # type: ignore[arg-type]

    async def _call(self, command: Command) -> Command:
        return await self._instance.caller.call(self._address, command, ClientConfig().call_timeout_ms)

    @property
    def _address(self) -> str:
        (address,) = self._instance.routes.addresses(masters_only=True)
        return address

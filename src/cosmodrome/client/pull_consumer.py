"""Pulling messages by hand: the application says what it wants, from where, and how far it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from cosmodrome.client.administration import Administration
from cosmodrome.client.hooks import RpcHook
from cosmodrome.client.incoming import Isolation, received_messages, unpacked
from cosmodrome.client.lifecycle import cancelled, going_on
from cosmodrome.client.membership import Membership, Role, Subscribed
from cosmodrome.client.namespaces import unwrap_message, unwrap_queue, unwrap_topic, wrap_group, wrap_queue, wrap_topic
from cosmodrome.client.offsets import offset_keeper
from cosmodrome.client.own_offsets import OffsetStore
from cosmodrome.client.pulling import PULL_MAX_BYTES, PULL_MAX_MESSAGES, pull
from cosmodrome.client.rebalance import Strategy, averagely, check_strategy
from cosmodrome.client.sending_back import SendsBack
from cosmodrome.client.settings import (
    at_least_or_none,
    check_consumer_group,
    check_queue,
    client_config,
    listed,
    listening,
    one_of,
)
from cosmodrome.client.subscribing import Expression, subscription
from cosmodrome.clock import Clock, SystemClock
from cosmodrome.codes import ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import ClientError, DamagedMessage, check_number
from cosmodrome.model import (
    ALL_TAGS,
    MASTER_ID,
    ConsumeFrom,
    ConsumeType,
    MessageModel,
    MessageQueue,
    ReceivedMessage,
    check_topic,
)
from cosmodrome.wire.requests import PullFlag, PullMessage

log = logging.getLogger(__name__)

PULL_TIMEOUT_MS = 10_000
# A pull that may wait on the broker, and how long we wait for its answer.
BLOCK_MS = 20_000
BLOCKED_PULL_MARGIN_MS = 10_000


class PullStatus(StrEnum):
    """What a pull came to."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"  # the queue ends here
    NO_MATCHED_MSG = "NO_MATCHED_MSG"  # there are messages, but none that is wanted
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"  # the queue has no such offset; `next_begin_offset` is one it has


_STATUS = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull brought. The next one begins at `next_begin_offset`, whatever the status.

    `damaged` names a message that is passed over, because its stored bytes have changed; it comes without others.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[ReceivedMessage] = field(default_factory=list)
    damaged: DamagedMessage | None = None


# Told of a topic, all its queues, and ours.
OnBalance = Callable[[str, list[MessageQueue], list[MessageQueue]], None]


class PullConsumer(Administration):
    """Pulls what it is told to, and remembers how far the group is.

        async with PullConsumer("billing", "127.0.0.1:9876") as consumer:
            for queue in await consumer.fetch_subscribe_queues("orders"):
                offset = await consumer.fetch_consume_offset(queue) or 0
                result = await consumer.pull(queue, "paid || refunded", offset)
                ...
                consumer.update_consume_offset(queue, result.next_begin_offset)

    Nothing is fetched ahead and nothing is acknowledged by itself. Offsets given to `update_consume_offset` are stored
    every few seconds and at the stop, or at once by `persist_consume_offset`; a crash before that repeats messages.
    With `register_topics` it takes part in sharing the queues among the members of its group.
    """

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        model: MessageModel = MessageModel.CLUSTERING,
        offsets_file: Path | str | None = None,
        offsets_dir: Path | str | None = None,
        offset_store: OffsetStore | None = None,
        strategy: Strategy = averagely,
        max_reconsume_times: int | None = None,
        rpc_hooks: Sequence[RpcHook] = (),
        config: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        model = one_of(MessageModel, model=model)
        at_least_or_none(0, max_reconsume_times=max_reconsume_times)
        config = self._config = client_config(config, namesrv)
        self._namespace = config.namespace
        self._clock = clock or SystemClock()
        self._group = self._reads_as = wrap_group(config.namespace, check_consumer_group(group))
        self._on_balance: list[OnBalance] = []
        self._broker_ids: dict[MessageQueue, int] = {}  # the member of the broker group that was suggested last
        self._consumed: dict[MessageQueue, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        role = Role(self._group, ConsumeType.ACTIVELY, model, ConsumeFrom.LAST_OFFSET, check_strategy(strategy))
        self._membership = Membership(role, self._config, self._clock, rpc_hooks=rpc_hooks)
        self._instance = self._membership.instance
        self._offsets = offset_keeper(
            model,
            self._instance,
            self._group,
            config,
            file=offsets_file,
            folder=offsets_dir,
            store=offset_store,
        )
        self._ours = _Ours(self._store_last)
        self._membership.serve(self._ours, self._balanced)
        self._sends_back = SendsBack(
            self._instance, self._clock, self._group, model, config.namespace, max_reconsume_times
        )

    @property
    def client_id(self) -> str:
        """Under this name brokers know the client: address, process and a number, or as `ClientConfig` says."""
        return self._instance.client_id

    # --- starting and stopping

    async def _start(self) -> None:
        self._offsets.open()
        self._membership.start()
        settled = await self._membership.join()
        self._tasks = {
            self._instance.run(self._membership.run(settled), "rebalance"),
            self._instance.run(self._commits(), "commits"),
        }

    async def _stop(self) -> None:
        await cancelled(self._tasks)
        await self._offsets.commit(self._consumed)
        await self._instance.stop(consumer_group=self._group)
        self._offsets.close()

    async def _commits(self) -> None:
        while True:
            await self._clock.sleep(self._config.persist_offset_interval_ms)
            with going_on("commit"):
                await self._offsets.commit_soon(self._consumed)

    async def _store_last(self, queues: Iterable[MessageQueue]) -> None:
        """These go to somebody else, who begins there."""
        last = {queue: self._consumed[queue] for queue in queues if queue in self._consumed}
        await self._offsets.commit(last)
        for queue in last:  # only now, so that a stop in between stores them as well
            self._consumed.pop(queue, None)

    # --- queues

    async def fetch_subscribe_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of the topic that one may read."""
        self._require_running()
        route = await self._instance.routes.topic(wrap_topic(self._namespace, check_topic(topic)))
        return self._shown(route.subscribe_queues)

    def register_topics(self, topics: Iterable[str], listener: OnBalance | None = None) -> None:
        """Share the queues of these topics with the group's other members.

        `listener(topic, all_queues, our_queues)` is told of every change of ours.
        """
        self._require_own_process()
        wrapped = [wrap_topic(self._namespace, check_topic(topic)) for topic in listed(str, topics=topics)]
        if listener is not None:
            self._on_balance.append(listening(listener, awaited=False))
        for topic in wrapped:
            self._membership.subscribe(topic, ALL_TAGS)

    def message_queues_in_balance(self, topic: str) -> list[MessageQueue]:
        """The queues of a registered topic that are ours at the moment."""
        wrapped = wrap_topic(self._namespace, check_topic(topic))
        if wrapped not in self._membership.subscribed:
            raise ClientError(f"topic {topic!r} is not registered; register_topics([{topic!r}]) has its queues shared")
        return self._shown(queue for queue in self._ours.held if queue.topic == wrapped)

    def _balanced(self, topic: str, every: tuple[MessageQueue, ...], mine: set[MessageQueue]) -> None:
        shown = unwrap_topic(self._namespace, topic)
        for listener in self._on_balance:
            try:
                listener(shown, self._shown(every), self._shown(mine))
            except Exception:
                log.exception("the listener %r failed", listener)

    def _shown(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """As the application knows them."""
        return sorted(unwrap_queue(self._namespace, queue) for queue in queues)

    # --- pulling

    async def pull(
        self,
        queue: MessageQueue,
        expression: Expression = ALL_TAGS,
        offset: int = 0,
        max_messages: int = PULL_MAX_MESSAGES,
        *,
        timeout_ms: int = PULL_TIMEOUT_MS,
    ) -> PullResult:
        """What the queue has from `offset` on, at once; `expression` is "*", tags like "a || b", or a `Sql`."""
        return await self._pull(queue, expression, offset, max_messages, block_ms=0, timeout_ms=timeout_ms)

    async def pull_block_if_not_found(
        self,
        queue: MessageQueue,
        expression: Expression = ALL_TAGS,
        offset: int = 0,
        max_messages: int = PULL_MAX_MESSAGES,
        *,
        block_ms: int = BLOCK_MS,
    ) -> PullResult:
        """`pull` that waits up to `block_ms` on the broker for a message to come; NO_NEW_MSG when none did."""
        timeout_ms = block_ms + BLOCKED_PULL_MARGIN_MS
        return await self._pull(queue, expression, offset, max_messages, block_ms=block_ms, timeout_ms=timeout_ms)

    async def _pull(
        self,
        queue: MessageQueue,
        expression: Expression,
        offset: int,
        max_messages: int,
        *,
        block_ms: int,
        timeout_ms: int,
    ) -> PullResult:
        self._require_running()
        check_number(0, offset=offset)
        check_number(1, max_messages=max_messages)
        wrapped = await self._routed(queue)
        wanted = subscription(wrapped.topic, expression, self._clock.now_ms())

        isolation = Isolation()

        def request_to(_broker_id: int) -> PullMessage:
            return PullMessage(
                self._group,
                wrapped.topic,
                wrapped.queue_id,
                offset,
                isolation.count(max_messages, offset),
                PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if block_ms else 0),
                0,
                block_ms,
                subscription=wanted.expression,
                sub_version=wanted.version,
                expression_type=wanted.expression_type,
                max_msg_bytes=PULL_MAX_BYTES,
            )

        broker_id = self._broker_ids.get(wrapped, MASTER_ID)
        while True:
            answer = await pull(self._instance, wrapped, broker_id, request_to, timeout_ms)
            _, reply, offsets = answer
            self._broker_ids[wrapped] = offsets.suggest_which_broker_id
            status, messages = _STATUS[ResponseCode(reply.code)], list[ReceivedMessage]()
            next_offset, damaged = offsets.next_begin_offset, None
            if status is PullStatus.FOUND:
                pulled = received_messages(wrapped, wanted, answer)
                next_offset, damaged = isolation.settle(answer, pulled)
                if next_offset == offset:
                    continue  # the first one is damaged: it is asked for alone
                messages = [*map(unpacked, pulled.messages)]
                for message in messages:
                    unwrap_message(self._namespace, message)
                status = PullStatus.FOUND if messages else PullStatus.NO_MATCHED_MSG
            if damaged is not None:
                log.error("passed over: group=%s %s", self._group, damaged)
            return PullResult(status, next_offset, offsets.min_offset, offsets.max_offset, messages, damaged)

    # --- offsets

    async def fetch_consume_offset(self, queue: MessageQueue, *, from_store: bool = False) -> int | None:
        """How far the group is: as last updated here, or as stored; None if nothing is."""
        self._require_running()
        wrapped = await self._routed(queue)
        if not from_store and wrapped in self._consumed:
            return self._consumed[wrapped]
        return await self._offsets.read(wrapped)

    def update_consume_offset(self, queue: MessageQueue, offset: int) -> None:
        """The group goes on here; stored with the next round, at the stop, or by `persist_consume_offset`.

        This does not count for a queue that went to another member: it is further by now.
        """
        check_number(0, offset=offset)
        wrapped = wrap_queue(self._namespace, check_queue(queue))
        self._require_running()
        if wrapped in self._ours.gone:
            log.info("offset %d of %s is ignored: the queue went to another member", offset, queue)
        else:
            self._consumed[wrapped] = offset

    async def persist_consume_offset(self, queue: MessageQueue | None = None) -> None:
        """Store what was updated, of one queue or of all; CosmodromeError if a broker did not."""
        self._require_running()
        if queue is None:
            for topic in {wrapped.topic for wrapped in self._consumed}:
                await self._instance.routes.topic(topic)
            await self._offsets.store(dict(self._consumed))
            return
        wrapped = await self._routed(queue)
        if wrapped in self._consumed:
            await self._offsets.store({wrapped: self._consumed[wrapped]})

    # --- single messages

    async def send_message_back(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Have the broker deliver it to the group again, after the delay of this level.

        It comes in the topic %RETRY%group, and after too many times in %DLQ%group. With delay level 0 the broker takes
        a longer delay each time, and with -1 the message goes to the dead letters at once.
        """
        self._require_running()
        await self._sends_back.send(message, delay_level)


class _Ours:
    """The queues that are ours; the application reads them when it likes."""

    def __init__(self, on_go: Callable[[Iterable[MessageQueue]], Awaitable[None]]) -> None:
        self._on_go = on_go
        self._queues: set[MessageQueue] = set()
        self.gone: set[MessageQueue] = set()  # to other members, since they were ours

    @property
    def held(self) -> Iterable[MessageQueue]:
        return self._queues

    async def acquire(self, queues: Iterable[MessageQueue], _subscribed: Subscribed) -> set[MessageQueue]:
        new = set(queues)
        self._queues |= new
        self.gone -= new
        return new

    async def release(self, queues: Iterable[MessageQueue]) -> bool:
        going = list(queues)
        self.gone.update(going)
        await self._on_go(going)
        self._queues.difference_update(going)
        return True

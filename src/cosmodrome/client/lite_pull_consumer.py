"""Receiving messages as a member of a group, when the application asks for them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from cosmodrome.client.administration import Administration
from cosmodrome.client.assigned_queue import Pace
from cosmodrome.client.broker_calls import BrokerCalls
from cosmodrome.client.consume_stats import ConsumeStatistics
from cosmodrome.client.described import DEAD_LETTER
from cosmodrome.client.feed import BatchStream, Feed, MessageStream
from cosmodrome.client.fetched_queues import FetchedQueues, OnQueues, tell
from cosmodrome.client.held_queues import Held, Reading
from cosmodrome.client.hooks import ConsumeHook, FilterMessageHook, RpcHook, check_consumer_hooks
from cosmodrome.client.lifecycle import cancelled, whose
from cosmodrome.client.membership import Membership, Role
from cosmodrome.client.namespaces import unwrap_message, unwrap_queue, wrap_group, wrap_queue, wrap_topic
from cosmodrome.client.offsets import OffsetKeeper, Offsets, StartRule, max_offset, min_offset, offset_at, offset_keeper
from cosmodrome.client.own_offsets import OffsetStore
from cosmodrome.client.process_queue import DEFAULT_LIMITS, CacheLimits, ProcessQueue
from cosmodrome.client.producer import tracer_of
from cosmodrome.client.pulled_message import PulledMessage
from cosmodrome.client.pulling import PULL_MAX_MESSAGES
from cosmodrome.client.reach import START_TIMEOUT_MS
from cosmodrome.client.rebalance import Strategy, averagely, check_strategy
from cosmodrome.client.results import GivenBack
from cosmodrome.client.running_info import Traits, running_info
from cosmodrome.client.sending_back import MAX_RECONSUME_TIMES, SendsBack
from cosmodrome.client.settings import (
    at_least,
    at_least_or_none,
    check_consumer_group,
    check_offsets,
    check_queue,
    check_start,
    client_config,
    each_is,
    listed,
    listening,
    one_of,
)
from cosmodrome.client.subscribing import Expression
from cosmodrome.client.watched_topics import WatchedTopics
from cosmodrome.client.watching import Watch, filtered
from cosmodrome.clock import Clock, SystemClock, sleep_unless
from cosmodrome.config import ClientConfig
from cosmodrome.errors import ClientError, ConnectionFailed, check_number
from cosmodrome.model import (
    ALL_TAGS,
    RETRY_PREFIX,
    ConsumeFrom,
    ConsumeType,
    MessageModel,
    MessageQueue,
    ReceivedMessage,
    check_topic,
    retry_topic,
)
from cosmodrome.wire.bodies import ConsumeDirectlyResult, ConsumerRunningInfo

POLL_TIMEOUT_MS = 5_000
AUTO_COMMIT_INTERVAL_MS = 5_000
# How long nothing may answer before `poll` raises, and how often it looks.
CUT_OFF_MS = 10_000
LOOK_AT_CONNECTION_MS = 1_000
STOP_TIMEOUT_MS = 10_000
# How long a queue that was assigned just now is waited for; its broker has to be found and asked for an offset.
ASSIGN_TIMEOUT_MS = 5_000

L = TypeVar("L", bound=OnQueues)


class LitePullConsumer(Administration):
    """Hands out messages when it is asked, and fetches them ahead meanwhile.

        consumer = LitePullConsumer("billing", "127.0.0.1:9876")
        consumer.subscribe("orders", "paid || refunded")
        async with consumer:
            async for message in consumer:
                ...

    With `subscribe` the queues are shared with the other members of the group; with `assign` they are those given, and
    nobody else is asked. One consumer does one of the two.

    Whoever leaves the body of the `async for` normally has acknowledged the message; a `break` or an exception leaves
    it unacknowledged, and it is given out again. Several tasks may loop over one consumer at the same time. `async with
    message` acknowledges by itself, see `PulledMessage`. What `poll` returned is acknowledged by the next `poll`, or by
    `commit`.

    Only what is acknowledged is ever committed: every `auto_commit_interval_ms` and at the stop, or without
    `auto_commit` only when `commit` is called. So every message is handed out at least once; a crash repeats what was
    not committed, and so may a queue that moves to another member. With `MessageModel.BROADCASTING` every member gets
    every message and keeps its offsets in `offsets_file`, or in memory only. `consume_from` counts only where no offset
    is stored, and not in a young queue: while its first message is in the broker's memory, a new group that shares gets
    all of it. `stop` waits up to `stop_timeout_ms` for loops that are busy with a message.
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
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        auto_commit: bool = True,
        auto_commit_interval_ms: int = AUTO_COMMIT_INTERVAL_MS,
        max_reconsume_times: int | None = None,
        limits: CacheLimits = DEFAULT_LIMITS,
        pull_batch: int = PULL_MAX_MESSAGES,
        stop_timeout_ms: int = STOP_TIMEOUT_MS,
        start_timeout_ms: int = START_TIMEOUT_MS,
        require_connection: bool = True,
        trace: bool = False,
        consume_hooks: Sequence[ConsumeHook] = (),
        filter_hooks: Sequence[FilterMessageHook] = (),
        rpc_hooks: Sequence[RpcHook] = (),
        config: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        model, consume_from = one_of(MessageModel, model=model), one_of(ConsumeFrom, consume_from=consume_from)
        at_least(1, auto_commit_interval_ms=auto_commit_interval_ms)
        at_least(0, stop_timeout_ms=stop_timeout_ms, start_timeout_ms=start_timeout_ms)
        at_least_or_none(0, max_reconsume_times=max_reconsume_times)
        check_start(consume_from, consume_timestamp_ms)
        each_is(bool, auto_commit=auto_commit, trace=trace, require_connection=require_connection)
        each_is(CacheLimits, limits=limits)
        check_consumer_hooks(consume_hooks, filter_hooks)
        config = self._config = client_config(config, namesrv)
        self._namespace = config.namespace
        self._clock = clock or SystemClock()
        self._group = self._reads_as = wrap_group(config.namespace, check_consumer_group(group))
        self._model = model
        self._pull_batch = pull_batch
        self._auto_commit_interval_ms = auto_commit_interval_ms
        self._stop_timeout_ms = stop_timeout_ms
        self._start_timeout_ms = start_timeout_ms
        self._require_connection = require_connection
        self._filter_hooks = filter_hooks
        self._start_rule = StartRule(consume_from, consume_timestamp_ms)
        self._started_ms = self._clock.now_ms()
        self._statistics = ConsumeStatistics(self._clock.steady_ms())
        self._tasks: set[asyncio.Task[None]] = set()
        self._polled = _Polled([])  # by the last poll
        self._polling = False
        self._cut_off_since_ms: int | None = None
        self._stopper: object | None = None
        self._on_assigned: list[OnQueues] = []
        self._on_revoked: list[OnQueues] = []
        self._tracer = tracer_of(group, "CONSUME", namesrv, config, self._clock, rpc_hooks) if trace else None
        role = Role(self._group, ConsumeType.ACTIVELY, model, consume_from, check_strategy(strategy))
        self._membership = Membership(role, self._config, self._clock, self._routes_changed, rpc_hooks)
        self._instance = self._membership.instance
        self._watched_topics = WatchedTopics(self._instance, self._shown)
        self._membership.watched = self._watched_topics.names
        self._offsets = offset_keeper(
            model,
            self._instance,
            self._group,
            config,
            file=offsets_file,
            folder=offsets_dir,
            store=offset_store,
        )
        self._max_local_retries = MAX_RECONSUME_TIMES if max_reconsume_times is None else max_reconsume_times
        self._sends_back = SendsBack(
            self._instance, self._clock, self._group, model, config.namespace, max_reconsume_times
        )
        BrokerCalls(self._group, self, self._instance.run).register(self._instance.handlers)
        self._feed = Feed(
            self._clock, self._send_back, Watch(self._group, config.namespace, self._tracer, consume_hooks)
        )
        self._queues = FetchedQueues(
            Reading(self._group, self._start_rule, limits, Pace(pull_batch), self._deliver, self._statistics),
            self._membership,
            self._offsets if auto_commit else _LeftAlone(self._offsets),
            self._clock,
            self._feed,
            self._tell_assigned,
            self._tell_revoked,
            config.namespace,
        )
        self._membership.serve(self._queues, self._queues.share, self._queues.read_anew)

    @property
    def client_id(self) -> str:
        """Under this name brokers know the client: address, process and a number, or as `ClientConfig` says."""
        return self._instance.client_id

    @property
    def damaged_messages(self) -> int:
        """How many messages were passed over because their stored bytes have changed; the log names each."""
        return self._statistics.damaged

    @property
    def assigned_queues(self) -> list[MessageQueue]:
        """The queues this member reads at the moment, apart from the group's retry queue."""
        return self._shown(self._queues.held)

    def _shown(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """As the application knows them."""
        return sorted(unwrap_queue(self._namespace, queue) for queue in queues if not _is_retry(queue))

    # --- what to read

    def subscribe(self, topic: str, expression: Expression = ALL_TAGS, *, replace: bool = False) -> None:
        """Read the topic's messages whose tag is in `expression` ("a || b"), or that meet it if it is a `Sql`.

        The queues are shared with the group's other members. A topic has one expression: with `replace` this one
        takes the place of the one before, else that is an error.
        """
        self._require_own_process()
        check_topic(topic)
        if topic.startswith(RETRY_PREFIX):
            raise ClientError(f"{topic} is read by its group by itself; subscribe to the original topic")
        if self._membership.pinned is not None:
            raise ClientError(_MIXED.format("was assigned queues", "subscribe"))
        wrapped = wrap_topic(self._namespace, topic)
        if not replace:
            self._membership.require_new(wrapped, topic)
        self._membership.subscribe(wrapped, expression)
        retry = retry_topic(self._group)
        if self._model is MessageModel.CLUSTERING and retry not in self._membership.subscribed:
            self._membership.subscribe(retry, ALL_TAGS)

    def unsubscribe(self, topic: str) -> None:
        """Stop reading the topic."""
        self._require_own_process()
        if self._membership.pinned is not None:
            raise ClientError(_MIXED.format("was assigned queues", "unsubscribe"))
        self._membership.unsubscribe(wrap_topic(self._namespace, check_topic(topic)))

    def assign(self, queues: Iterable[MessageQueue], expression: Expression = ALL_TAGS) -> None:
        """Read exactly these queues, whoever else does so; they replace those assigned before."""
        self._require_own_process()
        if self._membership.pinned is None and self._membership.subscribed:
            raise ClientError(_MIXED.format("subscribed to topics", "assign"))
        pinned = frozenset(wrap_queue(self._namespace, queue) for queue in listed(MessageQueue, queues=queues))
        topics = {check_topic(queue.topic) for queue in pinned}
        for topic in topics:
            self._membership.subscribe(topic, expression)
        for topic in self._membership.subscribed.keys() - topics:
            self._membership.unsubscribe(topic)
        self._membership.pinned = pinned
        self._membership.rebalance_soon()

    def on_assigned(self, listener: L) -> L:
        """Have `listener`, def or async def, told of queues that became ours, before anything is read from them.

        It may `seek`. It can be used as a decorator.
        """
        self._on_assigned.append(listening(listener, awaited=True))
        return listener

    def on_revoked(self, listener: L) -> L:
        """Have `listener` told of queues that are about to go to somebody else; it may still `commit`.

        Not called at the stop.
        """
        self._on_revoked.append(listening(listener, awaited=True))
        return listener

    def on_queues_changed(self, topic: str, listener: OnQueues) -> None:
        """Have `listener` told of all queues of a topic whenever they change, whoever reads them."""
        listening(listener, awaited=True)
        topic = wrap_topic(self._namespace, check_topic(topic))
        self._watched_topics.add(topic, listener)
        if self.running:
            self._instance.run(self._watched_topics.look(topic), f"watch {topic}")

    # --- starting and stopping

    @property
    def healthy(self) -> bool:
        """Return whether it runs, a name server has answered, and every broker of its topics knows it.

        A topic that does not exist yet is no fault. A broker that is lost is noticed by its connection, or by the next
        heartbeat.
        """
        return self.running and not self._membership.reach.silent()

    async def ready(self, timeout_ms: int = START_TIMEOUT_MS) -> None:
        """Return once every topic exists, every broker of them answers, and this member reads its share of the queues.

        ClientError after `timeout_ms` says what is missing.
        """
        self._require_running()
        await self._membership.reach.ready(timeout_ms)

    async def _start(self) -> None:
        """After the first round our queues have their start offsets: what is sent from now on is received."""
        self._offsets.open()
        self._membership.start()
        if self._tracer is not None:
            await self._tracer.start()
        await self._watched_topics.look_at_all()
        await self._membership.reach.begin(self._start_timeout_ms, required=self._require_connection)
        settled = await self._membership.join()
        self._tasks = {
            self._instance.run(self._membership.run(settled), "rebalance"),
            self._instance.run(self._queues.commit_regularly(self._auto_commit_interval_ms), "commits"),
        }

    async def stop(self) -> None:
        if self._stopper is None:
            self._stopper = whose()
        await super().stop()

    async def _stop(self) -> None:
        """In the order the data flows: pulls, those who have messages in hand, offsets, and last the connections."""
        self._feed.stop()
        await cancelled(self._tasks)
        await self._queues.stop_pulling()
        await self._feed.drained(self._stop_timeout_ms, but_for=self._stopper)
        if self._tracer is not None:
            await self._tracer.stop()
        await self._queues.close()
        await self._instance.stop(consumer_group=self._group)
        self._offsets.close()

    # --- taking messages

    def __aiter__(self) -> MessageStream:
        return self.messages()

    def messages(self, *, auto_ack: bool = True) -> MessageStream:
        """What `async for message in consumer` goes over.

        Without `auto_ack`, leaving the loop body acknowledges nothing: for messages that the body hands to other
        tasks, which acknowledge them with `async with message` or `message.ack()`.
        """
        self._require_reading()
        return self._feed.messages(auto_ack=auto_ack)

    def batches(self, size: int) -> BatchStream:
        """`async for messages in consumer.batches(100)`: lists of what is there, up to `size` messages.

        A list is acknowledged as a whole when the next one is asked for.
        """
        check_number(1, size=size)
        self._require_reading()
        return self._feed.batches(size)

    async def poll(self, timeout_ms: int = POLL_TIMEOUT_MS) -> list[PulledMessage]:
        """Up to `pull_batch` messages, as soon as there are any; none after `timeout_ms`, or when stopped meanwhile.

        ConnectionFailed when there are none and no broker has answered for 10 s, unless `require_connection` is off.
        What the poll before this one returned is acknowledged. For one task; several share a consumer by `async for`.
        """
        polled = await self._poll_for(timeout_ms)
        polled.has_arrived = True
        return list(polled.messages)

    async def _poll_for(self, timeout_ms: int) -> _Polled:
        """`poll`, for one who has yet to be reached, and may be interrupted before."""
        self._require_reading()
        if self._polling:
            raise ClientError("another task polls this consumer already; for several tasks there is `async for`")
        self._polling = True
        try:
            self._acknowledge_polled()
            self._polled = _Polled(await self._poll(self._clock.steady_ms() + timeout_ms))
        finally:
            self._polling = False
        return self._polled

    async def _poll(self, deadline_ms: int) -> list[PulledMessage]:
        while not (messages := self._feed.take_some(self._pull_batch, self)):
            now_ms = self._clock.steady_ms()
            if now_ms >= deadline_ms or self._feed.stopped:
                break
            self._check_connection(now_ms)
            await self._feed.wait_ms(min(deadline_ms - now_ms, LOOK_AT_CONNECTION_MS))
        return messages

    def _check_connection(self, now_ms: int) -> None:
        """ConnectionFailed once nothing has answered for so long that an empty result would hide it."""
        if not (self._require_connection and self._membership.reach.is_cut_off):
            self._cut_off_since_ms = None
        elif self._cut_off_since_ms is None:
            self._cut_off_since_ms = now_ms
        elif (cut_off_ms := now_ms - self._cut_off_since_ms) >= CUT_OFF_MS:
            silent = ", ".join(self._membership.reach.silent())
            raise ConnectionFailed(silent, f"no answer for {cut_off_ms} ms; group {self._group} gets no messages")

    def _acknowledge_polled(self) -> None:
        self._put_back_polled()
        polled, self._polled = self._polled, _Polled([])
        for message in polled.messages:
            if message.holder is self:
                message.ack()

    def _put_back_polled(self) -> None:
        """What has not reached who polled for it is given out again."""
        if self._polled.has_arrived:
            return
        polled, self._polled = self._polled, _Polled([])
        for message in reversed(polled.messages):
            message.holder = None
            message.unwatch(GivenBack("the poll was interrupted before it returned"))
            self._feed.put_back(message)

    def _require_reading(self) -> None:
        self._require_running()
        if not self._membership.subscribed:
            raise ClientError("there is nothing to read: subscribe to a topic, or assign queues")

    # --- where to read

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at this offset; nothing that was fetched before is handed out any more."""
        check_number(0, offset=offset)
        own = await self._own_soon(queue)
        low, high = await asyncio.gather(min_offset(self._instance, own), max_offset(self._instance, own))
        if not low <= offset <= high:
            raise ClientError(f"{queue} has offsets from {low} to {high}; it can't go on at {offset}")
        self._queues.go_on(self._own(own), offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """`seek` to the oldest message that is still there."""
        own = await self._own_soon(queue)
        self._queues.go_on(self._own(own), await min_offset(self._instance, own))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """`seek` behind the newest message."""
        own = await self._own_soon(queue)
        self._queues.go_on(self._own(own), await max_offset(self._instance, own))

    async def _own_soon(self, queue: MessageQueue) -> MessageQueue:
        """`_held_soon`, and not about to go: who reads it can still be told where."""
        own = await self._held_soon(queue)
        self._own(own)
        return own

    async def _held_soon(self, queue: MessageQueue) -> MessageQueue:
        """As brokers know it. A queue that was assigned just now is waited for."""
        self._require_running()
        own, pinned = wrap_queue(self._namespace, check_queue(queue)), self._membership.pinned
        deadline_ms = self._clock.steady_ms() + ASSIGN_TIMEOUT_MS
        while pinned is not None and own in pinned and own not in self._queues.held:
            if (left_ms := deadline_ms - self._clock.steady_ms()) <= 0:
                raise ClientError(f"{queue} was assigned, but is not there, or its broker does not answer")
            self._queues.acquired.clear()
            await sleep_unless(self._queues.acquired, self._clock, left_ms)
        self._require_ours(own, self._queues.find_ours(own))
        return own

    def _own(self, queue: MessageQueue) -> Held:
        return self._require_ours(queue, self._queues.find(queue))

    def _require_ours(self, queue: MessageQueue, found: Held | None) -> Held:
        if found is None:
            raise ClientError(f"{unwrap_queue(self._namespace, queue)} is not assigned to this consumer")
        return found

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next message to be handed out, as far as it is known."""
        wrapped = wrap_queue(self._namespace, check_queue(queue))
        return self._queues.position(self._require_ours(wrapped, self._queues.find_ours(wrapped)))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out and fetch nothing of these until `resume`; queues that are not ours are left alone."""
        self._feed.ready.pause(self._own_ones(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues again."""
        self._feed.ready.resume(self._own_ones(queues))
        self._feed.resume()

    def _own_ones(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """By the application's names, as the feed knows them."""
        wrapped = [wrap_queue(self._namespace, queue) for queue in listed(MessageQueue, queues=queues)]
        return [unwrap_queue(self._namespace, queue) for queue in wrapped if self._queues.find(queue) is not None]

    async def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic, whoever reads them."""
        self._require_running()
        route = await self._instance.routes.topic(wrap_topic(self._namespace, check_topic(topic)))
        return self._shown(route.subscribe_queues)

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Of the first message of the queue that was stored at that time or later."""
        self._require_running()
        return await offset_at(self._instance, await self._routed(queue), timestamp_ms, self._group)

    # --- offsets

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store for the group what is acknowledged, counting in what `poll` has returned; or these offsets.

        Given offsets are stored as they are, so they say where the group goes on: behind the last message that is
        done. CosmodromeError if a broker did not store one.
        """
        self._require_running()
        if offsets is None:
            self._acknowledge_polled()
            await self._offsets.store(self._queues.commit_offsets)
        else:
            given = check_offsets(offsets)
            await self._offsets.store({await self._held_soon(queue): offset for queue, offset in given.items()})

    async def committed(self, queue: MessageQueue) -> int | None:
        """What is stored for the group; None if nothing is."""
        self._require_running()
        return await self._offsets.read(await self._routed(queue))

    # --- what operators and brokers ask

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at these offsets, and let go of what is fetched; queues that are not ours are left alone."""
        given = check_offsets(offsets)
        await self._queues.reset({wrap_queue(self._namespace, queue): at for queue, at in given.items()})

    def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """How far each of our queues of the topic is done, committed or not."""
        wrapped = wrap_topic(self._namespace, check_topic(topic))
        offsets = self._queues.commit_offsets.items()
        return {dataclasses.replace(queue, topic=topic): offset for queue, offset in offsets if queue.topic == wrapped}

    def running_info(self, *, stacks: bool = False) -> ConsumerRunningInfo:
        """What this member does, as `mqadmin consumerStatus` shows it; with `stacks`, where tasks and threads are."""
        traits = Traits(
            ConsumeType.ACTIVELY,
            orderly=False,
            threads=0,
            started_ms=self._started_ms,
            name_servers=sorted(self._instance.name_servers.addresses),
            settings={
                "consumerGroup": self._group,
                "consumeFromWhere": str(self._start_rule.consume_from),
                "messageModel": str(self._model),
                "pullBatchSize": str(self._pull_batch),
            },
        )
        return running_info(
            traits,
            [subscribed.subscription for subscribed in self._membership.subscribed.values()],
            self._queues.processes,
            self._statistics,
            self._clock,
            with_stacks=stacks,
        )

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """What operators ask of consumers with handlers; refused here."""
        raise ClientError(f"{message.msg_id} can't be handed over: this consumer's application takes messages itself")

    async def _tell_assigned(self, queues: Iterable[MessageQueue]) -> None:
        if shown := self._shown(queues):
            await tell(self._on_assigned, shown)

    async def _tell_revoked(self, queues: Iterable[MessageQueue]) -> None:
        if shown := self._shown(queues):
            await tell(self._on_revoked, shown)

    def _routes_changed(self) -> None:
        self._watched_topics.routes_changed()

    # --- handing over, and taking back

    async def _send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Whether the broker has it. Who was assigned queues does not read what others would find in the retry topic:
        what fails stays here until it has failed too often."""
        stays = self._membership.pinned is not None and self._model is MessageModel.CLUSTERING
        if stays and delay_level >= 0:
            if message.reconsume_times < self._max_local_retries:
                return False
            delay_level = DEAD_LETTER
        return await self._sends_back(message, delay_level)

    def _deliver(self, messages: list[ReceivedMessage], process: ProcessQueue) -> None:
        wanted = filtered(self._filter_hooks, self._group, messages, process)
        if self._namespace:
            for message in wanted:
                unwrap_message(self._namespace, message)
        self._feed.put(cast("list[PulledMessage]", wanted), process)


_MIXED = "this consumer {}, so it can't {}; one that does the other has to be another consumer"


@dataclass(eq=False, slots=True)
class _Polled:
    """What one poll brought, and whether that has reached who asked for it: else it is not his to acknowledge."""

    messages: list[PulledMessage]
    has_arrived: bool = False


class _LeftAlone:
    """Offsets that change only when the application says so."""

    def __init__(self, offsets: OffsetKeeper) -> None:
        self._offsets = offsets

    def open(self) -> None:
        self._offsets.open()

    def close(self) -> None:
        self._offsets.close()

    async def read(self, queue: MessageQueue) -> int | None:
        return await self._offsets.read(queue)

    def carry(self, queue: MessageQueue, offset: int) -> bool:
        return False

    def carried(self, queue: MessageQueue, offset: int) -> None:
        raise AssertionError("no pull carries an offset")

    async def store(self, offsets: Offsets) -> None: ...

    commit = commit_soon = store


def _is_retry(queue: MessageQueue) -> bool:
    return queue.topic.startswith(RETRY_PREFIX)

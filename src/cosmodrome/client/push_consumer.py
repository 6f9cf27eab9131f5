"""Receiving messages as a member of a group."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from cosmodrome.client.administration import Administration
from cosmodrome.client.assigned_queue import Pace
from cosmodrome.client.broker_calls import BrokerCalls, directly_result
from cosmodrome.client.burying import Buries
from cosmodrome.client.concurrent import ConcurrentHandlers, Delivery
from cosmodrome.client.consume_stats import ConsumeStatistics
from cosmodrome.client.handlers import Calls, Consume, Handler, ListHandler, unhandled
from cosmodrome.client.held_queues import HeldQueues, QueuesInOrder, Reading
from cosmodrome.client.hooks import ConsumeHook, FilterMessageHook, RpcHook, check_consumer_hooks
from cosmodrome.client.lifecycle import cancelled
from cosmodrome.client.locks import BrokerLocks
from cosmodrome.client.membership import Membership, Role
from cosmodrome.client.namespaces import unwrap_message, unwrap_queue, wrap_group, wrap_queue, wrap_topic
from cosmodrome.client.offsets import StartRule, offset_keeper
from cosmodrome.client.orderly import SUSPEND_MS, OrderlyHandlers
from cosmodrome.client.own_offsets import OffsetStore
from cosmodrome.client.process_queue import DEFAULT_LIMITS, CacheLimits, ProcessQueue
from cosmodrome.client.producer import tracer_of
from cosmodrome.client.pulling import PULL_MAX_MESSAGES
from cosmodrome.client.reach import START_TIMEOUT_MS
from cosmodrome.client.rebalance import Strategy, averagely, check_strategy
from cosmodrome.client.running_info import Traits, running_info
from cosmodrome.client.sending_back import SendsBack
from cosmodrome.client.settings import (
    at_least,
    at_least_or_none,
    between,
    check_consumer_group,
    check_offsets,
    check_start,
    client_config,
    each_is,
    one_of,
)
from cosmodrome.client.subscribing import Expression
from cosmodrome.client.watching import filtered
from cosmodrome.clock import Clock, SystemClock
from cosmodrome.config import ClientConfig
from cosmodrome.errors import ClientError, ConfigError, WrongType
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
from cosmodrome.wire.bodies import ConsumeDirectlyResult, ConsumerRunningInfo, ConsumeStatus

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 20
MAX_THREADS = 1_000
STOP_TIMEOUT_MS = 10_000
CONSUME_TIMEOUT_MS = 15 * 60 * 1_000

H = TypeVar("H", bound=Handler)
HL = TypeVar("HL", bound=ListHandler)


class PushConsumer(Administration):
    """Receives the messages of the subscribed topics, sharing them with the other members of its group.

        consumer = PushConsumer("billing", "127.0.0.1:9876")
        consumer.subscribe("orders", "paid || refunded", handler)
        async with consumer:
            ...

    A message is done when its handler returns. When it raises, the broker delivers the message again later, and after
    `max_reconsume_times` (the group's own limit, unless given here) puts it among the dead letters, topic %DLQ%group.
    A handler that does not return within `consume_timeout_ms` counts as failed. Every message is handled at least once:
    a crash, or a queue that moves to another member, may repeat some.

    With `orderly` the messages of a queue are handled one after the other: while one fails the next has to wait, and
    the same one comes again after `suspend_ms`, or when `SuspendQueue` says; for ever, unless `max_reconsume_times` is
    given. A queue is locked in its broker, so that no two members have it at the same time. Without `auto_commit` the
    handler returns an `OrderlyStatus` that says when to commit.

    With `MessageModel.BROADCASTING` every member gets every message, and keeps its offsets in `offsets_file`, in a
    file of its own below `offsets_dir`, or in memory only; messages that fail do not come again. With `offset_store`
    the application keeps the offsets, whatever the model. `consume_from` counts only where no offset is stored, and
    not in a young queue: while its first message is in the broker's memory, a new group that shares gets all of it.
    `stop` waits up to `stop_timeout_ms` for running handlers and commits what they finished. With `trace`, what becomes
    of every message is written down for `cosmodrome trace`.
    """

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        model: MessageModel = MessageModel.CLUSTERING,
        orderly: bool = False,
        auto_commit: bool = True,
        suspend_ms: int = SUSPEND_MS,
        offsets_file: Path | str | None = None,
        offsets_dir: Path | str | None = None,
        offset_store: OffsetStore | None = None,
        strategy: Strategy = averagely,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        min_threads: int = 0,
        max_threads: int | None = None,
        max_reconsume_times: int | None = None,
        consume_timeout_ms: int = CONSUME_TIMEOUT_MS,
        limits: CacheLimits = DEFAULT_LIMITS,
        pull_batch: int = PULL_MAX_MESSAGES,
        pull_interval_ms: int = 0,
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
        at_least(1, max_in_flight=max_in_flight, consume_timeout_ms=consume_timeout_ms, suspend_ms=suspend_ms)
        at_least(0, stop_timeout_ms=stop_timeout_ms, start_timeout_ms=start_timeout_ms)
        between(0, MAX_THREADS, min_threads=min_threads)
        between(1, MAX_THREADS, max_threads=max_threads)
        at_least_or_none(0, max_reconsume_times=max_reconsume_times)
        check_start(consume_from, consume_timestamp_ms)
        each_is(bool, orderly=orderly, auto_commit=auto_commit, trace=trace, require_connection=require_connection)
        each_is(CacheLimits, limits=limits)
        limits.check_bounds()
        check_consumer_hooks(consume_hooks, filter_hooks)
        if not (orderly or auto_commit):
            raise ConfigError("auto_commit=False is for orderly=True; else what a handler returned from is committed")
        config = self._config = client_config(config, namesrv)
        self._clock = clock or SystemClock()
        self._group = self._reads_as = wrap_group(config.namespace, check_consumer_group(group))
        self._model = model
        self._orderly = orderly
        self._stop_timeout_ms = stop_timeout_ms
        self._start_timeout_ms = start_timeout_ms
        self._require_connection = require_connection
        self._filter_hooks = filter_hooks
        self._pace = Pace(pull_batch, pull_interval_ms)
        self._consumes: dict[str, Consume] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopper: asyncio.Task[Any] | None = None
        self._tracer = tracer_of(group, "CONSUME", namesrv, config, self._clock, rpc_hooks) if trace else None
        self._max_in_flight = max_in_flight
        self._started_ms = self._clock.now_ms()
        self._statistics = ConsumeStatistics(self._clock.steady_ms(), config.namespace)
        self._calls = self._new_calls(min_threads, max_threads, consume_hooks, consume_timeout_ms)
        role = Role(self._group, ConsumeType.PASSIVELY, model, consume_from, check_strategy(strategy))
        self._membership = Membership(role, self._config, self._clock, rpc_hooks=rpc_hooks)
        self._instance = self._membership.instance
        offsets = self._offsets = offset_keeper(
            model,
            self._instance,
            self._group,
            config,
            file=offsets_file,
            folder=offsets_dir,
            store=offset_store,
        )
        limits = dataclasses.replace(limits, max_span=sys.maxsize) if orderly else limits
        start_rule = self._start_rule = StartRule(consume_from, consume_timestamp_ms)
        reading = Reading(self._group, start_rule, limits, self._pace, self._deliver, self._statistics)
        self._locks: BrokerLocks | None = None
        self._queues: HeldQueues
        self._handlers: ConcurrentHandlers | OrderlyHandlers
        if orderly:
            self._locks = self._new_locks()
            self._handlers = self._in_order(max_reconsume_times, auto_commit, suspend_ms)
            self._queues = QueuesInOrder(reading, self._membership, offsets, self._clock, self._handlers, self._locks)
        else:
            self._handlers = self._as_they_come(max_reconsume_times, consume_timeout_ms)
            self._queues = HeldQueues(reading, self._membership, offsets, self._clock)
        self._membership.serve(self._queues, self._queues.share, self._queues.read_anew)
        BrokerCalls(self._group, self, self._instance.run).register(self._instance.handlers)
        if model is MessageModel.CLUSTERING:
            self._membership.subscribe(retry_topic(self._group), ALL_TAGS)

    def _new_calls(
        self,
        min_threads: int,
        max_threads: int | None,
        consume_hooks: Sequence[ConsumeHook],
        consume_timeout_ms: int,
    ) -> Calls:
        return Calls(
            self._group,
            self._clock,
            min_threads=min_threads,
            max_threads=self._max_in_flight if max_threads is None else max_threads,
            namespace=self._config.namespace,
            tracer=self._tracer,
            consume_hooks=consume_hooks,
            statistics=self._statistics,
            orderly=self._orderly,
            consume_timeout_ms=consume_timeout_ms,
        )

    def _new_locks(self) -> BrokerLocks | None:
        """Who gets every message shares no queue with anybody."""
        if self._model is MessageModel.BROADCASTING:
            return None
        return BrokerLocks(self._instance, self._group, self._clock)

    def _in_order(self, max_reconsume_times: int | None, auto_commit: bool, suspend_ms: int) -> OrderlyHandlers:
        namespace = self._config.namespace
        return OrderlyHandlers(
            self._max_in_flight,
            self._calls,
            Buries(self._instance, self._clock, self._group, self._model, namespace, max_reconsume_times),
            self._clock,
            _always if self._locks is None else self._locks.holds,
            auto_commit=auto_commit,
            suspend_ms=suspend_ms,
            max_reconsume_times=max_reconsume_times,
        )

    def _as_they_come(self, max_reconsume_times: int | None, consume_timeout_ms: int) -> ConcurrentHandlers:
        namespace = self._config.namespace
        send_back = SendsBack(self._instance, self._clock, self._group, self._model, namespace, max_reconsume_times)
        return ConcurrentHandlers(
            self._max_in_flight, self._calls, send_back, self._clock, consume_timeout_ms, max_reconsume_times
        )

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
        """The queues this member reads at the moment."""
        return sorted(unwrap_queue(self._config.namespace, queue) for queue in self._queues.held)

    # --- subscribing

    @overload
    def subscribe(
        self, topic: str, expression: Expression, handler: Handler, *, batch: None = None, replace: bool = False
    ) -> None: ...

    @overload
    def subscribe(
        self, topic: str, expression: Expression, handler: ListHandler, *, batch: int | None, replace: bool = False
    ) -> None: ...

    def subscribe(
        self, topic: str, expression: Expression, handler: Handler, *, batch: int | None = None, replace: bool = False
    ) -> None:
        """Hand the topic's messages whose tag is in `expression` ("*" for all, "a || b") to `handler`.

        With `Sql("price > 5")` as expression, the broker chooses by the properties of the messages.
        The handler gets one message at a time; or a list of up to `batch` of them, if that is given; or a list, if its
        parameter is annotated as one (`messages: list[ReceivedMessage]`). An `async def` runs on the event loop, a
        `def` in a thread. What it returns matters only in order, see `OrderlyStatus`. When it raises, all its
        messages come again; with `RetryLater`, those it names, and when it says. A topic has one
        expression and one handler: with `replace` these take the place of those before, else that is an error.
        """
        self._require_own_process()
        check_topic(topic)
        if topic.startswith(RETRY_PREFIX):
            raise ClientError(f"{topic} is read by its group by itself; subscribe to the original topic")
        consume = Consume.by(handler, batch)
        shown, topic = topic, wrap_topic(self._config.namespace, topic)
        if not replace:
            self._membership.require_new(topic, shown)
        self._membership.subscribe(topic, expression)
        self._consumes[topic] = consume

    @overload
    def handles(
        self, topic: str, expression: Expression = ALL_TAGS, *, batch: None = None, replace: bool = False
    ) -> Callable[[H], H]: ...

    @overload
    def handles(
        self, topic: str, expression: Expression = ALL_TAGS, *, batch: int | None, replace: bool = False
    ) -> Callable[[HL], HL]: ...

    def handles(
        self, topic: str, expression: Expression = ALL_TAGS, *, batch: int | None = None, replace: bool = False
    ) -> Callable[[Any], Any]:
        """`subscribe` as a decorator of the handler."""
        if not isinstance(topic, str):  # else a decorator that lacks its topic would take the handler for one
            raise WrongType(f"the topic is {topic!r}; use @consumer.handles(topic)")
        check_topic(topic)

        def register(handler: Any) -> Any:
            self.subscribe(topic, expression, handler, batch=batch, replace=replace)
            return handler

        return register

    def unsubscribe(self, topic: str) -> None:
        """Stop reading the topic; what was handed to its handler is finished."""
        self._require_own_process()
        check_topic(topic)
        if not topic.startswith(RETRY_PREFIX):
            topic = wrap_topic(self._config.namespace, topic)
            self._membership.unsubscribe(topic)
            self._consumes.pop(topic, None)

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

    async def start(self) -> None:
        """Begin to consume; `async with` does it, too.

        ConnectionFailed if no name server answers within `start_timeout_ms`. A topic that does not exist yet is waited
        for after the start. A consumer without a subscription does not start.
        """
        if not (self._consumes or self.running):
            raise ClientError(f"consumer group {self._group} has no subscription; call subscribe() before the start")
        await super().start()

    async def _start(self) -> None:
        """After the first round our queues have their start offsets: what is sent from now on is received."""
        self._started_ms = self._clock.now_ms()
        self._offsets.open()
        self._membership.start()
        self._calls.start()
        if self._tracer is not None:
            await self._tracer.start()
        if self._locks is not None:
            self._instance.run(self._locks.run(), "locks")
        await self._membership.reach.begin(self._start_timeout_ms, required=self._require_connection)
        settled = await self._membership.join()
        self._tasks = {
            self._instance.run(self._membership.run(settled), "rebalance"),
            self._instance.run(self._queues.commit_regularly(self._config.persist_offset_interval_ms), "commits"),
            self._instance.run(self._handlers.run(), "handlers"),
            self._instance.run(self._calls.watch(), "long calls"),
        }

    async def stop(self) -> None:
        """Wait for running handlers, commit what they finished, and close every connection; twice is harmless.

        A handler may call it and is not waited for: its own messages come again. Of several that do so, the first one
        waits for the others.
        """
        caller = self._calls.caller()
        if self._stopper is None:
            self._stopper = caller
        elif self._stopper is not caller and self._handlers.is_worker(caller):
            return
        await super().stop()

    async def _stop(self) -> None:
        """In the order the data flows: pulls, handlers, offsets, locks, and last the connections."""
        await cancelled(self._tasks)
        await self._queues.stop_pulling()
        await self._handlers.stop(self._stop_timeout_ms, but_for=self._stopper)
        self._calls.shutdown()
        if self._tracer is not None:
            await self._tracer.stop()
        await self._queues.close()
        await self._instance.stop(consumer_group=self._group)
        self._offsets.close()

    def pause(self) -> None:
        """Pull no more until `resume`; what is here already is handled. The queues stay ours."""
        self._pace.paused = True
        self._queues.read_anew()  # a pull that waits would still bring something

    def resume(self) -> None:
        """Go on after `pause`."""
        self._pace.paused = False

    @property
    def paused(self) -> bool:
        """Whether `pause` was called, and not yet `resume`."""
        return self._pace.paused

    async def reset_offsets(self, offsets: dict[MessageQueue, int]) -> None:
        """Go on at these offsets, and let go of what is in process; queues that are not ours are left alone."""
        namespace = self._config.namespace
        await self._queues.reset({wrap_queue(namespace, queue): at for queue, at in check_offsets(offsets).items()})

    # --- what operators and brokers ask

    def statistics(self, topic: str) -> ConsumeStatus:
        """How fast messages of the topic are pulled and handled here: rates of the last minute."""
        return self._statistics.status(wrap_topic(self._config.namespace, check_topic(topic)), self._clock.steady_ms())

    def running_info(self, *, stacks: bool = False) -> ConsumerRunningInfo:
        """What this member does, as `mqadmin consumerStatus` shows it; with `stacks`, where tasks and threads are."""
        traits = Traits(
            ConsumeType.PASSIVELY,
            orderly=self._orderly,
            threads=self._max_in_flight,
            started_ms=self._started_ms,
            name_servers=sorted(self._instance.name_servers.addresses),
            settings={
                "consumerGroup": self._group,
                "consumeFromWhere": str(self._start_rule.consume_from),
                "messageModel": str(self._model),
                "pullBatchSize": str(self._pace.pull_batch),
                "pullInterval": str(self._pace.pull_interval_ms),
            },
        )
        subscriptions = [subscribed.subscription for subscribed in self._membership.subscribed.values()]
        return running_info(
            traits,
            subscriptions,
            self._queues.processes,
            self._statistics,
            self._clock,
            locked_ms=self._queues.locked_ms,
            with_stacks=stacks,
        )

    def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """How far each of our queues of the topic is done, committed or not."""
        wrapped = wrap_topic(self._config.namespace, check_topic(topic))
        offsets = self._queues.commit_offsets.items()
        return {dataclasses.replace(queue, topic=topic): offset for queue, offset in offsets if queue.topic == wrapped}

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Hand a message to its handler, beside everything else; it is neither committed nor sent back."""
        consume = self._consumes.get(message.topic, _UNHANDLED)
        unwrap_message(self._config.namespace, message)
        # As a task: a handler may use what needs one, and answers to brokers begin without.
        ended = await asyncio.create_task(self._calls.call(consume, [message]))
        return directly_result(ended, order=self._orderly)

    # --- handing over

    def _deliver(self, messages: list[ReceivedMessage], process: ProcessQueue) -> None:
        """Retried messages go to the handler of the topic they came from first."""
        process_topic = messages[0].queue.topic
        wanted = filtered(self._filter_hooks, self._group, messages, process)
        for topic, run in itertools.groupby(wanted, key=lambda message: message.topic):
            if topic not in self._consumes and topic == process_topic:
                continue  # unsubscribed: its queue goes in the next round, and this stays uncommitted
            consume = self._consumes.get(topic, _UNHANDLED)
            portion_of_topic = list(run)
            for portion in consume.portions(portion_of_topic):
                self._handlers.submit(Delivery(consume, portion, process))
            if self._config.namespace:  # last: where order counts, it was put in line by its queue as brokers know it
                for message in portion_of_topic:
                    unwrap_message(self._config.namespace, message)


_UNHANDLED = Consume.by(unhandled)


def _always(_queue: MessageQueue) -> bool:
    return True

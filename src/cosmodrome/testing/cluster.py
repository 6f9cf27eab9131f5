"""A real name server and real brokers in the test's own process: on real sockets, with real files, up in milliseconds.

with cosmodrome.testing.cluster() as cluster:
    with cluster.producer() as producer:
        producer.send(Message("orders", b"1", delay_level=18))
    cluster.advance(hours=2)
    assert len(cluster.messages("orders")) == 1

async with cosmodrome.testing.cluster() as cluster: …    # the same names, awaited
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from cosmodrome import blocking
from cosmodrome.broker.broker import Broker
from cosmodrome.client.blocking.face import Face, waits
from cosmodrome.client.blocking.loop_thread import LoopThread
from cosmodrome.client.lifecycle import MADE_BEFORE_FORK, Startable
from cosmodrome.client.producer import Producer
from cosmodrome.client.push_consumer import PushConsumer
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, StoreConfig, check_keys
from cosmodrome.errors import ConfigError, CosmodromeError
from cosmodrome.model import (
    MessageQueue,
    ReceivedMessage,
    TopicConfig,
    check_group,
    check_topic,
    dead_letter_topic,
    retry_topic,
)
from cosmodrome.net.caller import Caller
from cosmodrome.testing.broker_node import NET, NEVER_MS, BrokerNode, ClusterError
from cosmodrome.testing.daemons import SMALL_STORE, running_name_server
from cosmodrome.testing.loop import LoopClock, VirtualLoop
from cosmodrome.wire.bodies import ConsumerStatus
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import GetConsumerStatus

WAIT_SECONDS = 10.0
# How far `advance_until` goes before it looks again: this far at first, then twice as far each time.
FIRST_STRIDE_SECONDS = 1.0
MAX_STRIDE_SECONDS = 1_000.0
MAX_BROKERS = len(ascii_lowercase)
POLL_SECONDS = 0.01
STATUS_TIMEOUT_MS = 5_000
PRODUCER_GROUP = "test-producers"

_BROKER = BrokerConfig(
    broker_name="broker-a",
    channel_expired_timeout=NEVER_MS,
    recall_message_enable=True,
    flush_consumer_offset_interval=60_000,
    register_name_server_period=60_000,
)
# What is written is safe from a kill. Syncing seldom makes hours pass sooner.
_STORE = dataclasses.replace(
    SMALL_STORE,
    flush_interval_commit_log=600_000,
    flush_commit_log_thorough_interval=600_000,
    flush_consume_queue_thorough_interval=600_000,
    flush_delay_offset_interval=60_000,
    timer_flush_interval_ms=60_000,
    clean_resource_interval=600_000,
)

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
S = TypeVar("S", bound=Startable)
Properties = Mapping[str, str | int | bool]


class TooLate(CosmodromeError, TimeoutError):
    """What a test waits for did not come in time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a cluster is made of."""

    brokers: int
    config: BrokerConfig
    store: StoreConfig
    data_dir: Path | None


def _on_its_loop(
    method: Callable[Concatenate[AsyncCluster, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[AsyncCluster, P], Coroutine[Any, Any, R]]:
    """Whoever calls from another loop waits there while it is done on the cluster's."""

    @functools.wraps(method)
    async def call(self: AsyncCluster, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._process != os.getpid():
            raise ClusterError(f"this cluster {MADE_BEFORE_FORK}")
        if asyncio.get_running_loop() is self._loop:
            return await method(self, *args, **kwargs)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(method(self, *args, **kwargs), self._loop))

    return call


class AsyncCluster:
    """A name server and its brokers; everything that takes its time is awaited.

    `namesrv` is for clients, also those of other processes and languages. Clients made by `producer`, `push_consumer`
    and `client` have the cluster's `clock`, too.
    """

    def __init__(self, plan: Plan, folder: Path, loop: VirtualLoop) -> None:
        self._plan = plan
        self._folder = folder
        self._loop = loop
        self._process = os.getpid()
        self._closing = AsyncExitStack()
        self.clock = LoopClock(time.time_ns() // 1_000_000 - int(loop.time() * 1_000), loop)
        self.namesrv = ""
        self.brokers: list[BrokerNode] = []

    async def _start(self) -> None:
        async with AsyncExitStack() as stack:
            name_server = await stack.enter_async_context(running_name_server(self.clock, NET))
            self.namesrv = name_server.address
            self._caller = Caller(config=NET)
            stack.push_async_callback(self._caller.close)
            for letter in ascii_lowercase[: self._plan.brokers]:
                broker = self._broker(f"broker-{letter}" if self._plan.brokers > 1 else self._plan.config.broker_name)
                await broker.start()
                stack.push_async_callback(broker.close)
                self.brokers.append(broker)
            self._closing = stack.pop_all()

    def _broker(self, name: str) -> BrokerNode:
        config = dataclasses.replace(
            self._plan.config, broker_name=name, namesrv_addr=self.namesrv, listen_port=0, bind_address="127.0.0.1"
        )
        return BrokerNode(config, self._plan.store, self._folder / name, self.clock)

    async def _close(self) -> None:
        await self._closing.aclose()

    # --- clients

    def client(self, kind: Callable[..., C], *args: Any, **options: Any) -> C:
        """A client of any kind that knows this cluster and its time: `client(TransactionProducer, "g", check=…)`."""
        return kind(*args, namesrv=self.namesrv, clock=self.clock, **options)

    def producer(self, group: str = PRODUCER_GROUP, **options: Any) -> Producer:
        """A `cosmodrome.Producer`, with its own options."""
        return self.client(Producer, group, **options)

    def push_consumer(self, group: str, **options: Any) -> PushConsumer:
        """A `cosmodrome.PushConsumer`, with its own options."""
        return self.client(PushConsumer, group, **options)

    # --- time

    @_on_its_loop
    async def advance(self, *, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Let so much time pass. All that falls due meanwhile, here and in clients made by this cluster on its own
        loop, has been done when this returns; other clients may still be busy with it."""
        await self._loop.advance(_seconds(hours, minutes, seconds))

    async def advance_until(
        self,
        condition: Callable[[], Any],
        *,
        hours: float = 24,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Let time pass until `condition()` is true, a day at most if nothing else is said; TimeoutError after that."""
        limit = _seconds(hours, minutes, seconds)
        for stride in _strides(limit):
            if await _is_true(condition):
                return
            await self.advance(seconds=stride)
        if not await _is_true(condition):
            raise _too_late(condition, limit)

    async def wait_until(self, condition: Callable[[], Any], *, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Wait until `condition()` is true, looking again and again; TimeoutError if it does not become so."""
        deadline_ms = self.clock.steady_ms() + timeout_seconds * 1_000
        while not await _is_true(condition):
            if self.clock.steady_ms() >= deadline_ms:
                raise _too_late(condition, timeout_seconds)
            await asyncio.sleep(POLL_SECONDS)

    # --- topics and messages

    @_on_its_loop
    async def create_topic(self, name: str, queues: int = 4) -> None:
        """On every broker that runs; clients find it at once."""
        for broker in self._running():
            broker.topics.put(TopicConfig(check_topic(name), queues, queues))
            await broker.topics.saved()
            await broker.registration.announce()

    @_on_its_loop
    async def messages(self, topic: str) -> list[ReceivedMessage]:
        """All that is stored of a topic, in the order in which it was stored; a topic nobody has has none."""
        found = [message for node in self.brokers if node.running for message in node.messages(topic)]
        return sorted(found, key=lambda message: (message.store_timestamp, message.commit_log_offset))

    async def dead_letters(self, group: str) -> list[ReceivedMessage]:
        """The messages the group has given up."""
        return await self.messages(dead_letter_topic(check_group(group)))

    # --- groups

    @_on_its_loop
    async def committed(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """The next offset of each queue of which the group has told the brokers; consumers do so every few seconds."""
        return {
            MessageQueue(topic, broker.config.broker_name, queue_id): offset
            for broker in self._running()
            for queue_id, offset in broker.offsets.of_group(group).get(topic, {}).items()
        }

    @_on_its_loop
    async def lag(self, group: str, topic: str) -> int:
        """How many messages the group has still to consume: as its members say, and where none does, as committed."""
        done = await self.committed(group, topic) | await self._asked(group, topic)
        return sum(
            broker.store.max_offset(topic, queue_id) - max(first, done.get(queue, first))
            for broker in self._running()
            for queue_id in broker.store.queues(topic)
            for queue in [MessageQueue(topic, broker.config.broker_name, queue_id)]
            for first in [broker.store.min_offset(topic, queue_id)]
        )

    async def wait_until_consumed(self, group: str, topic: str, *, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Return when the group has no message of the topic, or of those to be tried again, before it.

        A message that waits for its next try is not before it yet.
        """

        async def is_done() -> bool:
            return await self.lag(group, topic) == 0 == await self.lag(group, retry_topic(group))

        try:
            await self.wait_until(is_done, timeout_seconds=timeout_seconds)
        except TooLate:
            behind = await self.lag(group, topic) + await self.lag(group, retry_topic(group))
            raise TooLate(
                f"after {timeout_seconds:g} s group {group} still has {behind} messages of {topic} to consume"
            ) from None

    async def _asked(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """How far its members are: what they have not committed yet is known only to them."""
        offsets: dict[MessageQueue, int] = {}
        request = GetConsumerStatus(topic, group)
        for broker in self._running():
            if broker.clients.find_consumers(group) is None:
                continue
            command = Command.request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, request)
            reply = await self._caller.call(broker.address, command, STATUS_TIMEOUT_MS)
            if reply.code == ResponseCode.SUCCESS:
                for one in ConsumerStatus.decode(bytes(reply.body)).by_client.values():
                    offsets |= {queue: offset for queue, offset in one.items() if offset >= 0}
        return offsets

    # --- trouble

    @_on_its_loop
    async def stop_broker(self, index: int = 0) -> None:
        """In order: clients hear of it."""
        await self.brokers[index].stop()

    @_on_its_loop
    async def start_broker(self, index: int = 0) -> None:
        """Again, at its old address and with its old files."""
        await self.brokers[index].start()

    @_on_its_loop
    async def restart_broker(self, index: int = 0) -> None:
        """Stop it in order, and start it again."""
        await self.brokers[index].stop()
        await self.brokers[index].start()

    @_on_its_loop
    async def kill_broker(self, index: int = 0) -> None:
        """As by kill -9: connections break, and the next start finds the files as they are at this moment."""
        await self.brokers[index].kill()

    def _running(self) -> list[Broker]:
        return [one.broker for one in self.brokers if one.running]


class Cluster:
    """`AsyncCluster` without await. Its clients are those of `cosmodrome.blocking`, on the loop of the cluster."""

    def __init__(self, behind: AsyncCluster, thread: LoopThread) -> None:
        self._behind = behind
        self._thread = thread

    @property
    def as_async(self) -> AsyncCluster:
        """The same cluster, for coroutines on whatever loop."""
        return self._behind

    @property
    def namesrv(self) -> str:
        """The address for clients, also those of other processes and languages."""
        return self._behind.namesrv

    @property
    def brokers(self) -> list[BrokerNode]:
        """Its brokers, running or not."""
        return self._behind.brokers

    @property
    def clock(self) -> LoopClock:
        """The time that `advance` moves on."""
        return self._behind.clock

    def client(self, kind: Callable[..., C], *args: Any, **options: Any) -> C:
        """A client of any kind that knows this cluster and its time: `client(TransactionProducer, "g", check=…)`."""
        made = self._behind.client(kind, *args, **options)
        if isinstance(made, Face):
            made._thread = self._thread
        return made

    def producer(self, group: str = PRODUCER_GROUP, **options: Any) -> blocking.Producer:
        """A `cosmodrome.blocking.Producer`, with its own options."""
        return self.client(blocking.Producer, group, **options)

    def push_consumer(self, group: str, **options: Any) -> blocking.PushConsumer:
        """A `cosmodrome.blocking.PushConsumer`, with its own options."""
        return self.client(blocking.PushConsumer, group, **options)

    advance = waits(AsyncCluster.advance)
    create_topic = waits(AsyncCluster.create_topic)
    messages = waits(AsyncCluster.messages)
    dead_letters = waits(AsyncCluster.dead_letters)
    committed = waits(AsyncCluster.committed)
    lag = waits(AsyncCluster.lag)
    stop_broker = waits(AsyncCluster.stop_broker)
    start_broker = waits(AsyncCluster.start_broker)
    restart_broker = waits(AsyncCluster.restart_broker)
    kill_broker = waits(AsyncCluster.kill_broker)
    wait_until_consumed = waits(AsyncCluster.wait_until_consumed)

    def advance_until(
        self, condition: Callable[[], Any], *, hours: float = 24, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Let time pass until `condition()` is true, a day at most if nothing else is said; TimeoutError after that."""
        limit = _seconds(hours, minutes, seconds)
        for stride in _strides(limit):
            if condition():
                return
            self.advance(seconds=stride)
        if not condition():
            raise _too_late(condition, limit)

    def wait_until(self, condition: Callable[[], Any], *, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Wait until `condition()` is true, looking again and again; TimeoutError if it does not become so."""
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            if time.monotonic() >= deadline:
                raise _too_late(condition, timeout_seconds)
            time.sleep(POLL_SECONDS)


class ClusterMaker:
    """What `cluster()` returns: enter it with `with` or `async with`, once. A forked process leaves it alone."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._thread: LoopThread | None = None
        self._remove: weakref.finalize[..., ClusterMaker] | None = None
        self._cluster: AsyncCluster | None = None

    def __enter__(self) -> Cluster:
        self._require_new()
        cluster, thread = self._in_thread()
        try:
            thread.run(cluster._start)
        except BaseException:
            self._clean()
            raise
        return Cluster(cluster, thread)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None, "entered"
        assert self._cluster is not None, "entered"
        if self._cluster._process != os.getpid():
            return
        try:
            self._thread.run(self._cluster._close)
        finally:
            self._clean()

    async def __aenter__(self) -> AsyncCluster:
        """On the running loop if its time is virtual, else on one in a thread, whose time can be moved on."""
        self._require_new()
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            cluster = self._make(loop)
        else:
            cluster, _ = self._in_thread()
        try:
            await _on_its_loop(AsyncCluster._start)(cluster)
        except BaseException:
            self._clean()
            raise
        return cluster

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._cluster is not None, "entered"
        if self._cluster._process != os.getpid():
            return
        try:
            await _on_its_loop(AsyncCluster._close)(self._cluster)
        finally:
            self._clean()

    def _require_new(self) -> None:
        """Before anything is made: what the first one uses must stay."""
        if self._cluster is not None:
            raise ClusterError("a cluster is entered once; call cluster() again for another")

    def _in_thread(self) -> tuple[AsyncCluster, LoopThread]:
        loop = VirtualLoop(flows=True)
        self._thread = LoopThread(loop, used_by="this cluster")
        return self._make(loop), self._thread

    def _make(self, loop: VirtualLoop) -> AsyncCluster:
        folder = self._plan.data_dir or Path(tempfile.mkdtemp(prefix="cosmodrome-"))
        if self._plan.data_dir is None:
            self._remove = weakref.finalize(self, _remove, folder, os.getpid())
        self._cluster = AsyncCluster(self._plan, folder, loop)
        return self._cluster

    def _clean(self) -> None:
        try:
            if self._thread is not None:
                self._thread.close("the cluster this client was made by is gone")
        finally:
            if self._remove is not None:
                self._remove()


def cluster(
    brokers: int = 1,
    *,
    config: BrokerConfig | Properties | None = None,
    auto_create_topics: bool = True,
    data_dir: Path | str | None = None,
) -> ClusterMaker:
    """A cluster to test with: `with cluster() as c` without await, `async with cluster() as c` for coroutines.

    `config` has Apache's keys, such as `{"transactionTimeOut": 1000}`, or is a BrokerConfig. Without
    `auto_create_topics` only topics made by `create_topic` can be sent to. With `data_dir` the files are kept there;
    else they are temporary.
    """
    if not isinstance(brokers, int) or not 1 <= brokers <= MAX_BROKERS:
        raise ConfigError(f"a test cluster has 1 to {MAX_BROKERS} brokers, not {brokers!r}")
    broker_config, store = _configs(config)
    if not auto_create_topics:
        broker_config = dataclasses.replace(broker_config, auto_create_topic_enable=False)
    return ClusterMaker(Plan(brokers, broker_config, store, Path(data_dir) if data_dir is not None else None))


# A test must not write where a real broker keeps its messages, and `kill` copies one folder.
_PLACES = {"storePathCommitLog", "storePathConsumeQueue", "storePathIndex", "storeCheckpoint", "abortFile"}


def _configs(config: BrokerConfig | Properties | None) -> tuple[BrokerConfig, StoreConfig]:
    if isinstance(config, BrokerConfig):
        return config, _STORE
    properties = {key: _text(value) for key, value in (config or {}).items()}
    check_keys(properties, BrokerConfig, StoreConfig)
    if elsewhere := sorted(_PLACES & properties.keys()):
        raise ConfigError(
            f"{', '.join(elsewhere)}: a test's brokers keep everything in their own folders; leave it out"
        )
    return _BROKER.with_properties(properties), _STORE.with_properties(properties)


def _remove(folder: Path, process: int) -> None:
    """At the end of the interpreter as well, but not at that of a forked one."""
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _seconds(hours: float, minutes: float, seconds: float) -> float:
    return hours * 3_600 + minutes * 60 + seconds


def _strides(limit: float) -> Iterator[float]:
    stride = FIRST_STRIDE_SECONDS
    while limit > 0:
        yield min(stride, limit)
        limit -= stride
        stride = min(stride * 2, MAX_STRIDE_SECONDS)


async def _is_true(condition: Callable[[], Any]) -> bool:
    answer = condition()
    return bool(await answer if inspect.isawaitable(answer) else answer)


def _too_late(condition: Callable[[], Any], seconds: float) -> TooLate:
    name = getattr(condition, "__name__", "")
    what = f"{name}()" if name.isidentifier() else "what was waited for"
    return TooLate(f"{what} is not true after {seconds:g} s")

"""One family: whatever the client refuses is a CosmodromeError, and a ValueError or TypeError as well."""

from __future__ import annotations

import ast
import asyncio
import builtins
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import cosmodrome
from cosmodrome import (
    AclHook,
    ByMachineRoom,
    CacheLimits,
    ClientConfig,
    ConsistentHash,
    CosmodromeError,
    LitePullConsumer,
    MachineRoomNearby,
    Message,
    MessageQueue,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RequestProducer,
    RetryLater,
    SelectByMachineRoom,
    Sql,
    SuspendQueue,
    TlsCheck,
    TopicReader,
    TransactionProducer,
    select_by_hash,
)
from cosmodrome.errors import ClientError, ConfigError, InvalidArgument, InvalidMessage, InvalidParameter, WrongType
from cosmodrome.testing import FakeClock, cluster
from tests.unit.client.fake_cluster import FakeCluster, fake_cluster

NAMESRV = "127.0.0.1:9876"
QUEUE = MessageQueue("T", "broker-a", 0)


def transaction_producer(*args: Any, **options: Any) -> TransactionProducer:
    return TransactionProducer(*args, check=lambda _: cosmodrome.TransactionState.COMMIT, **options)


def subscribed_push(fake: FakeCluster) -> PushConsumer:
    consumer = PushConsumer("g", fake.namesrv, config=ClientConfig(namespace="NS"))
    consumer.subscribe("T", "*", print)
    return consumer


def subscribed_lite(fake: FakeCluster) -> LitePullConsumer:
    consumer = LitePullConsumer("g", fake.namesrv, config=ClientConfig(namespace="NS"))
    consumer.subscribe("T")
    return consumer


CLIENTS: list[Callable[..., Any]] = [
    Producer,
    RequestProducer,
    transaction_producer,
    PushConsumer,
    LitePullConsumer,
    PullConsumer,
]
SETTINGS: list[Callable[..., Any]] = [ProducerOptions, ClientConfig, CacheLimits]


def numbers_of(make: Callable[..., Any]) -> Iterator[str]:
    parameters = inspect.signature(Producer if make is transaction_producer else make).parameters
    return (name for name, parameter in parameters.items() if parameter.annotation in ("int", "int | None"))


NUMBERS = [
    (make, name)
    for make in (*CLIENTS, *SETTINGS)
    for name in numbers_of(make)
    if name != "compression_level"  # of which -1 is one
]


@pytest.mark.parametrize(("make", "name"), NUMBERS)
def test_a_number_that_cannot_be_is_refused_by_its_name(make: Callable[..., Any], name: str) -> None:
    for value in (-1, "7", 1.5, datetime(2030, 1, 31)):
        with pytest.raises(ConfigError, match=name) as refused:
            make(*(("g", NAMESRV) if make in CLIENTS else ()), **{name: value})
        assert isinstance(refused.value, ValueError)


def test_there_are_numbers_to_refuse() -> None:
    assert len(NUMBERS) > 25


@pytest.mark.parametrize("make", CLIENTS)
@pytest.mark.parametrize("group", [None, 7, b"g", "", "a b", "x" * 300, ["g"]])
def test_a_group_that_cannot_be_is_refused(make: Callable[..., Any], group: object) -> None:
    with pytest.raises(InvalidParameter, match="group") as refused:
        make(group, NAMESRV)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("make", CLIENTS)
@pytest.mark.parametrize("namesrv", [9876, "localhost", ":9876", "a:b", ["127.0.0.1:9876"], ""])
def test_a_name_server_that_cannot_be_is_refused(make: Callable[..., Any], namesrv: object) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        make("g", namesrv)


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: AclHook("key", ""),
        lambda: ByMachineRoom("hz"),
        lambda: SelectByMachineRoom("hz"),
        lambda: ConsistentHash(0),
        lambda: RetryLater(done=-1),
        lambda: SuspendQueue(0),
        lambda: TopicReader("no topic", namesrv=NAMESRV),
        lambda: TopicReader("T", 7, namesrv=NAMESRV),  # type: ignore[arg-type]
        lambda: TopicReader("T", namesrv=NAMESRV, config={"namespace": "a"}),  # type: ignore[arg-type]
        lambda: Producer("g", NAMESRV, config={"namespace": "a"}),  # type: ignore[arg-type]
        lambda: Producer("g", NAMESRV, options=5),  # type: ignore[arg-type]
        lambda: PushConsumer("g", NAMESRV, offsets_file="offsets.json"),
        lambda: PushConsumer("g", NAMESRV, auto_commit=False),
        lambda: PushConsumer("g", NAMESRV, min_threads=2, max_threads=1),
        lambda: PushConsumer("g", NAMESRV, model="everybody"),  # type: ignore[arg-type]
        lambda: PushConsumer("g", NAMESRV, consume_from=None),  # type: ignore[arg-type]
        lambda: PushConsumer("g", NAMESRV, strategy=None),  # type: ignore[arg-type]
        lambda: PushConsumer("g", NAMESRV, consume_hooks=None),  # type: ignore[arg-type]
        lambda: LitePullConsumer("g", NAMESRV, filter_hooks=[7]),  # type: ignore[list-item]
        lambda: PullConsumer("g", NAMESRV, rpc_hooks=[7]),  # type: ignore[list-item]
        lambda: PushConsumer("g", NAMESRV).subscribe("T", "*", 7),  # type: ignore[call-overload]
        lambda: PushConsumer("g", NAMESRV).subscribe("T", "*", print, batch=0),
        lambda: PushConsumer("g", NAMESRV).subscribe("T", 7, print),  # type: ignore[call-overload]
        lambda: PushConsumer("g", NAMESRV).subscribe("T", Sql("price >"), print),
        lambda: PushConsumer("g", NAMESRV).subscribe(None, "*", print),  # type: ignore[call-overload]
        lambda: PushConsumer("g", NAMESRV).unsubscribe(7),  # type: ignore[arg-type]
        lambda: LitePullConsumer("g", NAMESRV).subscribe(7),  # type: ignore[arg-type]
        lambda: LitePullConsumer("g", NAMESRV).batches(0),
        lambda: LitePullConsumer("g", NAMESRV).messages(),
        lambda: PullConsumer("g", NAMESRV).update_consume_offset(QUEUE, -1),
        lambda: PullConsumer("g", NAMESRV).register_topics([7]),  # type: ignore[list-item]
        lambda: PullConsumer("g", NAMESRV).register_topics(["T"], 7),  # type: ignore[arg-type]
        lambda: PullConsumer("g", NAMESRV).register_topics(["T"], asyncio.sleep),  # type: ignore[arg-type]
        lambda: LitePullConsumer("g", NAMESRV).on_assigned(7),  # type: ignore[type-var]
        lambda: LitePullConsumer("g", NAMESRV).on_revoked(None),  # type: ignore[type-var]
        lambda: LitePullConsumer("g", NAMESRV).on_queues_changed("T", 7),  # type: ignore[arg-type]
        lambda: select_by_hash([QUEUE], Message("T", b"x"), None),
        lambda: cluster(0),
        lambda: cosmodrome.blocking.PushConsumer("g", NAMESRV, suspend_ms=0),
        lambda: cosmodrome.blocking.LitePullConsumer("g", NAMESRV).batches(0),
        lambda: cosmodrome.blocking.LitePullConsumer("g", NAMESRV).on_assigned(5),  # type: ignore[type-var]
        lambda: cosmodrome.blocking.LitePullConsumer("g", NAMESRV).on_queues_changed("T", 5),  # type: ignore[arg-type]
        lambda: cosmodrome.blocking.PullConsumer("g", NAMESRV).register_topics("orders"),
        lambda: cosmodrome.blocking.PullConsumer("g", NAMESRV).register_topics(["T"], 5),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_work_is_refused_with_the_family(refuse: Callable[[], object]) -> None:
    with pytest.raises(CosmodromeError):
        refuse()


CONSUMERS: list[Callable[..., Any]] = [PushConsumer, LitePullConsumer, PullConsumer]


@pytest.mark.parametrize("make", CONSUMERS)
def test_the_name_of_a_forgotten_group_is_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(InvalidParameter, match="the group cannot be DEFAULT_CONSUMER; give each application a name"):
        make("DEFAULT_CONSUMER", config=ClientConfig(namesrv=NAMESRV, namespace="NS"))


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("min_threads", 1_000),
        ("max_threads", 1_000),
        ("pull_batch", 1_024),
        ("pull_interval_ms", 65_535),
        ("max_messages", 65_535),
        ("max_span", 65_535),
        ("max_bytes", 2**30),
        ("max_messages_of_topic", 6_553_500),
        ("max_bytes_of_topic", 100 * 2**30),
    ],
)
@pytest.mark.parametrize("orderly", [False, True])
def test_a_push_consumer_takes_as_much_as_javas_and_no_more(name: str, most: int, orderly: bool) -> None:
    limits = {field.name for field in dataclasses.fields(CacheLimits)}

    def make(value: int) -> None:
        settings: dict[str, Any] = {"limits": CacheLimits(**{name: value})} if name in limits else {name: value}
        if name == "min_threads":
            settings["max_threads"] = 1_000
        PushConsumer("g", NAMESRV, orderly=orderly, **settings)

    make(most)
    with pytest.raises(ConfigError, match=rf"{name} is {most + 1}; it must be a whole number from [01] to {most}"):
        make(most + 1)


def test_a_handler_takes_as_long_lists_as_javas_and_no_longer() -> None:
    PushConsumer("g", NAMESRV).subscribe("T", "*", print, batch=1_024)
    with pytest.raises(InvalidArgument, match="batch is 1025; it must be a whole number from 1 to 1024"):
        PushConsumer("g", NAMESRV).subscribe("T", "*", print, batch=1_025)


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        *((make, {"config": {"namespace": "a"}}) for make in CONSUMERS),
        *((make, {"limits": 5}) for make in (PushConsumer, LitePullConsumer)),
        *((make, {"consume_timestamp_ms": 0}) for make in (PushConsumer, LitePullConsumer)),
        *((make, {"auto_commit": "no"}) for make in (PushConsumer, LitePullConsumer)),
        (PushConsumer, {"orderly": "no"}),
        (PushConsumer, {"trace": None}),
    ],
)
def test_a_setting_of_another_kind_is_refused_by_its_name(make: Callable[..., Any], setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        make("g", NAMESRV, **setting)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("namespace", 5),
        ("instance_name", 5),
        ("unit_name", None),
        ("trace_topic", b"T"),
        ("tls_ca_file", 5),
        ("tls", "no"),
        ("tls_check", "x"),
        ("tls_check", None),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        ClientConfig(**{"tls": True, name: value})


def test_how_certificates_are_checked_may_be_given_by_its_value() -> None:
    config = ClientConfig(tls=True, tls_check="none")  # type: ignore[arg-type]
    assert config.tls_check is TlsCheck.NONE


@pytest.mark.parametrize("make", CONSUMERS)
def test_a_strategy_that_is_a_class_is_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(WrongType, match=r"ConsistentHash\(\.\.\.\)"):
        make("g", NAMESRV, strategy=ConsistentHash)


def takes_nothing() -> None: ...


def takes_two(message: ReceivedMessage, more: int) -> None: ...


def takes_a_word(*, message: ReceivedMessage) -> None: ...


class TakesNothing:
    def __call__(self) -> None: ...


@pytest.mark.parametrize("handler", [takes_nothing, takes_two, takes_a_word, TakesNothing(), TakesNothing])
def test_a_handler_that_cannot_be_called_with_a_message_is_refused(handler: Any) -> None:
    with pytest.raises(WrongType, match="one argument"):
        PushConsumer("g", NAMESRV).subscribe("T", "*", handler)


@functools.wraps(takes_two)
def injected(message: ReceivedMessage) -> None:
    takes_two(message, 2)


@pytest.mark.parametrize(
    "handler",
    [
        injected,
        functools.partial(takes_two, more=2),
        lambda message, more=2: None,
        lambda *messages: None,
        print,
        [].append,
        iter,  # has no signature
        bytes,
    ],
)
def test_a_handler_that_can_be_called_with_a_message_is_taken(handler: Any) -> None:
    PushConsumer("g", NAMESRV).subscribe("T", "*", handler)


@pytest.mark.parametrize("make", [PushConsumer, cosmodrome.blocking.PushConsumer])
def test_a_decorator_without_its_topic_says_how_to_use_it(make: Callable[..., Any]) -> None:
    with pytest.raises(WrongType, match=r"use @consumer\.handles\(topic\)"):
        make("g", NAMESRV).handles(print)
    with pytest.raises(InvalidParameter, match="topic"):
        make("g", NAMESRV).handles("a b")


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: PushConsumer("g", NAMESRV).subscribe("T", "*", print, batch="5"),  # type: ignore[call-overload]
        lambda: PushConsumer("g", NAMESRV).subscribe("T", Sql(None), print),  # type: ignore[arg-type]
        lambda: LitePullConsumer("g", NAMESRV).batches("a"),  # type: ignore[arg-type]
        lambda: LitePullConsumer("g", NAMESRV).assign(QUEUE),  # type: ignore[arg-type]
        lambda: LitePullConsumer("g", NAMESRV).assign("orders"),  # type: ignore[arg-type]
        lambda: LitePullConsumer("g", NAMESRV).assign([1]),  # type: ignore[list-item]
        lambda: LitePullConsumer("g", NAMESRV).pause(QUEUE),  # type: ignore[arg-type]
        lambda: LitePullConsumer("g", NAMESRV).resume("orders"),  # type: ignore[arg-type]
        lambda: LitePullConsumer("g", NAMESRV).position("orders"),  # type: ignore[arg-type]
        lambda: PullConsumer("g", NAMESRV).register_topics("orders"),
        lambda: PullConsumer("g", NAMESRV).register_topics(None),  # type: ignore[arg-type]
        lambda: PullConsumer("g", NAMESRV).update_consume_offset(QUEUE, "1"),  # type: ignore[arg-type]
        lambda: PullConsumer("g", NAMESRV).update_consume_offset(5, 1),  # type: ignore[arg-type]
        lambda: AclHook(b"key", b"secret"),  # type: ignore[arg-type]
        lambda: AclHook("key", b"secret"),  # type: ignore[arg-type]
        lambda: MachineRoomNearby(lambda queue: "", lambda client: "", ConsistentHash),  # type: ignore[arg-type]
        lambda: RetryLater(delay_level="x"),  # type: ignore[arg-type]
        lambda: RetryLater(done="1"),  # type: ignore[arg-type]
        lambda: SuspendQueue("the bank does not answer"),  # type: ignore[arg-type]
        lambda: SuspendQueue(1.5),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_another_kind_is_refused(refuse: Callable[[], object]) -> None:
    with pytest.raises(WrongType) as refused:
        refuse()
    assert isinstance(refused.value, TypeError)
    assert "secret'" not in str(refused.value)


def test_what_is_lower_than_the_dead_letters_is_no_delay() -> None:
    with pytest.raises(InvalidArgument, match="delay_level is -2"):
        RetryLater(delay_level=-2)


OFFSETS_THAT_CANNOT_BE = ["2", 1.5, None, True, -1]


@pytest.mark.parametrize("offset", OFFSETS_THAT_CANNOT_BE)
async def test_an_offset_that_cannot_be_is_refused(offset: Any) -> None:
    async with fake_cluster(T=1) as fake:
        push, lite, pull = (make("g", fake.namesrv) for make in CONSUMERS)
        push.subscribe("T", "*", print)
        lite.assign([QUEUE])
        async with lite, push, pull:
            for refused in (
                lite.seek(QUEUE, offset),
                lite.commit({QUEUE: offset}),
                lite.reset_offsets({QUEUE: offset}),
                push.reset_offsets({QUEUE: offset}),
                pull.pull(QUEUE, "*", offset),
            ):
                with pytest.raises(InvalidArgument, match="offset is"):
                    await refused
            with pytest.raises(InvalidArgument, match="offset is"):
                pull.update_consume_offset(QUEUE, offset)


async def test_what_is_no_queue_is_refused() -> None:
    name: Any = "orders"
    async with fake_cluster(T=1) as fake:
        push, lite, pull = (make("g", fake.namesrv) for make in CONSUMERS)
        push.subscribe("T", "*", print)
        async with lite, push, pull:
            for refused in (
                lite.seek(name, 0),
                lite.commit({name: 0}),
                lite.commit(name),
                lite.committed(name),
                lite.reset_offsets({name: 0}),
                push.reset_offsets({name: 0}),
                push.reset_offsets([QUEUE]),
                pull.pull(name),
                pull.max_offset(name),
                pull.fetch_consume_offset(name),
            ):
                with pytest.raises(WrongType, match="MessageQueue"):
                    await refused


async def test_a_push_consumer_without_a_subscription_does_not_start() -> None:
    async with fake_cluster(T=1) as fake:
        consumer = PushConsumer("idle", fake.namesrv)
        with pytest.raises(ClientError, match=r"consumer group idle has no subscription; call subscribe\(\)"):
            await consumer.start()
        consumer.subscribe("T", "*", print)  # it can still be mended
        async with consumer:
            assert consumer.running


@pytest.mark.parametrize("make", [subscribed_push, subscribed_lite])
async def test_consumed_offsets_are_under_the_name_they_are_asked_for(make: Callable[[FakeCluster], Any]) -> None:
    async with fake_cluster(**{"NS%T": 1}) as fake, make(fake) as consumer:
        assert consumer.consumed_offsets("T") == {QUEUE: 0}
        assert consumer.consumed_offsets("NS%T") == {MessageQueue("NS%T", "broker-a", 0): 0}  # as brokers ask
        with pytest.raises(InvalidParameter, match="topic"):
            consumer.consumed_offsets(7)


@pytest.mark.parametrize("topic", [None, 7, b"T", "", "a b", ["T"]])
async def test_a_topic_that_cannot_be_is_refused(topic: Any) -> None:
    async with fake_cluster(T=1) as fake, Producer("g", fake.namesrv) as producer:
        with pytest.raises(InvalidMessage, match="topic"):
            await producer.send(Message(topic, b"x"))


async def test_pulls_that_cannot_be_are_refused() -> None:
    async with fake_cluster(T=1) as fake, PullConsumer("g", fake.namesrv) as consumer:
        with pytest.raises(CosmodromeError, match="offset is -1"):
            await consumer.pull(QUEUE, "*", -1)
        with pytest.raises(CosmodromeError, match="max_messages is 0"):
            await consumer.pull(QUEUE, "*", 0, 0)
        with pytest.raises(CosmodromeError, match="the expression for T is 7"):
            await consumer.pull(QUEUE, 7)  # type: ignore[arg-type]
        with pytest.raises(CosmodromeError, match="message_id is ''"):
            await consumer.view_message("T", "")


async def test_time_that_runs_backwards_is_refused() -> None:
    with pytest.raises(CosmodromeError, match="backwards"):
        await FakeClock().advance(-1)


# What is raised for somebody other than the application: iterators, mappings, descriptors, executors and loops
# have rules of their own.
NOT_FOR_THE_APPLICATION = {
    ("client/feed.py", "StopAsyncIteration"),
    ("client/queue_reader.py", "StopAsyncIteration"),
    ("client/blocking/face.py", "AttributeError"),
    ("client/blocking/face.py", "StopIteration"),
    ("client/held_queues.py", "KeyError"),
    ("client/lite_pull_consumer.py", "AssertionError"),
    ("client/offsets.py", "AssertionError"),
    ("client/own_offsets.py", "AssertionError"),
    ("client/threads.py", "RuntimeError"),
    ("testing/loop.py", "RuntimeError"),
    ("testing/faulty_disk.py", "OSError"),
}


def test_nothing_else_is_raised() -> None:
    root = Path(cosmodrome.__file__).parent
    raised = {
        (str(path.relative_to(root)), name)
        for package in ("client", "testing")
        for path in (root / package).rglob("*.py")
        for name in _builtins_raised(path)
    }
    assert raised - NOT_FOR_THE_APPLICATION == set()


def _builtins_raised(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise):
            made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(made, ast.Name) and hasattr(builtins, made.id):
                yield made.id

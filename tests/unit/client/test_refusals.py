"""One family: whatever the client refuses is a CosmodromeError, and a ValueError or TypeError as well."""

from __future__ import annotations

import ast
import asyncio
import builtins
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
    ClientConfig,
    ConsistentHash,
    CosmodromeError,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
    RequestProducer,
    RetryLater,
    SelectByMachineRoom,
    Sql,
    SuspendQueue,
    TopicReader,
    TransactionProducer,
    select_by_hash,
)
from cosmodrome.client.process_queue import CacheLimits
from cosmodrome.errors import ConfigError, InvalidMessage, InvalidParameter
from cosmodrome.testing import FakeClock, cluster
from tests.unit.client.fake_cluster import fake_cluster

NAMESRV = "127.0.0.1:9876"
QUEUE = MessageQueue("T", "broker-a", 0)


def transaction_producer(*args: Any, **options: Any) -> TransactionProducer:
    return TransactionProducer(*args, check=lambda _: cosmodrome.TransactionState.COMMIT, **options)


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
        lambda: PushConsumer("g", NAMESRV, offsets_file="offsets.json"),
        lambda: PushConsumer("g", NAMESRV, auto_commit=False),
        lambda: PushConsumer("g", NAMESRV, min_threads=2, max_threads=1),
        lambda: PushConsumer("g", NAMESRV, model="everybody"),  # type: ignore[arg-type]
        lambda: PushConsumer("g", NAMESRV, consume_from=None),  # type: ignore[arg-type]
        lambda: PushConsumer("g", NAMESRV, strategy=None),  # type: ignore[arg-type]
        lambda: PushConsumer("g", NAMESRV, consume_hooks=None),  # type: ignore[arg-type]
        lambda: LitePullConsumer("g", NAMESRV, filter_hooks=[7]),  # type: ignore[list-item]
        lambda: PullConsumer("g", NAMESRV, rpc_hooks=[7]),  # type: ignore[list-item]
        lambda: PushConsumer("g", NAMESRV).subscribe("T", "*", 7),  # type: ignore[arg-type]
        lambda: PushConsumer("g", NAMESRV).subscribe("T", "*", print, batch=0),
        lambda: PushConsumer("g", NAMESRV).subscribe("T", 7, print),  # type: ignore[arg-type]
        lambda: PushConsumer("g", NAMESRV).subscribe("T", Sql("price >"), print),
        lambda: PushConsumer("g", NAMESRV).subscribe(None, "*", print),  # type: ignore[arg-type]
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
    ],
)
def test_what_cannot_work_is_refused_with_the_family(refuse: Callable[[], object]) -> None:
    with pytest.raises(CosmodromeError):
        refuse()


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
        with pytest.raises(CosmodromeError, match="not an offset message id"):
            await consumer.view_message("T", "nonsense")


async def test_time_that_runs_backwards_is_refused() -> None:
    with pytest.raises(CosmodromeError, match="backwards"):
        await FakeClock().advance(-1)


# What is raised for somebody other than the application: iterators, descriptors, executors and loops have rules of
# their own.
NOT_FOR_THE_APPLICATION = {
    ("client/feed.py", "StopAsyncIteration"),
    ("client/queue_reader.py", "StopAsyncIteration"),
    ("client/blocking/face.py", "AttributeError"),
    ("client/blocking/face.py", "StopIteration"),
    ("client/lite_pull_consumer.py", "AssertionError"),
    ("client/offsets.py", "AssertionError"),
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

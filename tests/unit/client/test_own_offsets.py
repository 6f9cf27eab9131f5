"""Offsets that an application keeps itself, and those of broadcasting consumers in a directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import (
    ClientConfig,
    LitePullConsumer,
    MessageModel,
    MessageQueue,
    OffsetStore,
    PullConsumer,
    PushConsumer,
    blocking,
)
from cosmodrome.client.instance import local_ip
from cosmodrome.client.own_offsets import OwnOffsets
from cosmodrome.codes import RequestCode
from cosmodrome.errors import ClientError, ConfigError
from tests.bounded import in_thread
from tests.unit.client.fake_cluster import fake_cluster, quick
from tests.unit.client.test_push_consumer import Inbox, consumer_of, turn, until

Q0 = MessageQueue("T", "broker-a", 0)
OTHER = MessageQueue("T", "broker-a", 1)
COMMIT, QUERY = RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET
BROADCAST = {"model": MessageModel.BROADCASTING}


class Table:
    """A store in a dict, of plain functions, which may be out of order."""

    def __init__(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        self.offsets: dict[MessageQueue, Any] = dict(offsets or {})
        self.calls: list[Mapping[MessageQueue, int]] = []
        self.is_down = False

    def read(self, queue: MessageQueue) -> int | None:
        self._check()
        return self.offsets.get(queue)

    def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._check()
        self.calls.append(offsets)
        self.offsets.update(offsets)

    def _check(self) -> None:
        if self.is_down:
            raise OSError("the database is away")


class AsyncTable(Table):
    async def read(self, queue: MessageQueue) -> int | None:  # type: ignore[override]
        return super().read(queue)

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:  # type: ignore[override]
        super().store(offsets)


def as_a_store(store: Table | AsyncTable) -> OffsetStore:
    """Type checkers take both kinds for a store."""
    return store


@pytest.mark.parametrize("kind", [Table, AsyncTable])
@pytest.mark.parametrize("options", [{}, {"orderly": True}, BROADCAST], ids=["shared", "orderly", "broadcast"])
async def test_a_consumer_goes_on_where_its_own_store_says_and_tells_it_how_far_it_is(
    kind: type[Table], options: dict[str, Any]
) -> None:
    store, inbox = kind({Q0: 1}), Inbox()
    async with fake_cluster(T=1) as cluster:
        for body in (b"0", b"1", b"2"):
            await cluster.broker.append("T", 0, body)
        async with consumer_of(cluster, inbox, offset_store=as_a_store(store), **options):
            await inbox.wait_for(2)
            await until(lambda: store.offsets[Q0] == 3, turn)  # while it runs
        assert inbox.bodies == [b"1", b"2"]
        assert not cluster.broker.asked.count(COMMIT)
        assert not cluster.broker.asked.count(QUERY)


async def test_a_store_that_is_away_stops_nothing_and_is_told_later(caplog: pytest.LogCaptureFixture) -> None:
    store, inbox = Table(), Inbox()
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox, offset_store=store):
        store.is_down = True
        await cluster.broker.append("T", 0, b"x")
        await until(lambda: "offsets not stored: queues=1" in caplog.text, turn)
        assert "the offset store failed in store: OSError: the database is away" in caplog.text
        assert inbox.bodies == [b"x"]
        store.is_down = False
        await until(lambda: store.offsets.get(Q0) == 1, turn)


async def test_a_queue_whose_offset_cannot_be_read_is_not_begun_anywhere_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Table()
    store.offsets[Q0] = "seven"
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, print, offset_store=store) as consumer:
        assert consumer.assigned_queues == []
        assert "says 'seven'" in caplog.text


async def test_what_the_store_has_is_not_stored_again() -> None:
    store = Table({Q0: 1})
    offsets = OwnOffsets(store, "")
    assert await offsets.read(Q0) == 1
    await offsets.commit({Q0: 1, OTHER: 5})
    await offsets.commit_soon({Q0: 1, OTHER: 5})
    await offsets.commit_soon({Q0: 2, OTHER: 5})
    assert store.calls == [{OTHER: 5}, {Q0: 2}]


async def test_a_store_knows_topics_by_the_names_of_the_application() -> None:
    store, inbox = Table(), Inbox()
    async with fake_cluster(**{"NS%T": 1}) as cluster:
        config = ClientConfig(namesrv=cluster.namesrv, namespace="NS")
        consumer = PushConsumer("g", config=config, offset_store=store)
        consumer.subscribe("T", "*", inbox)
        async with consumer:
            await cluster.broker.append("NS%T", 0, b"x")
            await inbox.wait_for(1)
    assert store.offsets[Q0] == 1


async def test_pulling_consumers_have_it_as_well() -> None:
    store = Table({Q0: 2})
    async with fake_cluster(T=1) as cluster:
        for _ in range(4):
            await cluster.broker.append("T", 0, b"x")
        lite = LitePullConsumer("g", config=quick(cluster.namesrv), offset_store=store, auto_commit=False)
        lite.subscribe("T")
        async with lite:
            assert len(await lite.poll()) == 2
            assert await lite.committed(Q0) == 2
            await lite.commit()
            assert store.offsets[Q0] == 4
            store.is_down = True
            with pytest.raises(ClientError, match="the database is away"):
                await lite.commit({Q0: 3})
        store.is_down = False
        async with PullConsumer("g", config=quick(cluster.namesrv), offset_store=store) as pull:
            assert await pull.fetch_consume_offset(Q0) == 4


async def test_without_await_neither() -> None:
    store = Table({Q0: 0})

    def use(namesrv: str) -> None:
        consumer = blocking.LitePullConsumer("g", namesrv, offset_store=store)
        consumer.subscribe("T")
        with consumer:
            assert [message.body for message in consumer.poll()] == [b"x"]
            consumer.commit()

    async with fake_cluster(T=1) as cluster:
        await cluster.broker.append("T", 0, b"x")
        await in_thread(use, cluster.namesrv)
    assert store.offsets[Q0] == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"offset_store": object()}, "which has no read"),
        ({"offset_store": Table(), "offsets_dir": "x"}, "give one of them"),
        ({"offsets_dir": "x", "offsets_file": "y", **BROADCAST}, "give one of them"),
        ({"offsets_dir": "x"}, "offsets_dir is for broadcasting"),
    ],
)
def test_a_place_that_cannot_be_is_refused(options: dict[str, Any], text: str) -> None:
    for make in (PushConsumer, LitePullConsumer, PullConsumer):
        with pytest.raises(ConfigError, match=text):
            make("g", "127.0.0.1:9876", **options)


# --- broadcasting


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("offsets.json"))


async def test_in_a_directory_the_file_is_where_java_s_clients_have_it(tmp_path: Path) -> None:
    inbox = Inbox()
    async with fake_cluster(T=1) as cluster:
        for name in ("first", "first", "second"):
            config = ClientConfig(namesrv=cluster.namesrv, instance_name=name)
            consumer = PushConsumer("g", config=config, offsets_dir=tmp_path, **BROADCAST)  # type: ignore[arg-type]
            consumer.subscribe("T", "*", inbox)
            async with consumer:
                await cluster.broker.append("T", 0, b"x")
                await inbox.wait_for(cluster.broker.queues["T", 0][-1].queue_offset + 1)
        default = PushConsumer("g", cluster.namesrv, offsets_dir=tmp_path, **BROADCAST)  # type: ignore[arg-type]
        default.subscribe("T", "*", inbox)
        async with default:
            await cluster.broker.append("T", 0, b"x")
            await inbox.wait_for(4)
    assert files_below(tmp_path) == [f"{local_ip()}@{name}/g/offsets.json" for name in ("DEFAULT", "first", "second")]


def test_who_keeps_broadcast_offsets_in_memory_only_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    PushConsumer("g", "127.0.0.1:9876", offsets_dir=tmp_path, model=MessageModel.BROADCASTING)
    assert not caplog.text
    PushConsumer("g", "127.0.0.1:9876", model=MessageModel.BROADCASTING)
    assert "offsets kept in memory only, a restart forgets them: group=g; give offsets_dir" in caplog.text


@pytest.mark.parametrize("make", [PushConsumer, LitePullConsumer, PullConsumer])
async def test_a_file_of_offsets_belongs_to_one_consumer_at_a_time(tmp_path: Path, make: Any) -> None:
    async with fake_cluster(T=1) as cluster:
        first, second, last = (make("g", cluster.namesrv, offsets_dir=tmp_path, **BROADCAST) for _ in range(3))
        for consumer in (first, second, last):
            if isinstance(consumer, PushConsumer):
                consumer.subscribe("T", "*", print)
        async with first:
            with pytest.raises(ClientError, match=r"offsets\.json belongs to another consumer that runs"):
                await second.start()
        async with last:
            assert last.running


async def test_a_consumer_that_is_made_before_another_ends_goes_on_where_that_one_was(tmp_path: Path) -> None:
    inbox, again = Inbox(), Inbox()
    async with fake_cluster(T=1) as cluster:
        first = consumer_of(cluster, inbox, offsets_dir=tmp_path, **BROADCAST)
        second = consumer_of(cluster, again, offsets_dir=tmp_path, **BROADCAST)
        async with first:
            await cluster.broker.append("T", 0, b"x")
            await inbox.wait_for(1)
        await cluster.broker.append("T", 0, b"y")
        async with second:
            await again.wait_for(1)
    assert again.bodies == [b"y"]

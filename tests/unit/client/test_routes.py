"""Where topics live, and how the client keeps knowing it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cosmodrome.client.routes import (
    RETRY_INTERVAL_MS,
    Routes,
    borrowed_route,
    no_queue_to_write,
    publish_queues,
    subscribe_queues,
)
from cosmodrome.errors import ConnectionFailed, RouteNotFound
from cosmodrome.model import BrokerData, MessageQueue, QueueData, Route
from cosmodrome.testing import FakeClock

POLL_MS = 30_000


def route(*brokers: str, queues: int = 2, perm: int = 6, port: int = 1) -> Route:
    return Route(
        tuple(QueueData(name, queues, queues, perm) for name in brokers),
        tuple(BrokerData("C", name, {0: f"{name}:{port}", 1: f"{name}-slave:{port}"}) for name in brokers),
    )


# --- queues of a route


def test_publish_queues_are_writable_ones_of_brokers_with_a_master_sorted_by_broker() -> None:
    told = Route(
        (QueueData("b", 4, 2, 6), QueueData("a", 4, 1, 2), QueueData("c", 4, 4, 4), QueueData("d", 4, 4, 6)),
        (
            BrokerData("C", "a", {0: "a:1"}),
            BrokerData("C", "b", {0: "b:1"}),
            BrokerData("C", "c", {0: "c:1"}),
            BrokerData("C", "d", {1: "d-slave:1"}),
        ),
    )
    expected = (MessageQueue("T", "a", 0), MessageQueue("T", "b", 0), MessageQueue("T", "b", 1))
    assert publish_queues("T", told) == expected


def test_a_topic_whose_brokers_have_slaves_only_cannot_be_written_to_and_says_so() -> None:
    brokers = (BrokerData("C", "a", {1: "a:1"}), BrokerData("C", "b", {0: "b:1"}), BrokerData("C", "c", {2: "c:1"}))
    assert str(no_queue_to_write("T", Route((), brokers))) == (
        "no queue of topic T may be written to: no master of a, c is registered, only slaves"
    )
    assert str(no_queue_to_write("T", route("a", perm=4))) == "no queue of topic T may be written to"


def test_subscribe_queues_are_readable_ones_also_where_only_a_slave_is_left() -> None:
    told = Route(
        (QueueData("b", 2, 9, 4), QueueData("a", 1, 9, 2)),
        (BrokerData("C", "a", {0: "a:1"}), BrokerData("C", "b", {1: "b-slave:1"})),
    )
    assert subscribe_queues("T", told) == (MessageQueue("T", "b", 0), MessageQueue("T", "b", 1))


def test_an_ordered_topic_has_the_queues_its_configuration_says() -> None:
    told = Route((), (), order_conf="b:2;a:1;nonsense")
    expected = (MessageQueue("T", "b", 0), MessageQueue("T", "b", 1), MessageQueue("T", "a", 0))
    assert publish_queues("T", told) == expected


def test_a_borrowed_route_has_at_most_four_queues_per_broker() -> None:
    borrowed = borrowed_route(Route((QueueData("a", 8, 8, 7), QueueData("b", 3, 8, 7)), ()))
    assert [(data.read_queues, data.write_queues) for data in borrowed.queues] == [(4, 4), (3, 3)]


# --- the cache


class Source:
    """A name server that answers from a dictionary and counts."""

    def __init__(self, **routes: Route) -> None:
        self.routes = routes
        self.asked: Counter[str] = Counter()
        self.away = False

    async def route(self, topic: str) -> Route:
        self.asked[topic] += 1
        await asyncio.sleep(0)
        if self.away:
            raise ConnectionFailed("ns:1", "away")
        if topic not in self.routes:
            raise RouteNotFound(topic)
        return self.routes[topic]


class Watch:
    """Routes over a source, with the time in our hands."""

    def __init__(self, source: Source, *, borrow: bool = False) -> None:
        self.changes = 0
        self.clock = FakeClock()
        self.routes = Routes(source, self.clock, poll_interval_ms=POLL_MS, borrow=borrow, on_change=self._changed)

    def _changed(self) -> None:
        self.changes += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.routes.run())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_many_who_ask_at_once_cost_one_question_and_later_ones_none() -> None:
    source = Source(T=route("a"))
    watch = Watch(source)
    found = await asyncio.gather(*(watch.routes.topic("T") for _ in range(50)))
    assert len(set(map(id, found))) == 1
    assert await watch.routes.topic("T") is watch.routes.find("T")
    assert source.asked == {"T": 1}
    assert watch.changes == 1


async def test_one_who_gives_up_does_not_take_the_answer_from_the_others() -> None:
    watch = Watch(Source(T=route("a")))
    impatient, patient = (asyncio.create_task(watch.routes.topic("T")) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).publish_queues


async def test_a_new_route_is_asked_for_again_at_once_then_ever_less_often() -> None:
    source = Source(T=route("a"))
    watch = Watch(source)
    await watch.routes.topic("T")
    async with watch.running():
        asked_at = []
        for second in range(1, 121):
            before = source.asked["T"]
            await watch.clock.advance(1_000)
            asked_at += [second] * (source.asked["T"] - before)
    assert asked_at == [1, 3, 7, 15, 31, 61, 91]


async def test_a_change_is_seen_at_the_next_poll_and_watched_closely_from_then_on() -> None:
    source = Source(T=route("a"))
    watch = Watch(source)
    await watch.routes.topic("T")
    async with watch.running():
        await watch.clock.advance(10 * POLL_MS)
        source.routes["T"] = route("a", "b")
        asked = source.asked["T"]
        await watch.clock.advance(POLL_MS)
        assert len((await watch.routes.topic("T")).publish_queues) == 4
        assert watch.routes.address("b") == "b:1"
        assert watch.changes == 2
        await watch.clock.advance(POLL_MS)
        assert source.asked["T"] > asked + 4


async def test_the_same_route_in_another_order_is_no_change() -> None:
    source = Source(T=route("a", "b"))
    watch = Watch(source)
    await watch.routes.topic("T")
    source.routes["T"] = route("b", "a")
    async with watch.running():
        await watch.clock.advance(POLL_MS)
        assert source.asked["T"] > 1
        assert watch.changes == 1


async def test_a_topic_that_does_not_exist_yet_is_found_within_a_second_of_its_birth() -> None:
    source = Source()
    watch = Watch(source)
    with pytest.raises(RouteNotFound):
        await watch.routes.topic("T")
    async with watch.running():
        await watch.clock.advance(3 * RETRY_INTERVAL_MS)
        assert watch.routes.find("T") is None
        source.routes["T"] = route("a")
        await watch.clock.advance(RETRY_INTERVAL_MS)
        assert watch.routes.find("T") is not None


async def test_a_new_topic_borrows_the_templates_route_until_the_next_poll() -> None:
    source = Source(TBW102=route("a", queues=8, perm=7))
    watch = Watch(source, borrow=True)
    borrowed = await watch.routes.topic("T")
    assert borrowed.borrowed
    assert len(borrowed.publish_queues) == 4
    async with watch.running():
        source.routes["T"] = route("a", queues=2)
        await watch.clock.advance(POLL_MS - 1)
        assert await watch.routes.topic("T") is borrowed
        await watch.clock.advance(1)
        own = await watch.routes.topic("T")
        assert not own.borrowed
        assert len(own.publish_queues) == 2


async def test_without_template_the_topic_that_was_asked_for_is_named() -> None:
    with pytest.raises(RouteNotFound, match="topic: T"):
        await Watch(Source(), borrow=True).routes.topic("T")


async def test_what_is_known_outlasts_name_servers_that_are_away_or_forgetful() -> None:
    source = Source(T=route("a"))
    watch = Watch(source)
    await watch.routes.topic("T")
    async with watch.running():
        source.away = True
        await watch.clock.advance(POLL_MS)
        source.away = False
        del source.routes["T"]
        await watch.clock.advance(POLL_MS)
        assert source.asked["T"] > 2
        assert (await watch.routes.topic("T")).publish_queues
        assert watch.changes == 1


async def test_a_doubt_is_cleared_within_a_second() -> None:
    source = Source(T=route("a"))
    watch = Watch(source)
    await watch.routes.topic("T")
    async with watch.running():
        source.routes["T"] = route("a", port=2)
        watch.routes.doubt()
        await watch.clock.advance(RETRY_INTERVAL_MS)
        assert watch.routes.address("a") == "a:2"


async def test_a_forgotten_topic_is_not_asked_for_and_its_brokers_are_gone() -> None:
    source = Source(T=route("a"), U=route("b"))
    watch = Watch(source)
    await watch.routes.topic("T")
    await watch.routes.topic("U")
    watch.routes.forget("T")
    async with watch.running():
        await watch.clock.advance(POLL_MS)
    assert source.asked["T"] == 1
    assert watch.routes.addresses(masters_only=True) == {"b:1"}
    assert watch.routes.addresses(masters_only=False) == {"b:1", "b-slave:1"}


async def test_what_was_learned_last_of_a_broker_counts_whatever_older_routes_say() -> None:
    source = Source(T=route("a"), DELETED=route("a"))
    watch = Watch(source)
    await watch.routes.topic("T")
    await watch.routes.topic("DELETED")
    async with watch.running():
        del source.routes["DELETED"]
        source.routes["T"] = route("a", port=2)
        await watch.clock.advance(POLL_MS)
    assert watch.routes.address("a") == "a:2"


async def test_reading_goes_to_the_suggested_member_else_the_master_else_anyone() -> None:
    source = Source(T=route("a"))
    source.routes["U"] = Route((QueueData("b", 1, 1, 6),), (BrokerData("C", "b", {2: "b-slave:1"}),))
    watch = Watch(source)
    await watch.routes.topic("T")
    await watch.routes.topic("U")
    readable = watch.routes.readable_address
    assert readable("a", 1) == ("a-slave:1", 1)
    assert readable("a", 9) == ("a:1", 0)
    assert readable("b", 0) == ("b-slave:1", 2)
    assert readable("unknown", 0) is None
    assert watch.routes.address("b") is None

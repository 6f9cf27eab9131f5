"""Who is connected: when a group must rebalance, and when a client counts as gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cosmodrome.broker.clients import Clients, ConsumerGroup, Member
from cosmodrome.model import ConsumeFrom, ConsumeType, MessageModel, Subscription
from cosmodrome.wire.bodies import ConsumerData

NOW = 1_000_000
SILENT_MS = 120_000


def member(client_id: str = "c", seen_ms: int = NOW) -> Member:
    return Member(client_id, "10.0.0.1:5000", 0, 409, seen_ms)


def consumer(*topics: str, group: str = "g", version: int = 1) -> ConsumerData:
    return ConsumerData(group, subscriptions=tuple(Subscription(topic, version=version) for topic in topics))


@pytest.fixture
def clients() -> Clients:
    return Clients(SILENT_MS)


def group_of(clients: Clients, name: str = "g") -> ConsumerGroup:
    group = clients.find_consumers(name)
    assert group is not None
    return group


def test_a_new_member_makes_its_group_rebalance_and_its_next_heartbeat_does_not(clients: Clients) -> None:
    assert clients.register_consumer(consumer("T"), "conn-1", member("a"))
    assert not clients.register_consumer(consumer("T"), "conn-1", member("a"))
    assert clients.register_consumer(consumer("T"), "conn-2", member("b"))
    assert group_of(clients).client_ids == ["a", "b"]


def test_one_client_id_on_two_connections_counts_twice(clients: Clients) -> None:
    clients.register_consumer(consumer("T"), "conn-1", member("a"))
    assert clients.register_consumer(consumer("T"), "conn-2", member("a"))
    assert group_of(clients).client_ids == ["a", "a"]


def test_a_topic_that_comes_or_goes_makes_the_group_rebalance(clients: Clients) -> None:
    clients.register_consumer(consumer("T"), "conn", member())
    assert clients.register_consumer(consumer("T", "U", version=2), "conn", member())
    assert clients.register_consumer(consumer("U", version=3), "conn", member())
    assert group_of(clients).subscriptions.keys() == {"U"}


def test_a_subscription_changes_only_to_a_newer_one(clients: Clients) -> None:
    def subscribe(expression: str, version: int) -> bool:
        wanted = Subscription("T", expression, version=version)
        return clients.register_consumer(ConsumerData("g", subscriptions=(wanted,)), "conn", member())

    subscribe("A", 5)
    assert not subscribe("B", 5)
    assert not subscribe("C", 4)
    assert group_of(clients).subscriptions["T"].expression == "A"
    assert not subscribe("D", 6), "another expression of the same topic moves no queues"
    assert group_of(clients).subscriptions["T"].expression == "D"


def test_the_last_heartbeat_says_how_a_group_consumes(clients: Clients) -> None:
    data = consumer("T")
    clients.register_consumer(data, "conn", member())
    group = group_of(clients)
    assert (group.consume_type, group.message_model, group.consume_from) == (
        ConsumeType.PASSIVELY,
        MessageModel.CLUSTERING,
        ConsumeFrom.LAST_OFFSET,
    )
    assert not group.broadcasting
    other = replace(
        data,
        consume_type=ConsumeType.ACTIVELY,
        message_model=MessageModel.BROADCASTING,
        consume_from=ConsumeFrom.FIRST_OFFSET,
    )
    clients.register_consumer(other, "conn", member())
    assert (group.consume_type, group.consume_from) == (ConsumeType.ACTIVELY, ConsumeFrom.FIRST_OFFSET)
    assert group.broadcasting


def test_a_group_lives_as_long_as_it_has_members(clients: Clients) -> None:
    clients.register_consumer(consumer("T"), "conn-1", member("a"))
    clients.register_consumer(consumer("T"), "conn-2", member("b"))
    assert clients.unregister_consumer("g", "conn-1")
    assert group_of(clients).client_ids == ["b"]
    assert not clients.unregister_consumer("g", "conn-1"), "it is gone already"
    assert clients.unregister_consumer("g", "conn-2")
    assert clients.find_consumers("g") is None
    assert clients.consumer_groups() == []
    assert not clients.unregister_consumer("g", "conn-2")


def test_producers_come_and_go(clients: Clients) -> None:
    clients.register_producer("p", "conn-1", member("a"))
    clients.register_producer("p", "conn-2", member("b"))
    assert [found.client_id for found in clients.producers("p").values()] == ["a", "b"]
    clients.unregister_producer("p", "conn-1")
    clients.unregister_producer("p", "conn-3")
    clients.unregister_producer("q", "conn-1")
    assert list(clients.producers("p")) == ["conn-2"]
    clients.unregister_producer("p", "conn-2")
    assert clients.producers("p") == {}


def test_a_lost_connection_leaves_all_groups_and_names_those_that_consume(clients: Clients) -> None:
    clients.register_producer("p", "conn", member())
    for group in ("g", "h"):
        clients.register_consumer(consumer("T", group=group), "conn", member())
    clients.register_consumer(consumer("T", group="h"), "other", member("o"))
    clients.register_consumer(consumer("T", group="i"), "other", member("o"))
    assert clients.drop("conn") == ["g", "h"]
    assert clients.producers("p") == {}
    assert [group.name for group in clients.consumer_groups()] == ["h", "i"]
    assert clients.drop("conn") == []


def test_a_member_is_silent_a_millisecond_after_its_time(clients: Clients) -> None:
    clients.register_producer("p", "producer", member(seen_ms=NOW))
    clients.register_consumer(consumer("T"), "consumer", member(seen_ms=NOW + 1))
    assert clients.silent(NOW + SILENT_MS) == set()
    assert clients.silent(NOW + SILENT_MS + 1) == {"producer"}
    assert clients.silent(NOW + SILENT_MS + 2) == {"producer", "consumer"}


def test_a_heartbeat_breaks_the_silence(clients: Clients) -> None:
    clients.register_consumer(consumer("T"), "conn", member(seen_ms=NOW))
    clients.register_consumer(consumer("T"), "conn", member(seen_ms=NOW + SILENT_MS))
    assert clients.silent(NOW + 2 * SILENT_MS) == set()


def test_members_that_want_different_things_are_told_of_once_per_change(clients: Clients) -> None:
    def beat(connection: str, expression: str) -> bool:
        wanted = Subscription("T", expression, version=1)
        clients.register_consumer(
            ConsumerData("g", subscriptions=(wanted,)), connection, member(f"client-{connection}")
        )
        return group_of(clients).take_disagreement_change()

    assert [beat("a", "x"), beat("b", "x"), beat("b", "y"), beat("a", "x"), beat("b", "z")] == [
        False, False, True, False, True,
    ]  # fmt: skip
    assert group_of(clients).disagreement == {"client-a": "T TAG x", "client-b": "T TAG z"}
    assert beat("a", "z")
    assert group_of(clients).disagreement == {}
    beat("b", "y")
    clients.unregister_consumer("g", "b")
    assert group_of(clients).take_disagreement_change()
    assert group_of(clients).disagreement == {}


def test_a_producer_is_found_by_its_client_id_until_its_last_group_leaves(clients: Clients) -> None:
    for group in ("p", "q"):
        clients.register_producer(group, "conn-1", member("a"))
    clients.unregister_producer("p", "conn-1")
    assert clients.find_producer("a") == "conn-1"
    clients.register_producer("q", "conn-2", member("a"))
    clients.drop("conn-1")
    assert clients.find_producer("a") == "conn-2"
    clients.drop("conn-2")
    assert clients.find_producer("a") is None

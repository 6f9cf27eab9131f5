"""Sharing queues: everybody computes it alone, so the shares must fit together."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome import ByConfig, ByMachineRoom, ConsistentHash, MachineRoomNearby, averagely, by_circle
from cosmodrome.client.rebalance import Strategy
from cosmodrome.errors import ClientError, ConfigError
from cosmodrome.model import MessageQueue

ROOMS = ("east", "west", "north")


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.partition("@")[0]


def room_of_client(client_id: str) -> str:
    return ROOMS[len(client_id) % len(ROOMS)]


def nearby(inner: Strategy) -> MachineRoomNearby:
    return MachineRoomNearby(room_of_queue, room_of_client, inner)


# Those that leave no queue of these topics without an owner.
COMPLETE = {
    "averagely": averagely,
    "by_circle": by_circle,
    "consistent_hash": ConsistentHash(),
    "one_virtual_node": ConsistentHash(virtual_nodes=1),
    "all_machine_rooms": ByMachineRoom(ROOMS),
    "nearby": nearby(averagely),
    "nearby_by_hash": nearby(ConsistentHash()),
}
SHARING = {**COMPLETE, "one_machine_room": ByMachineRoom(["east"])}

QUEUES = st.builds(
    lambda counts: [
        MessageQueue("T", f"{ROOMS[i % 3]}@broker-{i}", q) for i, count in enumerate(counts) for q in range(count)
    ],
    st.lists(st.integers(0, 12), max_size=4),
)
CLIENTS = st.lists(st.text("abc@#019\U0001f600\ue000", min_size=1, max_size=6), min_size=1, max_size=12, unique=True)

complete = pytest.mark.parametrize("strategy", COMPLETE.values(), ids=COMPLETE.keys())
SHARING_STRATEGIES = st.sampled_from([*SHARING.values()])


def apaches_share(queues: list[MessageQueue], clients: list[str], me: str) -> list[MessageQueue]:
    """The formula of AVG as the protocol reference gives it."""
    n, m, i = len(queues), len(clients), clients.index(me)
    mod = n % m
    size = 1 if n <= m else (n // m + 1 if mod > 0 and i < mod else n // m)
    start = i * size if mod > 0 and i < mod else i * size + mod
    return queues[start : start + max(0, min(size, n - start))]


def owners(strategy: Strategy, queues: Sequence[MessageQueue], clients: Sequence[str]) -> dict[MessageQueue, str]:
    """Whose each queue is; at most one member may take it."""
    shares = [(queue, client) for client in clients for queue in strategy(queues, clients, client)]
    owner_of = dict(shares)
    assert len(owner_of) == len(shares), shares
    return owner_of


@complete
@given(QUEUES, CLIENTS)
def test_every_queue_has_exactly_one_owner(strategy: Strategy, queues: list[MessageQueue], clients: list[str]) -> None:
    assert owners(strategy, queues, clients).keys() == {*queues}


@given(SHARING_STRATEGIES, QUEUES, CLIENTS, st.integers(0, 1_000))
def test_the_order_in_which_a_broker_lists_them_does_not_matter(
    strategy: Strategy, queues: list[MessageQueue], clients: list[str], seed: int
) -> None:
    me, random = clients[0], Random(seed)
    before = strategy(queues, clients, me)
    random.shuffle(queues)
    random.shuffle(clients)
    assert strategy(queues, clients, me) == before


@given(SHARING_STRATEGIES, QUEUES, CLIENTS)
def test_a_client_the_broker_does_not_know_gets_nothing(
    strategy: Strategy, queues: list[MessageQueue], clients: list[str]
) -> None:
    assert strategy(queues, clients, "unknown") == []
    assert strategy(queues, [], "unknown") == []


@pytest.mark.parametrize("strategy", [averagely, by_circle, ByMachineRoom(ROOMS), ByMachineRoom(["east"])])
@given(queues=QUEUES, clients=CLIENTS)
def test_equal_shares_differ_by_at_most_one(strategy: Strategy, queues: list[MessageQueue], clients: list[str]) -> None:
    sizes = {len(strategy(queues, clients, client)) for client in clients}
    assert max(sizes) - min(sizes) <= 1


@given(QUEUES, CLIENTS)
def test_the_shares_are_apaches(queues: list[MessageQueue], clients: list[str]) -> None:
    ordered = sorted(clients, key=lambda client: client.encode("utf-16-be"))
    for client in clients:
        assert averagely(queues, clients, client) == apaches_share(sorted(queues), ordered, client)


@pytest.mark.parametrize("strategy", [averagely, by_circle, ByMachineRoom([""])])
def test_clients_and_brokers_are_ordered_by_utf16_units_as_in_java(strategy: Strategy) -> None:
    beyond, private = "@\U0001f600", "@\ue000"  # Python puts the private one first, Java the surrogates
    queues = [MessageQueue("T", beyond, 0), MessageQueue("T", private, 0)]
    assert strategy(queues[::-1], [private, beyond], beyond) == [queues[0]]
    assert strategy(queues, [private, beyond], private) == [queues[1]]


@given(QUEUES, CLIENTS)
def test_by_hash_a_member_that_leaves_moves_no_queue_but_its_own(
    queues: list[MessageQueue], clients: list[str]
) -> None:
    """The other way round it is a member that comes, and takes queues without moving one between the others."""
    leaver, *others = clients
    before, after = owners(ConsistentHash(), queues, clients), owners(ConsistentHash(), queues, others)
    stayed = {queue: owner for queue, owner in before.items() if owner != leaver}
    assert not others or after.items() >= stayed.items()


def test_by_hash_everybody_gets_something_of_many_queues() -> None:
    queues = [MessageQueue("T", f"b{i}", q) for i in range(10) for q in range(100)]
    clients = [f"10.0.0.{i}@1" for i in range(10)]
    assert {*owners(ConsistentHash(100), queues, clients).values()} == {*clients}


@given(QUEUES, CLIENTS, st.data())
def test_by_config_each_reads_what_it_is_told_to(
    queues: list[MessageQueue], clients: list[str], data: st.DataObject
) -> None:
    named = data.draw(st.lists(st.sampled_from(queues))) if queues else []
    elsewhere = MessageQueue("other", "b", 0)
    assert ByConfig([*named, elsewhere])(queues, clients, clients[0]) == sorted({*named})
    assert ByConfig([*named, elsewhere])([elsewhere], [], "me") == [elsewhere]


@given(st.integers(1, 5), CLIENTS)
def test_by_config_what_failed_comes_back_to_somebody(count: int, clients: list[str]) -> None:
    retries = [MessageQueue("%RETRY%g", "b", q) for q in range(count)]
    assert owners(ByConfig([MessageQueue("T", "b", 0)]), retries, clients).keys() == {*retries}
    assert ByConfig([retries[0]])(retries, clients, clients[0]) == [retries[0]]


@pytest.mark.parametrize(
    ("broker_name", "is_read"),
    [("east@b", True), ("west@b", False), ("east", False), ("east@", False), ("a@east@b", False), ("east@b@", True)],
)
def test_the_room_of_a_broker_is_the_first_of_two_parts_of_its_name(broker_name: str, is_read: bool) -> None:
    queues = [MessageQueue("T", broker_name, 0)]
    assert ByMachineRoom(["east"])(queues, ["me"], "me") == (queues if is_read else [])


@given(QUEUES, CLIENTS)
def test_nearby_members_read_their_own_room_and_deserted_ones(queues: list[MessageQueue], clients: list[str]) -> None:
    inhabited = {room_of_client(client) for client in clients}
    for queue, owner in owners(nearby(by_circle), queues, clients).items():
        assert room_of_queue(queue) in {room_of_client(owner)} | ({*ROOMS} - inhabited)


@given(QUEUES, CLIENTS)
def test_nearby_every_room_is_shared_by_the_inner_strategy(queues: list[MessageQueue], clients: list[str]) -> None:
    at_home = [client for client in clients if room_of_client(client) == "east"]
    in_east = [queue for queue in queues if room_of_queue(queue) == "east"]
    wanted = owners(averagely, in_east, at_home or clients)
    assert owners(nearby(averagely), queues, clients).items() >= wanted.items()


def test_who_has_no_room_is_named() -> None:
    queue = MessageQueue("T", "b", 7)
    with pytest.raises(ClientError, match="queue_id=7"):
        MachineRoomNearby(lambda _: "", room_of_client)([queue], ["me"], "me")
    with pytest.raises(ClientError, match="no machine room is known for me"):
        MachineRoomNearby(lambda _: "east", lambda _: "")([queue], ["me"], "me")


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="virtual_nodes=0"):
        ConsistentHash(0)
    with pytest.raises(ConfigError, match="'east'"):
        ByMachineRoom("east")


def test_a_strategy_can_be_compared_and_kept_in_a_set() -> None:
    queue = MessageQueue("T", "b", 0)
    assert ByConfig([queue, queue]) == ByConfig((queue,))
    assert {ConsistentHash(), ConsistentHash(10), ByMachineRoom(["east"]), ByMachineRoom({"east"})} == {
        ConsistentHash(),
        ByMachineRoom(["east"]),
    }

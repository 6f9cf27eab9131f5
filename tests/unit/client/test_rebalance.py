"""Average allocation: everybody computes it alone, so the shares must fit together."""

from __future__ import annotations

from itertools import chain
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.client.rebalance import averagely
from cosmodrome.model import MessageQueue

QUEUES = st.builds(
    lambda counts: [MessageQueue("T", f"broker-{i}", q) for i, count in enumerate(counts) for q in range(count)],
    st.lists(st.integers(0, 12), max_size=4),
)
CLIENTS = st.lists(st.text("abc@#019", min_size=1, max_size=6), min_size=1, max_size=12, unique=True)


def apaches_share(queues: list[MessageQueue], clients: list[str], me: str) -> list[MessageQueue]:
    """The formula as the protocol reference gives it."""
    n, m, i = len(queues), len(clients), clients.index(me)
    mod = n % m
    size = 1 if n <= m else (n // m + 1 if mod > 0 and i < mod else n // m)
    start = i * size if mod > 0 and i < mod else i * size + mod
    return queues[start : start + max(0, min(size, n - start))]


@given(QUEUES, CLIENTS)
def test_every_queue_has_exactly_one_owner(queues: list[MessageQueue], clients: list[str]) -> None:
    shares = [averagely(queues, clients, client) for client in clients]
    assert sorted(chain(*shares)) == sorted(queues)


@given(QUEUES, CLIENTS)
def test_shares_differ_by_at_most_one(queues: list[MessageQueue], clients: list[str]) -> None:
    sizes = {len(averagely(queues, clients, client)) for client in clients}
    assert max(sizes) - min(sizes) <= 1


@given(QUEUES, CLIENTS)
def test_the_shares_are_apaches(queues: list[MessageQueue], clients: list[str]) -> None:
    ordered = sorted(clients)
    for client in clients:
        assert averagely(queues, clients, client) == apaches_share(sorted(queues), ordered, client)


@given(QUEUES, CLIENTS, st.randoms())
def test_the_order_in_which_a_broker_lists_them_does_not_matter(
    queues: list[MessageQueue], clients: list[str], random: Random
) -> None:
    before = averagely(queues, clients, clients[0])
    me = clients[0]
    random.shuffle(queues)
    random.shuffle(clients)
    assert averagely(queues, clients, me) == before


def test_a_client_the_broker_does_not_know_gets_nothing() -> None:
    assert averagely([MessageQueue("T", "b", 0)], ["other"], "me") == []
    assert averagely([MessageQueue("T", "b", 0)], [], "me") == []


def test_clients_are_ordered_by_utf16_units_as_in_java() -> None:
    beyond, private = "\U0001f600", "\ue000"  # Python puts the private one first, Java the surrogates
    queues = [MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)]
    assert averagely(queues, [private, beyond], beyond) == [queues[0]]

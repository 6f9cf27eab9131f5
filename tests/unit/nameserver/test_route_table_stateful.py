"""Any interleaving of registrations, goodbyes, lost connections and silence leaves the route table consistent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cosmodrome.errors import RouteNotFound
from cosmodrome.model import DataVersion, TopicConfig
from cosmodrome.nameserver.route_table import Registration, RouteTable

SILENT_MS = 100

names = st.sampled_from(["a", "b", "c"])
clusters = st.sampled_from(["C1", "C2"])
ids = st.integers(0, 2)
addresses = st.sampled_from(["w:1", "x:1", "y:1", "z:1"])
connections = st.sampled_from(["k1", "k2", "k3"])
versions = st.builds(DataVersion, st.just(0), st.integers(0, 2), st.integers(0, 1))
topic_names = st.frozensets(st.sampled_from(["T", "U", "V"]))


@dataclass
class Known:
    """What the model remembers of a broker that should be alive."""

    address: str
    connection: str
    state_version: int
    seen_ms: int
    silent_after_ms: int


class RouteTableMachine(RuleBasedStateMachine):
    """The table beside a model that is as plain as the rules themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.routes = RouteTable(SILENT_MS)
        self.alive: dict[tuple[str, int], Known] = {}
        self.cluster: dict[str, str] = {}
        self.topics: dict[str, set[str]] = {}

    @rule(
        name=names,
        broker_id=ids,
        address=addresses,
        cluster=clusters,
        connection=connections,
        version=versions,
        topics=topic_names,
        patience=st.sampled_from([None, 10]),
        acting=st.sampled_from([None, False, True]),
    )
    def register(
        self,
        name: str,
        broker_id: int,
        address: str,
        cluster: str,
        connection: str,
        version: DataVersion,
        topics: frozenset[str],
        patience: int | None,
        acting: bool | None,
    ) -> None:
        configs = {topic: TopicConfig(topic) for topic in topics}
        registration = Registration(cluster, name, broker_id, address, "", acting, patience, version, configs)
        self.routes.register(registration, self.now_ms, connection)
        self.forget(lambda key, known: key[0] == name and known.address == address and key[1] != broker_id)
        holder = self.alive.get((name, broker_id))
        if holder and holder.address != address and holder.state_version > version.state_version:
            return
        known = Known(address, connection, version.state_version, self.now_ms, patience or SILENT_MS)
        self.alive[name, broker_id] = known
        self.cluster[name] = cluster
        first = broker_id == min(i for n, i in self.alive if n == name)
        if broker_id == 0 or (acting is not None and first):
            self.topics.setdefault(name, set()).update(topics)

    @rule(name=names, address=addresses)
    def unregister(self, name: str, address: str) -> None:
        self.routes.unregister(name, address)
        self.forget(lambda key, known: key[0] == name and known.address == address)
        self.clean()

    @rule(connection=connections)
    def drop_connection(self, connection: str) -> None:
        self.routes.drop_connection(connection)
        self.forget(lambda key, known: known.connection == connection)
        self.clean()

    @rule(ms=st.integers(0, 60))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.routes.expire(self.now_ms)
        self.forget(lambda key, known: self.now_ms - known.seen_ms >= known.silent_after_ms)
        self.clean()

    @rule(name=names, address=addresses)
    def touch(self, name: str, address: str) -> None:
        heard = self.routes.touch(name, address, self.now_ms)
        found = [known for key, known in self.alive.items() if key[0] == name and known.address == address]
        assert (heard is not None) == bool(found)
        for known in found:
            known.seen_ms = self.now_ms

    @rule(topic=st.sampled_from(["T", "U", "V"]))
    def delete_topic(self, topic: str) -> None:
        self.routes.delete_topic(topic)
        for topics in self.topics.values():
            topics.discard(topic)

    def forget(self, gone: Callable[[tuple[str, int], Known], bool]) -> None:
        self.alive = {key: known for key, known in self.alive.items() if not gone(key, known)}

    def clean(self) -> None:
        """A group without brokers takes its topics along."""
        names = {name for name, _ in self.alive}
        self.topics = {name: topics for name, topics in self.topics.items() if name in names}

    @invariant()
    def the_living_are_those_of_the_model(self) -> None:
        told = {(b.broker_name, b.broker_id): b.address for b in self.routes.brokers}
        assert told == {key: known.address for key, known in self.alive.items()}

    @invariant()
    def groups_and_clusters_hold_the_living_and_nobody_else(self) -> None:
        groups = self.routes.groups()
        listed = {(name, i): address for name, data in groups.items() for i, address in data.addresses.items()}
        assert listed == {key: known.address for key, known in self.alive.items()}
        assert {name: data.cluster for name, data in groups.items()} == {n: self.cluster[n] for n in groups}
        in_clusters = [(name, cluster) for cluster, names in self.routes.clusters().items() for name in names]
        assert sorted(in_clusters) == sorted((name, data.cluster) for name, data in groups.items())

    @invariant()
    def an_address_has_one_id_in_its_group(self) -> None:
        for data in self.routes.groups().values():
            assert len(set(data.addresses.values())) == len(data.addresses) > 0

    @invariant()
    def a_topic_is_known_exactly_when_a_living_group_carries_it(self) -> None:
        for topic in ("T", "U", "V"):
            carriers = sorted(name for name, topics in self.topics.items() if topic in topics)
            assert (topic in self.routes.all_topics()) == bool(carriers)
            if not carriers:
                with pytest.raises(RouteNotFound):
                    self.routes.route(topic)
                continue
            route = self.routes.route(topic)
            assert [queue.broker_name for queue in route.queues] == carriers
            assert [data.broker_name for data in route.brokers] == carriers
            assert all(data == self.routes.groups()[data.broker_name] for data in route.brokers)


TestRouteTable = RouteTableMachine.TestCase
TestRouteTable.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

"""The clusters that tests meet, and the Java programs that meet them."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from interop.apache import BROKER_OPTIONS, ApacheBroker, ApacheNameServer, wait_dispatched, wait_routed
from interop.java import RUN_TIMEOUT_S, JavaProgram, Query, Serialize, run_java
from interop.ours import CosmodromeBroker, CosmodromeNameServer, CosmodromeUp
from interop.setup import CLIENT_VERSIONS, SERVER_VERSIONS

OURS = "cosmodrome"
APACHE_CLUSTERS = tuple(f"apache-{version}" for version in SERVER_VERSIONS)
ALL_CLUSTERS = (OURS, *APACHE_CLUSTERS)
OUR_BROKER_UNDER_APACHE = tuple(f"our-broker-under-apache-{version}" for version in SERVER_VERSIONS)
APACHE_BROKER_UNDER_OURS = tuple(f"apache-{version}-broker-under-ours" for version in SERVER_VERSIONS)
IN_EAST = tuple(f"{name}-in-east" for name in ALL_CLUSTERS)
SERIALIZERS: tuple[Serialize, ...] = ("JSON", "ROCKETMQ")

_EASTERN_BROKER = "east@broker"  # a machine room and a name
# A killed consumer's queues stay locked so long; consumers renew their locks every 20 s.
_BROKER_OPTIONS = (*BROKER_OPTIONS, "-Drocketmq.broker.rebalance.lockMaxLiveTime=25000")

_homes = itertools.count(1)

Server = TypeVar("Server", ApacheNameServer, ApacheBroker)


@dataclass(frozen=True, slots=True)
class Cluster:
    """One name server and one broker behind it, whoever wrote them."""

    name: str
    namesrv: str
    broker_name: str
    broker_address: str

    def settle(self, topic: str) -> None:
        """Return once everybody sees what was sent to the topic, which may just have come into being."""
        wait_routed(self.namesrv, topic)
        wait_dispatched(self.broker_address)


class Lab:
    """What tests share; each cluster and each Query is started once, on first use, and ended with the stack.

    An idle broker of Apache 5 takes a fifth of a core, so clusters of few tests are better put into a `wing`.
    """

    def __init__(self, home: Path, stack: ExitStack, main: Lab | None = None) -> None:
        self._home = home
        self._stack = stack
        self._main = main
        self._clusters: dict[str, Cluster] = {}
        self._queries: dict[tuple[str, str], Query] = {}

    def wing(self, stack: ExitStack) -> Lab:
        """The same laboratory, but clusters with a speciality end with this stack."""
        return Lab(self._home, stack, self)

    def cluster(self, name: str) -> Cluster:
        if self._main is not None and name in ALL_CLUSTERS:
            return self._main.cluster(name)
        if name not in self._clusters:
            namesrv, broker_name, address = self._start(name, self.fresh_home(name))
            self._clusters[name] = Cluster(name, namesrv, broker_name, address)
        return self._clusters[name]

    def query(self, cluster: Cluster, version: str) -> Query:
        if self._main is not None and cluster.name in ALL_CLUSTERS:
            return self._main.query(cluster, version)
        key = cluster.name, version
        if key not in self._queries:
            query = Query(version, cluster.namesrv)
            self._queries[key] = self._stack.enter_context(query)
        return self._queries[key]

    def run(
        self,
        version: str,
        program: str,
        cluster: Cluster,
        arguments: dict[str, object],
        serialize: Serialize = "JSON",
        timeout_s: float = RUN_TIMEOUT_S,
    ) -> JavaProgram:
        """Run a Java program against the cluster to its end; a topic that it made by sending has a route then."""
        words = {"namesrv": cluster.namesrv, **arguments}
        ended = run_java(version, program, words, serialize, timeout_s)
        if program == "Produce":
            wait_routed(cluster.namesrv, str(arguments["topic"]))
        return ended

    def start(
        self,
        version: str,
        program: str,
        cluster: Cluster,
        arguments: dict[str, object],
        *,
        alone: bool = False,
    ) -> JavaProgram:
        """Start a Java program against the cluster; the caller uses it as a context manager."""
        words = {"namesrv": cluster.namesrv, **arguments}
        running = JavaProgram(version, program, words, alone=alone)
        try:
            running.wait_ready()
        except BaseException:
            running.stop()
            raise
        return running

    def fresh_home(self, name: str) -> Path:
        home = self._home / f"{name}-{next(_homes)}"
        home.mkdir()
        return home

    def _start(self, name: str, home: Path) -> tuple[str, str, str]:
        """The name server's address, the broker's name and the broker's address."""
        if name == OURS:
            up = self._stack.enter_context(CosmodromeUp(home))
            return up.namesrv, up.broker_name, up.address
        if name == f"{OURS}-in-east":
            namesrv = self._stack.enter_context(CosmodromeNameServer(home / "namesrv")).address
            broker = self._stack.enter_context(CosmodromeBroker(namesrv, home / "broker", _EASTERN_BROKER))
            return namesrv, broker.broker_name, broker.address
        version = next(version for version in SERVER_VERSIONS if version in name)
        namesrv = self._start_namesrv(name, version, home / "namesrv")
        if name in OUR_BROKER_UNDER_APACHE:
            broker = self._stack.enter_context(CosmodromeBroker(namesrv, home / "broker"))
            return namesrv, broker.broker_name, broker.address
        broker_name = _EASTERN_BROKER if name in IN_EAST else "apache-broker"
        apache = self._throwaway(ApacheBroker(version, namesrv, home / "broker", broker_name, _BROKER_OPTIONS))
        return namesrv, apache.broker_name, apache.address

    def _start_namesrv(self, name: str, version: str, home: Path) -> str:
        if name in APACHE_BROKER_UNDER_OURS:
            return self._stack.enter_context(CosmodromeNameServer(home)).address
        return self._throwaway(ApacheNameServer(version, home)).address

    def _throwaway(self, server: Server) -> Server:
        # Apache's servers take some ten seconds to end in good order, and nothing reads what they leave behind.
        self._stack.callback(server.kill)
        return server


def other_version(version: str) -> str:
    """The client version that is not this one, so that a message crosses from one generation to the other."""
    return next(other for other in CLIENT_VERSIONS if other != version)

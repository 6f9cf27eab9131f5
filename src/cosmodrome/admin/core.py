"""How `Admin` reaches name servers and brokers: one client, calls in parallel with a bound, partial answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from cosmodrome.admin.results import BrokerNode, Cluster, Done, Unanswered
from cosmodrome.client.hooks import RpcHook
from cosmodrome.client.instance import Instance
from cosmodrome.client.lifecycle import Startable
from cosmodrome.client.settings import client_config
from cosmodrome.clock import Clock, SystemClock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig, parse_addresses
from cosmodrome.errors import BrokerError, ClientError, CosmodromeError, InvalidArgument
from cosmodrome.model import MASTER_ID, BrokerData, Route
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header

T = TypeVar("T")

MAX_PARALLEL = 32  # calls under way at once
ASK_MS = 5_000  # brokers may look through all queues of a group


class AdminCore(Startable):
    """A running client that asks name servers and brokers what clients do not ask."""

    def __init__(
        self,
        namesrv: str = "",
        *,
        rpc_hooks: Sequence[RpcHook] = (),
        config: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self.config = client_config(config, namesrv)
        self.rpc_hooks = tuple(rpc_hooks)
        self._clock = clock or SystemClock()
        self._instance = Instance(self.config, self._clock, None, rpc_hooks=rpc_hooks)
        self._slots = asyncio.Semaphore(MAX_PARALLEL)

    async def _start(self) -> None:
        self._instance.start()

    async def _stop(self) -> None:
        await self._instance.stop()

    @property
    def now_ms(self) -> int:
        """The time of this machine, in ms since 1970."""
        return self._clock.now_ms()

    # --- the cluster

    async def cluster(self) -> Cluster:
        """Return every broker that the name server knows."""
        self._require_running()
        groups = (await self._instance.name_servers.cluster()).brokers.values()
        return Cluster(tuple(sorted((node for group in groups for node in nodes_of(group)), key=_by_name)))

    async def targets(
        self, broker: str = "", cluster: str = "", *, with_slaves: bool = False
    ) -> tuple[BrokerNode, ...]:
        """Return the brokers that a request is for: one by its name or address, those of a cluster, or all.

        Of each name it is the master, or a slave while there is no master; `with_slaves` are all of them. An address
        that the name server does not know is taken as it is.
        """
        if broker and cluster:
            raise InvalidArgument(f"give a broker or a cluster: {broker} and {cluster} are both")
        brokers = (await self.cluster()).brokers
        if broker:
            found = [node for node in brokers if broker in (node.broker_name, node.address)]
            if found:
                is_address = any(node.address == broker for node in found)
                return tuple(found) if with_slaves or is_address else (found[0],)
            if ":" in broker:
                (address,) = parse_addresses(broker)
                return (BrokerNode("", address, MASTER_ID, address),)
            raise InvalidArgument(
                f"no broker {broker}; the name server knows {_listed(n.broker_name for n in brokers)}"
            )
        if cluster:
            found = [node for node in brokers if node.cluster == cluster]
            if not found:
                raise InvalidArgument(
                    f"no cluster {cluster}; the name server knows {_listed(n.cluster for n in brokers)}"
                )
            brokers = tuple(found)
        return brokers if with_slaves else first_of_each(brokers)

    async def _nodes_of_topic(self, topic: str) -> tuple[BrokerNode, ...]:
        """Return the first member of each broker that has the topic; RouteNotFound if none has."""
        route: Route = await self._instance.name_servers.route(topic)
        return first_of_each(node for group in route.brokers for node in nodes_of(group))

    # --- asking

    async def _ask(
        self,
        node: BrokerNode | str,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        timeout_ms: int = ASK_MS,
    ) -> Command:
        address = node if isinstance(node, str) else node.address
        async with self._slots:
            return await self._instance.ask(address, Command.request(code, header, body), timeout_ms)

    async def _ask_each(
        self, nodes: Iterable[BrokerNode], ask: Callable[[BrokerNode], Awaitable[T]]
    ) -> tuple[list[tuple[BrokerNode, T]], tuple[Unanswered, ...]]:
        """Ask all nodes at once; return what each said, and who did not answer.

        If all fail, and for the same lasting reason such as a wrong key, that error is raised.
        """
        asked = list(nodes)
        outcomes = await asyncio.gather(*(_outcome(ask(node)) for node in asked))
        answers = [
            (node, one) for node, one in zip(asked, outcomes, strict=True) if not isinstance(one, CosmodromeError)
        ]
        errors = [(node, one) for node, one in zip(asked, outcomes, strict=True) if isinstance(one, CosmodromeError)]
        if errors and not answers and all(error.is_lasting for _, error in errors):
            raise errors[0][1]
        return answers, tuple(unanswered(node, error) for node, error in errors)

    async def _do_on(
        self, nodes: Sequence[BrokerNode], code: RequestCode, header: Header | None = None, body: bytes = b""
    ) -> Done:
        """Have each node do the same; return where it was done."""

        async def do(node: BrokerNode) -> None:
            await self._ask(node, code, header, body)

        done, missing = await self._ask_each(nodes, do)
        return Done(tuple(node for node, _ in done), "", missing)

    async def _masters(self, broker: str = "", cluster: str = "") -> tuple[BrokerNode, ...]:
        """Return the brokers that a change is for; a name without a master cannot be changed."""
        nodes = await self.targets(broker, cluster)
        if not nodes:
            raise ClientError(f"{self._instance.name_servers.described} knows no broker; start one, and try again")
        return nodes

    async def _ask_name_server(self, code: RequestCode, header: Header | None = None) -> Command:
        """Ask one of the name servers, any of which will do."""
        self._require_running()
        return await self._instance.name_servers.ask(code, header)

    @property
    def _name_servers(self) -> list[BrokerNode]:
        """All name servers, in the order of their addresses, in the form of nodes."""
        return [BrokerNode("", one, MASTER_ID, one) for one in sorted(self._instance.name_servers.addresses)]


async def _outcome(asking: Awaitable[T]) -> T | CosmodromeError:
    try:
        return await asking
    except CosmodromeError as error:
        return error


def unanswered(node: BrokerNode, error: CosmodromeError) -> Unanswered:
    """Return an error as what stands in a result."""
    if not isinstance(error, BrokerError):
        return Unanswered(node.broker_name, node.address, str(error))
    reason = error.remark or str(error)
    if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        reason = f"this broker does not know the request: {reason}"
    return Unanswered(node.broker_name, node.address, reason, error.code)


def refused_with(error: ClientError, *codes: ResponseCode) -> bool:
    """Return whether a broker refused with one of these codes."""
    return isinstance(error, BrokerError) and error.code in codes


def nodes_of(group: BrokerData) -> list[BrokerNode]:
    """Return the members of a broker group, the master first."""
    return [
        BrokerNode(group.cluster, group.broker_name, broker_id, address)
        for broker_id, address in sorted(group.addresses.items())
    ]


def first_of_each(nodes: Iterable[BrokerNode]) -> tuple[BrokerNode, ...]:
    """Return of each name the node with the smallest id: its master, if it has one."""
    first: dict[str, BrokerNode] = {}
    for node in sorted(nodes, key=_by_name):
        first.setdefault(node.broker_name, node)
    return tuple(first.values())


def _by_name(node: BrokerNode) -> tuple[str, str, int]:
    return node.cluster, node.broker_name, node.broker_id


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))) or "none"

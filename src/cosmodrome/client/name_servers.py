"""Asking one of several name servers, any of which will do."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence

from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import BrokerError, CallTimeout, ClientError, ConnectionFailed, RouteNotFound
from cosmodrome.model import BrokerData, Route
from cosmodrome.net.caller import Caller
from cosmodrome.wire.bodies import ClusterInfo, decode_route
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.name_server_requests import GetRoute

log = logging.getLogger(__name__)

# One that hangs must leave time for the next within the time-out of a send, however long calls may take.
LONGEST_WAIT_MS = 1_000
# Also the last is given a chance when the loop was busy and no time is left.
SHORTEST_WAIT_MS = 100


class NameServers:
    """Sticks to one name server while it answers and goes on to the next when it does not.

    The first is chosen at random, so that many clients spread over all of them. All share the deadline of a question.
    """

    def __init__(self, caller: Caller, addresses: Sequence[str], timeout_ms: int) -> None:
        self._caller = caller
        self._timeout_ms = timeout_ms
        self.use(addresses)

    @property
    def addresses(self) -> Sequence[str]:
        return self._addresses

    @property
    def described(self) -> str:
        """The servers that are asked, as the subject of a sentence."""
        return "name server " + ";".join(sorted(self._addresses)) if self._addresses else "every name server"

    def use(self, addresses: Sequence[str]) -> None:
        self._addresses = random.sample(addresses, len(addresses))

    async def route(self, topic: str) -> Route:
        """Where the topic lives. RouteNotFound when the name server does not know it; ClientError when none answers."""
        header = GetRoute(topic, accept_standard_json_only=True)
        reply = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            raise RouteNotFound(topic)
        return decode_route(bytes(reply.body))

    async def slaves_without_master(self) -> tuple[str, ...]:
        """Return the names of all broker groups if none of them has a master, else nothing."""
        brokers = (await self.brokers()).values()
        return () if any(broker.master for broker in brokers) else tuple(sorted(one.broker_name for one in brokers))

    async def brokers(self) -> Mapping[str, BrokerData]:
        """Return every broker group by its name."""
        return (await self.cluster()).brokers

    async def cluster(self) -> ClusterInfo:
        """Return all broker groups and clusters."""
        reply = await self.ask(RequestCode.GET_BROKER_CLUSTER_INFO, None)
        return ClusterInfo.decode(bytes(reply.body))

    async def ask(self, code: RequestCode, header: Header | None) -> Command:
        """Each is asked once, whatever those who ask at the same time make of the order."""
        deadline = _now_ms() + self._timeout_ms
        addresses = list(self._addresses)
        for index, address in enumerate(addresses):
            wait_ms = _wait_ms(deadline - _now_ms(), len(addresses) - index)
            try:
                return await self._ask_one(address, Command.request(code, header), wait_ms)
            except (ConnectionFailed, CallTimeout, BrokerError) as error:
                failure: ClientError = _as_name_server(error)
                log.warning("name server: %s", failure)
            self._put_last(address)
        raise failure

    async def _ask_one(self, address: str, command: Command, wait_ms: float) -> Command:
        reply = await self._caller.call(address, command, wait_ms)
        if reply.code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
            raise BrokerError(reply.code, reply.remark or "", address)
        return reply

    def _put_last(self, failed: str) -> None:
        """Unless somebody else has done so, or others are in use by now."""
        if self._addresses[0] == failed:
            self._addresses.append(self._addresses.pop(0))


def _as_name_server(error: ConnectionFailed | CallTimeout | BrokerError) -> ClientError:
    """Return the error as one of a name server: where another kind of server answers, the text says so."""
    if isinstance(error, BrokerError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        hint = "it is no name server, which usually listens on port 9876; a broker's is usually 10911"
        return BrokerError(error.code, f"{error.remark.strip()}; {hint}", error.address)
    return error


def _wait_ms(left_ms: float, servers: int) -> float:
    """How long to wait for the first of those not yet asked; the last has all that is left."""
    part_ms = left_ms if servers == 1 else min(left_ms / servers, LONGEST_WAIT_MS)
    return max(part_ms, SHORTEST_WAIT_MS)


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000

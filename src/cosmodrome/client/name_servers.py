"""Asking one of several name servers, any of which will do."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import BrokerError, CallTimeout, ClientError, ConnectionFailed, RouteNotFound
from cosmodrome.model import Route
from cosmodrome.net.caller import Caller
from cosmodrome.wire.bodies import decode_route
from cosmodrome.wire.command import Command
from cosmodrome.wire.name_server_requests import GetRoute

log = logging.getLogger(__name__)


class NameServers:
    """Sticks to one name server while it answers and goes on to the next when it does not.

    The first is chosen at random, so that many clients spread over all of them.
    """

    def __init__(self, caller: Caller, addresses: Sequence[str], timeout_ms: int) -> None:
        self._caller = caller
        self._timeout_ms = timeout_ms
        self.use(addresses)

    @property
    def addresses(self) -> Sequence[str]:
        return self._addresses

    def use(self, addresses: Sequence[str]) -> None:
        self._addresses = random.sample(addresses, len(addresses))

    async def route(self, topic: str) -> Route:
        """Where the topic lives. RouteNotFound when the name server does not know it; ClientError when none answers."""
        header = GetRoute(topic, accept_standard_json_only=True)
        reply = await self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            raise RouteNotFound(topic)
        return decode_route(bytes(reply.body))

    async def _ask(self, code: RequestCode, header: GetRoute) -> Command:
        for _ in range(len(self._addresses)):
            try:
                return await self._ask_first(Command.request(code, header))
            except (ConnectionFailed, CallTimeout, BrokerError) as error:
                log.warning("name server: %s", error)
                failure: ClientError = error
            self._addresses.append(self._addresses.pop(0))
        raise failure

    async def _ask_first(self, command: Command) -> Command:
        address = self._addresses[0]
        reply = await self._caller.call(address, command, self._timeout_ms)
        if reply.code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
            raise BrokerError(reply.code, reply.remark or "", address)
        return reply

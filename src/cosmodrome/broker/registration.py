"""Telling the name servers what this broker has: when it starts, whenever a topic changes, and every 30 s."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable

from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import ClientError
from cosmodrome.net.caller import Caller
from cosmodrome.wire.bodies import RegisterBrokerBody
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import BrokerHeader, RegisterBroker

log = logging.getLogger(__name__)

RETRY_MS = 1_000  # a name server that did not answer is tried again this soon
MIN_PERIOD_MS, MAX_PERIOD_MS = 10_000, 60_000
UNREGISTER_TIMEOUT_MS = 3_000
ANNOUNCE_TIMEOUT_MS = 3_000


class Registration:
    """Registers with every name server on its own, so that one that is down does not keep the others waiting."""

    def __init__(
        self, config: BrokerConfig, caller: Caller, clock: Clock, body: Callable[[], RegisterBrokerBody]
    ) -> None:
        self._config = config
        self._caller = caller
        self._clock = clock
        self._address = ""
        self._body = body
        self._period_ms = min(max(config.register_name_server_period, MIN_PERIOD_MS), MAX_PERIOD_MS)
        self._changed = {name_server: asyncio.Event() for name_server in config.name_servers}
        self._reachable = dict.fromkeys(config.name_servers, True)

    async def start(self, address: str) -> None:
        """Register `address` everywhere once, whatever the outcome; `run` keeps it registered."""
        self._address = address
        await self.announce()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name_server in self._changed:
                tasks.create_task(self._follow(name_server))

    def topics_changed(self) -> None:
        """Tell every name server soon; changes made until then travel together."""
        for event in self._changed.values():
            event.set()

    async def announce(self) -> None:
        """Tell every name server now and return when all have answered or failed."""
        await asyncio.gather(*(self._register(name_server, ANNOUNCE_TIMEOUT_MS) for name_server in self._changed))

    async def _follow(self, name_server: str) -> None:
        changed = self._changed[name_server]
        while True:
            wait_ms = self._period_ms if self._reachable[name_server] else RETRY_MS
            await self._sleep_unless(changed, wait_ms)
            changed.clear()
            await self._register(name_server, self._config.register_broker_timeout_mills)

    async def _sleep_unless(self, event: asyncio.Event, ms: int) -> None:
        waits = {asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._clock.sleep(ms))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _register(self, name_server: str, timeout_ms: int) -> None:
        body = self._body().encode()
        header = RegisterBroker(
            self._config.broker_name,
            self._address,
            self._config.broker_cluster_name,
            self._config.broker_id,
            ha_server_addr=self._address,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        request = Command.request(RequestCode.REGISTER_BROKER, header, body)
        try:
            reply = await self._caller.call(name_server, request, timeout_ms)
        except ClientError as error:
            self._note(name_server, str(error))
            return
        self._note(
            name_server, None if reply.code == ResponseCode.SUCCESS else f"answered {reply.code}: {reply.remark}"
        )

    def _note(self, name_server: str, problem: str | None) -> None:
        """Log a name server's coming and going, not every round."""
        was_reachable = self._reachable[name_server]
        self._reachable[name_server] = problem is None
        if problem and was_reachable:
            log.warning("cannot register with name server %s: %s; trying on", name_server, problem)
        elif not problem and not was_reachable:
            log.info("registered with name server %s again", name_server)

    async def leave(self) -> None:
        """Unregister everywhere, so that clients turn elsewhere at once."""
        await asyncio.gather(*(self._unregister(name_server) for name_server in self._changed))

    async def _unregister(self, name_server: str) -> None:
        config = self._config
        header = BrokerHeader(config.broker_name, self._address, config.broker_cluster_name, config.broker_id)
        try:
            request = Command.request(RequestCode.UNREGISTER_BROKER, header)
            await self._caller.call(name_server, request, UNREGISTER_TIMEOUT_MS)
        except ClientError as error:
            log.info("name server %s did not hear us leave: %s", name_server, error)

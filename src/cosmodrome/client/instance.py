"""What producers and consumers share: one client as its brokers see it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

from cosmodrome.client.bell import Bell
from cosmodrome.client.lifecycle import cancelled
from cosmodrome.client.name_servers import NameServers
from cosmodrome.client.routes import Routes
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig, NetConfig
from cosmodrome.errors import BrokerError, ClientError, ConnectionFailed, CosmodromeError
from cosmodrome.model import MASTER_ID
from cosmodrome.net.caller import Caller, refuse
from cosmodrome.net.connection import Connection, Handler
from cosmodrome.wire.bodies import HeartbeatData
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import UnregisterClient

log = logging.getLogger(__name__)

# A broker that missed a heartbeat is told again this soon, since until it knows us it answers no pull; and no sooner,
# since one that closes every connection at once would otherwise be called without a pause.
HEARTBEAT_MIN_DISTANCE_MS = 1_000
# A broker that does not answer a goodbye will notice the closed connection.
GOODBYE_TIMEOUT_MS = 1_000

_DEFAULT_INSTANCE = "DEFAULT"
_ANY_PUBLIC_ADDRESS = ("192.0.2.1", 9)  # of a range kept for documentation; connecting a UDP socket sends nothing
_instance_numbers = itertools.count(time.monotonic_ns())


class Instance:
    """A client id, connections, routes and a heartbeat.

    `announce` says what a heartbeat tells; without it brokers never hear of this client. `handlers` answer what brokers
    ask of their clients, by request code; what has no handler is refused with REQUEST_CODE_NOT_SUPPORTED. While
    started, every broker in the routes is told of this client at least once per heartbeat interval, and soon after it
    appears or its connection is lost.
    """

    def __init__(
        self,
        config: ClientConfig,
        clock: Clock,
        announce: Callable[[str], HeartbeatData] | None,
        *,
        borrow_routes: bool = False,
        heartbeat_to_slaves: bool = False,
        on_routes_changed: Callable[[], None] | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._announce = announce
        self._heartbeat_to_slaves = heartbeat_to_slaves
        self._on_routes_changed = on_routes_changed
        self._heartbeat_due = Bell(clock)
        self._all_told = True
        self._tasks: set[asyncio.Task[None]] = set()
        self.ip = local_ip()
        self.client_id = client_id(self.ip, config)
        self.handlers: dict[int, Handler] = {}
        self.caller = Caller(self._answer, config=NetConfig(), on_close=self._connection_lost)
        self.routes = Routes(
            NameServers(self.caller, config.name_servers, config.call_timeout_ms),
            clock,
            poll_interval_ms=config.poll_route_interval_ms,
            borrow=borrow_routes,
            on_change=self._routes_changed,
        )

    def start(self) -> None:
        self.run(self.routes.run(), "routes")
        if self._announce is not None:
            self.run(self._heartbeats(), "heartbeats")

    def run(self, part: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a part in the background, at most until `stop`."""
        task = asyncio.create_task(part, name=f"{self.client_id} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%s ended; this client no longer works", task.get_name(), exc_info=error)

    async def stop(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Stop every part, tell the brokers goodbye and close the connections."""
        await cancelled(self._tasks)
        if self._announce is not None:
            goodbye = UnregisterClient(self.client_id, producer_group, consumer_group)
            await asyncio.gather(*(self._say_goodbye(address, goodbye) for address in self._known_by()))
        await self.caller.close()

    def _known_by(self) -> set[str]:
        """Brokers that may know us: the connected ones of the routes."""
        connected = set(self.caller.connected())
        return connected & self.routes.addresses(masters_only=not self._heartbeat_to_slaves)

    async def _say_goodbye(self, address: str, goodbye: UnregisterClient) -> None:
        try:
            await self.ask(address, Command.request(RequestCode.UNREGISTER_CLIENT, goodbye), GOODBYE_TIMEOUT_MS)
        except CosmodromeError as error:
            log.info("not unregistered: %s", error)

    async def ask(self, address: str, command: Command, timeout_ms: float | None = None) -> Command:
        """The broker's reply, or BrokerError when it refuses."""
        reply = await self.caller.call(address, command, timeout_ms or self._config.call_timeout_ms)
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerError(reply.code, reply.remark or "", address)
        return reply

    def master(self, broker_name: str) -> str:
        """Where the broker's master is; ConnectionFailed when no route names it."""
        address = self.routes.address(broker_name)
        if address is None:
            raise ConnectionFailed(broker_name, "no route names a master of this broker")
        return address

    def member(self, broker_name: str) -> str:
        """Where a member of the broker's group is, the master if there is one; ConnectionFailed when none is known."""
        place = self.routes.readable_address(broker_name, MASTER_ID)
        if place is None:
            raise ConnectionFailed(broker_name, "no route names this broker")
        return place[0]

    # --- heartbeats

    def heartbeat_soon(self) -> None:
        self._heartbeat_due.ring()

    async def heartbeat(self) -> None:
        """Tell every broker in the routes who we are. Failures are logged and made up for by the next round."""
        assert self._announce is not None, "a client that is not announced has no heartbeat"
        body = self._announce(self.client_id).encode()
        addresses = self.routes.addresses(masters_only=not self._heartbeat_to_slaves)
        told = await asyncio.gather(*(self._tell(address, body) for address in addresses))
        self._all_told = all(told)

    async def _tell(self, address: str, body: bytes) -> bool:
        try:
            await self.ask(address, Command.request(RequestCode.HEART_BEAT, body=body))
        except ClientError as error:
            log.warning("heartbeat failed: %s", error)
            self.routes.doubt()
            return False
        return True

    async def _heartbeats(self) -> None:
        while True:
            if self._all_told:
                await self._heartbeat_due.wait(self._config.heartbeat_interval_ms - HEARTBEAT_MIN_DISTANCE_MS)
            await self.heartbeat()
            await self._clock.sleep(HEARTBEAT_MIN_DISTANCE_MS)

    def _routes_changed(self) -> None:
        self.heartbeat_soon()
        if self._on_routes_changed is not None:
            self._on_routes_changed()

    def _connection_lost(self, _connection: Connection) -> None:
        """A broker forgets its clients with their connections, so connect and tell it again."""
        self.heartbeat_soon()

    # --- what brokers ask of us

    async def _answer(self, connection: Connection, command: Command) -> Command | None:
        handler = self.handlers.get(command.code, refuse)
        try:
            return await handler(connection, command)
        except CosmodromeError as error:
            log.warning("%s asked %s: %s", connection.peer, command, error)
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except Exception:
            log.exception("answering %s of %s failed", command, connection.peer)
            return command.reply(ResponseCode.SYSTEM_ERROR, remark="internal error; see the client's log")


def client_id(ip: str, config: ClientConfig) -> str:
    """`ip@instance[@unit]`; the instance name DEFAULT becomes one that no other client in the world has."""
    name = config.instance_name
    if name == _DEFAULT_INSTANCE:
        name = f"{os.getpid()}#{next(_instance_numbers)}"
    return "@".join(filter(None, (ip, name, config.unit_name)))


def local_ip() -> str:
    """The address this machine shows to others, as far as it can be known without asking them."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_ANY_PUBLIC_ADDRESS)
        ip: str = probe.getsockname()[0]
        return ip
    return "127.0.0.1"

"""What producers and consumers share: one client as its brokers see it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence, Set
from typing import Any
from weakref import WeakValueDictionary

from cosmodrome.client.bell import Bell
from cosmodrome.client.hooks import RpcHook, check_hooks
from cosmodrome.client.lifecycle import cancelled
from cosmodrome.client.name_server_lookup import NameServerLookup
from cosmodrome.client.name_servers import NameServers
from cosmodrome.client.routes import NewTopics, Routes
from cosmodrome.client.vip import VipCaller
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig, NetConfig
from cosmodrome.errors import AlreadyStarted, BrokerError, ClientError, ConfigError, ConnectionFailed, CosmodromeError
from cosmodrome.model import MASTER_ID
from cosmodrome.net.caller import Caller, refuse
from cosmodrome.net.connection import Connection, ConnectionCallback, Handler
from cosmodrome.net.tls import client_context
from cosmodrome.wire.bodies import HeartbeatData
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import UnregisterClient

log = logging.getLogger(__name__)

# A broker that missed a heartbeat is told again this soon, since until it knows us it answers no pull; and no sooner,
# since one that closes every connection at once would otherwise be called without a pause.
HEARTBEAT_MIN_DISTANCE_MS = 1_000
# Well below the time that a send has: a broker that comes back must be found by it.
RECONNECT_MAX_MS = 1_000
# A broker that does not answer a goodbye will notice the closed connection.
GOODBYE_TIMEOUT_MS = 1_000

DEFAULT_INSTANCE = "DEFAULT"
_ANY_PUBLIC_ADDRESS = ("192.0.2.1", 9)  # of a range kept for documentation; connecting a UDP socket sends nothing
_instance_numbers = itertools.count(time.monotonic_ns())
# What only one client of a client id may be at a time, in this process, and who is: (process, client id, role).
_claims: WeakValueDictionary[tuple[int, str, str], Instance] = WeakValueDictionary()


class _HookedCaller(Caller):
    """Shows every request, and its reply, to hooks that may change or refuse it."""

    def __init__(
        self,
        hooks: Sequence[RpcHook],
        handler: Handler,
        *,
        config: NetConfig,
        on_close: ConnectionCallback,
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(handler, config=config, on_close=on_close, tls=tls)
        self._hooks = tuple(hooks)

    def show(self, address: str, command: Command) -> None:
        for hook in self._hooks:
            hook.before_request(address, command)

    async def call(
        self, address: str, command: Command, timeout_ms: float, connect_timeout_ms: float | None = None
    ) -> Command:
        self.show(address, command)
        reply = await super().call(address, command, timeout_ms, connect_timeout_ms)
        for hook in self._hooks:
            hook.after_response(address, command, reply)
        return reply

    async def oneway(self, address: str, command: Command) -> None:
        self.show(address, command)
        await super().oneway(address, command)


class _HookedVipCaller(_HookedCaller, VipCaller):
    """Shows requests with the address of the broker, whichever channel they take."""


class Instance:
    """A client id, connections, routes and a heartbeat.

    `announce` says what a heartbeat tells; without it brokers never hear of this client. `handlers` answer what brokers
    ask of their clients, by request code; what has no handler is refused with REQUEST_CODE_NOT_SUPPORTED. While
    started, every broker in the routes is told of this client at least once per heartbeat interval, and soon after it
    appears or its connection is lost. `rpc_hooks` see all that is asked of brokers and name servers.
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
        new_topics: NewTopics | None = None,
        rpc_hooks: Sequence[RpcHook] = (),
    ) -> None:
        self._config = config
        self._clock = clock
        self._announce = announce
        self._heartbeat_to_slaves = heartbeat_to_slaves
        self._on_routes_changed = on_routes_changed
        self._heartbeat_due = Bell(clock)
        self._all_told = True
        self._beats: set[asyncio.Future[list[bool]]] = set()  # rounds of heartbeats under way
        self._told: set[str] = set()  # who knows us, by the connections of now
        self._turned_away: CosmodromeError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.ip = local_ip()
        self.client_id = client_id(self.ip, config)
        self.namespace = config.namespace
        self.unit_mode = config.unit_mode
        self.handlers: dict[int, Handler] = {}
        self.on_connection_lost: list[Callable[[], None]] = []
        net = NetConfig(reconnect_max_ms=RECONNECT_MAX_MS)
        check_hooks("rpc_hooks", rpc_hooks, ("before_request", "after_response"))
        tls = client_context(config.tls_ca_file, config.tls_check) if config.tls else None
        self.caller = _new_caller(
            rpc_hooks, self._answer, net, self._connection_lost, tls, vip=config.vip_channel_enabled
        )
        self.name_servers = _name_servers(self.caller, config)
        self.routes = Routes(
            self.name_servers,
            clock,
            poll_interval_ms=config.poll_route_interval_ms,
            borrow=borrow_routes,
            on_change=self._routes_changed,
            new_topics=new_topics,
        )

    def claim(self, role: str, *, not_beside: str | None = None) -> None:
        """Be the only client of this id in this process with a role, `producer group orders`, until the stop.

        Nor may there be one with a role that begins with `not_beside`. Brokers could not tell the two apart. Clients
        get ids of their own unless an instance name was given.
        """
        claim = (os.getpid(), self.client_id, role)
        if _claims.setdefault(claim, self) is not self:
            raise self._claimed(role)
        if not_beside is not None:
            for other in self._claimed_by_others():
                if other.startswith(not_beside):
                    raise self._claimed(f"{role} beside {other}")

    def _claimed_by_others(self) -> list[str]:
        """The roles of our client id that are not ours."""
        mine = (os.getpid(), self.client_id)
        refs = _claims.valuerefs()
        return [ref.key[2] for ref in refs if ref.key[:2] == mine and ref() not in (self, None)]

    def _claimed(self, what: str) -> AlreadyStarted:
        return AlreadyStarted(
            f"{what}: another one with the client id {self.client_id} is running already; "
            "leave instance_name alone, or give each a name of its own"
        )

    def start(self) -> None:
        if isinstance(self.name_servers, NameServerLookup):
            self.run(self.name_servers.run(self._clock), "name servers")
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
        await self._heartbeats_answered()
        await cancelled(self._tasks)
        if self._announce is not None:
            goodbye = UnregisterClient(self.client_id, producer_group, consumer_group)
            await asyncio.gather(*(self._say_goodbye(address, goodbye) for address in self._known_by()))
        await self.caller.close()
        for claim in [claim for claim, owner in _claims.copy().items() if owner is self]:  # other threads have clients
            del _claims[claim]

    async def _heartbeats_answered(self) -> None:
        """Apache's brokers may handle a heartbeat after the goodbye that follows it. We would be a member again, with a
        connection that is closed, and our queues would have no reader until the broker looks for such."""
        if self._beats:
            await asyncio.wait(self._beats, timeout=GOODBYE_TIMEOUT_MS / 1000)
        for beat in self._beats:
            beat.cancel()

    def _known_by(self) -> set[str]:
        """Brokers that may know us: the connected ones of the routes."""
        connected = set(self.caller.connected())
        return connected & self.routes.addresses(masters_only=not self._heartbeat_to_slaves)

    async def _say_goodbye(self, address: str, goodbye: UnregisterClient) -> None:
        try:
            await self.ask(address, Command.request(RequestCode.UNREGISTER_CLIENT, goodbye), GOODBYE_TIMEOUT_MS)
        except CosmodromeError as error:
            log.info("not unregistered: %s", error)
        except Exception:  # a hook may raise anything, and the connections must be closed
            log.exception("not unregistered")

    async def ask(self, address: str, command: Command, timeout_ms: float | None = None) -> Command:
        """The broker's reply, or BrokerError when it refuses."""
        reply = await self.caller.call(address, command, timeout_ms or self._config.call_timeout_ms)
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerError(reply.code, reply.remark or "", address)
        return reply

    def send_on(self, connection: Connection, command: Command) -> None:
        """Send a one-way command on the very connection on which a broker asked us."""
        if isinstance(self.caller, _HookedCaller):
            self.caller.show(connection.peer, command)
        connection.send(command)

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

    @property
    def told(self) -> Set[str]:
        """Addresses of brokers that know this client, on connections that live."""
        return self._told

    def heartbeat_soon(self) -> None:
        self._heartbeat_due.ring()

    async def announced(self, address: str, timeout_ms: float) -> None:
        """Return once this broker has been told of us, at once if that is so; raises as `ask` does."""
        assert self._announce is not None, "a client that is not announced has no heartbeat"
        if address not in self._told:
            body = self._announce(self.client_id).encode()
            await self.ask(address, Command.request(RequestCode.HEART_BEAT, body=body), timeout_ms)
            self._told.add(address)

    async def heartbeat(self) -> None:
        """Tell every broker in the routes who we are. Failures are logged and made up for by the next round."""
        assert self._announce is not None, "a client that is not announced has no heartbeat"
        body = self._announce(self.client_id).encode()
        addresses = self.routes.addresses(masters_only=not self._heartbeat_to_slaves)
        beat = asyncio.gather(*(self._tell(address, body) for address in addresses))
        self._beats.add(beat)
        beat.add_done_callback(self._beats.discard)
        self._all_told = all(await asyncio.shield(beat))  # whoever waits may be cancelled: see `stop`

    async def _tell(self, address: str, body: bytes) -> bool:
        try:
            await self.ask(address, Command.request(RequestCode.HEART_BEAT, body=body))
        except ClientError as error:
            self._told.discard(address)
            log.warning("heartbeat failed: %s", error)
            self.note_refusal(error)
            self.routes.doubt()
            return False
        except Exception:  # a hook may raise anything, and this heartbeat must not be the last
            log.exception("heartbeat failed")
            return False
        self._told.add(address)
        return True

    def note_refusal(self, error: CosmodromeError) -> None:
        if error.is_lasting:
            self._turned_away = error

    def require_entry(self) -> None:
        """Raise why nobody lets us in, if it is for a key or a certificate, which waiting does not mend."""
        if self._turned_away is not None and not self._told:
            raise self._turned_away

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
        self._told.intersection_update(self.caller.connected())
        self.heartbeat_soon()
        for tell in self.on_connection_lost:
            tell()

    # --- what brokers ask of us

    async def _answer(self, connection: Connection, command: Command) -> Command | None:
        handler = self.handlers.get(command.code, refuse)
        try:
            answering = handler(connection, command)
            return await answering if isinstance(answering, Coroutine) else answering
        except CosmodromeError as error:
            log.warning("%s asked %s: %s", connection.peer, command, error)
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except Exception:
            log.exception("answering %s of %s failed", command, connection.peer)
            return command.reply(ResponseCode.SYSTEM_ERROR, remark="internal error; see the client's log")


def _new_caller(
    hooks: Sequence[RpcHook],
    handler: Handler,
    net: NetConfig,
    on_close: ConnectionCallback,
    tls: ssl.SSLContext | None,
    *,
    vip: bool,
) -> Caller:
    if hooks:
        hooked = _HookedVipCaller if vip else _HookedCaller
        return hooked(hooks, handler, config=net, on_close=on_close, tls=tls)
    plain = VipCaller if vip else Caller
    return plain(handler, config=net, on_close=on_close, tls=tls)


def _name_servers(caller: Caller, config: ClientConfig) -> NameServers:
    if config.namesrv_page is not None:
        return NameServerLookup(caller, config.namesrv_page, config.call_timeout_ms)
    if not config.name_servers:
        raise ConfigError(
            "no name server given; write namesrv='host:port', several separated by ';', or set NAMESRV_ADDR"
        )
    return NameServers(caller, config.name_servers, config.call_timeout_ms)


def client_id(ip: str, config: ClientConfig) -> str:
    """`ip@instance[@unit]`; the instance name DEFAULT becomes one that no other client in the world has."""
    name = config.instance_name
    if name == DEFAULT_INSTANCE:
        name = f"{os.getpid()}#{next(_instance_numbers)}"
    return "@".join(filter(None, (ip, name, config.unit_name)))


def stable_client_id(ip: str, config: ClientConfig) -> str:
    """Return the client id without what differs from one start to the next; Java's broadcasting clients have it."""
    return "@".join(filter(None, (ip, config.instance_name, config.unit_name)))


def local_ip() -> str:
    """The address this machine shows to others, as far as it can be known without asking them."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_ANY_PUBLIC_ADDRESS)
        ip: str = probe.getsockname()[0]
        return ip
    return "127.0.0.1"

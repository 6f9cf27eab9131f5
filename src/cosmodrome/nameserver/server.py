"""The name server: a socket around the route table."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

from cosmodrome.access.guard import Guard
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import NameServerConfig, NetConfig, SecurityConfig
from cosmodrome.errors import ClientError, ProtocolError, RequestCodeNotSupported, RequestError
from cosmodrome.nameserver.kv import KvConfigs, KvLimits
from cosmodrome.nameserver.processors import FEW_BROKERS, PROCESSORS
from cosmodrome.nameserver.route_table import LiveBroker, RouteTable, SmallestChanged
from cosmodrome.net.addresses import EVERY_ADDRESS, advertised_host, is_loopback
from cosmodrome.net.caller import caller_of
from cosmodrome.net.connection import Connection
from cosmodrome.net.lane import Lane
from cosmodrome.net.server import Server
from cosmodrome.net.tls_server import ServerTls, client_context_of
from cosmodrome.wire.command import Command
from cosmodrome.wire.name_server_requests import SmallestBrokerChanged

log = logging.getLogger(__name__)

MAX_TELLING = 1_000  # brokers that are being told something


class NameServer:
    """Answers where topics live. Name servers know nothing of each other: brokers register with every one of them.

    server = NameServer(config, net, clock)
    await server.start()                  # from here on `address` is known and requests are answered
    await server.run(stop)                # until the event `stop` is set
    """

    def __init__(
        self, config: NameServerConfig, net: NetConfig, clock: Clock, security: SecurityConfig | None = None
    ) -> None:
        self.config = config
        self.guard = Guard(security or SecurityConfig(), clock)
        self.clock = clock
        self.routes = RouteTable(silent_after_ms=config.broker_silent_ms, supports_acting=config.support_acting_master)
        self._caller = caller_of(net, self.guard.sign, client_context_of(security or SecurityConfig()))
        self.tls = ServerTls(security or SecurityConfig(), clock)
        self._telling: set[asyncio.Task[None]] = set()
        self.kv = KvConfigs(Path(config.kv_config_path) if config.kv_config_path else None, _kv_limits(config))
        self.lane = Lane()  # what takes long
        self.changes = asyncio.Lock()  # of the route table: one after the other, in the order they came
        self.listing = asyncio.Lock()  # of long lists: each has a copy of what it lists
        self._registered: set[Connection] = set()  # those over which a broker has
        handler = self.guard.around(self.answer)
        host, port = config.bind_address, config.listen_port
        self._server = Server(handler, host, port, on_close=self._on_close, config=net, tls=self.tls)

    @property
    def address(self) -> str:
        """The address that brokers and clients reach it by."""
        return f"{advertised_host(self.config.bind_address)}:{self.port}"

    @property
    def port(self) -> int:
        """The port really listened on, also when 0 was asked for."""
        return self._server.port

    def keep_settings(self, path: Path) -> None:
        """Take the KV settings from `path` and keep them there; StoreError when it cannot be read."""
        self.kv = KvConfigs(path, _kv_limits(self.config))
        self.config = dataclasses.replace(self.config, kv_config_path=str(path))

    def registering_over(self, connection: Connection) -> None:
        """A broker is about to register over this connection, and leaves with it."""
        self._registered.add(connection)

    async def start(self) -> None:
        """Listen; ConfigError when the address cannot be had."""
        await self._server.start()
        if is_loopback(self.address.rpartition(":")[0]) and self.config.bind_address in EVERY_ADDRESS:
            log.warning("no address of this machine is found that others reach; clients there must know one")
        log.info("name server listens on %s", self.address)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the route table true until `stop` is set, then answer what is in hand and close."""
        async with asyncio.TaskGroup() as tasks:
            scan = tasks.create_task(self._scan())
            watching = [tasks.create_task(one.run()) for one in (self.guard, self.tls)]
            try:
                await stop.wait()
            finally:
                await self._server.close()
                for telling in list(self._telling):
                    telling.cancel()
                await self._caller.close()
                await self.kv.settled()
                self.kv.close()
                self.lane.close()
                for watch in watching:
                    watch.cancel()
                scan.cancel()  # it holds nothing between two scans

    async def answer(self, connection: Connection, command: Command) -> Command:
        """The only place where an outcome becomes a response code."""
        try:
            processor = PROCESSORS.get(command.code)
            if processor is None:
                raise RequestCodeNotSupported(command.code)
            reply = processor(self, connection, command)
            return reply if isinstance(reply, Command) else await reply
        except RequestError as refusal:
            return command.reply(refusal.code, remark=str(refusal))
        except ProtocolError as error:  # the frame was sound, only its body was not: the connection may stay
            log.warning("request %d of %s makes no sense: %s", command.code, connection.peer, error)
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except Exception:
            log.exception("request %d (opaque %d) failed", command.code, command.opaque)
            return command.reply(ResponseCode.SYSTEM_ERROR, remark="internal error; see the name server's log")

    def _on_close(self, connection: Connection) -> None:
        self.lane.start(self._leaving(connection))

    def _leaving(self, connection: Connection) -> Iterator[None]:
        """Let the brokers leave that registered over a connection; of many connections that are lost, one in a turn."""
        if connection not in self._registered:
            return
        if self.routes.size > FEW_BROKERS:
            yield
        self._registered.discard(connection)
        for broker in self.routes.drop_connection(connection):
            log.warning("%s left: its connection is gone", _described(broker))
        self.tell_smallest()

    def tell_smallest(self) -> None:
        """Tell brokers, if they are to be told, that another one of their name has the smallest id now."""
        for news in self.routes.take_smallest_changed():
            if not self.config.notify_min_broker_id_changed:
                continue
            log.info("smallest broker changed: broker=%s id=%d tell=%s", news.broker_name, news.broker_id, news.tell)
            for address in news.tell:
                if len(self._telling) < MAX_TELLING:  # who is not told asks within a second
                    task = asyncio.ensure_future(self._tell(address, news))
                    self._telling.add(task)
                    task.add_done_callback(self._telling.discard)

    async def _tell(self, address: str, news: SmallestChanged) -> None:
        header = SmallestBrokerChanged(news.broker_id, news.broker_name, news.address, news.left, news.ha_address)
        command = Command.request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header, oneway=True)
        try:
            await self._caller.oneway(address, command)
        except ClientError as error:
            log.info("%s was not told of the smallest broker of %s: %s", address, news.broker_name, error)

    async def _scan(self) -> None:
        while True:
            await self.clock.sleep(self.config.scan_not_active_broker_interval)
            for broker in self.routes.expire(self.clock.steady_ms()):
                log.warning("%s left: silent for %d ms", _described(broker), broker.silent_after_ms)
                if isinstance(broker.connection, Connection):
                    broker.connection.close()
            self.tell_smallest()


def _kv_limits(config: NameServerConfig) -> KvLimits:
    return KvLimits(config.kv_config_max_entries, config.kv_config_max_value_size, config.kv_config_max_size)


def _described(broker: LiveBroker) -> str:
    return f"broker {broker.broker_name}:{broker.broker_id} at {broker.address}"

"""The name server: a socket around the route table."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

from cosmodrome.clock import Clock
from cosmodrome.codes import ResponseCode
from cosmodrome.config import NameServerConfig, NetConfig
from cosmodrome.errors import ProtocolError, RequestCodeNotSupported, RequestError
from cosmodrome.nameserver.kv import KvConfigs, KvLimits
from cosmodrome.nameserver.processors import FEW_BROKERS, PROCESSORS
from cosmodrome.nameserver.route_table import LiveBroker, RouteTable
from cosmodrome.net.addresses import EVERY_ADDRESS, advertised_host, is_loopback
from cosmodrome.net.connection import Connection
from cosmodrome.net.lane import Lane
from cosmodrome.net.server import Server
from cosmodrome.wire.command import Command

log = logging.getLogger(__name__)


class NameServer:
    """Answers where topics live. Name servers know nothing of each other: brokers register with every one of them.

    server = NameServer(config, net, clock)
    await server.start()                  # from here on `address` is known and requests are answered
    await server.run(stop)                # until the event `stop` is set
    """

    def __init__(self, config: NameServerConfig, net: NetConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.routes = RouteTable(silent_after_ms=config.broker_silent_ms)
        self.kv = KvConfigs(Path(config.kv_config_path) if config.kv_config_path else None, _kv_limits(config))
        self.lane = Lane()  # what takes long
        self.changes = asyncio.Lock()  # of the route table: one after the other, in the order they came
        self.listing = asyncio.Lock()  # of long lists: each has a copy of what it lists
        self._registered: set[Connection] = set()  # those over which a broker has
        self._server = Server(self.answer, config.bind_address, config.listen_port, on_close=self._on_close, config=net)

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
            try:
                await stop.wait()
            finally:
                await self._server.close()
                await self.kv.settled()
                self.kv.close()
                self.lane.close()
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

    async def _scan(self) -> None:
        while True:
            await self.clock.sleep(self.config.scan_not_active_broker_interval)
            for broker in self.routes.expire(self.clock.steady_ms()):
                log.warning("%s left: silent for %d ms", _described(broker), broker.silent_after_ms)
                if isinstance(broker.connection, Connection):
                    broker.connection.close()


def _kv_limits(config: NameServerConfig) -> KvLimits:
    return KvLimits(config.kv_config_max_entries, config.kv_config_max_value_size, config.kv_config_max_size)


def _described(broker: LiveBroker) -> str:
    return f"broker {broker.broker_name}:{broker.broker_id} at {broker.address}"

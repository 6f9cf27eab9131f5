"""The calling side: one connection per address, made when first needed and made again when lost."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

from cosmodrome.config import NetConfig
from cosmodrome.errors import CallTimeout, ConnectionFailed, RequestCodeNotSupported
from cosmodrome.net.connection import Connection, ConnectionCallback, Handler
from cosmodrome.net.tls import connect_failure
from cosmodrome.numbers import MAX_PORT, parse_int
from cosmodrome.wire.command import Command

log = logging.getLogger(__name__)

# How long the last bytes have to leave once we close. Apache's servers do not answer a TLS goodbye, so nothing else
# ends the wait for their answer.
TLS_GOODBYE_SECONDS = 0.2


async def refuse(_connection: Connection, command: Command) -> Command:
    """The handler of a side that serves nothing."""
    refusal = RequestCodeNotSupported(command.code)
    return command.reply(refusal.code, remark=str(refusal))


def _retrieve(task: asyncio.Task[Connection]) -> None:
    """Those who wanted the connection may have gone; then nobody else looks at its failure."""
    if not task.cancelled():
        task.exception()


class _Link:
    """What is known of one address: its connection, or when it may be tried again."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[Connection] | None = None
        self.failures = 0
        self.retry_at = 0.0
        self.failure: ConnectionFailed | None = None


class Caller:
    """Calls peers by address. `handler` answers what they ask on the same connections.

    After a failed connect, calls to that address fail at once until its back-off is over, so that a caller with
    other choices loses no time.
    """

    def __init__(
        self,
        handler: Handler = refuse,
        *,
        config: NetConfig | None = None,
        on_open: ConnectionCallback | None = None,
        on_close: ConnectionCallback | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._handler = handler
        self._config = config or NetConfig()
        self._on_open = on_open
        self._on_close = on_close
        self._tls = tls
        self._links: dict[str, _Link] = {}
        self._closed = False

    async def call(
        self, address: str, command: Command, timeout_ms: float, connect_timeout_ms: float | None = None
    ) -> Command:
        """The peer's reply, whatever its code, within the deadline. Raises ConnectionFailed or CallTimeout.

        Who has other choices may wait for less than that to be connected: nothing has been sent until then.
        """
        connection = self._ready(address)
        if connection is None:
            started = asyncio.get_running_loop().time()
            connection = await self._connect(address, timeout_ms if connect_timeout_ms is None else connect_timeout_ms)
            timeout_ms -= (asyncio.get_running_loop().time() - started) * 1000
        return await connection.call(command, timeout_ms)

    async def oneway(self, address: str, command: Command) -> None:
        """Hand the command to the connection; nothing tells whether it arrived."""
        connection = self._ready(address) or await self._connect(address, self._config.connect_timeout_ms)
        await connection.oneway(command)

    def post(self, address: str, command: Command) -> bool:
        """Send a one-way command if a connection takes it now; return whether one did."""
        connection = self._ready(address)
        if connection is None or connection.is_stalled:
            return False
        connection.send(command)
        return True

    def is_connected(self, address: str) -> bool:
        return self._ready(address) is not None

    async def connect(self, address: str, timeout_ms: float) -> None:
        """Return when there is a live connection, so that the next call is written at once; raises as `call` does."""
        if self._ready(address) is None:
            await self._connect(address, timeout_ms)

    def _ready(self, address: str) -> Connection | None:
        link = self._links.get(address)
        if link is None or link.connection is None or link.connection.closed:
            return None
        return link.connection

    async def _connect(self, address: str, timeout_ms: float) -> Connection:
        """All who want the same address share one try, and none of them waits longer than it wants to."""
        link = self._links.setdefault(address, _Link())
        loop = asyncio.get_running_loop()
        if self._closed:
            raise ConnectionFailed(address, "this client is closed")
        if link.connecting is None:
            if link.failure is not None and loop.time() < link.retry_at:
                reason = f"{link.failure.reason} (next try in {link.retry_at - loop.time():.1f} s)"
                raise type(link.failure)(address, reason)
            link.connecting = loop.create_task(self._try(address, link))
            link.connecting.add_done_callback(_retrieve)
        connecting = link.connecting
        done, _ = await asyncio.wait((connecting,), timeout=timeout_ms / 1000)
        if not done:
            raise CallTimeout(address, timeout_ms)
        if connecting.cancelled():
            raise ConnectionFailed(address, "this client is closed")
        return connecting.result()

    async def _try(self, address: str, link: _Link) -> Connection:
        try:
            connection = link.connection = await self._open(address)
        except ConnectionFailed:  # no address: nothing was tried
            raise
        except (OSError, TimeoutError, ValueError, OverflowError) as error:  # the last two: no such host, no such port
            link.failure = connect_failure(address, error, self._tls)
            self._back_off(link, asyncio.get_running_loop().time())
            raise link.failure from error
        finally:
            link.connecting = None
        link.failures, link.failure = 0, None
        return connection

    async def _open(self, address: str) -> Connection:
        host, _, port = address.rpartition(":")
        number = parse_int(port, high=MAX_PORT)
        if not host or number is None:
            raise ConnectionFailed(address, "is not an address; write host:port")
        goodbye = None if self._tls is None else TLS_GOODBYE_SECONDS
        connect = asyncio.get_running_loop().create_connection(
            self._make, host.strip("[]"), number, ssl=self._tls, ssl_shutdown_timeout=goodbye
        )
        _, connection = await asyncio.wait_for(connect, self._config.connect_timeout_ms / 1000)
        return connection

    def _make(self) -> Connection:
        return Connection(self._handler, self._config, self._on_open, self._on_close)

    def _back_off(self, link: _Link, now: float) -> None:
        delay_ms = min(self._config.reconnect_initial_ms * 2**link.failures, self._config.reconnect_max_ms)
        link.failures = min(link.failures + 1, 30)
        link.retry_at = now + delay_ms / 1000

    def back_off_ms(self, address: str) -> float:
        """How long calls to the address will fail at once."""
        link = self._links.get(address)
        if link is None or self._ready(address) is not None:
            return 0
        return max(link.retry_at - asyncio.get_running_loop().time(), 0) * 1000

    def connected(self) -> list[str]:
        """Addresses with a live connection."""
        return [address for address in self._links if self._ready(address) is not None]

    async def close(self) -> None:
        self._closed = True
        connecting = [link.connecting for link in self._links.values() if link.connecting is not None]
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        connections = [link.connection for link in self._links.values() if link.connection is not None]
        await asyncio.gather(*(c.drain_and_close(self._config.shutdown_grace_ms) for c in connections))


class SigningCaller(Caller):
    """A caller that signs each command before it leaves."""

    def __init__(
        self, sign: Callable[[Command], None], *, config: NetConfig, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(config=config, tls=tls)
        self._sign = sign

    async def call(
        self, address: str, command: Command, timeout_ms: float, connect_timeout_ms: float | None = None
    ) -> Command:
        self._sign(command)
        return await super().call(address, command, timeout_ms, connect_timeout_ms)

    async def oneway(self, address: str, command: Command) -> None:
        self._sign(command)
        await super().oneway(address, command)


def caller_of(config: NetConfig, sign: Callable[[Command], None] | None, tls: ssl.SSLContext | None = None) -> Caller:
    """Return the caller of a daemon, which signs if it has an account."""
    return Caller(config=config, tls=tls) if sign is None else SigningCaller(sign, config=config, tls=tls)

"""The listening side."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Self

from cosmodrome.config import NetConfig
from cosmodrome.errors import ConfigError
from cosmodrome.net.books import Books
from cosmodrome.net.connection import Connection, ConnectionCallback, Handler
from cosmodrome.net.listeners import listener_of
from cosmodrome.net.tls_server import ServerTls
from cosmodrome.net.turn import Turn

log = logging.getLogger(__name__)

ACCEPT_BACKLOG = 4_096


class CannotListen(ConfigError):
    """An address and port that a server was told to listen on and cannot have."""

    def __init__(
        self, host: str, port: int, reason: str, advice: str = "choose another bindAddress or listenPort"
    ) -> None:
        super().__init__(f"cannot listen on {host}:{port}: {reason}; {advice}")
        self.host = host
        self.port = port
        self.reason = reason

    @classmethod
    def because(cls, error: OSError, host: str, port: int, advice: str) -> Self:
        """Return what to raise for the error of a socket."""
        return cls(host, port, _reason(error, port), advice)


def _reason(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        listener = listener_of(port)
        return "the port is in use" + (f" by {listener}" if listener else "")
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    if error.errno == errno.EACCES:
        return "this user may not listen on that port"
    return error.strerror or str(error)


class Server:
    """Listens, and gives every connection the same handler.

    `close` stops listening, answers the requests in hand within the configured grace, and returns when no connection
    is left.
    """

    def __init__(
        self,
        handler: Handler,
        host: str,
        port: int,
        *,
        config: NetConfig | None = None,
        on_open: ConnectionCallback | None = None,
        on_close: ConnectionCallback | None = None,
        books: Books | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._factory = self._accept if tls is None else tls.around(self._accept)
        self._books = books  # shared with the daemon's other servers; without, made at the start
        self._handler = handler
        self._host = host
        self._port = port
        self._config = config or NetConfig()
        self._on_open = on_open
        self._on_close = on_close
        self._listener: asyncio.Server | None = None
        self._closing = False
        self.connections: set[Connection] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._books is None:
            self._books = Books(self._config)
        if self._books.turn is None:
            self._books.turn = Turn(self._books.watchdog.clock)
        try:
            self._listener = await loop.create_server(
                self._factory, self._host, self._port, backlog=ACCEPT_BACKLOG, reuse_address=True
            )
        except OSError as error:
            raise CannotListen(self._host, self._port, _reason(error, self._port)) from error
        self._port = self._listener.sockets[0].getsockname()[1]

    @property
    def port(self) -> int:
        """The port really listened on, also when 0 was asked for."""
        return self._port

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    def _accept(self) -> Connection:
        assert self._books is not None, "nothing is accepted before the start"
        return Connection(self._handler, self._config, self._opened, self._closed, self._books)

    def _opened(self, connection: Connection) -> None:
        assert self._books is not None
        if not self._books.admit(connection.peer_address[0]):
            connection.abort()
            return
        if self._closing:  # accepted just before the listener closed
            connection.abort()
        self.connections.add(connection)
        if self._on_open is not None:
            self._on_open(connection)

    def _closed(self, connection: Connection) -> None:
        if connection not in self.connections:  # turned away
            return
        assert self._books is not None
        self._books.dismiss(connection.peer_address[0])
        self.connections.discard(connection)
        if self._on_close is not None:
            self._on_close(connection)

    async def close(self) -> None:
        if self._listener is None:
            return
        self._closing = True
        self._listener.close()
        grace_ms = self._config.shutdown_grace_ms
        assert self._books is not None
        self._books.close()
        await asyncio.gather(*(connection.drain_and_close(grace_ms) for connection in list(self.connections)))

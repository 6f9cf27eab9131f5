"""Messages between the members of a Raft group over their own ports.

Each member listens on the port that the group's configuration gives it, and sends its messages over one connection to
each other member, as one-way commands. A message that cannot leave at once is dropped: Raft sends again what matters,
and nothing piles up for a member that is not there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from cosmodrome.config import NetConfig
from cosmodrome.errors import CallTimeout, ConnectionFailed, ProtocolError, RequestCodeNotSupported
from cosmodrome.net.caller import Caller
from cosmodrome.net.connection import Connection
from cosmodrome.net.server import Server
from cosmodrome.raft.messages import Message
from cosmodrome.raft.wire_messages import decode, encode
from cosmodrome.wire.command import ONEWAY_BIT, Command

log = logging.getLogger(__name__)

RAFT_MESSAGE: Final = 620101  # our own; members of Apache's groups refuse it as unknown
CONNECT_TIMEOUT_MS = 1_000
RECONNECT_MAX_MS = 500  # a member that is back must hear from its leader before it asks for an election


class RaftTransport:
    """The connections of one member. `receive` gets every message of another member to this one."""

    def __init__(
        self,
        group: str,
        member: str,
        peers: Mapping[str, str],
        receive: Callable[[Message], None],
        *,
        bind_host: str = "",
        config: NetConfig | None = None,
    ) -> None:
        """`peers` are the addresses (host:port) of all members by id; `bind_host` stands for the host of the own."""
        self._group = group
        self._member = member
        self._peers = dict(peers)
        self._receive = receive
        host, _, port = self._peers[member].rpartition(":")
        config = config or NetConfig()
        quick = replace(config, connect_timeout_ms=CONNECT_TIMEOUT_MS, reconnect_max_ms=RECONNECT_MAX_MS)
        self._caller = Caller(config=quick)
        self._server = Server(self._handle, bind_host or host.strip("[]"), int(port), config=config)
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self.dropped: Counter[str] = Counter()  # messages by target

    async def start(self) -> None:
        """Listen; CannotListen if that is not possible."""
        await self._server.start()

    @property
    def port(self) -> int:
        """The port really listened on."""
        return self._server.port

    def send(self, message: Message) -> None:
        """Send a message if it can leave now."""
        address = self._peers.get(message.target)
        if address is None:
            self.dropped[message.target] += 1
            return
        command = Command(RAFT_MESSAGE, {}, encode(self._group, message), flag=ONEWAY_BIT)
        if not self._caller.post(address, command):
            self.dropped[message.target] += 1
            if not self._caller.is_connected(address) and address not in self._connecting:
                task = asyncio.get_running_loop().create_task(self._connect(address, command))
                self._connecting[address] = task
                task.add_done_callback(lambda _: self._connecting.pop(address, None))

    async def _connect(self, address: str, command: Command) -> None:
        try:
            await self._caller.connect(address, CONNECT_TIMEOUT_MS)
        except (ConnectionFailed, CallTimeout) as error:
            log.debug("Raft member not reached: %s", error)
        else:
            self._caller.post(address, command)

    async def _handle(self, connection: Connection, command: Command) -> Command | None:
        if command.code != RAFT_MESSAGE:
            refusal = RequestCodeNotSupported(command.code)
            return command.reply(refusal.code, remark=str(refusal))
        try:
            message = decode(self._group, command.body)
            if message.target != self._member or message.source not in self._peers or message.source == self._member:
                raise ProtocolError(f"a message from {message.source!r} to {message.target!r} came to {self._member!r}")
        except ProtocolError as error:
            log.warning("Raft connection closed: peer=%s %s", connection.peer, error)
            connection.close()
            return None
        self._receive(message)
        return None

    async def close(self) -> None:
        """Close all connections."""
        for task in list(self._connecting.values()):
            task.cancel()
        await self._caller.close()
        await self._server.close()

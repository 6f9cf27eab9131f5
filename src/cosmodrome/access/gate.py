"""The gate of a server: each request passes it before any handler sees it, or is denied.

One gate serves all ports of a daemon. Its accounts may be replaced while it runs; a server without accounts has no
gate, and its requests pay nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

from cosmodrome.access.accounts import Accounts, Denial, Judge
from cosmodrome.access.permissions import RULES
from cosmodrome.clock import Clock
from cosmodrome.codes import ResponseCode
from cosmodrome.config import KIB, MIB
from cosmodrome.numbers import shown
from cosmodrome.wire.command import Command

log = logging.getLogger(__name__)

# The body of a request that names many groups and topics is read beside the loop if it is longer than this.
LONG_BODY_BYTES: Final = 4 * KIB
MAX_BODY_BYTES: Final = 8 * MIB
MAX_BODY_VALUES: Final = 300_000
LOG_EVERY_MS: Final = 10_000  # one line for the denials of one kind to one address meanwhile
MINUTE_MS: Final = 60_000
# With this word in a refusal of code 1, clients know that trying again is of no use: 4.x has no code for it.
_APACHES_NAME: Final = "AclException"
MAX_HOSTS: Final = 10_000  # addresses that are remembered


class Peer(Protocol):
    """A connection, as the gate knows it."""

    peer: str
    peer_address: tuple[str, int]

    def close(self) -> None: ...

    def paused(self) -> AbstractContextManager[None]: ...


P = TypeVar("P", bound=Peer)
Answering = Coroutine[Any, Any, Command | None] | Command | None
Handle = Callable[[P, Command], Answering]


class Gate:
    """The check before every request, its figures and its log."""

    def __init__(self, accounts: Accounts, clock: Clock, *, max_failures_per_minute: int) -> None:
        self._clock = clock
        self._max_failures = max_failures_per_minute
        self._failures: Counter[str] = Counter()  # of this minute, by address
        self._minute_ms = 0.0
        self._told: dict[tuple[str, str], tuple[float, int]] = {}  # address and kind → last line, denials since
        self.denied: Counter[str] = Counter()  # by kind
        self.cut_off = 0  # connections closed for too many failures
        self.reloads = 0
        self.use(accounts)

    def use(self, accounts: Accounts) -> None:
        """Decide by these accounts from the next request on."""
        self.accounts = accounts
        self._judge = Judge(accounts)
        self._white: dict[str, bool] = {}

    def is_white(self, host: str) -> bool:
        """Return whether everything from this address passes."""
        white = self._white.get(host)
        if white is None:
            if len(self._white) >= MAX_HOSTS:
                self._white.clear()
            white = self._white[host] = self._judge.is_white(host)
        return white

    def around(self, handle: Handle[P]) -> Handle[P]:
        """Return a handler that lets `handle` see what passes."""

        def guarded(connection: P, command: Command) -> Answering:
            host = connection.peer_address[0]
            is_white = self._white.get(host)
            if is_white is None:
                is_white = self.is_white(host)
            if len(command.body) > LONG_BODY_BYTES and not is_white:
                rule = RULES.get(command.code)
                if rule is not None and rule.reads_body:
                    return self._check_long(connection, command, handle)
            denial = self._judge.denial(command, host, is_white=is_white)
            if denial is None:
                return handle(connection, command)
            return self._deny(connection, command, denial)

        return guarded

    async def _check_long(self, connection: P, command: Command, handle: Handle[P]) -> Command | None:
        """Check a request whose body takes long to read; none of the connection overtakes it meanwhile."""
        body = bytes(command.body)
        values = body.count(b"{") + body.count(b"[") + body.count(b",")
        if len(body) > MAX_BODY_BYTES or values > MAX_BODY_VALUES:
            denial: Denial | None = Denial("malformed", f"the body of request {command.code} is too long")
        else:
            host = connection.peer_address[0]
            with connection.paused():
                denial = await asyncio.to_thread(self._judge.denial, command, host, is_white=False)
        if denial is not None:
            return await self._deny(connection, command, denial)
        answering = handle(connection, command)
        return await answering if isinstance(answering, Coroutine) else answering

    async def _deny(self, connection: Peer, command: Command, denial: Denial) -> Command:
        """Return the answer to a request that does not pass: that of Apache's brokers with ACL."""
        host = connection.peer_address[0]
        self.denied[denial.kind] += 1
        self._tell(host, command, denial)
        if denial.is_authentication and self._fails_too_often(host):
            self.cut_off += 1
            asyncio.get_running_loop().call_soon(connection.close)  # behind the answer
        return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"{_APACHES_NAME}: {denial.text}")

    def _fails_too_often(self, host: str) -> bool:
        now_ms = self._clock.steady_ms()
        if now_ms - self._minute_ms >= MINUTE_MS or len(self._failures) >= MAX_HOSTS:
            self._failures.clear()
            self._minute_ms = now_ms
        self._failures[host] += 1
        return self._failures[host] > self._max_failures

    def _tell(self, host: str, command: Command, denial: Denial) -> None:
        now_ms = self._clock.steady_ms()
        key = (host, denial.kind)
        if len(self._told) >= MAX_HOSTS and key not in self._told:
            key = ("", denial.kind)
        last_ms, count = self._told.get(key, (now_ms - LOG_EVERY_MS, 0))
        count += 1
        if now_ms - last_ms >= LOG_EVERY_MS:
            log.warning(
                "requests denied: peer=%s code=%d accessKey=%s reason=%s denials=%d: %s",
                host,
                command.code,
                shown(denial.access_key) if denial.access_key else "-",
                denial.kind,
                count,
                denial.text,
            )
            last_ms, count = now_ms, 0
        self._told[key] = (last_ms, count)

    def figures(self) -> dict[str, object]:
        """Return the gate's figures, by their names in the runtime info."""
        return {
            "aclAccounts": len(self.accounts.by_key),
            "aclReloads": self.reloads,
            "requestsDenied": self.denied.total(),
            "failedAuthentications": sum(self.denied[kind] for kind in ("unsigned", "unknown", "signature")),
            "connectionsCutOffForFailedAuthentication": self.cut_off,
        }

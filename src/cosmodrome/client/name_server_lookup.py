"""Name servers that a web page tells of, so that they can move without their clients being told."""

from __future__ import annotations

import asyncio
import logging

from cosmodrome.client.lifecycle import going_on
from cosmodrome.client.name_servers import NameServers
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode
from cosmodrome.config import parse_addresses
from cosmodrome.errors import ConnectionFailed
from cosmodrome.net.caller import Caller
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header

log = logging.getLogger(__name__)

LOOKUP_INTERVAL_MS = 120_000
LOOKUP_TIMEOUT_SECONDS = 3.0
MAX_PAGE_BYTES = 65_536


class NameServerLookup(NameServers):
    """Asks the page before the first question and every two minutes. Its first line is `host:port;host:port`."""

    def __init__(self, caller: Caller, url: str, timeout_ms: int) -> None:
        super().__init__(caller, (), timeout_ms)
        self._url = url
        self._looking = asyncio.Lock()

    async def ask(self, code: RequestCode, header: Header | None) -> Command:
        async with self._looking:  # one page for all who wait
            if not self.addresses:
                await self.look_up()
        return await super().ask(code, header)

    async def look_up(self) -> None:
        """ConnectionFailed when the page tells nothing; then what is known stays."""
        from http.client import HTTPException  # here, as in _read: few clients look up, and all would wait for HTTP

        try:
            page = await asyncio.to_thread(_read, self._url)
            addresses = parse_addresses((page.split() or [""])[0])
        except (OSError, ValueError) as error:
            raise ConnectionFailed(self._url, f"it tells of no name server: {error}") from error
        except HTTPException as error:  # its text may be whatever came instead
            reason = f"it tells of no name server: its answer is not proper HTTP ({type(error).__name__})"
            raise ConnectionFailed(self._url, reason) from error
        if not addresses:
            raise ConnectionFailed(self._url, "it tells of no name server: the page is empty")
        if set(addresses) != set(self.addresses):
            log.info("name servers are %s", ";".join(addresses))
            self.use(addresses)

    async def run(self, clock: Clock) -> None:
        while True:
            await clock.sleep(LOOKUP_INTERVAL_MS)
            with going_on("lookup of name servers"):
                await self._look_again()

    async def _look_again(self) -> None:
        try:
            await self.look_up()
        except ConnectionFailed as error:
            log.warning("name servers stay as they are: %s", error)


def _read(url: str) -> str:
    import urllib.request

    with urllib.request.urlopen(url, timeout=LOOKUP_TIMEOUT_SECONDS) as page:
        text: bytes = page.read(MAX_PAGE_BYTES)
    return text.decode()

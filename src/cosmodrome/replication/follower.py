"""A slave's side of replication: it connects to its master, makes sure that it has the same log, and goes on with it.

    away ──connected──► asking ──the master's epochs──► holding ──its own log is safe──► following ──any trouble──► away

While it is *asking* it has reported nothing, so the master sends nothing. The answer says where the two logs part. What
lies behind that place is cut off, durably, before the master's epochs are taken over, and both before the first
report: a slave that dies in between finds the same place again. While *holding* it waits until its log is as safe as
its reports promise, because the first report promises all of it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar, cast

from cosmodrome.clock import Clock, sleep_unless
from cosmodrome.config import ReplicationConfig
from cosmodrome.errors import CallTimeout, ConnectionFailed, CosmodromeError, ProtocolError
from cosmodrome.numbers import MAX_PORT, parse_int
from cosmodrome.replication.epochs import LogDiverged, LogEpoch, MasterLog, place_to_follow
from cosmodrome.replication.packets import PacketReader, encode_report

log = logging.getLogger(__name__)

RETRY_MS = 5_000  # between two connections, whatever ended the first
CONNECT_MS = 3_000
INQUIRE_MS = 10_000  # for the master's answer about its epochs, which has deadlines of its own

T = TypeVar("T")
Inquire = Callable[[], Awaitable[MasterLog | None]]


class EpochTable(Protocol):
    """The epochs of the slave's log, kept in a file."""

    @property
    def list(self) -> Sequence[LogEpoch]:
        """All epochs, oldest first."""
        ...

    @property
    def term(self) -> int:
        """The highest term there ever was here; it stays when the bytes of its epoch are lost."""
        ...

    def adopt(self, epochs: Sequence[LogEpoch], /) -> None:
        """Replace them by those of a master; durable before it returns."""
        ...


class LogSink(Protocol):
    """The part of a slave's store that following needs."""

    on_safe: Callable[[], None] | None
    """Called on the loop's thread after `safe_end` rose by a sync, not by `append_raw` itself."""

    @property
    def epochs(self) -> EpochTable: ...

    @property
    def min_physical_offset(self) -> int:
        """The offset of the first byte."""
        ...

    @property
    def max_physical_offset(self) -> int:
        """The offset behind the last byte. 0: the log is empty, and may begin at any file of a master."""
        ...

    @property
    def safe_end(self) -> int:
        """The offset up to which the log is as safe as this broker promises."""
        ...

    def append_raw(self, offset: int, data: bytes | memoryview, /) -> None:
        """Append a master's bytes. LogDiverged if they do not continue the log."""
        ...

    def enter_raw(self) -> None:
        """Let readers see what was appended. Reports need not wait for that."""
        ...

    def settle(self) -> int:
        """Cut an unfinished record off the end, durably, and return the end."""
        ...

    def truncate_log(self, end: int, /) -> None:
        """Keep a copy of what lies behind `end`, and cut it off, durably."""
        ...


class FollowerState(StrEnum):
    """How far a slave is with its master."""

    AWAY = "away"  # no master is known, or not connected
    ASKING = "asking"
    HOLDING = "holding"
    FOLLOWING = "following"


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """A slave's connection to its master, as operators see it."""

    master: str | None
    state: FollowerState
    reported: int  # -1: nothing on this connection
    is_checked: bool  # against the master's epochs
    problem: str  # why the last connection ended; empty once the master was heard again


class FollowerSession:
    """One connection to a master. It acts on the log, and knows no socket; errors end it.

    ProtocolError: no master sends that. CannotFollow and LogDiverged: not the master of this log.
    """

    def __init__(self, sink: LogSink, config: ReplicationConfig, now_ms: int) -> None:
        self._sink = sink
        self._fetch_history = config.ha_fetch_history
        self._heartbeat_ms = config.ha_send_heartbeat_interval
        self._silence_ms = config.ha_housekeeping_interval
        self._reader = PacketReader()
        self._heard_ms = self._reported_ms = now_ms
        self.begins = 0  # the first report
        self.state = FollowerState.ASKING
        self.reported = -1
        self.is_checked = False
        self.was_heard = False  # with something that continues this log

    def answered(self, master: MasterLog | None, now_ms: int) -> None:
        """Make this log a beginning of the master's; None: the master tells nothing, and Apache's rules apply."""
        assert self.state is FollowerState.ASKING, "a master answers once"
        sink = self._sink
        end = sink.settle()
        if master is not None and master.epochs:
            self._agree(master, end)
            self.is_checked = True
        end = sink.max_physical_offset
        self.begins = end
        if end == 0 and self._fetch_history and master is not None and master.end > 0:
            # 0 would ask for the last file only. Byte 0 of a log is the 0 of a size, and needs not be sent.
            self.begins = max(master.begin, 1)
        self._heard_ms = now_ms
        self.state = FollowerState.HOLDING

    def _agree(self, master: MasterLog, end: int) -> None:
        sink, epochs = self._sink, list(master.epochs)
        own = list(sink.epochs.list)
        place = place_to_follow(own, sink.epochs.term, sink.min_physical_offset, end, master)
        if place < end:
            log.error(
                "log cut to follow the master: from=%d to=%d bytes=%d reason=%r",
                end,
                place,
                end - place,
                "the master does not have these bytes; they are kept beside the log",
            )
            sink.truncate_log(place)
        if own != epochs:
            sink.epochs.adopt(epochs)

    def receive(self, data: bytes, now_ms: int) -> None:
        """Append the packets that `data` completes."""
        if self.state is not FollowerState.FOLLOWING:
            raise ProtocolError("the master sends before it was told where to begin")
        self._reader.feed(data)
        while (packet := self._reader.take()) is not None:
            self._heard_ms = now_ms
            self._append(packet.offset, packet.data)
            self.was_heard = True

    def _append(self, offset: int, data: bytes) -> None:
        end = self._sink.max_physical_offset
        if end == 0 and offset == self.begins == 1:
            offset, data = 0, b"\0" + data if data else b""
        if offset != end and (end or (self.begins and offset != self.begins)):
            raise LogDiverged(f"the master sends what follows {offset}, but this log ends at {end}")
        if data:
            self._sink.append_raw(offset, data)

    def enter(self) -> None:
        """Let readers of this log see what was received."""
        self._sink.enter_raw()

    def take_report(self, now_ms: int) -> bytes | None:
        """Return the report that is due, because there is something new or for its time has come."""
        if self.state is FollowerState.HOLDING:
            if self._sink.safe_end < self._sink.max_physical_offset:
                return None
            self.state = FollowerState.FOLLOWING
            return self._report(self.begins, now_ms)
        if self.state is not FollowerState.FOLLOWING:
            return None
        safe = self._sink.safe_end
        if safe <= self.reported and now_ms < self._reported_ms + self._heartbeat_ms:
            return None
        return self._report(max(safe, self.reported), now_ms)

    def _report(self, offset: int, now_ms: int) -> bytes:
        self.reported, self._reported_ms = offset, now_ms
        return encode_report(offset)

    def is_silent(self, now_ms: int) -> bool:
        """Return whether no packet came for longer than haHousekeepingInterval."""
        return now_ms > self._heard_ms + self._silence_ms

    @property
    def due_ms(self) -> int:
        """When `take_report` or `is_silent` says something else, if nothing happens before."""
        silent_ms = self._heard_ms + self._silence_ms + 1
        if self.state is not FollowerState.FOLLOWING:
            return silent_ms
        return min(self._reported_ms + self._heartbeat_ms, silent_ms)


class Follower:
    """Follows the master it was told of, connecting again and again. Everything happens on its event loop.

    `inquire` asks that master's service address for its epochs: None if it refuses to tell, as Apache's does; without
    epochs in the answer, they are not compared. Errors of the disk come out of `run`.
    """

    def __init__(
        self,
        sink: LogSink,
        config: ReplicationConfig,
        clock: Clock,
        inquire: Inquire,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._sink = sink
        self._config = config
        self._clock = clock
        self._inquire = inquire
        self._tls = tls
        self._address: str | None = config.ha_master_address or None
        self._changed = asyncio.Event()
        self._is_closed = False
        self._running: asyncio.Future[None] | None = None  # done when `run` has ended
        self._link: _MasterLink | None = None
        self._problem = ""
        self._complaint = ""  # the last problem that was logged; the same one is not repeated every five seconds
        self._told_unchecked = ""  # the last master that could not be checked
        self._has_followed = asyncio.Event()

    def follow(self, address: str | None) -> None:
        """Follow the master that serves slaves at `address` from now on; with None, follow none."""
        if address != self._address:
            self._address = address
            self._changed.set()

    def synced(self) -> None:
        """Report what has become safe; the sink's `on_safe`."""
        if self._link is not None:
            self._link.report()

    async def followed(self) -> str:
        """Return the address of the master, once it was told for the first time where this log ends."""
        await self._has_followed.wait()
        return self._address or ""

    def status(self) -> FollowerStatus:
        """Return how it stands with the master."""
        session = self._link.session if self._link is not None else None
        if session is None:
            return FollowerStatus(self._address, FollowerState.AWAY, -1, False, self._problem)
        return FollowerStatus(self._address, session.state, session.reported, session.is_checked, self._problem)

    async def run(self) -> None:
        """Follow until `close`."""
        self._running = running = asyncio.get_running_loop().create_future()
        self._sink.on_safe = self.synced
        try:
            while not self._is_closed:
                self._changed.clear()
                if self._address is None:
                    await self._changed.wait()
                    continue
                await self._unless_changed(self._follow(self._address))
                if not self._is_closed:
                    await sleep_unless(self._changed, self._clock, RETRY_MS)
        finally:
            self._sink.on_safe = None
            running.set_result(None)

    async def close(self) -> None:
        """End `run`. Nothing is appended to the log any more when this returns."""
        self._is_closed = True
        self._changed.set()
        if self._link is not None:
            self._link.close("closing")
        if self._running is not None:
            await asyncio.shield(self._running)

    def cut_off(self) -> None:
        """Break the connection at once, as the end of the process would."""
        self._is_closed = True
        self._changed.set()
        if self._link is not None:
            self._link.close("killed")

    async def _unless_changed(self, work: Awaitable[None]) -> None:
        """Do `work`, or as much of it as is done when another master is to be followed."""
        working = asyncio.ensure_future(work)
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((working, changed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            working.cancel()
            await asyncio.wait((working,))
        if not working.cancelled():
            working.result()

    async def _follow(self, address: str) -> None:
        """Follow one master over one connection, until it ends."""
        try:
            await self._converse(address)
        except CosmodromeError as error:
            self._note(address, error)

    async def _converse(self, address: str) -> None:
        session = FollowerSession(self._sink, self._config, self._clock.steady_ms())
        self._link = link = _MasterLink(session, self._clock, self._heard, self._has_followed.set)
        try:
            # Connected before it is asked: if the process that answers is a later one than that which listened, then
            # this connection is broken, and its answer does no harm.
            await self._connect(link, address)
            link.begin(await self._answer(address))
            await link.live()
        finally:
            self._link = None
            link.close("another master is to be followed")
            await link.ended()
        if link.error is not None:
            raise link.error
        raise ConnectionFailed(address, link.reason)

    async def _connect(self, link: _MasterLink, address: str) -> None:
        host, _, text = address.rpartition(":")
        port = parse_int(text, low=1, high=MAX_PORT)
        if not host or port is None:
            raise ConnectionFailed(address, "this is no address of the form host:port")
        loop = asyncio.get_running_loop()
        connecting = asyncio.ensure_future(loop.create_connection(lambda: link, host.strip("[]"), port, ssl=self._tls))
        try:
            await self._in_time(asyncio.shield(connecting), CONNECT_MS, address)
        except (OSError, ValueError) as error:
            raise ConnectionFailed(address, str(error)) from error
        finally:
            # Cancelled between `connection_made` and its end, uvloop's never tells that the connection is lost.
            if link.is_connected:
                await asyncio.wait((connecting,))
            else:
                connecting.cancel()

    async def _answer(self, address: str) -> MasterLog | None:
        try:
            master = await self._in_time(self._inquire(), INQUIRE_MS, address)
        except OSError as error:
            raise ConnectionFailed(address, str(error)) from error
        if (master is None or not master.epochs) and self._told_unchecked != address:
            self._told_unchecked = address
            log.warning(
                "master without epochs: address=%s; whether its log is the one of this slave cannot be checked%s",
                address,
                ", and haFetchHistory fetches no more than its last file"
                if master is None and self._config.ha_fetch_history
                else "",
            )
        return master

    async def _in_time(self, work: Awaitable[T], ms: int, address: str) -> T:
        working = asyncio.ensure_future(work)
        sleeping = asyncio.ensure_future(self._clock.sleep(ms))
        try:
            await asyncio.wait((working, sleeping), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise CallTimeout(address, ms)
            return working.result()
        finally:
            sleeping.cancel()
            working.cancel()

    def _heard(self) -> None:
        """Note that all is well again."""
        self._problem = self._complaint = ""

    def _note(self, address: str, error: CosmodromeError) -> None:
        self._problem = text = str(error)
        if self._is_closed:
            return
        is_grave = not isinstance(error, ConnectionFailed | CallTimeout | ProtocolError)
        remedy = _DIVERGED if isinstance(error, LogDiverged) else ""
        level = logging.ERROR if is_grave else logging.WARNING
        if text == self._complaint:
            level = logging.DEBUG
        self._complaint = text
        log.log(level, "master lost: address=%s next=%ds reason=%r%s", address, RETRY_MS // 1000, text, remedy)


_DIVERGED = (
    "; this log is not a beginning of the master's: if it is the right master, stop this slave, move its store folder "
    "away and start it empty"
)


class _MasterLink(asyncio.Protocol):
    """The socket to the master."""

    def __init__(
        self,
        session: FollowerSession,
        clock: Clock,
        on_heard: Callable[[], None],
        on_report: Callable[[], None],
    ) -> None:
        self.session = session
        self._clock = clock
        self._on_heard = on_heard
        self._on_report = on_report
        self._was_heard = False
        self._enters = False
        self._is_open = True
        self._transport: asyncio.Transport | None = None
        self.lost = asyncio.Event()
        self.error: BaseException | None = None
        self.reason = "the master closed the connection"
        self._peer: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = transport.get_extra_info("peername")
        if not self._is_open:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_open = False
        if error is not None:
            self.reason = str(error)
        self.lost.set()

    @property
    def is_connected(self) -> bool:
        """Whether there was a connection, which may be lost by now."""
        return self._transport is not None

    async def ended(self) -> None:
        """Return when the socket is closed."""
        if self.is_connected:
            await self.lost.wait()

    def begin(self, master: MasterLog | None) -> None:
        """Cut the log if need be, and report for the first time. Errors are raised."""
        if not self._is_open:
            return
        self.session.answered(master, self._clock.steady_ms())
        log.info(
            "master connected: peer=%s begins=%d checked=%s",
            ":".join(map(str, self._peer[:2])) if self._peer else "?",
            self.session.begins,
            self.session.is_checked,
        )
        self.report()

    async def live(self) -> None:
        """Report now and then, until the connection ends."""
        while not self.lost.is_set():
            now_ms = self._clock.steady_ms()
            if self.session.is_silent(now_ms):
                self.close("the master sent nothing for longer than haHousekeepingInterval")
                await self.lost.wait()
                return
            self.report()
            await sleep_unless(self.lost, self._clock, max(self.session.due_ms - now_ms, 1))

    def data_received(self, data: bytes) -> None:
        if not self._is_open:
            return
        if not self._enters:  # after the report: the master's senders wait for it, and only readers for the queues
            self._enters = True
            asyncio.get_running_loop().call_soon(self._enter)
        try:
            self.session.receive(data, self._clock.steady_ms())
        except BaseException as error:  # `Follower.run` says what it means
            self._fail(error)
            return
        if self.session.was_heard and not self._was_heard:
            self._was_heard = True
            self._on_heard()
        self.report()

    def _enter(self) -> None:
        self._enters = False
        try:
            self.session.enter()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self.close(str(error))

    def report(self) -> None:
        """Report what is new. All packets of one read, or one sync, are one report."""
        if self._is_open and self._transport is not None:
            report = self.session.take_report(self._clock.steady_ms())
            if report is not None:
                self._transport.write(report)
                self._on_report()

    def close(self, reason: str) -> None:
        """Close at once."""
        if self._is_open:
            self._is_open = False
            self.reason = reason
            if self._transport is not None:
                self._transport.abort()

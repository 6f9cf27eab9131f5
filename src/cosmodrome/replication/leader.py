"""The master's side of replication: each slave that connects gets the log from where it is on, and says what it has.

A slave's connection:

    silent ──its first report──► following ──silence, nonsense, or a place that the log does not have──► closed

Nothing is sent before the first report. From then on, bytes of the log leave at the end of the loop's turn in which
they were appended, or earlier in a long turn whose senders wait for copies; every packet is copied out of the mapped
file once. A slave that reads more slowly than it is sent to is waited for: what is kept for it is bounded by a few
packets, and the log is where the rest stays.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, cast

from cosmodrome.clock import Clock
from cosmodrome.config import KIB, ReplicationConfig
from cosmodrome.errors import CosmodromeError, ProtocolError
from cosmodrome.net.server import CannotListen
from cosmodrome.release import ReleaseGroup, TurnGroups
from cosmodrome.replication.packets import PACKET, ReportReader, encode_head
from cosmodrome.replication.progress import Progress, Woken
from cosmodrome.store.message import Durability

log = logging.getLogger(__name__)

MAX_SLAVES = 64
PACKETS_AHEAD = 4  # so many may wait in memory for a slave that does not read
BYTES_PER_TURN = 256 * KIB  # to one slave, before others have their turn
EARLY_BYTES = 8 * KIB  # some 20 messages: so many that wait for copies are sent before the end of the turn
FLOW_WINDOW_MS = 100  # in each, a share of maxHaTransferByteInSecond may be sent
CLOSING_TURNS = 3  # of the loop, for what is on its way to the sockets

Waiter = ReleaseGroup[Durability]


class LogSource(Protocol):
    """The part of a master's store that leading needs."""

    on_append: Callable[[], None] | None  # called after each append while a slave waits for more

    @property
    def min_physical_offset(self) -> int:
        """The offset of the first byte."""
        ...

    @property
    def max_physical_offset(self) -> int:
        """The offset behind the last byte."""
        ...

    @property
    def log_file_size(self) -> int:
        """The size of each file of the log; a file begins at each multiple of it."""
        ...

    def log_bytes(self, begin: int, size: int) -> memoryview | None:
        """Return up to `size` bytes from `begin`, of one file, below the end; None if there are none."""
        ...


class CannotServe(CosmodromeError):
    """A slave whose place is not in this master's log; the text says what to do about it."""


class NotAdmitted(CosmodromeError):
    """A slave, or another peer, whose address may not read the log."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"{host} may not copy the log: name it in haAllowedAddresses, or with aclEnable=true in the "
            "globalWhiteRemoteAddresses of plain_acl.yml"
        )


@dataclass(frozen=True, slots=True)
class SlaveStatus:
    """A connected slave, as operators see it. Offsets are -1 before its first report."""

    peer: str
    begins: int  # where it began on this connection
    sent: int
    reported: int
    behind_bytes: int
    is_in_sync: bool


class Sender:
    """The bytes for one slave, and the meaning of its reports. Pure, but for the log that it reads."""

    def __init__(self, source: LogSource, config: ReplicationConfig, now_ms: int) -> None:
        self._source = source
        self._batch_bytes = config.ha_transfer_batch_size
        self._heartbeat_ms = config.ha_send_heartbeat_interval
        self._silence_ms = config.ha_housekeeping_interval
        self._bytes_per_window = 0  # 0: any
        if config.ha_flow_control_enable:
            self._bytes_per_window = max(config.max_ha_transfer_byte_in_second * FLOW_WINDOW_MS // 1000, 1)
        self._window_began_ms = now_ms
        self._window_bytes = 0
        self._reader = ReportReader()
        self._heard_ms = self._sent_ms = now_ms
        self.begins = -1
        self.next = -1  # the offset that is sent next
        self.reported = -1

    def receive(self, data: bytes, now_ms: int) -> int | None:
        """Return what the slave has by the reports that `data` completes; None if it completes none.

        ProtocolError if no slave sends that; CannotServe if the log has not what follows the first report.
        """
        reports = self._reader.feed(data)
        if not reports:
            return None
        self._heard_ms = now_ms
        if self.next < 0:
            self._begin(reports[0])
        # A later report beyond our end is clamped to it: no slave can have more than there is.
        self.reported = max(self.reported, min(max(reports), self._source.max_physical_offset))
        return self.reported

    def _begin(self, report: int) -> None:
        begin, end = self._source.min_physical_offset, self._source.max_physical_offset
        if report == 0:  # it has nothing, and gets the last file, as from Apache's master
            place = max(end - end % self._source.log_file_size, begin)
        elif report > end:
            raise CannotServe(
                f"the slave has {report - end} bytes more than this master, whose log ends at {end}: this master lost "
                "what the slave still has; promote that slave, or move its store folder away and start it empty"
            )
        elif report < begin:
            raise CannotServe(
                f"the slave continues at {report}, but this master's log begins at {begin}; move the slave's store "
                "folder away and start it empty"
            )
        else:
            place = report
        self.begins = self.next = place

    def packet(self, now_ms: int) -> bytes | None:
        """Return the next packet; None if there is nothing to send, or not now. CannotServe if it was deleted."""
        place = self.next
        if place < 0:
            return None
        size = self._batch_bytes
        if self._bytes_per_window and (size := min(size, self._allowed(now_ms))) == 0:
            return None
        view = self._source.log_bytes(place, size)
        if view is None:
            if place < self._source.min_physical_offset:
                raise CannotServe(
                    f"what the slave needs next, {place}, was deleted before it was sent; move the slave's store "
                    "folder away and start it empty"
                )
            return None
        size = len(view)
        self.next = place + size
        self._window_bytes += size
        self._sent_ms = now_ms
        return b"".join((encode_head(place, size), view))

    def _allowed(self, now_ms: int) -> int:
        if now_ms - self._window_began_ms >= FLOW_WINDOW_MS:
            self._window_began_ms, self._window_bytes = now_ms, 0
        return max(self._bytes_per_window - self._window_bytes, 0)

    def throttled_ms(self, now_ms: int) -> int:
        """Return how long nothing may be sent; 0: something may, or there is nothing to send."""
        if not self._bytes_per_window or self._allowed(now_ms) or self.next == self._source.max_physical_offset:
            return 0
        return self._window_began_ms + FLOW_WINDOW_MS - now_ms

    def heartbeat(self, now_ms: int) -> bytes | None:
        """Return a heartbeat if nothing was sent for so long."""
        if self.next < 0 or now_ms < self._sent_ms + self._heartbeat_ms:
            return None
        self._sent_ms = now_ms
        return encode_head(self.next, 0)

    def is_silent(self, now_ms: int) -> bool:
        """Return whether nothing was reported for longer than haHousekeepingInterval."""
        return now_ms > self._heard_ms + self._silence_ms

    @property
    def due_ms(self) -> int:
        """When `heartbeat` or `is_silent` says something else."""
        silent_ms = self._heard_ms + self._silence_ms + 1
        return silent_ms if self.next < 0 else min(self._sent_ms + self._heartbeat_ms, silent_ms)


class Leader:
    """Serves slaves, and knows what is safe on enough of them. Everything happens on its event loop.

    Call `replicated` for a message that must be on other disks, too. The log tells of appends only while a slave reads:
    once in each turn of the loop, however many there are.
    """

    def __init__(self, source: LogSource, config: ReplicationConfig, clock: Clock) -> None:
        self._source = source
        self._config = config
        self._clock = clock
        self._progress = Progress[Waiter](
            config.copies, config.ha_max_gap_not_in_sync, config.slave_timeout, source.max_physical_offset
        )
        self._links: set[_SlaveLink] = set()
        self._groups = TurnGroups[Durability](self._ask_together, config.ha_transfer_batch_size)
        self._sending_due = False
        self._early_at = 0  # a turn that has appended this far sends before its end
        self._is_closed = False
        self._asked = asyncio.Event()  # somebody waits for copies
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._refused: dict[str, str] = {}  # by host: the last reason that was logged as an error
        self._host = ""
        self._port = 0
        self.admits: Callable[[str], bool] = lambda _host: True  # by a slave's address
        self.encloses: Callable[[Callable[[], _SlaveLink]], Callable[[], asyncio.Protocol]] = lambda factory: factory

    async def start(self, host: str, port: int) -> None:
        """Listen for slaves. CannotListen if that is not possible."""
        self._loop = asyncio.get_running_loop()
        try:
            factory = self.encloses(lambda: _SlaveLink(self))
            self._listener = await self._loop.create_server(factory, host, port, reuse_address=True)
        except OSError as error:
            raise CannotListen.because(error, host, port, "choose another haListenPort") from error
        self._host, self._port = host, self._listener.sockets[0].getsockname()[1]
        self._spawn(self._watch_links())
        self._spawn(self._watch_deadlines())
        log.info("slaves served: host=%s port=%d copies=%d", host, self._port, self._config.copies)

    @property
    def port(self) -> int:
        """The port really listened on, also when 0 was asked for."""
        return self._port

    # --- the log's side

    def appended(self) -> None:
        """Send what was appended at the end of this turn of the loop, however often this is called in it."""
        if self._links and not self._sending_due:
            self._sending_due = True
            self._early_at = self._source.max_physical_offset + EARLY_BYTES
            self._source.on_append = None
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._sending_due = False
        try:
            for link in tuple(self._links):
                link.send()
        finally:
            self._listen()

    def _listen(self) -> None:
        """Hear of the next append if a slave reads. Others cost a sender nothing: what they need stays in the log."""
        if self._sending_due:
            return
        if not self._is_closed and any(link.is_reading for link in self._links):
            self._source.on_append = self.appended
        elif self._source.on_append == self.appended:  # not another leader's, after a change of roles and back
            self._source.on_append = None

    async def replicated(self, end: int) -> Durability:
        """Return, when the log is on enough disks up to `end`, OK; or why that is not so and will not be waited for.

        With fewer copies in sync than are wanted that is SLAVE_NOT_AVAILABLE at once, also for those that wait.
        """
        return await self.ask(end)

    def ask(self, end: int) -> Waiter:
        """Ask now; the outcome of `replicated` is what awaiting the result returns.

        Those that ask in one turn of the loop wait for the last of them, a packet's worth together: the slave gets
        their messages together anyway.
        """
        outcome = self._progress.outcome(end)
        if outcome is not None:
            return ReleaseGroup(outcome)
        group = self._groups.join(end)
        if end >= self._early_at and self._sending_due:
            self._send_early(end)
        return group

    def _send_early(self, end: int) -> None:
        """Let slaves work on the first messages of a turn while it takes the others; their senders go on before them,
        too."""
        self._early_at = end + EARLY_BYTES
        self._groups.close()
        for link in tuple(self._links):
            link.send(at_once=True)

    def _ask_together(self, group: Waiter, end: int) -> Durability | None:
        outcome = self._progress.ask(group, end, self._clock.steady_ms())
        if outcome is None:
            self._asked.set()
        return outcome

    @property
    def waiting(self) -> int:
        """How many have asked that wait for their outcome."""
        return self._groups.waiting

    def in_sync_copies(self) -> int:
        """Return how many logs are at most haMaxGapNotInSync behind, this one included."""
        self._progress.advance(self._source.max_physical_offset)
        return self._progress.in_sync

    @property
    def safe(self) -> int:
        """The offset up to which enough of the connected slaves have the log."""
        return self._progress.safe

    def slaves(self) -> list[SlaveStatus]:
        """Return the connected slaves."""
        self._progress.advance(self._source.max_physical_offset)
        return [link.status() for link in self._links]

    async def close(self) -> None:
        """Send what has been appended to the slaves that read it, and end. Waiting senders get SLAVE_NOT_AVAILABLE.

        What a slave does not read stays in the log for it.
        """
        self._is_closed = True
        if self._listener is not None:
            self._listener.close()
        for task in self._tasks:
            task.cancel()
        if self._links:
            self._send()
            for _ in range(CLOSING_TURNS):
                await asyncio.sleep(0)
        for link in tuple(self._links):
            link.close("this master is closing")
        await asyncio.gather(*self._tasks, *(link.lost.wait() for link in self._links), return_exceptions=True)
        if self._listener is not None:
            await self._listener.wait_closed()

    def cut_off(self) -> None:
        """Break every connection at once, as the end of the process would."""
        self._is_closed = True
        if self._listener is not None:
            self._listener.close()
        for link in tuple(self._links):
            link.close("killed")

    # --- the slaves' side

    def _opened(self, link: _SlaveLink) -> bool:
        if self._is_closed or len(self._links) >= MAX_SLAVES:
            if not self._is_closed:
                log.warning("slave turned away: peer=%s reason=%r", link.peer, f"{MAX_SLAVES} are connected")
            return False
        if not self.admits(link.host):
            self._refuse(link, NotAdmitted(link.host))
            return False
        self._links.add(link)
        return True

    def _reported(self, link: _SlaveLink, offset: int) -> None:
        self._progress.advance(self._source.max_physical_offset)
        if link.has_joined:
            self._wake(self._progress.report(link, offset))
            return
        link.has_joined = True
        self._refused.pop(link.host, None)
        log.info("slave connected: peer=%s begins=%d has=%d", link.peer, link.sender.begins, offset)
        self._wake(self._progress.join(link, offset, link.host))
        link.send()
        self._listen()

    def _lost(self, link: _SlaveLink, reason: str) -> None:
        self._links.discard(link)
        self._listen()
        if link.has_joined:
            log.info("slave lost: peer=%s reported=%d reason=%r", link.peer, link.sender.reported, reason)
            self._wake(self._progress.leave(link))

    def _refuse(self, link: _SlaveLink, error: CosmodromeError) -> None:
        """Close the connection of a slave that cannot be served; it will come again, with the same trouble."""
        text = str(error)
        if self._refused.get(link.host) != text:
            if len(self._refused) >= MAX_SLAVES:
                self._refused.clear()
            self._refused[link.host] = text
            level = logging.ERROR if isinstance(error, CannotServe) else logging.WARNING
            log.log(level, "slave refused: peer=%s reason=%r", link.peer, text)
        link.close(text)

    def _wake(self, woken: Woken[Waiter]) -> None:
        for group, outcome in woken:
            self._groups.release(group, outcome)

    def _status(self, link: _SlaveLink) -> SlaveStatus:
        sender = link.sender
        behind = self._source.max_physical_offset - max(sender.reported, 0)
        in_sync = link.has_joined and self._progress.is_in_sync(link)
        return SlaveStatus(link.peer, sender.begins, sender.next, sender.reported, behind, in_sync)

    # --- time

    async def _watch_links(self) -> None:
        longest_ms = min(self._config.ha_send_heartbeat_interval, self._config.ha_housekeeping_interval)
        while True:
            now_ms = self._clock.steady_ms()
            due_ms = now_ms + longest_ms  # those who connect meanwhile have nothing due before
            for link in tuple(self._links):
                due_ms = min(due_ms, link.tick(now_ms))
            await self._clock.sleep(max(due_ms - now_ms, 1))

    async def _watch_deadlines(self) -> None:
        while True:
            await self._asked.wait()
            while (deadline_ms := self._progress.deadline_ms) is not None:
                await self._clock.sleep(max(deadline_ms - self._clock.steady_ms(), 0))
                self._wake(self._progress.expire(self._clock.steady_ms()))
            self._asked.clear()

    def _send_later(self, link: _SlaveLink, ms: int) -> None:
        self._spawn(link.send_after(ms))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of replication failed", exc_info=error)


class _SlaveLink(asyncio.Protocol):
    """The socket of one slave."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._clock = leader._clock
        self.sender = Sender(leader._source, leader._config, self._clock.steady_ms())
        self.has_joined = False
        self.lost = asyncio.Event()
        self.peer = self.host = "?"
        self._transport: asyncio.Transport
        self._socket: Any = None
        self._is_open = False
        self._is_paused = False  # the slave does not read as fast as it is sent to
        self._is_throttled = False
        self._reason = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._socket = transport.get_extra_info("socket")
        name = transport.get_extra_info("peername")
        if name:
            self.host, self.peer = str(name[0]), f"{name[0]}:{name[1]}"
        self._transport.set_write_buffer_limits(
            high=PACKETS_AHEAD * (self._leader._config.ha_transfer_batch_size + PACKET.size)
        )
        self._is_open = self._leader._opened(self)
        if not self._is_open:
            self._transport.abort()

    def use_transport(self, transport: asyncio.Transport) -> None:
        """Go on inside TLS, as the first bytes ask for it."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._is_open:
            return
        try:
            offset = self.sender.receive(data, self._clock.steady_ms())
        except (ProtocolError, CannotServe) as error:
            self._leader._refuse(self, error)
            return
        if offset is not None:
            self._leader._reported(self, offset)

    @property
    def is_reading(self) -> bool:
        """The slave has begun to follow, and reads what it is sent."""
        return self.has_joined and self._is_open and not self._is_paused and not self._is_throttled

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._leader.appended()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_open = False
        self._leader._lost(self, self._reason or str(error or "the slave closed the connection"))
        self.lost.set()

    def send(self, *, at_once: bool = False) -> None:
        """Send what there is, up to what the slave reads and what others leave it of this turn; with `at_once`, before
        the turn is over."""
        now_ms, left = self._clock.steady_ms(), BYTES_PER_TURN
        try:
            while self._is_open and not self._is_paused:
                if left <= 0:
                    self._leader.appended()  # goes on in the next turn
                    return
                packet = self.sender.packet(now_ms)
                if packet is None:
                    self._maybe_send_later(now_ms)
                    return
                left -= len(packet)
                if at_once:
                    packet = packet[self._write_at_once(packet) :]
                if packet:
                    self._transport.write(packet)
        except CannotServe as error:
            self._leader._refuse(self, error)

    def _write_at_once(self, data: bytes) -> int:
        """Write past the transport, which keeps what it is given until the turn is over; return how much is written."""
        if self._socket is None or self._transport.is_closing() or self._transport.get_write_buffer_size():
            return 0
        try:
            return os.write(self._socket.fileno(), data)
        except OSError:  # it takes none now, or is broken: then the transport will find out
            return 0

    def _maybe_send_later(self, now_ms: int) -> None:
        if not self._is_throttled and (ms := self.sender.throttled_ms(now_ms)):
            self._is_throttled = True
            self._leader._send_later(self, ms)

    async def send_after(self, ms: int) -> None:
        await self._clock.sleep(ms)
        self._is_throttled = False
        self.send()
        self._leader._listen()

    def tick(self, now_ms: int) -> int:
        """Do what time asks for; return when it will ask for the next."""
        if self._is_open and self.sender.is_silent(now_ms):
            self.close("it reported nothing for longer than haHousekeepingInterval")
        elif (heartbeat := self.sender.heartbeat(now_ms)) and self._is_open and not self._is_paused:
            self._transport.write(heartbeat)
        return self.sender.due_ms

    def close(self, reason: str) -> None:
        """Close without waiting for a slave that does not read."""
        self._reason = self._reason or reason
        self._is_open = False
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def status(self) -> SlaveStatus:
        return self._leader._status(self)

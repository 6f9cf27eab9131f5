"""One TCP connection, used in both directions: requests, replies and one-way commands of either side.

All frames of one read are handled in one go. A handler that need not wait runs to its end right there; only one
that really suspends becomes a task. Replies leave when the loop has read from every connection that had something:
those of one connection in one write, and all writes in a row. A write to a peer that sleeps costs as much as all the
rest, and in a row they find it awake if it has several connections.

A peer that does not read its replies is not read from either, and after a while it is dropped, so what waits for a
peer is bounded by the high-water mark, one reply, and the write limit for answers that come late. Only while calls of
our own wait for its replies is it read from all the same: two sides that each wait for the other to read first would
wait forever.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

from cosmodrome.codes import ResponseCode
from cosmodrome.config import NetConfig
from cosmodrome.errors import CallTimeout, ConnectionFailed, ProtocolError
from cosmodrome.net.books import Books
from cosmodrome.net.lane import OWNER
from cosmodrome.net.turn import Turn
from cosmodrome.net.watchdog import Watchdog
from cosmodrome.release import ReleaseGroup
from cosmodrome.wire.command import ONEWAY_BIT, RESPONSE_BIT, Command, decode
from cosmodrome.wire.frame import Frame, FrameDecoder
from cosmodrome.wire.record import pack_host

log = logging.getLogger(__name__)

# A handler answers a request, at once or by a coroutine; None means no reply. A coroutine's first step runs outside any
# task, so before its first suspension it may not use what needs one (asyncio.timeout, TaskGroup).
Handler = Callable[["Connection", Command], Coroutine[Any, Any, Command | None] | Command | None]
# What most handlers return. One that need not wait should be a plain function: a coroutine costs half a microsecond.
Answering = Coroutine[Any, Any, Command] | Command
ConnectionCallback = Callable[["Connection"], None]

# Replies are joined into one write up to this size; larger ones are handed over piece by piece, uncopied.
JOIN_BYTES = 64 * 1024
# Requests that wait are counted by their bytes if they are as long as this; of shorter ones, their number is bounded.
LONG_BODY_BYTES = 16 * 1024
# Frames of one connection that take longer are interrupted for a turn of the others. A read full of sends takes that.
REST_AFTER_SECONDS = 0.02
# The same in a turn that is long already: others have had a lot of it.
SHARE_SECONDS = 0.0005
_ASLEEP = Watchdog(10**9)


async def completed(answering: Answering) -> Command:
    """Return the reply of a handler, which may have to be awaited."""
    return answering if isinstance(answering, Command) else await answering


class _Unsent(NamedTuple):
    """A command that waits until the peer reads again; of a call `waiter` is the reply, and its opaque is given."""

    command: Command
    opaque: int | None
    waiter: asyncio.Future[Any]


class _Parked:
    """A request that goes on when its group is released."""

    __slots__ = ("_connection", "command", "coroutine")

    def __init__(
        self, connection: Connection, command: Command, coroutine: Coroutine[Any, Any, Command | None]
    ) -> None:
        self._connection = connection
        self.command = command
        self.coroutine = coroutine

    def go_on(self, outcome: Any) -> None:
        self._connection._unpark(self, outcome)


class Connection(asyncio.Protocol):
    """The protocol object of one socket. Everything happens on its event loop."""

    # A class of more than 30 attributes without slots shares no keys among its objects in CPython 3.11: then every call
    # of a method looks for it in the dictionary of each connection, and a request costs a microsecond more.
    __slots__ = (
        "_backlog",
        "_books",
        "_calls",
        "_config",
        "_decoder",
        "_draining",
        "_flush_due",
        "_handler",
        "_held",
        "_idle_timer",
        "_is_resting",
        "_last_active",
        "_loop",
        "_made",
        "_nonsense",
        "_on_close",
        "_on_open",
        "_opaques",
        "_out",
        "_out_bytes",
        "_parked",
        "_pauses",
        "_peer_stalled",
        "_reading",
        "_received",
        "_stall_timer",
        "_tasks",
        "_transport",
        "_turn",
        "_turn_before",
        "_unfinished_bytes",
        "_unparked",
        "_waiting_bytes",
        "_watchdog",
        "closed",
        "error",
        "in_order",
        "lost",
        "packed_peer",
        "peer",
        "peer_address",
    )

    def __init__(
        self,
        handler: Handler,
        config: NetConfig,
        on_open: ConnectionCallback | None = None,
        on_close: ConnectionCallback | None = None,
        books: Books | None = None,
    ) -> None:
        self._handler = handler
        self._config = config
        self._on_open = on_open
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(config.max_frame_bytes)
        self._opaques = itertools.count(1)  # Node replaces an opaque of 0, so ours start at 1
        self._calls: dict[int, asyncio.Future[Command]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._parked: set[_Parked] = set()
        self._unparked: asyncio.Future[None] | None = None  # done when none is parked
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._flush_due = False
        self._reading = True
        self._draining = False
        self._peer_stalled = False
        # What our own side wants to send while the peer is stalled: of each caller one command, for which it waits.
        self._backlog: deque[_Unsent] = deque()
        self._stall_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._made = self._last_active = self._received = self._loop.time()
        self._books = books  # of a daemon; a client has few connections, and chose them itself
        # A client has nobody to keep waiting but itself.
        self._watchdog = books.watchdog if books is not None else _ASLEEP
        self._turn = (books.turn if books is not None else None) or Turn(self._watchdog.clock)
        self._turn_before = 0.0  # how long the turn took before what is in hand came
        self._is_resting = False  # while others have their turn
        self._pauses = 0
        self._held: Frame | None = None  # a long one, which another turn has time for
        self._unfinished_bytes = 0  # of a frame, as the books know them
        self._waiting_bytes = 0  # of long requests in hand
        self._transport: asyncio.Transport
        self.peer_address: tuple[str, int] = ("?", 0)
        self.peer = "?"
        self.packed_peer = bytes(8)  # as stored messages hold it
        self.closed = False
        self.error: Exception | None = None  # why the system ended it, if it did
        self._nonsense = ""  # why its bytes could not be read
        self.lost = asyncio.Event()
        self.in_order = asyncio.Lock()  # for handlers that may wait, and whose requests must not overtake each other

    def __repr__(self) -> str:
        return f"<Connection {self.peer}{' closed' if self.closed else ''}>"

    @property
    def is_stalled(self) -> bool:
        """The peer reads more slowly than we write."""
        return self._peer_stalled

    @property
    def waited_ms(self) -> float:
        """How long what is in hand here has waited for its turn, at least."""
        return (self._loop.time() - self._received) * 1000

    @property
    def turn_before_ms(self) -> float:
        """How long the loop took for its turn before this came, or others for theirs since."""
        return self._turn_before * 1000

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer_address = (peer[0], peer[1])
            self.peer = f"{peer[0]}:{peer[1]}"
            self.packed_peer = pack_host(peer[0], peer[1])
        self._transport.set_write_buffer_limits(high=self._config.write_high_water_bytes)
        self._watch_idle()
        if self._on_open is not None:
            self._on_open(self)

    def use_transport(self, transport: asyncio.Transport) -> None:
        """Go on inside TLS, as the first bytes ask for it."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._last_active = self._received = self._turn.began()
        self._turn_before = self._turn.last_seconds
        self._decoder.feed(data)
        self._handle_frames()
        if self._books is not None and (self._decoder.pending_bytes or self._unfinished_bytes):
            self._note_unfinished(len(data))
            if self._reading and self._turn.is_long(self._watchdog.clock()):
                self._rest(counts=False)  # the rest of a long frame can wait as well as others can

    def _note_unfinished(self, arrived: int | None) -> None:
        """Tell the books what is here of a frame: another frame than before if some of the bytes went into one.

        None arrived when we read again: while we did not, its time did not pass.
        """
        assert self._books is not None
        pending, before = self._decoder.pending_bytes, self._unfinished_bytes
        self._unfinished_bytes = pending
        if not pending or self.closed:
            self._books.unfinished.forget(self)
        else:
            self._books.frame_begun(self, pending, is_new=arrived is None or pending != before + arrived)

    def pause_writing(self) -> None:
        self._peer_stalled = True
        if self._books is not None:
            self._books.unsent.keep(self, self._unsent_bytes, self._loop.time())
        self._stall_timer = self._loop.call_later(self._config.stalled_peer_ms / 1000, self._drop_stalled)
        self._regulate()

    def resume_writing(self) -> None:
        self._peer_stalled = False
        if self._books is not None:
            self._books.unsent.forget(self)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._send_backlog()
        self._regulate()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self.error = error
        self._take_held()
        for timer in (self._idle_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        for waiter in (*self._calls.values(), *(unsent.waiter for unsent in self._backlog)):
            if not waiter.done():
                waiter.set_exception(ConnectionFailed(self.peer, f"connection lost ({error or self._why_closed()})"))
        self._backlog.clear()
        self._out.clear()
        if self._books is not None:
            self._books.unfinished.forget(self)
            self._books.unsent.forget(self)
        self.lost.set()
        if self._on_close is not None:
            self._on_close(self)

    def _why_closed(self) -> str:
        if self._nonsense:
            return self._nonsense
        if self._received != self._made or self._transport.get_extra_info("sslcontext") is not None:
            return "closed by the peer"
        return "closed by the peer before it said anything; does it take TLS only?"

    # --- requests and replies coming in

    def _handle_frames(self) -> None:
        """Every whole frame in hand, one after the other; if they take long, the rest in the next turn. A long frame is
        not begun in a turn that has taken long already, whoever it worked for."""
        if self.closed:
            return
        if OWNER.get() is not self.peer:
            OWNER.set(self.peer)
        take = self._decoder.take
        clock, limit = self._watchdog.clock, self._watchdog.limit_seconds
        before = clock()
        rest_at = before + (SHARE_SECONDS if self._turn.is_long(before) else REST_AFTER_SECONDS)
        try:
            while (
                self._reading
                and not self.closed
                and (frame := take() if self._held is None else self._take_held()) is not None
            ):
                if len(frame.body) >= LONG_BODY_BYTES and self._turn.is_long(before) and self._hold(frame):
                    break
                command = decode(frame)
                if command.flag & RESPONSE_BIT:
                    self._settle(command)
                else:
                    self._start(command)
                after = clock()
                if after - before > limit:
                    self._watchdog.note(command.code, self.peer, after - before)
                before = after
                if after > rest_at:
                    self._rest()
        except ProtocolError as error:
            log.warning("closing %s: %s", self.peer, error)
            self._nonsense = str(error)
            self.close()

    def _handle_kept(self) -> None:
        self._handle_frames()
        if self._books is not None:
            self._note_unfinished(arrived=None)

    def _hold(self, frame: Frame) -> bool:
        """Keep a frame for another turn; False if so much waits already that each is handled when it is there."""
        if self._books is None or self._books.has_much_waiting:
            return False
        self._held = frame
        self._books.waiting_bytes += len(frame.body)
        self._rest(counts=False)
        return True

    def _take_held(self) -> Frame | None:
        frame, self._held = self._held, None
        if frame is not None and self._books is not None:
            self._books.waiting_bytes -= len(frame.body)
        return frame

    def _rest(self, *, counts: bool = True) -> None:
        """Give others their turn. That of one who goes on sending `counts` as a turn before, when it takes long."""
        self._is_resting = True
        self._regulate()
        self._turn.rest(self._go_on_sent if counts else self._go_on)

    def _go_on_sent(self, rested: float) -> None:
        self._turn_before = max(self._turn_before, rested)
        self._go_on(rested)

    def _go_on(self, _rested: float) -> None:
        self._is_resting = False
        if self.closed or not self._accepting:
            return
        self._reading = True
        self._handle_kept()
        if self._reading and not self.closed:
            self._transport.resume_reading()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take no frame until the end of the block: none may overtake the request that waits in it."""
        self._pauses += 1
        self._regulate()
        try:
            yield
        finally:
            self._pauses -= 1
            self._regulate()

    @property
    def is_reading(self) -> bool:
        """Its frames are taken as they come."""
        return self._reading

    @property
    def _accepting(self) -> bool:
        if self.closed or self._draining or self._is_resting or self._pauses or self._is_full:
            return False
        if self._waiting_bytes and self._books is not None and self._books.has_much_waiting:
            return False  # until some of its own are done
        return not self._peer_stalled or bool(self._calls)

    @property
    def _is_full(self) -> bool:
        return len(self._tasks) + len(self._parked) >= self._config.max_handlers_per_connection

    def _regulate(self) -> None:
        """Read only while frames are accepted: what is not read waits with the peer, not here."""
        if self.closed or self._reading == self._accepting:
            return
        self._reading = not self._reading
        if self._reading:
            self._transport.resume_reading()
            self._loop.call_soon(self._handle_kept)  # those already here come first
        else:
            self._transport.pause_reading()

    def _start(self, command: Command) -> None:
        """Call the handler, and step it once if it answers by a coroutine. Most are then done."""
        try:
            coroutine = self._handler(self, command)
            if isinstance(coroutine, Command) or coroutine is None:
                self._answer(command, coroutine)
                return
            waiting_for = coroutine.send(None)
        except StopIteration as done:
            self._answer(command, done.value)
            return
        except (Exception, asyncio.CancelledError) as error:  # what it waited for may have been cancelled before
            self._fail(command, error)
            return
        self._suspend(command, coroutine, waiting_for)

    def _suspend(self, command: Command, coroutine: Coroutine[Any, Any, Command | None], waiting_for: Any) -> None:
        """A handler waits: for others' sake with its group, else as a task."""
        size = len(command.body)
        if type(waiting_for) is ReleaseGroup:
            parked = _Parked(self, command, coroutine)
            self._parked.add(parked)
            waiting_for.join(parked.go_on)
            if size >= LONG_BODY_BYTES:
                self._wait(size)
        else:
            task = self._loop.create_task(self._finish(command, self._resume(command, coroutine, waiting_for)))
            self._tasks.add(task)
            task.add_done_callback(self._finished)
            if size >= LONG_BODY_BYTES:
                self._wait(size)
                task.add_done_callback(partial(self._waited, size))
        if self._is_full:
            self._regulate()

    def _unpark(self, parked: _Parked, outcome: Any) -> None:
        """Step a handler whose group is released. Most are then done."""
        if parked not in self._parked:  # given up at the end of the connection
            return
        self._parked.discard(parked)
        command, coroutine = parked.command, parked.coroutine
        owner = OWNER.set(self.peer)
        clock = self._watchdog.clock
        began = clock()
        try:
            waiting_for = coroutine.send(outcome)
        except StopIteration as done:
            self._answer(command, done.value)
        except (Exception, asyncio.CancelledError) as error:
            self._fail(command, error)
        else:
            self._suspend(command, coroutine, waiting_for)
        finally:
            OWNER.reset(owner)
        if (took := clock() - began) > self._watchdog.limit_seconds:
            self._watchdog.note(command.code, self.peer, took)
        if len(command.body) >= LONG_BODY_BYTES:
            self._waited(len(command.body))
        if not self._reading:
            self._regulate()
        if self._unparked is not None and not self._parked and not self._unparked.done():
            self._unparked.set_result(None)

    def _wait(self, size: int) -> None:
        self._waiting_bytes += size
        if self._books is not None:
            self._books.waiting_bytes += size
            self._regulate()

    def _waited(self, size: int, _task: asyncio.Task[None] | None = None) -> None:
        self._waiting_bytes -= size
        if self._books is not None:
            self._books.waiting_bytes -= size
            self._regulate()

    async def _finish(self, command: Command, rest: Generator[Any, Any, Command | None]) -> None:
        try:
            reply = await rest  # type: ignore[misc]  # types.coroutine made it awaitable
        except Exception as error:
            self._fail(command, error)
        else:
            self._answer(command, reply)

    @types.coroutine
    def _resume(
        self, command: Command, coroutine: Coroutine[Any, Any, Command | None], waiting_for: Any
    ) -> Generator[Any, Any, Command | None]:
        """Go on with a coroutine that was stepped once and yielded `waiting_for`."""
        clock, limit = self._watchdog.clock, self._watchdog.limit_seconds
        while True:
            try:
                sent = yield waiting_for
            except BaseException as error:
                step: Callable[[Any], Any] = coroutine.throw
                value: Any = error
            else:
                step, value = coroutine.send, sent
            began = clock()
            try:
                waiting_for = step(value)
            except StopIteration as done:
                result: Command | None = done.value
                return result
            finally:
                if (took := clock() - began) > limit:
                    self._watchdog.note(command.code, self.peer, took)

    def _finished(self, task: asyncio.Task[None]) -> None:
        was_full = self._is_full
        self._tasks.discard(task)
        if was_full:
            self._regulate()

    def _answer(self, request: Command, reply: Command | None) -> None:
        if reply is None or request.flag & ONEWAY_BIT:
            return
        try:
            self.send(reply)
        except Exception as error:  # a reply that can't be encoded is our fault, not the peer's
            self._fail(request, error)

    def _fail(self, request: Command, error: BaseException) -> None:
        """A handler broke down: full trace here, nothing leaked there, and the connection goes on."""
        log.error("request %d (opaque %d) from %s failed", request.code, request.opaque, self.peer, exc_info=error)
        self._answer(request, request.reply(ResponseCode.SYSTEM_ERROR, remark="internal error; see the log there"))

    def _settle(self, reply: Command) -> None:
        call = self._calls.get(reply.opaque)
        if call is not None and not call.done():
            call.set_result(reply)

    # --- commands going out

    def send(self, command: Command) -> None:
        """Queue a reply or one-way command; it leaves with what else is queued. On a closed connection it is lost."""
        if self.closed:
            return
        head = command.head()
        self._out.append(head)
        self._out_bytes += len(head)
        if command.body:
            self._out.append(command.body)
            self._out_bytes += len(command.body)
        if self._out_bytes > JOIN_BYTES:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if not self._out or self.closed:
            return
        out, self._out = self._out, []
        is_large = self._out_bytes > JOIN_BYTES
        if is_large:
            self._transport.writelines(out)
        else:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        self._out_bytes = 0
        self._last_active = self._loop.time()
        # Checked after a large write even without a stall: writelines of Python 3.12.0 to 3.12.8 never reports one.
        if is_large or self._peer_stalled:
            unsent = self._unsent_bytes
            if unsent > self._config.write_limit_bytes:
                self._drop_stalled()
            elif self._peer_stalled and self._books is not None:
                self._books.unsent.keep(self, unsent, self._loop.time())

    @property
    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    async def call(self, command: Command, timeout_ms: float) -> Command:
        """Send a request and return its reply, whatever its code. Raises ConnectionFailed or CallTimeout."""
        if self.closed:
            raise ConnectionFailed(self.peer, "the connection is closed")
        if len(self._calls) >= self._config.max_in_flight:
            raise ConnectionFailed(self.peer, f"{len(self._calls)} calls are already waiting for it")
        opaque = next(self._opaques) & 0x7FFFFFFF
        reply: asyncio.Future[Command] = self._loop.create_future()
        self._calls[opaque] = reply
        deadline = self._loop.call_later(timeout_ms / 1000, self._expire, reply, timeout_ms)
        try:
            if self._peer_stalled:
                self._backlog.append(_Unsent(command, opaque, reply))
                self._regulate()  # from now on a reply is wanted
            else:
                command.opaque = opaque
                self.send(command)
            return await reply
        finally:
            deadline.cancel()
            del self._calls[opaque]

    async def oneway(self, command: Command) -> None:
        """Send a command that gets no reply, once a stalled peer reads again. Raises ConnectionFailed."""
        if self.closed:
            raise ConnectionFailed(self.peer, "the connection is closed")
        if self._peer_stalled:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._backlog.append(_Unsent(command, None, waiter))
            await waiter
        else:
            self.send(command)

    def _send_backlog(self) -> None:
        while self._backlog and not self._peer_stalled:
            command, opaque, waiter = self._backlog.popleft()
            if waiter.done():  # cancelled, or past its deadline
                continue
            if opaque is not None:
                command.opaque = opaque
            try:
                self.send(command)
            except Exception as error:
                waiter.set_exception(error)
            else:
                if opaque is None:
                    waiter.set_result(None)

    def _expire(self, reply: asyncio.Future[Command], timeout_ms: float) -> None:
        if not reply.done():
            reply.set_exception(CallTimeout(self.peer, timeout_ms))

    # --- ending

    def close(self) -> None:
        """Send what is queued, then close."""
        if self.closed:
            return
        self._flush()
        self.closed = True
        self._transport.close()

    def abort(self) -> None:
        """Close at once; what is queued is lost."""
        self.closed = True
        self._transport.abort()

    async def drain_and_close(self, grace_ms: int) -> None:
        """Take no more requests, answer those in hand, then close; after `grace_ms` close anyway."""
        if not self.closed:
            self._draining = True
            self._regulate()
            in_hand: list[asyncio.Future[None]] = [*self._tasks]
            if self._parked:
                self._unparked = self._loop.create_future()
                in_hand.append(self._unparked)
            if in_hand:
                await asyncio.wait(in_hand, timeout=grace_ms / 1000)
            self.close()
        try:
            await asyncio.wait_for(self.lost.wait(), grace_ms / 1000)
        except TimeoutError:
            self.abort()
            await self.lost.wait()
        for parked in self._parked:
            parked.coroutine.close()
        self._parked.clear()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_ms / 1000)

    def drop(self, reason: str) -> None:
        """Close at once, and say why in the log; also if it is closing, but keeps what is unsent until then."""
        if not self.lost.is_set():
            log.warning("dropping %s: %s", self.peer, reason)
            self.abort()

    def _drop_stalled(self) -> None:
        log.warning("dropping %s: it does not read, %d bytes wait for it", self.peer, self._unsent_bytes)
        self.abort()

    def _watch_idle(self) -> None:
        """Aborts rather than closes: what is still unsent after all this time, the peer does not read."""
        quiet = self._loop.time() - self._last_active
        remaining = self._config.idle_seconds - quiet
        if remaining <= 0:
            log.info("closing %s: idle for %.0f s", self.peer, quiet)
            self.abort()
            return
        self._idle_timer = self._loop.call_later(remaining, self._watch_idle)

"""A loop in a thread that is closed or fails while others call it: whoever called hears of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from cosmodrome.client.blocking.loop_thread import LoopThread, Room
from cosmodrome.errors import ClientError
from cosmodrome.net.loop import loop_factory
from tests.bounded import in_time
from tests.unit.client.fake_cluster import PATIENCE_SECONDS

GONE = "the loop is gone"


class HeldLoop:
    """A loop that does nothing before it is closed, and then what was asked for until then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.thread = LoopThread(asyncio.new_event_loop(), used_by="this test")
        self._release = threading.Event()
        held = threading.Event()
        self.thread.post(held.set)
        self.thread.post(lambda: self._release.wait(PATIENCE_SECONDS))
        assert held.wait(PATIENCE_SECONDS)
        self._join = self.thread._thread.join
        monkeypatch.setattr(self.thread._thread, "join", self._release_and_join)

    def _release_and_join(self, timeout: float) -> None:
        self._release.set()
        self._join(timeout)

    def close(self) -> None:
        self.thread.close(GONE)
        self._join(PATIENCE_SECONDS)


def called(call: Callable[[], object]) -> Future[object]:
    """Its outcome, in a thread that keeps nobody."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def test_calls_that_were_not_begun_when_the_loop_was_closed_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = HeldLoop(monkeypatch)
    waiting = called(lambda: loop.thread.run(asyncio.sleep, 0))
    submitted = loop.thread.submit(Room(1), asyncio.sleep, 0)
    while len(loop.thread._calls) < 2:
        time.sleep(0.001)
    loop.close()
    for future in (waiting, submitted):
        assert isinstance(future.exception(PATIENCE_SECONDS), ClientError)


def test_calls_that_come_when_the_loop_has_just_been_closed_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = HeldLoop(monkeypatch)
    loop.close()
    monkeypatch.setattr(loop.thread, "_dead", None)  # as whoever looked a moment before saw it
    submitted = loop.thread.submit(Room(1), asyncio.sleep, 0)
    assert isinstance(submitted.exception(PATIENCE_SECONDS), ClientError)
    waiting = called(lambda: loop.thread.run(asyncio.sleep, 0))
    assert isinstance(waiting.exception(PATIENCE_SECONDS), ClientError)


@pytest.fixture(params=[asyncio.new_event_loop, loop_factory()])
def thread(request: pytest.FixtureRequest) -> Iterator[LoopThread]:
    thread = LoopThread(request.param(), used_by="this test")
    yield thread
    thread.close(GONE)
    thread._thread.join(PATIENCE_SECONDS)
    assert thread._loop.is_closed()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_whoever_exits_on_the_loop_ends_nothing_for_the_others(
    error: BaseException, thread: LoopThread, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise error

    def begin() -> None:
        tasks.append(thread._loop.create_task(fail()))

    tasks: list[asyncio.Task[None]] = []
    slow = thread.submit(Room(1), asyncio.sleep, 0.05, "slow")
    thread.post(begin)
    assert in_time(lambda: thread.run(asyncio.sleep, 0.01, "quick")) == "quick"
    assert slow.result(PATIENCE_SECONDS) == "slow"
    assert tasks[0].exception() is error
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_is_told_to_end_while_somebody_exits_ends() -> None:
    def exit_and_stop() -> None:
        loop.stop()
        raise SystemExit

    loop = asyncio.new_event_loop()
    thread = LoopThread(loop, used_by="this test")
    thread._dead = GONE
    loop.call_soon_threadsafe(exit_and_stop)
    thread._thread.join(PATIENCE_SECONDS)
    assert loop.is_closed()


class FragileLoop(asyncio.SelectorEventLoop):
    """One whose selector fails, as when somebody closes all files of the process."""

    is_broken = False

    def _run_once(self) -> None:
        if self.is_broken:
            self.is_broken = False  # cleaning up goes as well as it can
            raise OSError("bad file descriptor")
        super()._run_once()  # type: ignore[misc]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_fails_says_so_and_another_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = FragileLoop()
    thread = LoopThread(loop, used_by="this test")
    monkeypatch.setattr(LoopThread, "_shared", thread)
    waiting, submitted = called(lambda: thread.run(asyncio.sleep, 3600)), thread.submit(Room(1), asyncio.sleep, 3600)
    thread.run(asyncio.sleep, 0)
    thread.post(lambda: setattr(loop, "is_broken", True))
    thread._thread.join(PATIENCE_SECONDS)
    for future in (waiting, submitted):
        assert isinstance(future.exception(PATIENCE_SECONDS), ClientError)
    for use in (lambda: thread.run(asyncio.sleep, 0), lambda: thread.submit(Room(1), asyncio.sleep, 0)):
        with pytest.raises(ClientError, match="bad file descriptor"):
            use()
    (failure,) = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert isinstance(failure, OSError)
    another = LoopThread.shared()
    assert another is not thread
    assert another.run(asyncio.sleep, 0, "goes on") == "goes on"
    another.close(GONE)

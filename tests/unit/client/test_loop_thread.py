"""A loop in a thread that is closed while others call it: whoever called hears of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from cosmodrome.client.blocking.loop_thread import LoopThread
from cosmodrome.errors import ClientError
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
    submitted = loop.thread.submit(asyncio.sleep, 0)
    while len(loop.thread._calls) < 2:
        time.sleep(0.001)
    loop.close()
    for future in (waiting, submitted):
        assert isinstance(future.exception(PATIENCE_SECONDS), ClientError)


def test_calls_that_come_when_the_loop_has_just_been_closed_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = HeldLoop(monkeypatch)
    loop.close()
    monkeypatch.setattr(loop.thread, "_dead", None)  # as whoever looked a moment before saw it
    submitted = loop.thread.submit(asyncio.sleep, 0)
    assert isinstance(submitted.exception(PATIENCE_SECONDS), ClientError)
    waiting = called(lambda: loop.thread.run(asyncio.sleep, 0))
    assert isinstance(waiting.exception(PATIENCE_SECONDS), ClientError)

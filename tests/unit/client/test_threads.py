"""Threads that run the application's functions and do not keep the process."""

from __future__ import annotations

import re
import threading
from concurrent.futures import Future, wait
from contextvars import ContextVar

import pytest

from cosmodrome.client.threads import DaemonThreads

PATIENCE_SECONDS = 30


def results(futures: list[Future[int]]) -> list[int]:
    return [future.result(PATIENCE_SECONDS) for future in futures]


def running(name: str) -> int:
    return sum(thread.name.startswith(f"{name}-") for thread in threading.enumerate())


def test_results_and_errors_come_back() -> None:
    threads = DaemonThreads(2, "t")
    assert results([threads.submit(pow, number, 2) for number in range(10)]) == [number**2 for number in range(10)]
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result(PATIENCE_SECONDS)
    assert threads.submit(lambda: threading.current_thread().daemon).result(PATIENCE_SECONDS)
    threads.shutdown()


@pytest.mark.parametrize("error", [StopIteration(), GeneratorExit(), SystemExit("bad config"), KeyboardInterrupt()])
def test_what_means_something_to_a_loop_comes_back_as_what_a_future_can_carry(error: BaseException) -> None:
    threads = DaemonThreads(1, "t")

    def fail() -> None:
        raise error

    with pytest.raises(RuntimeError, match=re.escape(repr(error))) as raised:
        threads.submit(fail).result(PATIENCE_SECONDS)
    assert raised.value.__cause__ is error
    threads.shutdown()


def test_as_many_run_at_once_as_there_may_be_threads_and_no_more() -> None:
    threads, together = DaemonThreads(3, "t"), threading.Barrier(3)
    results([threads.submit(together.wait, PATIENCE_SECONDS) for _ in range(3)])
    names = {threads.submit(lambda: threading.current_thread().name).result(PATIENCE_SECONDS) for _ in range(20)}
    assert names <= {"t-0", "t-1", "t-2"}
    threads.shutdown()


def test_a_thread_that_is_idle_is_used_again() -> None:
    threads = DaemonThreads(8, "used-again")
    for _ in range(50):
        threads.submit(int).result(PATIENCE_SECONDS)
    assert running("used-again") == 1
    threads.shutdown()


def test_threads_can_be_there_in_advance() -> None:
    threads = DaemonThreads(4, "in-advance")
    threads.start(3)
    assert running("in-advance") == 3
    threads.shutdown()


def test_a_shutdown_cancels_what_waits_and_does_not_wait_for_what_runs() -> None:
    threads, running, may_end = DaemonThreads(1, "t"), threading.Event(), threading.Event()

    def work() -> None:
        running.set()
        may_end.wait(PATIENCE_SECONDS)

    first, second = threads.submit(work), threads.submit(int)
    assert running.wait(PATIENCE_SECONDS)
    threads.shutdown(cancel_futures=True)
    assert second.cancelled()
    assert not first.done()
    with pytest.raises(RuntimeError, match="shut down"):
        threads.submit(int)
    may_end.set()
    wait([first], PATIENCE_SECONDS)


def test_a_shutdown_does_what_was_taken_before_unless_told_otherwise() -> None:
    threads = DaemonThreads(1, "t")
    futures = [threads.submit(pow, number, 2) for number in range(5)]
    threads.shutdown()
    assert results(futures) == [0, 1, 4, 9, 16]


async def test_a_coroutine_may_have_something_run_in_its_own_context() -> None:
    request: ContextVar[str] = ContextVar("request")
    request.set("mine")
    threads = DaemonThreads(1, "t")
    assert await threads.run(lambda: (request.get(), threading.current_thread().name)) == ("mine", "t-0")
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 1, 0)
    threads.shutdown()

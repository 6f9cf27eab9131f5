"""Which event loop runs a daemon, and how many connections it may have."""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

# How long work in a thread may keep the loop from the interpreter; Python's own 5 ms would add up to a slow answer.
SWITCH_SECONDS = 0.001
WANTED_OPEN_FILES = 65_536  # each connection is one; most systems start a process with 1,024


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where it is installed: a fifth more messages per second, a quarter less latency. Else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on the fastest loop there is, with as many open files as this process may have."""
    raise_open_files_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def raise_open_files_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_OPEN_FILES if hard == resource.RLIM_INFINITY else min(WANTED_OPEN_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError) as error:
        log.warning("at most %d open files, and so connections: %s", soft, error)

"""Every test of this folder runs on both event loops, and none waits forever."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

import pytest
import uvloop

PATIENCE_SECONDS = 20


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _patience() -> Iterator[None]:
    """A signal and not a timeout of the loop, for fixtures and tests are different tasks."""
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(PATIENCE_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _give_up(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"still waiting after {PATIENCE_SECONDS} s")

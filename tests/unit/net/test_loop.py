"""What a daemon runs on: which event loop, and how many open files."""

from __future__ import annotations

import asyncio
import resource
import sys

import pytest
import uvloop

from cosmodrome.net.loop import WANTED_OPEN_FILES, loop_factory, raise_open_files_limit, run


def test_uvloop_runs_where_it_is_installed() -> None:
    async def which() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    assert issubclass(run(which()), uvloop.Loop)


def test_without_uvloop_asyncio_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory() is asyncio.new_event_loop


class Limits:
    """Stands in for the operating system's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, *, refusing: bool = False) -> None:
        self.now = (soft, hard)
        self._refusing = refusing
        monkeypatch.setattr(resource, "getrlimit", lambda _which: self.now)
        monkeypatch.setattr(resource, "setrlimit", self._set)

    def _set(self, _which: int, limits: tuple[int, int]) -> None:
        if self._refusing:
            raise ValueError("current limit exceeds maximum limit")
        self.now = limits


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1_024, 4_096, 4_096),
        (1_024, 1_048_576, WANTED_OPEN_FILES),
        (1_024, resource.RLIM_INFINITY, WANTED_OPEN_FILES),
        (1_000_000, 1_048_576, 1_000_000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
        (4_096, 4_096, 4_096),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_wanted_and_allowed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int
) -> None:
    limits = Limits(monkeypatch, soft, hard)
    raise_open_files_limit()
    assert limits.now == (raised, hard)


def test_a_limit_that_cannot_be_raised_is_said_and_lived_with(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(monkeypatch, 1_024, 65_536, refusing=True)
    raise_open_files_limit()
    assert limits.now == (1_024, 65_536)
    assert "at most 1024 open files" in caplog.text

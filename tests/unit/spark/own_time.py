"""A module's own `time`: patching the shared one would reach every thread of the test process."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest


def set_time(monkeypatch: pytest.MonkeyPatch, module: str, **functions: Callable[..., object]) -> None:
    """Let `cosmodrome.spark.<module>` see these functions in its `time`."""
    monkeypatch.setattr(f"cosmodrome.spark.{module}.time", SimpleNamespace(**{**vars(time), **functions}))

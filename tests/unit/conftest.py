"""None of these tests waits for ever."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bounded import alarm


@pytest.fixture
def patience_seconds() -> float:
    """Longer than any of them takes where it is one of many; a folder may be less patient."""
    return 300


@pytest.fixture(autouse=True)
def _patience(patience_seconds: float) -> Iterator[None]:
    with alarm(patience_seconds):
        yield

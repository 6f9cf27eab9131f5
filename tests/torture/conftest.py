"""Where torture's stores lie."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: syncs cost nothing there. What a test leaves in it goes to `tmp_path`."""
    if not os.access(_MEMORY, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="cosmodrome-torture-", dir=_MEMORY))
    try:
        yield folder
    finally:
        for left in folder.iterdir():
            shutil.move(left, tmp_path / left.name)
        folder.rmdir()

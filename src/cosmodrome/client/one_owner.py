"""A file that one consumer has at a time, in whatever process."""

from __future__ import annotations

import os
from pathlib import Path

from cosmodrome.errors import ClientError

try:
    import fcntl
except ImportError:  # not on this system: nothing is locked
    fcntl = None  # type: ignore[assignment]


class OneOwner:
    """A lock beside the file, `<file>.lock`; the system frees it when its process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self) -> None:
        """Have the file for ourselves; ClientError if another consumer has it, or if its folder cannot be written."""
        lock = self._path.with_name(f"{self._path.name}.lock")
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ClientError(f"the offsets file {self._path} cannot be locked: {error}") from error
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise ClientError(
                f"the offsets file {self._path} belongs to another consumer that runs; give each a file, or an "
                "instance_name, of its own"
            ) from error
        self._descriptor = descriptor

    def free(self) -> None:
        """Leave the file to others; twice is harmless."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process may have the descriptor as well
            os.close(descriptor)

    def __del__(self) -> None:
        self.free()

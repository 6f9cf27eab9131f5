"""A bound on how many files are mapped at once."""

from __future__ import annotations

import mmap
import resource
from collections import deque

from cosmodrome.mapped_file import MappedFile

# Each open file takes two descriptors; the rest of the process's allowance is for connections and the log.
_DESCRIPTORS_SHARE = 8
_MIN_OPEN_FILES = 64
_MAX_OPEN_FILES = 4096


def open_files_limit() -> int:
    """A share of what this process may open."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MAX_OPEN_FILES
    return max(_MIN_OPEN_FILES, min(allowed // _DESCRIPTORS_SHARE, _MAX_OPEN_FILES))


class OpenFiles:
    """Keeps at most `limit` files open. The one closed for another has not been used for a while.

    Users set `used` on a file instead of reporting each use; the hand goes round and gives a used file a second
    chance. That is nearly least-recently-used, and costs a hot file one attribute.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: deque[MappedFile] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, file: MappedFile) -> mmap.mmap:
        """Map a closed file."""
        self._make_room()
        data = file.open()
        data.madvise(mmap.MADV_RANDOM)  # most of it is a hole: reading ahead there costs milliseconds
        self._keep(file)
        return data

    def adopt(self, file: MappedFile) -> None:
        """Count a file that is open already."""
        self._make_room()
        self._keep(file)

    def _keep(self, file: MappedFile) -> None:
        file.used = True
        self._open.append(file)

    def _make_room(self) -> None:
        while len(self._open) >= self._limit:
            self._close_one()

    def _close_one(self) -> None:
        file = self._open.popleft()
        if file.used and file.map is not None:
            file.used = False
            self._open.append(file)
        else:
            file.close()

    def forget(self, file: MappedFile) -> None:
        """Close a file for good."""
        if file in self._open:
            self._open.remove(file)
        file.close()

    def close(self) -> None:
        for file in self._open:
            file.close()
        self._open.clear()

"""The process that listens on a port of this machine, to be named in an error. Linux tells it; others tell nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_LISTENING = "0A"


def listener_of(port: int) -> str | None:
    """Return who listens on `port`, such as `java (process 4711)`; None where the system does not tell us."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not sockets:
        return None
    for process in _PROC.glob("[0-9]*"):
        if sockets.intersection(_open_files(process)):
            return f"{_command(process)} (process {process.name})"
    return None


def _inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            rows = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            columns = row.split()
            if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                yield columns[9]


def _open_files(process: Path) -> list[str]:
    """Return what the process has open; nothing if it is not ours to see, or has just ended."""
    found = []
    with suppress(OSError):
        for number in os.listdir(process / "fd"):
            with suppress(OSError):  # closed meanwhile
                found.append(os.readlink(process / "fd" / number))
    return found


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "a process"

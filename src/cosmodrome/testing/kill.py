"""What `kill -9` leaves of a broker that lives in this process: its files as they are, and no word to anybody.

The files are copied at that instant and the connections cut. Whatever the rest of the broker does, it does where nobody
sees it.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from cosmodrome.broker.broker import Broker
from cosmodrome.errors import StoreError
from cosmodrome.net.caller import Caller

_MAX_TRIES = 100


def cut_off_broker(broker: Broker) -> None:
    for server in broker._servers:
        if server._listener is not None:
            server._listener.close()
        for connection in list(server.connections):
            connection.abort()
    broker.replicas.cut_off()
    cut_off(broker._caller)


def cut_off(caller: Caller) -> None:
    """Nobody will hear of this side again."""
    caller._closed = True
    for link in caller._links.values():
        if link.connection is not None:
            link.connection.abort()


def copy(source: Path, target: Path) -> None:
    """Copy every file into an empty folder, with its holes as holes: a timer wheel has little else.

    When a thread of the broker renames or deletes a file meanwhile, begin again: of what it does, the copy is to have
    all or nothing.
    """
    for _ in range(_MAX_TRIES):
        try:
            return _copy_all(source, target)
        except FileNotFoundError:
            shutil.rmtree(target)
            target.mkdir()
    raise StoreError(f"files in {source} come and go too often to copy them")


def _copy_all(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir()
        else:
            _copy_file(path, place)


def _copy_file(source: Path, target: Path) -> None:
    with source.open("rb") as reader, target.open("wb") as writer:
        fd = reader.fileno()
        size = os.fstat(fd).st_size
        begin = end = 0
        while (begin := _next_data(fd, end, size)) < size:
            end = os.lseek(fd, begin, os.SEEK_HOLE)
            writer.seek(begin)
            writer.write(os.pread(fd, end - begin, begin))
        writer.truncate(size)


def _next_data(fd: int, begin: int, size: int) -> int:
    try:
        return os.lseek(fd, begin, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:  # there is none any more
            raise
        return size

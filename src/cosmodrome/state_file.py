"""Small files that are replaced as a whole: the config tables of the broker and the name server.

    name        the newest state         name.bak    the state before it
    name.tmp    being written            name.bad    what could not be read, kept for a person to look at

Wherever a crash strikes, `name` or `name.bak` holds a whole state, and once `save` has returned it is the saved one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from typing import TypeVar

from cosmodrome.errors import StoreError

log = logging.getLogger(__name__)

T = TypeVar("T")

_durable: set[Path] = set()


def save(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, durably, keeping the state before it as `.bak`; OSError when the disk refuses."""
    make_folder(path.parent)
    written = _beside(path, ".tmp")
    with written.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    # Between these two renames there is no `path`; `load` then finds the state before this one in `.bak`.
    if path.exists():
        path.replace(_beside(path, ".bak"))
    written.replace(path)
    _sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Return once the folder is there for good: it is as durable as its name in the folder above."""
    if folder in _durable and folder.is_dir():
        return
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)  # also if it was there: whoever made it may have died before this
    _durable.add(folder)


def load(path: Path, parse: Callable[[bytes], T]) -> T | None:
    """The newest state that `parse` can read, or None on a fresh start.

    A file that cannot be read is moved out of the way and `.bak` is taken. When nothing can be read although something
    is there, StoreError: to start empty would throw away what a person may still be able to repair. An empty
    file counts as missing, for Apache's own writer leaves one when it is killed.
    """
    backup = _beside(path, ".bak")
    problems: list[str] = []
    for candidate in (path, backup):
        if not (data := _read(candidate)):
            continue
        try:
            state = parse(data)
        except Exception as error:  # whatever a parser makes of garbage, it means the same here
            problems.append(f"{candidate}: {error!r}")
            continue
        if candidate is backup:
            _set_aside(path, problems)
        return state
    if problems:
        raise StoreError(f"{'; '.join(problems)}; put a good copy back, or move the file away to start empty")
    return None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _set_aside(path: Path, problems: list[str]) -> None:
    """Keep what could not be read under a name of its own, so that the next `save` does not make it the `.bak`."""
    kept = None
    if path.exists():
        names = chain([".bad"], (f".bad{number}" for number in count(2)))
        kept = next(name for suffix in names if not (name := _beside(path, suffix)).exists())
        path.rename(kept)
    reason = "; ".join(problems) or f"{path} is missing or empty"
    log.warning("%s; starting from its .bak%s", reason, f", the bad file is now {kept.name}" if kept else "")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

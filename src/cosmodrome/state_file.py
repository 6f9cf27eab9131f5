"""Small files that are replaced as a whole: the config tables of the broker and the name server.

    name        the newest state         name.bak    the state before it
    name.tmp    being written            name.bad    what could not be read, kept for a person to look at

Wherever a crash strikes, `name` or `name.bak` holds a whole state, and once `save` has returned it is the saved one.

A JSON object begins with a member of ours, the CRC-32 of the object without it:

    {"cosmodromeCrc32":"89abcdef",
    …

So a rotten digit is noticed, too. Apache's brokers pass over the member and write the file without it; a file
without it is taken as it is.
"""

from __future__ import annotations

import logging
import os
import re
import zlib
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from typing import TypeVar

from cosmodrome import disk
from cosmodrome.errors import StoreError

log = logging.getLogger(__name__)

T = TypeVar("T")

_CRC = re.compile(rb'\{"cosmodromeCrc32":"([0-9a-f]{8})",\n')
CRC_FIELD = "cosmodromeCrc32"

_durable: set[Path] = set()


def save(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, durably, keeping the state before it as `.bak`; OSError when the disk refuses."""
    make_folder(path.parent)
    written = _beside(path, ".tmp")
    with os.fdopen(disk.open_file(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(_sealed(data))
        file.flush()
        disk.sync_new(file.fileno())
    # Between these two renames there is no `path`; `load` then finds the state before this one in `.bak`.
    if path.exists():
        path.replace(_beside(path, ".bak"))
    written.replace(path)
    disk.sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Return once the folder is there for good: it is as durable as its name in the folder above."""
    if folder in _durable and folder.is_dir():
        return
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(disk.folder_mode(), exist_ok=True)
    disk.sync_folder(folder.parent)  # also if it was there: whoever made it may have died before this
    _durable.add(folder)


def load(path: Path, parse: Callable[[bytes], T], *, is_progress: bool = False) -> T | None:
    """The newest state that `parse` can read, or None on a fresh start.

    A file that cannot be read, or does not match its checksum, is moved out of the way and `.bak` is taken. When
    nothing can be read although something is there, StoreError: to start empty would throw away what a person may still
    be able to repair. An empty file counts as missing, for Apache's own writer leaves one when it is killed; but not
    one that says how far somebody is (`is_progress`): to begin at the beginning delivers everything again.
    """
    backup = _beside(path, ".bak")
    problems: list[str] = []
    for candidate in (path, backup):
        if not (data := _read(candidate)):
            if is_progress and candidate.exists():
                problems.append(f"{candidate}: it is empty")
            continue
        try:
            state = parse(unsealed(data))
        except Exception as error:  # whatever a parser makes of garbage, it means the same here
            problems.append(f"{candidate}: {error if isinstance(error, StoreError) else repr(error)}")
            continue
        if candidate is backup:
            _set_aside(path, problems)
        return state
    if problems:
        raise StoreError(f"{'; '.join(problems)}; put a good copy back, or move the file away to start empty")
    return None


def load_expendable(path: Path, parse: Callable[[bytes], T], loss: str) -> T | None:
    """As `load`, for a state that is no reason not to start: when nothing can be read, the files are moved out of the
    way, `loss` is logged, and the answer is None."""
    try:
        return load(path, parse)
    except StoreError as error:
        kept = [name.name for file in (path, _beside(path, ".bak")) if (name := _move_aside(file)) is not None]
        log.error("%s is set aside as %s: %s (%s)", path, ", ".join(kept), loss, error)
        return None


def _sealed(data: bytes) -> bytes:
    """A JSON object with its checksum in front; anything else as it is."""
    if not data.startswith(b"{") or data.strip() == b"{}":
        return data
    return b'{"%s":"%08x",\n%s' % (CRC_FIELD.encode(), zlib.crc32(data), data[1:])


def unsealed(data: bytes) -> bytes:
    """The state without its checksum; StoreError if they do not match. A file that has none is taken as it is."""
    found = _CRC.match(data)
    if found is None:
        return data
    state = b"{" + data[found.end() :]
    if zlib.crc32(state) != int(found[1], 16):
        raise StoreError(
            f"it does not match its checksum: it is damaged, or was edited (then remove its line {CRC_FIELD})"
        )
    return state


def _read(path: Path) -> bytes:
    try:
        return disk.read_file(path)
    except FileNotFoundError:
        return b""


def _set_aside(path: Path, problems: list[str]) -> None:
    """Keep what could not be read under a name of its own, so that the next `save` does not make it the `.bak`."""
    kept = _move_aside(path)
    reason = "; ".join(problems) or f"{path} is missing or empty"
    log.warning("%s; starting from its .bak%s", reason, f", the bad file is now {kept.name}" if kept else "")


def _move_aside(path: Path) -> Path | None:
    """Rename a file to a free name; None if it is not there."""
    if not path.exists():
        return None
    names = chain([".bad"], (f".bad{number}" for number in count(2)))
    kept = next(name for suffix in names if not os.path.lexists(name := _beside(path, suffix)))
    path.rename(kept)
    return kept


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)

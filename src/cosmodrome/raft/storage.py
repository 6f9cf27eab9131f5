"""Term and vote on disk: two copies in one file, each with a checksum.

    | magic 4 | sequence 8 | term 8 | CRC-32 of the rest 4 | vote size 2 | vote |      at 0, and again at 4096

A member that forgets a vote may vote twice in a term, and two leaders lose messages. So nothing is taken for "no vote"
but a file that was never there. A state is saved in one copy and then in the other, each synced before the next is
touched: a torn write spoils one copy, and a bit that rots later spoils one of two equal ones. Opening the file writes
both again, for what was read may be in the memory of the machine only.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from cosmodrome import disk
from cosmodrome.errors import StoreError
from cosmodrome.raft.messages import HardState

log = logging.getLogger(__name__)

_MAGIC = b"CRv1"
_HEAD = struct.Struct(">4sQqIH")
_SUMMED = struct.Struct(">QqH")
COPY_PLACES = (0, 4096)  # in pages of their own
MAX_VOTE_BYTES = 1024


def encode(sequence: int, hard_state: HardState) -> bytes:
    """Return one copy."""
    vote = (hard_state.vote or "").encode()
    if len(vote) > MAX_VOTE_BYTES:
        raise StoreError(f"the id of a member has {len(vote)} bytes; at most {MAX_VOTE_BYTES} can be kept")
    checksum = zlib.crc32(_SUMMED.pack(sequence, hard_state.term, len(vote)) + vote)
    return _HEAD.pack(_MAGIC, sequence, hard_state.term, checksum, len(vote)) + vote


def decode(data: bytes) -> tuple[int, HardState] | None:
    """Return the sequence and state of a copy, or None if it is not whole."""
    if len(data) < _HEAD.size:
        return None
    magic, sequence, term, checksum, size = _HEAD.unpack_from(data)
    vote = data[_HEAD.size : _HEAD.size + size]
    if magic != _MAGIC or len(vote) != size or zlib.crc32(_SUMMED.pack(sequence, term, size) + vote) != checksum:
        return None
    return sequence, HardState(term, vote.decode() or None)


def newest(image: bytes) -> tuple[int, HardState] | None:
    """Return the newest whole copy of a file, or None if there is none."""
    copies = [copy for place in COPY_PLACES if (copy := decode(image[place:])) is not None]
    return max(copies, key=lambda copy: copy[0], default=None)


def writes(sequence: int, hard_state: HardState) -> Iterator[tuple[int, bytes]]:
    """Yield place and bytes of each write that saves a state. Each must be synced before the next begins."""
    copy = encode(sequence, hard_state)
    for place in COPY_PLACES:
        yield place, copy


class HardStateFile:
    """The file of one member. After an error of `save` the member must stop: what is on disk is not known."""

    def __init__(self, path: Path, *, is_new: bool) -> None:
        """Open the file, or make it if the member is new: it has no log and never voted."""
        self.path = path
        self._fd = -1
        found = self._read(is_new)
        self._sequence, self.hard_state = found or (0, HardState())
        flags = os.O_RDWR | (os.O_CREAT if is_new else 0)
        self._fd = disk.open_file(path, flags)
        try:
            self.save(self.hard_state)
            disk.sync_folder(path.parent)
        except BaseException:
            self.close()
            raise

    def _read(self, is_new: bool) -> tuple[int, HardState] | None:
        try:
            image = disk.read_file(self.path)
        except FileNotFoundError:
            image = b""
        found = newest(image)
        # Whoever made the file died before its first copy was whole: nothing was promised. See `writes`.
        if found is None and not (is_new and len(image) <= COPY_PLACES[1]):
            state = "cannot be read" if image else "is missing"
            raise StoreError(
                f"{self.path} {state}, so nobody knows what this member has voted for; put a good copy back, or remove "
                "the member from its group and add it again with an empty folder"
            )
        if found is not None and any(decode(image[place:]) != found for place in COPY_PLACES):
            log.warning("copy of term and vote repaired: path=%s term=%d vote=%s", self.path, *found[1])
        return found

    def save(self, hard_state: HardState) -> None:
        """Return once term and vote are on disk, twice."""
        for place, copy in writes(self._sequence + 1, hard_state):
            disk.write_all(self._fd, copy, place)
            disk.sync_data(self._fd)
        self._sequence += 1
        self.hard_state = hard_state

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

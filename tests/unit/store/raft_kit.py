"""A group of one member for the store alone: it writes entries as DLedger has them, and commits when told to."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cosmodrome.clock import Clock
from cosmodrome.config import StoreConfig
from cosmodrome.errors import ServiceNotAvailable
from cosmodrome.mapped_file import MappedFile, list_files
from cosmodrome.store import MessageStore
from cosmodrome.store.raft_log import HEAD_BYTES
from cosmodrome.testing.clock import FakeClock
from tests.unit.store.kit import SMALL

_HEAD = struct.Struct(">iiqqqiiii")
_BLANK = struct.Struct(">ii")


class FakeEntries:
    """The entries of a group whose other members are wished for."""

    def __init__(self, folder: Path, file_size: int = SMALL.mapped_file_size_commit_log, committed: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.file_size = folder, file_size
        self.files: list[MappedFile] = list_files(folder, file_size)
        self.end = 0
        self.ends: list[int] = []
        self.may_propose = True
        for file in self.files:
            file.open()
            file.position = self._used(file)
        self.committed_end = min(committed, self.end)

    def _used(self, file: MappedFile) -> int:
        position = 0
        while position + _BLANK.size <= file.size:
            magic, size = _BLANK.unpack_from(file.view, position)
            if magic == -1:
                return file.size
            if magic != 1:
                break
            position += size
            self.end = file.start + position
            self.ends.append(self.end)
        return position

    @property
    def start(self) -> int:
        return self.files[0].start if self.files else 0

    def places(self, sizes: Sequence[int]) -> list[int]:
        places, end = [], self.end
        for size in sizes:
            if (end and not end % self.file_size) or HEAD_BYTES + size + 8 > self.file_size - end % self.file_size:
                end = -(-(end or 1) // self.file_size) * self.file_size
            places.append(end)
            end += HEAD_BYTES + size
        return places

    def propose(self, bodies: Sequence[bytes], kind: int = 0) -> None:
        if not self.may_propose:
            raise ServiceNotAvailable("n1 leads")
        for body in bodies:
            self._append(body, kind)

    def _append(self, body: bytes, kind: int) -> None:
        place = self.places([len(body)])[0]
        if not self.files or place == self.files[-1].start + self.file_size:
            if self.files and (left := self.files[-1].size - self.files[-1].position) >= _BLANK.size:
                _BLANK.pack_into(self.files[-1].view, self.files[-1].position, -1, left)
                self.files[-1].position = self.file_size
            self.files.append(MappedFile.create(self.folder, place, self.file_size))
        file = self.files[-1]
        size, position = HEAD_BYTES + len(body), place - file.start
        head = _HEAD.pack(1, size, len(self.ends), 1, place, kind, 0, 0, len(body))
        file.view[position : position + size] = head + body
        file.position = position + size
        self.end = file.end
        self.ends.append(self.end)

    def cut(self, count: int) -> None:
        """Lose the last entries, which lie in one file and were not committed."""
        del self.ends[-count:]
        self.end = self.ends[-1] if self.ends else 0
        file = self.files[-1]
        file.position = self.end - file.start
        file.view[file.position :] = bytes(file.size - file.position)

    def take_first(self) -> MappedFile | None:
        return self.files.pop(0) if len(self.files) > 1 else None


def data_folder(root: Path) -> Path:
    return root / "dledger-n0" / "data"


def raft_store(root: Path, committed: int = 0, clock: Clock | None = None) -> tuple[MessageStore, FakeEntries]:
    """Open a store over a group's log, of which so much is known to be committed."""
    made: list[FakeEntries] = []

    def entries() -> FakeEntries:
        made.append(FakeEntries(data_folder(root), committed=committed))
        return made[0]

    store = MessageStore.open(root, raft_config(root), clock or FakeClock(), entries=entries)
    return store, made[0]


def raft_config(root: Path) -> StoreConfig:
    return replace(SMALL, store_path_commit_log=str(data_folder(root)))


def commit(store: MessageStore, end: int) -> None:
    """Commit, and do at once what the loop would do soon."""
    store.commit_to(end)
    store._flushed(end, store._log.last_timestamp)
    store.flusher.flushed = end


def lead(store: MessageStore, entries: FakeEntries) -> None:
    commit(store, entries.end)
    store.lead()

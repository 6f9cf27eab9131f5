"""Records that were left out: they are stored, but the service that should have acted on them could not use them.

`config/skippedRecords.jsonl` names the last of them, one JSON object a line, so that an operator finds out what was
left out and why. Their bytes stay in the log until it is cleaned. The file is only ever appended to, and replaced as a
whole when it has grown; a line that a crash tore is passed over. It never stops a broker: what cannot be written is
logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cosmodrome import disk
from cosmodrome.clock import Clock
from cosmodrome.errors import CosmodromeError
from cosmodrome.numbers import MAX_LONG, MIN_LONG, shown
from cosmodrome.troubles import Trouble
from cosmodrome.wire import fastjson
from cosmodrome.wire.bodies.fields import Fields

log = logging.getLogger(__name__)

SKIPPED_RECORDS = "skippedRecords.jsonl"
MAX_KEPT = 1_000
# A file of this many lines is replaced by one with the last MAX_KEPT of them.
MAX_LINES = 2 * MAX_KEPT
MAX_REASON_CHARACTERS = 300
_MAX_FILE_BYTES = 16 * 1024 * 1024  # more than the lines above can have: it is not ours

Place = tuple[str, str, int, int, int]


class SkippedRecord(NamedTuple):
    """One record: which service left it out, when, where it lies and why. `number` counts all there ever were."""

    number: int
    time_ms: int
    service: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    reason: str

    @property
    def place(self) -> Place:
        """What makes it the same record: a service that meets it again, after a start, does not count it again."""
        return self[2:7]

    def encode(self) -> bytes:
        """The line of the file."""
        return fastjson.dumps(
            {
                "number": self.number,
                "time": self.time_ms,
                "service": self.service,
                "topic": self.topic,
                "queueId": self.queue_id,
                "queueOffset": self.queue_offset,
                "physicalOffset": self.physical_offset,
                "reason": self.reason,
            }
        )

    @classmethod
    def decode(cls, line: bytes) -> SkippedRecord:
        """ProtocolError for what is no such line."""
        fields = Fields.parse(line)
        return cls(
            fields.int64("number"),
            fields.int64("time"),
            fields.text("service"),
            fields.text("topic"),
            fields.int64("queueId"),
            fields.int64("queueOffset"),
            fields.int64("physicalOffset"),
            fields.text("reason"),
        )


class SkippedRecords:
    """The register of what was left out. `add` writes at once, which survives a kill; `saved` is for power cuts."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._trouble = Trouble(log, f"cannot write to {path}", clock)
        self._fd = -1
        self._dirty = False
        self._unwritten: deque[bytes] = deque(maxlen=MAX_KEPT)  # while the disk takes nothing
        self._lines = 0
        self._kept: deque[SkippedRecord] = deque(maxlen=MAX_KEPT)
        try:
            found, self._lines, is_torn = _read(path)
        except OSError as error:
            log.error("cannot read %s: %s; it counts from 0", path, error)
            found, is_torn = [], True
        self._kept.extend(found)
        self._known = {record.place for record in self._kept}
        self._is_torn = is_torn
        self.count = max((record.number for record in self._kept), default=0)

    @property
    def newest(self) -> SkippedRecord | None:
        return self._kept[-1] if self._kept else None

    def add(
        self, service: str, topic: str, queue_id: int, queue_offset: int, physical_offset: int, reason: object
    ) -> None:
        """Note and log a record that is left out, unless it was before."""
        number, now_ms = min(self.count + 1, MAX_LONG), self._clock.now_ms()
        text = str(reason)[:MAX_REASON_CHARACTERS]
        queue_id, queue_offset, physical_offset = map(_bounded, (queue_id, queue_offset, physical_offset))
        name = topic[:MAX_REASON_CHARACTERS]
        record = SkippedRecord(number, now_ms, service, name, queue_id, queue_offset, physical_offset, text)
        if record.place in self._known:
            return
        log.error(
            "record skipped: service=%s topic=%s queue=%d offset=%d physical_offset=%d reason=%r",
            service,
            name if name.isprintable() else shown(name),
            queue_id,
            queue_offset,
            physical_offset,
            text,
        )
        if len(self._kept) == MAX_KEPT:
            self._known.discard(self._kept[0].place)
        self._kept.append(record)
        self._known.add(record.place)
        self.count = number
        self._unwritten.append(record.encode())
        self._write()

    def _write(self) -> None:
        """Write what is not written yet; a disk that refuses it gets it later."""
        try:
            if self._lines >= MAX_LINES:
                self._replace()
                return
            if self._fd < 0:
                disk.make_folders(self._path.parent)
                self._fd = disk.open_file(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            data = b"".join(line + b"\n" for line in self._unwritten)
            data = b"\n" + data if self._is_torn else data
            self._is_torn = True  # until it is known that all of it was written
            if os.write(self._fd, data) < len(data):
                return
            self._is_torn, self._dirty = False, True
            self._lines += len(self._unwritten)
            self._unwritten.clear()
            self._trouble.over()
        except OSError as error:
            self._trouble.met(error)

    def _replace(self) -> None:
        """Let a new file take the place of one that has grown: at any moment one of them is there, whole."""
        written = self._path.with_name(self._path.name + ".tmp")
        with os.fdopen(disk.open_file(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(b"".join(record.encode() + b"\n" for record in self._kept))
            file.flush()
            disk.sync(file.fileno())
        written.replace(self._path)
        self._close_file()
        self._lines, self._is_torn = len(self._kept), False
        self._unwritten.clear()

    async def saved(self) -> None:
        """Return once what was added before is on disk, or a log line says why it is not."""
        if self._unwritten:
            self._write()
        if self._dirty and self._fd >= 0:
            self._dirty = False
            duplicate = os.dup(self._fd)  # the file may be replaced meanwhile
            await asyncio.shield(asyncio.to_thread(_sync, duplicate, self._path))

    def close(self) -> None:
        """Bring the rest onto the disk and let go of the file."""
        if self._unwritten:
            self._write()
        if self._dirty and self._fd >= 0:
            _sync(os.dup(self._fd), self._path)
        self._close_file()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._dirty = -1, False


def _bounded(number: int) -> int:
    """What the file can hold; a record that says more is left out for less."""
    return max(MIN_LONG, min(number, MAX_LONG))


def read_skipped(folder: Path) -> list[SkippedRecord]:
    """Return what the register in a store's folder `config` names, the oldest first; nothing is changed."""
    return _read(folder / SKIPPED_RECORDS)[0]


def _read(path: Path) -> tuple[list[SkippedRecord], int, bool]:
    """The last records of a file, how many lines it has, and whether the last one is not whole."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise OSError(f"it has more than {_MAX_FILE_BYTES} bytes")
        data = disk.read_file(path)
    except FileNotFoundError:
        return [], 0, False
    lines = data.splitlines()
    records = []
    for line in lines[-MAX_LINES:]:
        with suppress(CosmodromeError):
            records.append(SkippedRecord.decode(line))
    return records[-MAX_KEPT:], len(lines), bool(data) and not data.endswith(b"\n")


def _sync(descriptor: int, path: Path) -> None:
    try:
        disk.sync(descriptor)
    except OSError as error:
        log.error("cannot sync %s: %s", path, error)
    finally:
        os.close(descriptor)

"""Mending a log in place: damaged bytes are copied aside, and records that mean nothing take their place.

A start and a repair do the same. Any broker reads a log that was mended.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cosmodrome import disk
from cosmodrome.errors import StoreError
from cosmodrome.mapped_file import sync_directory
from cosmodrome.store.commit_log import BLANK, BLANK_SIZE, CommitLog, Visit
from cosmodrome.store.evidence import Claim, Evidence, Verdict, is_queued
from cosmodrome.store.log_walk import Damage, Proof, Seen, Tail, note, walk
from cosmodrome.store.paths import aside_folder, free_name
from cosmodrome.store.survey import FoundFile, LogView, Maps, list_own_queues
from cosmodrome.wire.record import BLANK_MAGIC, MIN_SIZE, VOID_MARK, RecordHead, SysFlag, encode_record, pack_host

log = logging.getLogger(__name__)

# What takes the place of damaged bytes is of a size that any broker reads.
MAX_VOID_BYTES = 1024 * 1024
_VOID_TOPIC = b"void"
_NOWHERE = pack_host("0.0.0.0", 0)
_MAX_LOGGED = 20  # damaged parts that are logged one by one


class Mended(NamedTuple):
    """Where the log ends now, and what was found wrong below that. `cut_bytes` held whole records, and were copied."""

    end: int
    parts: int = 0
    bytes: int = 0
    messages: int = 0
    cut_bytes: int = 0

    @property
    def is_damaged(self) -> bool:
        return self.parts > 0

    def joined(self, later: Mended) -> Mended:
        """What was found before, and then once more from further back."""
        return Mended(later.end, *(a + b for a, b in zip(self[1:], later[1:], strict=True)))


class Known(NamedTuple):
    """What a start knows about a log before it looks: see `Proof`."""

    safe_end: int
    complete: bool
    from_last_life: bool
    deleted: dict[str, int]
    is_copy: bool = False


class LogMender:
    """Looks for damage in an open log, and mends it.

    The queues must be as the last broker left them: they say what the damaged bytes were.
    """

    def __init__(
        self, commit_log: CommitLog, queues: Path, known: Known, before_mending: Callable[[], None] = lambda: None
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._known = known
        self._before_mending = before_mending
        self._aside = aside_folder(commit_log.directory)
        self._mended = Mended(0)
        self._timestamp = 0
        self.looked_to = 0

    def mend(self, begin: int, visit: Visit | None = None) -> Mended:
        """Make a sound log of what lies behind `begin`, which is a file's; only the tail is left to be cut.

        The records up to the first damage are shown to `visit`; they end at `looked_to`.
        """
        seen: Seen = {}

        def see(head: RecordHead) -> None:
            note(seen, head)
            self._timestamp = head.store_timestamp
            if visit is not None:
                visit(head)

        self._mended = Mended(0)
        end = self.looked_to = self._log.scan(begin, self._log.end, see, verify=True)
        safe_end = self._safe_end()
        if end >= safe_end and not self._log.has_data_behind(end):
            return Mended(end)
        files = [FoundFile(file.path, file.start, file.size) for file in self._log.files]
        view = LogView(files, self._log.file_size, Maps())
        evidence = Evidence(list_own_queues(self._queues))
        proof = Proof(evidence, safe_end, *self._known[1:])
        end = self._walk(view, proof, end, seen)
        return self._mended._replace(end=end)

    def _safe_end(self) -> int:
        end = self._known.safe_end
        return end if self._log.start <= end <= self._log.end else 0

    def _walk(self, view: LogView, proof: Proof, begin: int, seen: Seen) -> int:
        for found in walk(view, 0, begin, proof, seen):
            if isinstance(found, RecordHead):
                self._timestamp = found.store_timestamp
            elif isinstance(found, Damage):
                self._void(view, proof.queues, found, seen)
            else:
                return self._end(view, proof, found, seen)
        raise AssertionError("a walk ends with the tail")

    def _end(self, view: LogView, proof: Proof, tail: Tail, seen: Seen) -> int:
        """Where the log is to end. What is proven below that is damage though nothing sound follows it."""
        end = max(tail.begin, proof.safe_end)
        if end > tail.begin:
            self._void(view, proof.queues, Damage(tail.begin, end, tail.reason or "nothing is written here"), seen)
        elif tail.holds_records:
            self._keep_tail(view, tail)
        return end

    def _void(self, view: LogView, evidence: Evidence, damage: Damage, seen: Seen) -> None:
        if not self._mended.parts:
            self._before_mending()
        claims = list(claims_in(view, evidence, damage, seen))
        for file, begin, end in by_file(view, damage.begin, damage.end):
            copy_aside(self._aside, view.view(file)[begin - file.start : end - file.start], begin)
            void(file, begin, end, self._timestamp or _time_at(view, damage.end), claims)
        size = damage.end - damage.begin
        parts, total = self._mended.parts + 1, self._mended.bytes + size
        self._mended = Mended(0, parts, total, self._mended.messages + len(claims))
        if parts <= _MAX_LOGGED:
            log.error(
                'log damage passed over: offset=%d bytes=%d messages=%d copy=%s reason="%s"',
                damage.begin,
                size,
                len(claims),
                self._aside,
                damage.reason,
            )

    def _keep_tail(self, view: LogView, tail: Tail) -> None:
        """Copy what will be cut; later files that begin with anything are kept as they are."""
        for file, begin, end in by_file(view, tail.begin, tail.end):
            if begin > file.start or file is view.files[0]:
                copy_aside(self._aside, view.view(file)[begin - file.start : end - file.start], begin)
        size = tail.end - tail.begin
        self._mended = self._mended._replace(cut_bytes=size)
        log.error(
            'log cut though whole records follow: offset=%d bytes=%d copy=%s reason="%s"',
            tail.begin,
            size,
            self._aside,
            tail.reason,
        )


def claims_in(view: LogView, evidence: Evidence, damage: Damage, seen: Seen) -> Iterator[Claim]:
    """The messages that were lost with a damaged part, as far as their queues or the first one's own head know."""
    place = damage.begin
    if next(evidence.claims(place, place + 1), None) is None:
        head = view.head_at(place)
        if head is not None and head.physical_offset + head.size <= damage.end and _is_next(head, evidence, seen):
            yield Claim(place, head.size, head.topic, head.queue_id, head.queue_offset)
            place += head.size
    for claim in evidence.claims(place, damage.end):
        if place <= claim.place and claim.end <= damage.end:
            yield claim
            place = claim.end


def _is_next(head: RecordHead, evidence: Evidence, seen: Seen) -> bool:
    """Whether a damaged record says of itself what must be so: that it is the next of its queue."""
    known = seen.get((head.topic, head.queue_id))
    is_next = known is not None and known[0] == head.queue_offset and is_queued(head)
    return is_next and evidence.verdict(head) is Verdict.UNKNOWN


def _time_at(view: LogView, place: int) -> int:
    head = view.head_at(place)
    return head.store_timestamp if head is not None else 0


def by_file(view: LogView, begin: int, end: int) -> Iterator[tuple[FoundFile, int, int]]:
    """The parts of [begin, end) that lie in one file each."""
    for file in view.files:
        low, high = max(begin, file.start), min(end, file.end)
        if low < high:
            yield file, low, high


def copy_aside(folder: Path, data: memoryview, offset: int) -> None:
    """Keep these bytes of the log: all of them under a name of their own, or none. StoreError if there is no room."""
    path = folder / f"{offset:020d}.bytes"
    partial = path.with_suffix(".part")
    try:
        if not folder.is_dir():
            disk.make_folders(folder)
            sync_directory(folder.parent)
        fd = disk.open_file(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            disk.write_all(fd, data, 0)
            disk.sync(fd)
        finally:
            os.close(fd)
        partial.rename(free_name(path, suffix=""))
        sync_directory(folder)
    except OSError as error:
        raise StoreError(
            f"the log is damaged or to be cut at {offset}, and the {len(data)} bytes there cannot be kept in {folder}: "
            f"{error}. Nothing was changed there. Make room, and start again"
        ) from error


def void(file: FoundFile, begin: int, end: int, timestamp: int, claims: Iterable[Claim] = ()) -> None:
    """Let [begin, end) hold records that mean nothing, up to the end of the file a blank one. It is on disk then.

    For each message that is known to have been there, its record says so: its queue keeps the number.
    """
    fd = disk.open_file(file.path, os.O_RDWR)
    try:
        for offset, data in _void_records(file, begin, end, timestamp, claims):
            disk.write_all(fd, data, offset - file.start)
        disk.sync(fd)
    finally:
        os.close(fd)


def _void_records(
    file: FoundFile, begin: int, end: int, timestamp: int, claims: Iterable[Claim]
) -> Iterator[tuple[int, bytes]]:
    at = begin
    for claim in claims:
        fits = claim.size >= MIN_SIZE + len(claim.topic.encode()) + 1
        if fits and claim.place >= at and _is_fillable(file, at, claim.place) and _is_fillable(file, claim.end, end):
            yield from _nameless(file, at, claim.place, timestamp)
            for at, size in _void_sizes(claim.place, claim.end):
                yield at, _void_record(at, size, timestamp, claim if at == claim.place else None)
            at = claim.end
    yield from _nameless(file, at, end, timestamp)


def _is_fillable(file: FoundFile, begin: int, end: int) -> bool:
    least = BLANK_SIZE if end == file.end else MIN_SIZE
    return begin == end or end - begin >= least


def _nameless(file: FoundFile, begin: int, end: int, timestamp: int) -> Iterator[tuple[int, bytes]]:
    if not _is_fillable(file, begin, end):
        raise StoreError(f"{end - begin} damaged bytes at {begin} of {file.path} have no room for an empty record")
    if begin < end == file.end:
        yield begin, BLANK.pack(end - begin, BLANK_MAGIC)
        return
    for at, size in _void_sizes(begin, end):
        yield at, _void_record(at, size, timestamp, None)


def _void_sizes(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Offsets and sizes of records that fill [begin, end)."""
    while begin < end:
        size = end - begin
        if size > MAX_VOID_BYTES:
            size = min(MAX_VOID_BYTES, size - MIN_SIZE)
        yield begin, size
        begin += size


def is_void(head: RecordHead) -> bool:
    """Whether a record took the place of damaged bytes."""
    is_nameless = head.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.ROLLBACK and head.topic.encode() == _VOID_TOPIC
    return is_nameless or head.is_lost_message


def _void_record(offset: int, size: int, timestamp: int, claim: Claim | None) -> bytes:
    """A record that says it was rolled back: every broker passes over it."""
    topic = _VOID_TOPIC[: size - MIN_SIZE] if claim is None else claim.topic.encode()
    body = size - MIN_SIZE - len(topic) - (len(topic) > 127)
    return encode_record(
        topic,
        bytes(body),
        b"",
        queue_id=0 if claim is None else claim.queue_id,
        flag=0,
        sys_flag=SysFlag.ROLLBACK,
        born_timestamp=timestamp,
        born_host=_NOWHERE,
        store_timestamp=timestamp,
        store_host=_NOWHERE,
        queue_offset=0 if claim is None else claim.queue_offset,
        physical_offset=offset,
        reconsume_times=0 if claim is None else VOID_MARK,
        prepared_transaction_offset=0 if claim is None else ~offset,
    )

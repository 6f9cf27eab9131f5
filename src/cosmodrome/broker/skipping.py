"""What a service does with a record that it cannot use: it leaves that one out, names it, and goes on.

    the record's fault      MessageIllegal, InvalidParameter, ProtocolError; and whatever goes wrong while it is only
                            looked at (`looking`): leave it out at once
    not its fault           OSError, any other refusal (a full or failed disk, a closed store), MemoryError, a damaged
                            timer wheel: try again, however long it takes
    not known               anything else, which is a mistake of ours: try again, ATTEMPTS times, then leave it out

So one record never ends a service or holds back those behind it, and a full disk never costs a record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from cosmodrome.errors import CosmodromeError, InvalidParameter, MessageIllegal, ProtocolError, RequestError
from cosmodrome.store.message import ReadResult
from cosmodrome.store.message_store import MessageStore
from cosmodrome.store.timer_wheel import WheelDamaged
from cosmodrome.wire.record import Record, decode_records

# What trying again cannot mend.
HOPELESS = (MessageIllegal, InvalidParameter, ProtocolError)
NOT_ITS_FAULT = (OSError, RequestError, MemoryError, WheelDamaged)
# How often a record is tried that fails in a way nobody thought of.
ATTEMPTS = 5
NOWHERE = -1
_MAX_COUNTED = 1_000


class Skipping:
    """The dealings of one service with records that it cannot use."""

    def __init__(self, service: str, store: MessageStore) -> None:
        self._service = service
        self._store = store
        self._failures: Counter[tuple[str, int, int]] = Counter()

    def skip(self, topic: str, queue_id: int, queue_offset: int, reason: object) -> None:
        """Note in the log and in the register that the record there is left out."""
        try:
            entry = self._store.entry(topic, queue_id, queue_offset)
        except Exception:  # it may be what is wrong with the record
            entry = None
        self._add(topic, queue_id, queue_offset, NOWHERE if entry is None else entry[0], reason)

    def skip_record(self, record: Record, reason: object) -> None:
        """The same for a record that could be read."""
        self._add(record.topic, record.queue_id, record.queue_offset, record.physical_offset, reason)

    def skip_lost(self, topic: str, queue_id: int, physical_offset: int) -> None:
        """The same for a record that is not where it was."""
        self._add(topic, queue_id, NOWHERE, physical_offset, "its record is gone: it is lost")

    def _add(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int, reason: object) -> None:
        self._failures.pop((topic, queue_id, queue_offset), None)
        self._store.skipped.add(self._service, topic, queue_id, queue_offset, physical_offset, reason)

    def gives_up(self, topic: str, queue_id: int, queue_offset: int, error: Exception) -> bool:
        """Whether a record that failed so is to be left out; if not, it is to be tried again."""
        if isinstance(error, HOPELESS):
            return True
        if isinstance(error, NOT_ITS_FAULT) or self._store.refusal is not None:
            return False
        if len(self._failures) >= _MAX_COUNTED:
            self._failures.clear()
        self._failures[topic, queue_id, queue_offset] += 1
        return self._failures[topic, queue_id, queue_offset] >= ATTEMPTS

    def read(self, topic: str, queue_id: int, offset: int, count: int) -> tuple[ReadResult, list[Record]]:
        """Read records of a queue; one that is none is left out, and those around it are read all the same."""
        result = self._store.read(topic, queue_id, offset, count)
        try:
            return result, [record for view in result.views for record in decode_records(view)]
        except ProtocolError as error:
            if count > 1:
                return self.read(topic, queue_id, offset, 1)
            self.skip(topic, queue_id, offset, error)
            return result, []


@contextmanager
def looking() -> Iterator[None]:
    """Take whatever goes wrong inside for the record's fault: nothing is stored or read from the disk there."""
    try:
        yield
    except (CosmodromeError, OSError, MemoryError):
        raise
    except Exception as error:
        raise ProtocolError(f"it cannot be read: {error!r:.200}") from error

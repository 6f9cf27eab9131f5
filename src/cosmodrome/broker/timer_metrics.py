"""How many timers are pending."""

from __future__ import annotations

from pathlib import Path

from cosmodrome import state_file
from cosmodrome.broker.tables import SavedTable
from cosmodrome.clock import Clock
from cosmodrome.wire.bodies import TimerMetricsBody


class TimerMetrics(SavedTable):
    """Topic → pending timers, and when that last changed. After a crash the numbers may be slightly off."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path, clock)
        self._pending: dict[str, tuple[int, int]] = {}
        stored = state_file.load_expendable(path, TimerMetricsBody.decode, "pending timers are counted from 0 on")
        if stored is not None:
            self._pending.update(stored.pending)
            self.data_version = stored.data_version

    def pending(self, topic: str) -> int:
        return self._pending.get(topic, (0, 0))[0]

    @property
    def all_pending(self) -> int:
        return sum(max(count, 0) for count, _ in self._pending.values())

    def add(self, topic: str, count: int) -> None:
        self._pending[topic] = (self.pending(topic) + count, self._clock.now_ms())
        self.changed()

    def adopt(self, table: TimerMetricsBody) -> None:
        """Take over the figures of a slave's master."""
        if dict(table.pending) != self._pending:
            self._pending = dict(table.pending)
            self.replaced(table.data_version)

    def clear(self) -> None:
        """Count from 0 again: every pending timer is about to be set once more."""
        self._pending.clear()
        self.changed()

    def encoded(self) -> bytes:
        return TimerMetricsBody(self.data_version, self._pending).encode(pretty=True)

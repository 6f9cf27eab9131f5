"""Which records belong to topics that were deleted."""

from __future__ import annotations

import json
from pathlib import Path

from cosmodrome import state_file
from cosmodrome.numbers import read_int

DELETED_TOPICS = "deletedTopics.json"


class DeletedTopics:
    """By topic, the end of the log when it was deleted: its records below that are in no queue any more.

    The log is never rewritten, and after a crash queues are built from it. Without this list the messages would come
    back then, and in a topic of that name made later they would stand among its own.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_saved = True
        self.ends = state_file.load(path, parse_deleted) or {}

    def add(self, topic: str, log_end: int) -> None:
        """Return once it is on disk that everything of the topic so far is deleted."""
        self.ends[topic] = log_end
        self._save()

    def fit(self, log_start: int, log_end: int) -> None:
        """Speak of this log only: what a crash cut off may come again, and what is not there need not be named."""
        fitting = {topic: min(end, log_end) for topic, end in self.ends.items() if min(end, log_end) > log_start}
        if fitting != self.ends:
            self.ends.clear()
            self.ends.update(fitting)
            self._save()

    def save_if_changed(self) -> None:
        """Write what the disk had no room for before."""
        if not self._is_saved:
            self._save()

    def _save(self) -> None:
        self._is_saved = False
        state_file.save(self._path, json.dumps({"deletedTopics": self.ends}, indent=1).encode())
        self._is_saved = True


def parse_deleted(data: bytes) -> dict[str, int]:
    ends = json.loads(data)["deletedTopics"]
    return {str(topic): read_int(str(end)) for topic, end in ends.items()}

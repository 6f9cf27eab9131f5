"""How far each group has consumed each queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from cosmodrome import state_file
from cosmodrome.broker.tables import SavedTable
from cosmodrome.clock import Clock
from cosmodrome.wire.bodies import ConsumerOffsetsBody


class ConsumerOffsets(SavedTable):
    """`topic@group` → queue id → next offset to consume.

    A commit overwrites, also with a smaller value: whoever resets an offset means it. Commits are saved every few
    seconds, so after a crash a group may see its last few messages again, never miss one.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path, clock)
        self._offsets: dict[str, dict[int, int]] = {}
        stored = state_file.load(path, ConsumerOffsetsBody.decode)
        if stored is not None:
            self._offsets.update({key: dict(queues) for key, queues in stored.offsets.items()})
            self.data_version = stored.data_version

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        queues = self._offsets.setdefault(f"{topic}@{group}", {})
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self.changed()

    def find_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        return self._offsets.get(f"{topic}@{group}", {}).get(queue_id)

    def of_group(self, group: str) -> dict[str, Mapping[int, int]]:
        """Topic → queue id → offset, for the topics this group has consumed."""
        suffix = "@" + group
        return {key.removesuffix(suffix): queues for key, queues in self._offsets.items() if key.endswith(suffix)}

    def groups_of(self, topic: str) -> list[str]:
        prefix = topic + "@"
        return [key.removeprefix(prefix) for key in self._offsets if key.startswith(prefix)]

    def forget_topic(self, topic: str) -> None:
        self._forget(key for key in self._offsets if key.startswith(topic + "@"))

    def forget_group(self, group: str) -> None:
        self._forget(key for key in self._offsets if key.endswith("@" + group))

    def _forget(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            del self._offsets[key]
            self.changed()

    def encoded(self) -> bytes:
        return ConsumerOffsetsBody(self.data_version, self._offsets).encode(pretty=True)

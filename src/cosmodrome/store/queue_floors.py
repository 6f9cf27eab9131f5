"""Which queues lost their last messages to damage: their numbers stay taken."""

from __future__ import annotations

import json
from pathlib import Path

from cosmodrome import state_file
from cosmodrome.numbers import read_int
from cosmodrome.store.survey import QueueKey

QUEUE_FLOORS = "queueFloors.json"


class QueueFloors:
    """By queue, the offset that its next message gets at least.

    A queue that ends with lost messages cannot say so itself: a filler as its last entry would keep Apache's broker
    from entering what comes next. Groups that had consumed those messages would pass over as many new ones.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.floors: dict[QueueKey, int] = (
            state_file.load_expendable(path, parse_floors, "the offsets of lost messages may be given out again") or {}
        )

    def update(self, floors: dict[QueueKey, int]) -> None:
        """Return once these are on disk."""
        if floors != self.floors:
            self.floors = floors
            table: dict[str, dict[str, int]] = {}
            for (topic, queue_id), floor in sorted(floors.items()):
                table.setdefault(topic, {})[str(queue_id)] = floor
            state_file.save(self._path, json.dumps({"queueFloors": table}, indent=1).encode())

    def drop_topic(self, topic: str) -> None:
        """A topic of this name made later begins at 0."""
        self.update({key: floor for key, floor in self.floors.items() if key[0] != topic})


def parse_floors(data: bytes) -> dict[QueueKey, int]:
    table = json.loads(data)["queueFloors"]
    return {
        (str(topic), read_int(str(queue_id))): read_int(str(floor))
        for topic, floors in table.items()
        for queue_id, floor in floors.items()
    }

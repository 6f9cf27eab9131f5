"""What was fetched and not yet given to the application. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from cosmodrome.client.process_queue import ProcessQueue
from cosmodrome.client.pulled_message import PulledMessage
from cosmodrome.model import MessageQueue


class _Portion(NamedTuple):
    """Messages of one queue, as they came; never empty."""

    messages: deque[PulledMessage]
    process: ProcessQueue

    @property
    def queue(self) -> MessageQueue:
        return self.messages[0].queue


class Ready:
    """Messages by queue in their order, and queues in the order their messages came.

    Nothing is given out of a process queue that is released, or of a queue that is paused, and nothing that is
    acknowledged: who was to do so may have put it back before.
    """

    def __init__(self) -> None:
        self._portions: deque[_Portion] = deque()
        self._aside: list[_Portion] = []  # of paused queues
        self._paused: set[MessageQueue] = set()

    def __bool__(self) -> bool:
        return bool(self._portions)

    def put(self, messages: Iterable[PulledMessage], process: ProcessQueue) -> None:
        portion = _Portion(deque(messages), process)
        if portion.messages:
            (self._aside if portion.queue in self._paused else self._portions).append(portion)

    def put_back(self, message: PulledMessage) -> None:
        """It was not acknowledged: whoever takes next gets it."""
        portion = _Portion(deque((message,)), message.process)
        if portion.queue in self._paused:
            self._aside.insert(0, portion)
        else:
            self._portions.appendleft(portion)

    def take(self) -> PulledMessage | None:
        portions = self._portions
        while portions:
            messages, process = portions[0]
            if process.released:
                portions.popleft()
                continue
            message = messages.popleft()
            if not messages:
                portions.popleft()
            if message.open:
                return message
        return None

    def drop(self, process: ProcessQueue) -> None:
        """Give out nothing more of it."""
        self._portions = deque(portion for portion in self._portions if portion.process is not process)
        self._aside = [portion for portion in self._aside if portion.process is not process]

    def clear(self) -> None:
        self._portions.clear()
        self._aside.clear()

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        self._paused.update(queues)
        self._aside += (portion for portion in self._portions if portion.queue in self._paused)
        self._portions = deque(portion for portion in self._portions if portion.queue not in self._paused)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        self._paused.difference_update(queues)
        self._portions.extend(portion for portion in self._aside if portion.queue not in self._paused)
        self._aside = [portion for portion in self._aside if portion.queue in self._paused]

    def is_paused(self, queue: MessageQueue) -> bool:
        return queue in self._paused

    def first_offset(self, process: ProcessQueue) -> int | None:
        """Of the message of this process queue that is given out next."""
        waiting = (portion for portion in (*self._portions, *self._aside) if portion.process is process)
        firsts = (next((message for message in portion.messages if message.open), None) for portion in waiting)
        return min((first.queue_offset for first in firsts if first is not None), default=None)

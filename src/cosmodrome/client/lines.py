"""Waiting lines: what enters a line later goes on later, however long each takes to get ready."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from itertools import takewhile
from types import TracebackType
from typing import Self


class Lines:
    """Waiting lines, one for each key. A line without a place in it is empty, and costs nothing.

        with lines.enter(key) as place:
            ...                    # get ready, beside the others
            await place.front()
            ...                    # what has to be in order; it must not wait for anything
            place.leave()

    All that are ready go on in the same round of the event loop, in the order of their places. A place that is left
    before its turn, by an error or a cancellation, is passed over.
    """

    def __init__(self) -> None:
        self._places: dict[Hashable, deque[Place]] = {}

    def is_empty(self, key: Hashable) -> bool:
        return key not in self._places

    def enter(self, key: Hashable) -> Place:
        places = self._places.setdefault(key, deque())
        place = Place(self, key)
        places.append(place)
        return place

    def call_up(self, key: Hashable) -> None:
        """Call the places that are ready, up to the first that is not."""
        for place in self._places[key]:
            if not place.is_left and not place.call():
                return

    def is_first(self, place: Place) -> bool:
        return self._places[place.key][0] is place

    def is_next(self, place: Place) -> bool:
        """Return whether all places before this one have been called."""
        before = takewhile(lambda other: other is not place, self._places[place.key])
        return all(other.is_left or other.is_called for other in before)

    def drop(self, place: Place) -> None:
        """The place was left: those behind it may go on, unless they wait for others as well."""
        places = self._places[place.key]
        was_first = places[0] is place
        while places and places[0].is_left:
            places.popleft()
        if not places:
            del self._places[place.key]
        elif not (was_first and places[0].is_called):  # else those that are ready have been called with it
            self.call_up(place.key)


class Place:
    """A place in a line: it gets ready, waits to be called, and is left."""

    def __init__(self, lines: Lines, key: Hashable) -> None:
        self._lines = lines
        self._turn: asyncio.Future[None] | None = None  # from `front` on
        self.key = key
        self.is_left = False

    @property
    def is_called(self) -> bool:
        return self._turn is not None and self._turn.done()

    async def front(self) -> None:
        """Return when every place before this one is left, or goes on just before it."""
        self._turn = asyncio.get_running_loop().create_future()
        if not self._lines.is_next(self):
            await self._turn
            return
        self._turn.set_result(None)
        if not self._lines.is_first(self):
            await asyncio.sleep(0)  # those before it have been called and go on first
        self._lines.call_up(self.key)  # not before: they would not wait for this one

    def call(self) -> bool:
        """Let the place go on; False if it is not ready."""
        if self._turn is None:
            return False
        if not self._turn.done():
            self._turn.set_result(None)
        return True

    def leave(self) -> None:
        if not self.is_left:
            self.is_left = True
            self._lines.drop(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()

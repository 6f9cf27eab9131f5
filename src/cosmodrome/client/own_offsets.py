"""Offsets that an application keeps itself, in its own database for example."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from cosmodrome.client.namespaces import unwrap_queue
from cosmodrome.errors import ClientError, ConfigError, CosmodromeError
from cosmodrome.model import MessageQueue

log = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Keeps the offsets of one group, and is given to a consumer as `offset_store`.

    Both methods may be `def`, which runs in a thread, or `async def`. What they raise is logged, and stops nothing: a
    queue whose offset cannot be read is left for a later round, and an offset that is not stored is stored later.
    """

    def read(self, queue: MessageQueue) -> int | Awaitable[int | None] | None:
        """Return the offset where the group goes on in this queue, None if none is stored."""
        ...

    def store(self, offsets: Mapping[MessageQueue, int]) -> Awaitable[None] | None:
        """Return once these offsets are stored; those of other queues stay as they are."""
        ...


class OwnOffsets:
    """Asks an application's store, one call after the other; what it has already is not stored again.

    Queues have the application's names for their topics, that is without a namespace.
    """

    def __init__(self, store: OffsetStore, namespace: str) -> None:
        for method in ("read", "store"):
            if not callable(getattr(store, method, None)):
                raise ConfigError(f"offset_store is {store!r}, which has no {method}; see cosmodrome.OffsetStore")
        self._store = store
        self._namespace = namespace
        self._stored: dict[MessageQueue, int] = {}
        self._calling = asyncio.Lock()

    def open(self) -> None:
        """The application sees to it that its store is for one group."""

    def close(self) -> None:
        """The store stays the application's."""

    async def read(self, queue: MessageQueue) -> int | None:
        offset = await self._call(self._store.read, unwrap_queue(self._namespace, queue))
        if offset is None:
            return None
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise ClientError(f"the offset store says {offset!r} of {queue}; an offset is a whole number, at least 0")
        self._stored[queue] = offset
        return offset

    def carry(self, queue: MessageQueue, offset: int) -> bool:
        return False

    def carried(self, queue: MessageQueue, offset: int) -> None:
        raise AssertionError("no pull carries what a broker does not keep")

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        told = {queue: offset for queue in list(offsets) if (offset := offsets.get(queue)) is not None}
        if told:
            await self._call(self._store.store, {unwrap_queue(self._namespace, queue): told[queue] for queue in told})
            self._stored |= told

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        known = [(queue, offsets.get(queue)) for queue in list(offsets)]
        new = {queue: offset for queue, offset in known if offset is not None and self._stored.get(queue) != offset}
        try:
            await self.store(new)
        except CosmodromeError as error:
            log.warning("offsets not stored: queues=%d error=%s", len(new), error)

    commit_soon = commit

    async def _call(self, method: Any, argument: object) -> Any:
        """Call the application. A caller that is cancelled leaves a call behind, which the next one waits for."""
        return await asyncio.shield(asyncio.create_task(self._call_alone(method, argument)))

    async def _call_alone(self, method: Any, argument: object) -> Any:
        async with self._calling:
            try:
                if inspect.iscoroutinefunction(method):
                    return await method(argument)
                result = await asyncio.to_thread(method, argument)
                return await result if inspect.isawaitable(result) else result
            except Exception as error:
                name = getattr(method, "__name__", "call")
                raise ClientError(f"the offset store failed in {name}: {type(error).__name__}: {error}") from error

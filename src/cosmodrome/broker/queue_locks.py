"""Which client of an orderly group owns which queue. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cosmodrome.errors import LimitReached
from cosmodrome.model import MessageQueue

LOCK_LIFE_MS = 60_000


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int


class QueueLocks:
    """A lock belongs to one client of a group until it unlocks it or lets it lie for a minute."""

    def __init__(self, life_ms: int = LOCK_LIFE_MS, limit: int = 200_000) -> None:
        self._life_ms = life_ms
        self._limit = limit
        self._count = 0
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Take or renew; returns those of `queues` that the client now holds."""
        held = self._locks.setdefault(group, {})
        taken = []
        for queue in queues:
            lock = held.get(queue)
            if lock is None:
                if self._count >= self._limit:
                    raise LimitReached(
                        f"queue {queue} is not locked for {group}: {self._count} queues are, "
                        f"and maxQueueLocks allows {self._limit}"
                    )
                self._count += 1
            if lock is None or lock.client_id == client_id or now_ms - lock.renewed_ms > self._life_ms:
                held[queue] = _Lock(client_id, now_ms)
                taken.append(queue)
        return taken

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Let go of what this client holds; other clients' locks stay."""
        held = self._locks.get(group, {})
        for queue in queues:
            if queue in held and held[queue].client_id == client_id:
                del held[queue]
                self._count -= 1
        if not held:
            self._locks.pop(group, None)

    def is_orderly(self, group: str, now_ms: int) -> bool:
        """Whether any client of the group holds a queue, as only orderly consumers do."""
        return any(now_ms - lock.renewed_ms <= self._life_ms for lock in self._locks.get(group, {}).values())

    def expire(self, now_ms: int) -> None:
        """Forget locks nobody renews, so that the table does not outgrow its clients."""
        for _ in self.expiring(now_ms):
            pass

    def expiring(self, now_ms: int) -> Iterator[None]:
        """The same in steps, one for each group."""
        for group in list(self._locks):
            yield
            held = self._locks.get(group, {})
            live = {q: lock for q, lock in held.items() if now_ms - lock.renewed_ms <= self._life_ms}
            self._count -= len(held) - len(live)
            if live:
                self._locks[group] = live
            else:
                self._locks.pop(group, None)

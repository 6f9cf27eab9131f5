"""The queues that are ours alone: an orderly consumer holds a lock on each, in the broker that has the queue."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from cosmodrome.client.described import queue_ids
from cosmodrome.client.instance import Instance
from cosmodrome.client.lifecycle import going_on
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import MessageQueue
from cosmodrome.wire.bodies import LockBatch, decode_locked
from cosmodrome.wire.command import Command

log = logging.getLogger(__name__)

# Well below the minute after which a broker gives a lock to somebody else.
LOCK_LIFE_MS = 30_000
LOCK_RENEWAL_MS = 20_000
LOCK_RETRY_MS = 1_000
LOCK_TIMEOUT_MS = 1_000

OnLost = Callable[[set[MessageQueue]], None]


class LockTable:
    """Which queues are locked for us, and until when. Pure.

    A lock counts from the moment it was asked for, so it ends here before it ends in the broker. One that has lapsed is
    lost even if the broker grants it again: somebody else may have had it in between.
    """

    def __init__(self, life_ms: int = LOCK_LIFE_MS) -> None:
        self._life_ms = life_ms
        self._renewed_ms: dict[MessageQueue, int] = {}

    @property
    def queues(self) -> set[MessageQueue]:
        return set(self._renewed_ms)

    def renewed_ms(self, queue: MessageQueue) -> int | None:
        """When the lock was granted last; None if we do not have it."""
        return self._renewed_ms.get(queue)

    def holds(self, queue: MessageQueue, now_ms: int) -> bool:
        renewed_ms = self._renewed_ms.get(queue)
        return renewed_ms is not None and now_ms - renewed_ms < self._life_ms

    def take(self, queues: Iterable[MessageQueue], asked_ms: int) -> None:
        """The broker granted these, which were asked for at that time."""
        for queue in queues:
            self._renewed_ms[queue] = asked_ms

    def renew(
        self, asked: Iterable[MessageQueue], granted: Collection[MessageQueue], asked_ms: int, now_ms: int
    ) -> set[MessageQueue]:
        """The broker's answer to a renewal; returns what is lost. What we let go of meanwhile is not ours to lose."""
        known = self._renewed_ms.keys() & set(asked)
        lost = {queue for queue in known if queue not in granted or not self.holds(queue, now_ms)}
        self.let_go(lost)
        self.take(known - lost, asked_ms)
        return lost

    def let_go(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self._renewed_ms.pop(queue, None)

    def take_lapsed(self, now_ms: int) -> set[MessageQueue]:
        """Those that were not renewed in time; they are lost."""
        lapsed = {queue for queue in self._renewed_ms if not self.holds(queue, now_ms)}
        self.let_go(lapsed)
        return lapsed


class BrokerLocks:
    """Takes, renews and gives back the locks of one consumer. `on_lost` is told of those that are gone unasked."""

    def __init__(self, instance: Instance, group: str, clock: Clock) -> None:
        self._instance = instance
        self._group = group
        self._clock = clock
        self.on_lost: OnLost = _ignored
        self._table = LockTable()
        self._asked: set[MessageQueue] = set()  # perhaps granted: the answer is not known

    def holds(self, queue: MessageQueue) -> bool:
        return self._table.holds(queue, self._clock.steady_ms())

    def renewed_ms(self, queue: MessageQueue) -> int | None:
        """When the lock was granted last; None if we do not have it."""
        return self._table.renewed_ms(queue)

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Take what nobody else has; returns what is ours now."""
        taken = await asyncio.gather(*(self._lock(name, part) for name, part in _by_broker(queues).items()))
        return set().union(*taken)

    async def _lock(self, broker_name: str, queues: set[MessageQueue]) -> set[MessageQueue]:
        asked_ms = self._clock.steady_ms()
        self._asked |= queues
        try:
            granted = await self._ask(broker_name, queues) & queues
        except CosmodromeError as error:
            log.warning("queues of %s are not locked: %s", broker_name, error)
            return set()
        self._asked -= queues
        self._table.take(granted, asked_ms)
        return granted

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Let others have these; where that can't be said, the broker will notice by itself."""
        parts = _by_broker(queues)
        for part in parts.values():
            self._table.let_go(part)
            self._asked -= part
        await asyncio.gather(*(self._unlock(name, part) for name, part in parts.items()))

    async def unlock_all(self, but: Collection[MessageQueue] = ()) -> None:
        await self.unlock((self._table.queues | self._asked).difference(but))

    async def _unlock(self, broker_name: str, queues: set[MessageQueue]) -> None:
        try:
            await self._call(RequestCode.UNLOCK_BATCH_MQ, broker_name, queues)
        except CosmodromeError as error:
            log.info("queues of %s are not unlocked: %s", broker_name, error)
        except Exception:  # a hook may raise anything
            log.exception("queues of %s are not unlocked", broker_name)

    async def run(self) -> None:
        """Renew all locks once per interval, and soon again if that failed."""
        all_renewed = True
        while True:
            await self._clock.sleep(LOCK_RENEWAL_MS if all_renewed else LOCK_RETRY_MS)
            all_renewed = False
            with going_on("renewal of locks"):
                all_renewed = await self.renew()

    async def renew(self) -> bool:
        """Whether all brokers have answered."""
        lost = self._table.take_lapsed(self._clock.steady_ms())
        answers = await asyncio.gather(
            *(self._renew(name, part) for name, part in _by_broker(self._table.queues).items())
        )
        lost.update(*filter(None, answers), self._table.take_lapsed(self._clock.steady_ms()))
        if lost:
            log.warning("locks lost: group=%s queues=%s", self._group, ", ".join(map(queue_ids, sorted(lost))))
            self.on_lost(lost)
        return None not in answers

    async def _renew(self, broker_name: str, queues: set[MessageQueue]) -> set[MessageQueue] | None:
        """What is lost; None if the broker did not answer."""
        asked_ms = self._clock.steady_ms()
        try:
            granted = await self._ask(broker_name, queues)
        except CosmodromeError as error:
            log.warning("locks of %s are not renewed: %s", broker_name, error)
            return None
        except Exception:  # a hook may raise anything, and what has lapsed is to be told of all the same
            log.exception("locks of %s are not renewed", broker_name)
            return None
        return self._table.renew(queues, granted, asked_ms, self._clock.steady_ms())

    async def _ask(self, broker_name: str, queues: set[MessageQueue]) -> set[MessageQueue]:
        reply = await self._call(RequestCode.LOCK_BATCH_MQ, broker_name, queues)
        return set(decode_locked(reply.body))

    async def _call(self, code: RequestCode, broker_name: str, queues: set[MessageQueue]) -> Command:
        body = LockBatch(self._group, self._instance.client_id, tuple(sorted(queues))).encode()
        address = self._instance.master(broker_name)
        return await self._instance.ask(address, Command.request(code, body=body), LOCK_TIMEOUT_MS)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, set[MessageQueue]]:
    parts: dict[str, set[MessageQueue]] = defaultdict(set)
    for queue in queues:
        parts[queue.broker_name].add(queue)
    return parts


def _ignored(_queues: set[MessageQueue]) -> None:
    """Nobody wants to know yet."""

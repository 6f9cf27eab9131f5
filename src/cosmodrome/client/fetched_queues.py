"""The queues a lite pull consumer holds: what is pulled waits until its application asks for it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from cosmodrome.client.assigned_queue import AssignedQueue
from cosmodrome.client.feed import Feed
from cosmodrome.client.held_queues import Held, HeldQueues, Reading
from cosmodrome.client.membership import Membership
from cosmodrome.client.namespaces import unwrap_queue
from cosmodrome.client.offsets import OffsetKeeper
from cosmodrome.client.pulled_message import PulledMessage
from cosmodrome.clock import Clock
from cosmodrome.model import MessageQueue
from cosmodrome.wire.requests import PullFlag, PullMessage

log = logging.getLogger(__name__)

# Told of queues that came or went; def or async def. One that fails is logged.
OnQueues = Callable[[list[MessageQueue]], Any]


class FetchedQueue(AssignedQueue):
    """Sends the subscription along: other members of the group may be readers of another kind, and know less of it. It
    commits nothing on the way, for its application commits when it likes, and a pull must not undo that."""

    message_type = PulledMessage
    commits_on_the_way = False

    def _request(self, broker_id: int) -> PullMessage:
        request = super()._request(broker_id)
        subscription = self._wanted.subscription
        request.sys_flag |= PullFlag.SUBSCRIPTION
        request.subscription = subscription.expression
        request.sub_version = subscription.version
        return request


class FetchedQueues(HeldQueues):
    """Tells listeners of queues that come, before anything is read from them, and of queues that go.

    The feed knows queues by the application's names: those of their messages.
    """

    kind = FetchedQueue

    def __init__(
        self,
        reading: Reading,
        membership: Membership,
        offsets: OffsetKeeper,
        clock: Clock,
        feed: Feed,
        on_came: Callable[[Iterable[MessageQueue]], Awaitable[None]],
        on_go: Callable[[Iterable[MessageQueue]], Awaitable[None]],
        namespace: str = "",
    ) -> None:
        super().__init__(reading, membership, offsets, clock)
        self._feed = feed
        self._namespace = namespace
        self._on_came = on_came
        self._on_go = on_go
        self._going: set[MessageQueue] = set()
        self.acquired = asyncio.Event()  # since somebody looked

    def may_pull(self, queue: MessageQueue) -> bool:
        return not self._feed.ready.is_paused(unwrap_queue(self._namespace, queue))

    def find(self, queue: MessageQueue) -> Held | None:
        """Unless it is about to go."""
        return None if queue in self._going else self._held.get(queue)

    def find_ours(self, queue: MessageQueue) -> Held | None:
        """Also one that is about to go, until its listeners were told: after that its offset is not ours to move."""
        held = self._held.get(queue)
        return None if held is None or held.process.released else held

    def position(self, held: Held) -> int:
        """The offset of the next message to be handed out; of a queue that is about to go, by its next owner."""
        first = self._feed.ready.first_offset(held.process)
        return held.process.next_offset if first is None else first

    async def _came(self, taken: dict[MessageQueue, Held]) -> None:
        self.acquired.set()
        await self._on_came(taken)

    def go_on(self, held: Held, offset: int) -> None:
        """Read from there; nothing that was fetched before is handed out any more."""
        if held.pulling is not None:
            held.pulling.cancel()
        self._restart(held, offset)
        self._pull(held)

    def _restart(self, held: Held, offset: int) -> None:
        self._feed.ready.drop(held.process)
        held.assigned.restart_at(offset)

    async def release(self, queues: Iterable[MessageQueue]) -> bool:
        going = {queue: self._held[queue] for queue in queues}
        shown = [unwrap_queue(self._namespace, queue) for queue in going]
        self._going |= going.keys()
        try:
            self._feed.ready.pause(shown)  # not dropped yet: listeners may commit up to what was not handed out
            for held in going.values():
                await held.stop_pulling()
            await self._on_go(going)
            for held in going.values():
                held.process.released = True
                self._feed.ready.drop(held.process)
            await self._offsets.commit({queue: held.process.commit_offset for queue, held in going.items()})
            self._feed.ready.resume(shown)
            for queue in going:  # last, so that a stop in between commits as well
                self._held.pop(queue, None)
                self._reading.statistics.forget(queue)
        finally:
            self._going -= going.keys()
        return True

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        ours = {queue: offset for queue, offset in offsets.items() if queue in self._held}
        for queue, offset in ours.items():
            if (held := self.find(queue)) is not None:
                self.go_on(held, offset)
            else:  # it is about to go: nobody reads on here, and its next owner begins there
                self._restart(self._held[queue], offset)
        await self._offsets.commit(ours)


async def tell(listeners: Iterable[OnQueues], queues: list[MessageQueue]) -> None:
    for listener in list(listeners):
        await _call(listener, queues)


async def _call(listener: OnQueues, queues: list[MessageQueue]) -> None:
    try:
        result = listener(queues)
        if inspect.isawaitable(result):
            await result
    except Exception:
        log.exception("the listener %r failed", listener)

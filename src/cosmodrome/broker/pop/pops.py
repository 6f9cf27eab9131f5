"""What the processors of pop requests share: who waits, what is out in order, and where checkpoints and acks go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

from cosmodrome.broker.pop.messages import ack_message, checkpoint_message, revive_topic
from cosmodrome.broker.pop.orders import Orders
from cosmodrome.broker.pop.polls import HeldPop, PollKey, PopPolls
from cosmodrome.clock import Clock
from cosmodrome.config import BrokerConfig
from cosmodrome.store.message import StoreMessage
from cosmodrome.wire.bodies import Ack, CheckPoint
from cosmodrome.wire.pop import all_pop_retry_topics, pop_retry_topic

Waiter = asyncio.Future[None]
Polls = PopPolls[Waiter]
Wake = Callable[[Sequence[HeldPop[Waiter]]], None]
WakeInSteps = Callable[[Iterable[Sequence[HeldPop[Waiter]]]], None]


class Pops:
    """The state of pop consumption that is not in the store."""

    def __init__(
        self, config: BrokerConfig, folder: Path, clock: Clock, wake: Wake, wake_in_steps: WakeInSteps
    ) -> None:
        self._config = config
        self._wake = wake
        self._wake_in_steps = wake_in_steps
        self._looked_through: list[Polls] = []
        self._clock = clock
        self._numbers = count()
        self._revive_topic = revive_topic(config.broker_cluster_name)
        self.orders = Orders(folder / "consumerOrderInfo.json", clock, config.max_pop_orders)
        self.polls: Polls = PopPolls(config.max_pop_polling_size, config.pop_polling_size)
        self.notifications: Polls = PopPolls(config.max_pop_polling_size, config.pop_polling_size)

    def retry_topics(self, topic: str, group: str) -> tuple[str, ...]:
        """Where messages of the topic come again, those of a broker that was set otherwise before too."""
        if not self._config.enable_retry_topic_v2:
            return (pop_retry_topic(topic, group),)
        if not self._config.retrieve_message_from_pop_retry_topic_v1:
            return (pop_retry_topic(topic, group, v2=True),)
        return all_pop_retry_topics(topic, group)

    # --- waiting

    async def arrival(self, polls: Polls, key: PollKey, codes: frozenset[int] | None, wake_ms: int) -> bool:
        """Return when a wanted message came or the time has; False at once when too many wait already."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        if not polls.hold(HeldPop(key, self.retry_topics(key.topic, key.group), codes, wake_ms, waiter)):
            return False
        await waiter
        return True

    def arrived(self, topic: str, queue_id: int, tags_code: int) -> None:
        for polls in (self.polls, self.notifications):
            if topic in polls.topics:  # nearly every send of a busy broker finds nobody
                self._wake(polls.take_arrived(topic, queue_id, tags_code))
                if polls.must_look and polls not in self._looked_through:
                    self._looked_through.append(polls)
                    self._wake_in_steps(self._looking(polls))

    def _looking(self, polls: Polls) -> Iterator[list[HeldPop[Waiter]]]:
        """Look for pops that may go on. The first step does nothing, since it is part of a send."""
        yield []
        try:
            yield from polls.looking()
        finally:
            self._looked_through.remove(polls)

    def more(self, key: PollKey) -> None:
        """There is something for the next one that waits."""
        self._wake(self.polls.take_next(key))
        self._wake(self.notifications.take_next(key))

    def expiring(self) -> Iterator[list[HeldPop[Waiter]]]:
        """The pops whose time is up, in steps."""
        now_ms = self._clock.steady_ms()
        yield from self.polls.expiring(now_ms)
        yield from self.notifications.expiring(now_ms)

    def close(self) -> list[HeldPop[Waiter]]:
        """Let everyone go who waits."""
        return [*self.polls.close(), *self.notifications.close()]

    # --- what is stored

    def next_revive_queue(self) -> int:
        return next(self._numbers) % self._config.revive_queue_num

    def checkpoint_message(self, point: CheckPoint, revive_queue_id: int, host: bytes) -> StoreMessage:
        return checkpoint_message(point, self._revive_topic, revive_queue_id, self._clock.now_ms(), host)

    def ack_message(self, ack: Ack, revive_queue_id: int, revive_ms: int, host: bytes) -> StoreMessage:
        return ack_message(ack, self._revive_topic, revive_queue_id, revive_ms, self._clock.now_ms(), host)

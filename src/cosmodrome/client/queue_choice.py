"""Which queue a message goes to. Pure but for the dice.

A selector is called with the topic's queues, the message and the `arg` given to `send`, and returns one of the queues.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from cosmodrome.client.faults import Faults
from cosmodrome.client.rebalance import room_of_broker
from cosmodrome.errors import ConfigError, SendFailed, WrongType
from cosmodrome.model import Message, MessageQueue
from cosmodrome.wire.java import java_hash

Selector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


def select_by_hash(queues: Sequence[MessageQueue], _message: Message, arg: Any) -> MessageQueue:
    """One queue for each `arg`, text or a whole number: the one that Java's SelectMessageQueueByHash chooses."""
    return queues[abs(_java_hash_code(arg)) % len(queues)]


def select_randomly(queues: Sequence[MessageQueue], _message: Message, _arg: Any) -> MessageQueue:
    """Any queue, each as likely as the others."""
    return random.choice(queues)


@dataclass(frozen=True)
class SelectByMachineRoom:
    """A queue of a broker in one of these rooms, whose name is `room@broker`: by the hash of `arg`, or any.

    If these rooms have none, it is one of all the queues.
    """

    rooms: Collection[str]

    def __post_init__(self) -> None:
        if isinstance(self.rooms, str):
            raise ConfigError(f"rooms={self.rooms!r} is one text; give a list of them: [{self.rooms!r}]")
        object.__setattr__(self, "rooms", frozenset(self.rooms))

    def __call__(self, queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        near = [queue for queue in queues if room_of_broker(queue.broker_name) in self.rooms]
        select = select_randomly if arg is None else select_by_hash
        return select(near or queues, message, arg)


def _java_hash_code(arg: Any) -> int:
    """`arg.hashCode()` of what Java would have there: a String, an Integer, or a Long if it is too large for one."""
    if isinstance(arg, str):
        return java_hash(arg)
    if isinstance(arg, int) and not isinstance(arg, bool):
        if -(2**31) <= arg < 2**31:
            return arg
        folded = (arg ^ (arg >> 32)) & 0xFFFF_FFFF
        return folded - 2**32 if folded & 0x8000_0000 else folded
    raise WrongType(f"a queue is chosen by text or a whole number, not by {arg!r}")


class Turns:
    """Queues of a topic one after the other, from a random one on; with `faults`, without the slow brokers."""

    def __init__(self, faults: Faults | None = None) -> None:
        self._faults = faults
        self._turns: dict[str, int] = {}  # topic → how many queues were chosen

    def __contains__(self, topic: str) -> bool:
        return topic in self._turns

    def next(
        self, topic: str, queues: Sequence[MessageQueue], now_ms: int, failed_broker: str | None = None
    ) -> MessageQueue:
        """The next queue in turn; of the broker that just failed only if there is no other."""
        if not queues:
            raise SendFailed(f"no queue of topic {topic} may be written to")
        if topic not in self._turns:
            self._turns[topic] = random.randrange(len(queues))
        if self._faults is not None:
            others = [queue for queue in queues if queue.broker_name != failed_broker] if failed_broker else queues
            return self._next_good(topic, others or queues, now_ms, self._faults)
        if failed_broker is None:
            return self._next(topic, queues)
        return self._next(topic, queues, lambda queue: queue.broker_name != failed_broker)

    def _next(
        self, topic: str, queues: Sequence[MessageQueue], wanted: Callable[[MessageQueue], bool] | None = None
    ) -> MessageQueue:
        """The next wanted one, or simply the next."""
        turn = self._turns[topic]
        if wanted is not None:
            turn = next((i for i in range(turn, turn + len(queues)) if wanted(queues[i % len(queues)])), turn)
        self._turns[topic] = turn + 1
        return queues[turn % len(queues)]

    def _next_good(self, topic: str, queues: Sequence[MessageQueue], now_ms: int, faults: Faults) -> MessageQueue:
        """One of an available broker; else one of the least bad broker."""
        brokers = {queue.broker_name for queue in queues}
        if any(faults.is_available(name, now_ms) for name in brokers):
            return self._next(topic, queues, lambda queue: faults.is_available(queue.broker_name, now_ms))
        least_bad = faults.pick_one_at_least(now_ms, brokers)
        return self._next(topic, queues, lambda queue: queue.broker_name == least_bad)

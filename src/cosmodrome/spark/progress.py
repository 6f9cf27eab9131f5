"""How far a query has come: offsets as JSON, how much the next micro-batch takes, and what must not happen. Pure.

    {"orders":{"broker-a":{"0":123,"1":98}}}        the next offset to read of each queue

Spark compares offsets as text, so keys are sorted and queue ids are strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from cosmodrome.errors import ClientError
from cosmodrome.model import MessageQueue
from cosmodrome.numbers import MAX_INT, read_int

Offsets = Mapping[MessageQueue, int]
Place = tuple[str, str]  # a topic, and a broker that has it


class DataLoss(ClientError):
    """Messages that were still to be read are gone."""


def to_json(offsets: Offsets) -> dict[str, Any]:
    by_topic: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        by_broker = by_topic.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})
        by_broker[str(queue.queue_id)] = offsets[queue]
    return {
        topic: {broker: dict(sorted(queues.items())) for broker, queues in brokers.items()}
        for topic, brokers in by_topic.items()
    }


def from_json(json: Mapping[str, Any]) -> dict[MessageQueue, int]:
    return {
        MessageQueue(topic, broker, read_int(queue_id, high=MAX_INT)): offset
        for topic, brokers in json.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def admitted(start: Offsets, latest: Offsets, max_rows: int | None) -> dict[MessageQueue, int]:
    """Where the next micro-batch ends: each queue gets its part of `max_rows`, by how much is waiting in it.

    Shares are rounded down. What is left goes to one queue after the other, beginning with another one each time: how
    many batches of this size lie behind us tells which. So no queue is left out for ever, be it full or nearly empty.
    """
    waiting = {queue: max(end - start.get(queue, end), 0) for queue, end in latest.items()}
    total = sum(waiting.values())
    if max_rows is None or total <= max_rows:
        return {queue: start.get(queue, end) + waiting[queue] for queue, end in latest.items()}
    shares = {queue: max_rows * count // total for queue, count in waiting.items()}
    left = max_rows - sum(shares.values())  # fewer than there are queues whose share was rounded down
    queues = sorted(latest)
    first = sum(start.get(queue, 0) for queue in queues) // max_rows % len(queues)
    in_turn = (queue for queue in (*queues[first:], *queues[:first]) if shares[queue] < waiting[queue])
    for queue in islice(in_turn, left):
        shares[queue] += 1
    return {queue: start.get(queue, end) + shares[queue] for queue, end in latest.items()}


def check_forward(start: Offsets, latest: Offsets, *, fail: bool) -> dict[MessageQueue, str]:
    """A word on each queue that ends before it is to go on: its topic was made anew, or its broker set back."""
    lost = {
        queue: f"{named(queue)} ends at {latest[queue]}, but is to be read from {offset} on"
        for queue, offset in start.items()
        if queue in latest and latest[queue] < offset
    }
    if lost and fail:
        raise DataLoss(loss(lost.values()))
    return lost


def check_end(end: Offsets, latest: Offsets, *, fail: bool) -> list[str]:
    """A word on each queue that does not reach as far as it is to be read."""
    lost = [
        f"{named(queue)} ends at {latest[queue]}, but is to be read up to {offset}"
        for queue, offset in end.items()
        if queue in latest and latest[queue] < offset
    ]
    if lost and fail:
        raise DataLoss(loss(lost))
    return lost


def check_there(start: Offsets, earliest: Offsets, *, fail: bool) -> list[str]:
    """A word on each queue whose next messages the broker has deleted."""
    lost = [
        f"{named(queue)} begins at {earliest[queue]}; {earliest[queue] - offset} messages from {offset} on are gone"
        for queue, offset in start.items()
        if queue in earliest and earliest[queue] > offset
    ]
    if lost and fail:
        raise DataLoss(loss(lost))
    return lost


def check_topics(unwanted: Iterable[str]) -> None:
    """DataLoss if there are any: topics that a query has begun to read, and that it is not to read any more."""
    if topics := ", ".join(sorted(set(unwanted))):
        raise DataLoss(
            f"this query has read {topics}, which is not subscribed to any more: its checkpoint is of other topics. "
            "Give the query a checkpoint of its own, or set the option failOnDataLoss to false to leave them unread"
        )


def check_read(reached: Offsets, latest: Offsets, *, fail: bool) -> dict[MessageQueue, str]:
    """A word on each of these queues, which its topic no longer has, that was not read to its end."""
    lost = {
        queue: f"{named(queue)} cannot be read any more; messages {reached[queue]} to {newest - 1} of it were not"
        for queue, newest in latest.items()
        if newest > reached[queue]
    }
    if lost and fail:
        raise DataLoss(f"{loss(lost.values())}, or give the topic as many read queues as before")
    return lost


def check_deleted(reached: Offsets, places: Iterable[Place], *, fail: bool) -> dict[Place, str]:
    """A word on each of these places, where a topic was read that is not there any more. How far it went, nobody can
    say."""
    lost: dict[Place, str] = {}
    for topic, broker in sorted(places):
        unread = ", ".join(
            f"{offset} on in queue {queue.queue_id}"
            for queue, offset in sorted(reached.items())
            if (queue.topic, queue.broker_name) == (topic, broker)
        )
        lost[topic, broker] = (
            f"the topic {topic} is gone from broker {broker}; messages from {unread} were not read, if there were any"
        )
    if lost and fail:
        raise DataLoss(loss(lost.values()))
    return lost


def named(queue: MessageQueue) -> str:
    """As error messages call it."""
    return f"queue {queue.queue_id} of {queue.topic} on {queue.broker_name}"


def loss(lost: Iterable[str]) -> str:
    """What is gone, and what to do."""
    return f"{'; '.join(lost)}. Set the option failOnDataLoss to false to go on with what is there"


class Patience:
    """Whether a micro-batch waits for more, and how long."""

    def __init__(self, minimum: int | None, max_delay_ms: int) -> None:
        self._minimum = minimum
        self._max_delay_seconds = max_delay_ms / 1000
        self._since: float | None = None  # when the first of what waits was seen

    def must_wait(self, waiting: int, now: float) -> bool:
        if self._minimum is None or not waiting:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        if waiting < self._minimum and now - self._since < self._max_delay_seconds:
            return True
        self._since = None
        return False


class MeanSize:
    """The size of a message, as far as those that were looked at tell. The last ones count most."""

    UNSEEN_BYTES = 512.0
    WEIGHT_OF_NEWS = 0.5

    def __init__(self) -> None:
        self._mean: float | None = None

    def add(self, sizes: Sequence[int]) -> None:
        if not sizes:
            return
        news = sum(sizes) / len(sizes)
        self._mean = news if self._mean is None else self._mean + self.WEIGHT_OF_NEWS * (news - self._mean)

    def rows(self, size_bytes: int) -> int:
        """How many messages are about so many bytes: at least one, or nothing would ever be read."""
        mean = self.UNSEEN_BYTES if self._mean is None else self._mean
        return max(int(size_bytes / max(mean, 1.0)), 1)


def behind(end: Offsets, latest: Offsets) -> dict[str, int]:
    """How many messages are still to be read, by topic. A queue that is not in `end` yet has all before it."""
    lag: dict[str, int] = {}
    for queue, newest in latest.items():
        lag[queue.topic] = lag.get(queue.topic, 0) + max(newest - end.get(queue, 0), 0)
    return lag

"""How fast a consumer works. Pure: time is an argument.

Figures have the meaning they have in Java's client, so that operators can compare members: rates are messages per
second over the last minute, a pull's time counts only if it brought something, and a handler's time is that of a call.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields

from cosmodrome.client.namespaces import wrap_queue
from cosmodrome.model import MessageQueue
from cosmodrome.wire.bodies import ConsumeStatus


@dataclass(slots=True)
class _Tally:
    """What happened within some time; times in ms."""

    pulls: int = 0
    pull_ms: int = 0
    pulled: int = 0
    calls: int = 0
    call_ms: int = 0
    ok: int = 0
    failed: int = 0


_NAMES = tuple(field.name for field in fields(_Tally))


class _Window:
    """The last `steps` spans of `step_ms` each; the newest is still being filled."""

    def __init__(self, step_ms: int, steps: int) -> None:
        self._step_ms = step_ms
        self._steps = steps
        self._tallies: deque[tuple[int, _Tally]] = deque()  # by number of the step, ascending

    def now(self, now_ms: int) -> _Tally:
        """What to add to; a clock that goes back adds to the newest."""
        step = now_ms // self._step_ms
        if not self._tallies or self._tallies[-1][0] < step:
            self._tallies.append((step, _Tally()))
            while self._tallies[0][0] <= step - self._steps:
                self._tallies.popleft()
        return self._tallies[-1][1]

    def total(self, now_ms: int) -> _Tally:
        oldest = now_ms // self._step_ms - self._steps
        recent = [tally for step, tally in self._tallies if step > oldest]
        return _Tally(*(sum(getattr(tally, name) for tally in recent) for name in _NAMES))

    def began_ms(self, now_ms: int) -> int:
        return (now_ms // self._step_ms - self._steps + 1) * self._step_ms


class _OfTopic:
    def __init__(self) -> None:
        self.minute = _Window(1_000, 60)
        self.hour = _Window(60_000, 60)


class ConsumeStatistics:
    """By topic what a consumer pulled and handled, and by queue when it last did."""

    def __init__(self, now_ms: int, namespace: str = "") -> None:
        self._born_ms = now_ms
        self._namespace = namespace
        self._topics: dict[str, _OfTopic] = {}
        self._last_pull_ms: dict[MessageQueue, int] = {}
        self._last_consume_ms: dict[MessageQueue, int] = {}
        self.damaged = 0  # messages that no handler was given, because their bytes have changed

    def damaged_message(self, queue: MessageQueue, now_ms: int) -> None:
        """Count a damaged message: it has failed, without a call of a handler."""
        self.damaged += 1
        topic = self._of(queue.topic)
        for tally in (topic.minute.now(now_ms), topic.hour.now(now_ms)):
            tally.failed += 1

    def pulled(self, queue: MessageQueue, messages: int, took_ms: int, now_ms: int) -> None:
        """A pull was answered; one that waited and brought nothing says nothing of speed."""
        self._last_pull_ms[queue] = now_ms
        if messages:
            tally = self._of(queue.topic).minute.now(now_ms)
            tally.pulls += 1
            tally.pull_ms += took_ms
            tally.pulled += messages

    def consumed(self, queue: MessageQueue, ok: int, failed: int, took_ms: int, now_ms: int) -> None:
        """A handler ended; messages name their queue as the application does."""
        queue = wrap_queue(self._namespace, queue)
        self._last_consume_ms[queue] = now_ms
        topic = self._of(queue.topic)
        for tally in (topic.minute.now(now_ms), topic.hour.now(now_ms)):
            tally.calls += 1
            tally.call_ms += took_ms
            tally.ok += ok
            tally.failed += failed

    def _of(self, topic: str) -> _OfTopic:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _OfTopic()
        return found

    def last_pull_ms(self, queue: MessageQueue) -> int:
        return self._last_pull_ms.get(queue, self._born_ms)

    def last_consume_ms(self, queue: MessageQueue) -> int:
        return self._last_consume_ms.get(queue, self._born_ms)

    def forget(self, queue: MessageQueue) -> None:
        """It belongs to somebody else; what was done counts on for its topic."""
        self._last_pull_ms.pop(queue, None)
        self._last_consume_ms.pop(queue, None)

    def status(self, topic: str, now_ms: int) -> ConsumeStatus:
        """Zeros for a topic of which nothing was ever pulled."""
        found = self._topics.get(topic)
        if found is None:
            return ConsumeStatus()
        minute, hour = found.minute.total(now_ms), found.hour.total(now_ms)
        began_ms = max(self._born_ms, found.minute.began_ms(now_ms))
        seconds = max(now_ms - began_ms, 1_000) / 1_000
        calls = minute if minute.calls else hour
        return ConsumeStatus(
            consume_failed_msgs=hour.failed,
            consume_failed_tps=minute.failed / seconds,
            consume_ok_tps=minute.ok / seconds,
            consume_rt=_average(calls.call_ms, calls.calls),
            pull_rt=_average(minute.pull_ms, minute.pulls),
            pull_tps=minute.pulled / seconds,
        )


def _average(total: int, count: int) -> float:
    return total / count if count else 0.0

"""How much goes through a broker, by topic, group and queue, under Apache's names. Pure: time is an argument.

Serving adds to one counter: that of the queue for what is put, that of queue and group for what is got. Everything
else (topics, groups, the whole broker) is added up when the counters are sampled, every ten seconds, and only from
those that moved. A figure's history holds only the samples at which it had changed.

Apache keeps GET_FROM_DISK and DLQ_PUT figures and never adds to them, and only logs how far groups have fallen behind.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from typing import ClassVar, NamedTuple

from cosmodrome.store.message import ReadResult

SAMPLE_MS = 10_000
STEP = 500  # queues looked at in one go, in some milliseconds
# A queue or group that was silent for so long is forgotten; it begins at 0 when it comes back.
IDLE_KEPT_MS = 24 * 3600 * 1000

WITHOUT_SYSTEM = "_WITHOUT_SYSTEM_TOPIC"
SENT_BACK = "SNDBCK_PUT_NUMS"
DEAD_LETTERS = "DLQ_PUT_NUMS"
SENT_BACK_TO_DEATH = "SNDBCK2DLQ_TIMES"
ACKS = "ACK"
CHECKPOINTS = "CK"
FROM_DISK = "GET_FROM_DISK"
# Where they are kept; Apache's keys for them begin with the queue.
_LATENCIES = {"TOPIC_PUT_LATENCY": "QUEUE_PUT", "GROUP_GET_LATENCY": "QUEUE_GET"}
_SUFFIXES = ("_NUMS", "_SIZE", "_TIMES")


class Window(NamedTuple):
    """How far back a figure is known, and how finely."""

    every_ms: int
    samples: int

    @property
    def span_ms(self) -> int:
        return self.every_ms * (self.samples - 1)


MINUTE = Window(SAMPLE_MS, 7)
HOUR = Window(600_000, 7)
DAY = Window(3_600_000, 25)
TEN_MINUTES = Window(SAMPLE_MS, 61)  # kept for the whole broker only
_WINDOWS = (MINUTE, HOUR, DAY)


class Amount(NamedTuple):
    """So many messages and bytes in so many requests, which took so long together."""

    messages: int = 0
    size: int = 0
    times: int = 0
    took_ms: float = 0.0

    def plus(self, other: Amount) -> Amount:
        return Amount(
            self.messages + other.messages,
            self.size + other.size,
            self.times + other.times,
            self.took_ms + other.took_ms,
        )

    def minus(self, other: Amount) -> Amount:
        return Amount(
            self.messages - other.messages,
            self.size - other.size,
            self.times - other.times,
            self.took_ms - other.took_ms,
        )


class Rate(NamedTuple):
    """What came within a window: in all, per second, and per request."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class Counter:
    """What the serving side adds to."""

    __slots__ = ("_taken", "messages", "next_offset", "size", "times", "took_ms")

    def __init__(self) -> None:
        self.messages = self.size = self.times = self.next_offset = 0
        self.took_ms = 0.0
        self._taken = Amount()

    def take(self) -> Amount | None:
        """What was added since the last time, or None."""
        if self.times == self._taken.times:
            return None
        now = Amount(self.messages, self.size, self.times, self.took_ms)
        fresh, self._taken = now.minus(self._taken), now
        return fresh


class Figure:
    """A total and its history."""

    def __init__(self, born_ms: int, windows: Iterable[Window] = _WINDOWS) -> None:
        self.total = Amount()
        self.changed_ms = born_ms
        self._histories = {window: deque([(born_ms, self.total)], maxlen=window.samples) for window in windows}

    def add(self, amount: Amount, now_ms: int) -> None:
        self.total = self.total.plus(amount)
        self.changed_ms = now_ms

    def sample(self, window: Window, now_ms: int) -> None:
        history = self._histories[window]
        if history[-1][1] != self.total:
            history.append((now_ms, self.total))

    def within(self, window: Window, now_ms: int, span_ms: int | None = None) -> tuple[Amount, int]:
        """What came between the sample at the window's begin and the last one, and the time between them."""
        history = self._histories[window]
        since_ms = now_ms - (window.span_ms if span_ms is None else span_ms)
        began_ms, before = history[0]
        for sampled_ms, total in history:
            if sampled_ms > since_ms:
                break
            began_ms, before = sampled_ms, total
        return history[-1][1].minus(before), now_ms - max(began_ms, since_ms)


class Statistics:
    """Every figure of one broker; `cluster` is the key of those that speak of all of it."""

    def __init__(self, cluster: str, now_ms: int, is_system: Callable[[str], bool]) -> None:
        self._cluster = cluster
        self._is_system = is_system
        self._puts: dict[tuple[str, int], Counter] = {}
        self._gets: dict[tuple[str, int, str], Counter] = {}
        self._events: dict[tuple[str, str, str], Counter] = {}
        self._figures: dict[tuple[str, str], Figure] = {}
        self._due = {window: now_ms + window.every_ms for window in (*_WINDOWS, TEN_MINUTES)}
        self._sampled_ms = now_ms
        self.born_ms = now_ms
        self._missed = Counter()
        self._timed_out = Counter()
        self.put_times = PutTimes()
        self.longest_get_ms = 0.0
        self.put_all = self._figure("BROKER_PUT", cluster)
        self.got_all = self._figure("BROKER_GET", cluster)
        self.missed_all = self._figure("BROKER_GET_MISS", cluster)
        self.timed_out_all = self._figure("BROKER_TIMER_DEQUEUE", cluster)
        self._mornings = Mornings(now_ms)

    # --- told while serving

    def put(self, topic: str, queue_id: int, messages: int, size: int, took_ms: float = 0.0) -> None:
        """One request stored so much."""
        counter = self._puts.get((topic, queue_id))
        if counter is None:
            counter = self._puts[topic, queue_id] = Counter()
        counter.messages += messages
        counter.size += size
        counter.times += 1
        if took_ms:
            counter.took_ms += took_ms
            self.put_times.note(took_ms)

    def put_took(self, topic: str, queue_id: int, took_ms: float) -> None:
        """What was put before has now become as safe as promised, so much later."""
        if (counter := self._puts.get((topic, queue_id))) is not None:
            counter.took_ms += took_ms
            self.put_times.note(took_ms)

    def got(self, topic: str, queue_id: int, group: str, result: ReadResult) -> None:
        """One pull or pop brought this."""
        counter = self._gets.get((topic, queue_id, group))
        if counter is None:
            counter = self._gets[topic, queue_id, group] = Counter()
        counter.messages += result.count
        counter.size += result.size
        counter.times += 1
        counter.took_ms += result.took_ms
        counter.next_offset = result.next_offset
        if result.took_ms > self.longest_get_ms:
            self.longest_get_ms = result.took_ms
        if result.slow:
            self.note(FROM_DISK, topic, group, result.count, result.size)

    def timed_out(self) -> None:
        """One message came out of the timer wheel."""
        self._timed_out.times += 1

    def missed(self) -> None:
        """One pull brought nothing."""
        self._missed.times += 1

    def note(self, event: str, topic: str, group: str, messages: int = 1, size: int = 0) -> None:
        """Something else that groups do with messages, such as ACKS: counted by group and for the whole broker."""
        counter = self._events.get((event, topic, group))
        if counter is None:
            counter = self._events[event, topic, group] = Counter()
        counter.messages += messages
        counter.size += size
        counter.times += 1

    def count(self, name: str, key: str, messages: int = 1) -> None:
        """Something rarer, by its name, such as SNDBCK_PUT_NUMS; `key` is what Apache's key would be."""
        self._figure(_family(name), key).add(Amount(messages, 0, 1), self._sampled_ms)

    # --- sampling

    def sample(self, now_ms: int) -> None:
        """Take what was added since the last time. To be done every SAMPLE_MS."""
        for _ in self.sampling(now_ms):
            pass

    def sampling(self, now_ms: int, date_ms: int | None = None) -> Iterator[None]:
        """The same in small steps: with many queues the whole of it takes longer than a sender may wait. `date_ms`, if
        that is not the time all else is counted in, says which day it is."""
        for number, ((topic, queue_id), counter) in enumerate(list(self._puts.items()), 1):
            if (amount := counter.take()) is not None:
                self._add_put(topic, queue_id, amount, now_ms)
            if number % STEP == 0:
                yield
        for number, ((topic, queue_id, group), counter) in enumerate(list(self._gets.items()), 1):
            if (amount := counter.take()) is not None:
                self._add_got(topic, queue_id, group, amount, now_ms)
            if number % STEP == 0:
                yield
        for number, ((event, topic, group), counter) in enumerate(list(self._events.items()), 1):
            if (amount := counter.take()) is not None:
                self._figure(f"GROUP_{event}", f"{topic}@{group}").add(amount, now_ms)
                self._figure(f"BROKER_{event}", self._cluster).add(amount, now_ms)
            if number % STEP == 0:
                yield
        if (amount := self._missed.take()) is not None:
            self.missed_all.add(amount, now_ms)
        if (amount := self._timed_out.take()) is not None:
            self.timed_out_all.add(amount, now_ms)
        self.put_times.pass_by(now_ms, self.put_all.total.times)
        self._sampled_ms = now_ms
        for window in (*_WINDOWS, TEN_MINUTES):
            if now_ms >= self._due[window]:
                self._due[window] = now_ms + window.every_ms
                yield from self._sample(window, now_ms)
        self._mornings.pass_by(
            now_ms if date_ms is None else date_ms, self.put_all.total.messages, self.got_all.total.messages
        )

    def _add_put(self, topic: str, queue_id: int, amount: Amount, now_ms: int) -> None:
        self._figure("QUEUE_PUT", f"{topic}@{queue_id}").add(amount, now_ms)
        self._figure("TOPIC_PUT", topic).add(amount, now_ms)
        self.put_all.add(amount, now_ms)
        if not self._is_system(topic):
            self._figure("BROKER_PUT" + WITHOUT_SYSTEM, self._cluster).add(amount, now_ms)

    def _add_got(self, topic: str, queue_id: int, group: str, amount: Amount, now_ms: int) -> None:
        self._figure("QUEUE_GET", f"{topic}@{queue_id}@{group}").add(amount, now_ms)
        self._figure("GROUP_GET", f"{topic}@{group}").add(amount, now_ms)
        self.got_all.add(amount, now_ms)
        if not self._is_system(topic):
            self._figure("BROKER_GET" + WITHOUT_SYSTEM, self._cluster).add(amount, now_ms)

    def _figure(self, family: str, key: str) -> Figure:
        found = self._figures.get((family, key))
        if found is None:
            windows = (*_WINDOWS, TEN_MINUTES) if key == self._cluster else _WINDOWS
            found = self._figures[family, key] = Figure(self._sampled_ms, windows)
        return found

    def _sample(self, window: Window, now_ms: int) -> Iterator[None]:
        if window is TEN_MINUTES:
            figures = [figure for (_, key), figure in self._figures.items() if key == self._cluster]
        else:
            figures = list(self._figures.values())
        for number, figure in enumerate(figures, 1):
            figure.sample(window, now_ms)
            if number % STEP == 0:
                yield
        if window is DAY:
            self._forget_idle(now_ms)

    def _forget_idle(self, now_ms: int) -> None:
        since_ms = now_ms - IDLE_KEPT_MS
        idle = {place for place, figure in self._figures.items() if figure.changed_ms < since_ms}
        for topic, queue_id in list(self._puts):
            if ("QUEUE_PUT", f"{topic}@{queue_id}") in idle:
                del self._puts[topic, queue_id]
        for topic, queue_id, group in list(self._gets):
            if ("QUEUE_GET", f"{topic}@{queue_id}@{group}") in idle:
                del self._gets[topic, queue_id, group]
        for event, topic, group in list(self._events):
            if (f"GROUP_{event}", f"{topic}@{group}") in idle:
                del self._events[event, topic, group]
        for family, key in idle:
            if key != self._cluster:
                del self._figures[family, key]

    # --- asked

    def view(self, name: str, key: str) -> tuple[Rate, Rate, Rate] | None:
        """The last minute, hour and day of a figure, up to the last sample; None when there is no such figure."""
        if name in _LATENCIES:
            queue_id, _, rest = key.partition("@")
            topic, at, group = rest.partition("@")
            figure = self._figures.get((_LATENCIES[name], f"{topic}@{queue_id}{at}{group}"))
            return None if figure is None else self._rates(figure, lambda amount: amount.took_ms)
        plain = name.removesuffix(WITHOUT_SYSTEM)
        family = _family(plain)
        figure = self._figures.get((family + WITHOUT_SYSTEM if plain != name else family, key))
        if figure is None or family == plain:
            return None
        if plain.endswith("_SIZE"):
            return self._rates(figure, lambda amount: amount.size)
        return self._rates(figure, lambda amount: amount.messages)

    def _rates(self, figure: Figure, of: Callable[[Amount], float]) -> tuple[Rate, Rate, Rate]:
        minute, hour, day = (self._rate(figure, window, of) for window in _WINDOWS)
        return minute, hour, day

    def _rate(self, figure: Figure, window: Window, of: Callable[[Amount], float]) -> Rate:
        amount, elapsed_ms = figure.within(window, self._sampled_ms)
        value = of(amount)
        return Rate(int(value), _per_second(value, elapsed_ms), value / amount.times if amount.times else 0.0)

    def reached(self, topic: str, queue_id: int, group: str) -> int | None:
        """Where the next read of the group begins that goes on behind its last one; None if it has not read."""
        counter = self._gets.get((topic, queue_id, group))
        return (counter.next_offset or None) if counter is not None else None

    def forget_reached(self, topic: str) -> None:
        """Forget where groups read: a topic of that name made later begins at 0."""
        for (name, _, _), counter in self._gets.items():
            if name == topic:
                counter.next_offset = 0

    def per_second(self, figure: Figure, of: Callable[[Amount], int]) -> list[float]:
        """Of the whole broker: the last ten seconds, minute and ten minutes."""
        rates = []
        for span_ms in (SAMPLE_MS, MINUTE.span_ms, TEN_MINUTES.span_ms):
            amount, elapsed_ms = figure.within(TEN_MINUTES, self._sampled_ms, span_ms)
            rates.append(_per_second(of(amount), elapsed_ms))
        return rates

    def put_tps(self, topic: str) -> float:
        """Return how many messages a second the topic got in the last ten seconds that were sampled."""
        figure = self._figures.get(("TOPIC_PUT", topic))
        if figure is None:
            return 0.0
        amount, elapsed_ms = figure.within(MINUTE, self._sampled_ms, SAMPLE_MS)
        return _per_second(amount.messages, elapsed_ms)

    @property
    def mornings(self) -> Mapping[str, int]:
        return self._mornings.totals(self.put_all.total.messages, self.got_all.total.messages)


class PutTimes:
    """How long puts took, in whole milliseconds: the longest since the start, and all of the last two minutes.

    Only those that took any time are told of; the others follow from how many puts there were.
    """

    # The first milliseconds of Apache's classes, with their names; before the first of them comes 0.
    _CLASSES: ClassVar = (
        *((0, "<=0ms"), (1, "0~10ms"), (10, "10~50ms"), (50, "50~100ms"), (100, "100~200ms"), (200, "200~500ms")),
        *((500, "500ms~1s"), (1_000, "1~2s"), (2_000, "2~3s"), (3_000, "3~4s"), (4_000, "4~5s"), (5_000, "5~10s")),
        (10_000, "10s~"),
    )
    _LONGEST_MS = 10_000  # what took longer is one class

    def __init__(self) -> None:
        self.max_ms = 0
        self._now: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._puts = self._puts_now = self._puts_before = 0  # in all; and in all when the two minutes began
        self._began_ms: int | None = None

    def note(self, took_ms: float) -> None:
        """One put took so long, a millisecond or more."""
        whole_ms = round(took_ms)
        self.max_ms = max(self.max_ms, whole_ms)
        key = min(whole_ms, self._LONGEST_MS)
        self._now[key] = self._now.get(key, 0) + 1

    def pass_by(self, now_ms: int, puts: int) -> None:
        """Note how many puts there have been; what is older than two minutes is forgotten."""
        self._puts = puts
        if self._began_ms is None or now_ms - self._began_ms >= MINUTE.span_ms:
            self._before, self._now = self._now, {}
            self._puts_before, self._puts_now = self._puts_now, puts
            self._began_ms = now_ms

    def _counts(self) -> dict[int, int]:
        """Milliseconds → puts, in their order."""
        counts = {key: self._now.get(key, 0) + self._before.get(key, 0) for key in self._now.keys() | self._before}
        instant = self._puts - self._puts_before - sum(counts.values())
        return dict(sorted({0: max(instant, 0) + counts.pop(0, 0), **counts}.items()))

    def quantile(self, share: float) -> float:
        """Return what this share of the puts took at most."""
        counts = self._counts()
        wanted = share * sum(counts.values())
        for took_ms, count in counts.items():
            wanted -= count
            if wanted <= 0:
                return float(took_ms)
        return 0.0

    def text(self) -> str:
        """Return how many puts there were of each of Apache's classes."""
        firsts = [first for first, _ in self._CLASSES]
        sums = [0] * len(firsts)
        for took_ms, count in self._counts().items():
            sums[bisect_right(firsts, took_ms) - 1] += count
        return " ".join(f"[{name}]:{count}" for (_, name), count in zip(self._CLASSES, sums, strict=True))


class Mornings:
    """Totals since the start of the broker, as they stood at the last two midnights."""

    def __init__(self, now_ms: int) -> None:
        self._day = _day(now_ms)
        self._put = self._got = (0, 0)  # yesterday morning, this morning

    def pass_by(self, now_ms: int, put: int, got: int) -> None:
        today = _day(now_ms)
        if today != self._day:
            self._day = today
            self._put, self._got = (self._put[1], put), (self._got[1], got)

    def totals(self, put: int, got: int) -> dict[str, int]:
        """Under Apache's names."""
        return {
            "msgPutTotalYesterdayMorning": self._put[0],
            "msgPutTotalTodayMorning": self._put[1],
            "msgPutTotalTodayNow": put,
            "msgGetTotalYesterdayMorning": self._got[0],
            "msgGetTotalTodayMorning": self._got[1],
            "msgGetTotalTodayNow": got,
        }


def _family(name: str) -> str:
    """The figure that knows what a name asks for."""
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _per_second(value: float, elapsed_ms: int) -> float:
    return value * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0


def _day(now_ms: int) -> date:
    return datetime.fromtimestamp(now_ms / 1000).date()

"""Figures over time: what is added comes out again, under every name it has, for as long as it is remembered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.broker.statistics import ACKS, DAY, HOUR, IDLE_KEPT_MS, MINUTE, SAMPLE_MS, Rate, Statistics
from cosmodrome.store.message import GetStatus, ReadResult

START_MS = 1_700_000_000_000


def statistics() -> Statistics:
    return Statistics("DefaultCluster", START_MS, lambda topic: topic.startswith("rmq_sys_"))


def sums(kept: Statistics, name: str, key: str) -> list[int]:
    rates = kept.view(name, key)
    return [] if rates is None else [rate.sum for rate in rates]


def read(count: int, size: int, *, slow: bool = False, took_ms: float = 0.0) -> ReadResult:
    return ReadResult(GetStatus.FOUND, count, 0, count, count, size, slow=slow, took_ms=took_ms)


def test_a_put_is_seen_by_queue_topic_and_broker() -> None:
    kept = statistics()
    kept.put("t", 3, 1, 100)
    kept.put("t", 4, 32, 900)
    assert kept.view("TOPIC_PUT_NUMS", "t") is None
    kept.sample(START_MS + SAMPLE_MS)
    assert kept.view("TOPIC_PUT_NUMS", "t") == (Rate(33, 3.3, 16.5), Rate(), Rate())
    assert sums(kept, "TOPIC_PUT_SIZE", "t")[0] == 1_000
    assert sums(kept, "QUEUE_PUT_NUMS", "t@4")[0] == 32
    assert sums(kept, "QUEUE_PUT_SIZE", "t@3")[0] == 100
    assert sums(kept, "BROKER_PUT_NUMS", "DefaultCluster")[0] == 33


def test_what_is_got_is_seen_by_queue_group_and_broker() -> None:
    kept = statistics()
    kept.got("t", 0, "g", read(32, 900))
    kept.got("t", 1, "g", read(1, 10))
    kept.got("t", 1, "h", read(5, 50))
    kept.sample(START_MS + SAMPLE_MS)
    assert sums(kept, "GROUP_GET_NUMS", "t@g")[0] == 33
    assert sums(kept, "GROUP_GET_SIZE", "t@h")[0] == 50
    assert sums(kept, "QUEUE_GET_NUMS", "t@1@g")[0] == 1
    assert sums(kept, "BROKER_GET_NUMS", "DefaultCluster")[0] == 38


def test_system_topics_are_left_out_where_the_name_says_so() -> None:
    kept = statistics()
    kept.put("t", 0, 1, 1)
    kept.put("rmq_sys_wheel_timer", 0, 4, 4)
    kept.sample(START_MS + SAMPLE_MS)
    assert sums(kept, "BROKER_PUT_NUMS", "DefaultCluster")[0] == 5
    assert sums(kept, "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "DefaultCluster")[0] == 1


def test_rare_events_are_counted_by_their_name() -> None:
    kept = statistics()
    kept.count("SNDBCK_PUT_NUMS", "t@g")
    kept.sample(START_MS + SAMPLE_MS)
    assert kept.view("SNDBCK_PUT_NUMS", "t@g") == (Rate(1, 0.1, 1.0), Rate(), Rate())


def test_times_are_added_up_under_a_key_that_begins_with_the_queue() -> None:
    kept = statistics()
    kept.put("t", 3, 1, 100, 7)
    kept.put("t", 3, 1, 100)
    kept.put_took("t", 3, 5)
    kept.got("t", 3, "g", read(32, 900, took_ms=2.5))
    kept.sample(START_MS + SAMPLE_MS)
    assert kept.view("TOPIC_PUT_LATENCY", "3@t") == (Rate(12, 1.2, 6.0), Rate(), Rate())
    assert kept.view("GROUP_GET_LATENCY", "3@t@g") == (Rate(2, 0.25, 2.5), Rate(), Rate())
    assert kept.view("GROUP_GET_LATENCY", "3@t") is None


def test_what_memory_no_longer_holds_is_counted_apart() -> None:
    kept = statistics()
    kept.got("t", 0, "g", read(4, 40))
    kept.got("t", 0, "g", read(32, 900, slow=True))
    kept.sample(START_MS + SAMPLE_MS)
    for name, key in [("GROUP_GET_FROM_DISK", "t@g"), ("BROKER_GET_FROM_DISK", "DefaultCluster")]:
        assert (sums(kept, f"{name}_NUMS", key)[0], sums(kept, f"{name}_SIZE", key)[0]) == (32, 900)
    assert sums(kept, "GROUP_GET_NUMS", "t@g")[0] == 36


def test_what_groups_do_is_seen_by_group_and_broker_until_it_is_forgotten() -> None:
    kept = statistics()
    kept.note(ACKS, "t", "g", 3)
    kept.note(ACKS, "t", "h")
    kept.sample(START_MS + SAMPLE_MS)
    assert kept.view("GROUP_ACK_NUMS", "t@g") == (Rate(3, 0.3, 3.0), Rate(), Rate())
    assert sums(kept, "BROKER_ACK_NUMS", "DefaultCluster")[0] == 4
    kept.sample(START_MS + IDLE_KEPT_MS + 2 * DAY.every_ms)
    assert kept.view("GROUP_ACK_NUMS", "t@g") is None
    assert not kept._events


def test_no_figure_is_no_zero() -> None:
    kept = statistics()
    kept.put("t", 0, 1, 1)
    kept.sample(START_MS + SAMPLE_MS)
    for name, key in [("TOPIC_PUT_NUMS", "u"), ("TOPIC_PUT", "t"), ("", ""), ("NO_SUCH_NUMS", "t")]:
        assert kept.view(name, key) is None


def test_a_burst_leaves_the_minute_then_the_hour_then_the_day() -> None:
    kept = statistics()
    kept.put("t", 0, 60, 0)
    now_ms, seen = START_MS, list[tuple[int, list[int]]]()
    while now_ms < START_MS + DAY.span_ms + 2 * DAY.every_ms:
        now_ms += SAMPLE_MS
        kept.sample(now_ms)
        current = sums(kept, "TOPIC_PUT_NUMS", "t")
        if not seen or current != seen[-1][1]:
            seen.append((now_ms - START_MS, current))
    assert [current for _, current in seen] == [[60, 0, 0], [0, 0, 0], [0, 60, 0], [0, 60, 60], [0, 0, 60], []]
    assert seen[1][0] == MINUTE.span_ms + SAMPLE_MS
    assert seen[4][0] == HOUR.span_ms + HOUR.every_ms
    assert seen[5][0] >= IDLE_KEPT_MS
    assert seen[4][0] < DAY.span_ms


def test_a_forgotten_queue_begins_anew() -> None:
    kept = statistics()
    kept.put("t", 0, 1, 1)
    kept.sample(START_MS + SAMPLE_MS)
    kept.sample(START_MS + IDLE_KEPT_MS + 2 * DAY.every_ms)
    assert kept.view("QUEUE_PUT_NUMS", "t@0") is None
    kept.put("t", 0, 7, 7)
    kept.sample(START_MS + IDLE_KEPT_MS + 2 * DAY.every_ms + SAMPLE_MS)
    assert sums(kept, "QUEUE_PUT_NUMS", "t@0")[0] == 7
    assert kept.put_all.total.messages == 8


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=60))
def test_within_a_minute_the_sum_is_what_was_put(steps: list[tuple[int, int]]) -> None:
    kept = statistics()
    put: list[int] = []
    for index, (messages, _) in enumerate(steps, 1):
        if messages:
            kept.put("t", 0, messages, 0)
        put.append(messages)
        kept.sample(START_MS + index * SAMPLE_MS)
    expected = sum(put[-(MINUTE.samples - 1) :])
    assert sums(kept, "TOPIC_PUT_NUMS", "t")[:1] == ([expected] if any(put) else [])
    rates = kept.per_second(kept.put_all, lambda amount: amount.messages)
    assert rates[0] == (put[-1] / 10 if put else 0.0)


def test_a_midnight_turns_today_into_yesterday() -> None:
    kept = statistics()
    day_ms = 24 * 3600 * 1000
    kept.put("t", 0, 5, 0)
    kept.sample(START_MS + SAMPLE_MS)
    assert kept.mornings["msgPutTotalTodayNow"] == 5
    kept.sample(START_MS + day_ms)
    kept.put("t", 0, 2, 0)
    kept.sample(START_MS + 2 * day_ms)
    mornings = kept.mornings
    assert (mornings["msgPutTotalYesterdayMorning"], mornings["msgPutTotalTodayMorning"]) == (5, 7)
    assert mornings["msgGetTotalTodayNow"] == 0

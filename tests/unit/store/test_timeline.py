"""A clock that is set: what elapsed time, dates in the store, lookups and retention make of it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmodrome.store import timeline as module
from cosmodrome.store.timeline import STEP_MS, Timeline
from cosmodrome.testing import FakeClock
from tests.unit.store.kit import bodies, kill, message, open_store, records
from tests.unit.store.test_retention import CONFIG, Disk, append_files, clean, log_files, set_age

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
START_MS = 1_700_000_000_000


def opened(folder: Path, clock: FakeClock, log_end: int = 0, last_ms: int = 0) -> Timeline:
    return Timeline.open(folder / "timeline.json", clock, lambda: log_end, last_ms)


@pytest.mark.parametrize("ms", [STEP_MS, -STEP_MS, 3 * HOUR_MS, -100 * HOUR_MS])
async def test_it_goes_on_while_the_date_jumps_and_says_so(
    tmp_path: Path, ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(START_MS)
    timeline = opened(tmp_path, clock)
    clock.step(ms)
    await clock.advance(1_000)
    assert (timeline.now_ms(), timeline.shift_ms) == (START_MS + 1_000, ms)
    assert f"the machine's clock was set {'forward' if ms > 0 else 'back'} by {abs(ms) / 1000:.3f} s" in caplog.text


def test_a_little_is_no_step(tmp_path: Path) -> None:
    clock = FakeClock(START_MS)
    timeline = opened(tmp_path, clock)
    for _ in range(10):
        clock.step(STEP_MS - 1)
        timeline.look()
        clock.step(1 - STEP_MS)
        timeline.look()
    assert timeline.was_never_set


@pytest.mark.parametrize("lost_at", [1, 2, 3])
def test_a_processor_that_is_lost_between_two_readings_is_no_step(tmp_path: Path, lost_at: int) -> None:
    class Busy(FakeClock):
        readings = 0

        def now_ms(self) -> int:
            date_ms = super().now_ms()
            self.readings += 1
            if self.readings % 5 == lost_at:
                self._steady_ms += 700
            return date_ms

    timeline = opened(tmp_path, Busy(START_MS))
    for _ in range(20):
        timeline.look()
    assert timeline.was_never_set


@given(
    st.lists(
        st.tuples(st.integers(-50 * HOUR_MS, 50 * HOUR_MS), st.integers(0, 20 * MINUTE_MS), st.integers(0, 3)),
        max_size=12,
    )
)
@settings(max_examples=50)
def test_a_records_date_is_told_apart_from_the_same_date_before_a_step(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[int, int, int]]
) -> None:
    """Also by a process that is started anew after any of the steps."""
    folder, clock = tmp_path_factory.mktemp("timeline"), FakeClock(START_MS)
    stored: list[tuple[int, int, int]] = []

    def start() -> Timeline:
        started = Timeline.open(folder / "timeline.json", clock, lambda: 100 * len(stored), 0)
        started.save()  # as a broker does at once
        return started

    timeline = start()
    for step_ms, passing_ms, restart in story:
        if restart == 1:
            timeline = start()
        clock.step(step_ms)
        if restart == 2:
            timeline = start()
        clock._steady_ms += passing_ms
        assert abs(timeline.now_ms() - clock.steady_ms()) < STEP_MS
        stored.append((clock.now_ms(), 100 * len(stored), clock.steady_ms()))
    for date_ms, place, steady_ms in stored:
        assert abs(timeline.of_record(date_ms, place) - steady_ms) < STEP_MS
    if stored:
        assert abs(timeline.redated(clock.now_ms()) - clock.now_ms()) < STEP_MS
        assert abs(timeline.of(clock.now_ms()) - clock.steady_ms()) < STEP_MS


async def test_a_date_means_its_last_time_and_one_left_out_the_step(tmp_path: Path) -> None:
    clock = FakeClock(START_MS)
    timeline = opened(tmp_path, clock)
    await clock.advance(HOUR_MS)
    clock.step(3 * HOUR_MS)
    timeline.look()
    await clock.advance(HOUR_MS)
    assert timeline.of(START_MS) == START_MS
    assert timeline.of(START_MS + 2 * HOUR_MS) == START_MS + HOUR_MS  # no clock ever showed it
    assert timeline.of(START_MS + 4 * HOUR_MS) == START_MS + HOUR_MS
    assert timeline.of(START_MS + 9 * HOUR_MS) == START_MS + 6 * HOUR_MS  # it is to come
    clock.step(-3 * HOUR_MS - 30 * MINUTE_MS)
    timeline.look()
    assert timeline.of(START_MS + HOUR_MS) == START_MS + HOUR_MS
    await clock.advance(MINUTE_MS)
    assert timeline.of(clock.now_ms() - 1) == clock.steady_ms() - 1


def test_steps_beyond_the_bound_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 8
    monkeypatch.setattr(module, "MAX_STEPS", bound)
    clock = FakeClock(START_MS)
    timeline = opened(tmp_path, clock)
    for _ in range(bound + 10):
        clock.step(HOUR_MS)
        timeline.look()
    assert len(timeline._steps) == bound
    again = opened(tmp_path, clock)
    assert again.now_ms() == timeline.now_ms() == START_MS


async def test_after_another_boot_only_a_date_behind_the_last_record_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(START_MS)
    opened(tmp_path, clock).save()
    monkeypatch.setattr(FakeClock, "boot_id", "another")
    clock.step(-5 * HOUR_MS)
    assert opened(tmp_path, clock, last_ms=START_MS - 1).now_ms() == START_MS - 1
    clock = FakeClock(START_MS)
    monkeypatch.setattr(FakeClock, "boot_id", "a third")
    clock.step(100 * HOUR_MS)  # perhaps it was off for so long
    assert opened(tmp_path, clock, last_ms=START_MS).now_ms() >= START_MS + 100 * HOUR_MS


@pytest.mark.parametrize(
    "garbage", [b"{}", b"\x00", b'{"steps":[{}]}', b'{"bootId":1,"aheadMs":"x","beforeMs":0,"steps":[]}']
)
def test_a_file_that_cannot_be_read_stops_nobody(
    tmp_path: Path, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "timeline.json").write_bytes(garbage)
    assert opened(tmp_path, FakeClock(START_MS)).now_ms() == START_MS
    assert "begun anew" in caplog.text


# --- the store


@pytest.mark.parametrize("leave", ["stays", "closed", "killed"])
async def test_lookups_by_time_miss_nothing_when_the_clock_was_set_back(tmp_path: Path, leave: str) -> None:
    clock = FakeClock(START_MS)
    store = open_store(tmp_path, clock=clock)
    times: list[int] = []
    for ms in (0, 0, -3 * HOUR_MS, 0, 5 * HOUR_MS, -2 * HOUR_MS, 0):
        clock.step(ms)
        store.timeline.look()  # as a broker does every second
        for _ in range(3):
            await clock.advance(10 * MINUTE_MS)
            store.append(message(body=b"%d" % len(times), UNIQ_KEY=f"u{len(times)}", KEYS="all"))
            times.append(clock.now_ms())
    if leave != "stays":
        store.close() if leave == "closed" else kill(store)
        store = open_store(tmp_path, clock=clock)
    for time in sorted({ms + more for ms in times for more in (-1, 0, 1)}):
        first = next((number for number, ms in enumerate(times) if ms >= time), len(times))
        assert store.offset_by_time("orders", 0, time) == first
        last = max((number for number, ms in enumerate(times) if ms <= time), default=0)
        assert store.offset_by_time("orders", 0, time, upper=True) == last
    for number, time in enumerate(times):
        found = records(store.find_by_key("orders", f"u{number}", 10, time, time))
        assert [record.body for record in found] == [b"%d" % number]
    low, high = sorted(times)[4], sorted(times)[9]
    found = records(store.find_by_key("orders", "all", 64, low, high))
    assert {int(record.body) for record in found} == {n for n, ms in enumerate(times) if low <= ms <= high}


@pytest.mark.parametrize("is_down", [False, True])
@pytest.mark.parametrize("back", [False, True])
async def test_a_clock_100_hours_ahead_deletes_no_file(tmp_path: Path, is_down: bool, back: bool) -> None:
    clock = FakeClock(START_MS)
    store = open_store(tmp_path, CONFIG, clock)
    store.cleaner._used = Disk()
    append_files(store, 4)
    for file in store._log.files:
        set_age(file.path, 1, clock.now_ms())
    if is_down:
        store.timeline.save()
        store.close()
    clock.step(100 * HOUR_MS)
    if is_down:
        store = open_store(tmp_path, CONFIG, clock)
        store.cleaner._used = Disk()
        store.flusher.flushed = store.max_physical_offset
    await clean(store)
    assert log_files(tmp_path) == [0, 1, 2, 3]
    if back:
        clock.step(-100 * HOUR_MS)
        await clean(store)
        assert log_files(tmp_path) == [0, 1, 2, 3]
    await clock.advance(CONFIG.file_reserved_time * HOUR_MS)  # what is truly old goes
    await clean(store)
    assert log_files(tmp_path) == [3]
    store.close()


def test_an_append_is_no_slow_one_because_the_clock_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(START_MS)
    store = open_store(tmp_path, clock=clock)
    write = store._log.write

    def stepping(*args: object) -> int:
        clock.step(HOUR_MS)
        return write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(store._log, "write", stepping)
    store.append(message())
    assert (store.append_ms, store.is_page_cache_busy) == (0, False)
    assert bodies(store) == [b"body"]


def test_only_a_store_whose_clock_was_set_has_something_to_say(tmp_path: Path) -> None:
    clock = FakeClock(START_MS)
    open_store(tmp_path, dataclasses.replace(CONFIG), clock).close()
    assert not os.path.exists(tmp_path / "config" / "timeline.json")


@pytest.mark.parametrize("used", [0.1, 0.88])
async def test_after_a_long_gap_and_another_boot_files_have_an_hour_before_their_age_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: float
) -> None:
    clock = FakeClock(START_MS)
    store = open_store(tmp_path, CONFIG, clock)
    append_files(store, 4)
    for file in store._log.files:
        set_age(file.path, 1, clock.now_ms())
    store.close()
    monkeypatch.setattr(FakeClock, "boot_id", "another")
    clock.step(100 * HOUR_MS)
    store = open_store(
        tmp_path,
        dataclasses.replace(CONFIG, delete_when="0;1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16;17;18;19;20;21;22;23"),
        clock,
    )
    store.flusher.flushed = store.max_physical_offset
    store.cleaner._used = Disk(used)
    await clean(store, asked=False)
    kept = 1 if used > 0.85 else 4  # a disk that is nearly full needs the room
    assert len(log_files(tmp_path)) == kept
    if kept == 4:
        await clock.advance(10 * MINUTE_MS)
        await clean(store, asked=False)
        assert len(log_files(tmp_path)) == 4
        clock.step(-100 * HOUR_MS)  # a time server has been heard
        await clock.advance(HOUR_MS)
        await clean(store, asked=False)
        assert len(log_files(tmp_path)) == 4
    store.close()

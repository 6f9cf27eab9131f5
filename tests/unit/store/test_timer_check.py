"""`verify` reads the files of pending timers, the checkpoints and the checksums; `repair` and a start mend them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cosmodrome.clock import SystemClock
from cosmodrome.store.derived import SUMS
from cosmodrome.store.findings import Area
from cosmodrome.store.repair import plan_repair, repair
from cosmodrome.store.timer_log import UNIT_SIZE, Unit
from cosmodrome.store.timer_store import SECOND_MS, Timer, TimerStore
from cosmodrome.store.timer_wheel import SLOT_SIZE, SLOTS
from cosmodrome.store.verification import verify
from tests.unit.store.damage import Spoil, flip, overwrite
from tests.unit.store.kit import SMALL, message, open_store

NOW = 1_700_000_000_000
TIMERS = 100
FILE_SIZE = 4_096
LOG = f"timerlog/{0:020d}"
LAST_LOG = f"timerlog/{FILE_SIZE:020d}"
SLOT_AT = (NOW // 1_000 + 7) % SLOTS * SLOT_SIZE


def is_whole(_unit: Unit) -> bool:
    return True


def store_with_timers(root: Path) -> None:
    store = open_store(root)
    places = [store.append(message("rmq_sys_wheel_timer", body=b"%d" % number, KEYS="k")) for number in range(TIMERS)]
    timers = TimerStore.open(root, FILE_SIZE, NOW, store.max_physical_offset, range(TIMERS), is_whole)
    for number, place in enumerate(places):
        due_ms = NOW + (1 + number % 9) * SECOND_MS
        assert timers.set(Timer(due_ms, place.physical_offset, place.size, 1), NOW, 9_000 * SECOND_MS)
    timers.queue_offset = TIMERS
    work = timers.take_checkpoint(NOW)
    assert work is not None
    work()
    timers.close()
    store.close()


SPOILS: dict[str, tuple[Spoil, str]] = {
    "unit": (lambda root: flip(root / LOG, 5 * UNIT_SIZE + 20), LOG),
    "last unit": (lambda root: overwrite(root / LAST_LOG, 21 * UNIT_SIZE, bytes(UNIT_SIZE)), LAST_LOG),
    "timer log cut short": (lambda root: os.truncate(root / LOG, 1_000), LOG),
    "timer log gone": (lambda root: (root / LOG).unlink(), "timerwheel"),
    "stray": (lambda root: (root / "timerlog" / "notes").touch(), "timerlog/notes"),
    "slot": (lambda root: flip(root / "timerwheel", SLOT_AT + 23), "timerwheel"),
    "slot's first unit": (lambda root: flip(root / "timerwheel", SLOT_AT + 15), "timerwheel"),
    "slot's count": (lambda root: flip(root / "timerwheel", SLOT_AT + 27), "timerwheel"),
    "slot's second": (lambda root: flip(root / "timerwheel", SLOT_AT + 6), "timerwheel"),
    "slot zeroed": (lambda root: overwrite(root / "timerwheel", SLOT_AT, bytes(SLOT_SIZE)), "timerwheel"),
    "wheel cut short": (lambda root: os.truncate(root / "timerwheel", 99), "timerwheel"),
    "wheel gone": (lambda root: (root / "timerwheel").unlink(), "timerwheel"),
    "timercheck": (lambda root: flip(root / "config/timercheck", 6), "timercheck is damaged"),
    "timercheck's part on delivered timers": (
        lambda root: flip(root / "config/timercheck", 2_048 + 20),
        "timercheck is damaged",
    ),
    "timercheck emptied": (lambda root: os.truncate(root / "config/timercheck", 0), "timercheck is damaged"),
    "its backup": (lambda root: flip(root / "config/timercheck.bak", 2_600), "timercheck.bak is damaged"),
}


@pytest.mark.parametrize("name", SPOILS)
def test_verify_names_what_is_wrong_with_timers_and_repair_mends_it(tmp_path: Path, name: str) -> None:
    spoil, words = SPOILS[name]
    store_with_timers(tmp_path)
    assert verify(tmp_path).is_sound, verify(tmp_path).problems
    spoil(tmp_path)
    found = verify(tmp_path)
    assert set(found.counts) == {Area.TIMERS}
    assert words in str(found.problems[0])
    assert plan_repair(tmp_path).steps
    mended = repair(tmp_path, SystemClock(), SMALL)
    assert mended.is_sound, mended.problems
    timers = TimerStore.open(tmp_path, FILE_SIZE, NOW, 2**62, range(TIMERS), is_whole)
    assert timers.queue_offset == 0, "all are set again"
    timers.close()


@pytest.mark.parametrize("position", [3, 2_060, 2_570])
def test_verify_names_a_checkpoint_that_does_not_match_its_checksum(tmp_path: Path, position: int) -> None:
    store_with_timers(tmp_path)
    flip(tmp_path / "checkpoint", position, 0x40)
    found = verify(tmp_path)
    assert set(found.counts) == {Area.CHECKPOINT}
    open_store(tmp_path).close()
    assert verify(tmp_path).is_sound


def test_verify_names_checksums_that_are_damaged_themselves(tmp_path: Path) -> None:
    store_with_timers(tmp_path)
    flip(tmp_path / SUMS, 40)
    (problem,) = verify(tmp_path).problems
    assert str(problem).startswith("checkpoint: derived.sums: its own checksum does not match")
    open_store(tmp_path).close()
    assert verify(tmp_path).is_sound


def test_what_is_not_looked_at_is_named(tmp_path: Path) -> None:
    store_with_timers(tmp_path)
    for name in ("rocksdb/CURRENT", "config/brokerIdentity", "timerlog.bad/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = verify(tmp_path)
    assert found.is_sound
    assert found.notes == ["not looked at, and brokers do not either: rocksdb, timerlog.bad, config/brokerIdentity"]

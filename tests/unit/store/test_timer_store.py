"""Pending timers on disk: what is due when, at what cost, and after which damage."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path

import pytest

from cosmodrome.config import MIB
from cosmodrome.errors import ProtocolError
from cosmodrome.store import timer_store
from cosmodrome.store.timer_checkpoint import TimerCheckpoint
from cosmodrome.store.timer_log import UNIT_SIZE, Unit
from cosmodrome.store.timer_store import SECOND_MS, Place, Timer, TimerStore, placed
from cosmodrome.store.timer_wheel import FILE_SIZE, SLOT_SIZE, SLOTS, WheelDamaged

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000
WINDOW_MS = 48 * HOUR_MS
RECORD_BYTES = 100
SMALL_FILE = 4_096  # 78 units and the blank mark
ANY = 2**62


def opened(
    root: Path, *, now_ms: int = NOW, record_end: int = ANY, queue: range = range(ANY), file_size: int = SMALL_FILE
) -> TimerStore:
    return TimerStore.open(root, file_size, now_ms, record_end, queue, lambda unit: unit.size == RECORD_BYTES)


def timer(number: int, due_ms: int, *, deletes: bool = False) -> Timer:
    return Timer(due_ms, number * RECORD_BYTES, RECORD_BYTES, number, deletes)


def put(store: TimerStore, number: int, due_ms: int, now_ms: int = NOW) -> None:
    assert store.set(timer(number, due_ms), now_ms, WINDOW_MS)
    store.queue_offset = number + 1


def due(store: TimerStore, until_ms: int) -> list[tuple[int, int]]:
    """Everything that comes out of the wheel: (second, number), in the order of delivery."""
    found: list[tuple[int, int]] = []
    while store.read_ms < until_ms:
        found += reversed([(store.read_ms, unit.physical_offset // RECORD_BYTES) for _, unit in store.due()])
        store.next_second()
    return found


def save(store: TimerStore) -> None:
    work = store.take_checkpoint(NOW)
    assert work is not None
    work()


def test_timers_come_out_by_second_and_within_one_in_the_order_they_were_set(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number, seconds in enumerate([3, 1, 3, 2, 1]):
        put(store, number, NOW + seconds * SECOND_MS)
    assert [number for _, number in due(store, NOW + 5 * SECOND_MS)] == [1, 4, 3, 0, 2]


def test_the_log_is_needed_from_the_first_timer_whose_delivery_is_saved_nowhere(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.needed_from() is None
    for number, seconds in enumerate([2, 1, 9]):
        put(store, number, NOW + seconds * SECOND_MS)
    save(store)
    assert store.needed_from() == 0
    for _ in due(store, NOW + 5 * SECOND_MS):
        store.unit_delivered()
    assert store.needed_from() == 0  # a power cut would deliver it once more
    save(store)
    assert store.needed_from() == 2 * RECORD_BYTES
    store.read_ms = NOW + 10 * SECOND_MS
    assert store.needed_from() is None
    put(store, 3, NOW + 20 * SECOND_MS)
    assert store.needed_from() == 3 * RECORD_BYTES


def test_a_long_look_for_what_is_needed_is_cut_short_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_store, "LOOKED_AT_ONCE", 100)
    store = opened(tmp_path)
    for number in range(250):
        put(store, number, NOW + SECOND_MS)
    put(store, 250, NOW + 9 * SECOND_MS)
    store.read_ms = NOW + 5 * SECOND_MS
    assert [store.needed_from() for _ in range(4)] == [number * RECORD_BYTES for number in (100, 200, 250, 250)]


def test_nothing_is_on_disk_before_the_first_timer(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.skip_empty(NOW + 10 * SECOND_MS)
    assert store.read_ms == NOW + 10 * SECOND_MS
    assert store.take_checkpoint(NOW, always=True) is None
    assert list(tmp_path.iterdir()) == []
    put(store, 0, NOW + 20 * SECOND_MS)
    assert (tmp_path / "timerwheel").stat().st_size == FILE_SIZE == 38_707_200
    assert (tmp_path / "timerwheel").stat().st_blocks * 512 <= 64 * 1024  # the rest are holes


def test_the_layout_is_apaches(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 7, NOW + 5 * SECOND_MS)
    put(store, 8, NOW + 5 * SECOND_MS)
    assert store.set(timer(9, NOW + 5 * SECOND_MS, deletes=True), NOW, WINDOW_MS)
    save(store)
    log = (tmp_path / "timerlog" / f"{0:020}").read_bytes()
    delay = 5 * SECOND_MS
    assert struct.unpack_from(">iqiqiqii", log) == (52, -1, 1, NOW, delay, 700, 100, 7)
    assert struct.unpack_from(">iqiqiqii", log, 52) == (52, 0, 1, NOW, delay, 800, 100, 8)
    assert struct.unpack_from(">iqiqiqii", log, 104) == (52, 52, 5, NOW, delay, 900, 100, 9)
    # Ours, in bytes that Apache's brokers write as 0 and never read.
    assert struct.unpack_from(">4sI", log, 44) == (b"CRC1", zlib.crc32(log[:44]))
    second = (NOW + delay) // 1_000
    wheel = (tmp_path / "timerwheel").read_bytes()
    at = second % 1_209_600 * 32
    assert struct.unpack_from(">qqqi", wheel, at) == (second, 0, 104, 1)
    assert struct.unpack_from(">I", wheel, at + 28) == (zlib.crc32(wheel[at : at + 28]),)  # Apache leaves it alone
    check = (tmp_path / "config" / "timercheck").read_bytes()
    assert len(check) == 4_096
    assert struct.unpack_from(">7q", check) == (NOW, 3 * 52, 9, 9, 0, NOW, 1)


def test_files_roll_with_a_blank_mark(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(200):
        put(store, number, NOW + SECOND_MS)
    log = (tmp_path / "timerlog" / f"{0:020}").read_bytes()
    assert struct.unpack_from(">iqI", log, 78 * UNIT_SIZE) == (SMALL_FILE - 78 * UNIT_SIZE, 0, 0xCBD43194)
    assert sorted(path.name for path in (tmp_path / "timerlog").iterdir()) == [
        f"{n * SMALL_FILE:020}" for n in range(3)
    ]
    assert [number for _, number in due(store, NOW + 2 * SECOND_MS)] == list(range(200))
    store.close()
    assert [number for _, number in due(opened(tmp_path), NOW + 2 * SECOND_MS)] == list(range(200))


def test_a_timer_beyond_the_window_stops_on_the_way() -> None:
    assert placed(NOW + WINDOW_MS - 1, NOW, WINDOW_MS) == Place(NOW + WINDOW_MS - 1, False)
    assert placed(NOW + 5 * WINDOW_MS, NOW, WINDOW_MS) == Place(NOW + WINDOW_MS, True)
    # Not quite two windows: two even hops instead of a long and a very short one.
    assert placed(NOW + WINDOW_MS, NOW, WINDOW_MS) == Place(NOW + WINDOW_MS // 2, True)
    assert placed(NOW + WINDOW_MS + WINDOW_MS // 3, NOW, WINDOW_MS) == Place(NOW + WINDOW_MS, True)


def test_forty_days_need_twenty_hops_at_most() -> None:
    due_ms, now_ms, hops = NOW + 40 * 24 * HOUR_MS, NOW, 0
    while (place := placed(due_ms, now_ms, WINDOW_MS)).is_rolled:
        now_ms, hops = place.due_ms, hops + 1
    assert place.due_ms == due_ms
    assert hops <= 20


def test_a_timer_whose_second_is_over_is_not_set(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert not store.set(timer(0, NOW - SECOND_MS), NOW, WINDOW_MS)
    # A second that has passed but was not read yet still takes timers, so that a deletion meets its message.
    assert store.set(timer(1, NOW), NOW + 9 * SECOND_MS, WINDOW_MS)
    assert due(store, NOW + SECOND_MS) == [(NOW, 1)]


def test_a_tick_looks_at_its_own_slot_only(tmp_path: Path) -> None:
    """A million pending timers, a thousand of them due now: a tick reads these and nothing else."""
    store = opened(tmp_path, file_size=64 * MIB)
    pending, per_slot = 1_000_000, 1_000
    for second in range(pending // per_slot):
        time_ms = NOW + second * SECOND_MS
        last = -1
        for _ in range(per_slot):
            last = store.log.append(Unit(last, 1, NOW, time_ms, 0, RECORD_BYTES, 0))
        store.wheel.add(time_ms, last, per_slot)
    store.wheel.reads = store.log.reads = 0
    store.skip_empty(NOW + SECOND_MS)
    assert sum(1 for _ in store.due()) == per_slot
    store.next_second()
    assert store.wheel.reads == 2  # whether there is something, and what
    assert store.log.reads == per_slot + 1  # one more to see the end of the chain
    store.close()


# After a stop


def test_a_clean_stop_repeats_and_loses_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(100):
        put(store, number, NOW + number // 10 * SECOND_MS)
    first = due(store, NOW + 5 * SECOND_MS)
    for _ in range(3):
        store.unit_delivered()
    save(store)
    store.close()
    store = opened(tmp_path, now_ms=NOW + HOUR_MS)
    assert (store.read_ms, store.delivered, store.queue_offset) == (NOW + 5 * SECOND_MS, 3, 100)
    assert [number for _, number in first + due(store, NOW + 10 * SECOND_MS)] == list(range(100))


def test_a_note_of_deliveries_counts_only_for_its_second(tmp_path: Path) -> None:
    """An Apache broker moves on without touching our part of the file."""
    path = tmp_path / "config" / "timercheck"
    TimerCheckpoint(read_ms=NOW, delivered=5).save(path)
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 0, NOW + SECOND_MS)
    path.write_bytes(data)
    loaded = TimerCheckpoint.load(path)
    assert loaded is not None
    assert (loaded.read_ms, loaded.delivered) == (NOW + SECOND_MS, 0)


def test_after_a_kill_everything_set_is_still_set_once(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(50):
        put(store, number, NOW + SECOND_MS)
    save(store)
    for number in range(50, 100):
        put(store, number, NOW + SECOND_MS)
    store.close()  # saves nothing
    store = opened(tmp_path)
    assert store.queue_offset == 50
    assert [store.is_known(number * RECORD_BYTES) for number in (49, 50, 99, 100)] == [False, True, True, False]
    assert [number for _, number in due(store, NOW + 2 * SECOND_MS)] == list(range(100))


def test_slots_that_were_not_written_before_a_kill_are_filled_from_the_log(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 0, NOW + SECOND_MS)
    save(store)
    unit = Unit(0, 1, NOW, NOW + SECOND_MS, RECORD_BYTES, RECORD_BYTES, 0)
    store.log.append(unit)  # and dies before it writes the slot
    store.close()
    assert [number for _, number in due(opened(tmp_path), NOW + 2 * SECOND_MS)] == [0, 1]


@pytest.mark.parametrize("damage", ["missing", "short", "zeros", "garbage"])
def test_a_missing_or_damaged_wheel_is_built_anew(tmp_path: Path, damage: str) -> None:
    store = opened(tmp_path)
    for number in range(200):
        put(store, number, NOW + number % 7 * SECOND_MS)
    if damage != "zeros":  # zeros are no damage that shows: only units behind the checkpoint bring them back
        save(store)
    store.close()
    wheel = tmp_path / "timerwheel"
    index = (NOW // 1_000 + 3) % SLOTS * SLOT_SIZE
    if damage == "missing":
        wheel.unlink()
    elif damage == "short":
        os.truncate(wheel, 1_000)
    else:
        with wheel.open("r+b") as file:
            file.seek(index)
            file.write(
                b"\0" * SLOT_SIZE if damage == "zeros" else struct.pack(">qqqii", NOW // 1_000 + 3, 0, 9_999, 1, 0)
            )
    found = due(opened(tmp_path), NOW + 10 * SECOND_MS)
    assert sorted(number for _, number in found) == list(range(200))


def test_a_torn_tail_of_the_log_is_set_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(10):
        put(store, number, NOW + SECOND_MS)
    store.close()
    with (tmp_path / "timerlog" / f"{0:020}").open("r+b") as file:
        file.seek(7 * UNIT_SIZE)
        file.write(b"\xff" * 20)
    store = opened(tmp_path)
    assert store.log.end == 7 * UNIT_SIZE
    assert [store.is_known(number * RECORD_BYTES) for number in (6, 7)] == [True, False]
    assert [number for _, number in due(store, NOW + 2 * SECOND_MS)] == list(range(7))


def test_units_whose_records_a_crash_took_are_dropped(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(10):
        put(store, number, NOW + SECOND_MS)
    save(store)
    store.close()
    store = opened(tmp_path, record_end=6 * RECORD_BYTES, queue=range(6))
    assert all(store.is_known(number * RECORD_BYTES) for number in range(store.queue_offset, 6))
    assert [number for _, number in due(store, NOW + 2 * SECOND_MS)] == list(range(6))


def test_without_a_log_every_message_is_set_again_but_none_that_was_delivered(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(10):
        put(store, number, NOW + number * SECOND_MS)
    due(store, NOW + 5 * SECOND_MS)
    save(store)
    store.close()
    for file in (tmp_path / "timerlog").iterdir():
        file.unlink()
    store = opened(tmp_path, queue=range(3, 12))
    assert (store.queue_offset, store.replayed_below, store.read_ms) == (3, 10, NOW + 5 * SECOND_MS)


def test_without_a_checkpoint_timers_rather_come_twice_than_never(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 0, NOW + SECOND_MS)
    due(store, NOW + 9 * SECOND_MS)
    save(store)
    store.close()
    for name in ("timercheck", "timercheck.bak"):
        (tmp_path / "config" / name).unlink()
    assert due(opened(tmp_path, now_ms=NOW + HOUR_MS), NOW + 9 * SECOND_MS) == [(NOW + SECOND_MS, 0)]


def test_files_whose_records_are_gone_are_forgotten(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(200):
        put(store, number, NOW + HOUR_MS)
    assert store.log.take_expired(77 * RECORD_BYTES) == []
    (expired,) = store.log.take_expired(78 * RECORD_BYTES)
    expired.delete()
    assert store.log.start == SMALL_FILE
    store.read_ms = NOW + HOUR_MS
    assert [unit.physical_offset // RECORD_BYTES for _, unit in store.due()] == list(range(199, 77, -1))
    store.next_second()
    save(store)
    store.close()
    assert opened(tmp_path).log.start == SMALL_FILE


def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    put(store, 0, NOW + SECOND_MS)
    end = store.log.end

    def full(_fd: int, _data: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="no space"):
            store.set(timer(1, NOW + SECOND_MS), NOW, WINDOW_MS)
    assert store.log.end == end
    put(store, 1, NOW + SECOND_MS)
    assert [number for _, number in due(store, NOW + 2 * SECOND_MS)] == [0, 1]


def test_empty_seconds_are_passed_over_also_where_the_wheel_begins_anew(tmp_path: Path) -> None:
    store = opened(tmp_path)
    turn_ms = SLOTS * SECOND_MS
    begins_ms = NOW - NOW % turn_ms + turn_ms
    store.read_ms = begins_ms - 10 * SECOND_MS
    put(store, 0, begins_ms + 5 * SECOND_MS, store.read_ms)
    store.skip_empty(begins_ms + SECOND_MS)
    assert store.read_ms == begins_ms + SECOND_MS
    store.skip_empty(begins_ms + 9 * SECOND_MS)
    assert due(store, store.read_ms + SECOND_MS) == [(begins_ms + 5 * SECOND_MS, 0)]


# --- rot


def spoil(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int, bit: int) -> None:
    spoil(path, position, bytes([path.read_bytes()[position] ^ 1 << bit]))


@pytest.mark.parametrize("position", range(UNIT_SIZE))
def test_one_flipped_bit_of_a_unit_has_all_timers_set_again(tmp_path: Path, position: int) -> None:
    store = opened(tmp_path)
    for number in range(10):
        put(store, number, NOW + number * SECOND_MS)
    due(store, NOW + 5 * SECOND_MS)
    save(store)
    store.close()
    flip(tmp_path / "timerlog" / f"{0:020}", 4 * UNIT_SIZE + position, position % 8)
    store = opened(tmp_path, queue=range(2, 10))
    assert (store.queue_offset, store.replayed_below, store.read_ms) == (2, 10, NOW + 5 * SECOND_MS)
    assert store.is_replaying
    assert store.saved_queue_offset == 2, "the commit log keeps what is to be set again"
    assert (tmp_path / "timerlog.bad").is_dir()
    assert store.take_checkpoint(NOW, always=True) is None, "a start in the middle begins here again"
    for number in range(5, 10):
        put(store, number, NOW + number * SECOND_MS)
    assert [number for _, number in due(store, NOW + 10 * SECOND_MS)] == [5, 6, 7, 8, 9]
    save(store)
    store.close()
    assert not opened(tmp_path).is_replaying


@pytest.mark.parametrize("position", range(SLOT_SIZE))
def test_one_flipped_bit_of_a_slot_is_mended_from_the_log(tmp_path: Path, position: int) -> None:
    store = opened(tmp_path)
    for number in range(20):
        put(store, number, NOW + number % 7 * SECOND_MS)
    save(store)
    store.close()
    wheel = tmp_path / "timerwheel"
    at = (NOW // 1_000 + 3) % SLOTS * SLOT_SIZE
    flip(wheel, at + position, position % 8)
    store = opened(tmp_path)
    assert sorted(number for _, number in due(store, NOW + 10 * SECOND_MS)) == list(range(20))
    assert not store.is_replaying


@pytest.mark.parametrize("position", range(SLOT_SIZE))
def test_a_slot_that_rots_while_it_is_used_is_noticed(tmp_path: Path, position: int) -> None:
    store = opened(tmp_path)
    for number in range(20):
        put(store, number, NOW + number % 7 * SECOND_MS)
    save(store)
    flip(tmp_path / "timerwheel", (NOW // 1_000 + 3) % SLOTS * SLOT_SIZE + position, position % 8)
    found: set[int] = set()
    while store.read_ms < NOW + 10 * SECOND_MS:
        try:
            store.skip_empty(NOW + 10 * SECOND_MS)
            found |= {unit.physical_offset // RECORD_BYTES for _, unit in store.due()}
            store.next_second()
        except WheelDamaged as damage:
            store.mend(str(damage), range(20))
    assert found == set(range(20))


def test_what_apaches_broker_wrote_is_taken_and_gets_checksums(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(10):
        put(store, number, NOW + SECOND_MS)
    save(store)
    store.close()
    for number in range(10):
        spoil(tmp_path / "timerlog" / f"{0:020}", number * UNIT_SIZE + 44, bytes(8))
    spoil(tmp_path / "timerwheel", (NOW // 1_000 + 1) % SLOTS * SLOT_SIZE + 28, bytes(4))
    store = opened(tmp_path)
    assert [number for _, number in due(store, NOW + 2 * SECOND_MS)] == list(range(10))
    assert not store.is_replaying
    assert b"CRC1" in (tmp_path / "timerlog" / f"{0:020}").read_bytes()


@pytest.mark.parametrize("position", range(4 * 8))
@pytest.mark.parametrize("bit", [0, 4, 7])
def test_a_flipped_bit_of_the_checkpoint_changes_nothing(tmp_path: Path, position: int, bit: int) -> None:
    path = tmp_path / "timercheck"
    checkpoint = TimerCheckpoint(NOW, 5 * UNIT_SIZE, 9, 3)
    checkpoint.save(path)
    flip(path, position, bit)
    assert TimerCheckpoint.load(path) == checkpoint


@pytest.mark.parametrize("size", [0, 10, 56, 2_000, 2_600])
def test_a_checkpoint_cut_short_is_taken_from_its_backup(tmp_path: Path, size: int) -> None:
    path = tmp_path / "timercheck"
    checkpoint = TimerCheckpoint(NOW, 5 * UNIT_SIZE, 9, 3)
    checkpoint.save(path)
    os.truncate(path, size)
    found = TimerCheckpoint.load(path)
    assert found is not None
    assert (found.read_ms, found.log_end, found.queue_offset) == (NOW, 5 * UNIT_SIZE, 9)


def test_a_checkpoint_that_apaches_broker_wrote_later_counts(tmp_path: Path) -> None:
    path = tmp_path / "timercheck"
    TimerCheckpoint(NOW, 5 * UNIT_SIZE, 9, 3).save(path)
    later = TimerCheckpoint(NOW + HOUR_MS, 7 * UNIT_SIZE, 9)
    spoil(path, 0, later.encoded())
    assert TimerCheckpoint.load(path) == later


def test_a_missing_first_file_of_the_log_has_all_timers_set_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(100):
        put(store, number, NOW + number % 9 * SECOND_MS)
    save(store)
    store.close()
    (tmp_path / "timerlog" / f"{0:020}").unlink()
    store = opened(tmp_path, queue=range(100))
    assert (store.queue_offset, store.replayed_below) == (0, 100)


def test_a_slave_that_becomes_master_sets_what_its_master_had_not_delivered(tmp_path: Path) -> None:
    master = opened(tmp_path / "master")
    for number, seconds in enumerate([1, 2, 9, 3]):
        put(master, number, NOW + seconds * SECOND_MS)
    due(master, NOW + 4 * SECOND_MS)
    slave = TimerStore.of_slave(tmp_path / "slave", SMALL_FILE)
    work = slave.adopt(TimerCheckpoint.of_master(master.checkpoint.encoded()))
    assert work is not None
    work()
    assert slave.adopt(TimerCheckpoint.of_master(master.checkpoint.encoded())) is None, "it is known already"
    assert slave.saved_queue_offset == 4
    slave.close()
    promoted = opened(tmp_path / "slave", queue=range(4))
    assert promoted.is_replaying
    assert promoted.read_ms == NOW + 4 * SECOND_MS
    set_again = [number for number, seconds in enumerate([1, 2, 9, 3]) if set_number(promoted, number, seconds)]
    assert set_again == [2]


def test_a_slave_of_a_master_without_timers_sets_none_again(tmp_path: Path) -> None:
    slave = TimerStore.of_slave(tmp_path, SMALL_FILE)
    work = slave.adopt(TimerCheckpoint(NOW))
    assert work is not None
    work()
    slave.close()
    assert not opened(tmp_path, queue=range(0)).is_replaying


def set_number(store: TimerStore, number: int, seconds: int) -> bool:
    return store.set(timer(number, NOW + seconds * SECOND_MS), NOW, WINDOW_MS)


def test_a_master_that_becomes_slave_keeps_no_wheel_of_its_own(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 0, NOW + 5 * SECOND_MS)
    save(store)
    store.close()
    slave = TimerStore.of_slave(tmp_path, SMALL_FILE)
    assert slave.needed_from() is None
    slave.close()
    again = opened(tmp_path, queue=range(1))
    assert again.is_replaying
    put(again, 0, NOW + 5 * SECOND_MS)
    assert [number for _, number in due(again, NOW + 9 * SECOND_MS)] == [0]


def test_a_checkpoint_of_a_master_that_is_cut_short_is_refused() -> None:
    with pytest.raises(ProtocolError, match="has 56 bytes, not 3"):
        TimerCheckpoint.of_master(b"abc")

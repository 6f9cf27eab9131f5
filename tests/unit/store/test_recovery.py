"""Opening a store again: after a clean exit, after a crash, after damage."""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome.errors import StoreError
from cosmodrome.store import MessageStore
from cosmodrome.store.index_file import HEADER_SIZE
from cosmodrome.store.verification import verify
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire.batch import BatchItem
from cosmodrome.wire.record import SysFlag
from tests.unit.store.damage import QUEUE_FILE, overwrite
from tests.unit.store.kit import SMALL, bodies, crash, derived_bytes, kill, message, open_store

FIRST = "commitlog/00000000000000000000"


def fill(store: MessageStore, count: int = 60, start: int = 0) -> None:
    """Messages of several topics, queues, tags and keys, over several files of each kind."""
    for number in range(start, start + count):
        topic = f"topic-{number % 2}"
        body = b"%d" % number + b"." * (number * 37 % 3_000)
        keys = {"UNIQ_KEY": f"u{number}", "KEYS": f"k{number % 5}"} if number % 3 else {}
        flag = SysFlag.PREPARED if number % 11 == 0 else 0
        store.append(message(topic, number % 3, body, sys_flag=flag, TAGS=f"t{number % 4}", **keys))


def everything(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    return {
        (topic, queue_id): bodies(store, topic, queue_id)
        for topic in store.topics()
        for queue_id in store.queues(topic)
    }


def test_a_clean_exit_needs_no_scan(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path)
    fill(store)
    before, end = everything(store), store.max_physical_offset
    store.close()

    caplog.set_level(logging.INFO)
    store = open_store(tmp_path)
    assert "after a clean exit" in caplog.text
    assert " 0 records were read" in caplog.text
    assert (everything(store), store.max_physical_offset) == (before, end)
    fill(store, 5, start=60)
    assert sum(map(len, everything(store).values())) == sum(map(len, before.values())) + 5


def test_a_clean_exit_of_another_broker_costs_a_scan_of_the_last_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    fill(store)
    before, end = everything(store), store.max_physical_offset
    store.close()
    checkpoint = bytearray((tmp_path / "checkpoint").read_bytes())
    checkpoint[7] ^= 1  # as if it had appended: the time of the last message is another
    (tmp_path / "checkpoint").write_bytes(checkpoint)

    caplog.set_level(logging.INFO)
    store = open_store(tmp_path)
    assert "after a clean exit" in caplog.text
    assert " 0 records were read" not in caplog.text
    assert (everything(store), store.max_physical_offset) == (before, end)


def test_scanned_and_inline_dispatch_give_the_same_bytes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store)
    crash(store)
    inline = derived_bytes(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")

    store = open_store(tmp_path)
    store.close()
    assert derived_bytes(tmp_path) == inline
    assert len(inline) > 8


@pytest.mark.parametrize("die", [kill, crash])
def test_a_crash_loses_nothing_that_was_written(tmp_path: Path, die: Callable[[MessageStore], None]) -> None:
    store = open_store(tmp_path)
    fill(store)
    before, inline = everything(store), derived_bytes(tmp_path)
    die(store)
    store = open_store(tmp_path)
    assert everything(store) == before
    assert derived_bytes(tmp_path) == inline
    fill(store, 10, start=60)
    die(store)
    assert sum(map(len, everything(open_store(tmp_path)).values())) == sum(map(len, before.values())) + 9


@pytest.mark.parametrize("cut", [1, 8, 40, 88, 95, 99])
def test_a_torn_record_costs_only_itself(tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path)
    for body in (b"one", b"two"):
        last = store.append(message(body=body))
    torn = store.append(message(body=b"three"))
    crash(store)
    with (tmp_path / FIRST).open("r+b") as file:
        file.seek(torn.physical_offset + cut)
        file.write(bytes(torn.size - cut))

    caplog.set_level(logging.INFO)
    store = open_store(tmp_path)
    assert "were cut" in caplog.text
    assert "after a crash" in caplog.text
    assert bodies(store) == [b"one", b"two"]
    assert store.max_physical_offset == last.end
    assert not any((tmp_path / FIRST).read_bytes()[last.end :])
    assert store.append(message(body=b"again")).queue_offset == 2
    assert bodies(store) == [b"one", b"two", b"again"]


def test_a_flipped_bit_in_a_body_is_noticed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(message(body=b"good"))
    bad = store.append(message(body=b"bad!"))
    store.append(message(body=b"kept"))
    crash(store)
    with (tmp_path / FIRST).open("r+b") as file:
        file.seek(bad.physical_offset + 88)
        file.write(b"\0")
    assert bodies(open_store(tmp_path)) == [b"good", b"kept"]


def test_what_was_cut_never_comes_back(tmp_path: Path) -> None:
    """A shorter record in the place of a cut one must not uncover old, whole records behind it.

    They are cut where no queue leads to them, as a power cut may leave it."""
    store = open_store(tmp_path)
    first = store.append(message(body=b"first"))
    store.append(message(body=b"second"))
    store.append(message(body=b"third"))
    crash(store)
    (tmp_path / "abort").write_text("4711")  # Apache's broker was the last, behind whose log may lie what it cut off
    with (tmp_path / FIRST).open("r+b") as file:
        file.seek(first.end + 4)
        file.write(b"\0")
        file.seek(first.end)
        cut = file.read(3 * first.size).rstrip(b"\0")
    overwrite(tmp_path / QUEUE_FILE, 20, bytes(40))
    store = open_store(tmp_path)
    assert store.recovered.kept_aside_bytes == len(cut)
    assert (tmp_path / "commitlog.bad" / f"{first.end:020d}.bytes").read_bytes() == cut
    store.append(message(body=b"SECOND"))
    crash(store)
    assert bodies(open_store(tmp_path)) == [b"first", b"SECOND"]


def test_a_record_in_the_wrong_place_is_none(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = store.append(message(body=b"first"))
    crash(store)
    with (tmp_path / FIRST).open("r+b") as file:
        copy = file.read(first.size)
        file.seek(first.end)
        file.write(copy)
    store = open_store(tmp_path)
    assert (bodies(store), store.max_physical_offset) == ([b"first"], first.end)


def test_an_empty_file_made_ahead_is_no_end(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store)
    before = everything(store)
    crash(store)
    names = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
    ahead = tmp_path / "commitlog" / f"{int(names[-1]) + SMALL.mapped_file_size_commit_log:020d}"
    ahead.write_bytes(bytes(SMALL.mapped_file_size_commit_log))
    store = open_store(tmp_path)
    assert everything(store) == before
    store.close()
    ahead.write_bytes(b"")
    assert everything(open_store(tmp_path)) == before


def test_files_behind_a_damaged_part_stay(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(4):
        store.append(message(body=b"%d" % number + b"x" * 40_000))
    crash(store)
    second = tmp_path / "commitlog" / f"{SMALL.mapped_file_size_commit_log:020d}"
    with second.open("r+b") as file:
        file.write(b"garbage!")
    store = open_store(tmp_path)
    assert [body[:1] for body in bodies(store)] == [b"0", b"2", b"3"]
    assert store.append(message()).queue_offset == 4


def test_files_that_nobody_speaks_of_are_kept_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path)
    for number in range(4):
        store.append(message(body=b"%d" % number + b"x" * 40_000))
    crash(store)
    (tmp_path / "abort").write_text("4711")  # Apache's broker was the last, behind whose log may lie what it cut off
    second = tmp_path / "commitlog" / f"{SMALL.mapped_file_size_commit_log:020d}"
    with second.open("r+b") as file:
        file.write(b"garbage!")
    overwrite(tmp_path / QUEUE_FILE, 20, bytes(60))
    store = open_store(tmp_path)
    assert [body[:1] for body in bodies(store)] == [b"0"]
    assert len(list((tmp_path / "commitlog.bad").iterdir())) == 3
    assert "commitlog.bad" in caplog.text
    assert store.append(message()).physical_offset == SMALL.mapped_file_size_commit_log


def test_garbage_in_a_queue_is_replaced_after_a_crash(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store)
    before = everything(store)
    crash(store)
    good = derived_bytes(tmp_path)
    path = tmp_path / "consumequeue/topic-0/0/00000000000000000000"
    data = bytearray(path.read_bytes())
    data[40:80] = os.urandom(40)
    data[-20:] = b"\x01" * 20
    path.write_bytes(data)
    store = open_store(tmp_path)
    assert everything(store) == before
    store.close()
    assert derived_bytes(tmp_path) == good


def test_entries_beyond_the_log_are_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 10)
    end = store.max_physical_offset
    fill(store, 30, start=10)
    crash(store)
    with (tmp_path / FIRST).open("r+b") as file:
        file.seek(end)
        file.write(bytes(SMALL.mapped_file_size_commit_log - end))
    store = open_store(tmp_path)
    assert store.max_physical_offset == end
    assert sum(map(len, everything(store).values())) == 9  # the tenth is a half message
    assert store.last_indexed[1] < end


def test_entries_beyond_the_log_are_not_believed_after_a_clean_exit(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for body in (b"0", b"1"):
        last = store.append(message(body=body))
    store.close()
    path = tmp_path / "consumequeue/orders/0/00000000000000000000"
    data = bytearray(path.read_bytes())
    data[40:60] = last.end.to_bytes(8) + (100).to_bytes(4) + bytes(8)
    data[60:80] = data[:20]
    path.write_bytes(data)
    store = open_store(tmp_path)
    assert bodies(store) == [b"0", b"1"]
    assert store.append(message()).queue_offset == 2


def test_a_checkpoint_saves_most_of_the_scan(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    for number in range(200):
        clock._steady_ms += 1_000
        store.append(message(queue_id=number % 3, body=b"%d" % number + b"x" * 3_000))
    before = {queue_id: bodies(store, queue_id=queue_id) for queue_id in range(3)}
    store._flushed(store.max_physical_offset, clock.now_ms())
    store._take_checkpoint()()
    crash(store)

    caplog.set_level(logging.INFO)
    store = open_store(tmp_path, clock=clock)
    assert "20 records were read" not in caplog.text
    scanned = int(caplog.text.split(" records were read")[0].rsplit(" ", 1)[1])
    assert 3 <= scanned <= 30
    assert {queue_id: bodies(store, queue_id=queue_id) for queue_id in range(3)} == before


def test_a_killed_process_costs_a_scan_from_the_last_checksums_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    fill(store, 190)
    store._take_checkpoint()()
    fill(store, 10)
    before, inline = everything(store), derived_bytes(tmp_path)
    last_file = store._log.files[-1].start
    kill(store)
    caplog.set_level(logging.INFO)
    store = open_store(tmp_path)
    assert f"after a kill the log ends at {store.max_physical_offset}" in caplog.text
    assert f"from {last_file} on" in caplog.text
    assert everything(store) == before
    assert derived_bytes(tmp_path) == inline


def test_a_process_killed_between_log_and_index_leaves_a_whole_index(tmp_path: Path) -> None:
    store = open_store(tmp_path / "killed")
    twin = open_store(tmp_path / "twin")
    for each in (store, twin):
        fill(each, 9)
    index = store._index
    assert index is not None
    assert index._last is not None
    header = index._last._map[:HEADER_SIZE]
    for each in (store, twin):
        for _ in range(3):
            each.append(message(UNIQ_KEY="same", KEYS="same other"))
    index._last._map[:HEADER_SIZE] = header  # as if it had been killed before it wrote a new one
    kill(store)
    kill(twin)
    reopened = open_store(tmp_path / "killed")
    assert len(reopened.find_by_key("orders", "same", 64, 0, 2**62)) == 3
    assert derived_bytes(tmp_path / "killed") == derived_bytes(tmp_path / "twin")


def test_a_lost_queue_makes_recovery_read_everything(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    for number in range(200):
        clock._steady_ms += 1_000
        store.append(message(queue_id=number % 3, body=b"%d" % number + b"x" * 3_000))
    before = bodies(store, queue_id=1)
    store._flushed(store.max_physical_offset, clock.now_ms())
    store._take_checkpoint()()
    crash(store)
    shutil.rmtree(tmp_path / "consumequeue/orders/1")
    assert bodies(open_store(tmp_path, clock=clock), queue_id=1) == before


def test_a_queue_rebuilt_from_a_shortened_log_keeps_its_offsets(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(30):
        store.append(message(body=b"%d" % number + b"x" * 6_000))
    crash(store)
    (tmp_path / FIRST).unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (10, 30)
    assert bodies(store)[0].startswith(b"10x")
    entry = (tmp_path / "consumequeue/orders/0/00000000000000000000").read_bytes()[:20]
    assert entry == bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
    store.close()
    store = open_store(tmp_path)
    assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (10, 30)
    crash(store)
    assert open_store(tmp_path).min_offset("orders", 0) == 10


def test_a_topic_made_anew_keeps_its_new_messages_after_a_crash(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for body in (b"old-0", b"old-1", b"old-2"):
        store.append(message(body=body))
    store.delete_topic("orders")
    for body in (b"new-0", b"new-1"):
        store.append(message(body=body))
    crash(store)
    assert bodies(open_store(tmp_path)) == [b"new-0", b"new-1"]


def test_a_hole_between_log_files_is_named(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for _ in range(3):
        store.append(message(body=b"x" * 40_000))
    store.close()
    (tmp_path / "commitlog" / f"{SMALL.mapped_file_size_commit_log:020d}").unlink()
    with pytest.raises(StoreError, match="is missing"):
        open_store(tmp_path)


def test_a_store_in_use_by_another_process_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    attempt = (
        "import sys, pathlib; from cosmodrome.store import MessageStore; from cosmodrome.clock import SystemClock;"
        "from cosmodrome.config import StoreConfig;"
        "MessageStore.open(pathlib.Path(sys.argv[1]), StoreConfig(), SystemClock())"
    )
    command = [sys.executable, "-c", attempt, str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode != 0
    assert "is in use by another broker" in refused.stderr
    assert bodies(store) == []


def test_a_record_in_a_sector_that_was_not_written_is_no_damage(tmp_path: Path) -> None:
    """The power went when the disk had written what follows, and the entries, but not the rest of that sector."""
    store = open_store(tmp_path)
    first = store.append(message(body=b"x" * 40))
    lost = store.append(message(body=b"x" * 40))
    store.append(message(body=b"x" * 3_000))
    assert lost.end < 512, "all of it, and the beginning of the next, in one sector"
    store._log.files[0].view[lost.physical_offset : 512] = bytes(512 - lost.physical_offset)
    crash(store)
    store = open_store(tmp_path)
    assert store.max_physical_offset == first.end
    assert store.max_offset("orders", 0) == 1


class Dying:
    """The mapped bytes of a log file, to which a process writes `left` times until it is killed."""

    def __init__(self, view: memoryview, left: int) -> None:
        self.view = view
        self.left = left

    def __setitem__(self, part: slice, data: bytes | memoryview) -> None:
        self.left -= 1
        self.view[part] = data
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("die", [kill, crash])
@pytest.mark.parametrize("writes", [1, 2])
def test_of_several_records_all_are_there_or_none(
    tmp_path: Path, die: Callable[[MessageStore], None], writes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A processor copies many bytes in an order of its own: a killed process may have written only the last."""
    store = open_store(tmp_path)
    before = store.append(message(body=b"before"))
    file = store._log.files[0]
    file.view = Dying(file.view, writes)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        store.append_batch(message(), [BatchItem(0, b"%d" % number * 300, "") for number in range(5)])
    assert isinstance(file.view, Dying)
    file.view = file.view.view
    die(store)
    store = open_store(tmp_path)
    assert bodies(store) == [b"before"] + [b"%d" % number * 300 for number in range(5) if writes == 2]
    assert writes == 2 or store.max_physical_offset == before.end
    assert not store.recovered.is_damaged
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert not (tmp_path / "commitlog.bad").exists()
    kill(store)
    assert verify(tmp_path).problems == []

"""A healthy store passes; every kind of damage is named."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cosmodrome.errors import StoreError
from cosmodrome.store import MessageStore
from cosmodrome.store.checkpoint import Checkpoint
from cosmodrome.store.findings import MAX_LISTED, Area
from cosmodrome.store.index_shape import IndexShape
from cosmodrome.store.repair import repair
from cosmodrome.store.verification import Verification, quiet, verify
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire.batch import BatchItem
from cosmodrome.wire.record import QUEUE_OFFSET_AT
from tests.bounded import child, line_of
from tests.unit.store.damage import (
    FIRST_LOG_FILE,
    INDEX_ENTRIES_AT,
    QUEUE_FILE,
    Spoil,
    entry,
    fill,
    flip,
    folder_state,
    index_file,
    index_number,
    overwrite,
    set_entry,
    set_index_number,
    stopped_store,
)
from tests.unit.store.kit import SMALL, crash, kill, message, open_store


def texts(found: Verification, area: Area) -> str:
    return "\n".join(str(problem) for problem in found.problems if problem.area is area)


def assert_sound(root: Path) -> Verification:
    found = verify(root)
    assert found.problems == []
    assert found.is_sound
    return found


def test_a_store_whose_broker_left_in_order_is_sound(tmp_path: Path) -> None:
    appended = stopped_store(tmp_path)
    before = folder_state(tmp_path)
    found = assert_sound(tmp_path)
    assert (found.log_start, found.records) == (0, len(appended) + 12)
    assert found.log_end > 64 * 1024
    assert found.index_files > 2
    assert found.index_shape == IndexShape(SMALL.max_hash_slot_num, SMALL.max_index_num)
    assert found.notes == []
    assert folder_state(tmp_path) == before


@pytest.mark.parametrize("die", [kill, crash])
def test_a_store_that_recovered_from_a_crash_is_sound(tmp_path: Path, die: Callable[[MessageStore], None]) -> None:
    for _ in range(3):
        store = open_store(tmp_path)
        fill(store, 50)
        die(store)
    open_store(tmp_path).close()
    assert_sound(tmp_path)


def test_an_empty_store_is_sound(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    assert assert_sound(tmp_path).records == 0


def test_a_store_without_an_index_is_sound(tmp_path: Path) -> None:
    store = open_store(tmp_path, replace(SMALL, message_index_enable=False))
    fill(store)
    store.close()
    (note,) = assert_sound(tmp_path).notes
    assert "there is no index" in note


def test_a_store_that_lost_its_oldest_files_is_sound(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    (tmp_path / FIRST_LOG_FILE).unlink()
    open_store(tmp_path).close()
    assert assert_sound(tmp_path).log_start == SMALL.mapped_file_size_commit_log


@pytest.mark.parametrize("said", [0, 3, 5, 9, 1 << 40])
def test_a_rotten_queue_offset_is_told_of_the_record_not_of_its_entry(tmp_path: Path, said: int) -> None:
    """Its queue leads to the record at offset 4, and to the others at theirs."""
    store = open_store(tmp_path)
    appended = [store.append(message(body=b"%d" % number)) for number in range(10)]
    store.close()
    place = appended[4].physical_offset
    overwrite(tmp_path / FIRST_LOG_FILE, place + QUEUE_OFFSET_AT, said.to_bytes(8, "big"))
    found = verify(tmp_path)
    assert texts(found, Area.LOG) == (
        f"log: offset {place}, {appended[4].size} bytes: the record says offset {said}, but orders/0 leads to it at 4; "
        "its head is damaged"
    )
    assert not texts(found, Area.QUEUES)
    repaired = repair(tmp_path, FakeClock())
    assert repaired.problems == []
    assert any("left out by services" in note for note in repaired.notes)
    assert any(f"the first at {place}" in note for note in repaired.notes) == (said < 4)


def test_batches_are_sound(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append_batch(message(), [BatchItem(0, b"%d" % n, f"KEYS\x01k{n}\x02TAGS\x01t\x02") for n in range(20)])
    store.close()
    assert_sound(tmp_path)


def test_fillers_and_topics_made_anew_are_sound(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store)
    store.delete_topic("orders")
    for _ in range(5):
        store.append(message("orders", 0))
    store.close()
    assert_sound(tmp_path)


def test_records_of_a_deleted_topic_are_no_problem(tmp_path: Path) -> None:
    """We write down what was deleted; for Apache, which does not, the table of topics speaks."""
    store = open_store(tmp_path)
    fill(store)
    store.delete_topic("orders")
    store.close()
    assert_sound(tmp_path)
    shutil.rmtree(tmp_path / "config")
    assert "orders/0, offsets 0 to 59: a record of the log has no entry" in texts(verify(tmp_path), Area.QUEUES)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text('{"topicConfigTable":{"topic-0":{}}}')
    assert assert_sound(tmp_path).notes == ["of topics that are no longer here: 60 records"]


def test_default_sizes_are_known_and_others_are_found(tmp_path: Path) -> None:
    for name, slots, entries in (("one", 7, 1000), ("two", 5_000, 20_000), ("three", 13, 14)):
        root = tmp_path / name
        store = open_store(root, replace(SMALL, max_hash_slot_num=slots, max_index_num=entries))
        store.append(message(UNIQ_KEY="only"))
        store.close()
        assert assert_sound(root).index_shape == IndexShape(slots, entries)


# Damage


def in_record(position: int, *, number: int = 20) -> Spoil:
    def spoil(root: Path) -> None:
        flip(root / FIRST_LOG_FILE, entry(root, number)[0] + position)

    return spoil


def swap_entries(root: Path) -> None:
    one, two = entry(root, 7), entry(root, 8)
    set_entry(root, 7, two)
    set_entry(root, 8, one)


def set_part(number: int, part: int, value: int) -> Spoil:
    def spoil(root: Path) -> None:
        parts = list(entry(root, number))
        parts[part] = value
        set_entry(root, number, (parts[0], parts[1], parts[2]))

    return spoil


def cycle(root: Path) -> None:
    """Let an entry's chain lead to a later one."""
    set_index_number(root, INDEX_ENTRIES_AT + 5 * 20 + 16, 6)


def wrong_slot(root: Path) -> None:
    slot = next(at for at in range(40, INDEX_ENTRIES_AT, 4) if index_number(root, at))
    set_index_number(root, slot, 0)


def cut_last_index(root: Path) -> None:
    """An index that has not kept up: its newest entries are missing."""
    last = max((root / "index").iterdir())
    last.unlink()


def ahead(root: Path) -> None:
    checkpoint = Checkpoint(root / "checkpoint")
    checkpoint.queues_timestamp += 1
    checkpoint.save()


def config(name: str, text: str) -> Spoil:
    def spoil(root: Path) -> None:
        (root / "config").mkdir(exist_ok=True)
        (root / "config" / name).write_text(text)

    return spoil


def new_file(name: str) -> Spoil:
    def spoil(root: Path) -> None:
        (root / name).write_text("?")

    return spoil


def cut(path: Path, by: int) -> None:
    os.truncate(path, path.stat().st_size - by)


def shorten(name: Path, by: int) -> Spoil:
    return lambda root: cut(root / name, by)


DAMAGES: dict[str, tuple[Spoil, Area, str]] = {
    "body": (in_record(88), Area.LOG, "does not match its checksum"),
    "size": (in_record(3), Area.LOG, "its parts disagree"),
    "magic": (in_record(5), Area.LOG, "magic 0xdaa220a7"),
    "place": (in_record(35), Area.LOG, "says that its place is"),
    "queue offset": (in_record(27), Area.LOG, "its head is damaged"),
    "queue id": (in_record(15), Area.QUEUES, "points to no record of this queue and offset"),
    "blank": (
        lambda root: flip(root / FIRST_LOG_FILE, blank_at(root)),
        Area.LOG,
        "a blank record says that",
    ),
    "missing log file": (
        lambda root: sorted((root / "commitlog").iterdir())[1].unlink(),
        Area.FILES,
        "a file is missing",
    ),
    "short log file": (shorten(FIRST_LOG_FILE, 1), Area.FILES, f"{FIRST_LOG_FILE}: it has 65535 bytes"),
    "stray log file": (new_file("commitlog/notes.txt"), Area.FILES, "commitlog/notes.txt: it does not belong here"),
    "stray index file": (new_file("index/x"), Area.FILES, "index/x: it does not belong here"),
    "stray in a queue": (new_file("consumequeue/orders/0/x.bak"), Area.FILES, "consumequeue/orders/0/x.bak"),
    "short queue file": (shorten(QUEUE_FILE, 20), Area.FILES, f"{QUEUE_FILE}: it has 1980 bytes, the others have 2000"),
    "entry points elsewhere": (set_part(7, 0, 1), Area.QUEUES, "orders/0, offset 7: the entry points to 1 instead"),
    "entries swapped": (swap_entries, Area.QUEUES, "orders/0, offset 8: the entry points to"),
    "entry size": (set_part(7, 1, 99), Area.QUEUES, "offset 7: the entry says 99 bytes"),
    "tag hash": (set_part(7, 2, 5), Area.QUEUES, "offset 7: the entry's tag hash or delivery time is 5 instead"),
    "no entry": (lambda root: set_entry(root, 7, (0, 0, 0)), Area.QUEUES, "offset 7: a record of the log has no entry"),
    "last entry gone": (
        lambda root: set_entry(root, 59, (0, 0, 0)),
        Area.QUEUES,
        "offset 59: a record of the log has no",
    ),
    "entry too many": (
        lambda root: set_entry(root, 60, (50, 60, 0)),
        Area.QUEUES,
        "offset 60: the entry points to no record of this queue",
    ),
    "entry far behind": (
        lambda root: set_entry(root, 62, (10**9, 60, 0)),
        Area.QUEUES,
        "offset 62: the entry points behind the end of the log",
    ),
    "queue gone": (lambda root: (root / QUEUE_FILE).unlink(), Area.QUEUES, "orders/0, offsets 0 to 59"),
    "chain in circles": (cycle, Area.INDEX, "the chain leads from entry 5 to 6, not to 0, which goes in circles"),
    "slot": (wrong_slot, Area.INDEX, "leads to entry 0 instead of"),
    "key hash": (
        lambda root: set_index_number(root, INDEX_ENTRIES_AT + 3 * 20, 4711),
        Area.INDEX,
        "entry 3: no key of the record at",
    ),
    "index offset": (
        lambda root: overwrite(index_file(root), INDEX_ENTRIES_AT + 3 * 20 + 4, (200).to_bytes(8)),
        Area.INDEX,
        "entry 3: it points to 200, where no record begins",
    ),
    "index time": (
        lambda root: set_index_number(root, INDEX_ENTRIES_AT + 3 * 20 + 12, 4711),
        Area.INDEX,
        "entry 3: its time does not match",
    ),
    "index header": (lambda root: flip(index_file(root), 31), Area.INDEX, "the header speaks of offsets"),
    "used slots": (lambda root: set_index_number(root, 32, 1), Area.INDEX, "the header counts 1 used slots"),
    "index behind": (cut_last_index, Area.INDEX, "of the log's records"),
    "short index file": (
        lambda root: cut(index_file(root), 20),
        Area.INDEX,
        "do not fit the other files",
    ),
    "checkpoint": (ahead, Area.CHECKPOINT, "it says the queues are safe up to"),
    "config": (config("topics.json", '{"topic'), Area.CONFIG, "config/topics.json: it cannot be read"),
    "config list": (config("delayOffset.json", "[]"), Area.CONFIG, "it is no JSON object"),
    "backup": (config("topics.json.bak", "}"), Area.CONFIG, "config/topics.json.bak: it cannot be read"),
}


def blank_at(root: Path) -> int:
    return (root / FIRST_LOG_FILE).read_bytes().rindex(b"\xcb\xd4\x31\x94") - 1


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_named(tmp_path: Path, kind: str) -> None:
    spoil, area, text = DAMAGES[kind]
    stopped_store(tmp_path)
    spoil(tmp_path)
    before = folder_state(tmp_path)
    found = verify(tmp_path)
    assert text in texts(found, area)
    assert found.problem_count == len(found.problems) > 0
    assert folder_state(tmp_path) == before


def test_what_lies_behind_damage_is_still_walked(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    healthy = verify(tmp_path).records
    in_record(88)(tmp_path)
    in_record(3, number=21)(tmp_path)
    found = verify(tmp_path)
    assert (found.damage_count, found.records) == (2, healthy - 2)


def test_a_torn_tail_is_named(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(message())
    torn = store.append(message(body=b"torn"))
    crash(store)
    overwrite(tmp_path / FIRST_LOG_FILE, torn.physical_offset + 90, bytes(torn.size - 90))
    found = verify(tmp_path)
    assert f"log: offset {torn.physical_offset}: 90 bytes behind the last whole record" in texts(found, Area.LOG)
    assert "the entry points behind the end of the log" in texts(found, Area.QUEUES)


def test_garbage_behind_the_end_of_a_clean_store_is_named(tmp_path: Path) -> None:
    end = stopped_store(tmp_path, count=5)[-1].end
    overwrite(tmp_path / FIRST_LOG_FILE, end + 100, b"garbage")
    assert f"offset {end}: 107 bytes behind the last whole record" in texts(verify(tmp_path), Area.LOG)


def test_a_log_that_lost_its_last_record_is_named(tmp_path: Path) -> None:
    """Even if no queue knew it."""
    store = open_store(tmp_path)
    store.append(message())
    last = store.append(message(sys_flag=4))
    store.close()
    overwrite(tmp_path / FIRST_LOG_FILE, last.physical_offset, bytes(last.size))
    found = verify(tmp_path)
    assert f"the log ended at {last.end} when its broker stopped" in texts(found, Area.LOG)
    assert f"safe up to {last.end}, but it ends at {last.physical_offset}" in texts(found, Area.CHECKPOINT)


def test_a_readable_backup_is_mentioned(tmp_path: Path) -> None:
    stopped_store(tmp_path, count=1)
    config("topics.json", "{")(tmp_path)
    config("topics.json.bak", '{"topicConfigTable":{}}')(tmp_path)
    assert "its .bak can be read" in texts(verify(tmp_path), Area.CONFIG)


def test_fastjson_tables_are_readable(tmp_path: Path) -> None:
    stopped_store(tmp_path, count=1)
    config("consumerOffset.json", '{\n\t"offsetTable":{"t@g":{0:12,1:3}}}')(tmp_path)
    config("delayOffset.json", "")(tmp_path)
    assert_sound(tmp_path)


def test_a_flood_is_counted_but_not_listed(tmp_path: Path) -> None:
    stopped_store(tmp_path, count=300)
    for number in range(0, 150, 2):
        set_part(number % 100, 2, 5)(tmp_path)
    in_record(88)(tmp_path)
    for number in range(1, 31):
        set_index_number(tmp_path, INDEX_ENTRIES_AT + number * 20, 4711)
        set_index_number(tmp_path, INDEX_ENTRIES_AT + number * 20 + 16, number)
    found = verify(tmp_path)
    assert found.counts[Area.INDEX] > MAX_LISTED
    assert len(texts(found, Area.INDEX).splitlines()) == MAX_LISTED
    assert found.problem_count == sum(found.counts.values()) > len(found.problems)
    assert found.counts[Area.LOG] == 1


def test_progress_goes_up_to_the_end(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    seen: list[tuple[int, int]] = []
    verify(tmp_path, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0


HOLD = """
import sys
from pathlib import Path
from cosmodrome.store.lock import StoreLock
lock = StoreLock(Path(sys.argv[1]) / "lock")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    stopped_store(tmp_path, count=1)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert line_of(holder.stdout) == b"held\n"
        with pytest.raises(StoreError, match="is in use by a broker; stop it first"), quiet(tmp_path):
            pass
        holder.stdin.close()
        holder.wait(30)
    with quiet(tmp_path):
        assert_sound(tmp_path)

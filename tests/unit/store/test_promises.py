"""Ways in which messages could get lost or come back although each part did what it should."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from cosmodrome.errors import MessageIllegal
from cosmodrome.store import MessageStore
from cosmodrome.store.consume_queue import ENTRY_SIZE
from cosmodrome.store.deleted_topics import DeletedTopics
from cosmodrome.store.index_file import HEADER_SIZE
from cosmodrome.store.lock import AbortMark, Exit
from cosmodrome.store.verification import verify
from cosmodrome.testing import Fault, FaultyDisk, Killed, Kind
from cosmodrome.wire import properties
from cosmodrome.wire.batch import BatchItem
from cosmodrome.wire.java import java_hash
from tests.unit.store.kit import SMALL, bodies, crash, kill, message, open_store, records

FIRST_QUEUE_FILE = "consumequeue/orders/0/00000000000000000000"

die_somehow = pytest.mark.parametrize("die", [kill, crash])


def fill_queue(store: MessageStore, count: int) -> None:
    for number in range(count):
        store.append(message(body=b"%d" % number, UNIQ_KEY=f"u{number}"))


@die_somehow
def test_a_deleted_topic_does_not_come_back(tmp_path: Path, die: Callable[[MessageStore], None]) -> None:
    store = open_store(tmp_path)
    for queue_id in range(3):
        store.append(message(queue_id=queue_id))
    store.delete_topic("orders")
    die(store)
    store = open_store(tmp_path)
    assert store.topics() == []
    assert store.append(message(queue_id=1, body=b"new")).queue_offset == 0
    die(store)
    store = open_store(tmp_path)
    assert store.queues("orders") == [1]
    assert bodies(store, queue_id=1) == [b"new"]
    store.close()
    assert verify(tmp_path).is_sound


def test_what_is_deleted_is_never_more_than_the_log_holds(tmp_path: Path) -> None:
    """A crash may cut the log below the place where a topic was deleted; what comes there next is not deleted."""
    deleted = DeletedTopics(tmp_path / "deleted.json")
    for topic, end in (("expired", 100), ("cut", 900), ("kept", 400)):
        deleted.add(topic, end)
    deleted.fit(100, 500)
    assert DeletedTopics(tmp_path / "deleted.json").ends == {"cut": 500, "kept": 400}


def test_an_index_file_whose_maker_died_is_made_again(tmp_path: Path) -> None:
    """It is as large as the others but has no header: taken for the end of the index, all keys would go in twice."""
    store = open_store(tmp_path)
    fill_queue(store, SMALL.max_index_num - 1)  # entry 0 is never used
    kill(store)
    (first,) = (tmp_path / "index").iterdir()
    (tmp_path / "index" / f"{int(first.name) + 1:017d}").write_bytes(bytes(first.stat().st_size))
    store = open_store(tmp_path)
    assert all(len(store.find_by_key("orders", f"u{number}", 10, 0, 2**62)) == 1 for number in range(39))
    store.append(message(UNIQ_KEY="next"))
    store.close()
    assert verify(tmp_path).is_sound


def test_after_a_crash_a_queue_file_without_a_size_is_no_reason_to_stay_down(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill_queue(store, 250)
    crash(store)
    os.truncate(tmp_path / FIRST_QUEUE_FILE, 0)
    assert bodies(open_store(tmp_path)) == [b"%d" % number for number in range(250)]


def test_a_store_that_cannot_be_marked_as_in_use_is_not_used(tmp_path: Path) -> None:
    """Without the mark, the next start would take a crash for a clean exit."""
    with FaultyDisk(tmp_path, watch=False) as disk:
        open_store(tmp_path).close()
        disk.fault = Fault(0, errno.EIO, lasting=True, kinds=frozenset({Kind.SYNC}))
        with pytest.raises(OSError, match="Input/output error"):
            open_store(tmp_path)


@pytest.mark.parametrize("end", [MessageStore.close, lambda store: store._refuse("the disk failed")])
def test_a_failed_sync_is_remembered_at_the_next_start(tmp_path: Path, end: Callable[[MessageStore], None]) -> None:
    """The system takes the pages for clean: whoever trusts it would never write them again."""
    store = open_store(tmp_path)
    fill_queue(store, 3)
    with FaultyDisk(tmp_path, watch=False) as disk:
        disk.fault = Fault(0, errno.EIO, kinds=frozenset({Kind.SYNC}))
        try:
            end(store)
        except OSError:
            pass
    assert AbortMark(tmp_path / "abort").last_exit() is Exit.DISK_FAILURE
    assert bodies(open_store(tmp_path)) == [b"0", b"1", b"2"]


def test_queues_that_are_built_anew_are_not_taken_for_whole_before_they_are(tmp_path: Path) -> None:
    """Someone removed them after a clean exit; the process that builds them is killed on the way."""
    store = open_store(tmp_path)
    for queue_id in range(4):
        store.append(message(queue_id=queue_id))
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    with FaultyDisk(tmp_path) as disk:
        disk.fault = Fault(2, None, kinds=frozenset({Kind.CREATE}))
        for _ in range(20):
            try:
                open_store(tmp_path)
            except Killed:
                disk.fault.number += 1
                disk.fault.seen = 0
    store = open_store(tmp_path)
    assert [bodies(store, queue_id=queue_id) for queue_id in range(4)] == [[b"body"]] * 4


@pytest.mark.parametrize("count", [1, 36, 37, 38, 39], ids="{} keys before".format)
def test_a_kill_while_the_index_header_is_written_loses_no_key(tmp_path: Path, count: int) -> None:
    """What it says of the last entry may be newer than its counts, which are written in one step; so in a new file."""
    store = open_store(tmp_path)
    fill_queue(store, count)
    (path,) = (tmp_path / "index").iterdir()
    counts = {path.name: path.read_bytes()[HEADER_SIZE - 8 : HEADER_SIZE]}
    items = [BatchItem(0, b"%d" % n, properties.encode({"UNIQ_KEY": f"b{n}", "KEYS": "all"})) for n in range(3)]
    store.append_batch(message(), items)
    kill(store)
    *_, last = sorted((tmp_path / "index").iterdir())
    with last.open("r+b") as file:
        file.seek(HEADER_SIZE - 8)
        file.write(counts.get(last.name, struct.pack(">ii", 0, 1)))
    store = open_store(tmp_path)
    assert [len(store.find_by_key("orders", f"b{n}", 10, 0, 2**62)) for n in range(3)] == [1, 1, 1]
    assert len(store.find_by_key("orders", "all", 10, 0, 2**62)) == 3
    store.close()
    assert verify(tmp_path).is_sound


@pytest.mark.parametrize(("begin", "end"), [(16, 20), (0, 20), (-20, 0)], ids=["half", "last", "a hole"])
def test_a_kill_while_queue_entries_are_written_is_mended(tmp_path: Path, begin: int, end: int) -> None:
    store = open_store(tmp_path)
    for number in range(5):
        store.append(message(body=b"%d" % number, TAGS="paid"))
    kill(store)
    with (tmp_path / FIRST_QUEUE_FILE).open("r+b") as file:
        file.seek(4 * ENTRY_SIZE + begin)
        file.write(bytes(end - begin))
    store = open_store(tmp_path)
    result = store.read("orders", 0, 0, 32, codes=frozenset([java_hash("paid")]))
    assert [record.body for record in records(result.views)] == [b"%d" % number for number in range(5)]
    store.close()
    assert verify(tmp_path).is_sound


def test_log_files_behind_a_cut_go_one_by_one(tmp_path: Path) -> None:
    """A power cut while a damaged log is cut leaves no hole among its files."""
    store = open_store(tmp_path)
    for _ in range(30):
        store.append(message(body=bytes(10_000)))
    crash(store)
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.write(bytes(100))
    with FaultyDisk(tmp_path) as disk:
        open_store(tmp_path).close()
    for number, moment in enumerate(disk.moments):
        for seed in range(3):
            root = tmp_path.with_name(f"{tmp_path.name}-{number}-{seed}")
            root.mkdir()
            moment.materialise(root, Random(seed))
            open_store(root).close()
            shutil.rmtree(root)


def test_what_recovery_would_take_for_torn_is_not_accepted(tmp_path: Path) -> None:
    """Properties that end with a zero byte look like a record that was not written to its end."""
    store = open_store(tmp_path)
    for properties_end in ("k\x01v\0", "\0"):
        torn = message()
        torn.properties = properties_end
        with pytest.raises(MessageIllegal):
            store.append(torn)
        with pytest.raises(MessageIllegal):
            store.append_batch(message(), [BatchItem(0, b"1", ""), BatchItem(0, b"2", properties_end)])
    assert store.max_physical_offset == 0
    store.close()

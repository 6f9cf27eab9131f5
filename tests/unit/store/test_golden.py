"""The files of a store, read and written as Apache's own classes write them."""

import shutil
from pathlib import Path

import pytest

from cosmodrome.config import KIB, StoreConfig
from cosmodrome.store.checkpoint import Checkpoint
from cosmodrome.store.consume_queue import ENTRY, FILLER_SIZE
from cosmodrome.store.index_file import Index
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire.java import java_hash
from cosmodrome.wire.record import decode_records
from tests.unit.golden import FOLDER, V5, VERSIONS, golden
from tests.unit.store.kit import bodies, open_store

FILES = StoreConfig(
    mapped_file_size_commit_log=64 * KIB,
    mapped_file_size_consume_queue=8 * 20,
    max_hash_slot_num=7,
    max_index_num=10,
)
LONG_TOPIC = "%RETRY%" + "g" * 193
STORED_MS = 1_700_000_001_456
STEP_MS = 700
NAME = "0" * 20

both = pytest.mark.parametrize("version", VERSIONS)


def write_log(root: Path, version: str) -> None:
    path = root / "commitlog" / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(golden(version, "records.bin").ljust(FILES.mapped_file_size_commit_log, b"\0"))


def queues(version: str) -> dict[tuple[str, int], bytes]:
    """(topic, queue id) → the file."""
    found = {}
    for path in (FOLDER / version).glob("queue-*.bin"):
        _, topic, queue_id = path.stem.split("-")
        found[LONG_TOPIC if topic == "long" else topic, int(queue_id)] = path.read_bytes()
    return found


@both
def test_we_enter_records_into_queues_as_apache_does(tmp_path: Path, version: str) -> None:
    write_log(tmp_path, version)
    open_store(tmp_path, FILES).close()
    written = {
        (path.parts[-3], int(path.parts[-2])): path.read_bytes() for path in (tmp_path / "consumequeue").rglob(NAME)
    }
    assert written == queues(version)


@both
def test_we_read_queues_that_apache_wrote(tmp_path: Path, version: str) -> None:
    write_log(tmp_path, version)
    for (topic, queue_id), data in queues(version).items():
        folder = tmp_path / "consumequeue" / topic / str(queue_id)
        folder.mkdir(parents=True)
        (folder / NAME).write_bytes(data)
    (tmp_path / "checkpoint").write_bytes(golden(version, "checkpoint.bin"))
    store = open_store(tmp_path, FILES)
    in_log = decode_records(golden(version, "records.bin"))
    for topic, queue_id in queues(version):
        in_queue = [record.body for record in in_log if (record.topic, record.queue_id) == (topic, queue_id)]
        assert bodies(store, topic, queue_id) == in_queue
    store.close()


@both
def test_a_queue_entry_has_a_tag_or_a_time(version: str) -> None:
    first, *_ = ENTRY.iter_unpack(queues(version)["orders", 1])
    assert first[2] == java_hash("grün")
    delayed, *_ = ENTRY.iter_unpack(queues(version)["SCHEDULE_TOPIC_XXXX", 2])
    assert delayed[2] == STORED_MS + 5 * STEP_MS + 10_000  # level 3: ten seconds


def test_a_queue_that_begins_late_begins_with_fillers() -> None:
    entries = list(ENTRY.iter_unpack(queues(V5)[LONG_TOPIC, 0]))
    assert entries[:3] == [(0, FILLER_SIZE, 0)] * 3
    assert 0 < entries[3][1] < FILLER_SIZE


def index_names(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@both
def test_we_write_the_index_as_apache_does(tmp_path: Path, version: str) -> None:
    index = Index(tmp_path, FILES.max_hash_slot_num, FILES.max_index_num, FakeClock())
    for number in range(12):
        key = "shared" if number % 4 == 3 else f"key-{number}"
        index.put("orders", [(key, 1000 + number * 100)], STORED_MS + number * STEP_MS)
    index.close()
    written = [path.read_bytes() for path in index_names(tmp_path)]
    assert written == [golden(version, "index-0.bin"), golden(version, "index-1.bin")]


@both
def test_we_find_keys_in_an_index_that_apache_wrote(tmp_path: Path, version: str) -> None:
    for part in range(2):
        shutil.copy(FOLDER / version / f"index-{part}.bin", tmp_path / f"2023111422132145{part}")
    index = Index(tmp_path, FILES.max_hash_slot_num, FILES.max_index_num, FakeClock())
    assert index.find("orders", "shared", 64, 0, 2**62) == [1300, 1700, 2100]
    assert index.find("orders", "key-0", 64, 0, 2**62) == [1000]
    assert index.find("orders", "key-10", 64, 0, 2**62) == [2000]
    assert index.find("orders", "shared", 64, STORED_MS + 9 * STEP_MS, 2**62) == [2100]
    assert (index.last_offset, index.last_timestamp) == (2100, STORED_MS + 11 * STEP_MS)
    index.close()


@both
def test_a_checkpoint(tmp_path: Path, version: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(golden(version, "checkpoint.bin"))
    checkpoint = Checkpoint(path)
    times = checkpoint.log_timestamp, checkpoint.queues_timestamp, checkpoint.index_timestamp
    assert times == (STORED_MS, STORED_MS - STEP_MS, STORED_MS - 2 * STEP_MS)
    assert checkpoint.clean_end is None
    path.unlink()
    checkpoint.save()
    assert path.read_bytes() == golden(version, "checkpoint.bin")

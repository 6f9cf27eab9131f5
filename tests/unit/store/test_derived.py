"""Damaged queues and index are no reason not to start: they are set aside and built again, and nothing else is lost."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from cosmodrome import disk
from cosmodrome.clock import SystemClock
from cosmodrome.config import KIB
from cosmodrome.store import MessageStore, derived
from cosmodrome.store.consume_queues import QueueKey
from cosmodrome.store.derived import SUMS, Sums
from cosmodrome.store.recovery import Recovery
from cosmodrome.store.repair import repair
from cosmodrome.store.verification import verify
from cosmodrome.testing.clock import FakeClock
from cosmodrome.testing.kill import copy
from tests.unit.store.damage import fill, flip, overwrite
from tests.unit.store.kit import SMALL, bodies, kill, message, open_store

FIRST = "0" * 20
QUEUE = f"consumequeue/orders/0/{FIRST}"
SECOND_FILE = f"consumequeue/orders/0/{2_000:020d}"
Leave = Callable[[MessageStore], None]
Spoil = Callable[[Path], None]

LEAVES = pytest.mark.parametrize("leave", [MessageStore.close, kill])


def filled(root: Path, leave: Leave) -> dict[str, list[bytes]]:
    """A store of which queues and index have several files each; every body by queue."""
    store = open_store(root)
    fill(store, 260)
    store.append(message("idle", body=b"only"))
    store._take_checkpoint()()
    fill(store, 10)
    before = everything(store)
    leave(store)
    return before


def everything(store: MessageStore) -> dict[str, list[bytes]]:
    topics = ("orders", "topic-0", "topic-1", "topic-2", "idle", "SCHEDULE_TOPIC_XXXX")
    return {f"{topic}/{queue}": bodies(store, topic, queue) for topic in topics for queue in store.queues(topic)}


def index_file(root: Path, number: int = 1) -> Path:
    return sorted((root / "index").iterdir())[number]


def shorten(path: str, size: int) -> Spoil:
    return lambda root: os.truncate(root / path, size)


def stray(path: str) -> Spoil:
    def spoil(root: Path) -> None:
        (root / path).write_bytes(b"x" * 10)

    return spoil


def zero(path: str) -> Spoil:
    return lambda root: overwrite(root / path, 0, bytes(2_000))


SPOILS: dict[str, Spoil] = {
    "queue cut short": shorten(QUEUE, 1_001),
    "queue cut short at an entry": shorten(QUEUE, 1_000),
    "queue emptied": shorten(QUEUE, 0),
    "queue's last file emptied": shorten(SECOND_FILE, 0),
    "queue too long": shorten(QUEUE, 2_020),
    "stray in a queue": stray("consumequeue/orders/0/notes.txt"),
    "wrong name in a queue": stray(f"consumequeue/orders/0/{20:020d}"),
    "queue's last file gone": lambda root: (root / SECOND_FILE).unlink(),
    "queue zeroed": zero(QUEUE),
    "queue's last file zeroed": zero(SECOND_FILE),
    "a size that ends the queue": lambda root: flip(root / QUEUE, 50 * 20 + 8, 0x80),
    "a tag": lambda root: flip(root / QUEUE, 50 * 20 + 19),
    "index cut short": lambda root: os.truncate(index_file(root), 100),
    "index emptied": lambda root: os.truncate(index_file(root), 0),
    "stray in the index": stray("index/notes.txt"),
    "index zeroed": lambda root: overwrite(index_file(root), 0, bytes(1_000)),
    "index header": lambda root: flip(index_file(root), 36, 0x40),
    "index slot": lambda root: overwrite(index_file(root), 40, b"\0\0\0\x07" * 10),
    "index entry": lambda root: flip(index_file(root), 40 + 50 * 4 + 25),
    "checksums": lambda root: flip(root / SUMS, 60),
    "checksums emptied": shorten(SUMS, 0),
}


@LEAVES
@pytest.mark.parametrize("name", SPOILS)
def test_a_start_sets_aside_what_is_damaged_and_builds_it_again(
    tmp_path: Path, name: str, leave: Leave, caplog: pytest.LogCaptureFixture
) -> None:
    before = filled(tmp_path, leave)
    SPOILS[name](tmp_path)
    store = open_store(tmp_path)
    assert everything(store) == before
    assert " is damaged" in caplog.text or " is gone" in caplog.text or "index" in name
    last = store.append(message("orders", body=b"new", UNIQ_KEY="new"))
    assert last.queue_offset == len(before["orders/0"])
    assert bodies(store) == [*before["orders/0"], b"new"]
    assert len(store.find_by_key("orders", "new", 8, 0, 2**62)) == 1
    store.close()
    assert verify(tmp_path).is_sound, verify(tmp_path).problems


@LEAVES
@pytest.mark.parametrize("path", [QUEUE, SECOND_FILE])
@pytest.mark.parametrize("bit", [3, 7, 12, 16, 40])
def test_an_entry_that_leads_elsewhere_is_written_again_before_anyone_reads_it(
    tmp_path: Path, path: str, bit: int, leave: Leave, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that looks sound beside the others, and in a queue that only a service of the broker reads."""
    filled(tmp_path, leave)
    sound = (tmp_path / path).read_bytes()
    flip(tmp_path / path, 20 * 20 + 7 - bit // 8, 1 << bit % 8)
    open_store(tmp_path).close()
    assert f"{tmp_path / path} is damaged" in caplog.text
    assert (tmp_path / path).read_bytes() == sound
    assert verify(tmp_path).is_sound, verify(tmp_path).problems
    caplog.clear()
    open_store(tmp_path).close()
    assert caplog.text == ""


@pytest.mark.parametrize("is_repaired", [False, True], ids=["by a start", "by repair"])
@LEAVES
def test_a_queue_that_lost_a_message_is_not_damaged_from_then_on(
    tmp_path: Path, leave: Leave, is_repaired: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its entry changed where it was written long ago: each start built all queues again, and kept another copy."""
    store = open_store(tmp_path)
    fill(store, 260)
    lost = store.append(message("orders", body=b"lost"))
    fill(store, 20)
    store._take_checkpoint()()
    store.close()
    if leave is kill:
        store = open_store(tmp_path)
        fill(store, 5)
        kill(store)
    size = SMALL.mapped_file_size_commit_log
    path = tmp_path / "commitlog" / f"{lost.physical_offset // size * size:020d}"
    flip(path, lost.physical_offset % size + 90)
    if is_repaired:
        assert repair(tmp_path, SystemClock(), SMALL).is_sound
    open_store(tmp_path).close()
    for _ in range(2):
        caplog.clear()
        open_store(tmp_path).close()
        if is_repaired or leave is kill:  # after an orderly exit, a start reads the end of the log only
            assert " is damaged" not in caplog.text
            assert " has changed" not in caplog.text
            assert verify(tmp_path).is_sound, verify(tmp_path).problems
    assert not (tmp_path / "consumequeue.bad" / "orders").exists() or is_repaired


DELAYED = f"consumequeue/SCHEDULE_TOPIC_XXXX/2/{FIRST}"


@pytest.mark.parametrize(
    ("path", "at", "bit"),
    [(DELAYED, 2 * 20 + 14, 0x40), (QUEUE, 50 * 20 + 12, 0x80), (None, 7, 1), (None, 15, 2)],
    ids=["delivery time", "tag hash that may lead to a filter of Apache's", "index: first time", "index: last time"],
)
def test_verify_names_what_only_a_checksum_tells(tmp_path: Path, path: str | None, at: int, bit: int) -> None:
    store = open_store(tmp_path)
    for number in range(5):
        store.append(message("SCHEDULE_TOPIC_XXXX", 2, b"%d" % number))
    store.close()
    filled(tmp_path, MessageStore.close)
    assert verify(tmp_path).is_sound
    file = index_file(tmp_path) if path is None else tmp_path / path
    flip(file, at, bit)
    (problem,) = verify(tmp_path).problems
    assert f"{file.relative_to(tmp_path)}: it is not what it was at the last clean stop" in str(problem)
    open_store(tmp_path).close()
    assert verify(tmp_path).is_sound


def test_a_last_entry_that_leads_too_low_does_not_make_its_record_a_damaged_one(tmp_path: Path) -> None:
    """It still leads behind the entry before it; the record was left out, and named by `cosmodrome store skipped`."""
    store = open_store(tmp_path)
    for number in range(120):
        store.append(message("others", body=b"." * 100))
        if number % 40 == 39:
            store.append(message("orders", body=b"%d" % number))
    store._take_checkpoint()()
    store.close()
    entries = tmp_path / QUEUE
    sound = entries.read_bytes()
    before, place = int.from_bytes(sound[20:28]), int.from_bytes(sound[40:48])
    bit = next(bit for bit in range(9, 16) if before < place ^ 1 << bit < place)
    flip(entries, 2 * 20 + 7 - bit // 8, 1 << bit % 8)
    store = open_store(tmp_path)
    assert store.skipped.count == 0
    store.close()
    assert entries.read_bytes() == sound
    assert verify(tmp_path).is_sound


@LEAVES
def test_a_copy_of_what_was_damaged_is_kept(tmp_path: Path, leave: Leave, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, leave)
    flip(tmp_path / QUEUE, 50 * 20 + 3)
    (tmp_path / "consumequeue/orders/0/notes.txt").write_text("mine")
    spoiled = (tmp_path / QUEUE).read_bytes()
    open_store(tmp_path).close()
    kept = tmp_path / "consumequeue.bad" / "orders" / "0"
    assert (kept / FIRST).read_bytes() == spoiled
    assert (kept / "notes.txt").read_text() == "mine"
    assert f"{tmp_path / QUEUE} is damaged" in caplog.text
    assert str(kept / FIRST) in caplog.text


@LEAVES
def test_a_damaged_queue_gives_no_offset_away_twice_though_the_log_has_no_message_of_it(
    tmp_path: Path, leave: Leave
) -> None:
    filled(tmp_path, leave)
    log_file = tmp_path / "commitlog"
    store = open_store(tmp_path)
    for number in range(60):
        store.append(message("orders", 1, b"." * (2 * KIB) + b"%d" % number))
    store._take_checkpoint()()
    leave(store)
    for path in sorted(log_file.iterdir())[:-2]:
        path.unlink()
    overwrite(tmp_path / f"consumequeue/idle/0/{FIRST}", 0, bytes(20))
    store = open_store(tmp_path)
    assert store.append(message("idle")).queue_offset == 1
    store.close()


def test_a_rebuild_that_is_interrupted_is_done_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = filled(tmp_path, MessageStore.close)
    flip(tmp_path / QUEUE, 50 * 20 + 3)
    monkeypatch.setattr(MessageStore, "_start", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        open_store(tmp_path)
    monkeypatch.undo()
    store = open_store(tmp_path)
    assert everything(store) == before
    store.close()
    assert verify(tmp_path).is_sound


@LEAVES
def test_any_single_flip_of_a_derived_file_is_mended(tmp_path: Path, leave: Leave) -> None:
    sound = tmp_path / "sound"
    before = filled(sound, leave)
    files = [path for path in sound.rglob("*") if path.parent.name in ("index", "0", "1") and path.stat().st_size]
    random = Random(1)
    for number in range(40):
        root = tmp_path / f"store-{number}"
        root.mkdir()
        copy(sound, root)
        path = root / random.choice(files).relative_to(sound)
        used = [at for at, byte in enumerate(path.read_bytes()) if byte]
        position, bit = random.choice(used or [0]), random.randrange(8)
        flip(path, position, 1 << bit)
        store = open_store(root)
        assert everything(store) == before, f"{path.relative_to(root)}, bit {bit} of byte {position}"
        store.close()
        assert verify(root).is_sound, f"{path.relative_to(root)}, bit {bit} of byte {position}"


@LEAVES
def test_a_sound_store_is_not_rebuilt(tmp_path: Path, leave: Leave, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, leave)
    store = open_store(tmp_path)
    store.delete_topic("topic-1")
    for _ in range(3):
        store.append(message("topic-1", 1))
    store._take_checkpoint()()
    leave(store)
    open_store(tmp_path).close()
    open_store(tmp_path).close()
    assert "damaged" not in caplog.text
    assert "has changed" not in caplog.text


def test_a_start_reads_only_so_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, MessageStore.close)
    read: list[int] = []
    crc_of = derived._crc_of

    def noted(path: Path, begin: int, end: int, crc: int = 0) -> int:
        read.append(end - begin)
        return crc_of(path, begin, end, crc)

    monkeypatch.setattr(derived, "_crc_of", noted)
    monkeypatch.setattr(derived, "MAX_READ_AT_START_BYTES", 3_000)
    open_store(tmp_path)
    assert 0 < sum(read) <= 3_000


@LEAVES
def test_a_clock_that_was_set_back_is_no_damage_to_the_index(
    tmp_path: Path, leave: Leave, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    store.append(message(KEYS="a"))
    clock.step(-10_000)
    store.append(message(KEYS="b"))
    leave(store)
    open_store(tmp_path, clock=clock).close()
    assert "damaged" not in caplog.text


@LEAVES
def test_what_was_built_again_is_sound_at_the_next_start(
    tmp_path: Path, leave: Leave, caplog: pytest.LogCaptureFixture
) -> None:
    before = filled(tmp_path, MessageStore.close)
    store = open_store(tmp_path)
    flip(tmp_path / QUEUE, 50 * 20 + 19)
    store.append(message("orders"))  # so that its last clean stop does not count any more
    store.close()
    assert "has changed where it was written long ago" in caplog.text
    leave(open_store(tmp_path))
    caplog.clear()
    store = open_store(tmp_path)
    assert everything(store) == before | {"orders/0": [*before["orders/0"], b"body"]}
    store.close()
    assert "damaged" not in caplog.text
    assert "has changed" not in caplog.text


@LEAVES
def test_an_entry_that_was_rewritten_is_no_damage(
    tmp_path: Path, leave: Leave, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, MessageStore.close)
    store = open_store(tmp_path)
    queue = store._queues.queue("orders", 0)
    place, size, code = queue.entry(20)
    queue.rewrite(20, (place, size, code ^ 1))
    store._derived.sums.extend(store._dispatcher.end, store._derived.shape)
    leave(store)
    open_store(tmp_path).close()
    assert "damaged" not in caplog.text
    assert "has changed" not in caplog.text


def test_a_message_that_damage_took_is_no_damage_to_its_queue(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path)
    places = [store.append(message(body=b"%d" % number * 50)).physical_offset for number in range(30)]
    store._derived.sums.extend(store._dispatcher.end, store._derived.shape)
    kill(store)
    flip(tmp_path / "commitlog" / FIRST, places[10] + 100)
    store = open_store(tmp_path)
    assert store.recovered.lost_messages == 1
    kill(store)
    caplog.clear()
    store = open_store(tmp_path)
    assert len(bodies(store)) == 29
    assert "damaged" not in caplog.text


def test_offsets_that_were_given_away_stay_so_over_several_starts(tmp_path: Path) -> None:
    filled(tmp_path, MessageStore.close)
    store = open_store(tmp_path)
    for number in range(60):
        store.append(message("orders", 1, b"." * (2 * KIB) + b"%d" % number))
    store.close()
    for path in sorted((tmp_path / "commitlog").iterdir())[:-2]:
        path.unlink()
    overwrite(tmp_path / f"consumequeue/idle/0/{FIRST}", 0, bytes(20))
    open_store(tmp_path).close()
    store = open_store(tmp_path)
    assert store.append(message("idle")).queue_offset == 1


def test_an_interrupted_rebuild_does_not_forget_how_far_the_log_was_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    places = [store.append(message(body=b"%d" % number * 1_000)).physical_offset for number in range(30)]
    store.close()
    sector = places[10] - places[10] % 512 + 1024
    overwrite(tmp_path / "commitlog" / FIRST, sector, bytes(512))
    os.truncate(tmp_path / QUEUE, 1_001)
    monkeypatch.setattr(MessageStore, "_start", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        open_store(tmp_path)
    monkeypatch.undo()
    assert len(bodies(open_store(tmp_path))) == 29


def test_a_store_begun_again_knows_nothing_of_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody removes the log and what leads into it, and leaves our own files."""
    store = open_store(tmp_path)
    for _ in range(2_000):
        store.append(message(body=b""))
    store.close()
    for folder in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(tmp_path / folder)
    (tmp_path / "checkpoint").unlink()
    sent: list[bytes] = []
    for number in range(4):
        store = open_store(tmp_path)
        sent.append(b"%d" % number)
        assert store.append(message(body=sent[-1])).queue_offset == number
        kill(store)
        assert bodies(open_store(tmp_path)) == sent
    assert "damaged" not in caplog.text


def test_a_topic_deleted_while_checksums_are_taken_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, MessageStore.close)
    store = open_store(tmp_path)
    sums, shape = store._derived.sums, store._derived.shape
    extended = derived._extended

    def deleting(*args: object) -> object:
        found = extended(*args)  # type: ignore[arg-type]
        if args[1] == QUEUE:
            store.delete_topic("orders")
        return found

    monkeypatch.setattr(derived, "_extended", deleting)
    sums.extend(store._dispatcher.end, shape)
    assert not any(place.startswith("consumequeue/orders/") for place in sums.files)
    assert any(place.startswith("consumequeue/topic-0/") for place in sums.files)


def test_full_files_are_summed_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a checkpoint nor a clean stop reads queues of a billion messages again."""
    store = open_store(tmp_path)
    for _ in range(250):
        store.append(message())
    store._derived.sums.extend(store._dispatcher.end, store._derived.shape)
    for _ in range(10):
        store.append(message())
    read: list[str] = []
    crc_of = derived._crc_of

    def noted(path: Path, begin: int, end: int, crc: int = 0) -> int:
        if begin < end:
            read.append(path.name)
        return crc_of(path, begin, end, crc)

    monkeypatch.setattr(derived, "_crc_of", noted)
    store._derived.sums.extend(store._dispatcher.end, store._derived.shape)
    store.close()
    assert set(read) == {f"{4_000:020d}"}


def test_full_files_are_not_opened_at_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    for _ in range(250):
        store.append(message())
    store._derived.sums.extend(store._dispatcher.end, store._derived.shape)
    looked_at: list[str] = []
    queue_used = derived._queue_used

    def noted(path: Path, log_end: int | None = None) -> int:
        looked_at.append(path.name)
        return queue_used(path, log_end)

    monkeypatch.setattr(derived, "_queue_used", noted)
    store._derived.sums.extend(store._dispatcher.end, store._derived.shape)
    assert looked_at == [f"{4_000:020d}"]
    store.close()


def no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path, *_: object, **__: object) -> None:
        if not folder.is_dir():
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "make_folders", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)


@pytest.mark.parametrize("name", ["queue cut short", "stray in a queue", "index cut short"])
def test_a_disk_without_room_for_a_folder_stops_no_start(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = filled(tmp_path, MessageStore.close)
    SPOILS[name](tmp_path)
    no_folders(monkeypatch)
    store = open_store(tmp_path)
    assert everything(store) == before
    store.close()
    assert verify(tmp_path).is_sound


def test_a_damaged_index_on_a_disk_of_its_own_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = filled(tmp_path, MessageStore.close)
    SPOILS["index cut short"](tmp_path)
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "index")
    store = open_store(tmp_path)
    assert everything(store) == before
    assert len(store.find_by_key("orders", "u2", 8, 0, 2**62)) == 2
    store.close()


def test_a_start_killed_while_it_drops_entries_loses_none_though_the_disk_is_full_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    for number in range(20):
        if number == 10:
            store._derived.sums.extend(store._dispatcher.end, store._derived.shape)
        store.append(message("early", body=b"%d" % number))
    for _ in range(200):
        store.append(message(body=bytes(1_000)))
    kill(store)
    cut = Recovery._cut_to_checksums

    def dying(recovery: Recovery, ends: dict[QueueKey, int | None]) -> None:
        cut(recovery, {("early", 0): ends["early", 0]})
        raise KeyboardInterrupt

    monkeypatch.setattr(Recovery, "_cut_to_checksums", dying)
    with pytest.raises(KeyboardInterrupt):
        open_store(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(Sums, "has_room", lambda _: False)
    assert len(bodies(open_store(tmp_path), "early")) == 20

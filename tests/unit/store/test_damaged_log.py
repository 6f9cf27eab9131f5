"""A damaged log loses the damaged records, and nothing else, however its broker ended."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path

import pytest

from cosmodrome.clock import SystemClock
from cosmodrome.config import MIB
from cosmodrome.store import Appended, MessageStore, StoreMessage, lock
from cosmodrome.store.checkpoint import Checkpoint
from cosmodrome.store.commit_log import is_complete
from cosmodrome.store.lock import AbortMark
from cosmodrome.store.log_walk import records_from
from cosmodrome.store.mending import MAX_VOID_BYTES
from cosmodrome.store.repair import repair
from cosmodrome.store.survey import survey
from cosmodrome.store.verification import verify
from cosmodrome.wire import properties
from cosmodrome.wire.batch import BatchItem
from cosmodrome.wire.record import SysFlag, encode_record
from tests.unit.store.damage import FIRST_LOG_FILE, flip, overwrite, queued_bodies
from tests.unit.store.kit import BORN, SMALL, STORE, bodies, crash, kill, message, open_store, records

Leave = Callable[[MessageStore], None]


def disk_failure(store: MessageStore) -> None:
    AbortMark(store.paths.abort).note_failure()
    kill(store)


EXITS: dict[str, Leave] = {
    "clean exit": MessageStore.close,
    "kill": kill,
    "crash": crash,
    "failure of the disk": disk_failure,
}
exits = pytest.mark.parametrize("leave", EXITS.values(), ids=list(EXITS))


def checkpointed(store: MessageStore) -> None:
    """Everything so far is on disk, and the checkpoint says so."""
    store._flushed(store.max_physical_offset, store._log.last_timestamp)
    store._take_checkpoint()()


def filled(root: Path, count: int = 40) -> tuple[MessageStore, list[Appended]]:
    """A store with a queue over several log files, and another queue between."""
    store = open_store(root)
    appended = []
    for number in range(count):
        appended.append(store.append(message(body=b"%d" % number + b"." * 5_000, KEYS=f"k{number}")))
        store.append(message("others", number % 3, b"other %d" % number))
    return store, appended


def spoil(root: Path, place: int, mask: int = 0x01) -> None:
    start = place - place % SMALL.mapped_file_size_commit_log
    flip(root / "commitlog" / f"{start:020d}", place - start, mask)


def left_of(store: MessageStore, appended: list[Appended], gone: set[int], *, others: bool = True) -> None:
    """Assert that every message but those `gone` is served at its queue offset, by its key, and at its place."""
    for number, sent in enumerate(appended):
        if number in gone:
            continue
        result = store.read("orders", 0, sent.queue_offset, 1)
        (record,) = records(result.views)
        assert (record.queue_offset, record.physical_offset) == (sent.queue_offset, sent.physical_offset)
        assert record.body.startswith(b"%d." % number)
        (found,) = records(store.find_by_key("orders", f"k{number}", 9, 0, 2**62))
        assert found.body == record.body
    for queue in range(3 if others else 0):
        assert bodies(store, "others", queue) == [b"other %d" % number for number in range(queue, len(appended), 3)]


# What is flipped, counted from the start of a record.
SPOTS = {"size": 3, "large size": 1, "magic": 5, "checksum": 11, "place": 35, "born host": 48, "body": 1_000}


@exits
@pytest.mark.parametrize("spot", SPOTS.values(), ids=list(SPOTS))
@pytest.mark.parametrize("number", [0, 20, 39])
def test_one_flipped_bit_costs_one_message_at_most(tmp_path: Path, leave: Leave, spot: int, number: int) -> None:
    store, appended = filled(tmp_path)
    leave(store)
    spoil(tmp_path, appended[number].physical_offset + spot)
    store = open_store(tmp_path)
    left_of(store, appended, {number})
    assert store.append(message()).queue_offset == 40
    if leave is not MessageStore.close and spot != SPOTS["born host"]:
        crash(store)
        store = open_store(tmp_path)
        left_of(store, appended, {number})
        assert b"".join(bodies(store))[-4:] == b"body"
        store.close()
        assert verify(tmp_path).problems == []


def test_an_early_flip_and_a_power_cut_cost_one_message_of_thousands(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    sent = [store.append(message(body=b"%d" % number)) for number in range(4_000)]
    crash(store)
    spoil(tmp_path, sent[26].physical_offset + 88)
    damaged = (tmp_path / FIRST_LOG_FILE).read_bytes()[sent[26].physical_offset : sent[26].end]
    store = open_store(tmp_path)
    assert bodies(store) == [b"%d" % number for number in range(4_000) if number != 26]
    place = f"offset={sent[26].physical_offset} bytes={sent[26].size} messages=1"
    assert [record.levelname for record in caplog.records if place in record.message] == ["ERROR"]
    assert (tmp_path / "commitlog.bad" / f"{sent[26].physical_offset:020d}.bytes").read_bytes() == damaged
    found = store.recovered
    assert (found.damaged_parts, found.damaged_bytes, found.lost_messages) == (1, sent[26].size, 1)
    assert (found.cut_bytes, found.kept_aside_bytes) == (0, 0)
    kill(store)
    assert not open_store(tmp_path).recovered.is_damaged


@exits
def test_several_damages_cost_what_they_hit(tmp_path: Path, leave: Leave) -> None:
    store, appended = filled(tmp_path)
    leave(store)
    for number in (0, 3, 11, 12, 13, 30, 39):
        spoil(tmp_path, appended[number].physical_offset + 2, 0x80)
        spoil(tmp_path, appended[number].physical_offset + 90)
    store = open_store(tmp_path)
    left_of(store, appended, {0, 3, 11, 12, 13, 30, 39})
    assert store.append(message()).queue_offset == 40


@exits
@pytest.mark.parametrize("over", [0, 200])
def test_damage_around_the_end_of_a_file_stays_there(tmp_path: Path, leave: Leave, over: int) -> None:
    """The last record of each file and its blank are overwritten, and perhaps the head of the next file."""
    store = open_store(tmp_path)
    appended = [store.append(message(body=b"%d." % number + b"." * 5_000, KEYS=f"k{number}")) for number in range(40)]
    leave(store)
    size, gone = SMALL.mapped_file_size_commit_log, set()
    for number, (sent, after) in enumerate(pairwise(appended)):
        if after.physical_offset % size == 0:
            begin = sent.physical_offset
            overwrite(tmp_path / "commitlog" / f"{begin - begin % size:020d}", begin % size, b"rot!" * 1_500)
            os.truncate(tmp_path / "commitlog" / f"{begin - begin % size:020d}", size)
            gone.add(number)
            if over:
                overwrite(tmp_path / "commitlog" / f"{after.physical_offset:020d}", 0, b"rot!" * (over // 4))
                gone.add(number + 1)
    store = open_store(tmp_path)
    for number, sent in enumerate(appended):
        if number not in gone:
            (record,) = records(store.read("orders", 0, sent.queue_offset, 1).views)
            assert (record.queue_offset, record.physical_offset) == (number, sent.physical_offset)
    assert len(gone) == (6 if over else 3)
    assert store.append(message()).queue_offset == 40


@exits
@pytest.mark.parametrize("behind", [0, 1])
def test_damage_at_the_proven_end_keeps_the_end(tmp_path: Path, leave: Leave, behind: int) -> None:
    """The last record that a checkpoint speaks of, with nothing or one record behind it."""
    store = open_store(tmp_path)
    sent = [store.append(message(body=b"%d" % number)) for number in range(3)]
    checkpointed(store)
    sent += [store.append(message(body=b"%d" % number)) for number in range(3, 3 + behind)]
    leave(store)
    overwrite(tmp_path / FIRST_LOG_FILE, sent[2].physical_offset, bytes(sent[2].size))
    store = open_store(tmp_path)
    assert store.max_physical_offset == sent[-1].end
    assert store.append(message(body=b"next")).queue_offset == 3 + behind


@pytest.mark.parametrize("leave", [kill, crash])
def test_a_lost_message_keeps_its_number_over_orderly_starts_too(tmp_path: Path, leave: Leave) -> None:
    store = open_store(tmp_path)
    sent = [store.append(message(body=b"%d" % number)) for number in range(3)]
    leave(store)
    spoil(tmp_path, sent[2].physical_offset + 88)
    for _ in range(3):
        store = open_store(tmp_path)
        assert store.max_offset("orders", 0) == 2
        store.close()
    store = open_store(tmp_path)
    assert store.append(message(body=b"next")).queue_offset == 3
    assert bodies(store) == [b"0", b"1", b"next"]
    store.close()
    assert verify(tmp_path).problems == []
    store = open_store(tmp_path)
    store.delete_topic("orders")
    assert store.append(message()).queue_offset == 0


def test_keys_of_lost_messages_are_no_problem(tmp_path: Path) -> None:
    store, appended = filled(tmp_path)
    kill(store)
    for number in (37, 38):
        spoil(tmp_path, appended[number].physical_offset + 200)
    store = open_store(tmp_path)
    assert store.find_by_key("orders", "k37", 9, 0, 2**62) == []
    store.close()
    assert verify(tmp_path).problems == []


# Where a head says what belongs to no checksum: topic, queue and offset.
HEADS = {"queue offset": 27, "large queue offset": 21, "negative queue offset": 20, "queue id": 15, "flags": 39}


@exits
@pytest.mark.parametrize("spot", HEADS.values(), ids=list(HEADS))
@pytest.mark.parametrize("mask", [0x80, 0x04, 0x01])
def test_a_head_that_lies_harms_no_other_message(tmp_path: Path, leave: Leave, spot: int, mask: int) -> None:
    for number in (16, 21):
        root = tmp_path / str(number)
        store = open_store(root)
        appended = [store.append(message(body=b"%d." % n, KEYS=f"k{n}")) for n in range(30)]
        leave(store)
        spoil(root, appended[number].physical_offset + spot, mask)
        store = open_store(root)
        left_of(store, appended, {number}, others=False)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_topic_made_anew_is_still_known_without_a_list_of_deleted_ones(tmp_path: Path, count: int) -> None:
    """As in a store of Apache's, whose power was cut: a flipped bit could have made 0 of 4, but then no 1 follows."""
    store = open_store(tmp_path)
    for number in range(4):
        store.append(message(body=b"old %d" % number))
    store.delete_topic("orders")
    for number in range(count):
        store.append(message(body=b"new %d" % number))
    crash(store)
    shutil.rmtree(tmp_path / "config")
    expected = [b"new %d" % number for number in range(count)] if count > 1 else [b"old %d" % n for n in range(4)]
    assert bodies(open_store(tmp_path)) == expected


@pytest.mark.parametrize("position", [*range(24), 2048, 2060, 2560, 2575, 2590])
def test_a_rotten_checkpoint_vouches_for_nothing_more(tmp_path: Path, position: int) -> None:
    store, appended = filled(tmp_path, 16)
    checkpointed(store)
    times = Checkpoint(tmp_path / "checkpoint")
    crash(store)
    flip(tmp_path / "checkpoint", position, 0x20)
    spoil(tmp_path, appended[9].physical_offset + 500)
    rotten = Checkpoint(tmp_path / "checkpoint")
    assert rotten.safe_timestamp <= times.safe_timestamp
    left_of(open_store(tmp_path), appended, {9})


# Planted records


def planted(store: MessageStore, *, topic: str = "victims", queue_offset: int = 7, flag: int = 0) -> StoreMessage:
    """A message of ours whose body is a chain of whole records in their right places, that ends where it ends."""
    head, tail = 88, 1 + len("orders") + 2 + len(properties.encode({"TAGS": "evil"}))
    place = store.max_physical_offset + head
    body = b""
    for number in range(3):
        body += encode_record(
            topic.encode(), b"planted", b"", 0, 0, flag, 0, BORN, 1_700_000_000_000, STORE, queue_offset + number,
            place + len(body),
        )  # fmt: skip
    last = place + len(body)
    # What follows the body, the outer record's topic and properties, is the end of this one's properties.
    shell = encode_record(
        topic.encode(), b"planted", b"p" * tail, 0, 0, flag, 0, BORN, 1_700_000_000_000, STORE, queue_offset + 3, last
    )
    return message(body=body + shell[:-tail], TAGS="evil")


def test_the_planted_chain_is_sound(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    outer = store.append(planted(store))
    after = store.append(message())
    store.close()
    place, left = outer.physical_offset + 88, survey(tmp_path).log
    heads = list(takewhile(lambda head: head.topic != "orders", records_from(left, place)))
    assert [head.queue_offset for head in heads] == [7, 8, 9, 10]
    view = left.view(left.files[0])
    assert all(is_complete(view, head) for head in heads)
    assert heads[-1].physical_offset + heads[-1].size == after.physical_offset


def fields_of_damage() -> dict[str, Callable[[Path, Appended], None]]:
    def wipe(root: Path, outer: Appended) -> None:
        overwrite(root / FIRST_LOG_FILE, outer.physical_offset, b"rot!" * 22)

    def flipped(position: int, mask: int = 1) -> Callable[[Path, Appended], None]:
        return lambda root, outer: flip(root / FIRST_LOG_FILE, outer.physical_offset + position, mask)

    def leads_in(root: Path, outer: Appended) -> None:
        """The size now ends where the first planted record begins, and the body is damaged too."""
        overwrite(root / FIRST_LOG_FILE, outer.physical_offset, (88).to_bytes(4))

    return {"head": wipe, "size": flipped(3), "magic": flipped(4), "place": flipped(35), "flags": flipped(39, 0x10)} | {
        "body size": flipped(86), "into the body": leads_in
    }  # fmt: skip


@exits
@pytest.mark.parametrize("damage", fields_of_damage().values(), ids=list(fields_of_damage()))
@pytest.mark.parametrize(
    ("topic", "queue_offset", "flag"),
    [
        ("victims", 3, 0),
        ("orders", 1, 0),
        ("new", 0, SysFlag.PREPARED),
    ],
)
def test_a_planted_record_is_never_taken_for_real(
    tmp_path: Path, leave: Leave, damage: Callable[[Path, Appended], None], topic: str, queue_offset: int, flag: int
) -> None:
    """Whatever of the record around it is damaged; and what follows that is not lost either."""
    store = open_store(tmp_path)
    for _ in range(3):
        store.append(message("victims", body=b"real"))
    store.append(message(body=b"before"))
    outer = store.append(planted(store, topic=topic, queue_offset=queue_offset, flag=flag))
    for number in range(3):
        store.append(message(body=b"behind %d" % number))
        store.append(message("victims", body=b"real"))
    leave(store)
    damage(tmp_path, outer)
    store = open_store(tmp_path)
    assert [store.read("orders", 0, n, 1).views[0].tobytes().count(b"behind") for n in (2, 3, 4)] == [1, 1, 1]
    if leave is not MessageStore.close:
        assert bodies(store) == [b"before", *(b"behind %d" % number for number in range(3))]
    assert bodies(store, "victims") == [b"real"] * 6
    assert bodies(store, "new") == []
    assert [store.append(message(name)).queue_offset for name in ("orders", "victims")] == [5, 6]
    store.close()
    if leave is not MessageStore.close:
        found = verify(tmp_path)
        assert found.problems == []


@pytest.mark.parametrize("damage", fields_of_damage().values(), ids=list(fields_of_damage()))
def test_a_repair_does_not_take_planted_records_for_real_either(
    tmp_path: Path, damage: Callable[[Path, Appended], None]
) -> None:
    store = open_store(tmp_path)
    store.append(message(body=b"before"))
    outer = store.append(planted(store))
    store.append(message(body=b"behind"))
    store.close()
    damage(tmp_path, outer)
    assert repair(tmp_path, SystemClock()).problems == []
    assert queued_bodies(tmp_path) == {("orders", 0): [b"before", b"behind"]}


def test_planted_records_are_refused_where_queues_know_nothing(tmp_path: Path) -> None:
    """The power cut took the entries of all queues; the head is damaged, but where its body ends is known."""
    store = open_store(tmp_path)
    for _ in range(3):
        store.append(message("victims", body=b"real"))
    checkpointed(store)
    outer = store.append(planted(store, queue_offset=3))
    store.append(message(body=b"behind"))
    with lost_power(store):
        flip(tmp_path / FIRST_LOG_FILE, outer.physical_offset + 3)
        for path in (tmp_path / "consumequeue" / "orders").rglob("0*"):
            if path.is_file():
                overwrite(path, 0, bytes(path.stat().st_size))
        store = open_store(tmp_path)
    assert bodies(store) == [b"behind"]
    assert bodies(store, "victims") == [b"real"] * 3
    assert store.append(message()).queue_offset == 2


def test_a_hostile_body_full_of_chains_does_not_hold_up_a_start(tmp_path: Path) -> None:
    store = open_store(tmp_path, replace(SMALL, mapped_file_size_commit_log=4 * 1024 * 1024))
    store.append(message(body=b"before"))
    place = store.max_physical_offset + 88
    parts = [
        encode_record(b"victims", b"", b"", 0, 0, 0, 0, BORN, 1, STORE, number, place + 98 * number)
        for number in range(9_000)
    ]
    outer = store.append(message(body=b"".join(parts)))
    store.append(message(body=b"behind"))
    crash(store)
    overwrite(tmp_path / FIRST_LOG_FILE, outer.physical_offset, b"rot!" * 22)
    store = open_store(tmp_path, replace(SMALL, mapped_file_size_commit_log=4 * 1024 * 1024))
    assert bodies(store) == [b"before", b"behind"]


@contextmanager
def lost_power(store: MessageStore) -> Iterator[None]:
    """The next start is in another run of the machine."""
    kill(store)
    before = lock._boot_id
    lock._boot_id = lambda: "the next"
    try:
        yield
    finally:
        lock._boot_id = before


def test_damaged_bytes_that_leave_room_for_the_smallest_record_are_mended_once(tmp_path: Path) -> None:
    """What takes the place of a megabyte and some bytes is a large record and one of no topic and no body."""
    config = replace(SMALL, mapped_file_size_commit_log=4 * MIB)
    store = open_store(tmp_path, config)
    store.append(message())
    size = store.append(message(body=b"")).size
    large = store.append(message(body=b"." * (MAX_VOID_BYTES + 50 - size)))
    store.append(message())
    kill(store)
    flip(tmp_path / FIRST_LOG_FILE, large.physical_offset + 1_000)
    store = open_store(tmp_path, config)
    assert store.recovered.lost_messages == 1
    kill(store)
    store = open_store(tmp_path, config)
    assert not store.recovered.is_damaged
    assert len(bodies(store)) == 3


@pytest.mark.parametrize(
    "value", ["v__CRC32#\x010123456789\x02", "__CRC32#\x010123456789\x02__CRC32#\x010123456789\x02"]
)
def test_the_looks_of_a_seal_at_the_end_of_a_property_cost_nothing(tmp_path: Path, value: str) -> None:
    """A record whose seal does not fit counts as damaged; with zeros in its body, for one that the disk never got."""
    store = open_store(tmp_path)
    hostile = message(body=b"hostile" + bytes(2_000))
    hostile.properties = f"k\x01{value}"
    store.append(hostile)
    items = [BatchItem(0, bytes(2_000), hostile.properties), BatchItem(0, b"in a batch", "")]
    store.append_batch(message(), items)
    store.append(message(body=b"behind"))
    crash(store)
    store = open_store(tmp_path)
    assert not store.recovered.is_damaged
    assert bodies(store) == [hostile.body, bytes(2_000), b"in a batch", b"behind"]

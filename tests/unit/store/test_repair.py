"""A repair keeps every whole record, mends what it can, and deletes nothing."""

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cosmodrome.clock import SystemClock
from cosmodrome.errors import StoreError
from cosmodrome.store import repair as repair_module
from cosmodrome.store.findings import Area
from cosmodrome.store.index_shape import IndexShape
from cosmodrome.store.mending import MAX_VOID_BYTES
from cosmodrome.store.repair import plan_repair, repair
from cosmodrome.store.verification import verify
from tests.bounded import child, line_of
from tests.unit.store.damage import (
    FIRST_LOG_FILE,
    QUEUE_FILE,
    Spoil,
    entry,
    fill,
    flip,
    folder_state,
    overwrite,
    queued_bodies,
    set_entry,
    stopped_store,
)
from tests.unit.store.kit import SMALL, bodies, crash, derived_bytes, message, open_store
from tests.unit.store.test_verification import DAMAGES, HOLD, in_record

CLOCK = SystemClock()
# What a repair leaves to a person: bytes of the log that are gone, and tables that are not derived from it.
LEFT = {"missing log file", "config", "config list", "backup"}
# What costs the record whose bytes were damaged.
LOSSY = {"body", "size", "magic", "place"}


@pytest.mark.parametrize("kind", [kind for kind in DAMAGES if kind not in LEFT])
def test_damage_is_mended(tmp_path: Path, kind: str) -> None:
    spoil, _, _ = DAMAGES[kind]
    whole, spoiled = tmp_path / "whole", tmp_path / "spoiled"
    stopped_store(whole)
    shutil.copytree(whole, spoiled)
    spoil(spoiled)
    plan = plan_repair(spoiled)
    assert plan.obstacles == []
    assert plan.steps
    found = repair(spoiled, CLOCK)
    assert found.problems == []
    if kind in ("queue offset", "queue id"):
        return  # the record is whole but says something else now
    before, after = queued_bodies(whole), queued_bodies(spoiled)
    if kind in LOSSY:
        before["orders", 0].pop(20)
    else:
        assert derived_bytes(spoiled) == derived_bytes(whole)
    assert after == before


def test_nothing_to_mend(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    before = folder_state(tmp_path)
    assert plan_repair(tmp_path).steps == []
    assert folder_state(tmp_path) == before


def test_a_plan_changes_nothing(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    in_record(88)(tmp_path)
    set_entry(tmp_path, 3, (0, 0, 0))
    (tmp_path / "commitlog" / "x").touch()
    before = folder_state(tmp_path)
    steps = "\n".join(plan_repair(tmp_path).steps)
    assert folder_state(tmp_path) == before
    for words in (
        "move x from commitlog",
        "by empty records",
        "rename consumequeue to consumequeue.bad",
        "2,000 bytes",
    ):
        assert words in steps


def test_rebuilding_a_healthy_store_gives_the_same_bytes(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    before = derived_bytes(tmp_path)
    assert plan_repair(tmp_path, rebuild=True).steps
    assert repair(tmp_path, CLOCK).is_sound
    assert derived_bytes(tmp_path) == before
    assert derived_bytes_of(tmp_path, "consumequeue.bad") == derived_bytes_of(tmp_path, "consumequeue")


def derived_bytes_of(root: Path, name: str) -> dict[str, bytes]:
    folder = root / name
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_damaged_bytes_are_kept_and_a_filler_takes_their_place(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    place, size, _ = entry(tmp_path, 20)
    in_record(3)(tmp_path)
    damaged = (tmp_path / FIRST_LOG_FILE).read_bytes()[place : place + size]
    repair(tmp_path, CLOCK)
    assert (tmp_path / "commitlog.bad" / f"{place:020d}.bytes").read_bytes() == damaged
    assert entry(tmp_path, 20) == (0, 0x7FFFFFFF, 0)
    left = queued_bodies(tmp_path)["orders", 0]
    assert [body.split(b".")[0] for body in left] == [b"%d" % (2 * n) for n in range(60) if n != 20]
    crash(open_store(tmp_path))
    store = open_store(tmp_path)  # a scan after a crash goes past the empty record too
    assert bodies(store) == left  # and a consumer past the filler
    store.close()
    assert queued_bodies(tmp_path)["orders", 0] == left


def test_consumers_get_all_that_is_left_whichever_was_lost(tmp_path: Path) -> None:
    stopped_store(tmp_path, count=40)
    for lost in range(1, 19, 3):
        flip(tmp_path / FIRST_LOG_FILE, entry(tmp_path, lost)[0] + 88)
        assert repair(tmp_path, CLOCK).problems == []
        store = open_store(tmp_path)
        assert bodies(store) == queued_bodies(tmp_path)["orders", 0]
        store.close()


def test_damage_up_to_the_next_file_is_blanked(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    last = max(a for a, _, _ in (entry(tmp_path, n) for n in range(55)) if a < SMALL.mapped_file_size_commit_log)
    overwrite(tmp_path / FIRST_LOG_FILE, last, os.urandom(SMALL.mapped_file_size_commit_log - last))
    before = verify(tmp_path)
    assert before.damage_count == 1
    after = repair(tmp_path, CLOCK)
    assert (after.problems, after.records) == ([], before.records + 1)  # an empty record keeps the lost one's number


def test_large_damage_is_filled_with_records_any_broker_reads(tmp_path: Path) -> None:
    config = replace(SMALL, mapped_file_size_commit_log=8 * MAX_VOID_BYTES)
    store = open_store(tmp_path, config)
    first = store.append(message(body=b"first"))
    store.append(message(body=bytes(3 * MAX_VOID_BYTES)))
    store.append(message(body=b"last"))
    store.close()
    flip(tmp_path / FIRST_LOG_FILE, first.end + 3)
    found = repair(tmp_path, CLOCK)
    assert (found.problems, found.records) == ([], 2 + 4)
    assert queued_bodies(tmp_path) == {("orders", 0): [b"first", b"last"]}


def test_a_torn_tail_is_cut_and_kept(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = store.append(message(body=b"first"))
    torn = store.append(message(body=b"torn", KEYS="k"))
    crash(store)
    overwrite(tmp_path / FIRST_LOG_FILE, torn.physical_offset + 92, bytes(torn.size - 92))
    assert f"cut 92 bytes behind {first.end} off the log" in "\n".join(plan_repair(tmp_path).steps)
    assert repair(tmp_path, CLOCK).problems == []
    assert len((tmp_path / "commitlog.bad" / f"{first.end:020d}.bytes").read_bytes()) == 92
    store = open_store(tmp_path)
    assert bodies(store) == [b"first"]
    assert store.append(message()).physical_offset == first.end


def test_whole_records_behind_damage_survive_even_without_any_queue(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    in_record(3)(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "checkpoint").unlink()
    healthy = verify(tmp_path).records
    assert repair(tmp_path, CLOCK).records == healthy + 1  # and the empty one


def test_a_queue_whose_messages_are_all_gone_keeps_its_offsets(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for _ in range(150):
        store.append(message("idle", 3))
    fill(store)
    store.close()
    (tmp_path / FIRST_LOG_FILE).unlink()
    set_entry(tmp_path, 50, (1, 1, 1))
    assert repair(tmp_path, CLOCK).problems == []
    store = open_store(tmp_path)
    assert (store.max_offset("idle", 3), store.append(message("idle", 3)).queue_offset) == (150, 150)


@pytest.mark.parametrize(
    "step", ["_tidy_log", "_mend_log", "_void", "_set_derived_aside", "_carry_over", "MessageStore"]
)
@pytest.mark.parametrize("late", [False, True])
def test_an_interrupted_repair_is_finished_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, late: bool
) -> None:
    damaged_with_an_idle_queue(tmp_path)
    before = tmp_path / "before"
    shutil.copytree(tmp_path / "consumequeue", before / "consumequeue")
    interrupt(tmp_path, monkeypatch, step, late)
    found = repair(tmp_path, CLOCK)
    assert found.problems == []
    assert found.index_shape == IndexShape(SMALL.max_hash_slot_num, SMALL.max_index_num)
    assert open_store(tmp_path).max_offset("idle", 3) == 150
    gone = int(min((tmp_path / "commitlog").iterdir()).name)
    assert len(queued_bodies(tmp_path)["orders", 0]) == 59 - sum(entry(before, n)[0] < gone for n in range(60))


@pytest.mark.parametrize("step", ["_tidy_log", "_mend_log", "MessageStore"])
def test_a_broker_may_start_after_an_interrupted_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    stopped_store(tmp_path)
    in_record(3)(tmp_path)
    interrupt(tmp_path, monkeypatch, step, late=True)
    open_store(tmp_path).close()
    found = verify(tmp_path)
    assert found.problems == []


def damaged_with_an_idle_queue(root: Path) -> None:
    store = open_store(root)
    for _ in range(150):
        store.append(message("idle", 3))
    while store.max_physical_offset < 60 * 1024:
        store.append(message("idle", 2, bytes(1000)))
    fill(store)
    store.close()
    place, _, _ = entry(root, 40)
    file = max(path for path in (root / "commitlog").iterdir() if int(path.name) <= place)
    flip(file, place - int(file.name) + 3)
    (root / FIRST_LOG_FILE).unlink()


class Interrupted(BaseException):
    pass


def interrupt(root: Path, monkeypatch: pytest.MonkeyPatch, step: str, late: bool) -> None:
    """Run a repair that dies at the beginning or at the end of a step."""
    real = getattr(repair_module, step)

    def dying(*args: object) -> None:
        if late:
            real(*args)
        raise Interrupted

    class Dying:
        @staticmethod
        def open(*args: object) -> None:
            if late:
                crash(real.open(*args))
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(repair_module, step, Dying if step == "MessageStore" else dying)
        with pytest.raises(Interrupted):
            repair(root, CLOCK)


def test_sizes_come_from_the_config_if_there_is_one(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    config = replace(SMALL, mapped_file_size_consume_queue=4_000, max_hash_slot_num=11, max_index_num=100)
    found = repair(tmp_path, CLOCK, config)
    assert found.problems == []
    assert found.index_shape == IndexShape(11, 100)
    assert (tmp_path / QUEUE_FILE).stat().st_size == 4_000


def test_the_config_knows_what_a_lone_short_file_lacks(tmp_path: Path) -> None:
    """Nothing in the store says how long its only file should be; a broker with this config would refuse it."""
    appended = stopped_store(tmp_path, count=5)
    os.truncate(tmp_path / FIRST_LOG_FILE, appended[-1].end + 100)
    assert plan_repair(tmp_path).steps == []
    assert plan_repair(tmp_path, SMALL).steps[0] == f"fill {FIRST_LOG_FILE.name} up to 65,536 bytes with zeros"
    assert repair(tmp_path, CLOCK, SMALL).problems == []
    assert len(bodies(open_store(tmp_path))) == 3


def test_damage_at_one_place_is_kept_each_time(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    place, size, _ = entry(tmp_path, 20)
    bad = tmp_path / "commitlog.bad"
    bad.mkdir()
    (bad / f"{place:020d}.part").write_bytes(b"cut short")
    copies = []
    for position in (88, 89):
        flip(tmp_path / FIRST_LOG_FILE, place + position)
        copies.append((tmp_path / FIRST_LOG_FILE).read_bytes()[place : place + size])
        assert repair(tmp_path, CLOCK).problems == []
    assert [path.read_bytes() for path in sorted(bad.iterdir())] == copies


def too_long(root: Path) -> None:
    with (root / FIRST_LOG_FILE).open("ab") as file:
        file.write(b"x")


def no_log_files(root: Path) -> None:
    shutil.rmtree(root / "commitlog")
    (root / "commitlog").mkdir()


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (DAMAGES["missing log file"][0], "is missing; put it back"),
        (too_long, "has 65537 bytes and should have 65536"),
        (no_log_files, "there is no log"),
    ],
)
def test_what_a_repair_cannot_mend_stops_it(tmp_path: Path, spoil: Spoil, text: str) -> None:
    stopped_store(tmp_path)
    spoil(tmp_path)
    before = folder_state(tmp_path)
    plan = plan_repair(tmp_path)
    assert plan.steps == []
    assert text in "".join(plan.obstacles)
    with pytest.raises(StoreError, match=text):
        repair(tmp_path, CLOCK)
    changed = {name for name, state in folder_state(tmp_path).items() if before.get(name) != state}
    assert changed <= {"lock"}


def test_tables_are_left_as_they_are(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    DAMAGES["config"][0](tmp_path)
    assert plan_repair(tmp_path).steps == []
    in_record(88)(tmp_path)
    assert [problem.area for problem in repair(tmp_path, CLOCK).problems] == [Area.CONFIG]
    assert (tmp_path / "config" / "topics.json").read_text() == '{"topic'


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert line_of(holder.stdout) == b"held\n"
        use: Callable[[Path], object]
        for use in (plan_repair, lambda root: repair(root, CLOCK)):
            with pytest.raises(StoreError, match="in use"):
                use(tmp_path)
        holder.stdin.close()
        holder.wait(30)


def test_repairing_twice_keeps_what_both_replaced(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    for _ in range(2):
        overwrite(tmp_path / QUEUE_FILE, 0, struct.pack(">qiq", 5, 5, 5))
        repair(tmp_path, CLOCK)
    assert {path.name for path in tmp_path.iterdir()} >= {"consumequeue.bad", "consumequeue.bad2", "index.bad2"}
    assert verify(tmp_path).is_sound

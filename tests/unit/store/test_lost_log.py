"""A store whose log is gone, or is another one, is left as it is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome.errors import StoreError
from cosmodrome.store.checkpoint import Checkpoint
from cosmodrome.store.fresh_start import plan_fresh_start, start_fresh
from cosmodrome.store.repair import repair
from cosmodrome.testing.clock import FakeClock
from tests.unit.store.kit import SMALL, bodies, crash, kill, message, open_store

FILE = SMALL.mapped_file_size_commit_log


def used_store(root: Path, count: int = 20, end: Callable[..., None] | None = None) -> None:
    store = open_store(root)
    for number in range(count):
        store.append(message("orders", number % 2, b"." * 9_000, UNIQ_KEY=f"u{number}"))
    (end or type(store).close)(store)
    save_table(root, "topics.json", {"topicConfigTable": {"orders": {"topicName": "orders"}}})


def save_table(root: Path, name: str, table: object) -> None:
    (root / "config").mkdir(parents=True, exist_ok=True)
    (root / "config" / name).write_text(json.dumps(table))


def contents(root: Path) -> dict[str, bytes | None]:
    """Every file and folder but the lock, which says nothing."""
    found = {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}
    found.pop("lock", None)
    return found


def refused(root: Path, match: str) -> None:
    """Opening fails and changes nothing."""
    before = contents(root)
    with pytest.raises(StoreError, match=match) as caught:
        open_store(root)
    assert str(root / "commitlog") in str(caught.value)
    assert "cosmodrome store repair" in str(caught.value)
    assert contents(root) == before


def unmounted(root: Path) -> None:
    shutil.rmtree(root / "commitlog")


def empty_mount(root: Path) -> None:
    unmounted(root)
    (root / "commitlog" / "lost+found").mkdir(parents=True)


def empty_files(root: Path) -> None:
    """The next start would remove the only, empty file of a log."""
    unmounted(root)
    (root / "commitlog").mkdir()
    (root / "commitlog" / f"{0:020d}").touch()


LOSSES = [unmounted, empty_mount, empty_files]


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("end", [None, kill, crash])
def test_a_store_whose_log_is_gone_stays_as_it_is(
    tmp_path: Path, lose: Callable[[Path], None], end: Callable[..., None] | None
) -> None:
    used_store(tmp_path, end=end)
    aside = tmp_path.with_name(tmp_path.name + "-log")
    shutil.copytree(tmp_path / "commitlog", aside)
    lose(tmp_path)
    refused(tmp_path, "the commit log is gone: .*Nothing was changed.* mount that; .*set storePathCommitLog")

    shutil.rmtree(tmp_path / "commitlog", ignore_errors=True)
    shutil.move(aside, tmp_path / "commitlog")  # the disk is mounted again
    assert len(bodies(open_store(tmp_path))) == 10


def only(*kept: str) -> Callable[[Path], None]:
    def remove_others(root: Path) -> None:
        for path in (root / "commitlog", root / "consumequeue", root / "index", root / "checkpoint"):
            if path.name not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove_others


@pytest.mark.parametrize("proof", ["consumequeue", "index", "checkpoint"])
def test_each_part_alone_proves_that_there_was_a_log(tmp_path: Path, proof: str) -> None:
    used_store(tmp_path)
    only(proof)(tmp_path)
    refused(tmp_path, f"the commit log is gone.*{proof}")


def test_the_checkpoint_of_an_apache_broker_proves_a_log_too(tmp_path: Path) -> None:
    tmp_path.joinpath("commitlog").mkdir()
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.log_timestamp = checkpoint.queues_timestamp = 1_700_000_000_000
    checkpoint.save()
    refused(tmp_path, "checkpoint says that it had messages")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("consumerOffset.json", '{"offsetTable": {"orders@billing": {0: 0, 1: 7}}}'),
        ("consumerOffset.json.bak", '{"offsetTable": {"orders@billing": {"1": 7}}}'),
        ("delayOffset.json", '{"offsetTable": {3: 1}}'),
    ],
)
def test_progress_proves_a_log(tmp_path: Path, name: str, text: str) -> None:
    save_table(tmp_path, "topics.json", {})
    (tmp_path / "config" / name).write_text(text)
    refused(tmp_path, f"the commit log is gone.*{name} says how far")


def test_prepared_tables_are_no_progress(tmp_path: Path) -> None:
    save_table(tmp_path, "topics.json", {"topicConfigTable": {"orders": {"topicName": "orders"}}})
    save_table(tmp_path, "subscriptionGroup.json", {"subscriptionGroupTable": {}})
    save_table(tmp_path, "consumerOffset.json", {"offsetTable": {"orders@billing": {"0": 0}}})
    save_table(tmp_path, "delayOffset.json", {"offsetTable": {}})
    open_store(tmp_path).close()


def test_a_broker_that_never_had_a_message_starts_again_whatever_its_offsets_say(tmp_path: Path) -> None:
    """Offsets may be copied to a new broker before it has its first message."""
    open_store(tmp_path).close()
    save_table(tmp_path, "consumerOffset.json", {"offsetTable": {"orders@billing": {"0": 700}}})
    open_store(tmp_path).close()


def test_a_store_that_retention_emptied_starts(tmp_path: Path) -> None:
    """The last file of a log always stays; every queue may lead to files that are gone."""
    used_store(tmp_path, count=30)
    for file in sorted((tmp_path / "commitlog").iterdir())[:-1]:
        file.unlink()
    store = open_store(tmp_path)
    assert store.max_offset("orders", 0) == 15
    assert store.min_physical_offset > 0


@pytest.mark.parametrize("end", [None, kill, crash])
def test_a_log_without_its_last_files_is_refused(tmp_path: Path, end: Callable[..., None] | None) -> None:
    used_store(tmp_path, count=30)
    store = open_store(tmp_path)
    (end or type(store).close)(store)
    *_, last = sorted((tmp_path / "commitlog").iterdir())
    last.unlink()
    refused(tmp_path, r"ends at \d+ or before, but .*checkpoint says that it reached \d+: a part of it is missing")


def test_another_log_that_is_too_short_is_refused_by_the_queues(tmp_path: Path) -> None:
    """Apache's checkpoint has no offsets: an empty disk on which a broker began a new log shows in the queues."""
    used_store(tmp_path, count=30)
    used_store(tmp_path / "new", count=3)
    unmounted(tmp_path)
    shutil.copytree(tmp_path / "new" / "commitlog", tmp_path / "commitlog")
    shutil.rmtree(tmp_path / "new")
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.safe = checkpoint.clean_end = None
    checkpoint.save()
    refused(tmp_path, "2 of 2 queues lead behind that")


def test_a_log_that_begins_behind_the_old_one_is_refused(tmp_path: Path) -> None:
    used_store(tmp_path, count=3)
    (file,) = (tmp_path / "commitlog").iterdir()
    file.rename(file.with_name(f"{5 * FILE:020d}"))
    refused(tmp_path, "begins at 327680, but .* it is another log")


def test_what_is_left_of_a_log_can_be_accepted(tmp_path: Path) -> None:
    used_store(tmp_path, count=30)
    *_, last = sorted((tmp_path / "commitlog").iterdir())
    last.unlink()
    assert repair(tmp_path, FakeClock()).is_sound
    assert 0 < len(bodies(open_store(tmp_path))) < 15


def test_starting_over_is_possible_on_purpose(tmp_path: Path) -> None:
    used_store(tmp_path)
    save_table(tmp_path, "consumerOffset.json", {"offsetTable": {"orders@billing": {"0": 7}}})
    save_table(tmp_path, "consumerOffset.json.bak", {"offsetTable": {"orders@billing": {"0": 6}}})
    for name in ("timeline.json", "queueFloors.json"):
        save_table(tmp_path, name, {"they speak of": "places in the log, and offsets"})
    unmounted(tmp_path)
    names = {move.source.name for move in plan_fresh_start(tmp_path)}
    tables = {"timeline.json", "queueFloors.json", "consumerOffset.json", "consumerOffset.json.bak"}
    epochs = {"logEpochs.json", "logEpochs.json.bak"}
    assert names == {"consumequeue", "index", "checkpoint", "derived.sums", *tables, *epochs}
    queues = contents(tmp_path / "consumequeue")
    start_fresh(tmp_path)
    assert contents(tmp_path / "consumequeue.bad") == queues
    assert (tmp_path / "config" / "topics.json").is_file()
    store = open_store(tmp_path)
    assert store.append(message(UNIQ_KEY="u")).physical_offset == 0
    assert store.topics() == ["orders"]


def test_starting_over_is_refused_while_there_is_a_log(tmp_path: Path) -> None:
    used_store(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(StoreError, match="holds a log"):
        start_fresh(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("moves", range(4))
def test_starting_over_may_be_interrupted_anywhere(tmp_path: Path, moves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used_store(tmp_path)
    save_table(tmp_path, "consumerOffset.json", {"offsetTable": {"orders@billing": {"0": 7}}})
    unmounted(tmp_path)
    rename = Path.rename
    done: list[Path] = []

    def dying(path: Path, target: Path) -> Path:
        if len(done) == moves:
            raise KeyboardInterrupt
        done.append(path)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", dying)
    with pytest.raises(KeyboardInterrupt):
        start_fresh(tmp_path)
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(StoreError, match="the commit log is gone"):
        open_store(tmp_path)
    start_fresh(tmp_path)
    open_store(tmp_path).close()

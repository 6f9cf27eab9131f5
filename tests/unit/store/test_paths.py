"""Parts of a store that the config places elsewhere than below its root."""

from pathlib import Path

import pytest

from cosmodrome.config import StoreConfig
from cosmodrome.errors import ConfigError, StoreError
from cosmodrome.store import MessageStore
from cosmodrome.store.inspection import inspect
from cosmodrome.store.paths import StorePaths, disk_folder
from cosmodrome.store.repair import plan_repair, repair
from cosmodrome.store.verification import quiet, verify
from cosmodrome.testing.clock import FakeClock
from tests.unit.store.damage import overwrite
from tests.unit.store.kit import SMALL, bodies, crash, kill, message, open_store

KEYS = {
    "storePathCommitLog": "log",
    "storePathConsumeQueue": "queues",
    "storePathIndex": "keys",
    "storeCheckpoint": "state/check",
    "abortFile": "state/running",
}


def elsewhere(folder: Path, *keys: str) -> StoreConfig:
    return SMALL.with_properties({key: str(folder / KEYS[key]) for key in keys or KEYS})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def fill(store: MessageStore, first: int = 0) -> list[bytes]:
    sent = [b"%d" % number + b"." * 9_000 for number in range(first, first + 20)]
    for body in sent:
        store.append(message(body=body, UNIQ_KEY=body[:4].decode()))
    return sent


def test_every_part_lies_where_its_key_says(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    config = elsewhere(other)
    store = open_store(root, config)
    sent = fill(store)
    assert (other / "state" / "running").is_file()
    store.close()
    assert sorted(path.name for path in root.iterdir()) == ["config", "derived.sums", "lock"]
    assert len(list((other / "log").iterdir())) == 3
    assert (other / "queues" / "orders" / "0").is_dir()
    assert list((other / "keys").iterdir())
    assert (other / "state" / "check").is_file()
    assert not (other / "state" / "running").exists()

    store = open_store(root, config)
    assert bodies(store) == sent
    assert len(store.find_by_key("orders", sent[3][:4].decode(), 1, 0, 2**62)) == 1


@pytest.mark.parametrize("die", [kill, crash])
def test_a_dead_broker_is_noticed_where_its_mark_lies(root: Path, tmp_path: Path, die: object) -> None:
    config = elsewhere(tmp_path / "other")
    store = open_store(root, config)
    sent = fill(store)
    assert callable(die)
    die(store)
    store = open_store(root, config)
    more = fill(store, 20)
    assert bodies(store) == sent + more


def test_without_keys_everything_lies_below_the_root(root: Path) -> None:
    paths = StorePaths.of(root, SMALL)
    assert paths == StorePaths(
        root, root / "commitlog", root / "consumequeue", root / "index", root / "checkpoint", root / "abort"
    )


@pytest.mark.parametrize("log", ["/a,/b", "/a:/b"])
def test_a_log_in_several_folders_is_refused(log: str) -> None:
    with pytest.raises(ConfigError, match="storePathCommitLog must be one folder"):
        StoreConfig().with_properties({"storePathCommitLog": log})
    with pytest.raises(ConfigError, match="readOnlyCommitLogStorePaths must be empty"):
        StoreConfig().with_properties({"readOnlyCommitLogStorePaths": log})


@pytest.mark.parametrize(
    ("key", "place"),
    [("storePathIndex", "consumequeue"), ("storePathConsumeQueue", "commitlog/queues"), ("storePathCommitLog", "")],
)
def test_folders_that_lie_in_one_another_are_refused(root: Path, key: str, place: str) -> None:
    config = SMALL.with_properties({key: str(root / place)})
    with pytest.raises(StoreError, match=key):
        open_store(root, config)
    assert not root.exists()


@pytest.mark.parametrize("key", KEYS)
def test_a_part_that_stayed_at_its_default_place_is_not_passed_over(root: Path, tmp_path: Path, key: str) -> None:
    """Earlier versions, and Apache's brokers for most of these keys, kept it below the root all the same."""
    store = open_store(root)
    fill(store)
    store.close()
    crash(open_store(root))  # so that the mark is there, too
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(StoreError, match=f"{key} is .*where there is nothing, but .* is in use"):
        open_store(root, elsewhere(tmp_path / "other", key))
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "other").exists()


def test_of_two_logs_none_is_taken(root: Path, tmp_path: Path) -> None:
    """A broker that ignored the key began a log of its own below the root; the queues are those of that one."""
    config = elsewhere(tmp_path / "other", "storePathCommitLog")
    store = open_store(tmp_path / "apaches", config)
    fill(store)
    store.close()
    store = open_store(root)
    store.append(message())
    store.close()
    with pytest.raises(StoreError, match=r"there are two commit logs: .*other/log .* and .*root/commitlog"):
        open_store(root, config)
    (root / "commitlog").rename(tmp_path / "kept")
    open_store(tmp_path / "apaches", config).close()


def test_a_moved_log_is_found_again(root: Path, tmp_path: Path) -> None:
    store = open_store(root)
    sent = fill(store)
    store.close()
    (tmp_path / "other").mkdir()
    (root / "commitlog").rename(tmp_path / "other" / "log")
    store = open_store(root, elsewhere(tmp_path / "other", "storePathCommitLog"))
    assert bodies(store) == sent
    assert not (root / "commitlog").exists()


def test_two_brokers_cannot_share_a_log(tmp_path: Path) -> None:
    config = elsewhere(tmp_path / "other", "storePathCommitLog")
    first = open_store(tmp_path / "a", config)
    with pytest.raises(StoreError, match=r"other/log is in use by another broker"):
        open_store(tmp_path / "b", config)
    first.close()
    open_store(tmp_path / "a", config).close()


async def test_each_folders_own_disk_is_measured(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    used = {other / "log": 0.95, other: 0.2, root: 0.1}
    store = MessageStore.open(
        root, elsewhere(other, "storePathCommitLog", "storePathIndex"), FakeClock(), None, lambda path: used[path]
    )
    (other / "keys").rmdir() if (other / "keys").exists() else None
    assert await store.cleaner.measure() == 0.95
    assert store.cleaner.shares == {"CL": 0.95, "CQ": 0.1, "INDEX": 0.2}
    assert "CL:  0.95" in str(store.refusal)


def test_the_disk_of_a_folder_not_made_yet_is_the_one_above(tmp_path: Path) -> None:
    assert disk_folder(tmp_path / "a" / "b") == tmp_path


def test_the_tools_find_parts_elsewhere(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    config = elsewhere(other)
    store = open_store(root, config)
    fill(store)
    store.close()
    paths = StorePaths.of(root, config)
    with pytest.raises(StoreError, match=r"storePathCommitLog puts it elsewhere, give the broker's -c"):
        inspect(root)
    assert inspect(root, paths).topics[0].messages == 20
    assert verify(root, paths=paths).is_sound

    overwrite(other / "log" / f"{0:020d}", 200, b"spoiled")
    (problem,) = (problem for problem in verify(root, paths=paths).problems if problem.area == "log")
    assert "checksum" in problem.what
    steps = plan_repair(root, config).steps
    assert f"rename {other / 'queues'} to queues.bad" in steps
    assert repair(root, FakeClock(), config).is_sound
    assert (other / "log.bad").is_dir()
    assert (other / "queues.bad").is_dir()
    assert sorted(path.name for path in root.iterdir()) == ["config", "derived.sums", "lock"]
    assert len(bodies(open_store(root, config))) == 19


def test_the_tools_keep_out_of_a_log_that_a_broker_with_another_root_uses(root: Path, tmp_path: Path) -> None:
    config = elsewhere(tmp_path / "other", "storePathCommitLog")
    store = open_store(root, config)
    with (
        pytest.raises(StoreError, match=r"log is in use by a broker; stop it first"),
        quiet(tmp_path / "b", StorePaths.of(tmp_path / "b", config)),
    ):
        raise AssertionError
    store.close()
    with quiet(root, StorePaths.of(root, config)):
        pass


def test_a_mounted_disk_keeps_its_bad_files_on_itself(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file cannot be renamed into a folder of another disk."""
    config = elsewhere(tmp_path / "disk", "storePathCommitLog")
    store = open_store(root, config)
    fill(store)
    crash(store)
    log = tmp_path / "disk" / "log"
    overwrite(log / f"{0:020d}", 300, b"spoiled")
    monkeypatch.setattr(Path, "is_mount", lambda path: path == log)
    store = open_store(root, config)
    (copy,) = (log / "bad").iterdir()
    assert b"spoiled" in copy.read_bytes()
    store.close()
    open_store(root, config).close()

"""Files of a store: readable for few, and never reached through a link."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cosmodrome import disk, state_file
from cosmodrome.cli.main import main
from cosmodrome.config import StoreConfig
from cosmodrome.errors import ConfigError, StoreError
from cosmodrome.store.timer_checkpoint import TimerCheckpoint
from cosmodrome.store.timer_store import MAX_WINDOW_MS, Timer, TimerStore
from tests.unit.store.kit import SMALL, message, open_store

NOW = 1_600_000_000_000


@pytest.fixture(autouse=True)
def modes_as_before() -> Iterator[None]:
    umask = os.umask(0)
    os.umask(0o022)
    yield
    disk.use_file_mode(disk.DEFAULT_FILE_MODE)
    os.umask(umask)


def make_every_file(root: Path) -> None:
    """A store with timers and tables, closed in order, and then in use again: the mark is there, too."""
    for _ in range(2):
        store = open_store(root)
        for number in range(200):
            store.append(message(body=bytes(500), UNIQ_KEY=f"u{number}"))
        store.delete_topic("orders")
        store._log.close()
        store._lock.release()
    timers = TimerStore.open(root, 4096, NOW, 10_000, range(3), lambda _unit: True)
    timers.set(Timer(NOW + 60_000, 0, 100, 7), NOW, MAX_WINDOW_MS)
    timers.close()
    TimerCheckpoint(NOW).save(root / "config" / "timercheck")
    for _ in range(2):
        state_file.save(root / "config" / "topics.json", b"{}")


def modes(root: Path) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {"files": set(), "folders": {stat.S_IMODE(root.stat().st_mode)}}
    for path in root.rglob("*"):
        found["folders" if path.is_dir() else "files"].add(stat.S_IMODE(path.stat().st_mode))
    return found


def test_files_are_for_their_owner_and_the_group(tmp_path: Path) -> None:
    make_every_file(tmp_path / "s")
    assert modes(tmp_path / "s") == {"files": {0o640}, "folders": {0o750}}


@pytest.mark.parametrize(("text", "file_mode", "folder_mode"), [("600", 0o600, 0o700), ("0664", 0o664, 0o775)])
def test_the_config_says_for_whom_files_are(tmp_path: Path, text: str, file_mode: int, folder_mode: int) -> None:
    disk.use_file_mode(StoreConfig().with_properties({"storeFileMode": text}).file_mode)
    make_every_file(tmp_path / "s")
    assert modes(tmp_path / "s") == {"files": {file_mode}, "folders": {folder_mode}}


@pytest.mark.parametrize("text", ["", "64", "1640", "755", "440", "0o640", "649", "٦٤٠", "9" * 5_000])
def test_a_mode_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="storeFileMode"):
        StoreConfig().with_properties({"storeFileMode": text})


def test_a_strict_umask_stays_unless_the_config_says_more() -> None:
    os.umask(0o077)
    disk.use_file_mode(disk.DEFAULT_FILE_MODE)
    assert os.umask(0o077) == 0o077
    disk.use_file_mode(0o660)
    assert os.umask(0o077) == 0o007


def content(path: Path) -> dict[Path, bytes]:
    """All bytes of a file, or of the files of a folder."""
    return {file: file.read_bytes() for file in (path, *path.rglob("*")) if file.is_file()}


FILES = (
    "commitlog/00000000000000000000",
    "consumequeue/orders",
    "consumequeue/orders/0",
    "consumequeue/orders/0/00000000000000000000",
    "checkpoint",
    "abort",
    "lock",
    "config/deletedTopics.json",
)


@pytest.mark.parametrize("name", FILES)
def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    """It may lead to anybody's file, which a broker with more rights than the one who planted it would overwrite."""
    root = tmp_path / "s"
    open_store(root).close()
    store = open_store(root)
    store.append(message())
    store.delete_topic("others")
    store._log.close()
    store._lock.release()
    elsewhere = tmp_path / "elsewhere"
    (root / name).rename(elsewhere)
    before = content(elsewhere)
    (root / name).symlink_to(elsewhere)
    with pytest.raises(StoreError, match=f"{name} is a symbolic link to .*elsewhere; no file of a store is opened"):
        open_store(root)
    assert content(elsewhere) == before


@pytest.mark.parametrize("folder", ["config", "timerlog", "commitlog.bad", "consumequeue.bad"])
def test_a_link_in_place_of_a_folder_that_no_key_names_is_refused(tmp_path: Path, folder: str) -> None:
    root = tmp_path / "s"
    open_store(root).close()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if (root / folder).is_dir():
        (root / folder).rename(elsewhere)
    before = content(elsewhere)
    (root / folder).symlink_to(elsewhere)
    with pytest.raises(StoreError, match=f"{folder} is a symbolic link to .*elsewhere; no file of a store is opened"):
        open_store(root)
    assert content(elsewhere) == before


@pytest.mark.parametrize("name", ["consumequeue/orders/0/00000000000000000000", "index/20260101000000000"])
def test_a_link_to_a_file_of_another_size_is_refused_and_the_file_kept(tmp_path: Path, name: str) -> None:
    """A derived file of a wrong size is brought to its own, and after a kill no checksum was compared before."""
    root, victim = tmp_path / "s", tmp_path / "victim"
    store = open_store(root)
    store.append(message())
    store._log.close()
    store._lock.release()
    victim.write_text("precious")
    (root / name).unlink(missing_ok=True)
    (root / name).symlink_to(victim)
    with pytest.raises(StoreError, match=f"{name} is a symbolic link to .*victim; no file of a store is opened"):
        open_store(root)
    assert victim.read_text() == "precious"


def test_what_is_set_aside_is_as_private_and_overwrites_nothing(tmp_path: Path) -> None:
    root, victim = tmp_path / "s", tmp_path / "victim"
    open_store(root).close()
    store = open_store(root)
    store.append(message())
    store.close()
    name = "orders/0/00000000000000000000"
    (root / "consumequeue.bad/orders/0").mkdir(parents=True)
    (root / "consumequeue.bad" / name).symlink_to(victim)  # leads nowhere yet
    with (root / "consumequeue" / name).open("ab") as file:
        file.write(b"longer")
    os.umask(0o022)
    open_store(root).close()
    assert not victim.exists()
    assert stat.S_IMODE((root / "consumequeue.bad" / f"{name}2").stat().st_mode) == 0o640


def test_a_link_in_place_of_a_table_that_is_being_written_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "topics.json.tmp").symlink_to(victim)
    with pytest.raises(OSError, match="is a symbolic link"):  # as for any other disk that refuses
        state_file.save(tmp_path / "topics.json", b"{}")
    assert victim.read_text() == "precious"


def test_the_command_says_which_link(tmp_path: Path) -> None:
    root = tmp_path / "s"
    open_store(root).close()
    (root / "checkpoint").rename(tmp_path / "elsewhere")
    (root / "checkpoint").symlink_to(tmp_path / "elsewhere")
    done = CliRunner().invoke(main, ["broker", "-n", "127.0.0.1:1", "--port", "0", "--store", str(root)])
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: {root / 'checkpoint'} is a symbolic link to ")


_OTHER_DOORS = r"\bos\.(open|truncate|fsync|fdatasync)\(|\.mkdir\(|\.open\(\"|shutil\.copy|\.write_(text|bytes)\("


def test_every_file_is_opened_by_one_door() -> None:
    """`disk` refuses links, sets the mode, and never lets a failed sync look like a refused write."""
    root = Path(disk.__file__).parent
    paths = {*(root / "store").glob("*.py"), *(root / "nameserver").glob("*.py"), root / "state_file.py"}
    others = [
        f"{path.name}: {line.strip()}"
        for path in paths
        for line in path.read_text().splitlines()
        if re.search(_OTHER_DOORS, line) and "O_DIRECTORY" not in line and "disk.folder_mode()" not in line
    ]
    assert others == []


def test_folders_may_be_links(tmp_path: Path) -> None:
    for name in ("root", "log"):
        (tmp_path / f"real-{name}").mkdir()
        (tmp_path / name).symlink_to(tmp_path / f"real-{name}")
    config = SMALL.with_properties({"storePathCommitLog": str(tmp_path / "log")})
    store = open_store(tmp_path / "root", config)
    store.append(message())
    store.close()
    assert (tmp_path / "real-log/00000000000000000000").is_file()
    open_store(tmp_path / "root", config).close()

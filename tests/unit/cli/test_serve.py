"""What the daemons say when they cannot start, and what they are called."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from cosmodrome.cli import serve
from cosmodrome.cli.main import main
from cosmodrome.cli.serve import MAX_BROKERS, _other_names, _usable

UP = ("up", "--namesrv-port", "0", "--broker-port", "0", "--data")
BROKER = ("broker", "-n", "127.0.0.1:1", "--port", "0", "--store")
NAMESRV = ("namesrv", "--port", "0", "--kv-config")


def invoked(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ([*UP, "{file}"], "{file}"),
        ([*UP, "{file}/data"], "{file}/data"),
        ([*BROKER, "{file}/store"], "{file}/store"),
        ([*NAMESRV, "{file}/kvConfig.json"], "{file}"),
    ],
)
def test_a_file_is_no_folder(tmp_path: Path, words: list[str], folder: str) -> None:
    file = tmp_path / "notes.txt"
    file.touch()
    done = invoked(*(word.format(file=file) for word in words))
    assert (done.exit_code, done.output) == (1, f"Error: {folder.format(file=file)} cannot be used: {file} is a file\n")


@pytest.mark.parametrize("words", [[*UP, "/proc/x"], [*BROKER, "/proc/x"], [*NAMESRV, "/proc/x/kvConfig.json"]])
def test_a_folder_that_cannot_be_made(words: list[str]) -> None:
    done = invoked(*words)
    assert (done.exit_code, done.output) == (1, "Error: /proc/x cannot be used: No such file or directory\n")


@pytest.mark.parametrize("words", [[*UP, "{data}"], [*BROKER, "{data}"], [*NAMESRV, "{data}/kvConfig.json"]])
def test_a_read_only_folder_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """Refused by hand: whoever is root may write anywhere."""

    def refused(**_options: Any) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "tmp1234"))

    monkeypatch.setattr(serve, "TemporaryFile", refused)
    done = invoked(*(word.format(data=tmp_path) for word in words))
    assert (done.exit_code, done.output) == (1, f"Error: {tmp_path} cannot be used: Permission denied\n")


def test_a_full_disk_is_left_to_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_options: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "tmp1234"))

    monkeypatch.setattr(serve, "TemporaryFile", full)
    with _usable(tmp_path):
        pass


def test_a_file_in_the_place_of_a_part_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "commitlog").touch()
    done = invoked(*BROKER, str(tmp_path))
    assert done.exit_code == 1
    assert done.output == f"Error: {tmp_path} cannot be used: {tmp_path / 'commitlog'} is a file\n"


def test_no_two_brokers_have_one_name() -> None:
    assert _other_names("broker-a")[:2] == ["broker-b", "broker-c"]
    assert _other_names("broker-b")[:2] == ["broker-c", "broker-d"]
    for first in ("broker-a", "broker-z", "mine"):
        names = [first, *_other_names(first)[: MAX_BROKERS - 1]]
        assert len(set(names)) == MAX_BROKERS


@pytest.mark.parametrize("command", [[*BROKER, "{store}"], [*UP, "{store}"]])
def test_a_setting_that_cannot_be_kept_stops_the_start(tmp_path: Path, command: list[str]) -> None:
    store, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text("brokerName=b\naclEnable=true\n", encoding="utf-8")
    done = invoked(*(word.format(store=store) for word in command), "-c", str(conf))
    assert (done.exit_code, done.output) == (
        1,
        f"Error: {conf}:2: aclEnable=true is refused: this version checks neither access keys nor permissions, "
        "so every client would be let in. Remove the key or set aclEnable=false, and let only trusted machines reach "
        "the port\n",
    )
    assert not store.exists()

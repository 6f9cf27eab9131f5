"""The role that a broker starts with, when it was given another one while it ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosmodrome import state_file
from cosmodrome.broker.roles import BROKER_ROLE, Role, Roles
from cosmodrome.config import BrokerRole
from cosmodrome.errors import StoreError

MASTER = Role(BrokerRole.SYNC_MASTER, 0)
ASYNC = Role(BrokerRole.ASYNC_MASTER, 0)
FIRST, SECOND = Role(BrokerRole.SLAVE, 1), Role(BrokerRole.SLAVE, 2)


@pytest.mark.parametrize(
    ("configured", "given", "then", "expected"),
    [
        (MASTER, FIRST, MASTER, FIRST),  # a demoted master, whose file nobody changed
        (MASTER, FIRST, ASYNC, FIRST),  # how it would answer as a master does not make it one
        (MASTER, FIRST, FIRST, FIRST),
        (MASTER, FIRST, SECOND, SECOND),
        (FIRST, MASTER, FIRST, MASTER),  # a promoted slave
        (FIRST, MASTER, ASYNC, ASYNC),
        (FIRST, ASYNC, MASTER, MASTER),
        (FIRST, MASTER, SECOND, SECOND),  # somebody made it another slave: that is never a second master
    ],
)
def test_a_role_given_at_run_time_counts_until_the_file_is_changed(
    tmp_path: Path, configured: Role, given: Role, then: Role, expected: Role
) -> None:
    Roles(tmp_path, configured).give(given, 7)
    roles = Roles(tmp_path, then)
    assert roles.role == expected
    assert roles.term == 7


def test_what_an_operator_has_overruled_does_not_come_back(tmp_path: Path) -> None:
    Roles(tmp_path, FIRST).give(MASTER, 2)
    Roles(tmp_path, SECOND).started()
    assert Roles(tmp_path, FIRST).role == FIRST


def test_without_a_change_there_is_no_file(tmp_path: Path) -> None:
    roles = Roles(tmp_path, FIRST)
    roles.started()
    assert (roles.role, roles.term) == (FIRST, 0)
    assert not list(tmp_path.iterdir())


def test_the_backup_makes_no_master_of_a_demoted_broker(tmp_path: Path) -> None:
    roles = Roles(tmp_path, MASTER)
    roles.give(FIRST, 2)
    (tmp_path / BROKER_ROLE).write_bytes(b"\0" * 50)
    assert Roles(tmp_path, MASTER).role == FIRST


@pytest.mark.parametrize("content", [b"", b'{"brokerRole": "SLAVE"}', b"\0" * 200])
def test_a_file_that_nobody_can_read_stops_the_start(tmp_path: Path, content: bytes) -> None:
    roles = Roles(tmp_path, MASTER)
    roles.give(FIRST, 2)
    for name in (BROKER_ROLE, f"{BROKER_ROLE}.bak"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(StoreError, match="whether this broker is the master of its name now"):
        Roles(tmp_path, MASTER)


@pytest.mark.parametrize(
    "change", [("brokerId", "0"), ("brokerId", "-1"), ("brokerRole", '"ADMIRAL"'), ("term", '"x"')]
)
def test_nonsense_in_the_file_is_refused(tmp_path: Path, change: tuple[str, str]) -> None:
    values = {"brokerRole": '"SLAVE"', "brokerId": "1", "configuredRole": '"SYNC_MASTER"', "configuredId": "0"}
    values |= {"term": "1", change[0]: change[1]}
    text = "{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}"
    (tmp_path / BROKER_ROLE).write_text(text)
    with pytest.raises(StoreError, match=BROKER_ROLE):
        Roles(tmp_path, MASTER)


def test_a_disk_that_refuses_leaves_the_role_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    roles = Roles(tmp_path, MASTER)
    monkeypatch.setattr(state_file, "save", refuse)
    with pytest.raises(OSError, match="No space"):
        roles.give(FIRST, 2)
    assert roles.role == MASTER
    assert Roles(tmp_path, MASTER).role == MASTER

"""Which slave is promoted, and when none is."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from cosmodrome.admin import Member, NotPromoted, check_master, choose
from cosmodrome.cli.admin.verbs import VERBS
from cosmodrome.cli.main import main
from cosmodrome.wire.role_requests import RoleReply


def member(broker_id: int, term: int = 1, log_end: int = 100) -> Member:
    address = f"10.0.0.{broker_id}:1"
    role = "SLAVE" if broker_id else "SYNC_MASTER"
    return Member(broker_id, address, RoleReply("b", broker_id, role, term, log_end, address))


def silent(broker_id: int, *, is_down: bool = False) -> Member:
    return Member(broker_id, f"10.0.0.{broker_id}:1", None, "it does not answer", is_down)


def chosen(*members: Member, to: str = "", force: bool = False) -> int:
    return choose("b", members, to, force=force).broker_id


def test_the_only_slave_is_promoted() -> None:
    assert chosen(member(0), member(3)) == 3


def test_of_several_the_one_with_most_is() -> None:
    assert chosen(member(0), member(1, log_end=90), member(2), member(3)) == 2
    assert chosen(member(1, term=1, log_end=900), member(2, term=2)) == 2, "what a newer master wrote counts more"
    assert chosen(silent(1), member(2, log_end=1)) == 2


@pytest.mark.parametrize("to", ["2", "10.0.0.2:1"])
def test_a_slave_is_named_by_its_id_or_address(to: str) -> None:
    assert chosen(member(0), member(1), member(2, log_end=5), to=to) == 2


def test_without_a_master_none_is_chosen_that_lacks_what_another_has() -> None:
    with pytest.raises(NotPromoted, match=r"10\.0\.0\.1:1 has more of the log than 10\.0\.0\.2:1: .* --to 1"):
        chosen(silent(0), member(1), member(2, log_end=99), to="2")
    assert chosen(silent(0), member(1), member(2, log_end=99), to="2", force=True) == 2


@pytest.mark.parametrize(
    ("members", "to", "problem"),
    [
        ([member(0)], "", "b has no slave"),
        ([member(0), member(1)], "0", r"b has no slave 0; it has 1 at 10\.0\.0\.1:1"),
        ([member(0), silent(1)], "", "slave 1 cannot be asked: it does not answer"),
        ([member(0), silent(1), member(2)], "1", "slave 1 cannot be asked"),
    ],
)
def test_nobody_is_promoted_who_cannot_be(members: list[Member], to: str, problem: str) -> None:
    with pytest.raises(NotPromoted, match=problem):
        chosen(*members, to=to)


def test_a_master_that_may_live_is_not_passed_over() -> None:
    check_master("b", None, force=False)
    check_master("b", member(0), force=False)
    check_master("b", silent(0, is_down=True), force=False)
    check_master("b", silent(0), force=True)
    with pytest.raises(NotPromoted, match="two masters would take messages"):
        check_master("b", silent(0), force=False)


def test_no_verb_brings_a_broker_or_a_store() -> None:
    show = "import sys; print(*sorted(name for name in sys.modules if name.startswith('cosmodrome')))"
    verbs = "; ".join(f"import cosmodrome.cli.admin.{name}" for name in {verb.module for verb in VERBS.values()})
    code = f"{verbs}; {show}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    brought = {name.split(".")[1] for name in done.stdout.split() if "." in name}
    assert "admin" in brought
    assert not brought & {"broker", "nameserver", "store", "replication", "spark", "pipelines"}


@pytest.mark.parametrize("timeout", ["0ms", "11m"])
def test_a_master_waits_neither_not_at_all_nor_for_ever(timeout: str) -> None:
    done = CliRunner().invoke(main, ["admin", "promote", "b", "--timeout", timeout])
    assert done.exit_code == 2
    assert "--timeout must be more than 0, and at most 10m" in done.output

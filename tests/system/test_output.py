"""Commands whose output has no reader, or no room: they end quietly or with one line, never with a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bounded import child, line_of
from tests.system.daemons import PATIENCE_SECONDS, cosmodrome, up

COSMODROME = (sys.executable, "-m", "cosmodrome")
# `cosmodrome sql` with rows at once, in place of Spark's.
SQL = """
from types import SimpleNamespace
from cosmodrome.cli import sql
rows = SimpleNamespace(columns=["n"], limit=lambda _: rows, toLocalIterator=lambda: iter([(1,), (2,)]))
sql.require_spark = lambda **_: None
sql.open_session = lambda *_: SimpleNamespace(stop=lambda: None)
sql.all_topics = lambda _: ["orders"]
sql.asked = lambda *_: rows
from cosmodrome.cli.main import main
main()
"""


@contextmanager
def nothing_reads() -> Iterator[int]:
    """A pipe without a reader: its writing end."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


def run(command: Sequence[str], output: int) -> tuple[int, str]:
    """Exit code, and what the command says on standard error."""
    done = subprocess.run(
        command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", ["--version", "--help", "send --help", "pipeline list", "pipeline list -o json"])
def test_a_command_ends_well_when_nothing_reads_it(words: str) -> None:
    with nothing_reads() as output:
        assert run((*COSMODROME, *words.split()), output) == (0, "")


@pytest.mark.parametrize("form", ["json", "csv", "table"])
def test_a_query_ends_well_when_nothing_reads_its_rows(form: str) -> None:
    with nothing_reads() as output:
        assert run((sys.executable, "-c", SQL, "sql", "select 1", "-o", form), output) == (0, "")


@pytest.mark.parametrize("form", ["text", "json"])
def test_send_tail_and_the_store_commands_end_well_when_nothing_reads_them(tmp_path: Path, form: str) -> None:
    with up(tmp_path) as daemon:
        namesrv = ("--namesrv", daemon.address("name server"), "-o", form)
        with nothing_reads() as output:
            assert run((*COSMODROME, "send", "hello", "1", *namesrv), output) == (0, "")
            assert run((*COSMODROME, "tail", "hello", "--from", "earliest", *namesrv), output) == (0, "")
            store = str(next(tmp_path.rglob("commitlog")).parent)
            assert run((*COSMODROME, "store", "inspect", store, "-o", form), output) == (0, "")


def test_tail_ends_when_its_reader_leaves_though_no_message_comes(tmp_path: Path) -> None:
    with up(tmp_path) as daemon:
        namesrv = ("--namesrv", daemon.address("name server"))
        assert cosmodrome("send", "hello", "Hello", *namesrv).returncode == 0
        command = [*COSMODROME, "tail", "hello", "--from", "earliest", *namesrv]
        with child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
            assert line_of(tail.stdout).endswith(" Hello\n")
            assert tail.stdout is not None
            tail.stdout.close()
            assert tail.wait(timeout=PATIENCE_SECONDS) == 0
            assert tail.stderr is not None
            assert tail.stderr.read() == ""


@pytest.mark.parametrize("words", ["pipeline list", "pipeline list -o json"])
@pytest.mark.parametrize("buffering", [("env", "PYTHONUNBUFFERED=1"), ("env", "-u", "PYTHONUNBUFFERED")])
def test_a_full_disk_is_told_in_one_line(words: str, buffering: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as output:
        code, said = run((*buffering, *COSMODROME, *words.split()), output.fileno())
    assert (code, said) == (1, "Error: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("words", ["pipeline list", "sql"])
def test_a_command_whose_output_the_shell_has_closed_does_its_work(words: str) -> None:
    code = SQL if words == "sql" else "from cosmodrome.cli.main import main; main()"
    command = [sys.executable, "-c", code, *words.split(), *(["select 1"] if words == "sql" else [])]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command],
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")

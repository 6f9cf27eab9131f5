"""`cosmodrome pipeline` and `cosmodrome sql` as far as they go without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cosmodrome.cli import pipeline, sql
from cosmodrome.cli.main import main
from cosmodrome.errors import ConfigError, CosmodromeError
from cosmodrome.pipelines.definition import Pipeline, load
from cosmodrome.pipelines.kinds import KINDS
from cosmodrome.pipelines.outcome import Outcome

_WITHOUT = """
import sys
for name in ("pyspark", "pyarrow", "numpy", "pandas", "yaml", "py4j"):
    sys.modules[name] = None
import cosmodrome
from cosmodrome.cli.main import main
main(sys.argv[1:])
"""

_TWICE = """
import os, signal, sys, time
from cosmodrome.cli.pipeline import _Signals
from cosmodrome.pipelines.definition import load
from cosmodrome.pipelines.kinds import KINDS
from cosmodrome.pipelines.running import Run

task = Run(load(KINDS["archive"].template), print)
with _Signals(task) as signals:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as Spark does it
    signals.listen()
    os.kill(os.getpid(), signal.SIGINT)
    print(task.is_stopping, signals.seen, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""


def without_spark(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where the extra is not installed."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_pipelines_are_listed_and_written(tmp_path: Path) -> None:
    runner = CliRunner()
    listed = runner.invoke(main, ["pipeline", "list", "-o", "json"])
    assert [json.loads(line)["name"] for line in listed.output.splitlines()] == list(KINDS)
    path = tmp_path / "mine.yaml"
    written = runner.invoke(main, ["pipeline", "init", "archive", "--to", str(path)])
    assert (written.exit_code, path.read_text()) == (0, KINDS["archive"].template.read_text())
    again = runner.invoke(main, ["pipeline", "init", "archive", "--to", str(path)])
    assert (again.exit_code, "is there already" in again.output) == (1, True)
    assert runner.invoke(main, ["pipeline", "init", "archive", "--to", str(path), "--force"]).exit_code == 0
    unknown = runner.invoke(main, ["pipeline", "init", "archiv"])
    assert (unknown.exit_code, "did you mean archive?" in unknown.output) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--set", "sorce.subscribe=x"], "sorce is unknown (did you mean source?)"),
        (["--set", "trigger=never"], "trigger is 'never'"),
        (["--master", "local[1]", "--remote", "sc://x"], "give --master or --remote, not both"),
        (["--remote", "spark://x"], "write sc://host"),
        (["--master", "here"], "'here': it must be local, local[2]"),
    ],
)
def test_bad_files_are_told_in_a_line(arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(main, ["pipeline", "run", str(KINDS["archive"].template), *arguments])
    assert result.exit_code in (1, 2)
    assert text in result.output
    assert "Traceback" not in result.output


def test_without_spark_the_commands_say_what_to_install(tmp_path: Path) -> None:
    for command in (["pipeline", "run", str(KINDS["archive"].template)], ["sql", "select 1"]):
        told = without_spark(*command)
        assert (told.returncode, told.stdout) == (2, "")
        assert "pip install 'cosmodrome[spark]'" in told.stderr
        assert "Java 17" in told.stderr
        assert "Traceback" not in told.stderr
    for command in (["--help"], ["pipeline", "list"], ["pipeline", "init", "replay", "--to", str(tmp_path / "r.yaml")]):
        assert without_spark(*command).returncode == 0


def test_without_java_the_commands_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = CliRunner().invoke(main, ["pipeline", "run", str(KINDS["archive"].template)])
    assert (result.exit_code, "Java 17" in result.output) == (2, True)
    monkeypatch.setenv("JAVA_HOME", os.fspath(tmp_path))
    result = CliRunner().invoke(main, ["sql", "select 1"])
    assert (result.exit_code, "JAVA_HOME" in result.output) == (2, True)


def test_a_spark_elsewhere_needs_no_java_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(job: Pipeline, master: str | None) -> None:
        raise CosmodromeError(f"asked {master or job.master}")

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(pipeline, "opened", opened)
    command = ["pipeline", "run", str(KINDS["archive"].template)]
    for arguments in (["--set", "master=sc://there"], ["--remote", "sc://there"]):
        assert "asked sc://there" in CliRunner().invoke(main, [*command, *arguments]).output
    told = CliRunner().invoke(main, [*command, "--set", "master=sc://there", "--master", "local[1]"])
    assert (told.exit_code, "Java 17" in told.output) == (2, True)


def test_what_a_pipeline_has_to_say_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    job = load(KINDS["replay"].template)
    pipeline._show(job, Outcome({"rows": 0}, notes=("nothing was sent",)), "text", stopped=False)
    pipeline._show(job, Outcome({"rows": 0}, notes=("nothing was sent",)), "json", stopped=False)
    text, note, as_json = capsys.readouterr().out.splitlines()
    assert (text, note) == ("replay: done: rows 0", "nothing was sent")
    assert json.loads(as_json)["notes"] == ["nothing was sent"]


class Rows:
    """An answer of Spark's: so many rows of one column, made as they are asked for."""

    def __init__(self, columns: list[str], count: int) -> None:
        self.columns = columns
        self.count = count
        self.made = 0

    def limit(self, count: int) -> Rows:
        self.count = min(self.count, count)
        return self

    def toLocalIterator(self) -> Iterator[tuple[int, ...]]:  # noqa: N802
        for number in range(self.count):
            self.made += 1
            yield (number,)


def test_a_table_is_bounded_and_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "MAX_TABLE_ROWS", 5)
    many = Rows(["n"], 1_000_000)
    sql._show(many, "table", None)
    told = capsys.readouterr()
    assert (many.made, "4" in told.out, "5" in told.out) == (6, True, False)
    assert told.err.startswith("these are the first 5 rows; --limit shows as many as you say")
    for rows, limit in ((Rows(["n"], 5), None), (Rows(["n"], 1_000_000), 7)):
        sql._show(rows, "table", limit)
        assert capsys.readouterr().err == ""
        assert rows.made == rows.count


def test_columns_of_the_same_name_are_no_json() -> None:
    rows = Rows(["keys", "n", "keys"], 1)
    with pytest.raises(ConfigError, match="two columns of the answer are named keys"):
        sql._show(rows, "json", None)
    assert rows.made == 0


def test_a_second_interrupt_ends_the_command_at_once_without_a_traceback() -> None:
    told = subprocess.run([sys.executable, "-c", _TWICE], capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (130, "True [2]\n", "")

"""`cosmodrome pipeline` and `cosmodrome sql` as far as they go without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cosmodrome.cli.main import main
from cosmodrome.pipelines.kinds import KINDS

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


def test_a_second_interrupt_ends_the_command_at_once_without_a_traceback() -> None:
    told = subprocess.run([sys.executable, "-c", _TWICE], capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (130, "True [2]\n", "")

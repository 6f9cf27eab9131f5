"""`cosmodrome config lint`: what stops a start is found before the start, all of it, with its lines."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from cosmodrome.cli.main import main

BAD = """\
# a broker with many mistakes
brokerNmae=x
listenPort=many
brokerRole=SLAVE
aclFileWatchMs=1
fileReservedTime=48
fileReservedTime=72
deleteWhen=25
sendMessageThreadPoolNums=4
"""


def lint(*words: str) -> Result:
    return CliRunner().invoke(main, ["config", "lint", *words])


def test_every_problem_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(BAD)
    done = lint(str(file), "-o", "json")
    assert done.exit_code == 1
    found = {(one["line"], one["level"]): one["problem"] for one in json.loads(done.output)}
    assert "did you mean brokerName?" in found[2, "error"]
    assert "write a whole number" in found[3, "error"]
    assert "unknown key aclFileWatchMs" in found[5, "error"]
    assert "line 7, which counts" in found[6, "note"]
    assert (8, "error") in found
    assert "without effect" in found[9, "note"]
    assert any("brokerRole=SLAVE needs a brokerId" in text for text in found.values())
    assert f"{file}:3: error: listenPort=many" in lint(str(file)).output


def test_a_sound_file_is_said_to_be_one(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=broker-a\nlistenPort=10911\n")
    done = lint(str(file))
    assert (done.exit_code, done.output) == (0, f"{file}: fit for a broker\n")


def test_a_file_of_a_name_server_is_read_as_one(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=9876\nbrokerName=a\n")
    done = lint(str(file))
    assert (done.exit_code, ":2: error: brokerName is a key of another program" in done.output) == (1, True)
    assert lint("--kind", "broker", str(file)).exit_code == 0


def test_a_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_bytes(b"\xff\xfe\xfa")
    done = lint(str(file))
    assert (done.exit_code, "cannot read" in done.output) == (1, True)

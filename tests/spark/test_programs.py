"""`make demo`, small, as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.bounded import kill_group, line_of
from tests.spark.helpers import eventually

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "spark_orders.py"
LIMIT_SECONDS = 500


def processes_of(session: int) -> list[str]:
    """What still runs of a session, by command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(path.name)) == session:
                found.append((path / "cmdline").read_text().replace("\0", " "))
        except OSError:
            pass
    return [line for line in found if line]


@contextmanager
def running_demo(folder: Path, messages: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(DEMO), "--messages", str(messages), "--folder", str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as demo:
        try:
            yield demo
        finally:
            kill_group(demo)


def test_the_demo_reports_and_archives(tmp_path: Path) -> None:
    with running_demo(tmp_path / "demo", 2_000) as demo:
        said, complaints = demo.communicate(timeout=LIMIT_SECONDS)
        assert demo.returncode == 0, said
        # Java's notes are of the options that these tests give it.
        assert [
            line for line in complaints.splitlines() if not line.startswith("NOTE: Picked up JDK_JAVA_OPTIONS")
        ] == []
        eventually(lambda: not processes_of(demo.pid))
    assert "München" in said
    found = re.search(r"all 2,000 messages, each of them once, are Parquet files in (\S+)", said)
    assert found is not None, said
    archive = Path(found[1])
    assert list((tmp_path / "demo").iterdir()) == [archive], "only the archive is left"
    # The folders say date and topic.
    keys = ds.dataset(sorted(archive.rglob("*.parquet"))).to_table(["keys"])["keys"].to_pylist()
    assert sorted(map(int, keys)) == list(range(2_000))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_leaves_nothing_when_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    with running_demo(tmp_path / "demo", 50_000_000) as demo:  # it would send for a long time
        assert "a node runs" in line_of(demo.stdout, LIMIT_SECONDS)
        if number is signal.SIGINT:
            os.killpg(demo.pid, number)  # as a terminal does it: to all of them
        else:
            demo.send_signal(number)
        said, _ = demo.communicate(timeout=LIMIT_SECONDS)
        assert demo.returncode == 130, said
        assert said.rstrip().endswith("stopped")
        eventually(lambda: not processes_of(demo.pid))
    assert list((tmp_path / "demo").iterdir()) == []

"""The command itself: started, killed, stopped and started again, as an operator and a crash would do it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse
from zlib import crc32

import pyarrow.dataset as ds

from cosmodrome.model import Message, MessageQueue
from cosmodrome.pipelines.kinds import KINDS
from cosmodrome.testing import Cluster
from tests.spark.helpers import BROKER, DEADLINE_SECONDS, eventually

MESSAGES = 3_000
SETTINGS = ("source.maxOffsetsPerTrigger=100", "trigger={processingTime: 0 seconds}", "spark.driver.memory=512m")


class Command:
    """`cosmodrome …` in a process group of its own, which holds Spark's processes, too."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cosmodrome", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[dict[str, Any]] = []
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    @property
    def errors(self) -> str:
        return "".join(self._errors)

    def wait_for_rows(self, rows: int) -> None:
        def has_come() -> bool:
            if self._process.poll() is not None:
                raise AssertionError(f"it ended: {self.errors}")
            return any(line.get("totalRows", 0) >= rows for line in list(self.lines))

        eventually(has_come)

    def signal(self, number: int) -> int:
        """Its exit code after a signal to the command alone."""
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self._process.wait(DEADLINE_SECONDS)
        for reader in self._readers:
            reader.join(DEADLINE_SECONDS)
        return code

    def kill(self) -> None:
        """As a machine that loses its power: the command, Spark and its workers at once."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(DEADLINE_SECONDS)


@contextmanager
def command(*arguments: str) -> Iterator[Command]:
    started = Command(*arguments)
    try:
        yield started
    finally:
        started.kill()


def files_that_count(archive: Path) -> list[str]:
    """As Spark has noted them; others are of micro-batches that were killed."""
    logs = [path for path in (archive / "_spark_metadata").iterdir() if not path.name.startswith(".")]
    noted = {json.loads(line)["path"] for log in logs for line in log.read_text().splitlines()[1:]}
    return sorted(unquote(urlparse(path).path) for path in noted)


def test_an_archive_holds_every_message_once_through_kills(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    with cluster.producer() as producer:
        for queue_id in (0, 1):
            messages = [Message(topic, f"{queue_id}-{n}".encode() * (n % 5 + 1)) for n in range(MESSAGES // 2)]
            for _ in producer.send_batches(messages, MessageQueue(topic, BROKER, queue_id), max_bytes=100_000):
                pass
    file = tmp_path / "archive.yaml"
    file.write_text(KINDS["archive"].template.read_text())
    changes = (f"source.nameServer={cluster.namesrv}", f"source.subscribe={topic}", *SETTINGS)
    set_options = [part for change in changes for part in ("--set", change)]
    run = ["pipeline", "run", str(file), "--master", "local[1]", "-o", "json", *set_options]

    with command(*run) as killed:
        killed.wait_for_rows(250)
    with command(*run) as interrupted:
        interrupted.wait_for_rows(250)
        assert interrupted.signal(signal.SIGINT) == 130
        assert interrupted.lines[-1]["event"] == "stopped"
    with command(*run) as terminated:
        terminated.wait_for_rows(250)
        assert terminated.signal(signal.SIGTERM) == 0
    with command(*run, "--once", "--set", "source.maxOffsetsPerTrigger=5000") as last:
        assert last.wait() == 0, last.errors
        finished = last.lines[-1]
        assert finished["event"] == "finished"
        assert 0 < finished["rows"] < MESSAGES - 700
        assert last.lines[-2]["lag"] == {topic: 0}

    archive = ds.dataset(files_that_count(tmp_path / "archive"))
    rows = archive.to_table(["queueId", "queueOffset", "body"]).to_pylist()
    got = Counter((row["queueId"], row["queueOffset"], crc32(row["body"])) for row in rows)
    expected = Counter((m.queue.queue_id, m.queue_offset, crc32(m.body)) for m in cluster.messages(topic))
    assert got == expected
    assert len(rows) == MESSAGES


def test_a_query_from_the_command_line(cluster: Cluster, topic: str) -> None:
    with cluster.producer() as producer:
        for n in range(6):
            producer.send(Message(topic, json.dumps({"price": n}).encode(), tags=f"t{n % 2}"))
    query = f"select tags, sum(price) as total, max(value) as last from `{topic}` group by tags order by tags"
    with command(
        *("sql", query, "--schema", "price long", "-n", cluster.namesrv, "--master", "local[1]", "-o", "json")
    ) as asked:
        assert asked.wait() == 0, asked.errors
    assert asked.lines == [
        {"tags": "t0", "total": 6, "last": '{"price": 4}'},
        {"tags": "t1", "total": 9, "last": '{"price": 5}'},
    ]

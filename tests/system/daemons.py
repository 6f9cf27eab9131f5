"""The command `cosmodrome` as a child process, the way a user starts it."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_SECONDS = 60
# Small files, so that a hundred restarts of a store cost no disk.
BROKER_CONF = (
    "mappedFileSizeCommitLog=4194304\nmappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n"
)


def cosmodrome(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "cosmodrome", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env={key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"},
    )


def cosmodrome_json(*arguments: str) -> list[dict[str, Any]]:
    """Run a command that must succeed, with `-o json`."""
    done = cosmodrome(*arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class Daemon:
    """A serving command: started in the block, stopped at its end. It begins with `open_files` as its soft limit, and
    behind the words `within`, which start what comes after them, as `env` does."""

    def __init__(
        self,
        *arguments: str,
        open_files: int | None = None,
        within: Sequence[str] = (),
        program: Sequence[str] = ("-m", "cosmodrome"),
    ) -> None:
        self._program = program
        self._limit = (*within, *(() if open_files is None else ("prlimit", f"--nofile={open_files}:")))
        self._arguments = arguments
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.output = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [*self._limit, sys.executable, *self._program, *self._arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.wait_for("ready")
        except AssertionError:
            self.kill()
            raise
        return self

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, text: str) -> str:
        """The next line that holds `text`."""
        while True:
            try:
                line = self._lines.get(timeout=PATIENCE_SECONDS)
            except queue.Empty:
                raise AssertionError(f"has not said {text!r}:\n{self.output}") from None
            assert line is not None, f"ended before saying {text!r}:\n{self.output}"
            self.output += line
            if text in line:
                return line

    def rest(self) -> list[str]:
        """The lines that it has said since; once it has ended, all of them."""
        if self._process.poll() is not None:
            self._reader.join(PATIENCE_SECONDS)
        lines = []
        while not self._lines.empty():
            if (line := self._lines.get()) is not None:
                lines.append(line)
        return lines

    @property
    def pid(self) -> int:
        return self._process.pid

    def address(self, who: str) -> str:
        """What the start-up lines say after `who … on`."""
        found = re.search(rf"{who}[^,\n]*? on ([\d.]+:\d+)", self.output)
        assert found, self.output
        return found[1]

    def interrupt(self) -> int:
        """Ctrl-C; returns the exit code."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(PATIENCE_SECONDS)

    def exit_code(self) -> int:
        """Wait until it has ended by itself; then `output` is all it said."""
        code = self._process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        while (line := self._lines.get(timeout=PATIENCE_SECONDS)) is not None:
            self.output += line
        return code

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise
        self._reader.join(PATIENCE_SECONDS)
        assert not self._reader.is_alive(), "somebody holds its output, who has not ended with it"
        assert self._process.stdout is not None
        self._process.stdout.close()


def up(
    data: Path, *arguments: str, open_files: int | None = None, program: Sequence[str] = ("-m", "cosmodrome")
) -> Daemon:
    """`cosmodrome up` on free ports with small files."""
    data.mkdir(parents=True, exist_ok=True)
    conf = data / "broker.conf"
    conf.write_text(BROKER_CONF)
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--console-port", "0")
    return Daemon(
        "up", "--data", str(data), "-c", str(conf), *ports, *arguments, open_files=open_files, program=program
    )

"""Child processes: started, listened to, and stopped by pid within a bound."""

import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar

STOP_TIMEOUT_S = 20
LOG_TAIL_CHARS = 4_000
# Below the range the kernel hands out to outgoing connections, so none of those can take a port we picked.
_NEIGHBOURS = 3  # at most, on either side
_PORTS = range(20_000 + _NEIGHBOURS, 32_000, 2 * _NEIGHBOURS + 1)
_PORT_TRIES = 200
_starter = ThreadPoolExecutor(1, "starter")
_chance = random.SystemRandom()  # tests seed the other one, each process alike

T = TypeVar("T")


class ChildError(Exception):
    """A child ended or stayed silent where it should have spoken; the text carries the end of its output."""


class Speaker:
    """A source of lines that come in a thread of their own; each is kept, and what goes wrong is in a log file."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.lines: list[str] = []
        self._log = log
        self._heard = threading.Condition()
        self._silent = False

    def wait_line(self, text: str, timeout_s: float) -> str:
        """The first line that contains text, waiting for it if it has not come yet."""
        seen = 0

        def found() -> str | None:
            nonlocal seen
            start, seen = seen, len(self.lines)
            return next((line for line in self.lines[start:seen] if text in line), None)

        return self.wait_until(found, timeout_s, f"a line with {text!r}")

    def wait_until(self, found: Callable[[], T | None], timeout_s: float, what: str) -> T:
        """What found() gives once it is not None; asked anew after every line, until the deadline."""
        deadline = time.monotonic() + timeout_s
        with self._heard:
            while True:
                value = found()
                if value is not None:
                    return value
                left_s = deadline - time.monotonic()
                if self._silent or left_s <= 0:
                    raise self.error(f"{'ended' if self._silent else f'{timeout_s} s passed'} without {what}")
                self._heard.wait(left_s)

    def error(self, problem: str) -> ChildError:
        """The problem, with what the child said last: whoever reads it has no other way to see why."""
        said = "\n".join(self.lines[-20:])
        logged = self._log.read_text(errors="replace")[-LOG_TAIL_CHARS:]
        return ChildError(f"{self.name} {problem}\n--- output\n{said}\n--- {self._log}\n{logged}")

    def take(self, line: str) -> None:
        """Keep one line of output; called on the telling thread with the condition held."""
        self.lines.append(line)

    def hear(self, line: str) -> None:
        """Take a line, and wake those that wait for it."""
        with self._heard:
            self.take(line)
            self._heard.notify_all()

    def fall_silent(self) -> None:
        """Nothing more will come: end every wait."""
        with self._heard:
            self._silent = True
            self._heard.notify_all()


class Child(Speaker):
    """One child process. Every line of its standard output is kept; standard error goes to a log file."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        super().__init__(name, log)
        with log.open("ab") as errors:
            self._process = _starter.submit(_start, command, errors, env).result()
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def write(self, line: str) -> None:
        stdin = self._pipe(self._process.stdin)
        stdin.write(f"{line}\n".encode())
        stdin.flush()

    def finish(self, timeout_s: float) -> None:
        """Close its standard input, which asks our own programs to end, and wait until it has ended well."""
        self._pipe(self._process.stdin).close()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.error(f"did not end within {timeout_s} s") from None
        self._close()
        if code != 0:
            raise self.error(f"ended with exit code {code}")

    def stop(self) -> int:
        """End it: politely first, by force after STOP_TIMEOUT_S. Safe to call on one that has ended."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
        self._close()
        return self._process.returncode

    def stop_in_order(self, timeout_s: float) -> None:
        """Ask it to end and wait until it has done so by itself: for one whose files are looked at afterwards."""
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.error(f"did not stop within {timeout_s} s") from None
        self._close()

    def kill(self) -> None:
        """End it at once, for what keeps nothing worth a clean end. Safe to call on one that has ended."""
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read(self) -> None:
        try:
            for line in self._pipe(self._process.stdout):
                self.hear(line.decode(errors="replace").rstrip("\n"))
        finally:  # also after a line that could not be taken: nobody waits for a word from a thread that has ended
            self.fall_silent()

    def _close(self) -> None:
        self._pipe(self._process.stdin).close()
        self._reader.join(STOP_TIMEOUT_S)
        if not self._reader.is_alive():  # else the child's own child has the pipe, and closing waits for the reader
            self._pipe(self._process.stdout).close()

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None, "both pipes are asked for at the start"
        return pipe


def _start(command: Sequence[str], errors: IO[bytes], env: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, however this one ends: a server left behind takes its share of the CPU.

    The kernel sees to that, and counts the end of the thread that started the process as the end: hence _starter.
    """
    return subprocess.Popen(bound(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=env)


def bound(command: Sequence[str]) -> Sequence[str]:
    """Return the words that start `command` so that it is killed when the thread that starts it ends."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", *command] if setpriv else command


def free_port(before: int = 0, after: int = 0) -> int:
    """A port nobody listens on or was given before, with as many free neighbours below and above as asked for."""
    assert max(before, after) <= _NEIGHBOURS
    for _ in range(_PORT_TRIES):
        port = _chance.choice(_PORTS)
        if _reserve(port) and all(map(_is_free, range(port - before, port + after + 1))):
            return port
    raise ChildError(f"no free port found in {_PORT_TRIES} tries")


def _reserve(port: int) -> bool:
    """Whether it was given to nobody, in this process or in another; who got it may not listen on it yet.

    A name in the abstract namespace of sockets is had by one socket only, and goes with its process.
    """
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0cosmodrome-port-{port}")
    except OSError:
        name.close()
        return False
    name.detach()
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

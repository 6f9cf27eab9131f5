"""Fetch Apache's jars from Maven Central and compile our Java programs: `python -m interop.setup`.

    build/client-<version>/lib, classes     what the programs under java/interop run with
    build/server-<version>/lib, classes     Apache's name server and broker, and what java/golden runs with
    build/filter-<version>/lib, classes     Apache's SQL92 filter, and SqlFilter that asks it

Running it again is quick: a stamp beside the jars holds the hash of what they were made from.

Clients are 4.9.8 and 5.3.3. The 4.x servers are 4.9.7, because Maven Central has no rocketmq-namesrv,
rocketmq-broker or rocketmq-filter of 4.9.8: its newest complete set of 4.9 server jars is 4.9.7.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLIENT_VERSIONS = ("4.9.8", "5.3.3")
SERVER_VERSIONS = ("4.9.7", "5.3.3")
FETCH_TIMEOUT_S = 900
COMPILE_TIMEOUT_S = 120

_HERE = Path(__file__).resolve().parent
_SOURCES = _HERE / "java" / "interop"
_GOLDEN_SOURCES = _HERE / "java" / "golden"
_STAMP = "stamp"
# What needs more than a client's jars, with the helpers it uses; everything else is a client program.
_FILTER_SOURCES = ("Json.java", "Program.java", "SqlFilter.java")


class SetupError(Exception):
    """The jars or classes could not be made; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Build:
    """The jars of one Apache version in one role, and our classes compiled against them."""

    role: str
    version: str

    @property
    def folder(self) -> Path:
        return _HERE / "build" / f"{self.role}-{self.version}"

    @property
    def pom(self) -> Path:
        return _HERE / f"pom-{self.role}.xml"

    @property
    def sources(self) -> list[Path]:
        if self.role == "filter":
            return [_SOURCES / name for name in _FILTER_SOURCES]
        if self.role == "client":
            return sorted(set(_SOURCES.glob("*.java")) - {_SOURCES / "SqlFilter.java"})
        return sorted(_GOLDEN_SOURCES.glob("*.java"))

    @property
    def classpath(self) -> str:
        """What java -cp takes; a plain error when setup has not run for this version as it is now."""
        if not self.is_current():
            raise SetupError(f"{self.folder.name} is not built; run: python -m interop.setup")
        return f"{self.folder / 'classes'}:{self.folder / 'lib'}/*"

    def is_current(self) -> bool:
        stamp = self.folder / _STAMP
        return stamp.is_file() and stamp.read_text() == _digest([self.pom, *self.sources])

    def make(self) -> None:
        """Stamped last, so that a run cut short is done again."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._fetch()
        self._compile()
        (self.folder / _STAMP).write_text(_digest([self.pom, *self.sources]))

    def _fetch(self) -> None:
        _say(f"fetching the {self.role} jars of RocketMQ {self.version} from Maven Central")
        command = [_tool("mvn"), "-B", "-q", "-f", str(self.pom), f"-Drocketmq.version={self.version}"]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        command.append(f"-DoutputDirectory={self.folder / 'lib'}")
        try:
            _run(command, FETCH_TIMEOUT_S)
        except SetupError as error:
            _say(f"fetching again: {error}")  # a download that breaks off is the network's, not ours
            _run(command, FETCH_TIMEOUT_S)

    def _compile(self) -> None:
        _say(f"compiling {len(self.sources)} Java files against RocketMQ {self.version}")
        classes = self.folder / "classes"
        command = [_tool("javac"), "-nowarn", "-encoding", "UTF-8", "-d", str(classes)]
        _run([*command, "-cp", f"{self.folder / 'lib'}/*", *map(str, self.sources)], COMPILE_TIMEOUT_S)


BUILDS = tuple(
    [Build("client", version) for version in CLIENT_VERSIONS]
    + [Build("server", version) for version in SERVER_VERSIONS]
    + [Build("filter", version) for version in SERVER_VERSIONS]
)


def main() -> int:
    try:
        with _alone():
            for build in BUILDS:
                if build.is_current():
                    _say(f"{build.folder.name} is up to date")
                else:
                    build.make()
    except SetupError as error:
        print(f"interop: {error}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def _alone() -> Iterator[None]:
    """Two runs in one checkout would pull the folders from under each other: the second waits."""
    folder = _HERE / "build"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SetupError(
            f"{name} is not installed, and interop needs a JDK and Maven."
            " On Debian, as root: apt-get install -y maven default-jdk-headless"
        )
    return found


def _run(command: list[str], timeout_s: int) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as late:
        raise SetupError(f"{Path(command[0]).name} did not end within {timeout_s} s") from late
    if done.returncode != 0:
        raise SetupError(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}")


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _say(text: str) -> None:
    print(f"interop: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

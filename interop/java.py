"""Run the Java programs under java/ against one client version; what they print comes back as dicts."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from interop.child import Child, ChildError, Speaker
from interop.setup import Build

Serialize = Literal["JSON", "ROCKETMQ"]
Line = dict[str, Any]

READY_TIMEOUT_S = 60
END_TIMEOUT_S = 60
RUN_TIMEOUT_S = 120
ADMIN_TIMEOUT_S = 60
ADMIN_TRIES = 3
# They live for seconds, so a quick start matters more than peak speed.
CLIENT_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
HOST_OPTIONS = ("-Xmx512m", *CLIENT_OPTIONS[1:])

# By default a consumer that is refused a queue, or finds nothing to share yet, looks again after 20 s.
IMPATIENT = {"rocketmq.client.rebalance.waitInterval": "1000"}


class JavaHost(Child):
    """One JVM that runs any number of our Java programs: most of them last less than a JVM takes to start."""

    def __init__(self, version: str, serialize: Serialize, home: Path, options: Sequence[str] = HOST_OPTIONS) -> None:
        self._jobs: dict[str, JavaProgram] = {}
        self._ids = itertools.count(1)
        self._writing = threading.Lock()
        properties = {"user.home": str(home), "rocketmq.serialize.type": serialize, **IMPATIENT}
        command = java_command(Build("client", version), "interop.Host", properties, options)
        super().__init__(f"host {version} {serialize}", command, home / "stderr.log")

    @property
    def log(self) -> Path:
        return self._log

    def start(self, job: JavaProgram, program: str, words: Sequence[str]) -> str:
        """Start a job, which hears from now on what it tells; return its id."""
        job_id = str(next(self._ids))
        self._jobs[job_id] = job
        self.command("start", job_id, program, *words)
        return job_id

    def command(self, *parts: str) -> None:
        assert not any(set(part) & {"\t", "\n"} for part in parts[:-1]), parts
        with self._writing:
            self.write("\t".join(parts))

    def take(self, line: str) -> None:
        job_id, _, told = line.partition("\t")
        self._jobs[job_id].hear(told)

    def fall_silent(self) -> None:
        super().fall_silent()
        for job in list(self._jobs.values()):
            job.fall_silent()


class JavaHosts:
    """The hosts that programs of one version and serializer share, each started when first asked for."""

    def __init__(self, options: Sequence[str] = HOST_OPTIONS) -> None:
        self._options = options
        self._shared: dict[tuple[str, Serialize], JavaHost] = {}
        self._alone: list[JavaHost] = []
        self._home: tempfile.TemporaryDirectory[str] | None = None
        self._starting = threading.Lock()

    def shared(self, version: str, serialize: Serialize) -> JavaHost:
        with self._starting:
            found = self._shared.get((version, serialize))
            if found is None or found.has_ended:
                found = self._shared[version, serialize] = self._start(version, serialize)
            return found

    def alone(self, version: str, serialize: Serialize) -> JavaHost:
        """Start a host for one program only."""
        with self._starting:
            self._alone.append(self._start(version, serialize))
            return self._alone[-1]

    def _start(self, version: str, serialize: Serialize) -> JavaHost:
        if self._home is None:
            self._home = tempfile.TemporaryDirectory(prefix="interop-java-")
        return JavaHost(version, serialize, Path(tempfile.mkdtemp(dir=self._home.name)), self._options)

    def close(self) -> None:
        """End all of them."""
        for host in (*self._shared.values(), *self._alone):
            host.kill()
        if self._home is not None:
            self._home.cleanup()
        self._shared, self._alone, self._home = {}, [], None


hosts = JavaHosts()


class JavaProgram(Speaker):
    """One of our Java programs, in a shared JVM, or `alone` in one of its own, so that it can be killed.

    Lines that tell its state are kept apart from those that tell of messages.
    """

    def __init__(
        self,
        version: str,
        program: str,
        arguments: Mapping[str, object],
        serialize: Serialize = "JSON",
        *,
        alone: bool = False,
        among: JavaHosts = hosts,
    ) -> None:
        self.messages: list[Line] = []
        self.assigned: list[str] = []
        self.state: Line = {}
        self._failure = ""
        self._alone = alone
        self._host = among.alone(version, serialize) if alone else among.shared(version, serialize)
        super().__init__(f"{program} {version}", self._host.log)
        self._id = self._host.start(self, program, [f"{key}={_word(value)}" for key, value in arguments.items()])

    def take(self, line: str) -> None:
        super().take(line)
        content: Line = json.loads(line)
        if "ended" in content:
            self._failure = content.get("error", "")
            self._silent = True
        elif "assigned" in content:
            self.assigned = content["assigned"]
        elif content.keys() & {"ready", "done", "committed"}:
            self.state.update(content)
        else:
            self.messages.append(content)

    def write(self, line: str) -> None:
        self._host.command("line", self._id, line)

    def wait_ready(self) -> None:
        self.wait_line('"ready"', READY_TIMEOUT_S)

    def wait_messages(self, count: int, timeout_s: float = RUN_TIMEOUT_S) -> list[Line]:
        """The first count messages at least, in the order they came; more may have come meanwhile."""
        return self.wait_until(
            lambda: list(self.messages) if len(self.messages) >= count else None,
            timeout_s,
            f"{count} messages (it has {len(self.messages)} when this wait begins)",
        )

    def wait_assigned(self, count: int, timeout_s: float = READY_TIMEOUT_S) -> list[str]:
        """The queues it holds, as "broker:queue", once there are exactly count."""
        return self.wait_until(
            lambda: list(self.assigned) if len(self.assigned) == count else None, timeout_s, f"{count} queues"
        )

    def finish(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Ask it to end, and wait until it has ended well."""
        self._end(timeout_s)
        if self._failure:
            raise self.error("failed")

    def end(self) -> list[Line]:
        """Ask it to end, wait until it has, and hand out every message it told of."""
        self.finish()
        return self.messages

    def stop(self) -> None:
        """End it, however it ends. Safe to call on one that has ended."""
        if self._alone:
            self._host.kill()
        else:
            self._end(END_TIMEOUT_S)

    def kill(self) -> None:
        """End it in the midst of whatever it does."""
        assert self._alone, "others are in the same JVM"
        self._host.kill()

    def _end(self, timeout_s: float) -> None:
        if not self._silent:
            self._host.command("close", self._id)
            self.wait_until(lambda: self._silent or None, timeout_s, "an end")

    def error(self, problem: str) -> ChildError:
        return ChildError(f"{super().error(problem)}\n{self._failure}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Query(JavaProgram):
    """The Query program: one call per line, one answer per call."""

    def __init__(self, version: str, namesrv: str) -> None:
        super().__init__(version, "Query", {"namesrv": namesrv})
        self.wait_ready()

    def call(self, name: str, **arguments: object) -> Any:
        """The result of a call that must succeed."""
        answer = self.ask(name, **arguments)
        if not answer["ok"]:
            raise self.error(f"{name} {arguments} was refused: {answer}")
        return answer["result"]

    def ask(self, name: str, **arguments: object) -> Line:
        """The whole answer: ok and result, or the code and error of a refusal."""
        asked = len(self.messages)
        self.write("\t".join([name, *(f"{key}={_word(value)}" for key, value in arguments.items())]))
        return self.wait_messages(asked + 1)[asked]


def run_java(
    version: str,
    program: str,
    arguments: Mapping[str, object],
    serialize: Serialize = "JSON",
    timeout_s: float = RUN_TIMEOUT_S,
) -> JavaProgram:
    """Run a program that ends by itself to its end."""
    with JavaProgram(version, program, arguments, serialize) as running:
        running.wait_line('"done"', timeout_s)
        running.finish()
    return running


def mqadmin(
    version: str, words: Sequence[str], said: str, home: Path, defines: Mapping[str, str] | None = None
) -> None:
    """Run a verb as an operator does; `said` is what it says when it has done it.

    It gives a broker 5 s to answer, which one that has just started may not keep; then it is asked again, and may have
    done it the first time.
    """
    startup = "org.apache.rocketmq.tools.command.MQAdminStartup"
    properties = {"user.home": str(home), **(defines or {})}
    command = [*java_command(Build("client", version), startup, properties, CLIENT_OPTIONS), *words]
    env = {**os.environ, "ROCKETMQ_HOME": str(home)}
    for _ in range(ADMIN_TRIES):
        done = subprocess.run(command, capture_output=True, text=True, timeout=ADMIN_TIMEOUT_S, env=env, check=False)
        if said in done.stdout or "existed" in done.stdout + done.stderr:
            return
    raise AssertionError(done)


def java_command(build: Build, main: str, properties: Mapping[str, str], options: Sequence[str]) -> list[str]:
    defines = [f"-D{key}={value}" for key, value in properties.items()]
    return ["java", *options, *defines, "-cp", build.classpath, main]


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

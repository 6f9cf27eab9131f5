"""Run the Java programs under java/ against one client version; what they print comes back as dicts."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from interop.child import Child
from interop.setup import Build

Serialize = Literal["JSON", "ROCKETMQ"]
Line = dict[str, Any]

READY_TIMEOUT_S = 60
END_TIMEOUT_S = 60
RUN_TIMEOUT_S = 120
ADMIN_TIMEOUT_S = 60
ADMIN_TRIES = 3
# One JVM per program: they live for seconds, so a quick start matters more than peak speed.
CLIENT_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

# By default a 4.x consumer that is refused a queue asks again after 20 s.
IMPATIENT = {"rocketmq.client.rebalance.waitInterval": "1000"}


class JavaProgram(Child):
    """One of our Java programs. Lines that tell its state are kept apart from those that tell of messages."""

    def __init__(
        self,
        version: str,
        program: str,
        arguments: Mapping[str, object],
        home: Path,
        serialize: Serialize = "JSON",
        defines: Mapping[str, str] | None = None,
    ) -> None:
        self.messages: list[Line] = []
        self.assigned: list[str] = []
        self.state: Line = {}
        properties = {"user.home": str(home), "rocketmq.serialize.type": serialize, **(defines or {})}
        words = [f"{key}={_word(value)}" for key, value in arguments.items()]
        command = java_command(Build("client", version), f"interop.{program}", properties, CLIENT_OPTIONS)
        # Java reads its arguments in the locale's encoding, and a bare machine's locale knows only ASCII.
        env = {**os.environ, "LC_ALL": "C.UTF-8"}
        super().__init__(f"{program} {version}", [*command, *words], home / f"{program}.log", env)

    def take(self, line: str) -> None:
        super().take(line)
        content: Line = json.loads(line)
        if "assigned" in content:
            self.assigned = content["assigned"]
        elif content.keys() & {"ready", "done", "committed"}:
            self.state.update(content)
        else:
            self.messages.append(content)

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

    def end(self) -> list[Line]:
        """Ask it to end, wait until it has, and hand out every message it told of."""
        self.finish(END_TIMEOUT_S)
        return self.messages


class Query(JavaProgram):
    """The Query program: one call per line, one answer per call."""

    def __init__(self, version: str, namesrv: str, home: Path, serialize: Serialize = "JSON") -> None:
        super().__init__(version, "Query", {"namesrv": namesrv}, home, serialize)
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
    home: Path,
    serialize: Serialize = "JSON",
    defines: Mapping[str, str] | None = None,
    timeout_s: float = RUN_TIMEOUT_S,
) -> JavaProgram:
    """Run a program that ends by itself to its end."""
    with JavaProgram(version, program, arguments, home, serialize, defines) as running:
        running.wait_line('"done"', timeout_s)
        running.finish(END_TIMEOUT_S)
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

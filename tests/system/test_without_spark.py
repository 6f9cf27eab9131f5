"""Without pyspark or Java, everything but Spark works, and what needs Spark says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SPARK = ("grpc", "numpy", "pandas", "py4j", "pyarrow", "pyspark", "yaml")
# None in sys.modules is what Python itself leaves for a module that cannot be imported.
WITHOUT_SPARK = f"import sys; sys.modules.update(dict.fromkeys({SPARK!r}))\n"

# A PySpark of long ago, or what is left of one.
OLD_SPARK = "import sys; sys.modules['pyspark.sql.streaming.datasource'] = None\n"

EVERYTHING = """
import importlib, pkgutil, cosmodrome, cosmodrome.spark
for module in pkgutil.walk_packages(cosmodrome.__path__, "cosmodrome."):
    part = module.name.split(".")[1]
    if part not in ("spark", "pipelines", "__main__"):
        importlib.import_module(module.name)
from cosmodrome import Message
from cosmodrome.testing import cluster
with cluster() as made:
    made.create_topic("orders", queues=1)
    with made.producer() as producer:
        producer.send(Message("orders", b"1"))
    print(*(message.body.decode() for message in made.messages("orders")))
"""
SESSION = """
from cosmodrome.spark import session
session()
"""
QUIET_SESSION = """
from cosmodrome.spark import quiet_session
quiet_session()
"""
REGISTER = """
from cosmodrome.spark import register
register(None)
"""
LISTENER = """
from cosmodrome.spark import lag_listener
lag_listener()
"""
# As Spark's own look-up does.
LOOKED_UP = """
import pyspark_rocketmq, pyspark_rocketmq_store
print(*(hasattr(module, "DefaultSource") for module in (pyspark_rocketmq, pyspark_rocketmq_store)))
"""
COMMAND = """
from cosmodrome.cli.main import main
main()
"""


def run(code: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **env}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_everything_else_works_without_spark() -> None:
    done = run(WITHOUT_SPARK + EVERYTHING)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize("call", [SESSION, QUIET_SESSION, REGISTER, LISTENER])
def test_what_needs_spark_says_what_to_install(call: str) -> None:
    done = run(WITHOUT_SPARK + call)
    assert done.returncode == 1
    assert "pip install 'cosmodrome[spark]', and install a Java 17 runtime or later" in done.stderr


@pytest.mark.parametrize("call", [SESSION, QUIET_SESSION, REGISTER, LISTENER])
def test_an_old_spark_is_called_what_it_is(call: str) -> None:
    done = run(OLD_SPARK + call)
    assert done.returncode == 1
    assert "this PySpark is too old: pip install 'cosmodrome[spark]' brings 4.3 or later" in done.stderr


@pytest.mark.parametrize(("before", "found"), [(WITHOUT_SPARK, "False"), (OLD_SPARK, "False"), ("", "True")])
def test_who_cannot_read_topics_still_finds_the_sources_of_others(before: str, found: str) -> None:
    done = run(before + LOOKED_UP)
    assert (done.returncode, done.stdout) == (0, f"{found} {found}\n"), done.stderr


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"PATH": "{empty}", "JAVA_HOME": ""}, "no Java was found. Spark needs Java 17 or later: install a JRE"),
        ({"JAVA_HOME": "{empty}"}, "no Java was found in JAVA_HOME, {empty}. Spark needs Java 17 or later"),
        ({"JAVA_HOME": "{broken}"}, "Spark did not start; what it said stands above. Spark needs Java 17 or later"),
    ],
)
def test_a_session_without_java_says_what_to_install(tmp_path: Path, env: dict[str, str], said: str) -> None:
    places = {"empty": tmp_path / "empty", "broken": tmp_path / "broken"}
    for place in places.values():
        (place / "bin").mkdir(parents=True)
    java = places["broken"] / "bin" / "java"
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    done = run(SESSION, **{name: value.format(**places) for name, value in env.items()})
    assert done.returncode == 1
    assert said.format(**places) in done.stderr


@pytest.mark.parametrize("words", [["sql", "select 1"], ["pipeline", "run", "{file}"]])
def test_commands_say_what_to_install(tmp_path: Path, words: list[str]) -> None:
    file = tmp_path / "archive.yaml"
    assert run(COMMAND, "pipeline", "init", "archive", "--to", str(file)).returncode == 0
    words = [word.format(file=file) for word in words]
    without_spark = run(WITHOUT_SPARK + COMMAND, *words)
    without_java = run(COMMAND, *words, JAVA_HOME=str(tmp_path))
    for done, said in ((without_spark, "cosmodrome[spark]"), (without_java, "Spark needs Java 17 or later")):
        assert done.returncode == 2, done.stdout
        assert done.stderr.startswith("Error: ")
        assert said in done.stderr

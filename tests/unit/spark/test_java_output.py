"""Standard error of the Java that Spark starts: every byte of it, but for one warning."""

from __future__ import annotations

import subprocess
import sys

WARNING = "WARNING: Using incubator modules: jdk.incubator.vector"

# Java as a shell script: it writes in pieces, and goes on after Spark has started.
CODE = """
import subprocess, sys
from cosmodrome.spark.java_output import java_warning_dropped
with java_warning_dropped():
    java = subprocess.Popen(["sh", "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    java.stdout.readline()
    if sys.argv[2] == "fails":
        java.communicate()
        raise RuntimeError("Spark did not start")
java.communicate()
import threading
[thread.join() for thread in threading.enumerate() if thread.name == "java-stderr"]
"""


def told(java: str, outcome: str = "starts") -> str:
    command = [sys.executable, "-c", CODE, java, outcome]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stderr


def test_the_warning_is_dropped_and_everything_else_is_written() -> None:
    before = f"echo '{WARNING}' >&2; echo kept >&2; echo ready"
    after = f"read wait; printf 'WARNING: Using' >&2; printf ' much\\n{WARNING}' >&2; printf '\\nWARN' >&2"
    assert told(f"{before}; {after}") == "kept\nWARNING: Using much\nWARN"


def test_why_spark_did_not_start_is_written_before_it_is_told() -> None:
    java = f"echo ready; read wait; echo '{WARNING}' >&2; echo 'no room for the heap' >&2"
    said = told(java, "fails")
    assert said.startswith("no room for the heap\nTraceback")
    assert said.endswith("RuntimeError: Spark did not start\n")


def test_a_process_without_standard_error_starts_spark_as_well() -> None:
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", CODE, "echo ready; read wait", "starts"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60, check=False).returncode == 0

"""Processes that tests start end with the test run, also when that is killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

PATIENCE_SECONDS = 60
STARTER = """
import subprocess, sys
from interop.child import bound
child = subprocess.Popen(
    bound([sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"]),
    stdout=subprocess.PIPE, start_new_session=True,
)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def test_a_child_with_a_session_of_its_own_dies_with_a_killed_run() -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    with starter.stdout as output:
        child = int(output.readline())
    watched = os.pidfd_open(child)
    try:
        starter.kill()
        starter.wait(PATIENCE_SECONDS)
        ended, _, _ = select.select([watched], [], [], PATIENCE_SECONDS)
        assert ended, "it lives on"
    finally:
        os.close(watched)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

"""Small programs in processes of their own, which use a client the way a user might."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.bounded import run_to_end

PATIENCE_SECONDS = 60


async def ran(source: str, *arguments: str, home: Path | None = None, options: tuple[str, ...] = ()) -> list[str]:
    """The lines a program wrote, which must have ended by itself, well, and without a word on stderr."""
    done = await ended(source, *arguments, home=home, options=options)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


async def ended(
    source: str, *arguments: str, home: Path | None = None, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
    if home is not None:
        environment["HOME"] = str(home)
    command = [sys.executable, *options, "-c", textwrap.dedent(source), *arguments]
    return await asyncio.to_thread(run_to_end, command, PATIENCE_SECONDS, env=environment)

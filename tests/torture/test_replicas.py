"""Masters killed under load from Python and Java, their slaves promoted: `make torture`.

SEED chooses moments, MASTER_KILLS says how many masters are killed. PRODUCERS=python leaves out Java's, which need
`python -m interop.setup`. A failure leaves both stores behind.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from interop.java import JavaProgram, hosts
from interop.setup import CLIENT_VERSIONS
from tests.system.replica_lives import POLL_ROUTE_MS, QUEUES, Ledger, PythonSenders, ReplicaLives, Senders
from tests.system.replicated import NAME, TOPIC

SEED = int(os.environ.get("SEED") or 1)
MASTER_KILLS = int(os.environ.get("MASTER_KILLS") or 200)
PRODUCERS = (os.environ.get("PRODUCERS") or "python,java").split(",")
PROGRESS = 10
JAVA_VERSION = CLIENT_VERSIONS[SEED % len(CLIENT_VERSIONS)]
JAVA_THREADS = 6


class JavaSenders:
    """Threads of one of Apache's producers, each a sender that repeats what failed."""

    kind = f"java {JAVA_VERSION}"

    async def start(self, namesrv: str, ledger: Ledger) -> None:
        self._loop = asyncio.get_running_loop()
        self._ledger = ledger
        words = {"namesrv": namesrv, "group": "java-lives", "topic": TOPIC, "brokerName": NAME, "queues": QUEUES}
        words |= {"threads": JAVA_THREADS, "pollMs": POLL_ROUTE_MS}
        self._program = await asyncio.to_thread(self._run, words)

    def _run(self, words: dict[str, object]) -> JavaProgram:
        program = _Told(self._hear, words)
        program.wait_ready()
        return program

    def _hear(self, line: dict[str, Any]) -> None:
        """Called on the thread that reads what Java tells."""
        self._loop.call_soon_threadsafe(self._note, line)

    def _note(self, line: dict[str, Any]) -> None:
        one = line["sender"], line["number"]
        self._ledger.tries[one] = line["tries"]
        if line["status"] == "FAILED":
            self._ledger.note_failure(self.kind, line["begunMs"])
        else:
            self._ledger.note(self.kind, line["status"], (one,), line["queueId"], line["queueOffset"])

    async def stop(self) -> None:
        await asyncio.to_thread(self._program.finish)
        await asyncio.to_thread(hosts.close)


class _Told(JavaProgram):
    """A program whose lines are handed on as they come."""

    def __init__(self, hear: Callable[[dict[str, Any]], None], words: dict[str, object]) -> None:
        self._hand_on = hear
        super().__init__(JAVA_VERSION, "Outlast", words)

    def take(self, line: str) -> None:
        super().take(line)
        told, self.messages, self.lines = self.messages, [], self.lines[-20:]
        for one in told:
            self._hand_on(one)


KINDS: dict[str, type[Senders]] = {"python": PythonSenders, "java": JavaSenders}


def test_masters_are_killed(tmp_path: Path) -> None:
    kinds = tuple(KINDS[kind]() for kind in PRODUCERS)
    lives = ReplicaLives(f"seed {SEED}", tmp_path / "pair", Random(SEED), kinds)
    try:
        asyncio.run(lives.run(MASTER_KILLS, PROGRESS))
    except BaseException:
        print(f"seed {SEED}: the stores are in {lives.folder}", flush=True)
        raise
    finally:
        hosts.close()
    lives.check_cruelty()

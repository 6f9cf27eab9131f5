"""What a slave that hangs or is slow costs its ASYNC_MASTER: the latency of sends, and the master's own memory."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Effort, Figure, Trial
from benchmarks.targets import SLAVE_TIMEOUT_S, Target, start_our_master_and_slave, start_ours
from benchmarks.workloads import SEND
from cosmodrome.codes import RequestCode
from cosmodrome.wire.bodies import KVTable
from cosmodrome.wire.command import Command

CONNECTIONS = 4  # one in flight each: at full load the slave and its master would compete for the processors
WORKLOAD = replace(SEND, title=f"send 128 B, {CONNECTIONS} × 1", connections=CONNECTIONS)
P99_BUDGET = 1.2  # times that without a slave
SLOW_STOPPED_S, SLOW_RUNNING_S = 0.09, 0.01
CAUGHT_UP_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class LaggingFigure:
    """Sends to a master whose slave is in this state; how much memory of its own the master got meanwhile."""

    slave: str
    figure: Figure
    grown_kb: int

    def to_json(self) -> dict[str, Any]:
        return {"slave": self.slave, "grown_kb": self.grown_kb, **self.figure.to_json()}


@dataclass(slots=True)
class _Case:
    slave: str
    trial: Trial
    state: Callable[[], AbstractContextManager[None]]
    has_slave: bool = True
    grown_kb: int = 0

    def round(self) -> None:
        before_kb = own_memory_kb(self.trial.target.pid)
        with self.state():
            self.trial.round()
            self.grown_kb = max(self.grown_kb, own_memory_kb(self.trial.target.pid) - before_kb)
        if self.has_slave:
            wait_caught_up(self.trial.target)


def measure_lagging(home: Path, effort: Effort) -> list[LaggingFigure]:
    """Rounds with each state in turn. A slave is let go on after its round, and has caught up before the next one."""
    with ExitStack() as stack:
        cases = [_Case("none", Trial(start_ours(home / "single", stack), WORKLOAD, effort), nullcontext, False)]
        for name, state in STATES.items():
            target, slave = start_our_master_and_slave(home / name, stack, "ASYNC_MASTER")
            cases.append(_Case(name, Trial(target, WORKLOAD, effort), partial(state, slave.pid)))
        for case in cases:
            case.trial.prepare()
            case.trial.warm_up(case.trial.target.warm_up_s * effort.warm_up)
        for _ in range(effort.rounds):
            for case in cases:
                case.round()
        return [LaggingFigure(case.slave, case.trial.finish(), case.grown_kb) for case in cases]


def _healthy(_pid: int) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _hung(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def _slow(pid: int) -> Iterator[None]:
    """Let the slave run a tenth of the time."""
    ended = threading.Event()

    def hold_back() -> None:
        while not ended.wait(SLOW_RUNNING_S):
            with _hung(pid):
                ended.wait(SLOW_STOPPED_S)

    thread = threading.Thread(target=hold_back)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


STATES: dict[str, Callable[[int], AbstractContextManager[None]]] = {"healthy": _healthy, "hung": _hung, "slow": _slow}


def own_memory_kb(pid: int) -> int:
    """Return how much memory a process has that is no file's."""
    found = re.search(r"^Anonymous: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None, "Linux tells it"
    return int(found[1])


def wait_caught_up(master: Target) -> None:
    deadline = time.monotonic() + SLAVE_TIMEOUT_S
    while True:
        reply = master.call(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        table = KVTable.decode(reply.body).table
        if (table["slaves"], table["slaveBehindBytesMax"]) == ("1", "0") or time.monotonic() > deadline:
            return
        time.sleep(CAUGHT_UP_INTERVAL_S)

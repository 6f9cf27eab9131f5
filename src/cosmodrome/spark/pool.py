"""Connections that outlive a task: Spark reuses its Python processes, and a connection is dear."""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cosmodrome.spark.link import Cluster
from cosmodrome.spark.options import LinkOptions


@dataclass(frozen=True, slots=True)
class _Idle:
    cluster: Cluster
    stale_at: float


# By process, as a forked one inherits what is its parent's.
_idle: dict[tuple[int, LinkOptions], list[_Idle]] = {}
_lock = threading.Lock()


@contextmanager
def connected(options: LinkOptions) -> Iterator[Cluster]:
    """A cluster for one user at a time, with connections from earlier use where they are still fresh.

    After a failure they are closed: nobody knows what is still under way on them.
    """
    cluster = _taken(options) or Cluster(options)
    cluster.forget_routes()  # who was master in another task need not be now
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    idle = _Idle(cluster, time.monotonic() + options.idle_ms / 1000)
    with _lock:
        _idle.setdefault((os.getpid(), options), []).append(idle)


def _taken(options: LinkOptions) -> Cluster | None:
    with _lock:
        _close_stale(time.monotonic())
        kept = _idle.get((os.getpid(), options))
        return kept.pop().cluster if kept else None


def _close_stale(now: float) -> None:
    """Also those to clusters that nobody asks for any more."""
    for (pid, _), kept in _idle.items():
        if pid == os.getpid():
            for idle in kept:
                if idle.stale_at <= now:
                    idle.cluster.close()
            kept[:] = [idle for idle in kept if idle.stale_at > now]


atexit.register(_close_stale, math.inf)

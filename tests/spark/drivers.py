"""Queries in processes of their own, which can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from cosmodrome.testing import Cluster
from interop.child import bound
from tests.spark.helpers import fill, numbered

PROGRAM = Path(__file__).with_name("mortal_driver.py")
DEADLINE_SECONDS = 300


def prepare(cluster: Cluster, rows: int) -> None:
    """So many messages in `rows`; `copies` is empty."""
    cluster.create_topic("copies", queues=3)
    cluster.create_topic("rows", queues=2)
    fill(cluster, "rows", numbered(0, rows // 2), queue_id=0)
    fill(cluster, "rows", numbered(rows // 2, rows), queue_id=1)


def copies(cluster: Cluster) -> Counter[int]:
    return Counter(int(message.body) for message in cluster.messages("copies"))


class Driver:
    """The query from `rows` to `copies`, in a process of its own."""

    def __init__(self, cluster: Cluster, checkpoint: Path, fault: str = "") -> None:
        args = [sys.executable, str(PROGRAM), cluster.namesrv, "rows", "copies", str(checkpoint), fault]
        # A session of its own tells its processes from others. Nothing that is done to ours reaches it, so it is bound.
        self._process = subprocess.Popen(
            bound(args), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def ended(self) -> int:
        try:
            return self._process.wait(DEADLINE_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """With all of Spark's processes: its Python daemons lead groups of their own, but no sessions."""
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.getsid(int(path.name)) == self._process.pid:
                    os.kill(int(path.name), signal.SIGKILL)
        self._process.wait(DEADLINE_SECONDS)

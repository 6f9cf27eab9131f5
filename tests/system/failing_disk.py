"""`cosmodrome` on a disk that fails:

    python -m tests.system.failing_disk FOLDER ERRNO KIND,KIND… python -m cosmodrome …

The words from the second `python` on are those of `Daemon`. From SIGUSR1 on, what the command asks of the disk below
FOLDER fails with ERRNO, if it is of these kinds.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from cosmodrome.cli.main import main
from cosmodrome.testing.faulty_disk import Fault, FaultyDisk, Kind


def fail_from_signal_on(folder: Path, errno: int, kinds: frozenset[Kind], command: list[str]) -> None:
    with FaultyDisk(folder, watch=False) as disk:

        def fail(*_signal: object) -> None:
            disk.fault = Fault(0, errno, lasting=True, kinds=kinds)

        signal.signal(signal.SIGUSR1, fail)
        main(command)


if __name__ == "__main__":
    fail_from_signal_on(Path(sys.argv[1]), int(sys.argv[2]), frozenset(map(Kind, sys.argv[3].split(","))), sys.argv[7:])

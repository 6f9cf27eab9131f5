"""`cosmodrome` with a date that a test sets: the shift in milliseconds is read from a file, given first.

It stands for a machine whose clock is set; only the date is shifted, time passes as it does.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

_real_time_ns = time.time_ns


def shift(control: Path) -> None:
    """From now on `time.time` and `time.time_ns` are ahead by what the file says whenever they are asked."""

    def time_ns() -> int:
        return _real_time_ns() + int(control.read_text() or 0) * 1_000_000

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1_000_000_000


if __name__ == "__main__":
    shift(Path(sys.argv.pop(1)))
    from cosmodrome.cli.main import main

    main()

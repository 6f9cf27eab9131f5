"""Standard error of the Java that Spark starts, without the warning that each start prints and that means nothing.

Spark asks Java for its vector module, and Java warns of it before it has read a setting. So the line is taken out of
what Java writes, between Java and the terminal.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

DROPPED = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
STDERR = 2
CHUNK_BYTES = 65_536
LAST_WORDS_SECONDS = 5.0


@contextmanager
def java_warning_dropped() -> Iterator[None]:
    """Let the programs that start in the block write standard error through a thread that drops the warning.

    The thread goes on as long as one of them runs. A process without standard error has nothing to drop.
    """
    try:
        terminal = os.dup(STDERR)
    except OSError:
        yield
        return
    reading, writing = os.pipe()
    copier = threading.Thread(target=_copy, args=(reading, terminal), name="java-stderr", daemon=True)
    copier.start()
    os.dup2(writing, STDERR)
    os.close(writing)
    try:
        yield
    except Exception:
        os.dup2(terminal, STDERR)
        copier.join(LAST_WORDS_SECONDS)  # a Java that did not start says why, and has ended
        raise
    except BaseException:  # Ctrl-C: Java may go on for a while
        os.dup2(terminal, STDERR)
        raise
    os.dup2(terminal, STDERR)


def _copy(source: int, target: int) -> None:
    """Copy what comes, without the warning, until the last writer has ended."""
    pending = b""
    try:
        while chunk := os.read(source, CHUNK_BYTES):
            pending = (pending + chunk).replace(DROPPED, b"")
            held = _start_of_warning(pending)
            _write(target, pending[: len(pending) - held])
            pending = pending[len(pending) - held :]
        _write(target, pending)
    except OSError:
        pass  # standard error is closed; its writer gets an error of its own
    finally:
        os.close(source)
        os.close(target)


def _start_of_warning(data: bytes) -> int:
    """Return how many bytes at the end of `data` may be the beginning of the warning."""
    return next((size for size in range(len(DROPPED) - 1, 0, -1) if data.endswith(DROPPED[:size])), 0)


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]

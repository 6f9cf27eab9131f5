"""Mapped memory that the system cannot provide: the process ends with a sentence, never without a word."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cosmodrome.store.lock import AbortMark, Exit
from tests.bounded import run_to_end
from tests.system.small_disk import SmallDisk

PATIENCE_SECONDS = 60
SIZE = 8 * 1024 * 1024
PROGRAM = """
import mmap, os, sys, threading, zlib
from pathlib import Path
from cosmodrome.store.lock import AbortMark
from cosmodrome.store.memory_faults import tell_memory_faults

folder, size, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
tell_memory_faults()
mark = AbortMark(folder / "abort")
mark.set()
if how == "after a failure":
    mark.note_failure()
fd = os.open(folder / "file", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, size)
data = mmap.mmap(fd, size)
if how != "full":
    os.ftruncate(fd, 5000)
if how == "in a thread without the lock":
    threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
    zlib.crc32(data)
elif how == "read":
    data[8192]
else:
    for at in range(0, size, 4096):
        data[at : at + 5] = b"hello"
print("not reached")
"""


def end_of(folder: Path, how: str, *within: str) -> subprocess.CompletedProcess[str]:
    return run_to_end([*within, sys.executable, "-c", PROGRAM, str(folder), str(SIZE), how], PATIENCE_SECONDS)


@pytest.mark.parametrize("how", ["read", "write", "in a thread without the lock"])
def test_a_file_that_is_cut_under_its_user_is_named(tmp_path: Path, how: str) -> None:
    done = end_of(tmp_path, how)
    place = re.escape(f"{tmp_path / 'file'} cannot be used at byte 8") + r"\d\d\d \(SIGBUS\)"
    said = re.fullmatch(f"Error: ({place}: another program cut it to 5000 bytes; .*)\n", done.stderr)
    assert done.returncode == 1
    assert said is not None, done.stderr
    mark = AbortMark(tmp_path / "abort")
    assert mark.last_exit() is Exit.KILLED
    assert mark.last_words == said[1]


def test_a_failed_disk_stays_one(tmp_path: Path) -> None:
    """A mark that says so must not be replaced by one after which memory is trusted."""
    assert end_of(tmp_path, "after a failure").returncode == 1
    assert AbortMark(tmp_path / "abort").last_exit() is Exit.DISK_FAILURE


@pytest.mark.skipif(not SmallDisk.is_possible(), reason="no namespaces here")
def test_a_hole_on_a_full_disk_is_named(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", SIZE // 2) as disk:
        done = end_of(disk.mount, "full", *disk.command())
        assert done.returncode == 1
        assert f"{disk.mount / 'file'} cannot be used at byte" in done.stderr
        assert "its disk has no room; make some before the next start" in done.stderr
        assert (AbortMark(disk.path / "abort").last_words or "nothing") in done.stderr

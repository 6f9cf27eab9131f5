"""A real disk of a few MB that can be full, read-only or gone: a tmpfs in a mount namespace of its own.

Whoever may not make namespaces (`SmallDisk.is_possible`) tests with `cosmodrome.testing.FaultyDisk` instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 64 * 1024
_PATIENCE_SECONDS = 60


class SmallDisk:
    """A tmpfs that is mounted on `mount` for the processes started with `command`, and for nobody else.

    `path` is the way there for everybody else. What is on the disk goes with it at the end of the block.
    """

    def __init__(self, mount: Path, size_bytes: int) -> None:
        self.mount = mount
        self._size_bytes = size_bytes

    def __enter__(self) -> Self:
        self.mount.mkdir(parents=True, exist_ok=True)
        self._holder = subprocess.Popen(
            [
                *_NAMESPACE,
                "sh",
                "-c",
                f'{_MOUNT} -o size={self._size_bytes} none "$0" && echo ready && exec cat',
                self.mount,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._holder.stdout is not None
        said = self._holder.stdout.readline()
        assert said == b"ready\n", said
        self.path = Path(f"/proc/{self._holder.pid}/root{self.mount}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.send_signal(signal.SIGKILL)
        self._holder.communicate(timeout=_PATIENCE_SECONDS)

    @staticmethod
    @cache
    def is_possible() -> bool:
        """Return whether this process may mount a disk of its own."""
        try:
            done = subprocess.run(
                [*_NAMESPACE, "sh", "-c", f"{_MOUNT} none /mnt && nsenter --version"], capture_output=True, check=False
            )
        except FileNotFoundError:
            return False
        return done.returncode == 0

    def command(self, *words: str) -> tuple[str, ...]:
        """The words of a command that sees the disk."""
        return ("nsenter", "-t", str(self._holder.pid), "-U", "-m", "--preserve-credentials", *words)

    @property
    def free_bytes(self) -> int:
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Let something else take the room that is left, but for `leave_bytes`."""
        with (self.path / "ballast").open("ab", buffering=0) as ballast:
            while (free := self.free_bytes - leave_bytes) > 0:
                ballast.write(bytes(min(free, _CHUNK_BYTES)))

    def free(self) -> None:
        """Give back what `fill` took."""
        (self.path / "ballast").unlink(missing_ok=True)

    def set_read_only(self, read_only: bool = True) -> None:
        """Mount it again, as a system does whose disk fails."""
        mode = "ro" if read_only else "rw"
        subprocess.run(self.command("mount", "-o", f"remount,{mode}", str(self.mount)), check=True)


_NAMESPACE = ("unshare", "--map-root-user", "--mount")
_MOUNT = "mount -t tmpfs"

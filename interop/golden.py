"""Write tests/golden anew with Apache's own classes: `python -m interop.golden`."""

import subprocess
import sys
import tempfile
from pathlib import Path

from interop.apache import OPENED
from interop.java import CLIENT_OPTIONS, java_command
from interop.setup import SERVER_VERSIONS, Build

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "golden"
RUN_TIMEOUT_S = 120


class GoldenError(Exception):
    """The Java side could not write its files; the text carries what it said."""


def write_golden(version: str, folder: Path) -> None:
    """Everything java/golden writes with the classes of one version."""
    with tempfile.TemporaryDirectory() as scratch:
        options = [*CLIENT_OPTIONS, *OPENED]
        command = java_command(Build("server", version), "golden.Golden", {"user.home": scratch}, options)
        arguments = [str(folder), str(Path(scratch) / "scratch")]
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )
    if done.returncode != 0:
        raise GoldenError(f"golden files of {version}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def main() -> int:
    for version in SERVER_VERSIONS:
        folder = FOLDER / version
        for old in folder.glob("*"):
            old.unlink()
        write_golden(version, folder)
        print(f"golden: {len(list(folder.iterdir()))} files in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

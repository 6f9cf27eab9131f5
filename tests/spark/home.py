"""A home for the Sparks of tests: they start sooner there, and what they leave goes with it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Sparks of tests end before the optimising compiler and a collector with threads of its own have earned their keep.
# With one compiler Java keeps 48 MB for its code, which a whole session fills; then it stops compiling.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m"
_JAVA = f"{QUICK_JAVA} -XX:+UseSerialGC -XX:-UsePerfData"
_OPTIONS = "JDK_JAVA_OPTIONS"


@contextmanager
def spark_home() -> Iterator[dict[str, str]]:
    """Settings for the environment of Sparks, as long as the block lasts.

    Spark's Python processes look for `pyspark` first in an archive below SPARK_HOME, and each of them compiles what it
    finds there. This home has no archive, so they take the installed package, which is the same, with its bytecode.
    Temporary files of killed Sparks and folders of executors stay below the home, whose name is short: paths of sockets
    are.
    """
    folder = Path(tempfile.mkdtemp(prefix="sparks-"))
    try:
        found = importlib.util.find_spec("pyspark")
        assert found is not None
        assert found.origin is not None
        for entry in Path(found.origin).parent.iterdir():
            if entry.name != "python":
                (folder / entry.name).symlink_to(entry)
        temporary = folder / "tmp"
        temporary.mkdir()
        java = os.environ.get(_OPTIONS, _JAVA)
        yield {"SPARK_HOME": str(folder), _OPTIONS: f"{java} -Djava.io.tmpdir={temporary}"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)

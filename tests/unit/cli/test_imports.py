"""Commands import what they use: short ones are mostly imports, and they run in loops of scripts."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("cosmodrome.admin", "cosmodrome.broker", "cosmodrome.spark", "rich", "yaml", "uvloop", "pyspark")


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["--version"], (*HEAVY, "cosmodrome.client", "asyncio")),
        (["--help"], (*HEAVY, "cosmodrome.client", "asyncio")),
        (["explain", "17"], (*HEAVY, "cosmodrome.client", "asyncio")),
        (["context", "list"], (*HEAVY, "cosmodrome.client", "asyncio")),
        (["send", "t", "body", "-n", "127.0.0.1:1"], (*HEAVY, "cosmodrome.cli.contexts", "cosmodrome.cli.bulk")),
    ],
)
def test_a_short_command_imports_nothing_heavy(words: list[str], unwanted: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom cosmodrome.cli.main import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = done.stderr.splitlines()[-1].split()
    assert [name for name in loaded if name.startswith(unwanted)] == []

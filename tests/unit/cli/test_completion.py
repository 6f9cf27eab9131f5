"""Completion in shells: commands, options and the names of contexts, without the imports of the commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cosmodrome.cli.contexts import Context, Contexts, save


def completed(words: str, home: Path, *options: str) -> str:
    """Return what bash would be told after `words`."""
    environment = {
        **os.environ,
        "XDG_CONFIG_HOME": str(home),
        "_COSMODROME_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    code = "from cosmodrome.cli.main import main; main(prog_name='cosmodrome')"
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False).stdout


def test_commands_and_options_are_completed(tmp_path: Path) -> None:
    assert "plain,explain" in completed("cosmodrome ex", tmp_path).splitlines()
    assert "plain,--namesrv" in completed("cosmodrome find --n", tmp_path).splitlines()
    assert {"plain,add", "plain,use"} <= set(completed("cosmodrome context ", tmp_path).splitlines())


def test_contexts_are_completed(tmp_path: Path) -> None:
    save(Contexts({"prod": Context("10.0.0.1:9876")}), tmp_path / "cosmodrome" / "contexts.json")
    assert completed("cosmodrome find --context p", tmp_path).splitlines() == ["plain,prod"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str) -> None:
    environment = {**os.environ, "_COSMODROME_COMPLETE": f"{shell}_source"}
    code = "from cosmodrome.cli.main import main; main(prog_name='cosmodrome')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert "_COSMODROME_COMPLETE=" in done.stdout


def test_a_list_of_commands_imports_none_of_them(tmp_path: Path) -> None:
    code = (
        "import sys, click; from cosmodrome.cli.main import main; "
        "main.shell_complete(click.Context(main), ''); "
        "print(*(name for name in sys.modules if name.startswith('cosmodrome.') and '.cli.' not in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not [name for name in done.stdout.split() if name.startswith(("cosmodrome.broker", "cosmodrome.spark"))]

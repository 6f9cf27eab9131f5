"""A short command imports what it uses: its imports are most of what it costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from cosmodrome.cli.main import COMMANDS, main
from tests.system.daemons import PATIENCE_SECONDS, up

# Runs a command as `cosmodrome` does, and writes the modules it has imported to standard error at its end.
LISTED = """
import atexit, sys
atexit.register(lambda: sys.stderr.write("".join(f"module {name}\\n" for name in sorted(sys.modules))))
from cosmodrome.cli.main import main
main()
"""
FOR_SERVERS = ("cosmodrome.broker", "cosmodrome.nameserver", "cosmodrome.store", "cosmodrome.console")
FOR_SPARK = ("cosmodrome.spark", "cosmodrome.pipelines", "pyspark", "numpy", "pandas", "yaml")
FOR_GROUPS = ("cosmodrome.client.push_consumer", "cosmodrome.client.membership", "cosmodrome.client.held_queues")
FOR_LOOKS_AND_PAGES = ("rich", "urllib.request", "http.client")


def modules_of(*words: str) -> set[str]:
    """Run a command that must succeed, and return the names of the modules it imported."""
    command = [sys.executable, "-c", LISTED, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    return {line.removeprefix("module ") for line in done.stderr.splitlines() if line.startswith("module ")}


def parts(modules: set[str], unwanted: tuple[str, ...]) -> list[str]:
    return sorted(name for name in modules if any(name == each or name.startswith(f"{each}.") for each in unwanted))


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("cosmodrome")}


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_what_asks_nobody_imports_no_client(word: str) -> None:
    modules = modules_of(word)
    known = ("", ".cli", ".cli.main", ".cli.output", ".codes", ".errors", ".lazy")
    assert ours(modules) == {f"cosmodrome{part}" for part in known}
    assert parts(modules, ("asyncio", "orjson", "uvloop")) == []


def test_send_imports_the_sending_half_of_the_client_and_tail_the_reading_half(tmp_path: Path) -> None:
    with up(tmp_path) as daemon:
        namesrv = ("--namesrv", daemon.address("name server"))
        sent = modules_of("send", "hello", "Hello", *namesrv)
        shown = modules_of("tail", "hello", "--from", "earliest", "--limit", "1", *namesrv)
    for_others = FOR_SERVERS + FOR_SPARK + FOR_GROUPS + FOR_LOOKS_AND_PAGES
    assert parts(sent, (*for_others, "uvloop", "cosmodrome.client.queue_reader")) == []
    assert "cosmodrome.client.producer" in sent
    assert parts(shown, (*for_others, "cosmodrome.client.producer")) == []
    assert "cosmodrome.client.queue_reader" in shown


def test_the_help_says_of_each_command_what_the_command_says() -> None:
    context = click.Context(main)
    assert set(COMMANDS) <= set(main.list_commands(context))
    for name, (_, line) in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.get_short_help_str(200).startswith(line.rstrip("."))

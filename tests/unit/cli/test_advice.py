"""Advice names commands that exist: what `explain` says to do, and what `doctor` says mends a finding."""

from __future__ import annotations

import inspect
import re

import click
import pytest

from cosmodrome.admin import doctor
from cosmodrome.cli.explanations import every_explanation
from cosmodrome.cli.main import main

ADVICE = " ".join(one.advice for one in every_explanation()) + inspect.getsource(doctor)
NAMED = sorted(set(re.findall(r"cosmodrome ((?!admin\.)[a-z]+)(?: ([a-z]+))?", ADVICE)) - {("import", "")})


@pytest.mark.parametrize(("name", "verb"), NAMED, ids=" ".join)
def test_a_command_in_advice_exists(name: str, verb: str) -> None:
    context = click.Context(main)
    command = main.get_command(context, name)
    assert command is not None, f"cosmodrome {name}"
    if isinstance(command, click.Group) and verb:
        assert command.get_command(context, verb) is not None, f"cosmodrome {name} {verb}"


def test_the_advice_names_commands() -> None:
    assert ("dlq", "read") in NAMED
    assert ("topics", "create") in NAMED

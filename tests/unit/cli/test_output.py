"""What people see: all that is in a message, and none of it as an order to their terminal."""

from __future__ import annotations

import pytest

from cosmodrome.cli.output import echo_tables, table, visible

ORDER = "\x1b]0;owned\x07\x1b[2J\x9b31m"


def test_orders_to_a_terminal_are_shown_and_lines_stay_lines() -> None:
    assert visible(ORDER) == r"\x1b]0;owned\x07\x1b[2J\x9b31m"
    assert visible("a\r\nb\tc\n  d") == "a\nb\tc\n  d"
    assert visible("done\rgone\x00") == r"done\x0dgone\x00"
    assert visible("Grüße, 你好 🚀") == "Grüße, 你好 🚀"


def test_a_table_shows_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    echo_tables(table([f"count({ORDER})", "[bold]b"], [[ORDER, None], [1, "[red]x"]], right=[1]))
    shown = capsys.readouterr().out
    assert not set(ORDER) & set(shown) - set(visible(ORDER))
    assert shown.count(visible(ORDER)) == 2
    assert "[bold]b" in shown  # what looks like Rich's markup is none
    assert "[red]x" in shown

"""What people see: all that is in a message, and none of it as an order to their terminal."""

from __future__ import annotations

import json
import logging
import unicodedata

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.cli.find import _told
from cosmodrome.cli.main import main
from cosmodrome.cli.output import (
    LogFormatter,
    echo_json,
    echo_tables,
    message_json,
    message_text,
    one_line,
    table,
    visible,
)
from cosmodrome.model import MessageQueue, Property, ReceivedMessage

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


ANY_TEXT = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("\x1b\n\r\t\x9b\u2028\u202e")))


def received(topic: str, body: bytes, properties: dict[str, str]) -> ReceivedMessage:
    queue = MessageQueue(topic, "broker-a", 3)
    return ReceivedMessage(topic, body, properties, 0, 0, queue, 7, 0, 1, "127.0.0.1:1", 2, "127.0.0.1:2", 0, "id", 99)


def does_nothing_to_a_terminal(text: str) -> bool:
    """No control character, no other end of a line, and nothing that turns text round."""
    return not any(unicodedata.category(each) in ("Cc", "Zl", "Zp") or each in "\u202a\u202e\u2066" for each in text)


@given(tag=ANY_TEXT, key=ANY_TEXT, body=st.one_of(ANY_TEXT.map(str.encode), st.binary()))
def test_a_message_is_one_line_whatever_it_says(tag: str, key: str, body: bytes) -> None:
    message = received("orders", body, {Property.TAGS: tag, Property.KEYS: key, "name": tag})
    assert does_nothing_to_a_terminal(message_text(message))
    told = _told(message, one_line).split("\n")
    assert all(map(does_nothing_to_a_terminal, told))
    assert all(line.startswith("  ") for line in told[1:]), "no line of a message looks like the first of another"
    assert len(told) <= 9


def test_a_message_cannot_pass_for_two() -> None:
    forged = received("orders", b"paid\n09:30:46.141 broker-a/3@8 Hello", {})
    assert message_text(forged).endswith(r" broker-a/3@7 paid\n09:30:46.141 broker-a/3@8 Hello")
    assert message_text(forged, raw=True).splitlines()[1] == "09:30:46.141 broker-a/3@8 Hello"


@given(text=ANY_TEXT)
def test_json_says_everything_and_does_nothing(text: str) -> None:
    message = received("orders", text.encode(), {"name": text})
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("click.echo", printed.append)
        echo_json(message_json(message))
    assert does_nothing_to_a_terminal(printed[0])
    assert json.loads(printed[0])["body"] == json.loads(printed[0])["properties"]["name"] == text


def test_a_cell_of_a_table_is_no_other_row(capsys: pytest.CaptureFixture[str]) -> None:
    echo_tables(table(["body"], [["first\nsecond"]]))
    assert r"first\nsecond" in capsys.readouterr().out


def test_a_log_line_is_one_line() -> None:
    record = logging.LogRecord("net", logging.WARNING, "f.py", 1, "refused: %s", (f"x\n{ORDER}",), None)
    assert LogFormatter("%(levelname)s %(message)s").format(record) == rf"WARNING refused: x\n{visible(ORDER)}"


@pytest.mark.parametrize("words", [["tail", "orders"], ["find", "orders", "--key", "k"]])
def test_raw_json_is_refused(words: list[str]) -> None:
    done = CliRunner().invoke(main, [*words, "--raw", "-o", "json"])
    assert done.exit_code == 2
    assert "--raw is for text" in done.output

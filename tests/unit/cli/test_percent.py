"""Percent formats: every directive, what is refused, and values that cannot break lines."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.cli.percent import DIRECTIVES, PercentFormat, help_text
from cosmodrome.model import MessageQueue, ReceivedMessage


def message(body: bytes = b"hello") -> ReceivedMessage:
    properties = {"KEYS": "k1 k2", "TAGS": "paid", "UNIQ_KEY": "7F", "shop": "K\u00f6ln"}
    queue = MessageQueue("orders", "broker-a", 3)
    return ReceivedMessage(
        "orders", body, properties, 0, 0, queue, 17, 0, 1_000, "", 2_000, "", 1, "offset-id", len(body)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%t %b/%p@%o\t%k|%g|%s\n", "orders broker-a/3@17\tk1 k2|paid|hello\n"),
        ("%S %T %B %r %i %I", "5 2000 1000 1 7F offset-id"),
        ("%{shop}%% %{none}.", "Köln% ."),
        (r"%h\\", "KEYS=k1 k2,TAGS=paid,UNIQ_KEY=7F,shop=Köln\\"),
    ],
)
def test_a_message_is_shown_as_asked(text: str, expected: str) -> None:
    assert PercentFormat(text).render(message()) == expected


@pytest.mark.parametrize(("text", "said"), [("%z", "%z is unknown"), ("a%", "% is unknown"), (r"\q", "is unknown")])
def test_mistakes_are_found_at_once(text: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said):
        PercentFormat(text)


def test_values_cannot_break_lines_unless_they_may() -> None:
    made = PercentFormat(r"%s\n")
    assert made.render(message(b"a\nb\x1b[2J")) == "a\\nb\\x1b[2J\n"
    assert made.render(message(b"a\nb"), raw=True) == "a\nb\n"


@given(st.text())
def test_any_text_is_a_format_or_a_mistake(text: str) -> None:
    try:
        assert isinstance(PercentFormat(text).render(message()), str)
    except click.BadParameter:
        pass


def test_the_help_names_every_directive() -> None:
    assert all(f"%{letter}  " in help_text() for letter in DIRECTIVES)

"""What options accept."""

from __future__ import annotations

from datetime import timedelta

import click
import pytest

from cosmodrome.cli.options import duration


def test_durations() -> None:
    assert duration("1h30m500ms") == timedelta(hours=1, minutes=30, milliseconds=500)


@pytest.mark.parametrize("text", ["", "90", "1w", "1h 30m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write a duration"):
        duration(text)


def test_no_duration_is_longer_than_python_can_count() -> None:
    with pytest.raises(click.BadParameter, match="too long"):
        duration("999999999d999999999d")

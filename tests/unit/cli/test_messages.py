"""What `send` and `trace` refuse before they ask anybody."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from cosmodrome.cli.main import main


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["send", "t", "body", "--timeout", "0"], 2, "0 is not in the range"),
        (["send", "t", "body", "--timeout", "-5"], 2, "-5 is not in the range"),
        (["send", "t", "body", "--delay", "999999999d1d"], 2, "too long"),
        (["trace", "7F000001", "--topic", "a b"], 1, "the topic name 'a b' is illegal"),
    ],
)
def test_what_cannot_be_is_said(words: list[str], code: int, said: str) -> None:
    done = CliRunner().invoke(main, [*words, "-n", "127.0.0.1:1"])
    assert (done.exit_code, said in done.output) == (code, True), done.output

"""What `send`, `find` and `trace` refuse before they ask anybody."""

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
        (["find", "t"], 2, "say what to find"),
        (["find", "t", "--key", "k", "--id", "7F"], 2, "give one of --key, --id, --at and times"),
        (["find", "t", "--id", "7F", "--begin", "2030-01-31"], 2, "only a key may have times beside it"),
        (["find", "t", "--key", ""], 2, "--key is empty"),
        (["find", "t", "--at", "broker-a/3"], 2, "write BROKER/QUEUE@OFFSET"),
        (["find", "t", "--begin", "2030-01-31", "--end", "2030-01-30"], 2, "--end is before --begin"),
        (["find", "a b", "--key", "k"], 1, "the topic name 'a b' is illegal"),
        (["find", "t", "--key", "k"], 1, "Is it running?"),
        (["trace", "7F000001", "--topic", "a b"], 1, "the topic name 'a b' is illegal"),
    ],
)
def test_what_cannot_be_is_said(words: list[str], code: int, said: str) -> None:
    done = CliRunner().invoke(main, [*words, "-n", "127.0.0.1:1"])
    assert (done.exit_code, said in done.output) == (code, True), done.output


@pytest.mark.parametrize("words", [["send", "t", "body"], ["tail", "t"]])
def test_where_nothing_listens_is_said_with_what_starts_it(words: list[str]) -> None:
    done = CliRunner().invoke(main, [*words, "-n", "127.0.0.1:1"])
    assert done.exit_code == 1
    assert done.output == (
        "Error: 127.0.0.1:1: nothing listens there: [Errno 111] Connection refused. "
        "Is it running? `cosmodrome up` starts one here.\n"
    )

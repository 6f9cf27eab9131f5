"""`cosmodrome explain`: every code has a meaning, and every word that RocketMQ says is found."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

import cosmodrome
from cosmodrome.cli.explanations import ERRORS, SEND_STATUSES, every_explanation
from cosmodrome.cli.main import main
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.model import SendStatus


def explained(*words: str) -> Result:
    return CliRunner().invoke(main, ["explain", *words])


def test_a_number_is_explained_as_response_and_as_request() -> None:
    shown = explained("17").output
    assert shown.startswith("response 17 TOPIC_NOT_EXIST\n  The server does not know the topic.\n  What to do: ")
    assert "request 17 UPDATE_AND_CREATE_TOPIC" in shown


@pytest.mark.parametrize("word", ["FLUSH_DISK_TIMEOUT", "flush-disk-timeout", "FlushDiskTimeout"])
def test_a_name_is_found_however_it_is_spelled(word: str) -> None:
    kinds = [one["kind"] for one in json.loads(explained(word, "-o", "json").output)]
    assert kinds == ["response", "send status"]


def test_an_unknown_word_is_refused_with_the_nearest_name() -> None:
    done = explained("topic_not_exits")
    assert (done.exit_code, "did you mean TOPIC_NOT_EXIST?" in done.output) == (1, True)
    for number in ("99999", "9" * 5_000):
        done = explained(number)
        assert (done.exit_code, type(done.exception)) == (1, SystemExit), "told, and no traceback"


def test_every_code_send_status_and_error_is_explained() -> None:
    told = {(one.kind, one.name): one for one in every_explanation()}
    assert all(("response", code.name) in told for code in ResponseCode)
    assert all(("request", code.name) in told for code in RequestCode)
    assert {status.name for status in SendStatus} == set(SEND_STATUSES)
    assert all(one.meaning.endswith(".") for one in told.values())


def test_the_errors_explained_exist() -> None:
    assert [name for name in ERRORS if not hasattr(cosmodrome.errors, name)] == []

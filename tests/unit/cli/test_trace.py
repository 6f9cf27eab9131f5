"""What `cosmodrome trace` says of a handler's end."""

from __future__ import annotations

import pytest

from cosmodrome.cli.trace import _told
from cosmodrome.wire.trace import Outcome, SubAfter


@pytest.mark.parametrize(
    ("outcome", "success", "told"),
    [
        (Outcome.SUCCESS, True, "consumed by"),
        (Outcome.TIME_OUT, True, "consumed (time out) by"),
        (Outcome.TIME_OUT, False, "failed (time out) by"),
        (Outcome.RETURNED_NULL, False, "failed (returned null) by"),
        (9, False, "failed (9) by"),  # of a client newer than we are
    ],
)
def test_the_kind_of_an_end_is_named_unless_it_is_plain_success(outcome: int, success: bool, told: str) -> None:
    record = SubAfter("r", "id", 5, success, "k", outcome, 0, "billing")
    assert _told(record) == f"{told} group billing in 5 ms"

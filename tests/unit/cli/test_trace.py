"""How `cosmodrome trace` tells the life of a message."""

from __future__ import annotations

import pytest

from cosmodrome.cli.trace import _told
from cosmodrome.wire.trace import Outcome, Pub, SubAfter


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


@pytest.mark.parametrize(
    ("success", "offset_msg_id", "beginning"),
    [
        (True, "C000020200002A9F0000000000000000", "sent to orders"),
        (False, "C000020200002A9F0000000000000000", "sent, not yet safe, to orders"),
        (False, "", "not sent to orders"),
    ],
)
def test_a_send_is_told_as_it_ended(success: bool, offset_msg_id: str, beginning: str) -> None:
    told = _told(Pub(1, "", "shop", "orders", "ID", "", "", "host", 10, 2, 0, offset_msg_id, success))
    assert told == f"{beginning} by group shop, broker host, 10 bytes in 2 ms"

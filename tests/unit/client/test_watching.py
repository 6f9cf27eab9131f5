"""What hooks may do with the messages that are consumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cosmodrome.client.hooks import FilterContext
from cosmodrome.client.process_queue import ProcessQueue
from cosmodrome.client.watching import filtered
from cosmodrome.model import ReceivedMessage
from tests.unit.client.messages import received


def even(context: FilterContext) -> Sequence[ReceivedMessage]:
    return [message for message in context.messages if message.queue_offset % 2 == 0]


@pytest.mark.parametrize("returned", [None, ["text"], [0, 2], [None]])
def test_a_hook_that_returns_no_messages_has_failed_and_leaves_out_nothing(returned: Any) -> None:
    messages, process = [received(offset=offset) for offset in range(4)], ProcessQueue(0)
    process.put(messages, 4)
    left = filtered([lambda _: returned, even, lambda _: returned], "g", messages, process)
    assert [message.queue_offset for message in left] == [0, 2]
    assert [offset for offset in range(4) if offset in process] == [0, 2]

"""The request for messages of one queue, as a reader asks that belongs to no group."""

from __future__ import annotations

from cosmodrome.codes import RequestCode
from cosmodrome.config import MIB
from cosmodrome.model import READER_GROUP, MessageQueue, Subscription
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import PullFlag, PullMessage

PULL_MAX_BYTES = MIB


def pull_request(
    queue: MessageQueue, offset: int, count: int, wanted: Subscription, max_bytes: int = PULL_MAX_BYTES
) -> Command:
    """Up to `count` messages from `offset` on; nobody waits for more to come. `bulk` lifts a broker's usual limits,
    where it knows the field."""
    header = PullMessage(
        READER_GROUP,
        queue.topic,
        queue.queue_id,
        offset,
        count,
        PullFlag.SUBSCRIPTION,
        0,
        0,
        subscription=wanted.expression,
        sub_version=wanted.version,
        expression_type=wanted.expression_type,
        max_msg_bytes=max_bytes,
        bulk=True,
    )
    return Command.request(RequestCode.PULL_MESSAGE, header)

"""The one place where a message is sent elsewhere before it is stored, to wait there until its time has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosmodrome.broker.delays import delay_level, to_schedule
from cosmodrome.broker.half_messages import longest_commit
from cosmodrome.broker.timers import DELIVER_MARK, is_timed
from cosmodrome.model import Property
from cosmodrome.store.message import StoreMessage
from cosmodrome.wire.record import SysFlag

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

_DELIVERABLE = (0, SysFlag.COMMIT)


def redirect(broker: Broker, message: StoreMessage) -> None:
    """Let a message that asks for a delay wait for it; a delay level counts more than a time.

    Half messages are not delayed. MessageIllegal when what it asks for makes no sense.
    """
    if not _is_marked(message.properties) or message.sys_flag & SysFlag.TRANSACTION_MASK not in _DELIVERABLE:
        return
    level = delay_level(message.properties)
    if level > 0:
        broker.store.timeline.look()  # its time counts from the date it is stored with
        to_schedule(message, level, broker.delays.levels)
    elif is_timed(message.properties):
        broker.timers.to_wheel(message)


def check_commit(broker: Broker, message: StoreMessage) -> None:
    """Refuse a half message now if its commit would be refused later. What it asks for is tried on a copy."""
    if _is_marked(message.properties):
        redirect(broker, longest_commit(message))


def _is_marked(properties: str) -> bool:
    """Whether it is worth a closer look; for nearly all messages it is not."""
    return Property.DELAY in properties or DELIVER_MARK in properties

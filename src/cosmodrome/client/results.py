"""What the application's handlers return or raise, and what that means. Pure."""

from __future__ import annotations

import inspect
from enum import StrEnum
from typing import Any, NamedTuple

from cosmodrome.errors import ClientError, RetryLater
from cosmodrome.wire.trace import Outcome


class OrderlyStatus(StrEnum):
    """What an orderly handler may return; anything else, as None, counts as SUCCESS.

    Without `auto_commit`, SUCCESS goes on and leaves the offset where it is, COMMIT commits everything up to here, and
    ROLLBACK has everything since the last commit delivered again. SUSPEND has the same messages delivered again, as
    raising does.
    """

    SUCCESS = "SUCCESS"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


_STATUSES = {status.value: status for status in OrderlyStatus}
_AGAIN = (OrderlyStatus.ROLLBACK, OrderlyStatus.SUSPEND)


class Ended(NamedTuple):
    """How a call of a handler went."""

    result: Any
    error: BaseException | None
    spent_ms: int


class Verdict(NamedTuple):
    """What a call means, for those who watch."""

    success: bool
    status: str  # in RocketMQ's words
    outcome: Outcome


def check_result(result: Any, *, orderly: bool) -> None:
    """ClientError for a result of one who wants his messages again, or has not begun with them, and says so in a way
    that would go unnoticed; whatever else a handler returns is its own affair."""
    if isinstance(result, RetryLater) or (isinstance(result, type) and issubclass(result, RetryLater)):
        raise ClientError(f"the handler returned {result!r}; to have its messages again, raise it")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise ClientError(f"the handler returned {result!r}, which nobody goes through: it has done nothing")
    if not orderly and isinstance(result, OrderlyStatus) and result in _AGAIN:
        raise ClientError(
            f"the handler returned OrderlyStatus.{result.name}, which is for orderly=True; to have its messages again, "
            "raise RetryLater"
        )


def status_of(ended: Ended) -> OrderlyStatus:
    """Of an orderly handler. A status is known by its text as well, to which it is equal."""
    if ended.error is not None:
        return OrderlyStatus.SUSPEND
    result = ended.result
    return _STATUSES.get(result, OrderlyStatus.SUCCESS) if isinstance(result, str) else OrderlyStatus.SUCCESS


def in_order(ended: Ended) -> Verdict:
    """How a call of an orderly handler is reported."""
    status = status_of(ended)
    if ended.error is not None:
        return Verdict(False, status.value, Outcome.EXCEPTION)
    success = status not in _AGAIN
    return Verdict(success, status.value, Outcome.SUCCESS if success else Outcome.FAILED)


def as_they_come(ended: Ended) -> Verdict:
    """The same of one whose result does not matter."""
    if ended.error is None:
        return Verdict(True, "CONSUME_SUCCESS", Outcome.SUCCESS)
    return Verdict(False, "RECONSUME_LATER", Outcome.EXCEPTION)

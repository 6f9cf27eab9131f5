"""What the application's handlers return or raise, and what that means. Pure."""

from __future__ import annotations

import inspect
from asyncio import CancelledError
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
    """How a call of a handler went. `result` and `error` are both set if the result is refused by `check_result`."""

    result: Any
    error: BaseException | None
    spent_ms: int
    is_late: bool = False  # it took longer than a handler may
    given_back: int = 0  # messages that the broker took back meanwhile, to deliver them again


class Verdict(NamedTuple):
    """What a call means, for those who watch."""

    success: bool
    status: str  # in RocketMQ's words
    outcome: Outcome


class GivenBack(ClientError):
    """Nothing failed, but the application did not acknowledge a message, which is given to the next taker."""


def outcome_of(error: BaseException | None) -> Outcome:
    """Return the kind of end that hooks and traces see; FAILED if the application itself asks for another delivery."""
    if error is None:
        return Outcome.SUCCESS
    return Outcome.FAILED if isinstance(error, (RetryLater, GivenBack, CancelledError)) else Outcome.EXCEPTION


def _outcome(ended: Ended) -> Outcome:
    """Choose as Java's clients do: an exception counts before a time-out, and a time-out before a status."""
    if ended.error is not None and ended.result is not None:
        return Outcome.RETURNED_NULL
    outcome = outcome_of(ended.error)
    return Outcome.TIME_OUT if ended.is_late and outcome is not Outcome.EXCEPTION else outcome


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
    status, outcome = status_of(ended), _outcome(ended)
    success = status not in _AGAIN
    if not success and outcome is Outcome.SUCCESS:
        outcome = Outcome.FAILED
    return Verdict(success, status.value, outcome)


def as_they_come(ended: Ended) -> Verdict:
    """Report a call whose result does not matter. It is no success if the broker took messages back meanwhile."""
    success = ended.error is None and not ended.given_back
    return Verdict(success, "CONSUME_SUCCESS" if success else "RECONSUME_LATER", _outcome(ended))

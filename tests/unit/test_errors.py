"""The family of exceptions, on its way between processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from cosmodrome import RetryLater, SuspendQueue
from cosmodrome.errors import (
    BrokerError,
    CallTimeout,
    Closed,
    ConfigError,
    ConnectionFailed,
    CosmodromeError,
    FilterSyntaxError,
    GroupNotFound,
    InvalidMessage,
    MissingField,
    SendAttempt,
    SendFailed,
    UnknownTopic,
)
from cosmodrome.testing import TooLate

ERRORS = [
    BrokerError(16, "no", "127.0.0.1:10911"),
    CallTimeout("127.0.0.1:10911", 3_000),
    ConfigError("brokers is 0"),
    ConnectionFailed("127.0.0.1:10911", "refused"),
    FilterSyntaxError("a name is missing", "> 1", 0),
    GroupNotFound("billing"),
    MissingField("SendMessage", "topic"),
    RetryLater("busy", delay_level=3, done=2),
    SendFailed("three tries"),
    SendFailed("two tries", [SendAttempt("a", CallTimeout("a:1", 5)), SendAttempt("b", BrokerError(2, "no", "b:1"))]),
    InvalidMessage("too long", "properties", topic="T", name="color", size=9, limit=8),
    Closed("this Producer is stopped"),
    SuspendQueue(500),
    TooLate("not true after 3 s"),
    UnknownTopic("orders"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_it_arrives_as_it_was(error: CosmodromeError) -> None:
    for arrived in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(arrived) is type(error)
        assert str(arrived) == str(error)
        assert described(arrived) == described(error)


def described(error: BaseException | None) -> object:
    """All that is known of an error, with those that it holds: two errors are never equal."""
    if error is None:
        return None
    known = {
        name: [(broker, described(of)) for broker, of in value] if name == "attempts" else value
        for name, value in vars(error).items()
    }
    return type(error), str(error), known, described(error.__cause__)


def test_what_the_network_does_is_known_to_python() -> None:
    """So that those who treat all that fails in a network alike need no other clause."""
    with pytest.raises(TimeoutError):
        raise CallTimeout("127.0.0.1:10911", 3_000)
    with pytest.raises(ConnectionError):
        raise ConnectionFailed("127.0.0.1:10911", "refused")
    assert issubclass(CallTimeout, CosmodromeError)
    assert issubclass(ConnectionFailed, CosmodromeError)


def test_a_failed_send_knows_its_last_refusal() -> None:
    refusal, timeout = BrokerError(2, "busy", "a:1"), CallTimeout("b:1", 5)
    failed = SendFailed("two tries", [SendAttempt("a", refusal), SendAttempt("b", timeout)])
    assert (failed.code, failed.__cause__) == (2, timeout)
    assert (SendFailed("no time").code, SendFailed("no time").__cause__) == (None, None)

"""The family of exceptions, on its way between processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from cosmodrome import RetryLater, SuspendQueue
from cosmodrome.errors import (
    BrokerError,
    CallTimeout,
    ConfigError,
    ConnectionFailed,
    CosmodromeError,
    FilterSyntaxError,
    GroupNotFound,
    MissingField,
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
    SuspendQueue(500),
    TooLate("not true after 3 s"),
    UnknownTopic("orders"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_it_arrives_as_it_was(error: CosmodromeError) -> None:
    for arrived in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(arrived) is type(error)
        assert str(arrived) == str(error)
        assert vars(arrived) == vars(error)

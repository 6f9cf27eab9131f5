"""The gate before a handler: it passes on whatever the handler answers, at once or later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cosmodrome.access.accounts import Account, Accounts
from cosmodrome.access.gate import LOG_EVERY_MS, LONG_BODY_BYTES, MINUTE_MS, Answering, Gate
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.testing import FakeClock
from cosmodrome.wire.acl import Credentials
from cosmodrome.wire.bodies import HeartbeatData
from cosmodrome.wire.command import Command

WHO = Credentials("orders-app", "the-secret-of-orders")


class Peer:
    peer, peer_address = "10.0.0.9:1", ("10.0.0.9", 1)
    closed = 0

    def close(self) -> None:
        self.closed += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        yield


def at_once(_peer: Peer, command: Command) -> Answering:
    return command.reply()


async def later(_peer: Peer, command: Command) -> Command | None:
    return command.reply()


def never(_peer: Peer, _command: Command) -> Answering:
    return None


def gate(clock: FakeClock, failures: int = 100) -> Gate:
    account = Account(WHO.access_key, WHO.secret_key)
    return Gate(Accounts({account.access_key: account}), clock, max_failures_per_minute=failures)


async def answered(answering: Answering) -> Command | None:
    return answering if answering is None or isinstance(answering, Command) else await answering


@pytest.mark.parametrize("producer", ["p", "p" * LONG_BODY_BYTES])
async def test_an_answer_passes_whether_it_comes_at_once_later_or_never(producer: str) -> None:
    command = Command(RequestCode.HEART_BEAT, {}, HeartbeatData("c", producers=(producer,)).encode())
    WHO.sign(command)
    for handle, code in ((at_once, 0), (later, 0), (never, None)):
        reply = await answered(gate(FakeClock()).around(handle)(Peer(), command))
        assert (None if reply is None else reply.code) == code


async def test_a_denial_is_told_once_in_a_while_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock, peer = FakeClock(), Peer()
    guarded = gate(clock)
    for _ in range(5):
        reply = await answered(guarded.around(at_once)(peer, Command(RequestCode.HEART_BEAT, {})))
        assert reply is not None
        assert reply.code == ResponseCode.SYSTEM_ERROR
    assert caplog.text.count("requests denied") == 1
    await clock.advance(LOG_EVERY_MS)
    await answered(guarded.around(at_once)(peer, Command(RequestCode.HEART_BEAT, {})))
    assert "denials=5" in caplog.text
    assert guarded.figures()["failedAuthentications"] == 6
    assert peer.closed == 0


async def test_failures_count_for_a_minute() -> None:
    clock, peer = FakeClock(), Peer()
    guarded = gate(clock, failures=2)
    for _ in range(2):
        await answered(guarded.around(at_once)(peer, Command(RequestCode.HEART_BEAT, {})))
    await clock.advance(MINUTE_MS)
    await answered(guarded.around(at_once)(peer, Command(RequestCode.HEART_BEAT, {})))
    assert guarded.figures()["connectionsCutOffForFailedAuthentication"] == 0
    for _ in range(2):
        await answered(guarded.around(at_once)(peer, Command(RequestCode.HEART_BEAT, {})))
    assert guarded.figures()["connectionsCutOffForFailedAuthentication"] == 1

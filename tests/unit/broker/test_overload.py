"""Which requests an overloaded broker turns away, and in Apache's words."""

from __future__ import annotations

import logging

import pytest

from cosmodrome.broker.overload import LOG_EVERY_MS, Overload
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import SystemBusy

SEND = int(RequestCode.SEND_MESSAGE_V2)


def remark(
    code: int = SEND,
    waited_ms: float = 0,
    turn_before_ms: float = 1e9,
    *,
    page_cache_busy: bool = False,
    sends_waiting: int = 0,
    enabled: bool = True,
    capacity: int = 10,
) -> str:
    config = BrokerConfig(broker_fast_failure_enable=enabled, send_thread_pool_queue_capacity=capacity)
    found = Overload(config, page_cache_busy_ms=1_000).refusal(
        code, waited_ms, turn_before_ms, page_cache_busy=page_cache_busy, sends_waiting=sends_waiting
    )
    assert found is None or found.code == ResponseCode.SYSTEM_BUSY
    return str(found or "")


@pytest.mark.parametrize(
    ("code", "limit_ms"),
    [
        (RequestCode.SEND_MESSAGE, 200),
        (RequestCode.SEND_BATCH_MESSAGE, 200),
        (RequestCode.CONSUMER_SEND_MSG_BACK, 200),
        (RequestCode.PULL_MESSAGE, 5_000),
        (RequestCode.LITE_PULL_MESSAGE, 5_000),
        (RequestCode.HEART_BEAT, 31_000),
        (RequestCode.END_TRANSACTION, 3_000),
        (RequestCode.ACK_MESSAGE, 3_000),
        (RequestCode.GET_TOPIC_STATS_INFO, 5_000),
    ],
)
def test_each_kind_of_request_waits_as_long_as_with_apache(code: RequestCode, limit_ms: int) -> None:
    assert remark(int(code), limit_ms - 1) == ""
    assert remark(int(code), limit_ms, sends_waiting=3) == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
        f"period in queue: {limit_ms}ms, size of queue: 3"
    )


def test_a_single_pause_is_no_overload() -> None:
    assert remark(waited_ms=5_000, turn_before_ms=199) == ""
    assert remark(waited_ms=5_000, turn_before_ms=200).startswith("[TIMEOUT_CLEAN_QUEUE]")


def test_fast_failure_can_be_switched_off() -> None:
    assert remark(waited_ms=1e9, enabled=False) == ""


@pytest.mark.parametrize("enabled", [True, False])
def test_a_busy_page_cache_keeps_messages_out_and_nothing_else(enabled: bool) -> None:
    assert remark(page_cache_busy=True, enabled=enabled) == (
        "[REJECTREQUEST]system busy, start flow control for a while"
    )
    assert remark(int(RequestCode.PULL_MESSAGE), page_cache_busy=True) == ""


def test_what_waited_while_the_page_cache_was_busy_was_in_the_queue() -> None:
    assert remark(waited_ms=1_200, page_cache_busy=True, sends_waiting=2) == (
        "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 1200ms, size of queue: 2"
    )


def test_only_so_many_sends_may_wait_for_the_disk() -> None:
    assert remark(sends_waiting=9) == ""
    assert remark(sends_waiting=10) == "[OVERLOAD]system busy, start flow control for a while"
    assert remark(int(RequestCode.PULL_MESSAGE), sends_waiting=10) == ""


def test_however_many_are_turned_away_the_log_stays_short(caplog: pytest.LogCaptureFixture) -> None:
    overload = Overload(BrokerConfig(), page_cache_busy_ms=1_000)
    with caplog.at_level(logging.WARNING):
        for ms in range(0, 2 * LOG_EVERY_MS, 10):
            overload.note(SystemBusy("busy"), ms)
    assert overload.turned_away == 2_000
    assert [record.getMessage() for record in caplog.records] == [
        "turned away 1 requests; the last: busy",
        "turned away 1000 requests; the last: busy",
    ]

"""Which requests are turned away while a broker has more to do than it can. Pure: it is told how long a request waited.

A broker that takes everything answers everything late, and clients that give up ask again. So a request that has waited
too long is answered SYSTEM_BUSY at once, which costs a fraction of serving it, and the queue shrinks by itself. Codes
and remarks are Apache's, where threads take requests out of queues. Here the queue is what one turn of the event
loop has found on its sockets, and the sends that wait for the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cosmodrome.codes import RequestCode
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import SystemBusy

log = logging.getLogger(__name__)

# One line in the log per so much time, with a count, however many are turned away.
LOG_EVERY_MS = 10_000

_SENDS = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
)
_ACKS = (RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME)


class Overload:
    """`page_cache_busy_ms` is how long an append must take to say that the disk does not keep up."""

    def __init__(self, config: BrokerConfig, page_cache_busy_ms: int) -> None:
        self._is_enabled = config.broker_fast_failure_enable
        self.send_capacity = config.send_thread_pool_queue_capacity
        self._page_cache_busy_ms = page_cache_busy_ms
        self._limits = _limits(config)
        self._other_limit = config.wait_time_mills_in_admin_broker_queue
        self.patience_ms = min(*self._limits.values(), self._other_limit) if self._is_enabled else float("inf")
        self.turned_away = 0
        self._logged_ms = -LOG_EVERY_MS
        self._logged = 0

    def refusal(
        self, code: int, waited_ms: float, turn_before_ms: float, *, page_cache_busy: bool, sends_waiting: int
    ) -> SystemBusy | None:
        """Why this request is not served, or None.

        One long turn of the loop is no overload, only the machine that paused: what waited is served at once.
        """
        if code in _SENDS:
            if page_cache_busy:
                return self._busy(waited_ms, sends_waiting)
            if sends_waiting >= self.send_capacity:
                return SystemBusy("[OVERLOAD]system busy, start flow control for a while")
        if self._is_enabled and min(waited_ms, turn_before_ms) >= self._limits.get(code, self._other_limit):
            return _cleaned("TIMEOUT_CLEAN_QUEUE", waited_ms, sends_waiting)
        return None

    def _busy(self, waited_ms: float, sends_waiting: int) -> SystemBusy:
        """What waited while the append stalled was in the queue; what came after is not let into it."""
        if self._is_enabled and waited_ms >= self._page_cache_busy_ms:
            return _cleaned("PCBUSY_CLEAN_QUEUE", waited_ms, sends_waiting)
        return SystemBusy("[REJECTREQUEST]system busy, start flow control for a while")

    def note(self, refusal: SystemBusy, now_ms: int) -> None:
        """Count what was turned away, and log it now and then."""
        self.turned_away += 1
        if now_ms - self._logged_ms >= LOG_EVERY_MS:
            log.warning("turned away %d requests; the last: %s", self.turned_away - self._logged, refusal)
            self._logged_ms, self._logged = now_ms, self.turned_away


def _cleaned(why: str, waited_ms: float, queue_size: int) -> SystemBusy:
    return SystemBusy(
        f"[{why}]broker busy, start flow control for a while, "
        f"period in queue: {int(waited_ms)}ms, size of queue: {queue_size}"
    )


def _limits(config: BrokerConfig) -> Mapping[int, int]:
    """Request code → how long it may wait, where that is not the limit of all others."""
    return {
        **dict.fromkeys(map(int, _SENDS), config.wait_time_mills_in_send_queue),
        **dict.fromkeys(map(int, _ACKS), config.wait_time_mills_in_ack_queue),
        int(RequestCode.PULL_MESSAGE): config.wait_time_mills_in_pull_queue,
        int(RequestCode.POP_MESSAGE): config.wait_time_mills_in_pull_queue,
        int(RequestCode.LITE_PULL_MESSAGE): config.wait_time_mills_in_lite_pull_queue,
        int(RequestCode.HEART_BEAT): config.wait_time_mills_in_heartbeat_queue,
        int(RequestCode.END_TRANSACTION): config.wait_time_mills_in_transaction_queue,
    }

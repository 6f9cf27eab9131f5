"""Pulling one queue: one pull at a time, each waiting on the broker until there is something."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from cosmodrome.client.described import queue_ids
from cosmodrome.client.instance import Instance
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import KIB
from cosmodrome.errors import BrokerError, ClientError, ConnectionFailed
from cosmodrome.model import MASTER_ID, MessageQueue
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import PullMessage, PullReply

log = logging.getLogger(__name__)

PULL_MAX_MESSAGES = 32
PULL_MAX_BYTES = 256 * KIB
PULL_SUSPEND_MS = 15_000
PULL_TIMEOUT_MS = 30_000
PULL_RETRY_MS = 1_000
FLOW_CONTROL_RETRY_MS = 20
FULL_RECHECK_MS = 50

# The answers to a pull that has found no message where it looked; all others but SUCCESS are refusals.
NOTHING_THERE = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)
_ANSWERS = NOTHING_THERE | {ResponseCode.SUCCESS}
_STRANGER = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)


class PullAnswer(NamedTuple):
    request: PullMessage
    reply: Command
    offsets: PullReply


async def pull(
    instance: Instance,
    queue: MessageQueue,
    broker_id: int,
    request_to: Callable[[int], PullMessage],
    timeout_ms: float = PULL_TIMEOUT_MS,
) -> PullAnswer:
    """One pull, from this member of the broker group if it is there; BrokerError when it is refused."""
    place = instance.routes.readable_address(queue.broker_name, broker_id)
    if place is None:
        raise ConnectionFailed(queue.broker_name, "no route names this broker")
    address, answering_id = place
    request = request_to(answering_id)
    reply = await instance.caller.call(address, Command.request(RequestCode.PULL_MESSAGE, request), timeout_ms)
    if reply.code not in _ANSWERS:
        raise BrokerError(reply.code, reply.remark or "", address)
    return PullAnswer(request, reply, PullReply.decode(reply))


class Puller(ABC):
    """Pulls a queue until cancelled. What to ask for and what to do with an answer is up to the subclass."""

    def __init__(self, queue: MessageQueue, instance: Instance, clock: Clock) -> None:
        self.queue = queue
        self._instance = instance
        self._clock = clock
        self._broker_id = MASTER_ID  # the member of the broker group that the last answer suggested

    async def run(self) -> None:
        while True:
            pause_ms = FULL_RECHECK_MS if self._is_full else await self._try_pull()
            if pause_ms:
                await self._clock.sleep(pause_ms)

    async def _try_pull(self) -> int:
        """One pull; how long to wait before the next."""
        try:
            return self._pause_ms if await self._pull() else PULL_RETRY_MS
        except BrokerError as refusal:
            if refusal.code == ResponseCode.FLOW_CONTROL:
                return FLOW_CONTROL_RETRY_MS
            if refusal.code in _STRANGER:
                self._instance.heartbeat_soon()
            log.warning("pull refused: %s error=%s", self._named, refusal)
        except ClientError as error:
            self._instance.routes.doubt()
            log.warning("pull failed: %s error=%s", self._named, error)
        except Exception:  # whatever it was, the queue must not be left unread
            log.exception("pull failed: %s", self._named)
        return PULL_RETRY_MS

    async def _pull(self) -> bool:
        """False if asking again at once is of no use, whatever is answered: as by a slave that may not be read."""
        answer = await pull(self._instance, self.queue, self._broker_id, self._request)
        self._broker_id = answer.offsets.suggest_which_broker_id
        await self._take(*answer)
        is_stuck = answer.offsets.next_begin_offset <= answer.request.queue_offset
        return not (is_stuck and answer.reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY)

    @property
    def _named(self) -> str:
        """The queue as log lines name it."""
        return queue_ids(self.queue)

    @property
    def _pause_ms(self) -> int:
        """How long to rest after a pull that was answered."""
        return 0

    @property
    @abstractmethod
    def _is_full(self) -> bool:
        """Whether to wait before more is pulled."""

    @abstractmethod
    def _request(self, broker_id: int) -> PullMessage:
        """The next pull, which will go to this member of the broker group."""

    @abstractmethod
    async def _take(self, request: PullMessage, reply: Command, offsets: PullReply) -> None:
        """An answer: messages, nothing new, nothing that matched, or a better offset."""

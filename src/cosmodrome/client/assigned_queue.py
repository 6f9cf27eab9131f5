"""One queue that this consumer reads: pulled while it is ours, committed as its messages finish."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from cosmodrome.client.consume_stats import ConsumeStatistics
from cosmodrome.client.described import described_queue, duration, quoted
from cosmodrome.client.incoming import Isolation, received_messages
from cosmodrome.client.instance import Instance
from cosmodrome.client.offsets import OffsetKeeper
from cosmodrome.client.process_queue import ProcessQueue
from cosmodrome.client.pulling import PULL_MAX_BYTES, PULL_MAX_MESSAGES, PULL_SUSPEND_MS, PullAnswer, Puller
from cosmodrome.client.settings import between
from cosmodrome.clock import Clock
from cosmodrome.codes import ResponseCode
from cosmodrome.errors import DamagedMessage
from cosmodrome.model import MASTER_ID, MessageQueue, ReceivedMessage, Subscription
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import PullFlag, PullMessage, PullReply

log = logging.getLogger(__name__)

# So soon after it was sent a broker has looked at a pull, if only to let it wait for messages. 5 ms are enough for
# Apache's on a busy machine.
SETTLE_SECONDS = 0.05
NEVER = float("-inf")
# A limit that holds a queue for so long is in the log, and again each time as much has passed. A reader that is ahead
# of its handlers is held for moments all the time, which is no news.
HOLD_LOG_INTERVAL_MS = 5_000

Deliver = Callable[[list[ReceivedMessage], ProcessQueue], None]


class Wanted(Protocol):
    """What the consumer wants of the queue's topic; it may change at any time."""

    @property
    def subscription(self) -> Subscription: ...

    @property
    def announced_version(self) -> int:
        """The newest version brokers were told of; a pull that claims a newer one is refused."""
        ...


@dataclass(slots=True)
class Pace:
    """How a consumer pulls, the same for all its queues."""

    pull_batch: int = PULL_MAX_MESSAGES
    pull_interval_ms: int = 0
    paused: bool = False

    def __post_init__(self) -> None:
        between(1, 1_024, pull_batch=self.pull_batch)
        between(0, 65_535, pull_interval_ms=self.pull_interval_ms)


class AssignedQueue(Puller):
    """Pulls one queue and hands over what is wanted.

    Nothing is lost and nothing is skipped: a pull that fails is repeated from the same offset, and the offset
    committed is never beyond an unfinished message. Only a message that is damaged on the broker is passed over, named
    in the log and counted: sent back, or as a dead letter, it would get a new checksum over wrong bytes.
    """

    message_type: ClassVar[type[ReceivedMessage]] = ReceivedMessage
    commits_on_the_way: ClassVar[bool] = True

    def __init__(
        self,
        queue: MessageQueue,
        process: ProcessQueue,
        *,
        group: str,
        wanted: Wanted,
        offsets: OffsetKeeper,
        instance: Instance,
        clock: Clock,
        deliver: Deliver,
        pace: Pace,
        statistics: ConsumeStatistics | None = None,
        is_ours: Callable[[MessageQueue], bool] = lambda _: True,
    ) -> None:
        super().__init__(queue, instance, clock)
        self.process = process
        self._group = group
        self._wanted = wanted
        self._offsets = offsets
        self._deliver = deliver
        self._pace = pace
        self._statistics = statistics
        self._is_ours = is_ours
        self._isolation = Isolation()
        self._asked_ms = 0
        self._told_ms = 0  # when the log last said that a limit holds the queue
        self._carried_at = NEVER  # when the pull was sent that commits and is not answered

    @property
    def _is_full(self) -> bool:
        return self._pace.paused or self._is_held() or not self._is_ours(self.queue)

    def _is_held(self) -> bool:
        """Return whether a limit of the cache keeps the queue from being pulled; log it while that lasts."""
        process, hold = self.process, self.process.hold
        if hold is None:
            process.held_since_ms = None
            return False
        now_ms = self._clock.steady_ms()
        if process.held_since_ms is None:
            process.held_since_ms = self._told_ms = now_ms
        if now_ms - self._told_ms >= HOLD_LOG_INTERVAL_MS:
            self._told_ms = now_ms
            log.warning(
                "consumer flow control: %s limit=%s cached=%d allowed=%d held=%s oldest_offset=%d",
                described_queue(self._group, self.queue),
                *hold,
                duration(now_ms - process.held_since_ms),
                process.commit_offset,
            )
        return True

    @property
    def _named(self) -> str:
        return described_queue(self._group, self.queue)

    @property
    def _pause_ms(self) -> int:
        return self._pace.pull_interval_ms

    def _request(self, broker_id: int) -> PullMessage:
        """Commits on the way; slaves take none from pulls, and 0 is where a group without an offset begins anyway."""
        self._asked_ms = self._clock.steady_ms()
        commit_offset = self.process.commit_offset if self.commits_on_the_way and broker_id == MASTER_ID else 0
        carries = commit_offset > 0 and self._offsets.carry(self.queue, commit_offset)
        self._carried_at = asyncio.get_running_loop().time() if carries else NEVER
        return PullMessage(
            self._group,
            self.queue.topic,
            self.queue.queue_id,
            self.process.next_offset,
            self._isolation.count(self._pace.pull_batch, self.process.next_offset),
            PullFlag.SUSPEND | (PullFlag.COMMIT_OFFSET if carries else 0),
            commit_offset if carries else 0,
            PULL_SUSPEND_MS,
            sub_version=self._wanted.announced_version,
            expression_type=self._wanted.subscription.expression_type,
            max_msg_bytes=PULL_MAX_BYTES,
        )

    async def _take(self, request: PullMessage, reply: Command, offsets: PullReply) -> None:
        if request.sys_flag & PullFlag.COMMIT_OFFSET:
            self._carried_at = NEVER
            self._offsets.carried(self.queue, request.commit_offset)
        process = self.process
        if reply.code == ResponseCode.SUCCESS:
            answer = PullAnswer(request, reply, offsets)
            pulled = received_messages(self.queue, self._wanted.subscription, answer, self.message_type)
            messages = pulled.messages
            next_offset, damaged = self._isolation.settle(answer, pulled)
            process.put(messages, next_offset)
            if damaged is not None:
                self._pass_over(damaged)
            self._note_pull(len(messages))
            if messages:
                self._deliver(messages, process)
        elif reply.code == ResponseCode.PULL_OFFSET_MOVED:
            await self._move(offsets.next_begin_offset, reply.remark)
        else:  # a slave that lags may suggest to go back
            process.put((), max(process.next_offset, offsets.next_begin_offset))
            self._note_pull(0)

    def _pass_over(self, damaged: DamagedMessage) -> None:
        log.error(
            "message damaged, passed over: %s offset=%d msg_id=%s next=never reason=%s",
            self._named,
            damaged.queue_offset,
            damaged.msg_id or "?",
            quoted(damaged.reason),
        )
        if self._statistics is not None:
            self._statistics.damaged_message(self.queue, self._clock.steady_ms())

    def _note_pull(self, messages: int) -> None:
        if self._statistics is not None:
            now_ms = self._clock.steady_ms()
            self._statistics.pulled(self.queue, messages, now_ms - self._asked_ms, now_ms)

    async def _move(self, offset: int, reason: str | None) -> None:
        """The broker has nothing at our offset, or an operator wants us elsewhere: go on there, and let go of what came
        before."""
        ids, before = described_queue(self._group, self.queue), self.process.next_offset
        log.warning("offset moved: %s from=%d to=%d reason=%s", ids, before, offset, quoted(reason or "not told"))
        self.restart_at(offset)
        await self._offsets.commit({self.queue: offset})

    async def settled(self) -> None:
        """After the last pull, and before a commit that must stand: Apache's brokers handle the two in different
        threads, and would go back to the offset of a pull that they look at last."""
        carried_at, self._carried_at = self._carried_at, NEVER
        await asyncio.sleep(max(carried_at + SETTLE_SECONDS - asyncio.get_running_loop().time(), 0))

    def restart_at(self, offset: int) -> None:
        """Let go of what is in process. A pull under way would still bring what comes after it: end that first."""
        self.process.released = True
        self.process = self.process.starting_at(offset)

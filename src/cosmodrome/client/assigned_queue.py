"""One queue that this consumer reads: pulled while it is ours, committed as its messages finish."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from cosmodrome.client.incoming import received_messages
from cosmodrome.client.instance import Instance
from cosmodrome.client.process_queue import ProcessQueue
from cosmodrome.client.pulling import PULL_MAX_BYTES, PULL_MAX_MESSAGES, PULL_SUSPEND_MS, Puller
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import ClientError, CosmodromeError
from cosmodrome.model import MASTER_ID, MessageQueue, ReceivedMessage, Subscription
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import PullFlag, PullMessage, PullReply, UpdateConsumerOffset

log = logging.getLogger(__name__)

COMMIT_TIMEOUT_MS = 5_000

Deliver = Callable[[list[ReceivedMessage], ProcessQueue], None]


class Wanted(Protocol):
    """What the consumer wants of the queue's topic; it may change at any time."""

    @property
    def subscription(self) -> Subscription: ...

    @property
    def announced_version(self) -> int:
        """The newest version brokers were told of; a pull that claims a newer one is refused."""
        ...


class AssignedQueue(Puller):
    """Pulls one queue and hands over what is wanted.

    Nothing is lost and nothing is skipped: a pull that fails is repeated from the same offset, and the offset
    committed is never beyond an unfinished message.
    """

    def __init__(
        self,
        queue: MessageQueue,
        start_offset: int,
        stored_offset: int | None,
        *,
        group: str,
        wanted: Wanted,
        instance: Instance,
        clock: Clock,
        deliver: Deliver,
    ) -> None:
        super().__init__(queue, instance, clock)
        self.process = ProcessQueue(start_offset)
        self._confirmed_offset = stored_offset  # what the broker is known to have stored for the group
        self._told_offset = stored_offset  # the same, or newer and on its way
        self._group = group
        self._wanted = wanted
        self._deliver = deliver

    @property
    def _is_full(self) -> bool:
        return self.process.is_full

    def _request(self, broker_id: int) -> PullMessage:
        """Commits on the way; a slave stores no offsets, and 0 is where a group without an offset begins anyway."""
        commit_offset = self.process.commit_offset if broker_id == MASTER_ID else 0
        return PullMessage(
            self._group,
            self.queue.topic,
            self.queue.queue_id,
            self.process.next_offset,
            PULL_MAX_MESSAGES,
            PullFlag.SUSPEND | (PullFlag.COMMIT_OFFSET if commit_offset > 0 else 0),
            commit_offset,
            PULL_SUSPEND_MS,
            sub_version=self._wanted.announced_version,
            expression_type=self._wanted.subscription.expression_type,
            max_msg_bytes=PULL_MAX_BYTES,
        )

    async def _take(self, request: PullMessage, reply: Command, offsets: PullReply) -> None:
        if request.sys_flag & PullFlag.COMMIT_OFFSET:
            self._confirmed_offset = request.commit_offset
        process = self.process
        if reply.code == ResponseCode.SUCCESS:
            messages = received_messages(self.queue, self._wanted.subscription, offsets, bytes(reply.body))
            process.put(messages, offsets.next_begin_offset)
            if messages:
                self._deliver(messages, process)
        elif reply.code == ResponseCode.PULL_OFFSET_MOVED:
            await self._move(offsets.next_begin_offset)
        else:  # a slave that lags may suggest to go back
            process.put((), max(process.next_offset, offsets.next_begin_offset))

    async def _move(self, offset: int) -> None:
        """The broker no longer, or not yet, has our offset: go on where it says, and let go of what came before."""
        log.warning("offset %d of %s is gone; going on at %d", self.process.next_offset, self.queue, offset)
        self.process.released = True
        self.process = ProcessQueue(offset)
        await self.commit()

    # --- committing

    async def commit(self) -> None:
        """Return once the broker has the newest offset, or say in the log why not."""
        offset = self.process.commit_offset
        if offset == self._confirmed_offset:
            return
        try:
            address = self._instance.master(self.queue.broker_name)
            await self._instance.ask(address, self._commit_request(offset), COMMIT_TIMEOUT_MS)
        except CosmodromeError as error:
            log.warning("offset %d of %s not committed: %s", offset, self.queue, error)
        else:
            self._told_offset = self._confirmed_offset = offset

    async def commit_oneway(self) -> None:
        """Tell the broker the newest offset if that was not done yet; a loss is made up for by the next pull."""
        offset = self.process.commit_offset
        if offset == self._told_offset:
            return
        try:
            address = self._instance.master(self.queue.broker_name)
            await self._instance.caller.oneway(address, self._commit_request(offset, oneway=True))
        except ClientError as error:
            log.warning("offset %d of %s not committed: %s", offset, self.queue, error)
        else:
            self._told_offset = offset

    def _commit_request(self, offset: int, *, oneway: bool = False) -> Command:
        header = UpdateConsumerOffset(self._group, self.queue.topic, self.queue.queue_id, offset)
        return Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header, oneway=oneway)

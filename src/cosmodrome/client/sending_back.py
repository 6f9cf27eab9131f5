"""Having a broker deliver a message again later."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass

from cosmodrome.client.described import DEAD_LETTER, FIRST_RETRY_LEVEL, described, quoted, reason_noted
from cosmodrome.client.instance import Instance
from cosmodrome.client.namespaces import wrap_topic
from cosmodrome.client.retry_copies import retry_copy
from cosmodrome.client.sending import STATUS
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode
from cosmodrome.errors import BrokerError, CosmodromeError
from cosmodrome.model import MessageModel, ReceivedMessage, dead_letter_topic, retry_topic
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import SendBack

log = logging.getLogger(__name__)

SEND_BACK_TIMEOUT_MS = 5_000
# What its broker did not take back is handed out here again after this.
LOCAL_RETRY_MS = 5_000
# After so many deliveries more a message is a dead letter, unless its group or its consumer says otherwise.
MAX_RECONSUME_TIMES = 16
COPY_TRIES = 3
COPY_TIMEOUT_MS = 1_000  # each


@dataclass(frozen=True, slots=True)
class SendsBack:
    """Of one group; the group's own limit of deliveries counts unless `max_reconsume_times` is given.

    Its own broker does that best, since it has the message. If it is away, or has the message no more, any broker is
    given a copy.
    """

    instance: Instance
    clock: Clock
    group: str
    model: MessageModel
    namespace: str = ""
    max_reconsume_times: int | None = None

    async def __call__(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Whether a broker agreed."""
        if self.model is MessageModel.BROADCASTING:
            log.warning(
                "message dropped, nothing broadcast comes again: %s reason=%s",
                described(self.group, [message]),
                quoted(reason_noted(message)),
            )
            return True
        try:
            await self.send(message, delay_level)
        except CosmodromeError as error:
            log.info("message not taken back: %s error=%s", described(self.group, [message]), quoted(str(error)))
            return False
        except Exception:  # a hook may raise anything, and the message must not be left to nobody
            log.exception("message not taken back: %s", described(self.group, [message]))
            return False
        self._tell_of_dead_letter(message, delay_level)
        return True

    def _tell_of_dead_letter(self, message: ReceivedMessage, delay_level: int) -> None:
        """Say so in the log if this was the last delivery; without a limit of its own, by the default of groups."""
        limit = MAX_RECONSUME_TIMES if self.max_reconsume_times is None else self.max_reconsume_times
        if delay_level == DEAD_LETTER or message.reconsume_times >= limit:
            log.warning(
                "message sent to the dead letters: %s dead_letter_topic=%s reason=%s",
                described(self.group, [message]),
                dead_letter_topic(self.group),
                quoted(reason_noted(message)),
            )

    async def send(self, message: ReceivedMessage, delay_level: int) -> None:
        """CosmodromeError says why its broker did not agree, when no other did."""
        try:
            await self._send_back(message, delay_level)
        except CosmodromeError as error:
            log.info(
                "message not taken back, a copy is sent: %s error=%s",
                described(self.group, [message]),
                quoted(str(error)),
            )
            if not await self._send_copy(message, delay_level):
                raise

    async def _send_back(self, message: ReceivedMessage, delay_level: int) -> None:
        header = SendBack(
            message.commit_log_offset,
            self.group,
            delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=wrap_topic(self.namespace, message.topic),
            unit_mode=self.instance.unit_mode,
            max_reconsume_times=self.max_reconsume_times,
            last_error=reason_noted(message) or None,
        )
        address = self.instance.master(message.queue.broker_name)
        request = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        await self.instance.ask(address, request, SEND_BACK_TIMEOUT_MS)

    async def _send_copy(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Whether a broker took it; other brokers first."""
        try:
            route = await self.instance.routes.topic(retry_topic(self.group))
        except CosmodromeError as error:
            log.info("no broker is known for the copy: %s", error)
            return False
        names = {queue.broker_name for queue in route.publish_queues}
        in_turn = sorted(random.sample(sorted(names), len(names)), key=message.queue.broker_name.__eq__)
        for broker_name in in_turn[:COPY_TRIES]:
            try:
                copy = self._copy(message, delay_level)
                await hand_over(self.instance, broker_name, copy, COPY_TIMEOUT_MS)
                return True
            except CosmodromeError as error:
                log.info("copy not taken: %s error=%s", described(self.group, [message]), quoted(str(error)))
        return False

    def _copy(self, message: ReceivedMessage, delay_level: int) -> Command:
        """One delivery more; beyond the limit, the broker puts it among the dead letters."""
        times = message.reconsume_times
        limit = times if delay_level == DEAD_LETTER else self.max_reconsume_times
        level = delay_level if delay_level > 0 else FIRST_RETRY_LEVEL + times
        topic = wrap_topic(self.namespace, message.topic)
        now_ms, unit_mode = self.clock.now_ms(), self.instance.unit_mode
        header, body = retry_copy(message, self.group, topic, level, times + 1, limit, now_ms, unit_mode=unit_mode)
        return Command.request(RequestCode.SEND_MESSAGE, header, body)


async def hand_over(instance: Instance, broker_name: str, copy: Command, timeout_ms: int) -> None:
    """Return once the broker has stored the copy, as safely as it should or not: sent again, it would be there twice.
    CosmodromeError says why it is not stored, or not known to be."""
    address = instance.master(broker_name)
    reply = await instance.caller.call(address, copy, timeout_ms)
    if reply.code not in STATUS:
        raise BrokerError(reply.code, reply.remark or "", address)

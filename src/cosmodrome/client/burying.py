"""Giving a message up that failed too often where order counts, so that the ones behind it can go on."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cosmodrome.client.described import FIRST_RETRY_LEVEL, described, quoted, reason_noted
from cosmodrome.client.instance import Instance
from cosmodrome.client.namespaces import wrap_topic
from cosmodrome.client.retry_copies import retry_copy
from cosmodrome.client.sending_back import SEND_BACK_TIMEOUT_MS, hand_over
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import MessageModel, ReceivedMessage, dead_letter_topic
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import SendMessage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Buries:
    """Puts messages of one group among its dead letters."""

    instance: Instance
    clock: Clock
    group: str
    model: MessageModel
    namespace: str = ""
    max_reconsume_times: int | None = None

    async def __call__(self, message: ReceivedMessage) -> bool:
        """Whether that succeeded."""
        if self.model is MessageModel.BROADCASTING:
            log.warning(
                "message dropped, nothing broadcast comes again: %s reason=%s",
                described(self.group, [message]),
                quoted(reason_noted(message)),
            )
            return True
        topic = wrap_topic(self.namespace, message.topic)
        now_ms, unit_mode = self.clock.now_ms(), self.instance.unit_mode
        header, body = given_up(message, self.group, topic, self._limit(message), now_ms, unit_mode=unit_mode)
        request = Command.request(RequestCode.SEND_MESSAGE, header, body)
        try:
            await hand_over(self.instance, message.queue.broker_name, request, SEND_BACK_TIMEOUT_MS)
        except CosmodromeError as error:
            ids = described(self.group, [message])
            log.warning("message not taken as a dead letter: %s error=%s", ids, quoted(str(error)))
            return False
        except Exception:  # a hook may raise anything, and the queue must go on
            log.exception("message not taken as a dead letter: %s", described(self.group, [message]))
            return False
        log.warning(
            "message sent to the dead letters: %s dead_letter_topic=%s reason=%s",
            described(self.group, [message]),
            dead_letter_topic(self.group),
            quoted(reason_noted(message)),
        )
        return True

    def _limit(self, message: ReceivedMessage) -> int:
        """One that the message has reached, also if it is given up before its time."""
        times, limit = message.reconsume_times, self.max_reconsume_times
        return times if limit is None else min(times, limit)


def given_up(
    message: ReceivedMessage,
    group: str,
    topic: str,
    max_reconsume_times: int | None,
    now_ms: int,
    *,
    unit_mode: bool = False,
) -> tuple[SendMessage, bytes]:
    """As Java's client gives up: a message for the group's retry topic, which the broker puts among the dead letters.

    A broker that does not, since it knows of no locks or limits, delivers the message again later.
    """
    level = FIRST_RETRY_LEVEL + message.reconsume_times
    times = message.reconsume_times
    return retry_copy(message, group, topic, level, times, max_reconsume_times, now_ms, unit_mode=unit_mode)

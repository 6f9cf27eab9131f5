"""Stored messages: found by id, key and place, and traced."""

from __future__ import annotations

from cosmodrome.admin.core import AdminCore
from cosmodrome.client.finding import END_OF_TIME_MS, MAX_FOUND, Finder, Found
from cosmodrome.client.offsets import max_offset, min_offset, offset_at
from cosmodrome.errors import ClientError, MessageNotFound
from cosmodrome.model import READER_GROUP, MessageQueue, ReceivedMessage, check_topic


class MessagesAdmin(AdminCore):
    """The part of `Admin` about stored messages. Nothing is consumed by looking."""

    @property
    def _finder(self) -> Finder:
        return Finder(self._instance, self._instance.namespace)

    async def message_by_id(self, topic: str, message_id: str) -> ReceivedMessage:
        """Return the message with this offset id or unique id; MessageNotFound if no broker has it."""
        self._require_running()
        found = await self._finder.by_id(check_topic(topic), message_id)
        if not found.messages:
            found.all()
            raise MessageNotFound(
                f"topic {topic} has no message with the id {message_id}; is it deleted, or elsewhere?"
            )
        return found.messages[-1]

    async def messages_by_unique_key(self, topic: str, message_id: str) -> Found:
        """Return every message with this unique id, the oldest first: a repeated send leaves several."""
        self._require_running()
        return await self._finder.by_key(check_topic(topic), message_id)

    async def messages_by_key(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = END_OF_TIME_MS, max_num: int = MAX_FOUND
    ) -> Found:
        """Return the newest messages with this key that were stored in [begin, end], the oldest first."""
        self._require_running()
        return await self._finder.by_key(check_topic(topic), key, begin_ms, end_ms, max_num)

    async def message_at(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """Return the message at an offset of a queue; MessageNotFound says what the queue has."""
        self._require_running()
        message = await self._finder.at(queue, offset)
        if message is not None:
            return message
        low, high = await min_offset(self._instance, queue), await max_offset(self._instance, queue)
        kept = f"it keeps {max(low, 0)} to {high - 1}" if high > max(low, 0) else "it is empty"
        place = f"{queue.broker_name}/{queue.queue_id}"
        raise MessageNotFound(f"queue {place} of topic {queue.topic} has no offset {offset}; {kept}")

    async def messages_between(
        self, topic: str, begin_ms: int = 0, end_ms: int = END_OF_TIME_MS, max_num: int = MAX_FOUND
    ) -> Found:
        """Return the first messages of a topic that were stored in [begin, end], the oldest first."""
        self._require_running()
        return await self._finder.between(check_topic(topic), begin_ms, end_ms, max_num)

    async def queue_messages(
        self,
        queue: MessageQueue,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
        max_num: int = MAX_FOUND,
        *,
        offset: int | None = None,
    ) -> Found:
        """Return the first messages of a queue that were stored in [begin, end], from an offset on if it is given."""
        self._require_running()
        return await self._finder.in_queue(queue, begin_ms, end_ms, max_num, offset)

    async def queue_offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message of a queue that was stored at a time or later."""
        self._require_running()
        await self._instance.routes.topic(queue.topic)
        return await offset_at(self._instance, queue, timestamp_ms, READER_GROUP)

    async def queue_ends(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the first and the next offset of a queue."""
        self._require_running()
        await self._instance.routes.topic(queue.topic)
        low, high = await min_offset(self._instance, queue), await max_offset(self._instance, queue)
        if high < 0:
            raise ClientError(f"queue {queue.broker_name}/{queue.queue_id} of topic {queue.topic} is not there")
        return max(low, 0), high

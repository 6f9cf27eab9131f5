"""Operations that every client offers beside its own, as Java's MQAdmin: topics, offsets, single messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from cosmodrome.client.finding import END_OF_TIME_MS, MAX_FOUND, Finder
from cosmodrome.client.instance import Instance
from cosmodrome.client.lifecycle import Startable
from cosmodrome.client.namespaces import wrap_queue, wrap_topic
from cosmodrome.client.offsets import OFFSET_TIMEOUT_MS, max_offset, min_offset, offset_at
from cosmodrome.client.routes import NEW_TOPIC_QUEUES
from cosmodrome.client.settings import check_queue
from cosmodrome.codes import RequestCode
from cosmodrome.errors import ClientError, MessageNotFound, RouteNotFound, WrongType, check_number
from cosmodrome.model import AUTO_CREATE_TOPIC, READ_WRITE, READER_GROUP, MessageQueue, ReceivedMessage, check_topic
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import CreateTopic, QueueHeader, TimestampReply


class Administration(Startable):
    """A running client that creates topics, finds messages and says where queues begin and end."""

    _instance: Instance
    _reads_as = READER_GROUP  # in whose name messages are looked at; consumers have a group of their own

    # --- topics

    async def create_topic(
        self,
        topic: str,
        queues: int = NEW_TOPIC_QUEUES,
        *,
        template: str = AUTO_CREATE_TOPIC,
        sys_flag: int = 0,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Create the topic with so many queues on every broker that has the topic `template`; safe to repeat.

        By default those are the brokers that make topics by themselves. The name of a cluster stands for all its
        brokers. A topic that is there already is changed. `attributes` are for Apache's 5.x brokers and ours, such as
        `{"message.type": "FIFO"}`.
        """
        self._require_running()
        check_number(1, queues=queues)
        check_number(0, sys_flag=sys_flag)
        wrapped = check_topic(wrap_topic(self._instance.namespace, check_topic(topic)))
        try:
            brokers = (await self._instance.name_servers.route(check_topic(template))).brokers
        except RouteNotFound:
            raise ClientError(
                f"topic {topic} is not created: no broker has the template {template}; "
                "give template= the name of the cluster, or of a topic on the brokers that are to have it"
            ) from None
        changes = ",".join(f"+{name}={value}" for name, value in (attributes or {}).items())
        request = CreateTopic(
            wrapped, queues, queues, READ_WRITE, template, topic_sys_flag=sys_flag, attributes=changes or None
        )
        masters = {broker.broker_name: broker.master for broker in brokers}
        outcomes = await asyncio.gather(*(self._create(master, request) for master in masters.values()))
        self._instance.routes.doubt()
        failed = [f"{name}: {error}" for name, error in zip(masters, outcomes, strict=True) if error is not None]
        if failed:
            raise ClientError(f"topic {topic} is not on every broker, create it again: {'; '.join(failed)}")

    async def _create(self, master: str | None, request: CreateTopic) -> ClientError | None:
        if master is None:
            return ClientError("its master is away")
        try:
            await self._instance.ask(master, Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, request))
        except ClientError as error:
            return error
        return None

    # --- messages

    async def query_message(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = END_OF_TIME_MS, max_num: int = MAX_FOUND
    ) -> list[ReceivedMessage]:
        """The messages of the topic with this key that were stored in [begin, end], the oldest first.

        At most the newest `max_num`, and of one broker 64. An empty list says that every broker was asked in vain; a
        broker that cannot be asked is a ClientError. Brokers find a message by its key moments after it was sent.
        """
        self._require_running()
        check_number(0, begin_ms=begin_ms, end_ms=end_ms)
        check_number(1, max_num=max_num)
        return (await self._finder.by_key(check_topic(topic), _text(key=key), begin_ms, end_ms, max_num)).all()

    async def view_message(self, topic: str, message_id: str) -> ReceivedMessage:
        """The message with this `offset_msg_id` or `msg_id`; of several with the same `msg_id` the newest.

        MessageNotFound when no broker has one.
        """
        self._require_running()
        found = await self._finder.by_id(check_topic(topic), _text(message_id=message_id))
        if found.messages:
            return found.messages[-1]
        found.all()
        raise MessageNotFound(f"no message of topic {topic} has the id {message_id}")

    @property
    def _finder(self) -> Finder:
        return Finder(self._instance, self._instance.namespace)

    # --- queues

    async def max_offset(self, queue: MessageQueue) -> int:
        """Behind the newest message of the queue."""
        self._require_running()
        return await max_offset(self._instance, await self._routed(queue))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the store time of the oldest message of the queue that is still there."""
        self._require_running()
        return await min_offset(self._instance, await self._routed(queue))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message of the queue that was stored at that time or later."""
        self._require_running()
        check_number(0, timestamp_ms=timestamp_ms)
        return await offset_at(self._instance, await self._routed(queue), timestamp_ms, self._reads_as)

    async def earliest_msg_store_time(self, queue: MessageQueue) -> int:
        """When the oldest message of the queue was stored, in ms since 1970; -1 if the queue is empty."""
        self._require_running()
        wrapped = await self._routed(queue)
        header = QueueHeader(wrapped.topic, wrapped.queue_id)
        request = Command.request(RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        reply = await self._instance.ask(self._instance.member(wrapped.broker_name), request, OFFSET_TIMEOUT_MS)
        return TimestampReply.decode(reply).timestamp

    async def _routed(self, queue: MessageQueue) -> MessageQueue:
        """As brokers know it; its broker can be asked."""
        wrapped = wrap_queue(self._instance.namespace, check_queue(queue))
        await self._instance.routes.topic(wrapped.topic)
        return wrapped


def _text(**argument: str) -> str:
    ((name, text),) = argument.items()
    if not isinstance(text, str) or not text:
        raise WrongType(f"{name} is {text!r}; it must be text")
    return text

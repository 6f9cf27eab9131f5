"""Sending without await."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cosmodrome.client import producer, requesting, transactions
from cosmodrome.client.batches import split_batches
from cosmodrome.client.blocking.administration import Administration
from cosmodrome.client.blocking.face import Face, like, shows, submits, waits
from cosmodrome.client.blocking.loop_thread import Room
from cosmodrome.model import Message, MessageQueue, SendResult


class Producer(Administration, Face[producer.Producer]):
    """`cosmodrome.Producer` without await."""

    @like(producer.Producer)
    def __init__(self) -> None: ...

    def _put_behind(self, behind: producer.Producer) -> None:
        super()._put_behind(behind)
        # As much as it takes by itself: what is beyond would wait on the loop, where each that ends wakes them all.
        self._room = Room(behind._options.max_async_sends)

    client_id = shows(producer.Producer, lambda behind: behind.client_id)
    publish_queues = waits(producer.Producer.publish_queues)
    recall = waits(producer.Producer.recall)
    room = waits(producer.Producer.room)
    send = waits(producer.Producer.send)
    send_async = submits(producer.Producer.send_async, producer.Producer._send_later)
    send_batch = waits(producer.Producer.send_batch)
    send_oneway = waits(producer.Producer.send_oneway)

    def send_batches(
        self,
        messages: Iterable[Message],
        queue: MessageQueue | None = None,
        *,
        max_bytes: int | None = None,
        timeout_ms: float | None = None,
    ) -> Iterator[SendResult]:
        """As the async one; the messages are drawn in the caller's thread, so drawing them may take its time."""
        for batch in split_batches(messages, max_bytes or self._behind._options.max_message_bytes):
            yield self.send_batch(batch, queue, timeout_ms=timeout_ms)


class RequestProducer(Producer):
    """`cosmodrome.RequestProducer` without await."""

    @like(requesting.RequestProducer)
    def __init__(self) -> None: ...

    reply = waits(requesting.RequestProducer.reply)
    request = waits(requesting.RequestProducer.request)
    request_async = submits(requesting.RequestProducer.request_async, requesting.RequestProducer._ask_later)


class TransactionProducer(Producer):
    """`cosmodrome.TransactionProducer` without await. What is `def`, to execute or to check, runs in a thread."""

    @like(transactions.TransactionProducer)
    def __init__(self) -> None: ...

    send_in_transaction = waits(transactions.TransactionProducer.send_in_transaction)

"""Receiving without await."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cosmodrome.client import lite_pull_consumer, pull_consumer, pulled_message, push_consumer, queue_reader
from cosmodrome.client.blocking.administration import Administration
from cosmodrome.client.blocking.face import Face, calls, decorates, iterates, like, listens, shows, waits
from cosmodrome.client.blocking.listeners import in_thread_unawaited
from cosmodrome.client.blocking.pulled_message import PulledMessage
from cosmodrome.client.pull_consumer import OnBalance
from cosmodrome.client.settings import listed


class PushConsumer(Administration, Face[push_consumer.PushConsumer]):
    """`cosmodrome.PushConsumer` without await. An `async def` handler runs on the client's own loop."""

    @like(push_consumer.PushConsumer)
    def __init__(self) -> None: ...

    assigned_queues = shows(push_consumer.PushConsumer, lambda behind: behind.assigned_queues)
    client_id = shows(push_consumer.PushConsumer, lambda behind: behind.client_id)
    consume_directly = waits(push_consumer.PushConsumer.consume_directly)
    consumed_offsets = calls(push_consumer.PushConsumer.consumed_offsets)
    damaged_messages = shows(push_consumer.PushConsumer, lambda behind: behind.damaged_messages)
    handles = decorates(push_consumer.PushConsumer.handles)
    healthy = shows(push_consumer.PushConsumer, lambda behind: behind.healthy)
    pause = calls(push_consumer.PushConsumer.pause)
    paused = shows(push_consumer.PushConsumer, lambda behind: behind.paused)
    ready = waits(push_consumer.PushConsumer.ready)
    reset_offsets = waits(push_consumer.PushConsumer.reset_offsets)
    resume = calls(push_consumer.PushConsumer.resume)
    running_info = calls(push_consumer.PushConsumer.running_info)
    statistics = calls(push_consumer.PushConsumer.statistics)
    subscribe = calls(push_consumer.PushConsumer.subscribe)
    unsubscribe = calls(push_consumer.PushConsumer.unsubscribe)


class PullConsumer(Administration, Face[pull_consumer.PullConsumer]):
    """`cosmodrome.PullConsumer` without await."""

    @like(pull_consumer.PullConsumer)
    def __init__(self) -> None: ...

    client_id = shows(pull_consumer.PullConsumer, lambda behind: behind.client_id)
    fetch_consume_offset = waits(pull_consumer.PullConsumer.fetch_consume_offset)
    fetch_subscribe_queues = waits(pull_consumer.PullConsumer.fetch_subscribe_queues)
    message_queues_in_balance = calls(pull_consumer.PullConsumer.message_queues_in_balance)
    persist_consume_offset = waits(pull_consumer.PullConsumer.persist_consume_offset)
    pull = waits(pull_consumer.PullConsumer.pull)
    pull_block_if_not_found = waits(pull_consumer.PullConsumer.pull_block_if_not_found)
    send_message_back = waits(pull_consumer.PullConsumer.send_message_back)
    update_consume_offset = calls(pull_consumer.PullConsumer.update_consume_offset)
    _register_topics = calls(pull_consumer.PullConsumer.register_topics)

    def register_topics(self, topics: Iterable[str], listener: OnBalance | None = None) -> None:
        """As the async one; the listener runs in a thread, so it may use this consumer."""
        self._register_topics(listed(str, topics=topics), None if listener is None else in_thread_unawaited(listener))


class LitePullConsumer(Administration, Face[lite_pull_consumer.LitePullConsumer]):
    """`cosmodrome.LitePullConsumer` without await: `for message in consumer`, `with message`.

    Several threads may loop over one consumer. Listeners run in threads of their own, so they may use it.
    """

    @like(lite_pull_consumer.LitePullConsumer)
    def __init__(self) -> None: ...

    assign = calls(lite_pull_consumer.LitePullConsumer.assign)
    assigned_queues = shows(lite_pull_consumer.LitePullConsumer, lambda behind: behind.assigned_queues)
    client_id = shows(lite_pull_consumer.LitePullConsumer, lambda behind: behind.client_id)
    commit = waits(lite_pull_consumer.LitePullConsumer.commit)
    committed = waits(lite_pull_consumer.LitePullConsumer.committed)
    consume_directly = waits(lite_pull_consumer.LitePullConsumer.consume_directly)
    consumed_offsets = calls(lite_pull_consumer.LitePullConsumer.consumed_offsets)
    damaged_messages = shows(lite_pull_consumer.LitePullConsumer, lambda behind: behind.damaged_messages)
    fetch_message_queues = waits(lite_pull_consumer.LitePullConsumer.fetch_message_queues)
    healthy = shows(lite_pull_consumer.LitePullConsumer, lambda behind: behind.healthy)
    offset_for_timestamp = waits(lite_pull_consumer.LitePullConsumer.offset_for_timestamp)
    on_assigned = listens(lite_pull_consumer.LitePullConsumer.on_assigned)
    on_queues_changed = listens(lite_pull_consumer.LitePullConsumer.on_queues_changed)
    on_revoked = listens(lite_pull_consumer.LitePullConsumer.on_revoked)
    pause = calls(lite_pull_consumer.LitePullConsumer.pause)
    position = calls(lite_pull_consumer.LitePullConsumer.position)
    ready = waits(lite_pull_consumer.LitePullConsumer.ready)
    reset_offsets = waits(lite_pull_consumer.LitePullConsumer.reset_offsets)
    resume = calls(lite_pull_consumer.LitePullConsumer.resume)
    running_info = calls(lite_pull_consumer.LitePullConsumer.running_info)
    seek = waits(lite_pull_consumer.LitePullConsumer.seek)
    seek_to_begin = waits(lite_pull_consumer.LitePullConsumer.seek_to_begin)
    seek_to_end = waits(lite_pull_consumer.LitePullConsumer.seek_to_end)
    subscribe = calls(lite_pull_consumer.LitePullConsumer.subscribe)
    unsubscribe = calls(lite_pull_consumer.LitePullConsumer.unsubscribe)
    _batches = iterates(lite_pull_consumer.LitePullConsumer.batches)
    _messages = iterates(lite_pull_consumer.LitePullConsumer.messages)
    _poll_for = waits(lite_pull_consumer.LitePullConsumer._poll_for)

    def poll(self, timeout_ms: int = lite_pull_consumer.POLL_TIMEOUT_MS) -> list[PulledMessage]:
        """As the async one; for one thread. What an interrupted poll would have returned is given out again."""
        try:
            polled = self._poll_for(timeout_ms)
            messages = [*map(self._pulled, polled.messages)]
        except BaseException:
            self._thread.post(self._behind._put_back_polled)
            raise
        polled.has_arrived = True  # last: an interrupt may come anywhere before
        return messages

    def messages(self, *, auto_ack: bool = True) -> Iterator[PulledMessage]:
        """What `for message in consumer` goes over; see the async one about `auto_ack`."""
        return map(self._pulled, self._messages(auto_ack=auto_ack))

    def batches(self, size: int) -> Iterator[list[PulledMessage]]:
        """`for messages in consumer.batches(100)`: lists of what is there, up to `size` messages.

        A list is acknowledged as a whole when the next one is asked for.
        """
        return ([*map(self._pulled, batch)] for batch in self._batches(size))

    def __iter__(self) -> Iterator[PulledMessage]:
        return self.messages()

    def _pulled(self, message: pulled_message.PulledMessage) -> PulledMessage:
        return PulledMessage(self._thread, message)


class TopicReader(Face[queue_reader.TopicReader]):
    """`cosmodrome.TopicReader` without await: `for message in reader`."""

    @like(queue_reader.TopicReader)
    def __init__(self) -> None: ...

    __iter__ = iterates(queue_reader.TopicReader.__aiter__)

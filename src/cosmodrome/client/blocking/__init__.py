"""The blocking face: the same producers and consumers, run on an event loop in a thread.

Nothing is decided here. Each method hands its arguments to the async object and waits for the outcome; any number of
threads may do so at once. `def` handlers run in threads of their own, so they may use a blocking producer.
"""

from __future__ import annotations

from cosmodrome.client.blocking.consumers import LitePullConsumer, PullConsumer, PushConsumer, TopicReader
from cosmodrome.client.blocking.producers import Producer, RequestProducer, TransactionProducer
from cosmodrome.client.blocking.pulled_message import PulledMessage

__all__ = [
    "LitePullConsumer",
    "Producer",
    "PullConsumer",
    "PulledMessage",
    "PushConsumer",
    "RequestProducer",
    "TopicReader",
    "TransactionProducer",
]

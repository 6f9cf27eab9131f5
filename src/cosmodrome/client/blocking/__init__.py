"""The blocking face: the same producers and consumers, run on an event loop in a thread.

Nothing is decided here. Each method hands its arguments to the async object and waits for the outcome; any number of
threads may do so at once. `def` handlers run in threads of their own, so they may use a blocking producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosmodrome.lazy import lazy_names

if TYPE_CHECKING:
    from cosmodrome.client.blocking.consumers import LitePullConsumer, PullConsumer, PushConsumer, TopicReader
    from cosmodrome.client.blocking.producers import Producer, RequestProducer, TransactionProducer
    from cosmodrome.client.blocking.pulled_message import PulledMessage
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cosmodrome.client.blocking.consumers": "LitePullConsumer PullConsumer PushConsumer TopicReader",
            "cosmodrome.client.blocking.producers": "Producer RequestProducer TransactionProducer",
            "cosmodrome.client.blocking.pulled_message": "PulledMessage",
        },
    )

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

"""RocketMQ for Python: an asyncio client, and a name server and broker that speak Apache RocketMQ's protocol.

    from cosmodrome import Message, Producer, PushConsumer

`cosmodrome.blocking` has the same names without await.
"""

from cosmodrome.client.producer import Producer
from cosmodrome.client.push_consumer import PushConsumer
from cosmodrome.client.queue_reader import TopicReader
from cosmodrome.client.requesting import RequestProducer
from cosmodrome.client.subscribing import Sql
from cosmodrome.client.transactions import TransactionProducer, TransactionResult, TransactionState
from cosmodrome.config import ClientConfig
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import ConsumeFrom, Message, MessageQueue, ReceivedMessage, SendResult, SendStatus

__version__ = "0.1.0"

__all__ = [
    "ClientConfig",
    "ConsumeFrom",
    "CosmodromeError",
    "Message",
    "MessageQueue",
    "Producer",
    "PushConsumer",
    "ReceivedMessage",
    "RequestProducer",
    "SendResult",
    "SendStatus",
    "Sql",
    "TopicReader",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "__version__",
]

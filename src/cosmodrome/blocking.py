"""The names of `cosmodrome`, without await.

from cosmodrome.blocking import Message, Producer

with Producer(group="orders-app", namesrv="127.0.0.1:9876") as producer:
    result = producer.send(Message("orders", b"..."))
"""

from __future__ import annotations

from cosmodrome.client.blocking import Producer, PushConsumer
from cosmodrome.client.subscribing import Sql
from cosmodrome.config import ClientConfig
from cosmodrome.model import ConsumeFrom, Message, MessageQueue, ReceivedMessage, SendResult, SendStatus

__all__ = [
    "ClientConfig",
    "ConsumeFrom",
    "Message",
    "MessageQueue",
    "Producer",
    "PushConsumer",
    "ReceivedMessage",
    "SendResult",
    "SendStatus",
    "Sql",
]

"""Files: the commit log, its queues and its index, in Apache RocketMQ's formats."""

from cosmodrome.store.message import Appended, AppendedBatch, Durability, GetStatus, ReadResult, StoreMessage
from cosmodrome.store.message_store import MessageStore
from cosmodrome.store.recovery import Recovered

__all__ = [
    "Appended",
    "AppendedBatch",
    "Durability",
    "GetStatus",
    "MessageStore",
    "ReadResult",
    "Recovered",
    "StoreMessage",
]

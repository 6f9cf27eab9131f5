"""Files: the commit log, its queues and its index, in Apache RocketMQ's formats."""

from cosmodrome.store.epochs import LogEpoch, common_end
from cosmodrome.store.message import Appended, AppendedBatch, Durability, GetStatus, ReadResult, StoreMessage
from cosmodrome.store.message_store import MessageStore
from cosmodrome.store.raw_log import LogDiverged
from cosmodrome.store.recovery import Recovered

__all__ = [
    "Appended",
    "AppendedBatch",
    "Durability",
    "GetStatus",
    "LogDiverged",
    "LogEpoch",
    "MessageStore",
    "ReadResult",
    "Recovered",
    "StoreMessage",
    "common_end",
]

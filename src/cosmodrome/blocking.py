"""The names of `cosmodrome`, without await.

from cosmodrome.blocking import Message, Producer

with Producer(group="orders-app", namesrv="127.0.0.1:9876") as producer:
    result = producer.send(Message("orders", b"..."))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosmodrome.lazy import lazy_names

if TYPE_CHECKING:
    from cosmodrome.client.acl import AclHook
    from cosmodrome.client.batches import split_batches
    from cosmodrome.client.blocking import (
        LitePullConsumer,
        Producer,
        PullConsumer,
        PulledMessage,
        PushConsumer,
        RequestProducer,
        TopicReader,
        TransactionProducer,
    )
    from cosmodrome.client.hooks import (
        ConsumeContext,
        ConsumeHook,
        EndTransactionContext,
        EndTransactionHook,
        FilterContext,
        MessageType,
        RpcHook,
        SendContext,
        SendHook,
        SendMode,
    )
    from cosmodrome.client.own_offsets import OffsetStore
    from cosmodrome.client.process_queue import CacheLimits
    from cosmodrome.client.producer_options import Compression, ProducerOptions
    from cosmodrome.client.pull_consumer import PullResult, PullStatus
    from cosmodrome.client.queue_choice import SelectByMachineRoom, select_by_hash, select_randomly
    from cosmodrome.client.rebalance import (
        ByConfig,
        ByMachineRoom,
        ConsistentHash,
        MachineRoomNearby,
        averagely,
        by_circle,
    )
    from cosmodrome.client.results import OrderlyStatus
    from cosmodrome.client.subscribing import Sql
    from cosmodrome.client.transactions import TransactionResult, TransactionState
    from cosmodrome.config import ClientConfig, TlsCheck
    from cosmodrome.errors import (
        AlreadyStarted,
        BrokerError,
        CallTimeout,
        ClientError,
        Closed,
        ConfigError,
        ConnectionFailed,
        CosmodromeError,
        InvalidArgument,
        InvalidMessage,
        LifecycleError,
        NotStarted,
        RetryLater,
        SendAttempt,
        SendFailed,
        SuspendQueue,
        TooManySends,
        UnknownTopic,
    )
    from cosmodrome.model import (
        ConsumeFrom,
        Message,
        MessageModel,
        MessageQueue,
        ReceivedMessage,
        SendResult,
        SendStatus,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cosmodrome.client.acl": "AclHook",
            "cosmodrome.client.batches": "split_batches",
            "cosmodrome.client.blocking": (
                "LitePullConsumer Producer PullConsumer PulledMessage PushConsumer RequestProducer "
                "TopicReader TransactionProducer"
            ),
            "cosmodrome.client.hooks": (
                "ConsumeContext ConsumeHook EndTransactionContext EndTransactionHook FilterContext "
                "MessageType RpcHook SendContext SendHook SendMode"
            ),
            "cosmodrome.client.own_offsets": "OffsetStore",
            "cosmodrome.client.process_queue": "CacheLimits",
            "cosmodrome.client.producer_options": "Compression ProducerOptions",
            "cosmodrome.client.pull_consumer": "PullResult PullStatus",
            "cosmodrome.client.queue_choice": "SelectByMachineRoom select_by_hash select_randomly",
            "cosmodrome.client.rebalance": (
                "ByConfig ByMachineRoom ConsistentHash MachineRoomNearby averagely by_circle"
            ),
            "cosmodrome.client.results": "OrderlyStatus",
            "cosmodrome.client.subscribing": "Sql",
            "cosmodrome.client.transactions": "TransactionResult TransactionState",
            "cosmodrome.config": "ClientConfig TlsCheck",
            "cosmodrome.errors": (
                "AlreadyStarted BrokerError CallTimeout ClientError Closed ConfigError ConnectionFailed "
                "CosmodromeError InvalidArgument InvalidMessage LifecycleError NotStarted RetryLater "
                "SendAttempt SendFailed SuspendQueue TooManySends UnknownTopic"
            ),
            "cosmodrome.model": "ConsumeFrom Message MessageModel MessageQueue ReceivedMessage SendResult SendStatus",
        },
    )

__all__ = [
    "AclHook",
    "AlreadyStarted",
    "BrokerError",
    "ByConfig",
    "ByMachineRoom",
    "CacheLimits",
    "CallTimeout",
    "ClientConfig",
    "ClientError",
    "Closed",
    "Compression",
    "ConfigError",
    "ConnectionFailed",
    "ConsistentHash",
    "ConsumeContext",
    "ConsumeFrom",
    "ConsumeHook",
    "CosmodromeError",
    "EndTransactionContext",
    "EndTransactionHook",
    "FilterContext",
    "InvalidArgument",
    "InvalidMessage",
    "LifecycleError",
    "LitePullConsumer",
    "MachineRoomNearby",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageType",
    "NotStarted",
    "OffsetStore",
    "OrderlyStatus",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PulledMessage",
    "PushConsumer",
    "ReceivedMessage",
    "RequestProducer",
    "RetryLater",
    "RpcHook",
    "SelectByMachineRoom",
    "SendAttempt",
    "SendContext",
    "SendFailed",
    "SendHook",
    "SendMode",
    "SendResult",
    "SendStatus",
    "Sql",
    "SuspendQueue",
    "TlsCheck",
    "TooManySends",
    "TopicReader",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "UnknownTopic",
    "averagely",
    "by_circle",
    "select_by_hash",
    "select_randomly",
    "split_batches",
]

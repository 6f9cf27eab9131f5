"""RocketMQ for Python: an asyncio client, and a name server and broker that speak Apache RocketMQ's protocol.

    from cosmodrome import Message, Producer, PushConsumer

`cosmodrome.blocking` has the same names without await.
"""

import logging
from typing import TYPE_CHECKING

from cosmodrome.lazy import lazy_names

if TYPE_CHECKING:
    from cosmodrome.client.acl import AclHook
    from cosmodrome.client.batches import split_batches
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
    from cosmodrome.client.lite_pull_consumer import LitePullConsumer
    from cosmodrome.client.own_offsets import OffsetStore
    from cosmodrome.client.process_queue import CacheLimits
    from cosmodrome.client.producer import Producer
    from cosmodrome.client.producer_options import Compression, ProducerOptions
    from cosmodrome.client.pull_consumer import PullConsumer, PullResult, PullStatus
    from cosmodrome.client.pulled_message import PulledMessage
    from cosmodrome.client.push_consumer import PushConsumer
    from cosmodrome.client.queue_choice import SelectByMachineRoom, select_by_hash, select_randomly
    from cosmodrome.client.queue_reader import TopicReader
    from cosmodrome.client.rebalance import (
        ByConfig,
        ByMachineRoom,
        ConsistentHash,
        MachineRoomNearby,
        averagely,
        by_circle,
    )
    from cosmodrome.client.requesting import RequestProducer
    from cosmodrome.client.results import OrderlyStatus
    from cosmodrome.client.subscribing import Sql
    from cosmodrome.client.transactions import TransactionProducer, TransactionResult, TransactionState
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
            "cosmodrome.client.hooks": (
                "ConsumeContext ConsumeHook EndTransactionContext EndTransactionHook FilterContext "
                "MessageType RpcHook SendContext SendHook SendMode"
            ),
            "cosmodrome.client.lite_pull_consumer": "LitePullConsumer",
            "cosmodrome.client.own_offsets": "OffsetStore",
            "cosmodrome.client.process_queue": "CacheLimits",
            "cosmodrome.client.producer": "Producer",
            "cosmodrome.client.producer_options": "Compression ProducerOptions",
            "cosmodrome.client.pull_consumer": "PullConsumer PullResult PullStatus",
            "cosmodrome.client.pulled_message": "PulledMessage",
            "cosmodrome.client.push_consumer": "PushConsumer",
            "cosmodrome.client.queue_choice": "SelectByMachineRoom select_by_hash select_randomly",
            "cosmodrome.client.queue_reader": "TopicReader",
            "cosmodrome.client.rebalance": (
                "ByConfig ByMachineRoom ConsistentHash MachineRoomNearby averagely by_circle"
            ),
            "cosmodrome.client.requesting": "RequestProducer",
            "cosmodrome.client.results": "OrderlyStatus",
            "cosmodrome.client.subscribing": "Sql",
            "cosmodrome.client.transactions": "TransactionProducer TransactionResult TransactionState",
            "cosmodrome.config": "ClientConfig TlsCheck",
            "cosmodrome.errors": (
                "AlreadyStarted BrokerError CallTimeout ClientError Closed ConfigError ConnectionFailed "
                "CosmodromeError InvalidArgument InvalidMessage LifecycleError NotStarted RetryLater "
                "SendAttempt SendFailed SuspendQueue TooManySends UnknownTopic"
            ),
            "cosmodrome.model": "ConsumeFrom Message MessageModel MessageQueue ReceivedMessage SendResult SendStatus",
        },
        submodules="apache_keys client clock codes config errors filter model net state_file wire",
    )

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # else Python writes warnings to stderr by itself

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
    "__version__",
    "averagely",
    "by_circle",
    "select_by_hash",
    "select_randomly",
    "split_batches",
]

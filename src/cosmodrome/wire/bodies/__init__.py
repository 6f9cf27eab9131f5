"""Typed bodies ↔ bytes. Each is written as Java writes it and read as tolerantly as Java reads it."""

from typing import TYPE_CHECKING

from cosmodrome.lazy import lazy_names

if TYPE_CHECKING:
    from cosmodrome.wire.bodies.clients import (
        AllProducerInfo,
        ClientConnection,
        ConsumeDirectlyResult,
        ConsumerConnection,
        ConsumeResult,
        ConsumerRunningInfo,
        ConsumeStatus,
        PopProgress,
        ProducerConnection,
        ProducerInfo,
        QueueProgress,
    )
    from cosmodrome.wire.bodies.configs import (
        ConsumerOffsetsBody,
        DelayOffsetsBody,
        GroupConfigBody,
        GroupConfigList,
        GroupConfigWrapper,
        SubscriptionBody,
        TimerMetricsBody,
        TopicConfigBody,
        TopicConfigList,
        TopicConfigWrapper,
        data_version_from_json,
        data_version_to_json,
        decode_data_version,
        encode_data_version,
        group_config_from_json,
        group_config_to_json,
        subscription_from_json,
        subscription_to_json,
        topic_config_from_json,
        topic_config_to_json,
    )
    from cosmodrome.wire.bodies.heartbeat import CheckClientConfig, ConsumerData, HeartbeatData
    from cosmodrome.wire.bodies.lists import ConsumerIds, GroupList, KVTable, TopicList
    from cosmodrome.wire.bodies.pop import (
        MAX_POPPED,
        Ack,
        Assignment,
        BatchAck,
        BatchAckBody,
        CheckPoint,
        OrderInfo,
        OrderInfosBody,
        QueryAssignment,
        RequestModeBody,
        RequestModesBody,
    )
    from cosmodrome.wire.bodies.queues import (
        ConsumeOffset,
        ConsumerStatus,
        ConsumeStats,
        ConsumeStatsList,
        CorrectionOffsets,
        LockBatch,
        QueueEntries,
        QueueEntry,
        ResetOffsets,
        TimeSpan,
        TimeSpans,
        TopicOffset,
        TopicStats,
        decode_locked,
        encode_locked,
    )
    from cosmodrome.wire.bodies.registration import RegisterBrokerBody
    from cosmodrome.wire.bodies.replication import (
        EpochEntry,
        EpochsBody,
        HaStatusBody,
        MasterOfSlave,
        SlaveOfMaster,
    )
    from cosmodrome.wire.bodies.routes import ClusterInfo, MemberGroup, decode_route, encode_route
    from cosmodrome.wire.bodies.stats import BrokerStats, StatsItem
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cosmodrome.wire.bodies.clients": (
                "AllProducerInfo ClientConnection ConsumeDirectlyResult ConsumerConnection ConsumeResult "
                "ConsumerRunningInfo ConsumeStatus PopProgress ProducerConnection "
                "ProducerInfo QueueProgress"
            ),
            "cosmodrome.wire.bodies.configs": (
                "ConsumerOffsetsBody DelayOffsetsBody GroupConfigBody GroupConfigWrapper "
                "TimerMetricsBody TopicConfigBody TopicConfigWrapper data_version_from_json "
                "data_version_to_json decode_data_version encode_data_version group_config_from_json "
                "group_config_to_json subscription_from_json subscription_to_json "
                "topic_config_from_json topic_config_to_json "
                "TopicConfigList GroupConfigList SubscriptionBody"
            ),
            "cosmodrome.wire.bodies.heartbeat": "CheckClientConfig ConsumerData HeartbeatData",
            "cosmodrome.wire.bodies.lists": "ConsumerIds GroupList KVTable TopicList",
            "cosmodrome.wire.bodies.pop": (
                "MAX_POPPED Ack Assignment BatchAck BatchAckBody CheckPoint OrderInfo OrderInfosBody "
                "QueryAssignment RequestModeBody RequestModesBody"
            ),
            "cosmodrome.wire.bodies.queues": (
                "ConsumeOffset ConsumerStatus ConsumeStats ConsumeStatsList LockBatch ResetOffsets TopicOffset "
                "TopicStats decode_locked encode_locked "
                "TimeSpan TimeSpans QueueEntry QueueEntries CorrectionOffsets"
            ),
            "cosmodrome.wire.bodies.registration": "RegisterBrokerBody",
            "cosmodrome.wire.bodies.replication": "EpochEntry EpochsBody HaStatusBody MasterOfSlave SlaveOfMaster",
            "cosmodrome.wire.bodies.routes": "ClusterInfo MemberGroup decode_route encode_route",
            "cosmodrome.wire.bodies.stats": "BrokerStats StatsItem",
        },
    )

__all__ = [
    "MAX_POPPED",
    "Ack",
    "AllProducerInfo",
    "Assignment",
    "BatchAck",
    "BatchAckBody",
    "BrokerStats",
    "CheckClientConfig",
    "CheckPoint",
    "ClientConnection",
    "ClusterInfo",
    "ConsumeDirectlyResult",
    "ConsumeOffset",
    "ConsumeResult",
    "ConsumeStats",
    "ConsumeStatsList",
    "ConsumeStatus",
    "ConsumerConnection",
    "ConsumerData",
    "ConsumerIds",
    "ConsumerOffsetsBody",
    "ConsumerRunningInfo",
    "ConsumerStatus",
    "CorrectionOffsets",
    "DelayOffsetsBody",
    "EpochEntry",
    "EpochsBody",
    "GroupConfigBody",
    "GroupConfigList",
    "GroupConfigWrapper",
    "GroupList",
    "HaStatusBody",
    "HeartbeatData",
    "KVTable",
    "LockBatch",
    "MasterOfSlave",
    "MemberGroup",
    "OrderInfo",
    "OrderInfosBody",
    "PopProgress",
    "ProducerConnection",
    "ProducerInfo",
    "QueryAssignment",
    "QueueEntries",
    "QueueEntry",
    "QueueProgress",
    "RegisterBrokerBody",
    "RequestModeBody",
    "RequestModesBody",
    "ResetOffsets",
    "SlaveOfMaster",
    "StatsItem",
    "SubscriptionBody",
    "TimeSpan",
    "TimeSpans",
    "TimerMetricsBody",
    "TopicConfigBody",
    "TopicConfigList",
    "TopicConfigWrapper",
    "TopicList",
    "TopicOffset",
    "TopicStats",
    "data_version_from_json",
    "data_version_to_json",
    "decode_data_version",
    "decode_locked",
    "decode_route",
    "encode_data_version",
    "encode_locked",
    "encode_route",
    "group_config_from_json",
    "group_config_to_json",
    "subscription_from_json",
    "subscription_to_json",
    "topic_config_from_json",
    "topic_config_to_json",
]

"""Everything an operator can ask or do, with typed results: `Admin`, and `BlockingAdmin` without await."""

from typing import TYPE_CHECKING

from cosmodrome.lazy import lazy_names

if TYPE_CHECKING:
    from cosmodrome.admin.door import (
        Admin,
        BlockingAdmin,
    )
    from cosmodrome.admin.raft import RaftNode
    from cosmodrome.admin.results import (
        Account,
        AccountsOfBroker,
        AccountsOfBrokers,
        AllProducers,
        AllProgress,
        BrokerNode,
        BrokerTable,
        BrokerTables,
        ClientInfo,
        Cluster,
        Consumers,
        Done,
        Epochs,
        GroupConfigs,
        GroupOnBroker,
        GroupProgress,
        HaStatus,
        HaStatuses,
        Lateness,
        Producers,
        QueueLateness,
        QueuePage,
        QueueProgress,
        QueueReset,
        QueueStatus,
        Resets,
        TopicConfigs,
        TopicOnBroker,
        TopicStatus,
        Unanswered,
        to_json,
    )
    from cosmodrome.admin.roles import (
        Member,
        NotDemoted,
        NotPromoted,
        Promoted,
        check_master,
        choose,
        demote,
        promote,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cosmodrome.admin.door": ("Admin BlockingAdmin"),
            "cosmodrome.admin.raft": ("RaftNode"),
            "cosmodrome.admin.results": (
                "Account AccountsOfBroker AccountsOfBrokers "
                "AllProducers AllProgress BrokerNode BrokerTable BrokerTables ClientInfo Cluster "
                "Consumers Done Epochs GroupConfigs GroupOnBroker GroupProgress HaStatus HaStatuses "
                "Lateness Producers QueueLateness QueuePage QueueProgress QueueReset QueueStatus "
                "Resets TopicConfigs TopicOnBroker TopicStatus Unanswered to_json"
            ),
            "cosmodrome.admin.roles": ("Member NotDemoted NotPromoted Promoted check_master choose demote promote"),
        },
    )

__all__ = [
    "Account",
    "AccountsOfBroker",
    "AccountsOfBrokers",
    "Admin",
    "AllProducers",
    "AllProgress",
    "BlockingAdmin",
    "BrokerNode",
    "BrokerTable",
    "BrokerTables",
    "ClientInfo",
    "Cluster",
    "Consumers",
    "Done",
    "Epochs",
    "GroupConfigs",
    "GroupOnBroker",
    "GroupProgress",
    "HaStatus",
    "HaStatuses",
    "Lateness",
    "Member",
    "NotDemoted",
    "NotPromoted",
    "Producers",
    "Promoted",
    "QueueLateness",
    "QueuePage",
    "QueueProgress",
    "QueueReset",
    "QueueStatus",
    "RaftNode",
    "Resets",
    "TopicConfigs",
    "TopicOnBroker",
    "TopicStatus",
    "Unanswered",
    "check_master",
    "choose",
    "demote",
    "promote",
    "to_json",
]

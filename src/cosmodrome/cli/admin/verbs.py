"""The verbs of `cosmodrome admin` by subject, and those of mqadmin that are not here, each with the reason."""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """A verb: the subject it is listed under, the module that defines it, and its line in the help."""

    subject: str
    module: str
    help: str


VERBS: dict[str, Verb] = {
    "topicList": Verb("Topics", "topics", "List topics; -c shows the cluster and the groups of each."),
    "topicRoute": Verb("Topics", "topics", "Show the brokers of a topic, and its queues on each."),
    "topicStatus": Verb("Topics", "topics", "Show where each queue of a topic begins and ends."),
    "topicClusterList": Verb("Topics", "topics", "List the clusters that have a topic."),
    "updateTopic": Verb("Topics", "topics", "Create or change a topic."),
    "updateTopicList": Verb("Topics", "topics", "Create or change the topics of a JSON file."),
    "updateTopicPerm": Verb("Topics", "topics", "Change the permission of a topic: 2 write, 4 read, 6 both."),
    "deleteTopic": Verb("Topics", "topics", "Delete a topic with its messages."),
    "updateOrderConf": Verb("Topics", "topics", "Set, show or delete the brokers of an ordered topic."),
    "allocateMQ": Verb("Topics", "topics", "Show which client would get which queues of a topic."),
    "statsAll": Verb("Topics", "topics", "Show what went in and out of each topic, by group."),
    "updateSubGroup": Verb("Consumer groups", "groups", "Create or change a consumer group."),
    "updateSubGroupList": Verb("Consumer groups", "groups", "Create or change the consumer groups of a JSON file."),
    "deleteSubGroup": Verb("Consumer groups", "groups", "Delete a consumer group."),
    "getConsumerConfig": Verb("Consumer groups", "groups", "Show the config of a consumer group on each broker."),
    "setConsumeMode": Verb("Consumer groups", "groups", "Let a consumer group pull or pop a topic."),
    "consumerProgress": Verb(
        "Consumer groups", "groups", "Show how far groups are: messages behind, by group or by queue."
    ),
    "consumerConnection": Verb("Consumer groups", "clients", "List the connected members of a consumer group."),
    "consumerStatus": Verb("Consumer groups", "clients", "Show what the members of a consumer group do."),
    "consumer": Verb("Consumer groups", "clients", "Show the members of a consumer group and their queues."),
    "producerConnection": Verb("Consumer groups", "clients", "List the connected members of a producer group."),
    "producer": Verb("Consumer groups", "clients", "List the members of all producer groups."),
    "resetOffsetByTime": Verb("Offsets", "offsets", "Let a group go on from a time; running members follow."),
    "resetOffsetByTimeOld": Verb("Offsets", "offsets", "As resetOffsetByTime."),
    "skipAccumulatedMessage": Verb("Offsets", "offsets", "Let a group go on from the end of a topic."),
    "cloneGroupOffset": Verb("Offsets", "offsets", "Set the offsets of a group to those of another."),
    "getConsumerStatus": Verb("Offsets", "offsets", "Show how far the members of a group say they are."),
    "clusterList": Verb("Brokers", "brokers", "List clusters, brokers and their load."),
    "brokerStatus": Verb("Brokers", "brokers", "Show the figures of brokers."),
    "brokerConsumeStats": Verb("Brokers", "brokers", "Show how far every group is on a broker."),
    "getBrokerConfig": Verb("Brokers", "brokers", "Show the settings of brokers."),
    "updateBrokerConfig": Verb("Brokers", "brokers", "Change a setting of brokers until their next start."),
    "wipeWritePerm": Verb("Brokers", "brokers", "Let producers choose other brokers than this one."),
    "addWritePerm": Verb("Brokers", "brokers", "Let producers choose a broker again."),
    "cleanExpiredCQ": Verb("Brokers", "brokers", "Delete files of queues whose messages are gone."),
    "cleanUnusedTopic": Verb("Brokers", "brokers", "Delete the queues of topics that a broker no longer has."),
    "deleteExpiredCommitLog": Verb("Brokers", "brokers", "Delete expired files of the commit log now."),
    "sendMsgStatus": Verb("Brokers", "sending", "Send messages to one broker, and show how long each took."),
    "haStatus": Verb("Brokers", "brokers", "Show how brokers replicate."),
    "getBrokerEpoch": Verb("Brokers", "brokers", "Show which master wrote which part of a broker's log."),
    "timerMetrics": Verb("Brokers", "brokers", "Show how many timed messages wait, by topic."),
    "promote": Verb("Brokers", "roles", "Make a slave the master of its name."),
    "demote": Verb("Brokers", "roles", "Make a stale master a slave."),
    "raftStatus": Verb("Brokers", "raft", "Show the members of Raft groups, and how far each log is."),
    "transferLeader": Verb("Brokers", "raft", "Let another member lead a Raft group."),
    "getAclConfig": Verb("Accounts", "accounts", "Show the accounts of brokers with ACL, without secrets."),
    "clusterAclConfigVersion": Verb("Accounts", "accounts", "Show which state of the files of accounts is in force."),
    "getNamesrvConfig": Verb("Name servers", "name_servers", "Show the settings of every name server."),
    "updateNamesrvConfig": Verb(
        "Name servers", "name_servers", "Change a setting of every name server until its next start."
    ),
    "updateKvConfig": Verb("Name servers", "name_servers", "Set a key of a namespace on every name server."),
    "deleteKvConfig": Verb("Name servers", "name_servers", "Delete a key of a namespace on every name server."),
    "queryMsgById": Verb("Messages", "messages", "Show the message with an id; or have a consumer handle it."),
    "queryMsgByKey": Verb("Messages", "messages", "List the messages with a key."),
    "queryMsgByUniqueKey": Verb("Messages", "messages", "Show the messages with a unique id."),
    "queryMsgByOffset": Verb("Messages", "messages", "Show the message at an offset of a queue."),
    "queryMsgTraceById": Verb("Messages", "messages", "Show who sent a message, and who consumed it."),
    "queryCq": Verb("Messages", "messages", "Show entries of a consume queue."),
    "printMsg": Verb("Messages", "messages", "Print the messages of a topic."),
    "printMsgByQueue": Verb("Messages", "messages", "Print the messages of a queue, or count them by tag."),
    "consumeMessage": Verb("Messages", "messages", "Print messages from an offset or time on; no group is moved."),
    "decodeMessageId": Verb("Messages", "messages", "Show the broker and the place in an offset message id."),
    "sendMessage": Verb("Messages", "sending", "Send a message."),
    "checkMsgSendRT": Verb(
        "Messages", "sending", "Send messages to the queues of a topic, and show how long each took."
    ),
    "clusterRT": Verb("Messages", "sending", "Send messages to each broker of a cluster, and show how long they took."),
    "exportMetadata": Verb(
        "Export and import", "export", "Write topics and groups of a cluster or a broker to a file."
    ),
    "exportConfigs": Verb("Export and import", "export", "Write the settings of a cluster to a file."),
    "exportMetrics": Verb("Export and import", "export", "Write the figures of a cluster to a file."),
}

NOT_HERE: dict[str, str] = {
    "updateStaticTopic": "static topics are not kept; create a plain topic with updateTopic",
    "remappingStaticTopic": "there are no static topics to move; move traffic with updateTopic and wipeWritePerm",
    "setCommitLogReadAheadMode": "the kernel's read-ahead is left as it is; no mode of it can be set",
    "getColdDataFlowCtrInfo": "reading old messages slows no group down; there is no limit to show",
    "updateColdDataFlowCtrGroupConfig": "reading old messages slows no group down; there is no limit to set",
    "removeColdDataFlowCtrGroupConfig": "reading old messages slows no group down; there is no limit to remove",
    "resetMasterFlushOffset": "slaves find the place where logs part by terms; there is no offset to reset",
    "getSyncStateSet": "it asks a controller, and there is none; haStatus shows the slaves in sync of each master",
    "addBroker": "there is no broker container; start a broker with `cosmodrome broker`",
    "removeBroker": "there is no broker container; stop a broker by its process",
    "getControllerConfig": "there is no controller; promote and demote change roles",
    "getControllerMetaData": "there is no controller; clusterList and haStatus show roles",
    "updateControllerConfig": "there is no controller; promote and demote change roles",
    "cleanBrokerMetadata": "there is no controller; name servers forget a broker that is silent",
    "electMaster": "there is no controller; `cosmodrome admin promote BROKER` makes a slave the master",
    "exportMetadataInRocksDB": "tables are kept in JSON files, not in RocksDB; exportMetadata writes them",
    "rocksDBConfigToJson": "tables are kept in JSON files, not in RocksDB; exportMetadata writes them",
    "checkRocksdbCqWriteProgress": "queues are kept in files, not in RocksDB; `cosmodrome store verify` checks them",
    "exportPopRecord": "pops are recorded in one way, so that there is nothing to export or roll back",
    "dumpCompactionLog": "no topic is compacted, so that there is no compaction log",
    "startMonitoring": "it runs for ever and logs what it finds; use consumerProgress --watch",
    **dict.fromkeys(
        (
            "createUser",
            "updateUser",
            "deleteUser",
            "getUser",
            "listUser",
            "copyUser",
            "createAcl",
            "updateAcl",
            "deleteAcl",
            "getAcl",
            "listAcl",
            "copyAcl",
            "updateAclConfig",
            "deleteAclConfig",
            "updateGlobalWhiteAddr",
        ),
        "users and rules are kept in the broker's ACL file, which it reads again when it changes",
    ),
}

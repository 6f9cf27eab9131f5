"""Verbs of Apache's own mqadmin against our servers and Apache's, and ours against Apache's: they mean the same.

All verbs of mqadmin run in the JVM of the shared Query program.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cosmodrome import Message, Producer, PullConsumer, PushConsumer
from cosmodrome.cli.main import main
from cosmodrome.model import MessageQueue
from interop.apache import wait_dispatched, wait_routed
from interop.java import Query
from interop.lab import OURS, Cluster, Lab

VERSION = "5.3.3"
CLUSTERS = (OURS, "apache-5.3.3")
CLUSTER = "DefaultCluster"
COUNT = 3

Fresh = Callable[[str], str]


@dataclass
class Place:
    """A cluster with a topic of two queues, messages in the first one, and a group that has consumed the first."""

    cluster: Cluster
    query: Query
    topic: str
    group: str
    offset_id: str
    message_id: str

    def filled(self, words: str, folder: Path) -> str:
        cluster = self.cluster
        return words.format(
            topic=self.topic,
            group=self.group,
            broker=cluster.broker_name,
            addr=cluster.broker_address,
            id=self.offset_id,
            unique=self.message_id,
            folder=folder,
        )

    def mqadmin(self, command: str, words: str) -> str:
        said: str = self.query.call("mqadmin", command=command, words=words)
        return said

    def ours(self, verb: str, words: str) -> list[dict[str, Any]]:
        arguments = ["admin", verb, "-n", self.cluster.namesrv, *words.split(), "-o", "json"]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        rows: list[dict[str, Any]] = json.loads(result.stdout)
        return rows


async def _fill(cluster: Cluster, topic: str, group: str) -> list[Any]:
    async with Producer("interop-admin", cluster.namesrv) as producer:
        queue = MessageQueue(topic, cluster.broker_name, 0)
        sent = [
            await producer.send(Message(topic, b"%d" % n, tags="paid", keys=f"key-{n}"), queue) for n in range(COUNT)
        ]
    async with PullConsumer(group, cluster.namesrv) as consumer:
        await consumer.fetch_subscribe_queues(topic)
        consumer.update_consume_offset(queue, 1)
        await consumer.persist_consume_offset(queue)
    return sent


_places: dict[str, Place] = {}


@pytest.fixture(params=CLUSTERS)
def place(request: pytest.FixtureRequest, lab: Lab, fresh: Fresh) -> Place:
    name: str = request.param
    if name not in _places:
        cluster = lab.cluster(name)
        query, topic, group = lab.query(cluster, VERSION), fresh("topic"), fresh("group")
        query.call("createTopic", addr=cluster.broker_address, topic=topic, queues=2)
        wait_routed(cluster.namesrv, topic)
        query.call("createGroup", addr=cluster.broker_address, group=group, retryMaxTimes=3)
        sent = asyncio.run(_fill(cluster, topic, group))
        wait_dispatched(cluster.broker_address)
        _places[name] = Place(cluster, query, topic, group, sent[0].offset_msg_id, sent[0].msg_id)
    return _places[name]


# Command class, its words, and what it prints when it has done it.
MQADMIN = {
    "topicList": ("topic.TopicListSubCommand", "", "{topic}"),
    "topicRoute": ("topic.TopicRouteSubCommand", "-t {topic}", '"brokerName":"{broker}"'),
    "topicStatus": ("topic.TopicStatusSubCommand", "-t {topic}", r"{broker} +0 +0 +3 .*\n.*{broker} +1 +0 +0 "),
    "topicClusterList": ("topic.TopicClusterSubCommand", "-t {topic}", "DefaultCluster"),
    "updateTopic": (
        "topic.UpdateTopicSubCommand",
        "-b {addr} -t {topic}-m -r 2 -w 2",
        "create topic to {addr} success",
    ),
    "updateTopicPerm": ("topic.UpdateTopicPermSubCommand", "-b {addr} -t {topic}-m -p 4", "success"),
    "deleteTopic": ("topic.DeleteTopicSubCommand", "-c DefaultCluster -t {topic}-m", "delete topic .* success"),
    "allocateMQ": ("topic.AllocateMQSubCommand", "-t {topic} -i 10.0.0.1,10.0.0.2", '"queueId":1'),
    "updateOrderConf": ("topic.UpdateOrderConfCommand", "-t {topic} -m put -v {broker}:2", "update orderConf success"),
    "updateSubGroup": (
        "consumer.UpdateSubGroupSubCommand",
        "-b {addr} -g {group}-m -r 5",
        "subscription group to .* success",
    ),
    "getConsumerConfig": ("consumer.GetConsumerConfigSubCommand", "-g {group}", r"groupName.*{group}"),
    "deleteSubGroup": (
        "consumer.DeleteSubscriptionGroupCommand",
        "-b {addr} -g {group}-m",
        "delete subscription group .* success",
    ),
    "setConsumeMode": ("consumer.SetConsumeModeSubCommand", "-b {addr} -t {topic} -g {group} -m PULL", "success"),
    "consumerProgress": ("consumer.ConsumerProgressSubCommand", "-g {group}", r"{topic} +{broker} +0 +3 +1 +2"),
    "brokerStatus": ("broker.BrokerStatusSubCommand", "-b {addr}", "putTps"),
    "brokerConsumeStats": (
        "broker.BrokerConsumeStatsSubCommad",
        "-b {addr}",
        r"{topic} +{group} +{broker} +0 +3 +1 +2",
    ),
    "getBrokerConfig": ("broker.GetBrokerConfigCommand", "-b {addr}", r"brokerName *= *{broker}"),
    "updateBrokerConfig": (
        "broker.UpdateBrokerConfigSubCommand",
        "-b {addr} -k shortPollingTimeMills -v 999",
        "success",
    ),
    "cleanExpiredCQ": ("broker.CleanExpiredCQSubCommand", "-b {addr}", "success"),
    "cleanUnusedTopic": ("broker.CleanUnusedTopicCommand", "-b {addr}", "success"),
    "deleteExpiredCommitLog": ("broker.DeleteExpiredCommitLogSubCommand", "-b {addr}", "success"),
    "sendMsgStatus": ("broker.SendMsgStatusCommand", "-b {broker} -c 2", "SEND_OK"),
    "haStatus": ("ha.HAStatusSubCommand", "-b {addr}", "MasterCommitLogMaxOffset|MasterAddr"),
    "clusterList": ("cluster.ClusterListSubCommand", "", r"DefaultCluster +{broker} +0 +{addr}"),
    "getNamesrvConfig": ("namesrv.GetNamesrvConfigCommand", "", "orderMessageEnable"),
    "updateKvConfig": ("namesrv.UpdateKvConfigCommand", "-s interop -k {topic} -v 1", "success"),
    "deleteKvConfig": ("namesrv.DeleteKvConfigCommand", "-s interop -k {topic}", "success"),
    "wipeWritePerm": ("namesrv.WipeWritePermSubCommand", "-b {broker}", r"wipe write perm of broker.* OK, \d+"),
    "addWritePerm": ("namesrv.AddWritePermSubCommand", "-b {broker}", r"add write perm of broker.* OK, \d+"),
    "queryMsgById": ("message.QueryMsgByIdSubCommand", "-t {topic} -i {id}", r"Queue Offset: +0"),
    "queryMsgByKey": ("message.QueryMsgByKeySubCommand", "-t {topic} -k key-0", "{unique} +0 +0"),
    "queryMsgByUniqueKey": ("message.QueryMsgByUniqueKeySubCommand", "-t {topic} -i {unique}", r"Queue Offset: +0"),
    "queryMsgByOffset": ("message.QueryMsgByOffsetSubCommand", "-t {topic} -b {broker} -i 0 -o 1", r"Queue Offset: +1"),
    "decodeMessageId": ("message.DecodeMessageIdCommond", "-i {id}", "ip="),
    "printMsg": ("message.PrintMessageSubCommand", "-t {topic}", "{unique}"),
    "printMsgByQueue": (
        "message.PrintMessageByQueueCommand",
        "-t {topic} -a {broker} -i 0 -p true -d true",
        "{unique}",
    ),
    "sendMessage": ("message.SendMessageCommand", "-t {topic} -p body -b {broker} -i 1", "SEND_OK"),
    "queryCq": ("queue.QueryConsumeQueueCommand", "-t {topic} -q 0 -i 0 -b {addr}", "MinOffset|minQueueIndex|======"),
    "cloneGroupOffset": ("offset.CloneGroupOffsetCommand", "-s {group} -d {group} -t {topic}", "success"),
    "skipAccumulatedMessage": ("offset.SkipAccumulationSubCommand", "-g {group} -t {topic} -f true", r"{broker} +0 +3"),
    "exportMetadata": ("export.ExportMetadataCommand", "-c DefaultCluster -f {folder}", "success"),
    "exportConfigs": ("export.ExportConfigsCommand", "-c DefaultCluster -f {folder}", "success"),
    "exportMetrics": ("export.ExportMetricsCommand", "-c DefaultCluster -f {folder}", "success"),
}


# That Apache's servers answer so keeps the expectations honest, and need not be seen every day.
@pytest.mark.parametrize("place", [OURS, pytest.param("apache-5.3.3", marks=pytest.mark.full)], indirect=True)
@pytest.mark.parametrize("verb", MQADMIN)
def test_a_verb_of_mqadmin_does_the_same_on_ours_and_on_apaches(place: Place, tmp_path: Path, verb: str) -> None:
    command, words, said = MQADMIN[verb]
    printed = place.mqadmin(command, place.filled(words, tmp_path))
    assert re.search(place.filled(said, tmp_path), printed), printed


# Our verb, its words, and what its rows say.
OURS_AT_APACHE: dict[str, tuple[str, Callable[[Place, list[dict[str, Any]]], bool]]] = {
    "topicList": ("", lambda place, rows: place.topic in [row["topic"] for row in rows]),
    "topicRoute": ("-t {topic}", lambda place, rows: [row["readQueues"] for row in rows] == [2]),
    "topicStatus": ("-t {topic}", lambda _, rows: [row["minOffset"] for row in rows] == [0, 0]),
    "topicClusterList": ("-t {topic}", lambda _, rows: rows == [{"cluster": CLUSTER}]),
    "updateTopic": ("-b {addr} -t {topic}-o -r 2 -w 2 -o true", lambda _, rows: all(row["done"] for row in rows)),
    "updateTopicPerm": ("-b {addr} -t {topic}-o -p 4", lambda _, rows: rows[0]["detail"] == "perm 6 to 4"),
    "deleteTopic": ("-c DefaultCluster -t {topic}-o --yes", lambda _, rows: rows[0]["done"]),
    "statsAll": ("-t {topic}", lambda place, rows: rows[0]["topic"] == place.topic),
    "updateSubGroup": ("-b {addr} -g {group}-o -r 5", lambda _, rows: rows[0]["done"]),
    "getConsumerConfig": ("-g {group}-o", lambda _, rows: rows[0]["retryMaxTimes"] == 5),
    "deleteSubGroup": ("-b {addr} -g {group}-o --yes", lambda _, rows: rows[0]["done"]),
    "setConsumeMode": ("-b {addr} -t {topic} -g {group} -m PULL", lambda _, rows: rows[0]["done"]),
    "consumerProgress": ("-g {group} -t {topic}", lambda _, rows: rows[0]["brokerOffset"] >= COUNT),
    "producer": ("-b {addr}", lambda _, rows: isinstance(rows, list)),
    "cloneGroupOffset": ("-s {group} -d {group} -t {topic} --yes", lambda _, rows: rows[0]["done"]),
    "resetOffsetByTime": (
        "-g {group} -t {topic} -s 0 --yes",
        lambda _, rows: [row["offset"] for row in rows] == [0, 0],
    ),
    "skipAccumulatedMessage": ("-g {group} -t {topic} --yes", lambda _, rows: rows[0]["offset"] == COUNT),
    "clusterList": ("-m", lambda place, rows: place.cluster.broker_name in [row["brokerName"] for row in rows]),
    "brokerStatus": ("-b {addr}", lambda _, rows: "putTps" in [row["key"] for row in rows]),
    "brokerConsumeStats": ("-b {addr}", lambda place, rows: place.group in [row["group"] for row in rows]),
    "getBrokerConfig": ("-b {addr}", lambda _, rows: "brokerName" in [row["key"] for row in rows]),
    "updateBrokerConfig": ("-b {addr} -k shortPollingTimeMills -v 998", lambda _, rows: rows[0]["done"]),
    "wipeWritePerm": ("-b {broker}", lambda _, rows: rows[0]["done"]),
    "addWritePerm": ("-b {broker}", lambda _, rows: rows[0]["done"]),
    "cleanExpiredCQ": ("-b {addr} --yes", lambda _, rows: rows[0]["done"]),
    "cleanUnusedTopic": ("-b {addr} --yes", lambda _, rows: rows[0]["done"]),
    "deleteExpiredCommitLog": ("-b {addr} --yes", lambda _, rows: rows[0]["done"]),
    "sendMsgStatus": ("-b {broker} -c 2", lambda _, rows: [row["status"] for row in rows] == ["SEND_OK"] * 2),
    "getNamesrvConfig": ("", lambda _, rows: "orderMessageEnable" in [row["key"] for row in rows]),
    "updateNamesrvConfig": ("-k orderMessageEnable -v false", lambda _, rows: rows[0]["done"]),
    "updateKvConfig": ("-s interop -k {topic}-o -v 1", lambda _, rows: rows[0]["done"]),
    "deleteKvConfig": ("-s interop -k {topic}-o --yes", lambda _, rows: rows[0]["done"]),
    "queryMsgById": ("-t {topic} -i {id}", lambda _, rows: rows[0]["body"] == "0"),
    "queryMsgByKey": ("-t {topic} -k key-0", lambda _, rows: [row["body"] for row in rows] == ["0"]),
    "queryMsgByUniqueKey": ("-t {topic} -i {unique}", lambda _, rows: rows[0]["queueOffset"] == 0),
    "queryMsgByOffset": ("-t {topic} -b {broker} -i 0 -o 1", lambda _, rows: rows[0]["body"] == "1"),
    "queryCq": ("-t {topic} -q 0 -i 0 -c 2 -b {addr}", lambda _, rows: [row["index"] for row in rows] == [0, 1]),
    "printMsg": ("-t {topic} -s paid", lambda _, rows: len(rows) == COUNT),
    "printMsgByQueue": ("-t {topic} -a {broker} -i 0", lambda _, rows: len(rows) == COUNT),
    "consumeMessage": ("-t {topic} -b {broker} -i 0 -o 2", lambda _, rows: [row["queueOffset"] for row in rows] == [2]),
    "exportMetadata": ("-c DefaultCluster -f {folder}", lambda _, rows: len(rows) == 3),
    "exportConfigs": ("-c DefaultCluster -f {folder}", lambda _, rows: rows[0]["brokers"] == 1),
    "exportMetrics": ("-c DefaultCluster -f {folder}", lambda _, rows: rows[0]["groups"] > 0),
}


@pytest.mark.parametrize("verb", OURS_AT_APACHE)
def test_our_verb_does_the_same_on_ours_and_on_apaches(place: Place, tmp_path: Path, verb: str) -> None:
    words, holds = OURS_AT_APACHE[verb]
    rows = place.ours(verb, place.filled(words, tmp_path))
    assert holds(place, rows), rows


async def _clients_seen(place: Place) -> tuple[str, str, str]:
    """Return what mqadmin prints about a connected producer and a consumer, and all producers."""
    consumer = PushConsumer(f"{place.group}-c", place.cluster.namesrv)
    consumer.subscribe(place.topic, "paid", lambda message: None)
    async with Producer("interop-seen", place.cluster.namesrv) as producer, consumer:
        await producer.send(Message(place.topic, b"seen"), MessageQueue(place.topic, place.cluster.broker_name, 1))
        await consumer.ready()
        of = place.cluster.broker_address
        return (
            await asyncio.to_thread(
                place.mqadmin, "connection.ProducerConnectionSubCommand", f"-g interop-seen -t {place.topic}"
            ),
            await asyncio.to_thread(
                place.mqadmin, "connection.ConsumerConnectionSubCommand", f"-g {place.group}-c -b {of}"
            ),
            await asyncio.to_thread(place.mqadmin, "producer.ProducerSubCommand", f"-b {of}"),
        )


def test_connected_clients_are_shown_by_mqadmin(place: Place) -> None:
    producer, consumer, everyone = asyncio.run(_clients_seen(place))
    assert "PYTHON" in producer
    assert re.search(rf"{place.topic} +paid", consumer), consumer
    assert "interop-seen" in everyone

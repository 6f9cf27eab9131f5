"""Verbs about topics."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from cosmodrome.admin import Admin, BrokerNode, Done
from cosmodrome.admin.name_servers import ORDER_NAMESPACE
from cosmodrome.cli.admin.common import (
    CHANGE,
    Answer,
    changed,
    cluster_option,
    place_needed,
    topic_option,
    verb,
    would,
    yes_option,
)
from cosmodrome.cli.formats import Column, Schema
from cosmodrome.client.rebalance import averagely
from cosmodrome.errors import BrokerError, ClientError, ConfigError, RouteNotFound
from cosmodrome.model import DLQ_PREFIX, RETRY_PREFIX, MessageQueue, TopicConfig, TopicFlag
from cosmodrome.numbers import MAX_INT, parse_int
from cosmodrome.wire.bodies import TopicConfigList, topic_config_from_json

BOOLEAN = click.BOOL
DEFAULT_QUEUES = 8

TOPICS = Schema(
    "topic",
    (
        Column("topic", "Its name."),
        Column("cluster", "The cluster that has it; with -c only."),
        Column("groups", "Groups that consume it or did; with -c only."),
    ),
)
ROUTE = Schema(
    "broker of the topic",
    (
        Column("topic", "The topic."),
        Column("cluster", "The broker's cluster."),
        Column("brokerName", "The broker's name.", "BROKER"),
        Column("readQueues", "Queues that consumers read.", right=True),
        Column("writeQueues", "Queues that producers write.", right=True),
        Column("perm", "2 write, 4 read, 6 both.", right=True),
        Column("sysFlag", "Bits of units.", right=True, wide=True),
        Column("addresses", "Its members, by id; 0 is the master."),
    ),
)
STATUS = Schema(
    "queue",
    (
        Column("topic", "The topic.", wide=True),
        Column("brokerName", "The broker's name.", "BROKER"),
        Column("queueId", "The queue.", "QUEUE", right=True),
        Column("minOffset", "The offset of its first message.", right=True),
        Column("maxOffset", "The offset that its next message gets.", right=True),
        Column("messages", "Messages that it keeps.", right=True),
        Column("lastUpdateTimestamp", "When its last message was stored, in ms since 1970; 0 without one.", "UPDATED"),
    ),
)
CLUSTERS = Schema("cluster", (Column("cluster", "A cluster that has the topic."),))
ALLOCATION = Schema(
    "client",
    (Column("ip", "The client."), Column("queues", "The queues it would get, as BROKER/QUEUE.")),
)
ORDER = Schema(
    "order conf",
    (
        Column("topic", "The topic."),
        Column("orderConf", "Its brokers and their queues: broker-a:4;broker-b:4.", "CONF"),
    ),
)
STATS = Schema(
    "topic and group",
    (
        Column("topic", "The topic."),
        Column("group", "A group that consumes it; empty if none does."),
        Column("accumulation", "Messages that the group is behind.", "BEHIND", right=True),
        Column("inTps", "Messages stored in a second, over the last minute.", right=True),
        Column("outTps", "Messages that the group got in a second, over the last minute.", right=True),
        Column("inToday", "Messages stored in the last day.", "IN-24H", right=True),
        Column("outToday", "Messages that the group got in the last day.", "OUT-24H", right=True),
    ),
)


@verb(TOPICS)
@click.option("-c", "--clusterModel", "by_cluster", is_flag=True, help="Show the cluster and the groups of each topic.")
async def topic_list(admin: Admin, by_cluster: bool) -> Answer:
    """List all topics that the name server knows."""
    names = await admin.topic_names()
    if not by_cluster:
        return Answer({"topic": name} for name in names)

    async def row(name: str) -> list[dict[str, Any]]:
        try:
            clusters, groups = await asyncio.gather(admin.topic_clusters(name), admin.topic_groups(name))
        except RouteNotFound:  # it was deleted meanwhile
            return []
        return [{"topic": name, "cluster": cluster, "groups": list(groups)} for cluster in clusters]

    rows = await asyncio.gather(*(row(name) for name in names if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))))
    return Answer(one for found in rows for one in found)


@verb(ROUTE)
@topic_option
@click.option("-l", "--list", "_as_list", is_flag=True, help="As mqadmin's: a table, which is shown anyway.")
async def topic_route(admin: Admin, topic: str, _as_list: bool) -> Answer:
    """Show the brokers of a topic, and its queues on each."""
    route = await admin.topic_route(topic)
    brokers = {broker.broker_name: broker for broker in route.brokers}
    return Answer(
        {
            "topic": topic,
            "cluster": brokers[queue.broker_name].cluster if queue.broker_name in brokers else "",
            "brokerName": queue.broker_name,
            "readQueues": queue.read_queues,
            "writeQueues": queue.write_queues,
            "perm": queue.perm,
            "sysFlag": queue.sys_flag,
            "addresses": {str(key): one for key, one in brokers[queue.broker_name].addresses.items()}
            if queue.broker_name in brokers
            else {},
        }
        for queue in sorted(route.queues, key=lambda queue: queue.broker_name)
    )


@verb(STATUS)
@topic_option
@cluster_option
async def topic_status(admin: Admin, topic: str, cluster: str) -> Answer:
    """Show where each queue of a topic begins and ends."""
    status = await admin.topic_status(topic)
    names = {node.broker_name for node in await admin.targets(cluster=cluster)} if cluster else None
    rows = [
        {
            "topic": topic,
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "minOffset": queue.min_offset,
            "maxOffset": queue.max_offset,
            "messages": queue.max_offset - queue.min_offset,
            "lastUpdateTimestamp": queue.last_update_ms,
        }
        for queue in status.queues
        if names is None or queue.broker_name in names
    ]
    return Answer(rows, status.unanswered)


@verb(CLUSTERS)
@topic_option
async def topic_cluster_list(admin: Admin, topic: str) -> Answer:
    """List the clusters that have a topic."""
    return Answer({"cluster": cluster} for cluster in await admin.topic_clusters(topic))


@verb(CHANGE, own_o=("order", BOOLEAN))
@topic_option
@place_needed
@click.option("-r", "--readQueueNums", "read_queues", type=click.IntRange(0, 65_535), help="Queues to read.")
@click.option("-w", "--writeQueueNums", "write_queues", type=click.IntRange(0, 65_535), help="Queues to write.")
@click.option("-p", "--perm", type=click.Choice(["2", "4", "6"]), help="2 write, 4 read, 6 both.  [default: 6]")
@click.option("--order", type=BOOLEAN, help="Whether the topic is ordered; the order conf of its brokers is set, too.")
@click.option("-u", "--unit", type=BOOLEAN, help="Whether clients of a unit made it.")
@click.option("-s", "--hasUnitSub", "unit_sub", type=BOOLEAN, help="Whether clients of a unit consume it.")
@click.option("-a", "--attributes", default="", help="Attributes to add and remove: +message.type=FIFO,-other.")
async def update_topic(
    admin: Admin,
    topic: str,
    broker: str,
    cluster: str,
    read_queues: int | None,
    write_queues: int | None,
    perm: str | None,
    order: bool | None,
    unit: bool | None,
    unit_sub: bool | None,
    attributes: str,
) -> Answer:
    """Create a topic on a broker or a cluster, or change it; what is not given is left as it is.

    A new topic has 8 queues. With --order true, the brokers and queues of the topic are set as its order conf.
    """

    wanted = parse_attributes(attributes)

    async def put(node: BrokerNode) -> Done:
        known = await _find(admin, topic, node)
        base = known or TopicConfig(topic, DEFAULT_QUEUES, DEFAULT_QUEUES)
        config = TopicConfig(
            topic,
            base.read_queues if read_queues is None else read_queues,
            base.write_queues if write_queues is None else write_queues,
            base.perm if perm is None else int(perm),
            base.filter_type,
            _flag(_flag(base.sys_flag, TopicFlag.UNIT, unit), TopicFlag.UNIT_SUBSCRIPTION, unit_sub),
            base.order if order is None else order,
            wanted,
        )
        return await admin.put_topic(config, broker=node.address)

    nodes = await admin.targets(broker, cluster)
    outcomes = list(await asyncio.gather(*map(put, nodes)))
    if order and not any(done.unanswered for done in outcomes):
        outcomes.append(await _set_order(admin, topic, nodes))
    return changed(*outcomes)


async def _set_order(admin: Admin, topic: str, nodes: tuple[BrokerNode, ...]) -> Done:
    kept = parse_order_conf((await admin.kv(ORDER_NAMESPACE)).get(topic, ""))
    for node in nodes:
        kept[node.broker_name] = (await admin.topic_config(topic, node)).write_queues
    conf = ";".join(f"{name}:{count}" for name, count in sorted(kept.items()))
    return dataclasses.replace(await admin.put_kv(ORDER_NAMESPACE, topic, conf), detail=f"order conf {conf}")


def parse_order_conf(text: str) -> dict[str, int]:
    """Read broker-a:4;broker-b:4; UsageError names the part that cannot be read."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(";")):
        name, _, count = part.rpartition(":")
        queues = parse_int(count, high=MAX_INT)
        if not name or queues is None:
            raise click.UsageError(f"{part!r} is not BROKER:QUEUES; write broker-a:4;broker-b:4")
        found[name] = queues
    return found


def parse_attributes(text: str) -> dict[str, str]:
    """Read +key=value,-key as `Admin.put_topic` takes it."""
    found: dict[str, str] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = part.partition("=")
        if part.startswith("-") and not equals and len(name) > 1:
            found[name] = ""
        elif part.startswith("+") and equals and len(name) > 1:
            found[name[1:]] = value
        else:
            raise click.UsageError(f"{part!r} is not an attribute: write +key=value to set one, -key to remove it")
    return found


def _flag(flags: int, bit: TopicFlag, wanted: bool | None) -> int:
    return flags if wanted is None else flags | bit if wanted else flags & ~bit


async def _find(admin: Admin, topic: str, node: BrokerNode) -> TopicConfig | None:
    try:
        return await admin.topic_config(topic, node)
    except BrokerError as error:
        if error.is_lasting:
            raise
        return None


@verb(CHANGE)
@place_needed
@click.option(
    "-f",
    "--filename",
    "file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='A JSON list of topics: [{"topicName": "orders", "readQueueNums": 8, "writeQueueNums": 8}].',
)
async def update_topic_list(admin: Admin, broker: str, cluster: str, file: Path) -> Answer:
    """Create or change the topics of a JSON file."""
    given = read_list(file, "topicName")
    topics = TopicConfigList(tuple(topic_config_from_json(one) for one in given)).topics
    done = await admin.put_topics(topics, broker, cluster)
    return changed(dataclasses.replace(done, detail=f"{len(topics)} topics"))


def read_list(file: Path, key: str) -> list[dict[str, Any]]:
    """Read a JSON list of objects that have `key`; ConfigError names the file and the mistake."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(found, list) or not all(isinstance(one, dict) and one.get(key) for one in found):
        raise ConfigError(f"{file} is not a JSON list of objects with {key}")
    if not found:
        raise ConfigError(f"{file} has an empty list: there is nothing to do")
    return found


@verb(CHANGE)
@topic_option
@place_needed
@click.option("-p", "--perm", required=True, type=click.Choice(["2", "4", "6"]), help="2 write, 4 read, 6 both.")
async def update_topic_perm(admin: Admin, topic: str, broker: str, cluster: str, perm: str) -> Answer:
    """Change the permission of a topic that is there."""

    async def put(node: BrokerNode) -> Done:
        config = await admin.topic_config(topic, node)
        changed_config = dataclasses.replace(config, perm=int(perm), attributes={})
        done = await admin.put_topic(changed_config, broker=node.address)
        return dataclasses.replace(done, detail=f"perm {config.perm} to {perm}")

    nodes = await admin.targets(broker, cluster)
    if cluster:
        having = {queue.broker_name for queue in (await admin.topic_route(topic)).queues}
        nodes = tuple(node for node in nodes if node.broker_name in having)
    return changed(*await asyncio.gather(*map(put, nodes)))


@verb(CHANGE)
@topic_option
@click.option("-c", "--clusterName", "cluster", required=True, help="The cluster to delete it from.")
@yes_option
async def delete_topic(admin: Admin, topic: str, cluster: str, yes: bool) -> Answer:
    """Delete a topic with its messages from a cluster, and from the name servers."""
    nodes = await admin.targets(cluster=cluster)
    if yes:
        return changed(await admin.delete_topic(topic, cluster))
    status = await admin.topic_status(topic)
    counts: dict[str, int] = {}
    for queue in status.queues:
        counts[queue.broker_name] = counts.get(queue.broker_name, 0) + queue.max_offset - queue.min_offset
    answer = would(nodes, "")
    rows = [{**row, "detail": f"would delete {counts.get(row['brokerName'], 0)} messages"} for row in answer.rows]
    return Answer(rows, status.unanswered, answer.note)


@verb(ORDER)
@topic_option
@click.option("-m", "--method", required=True, type=click.Choice(["put", "get", "delete"]), help="What to do.")
@click.option("-v", "--orderConf", "conf", default="", help="For put: broker-a:4;broker-b:4.")
@yes_option
async def update_order_conf(admin: Admin, topic: str, method: str, conf: str, yes: bool) -> Answer:
    """Set, show or delete the order conf of a topic: its brokers and how many queues each has."""
    if method == "put":
        if not parse_order_conf(conf):
            raise click.UsageError("put needs -v broker-a:4;broker-b:4")
        done = await admin.put_kv(ORDER_NAMESPACE, topic, conf)
        return Answer([{"topic": topic, "orderConf": conf}], done.unanswered)
    kept = (await admin.kv(ORDER_NAMESPACE)).get(topic)
    if kept is None:
        raise ClientError(f"topic {topic} has no order conf; set one with -m put -v broker-a:4")
    if method == "delete" and yes:
        return Answer([], (await admin.delete_kv(ORDER_NAMESPACE, topic)).unanswered, f"order conf of {topic} deleted")
    note = "this order conf would be deleted; --yes does it" if method == "delete" else ""
    return Answer([{"topic": topic, "orderConf": kept}], note=note)


@verb(ALLOCATION)
@topic_option
@click.option("-i", "--ipList", "ips", required=True, help="Clients, separated by commas.")
async def allocate_mq(admin: Admin, topic: str, ips: str) -> Answer:
    """Show which client would get which queues of a topic, when they are shared out averagely."""
    clients = sorted(filter(None, (ip.strip() for ip in ips.split(","))))
    if not clients:
        raise click.UsageError("-i names no client; write -i 10.0.0.1,10.0.0.2")
    route = await admin.topic_route(topic)
    queues = sorted(
        MessageQueue(topic, one.broker_name, queue_id) for one in route.queues for queue_id in range(one.read_queues)
    )
    return Answer(
        {
            "ip": client,
            "queues": [f"{queue.broker_name}/{queue.queue_id}" for queue in averagely(queues, clients, client)],
        }
        for client in clients
    )


@verb(STATS)
@click.option("-a", "--activeTopic", "active", is_flag=True, help="Leave out topics without traffic.")
@click.option("-t", "--topic", default="", help="This topic only.")
async def stats_all(admin: Admin, active: bool, topic: str) -> Answer:
    """Show what went in and out of each topic, by group."""
    names = (
        [topic]
        if topic
        else [one for one in await admin.topic_names() if not one.startswith((RETRY_PREFIX, DLQ_PREFIX))]
    )
    progress = await admin.all_progress()
    behind = {
        (group.group, name): sum(queue.lag for queue in group.queues if queue.topic == name)
        for group in progress.groups
        for name in {queue.topic for queue in group.queues}
    }

    async def rows_of(name: str) -> list[dict[str, Any]]:
        groups = sorted(group for group, of in behind if of == name)
        put, *got = await asyncio.gather(
            admin.stats("TOPIC_PUT_NUMS", name), *(admin.stats("GROUP_GET_NUMS", f"{name}@{group}") for group in groups)
        )
        of_topic = {"topic": name, "inTps": put.minute.tps, "inToday": put.day.sum}
        rows = [
            {
                **of_topic,
                "group": group,
                "accumulation": behind[group, name],
                "outTps": out.minute.tps,
                "outToday": out.day.sum,
            }
            for group, out in zip(groups, got, strict=True)
        ]
        rows = rows or [{**of_topic, "group": "", "accumulation": 0, "outTps": 0.0, "outToday": 0}]
        return [row for row in rows if not active or row["inToday"] or row["outToday"]]

    found = await asyncio.gather(*map(rows_of, names))
    return Answer((row for rows in found for row in rows), progress.unanswered)

"""Verbs about consumer groups."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from cosmodrome.admin import Admin, BrokerNode, Done, GroupProgress
from cosmodrome.cli.admin.common import (
    CHANGE,
    Answer,
    changed,
    cluster_option,
    group_option,
    node_row,
    place_needed,
    verb,
    would,
    yes_option,
)
from cosmodrome.cli.admin.topics import parse_attributes, read_list
from cosmodrome.cli.formats import Column, Schema
from cosmodrome.errors import ClientError
from cosmodrome.model import GroupConfig, RequestMode
from cosmodrome.wire.bodies import group_config_from_json, group_config_to_json

BOOLEAN = click.BOOL

GROUP = Schema(
    "broker that has the group",
    (
        Column("cluster", "The broker's cluster.", wide=True),
        Column("brokerName", "The broker's name.", "BROKER"),
        Column("group", "The group."),
        Column("consumeEnable", "Whether it may consume.", "CONSUME"),
        Column("consumeBroadcastEnable", "Whether it may broadcast.", "BROADCAST"),
        Column("consumeFromMinEnable", "Whether it may begin at the first message.", "FROM-MIN", wide=True),
        Column("consumeMessageOrderly", "Whether it pops in order.", "ORDERLY"),
        Column("retryQueueNums", "Queues of its retry topic.", "RETRY-QUEUES", right=True),
        Column("retryMaxTimes", "Deliveries before a message is a dead letter.", "RETRIES", right=True),
        Column("config", "The whole config.", hidden=True),
    ),
)
PROGRESS = Schema(
    "queue, or group",
    (
        Column("group", "The group."),
        Column("topic", "The topic; empty in the row of a whole group."),
        Column("brokerName", "The broker of the queue.", "BROKER"),
        Column("queueId", "The queue.", "QUEUE", right=True),
        Column("brokerOffset", "The offset that the queue's next message gets.", "END", right=True),
        Column("consumerOffset", "The offset that the group has committed.", "COMMITTED", right=True),
        Column("pullOffset", "The offset that its members have fetched to.", "FETCHED", right=True, wide=True),
        Column("lag", "Messages that the group has not consumed.", right=True),
        Column("inflight", "Messages that its members hold.", right=True),
        Column(
            "lastTimestamp", "When the last message it consumed was stored, in ms since 1970; 0 if unknown.", "LAST"
        ),
        Column("clientIP", "The member that has the queue; with -s true.", "CLIENT", wide=True),
        Column("clients", "Members that are connected; in the row of a whole group.", right=True),
        Column("consumeTps", "Messages it gets in a second; in the row of a whole group.", "TPS", right=True),
    ),
)


@verb(CHANGE, own_o=("consumeMessageOrderly", BOOLEAN))
@group_option("--groupName")
@place_needed
@click.option("-s", "--consumeEnable", "consume_enable", type=BOOLEAN, help="Whether the group may consume.")
@click.option("-m", "--consumeFromMinEnable", "from_min", type=BOOLEAN, help="Whether it may begin at the first one.")
@click.option("-d", "--consumeBroadcastEnable", "broadcast", type=BOOLEAN, help="Whether it may broadcast.")
@click.option("--consumeMessageOrderly", "consumeMessageOrderly", type=BOOLEAN, help="Whether it pops in order.")
@click.option(
    "-q", "--retryQueueNums", "retry_queues", type=click.IntRange(0, 65_535), help="Queues of its retry topic."
)
@click.option("-r", "--retryMaxTimes", "retries", type=click.IntRange(-1), help="Deliveries before a dead letter.")
@click.option("-p", "--groupRetryPolicy", "policy", help='JSON: {"type": "CUSTOMIZED"}.')
@click.option("-i", "--brokerId", "broker_id", type=click.IntRange(0), help="The broker to consume from.")
@click.option(
    "-w", "--whichBrokerWhenConsumeSlowly", "slow_broker", type=click.IntRange(0), help="And when it is slow."
)
@click.option("-a", "--notifyConsumerIdsChanged", "notify", type=BOOLEAN, help="Whether members hear of each other.")
@click.option("--attributes", default="", help="Attributes to set: +key=value.")
async def update_sub_group(
    admin: Admin,
    group: str,
    broker: str,
    cluster: str,
    consume_enable: bool | None,
    from_min: bool | None,
    broadcast: bool | None,
    consumeMessageOrderly: bool | None,  # noqa: N803  # mqadmin's -o
    retry_queues: int | None,
    retries: int | None,
    policy: str | None,
    broker_id: int | None,
    slow_broker: int | None,
    notify: bool | None,
    attributes: str,
) -> Answer:
    """Create a consumer group on a broker or a cluster, or change it; what is not given is left as it is."""
    given: dict[str, Any] = {
        "consume_enable": consume_enable,
        "consume_from_min_enable": from_min,
        "consume_broadcast_enable": broadcast,
        "consume_message_orderly": consumeMessageOrderly,
        "retry_queues": retry_queues,
        "retry_max_times": retries,
        "retry_policy": _policy(policy),
        "broker_id": broker_id,
        "which_broker_when_consume_slowly": slow_broker,
        "notify_consumer_ids_changed_enable": notify,
    }
    values = {name: value for name, value in given.items() if value is not None}
    wanted = parse_attributes(attributes)
    known = await admin.group_configs(broker, cluster)
    by_address = {one.node.address: one.config for one in known.groups if one.config.name == group}

    async def put(node: BrokerNode) -> Done:
        base = by_address.get(node.address, GroupConfig(group))
        merged = {**base.attributes, **wanted}
        kept = {name: value for name, value in merged.items() if not name.startswith("-") and f"-{name}" not in wanted}
        return await admin.put_group(dataclasses.replace(base, **values, attributes=kept), broker=node.address)

    away = {one.address for one in known.unanswered}
    nodes = [node for node in await admin.targets(broker, cluster) if node.address not in away]
    answer = changed(*await asyncio.gather(*map(put, nodes)))
    answer.unanswered = [*known.unanswered, *answer.unanswered]
    return answer


def _policy(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        policy = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"-p is not JSON: {error}") from None
    if not isinstance(policy, dict) or "type" not in policy:
        raise click.UsageError('-p is not a policy: write {"type": "CUSTOMIZED"}, for example')
    return policy


@verb(CHANGE)
@place_needed
@click.option(
    "-f",
    "--filename",
    "file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='A JSON list of groups: [{"groupName": "billing", "retryMaxTimes": 3}].',
)
async def update_sub_group_list(admin: Admin, broker: str, cluster: str, file: Path) -> Answer:
    """Create or change the consumer groups of a JSON file."""
    groups = [group_config_from_json(one) for one in read_list(file, "groupName")]
    done = await admin.put_groups(groups, broker, cluster)
    return changed(dataclasses.replace(done, detail=f"{len(groups)} groups"))


@verb(CHANGE)
@group_option("--groupName")
@place_needed
@click.option("-r", "--removeOffset", "clean", type=BOOLEAN, default=False, help="Also forget how far it is.")
@yes_option
async def delete_sub_group(admin: Admin, group: str, broker: str, cluster: str, clean: bool, yes: bool) -> Answer:
    """Delete a consumer group; with -r true also its offsets."""
    if yes:
        return changed(await admin.delete_group(group, broker, cluster, clean_offsets=clean))
    known = await admin.group_configs(broker, cluster)
    nodes = [one.node for one in known.groups if one.config.name == group]
    offsets = " and its offsets" if clean else "; its offsets stay"
    answer = would(nodes, f"would delete group {group}{offsets}")
    return Answer(answer.rows, known.unanswered, answer.note)


@verb(GROUP)
@group_option("--groupName")
async def get_consumer_config(admin: Admin, group: str) -> Answer:
    """Show the config of a consumer group on each broker that has it."""
    known = await admin.group_configs()
    rows = [
        {**node_row(one.node), "group": group, **_config(one.config), "config": _config(one.config)}
        for one in known.groups
        if one.config.name == group
    ]
    if not rows and not known.unanswered:
        raise ClientError(f"no broker has the group {group}; `cosmodrome admin updateSubGroup -g {group}` makes it")
    return Answer(rows, known.unanswered)


def _config(config: GroupConfig) -> dict[str, Any]:
    return group_config_to_json(config)


@verb(CHANGE)
@group_option("--groupName")
@click.option("-t", "--topicName", "--topic", "topic", required=True, help="The topic.")
@click.option("-m", "--mode", required=True, type=click.Choice(["PULL", "POP"]), help="How members get messages.")
@click.option(
    "-q", "--popShareQueueNum", "share", type=click.IntRange(-1), default=0, help="Members that share queues."
)
@place_needed
async def set_consume_mode(
    admin: Admin, group: str, topic: str, mode: str, share: int, broker: str, cluster: str
) -> Answer:
    """Let the members of a group pull or pop a topic."""
    return changed(await admin.set_consume_mode(group, topic, RequestMode(mode), share, broker, cluster))


@verb(PROGRESS)
@click.option("-g", "--groupName", "group", default="", help="The consumer group.  [default: all]")
@click.option("-t", "--topicName", "--topic", "topic", default="", help="This topic only.")
@click.option("-s", "--showClientIP", "with_clients", type=BOOLEAN, default=False, help="Show who has each queue.")
@cluster_option
async def consumer_progress(admin: Admin, group: str, topic: str, with_clients: bool, cluster: str) -> Answer:
    """Show how far a group is on each queue; without -g, how far all groups are."""
    if not group:
        everything = await admin.all_progress(cluster=cluster)
        consumers = await asyncio.gather(*(_client_count(admin, one) for one in everything.groups))
        rows = [
            group_row(_of_topic(one, topic), count)
            for one, count in zip(everything.groups, consumers, strict=True)
            if not topic or any(queue.topic == topic for queue in one.queues)
        ]
        return Answer(rows, everything.unanswered)
    progress = await admin.group_progress(group, topic, cluster=cluster)
    owners = await _owners(admin, group) if with_clients else {}
    queues = [
        {**queue_row(group, queue), "clientIP": owners.get((queue.topic, queue.broker_name, queue.queue_id), "")}
        for queue in progress.queues
    ]
    nothing = (
        f"group {group} has consumed nothing{f' of topic {topic}' if topic else ''}: no broker has an offset of it"
    )
    return Answer(queues, progress.unanswered, "" if queues else nothing)


def _of_topic(progress: GroupProgress, topic: str) -> GroupProgress:
    if not topic:
        return progress
    return dataclasses.replace(progress, queues=tuple(queue for queue in progress.queues if queue.topic == topic))


async def _client_count(admin: Admin, progress: GroupProgress) -> int:
    """Return how many members are connected; Apache's brokers have to be asked about each group."""
    if progress.clients is not None:
        return progress.clients
    return len((await admin.consumers(progress.group)).clients)


async def _owners(admin: Admin, group: str) -> dict[tuple[str, str, int], str]:
    """Return the member that has each queue, by topic, broker and queue."""
    consumers = await admin.consumers(group)

    async def of_member(client_id: str) -> dict[tuple[str, str, int], str]:
        try:
            info = await admin.running_info(group, client_id)
        except ClientError:
            return {}
        return {(queue.topic, queue.broker_name, queue.queue_id): client_id for queue in info.queues}

    found = await asyncio.gather(*(of_member(client.client_id) for client in consumers.clients))
    return {queue: client for owned in found for queue, client in owned.items()}


def queue_row(group: str, queue: Any) -> dict[str, Any]:
    """Return a row of PROGRESS about one queue."""
    return {
        "group": group,
        "topic": queue.topic,
        "brokerName": queue.broker_name,
        "queueId": queue.queue_id,
        "brokerOffset": queue.broker_offset,
        "consumerOffset": queue.consumer_offset,
        "pullOffset": queue.pull_offset,
        "lag": queue.lag,
        "inflight": queue.inflight,
        "lastTimestamp": queue.last_ms,
    }


def group_row(progress: GroupProgress, clients: int) -> dict[str, Any]:
    """Return a row of PROGRESS about a whole group."""
    return {
        "group": progress.group,
        "lag": progress.lag,
        "inflight": progress.inflight,
        "clients": clients,
        "consumeTps": progress.tps,
    }

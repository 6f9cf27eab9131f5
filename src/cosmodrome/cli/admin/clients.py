"""Verbs about connected clients."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from cosmodrome.admin import Admin, ClientInfo, Unanswered
from cosmodrome.cli.admin.common import Answer, broker_option, group_option, topic_option, verb
from cosmodrome.cli.formats import Column, Schema
from cosmodrome.errors import ClientError, CosmodromeError
from cosmodrome.wire.bodies import ConsumerRunningInfo

_CLIENT = (
    Column("clientId", "The client's id.", "CLIENT"),
    Column("address", "From where it is connected."),
    Column("language", "Its language."),
    Column("version", "Its version."),
)
CONSUMERS = Schema(
    "consumer",
    (
        Column("group", "The group."),
        *_CLIENT,
        Column("consumeType", "Whether it pulls, pops or is pushed to.", "TYPE", wide=True),
        Column("messageModel", "CLUSTERING or BROADCASTING.", "MODEL"),
        Column("consumeFromWhere", "Where it begins without an offset.", "FROM", wide=True),
        Column("subscriptions", "What the group subscribes to, by topic."),
        Column("differing", "What this client wants, where the members do not agree.", wide=True),
    ),
)
PRODUCERS = Schema("producer", (Column("group", "The group."), *_CLIENT))
RUNNING = Schema(
    "queue of a client",
    (
        Column("group", "The group.", wide=True),
        Column("clientId", "The client's id.", "CLIENT"),
        Column("version", "Its version.", wide=True),
        Column("topic", "A topic."),
        Column("brokerName", "The broker of the queue.", "BROKER"),
        Column("queueId", "The queue.", "QUEUE", right=True),
        Column("commitOffset", "The offset it has consumed to.", "COMMITTED", right=True),
        Column("cachedMsgCount", "Messages it holds.", "CACHED", right=True),
        Column("locked", "Whether it holds the queue's lock, for consuming in order."),
        Column("dropped", "Whether it has given the queue up.", wide=True),
        Column("lastPullTimestamp", "When it last pulled, in ms since 1970.", "PULLED", wide=True),
        Column("lastConsumeTimestamp", "When it last consumed, in ms since 1970.", "CONSUMED", wide=True),
        Column("consumeOKTPS", "Messages of the topic it handles in a second.", "OK-TPS", right=True),
        Column("consumeFailedTPS", "Messages of the topic that fail in a second.", "FAILED-TPS", right=True),
        Column("consumeRT", "Milliseconds for one message of the topic.", "MS", right=True),
        Column("properties", "Its config.", hidden=True),
        Column("jstack", "The stacks of its threads; with -s.", hidden=True),
    ),
)


def client_row(group: str, client: ClientInfo) -> dict[str, Any]:
    """Return the columns that name a client."""
    return {
        "group": group,
        "clientId": client.client_id,
        "address": client.address,
        "language": client.language,
        "version": client.version,
    }


@verb(CONSUMERS)
@group_option("--consumerGroup")
@broker_option
async def consumer_connection(admin: Admin, group: str, broker: str) -> Answer:
    """List the connected members of a consumer group, and what they subscribe to."""
    found = await admin.consumers(group, broker)
    if not found.clients and not found.unanswered:
        raise ClientError(f"no member of group {group} is connected to a broker")
    rows = [
        {
            **client_row(group, client),
            "consumeType": str(found.consume_type),
            "messageModel": str(found.message_model),
            "consumeFromWhere": str(found.consume_from),
            "subscriptions": {one.topic: one.expression for one in found.subscriptions},
            "differing": found.disagreement.get(client.client_id, ""),
        }
        for client in found.clients
    ]
    return Answer(rows, found.unanswered)


@verb(PRODUCERS)
@click.option("-g", "--producerGroup", "group", required=True, help="The producer group.")
@topic_option
async def producer_connection(admin: Admin, group: str, topic: str) -> Answer:
    """List the connected members of a producer group on the brokers of a topic."""
    names = {broker.broker_name for broker in (await admin.topic_route(topic)).brokers}
    found = await asyncio.gather(*(admin.producers(group, name) for name in sorted(names)))
    clients = {client.client_id: client for one in found for client in one.clients}
    missing = [failure for one in found for failure in one.unanswered]
    if not clients and not missing:
        raise ClientError(f"no member of producer group {group} is connected to a broker of topic {topic}")
    return Answer((client_row(group, clients[key]) for key in sorted(clients)), missing)


@verb(PRODUCERS)
@broker_option
async def producer(admin: Admin, broker: str) -> Answer:
    """List the connected members of all producer groups."""
    everything = await admin.all_producers(broker)
    rows = [client_row(one.group, client) for one in everything.groups for client in one.clients]
    return Answer(rows, everything.unanswered)


@verb(RUNNING)
@group_option("--consumerGroup")
@click.option("-i", "--clientId", "client_id", default="", help="This member only.")
@click.option("-s", "--jstack", "stacks", is_flag=True, help="With the stacks of its threads, in JSON.")
@broker_option
async def consumer_status(admin: Admin, group: str, client_id: str, stacks: bool, broker: str) -> Answer:
    """Show what the members of a consumer group do, as they say themselves."""
    return await _running(admin, group, client_id, broker, stacks=stacks)


@verb(RUNNING)
@group_option("--consumerGroup")
@click.option("-s", "--jstack", "stacks", is_flag=True, help="With the stacks of its threads, in JSON.")
async def consumer(admin: Admin, group: str, stacks: bool) -> Answer:
    """Show the members of a consumer group, and their queues."""
    return await _running(admin, group, "", "", stacks=stacks)


async def _running(admin: Admin, group: str, client_id: str, broker: str, *, stacks: bool) -> Answer:
    found = await admin.consumers(group, broker)
    clients = [client for client in found.clients if client_id in ("", client.client_id)]
    if not clients and not found.unanswered:
        who = f"member {client_id}" if client_id else "member"
        raise ClientError(f"no {who} of group {group} is connected; consumerConnection lists those that are")
    missing = list(found.unanswered)

    async def rows_of(client: ClientInfo) -> list[dict[str, Any]]:
        try:
            info = await admin.running_info(group, client.client_id, stacks=stacks)
        except CosmodromeError as error:
            missing.append(Unanswered(client.client_id, client.address, str(error)))
            return []
        return _rows(group, client, info)

    rows = await asyncio.gather(*map(rows_of, clients))
    return Answer([row for one in rows for row in one], missing)


def _rows(group: str, client: ClientInfo, info: ConsumerRunningInfo) -> list[dict[str, Any]]:
    of_client = {
        "group": group,
        "clientId": client.client_id,
        "version": client.version,
        "properties": dict(info.properties),
        "jstack": info.stacks,
    }
    rows: list[dict[str, Any]] = []
    for queue, progress in sorted(info.queues.items()):
        status = info.statuses.get(queue.topic)
        rows.append(
            {
                **of_client,
                "topic": queue.topic,
                "brokerName": queue.broker_name,
                "queueId": queue.queue_id,
                "commitOffset": progress.commit_offset,
                "cachedMsgCount": progress.cached_count,
                "locked": progress.locked,
                "dropped": progress.dropped,
                "lastPullTimestamp": progress.last_pull_timestamp,
                "lastConsumeTimestamp": progress.last_consume_timestamp,
                "consumeOKTPS": status.consume_ok_tps if status else 0.0,
                "consumeFailedTPS": status.consume_failed_tps if status else 0.0,
                "consumeRT": status.consume_rt if status else 0.0,
            }
        )
    return rows or [of_client]

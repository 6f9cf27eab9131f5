"""Verbs that move consumer groups."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import click

from cosmodrome.admin import Admin, Resets
from cosmodrome.cli.admin.common import DRY_RUN, NOW, Answer, group_option, moment, topic_option, verb, yes_option
from cosmodrome.cli.formats import Column, Schema
from cosmodrome.errors import ClientError
from cosmodrome.model import MessageQueue

BOOLEAN = click.BOOL
MOVE = Schema(
    "queue",
    (
        Column("group", "The group."),
        Column("topic", "The topic."),
        Column("brokerName", "The broker of the queue.", "BROKER"),
        Column("queueId", "The queue.", "QUEUE", right=True),
        Column("before", "The offset that the group had; empty if it had none.", right=True),
        Column("offset", "The offset it goes on from.", right=True),
        Column("done", "Whether it was moved."),
    ),
)
MEMBERS = Schema(
    "queue of a client",
    (
        Column("clientId", "The client's id.", "CLIENT"),
        Column("topic", "The topic.", wide=True),
        Column("brokerName", "The broker of the queue.", "BROKER"),
        Column("queueId", "The queue.", "QUEUE", right=True),
        Column("offset", "The offset that the client is at.", right=True),
    ),
)

_Queue = tuple[str, int]


async def _before(admin: Admin, group: str, topic: str) -> dict[_Queue, int]:
    progress = await admin.group_progress(group, topic)
    return {(queue.broker_name, queue.queue_id): queue.consumer_offset for queue in progress.queues}


def _rows(
    group: str, topic: str, before: dict[_Queue, int], to: dict[_Queue, int], *, done: bool
) -> list[dict[str, Any]]:
    return [
        {
            "group": group,
            "topic": topic,
            "brokerName": name,
            "queueId": queue_id,
            "before": before.get((name, queue_id)),
            "offset": offset,
            "done": done,
        }
        for (name, queue_id), offset in sorted(to.items())
    ]


async def _targets(
    admin: Admin, topic: str, timestamp_ms: int, broker: str, queue_id: int, offset: int | None
) -> dict[_Queue, int]:
    """Return where each queue would go on, without moving anything."""
    name = (await admin.targets(broker))[0].broker_name if broker else ""
    status = await admin.topic_status(topic)
    queues = [queue for queue in status.queues if name in ("", queue.broker_name) and queue_id in (-1, queue.queue_id)]
    if offset is not None:
        return {(queue.broker_name, queue.queue_id): offset for queue in queues}
    if timestamp_ms == NOW:
        return {(queue.broker_name, queue.queue_id): queue.max_offset for queue in queues}
    found = await asyncio.gather(
        *(
            admin.queue_offset_at(MessageQueue(topic, queue.broker_name, queue.queue_id), timestamp_ms)
            for queue in queues
        )
    )
    return {(queue.broker_name, queue.queue_id): one for queue, one in zip(queues, found, strict=True)}


async def _reset(
    admin: Admin,
    group: str,
    topic: str,
    timestamp_ms: int,
    *,
    force: bool = True,
    broker: str = "",
    queue_id: int = -1,
    offset: int | None = None,
    yes: bool,
) -> Answer:
    before = await _before(admin, group, topic)
    if not yes:
        to = await _targets(admin, topic, timestamp_ms, broker, queue_id, offset)
        if not force:
            to = {queue: min(one, before.get(queue, one)) for queue, one in to.items()}
        return Answer(_rows(group, topic, before, to, done=False), note=DRY_RUN)
    resets = await admin.reset_offset(
        group, topic, timestamp_ms, force=force, broker=broker, queue_id=queue_id, offset=offset
    )
    return _moved(resets, before)


def _moved(resets: Resets, before: dict[_Queue, int]) -> Answer:
    to = {(one.broker_name, one.queue_id): one.offset for one in resets.queues}
    return Answer(_rows(resets.group, resets.topic, before, to, done=True), resets.unanswered)


@verb(MOVE, own_o=("offset", click.IntRange(0)))
@group_option("--group")
@topic_option
@click.option("-s", "--timestamp", type=moment, metavar="TIME", help="now, ms since 1970, or 2030-01-31#09:00:00:000.")
@click.option("-f", "--force", type=BOOLEAN, default=True, show_default=True, help="Whether it may also go forward.")
@click.option("-b", "--broker", default="", metavar="HOST:PORT|NAME", help="On this broker only.")
@click.option("-q", "--queue", "queue_id", type=click.IntRange(0), help="On this queue only; needs -b.")
@click.option("--offset", type=click.IntRange(0), help="To this offset of the queue; needs -b and -q.")
@yes_option
async def reset_offset_by_time(
    admin: Admin,
    group: str,
    topic: str,
    timestamp: int | None,
    force: bool,
    broker: str,
    queue_id: int | None,
    offset: int | None,
    yes: bool,
) -> Answer:
    """Let a group go on from a time, or on one queue from an offset; running members follow at their next pull."""
    if timestamp is None and offset is None:
        raise click.UsageError("say from where: -s TIME (now is the end), or -b, -q and -o OFFSET")
    if queue_id is not None and not broker:
        raise click.UsageError("a queue is one broker's: name the broker, too (-b)")
    if offset is not None and queue_id is None:
        raise click.UsageError("an offset is one queue's: name the queue, too (-q)")
    where = -1 if queue_id is None else queue_id
    time_ms = NOW if timestamp is None else timestamp
    return await _reset(
        admin, group, topic, time_ms, force=force, broker=broker, queue_id=where, offset=offset, yes=yes
    )


@verb(MOVE)
@group_option("--group")
@topic_option
@click.option("-s", "--timestamp", required=True, type=moment, metavar="TIME", help="As of resetOffsetByTime.")
@click.option("-f", "--force", type=BOOLEAN, default=True, show_default=True, help="Whether it may also go forward.")
@yes_option
async def reset_offset_by_time_old(
    admin: Admin, group: str, topic: str, timestamp: int, force: bool, yes: bool
) -> Answer:
    """Let a group go on from a time, as resetOffsetByTime: members need not be started again here."""
    return await _reset(admin, group, topic, timestamp, force=force, yes=yes)


@verb(MOVE)
@group_option("--group")
@topic_option
@click.option("-f", "--force", type=BOOLEAN, default=True, help="As mqadmin's; going to the end is always forward.")
@yes_option
async def skip_accumulated_message(admin: Admin, group: str, topic: str, force: bool, yes: bool) -> Answer:
    """Let a group go on from the end of a topic: it never gets the messages between."""
    if not force:
        raise click.UsageError("-f false would move nothing: the end of a topic is never behind a group")
    return await _reset(admin, group, topic, NOW, yes=yes)


@verb(MOVE, own_o=("offline", BOOLEAN))
@click.option("-s", "--srcGroup", "source", required=True, help="The group whose offsets are taken.")
@click.option("-d", "--destGroup", "target", required=True, help="The group that gets them.")
@topic_option
@click.option("--offline", type=BOOLEAN, default=False, help="Also if members of the source do not subscribe any more.")
@yes_option
async def clone_group_offset(
    admin: Admin, source: str, target: str, topic: str, offline: bool | None, yes: bool
) -> Answer:
    """Set the offsets of a group on a topic to those of another group."""
    to, before = await asyncio.gather(_before(admin, source, topic), _before(admin, target, topic))
    if not to:
        raise ClientError(f"group {source} has consumed nothing of topic {topic}, so that there is nothing to clone")
    if not yes:
        return Answer(_rows(target, topic, before, to, done=False), note=DRY_RUN)
    done = await admin.clone_offsets(source, target, topic, offline=bool(offline))
    after = await _before(admin, target, topic)
    return Answer(_rows(target, topic, before, after, done=True), done.unanswered)


@verb(MEMBERS)
@group_option("--group")
@topic_option
@click.option("-i", "--originClientId", "client_id", default="", help="This member only.")
async def get_consumer_status(admin: Admin, group: str, topic: str, client_id: str) -> Answer:
    """Show how far the connected members of a group say they are."""
    found = await admin.consumer_status(group, topic, client_id)
    return Answer(_member_rows(found.items()))


def _member_rows(found: Any) -> Sequence[dict[str, Any]]:
    return [
        {
            "clientId": client,
            "topic": queue.topic,
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "offset": offset,
        }
        for client, offsets in sorted(found)
        for queue, offset in sorted(offsets.items())
    ]

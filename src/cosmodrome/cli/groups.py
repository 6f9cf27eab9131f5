"""`cosmodrome groups`."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from datetime import datetime

import click

from cosmodrome.admin.door import Admin
from cosmodrome.admin.results import AllProgress, Consumers, GroupConfigs, GroupProgress, QueueProgress
from cosmodrome.cli.access import Access, access_options
from cosmodrome.cli.asking import ask, problems
from cosmodrome.cli.formats import Column, Partial, Row, Schema, rows
from cosmodrome.cli.options import instant
from cosmodrome.cli.shared import (
    ListGroup,
    broker_option,
    cluster_option,
    is_system_group,
    pattern_argument,
    report,
    time_text,
    would,
    yes_option,
)
from cosmodrome.model import RETRY_PREFIX, GroupConfig

GROUPS = Schema(
    "group",
    (
        Column("group", "The name."),
        Column("topics", "The number of topics it has consumed.", right=True),
        Column("lag", "Messages that it has not consumed.", right=True),
        Column("lagSeconds", "How old the last message is that it consumed, where messages wait.", "LAG-S", right=True),
        Column("tps", "Messages that it consumes in a second.", right=True),
        Column("members", "Connected members, if the brokers say so.", right=True),
        Column("inflight", "Messages that members hold and have not committed.", right=True, wide=True),
        Column("retries", "How often a message is tried again.", right=True, wide=True),
        Column("enabled", "Whether it may consume.", wide=True),
    ),
)
QUEUES = Schema(
    "queue",
    (
        Column("group", "The group.", hidden=True),
        Column("topic", "The topic."),
        Column("broker", "The broker."),
        Column("queue", "The number of the queue.", right=True),
        Column("brokerOffset", "Behind the last message of the queue.", "END", right=True),
        Column("consumerOffset", "The next message of the group.", "AT", right=True),
        Column("lag", "Messages that it has not consumed.", right=True),
        Column("lagSeconds", "How old the last message is that it consumed, where messages wait.", "LAG-S", right=True),
        Column("lastConsumed", "When the last message that it consumed was stored.", "LAST", wide=True),
        Column("inflight", "Messages that members hold and have not committed.", right=True, wide=True),
    ),
)


RESETS = Schema(
    "queue",
    (
        Column("group", "The group.", hidden=True),
        Column("topic", "The topic."),
        Column("broker", "The broker."),
        Column("queue", "The number of the queue.", right=True),
        Column("offset", "Where the group goes on.", right=True),
    ),
)


@click.group(cls=ListGroup)
def groups() -> None:
    """List, describe, create, alter, reset and delete consumer groups."""


@groups.command("list")
@pattern_argument
@click.option("--system", is_flag=True, help="Also groups of brokers and tools.")
@click.option("--behind", type=click.IntRange(0), metavar="N", help="Only groups with more than N messages to consume.")
@cluster_option
@access_options
@rows(GROUPS)
def list_groups(pattern: re.Pattern[str], system: bool, behind: int | None, cluster: str, access: Access) -> Partial:
    """List the consumer groups whose names match REGEX, with their lag."""

    async def look(admin: Admin) -> tuple[GroupConfigs, AllProgress]:
        configs, progress = await asyncio.gather(
            admin.group_configs(cluster=cluster), admin.all_progress(cluster=cluster)
        )
        return configs, progress

    configs, progress = ask(access, look)
    by_name = {one.config.name: one.config for one in configs.groups}
    ahead = {one.group: one for one in progress.groups}
    names = sorted(
        name for name in {*by_name, *ahead} if pattern.search(name) and (system or not is_system_group(name))
    )
    now_ms = int(time.time() * 1_000)
    made = [_group_row(name, by_name.get(name), ahead.get(name, GroupProgress(name)), now_ms) for name in names]
    wanted = [row for row in made if behind is None or row["lag"] > behind]
    return Partial(wanted, problems({*configs.unanswered, *progress.unanswered}))


def _group_row(name: str, config: GroupConfig | None, progress: GroupProgress, now_ms: int) -> Row:
    return {
        "group": name,
        "topics": len({one.topic for one in progress.queues if not one.topic.startswith(RETRY_PREFIX)}),
        "lag": progress.lag,
        "lagSeconds": max((lag_seconds(one, now_ms) or 0 for one in progress.queues), default=0),
        "tps": progress.tps,
        "members": progress.clients,
        "inflight": progress.inflight,
        "retries": config.retry_max_times if config is not None else None,
        "enabled": config.consume_enable if config is not None else None,
    }


def lag_seconds(queue: QueueProgress, now_ms: int) -> int | None:
    """Return the age of the last message that was consumed, if others wait; None if it is not known."""
    if not queue.lag:
        return 0
    return max(now_ms - queue.last_ms, 0) // 1_000 if queue.last_ms > 0 else None


@groups.command("describe")
@click.argument("group")
@click.option("--topic", default="", help="This topic alone.")
@access_options
@rows(QUEUES)
def describe(group: str, topic: str, access: Access) -> Partial:
    """Show where GROUP is on each queue. Its members stand on standard error."""

    async def look(admin: Admin) -> tuple[GroupProgress, Consumers, bool]:
        progress, members = await asyncio.gather(admin.group_progress(group, topic), admin.consumers(group))
        known = bool(progress.queues or members.clients)
        return progress, members, known or group in {one.config.name for one in (await admin.group_configs()).groups}

    progress, members, is_known = ask(access, look)
    if not is_known:
        raise click.ClickException(f"no broker knows the group {group}; `cosmodrome groups list` names them")
    for line in _members(members):
        click.echo(line, err=True)
    now_ms = int(time.time() * 1_000)
    made = (
        {
            "group": group,
            "topic": one.topic,
            "broker": one.broker_name,
            "queue": one.queue_id,
            "brokerOffset": one.broker_offset,
            "consumerOffset": one.consumer_offset,
            "lag": one.lag,
            "lagSeconds": lag_seconds(one, now_ms),
            "lastConsumed": time_text(one.last_ms),
            "inflight": one.inflight,
        }
        for one in progress.queues
    )
    return Partial(made, problems({*progress.unanswered, *members.unanswered}))


def _members(members: Consumers) -> list[str]:
    if not members.clients:
        return ["no member is connected"]
    wants = ", ".join(f"{one.topic} {one.expression}" for one in members.subscriptions)
    return [
        f"{members.message_model}, {members.consume_type}: {wants}",
        *(f"member {one.client_id} {one.address} {one.language} {one.version}" for one in members.clients),
        *(f"disagrees: {client} wants {text}" for client, text in members.disagreement.items()),
    ]


retries_option = click.option("--retries", type=click.IntRange(0), help="How often a message is tried again.")


@groups.command("create")
@click.argument("group")
@retries_option
@click.option("--orderly", is_flag=True, help="Its members consume in order.")
@broker_option
@cluster_option
@access_options
def create(group: str, retries: int | None, orderly: bool, broker: str, cluster: str, access: Access) -> None:
    """Create GROUP on every broker; safe to repeat."""
    config = GroupConfig(group, consume_message_orderly=orderly)
    if retries is not None:
        config = dataclasses.replace(config, retry_max_times=retries)
    report(ask(access, lambda admin: admin.put_group(config, broker, cluster)), f"group {group} is")


@groups.command("alter")
@click.argument("group")
@retries_option
@click.option("--enable/--disable", default=None, help="Whether it may consume.")
@broker_option
@yes_option
@access_options
def alter(group: str, retries: int | None, enable: bool | None, broker: str, yes: bool, access: Access) -> None:
    """Change GROUP where it is; what is not given stays."""
    if retries is None and enable is None:
        raise click.UsageError("say what to change: --retries, --enable or --disable")

    async def change(admin: Admin) -> None:
        found = [one for one in (await admin.group_configs(broker)).groups if one.config.name == group]
        if not found:
            raise click.ClickException(f"no broker has the group {group}; `cosmodrome groups create` makes it")
        for one in found:
            config = dataclasses.replace(
                one.config,
                retry_max_times=one.config.retry_max_times if retries is None else retries,
                consume_enable=one.config.consume_enable if enable is None else enable,
            )
            if yes:
                report(await admin.put_group(config, one.node.broker_name), f"group {group} is changed")
            else:
                would(
                    f"change {group} on {one.node.broker_name}: retries {one.config.retry_max_times} -> "
                    f"{config.retry_max_times}, enabled {one.config.consume_enable} -> {config.consume_enable}"
                )

    ask(access, change)


def _place(text: str) -> int | datetime:
    """Return 0 for `earliest`, -1 for `latest`, or a time."""
    return {"earliest": 0, "latest": -1}[text] if text in ("earliest", "latest") else instant(text)


@groups.command("reset")
@click.argument("group")
@click.argument("topic")
@click.option("--to", "place", type=_place, required=True, metavar="earliest|latest|TIME", help="Where it goes on.")
@yes_option
@access_options
@rows(RESETS)
def reset(group: str, topic: str, place: int | datetime, yes: bool, access: Access) -> Partial:
    """Let GROUP go on elsewhere in TOPIC: from the first message, the end, or a time such as 2030-01-31T09:00."""
    timestamp_ms = int(place.timestamp() * 1_000) if isinstance(place, datetime) else place

    async def change(admin: Admin) -> Partial:
        if not yes:
            progress = await admin.group_progress(group, topic)
            ends = {(one.broker_name, one.queue_id): one for one in progress.queues}
            made = [
                {"group": group, "topic": topic, "broker": name, "queue": queue, "offset": one.consumer_offset}
                for (name, queue), one in sorted(ends.items())
            ]
            click.echo("these are its offsets now; nothing is done without --yes", err=True)
            return Partial(made, problems(progress.unanswered))
        resets = await admin.reset_offset(group, topic, timestamp_ms)
        made = [
            {"group": group, "topic": topic, "broker": one.broker_name, "queue": one.queue_id, "offset": one.offset}
            for one in resets.queues
        ]
        return Partial(made, problems(resets.unanswered))

    return ask(access, change)


@groups.command("delete")
@click.argument("group")
@click.option("--offsets", is_flag=True, help="Also forget how far it is.")
@broker_option
@cluster_option
@yes_option
@access_options
def delete(group: str, offsets: bool, broker: str, cluster: str, yes: bool, access: Access) -> None:
    """Delete GROUP from the brokers."""
    if yes:
        done = ask(access, lambda admin: admin.delete_group(group, broker, cluster, clean_offsets=offsets))
        report(done, f"group {group} is deleted")
        return

    async def look(admin: Admin) -> tuple[GroupProgress, Consumers]:
        return await admin.group_progress(group, cluster=cluster), await admin.consumers(group)

    progress, members = ask(access, look)
    would(f"delete group {group}: {len(members.clients)} members are connected, {progress.lag} messages wait for it")

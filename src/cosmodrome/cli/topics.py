"""`cosmodrome topics`."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Iterable

import click

from cosmodrome.admin.door import Admin
from cosmodrome.admin.results import TopicConfigs, TopicOnBroker, TopicStatus
from cosmodrome.cli.access import Access, access_options
from cosmodrome.cli.asking import ask, problems
from cosmodrome.cli.formats import Column, Partial, Row, Schema, rows
from cosmodrome.cli.shared import (
    ListGroup,
    broker_option,
    cluster_option,
    is_system_topic,
    pattern_argument,
    permission,
    permission_option,
    permission_text,
    report,
    time_text,
    would,
    yes_option,
)
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import MAX_QUEUES, TopicConfig

TOPICS = Schema(
    "topic",
    (
        Column("topic", "The name."),
        Column("brokers", "The brokers that have it."),
        Column("readQueues", "Queues to read from, on all brokers.", "READ", right=True),
        Column("writeQueues", "Queues to write to, on all brokers.", "WRITE", right=True),
        Column("perm", "What is allowed: r, w, rw; of several brokers, what any allows."),
        Column("messages", "Messages that are kept; with --stats.", right=True),
        Column("lastMessage", "When the last message came; with --stats.", "LAST", right=True),
        Column("order", "Whether it is an ordered topic.", wide=True),
        Column("attributes", "Attributes, such as message.type.", wide=True),
    ),
)
QUEUES = Schema(
    "queue",
    (
        Column("topic", "The topic.", hidden=True),
        Column("broker", "The broker."),
        Column("queue", "The number of the queue.", right=True),
        Column("perm", "What is allowed on the broker."),
        Column("minOffset", "The first message that is kept.", "MIN", right=True),
        Column("maxOffset", "Behind the last message.", "MAX", right=True),
        Column("messages", "Messages that are kept.", right=True),
        Column("lastMessage", "When the last message came.", "LAST"),
    ),
)
queues_option = click.option("--queues", type=click.IntRange(1, MAX_QUEUES), help="Queues on each broker.")
attribute_option = click.option(
    "--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="Such as message.type=FIFO; several may be."
)


@click.group(cls=ListGroup)
def topics() -> None:
    """List, describe, create, alter and delete topics."""


@topics.command("list")
@pattern_argument
@click.option("--system", is_flag=True, help="Also topics of brokers, retries and dead letters.")
@click.option("--stats", is_flag=True, help="Also count messages; each topic is asked about.")
@cluster_option
@access_options
@rows(TOPICS)
def list_topics(pattern: re.Pattern[str], system: bool, stats: bool, cluster: str, access: Access) -> Partial:
    """List the topics whose names match REGEX."""

    def wanted(configs: TopicConfigs) -> list[TopicOnBroker]:
        owners = {name for one in configs.topics for name in (one.node.cluster, one.node.broker_name)}
        found = [one for one in configs.topics if pattern.search(one.config.name)]
        return [one for one in found if system or not _is_hidden(one.config.name, owners)]

    async def look(admin: Admin) -> tuple[TopicConfigs, dict[str, TopicStatus]]:
        configs = await admin.topic_configs(cluster=cluster)
        names = sorted({one.config.name for one in wanted(configs)}) if stats else []
        found = await asyncio.gather(*(_status(admin, name) for name in names))
        return configs, {one.topic: one for one in found if one is not None}

    configs, statuses = ask(access, look)
    by_name: dict[str, list[TopicOnBroker]] = {}
    for one in wanted(configs):
        by_name.setdefault(one.config.name, []).append(one)
    made = [_topic_row(name, found, statuses.get(name)) for name, found in sorted(by_name.items())]
    return Partial(made, problems(configs.unanswered))


def _is_hidden(topic: str, owners: set[str]) -> bool:
    return topic.startswith("%") or is_system_topic(topic, owners)


async def _status(admin: Admin, topic: str) -> TopicStatus | None:
    try:
        return await admin.topic_status(topic)
    except CosmodromeError:
        return None  # deleted since


def _topic_row(name: str, found: list[TopicOnBroker], status: TopicStatus | None) -> Row:
    perm = 0
    for one in found:
        perm |= one.config.perm
    queues = status.queues if status is not None else ()
    return {
        "topic": name,
        "brokers": sorted({one.node.broker_name for one in found}),
        "readQueues": sum(one.config.read_queues for one in found),
        "writeQueues": sum(one.config.write_queues for one in found),
        "perm": permission_text(perm),
        "messages": sum(one.max_offset - one.min_offset for one in queues) if status is not None else None,
        "lastMessage": time_text(max((one.last_update_ms for one in queues), default=0))
        if status is not None
        else None,
        "order": any(one.config.order for one in found),
        "attributes": {key: value for one in found for key, value in one.config.attributes.items()},
    }


@topics.command("describe")
@click.argument("topic")
@access_options
@rows(QUEUES)
def describe(topic: str, access: Access) -> Partial:
    """Show each queue of TOPIC."""

    async def look(admin: Admin) -> tuple[TopicStatus, dict[str, int]]:
        status, route = await asyncio.gather(admin.topic_status(topic), admin.topic_route(topic))
        return status, {queue.broker_name: queue.perm for queue in route.queues}

    status, perms = ask(access, look)
    made = (
        {
            "topic": topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "perm": permission_text(perms.get(queue.broker_name, 0)),
            "minOffset": queue.min_offset,
            "maxOffset": queue.max_offset,
            "messages": queue.max_offset - queue.min_offset,
            "lastMessage": time_text(queue.last_update_ms),
        }
        for queue in status.queues
    )
    return Partial(made, problems(status.unanswered))


@topics.command("create")
@click.argument("topic")
@queues_option
@permission_option
@click.option("--order", is_flag=True, help="Make it an ordered topic.")
@attribute_option
@broker_option
@cluster_option
@access_options
def create(
    topic: str,
    queues: int | None,
    perm: str | None,
    order: bool,
    attributes: tuple[str, ...],
    broker: str,
    cluster: str,
    access: Access,
) -> None:
    """Create TOPIC on every broker, 8 queues on each; safe to repeat."""
    config = TopicConfig(topic, queues or 8, queues or 8, permission(perm or "rw"), order=order)
    config = dataclasses.replace(config, attributes=_attributes(attributes))
    done = ask(access, lambda admin: admin.put_topic(config, broker, cluster))
    report(done, f"topic {topic} with {config.read_queues} queues is")


@topics.command("alter")
@click.argument("topic")
@queues_option
@permission_option
@attribute_option
@broker_option
@yes_option
@access_options
def alter(
    topic: str,
    queues: int | None,
    perm: str | None,
    attributes: tuple[str, ...],
    broker: str,
    yes: bool,
    access: Access,
) -> None:
    """Change TOPIC where it is; what is not given stays."""
    if queues is None and perm is None and not attributes:
        raise click.UsageError("say what to change: --queues, --perm or --attribute")

    async def change(admin: Admin) -> list[tuple[TopicOnBroker, TopicConfig]]:
        found = [one for one in (await admin.topic_configs(broker)).topics if one.config.name == topic]
        if not found:
            raise click.ClickException(f"no broker has the topic {topic}; `cosmodrome topics create` makes it")
        changes = [(one, _altered(one.config, queues, perm, attributes)) for one in found]
        if yes:
            for one, config in changes:
                report(await admin.put_topic(config, one.node.broker_name), f"topic {topic} is changed")
        return changes

    for one, config in ask(access, change):
        if not yes:
            would(f"change {topic} on {one.node.broker_name}: {_difference(one.config, config)}")


def _altered(config: TopicConfig, queues: int | None, perm: str | None, attributes: tuple[str, ...]) -> TopicConfig:
    return dataclasses.replace(
        config,
        read_queues=queues or config.read_queues,
        write_queues=queues or config.write_queues,
        perm=config.perm if perm is None else permission(perm),
        attributes=_attributes(attributes),
    )


def _difference(old: TopicConfig, new: TopicConfig) -> str:
    facts = {
        "queues": (old.write_queues, new.write_queues),
        "perm": (permission_text(old.perm), permission_text(new.perm)),
        "attributes": (dict(old.attributes), {**old.attributes, **new.attributes}),
    }
    changed = [f"{name} {before} -> {after}" for name, (before, after) in facts.items() if before != after]
    text = ", ".join(changed) or "nothing differs"
    return text + (
        " (messages in the queues that go are not read any more)" if new.read_queues < old.read_queues else ""
    )


def _attributes(pairs: Iterable[str]) -> dict[str, str]:
    made = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{pair!r}: write NAME=VALUE", param_hint="--attribute")
        made[name] = value
    return made


@topics.command("delete")
@click.argument("topic")
@cluster_option
@yes_option
@access_options
def delete(topic: str, cluster: str, yes: bool, access: Access) -> None:
    """Delete TOPIC with its messages from brokers and name servers."""
    if yes:
        report(ask(access, lambda admin: admin.delete_topic(topic, cluster)), f"topic {topic} is deleted")
        return
    status = ask(access, lambda admin: admin.topic_status(topic))
    messages = sum(queue.max_offset - queue.min_offset for queue in status.queues)
    brokers = ", ".join(sorted({queue.broker_name for queue in status.queues}))
    would(f"delete topic {topic} with {messages} messages on {brokers}")

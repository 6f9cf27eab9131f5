"""`cosmodrome clients`."""

from __future__ import annotations

import asyncio
import re

import click

from cosmodrome.admin.door import Admin
from cosmodrome.admin.results import AllProducers, Consumers, Producers, Unanswered
from cosmodrome.cli.access import Access, access_options
from cosmodrome.cli.asking import ask, problems
from cosmodrome.cli.formats import Column, Partial, Schema, rows
from cosmodrome.cli.shared import ListGroup, pattern_argument

CLIENTS = Schema(
    "client",
    (
        Column("kind", "producer or consumer."),
        Column("group", "The group."),
        Column("clientId", "The id, which no other client has."),
        Column("address", "The address that a broker sees."),
        Column("language", "The language it is written in."),
        Column("version", "The version it claims."),
        Column("model", "CLUSTERING or BROADCASTING; of consumers.", wide=True),
        Column("subscriptions", "Topics and filters; of consumers.", wide=True),
    ),
)


@click.group(cls=ListGroup)
def clients() -> None:
    """List the producers and consumers that are connected."""


@clients.command("list")
@pattern_argument
@click.option("--kind", type=click.Choice(["producer", "consumer"]), help="Only these.")
@access_options
@rows(CLIENTS)
def list_clients(pattern: re.Pattern[str], kind: str | None, access: Access) -> Partial:
    """List the clients whose group, id or address matches REGEX."""

    async def look(admin: Admin) -> tuple[AllProducers, dict[str, Consumers], set[Unanswered]]:
        producers = await admin.all_producers() if kind != "consumer" else AllProducers(())
        if kind == "producer":
            return producers, {}, set(producers.unanswered)
        configs, progress = await asyncio.gather(admin.group_configs(), admin.all_progress())
        missing = {*producers.unanswered, *configs.unanswered, *progress.unanswered}
        return producers, await admin.all_members(configs, progress), missing

    producers, consumers, missing = ask(access, look)
    groups: list[Producers | Consumers] = [*producers.groups, *(consumers[name] for name in sorted(consumers))]
    made = [
        {
            "kind": "consumer" if isinstance(group, Consumers) else "producer",
            "group": group.group,
            "clientId": one.client_id,
            "address": one.address,
            "language": one.language,
            "version": one.version,
            "model": group.message_model.value if isinstance(group, Consumers) else None,
            "subscriptions": (
                {each.topic: each.expression for each in group.subscriptions} if isinstance(group, Consumers) else None
            ),
        }
        for group in groups
        for one in group.clients
        if any(pattern.search(text) for text in (group.group, one.client_id, one.address))
    ]
    return Partial(made, problems(missing))

"""`cosmodrome brokers`."""

from __future__ import annotations

import asyncio
import re

import click

from cosmodrome.admin.door import Admin
from cosmodrome.admin.results import BrokerNode, BrokerTable, BrokerTables
from cosmodrome.cli.access import Access, access_options
from cosmodrome.cli.asking import ask, problems
from cosmodrome.cli.formats import Column, Partial, Row, Schema, rows
from cosmodrome.cli.shared import ListGroup, pattern_argument
from cosmodrome.model import MASTER_ID

BROKERS = Schema(
    "broker",
    (
        Column("cluster", "The cluster."),
        Column("broker", "The name, which a master and its slaves share."),
        Column("id", "0 is the master.", right=True),
        Column("address", "The address that clients are told."),
        Column("role", "brokerRole of its file."),
        Column("version", "The version it claims."),
        Column("putTps", "Messages that came in a second, over ten seconds.", "IN/S", right=True),
        Column("getTps", "Messages that went out in a second, over ten seconds.", "OUT/S", right=True),
        Column("disk", "The share of its disk that is used, in percent.", "DISK%", right=True),
        Column("uptime", "How long it has been running.", wide=True),
        Column("messagesToday", "Messages that came since midnight.", right=True, wide=True),
        Column("turnedAway", "Requests that were refused because it was overloaded.", right=True, wide=True),
    ),
)
FIGURES = Schema(
    "figure",
    (
        Column("broker", "The broker."),
        Column("id", "0 is the master.", right=True),
        Column("kind", "figure or setting."),
        Column("name", "The name of a figure, or the key of a setting."),
        Column("value", "The value."),
    ),
)


@click.group(cls=ListGroup)
def brokers() -> None:
    """List and describe brokers."""


@brokers.command("list")
@pattern_argument
@access_options
@rows(BROKERS)
def list_brokers(pattern: re.Pattern[str], access: Access) -> Partial:
    """List the brokers whose names match REGEX, and their slaves."""
    figures, settings = ask(access, look)
    return Partial(
        [row for row in broker_rows(figures, settings) if pattern.search(str(row["broker"]))],
        problems(figures.unanswered),
    )


async def look(admin: Admin) -> tuple[BrokerTables, BrokerTables]:
    """Return figures and settings of every broker."""
    figures, settings = await asyncio.gather(admin.broker_runtime(), admin.broker_config())
    return figures, settings


def broker_rows(figures: BrokerTables, settings: BrokerTables) -> list[Row]:
    """Return the rows of BROKERS; a broker that did not answer stands with its address alone."""
    by_node = {one.node: one.values for one in settings.brokers}
    made = [_row(one, by_node.get(one.node, {}).get("brokerRole", "")) for one in figures.brokers]
    made += [
        {"broker": one.broker_name, "address": one.address, "role": "does not answer"} for one in figures.unanswered
    ]
    return made


def _row(table: BrokerTable, role: str) -> Row:
    node, values = table.node, table.values
    return {
        "cluster": node.cluster,
        "broker": node.broker_name,
        "id": node.broker_id,
        "address": node.address,
        "role": role or ("SLAVE" if node.broker_id != MASTER_ID else "MASTER"),
        "version": values.get("brokerVersionDesc", ""),
        "putTps": first_rate(values.get("putTps", "")),
        "getTps": first_rate(values.get("getTransferredTps", values.get("getTransferedTps", ""))),
        "disk": round(_real(values.get("commitLogDiskRatio", "")) * 100, 1),
        "uptime": values.get("runtime", "").strip("[] "),
        "messagesToday": _difference(values, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        "turnedAway": values.get("requestsTurnedAway"),
    }


def first_rate(text: str) -> float:
    """Return the first of the rates that a broker tells: over ten seconds, a minute, ten minutes."""
    return round(_real(text.split(" ")[0]), 1)


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _difference(values: object, now: str, morning: str) -> int | None:
    try:
        return int(values[now]) - int(values[morning])  # type: ignore[index]
    except (KeyError, ValueError):
        return None


@brokers.command("describe")
@click.argument("broker")
@click.option("--match", "pattern", default="", metavar="REGEX", help="Only names that match.")
@access_options
@rows(FIGURES)
def describe(broker: str, pattern: str, access: Access) -> Partial:
    """Show all figures and settings of BROKER, a name or an address."""
    wanted = re.compile(pattern, re.IGNORECASE)

    async def both(admin: Admin) -> tuple[BrokerTables, BrokerTables]:
        figures, settings = await asyncio.gather(admin.broker_runtime(broker), admin.broker_config(broker))
        return figures, settings

    figures, settings = ask(access, both)
    made = [
        _figure(one.node, kind, name, value)
        for kind, tables in (("figure", figures), ("setting", settings))
        for one in tables.brokers
        for name, value in sorted(one.values.items())
        if wanted.search(name)
    ]
    return Partial(made, problems(figures.unanswered))


def _figure(node: BrokerNode, kind: str, name: str, value: str) -> Row:
    return {"broker": node.broker_name, "id": node.broker_id, "kind": kind, "name": name, "value": value}

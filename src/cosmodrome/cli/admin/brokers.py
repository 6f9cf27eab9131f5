"""Verbs about brokers."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from cosmodrome.admin import Admin, BrokerTables, Done
from cosmodrome.cli.admin.common import (
    CHANGE,
    Answer,
    broker_option,
    changed,
    cluster_option,
    node_row,
    place_needed,
    places,
    verb,
    would,
    yes_option,
)
from cosmodrome.cli.admin.groups import PROGRESS, queue_row
from cosmodrome.cli.formats import Column, Schema

BOOLEAN = click.BOOL
_NODE = (
    Column("cluster", "The broker's cluster.", wide=True),
    Column("brokerName", "The broker's name.", "BROKER"),
    Column("brokerId", "0 is the master.", "ID", right=True),
    Column("address", "Where clients reach it."),
)
CLUSTER = Schema(
    "broker",
    (
        dataclasses.replace(_NODE[0], wide=False),
        *_NODE[1:],
        Column("version", "Its version."),
        Column("inTps", "Messages stored in a second.", right=True),
        Column("outTps", "Messages given out in a second.", right=True),
        Column("timerBehind", "Seconds that timed messages are late.", right=True, wide=True),
        Column("timerCount", "Timed messages that wait.", right=True, wide=True),
        Column("pageCacheLockMs", "How long a send waits for memory, in ms.", "PCWAIT", right=True, wide=True),
        Column("hours", "Age of the oldest message, in hours.", right=True),
        Column("disk", "Share of the log's disk that is used.", right=True),
        Column("inToday", "Messages stored today; with -m.", "IN-TODAY", right=True),
        Column("outToday", "Messages given out today; with -m.", "OUT-TODAY", right=True),
        Column("inYesterday", "Messages stored yesterday; with -m.", "IN-YESTERDAY", right=True),
        Column("outYesterday", "Messages given out yesterday; with -m.", "OUT-YESTERDAY", right=True),
        Column("activated", "Whether the broker serves."),
    ),
)
TABLE = Schema(
    "name of a broker",
    (
        *_NODE[:2],
        *(dataclasses.replace(one, wide=True) for one in _NODE[2:]),
        Column("key", "A name."),
        Column("value", "Its value."),
    ),
)
SLAVES = Schema(
    "slave of a master, or master of a slave",
    (
        *_NODE,
        Column("role", "master or slave."),
        Column("peer", "The slave's, or the master's, address."),
        Column("inSync", "Whether the slave counts as in sync; of a slave, whether it is connected.", "SYNC"),
        Column("offset", "What the slave has of the log.", right=True),
        Column("behind", "Bytes that the slave is behind.", right=True),
        Column("bytesPerSecond", "Bytes sent in a second.", "BYTES/S", right=True),
    ),
)
EPOCHS = Schema(
    "part of a log",
    (
        *_NODE[:3],
        Column("epoch", "The term of the master that wrote it.", right=True),
        Column("startOffset", "Where it begins.", right=True),
        Column("endOffset", "Where it ends.", right=True),
        Column("maxOffset", "Where the log ends.", right=True, wide=True),
    ),
)


def _number(text: str) -> float:
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return 0.0


@verb(CLUSTER, with_interval=True)
@click.option("-m", "--moreStats", "more", is_flag=True, help="Also the messages of today and yesterday.")
@cluster_option
async def cluster_list(admin: Admin, more: bool, cluster: str) -> Answer:
    """List clusters, brokers and their load. --watch SECONDS shows it again and again."""
    found = await admin.broker_runtime(cluster=cluster)
    rows = []
    for table in found.brokers:
        of, oldest_ms = table.values, _number(table.values.get("earliestMessageTimeStamp", "0"))
        row: dict[str, Any] = {
            **node_row(table.node),
            "version": of.get("brokerVersionDesc", ""),
            "inTps": _number(of.get("putTps", "")),
            "outTps": _number(of.get("getTransferredTps", of.get("getTransferedTps", ""))),
            "timerBehind": int(_number(of.get("timerReadBehind", ""))),
            "timerCount": int(_number(of.get("timerCongestNum", ""))),
            "pageCacheLockMs": int(_number(of.get("pageCacheLockTimeMills", ""))),
            "hours": max((admin.now_ms - oldest_ms) / 3_600_000, 0.0) if oldest_ms > 0 else 0.0,
            "disk": _number(of.get("commitLogDiskRatio", "")),
            "activated": of.get("brokerActive", "") == "true",
        }
        if more:
            row |= _days(of)
        rows.append(row)
    return Answer(rows, found.unanswered)


def _days(of: Any) -> dict[str, int]:
    def count(name: str) -> int:
        return int(_number(of.get(name, "")))

    return {
        "inToday": count("msgPutTotalTodayNow") - count("msgPutTotalTodayMorning"),
        "outToday": count("msgGetTotalTodayNow") - count("msgGetTotalTodayMorning"),
        "inYesterday": count("msgPutTotalTodayMorning") - count("msgPutTotalYesterdayMorning"),
        "outYesterday": count("msgGetTotalTodayMorning") - count("msgGetTotalYesterdayMorning"),
    }


def table_rows(found: BrokerTables, key: str = "") -> Answer:
    """Return names and values of brokers as rows; those whose name has `key` in it."""
    rows = [
        {**node_row(table.node), "key": name, "value": value}
        for table in found.brokers
        for name, value in sorted(table.values.items())
        if key in name
    ]
    return Answer(rows, found.unanswered)


@verb(TABLE)
@places
async def broker_status(admin: Admin, broker: str, cluster: str) -> Answer:
    """Show the figures of brokers, by Apache's names."""
    return table_rows(await admin.broker_runtime(broker, cluster))


@verb(TABLE)
@places
@click.option("-k", "--key", default="", help="Only keys with this text in them.")
async def get_broker_config(admin: Admin, broker: str, cluster: str, key: str) -> Answer:
    """Show the settings of brokers, by the keys of broker.conf."""
    return table_rows(await admin.broker_config(broker, cluster), key)


@verb(CHANGE)
@place_needed
@click.option("-k", "--key", required=True, help="The key, as in broker.conf.")
@click.option("-v", "--value", required=True, help="Its new value.")
@click.option("-a", "--updateAllBroker", "with_slaves", type=BOOLEAN, default=False, help="Slaves as well.")
async def update_broker_config(
    admin: Admin, broker: str, cluster: str, key: str, value: str, with_slaves: bool
) -> Answer:
    """Change a setting of brokers until their next start; write it into broker.conf to keep it."""
    done = await admin.set_broker_config({key: value}, broker, cluster, with_slaves=with_slaves)
    return changed(dataclasses.replace(done, detail=f"{key}={value}"))


@verb(PROGRESS, own_o=("order", BOOLEAN))
@broker_option
@click.option("-l", "--level", "least", type=click.IntRange(0), default=0, help="Only queues with at least this lag.")
@click.option(
    "-t", "--timeoutMillis", "timeout_ms", type=click.IntRange(1), default=30_000, help="For an answer, in ms."
)
@click.option("--order", type=BOOLEAN, default=False, help="Only ordered topics.")
async def broker_consume_stats(admin: Admin, broker: str, least: int, timeout_ms: int, order: bool | None) -> Answer:
    """Show how far every group is on each queue of a broker."""
    if not broker:
        raise click.UsageError("say of which broker: -b HOST:PORT")
    found = await admin.all_progress(broker, only_ordered=bool(order), timeout_ms=timeout_ms)
    rows = [queue_row(one.group, queue) for one in found.groups for queue in one.queues if queue.lag >= least]
    return Answer(rows, found.unanswered)


@verb(CHANGE)
@click.option("-b", "--brokerName", "broker", required=True, help="The broker's name.")
async def wipe_write_perm(admin: Admin, broker: str) -> Answer:
    """Let producers choose other brokers than this one; its consumers go on. addWritePerm undoes it."""
    await admin.targets(broker)
    return changed(await admin.wipe_write_permission(broker))


@verb(CHANGE)
@click.option("-b", "--brokerName", "broker", required=True, help="The broker's name.")
async def add_write_perm(admin: Admin, broker: str) -> Answer:
    """Let producers choose a broker again."""
    await admin.targets(broker)
    return changed(await admin.add_write_permission(broker))


async def _clean(admin: Admin, broker: str, cluster: str, what: str, done: Any, *, yes: bool) -> Answer:
    if not yes:
        return would(await admin.targets(broker, cluster), f"would delete {what}")
    result: Done = await done(broker, cluster)
    return changed(dataclasses.replace(result, detail="accepted"))


# mqadmin cleans all brokers without -b and -c; so does this, with --yes.


@verb(CHANGE)
@places
@yes_option
async def clean_expired_cq(admin: Admin, broker: str, cluster: str, yes: bool) -> Answer:
    """Delete files of queues and index whose messages are gone."""
    what = "files of queues and index whose messages are gone"
    return await _clean(admin, broker, cluster, what, admin.clean_expired_queues, yes=yes)


@verb(CHANGE)
@places
@yes_option
async def clean_unused_topic(admin: Admin, broker: str, cluster: str, yes: bool) -> Answer:
    """Delete the queues of topics that a broker no longer has."""
    what = "the queues of topics that the broker no longer has"
    return await _clean(admin, broker, cluster, what, admin.clean_unused_topics, yes=yes)


@verb(CHANGE)
@places
@yes_option
async def delete_expired_commit_log(admin: Admin, broker: str, cluster: str, yes: bool) -> Answer:
    """Delete expired files of the commit log now, whatever the hour."""
    what = "files of the commit log that are older than fileReservedTime"
    return await _clean(admin, broker, cluster, what, admin.delete_expired_logs, yes=yes)


@verb(SLAVES, with_interval=True)
@places
async def ha_status(admin: Admin, broker: str, cluster: str) -> Answer:
    """Show the slaves of each master, and the master of each slave."""
    found = await admin.ha_status(broker, cluster)
    rows: list[dict[str, Any]] = []
    for one in found.brokers:
        status, node = one.status, node_row(one.node)
        if status.is_master:
            rows += [
                {
                    **node,
                    "role": "master",
                    "peer": slave.address,
                    "inSync": slave.in_sync,
                    "offset": slave.ack_offset,
                    "behind": slave.behind,
                    "bytesPerSecond": slave.bytes_per_second,
                }
                for slave in status.slaves
            ] or [{**node, "role": "master", "offset": status.master_offset}]
        else:
            follows = status.follows
            rows.append(
                {
                    **node,
                    "role": "slave",
                    "peer": follows.master_address,
                    "inSync": follows.is_connected,
                    "offset": follows.max_offset,
                    "behind": max(follows.master_flush_offset - follows.max_offset, 0),
                    "bytesPerSecond": follows.bytes_per_second,
                }
            )
    return Answer(rows, found.unanswered)


@verb(EPOCHS, with_interval=True)
@click.option("-b", "--brokerName", "broker", default="", help="The broker's name.")
@cluster_option
async def get_broker_epoch(admin: Admin, broker: str, cluster: str) -> Answer:
    """Show which master wrote which part of a broker's log."""
    found = await admin.broker_epochs(broker, cluster)
    rows = [
        {
            "cluster": body.cluster,
            "brokerName": body.broker_name,
            "brokerId": body.broker_id,
            "epoch": entry.term,
            "startOffset": entry.begin,
            "endOffset": entry.end,
            "maxOffset": body.max_offset,
        }
        for body in found.brokers
        for entry in body.epochs
    ]
    return Answer(rows, found.unanswered)


@verb(TABLE)
@places
async def timer_metrics(admin: Admin, broker: str, cluster: str) -> Answer:
    """Show how many timed messages wait on each broker, by topic."""
    return table_rows(await admin.timer_metrics(broker, cluster))

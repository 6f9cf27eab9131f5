"""Verbs that write what a cluster has into files, which updateTopicList and updateSubGroupList read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from cosmodrome.admin import Admin, BrokerTables
from cosmodrome.cli.admin.common import Answer, cluster_option, places, verb
from cosmodrome.cli.formats import Column, Schema
from cosmodrome.model import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUP_PREFIX, SYSTEM_PREFIX, SYSTEM_TOPICS
from cosmodrome.wire.bodies import group_config_to_json, topic_config_to_json

DEFAULT_FOLDER = "rocketmq-export"
FILE = Schema(
    "file",
    (
        Column("file", "The file that was written."),
        Column("topics", "Topics in it.", right=True),
        Column("groups", "Consumer groups in it.", right=True),
        Column("brokers", "Brokers in it.", right=True),
    ),
)
_SECRETS = ("password", "secret", "token", "credential")

_path = click.option(
    "-f",
    "--filePath",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="The folder to write to; it is made.",
)


def _write(folder: Path, name: str, value: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return str(file)


@verb(FILE)
@places
@_path
@click.option("-t", "--topic", "only_topics", is_flag=True, help="Only topics.")
@click.option("-g", "--subscriptionGroup", "only_groups", is_flag=True, help="Only consumer groups.")
@click.option("-s", "--specialTopic", "special", is_flag=True, help="Also retry topics and dead letter topics.")
async def export_metadata(
    admin: Admin, broker: str, cluster: str, folder: Path, only_topics: bool, only_groups: bool, special: bool
) -> Answer:
    """Write the topics and groups of a cluster or a broker to metadata.json, topics.json and groups.json.

    updateTopicList -f topics.json and updateSubGroupList -f groups.json make them elsewhere.
    """
    topics = await admin.topic_configs(broker, cluster)
    groups = await admin.group_configs(broker, cluster)
    of_users = {
        one.config.name: topic_config_to_json(one.config)
        for one in topics.topics
        if one.config.name not in _system(topics.topics)
        and (special or not one.config.name.startswith((RETRY_PREFIX, DLQ_PREFIX)))
    }
    kept = {
        one.config.name: group_config_to_json(one.config)
        for one in groups.groups
        if not one.config.name.startswith(SYSTEM_GROUP_PREFIX)
    }
    rows = []
    document: dict[str, Any] = {}
    if not only_groups or only_topics:
        document["topicConfigTable"] = of_users
        file = _write(folder, "topics.json", [of_users[name] for name in sorted(of_users)])
        rows.append({"file": file, "topics": len(of_users)})
    if not only_topics or only_groups:
        document["subscriptionGroupTable"] = kept
        file = _write(folder, "groups.json", [kept[name] for name in sorted(kept)])
        rows.append({"file": file, "groups": len(kept)})
    file = _write(folder, "metadata.json", document)
    brokers = len({one.node.broker_name for one in topics.topics})
    rows.append(
        {
            "file": file,
            "topics": len(document.get("topicConfigTable", ())),
            "groups": len(document.get("subscriptionGroupTable", ())),
            "brokers": brokers,
        }
    )
    missing = {one.address: one for one in (*topics.unanswered, *groups.unanswered)}
    return Answer(rows, list(missing.values()))


def _system(topics: Any) -> set[str]:
    """Return the topics that brokers make for themselves."""
    own = {
        name for one in topics for name in (one.node.broker_name, one.node.cluster, f"{one.node.cluster}_REPLY_TOPIC")
    }
    return own | SYSTEM_TOPICS | {one.config.name for one in topics if one.config.name.startswith(SYSTEM_PREFIX)}


def _tables(found: BrokerTables) -> dict[str, Any]:
    return {f"{one.node.broker_name}:{one.node.broker_id}": dict(one.values) for one in found.brokers}


@verb(FILE)
@cluster_option
@_path
async def export_configs(admin: Admin, cluster: str, folder: Path) -> Answer:
    """Write the settings of the brokers and name servers of a cluster to configs.json, without secrets."""
    if not cluster:
        raise click.UsageError("say of which cluster: -c CLUSTER")
    found, name_servers = await admin.broker_config(cluster=cluster), await admin.namesrv_config()
    document = {
        "clusterScale": {
            "namesrvSize": len(name_servers.brokers),
            "masterBrokerSize": sum(one.node.broker_id == 0 for one in found.brokers),
            "slaveBrokerSize": sum(one.node.broker_id != 0 for one in found.brokers),
        },
        "brokerConfigs": _without_secrets(_tables(found)),
        "namesrvConfigs": _without_secrets({one.node.address: dict(one.values) for one in name_servers.brokers}),
    }
    file = _write(folder, "configs.json", document)
    return Answer([{"file": file, "brokers": len(found.brokers)}], (*found.unanswered, *name_servers.unanswered))


def _without_secrets(tables: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {key: value for key, value in values.items() if not any(word in key.lower() for word in _SECRETS)}
        for name, values in tables.items()
    }


@verb(FILE)
@cluster_option
@_path
async def export_metrics(admin: Admin, cluster: str, folder: Path) -> Answer:
    """Write the figures of the brokers of a cluster, and the progress of its groups, to metrics.json."""
    if not cluster:
        raise click.UsageError("say of which cluster: -c CLUSTER")
    found, progress = await admin.broker_runtime(cluster=cluster), await admin.all_progress(cluster=cluster)
    document = {
        "evaluateReport": _tables(found),
        "groups": {one.group: {"lag": one.lag, "inflight": one.inflight, "tps": one.tps} for one in progress.groups},
        "totalData": {"totalLag": sum(one.lag for one in progress.groups), "groups": len(progress.groups)},
    }
    file = _write(folder, "metrics.json", document)
    missing = {one.address: one for one in (*found.unanswered, *progress.unanswered)}
    return Answer(
        [{"file": file, "groups": len(progress.groups), "brokers": len(found.brokers)}], list(missing.values())
    )

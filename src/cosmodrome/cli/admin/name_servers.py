"""Verbs about name servers."""

from __future__ import annotations

import dataclasses

import click

from cosmodrome.admin import Admin
from cosmodrome.cli.admin.common import CHANGE, Answer, changed, verb, yes_option
from cosmodrome.cli.formats import Column, Schema
from cosmodrome.errors import ClientError

TABLE = Schema(
    "key of a name server",
    (
        Column("address", "The name server."),
        Column("key", "A key of its file."),
        Column("value", "Its value."),
    ),
)


@verb(TABLE)
async def get_namesrv_config(admin: Admin) -> Answer:
    """Show the settings of every name server."""
    found = await admin.namesrv_config()
    rows = [
        {"address": table.node.address, "key": name, "value": value}
        for table in found.brokers
        for name, value in sorted(table.values.items())
    ]
    return Answer(rows, found.unanswered)


@verb(CHANGE)
@click.option("-k", "--key", required=True, help="The key, as in namesrv.conf.")
@click.option("-v", "--value", required=True, help="Its new value.")
async def update_namesrv_config(admin: Admin, key: str, value: str) -> Answer:
    """Change a setting of every name server until its next start."""
    done = await admin.set_namesrv_config({key: value})
    return changed(dataclasses.replace(done, detail=f"{key}={value}"))


@verb(CHANGE)
@click.option("-s", "--namespace", required=True, help="The namespace, such as ORDER_TOPIC_CONFIG.")
@click.option("-k", "--key", required=True, help="The key.")
@click.option("-v", "--value", required=True, help="Its value.")
async def update_kv_config(admin: Admin, namespace: str, key: str, value: str) -> Answer:
    """Set a key of a namespace on every name server."""
    return changed(dataclasses.replace(await admin.put_kv(namespace, key, value), detail=f"{key}={value}"))


@verb(CHANGE)
@click.option("-s", "--namespace", required=True, help="The namespace.")
@click.option("-k", "--key", required=True, help="The key.")
@yes_option
async def delete_kv_config(admin: Admin, namespace: str, key: str, yes: bool) -> Answer:
    """Delete a key of a namespace on every name server."""
    kept = (await admin.kv(namespace)).get(key)
    if yes:
        return changed(await admin.delete_kv(namespace, key))
    if kept is None:
        raise ClientError(f"namespace {namespace} has no key {key}")
    return Answer([{"brokerName": "", "done": False, "detail": f"would delete {key}={kept}"}], note="--yes does it")

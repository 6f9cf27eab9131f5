"""The verbs promote and demote: who is the master of a broker's name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import click

from cosmodrome.admin import Promoted
from cosmodrome.admin import demote as demote_master
from cosmodrome.admin import promote as promote_slave
from cosmodrome.cli.access import Access, access_options, hints_at_start
from cosmodrome.cli.options import duration, output_option
from cosmodrome.cli.output import echo_json, one_line
from cosmodrome.client.instance import Instance
from cosmodrome.clock import SystemClock
from cosmodrome.net.loop import run
from cosmodrome.wire.role_requests import RoleReply

T = TypeVar("T")
_LONGEST = timedelta(minutes=10)


@click.command("promote")
@click.argument("broker_name")
@click.option("--to", default="", metavar="ID|ADDRESS", help="The slave to promote.  [default: the one with most]")
@click.option(
    "--role",
    type=click.Choice(["SYNC_MASTER", "ASYNC_MASTER"]),
    default=None,
    help="brokerRole of the new master.  [default: the old master's]",
)
@click.option(
    "--timeout",
    type=duration,
    default="30s",
    show_default=True,
    help="How long a living master may wait, without taking messages, for the slave to have its whole log.",
)
@click.option("--force", is_flag=True, help="Promote though the master may live, or another slave has more.")
@access_options
@output_option
def promote(
    broker_name: str, to: str, role: str | None, timeout: timedelta, force: bool, access: Access, output: str
) -> None:
    """Make a slave of BROKER_NAME its master. The old one, if it lives, becomes a slave.

    A living master hands over: nothing is lost. If that fails, it goes on as the master. Without a master, the slave
    takes over alone.
    """
    if not timedelta() < timeout <= _LONGEST:
        raise click.UsageError("--timeout must be more than 0, and at most 10m: the master takes no messages meanwhile")

    def tell(text: str) -> None:
        click.echo(one_line(text), err=True)

    timeout_ms = max(int(timeout / timedelta(milliseconds=1)), 1)

    async def promoting(instance: Instance) -> Promoted:
        return await promote_slave(instance, broker_name, to, role or "", timeout_ms=timeout_ms, force=force, tell=tell)

    with hints_at_start():
        promoted = run(_with_instance(access, promoting))
    if output == "json":
        echo_json(_as_json(promoted))
    else:
        click.echo(one_line(_told(promoted)))


async def _with_instance(access: Access, work: Callable[[Instance], Awaitable[T]]) -> T:
    instance = Instance(access.config, SystemClock(), None, rpc_hooks=access.rpc_hooks)
    instance.start()
    try:
        return await work(instance)
    finally:
        await instance.stop()


@click.command("demote")
@click.argument("address")
@click.option(
    "--id", "broker_id", type=click.IntRange(1), help="Its brokerId as a slave.  [default: the lowest free one]"
)
@access_options
@output_option
def demote(address: str, broker_id: int | None, access: Access, output: str) -> None:
    """Make the stale master at ADDRESS a slave of the one that was promoted since.

    What only the stale one has is kept aside, in its folder commitlog.bad.
    """

    async def demoted(instance: Instance) -> tuple[RoleReply, RoleReply]:
        return await demote_master(instance, address, broker_id)

    with hints_at_start():
        slave, master = run(_with_instance(access, demoted))
    if output == "json":
        echo_json(
            {
                "brokerName": master.broker_name,
                "master": master.broker_addr,
                "term": master.term,
                "slave": slave.broker_addr,
                "brokerId": slave.broker_id,
            }
        )
        return
    click.echo(
        one_line(f"{slave.broker_addr} is slave {slave.broker_id} of {master.broker_name}: it follows {_of(master)}")
    )


def _of(master: RoleReply) -> str:
    return f"{master.broker_addr}, {master.broker_role} with term {master.term}"


def _told(promoted: Promoted) -> str:
    master, follower = promoted.master, promoted.follower
    text = f"{master.broker_addr} is the master of {master.broker_name}: {master.broker_role}, term {master.term}"
    if follower is not None:
        text += f"; {follower.broker_addr} is slave {follower.broker_id}"
    return f"{text}; but it takes no messages: {master.no_messages}" if master.no_messages else text


def _as_json(promoted: Promoted) -> dict[str, object]:
    master, follower = promoted.master, promoted.follower
    return {
        "brokerName": master.broker_name,
        "master": master.broker_addr,
        "brokerRole": master.broker_role,
        "term": master.term,
        "before": promoted.before,
        "slave": follower.broker_addr if follower is not None else "",
    }

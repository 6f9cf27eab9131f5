"""The verbs about Raft groups."""

from __future__ import annotations

import click

from cosmodrome.admin import Admin
from cosmodrome.cli.admin.common import Answer, verb
from cosmodrome.cli.formats import Column, Schema

MEMBERS = Schema(
    "member of a Raft group",
    (
        Column("brokerName", "The broker's name.", "BROKER"),
        Column("brokerId", "Its id: 0 is the leader.", "ID"),
        Column("address", "Where it serves clients."),
        Column("member", "Its id in the group."),
        Column("role", "leader, follower, pre-candidate or candidate; or why it does not answer."),
        Column("term", "The term of the group that it knows."),
        Column("leader", "The member that leads, as it knows."),
        Column("firstIndex", "The oldest entry of its log.", "FIRST"),
        Column("lastIndex", "The newest entry of its log.", "LAST"),
        Column("commitIndex", "Entries up to here are committed.", "COMMITTED"),
        Column("behind", "How many entries it is behind its leader, as that knows."),
    ),
)
LEADER = Schema(
    "leader",
    (
        Column("group", "The Raft group."),
        Column("member", "The member that leads now."),
        Column("term", "In this term."),
    ),
)


@verb(MEMBERS)
@click.option("-b", "--broker", default="", metavar="NAME|ADDRESS", help="One broker's group.  [default: all groups]")
async def raft_status(admin: Admin, broker: str) -> Answer:
    """Show the members of Raft groups: roles, terms, and how far each log is."""
    members = await admin.raft_status(broker)
    behind = {
        (member.node.broker_name, one.member): one.behind
        for member in members
        if member.status is not None
        for one in member.status.followers
    }
    rows = []
    for member in members:
        node, status = member.node, member.status
        row: dict[str, object] = dict.fromkeys(column.key for column in MEMBERS.columns)
        row |= {"brokerName": node.broker_name, "brokerId": node.broker_id, "address": node.address}
        if status is None:
            row["role"] = member.problem or "belongs to no Raft group"
        else:
            row |= {"member": status.member, "role": status.role, "term": status.term, "leader": status.leader}
            row |= {"firstIndex": status.first_index, "lastIndex": status.last_index}
            row |= {"commitIndex": status.commit_index, "behind": behind.get((node.broker_name, status.member))}
        rows.append(row)
    return Answer(rows)


@verb(LEADER)
@click.option("-b", "--broker", required=True, metavar="NAME|ADDRESS", help="The group's broker name.")
@click.option("--to", required=True, metavar="MEMBER", help="The member that is to lead, such as n1.")
async def transfer_leader(admin: Admin, broker: str, to: str) -> Answer:
    """Let another member lead a Raft group. Senders are told to try again for a moment."""
    status = await admin.transfer_leader(broker, to)
    return Answer([{"group": status.group, "member": status.member, "term": status.term}])

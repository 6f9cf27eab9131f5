"""Verbs about accounts, which brokers with ACL have."""

from __future__ import annotations

from cosmodrome.admin import Admin
from cosmodrome.cli.admin.brokers import TABLE, table_rows
from cosmodrome.cli.admin.common import Answer, node_row, places, verb
from cosmodrome.cli.formats import Column, Schema

ACCOUNTS = Schema(
    "account of a broker",
    (
        Column("brokerName", "The broker.", "BROKER"),
        Column("accessKey", "The account.", "ACCOUNT"),
        Column("admin", "Whether it may do everything."),
        Column("defaultTopicPerm", "What it may do with other topics.", "TOPICS"),
        Column("defaultGroupPerm", "What it may do with other groups.", "GROUPS"),
        Column("topicPerms", "What it may do with these topics."),
        Column("groupPerms", "What it may do with these groups."),
        Column("whiteRemoteAddress", "Addresses from which it needs no key.", "WHITE", wide=True),
        Column("globalWhiteAddrs", "Addresses from which nobody needs a key.", "ALL-WHITE", wide=True),
    ),
)


@verb(ACCOUNTS)
@places
async def get_acl_config(admin: Admin, broker: str, cluster: str) -> Answer:
    """Show the accounts of brokers, without secrets."""
    found = await admin.accounts(broker, cluster)
    rows = [
        {
            **node_row(one.node),
            "accessKey": account.access_key,
            "admin": account.is_admin,
            "defaultTopicPerm": account.default_topic_perm,
            "defaultGroupPerm": account.default_group_perm,
            "topicPerms": list(account.topic_perms),
            "groupPerms": list(account.group_perms),
            "whiteRemoteAddress": account.white_addresses,
            "globalWhiteAddrs": list(one.white_addresses),
        }
        for one in found.brokers
        for account in one.accounts
    ]
    return Answer(rows, found.unanswered)


@verb(TABLE)
@places
async def cluster_acl_config_version(admin: Admin, broker: str, cluster: str) -> Answer:
    """Show which state of each file of accounts is in force."""
    return table_rows(await admin.account_versions(broker, cluster))

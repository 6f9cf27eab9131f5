"""The accounts that a broker knows, for operators: without their secrets, and not to be changed from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosmodrome.access.accounts import PERMISSIONS, Account
from cosmodrome.access.permissions import ANY
from cosmodrome.errors import IllegalOperation
from cosmodrome.model import RETRY_PREFIX, DataVersion
from cosmodrome.net.connection import Connection
from cosmodrome.wire import fastjson
from cosmodrome.wire.bodies import encode_data_version
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import AclVersionReply

if TYPE_CHECKING:
    from cosmodrome.access.gate import Gate
    from cosmodrome.broker.broker import Broker

_WORDS = {permission: word for word, permission in PERMISSIONS.items() if permission != ANY} | {ANY: "PUB|SUB"}


async def get_versions(broker: Broker, _connection: Connection, command: Command) -> Command:
    """Handle GET_BROKER_CLUSTER_ACL_INFO: tell which state of the accounts is in force."""
    reloads, files = _gate(broker).reloads, broker.guard.files
    changed = files.changed_ms if files is not None else {}
    versions = {path: DataVersion(changed_ms, reloads + 1) for path, changed_ms in changed.items()}
    newest = max(versions.values(), key=lambda version: version.timestamp, default=DataVersion())
    each = {path: fastjson.loads(encode_data_version(version)) for path, version in versions.items()}
    config = broker.config
    header = AclVersionReply(
        encode_data_version(newest).decode(),
        fastjson.dumps(each).decode(),
        config.broker_name,
        broker.address,
        config.broker_cluster_name,
    )
    return command.reply(header=header)


async def get_accounts(broker: Broker, _connection: Connection, command: Command) -> Command:
    """Handle GET_BROKER_CLUSTER_ACL_CONFIG: tell all accounts and white addresses, and no secret."""
    accounts = _gate(broker).accounts
    body = {
        "globalWhiteAddrs": list(accounts.white.texts),
        "plainAccessConfigs": [_shown(account) for account in accounts.by_key.values()],
    }
    return command.reply(body=fastjson.dumps(body))


def _gate(broker: Broker) -> Gate:
    if broker.guard.gate is None:
        raise IllegalOperation("this broker has no accounts: aclEnable=false; docs/security.md shows how to begin")
    return broker.guard.gate


def _shown(account: Account) -> dict[str, object]:
    resources = account.resources.items()
    return {
        "accessKey": account.access_key,
        "admin": account.is_admin,
        "defaultGroupPerm": _WORDS[account.default_group],
        "defaultTopicPerm": _WORDS[account.default_topic],
        "groupPerms": [
            f"{name.removeprefix(RETRY_PREFIX)}={_WORDS[permission]}"
            for name, permission in resources
            if name.startswith(RETRY_PREFIX)
        ],
        "topicPerms": [
            f"{name}={_WORDS[permission]}" for name, permission in resources if not name.startswith(RETRY_PREFIX)
        ],
        "whiteRemoteAddress": ",".join(account.white.texts),
    }

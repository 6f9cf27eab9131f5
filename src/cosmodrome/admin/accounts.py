"""Accounts of brokers with ACL: which there are, without secrets, and which state of their files is in force."""

from __future__ import annotations

import json

from cosmodrome.admin.core import AdminCore
from cosmodrome.admin.results import Account, AccountsOfBroker, AccountsOfBrokers, BrokerNode, BrokerTable, BrokerTables
from cosmodrome.codes import RequestCode
from cosmodrome.errors import ProtocolError
from cosmodrome.wire.bodies.fields import Fields
from cosmodrome.wire.requests import AclVersionReply


class AccountsAdmin(AdminCore):
    """The part of `Admin` about accounts. They are changed in their files only, which brokers read again."""

    async def accounts(self, broker: str = "", cluster: str = "") -> AccountsOfBrokers:
        """Return the accounts and white addresses of brokers, without secrets."""

        async def ask(node: BrokerNode) -> AccountsOfBroker:
            fields = Fields.parse((await self._ask(node, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)).body)
            accounts = tuple(_account(one) for one in fields.objects("plainAccessConfigs"))
            return AccountsOfBroker(node, accounts, fields.texts("globalWhiteAddrs"))

        answers, missing = await self._ask_each(await self.targets(broker, cluster), ask)
        return AccountsOfBrokers(tuple(one for _, one in answers), missing)

    async def account_versions(self, broker: str = "", cluster: str = "") -> BrokerTables:
        """Return which state of each file of accounts is in force on brokers, as a DataVersion in JSON."""

        async def ask(node: BrokerNode) -> BrokerTable:
            reply = AclVersionReply.decode(await self._ask(node, RequestCode.GET_BROKER_CLUSTER_ACL_INFO))
            try:
                files = json.loads(reply.all_acl_file_version)
            except ValueError as error:
                raise ProtocolError(f"{node.address} told versions that are no JSON: {error}") from error
            if not isinstance(files, dict):
                raise ProtocolError(f"{node.address} told versions that are no JSON object")
            return BrokerTable(node, {str(path): json.dumps(version) for path, version in files.items()})

        answers, missing = await self._ask_each(await self.targets(broker, cluster), ask)
        return BrokerTables(tuple(table for _, table in answers), missing)


def _account(fields: Fields) -> Account:
    return Account(
        fields.text("accessKey"),
        fields.flag("admin"),
        fields.text("defaultTopicPerm"),
        fields.text("defaultGroupPerm"),
        fields.texts("topicPerms"),
        fields.texts("groupPerms"),
        fields.text("whiteRemoteAddress"),
    )

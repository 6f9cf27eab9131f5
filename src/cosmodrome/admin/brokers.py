"""Brokers: their figures and their settings."""

from __future__ import annotations

from cosmodrome.admin.core import AdminCore
from cosmodrome.admin.results import BrokerNode, BrokerTable, BrokerTables
from cosmodrome.codes import RequestCode
from cosmodrome.config import parse_properties
from cosmodrome.wire.bodies import KVTable


class BrokersAdmin(AdminCore):
    """The part of `Admin` about brokers themselves."""

    async def broker_runtime(self, broker: str = "", cluster: str = "") -> BrokerTables:
        """Return the figures of brokers and their slaves, by Apache's names, such as `putTps`."""

        async def ask(node: BrokerNode) -> BrokerTable:
            reply = await self._ask(node, RequestCode.GET_BROKER_RUNTIME_INFO)
            return BrokerTable(node, KVTable.decode(reply.body).table)

        answers, missing = await self._ask_each(await self.targets(broker, cluster, with_slaves=True), ask)
        return BrokerTables(tuple(table for _, table in answers), missing)

    async def broker_config(self, broker: str = "", cluster: str = "") -> BrokerTables:
        """Return the settings of brokers and their slaves, by the keys of broker.conf."""

        async def ask(node: BrokerNode) -> BrokerTable:
            reply = await self._ask(node, RequestCode.GET_BROKER_CONFIG)
            return BrokerTable(node, dict(parse_properties(bytes(reply.body).decode(errors="replace"))))

        answers, missing = await self._ask_each(await self.targets(broker, cluster, with_slaves=True), ask)
        return BrokerTables(tuple(table for _, table in answers), missing)

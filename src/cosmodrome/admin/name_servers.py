"""Name servers: their settings, their key-value store, and the write permission of brokers."""

from __future__ import annotations

from collections.abc import Mapping

from cosmodrome.admin.core import AdminCore
from cosmodrome.admin.results import BrokerNode, BrokerTable, BrokerTables, Done
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import as_properties, parse_properties
from cosmodrome.errors import BrokerError, InvalidArgument
from cosmodrome.wire.bodies import KVTable
from cosmodrome.wire.name_server_requests import (
    AddWritePermissionReply,
    KvConfig,
    KvNamespace,
    WipeWritePermissionReply,
    WritePermission,
)

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"


class NameServersAdmin(AdminCore):
    """The part of `Admin` about name servers. A change is made on each of them."""

    async def namesrv_config(self) -> BrokerTables:
        """Return the settings of every name server."""
        self._require_running()

        async def ask(node: BrokerNode) -> BrokerTable:
            reply = await self._ask(node, RequestCode.GET_NAMESRV_CONFIG)
            return BrokerTable(node, dict(parse_properties(bytes(reply.body).decode(errors="replace"))))

        answers, missing = await self._ask_each(self._name_servers, ask)
        return BrokerTables(tuple(table for _, table in answers), missing)

    async def set_namesrv_config(self, settings: Mapping[str, str]) -> Done:
        """Change settings of every name server until its next start."""
        self._require_running()
        body = as_properties(settings).encode()
        return await self._do_on(self._name_servers, RequestCode.UPDATE_NAMESRV_CONFIG, body=body)

    async def kv(self, namespace: str) -> Mapping[str, str]:
        """Return all keys and values of a namespace; none if there is no such namespace."""
        self._require_running()
        return await self._namespace(namespace)

    async def _namespace(self, namespace: str) -> Mapping[str, str]:
        node = self._name_servers[0]
        try:
            return KVTable.decode(
                (await self._ask(node, RequestCode.GET_KVLIST_BY_NAMESPACE, KvNamespace(namespace))).body
            ).table
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise

    async def put_kv(self, namespace: str, key: str, value: str) -> Done:
        """Set a key of a namespace on every name server."""
        self._require_running()
        header = KvConfig(_filled(namespace=namespace), _filled(key=key), value)
        return await self._do_on(self._name_servers, RequestCode.PUT_KV_CONFIG, header)

    async def delete_kv(self, namespace: str, key: str) -> Done:
        """Delete a key of a namespace on every name server."""
        self._require_running()
        header = KvConfig(_filled(namespace=namespace), _filled(key=key))
        return await self._do_on(self._name_servers, RequestCode.DELETE_KV_CONFIG, header)

    async def wipe_write_permission(self, broker_name: str) -> Done:
        """Let producers choose other brokers than this one; its consumers go on."""
        self._require_running()
        header, counts = WritePermission(broker_name), []

        async def ask(node: BrokerNode) -> None:
            reply = await self._ask(node, RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
            counts.append(WipeWritePermissionReply.decode(reply).wipe_topic_count)

        done, missing = await self._ask_each(self._name_servers, ask)
        return Done(tuple(node for node, _ in done), f"{max(counts, default=0)} topics", missing)

    async def add_write_permission(self, broker_name: str) -> Done:
        """Let producers choose this broker again."""
        self._require_running()
        header, counts = WritePermission(broker_name), []

        async def ask(node: BrokerNode) -> None:
            reply = await self._ask(node, RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
            counts.append(AddWritePermissionReply.decode(reply).add_topic_count)

        done, missing = await self._ask_each(self._name_servers, ask)
        return Done(tuple(node for node, _ in done), f"{max(counts, default=0)} topics", missing)


def _filled(**named: str) -> str:
    ((name, value),) = named.items()
    if not value:
        raise InvalidArgument(f"the {name} is empty")
    return value

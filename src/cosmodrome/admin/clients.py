"""Clients: the producers and consumers that are connected."""

from __future__ import annotations

from collections.abc import Iterable

from cosmodrome.admin.core import AdminCore, refused_with
from cosmodrome.admin.results import AllProducers, BrokerNode, ClientInfo, Consumers, Producers
from cosmodrome.codes import RequestCode, ResponseCode, Version
from cosmodrome.errors import BrokerError
from cosmodrome.model import check_group
from cosmodrome.wire.bodies import (
    AllProducerInfo,
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
)
from cosmodrome.wire.requests import ConsumerGroupHeader, ProducerGroupHeader


class ClientsAdmin(AdminCore):
    """The part of `Admin` about connected clients."""

    async def consumers(self, group: str, broker: str = "") -> Consumers:
        """Return the connected members of a consumer group, and their subscriptions; none is no error."""
        header = ConsumerGroupHeader(check_group(group))

        async def ask(node: BrokerNode) -> ConsumerConnection | None:
            try:
                reply = await self._ask(node, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            except BrokerError as error:
                if refused_with(error, ResponseCode.CONSUMER_NOT_ONLINE):
                    return None
                raise
            return ConsumerConnection.decode(reply.body)

        answers, missing = await self._ask_each(await self.targets(broker), ask)
        found = [body for _, body in answers if body is not None]
        if not found:
            return Consumers(group, unanswered=missing)
        subscriptions = {topic: one for body in found for topic, one in body.subscriptions.items()}
        return Consumers(
            group,
            _clients(one for body in found for one in body.connections),
            found[0].consume_type,
            found[0].message_model,
            found[0].consume_from,
            tuple(subscriptions[topic] for topic in sorted(subscriptions)),
            {client: text for body in found for client, text in body.disagreement.items()},
            missing,
        )

    async def producers(self, group: str, broker: str = "") -> Producers:
        """Return the connected members of a producer group; none is no error."""
        header = ProducerGroupHeader(check_group(group))

        async def ask(node: BrokerNode) -> ProducerConnection:
            try:
                reply = await self._ask(node, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
            except BrokerError as error:
                if refused_with(error, ResponseCode.SYSTEM_ERROR) and "not exist" in error.remark:
                    return ProducerConnection()
                raise
            return ProducerConnection.decode(reply.body)

        answers, missing = await self._ask_each(await self.targets(broker), ask)
        return Producers(group, _clients(one for _, body in answers for one in body.connections), missing)

    async def all_producers(self, broker: str = "") -> AllProducers:
        """Return the connected members of every producer group."""

        async def ask(node: BrokerNode) -> AllProducerInfo:
            return AllProducerInfo.decode((await self._ask(node, RequestCode.GET_ALL_PRODUCER_INFO)).body)

        answers, missing = await self._ask_each(await self.targets(broker), ask)
        by_group: dict[str, list[ProducerInfo]] = {}
        for _, body in answers:
            for group, connections in body.groups.items():
                by_group.setdefault(group, []).extend(connections)
        return AllProducers(tuple(Producers(group, _clients(by_group[group])) for group in sorted(by_group)), missing)


def _clients(connections: Iterable[ClientConnection | ProducerInfo]) -> tuple[ClientInfo, ...]:
    """Return each client once, though every broker sees it; sorted by id."""
    by_id = {one.client_id: one for one in connections}
    return tuple(
        ClientInfo(one.client_id, one.address, one.language.name, version_name(one.version))
        for _, one in sorted(by_id.items())
    )


def version_name(version: int) -> str:
    """Return a client's version as Apache writes it; the number where no release that matters has it."""
    return Version(version).name if version in set(Version) else str(version)

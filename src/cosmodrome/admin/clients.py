"""Clients: the producers and consumers that are connected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cosmodrome.admin.core import AdminCore, refused_with
from cosmodrome.admin.results import AllProducers, BrokerNode, ClientInfo, Consumers, Producers
from cosmodrome.codes import RequestCode, ResponseCode, Version
from cosmodrome.errors import BrokerError, ClientError
from cosmodrome.model import MessageQueue, check_group, check_topic
from cosmodrome.wire.bodies import (
    AllProducerInfo,
    ClientConnection,
    ConsumeDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumerStatus,
    ProducerConnection,
    ProducerInfo,
)
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.record import parse_offset_msg_id
from cosmodrome.wire.requests import (
    ConsumeDirectly,
    ConsumerGroupHeader,
    GetConsumerStatus,
    GetRunningInfo,
    ProducerGroupHeader,
)

RELAYED_MS = 15_000  # a broker waits 10 s for a client's answer


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
            client_infos(one for body in found for one in body.connections),
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
        return Producers(group, client_infos(one for _, body in answers for one in body.connections), missing)

    async def all_producers(self, broker: str = "") -> AllProducers:
        """Return the connected members of every producer group."""

        async def ask(node: BrokerNode) -> AllProducerInfo:
            return AllProducerInfo.decode((await self._ask(node, RequestCode.GET_ALL_PRODUCER_INFO)).body)

        answers, missing = await self._ask_each(await self.targets(broker), ask)
        by_group: dict[str, list[ProducerInfo]] = {}
        for _, body in answers:
            for group, connections in body.groups.items():
                by_group.setdefault(group, []).extend(connections)
        return AllProducers(
            tuple(Producers(group, client_infos(by_group[group])) for group in sorted(by_group)), missing
        )

    async def running_info(self, group: str, client_id: str, *, stacks: bool = False) -> ConsumerRunningInfo:
        """Return what one connected consumer says about itself; ConsumerNotOnline's text if it is not connected."""
        header = GetRunningInfo(check_group(group), client_id, stacks)
        return ConsumerRunningInfo.decode((await self._of_member(RequestCode.GET_CONSUMER_RUNNING_INFO, header)).body)

    async def consume_directly(
        self, group: str, client_id: str, topic: str, offset_msg_id: str
    ) -> ConsumeDirectlyResult:
        """Have one connected consumer handle a stored message, and return how that went."""
        ip, port, _ = parse_offset_msg_id(offset_msg_id)
        header = ConsumeDirectly(check_group(group), client_id, offset_msg_id, topic=topic)
        address = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        reply = await self._ask(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_ms=RELAYED_MS)
        return ConsumeDirectlyResult.decode(reply.body)

    async def consumer_status(
        self, group: str, topic: str, client_id: str = ""
    ) -> Mapping[str, Mapping[MessageQueue, int]]:
        """Return by client id how far each connected member of a group says it is on a topic."""
        self._require_running()
        header = GetConsumerStatus(check_topic(topic), check_group(group), client_id or None)

        async def ask(node: BrokerNode) -> ConsumerStatus:
            reply = await self._ask(
                node, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header, timeout_ms=RELAYED_MS
            )
            return ConsumerStatus.decode(reply.body)

        answers, missing = await self._ask_each(await self._nodes_of_topic(topic), ask)
        if missing and not answers:
            raise ClientError(missing[0].reason)
        return {client: offsets for _, body in answers for client, offsets in body.by_client.items()}

    async def _of_member(self, code: RequestCode, header: Header) -> Command:
        """Ask brokers until one that the member is connected to relays its answer."""
        failure: ClientError | None = None
        for node in await self.targets():
            try:
                return await self._ask(node, code, header, timeout_ms=RELAYED_MS)
            except ClientError as error:
                failure = error
        raise failure or ClientError("the name server knows no broker; start one, and try again")


def client_infos(connections: Iterable[ClientConnection | ProducerInfo]) -> tuple[ClientInfo, ...]:
    """Return each client once, though every broker sees it; sorted by id."""
    by_id = {one.client_id: one for one in connections}
    return tuple(
        ClientInfo(one.client_id, one.address, one.language.name, version_name(one.version))
        for _, one in sorted(by_id.items())
    )


def version_name(version: int) -> str:
    """Return a client's version as Apache writes it; the number where no release that matters has it."""
    return Version(version).name if version in set(Version) else str(version)

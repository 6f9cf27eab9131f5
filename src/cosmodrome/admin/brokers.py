"""Brokers: their figures and their settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cosmodrome.admin.core import AdminCore, refused_with
from cosmodrome.admin.results import (
    BrokerNode,
    BrokerTable,
    BrokerTables,
    Done,
    Epochs,
    HaStatus,
    HaStatuses,
    QueuePage,
)
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import as_properties, parse_properties
from cosmodrome.errors import BrokerError
from cosmodrome.model import check_topic
from cosmodrome.wire.bodies import (
    BrokerStats,
    EpochsBody,
    HaStatusBody,
    KVTable,
    QueueEntries,
    StatsItem,
    TimerMetricsBody,
)
from cosmodrome.wire.requests import QueryConsumeQueue, ViewBrokerStats


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

    async def set_broker_config(
        self, settings: Mapping[str, str], broker: str = "", cluster: str = "", *, with_slaves: bool = False
    ) -> Done:
        """Change settings of brokers until their next start; a broker refuses a key that only a start obeys."""
        nodes = await self.targets(broker, cluster, with_slaves=with_slaves)
        return await self._do_on(nodes, RequestCode.UPDATE_BROKER_CONFIG, body=as_properties(settings).encode())

    async def ha_status(self, broker: str = "", cluster: str = "") -> HaStatuses:
        """Return the slaves of each master, and how each slave follows."""

        async def ask(node: BrokerNode) -> HaStatus:
            return HaStatus(node, HaStatusBody.decode((await self._ask(node, RequestCode.GET_BROKER_HA_STATUS)).body))

        answers, missing = await self._ask_each(await self.targets(broker, cluster, with_slaves=True), ask)
        return HaStatuses(tuple(one for _, one in answers), missing)

    async def broker_epochs(self, broker: str = "", cluster: str = "") -> Epochs:
        """Return which master wrote which part of each broker's log."""

        async def ask(node: BrokerNode) -> EpochsBody:
            return EpochsBody.decode((await self._ask(node, RequestCode.GET_BROKER_EPOCH_CACHE)).body)

        answers, missing = await self._ask_each(await self.targets(broker, cluster, with_slaves=True), ask)
        return Epochs(tuple(body for _, body in answers), missing)

    async def stats(self, name: str, key: str, broker: str = "") -> BrokerStats:
        """Return one figure over the last minute, hour and day, summed over brokers, such as TOPIC_PUT_NUMS of a topic.

        A broker that has counted nothing under this key counts as zero.
        """
        header = ViewBrokerStats(name, key)

        async def ask(node: BrokerNode) -> BrokerStats | None:
            try:
                return BrokerStats.decode((await self._ask(node, RequestCode.VIEW_BROKER_STATS_DATA, header)).body)
            except BrokerError as error:
                if refused_with(error, ResponseCode.SYSTEM_ERROR):
                    return None
                raise

        answers, _ = await self._ask_each(await self.targets(broker), ask)
        found = [body for _, body in answers if body is not None]
        return BrokerStats(*(_sum(getattr(body, span) for body in found) for span in ("minute", "hour", "day")))

    async def clean_expired_queues(self, broker: str = "", cluster: str = "") -> Done:
        """Delete files of queues and index whose messages are gone."""
        return await self._do_on(await self.targets(broker, cluster), RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def delete_expired_logs(self, broker: str = "", cluster: str = "") -> Done:
        """Delete expired files of the commit log now, whatever the hour."""
        return await self._do_on(await self.targets(broker, cluster), RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def clean_unused_topics(self, broker: str = "", cluster: str = "") -> Done:
        """Delete the queues of topics that a broker no longer has."""
        return await self._do_on(await self.targets(broker, cluster), RequestCode.CLEAN_UNUSED_TOPIC)

    async def timer_metrics(self, broker: str = "", cluster: str = "") -> BrokerTables:
        """Return how many timed messages wait, by topic."""

        async def ask(node: BrokerNode) -> BrokerTable:
            reply = await self._ask(node, RequestCode.GET_TIMER_METRICS)
            pending = TimerMetricsBody.decode(reply.body).pending
            return BrokerTable(node, {topic: str(count) for topic, (count, _) in sorted(pending.items())})

        answers, missing = await self._ask_each(await self.targets(broker, cluster), ask)
        return BrokerTables(tuple(table for _, table in answers), missing)

    async def queue_entries(
        self, topic: str, queue_id: int, index: int, count: int = 10, *, broker: str = "", group: str = ""
    ) -> QueuePage:
        """Return entries of a consume queue, and whether a connected group wants their messages."""
        self._require_running()
        nodes = await (self.targets(broker) if broker else self._nodes_of_topic(topic))
        header = QueryConsumeQueue(check_topic(topic), queue_id, index, count, group or None)
        reply = await self._ask(nodes[0], RequestCode.QUERY_CONSUME_QUEUE, header)
        return QueuePage(nodes[0], QueueEntries.decode(reply.body))


def _sum(items: Iterable[StatsItem]) -> StatsItem:
    each = list(items)
    total, times = sum(one.sum for one in each), [one.sum / one.avgpt for one in each if one.avgpt]
    return StatsItem(total, sum(one.tps for one in each), total / sum(times) if times else 0.0)

"""Consumer groups: their configs, and how far they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from cosmodrome.admin.core import AdminCore, refused_with
from cosmodrome.admin.results import (
    AllProgress,
    BrokerNode,
    GroupConfigs,
    GroupOnBroker,
    GroupProgress,
    QueueProgress,
    Unanswered,
)
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import BrokerError
from cosmodrome.model import check_group
from cosmodrome.wire.bodies import ConsumeStats, ConsumeStatsList, GroupConfigWrapper
from cosmodrome.wire.requests import BrokerConsumeStats, ConsumeStatsRequest

_Stats = Mapping[str, tuple[ConsumeStats, ...]]


class GroupsAdmin(AdminCore):
    """The part of `Admin` about consumer groups."""

    async def group_configs(self, broker: str = "", cluster: str = "") -> GroupConfigs:
        """Return every consumer group with its config, from each broker that is meant; sorted by name."""

        async def ask(node: BrokerNode) -> GroupConfigWrapper:
            return GroupConfigWrapper.decode((await self._ask(node, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)

        answers, missing = await self._ask_each(await self.targets(broker, cluster), ask)
        found = [GroupOnBroker(node, config) for node, wrapper in answers for config in wrapper.groups.values()]
        return GroupConfigs(tuple(sorted(found, key=lambda one: (one.config.name, one.node.broker_name))), missing)

    async def group_progress(self, group: str, topic: str = "", *, cluster: str = "") -> GroupProgress:
        """Return how far a group is on each queue of one topic, or of all that it has consumed.

        A group that has consumed nothing has no queues here.
        """
        header = ConsumeStatsRequest(check_group(group), topic or None)

        async def ask(node: BrokerNode) -> ConsumeStats:
            try:
                return ConsumeStats.decode((await self._ask(node, RequestCode.GET_CONSUME_STATS, header)).body)
            except BrokerError as error:
                if refused_with(error, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
                    return ConsumeStats()
                raise

        answers, missing = await self._ask_each(await self.targets(cluster=cluster), ask)
        return _progress(group, [stats for _, stats in answers], missing)

    async def all_progress(self, broker: str = "", cluster: str = "") -> AllProgress:
        """Return how far every group is on every queue; each broker is asked once."""
        answers, missing = await self._ask_each(await self.targets(broker, cluster), self._all_stats)
        by_group: dict[str, list[ConsumeStats]] = {}
        for _, groups in answers:
            for group, stats in groups.items():
                by_group.setdefault(group, []).extend(stats)
        return AllProgress(tuple(_progress(group, stats) for group, stats in sorted(by_group.items())), missing)

    async def _all_stats(self, node: BrokerNode) -> _Stats:
        header = BrokerConsumeStats(is_order=False)
        try:
            reply = await self._ask(node, RequestCode.GET_BROKER_CONSUME_STATS, header, timeout_ms=30_000)
        except BrokerError as error:
            if not refused_with(error, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
                raise
            return await self._stats_one_by_one(node)
        return ConsumeStatsList.decode(reply.body).groups

    async def _stats_one_by_one(self, node: BrokerNode) -> _Stats:
        """Ask a broker that does not know GET_BROKER_CONSUME_STATS about each of its groups."""
        reply = await self._ask(node, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        names = sorted(GroupConfigWrapper.decode(reply.body).groups)

        async def stats(group: str) -> ConsumeStats:
            answer = await self._ask(node, RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest(group))
            return ConsumeStats.decode(answer.body)

        return {name: (one,) for name, one in zip(names, await asyncio.gather(*map(stats, names)), strict=True)}


def _progress(group: str, stats: Iterable[ConsumeStats], missing: tuple[Unanswered, ...] = ()) -> GroupProgress:
    every = list(stats)
    queues = [
        QueueProgress(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            one.broker_offset,
            one.consumer_offset,
            one.pull_offset,
            one.last_timestamp,
        )
        for each in every
        for queue, one in each.offsets.items()
    ]
    queues.sort(key=lambda one: (one.topic, one.broker_name, one.queue_id))
    return GroupProgress(group, tuple(queues), sum(each.consume_tps for each in every), missing)

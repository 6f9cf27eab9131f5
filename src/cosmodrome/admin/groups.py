"""Consumer groups: their configs, and how far they are."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable

from cosmodrome.admin.core import AdminCore, refused_with
from cosmodrome.admin.results import (
    AllProgress,
    BrokerNode,
    Done,
    GroupConfigs,
    GroupOnBroker,
    GroupProgress,
    Lateness,
    QueueLateness,
    QueueProgress,
    QueueReset,
    Resets,
    Unanswered,
)
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import BrokerError, InvalidArgument
from cosmodrome.model import GroupConfig, RequestMode, check_group, check_topic
from cosmodrome.wire.bodies import (
    ConsumeStats,
    ConsumeStatsList,
    GroupConfigBody,
    GroupConfigList,
    GroupConfigWrapper,
    RequestModeBody,
    ResetOffsets,
    TimeSpans,
)
from cosmodrome.wire.requests import (
    BrokerConsumeStats,
    CloneGroupOffset,
    ConsumeStatsRequest,
    DeleteGroup,
    QueryTimeSpan,
    ResetOffset,
)

ALL_PROGRESS_MS = 30_000  # a broker looks at every queue of every group


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

    async def all_progress(
        self, broker: str = "", cluster: str = "", *, only_ordered: bool = False, timeout_ms: int = ALL_PROGRESS_MS
    ) -> AllProgress:
        """Return how far every group is on every queue, or on those of ordered topics; each broker is asked once."""

        async def ask(node: BrokerNode) -> ConsumeStatsList:
            return await self._all_stats(node, only_ordered, timeout_ms)

        answers, missing = await self._ask_each(await self.targets(broker, cluster), ask)
        by_group: dict[str, list[ConsumeStats]] = {}
        members: dict[str, set[str]] = {}
        for _, body in answers:
            for group, stats in body.groups.items():
                by_group.setdefault(group, []).extend(stats)
            for group, clients in (body.members or {}).items():
                members.setdefault(group, set()).update(clients)
        is_told = all(body.members is not None for _, body in answers)
        found = [
            dataclasses.replace(_progress(group, stats), clients=len(members.get(group, ())) if is_told else None)
            for group, stats in sorted(by_group.items())
        ]
        return AllProgress(tuple(found), missing)

    async def _all_stats(self, node: BrokerNode, only_ordered: bool, timeout_ms: int) -> ConsumeStatsList:
        header = BrokerConsumeStats(only_ordered)
        try:
            reply = await self._ask(node, RequestCode.GET_BROKER_CONSUME_STATS, header, timeout_ms=timeout_ms)
        except BrokerError as error:
            if only_ordered or not refused_with(error, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
                raise
            return await self._stats_one_by_one(node)
        return ConsumeStatsList.decode(reply.body)

    async def _stats_one_by_one(self, node: BrokerNode) -> ConsumeStatsList:
        """Ask a broker that does not know GET_BROKER_CONSUME_STATS about each of its groups."""
        reply = await self._ask(node, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        names = sorted(GroupConfigWrapper.decode(reply.body).groups)

        async def stats(group: str) -> ConsumeStats:
            answer = await self._ask(node, RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest(group))
            return ConsumeStats.decode(answer.body)

        every = await asyncio.gather(*map(stats, names))
        return ConsumeStatsList(node.address, {name: (one,) for name, one in zip(names, every, strict=True)})

    # --- changes

    async def put_group(self, config: GroupConfig, broker: str = "", cluster: str = "") -> Done:
        """Create or change a consumer group on the brokers that are meant."""
        body = GroupConfigBody(config).encode()
        check_group(config.name)
        nodes = await self._masters(broker, cluster)
        return await self._do_on(nodes, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def put_groups(self, configs: Iterable[GroupConfig], broker: str = "", cluster: str = "") -> Done:
        """Create or change many groups in one request to each broker."""
        body = GroupConfigList(tuple(configs)).encode()
        nodes = await self._masters(broker, cluster)
        return await self._do_on(nodes, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body)

    async def delete_group(
        self, group: str, broker: str = "", cluster: str = "", *, clean_offsets: bool = False
    ) -> Done:
        """Delete a consumer group; with `clean_offsets` also how far it is, so that it would begin from new."""
        header = DeleteGroup(check_group(group), clean_offsets, clean_offsets)
        return await self._do_on(await self._masters(broker, cluster), RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def set_consume_mode(
        self, group: str, topic: str, mode: RequestMode, pop_share_queues: int = 0, broker: str = "", cluster: str = ""
    ) -> Done:
        """Let a group's members pull or pop a topic."""
        body = RequestModeBody(check_topic(topic), check_group(group), mode, pop_share_queues).encode()
        nodes = await self._masters(broker, cluster)
        return await self._do_on(nodes, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)

    # --- offsets

    async def reset_offset(
        self,
        group: str,
        topic: str,
        timestamp_ms: int = -1,
        *,
        force: bool = True,
        queue_id: int = -1,
        offset: int | None = None,
        broker: str = "",
    ) -> Resets:
        """Let a group go on from a time, from the end (-1), or on one queue from an offset; running members follow.

        Without `force` a group is only moved back. A queue or an offset needs one broker to be named.
        """
        if (queue_id >= 0 or offset is not None) and not broker:
            raise InvalidArgument("a queue is one broker's: name the broker, too")
        if offset is not None and queue_id < 0:
            raise InvalidArgument("an offset is one queue's: name the queue, too")
        header = ResetOffset(check_topic(topic), check_group(group), timestamp_ms, force, queue_id, offset)

        async def ask(node: BrokerNode) -> ResetOffsets:
            return ResetOffsets.decode((await self._ask(node, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).body)

        nodes = await (self.targets(broker) if broker else self._nodes_of_topic(topic))
        answers, missing = await self._ask_each(nodes, ask)
        queues = [
            QueueReset(queue.broker_name or node.broker_name, queue.queue_id, to)
            for node, body in answers
            for queue, to in body.offsets.items()
        ]
        return Resets(group, topic, tuple(sorted(queues, key=lambda one: (one.broker_name, one.queue_id))), missing)

    async def clone_offsets(self, source: str, target: str, topic: str = "", *, offline: bool = False) -> Done:
        """Set the offsets of one group to those of another, on one topic or on all that the source has consumed."""
        header = CloneGroupOffset(check_group(source), check_group(target), topic or None, offline)
        nodes = await (self._nodes_of_topic(topic) if topic else self._masters())
        return await self._do_on(nodes, RequestCode.CLONE_GROUP_OFFSET, header)

    async def lateness(self, group: str, topic: str) -> Lateness:
        """Return how late a group is on each queue of a topic, in time."""
        self._require_running()
        header = QueryTimeSpan(check_topic(topic), check_group(group))

        async def ask(node: BrokerNode) -> TimeSpans:
            return TimeSpans.decode((await self._ask(node, RequestCode.QUERY_CONSUME_TIME_SPAN, header)).body)

        answers, missing = await self._ask_each(await self._nodes_of_topic(topic), ask)
        queues = [
            QueueLateness(
                span.queue.broker_name, span.queue.queue_id, span.min_ms, span.max_ms, span.consumed_ms, span.delay_ms
            )
            for _, body in answers
            for span in body.spans
        ]
        return Lateness(group, topic, tuple(sorted(queues, key=lambda q: (q.broker_name, q.queue_id))), missing)


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

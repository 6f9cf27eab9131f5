"""Topics: their names, routes and configs, and what is in them."""

from __future__ import annotations

from cosmodrome.admin.core import AdminCore
from cosmodrome.admin.results import BrokerNode, QueueStatus, TopicConfigs, TopicOnBroker, TopicStatus
from cosmodrome.codes import RequestCode
from cosmodrome.model import Route, check_topic
from cosmodrome.wire.bodies import TopicConfigWrapper, TopicList, TopicStats
from cosmodrome.wire.name_server_requests import TopicsByCluster
from cosmodrome.wire.requests import TopicHeader


class TopicsAdmin(AdminCore):
    """The part of `Admin` about topics."""

    async def topic_names(self, cluster: str = "") -> tuple[str, ...]:
        """Return the names of all topics that a name server knows, or of those that a cluster has."""
        if cluster:
            await self.targets(cluster=cluster)
            reply = await self._ask_name_server(RequestCode.GET_TOPICS_BY_CLUSTER, TopicsByCluster(cluster))
        else:
            reply = await self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return tuple(sorted(set(TopicList.decode(reply.body).topics)))

    async def topic_route(self, topic: str) -> Route:
        """Return the brokers of a topic, and its queues on each; RouteNotFound if no broker has it."""
        self._require_running()
        return await self._instance.name_servers.route(check_topic(topic))

    async def topic_status(self, topic: str) -> TopicStatus:
        """Return where each queue of a topic begins and ends."""
        self._require_running()
        header = TopicHeader(check_topic(topic))

        async def ask(node: BrokerNode) -> TopicStats:
            return TopicStats.decode((await self._ask(node, RequestCode.GET_TOPIC_STATS_INFO, header)).body)

        answers, missing = await self._ask_each(await self._nodes_of_topic(topic), ask)
        queues = (
            QueueStatus(queue.broker_name, queue.queue_id, one.min_offset, one.max_offset, one.last_update_timestamp)
            for _, stats in answers
            for queue, one in sorted(stats.offsets.items())
        )
        return TopicStatus(topic, tuple(queues), missing)

    async def topic_configs(self, broker: str = "", cluster: str = "") -> TopicConfigs:
        """Return every topic with its config, from each broker that is meant; sorted by name."""

        async def ask(node: BrokerNode) -> TopicConfigWrapper:
            return TopicConfigWrapper.decode((await self._ask(node, RequestCode.GET_ALL_TOPIC_CONFIG)).body)

        answers, missing = await self._ask_each(await self.targets(broker, cluster), ask)
        found = [TopicOnBroker(node, config) for node, wrapper in answers for config in wrapper.topics.values()]
        return TopicConfigs(tuple(sorted(found, key=lambda one: (one.config.name, one.node.broker_name))), missing)

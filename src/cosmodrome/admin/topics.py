"""Topics: their names, routes and configs, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable

from cosmodrome.admin.core import AdminCore, refused_with
from cosmodrome.admin.results import BrokerNode, Done, QueueStatus, TopicConfigs, TopicOnBroker, TopicStatus
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import BrokerError
from cosmodrome.model import AUTO_CREATE_TOPIC, Route, TopicConfig, check_topic
from cosmodrome.wire.bodies import (
    GroupList,
    TopicConfigBody,
    TopicConfigList,
    TopicConfigWrapper,
    TopicList,
    TopicStats,
)
from cosmodrome.wire.name_server_requests import DeleteTopicInNameServer, TopicsByCluster
from cosmodrome.wire.requests import CreateTopic, TopicHeader


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

    # --- changes

    async def put_topic(self, config: TopicConfig, broker: str = "", cluster: str = "") -> Done:
        """Create or change a topic on the brokers that are meant; attributes are added to those it has.

        An attribute named `-key` is removed.
        """
        changes = ",".join(
            name if name.startswith("-") else f"+{name}={value}" for name, value in config.attributes.items()
        )
        header = CreateTopic(
            check_topic(config.name),
            config.read_queues,
            config.write_queues,
            config.perm,
            AUTO_CREATE_TOPIC,
            config.filter_type,
            config.sys_flag,
            config.order,
            changes or None,
        )
        return await self._do_on(await self._masters(broker, cluster), RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def put_topics(self, configs: Iterable[TopicConfig], broker: str = "", cluster: str = "") -> Done:
        """Create or change many topics in one request to each broker."""
        body = TopicConfigList(tuple(configs)).encode()
        nodes = await self._masters(broker, cluster)
        return await self._do_on(nodes, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)

    async def topic_config(self, topic: str, node: BrokerNode) -> TopicConfig:
        """Return a topic's config on one broker; BrokerError if it has no such topic."""
        self._require_running()
        header = TopicHeader(check_topic(topic))
        try:
            return TopicConfigBody.decode((await self._ask(node, RequestCode.GET_TOPIC_CONFIG, header)).body).topic
        except BrokerError as error:
            if not refused_with(error, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
                raise
        every = TopicConfigWrapper.decode((await self._ask(node, RequestCode.GET_ALL_TOPIC_CONFIG)).body).topics
        if topic not in every:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} is not on this broker", node.address)
        return every[topic]

    async def delete_topic(self, topic: str, cluster: str = "") -> Done:
        """Delete a topic with its messages from all brokers, or those of a cluster, then from every name server."""
        header = TopicHeader(check_topic(topic))
        nodes = await self._masters(cluster=cluster)
        done = await self._do_on(nodes, RequestCode.DELETE_TOPIC_IN_BROKER, header)
        if done.unanswered:
            return done
        forget = DeleteTopicInNameServer(topic, cluster or None)
        forgotten = await self._do_on(self._name_servers, RequestCode.DELETE_TOPIC_IN_NAMESRV, forget)
        return Done(done.brokers, "", forgotten.unanswered)

    async def topic_groups(self, topic: str) -> tuple[str, ...]:
        """Return the groups that consume a topic or have consumed it, on any broker that answers."""
        self._require_running()
        header = TopicHeader(check_topic(topic))

        async def ask(node: BrokerNode) -> tuple[str, ...]:
            return GroupList.decode((await self._ask(node, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)).body).groups

        answers, _ = await self._ask_each(await self._nodes_of_topic(topic), ask)
        return tuple(sorted({group for _, groups in answers for group in groups}))

    async def topic_clusters(self, topic: str) -> tuple[str, ...]:
        """Return the clusters that have a topic."""
        return tuple(sorted({broker.cluster for broker in (await self.topic_route(topic)).brokers}))

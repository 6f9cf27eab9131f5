"""What a stream tells its consumer group's brokers, so that mqadmin and the console show how far it is."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import BrokerError, CosmodromeError, RouteNotFound
from cosmodrome.model import GroupConfig, MessageQueue, Perm, retry_topic
from cosmodrome.spark.link import Cluster
from cosmodrome.wire.bodies import GroupConfigBody
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import CreateTopic, UpdateConsumerOffset

log = logging.getLogger(__name__)


class GroupProgress:
    """Commits offsets of a group. For onlookers only: the checkpoint decides where a query goes on, so a broker that
    does not take an offset ends nothing."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._told: dict[MessageQueue, int] = {}
        self._known = False

    def tell(self, offsets: Mapping[MessageQueue, int]) -> None:
        news = {queue: offset for queue, offset in offsets.items() if self._told.get(queue) != offset}
        if not news:
            return
        try:
            if not self._known:
                self._make_known(news)
            self._commit(news)
        except CosmodromeError as error:
            log.warning("the progress of group %s is not told: %s", self._group, error)

    def _commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """One of each topic and broker goes ahead: of a group's first offsets that come at once, Apache's 4.9 keeps
        some only."""
        ahead = set({(queue.topic, queue.broker_name): queue for queue in offsets}.values())
        for queues in (ahead, offsets.keys() - ahead):
            self._cluster.ask_all([self._request(queue, offsets[queue]) for queue in queues])
        self._told.update(offsets)

    def _request(self, queue: MessageQueue, offset: int) -> tuple[str, Command]:
        header = UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)
        return self._cluster.master(queue), Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    def _make_known(self, offsets: Mapping[MessageQueue, int]) -> None:
        """A group that nobody has made yet: mqadmin finds its brokers by the topic for what is to be tried again."""
        for address in sorted({self._cluster.master(queue) for queue in offsets}):
            self._create_group(address, offsets)
        try:
            self._cluster.route(retry_topic(self._group))
        except RouteNotFound:
            for address in sorted({self._cluster.master(queue) for queue in offsets}):
                header = CreateTopic(retry_topic(self._group), 1, 1, Perm.READ | Perm.WRITE)
                self._cluster.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        self._known = True

    def _create_group(self, address: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Only where a broker refuses the group: creating it again would set its configuration back."""
        here = next(item for item in offsets.items() if self._cluster.master(item[0]) == address)
        try:
            self._cluster.ask_all([self._request(*here)])
        except BrokerError as refusal:
            if refusal.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            body = GroupConfigBody(GroupConfig(self._group)).encode()
            self._cluster.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

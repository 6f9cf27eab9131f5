"""What a stream tells its consumer group's brokers, so that mqadmin and the console show how far it is."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping

from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import BrokerError, CosmodromeError, RouteNotFound
from cosmodrome.model import GroupConfig, MessageQueue, Perm, retry_topic
from cosmodrome.spark.link import Cluster
from cosmodrome.wire.bodies import GroupConfigBody
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import CreateTopic, UpdateConsumerOffset

log = logging.getLogger(__name__)

# How long a broker that took no offset is left alone.
AGAIN_SECONDS = 5.0

# Who took no offset: a broker, or a broker for one topic.
_Who = tuple[str] | tuple[str, str]


class GroupProgress:
    """Commits offsets of a group. For onlookers only: the checkpoint decides where a query goes on, so a broker that
    does not take an offset ends nothing, nor does it keep others from being told."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._told: dict[MessageQueue, int] = {}
        self._known: set[str] = set()  # brokers that have the group
        self._again_at: dict[_Who, float] = {}
        self._reasons: defaultdict[_Who, set[str]] = defaultdict(set)  # why, as far as the log has it

    def tell(self, offsets: Mapping[MessageQueue, int]) -> None:
        news: defaultdict[str, dict[MessageQueue, int]] = defaultdict(dict)
        for queue, offset in offsets.items():
            if self._told.get(queue) != offset and self._may_try(queue):
                news[queue.broker_name][queue] = offset
        for broker, its_news in news.items():
            try:
                self._tell_broker(broker, its_news)
                self._reasons.pop((broker,), None)
            except CosmodromeError as error:
                self._put_off((broker,), error)

    def _may_try(self, queue: MessageQueue) -> bool:
        if not self._again_at:
            return True
        now, broker = time.monotonic(), queue.broker_name
        return all(self._again_at.get(who, now) <= now for who in ((broker,), (broker, queue.topic)))

    def _put_off(self, who: _Who, error: CosmodromeError) -> None:
        self._again_at[who] = time.monotonic() + AGAIN_SECONDS
        if str(error) not in self._reasons[who]:
            self._reasons[who].add(str(error))
            log.warning("the progress of group %s is not told to broker %s: %s", self._group, who[0], error)

    def _tell_broker(self, broker: str, offsets: Mapping[MessageQueue, int]) -> None:
        """One of each topic goes ahead: of a group's first offsets that come at once, Apache's 4.9 keeps some only."""
        address = self._cluster.master(next(iter(offsets)))
        if broker not in self._known:
            self._make_known(broker, address, offsets)
        ahead = set({queue.topic: queue for queue in offsets}.values())
        for queues in (ahead, offsets.keys() - ahead):
            self._commit(address, {queue: offsets[queue] for queue in queues})

    def _commit(self, address: str, offsets: Mapping[MessageQueue, int]) -> None:
        """What is refused is put off with its topic: that may be gone."""
        requests = [(address, self._request(queue, offset)) for queue, offset in offsets.items()]
        for (queue, offset), reply in zip(offsets.items(), self._cluster.call_all(requests), strict=True):
            who = queue.broker_name, queue.topic
            if reply.code == ResponseCode.SUCCESS:
                self._told[queue] = offset
                self._reasons.pop(who, None)
            else:
                self._put_off(who, BrokerError(reply.code, reply.remark or "", address))

    def _request(self, queue: MessageQueue, offset: int) -> Command:
        header = UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)
        return Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    def _make_known(self, broker: str, address: str, offsets: Mapping[MessageQueue, int]) -> None:
        """A group that nobody has made yet: mqadmin finds its brokers by the topic for what is to be tried again."""
        self._create_group(address, *next(iter(offsets.items())))
        if broker not in self._brokers_of(retry_topic(self._group)):
            header = CreateTopic(retry_topic(self._group), 1, 1, Perm.READ | Perm.WRITE)
            self._cluster.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        self._known.add(broker)

    def _brokers_of(self, topic: str) -> Iterable[str]:
        try:
            return [broker.broker_name for broker in self._cluster.route(topic).brokers]
        except RouteNotFound:
            return ()

    def _create_group(self, address: str, queue: MessageQueue, offset: int) -> None:
        """Only where a broker refuses the group: creating it again would set its configuration back."""
        refusal = self._cluster.call(address, self._request(queue, offset))
        if refusal.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            body = GroupConfigBody(GroupConfig(self._group)).encode()
            self._cluster.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

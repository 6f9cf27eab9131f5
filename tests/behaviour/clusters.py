"""A RocketMQ to test our client against: what every one offers, whoever wrote it."""

from __future__ import annotations

import json
from pathlib import Path

from cosmodrome.model import MessageQueue
from interop.apache import ApacheBroker, ApacheNameServer, ask, cluster_info, wait_routed, wait_settled
from interop.child import free_port
from interop.lab import ALL_CLUSTERS, OURS
from interop.ours import CosmodromeBroker, CosmodromeNameServer

BROKER_NAME = "broker-a"

# Waiting is short, and long enough to tell one delay level from the next.
DELAYS_S = (1, 2, 1, 2, 1)
TRANSACTION_CHECK_MS = 1_000
_CONFIG = {
    "messageDelayLevel": " ".join(f"{seconds}s" for seconds in DELAYS_S),
    # A new group starts where it says only on a queue whose beginning is not in memory any more.
    "accessMessageInMemoryMaxRatio": 0,
    "maxTransferCountOnMessageInDisk": 32,
    "maxTransferBytesOnMessageInDisk": 262_144,
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "transactionCheckInterval": TRANSACTION_CHECK_MS,
    "transactionTimeOut": TRANSACTION_CHECK_MS,
    "transactionCheckMax": 1_000,
}
# Apache 5 keeps the ends of transactions to itself for a while. Were it to ask any sooner, it would ask about what has
# ended, and commit that again.
_APACHE_5 = {"transactionOpBatchInterval": 100, "transactionTimeOut": 3_000}

_UPDATE_AND_CREATE_TOPIC = 17
_CONSUMER_LIST = 38
_UPDATE_AND_CREATE_GROUP = 200
_SUCCESS = 0


class Cluster:
    """One name server and one broker, of cosmodrome or of Apache."""

    def __init__(self, name: str, home: Path) -> None:
        assert name in ALL_CLUSTERS, f"{name} is none of {ALL_CLUSTERS}"
        self.name = name
        self._home = home
        self._version = "" if name == OURS else name.removeprefix("apache-")
        self._port = free_port(before=2, after=1)
        self._name_server = self.start_name_server(home / "namesrv")
        try:
            self._broker = self._start_broker()
        except BaseException:
            self._name_server.kill()
            raise

    @property
    def namesrv(self) -> str:
        return self._name_server.address

    @property
    def broker_address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def has_timers(self) -> bool:
        """Whether a message may be delivered at any time; 4.x knows delay levels only."""
        return not self._version.startswith("4.")

    @property
    def reads_young_queues_whole(self) -> bool:
        """Whether a new group starts at a queue's beginning whatever it says.

        5.x looks whether that is in memory; the others believe what `accessMessageInMemoryMaxRatio` says.
        """
        return self._version.startswith("5.")

    def start_name_server(self, home: Path) -> ApacheNameServer | CosmodromeNameServer:
        """One more of the same make, that no broker knows of."""
        return ApacheNameServer(self._version, home) if self._version else CosmodromeNameServer(home)

    def _start_broker(self) -> ApacheBroker | CosmodromeBroker:
        home = self._home / "broker"
        config = {**_CONFIG, "listenPort": self._port}
        if not self._version:
            return CosmodromeBroker(self.namesrv, home, BROKER_NAME, config)
        if self._version.startswith("5."):
            config |= _APACHE_5
        return ApacheBroker(self._version, self.namesrv, home, BROKER_NAME, extra=config)

    def restart_broker(self) -> None:
        """kill -9, and up again with what it had. The name server forgets it in between, or it would seem to be up."""
        self._broker.kill()
        name = f'"{BROKER_NAME}"'.encode()
        wait_settled(lambda: name not in cluster_info(self.namesrv), f"the name server still lists {BROKER_NAME}")
        self._broker = self._start_broker()

    def close(self) -> None:
        self._broker.kill()
        self._name_server.kill()

    # --- what operators do

    def create_topic(self, topic: str, queues: int = 4, *, address: str = "") -> list[MessageQueue]:
        """On our broker, or on the one with that address; return once the name server knows the topic."""
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues}
        fields |= {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        self._ask(_UPDATE_AND_CREATE_TOPIC, fields, address=address)
        self.wait_routed(topic)
        return [MessageQueue(topic, BROKER_NAME, queue_id) for queue_id in range(queues)]

    def wait_routed(self, topic: str) -> None:
        wait_routed(self.namesrv, topic)

    def create_group(self, group: str, *, retry_max_times: int = 16) -> None:
        config = {"groupName": group, "retryMaxTimes": retry_max_times, "retryQueueNums": 1, "consumeEnable": True}
        self._ask(_UPDATE_AND_CREATE_GROUP, {}, json.dumps(config).encode())

    def members(self, group: str) -> list[str]:
        """The client ids of a group's consumers, as the broker knows them."""
        header, body = ask(self.broker_address, _CONSUMER_LIST, {"consumerGroup": group})
        return sorted(json.loads(body)["consumerIdList"]) if header["code"] == _SUCCESS else []

    def _ask(self, code: int, fields: dict[str, object], body: bytes = b"", address: str = "") -> None:
        header, _ = ask(address or self.broker_address, code, fields, body)
        assert header["code"] == _SUCCESS, header

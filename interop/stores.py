"""One store folder that brokers of both kinds open in turn, and what is put into it and found in it.

What is in a store is asked of the broker that has it open, in requests spoken by hand, so that the same questions go to
all of them. Bodies are `messages.body`; which indexes a topic should hold is each case's to say.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cosmodrome import Message, Producer, PushConsumer
from cosmodrome.clock import SystemClock
from cosmodrome.config import StoreConfig
from cosmodrome.errors import ProtocolError
from cosmodrome.model import ConsumeFrom, ReceivedMessage, SendStatus
from cosmodrome.store import MessageStore, StoreMessage
from cosmodrome.store.verification import Verification, quiet, verify
from cosmodrome.wire import fastjson, properties
from cosmodrome.wire.record import Record, decode_records, pack_host
from interop.apache import ApacheBroker, ask, cluster_info, wait_dispatched
from interop.child import Child, ChildError, free_port
from interop.messages import body, index_of
from interop.our_client import SEND_TIMEOUT_MS
from interop.ours import CosmodromeBroker

T = TypeVar("T")

BROKER_NAME = "store-broker"
SETTLE_TIMEOUT_S = 120
ASK_INTERVAL_S = 0.1
STOP_TIMEOUT_S = 90

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"

# Small files, so that a few hundred messages roll each kind several times.
_SIZES = {
    "mappedFileSizeCommitLog": 64 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 20,
    "maxHashSlotNum": 50,
    "maxIndexNum": 150,
    "mappedFileSizeTimerLog": 4_096,
}
# Half messages are asked about soon, and as often as it takes until their producer is here.
_COMMON = {
    **_SIZES,
    "flushConsumerOffsetInterval": 500,
    "recallMessageEnable": "true",
    "transactionCheckInterval": 1_500,
    "transactionTimeOut": 1_000,
    "transactionCheckMax": 10_000,
}
_APACHE = {"flushDelayOffsetInterval": 200, "transactionOpBatchInterval": 100}

_PULL_MESSAGE = 11
_QUERY_MESSAGE = 12
_QUERY_CONSUMER_OFFSET = 14
_UPDATE_CONSUMER_OFFSET = 15
_UPDATE_AND_CREATE_TOPIC = 17
_GET_ALL_TOPIC_CONFIG = 21
_UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
_GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
_SUCCESS, _PULL_NOT_FOUND, _PULL_RETRY_IMMEDIATELY, _PULL_OFFSET_MOVED = 0, 19, 20, 21
_SUBSCRIPTION_GIVEN = 0x4  # in a pull's sys flag
_PULL_COUNT = 32
_QUERY_COUNT = 64


class StoreFolder:
    """A store with a broker name and a port of its own, which every broker that opens it takes."""

    def __init__(self, home: Path, namesrv: str) -> None:
        self.ours: dict[str, object] = {}  # more keys for our broker
        self.apaches: dict[str, object] = {}  # and for Apache's
        self.home = home
        self.root = home / "store"
        self.namesrv = namesrv
        self._port = free_port(before=2, after=1)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def open_in_ours(self) -> CosmodromeBroker:
        extra = {**_COMMON, "listenPort": self._port, **self.ours}
        return CosmodromeBroker(self.namesrv, self.home, BROKER_NAME, extra)

    def open_in_apache(self, version: str) -> ApacheBroker:
        extra = {**_COMMON, **_APACHE, "listenPort": self._port, **self.apaches}
        return ApacheBroker(version, self.namesrv, self.home, BROKER_NAME, extra=extra)

    def open(self) -> MessageStore:
        """The store without a broker."""
        config = StoreConfig().with_properties({key: str(value) for key, value in (_SIZES | self.ours).items()})
        return MessageStore.open(self.root, config, SystemClock())

    def stored(self, topic: str, queue_id: int) -> list[Record]:
        """Every message of a queue, read without a broker."""
        store = self.open()
        try:
            found: list[Record] = []
            while len(found) < store.max_offset(topic, queue_id):
                found += decode_records(b"".join(store.read(topic, queue_id, len(found), _PULL_COUNT).views))
            return found
        finally:
            store.close()

    def leave(self, broker: Child, *, kill: bool) -> None:
        """End the broker; with `kill` as kill -9 does. Returns when the name server has seen it go."""
        if kill:
            broker.kill()
            assert (self.root / "abort").exists()
        else:
            broker.stop_in_order(STOP_TIMEOUT_S)
            assert not (self.root / "abort").exists(), "a clean stop leaves no abort file"
        settled(lambda: BROKER_NAME.encode() not in cluster_info(self.namesrv), bool)

    def verify(self) -> Verification:
        """What `cosmodrome store verify` finds; AssertionError unless it is nothing."""
        with quiet(self.root):
            found = verify(self.root)
        assert found.is_sound, "\n".join(map(str, found.problems))
        return found

    def files(self, folder: str) -> int:
        """How many files a part of the store has."""
        return sum(path.is_file() for path in (self.root / folder).rglob("*"))

    # What a broker has

    def messages(self, topic: str, queues: int) -> list[Record]:
        """Every message of a topic, as pulled from its broker; its queues have neither holes nor doubles."""
        wait_dispatched(self.address)
        found = [record for queue_id in range(queues) for record in self._queue(topic, queue_id)]
        assert {record.topic for record in found} <= {topic}
        return found

    def _queue(self, topic: str, queue_id: int) -> list[Record]:
        found: list[Record] = []
        while True:
            header, data = self._pull(topic, queue_id, len(found))
            if header["code"] in (_PULL_NOT_FOUND, _PULL_OFFSET_MOVED):
                return found
            assert header["code"] in (_SUCCESS, _PULL_RETRY_IMMEDIATELY), header
            records = decode_records(data)
            offsets = [record.queue_offset for record in records]
            assert offsets == list(range(len(found), len(found) + len(records))), f"{topic}/{queue_id}: {offsets}"
            found += records

    def _pull(self, topic: str, queue_id: int, offset: int) -> tuple[dict[str, Any], bytes]:
        fields = {"consumerGroup": "store-reader", "topic": topic, "queueId": queue_id, "queueOffset": offset}
        fields |= {"maxMsgNums": _PULL_COUNT, "sysFlag": _SUBSCRIPTION_GIVEN, "commitOffset": 0}
        fields |= {"suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG"}
        return ask(self.address, _PULL_MESSAGE, fields)

    def find(self, topic: str, key: str) -> list[Record]:
        """The messages a key leads to."""
        fields = {"topic": topic, "key": key, "maxNum": _QUERY_COUNT, "beginTimestamp": 0, "endTimestamp": 2**62}
        header, data = ask(self.address, _QUERY_MESSAGE, fields)
        return decode_records(data) if header["code"] == _SUCCESS else []

    def create_topic(self, topic: str, queues: int) -> None:
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues}
        fields |= {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        self._command(_UPDATE_AND_CREATE_TOPIC, fields)

    def create_group(self, group: str, retry_max_times: int) -> None:
        config = {"groupName": group, "retryMaxTimes": retry_max_times}
        self._command(_UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(config).encode())

    def topic_queues(self) -> dict[str, int]:
        """Topic → queues, as the broker's table says."""
        table = fastjson.loads(self._command(_GET_ALL_TOPIC_CONFIG, {}))["topicConfigTable"]
        return {topic: config["writeQueueNums"] for topic, config in table.items()}

    def group_retries(self) -> dict[str, int]:
        """Group → retryMaxTimes, as the broker's table says."""
        table = fastjson.loads(self._command(_GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}))["subscriptionGroupTable"]
        return {group: config["retryMaxTimes"] for group, config in table.items()}

    def _command(self, code: int, fields: dict[str, Any], data: bytes = b"") -> bytes:
        header, reply = ask(self.address, code, fields, data)
        assert header["code"] == _SUCCESS, header
        return reply

    def settle_offsets(self, group: str, topic: str, queues: int) -> None:
        """Return once the broker says that a group which was given everything in a topic has consumed everything.

        Apache serves commits and pulls, which carry commits too, in different threads: of the last two, the older may
        win. A group then sees some messages again, which is its right; here it would only blur what is looked at.
        """
        for queue_id in range(queues):
            end = len(self._queue(topic, queue_id))
            place = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
            settled(partial(self._offset_once_committed, place, end), end.__eq__)

    def _offset_once_committed(self, place: dict[str, Any], end: int) -> int:
        header, _ = ask(self.address, _QUERY_CONSUMER_OFFSET, place)
        offset = int(header["extFields"]["offset"]) if header["code"] == _SUCCESS else 0
        if offset != end:
            self._command(_UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": end})
        return offset

    def wait_consumed(self, group: str, topic: str, count: int) -> None:
        """Return once config/consumerOffset.json says that the group has consumed so many messages of the topic."""
        key = f"{topic}@{group}"
        settled(lambda: sum(self._saved("consumerOffset").get(key, {}).values()), lambda consumed: consumed == count)

    def wait_delivered(self, level: int, count: int) -> None:
        """Return once config/delayOffset.json says that so many messages of a delay level were delivered."""
        settled(lambda: self._saved("delayOffset").get(level, 0), lambda delivered: delivered == count)

    def _saved(self, name: str) -> dict[Any, Any]:
        """The offset table of a config file; empty while it is being replaced."""
        try:
            table = fastjson.loads((self.root / "config" / f"{name}.json").read_bytes())
        except (OSError, ProtocolError):
            table = None
        return table["offsetTable"] if isinstance(table, dict) else {}


def indexes(records: Iterable[Record]) -> Counter[int]:
    """How often the body of each index is there."""
    return Counter(index_of(record.body) for record in records)


def once(*ranges: Iterable[int]) -> Counter[int]:
    return Counter(index for part in ranges for index in part)


# Records as a broker writes them, put in without one


def append_message(store: MessageStore, topic: str, queue_id: int, index: int, store_host: str) -> None:
    store.append(_message(topic, queue_id, index, store_host, {}))


def append_delayed(store: MessageStore, topic: str, index: int, level: int, store_host: str) -> None:
    """A message that waits for its time."""
    extra = {"DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": "0"}
    store.append(_message(SCHEDULE_TOPIC, level - 1, index, store_host, extra))


def append_half(store: MessageStore, topic: str, index: int, group: str, fate: str, store_host: str) -> None:
    """A message that waits for the decision of its producer, which `fate` tells the Java program."""
    extra = {"TRAN_MSG": "true", "PGROUP": group, "REAL_TOPIC": topic, "REAL_QID": "0", "fate": fate}
    store.append(_message(HALF_TOPIC, 0, index, store_host, extra))


def _message(topic: str, queue_id: int, index: int, store_host: str, extra: dict[str, str]) -> StoreMessage:
    host, _, port = store_host.rpartition(":")
    packed = pack_host(host, int(port))
    unique = f"{0x7F000001:08X}{index:024X}"
    own = {"UNIQ_KEY": unique, "KEYS": f"key-{index}", "TAGS": "red", "WAIT": "true", **extra}
    now_ms = SystemClock().now_ms()
    return StoreMessage(topic, queue_id, body(index), properties.encode(own), 0, 0, now_ms, packed, packed)


# Our client


def send_delayed(namesrv: str, topic: str, levels: dict[int, int]) -> None:
    """Index → delay level."""

    async def run() -> None:
        async with Producer(group="delayed-producer", namesrv=namesrv) as producer:
            for index, level in levels.items():
                message = Message(topic, body(index), keys=f"key-{index}", delay_level=level)
                result = await producer.send(message, timeout_ms=SEND_TIMEOUT_MS)
                assert result.status is SendStatus.SEND_OK, result

    asyncio.run(run())


def consume(namesrv: str, group: str, topic: str, count: int) -> Counter[int]:
    """The indexes a group is given until it has so many, from its stored offsets on, else from the first message."""

    async def run() -> Counter[int]:
        received: Counter[int] = Counter()
        enough = asyncio.Event()

        def handler(message: ReceivedMessage) -> None:
            received[index_of(message.body)] += 1
            if received.total() >= count:
                enough.set()

        consumer = PushConsumer(group=group, namesrv=namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe(topic, "*", handler)
        async with consumer:
            await asyncio.wait_for(enough.wait(), SETTLE_TIMEOUT_S)
        return received

    return asyncio.run(run())


def settled(ask_again: Callable[[], T], accept: Callable[[T], bool]) -> T:
    """The first acceptable answer before the deadline: brokers deliver, check and save behind everybody's back."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while not accept(answer := ask_again()):
        if time.monotonic() > deadline:
            raise ChildError(f"after {SETTLE_TIMEOUT_S} s still {answer}")
        time.sleep(ASK_INTERVAL_S)
    return answer

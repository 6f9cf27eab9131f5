"""Name server and brokers without sockets, which answer as Apache's do. They stand where `link.Peer` does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from pyspark.sql.streaming.datasource import ReadAllAvailable

from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import ConnectionFailed
from cosmodrome.spark.options import source_options
from cosmodrome.spark.schema import table_schema
from cosmodrome.spark.stream import RocketMQStreamReader
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import encode_record, pack_host

NAME_SERVER = "127.0.0.1:9876"
HOST = pack_host("127.0.0.1", 10911)
ALL = ReadAllAvailable()


@dataclass
class Node:
    """One broker process. Every queue it has reaches from `low` to before `high`; of `missing`, nothing comes.

    In `rotten`, a byte of a record is another one: at which place, by offset.
    """

    low: int = 0
    high: int = 100
    missing: frozenset[int] = frozenset()
    rotten: dict[int, int] = field(default_factory=dict)
    is_slave: bool = False
    topics: set[str] = field(default_factory=lambda: {"orders"})
    queues: int = 8  # for whoever pulls; name servers tell of one
    after_min_offset: Callable[[Node], None] = lambda _: None

    def answer(self, command: Command) -> Command:
        topic = command.fields.get("topic")
        if command.code == RequestCode.PULL_MESSAGE:
            return self._pulled(command) if topic in self.topics else command.reply(ResponseCode.TOPIC_NOT_EXIST)
        if command.code == RequestCode.GET_MAX_OFFSET:
            return command.reply(fields={"offset": str(self.high)})
        if command.code == RequestCode.GET_MIN_OFFSET:
            reply = command.reply(fields={"offset": str(self.low)})
            self.after_min_offset(self)
            return reply
        if command.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:  # every message is of the millisecond 1
            is_later = int(command.fields["timestamp"]) > 1
            return command.reply(fields={"offset": str(self.high if is_later else self.low)})
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            return command.reply(ResponseCode.SUCCESS if topic in self.topics else ResponseCode.TOPIC_NOT_EXIST)
        return command.reply()

    def _pulled(self, command: Command) -> Command:
        if int(command.fields["queueId"]) >= self.queues:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark="queueId is illegal")
        offset, count = int(command.fields["queueOffset"]), int(command.fields["maxMsgNums"])
        if not self.low <= offset < self.high:
            moved = ResponseCode.PULL_OFFSET_MOVED if offset != self.high else ResponseCode.PULL_NOT_FOUND
            return self._found_nothing(command, ResponseCode.PULL_RETRY_IMMEDIATELY if self.is_slave else moved, offset)
        end = min(offset + count, self.high)
        there = [number for number in range(offset, end) if number not in self.missing]
        if not there:
            return self._found_nothing(command, ResponseCode.PULL_RETRY_IMMEDIATELY, end, "MESSAGE_WAS_REMOVING")
        return command.reply(fields=self._fields(end), body=b"".join(map(self._record, there)), remark="FOUND")

    def _record(self, offset: int) -> bytes:
        record = bytearray(_record(offset))
        if offset in self.rotten:
            record[self.rotten[offset]] ^= 1
        return bytes(record)

    def _found_nothing(self, command: Command, code: int, end: int, remark: str = "OFFSET_OVERFLOW_ONE") -> Command:
        return command.reply(code, fields=self._fields(end), remark=remark)

    def _fields(self, next_offset: int) -> dict[str, str]:
        edges = {"minOffset": str(self.low), "maxOffset": str(self.high)}
        return {"suggestWhichBrokerId": "0", "nextBeginOffset": str(next_offset), **edges}


def _record(offset: int) -> bytes:
    return encode_record(b"orders", b"%d" % offset, b"", 0, 0, 0, 1, HOST, 1, HOST, queue_offset=offset)


class MadeUpCluster:
    """`brokers` is what the name server knows: addresses by broker and id."""

    def __init__(self) -> None:
        self.brokers: dict[str, dict[int, str]] = {"broker-a": {0: "a:0"}}
        self.nodes = {"a:0": Node()}
        self.down: set[str] = set()
        self.asked: list[tuple[str, int]] = []

    def count(self, code: RequestCode, address: str | None = None) -> int:
        return sum(1 for where, asked in self.asked if asked == code and address in (None, where))

    def peer(self, address: str, *_: Any) -> _Peer:
        return _Peer(self, address)

    def answer(self, address: str, command: Command) -> Command:
        if address in self.down:
            raise ConnectionFailed(address, "refused")
        self.asked.append((address, command.code))
        return self._told(command) if address == NAME_SERVER else self.nodes[address].answer(command)

    def _told(self, command: Command) -> Command:
        """By the name server."""
        if command.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            topics = sorted({topic for name in self.brokers for topic in self._topics(name)})
            return command.reply(body=orjson.dumps({"topicList": topics}))
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            known = {name: self._broker(name) for name in self.brokers}
            clusters = {"cluster-a": list(self.brokers)}
            return command.reply(body=orjson.dumps({"brokerAddrTable": known, "clusterAddrTable": clusters}))
        names = [name for name in self.brokers if command.fields["topic"] in self._topics(name)]
        if not names:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST)
        queues = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}
        route = {
            "queueDatas": [{"brokerName": name, **queues} for name in names],
            "brokerDatas": [self._broker(name) for name in names],
        }
        return command.reply(body=orjson.dumps(route))

    def _topics(self, name: str) -> set[str]:
        return set[str]().union(*(self.nodes[address].topics for address in self.brokers[name].values()))

    def _broker(self, name: str) -> dict[str, Any]:
        addresses = {str(number): address for number, address in self.brokers[name].items()}
        return {"cluster": "cluster-a", "brokerName": name, "brokerAddrs": addresses}


class _Peer:
    def __init__(self, cluster: MadeUpCluster, address: str) -> None:
        self._cluster = cluster
        self._address = address
        self._opaques = itertools.count(1)
        self._replies: dict[int, Command] = {}
        if address in cluster.down:
            raise ConnectionFailed(address, "refused")

    def send(self, command: Command) -> int:
        command.opaque = next(self._opaques)
        self._replies[command.opaque] = self._cluster.answer(self._address, command)
        return command.opaque

    def fetch(self, opaque: int, _timeout_seconds: float = 0) -> Command:
        return self._replies.pop(opaque)

    def close(self) -> None:
        pass


def stream_reader(**options: str) -> RocketMQStreamReader:
    """With a pool of its own for each set of options, and nothing kept in it."""
    given = {"nameServer": NAME_SERVER, "offsetPollIntervalMs": "0", "fetchOffset.retryIntervalMs": "1", **options}
    if not given.keys() & {"subscribePattern", "assign"}:
        given.setdefault("subscribe", "orders")
    made = source_options(given, streaming=True)
    return RocketMQStreamReader(made, table_schema(made.properties, metadata=False))


def at(*offsets: int, topic: str = "orders", broker: str = "broker-a") -> dict[str, Any]:
    return {topic: {broker: {str(queue_id): offset for queue_id, offset in enumerate(offsets)}}}


def read(reader: RocketMQStreamReader, begin: int, end: int) -> list[int]:
    tasks = reader.partitions(at(begin), at(end))
    return [int(body) for task in tasks for batch in reader.read(task) for body in batch.column("body").to_pylist()]

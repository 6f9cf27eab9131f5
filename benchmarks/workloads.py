"""The workloads: the requests of each path through a broker, and the check of its replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from benchmarks.load import LoadError, Tape
from cosmodrome.codes import RequestCode
from cosmodrome.wire import properties
from cosmodrome.wire.batch import encode_batch
from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import BINARY, JSON
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import PullFlag, PullMessage, SendMessage, SendReply

QUEUES = 8
SEND_BODY = b"x" * 128
PULL_BODY = b"x" * 1024
BATCH = 32
FIRST_PULLED_OFFSET = 1_024
FILLED_PER_QUEUE = 10_016  # so that every offset pulled from has four digits: a tape's requests are of one size
SEND_TAPE = 256
BATCH_TAPE = 8

# Makes one request: (topic, connection, how many that connection made before)
MakeRequest = Callable[[str, int, int], Command]


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table. `messages` are stored by each request; 0 means it only reads."""

    slug: str
    title: str
    connections: int
    in_flight: int
    messages: int
    make: MakeRequest
    verify: Callable[[Command], None]
    tape_length: int = SEND_TAPE
    min_reply_bytes: int = 0
    budget_us: float | None = None
    rate: int = 0  # requests per second, sent at fixed moments; 0 sends the next when the last is answered

    @property
    def topic(self) -> str:
        return f"bench-{self.slug}"

    @property
    def unit(self) -> str:
        return "message" if self.messages else "pull"

    @property
    def units(self) -> int:
        """Per request; rates and CPU time are told per unit."""
        return self.messages or 1

    def tapes(self, connections: int, topic: str | None = None) -> list[Tape]:
        """One per connection, for this workload's own topic or another."""
        target = topic or self.topic
        return [
            Tape([self.make(target, connection, index) for index in range(self.tape_length)])
            for connection in range(connections)
        ]


def unique_key(connection: int, index: int) -> str:
    """Of the length and look of a client's own."""
    return f"7F0000012A1318B4AAC2{connection:04X}{index:08X}"


def _send_header(topic: str, connection: int, raw_properties: str, *, batch: bool = False) -> SendMessage:
    return SendMessage(
        producer_group="bench-producer",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=connection % QUEUES,
        sys_flag=0,
        born_timestamp=time.time_ns() // 1_000_000,
        flag=0,
        properties=raw_properties,
        reconsume_times=0,
        max_reconsume_times=None,
        batch=batch,
    )


def _message_properties(connection: int, index: int, *, has_keys: bool = False) -> str:
    more = {"KEYS": f"order-{connection:04d}-{index:08d}"} if has_keys else {}
    return properties.encode({**more, "UNIQ_KEY": unique_key(connection, index), "WAIT": "true", "TAGS": "TagA"})


def make_send(serializer: int, body: bytes = SEND_BODY, *, has_keys: bool = False) -> MakeRequest:
    def make(topic: str, connection: int, index: int) -> Command:
        header = _send_header(topic, connection, _message_properties(connection, index, has_keys=has_keys))
        fields = header.lettered_fields()
        return Command.request(RequestCode.SEND_MESSAGE_V2, None, body, fields=fields, serializer=serializer)

    return make


def make_batch(body: bytes, more: Mapping[str, str] | None = None) -> MakeRequest:
    """Batches of equal bodies; `more` are properties that all of them have."""
    encoded = properties.encode(more or {})

    def make(topic: str, connection: int, index: int) -> Command:
        first = index * BATCH
        items = [(0, body, _message_properties(connection, first + item) + encoded) for item in range(BATCH)]
        fields = _send_header(topic, connection, properties.encode({"WAIT": "true"}), batch=True).lettered_fields()
        return Command.request(RequestCode.SEND_BATCH_MESSAGE, None, encode_batch(items), fields=fields)

    return make


def make_pull(topic: str, connection: int, index: int) -> Command:
    header = PullMessage(
        consumer_group="bench-consumer",
        topic=topic,
        queue_id=connection % QUEUES,
        queue_offset=FIRST_PULLED_OFFSET + index * BATCH,
        max_msg_nums=BATCH,
        sys_flag=PullFlag.SUSPEND | PullFlag.SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=15_000,
        subscription="*",
        sub_version=1,
        expression_type="TAG",
    )
    return Command.request(RequestCode.PULL_MESSAGE, header)


def verify_send(reply: Command) -> None:
    _verify_ids(reply, 1)


def verify_batch(reply: Command) -> None:
    _verify_ids(reply, BATCH)


def _verify_ids(reply: Command, count: int) -> None:
    answer = SendReply.decode(reply)
    ids = answer.msg_id.split(",")
    if len(ids) != count or len(set(ids)) != count or answer.queue_offset < 0 or not 0 <= answer.queue_id < QUEUES:
        raise LoadError(f"not {count} messages stored: {reply}")


def verify_pull(reply: Command) -> None:
    records = decode_records(reply.body)
    offsets = [record.queue_offset for record in records]
    first = offsets[0] if offsets else 0
    if offsets != list(range(first, first + BATCH)) or any(record.body != PULL_BODY for record in records):
        raise LoadError(f"not the {BATCH} messages asked for, but those at {offsets}")


SEND = Workload("send", "send 128 B, 64 × 1", 64, 1, 1, make_send(JSON), verify_send, budget_us=18)
BATCHES = Workload(
    "batch",
    "send batches of 32 × 128 B, 64 × 1",
    64,
    1,
    BATCH,
    make_batch(SEND_BODY),
    verify_batch,
    tape_length=BATCH_TAPE,
    budget_us=2,
)
WORKLOADS = (
    SEND,
    Workload(
        "send-binary", "send 128 B, 64 × 1, binary header", 64, 1, 1, make_send(BINARY), verify_send, budget_us=18
    ),
    Workload("pipelined", "send 128 B, 16 × 32 pipelined", 16, 32, 1, make_send(JSON), verify_send, budget_us=8),
    BATCHES,
    Workload(
        "pull",
        "pull 32 × 1 KB, 16 × 1",
        16,
        1,
        0,
        make_pull,
        verify_pull,
        tape_length=(FILLED_PER_QUEUE - FIRST_PULLED_OFFSET) // BATCH,
        min_reply_bytes=BATCH * len(PULL_BODY),
        budget_us=25,
    ),
)
FILL = replace(BATCHES, slug="fill", title="fill", connections=QUEUES, make=make_batch(PULL_BODY))  # the pulls' topic


def send_of(
    body_bytes: int, connections: int, in_flight: int = 1, *, serializer: int = JSON, has_keys: bool = False
) -> Workload:
    """Return sends of this size and concurrency, named by what they are."""
    size = f"{body_bytes // 1024}kb" if body_bytes >= 1024 else f"{body_bytes}b"
    more = [word for word, is_so in (("binary", serializer == BINARY), ("keys", has_keys)) if is_so]
    shown = f"{body_bytes // 1024} KB" if body_bytes >= 1024 else f"{body_bytes} B"
    way = f"{connections} × {in_flight}" + (" pipelined" if in_flight > 1 else "")
    make = make_send(serializer, b"x" * body_bytes, has_keys=has_keys)
    return Workload(
        "-".join(["send", size, f"{connections}x{in_flight}", *more]),
        ", ".join([f"send {shown}", way, *more]),
        connections,
        in_flight,
        1,
        make,
        verify_send,
        budget_us=8 if in_flight > 1 else 18,
    )

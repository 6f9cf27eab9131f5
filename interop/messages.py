"""What every case sends, and the one comparison that decides whether it arrived whole.

Four programs tell of messages in four shapes (Java and ours, sending and receiving). Each shape is brought to `Sent` or
`Seen`, so that a case reads the same whoever is on either side.
"""

import base64
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_INDEX = re.compile(rb"body-(\d+)-")
# What each receiving client adds for itself, and what producers and brokers put beside the sender's own.
_ADDED_ON_ARRIVAL = frozenset({"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"})
SYSTEM_PROPERTIES = _ADDED_ON_ARRIVAL | {"KEYS", "TAGS", "WAIT", "UNIQ_KEY", "MSG_REGION", "TRACE_ON", "CLUSTER"}


def body(index: int, size_bytes: int = 0) -> bytes:
    """ "body-{index}-" once, or repeated and cut to size_bytes; interop.Messages in Java makes the same bytes."""
    pattern = b"body-%d-" % index
    return (pattern * (size_bytes // len(pattern) + 1))[:size_bytes] if size_bytes else pattern


def index_of(content: bytes) -> int:
    """The index a body was made from; AssertionError when it is not exactly such a body of its size."""
    match = _INDEX.match(content)
    assert match is not None, f"not one of our bodies: {content[:40]!r}"
    index = int(match[1])
    assert content in (body(index), body(index, len(content))), f"body {index} was changed on the way"
    return index


@dataclass(frozen=True, slots=True)
class Load:
    """Messages to send, each made from its index. The defaults put something awkward into every field."""

    topic: str
    count: int
    body_size: int = 0
    tags: tuple[str, ...] = ("red", "blue")
    keys: str = "key-%d shared"
    properties: Mapping[str, str] = field(default_factory=lambda: {"colour": "grün %d ✓", "a b": " x=y "})
    flag: int = 7
    first: int = 0

    @property
    def indexes(self) -> range:
        return range(self.first, self.first + self.count)

    def java_arguments(self) -> dict[str, object]:
        given: dict[str, object] = {"topic": self.topic, "count": self.count, "bodySize": self.body_size}
        given |= {"tags": ",".join(self.tags), "keys": self.keys, "flag": self.flag, "first": self.first}
        return given | {f"prop.{name}": value for name, value in self.properties.items()}

    def body(self, index: int) -> bytes:
        return body(index, self.body_size)

    def tag(self, index: int) -> str:
        return self.tags[index % len(self.tags)]

    def key(self, index: int) -> str:
        return self.keys.replace("%d", str(index))

    def user_properties(self, index: int) -> dict[str, str]:
        return {name: value.replace("%d", str(index)) for name, value in self.properties.items()}


@dataclass(frozen=True, slots=True)
class Sent:
    """What a producer was told about one message."""

    index: int
    msg_id: str
    offset_msg_id: str
    broker_name: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What a consumer or a query was given."""

    topic: str
    body: bytes
    tags: str
    keys: str
    properties: Mapping[str, str]
    flag: int
    msg_id: str
    offset_msg_id: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    store_host: str
    born_timestamp: int
    store_timestamp: int
    reconsume_times: int

    @property
    def index(self) -> int:
        return index_of(self.body)

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.queue_id, self.queue_offset


def sent_by_java(lines: Iterable[Mapping[str, Any]]) -> list[Sent]:
    """From Produce's lines; every status must be SEND_OK. Oneway lines carry no result and are left out."""
    sent = []
    for line in lines:
        assert line.get("status", "SEND_OK") == "SEND_OK", line
        if "msgId" in line:
            place = (line["brokerName"], line["queueId"], line["queueOffset"])
            sent.append(Sent(line["index"], line["msgId"], line["offsetMsgId"], *place))
    return sent


def seen_by_java(line: Mapping[str, Any]) -> Seen:
    """From a line of Consume or LitePull, or one result of Query."""
    return Seen(
        topic=line["topic"],
        body=base64.b64decode(line["body"]),
        tags=line["tags"] or "",
        keys=line["keys"] or "",
        properties=line["properties"],
        flag=line["flag"],
        msg_id=line["msgId"],
        offset_msg_id=line["offsetMsgId"],
        queue_id=line["queueId"],
        queue_offset=line["queueOffset"],
        commit_log_offset=line["commitLogOffset"],
        store_host=line["storeHost"],
        born_timestamp=line["bornTimestamp"],
        store_timestamp=line["storeTimestamp"],
        reconsume_times=line["reconsumeTimes"],
    )


def check_arrived(load: Load, seen: Sequence[Seen], sent: Sequence[Sent], broker_address: str) -> None:
    """Every message of the load arrived exactly once, whole, where its producer was told it would be.

    Sent is empty after oneway sends; places are then only checked for having no holes and no doubles.
    """
    times = Counter(message.index for message in seen)
    assert times == dict.fromkeys(load.indexes, 1), "lost or doubled messages"
    _check_places(seen)
    told = {one.index: one for one in sent}
    assert not sent or told.keys() == set(load.indexes), "sends without a result"
    for message in seen:
        check_message(load, message, told.get(message.index), broker_address)


def check_message(load: Load, message: Seen, sent: Sent | None, broker_address: str) -> None:
    """One message carries what the load says for its index, under the ids and at the place its producer was told."""
    index = message.index
    assert message.topic == load.topic
    assert message.body == load.body(index)
    assert (message.tags, message.keys) == (load.tag(index), load.key(index))
    own = {name: value for name, value in message.properties.items() if name not in SYSTEM_PROPERTIES}
    assert own == load.user_properties(index)
    assert message.properties["UNIQ_KEY"] == message.msg_id
    assert (message.flag, message.reconsume_times) == (load.flag, 0)
    assert message.store_host == broker_address
    assert message.offset_msg_id == offset_msg_id(broker_address, message.commit_log_offset)
    assert min(message.born_timestamp, message.store_timestamp) > 0
    if sent is not None:
        assert (message.msg_id, message.offset_msg_id) == (sent.msg_id, sent.offset_msg_id)
        assert (message.queue_id, message.queue_offset) == (sent.queue_id, sent.queue_offset)


def check_same(one: Sequence[Seen], other: Sequence[Seen]) -> None:
    """Two receivers were given the same messages, byte for byte, apart from what each client adds for itself."""

    def by_place(seen: Sequence[Seen]) -> dict[tuple[str, int, int], Seen]:
        return {message.place: message for message in seen}

    def stored(message: Seen) -> dict[str, str]:
        return {name: value for name, value in message.properties.items() if name not in _ADDED_ON_ARRIVAL}

    ours, theirs = by_place(one), by_place(other)
    assert ours.keys() == theirs.keys()
    for place, message in ours.items():
        twin = theirs[place]
        assert (message.body, message.flag, stored(message)) == (twin.body, twin.flag, stored(twin))
        assert (message.msg_id, message.offset_msg_id) == (twin.msg_id, twin.offset_msg_id)
        assert (message.born_timestamp, message.store_timestamp) == (twin.born_timestamp, twin.store_timestamp)


def offset_msg_id(address: str, commit_log_offset: int) -> str:
    """The id that names a message by its place: broker address and commit log offset, in hex."""
    host, _, port = address.rpartition(":")
    ip = bytes(int(part) for part in host.split("."))
    return f"{ip.hex()}{int(port):08x}{commit_log_offset:016x}".upper()


def _check_places(seen: Sequence[Seen]) -> None:
    """A fresh topic's queues are filled from offset 0 without holes, and no message id is used twice."""
    offsets: dict[int, list[int]] = {}
    for message in seen:
        offsets.setdefault(message.queue_id, []).append(message.queue_offset)
    for queue_id, found in offsets.items():
        assert sorted(found) == list(range(len(found))), f"queue {queue_id} has holes or doubles"
    assert len({message.msg_id for message in seen}) == len(seen), "a message id was used twice"

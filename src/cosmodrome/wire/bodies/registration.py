"""REGISTER_BROKER's body: a broker's topics, as JSON or in a compressed form of its own.

zlib( | size 4 | data version | topics 4 | { size 4 | topic line } … | size 4 | filter servers |
      | mappings 4 | { size 4 | mapping } … | )                  sizes precede text; mappings from 5.x brokers only
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from cosmodrome.codes import Version
from cosmodrome.errors import ProtocolError
from cosmodrome.model import DataVersion, TopicConfig
from cosmodrome.wire import fastjson
from cosmodrome.wire.bodies.configs import (
    data_version_from,
    data_version_to_json,
    topic_config_to_json,
    topic_table,
)
from cosmodrome.wire.bodies.fields import Fields, as_int
from cosmodrome.wire.compression import COMPRESSED_FLAG, compress, decompress

# As much as an uncompressed registration can have: the frame limit.
MAX_DECOMPRESSED_BYTES = 16 * 1024 * 1024
MAX_TOPICS = 100_000  # of one broker

_LEVEL = 9
_I32 = struct.Struct(">i")
_MIN_TOPIC_WORDS = 5


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody:
    """The topics a broker serves, and which state of its table they are."""

    data_version: DataVersion
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    filter_servers: tuple[str, ...] = ()

    def encode(self, compressed: bool = False) -> bytes:
        return self._encode_compressed() if compressed else fastjson.dumps(self._to_json())

    @classmethod
    def decode(cls, data: bytes | memoryview, *, version: int) -> Self:
        """Either form. Looked at, not told: 5.x brokers compress and say that they did not."""
        raw = bytes(data)
        if raw[:1] == b"\x78":
            return cls._decode_compressed(decompress(raw, COMPRESSED_FLAG, limit_bytes=MAX_DECOMPRESSED_BYTES), version)
        fields = Fields.parse(raw)
        wrapper = fields.object("topicConfigSerializeWrapper")
        return cls(
            data_version_from(wrapper.object("dataVersion")), topic_table(wrapper), fields.texts("filterServerList")
        )

    def _to_json(self) -> dict[str, Any]:
        unmapped = DataVersion(timestamp=self.data_version.timestamp)
        return {
            "filterServerList": list(self.filter_servers),
            "topicConfigSerializeWrapper": {
                "dataVersion": data_version_to_json(self.data_version),
                "mappingDataVersion": data_version_to_json(unmapped),
                "topicConfigTable": {name: topic_config_to_json(topic) for name, topic in self.topics.items()},
                "topicQueueMappingDetailMap": {},
                "topicQueueMappingInfoMap": {},
            },
        }

    def _encode_compressed(self) -> bytes:
        parts = [_sized(fastjson.dumps(data_version_to_json(self.data_version))), _I32.pack(len(self.topics))]
        parts += [_sized(topic_line(topic).encode()) for topic in self.topics.values()]
        parts += [_sized(fastjson.dumps(list(self.filter_servers))), _I32.pack(0)]
        return compress(b"".join(parts), _LEVEL)[0]

    @classmethod
    def _decode_compressed(cls, raw: bytes, version: int) -> Self:
        parts = _Parts(raw)
        data_version = data_version_from(Fields.parse(parts.take()))
        count = parts.take_count()
        if count > MAX_TOPICS:
            raise ProtocolError(f"a registration of {count} topics; at most {MAX_TOPICS} are taken of one broker")
        topics = [parse_topic_line(str(parts.take(), "utf-8", "replace")) for _ in range(count)]
        servers = Fields({"filterServerList": fastjson.loads(parts.take())}).texts("filterServerList")
        if version >= Version.V5_0_0:
            for _ in range(min(parts.take_count(), MAX_TOPICS)):
                parts.take()  # static topics' mappings, which nobody here uses
        return cls(data_version, {topic.name: topic for topic in topics}, servers)


def topic_line(topic: TopicConfig) -> str:
    attributes = fastjson.dumps(dict(topic.attributes)).decode()
    return f"{topic.name} {topic.read_queues} {topic.write_queues} {topic.perm} {topic.filter_type} {attributes}"


def parse_topic_line(line: str) -> TopicConfig:
    """The topic of a line of at least five words; its sys flag and order are not in it."""
    words = line.split(" ", _MIN_TOPIC_WORDS)
    if len(words) < _MIN_TOPIC_WORDS:
        raise ProtocolError(f"a topic line of {len(words)} words")
    name, read_queues, write_queues, perm, filter_type = words[:_MIN_TOPIC_WORDS]
    attributes = Fields({"attributes": fastjson.loads(words[5].encode()) if len(words) > _MIN_TOPIC_WORDS else None})
    return TopicConfig(
        name=name,
        read_queues=as_int(read_queues, 0, 32, "readQueueNums"),
        write_queues=as_int(write_queues, 0, 32, "writeQueueNums"),
        perm=as_int(perm, 0, 32, "perm"),
        filter_type=filter_type,
        attributes=attributes.text_map("attributes"),
    )


def _sized(part: bytes) -> bytes:
    return _I32.pack(len(part)) + part


class _Parts:
    """Sized parts, taken from the front."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._position = 0

    def take_count(self) -> int:
        """A number, never larger than the parts that can still follow."""
        end = self._position + _I32.size
        if end > len(self._raw):
            raise ProtocolError("the registration is cut off")
        (count,) = _I32.unpack_from(self._raw, self._position)
        if not 0 <= count <= len(self._raw) - end:
            raise ProtocolError(f"the registration announces {count}; {len(self._raw) - end} bytes are left")
        self._position = end
        return int(count)

    def take(self) -> bytes:
        size = self.take_count()
        start, self._position = self._position, self._position + size
        return self._raw[start : self._position]

"""What may be sent, and how it looks on the wire."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.client import outgoing
from cosmodrome.errors import InvalidMessage, InvalidParameter
from cosmodrome.model import NOT_SENDABLE_TOPICS, Message
from cosmodrome.wire import properties as properties_string
from cosmodrome.wire.batch import decode_batch
from cosmodrome.wire.compression import Compression, decompress

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20)
NAMES = TEXT.filter(lambda name: name not in outgoing.RESERVED_PROPERTIES)


@given(TEXT, st.lists(TEXT.filter(lambda key: " " not in key), min_size=1, max_size=3), st.dictionaries(NAMES, TEXT))
def test_readers_get_back_what_was_set(tags: str, keys: list[str], properties: dict[str, str]) -> None:
    message = Message("T", b"x", tags=tags, keys=keys, properties=properties, delay_level=30, sharding_key=tags)
    found = properties_string.decode(outgoing.encode_properties(message, "ID"))
    system = {"UNIQ_KEY": "ID", "WAIT": "true", "TAGS": tags, "KEYS": " ".join(keys), "DELAY": "30"}
    system["__SHARDINGKEY"] = tags
    assert found == {**properties, **system}


def test_only_what_is_set_is_sent() -> None:
    message = Message("T", b"x", wait_store_ok=False)
    assert outgoing.encode_properties(message, "ID") == "UNIQ_KEY\x01ID\x02WAIT\x01false\x02"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tags": "a\x01b"}, r"\\x01"),
        ({"tags": "a\x02TAGS\x01b"}, r"\\x01"),
        ({"keys": "a\x02"}, r"\\x01"),
        ({"keys": ["a b"]}, "blank"),
        ({"keys": [""]}, "empty"),
        ({"properties": {"a": "\x02"}}, r"\\x01"),
        ({"properties": {"a\x01": "b"}}, r"\\x01"),
        ({"properties": {"": "b"}}, "empty part"),
        ({"properties": {"a": ""}}, "empty part"),
        ({"properties": {"a": 1}}, "must be text"),
        ({"properties": {"UNIQ_KEY": "mine"}}, "RocketMQ's own"),
        ({"properties": {"a": "x" * 33_000}}, "at most 32767"),
        ({"properties": {"a": "\ud800"}}, "valid text"),
        ({"sharding_key": "a\x01"}, r"\\x01"),
        ({"delay_level": -1}, "begin with 1"),
        ({"delay_level": "3"}, "begin with 1"),
        ({"delay_level": True}, "begin with 1"),
        ({"tags": ["a", "b"]}, "tags is .* must be text"),
        ({"tags": 5}, "tags is 5"),
        ({"sharding_key": 5}, "sharding_key is 5"),
        ({"keys": 5}, "keys is 5; it must be text, or a list"),
        ({"keys": [1, 2]}, "list of texts"),
        ({"keys": (key for key in "ab")}, "list of texts"),
        ({"properties": None}, "must be a dict"),
        ({"properties": [("a", "b")]}, "must be a dict"),
        ({"flag": None}, "flag is None"),
        ({"flag": 2**31}, "32 bits"),
        ({"delay": 5}, "must be a timedelta"),
        ({"deliver_at": 5}, "must be a datetime"),
    ],
)
def test_what_readers_would_misread_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        outgoing.encode_properties(Message("T", b"x", **changes), "ID")


@pytest.mark.parametrize(
    ("body", "reason"),
    [(b"", "empty"), ("text", "must be bytes"), (bytes(outgoing.MAX_BODY_BYTES + 1), "at most 4194304")],
    ids=["empty", "text", "too large"],
)
def test_a_body_no_broker_takes_is_refused(body: Any, reason: str) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        outgoing.check_body(body)


@pytest.mark.parametrize("group", ["", "with blank", "DEFAULT_PRODUCER", "x" * 256, None, 5])
def test_a_group_no_producer_may_have_is_refused(group: Any) -> None:
    with pytest.raises(InvalidParameter, match="group"):
        outgoing.check_producer_group(group)


@pytest.mark.parametrize("topic", sorted(NOT_SENDABLE_TOPICS))
def test_a_topic_of_the_brokers_own_is_refused(topic: str) -> None:
    with pytest.raises(InvalidMessage, match="written by brokers only"):
        outgoing.check_sendable_topic(topic)


@pytest.mark.parametrize("topic", ["", "with blank", "x" * 128, "slash/ed"])
def test_an_illegal_topic_is_refused(topic: str) -> None:
    with pytest.raises(InvalidMessage, match="topic"):
        outgoing.check_sendable_topic(topic)


def test_a_body_is_compressed_from_four_kibibytes_on_if_that_helps() -> None:
    assert outgoing.packed_body(b"x" * 4_095) == (b"x" * 4_095, 0)
    packed, sys_flag = outgoing.packed_body(b"x" * 4_096)
    assert len(packed) < 100
    assert decompress(packed, sys_flag, limit_bytes=4_096) == b"x" * 4_096
    noise = Random(1).randbytes(5_000)
    assert outgoing.packed_body(noise) == (noise, 0)


@pytest.mark.parametrize("kind", list(Compression))
def test_how_and_from_where_on_bodies_are_compressed_can_be_chosen(kind: Compression) -> None:
    assert outgoing.packed_body(b"x" * 99, 100, 1, kind) == (b"x" * 99, 0)
    packed, sys_flag = outgoing.packed_body(b"x" * 100, 100, 1, kind)
    assert sys_flag & 0x700 == kind
    assert decompress(packed, sys_flag, limit_bytes=100) == b"x" * 100


def test_a_batch_keeps_each_message_and_its_properties() -> None:
    messages = [Message("T", b"a", tags="x", flag=3), Message("T", b"b" * 5_000)]
    outgoing.check_batch(messages)
    first, second = decode_batch(outgoing.encode_batch_body(messages, ["I1", "I2"]))
    assert (first.flag, first.body) == (3, b"a")
    assert properties_string.decode(first.properties) == {"UNIQ_KEY": "I1", "WAIT": "true", "TAGS": "x"}
    assert second.body == b"b" * 5_000
    assert outgoing.batch_properties(True) == "WAIT\x01true\x02"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "empty"),
        ([Message("T", b"a"), Message("U", b"a")], "one topic"),
        ([Message("T", b"a"), Message("T", b"a", wait_store_ok=False)], "wait_store_ok"),
        ([Message("T", b"a", delay_level=1)], "delayed"),
        ([Message("T", b"a", sharding_key="1"), Message("T", b"a")], "sharding_key"),
        ([Message("%RETRY%g", b"a")], "one by one"),
        ([Message("T", b"")], "body is empty"),
        (Message("T", b"a"), "send_batches"),
        ((message for message in [Message("T", b"a")]), "send_batches"),
        ([b"a"], "is a Message"),
    ],
)
def test_messages_that_cannot_go_together_are_refused(messages: Any, reason: str) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        outgoing.check_batch(messages)


def test_a_batch_has_the_size_limit_of_a_message() -> None:
    half = Message("T", bytes(outgoing.MAX_BODY_BYTES // 2))
    with pytest.raises(InvalidMessage, match="split_batches"):
        outgoing.encode_batch_body([half, half], ["1", "2"])

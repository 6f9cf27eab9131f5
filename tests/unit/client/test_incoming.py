"""From pulled bytes to messages."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.client.incoming import Isolation, Pulled, received_messages, unpack_body
from cosmodrome.client.pulling import PullAnswer
from cosmodrome.codes import ResponseCode
from cosmodrome.errors import ProtocolError
from cosmodrome.filter.tags import subscription
from cosmodrome.model import ReceivedMessage
from cosmodrome.wire.command import Command
from cosmodrome.wire.compression import Compression, compress
from cosmodrome.wire.record import Record, encode_record, pack_host
from cosmodrome.wire.requests import PullMessage, PullReply
from tests.unit.client.messages import QUEUE, record

REPLY = PullReply(suggest_which_broker_id=0, next_begin_offset=9, min_offset=3, max_offset=12)


def answered(body: bytes, topic: str = "T", *, begin: int = 0, count: int = 32) -> PullAnswer:
    request = PullMessage("g", topic, QUEUE.queue_id, begin, count, 0, 0, 0)
    return PullAnswer(request, Command(ResponseCode.SUCCESS, {}, body), REPLY)


def pull(body: bytes, expression: str = "*", topic: str = "T", *, begin: int = 0, count: int = 32) -> Pulled:
    queue = dataclasses.replace(QUEUE, topic=topic)
    return received_messages(queue, subscription(topic, expression, 1), answered(body, topic, begin=begin, count=count))


def pulled(*records: Record, expression: str = "*") -> list[ReceivedMessage]:
    found = pull(b"".join(one.encode() for one in records), expression, records[0].topic)
    assert found.damage is None
    return found.messages


def test_a_message_arrives_with_all_it_was_stored_with() -> None:
    stored = record(b"hi", properties="TAGS\x01paid\x02KEYS\x01a b\x02UNIQ_KEY\x01U\x02", offset=7, flag=5)
    (message,) = pulled(stored)
    assert (message.topic, message.body, message.flag) == ("T", b"hi", 5)
    assert (message.tags, message.keys, message.msg_id) == ("paid", "a b", "U")
    assert (message.queue, message.queue_offset, message.commit_log_offset) == (QUEUE, 7, 7_000)
    assert (message.born_host, message.store_host) == ("10.0.0.1:5000", "10.0.0.2:10911")
    assert message.offset_msg_id == "0A00000200002A9F0000000000001B58"
    assert message.store_size == len(
        record(b"hi", properties="TAGS\x01paid\x02KEYS\x01a b\x02UNIQ_KEY\x01U\x02").encode()
    )


def test_the_bounds_of_its_queue_come_along_as_properties() -> None:
    (message,) = pulled(record())
    assert (message.properties["MIN_OFFSET"], message.properties["MAX_OFFSET"]) == ("3", "12")


def test_tags_the_broker_could_not_tell_apart_are_sorted_out_here() -> None:
    twins = [record(b"a", properties="TAGS\x01AaAaAa\x02"), record(b"b", properties="TAGS\x01BBBBBB\x02", offset=8)]
    assert [message.body for message in pulled(*twins, expression="AaAaAa")] == [b"a"]


def test_a_retried_message_has_its_first_topic_back() -> None:
    (message,) = pulled(record(topic="%RETRY%g", properties="RETRY_TOPIC\x01orders\x02", reconsume_times=2))
    assert (message.topic, message.reconsume_times) == ("orders", 2)


def test_a_retry_topic_is_left_alone_when_it_does_not_say_where_it_came_from() -> None:
    assert pulled(record(topic="%RETRY%g"))[0].topic == "%RETRY%g"


@pytest.mark.parametrize("kind", Compression)
def test_a_compressed_body_is_unpacked_once(kind: Compression) -> None:
    packed, sys_flag = compress(b"x" * 5_000, kind=kind)
    (message,) = pulled(record(packed, sys_flag=sys_flag))
    unpack_body(message)
    unpack_body(message)
    assert message.body == b"x" * 5_000
    assert not message.sys_flag & 1


def test_a_body_that_cannot_be_unpacked_is_an_error() -> None:
    (message,) = pulled(record(b"not zlib", sys_flag=1))
    with pytest.raises(ProtocolError):
        unpack_body(message)


def test_what_is_sound_before_a_damaged_record_is_taken() -> None:
    first, second, third = (record(b"body", offset=offset).encode() for offset in (3, 4, 5))
    rotten = second.replace(b"body", b"bodx")
    found = pull(first + rotten + third, begin=3)
    assert [message.queue_offset for message in found.messages] == [3]
    assert found.end == 4
    assert found.damage is not None
    assert (found.damage.topic, found.damage.queue_offset) == ("T", 4)
    assert found.damage.msg_id == "0A00000200002A9F0000000000000FA0"
    assert "does not match its checksum" in str(found.damage)


@pytest.mark.parametrize("other", [{"topic": "U"}, {"queue_id": 3}, {"offset": 2}, {"offset": 9}])
def test_a_record_that_was_not_asked_for_is_damage(other: dict[str, Any]) -> None:
    made: dict[str, Any] = {"offset": 4, **other}
    queue_id = made.pop("queue_id", QUEUE.queue_id)
    found = pull(dataclasses.replace(record(b"body", **made), queue_id=queue_id).encode(), begin=3, count=1)
    assert not found.messages
    assert found.damage is not None
    assert found.damage.queue_offset == 8, "the last that the broker looked at"


def test_a_rotten_offset_that_seems_possible_hides_no_other_message() -> None:
    """The record of offset 4 says 5: both are asked for alone."""
    stored = [record(b"body", offset=offset).encode() for offset in (3, 5, 5, 6)]
    found = pull(b"".join(stored), begin=3)
    assert [message.queue_offset for message in found.messages] == [3]
    assert (found.end, found.damage is not None) == (4, True)


def test_after_damage_messages_are_asked_for_one_by_one() -> None:
    isolation = Isolation()
    sound, rotten = record(b"body", offset=3).encode(), record(b"body", offset=4).encode()[:-1]
    together = answered(sound + rotten, begin=3)
    assert isolation.count(32, 3) == 32
    assert isolation.settle(together, pull(sound + rotten, begin=3)) == (4, None)
    assert isolation.count(32, 4) == 1
    alone = answered(rotten, begin=4, count=1)
    offset, damaged = isolation.settle(alone, pull(rotten, begin=4, count=1))
    assert (offset, damaged is not None) == (9, True)
    assert isolation.count(32, offset) == 32


@given(st.integers(0, 10_000), st.integers(0, 7), st.integers(1, 4))
def test_of_sealed_records_no_flipped_bit_gets_through(place: int, bit: int, count: int) -> None:
    """Whatever bit is flipped: what is received is what was sent."""
    wanted = {offset: f"body {offset}".encode() for offset in range(3, 3 + count)}
    whole = b"".join(sealed(record(body, offset=offset, properties="A\x01b\x02")) for offset, body in wanted.items())
    rotten = bytearray(whole)
    rotten[place % len(whole)] ^= 1 << bit
    found = pull(bytes(rotten), begin=3)
    assert found.damage is not None or len(found.messages) == count
    for message in found.messages:
        assert message.body == wanted[message.queue_offset]
        assert message.properties == {"A": "b", "MIN_OFFSET": "3", "MAX_OFFSET": "12"}


def sealed(stored: Record) -> bytes:
    return encode_record(
        stored.topic.encode(),
        stored.body,
        stored.properties.encode(),
        stored.queue_id,
        stored.flag,
        stored.sys_flag,
        stored.born_timestamp,
        pack_host(stored.born_host, stored.born_port),
        stored.store_timestamp,
        pack_host(stored.store_host, stored.store_port),
        stored.queue_offset,
        stored.physical_offset,
        sealed=True,
    )

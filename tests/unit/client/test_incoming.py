"""From pulled bytes to messages."""

from __future__ import annotations

import pytest

from cosmodrome.client.incoming import received_messages, unpack_body
from cosmodrome.errors import ProtocolError
from cosmodrome.filter.tags import subscription
from cosmodrome.model import ReceivedMessage
from cosmodrome.wire.compression import Compression, compress
from cosmodrome.wire.record import Record
from cosmodrome.wire.requests import PullReply
from tests.unit.client.messages import QUEUE, record

REPLY = PullReply(suggest_which_broker_id=0, next_begin_offset=9, min_offset=3, max_offset=12)


def pulled(*records: Record, expression: str = "*") -> list[ReceivedMessage]:
    body = b"".join(one.encode() for one in records)
    return received_messages(QUEUE, subscription("T", expression, 1), REPLY, body)


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
    twins = [record(b"a", properties="TAGS\x01AaAaAa\x02"), record(b"b", properties="TAGS\x01BBBBBB\x02")]
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


def test_damage_is_an_error_not_half_a_message() -> None:
    with pytest.raises(ProtocolError):
        received_messages(QUEUE, subscription("T", "*", 1), REPLY, record().encode()[:-1])
    (message,) = pulled(record(b"not zlib", sys_flag=1))
    with pytest.raises(ProtocolError):
        unpack_body(message)

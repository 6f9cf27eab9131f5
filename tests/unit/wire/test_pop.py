"""Handles, names and bodies of pop consumption, as Apache 5.3.3 writes them."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.errors import InvalidParameter, ProtocolError
from cosmodrome.model import MessageQueue, RequestMode
from cosmodrome.wire.bodies import (
    Ack,
    Assignment,
    BatchAck,
    BatchAckBody,
    CheckPoint,
    OrderInfosBody,
    QueryAssignment,
    RequestModesBody,
)
from cosmodrome.wire.pop import Handle, marked_topic, normal_topic, pop_retry_topic, retry_mark

POINT = (
    b'{"bm":0,"bn":"b","c":"g","d":[0,2],"it":60000,"n":2,"pt":1700000000000,"q":3,"reviveTime":1700000060000,"ro":0,'
    b'"so":5,"t":"T"}'
)
NEWER_POINT = POINT.replace(b'"c":"g",', b"").replace(b"{", b'{"CId":"g",', 1)
OLD_POINT = POINT.replace(b'"d":[0,2],', b"")
ACK = b'{"ao":7,"bn":"b","c":"g","pt":1700000000000,"q":3,"so":5,"t":"T"}'
BATCH = b'{"ao":-1,"aol":[5,7],"bn":"b","c":"g","pt":1700000000000,"q":3,"so":5,"t":"T"}'


def test_a_handle_is_eight_words() -> None:
    text = "5 1700000000000 60000 3 1 broker-a 0 7"
    handle = Handle.decode(text)
    assert handle == Handle(5, 1_700_000_000_000, 60_000, 3, "1", "broker-a", 0, 7)
    assert handle.encode() == text
    assert Handle.decode("5 1 2 999 0 broker-a").is_orderly


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 2 3",
        "a b c d e f g h",
        "1 2 3 4 0 broker x 7",
        "1 2 3 4 0 b 1 " + "7" * 5_000,
        f"{2**63} 2 3 4 0 b",
        f"1 2 3 4 0 b 1 {-(2**63) - 1}",
    ],
)
def test_anything_else_is_no_handle(text: str) -> None:
    with pytest.raises(InvalidParameter):
        Handle.decode(text)


@pytest.mark.parametrize("v2", [False, True])
def test_retry_topics_lead_back_to_the_topic(v2: bool) -> None:
    retry = pop_retry_topic("T_1", "g_x", v2=v2)
    assert retry == ("%RETRY%g_x+T_1" if v2 else "%RETRY%g_x_T_1")
    assert normal_topic(retry, "g_x") == normal_topic("T_1", "g_x") == "T_1"
    assert marked_topic("T_1", "g_x", retry_mark(retry)) == retry
    assert marked_topic("T_1", "g_x", retry_mark("T_1")) == "T_1"


def test_an_unknown_mark_is_refused() -> None:
    with pytest.raises(InvalidParameter):
        marked_topic("T", "g", "7")


def test_apaches_checkpoints_are_read() -> None:
    expected = CheckPoint("T", "g", 3, 5, (5, 7), 1_700_000_000_000, 60_000, "b")
    assert CheckPoint.decode(POINT) == CheckPoint.decode(NEWER_POINT) == expected
    assert CheckPoint.decode(OLD_POINT).offsets == (5, 6)
    assert CheckPoint.decode(expected.encode()) == expected


def test_acks_are_apaches() -> None:
    single, batch = Ack.decode(ACK), Ack.decode(BATCH)
    assert single == Ack("T", "g", 3, 5, (7,), 1_700_000_000_000, "b")
    assert batch == Ack("T", "g", 3, 5, (5, 7), 1_700_000_000_000, "b", is_batch=True)
    assert (single.encode(), batch.encode()) == (ACK, BATCH)


def test_a_batch_ack_is_read_with_short_and_long_names() -> None:
    expected = BatchAckBody("b", (BatchAck("g", "T", "0", 3, 5, 2, 1_000, 60_000, (5, 7)),))
    short = b'{"brokerName":"b","acks":[{"c":"g","t":"T","r":"0","so":5,"q":3,"rq":2,"pt":1000,"it":60000,"b":"BQ=="}]}'
    long = (
        b'{"brokerName":"b","acks":[{"consumerGroup":"g","topic":"T","retry":"0","startOffset":5,"queueId":3,'
        b'"reviveQueueId":2,"popTime":1000,"invisibleTime":60000,"bitSet":"BQ=="}]}'
    )
    assert BatchAckBody.decode(short) == BatchAckBody.decode(long) == expected
    with pytest.raises(ProtocolError):
        BatchAckBody.decode(short.replace(b"BQ==", b"B!=="))


@given(start=st.integers(0, 2**40), distances=st.sets(st.integers(0, 200), max_size=32))
def test_any_batch_ack_comes_back(start: int, distances: set[int]) -> None:
    offsets = tuple(start + distance for distance in sorted(distances))
    body = BatchAckBody("b", (BatchAck("g", "T", "1", 0, start, 7, 1, 2, offsets),))
    assert BatchAckBody.decode(body.encode()) == body


@pytest.mark.parametrize(("count", "is_read"), [(32, True), (33, False), (8_000_000, False)])
def test_a_batch_ack_names_no_more_messages_than_one_pop_brings(count: int, is_read: bool) -> None:
    """A long bit set would become a list that takes gigabytes."""
    bits = b64encode(((1 << count) - 1).to_bytes(count // 8 + 1, "little"))
    body = b'{"brokerName":"b","acks":[{"c":"g","t":"T","b":"%s"}]}' % bits
    if is_read:
        assert BatchAckBody.decode(body).acks[0].offsets == tuple(range(count))
    else:
        with pytest.raises(ProtocolError, match=f"{count} messages"):
            BatchAckBody.decode(body)


def test_a_distant_message_of_a_batch_ack_is_found() -> None:
    batch = BatchAck("g", "T", "0", 0, 5, 0, 1, 2, (5, 1_000_005))
    assert BatchAckBody.decode(BatchAckBody("b", (batch,)).encode()).acks == (batch,)


def test_an_assignment_may_be_none_or_empty() -> None:
    queue = MessageQueue("T", "b", -1)
    some = b'{"messageQueueAssignments":[{"messageQueue":{"brokerName":"b","queueId":-1,"topic":"T"},"mode":"POP"}]}'
    assert Assignment((queue,), RequestMode.POP).encode() == some
    assert Assignment.decode(some) == Assignment((queue,), RequestMode.POP)
    assert Assignment.decode(Assignment(None).encode()).queues is None
    assert Assignment.decode(Assignment(()).encode()).queues == ()


def test_the_files_are_apaches() -> None:
    modes = b'{"messageRequestModeMap":{"T":{"g":{"consumerGroup":"g","mode":"POP","popShareQueueNum":0,"topic":"T"}}}}'
    assert RequestModesBody.decode(modes).encode() == modes
    orders = (
        b'{"table":{"T@g":{0:{"a":"att2","cm":0,"i":60000,"l":1794757810781,"o":[5,2],"oc":{5:1,7:1},'
        b'"popTime":1700000000001}}}}'
    )
    assert OrderInfosBody.decode(orders).encode() == orders


def test_a_java_query_is_read() -> None:
    body = b'{"clientId":"c","consumerGroup":"g","messageModel":"CLUSTERING","strategyName":"AVG","topic":"T"}'
    assert QueryAssignment.decode(body) == QueryAssignment("T", "g", "c")
    assert QueryAssignment("T", "g", "c").encode() == body

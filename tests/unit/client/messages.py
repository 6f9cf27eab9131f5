"""Messages for tests."""

from __future__ import annotations

from typing import TypeVar

from cosmodrome.client.pulled_message import PulledMessage
from cosmodrome.model import MessageQueue, ReceivedMessage
from cosmodrome.wire.record import Record

M = TypeVar("M", bound=ReceivedMessage)

QUEUE = MessageQueue("T", "broker-a", 0)


def received(
    body: bytes = b"body", *, topic: str = "T", offset: int = 0, size: int = 100, sys_flag: int = 0
) -> ReceivedMessage:
    return _message(ReceivedMessage, body, topic, offset, size, sys_flag)


def pulled(body: bytes = b"body", *, topic: str = "T", offset: int = 0, sys_flag: int = 0) -> PulledMessage:
    return _message(PulledMessage, body, topic, offset, 100, sys_flag)


def _message(kind: type[M], body: bytes, topic: str, offset: int, size: int, sys_flag: int) -> M:
    return kind(
        topic=topic,
        body=body,
        properties={"UNIQ_KEY": f"id-{offset}"},
        flag=0,
        sys_flag=sys_flag,
        queue=QUEUE,
        queue_offset=offset,
        commit_log_offset=offset * 1_000,
        born_timestamp=1,
        born_host="10.0.0.1:5000",
        store_timestamp=2,
        store_host="10.0.0.2:10911",
        reconsume_times=0,
        offset_msg_id=f"place-{offset}",
        store_size=size,
    )


def record(
    body: bytes = b"hi",
    *,
    topic: str = "T",
    properties: str = "",
    queue_id: int = 0,
    offset: int = 0,
    sys_flag: int = 0,
    flag: int = 0,
    store_timestamp: int = 1_700_000_000_001,
    reconsume_times: int = 0,
) -> Record:
    return Record(
        total_size=0,
        magic=0,
        body_crc=0,
        queue_id=queue_id,
        flag=flag,
        queue_offset=offset,
        physical_offset=offset * 1_000 + queue_id,
        sys_flag=sys_flag,
        born_timestamp=1_700_000_000_000,
        born_host="10.0.0.1",
        born_port=5000,
        store_timestamp=store_timestamp,
        store_host="10.0.0.2",
        store_port=10911,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=0,
        body=body,
        topic=topic,
        properties=properties,
    )

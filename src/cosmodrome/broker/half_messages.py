"""Half messages: how they are stored, what becomes of them, and which of them are open. Pure: time is an argument.

A transaction is known by the queue offset of its first half message. Each check puts a copy of the half behind the
others, as Apache does; every copy names the first, so that an end given for any of them ends the transaction, once.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from cosmodrome.errors import MessageIllegal
from cosmodrome.model import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    MAX_QUEUES,
    OP_HALF_TOPIC,
    Property,
    check_topic,
    is_broker_only,
)
from cosmodrome.numbers import MAX_LONG, parse_int
from cosmodrome.store.message import StoreMessage
from cosmodrome.wire import properties as props
from cosmodrome.wire.record import Record, SysFlag, pack_host

# All half messages are in one queue, and so are the ops that end them.
QUEUE_ID = 0
_ENDED_TAG = "d"
_ROOM_FOR_CHECKS_BYTES = 128  # of what checks note in the properties
_NOBODY = pack_host("127.0.0.1", 0)
_SEPARATOR = ","  # between the offsets of an op; Apache 5.1 and later put several into one
# What an immune half message may hold back before it is moved: a restart reads everything behind the first open one.
FAR_BEHIND = 10_000


class Half(NamedTuple):
    """What there is to know about one copy of a half message."""

    offset: int
    physical_offset: int
    first: int  # the offset of the transaction's first half message
    born_ms: int
    immunity_ms: int | None  # for so long its producer wants not to be asked
    checks: int


class Rules(NamedTuple):
    """When a transaction is asked about, and when it is given up."""

    timeout_ms: int
    max_checks: int
    reserved_ms: int


class Verdict(Enum):
    WAIT = "it is young: its producer may still decide"
    MOVE = "it is immune, and holds back too many others"
    CHECK = "it is old enough: ask its producer"
    GIVE_UP = "asked often enough, or its files are about to go"


def judge(half: Half, now_ms: int, rules: Rules, next_offset: int) -> Verdict:
    """What to do about a transaction that is open; `next_offset` is where the queue of halves ends."""
    age_ms = now_ms - half.born_ms
    if half.checks >= rules.max_checks or age_ms > rules.reserved_ms:
        return Verdict.GIVE_UP
    if half.immunity_ms is not None and age_ms <= half.immunity_ms:
        return Verdict.MOVE if next_offset - half.offset > FAR_BEHIND else Verdict.WAIT
    if half.immunity_ms is None and 0 <= age_ms <= rules.timeout_ms:
        return Verdict.WAIT
    return Verdict.CHECK


def half_of(record: Record, rules: Rules) -> Half:
    return half_at(record.queue_offset, record.physical_offset, record.born_timestamp, record.properties, rules)


def half_at(offset: int, physical_offset: int, born_ms: int, properties: str, rules: Rules) -> Half:
    found = props.decode(properties)
    first = parse_int(found.get(Property.TRAN_PREPARED_QUEUE_OFFSET), high=offset)
    checks = parse_int(found.get(Property.TRANSACTION_CHECK_TIMES))
    return Half(
        offset, physical_offset, offset if first is None else first, born_ms, _immunity_ms(found, rules), checks or 0
    )


def _immunity_ms(found: Mapping[str, str], rules: Rules) -> int | None:
    text = found.get(Property.CHECK_IMMUNITY_TIME_IN_SECONDS)
    if text is None:
        return None
    seconds = parse_int(text)
    return rules.timeout_ms if seconds is None else seconds * 1_000


# --- messages


def is_transactional(properties: str) -> bool:
    return (props.find(properties, Property.TRAN_MSG) or "").lower() == "true"


def is_half(message: StoreMessage) -> bool:
    """Whether a sent message begins a transaction. A retried one still says so, but its transaction is over."""
    return message.reconsume_times <= 0 and is_transactional(message.properties)


def check_half(message: StoreMessage) -> None:
    """Refuse a half message that no request could ever end, or that means nothing once it is committed."""
    if props.find(message.properties, Property.PGROUP) is None:
        raise MessageIllegal(f"a half message needs the property {Property.PGROUP}: only its producer group may end it")
    if props.find(message.properties, Property.TIMER_DEL_UNIQKEY) is not None:
        raise MessageIllegal(
            "a half message takes no timed message back; send the property "
            f"{Property.TIMER_DEL_UNIQKEY} without a transaction"
        )


def to_half(message: StoreMessage) -> None:
    """Keep a sent message back until its transaction ends. What an earlier transaction noted in it does not count."""
    kept = props.decode(message.properties)
    kept.pop(Property.TRANSACTION_CHECK_TIMES, None)
    kept.pop(Property.TRAN_PREPARED_QUEUE_OFFSET, None)
    kept.setdefault(Property.TRANSACTION_ID, kept.get(Property.UNIQ_KEY, ""))
    kept[Property.REAL_TOPIC] = message.topic
    kept[Property.REAL_QID] = str(message.queue_id)
    message.properties = props.encode(kept)
    if len(message.properties.encode()) > props.MAX_SIZE_BYTES - _ROOM_FOR_CHECKS_BYTES:
        raise MessageIllegal(f"the properties of a transaction need {_ROOM_FOR_CHECKS_BYTES} bytes more than there are")
    message.sys_flag &= ~SysFlag.TRANSACTION_MASK
    message.topic, message.queue_id = HALF_TOPIC, QUEUE_ID


def next_copy(record: Record, half: Half, checks: int) -> StoreMessage:
    """The half once more, to stand behind the others."""
    kept = props.decode(record.properties)
    if checks:
        kept[Property.TRANSACTION_CHECK_TIMES] = str(checks)
    kept[Property.TRAN_PREPARED_QUEUE_OFFSET] = str(half.first)
    return StoreMessage.again(record, HALF_TOPIC, QUEUE_ID, props.encode(kept))


def longest_commit(message: StoreMessage) -> StoreMessage:
    """Return what would be stored if this message became a half and were committed, with all that checks may note."""
    half = dataclasses.replace(message)
    to_half(half)
    kept = props.decode(half.properties)
    kept[Property.TRANSACTION_CHECK_TIMES] = kept[Property.TRAN_PREPARED_QUEUE_OFFSET] = str(MAX_LONG)
    sys_flag = half.sys_flag | SysFlag.COMMIT
    return dataclasses.replace(message, properties=props.encode(kept), sys_flag=sys_flag)


def resumed(record: Record) -> StoreMessage:
    """A half that was given up, as a new transaction."""
    kept = props.decode(record.properties)
    kept[Property.TRANSACTION_CHECK_TIMES] = "0"
    kept.pop(Property.TRAN_PREPARED_QUEUE_OFFSET, None)
    return StoreMessage.again(record, HALF_TOPIC, QUEUE_ID, props.encode(kept))


def given_up(record: Record, half: Half) -> StoreMessage:
    """The half where an operator finds it, with the notes of its checks if there is room for them."""
    message = dataclasses.replace(next_copy(record, half, half.checks), topic=CHECK_MAX_TIME_TOPIC)
    if len(message.properties.encode()) > props.MAX_SIZE_BYTES:
        message.properties = record.properties
    return message


def committed(record: Record) -> StoreMessage:
    """The message as its consumers get it. Its properties stay, as Apache leaves them."""
    topic, queue_id = real_place(record)
    message = StoreMessage.again(record, topic, queue_id, record.properties)
    message.sys_flag = record.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.COMMIT
    message.prepared_transaction_offset = record.physical_offset
    return message


def real_place(record: Record) -> tuple[str, int]:
    """The topic and queue a half message is meant for; MessageIllegal when it does not say."""
    topic = props.find(record.properties, Property.REAL_TOPIC)
    queue_id = parse_int(props.find(record.properties, Property.REAL_QID), high=MAX_QUEUES)
    if topic is None or queue_id is None:
        raise MessageIllegal("the half message does not say where it belongs")
    if is_broker_only(topic):
        raise MessageIllegal(f"the half message is meant for {topic}, which only the broker itself writes to")
    return check_topic(topic), queue_id


def op_message(half_offset: int, now_ms: int) -> StoreMessage:
    """What ends a half message. One offset each: Apache 4.9 reads nothing else."""
    properties = props.encode({Property.TAGS: _ENDED_TAG})
    return StoreMessage(OP_HALF_TOPIC, QUEUE_ID, str(half_offset).encode(), properties, 0, 0, now_ms, _NOBODY, _NOBODY)


def ended_by(op: Record) -> list[int]:
    """The half offsets that an op ends, each once, in either of Apache's forms. What is no offset is passed over."""
    if props.find(op.properties, Property.TAGS) != _ENDED_TAG:
        return []
    numbers = dict.fromkeys(op.body.decode("utf-8", "replace").split(_SEPARATOR))
    return [number for text in numbers if (number := parse_int(text)) is not None]


# --- which are open


class OpenHalves:
    """The open transactions, in the order of their last copies, and what a restart must read to know them again."""

    def __init__(self, next_offset: int, next_op_offset: int) -> None:
        self.next_offset = next_offset
        self._next_op_offset = next_op_offset
        self._open: dict[int, Half] = {}  # by its first offset; the dict's order is that of the last copies
        self._ops: deque[tuple[int, int]] = deque()  # op offset, the half offset it ends

    def __len__(self) -> int:
        return len(self._open)

    def find(self, first: int) -> Half | None:
        """The last copy of a transaction's half, if it is open."""
        return self._open.get(first)

    def all(self) -> list[Half]:
        return list(self._open.values())

    def put(self, half: Half) -> None:
        """A half, or a copy of it which now stands for it."""
        self._open.pop(half.first, None)
        self._open[half.first] = half
        self.next_offset = max(self.next_offset, half.offset + 1)

    def end(self, half: Half) -> None:
        self._open.pop(half.first, None)

    def note_op(self, op_offset: int, half_offset: int) -> None:
        self._ops.append((op_offset, half_offset))
        self._next_op_offset = op_offset + 1

    @property
    def start(self) -> int:
        """No half below this offset is open."""
        return next((half.offset for half in self._open.values()), self.next_offset)

    def take_op_start(self) -> int:
        """No op below this offset ends a half at or above `start`; what is known of those ops is forgotten."""
        start = self.start
        while self._ops and self._ops[0][1] < start:
            self._ops.popleft()
        return self._ops[0][0] if self._ops else self._next_op_offset

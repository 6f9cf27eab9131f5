"""Lives of a broker among poison: records of any content in any topic, the system's too, and messages that must come.

In each life messages of every kind are sent, and poison is stored between them: sent where that is allowed, else
directly, for the broker refuses most of it from clients. Then the broker stops or is killed, starts again, and time
passes; every message must be where it belongs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import NamedTuple

from cosmodrome.broker.pop.messages import revive_topic
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import FlushDiskType
from cosmodrome.errors import RequestError
from cosmodrome.filter import sql92
from cosmodrome.model import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TRACE_TOPIC,
    Message,
    Property,
    Subscription,
)
from cosmodrome.net.caller import Caller
from cosmodrome.store.message import StoreMessage
from cosmodrome.store.skipped import read_skipped
from cosmodrome.testing import AsyncCluster, VirtualLoop, cluster
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import ConsumerData, HeartbeatData
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.pop import all_pop_retry_topics
from cosmodrome.wire.record import SysFlag, decode_records, pack_host
from cosmodrome.wire.requests import EndTransaction, PopMessage, SendMessage, SendReply
from tests.simulation.chance import seeded

GROUP = "readers"
PRODUCERS = "writers"
POPPED, PLAIN, LATER, TIMED, DECIDED = "popped", "plain", "later", "timed", "decided"
REVIVE = revive_topic("DefaultCluster")
TIMER = "rmq_sys_wheel_timer"
HOST = pack_host("192.0.2.9", 4_711)

SECONDS_A_LIFE = 60
INVISIBLE_MS = 5_000
CALL_MS = 60_000
MAX_POPS = 1_000
_POP_CODES = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT)
CONFIG: dict[str, str | int | bool] = {
    "transactionCheckInterval": 10_000,
    "transactionTimeOut": 600_000,
    "flushDelayOffsetInterval": 1_000,
    "flushConsumerOffsetInterval": 1_000,
    "timerFlushIntervalMs": 1_000,
    "enablePropertyFilter": True,
    "reviveQueueNum": 1,
}

DIGITS = "7" * 5_000
NUMBERS = (
    *("0", "1", "-1", "17", "65535", "65536", str(2**31), str(2**63), str(2**64), str(10**9), str(10**15), DIGITS),
    *("-" + DIGITS, "0" * 5_000, "٣", " 1", "1_0", "+1", "nan", "inf", "1e3", "0x10", "\0", "\ud800", "x", "½"),
)
TOPICS = (
    *(PLAIN, "nowhere", SCHEDULE_TOPIC, TIMER, HALF_TOPIC, OP_HALF_TOPIC, REVIVE, CHECK_MAX_TIME_TOPIC, TRACE_TOPIC),
    *("TBW102", "../../etc/passwd", "x" * 300, "a\0b", "%RETRY%readers", "%DLQ%readers", "Köln", "\ud800", " "),
)
TEXTS = ("", "x", "\0", "\ud800", "k" * 32_000, "a b c", "\x01", "\x02", "true", "d", "ck", "ack", "bAck", "Ü" * 10_000)
NAMESAKES = tuple((b"message %d" % number).hex() for number in range(1, 40))
# By property, what it may say.
WORDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            Property.REAL_QID,
            Property.DELAY,
            Property.TIMER_OUT_MS,
            Property.TIMER_DELIVER_MS,
            Property.TIMER_DELAY_SEC,
            Property.TIMER_DELAY_MS,
            Property.TIMER_ROLL_TIMES,
            Property.TIMER_ENQUEUE_MS,
            Property.START_DELIVER_TIME,
            Property.CHECK_IMMUNITY_TIME_IN_SECONDS,
            Property.TRANSACTION_CHECK_TIMES,
            Property.TRAN_PREPARED_QUEUE_OFFSET,
            Property.FIRST_POP_TIME,
            Property.TTL,
            "price",
        ),
        NUMBERS,
    ),
    Property.UNIQ_KEY: (*TEXTS, *NAMESAKES),
    Property.REAL_TOPIC: TOPICS,
    Property.RETRY_TOPIC: TOPICS,
    **dict.fromkeys(
        (
            Property.TAGS,
            Property.KEYS,
            Property.PGROUP,
            Property.TRAN_MSG,
            Property.TIMER_DEL_UNIQKEY,
            Property.POP_CK,
            Property.TRANSACTION_ID,
            Property.WAIT,
            "shop",
        ),
        TEXTS,
    ),
}
BODIES = (
    *(b"", b"poison", b"\0" * 100, b"\xff\xfe", DIGITS.encode(), DIGITS.encode() + b",x", b"{", b"[]", b"{}", b"null"),
    b'{"so":0,"n":32,"pt":0,"it":9223372036854775807,"t":"popped","c":"readers","q":0}',
    b'{"so":-5,"d":[0,1,2147483647],"pt":1,"it":1,"t":"popped","c":"readers","q":2147483647}',
    b'{"so":%s}' % DIGITS.encode(),
    b'{"ao":1e400,"t":[],"c":{}}',
    b'{"aol":[%s],"t":"RMQ_SYS_TRANS_HALF_TOPIC"}' % b",".join([b"9" * 18] * 500),
)
PLACES = (
    *((SCHEDULE_TOPIC, queue_id) for queue_id in (0, 1, 2, 17, 18, 1_000)),
    *((topic, 0) for topic in (TIMER, HALF_TOPIC, OP_HALF_TOPIC, REVIVE) for _ in range(3)),
    *((REVIVE, queue_id) for queue_id in (1, 7, 5_000)),
    *((topic, 0) for topic in (CHECK_MAX_TIME_TOPIC, TRACE_TOPIC, PLAIN, LATER, POPPED, "%RETRY%readers", TIMED)),
)
SYS_FLAGS = (0, 0, 0, SysFlag.COMMIT, SysFlag.PREPARED, SysFlag.ROLLBACK, SysFlag.COMPRESSED, 0x700, -1)
NUMBERS_32 = (0, 0, 0, 1, -1, 2**31 - 1, -(2**31))
TIMES = (0, 1_600_000_000_000, 2**63 - 1, -(2**63))


# What belongs into a topic has these.
_PLACE = {Property.REAL_TOPIC: PLAIN, Property.REAL_QID: "0"}
PLAUSIBLE = {
    SCHEDULE_TOPIC: {Property.DELAY: "1", **_PLACE},
    TIMER: {Property.TIMER_OUT_MS: "1600000000000", **_PLACE},
    HALF_TOPIC: {Property.TRAN_MSG: "true", Property.PGROUP: PRODUCERS, Property.UNIQ_KEY: "x", **_PLACE},
    OP_HALF_TOPIC: {Property.TAGS: "d"},
    REVIVE: {Property.TAGS: "ck"},
}


class Poison(NamedTuple):
    """A record that a service may stumble over."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    sys_flag: int = 0
    reconsume_times: int = 0
    born_ms: int = 0
    prepared_offset: int = 0


class Life(NamedTuple):
    """What is stored between the messages of one life, and how it ends."""

    poison: Sequence[Poison]
    is_killed: bool


def drawn(random: Random) -> Poison:
    """A poison record of this random; more often than not it is nearly what belongs there."""
    is_plausible = random.random() < 0.6
    names = random.sample(sorted(WORDS), random.randint(0, 2 if is_plausible else 8))
    topic, queue_id = random.choice(PLACES)
    properties = PLAUSIBLE.get(topic, {}) if is_plausible else {}
    return Poison(
        topic,
        queue_id,
        random.choice(BODIES),
        {**properties, **{name: random.choice(WORDS[name]) for name in names}},
        random.choice(SYS_FLAGS),
        random.choice(NUMBERS_32),
        random.choice(TIMES),
        random.choice(TIMES),
    )


class Figures(NamedTuple):
    """What a run of lives went through."""

    stored: int
    refused: int
    skipped: int
    messages: int


def run(
    folder: Path, lives: Sequence[Life], seed: int = 1, flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH
) -> Figures:
    """Go through these lives on one store, in virtual time; AssertionError names what did not come."""
    with seeded(seed), asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(seed))) as runner:
        return runner.run(_run(folder, lives, flush))


async def _run(folder: Path, lives: Sequence[Life], flush: FlushDiskType) -> Figures:
    async with cluster(data_dir=folder, config={**CONFIG, "flushDiskType": flush}) as nodes:
        world = _World(nodes)
        for topic in (POPPED, PLAIN, LATER, TIMED, DECIDED):
            await nodes.create_topic(topic, 1)
        for life in lives:
            await world.live(life)
        await world.close()
        skipped = nodes.brokers[0].broker.store.skipped.count
    assert len(read_skipped(folder / "broker-a" / "config")) == min(skipped, 1_000)
    return Figures(world.stored, world.refused, skipped, world.expected.total())


class _World:
    """The messages that must come, by topic and body."""

    def __init__(self, nodes: AsyncCluster) -> None:
        self._nodes = nodes
        self._caller = Caller()
        self.expected: Counter[tuple[str, bytes]] = Counter()
        self.stored = self.refused = 0
        self._number = 0

    async def live(self, life: Life) -> None:
        third = len(life.poison) // 3 + 1
        await self._heartbeat()
        await self._poison(life.poison[:third])
        await self._send()
        await self._poison(life.poison[third : 2 * third])
        half = await self._begin()
        await self._pop()
        await self._poison(life.poison[2 * third :])
        await self._caller.close()  # a new one does not find the old broker's connection
        self._caller = Caller()
        await (self._nodes.kill_broker() if life.is_killed else self._nodes.stop_broker())
        await self._nodes.start_broker()
        await self._commit(half)
        await self._nodes.advance(seconds=SECONDS_A_LIFE)
        await self._check()

    async def close(self) -> None:
        await self._caller.close()

    def _body(self, topic: str) -> bytes:
        self._number += 1
        body = b"message %d" % self._number
        self.expected[topic, body] += 1
        return body

    async def _poison(self, records: Sequence[Poison]) -> None:
        for number, poison in enumerate(records):
            is_sendable = poison.topic in (PLAIN, LATER, POPPED, TIMED) and number % 2 == 0
            is_stored = await self._send_poison(poison) if is_sendable else self._append(poison)
            self.stored += is_stored
            self.refused += not is_stored

    async def _send_poison(self, poison: Poison) -> bool:
        """Ask the broker to store it; it may refuse, but it answers."""
        text = props.encode(poison.properties).encode(errors="replace").decode()
        times, flags = abs(poison.reconsume_times), poison.sys_flag
        sent = SendMessage(PRODUCERS, poison.topic, "TBW102", 1, 0, flags, poison.born_ms, 0, text, times)
        request = Command.request(RequestCode.SEND_MESSAGE, sent, poison.body)
        reply = await self._caller.call(self._nodes.brokers[0].address, request, CALL_MS)
        return reply.code == ResponseCode.SUCCESS

    def _append(self, poison: Poison) -> bool:
        message = StoreMessage(
            poison.topic,
            poison.queue_id,
            poison.body,
            props.encode(poison.properties),
            0,
            poison.sys_flag,
            poison.born_ms,
            HOST,
            HOST,
            poison.reconsume_times,
            poison.prepared_offset,
        )
        try:
            self._nodes.brokers[0].broker.store.append(message)
        except RequestError:  # no record can hold it
            return False
        return True

    async def _send(self) -> None:
        async with self._nodes.producer(PRODUCERS) as producer:
            await producer.send(Message(PLAIN, self._body(PLAIN), tags="t", properties={"price": "7"}))
            for level in (1, 2, 3):
                await producer.send(Message(LATER, self._body(LATER), delay_level=level))
            for seconds in (1, 3, 20):
                await producer.send(Message(TIMED, self._body(TIMED), delay=timedelta(seconds=seconds)))
            await producer.send(Message(POPPED, self._body(POPPED)))

    async def _begin(self) -> EndTransaction:
        """A half message, and the request that will commit it."""
        body = self._body(DECIDED)
        named = props.encode({"TRAN_MSG": "true", "PGROUP": PRODUCERS, "UNIQ_KEY": body.hex()})
        sent = SendMessage(PRODUCERS, DECIDED, "TBW102", 1, 0, SysFlag.PREPARED, 0, 0, named)
        reply = SendReply.decode(await self._call(RequestCode.SEND_MESSAGE, sent, body))
        offset = int(reply.msg_id[-16:], 16)
        return EndTransaction(PRODUCERS, reply.queue_offset, offset, SysFlag.COMMIT, msg_id=body.hex())

    async def _commit(self, half: EndTransaction) -> None:
        await self._call(RequestCode.END_TRANSACTION, half)

    async def _heartbeat(self) -> None:
        subscription = Subscription(POPPED)
        consumer = ConsumerData(GROUP, subscriptions=(subscription,))
        body = HeartbeatData("me", consumers=(consumer,)).encode()
        await self._call(RequestCode.HEART_BEAT, None, body)

    async def _pop(self) -> None:
        """Take what there is and ack nothing: it must come again."""
        pop = PopMessage(GROUP, POPPED, -1, 32, INVISIBLE_MS, 0)
        for _ in range(MAX_POPS):
            reply = await self._call(RequestCode.POP_MESSAGE, pop, codes=_POP_CODES)
            if reply.code != ResponseCode.SUCCESS:
                return
        raise AssertionError(f"{MAX_POPS} pops did not empty the queue")

    async def _call(
        self,
        code: RequestCode,
        header: Header | None,
        body: bytes = b"",
        codes: Sequence[int] = (ResponseCode.SUCCESS,),
    ) -> Command:
        address = self._nodes.brokers[0].address
        reply = await self._caller.call(address, Command.request(code, header, body), CALL_MS)
        assert reply.code in codes, reply
        return reply

    async def _check(self) -> None:
        """Everything is where it belongs; what was popped is in the group's retry topic. Filters read past poison."""
        found = {
            topic: set(self._bodies(topic))
            for topic in (PLAIN, LATER, TIMED, DECIDED, *all_pop_retry_topics(POPPED, GROUP))
        }
        found[POPPED] = set.union(*(found[name] for name in all_pop_retry_topics(POPPED, GROUP)))
        missing = [(topic, body) for topic, body in self.expected if body not in found[topic]]
        assert not missing, missing
        assert self._filtered() >= {body for topic, body in self.expected if topic == PLAIN}

    def _bodies(self, topic: str) -> Iterator[bytes]:
        store = self._nodes.brokers[0].broker.store
        for queue_id in store.queues(topic):
            offset = store.min_offset(topic, queue_id)
            while offset < store.max_offset(topic, queue_id):
                result = store.read(topic, queue_id, offset, 32)
                yield from (record.body for view in result.views for record in decode_records(view))
                offset = max(result.next_offset, offset + 1)

    def _filtered(self) -> set[bytes]:
        store, offset, found = self._nodes.brokers[0].broker.store, 0, set[bytes]()
        matches = sql92.compile("price > 5 and price < 9.5").matches_raw
        while offset < store.max_offset(PLAIN, 0):
            result = store.read(PLAIN, 0, offset, 32, matches=matches)
            found |= {record.body for view in result.views for record in decode_records(view)}
            assert result.next_offset > offset
            offset = result.next_offset
        return found

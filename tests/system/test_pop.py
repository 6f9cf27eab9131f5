"""Pop consumption on a real broker, over the wire, in a time the test moves."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cosmodrome.broker.broker import Broker
from cosmodrome.broker.pop.messages import REVIVE_GROUP
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import KIB, BrokerConfig, FlushDiskType, StoreConfig
from cosmodrome.model import MessageModel, Property, RequestMode, Subscription, TopicConfig
from cosmodrome.net.caller import Caller
from cosmodrome.testing import FakeClock
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import (
    Assignment,
    BatchAck,
    BatchAckBody,
    CheckPoint,
    ConsumerData,
    HeartbeatData,
    QueryAssignment,
    RequestModeBody,
    RequestModesBody,
)
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.pop import ORDER_QUEUE_ID, Handle, marked_topic
from cosmodrome.wire.record import Record, decode_records
from cosmodrome.wire.requests import (
    AckMessage,
    ChangeInvisibleTime,
    Notification,
    PeekMessage,
    PollingInfo,
    PopMessage,
    ResetOffset,
    SendMessage,
    TopicHeader,
)
from tests.system.cluster import SMALL_STORE, running_broker

PATIENCE_SECONDS = 30
TOPIC, GROUP, CLIENT = "orders", "billing", "c1"
RETRY, RETRY_V2 = f"%RETRY%{GROUP}_{TOPIC}", f"%RETRY%{GROUP}+{TOPIC}"
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
INVISIBLE_MS = 30_000
# From the end of the invisible time until what was not acked can be popped again.
REVIVED_MS = 3_000
CONFIG = BrokerConfig(broker_name="broker-a", pop_from_retry_probability=0)


@dataclass
class Popped:
    """What one pop brought."""

    reply: Command
    records: list[Record]
    handles: list[Handle]

    @property
    def bodies(self) -> list[bytes]:
        return [record.body for record in self.records]


@dataclass
class Post:
    broker: Broker
    clock: FakeClock
    caller: Caller
    services: int = 0  # of the broker that sleep while nothing happens

    async def call(self, code: int, header: Header | None = None, body: bytes = b"") -> Command:
        return await self.caller.call(self.broker.address, Command.request(code, header, body), 5_000)

    async def send(self, *bodies: bytes, topic: str = TOPIC, queue_id: int = 0, **properties: str) -> None:
        for body in bodies:
            header = SendMessage("p", topic, "TBW102", 4, queue_id, 0, 0, 0, props.encode(properties))
            reply = await self.call(RequestCode.SEND_MESSAGE, header, body)
            assert reply.code == ResponseCode.SUCCESS, reply.remark

    async def pop_reply(
        self, group: str = GROUP, count: int = 32, poll_ms: int = 0, queue_id: int = -1, **more: Any
    ) -> Command:
        header = PopMessage(group, TOPIC, queue_id, count, more.pop("invisible_ms", INVISIBLE_MS), poll_ms, **more)
        return await self.call(RequestCode.POP_MESSAGE, header)

    async def pop(self, group: str = GROUP, **more: Any) -> Popped:
        return popped(await self.pop_reply(group, **more), self.broker.config.broker_name)

    async def ack(self, handle: Handle, group: str = GROUP) -> Command:
        topic = marked_topic(TOPIC, group, handle.retry)
        header = AckMessage(group, topic, handle.queue_id, handle.encode(), handle.offset)
        return await self.call(RequestCode.ACK_MESSAGE, header)

    async def change(self, handle: Handle, invisible_ms: int) -> Handle:
        topic = marked_topic(TOPIC, GROUP, handle.retry)
        header = ChangeInvisibleTime(GROUP, topic, handle.queue_id, handle.encode(), handle.offset, invisible_ms)
        reply = await self.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        return handle._replace(
            start_offset=handle.offset,
            pop_time_ms=int(reply.fields["popTime"]),
            invisible_ms=int(reply.fields["invisibleTime"]),
            revive_queue_id=int(reply.fields["reviveQid"]),
        )

    async def pass_time(self, ms: int) -> None:
        """In steps, and after each the broker's services do what they have to: then all of them sleep again."""
        for _ in range(ms // 500):
            await self.clock.advance(500)
            self.services = max(self.services, self.clock.sleepers)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while self.clock.sleepers < self.services:  # noqa: ASYNC110  # some write files, in threads
                    await asyncio.sleep(0.001)

    async def expire(self, invisible_ms: int = INVISIBLE_MS) -> None:
        await self.pass_time(invisible_ms + REVIVED_MS)

    async def until_waiting(self, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.broker.pops.polls) + len(self.broker.pops.notifications) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def popped(reply: Command, broker_name: str) -> Popped:
    """The messages of an answer with their handles, made as a client makes them."""
    if reply.code != ResponseCode.SUCCESS:
        return Popped(reply, [], [])
    starts = {
        tuple(item.split(" ")[:2]): int(item.split(" ")[2]) for item in reply.fields["startOffsetInfo"].split(";")
    }
    offsets = {
        tuple(item.split(" ")[:2]): [int(offset) for offset in item.split(" ")[2].split(",")]
        for item in reply.fields["msgOffsetInfo"].split(";")
    }
    records = decode_records(reply.body)
    handles = []
    for record in records:
        found = props.find(record.properties, Property.POP_CK)
        if found is not None:
            handles.append(Handle.decode(found))
            continue
        place = ("0", str(record.queue_id))
        assert record.queue_offset in offsets[place]
        times = (int(reply.fields["popTime"]), int(reply.fields["invisibleTime"]), int(reply.fields["reviveQid"]))
        handles.append(Handle(starts[place], *times, "0", broker_name, record.queue_id, record.queue_offset))
    assert sum(map(len, offsets.values())) == len(records)
    return Popped(reply, records, handles)


@asynccontextmanager
async def post_office(
    folder: Path, config: BrokerConfig = CONFIG, store: StoreConfig = SMALL_STORE, clock: FakeClock | None = None
) -> AsyncIterator[Post]:
    clock, caller = clock or FakeClock(), Caller()
    async with running_broker(folder, "", config, store, clock) as broker:
        yield Post(broker, clock, caller)
        await caller.close()


# --- popping and acking


async def test_what_is_popped_is_invisible_to_the_rest_of_its_group(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a", b"b", b"c")
        first = await post.pop(count=2)
        second = await post.pop()
        assert (first.bodies, second.bodies) == ([b"a", b"b"], [b"c"])
        assert first.reply.fields["restNum"] == "1"
        assert (await post.pop_reply()).code == ResponseCode.POLLING_TIMEOUT
        other = await post.pop("shipping")
        assert sorted(other.bodies) == [b"a", b"b", b"c"]


async def test_one_pop_takes_from_several_queues(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        for queue_id in range(4):
            await post.send(b"%d" % queue_id, queue_id=queue_id)
        taken = await post.pop()
        assert sorted(taken.bodies) == [b"0", b"1", b"2", b"3"]
        only = await post.pop("shipping", queue_id=2)
        assert only.bodies == [b"2"]


async def test_what_one_pop_brings_fits_into_a_frame(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        for queue_id in range(4):
            await post.send(bytes(300 * KIB), queue_id=queue_id)
        sizes = [len((await post.pop()).records) for _ in range(3)]
        assert sizes == [2, 2, 0]


async def test_an_acked_message_does_not_come_again_and_an_unacked_one_does(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a", b"b", b"c", TAGS="paid", KEYS="k")
        taken = await post.pop()
        for handle in (taken.handles[0], taken.handles[2]):
            assert (await post.ack(handle)).code == ResponseCode.SUCCESS
        await post.pass_time(INVISIBLE_MS)
        assert (await post.pop_reply()).code == ResponseCode.POLLING_TIMEOUT
        await post.pass_time(REVIVED_MS)
        again = await post.pop()
        assert again.bodies == [b"b"]
        (record,), (handle,) = again.records, again.handles
        assert (record.topic, record.reconsume_times, handle.retry) == (TOPIC, 1, "1")
        properties = props.decode(record.properties)
        assert (properties["TAGS"], properties["KEYS"]) == ("paid", "k")
        assert properties["1ST_POP_TIME"] == taken.reply.fields["popTime"]
        assert post.broker.topics.topic(RETRY).read_queues == 1
        await post.expire()
        third = await post.pop()
        assert [record.reconsume_times for record in third.records] == [2]
        await post.ack(third.handles[0])
        await post.expire()
        assert (await post.pop_reply()).code == ResponseCode.POLLING_TIMEOUT


async def test_an_ack_that_comes_late_is_in_time_until_the_message_comes_again(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a")
        taken = await post.pop(invisible_ms=5_000)
        await post.pass_time(5_500)
        await post.ack(taken.handles[0])
        await post.pass_time(REVIVED_MS + 5_000)
        assert (await post.pop_reply()).code == ResponseCode.POLLING_TIMEOUT


async def test_a_batch_ack_acks_what_its_bits_say(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a", b"b", b"c", b"d")
        taken = await post.pop()
        first = taken.handles[0]
        batch = BatchAck(
            GROUP, TOPIC, "0", 0, first.start_offset, first.revive_queue_id, first.pop_time_ms, INVISIBLE_MS, (0, 3)
        )
        reply = await post.call(RequestCode.BATCH_ACK_MESSAGE, None, BatchAckBody("broker-a", (batch,)).encode())
        assert reply.code == ResponseCode.SUCCESS
        await post.expire()
        assert (await post.pop()).bodies == [b"b", b"c"]
        empty = await post.call(RequestCode.BATCH_ACK_MESSAGE, None, BatchAckBody("broker-a").encode())
        assert empty.code == ResponseCode.NO_MESSAGE


async def test_the_invisible_time_can_be_changed(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"sooner", b"later", b"acked")
        taken = await post.pop()
        await post.change(taken.handles[0], 5_000)
        later = await post.change(taken.handles[1], 120_000)
        acked = await post.change(taken.handles[2], 120_000)
        await post.expire(5_000)
        assert (await post.pop(invisible_ms=600_000)).bodies == [b"sooner"]
        await post.pass_time(INVISIBLE_MS + REVIVED_MS)
        assert (await post.pop_reply()).code == ResponseCode.POLLING_TIMEOUT
        assert (later.start_offset, later.invisible_ms) == (1, 120_000)
        await post.ack(acked)
        await post.expire(120_000)
        assert (await post.pop()).bodies == [b"later"]


async def test_v2_retry_topics_are_used_when_wanted_and_those_of_before_are_still_read(tmp_path: Path) -> None:
    clock = FakeClock()
    async with post_office(tmp_path, clock=clock) as post:
        await post.send(b"a")
        await post.pop()
        await post.expire()
        assert post.broker.store.max_offset(RETRY, 0) == 1
    async with post_office(tmp_path, replace(CONFIG, enable_retry_topic_v2=True), clock=clock) as post:
        await post.send(b"b")
        taken = await post.pop()
        assert sorted((handle.retry, body) for handle, body in zip(taken.handles, taken.bodies, strict=True)) == [
            ("0", b"b"),
            ("1", b"a"),
        ]
        await post.expire()
        again = await post.pop()
        assert sorted(again.bodies) == [b"a", b"b"]
        assert sorted(handle.retry for handle in again.handles) == ["1", "2"]
        assert post.broker.store.max_offset(RETRY_V2, 0) == 1
        for handle in again.handles:
            assert (await post.ack(handle)).code == ResponseCode.SUCCESS
        await post.expire()
        assert (await post.pop_reply()).code == ResponseCode.POLLING_TIMEOUT


# --- filters and where a group begins


async def test_a_pop_brings_only_what_its_expression_wants(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        for number in range(40):
            await post.send(b"%d" % number, TAGS="paid" if number % 20 == 7 else "open", amount=str(number))
        assert (await post.pop(exp="paid", exp_type="TAG")).bodies == [b"7", b"27"]
        await post.expire()
        assert (await post.pop(exp="paid", exp_type="TAG")).bodies == [b"7", b"27"]
        bad = await post.pop_reply(exp="||", exp_type="TAG")
        assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_pop_may_filter_by_sql92(tmp_path: Path) -> None:
    config = replace(CONFIG, enable_property_filter=True)
    async with post_office(tmp_path, config) as post:
        for number in range(5):
            await post.send(b"%d" % number, amount=str(number))
        assert (await post.pop(exp="amount > 2", exp_type="SQL92")).bodies == [b"3", b"4"]
        await post.expire()
        assert (await post.pop(exp="amount > 2", exp_type="SQL92")).bodies == [b"3", b"4"]


async def test_a_new_group_gets_the_whole_of_a_young_queue_wherever_it_wants_to_begin(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a", b"b")
        assert (await post.pop(init_mode=1)).bodies == [b"a", b"b"]


# --- waiting


async def test_a_pop_waits_for_a_message_and_one_message_wakes_one_pop(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"", queue_id=1)
        await post.pop()
        waits = [asyncio.ensure_future(post.pop(poll_ms=10_000)) for _ in range(2)]
        await post.until_waiting(2)
        info = await post.call(RequestCode.POLLING_INFO, PollingInfo(GROUP, TOPIC, -1))
        assert info.fields["pollingNum"] == "2"
        await post.send(b"a", queue_id=2)
        done, (left,) = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_SECONDS)
        assert [wait.result().bodies for wait in done] == [[b"a"]]
        await post.pass_time(11_000)
        assert (await left).reply.code == ResponseCode.POLLING_TIMEOUT


async def test_a_waiting_pop_gets_what_comes_again(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a")
        await post.pop(invisible_ms=5_000)
        wait = asyncio.ensure_future(post.pop(poll_ms=20_000))
        await post.until_waiting()
        await post.pass_time(5_000 + REVIVED_MS)
        assert (await asyncio.wait_for(wait, PATIENCE_SECONDS)).bodies == [b"a"]


async def test_only_a_wanted_tag_wakes_a_pop(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"", TAGS="open")
        await post.pop()
        wait = asyncio.ensure_future(post.pop(poll_ms=20_000, exp="paid", exp_type="TAG"))
        await post.until_waiting()
        await post.send(b"no", TAGS="open")
        assert len(post.broker.pops.polls) == 1
        await post.send(b"yes", TAGS="paid")
        assert (await asyncio.wait_for(wait, PATIENCE_SECONDS)).bodies == [b"yes"]


async def test_too_many_waiting_pops_are_turned_away(tmp_path: Path) -> None:
    async with post_office(tmp_path, replace(CONFIG, pop_polling_size=1)) as post:
        await post.send(b"")
        await post.pop()
        wait = asyncio.ensure_future(post.pop_reply(poll_ms=1_000))
        await post.until_waiting()
        assert (await post.pop_reply(poll_ms=1_000)).code == ResponseCode.POLLING_FULL
        await post.pass_time(2_000)
        assert (await wait).code == ResponseCode.POLLING_TIMEOUT


async def test_a_broker_that_stops_answers_those_who_wait(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"")
        await post.pop()
        wait = asyncio.ensure_future(post.pop_reply(poll_ms=30_000))
        await post.until_waiting()
        await post.broker.stop_listening()
        assert (await asyncio.wait_for(wait, PATIENCE_SECONDS)).code == ResponseCode.POLLING_TIMEOUT


async def test_a_notification_tells_that_there_is_something(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"")

        async def has_message(poll_ms: int) -> str:
            reply = await post.call(RequestCode.NOTIFICATION, Notification(GROUP, TOPIC, -1, poll_ms))
            assert reply.code == ResponseCode.SUCCESS
            return reply.fields["hasMsg"]

        assert await has_message(0) == "true"
        await post.pop()
        assert await has_message(0) == "false"
        wait = asyncio.ensure_future(has_message(10_000))
        await post.until_waiting()
        await post.send(b"a")
        assert await asyncio.wait_for(wait, PATIENCE_SECONDS) == "true"
        assert (await post.pop()).bodies == [b"a"]


async def test_peeking_takes_nothing(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a", b"b")
        for _ in range(2):
            reply = await post.call(RequestCode.PEEK_MESSAGE, PeekMessage(GROUP, TOPIC, -1, 32))
            assert [record.body for record in decode_records(reply.body)] == [b"a", b"b"]
        assert (await post.pop()).bodies == [b"a", b"b"]


# --- order


async def test_in_order_nothing_more_goes_out_while_something_is_out(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a", b"b", b"c")
        taken = await post.pop(count=2, order=True)
        assert (taken.bodies, taken.handles[0].revive_queue_id) == ([b"a", b"b"], ORDER_QUEUE_ID)
        assert (await post.pop_reply(order=True)).code == ResponseCode.POLLING_TIMEOUT
        await post.ack(taken.handles[0])
        assert (await post.pop_reply(order=True)).code == ResponseCode.POLLING_TIMEOUT
        wait = asyncio.ensure_future(post.pop(order=True, poll_ms=10_000))
        await post.until_waiting()
        await post.ack(taken.handles[1])
        assert (await asyncio.wait_for(wait, PATIENCE_SECONDS)).bodies == [b"c"]


async def test_in_order_what_was_not_acked_comes_again_first(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a", b"b", b"c")
        taken = await post.pop(count=2, order=True)
        await post.ack(taken.handles[0])
        wait = asyncio.ensure_future(post.pop(order=True, poll_ms=50_000))
        await post.until_waiting()
        await post.pass_time(INVISIBLE_MS + 1_000)
        again = await asyncio.wait_for(wait, PATIENCE_SECONDS)
        assert again.bodies == [b"b", b"c"]
        assert again.reply.fields["orderCountInfo"] == "0 qo0%1 1;0 0 0"


async def test_in_order_the_same_attempt_may_ask_again_and_the_invisible_time_can_change(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a")
        await post.pop(order=True, attempt_id="one")
        again = await post.pop(order=True, attempt_id="one")
        assert again.bodies == [b"a"]
        await post.change(again.handles[0], 90_000)
        await post.pass_time(INVISIBLE_MS + 1_000)
        assert (await post.pop_reply(order=True)).code == ResponseCode.POLLING_TIMEOUT
        await post.pass_time(60_000)
        assert (await post.pop(order=True)).bodies == [b"a"]


async def test_order_survives_a_clean_stop(tmp_path: Path) -> None:
    clock = FakeClock()
    async with post_office(tmp_path, clock=clock) as post:
        await post.send(b"a", b"b", b"c")
        taken = await post.pop(count=2, order=True)
        await post.ack(taken.handles[0])
    async with post_office(tmp_path, clock=clock) as post:
        assert (await post.pop_reply(order=True)).code == ResponseCode.POLLING_TIMEOUT
        await post.ack(taken.handles[1])
        assert (await post.pop(order=True)).bodies == [b"c"]


# --- nothing is lost, and after a clean stop nothing comes twice


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_after_a_clean_stop_only_what_was_not_acked_comes_again(tmp_path: Path, flush: FlushDiskType) -> None:
    clock, store = FakeClock(), replace(SMALL_STORE, flush_disk_type=flush)
    async with post_office(tmp_path, store=store, clock=clock) as post:
        await post.send(*(b"%d" % number for number in range(10)))
        taken = await post.pop()
        for handle in taken.handles[::2]:
            assert (await post.ack(handle)).code == ResponseCode.SUCCESS
    for _ in range(3):  # and it is decided once, however often the broker stops meanwhile
        async with post_office(tmp_path, store=store, clock=clock) as post:
            await post.pass_time(11_000)
    async with post_office(tmp_path, store=store, clock=clock) as post:
        await post.pass_time(REVIVED_MS)
        again = await post.pop()
        assert again.bodies == [b"1", b"3", b"5", b"7", b"9"]
        for handle in again.handles:
            await post.ack(handle)
        await post.expire()
    async with post_office(tmp_path, store=store, clock=clock) as post:
        await post.expire()
        assert (await post.pop_reply()).code == ResponseCode.POLLING_TIMEOUT


@pytest.mark.parametrize("seed", range(4))
async def test_after_a_kill_everything_that_was_not_acked_comes_again(tmp_path: Path, seed: int) -> None:
    """A copy of a running broker's files is what kill -9 leaves behind."""
    random, clock, acked = Random(seed), FakeClock(), set[bytes]()
    sent = [b"%d" % number for number in range(20)]
    async with post_office(tmp_path / "alive", clock=clock) as post:
        for body in sent:
            await post.send(body, queue_id=random.randrange(4))
        while (taken := await post.pop(count=random.randint(1, 8), invisible_ms=random.randint(1, 9_000))).handles:
            for handle, body in zip(taken.handles, taken.bodies, strict=True):
                if random.random() < 0.4:
                    await post.ack(handle)
                    acked.add(body)
            await post.pass_time(random.choice([0, 500, 3_000]))
            if random.random() < 0.1:
                break
        shutil.copytree(tmp_path / "alive", tmp_path / "killed")
    seen = Counter[bytes]()
    async with post_office(tmp_path / "killed", clock=clock) as post:
        for _ in range(2):  # what was out when it was killed, and what it had not handed out
            await post.expire(9_000)
            while (taken := await post.pop(invisible_ms=600_000)).handles:
                seen.update(taken.bodies)
    assert seen.keys() >= set(sent) - acked


async def test_checkpoints_are_stored_as_apache_stores_them(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a", b"b")
        taken = await post.pop()
        await post.ack(taken.handles[0])
        await post.expire()
        queue_id = taken.handles[0].revive_queue_id
        point, ack = decode_records(b"".join(post.broker.store.read(REVIVE, queue_id, 0, 32).views))
        time_ms = int(taken.reply.fields["popTime"])
        assert CheckPoint.decode(point.body).revive_ms == time_ms + INVISIBLE_MS
        assert json.loads(point.body) == {
            "so": 0, "pt": time_ms, "it": INVISIBLE_MS, "bm": 0, "n": 2, "q": 0, "t": TOPIC, "c": GROUP, "ro": 0,
            "d": [0, 1], "bn": "broker-a",
        }  # fmt: skip
        properties = props.decode(point.properties)
        assert properties["TAGS"] == "ck"
        assert properties["UNIQ_KEY"] == f"{TOPIC}@0@0@{GROUP}@{time_ms}@broker-a@ck"
        assert properties["TIMER_DELIVER_MS"] == str(time_ms + INVISIBLE_MS - 1_000)
        assert json.loads(ack.body) == {
            "ao": 0, "so": 0, "c": GROUP, "t": TOPIC, "q": 0, "pt": time_ms, "bn": "broker-a"
        }  # fmt: skip
        assert props.decode(ack.properties)["TIMER_DELIVER_MS"] == str(time_ms + INVISIBLE_MS)
        # The offset is the last decided record's, not the next one's.
        assert post.broker.offsets.find_offset(REVIVE_GROUP, REVIVE, queue_id) == 1


async def test_what_was_popped_of_a_deleted_topic_is_forgotten(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a")
        await post.pop()
        post.broker.topics.delete(TOPIC)
        await post.expire()
        assert post.broker.topics.find_topic(RETRY) is None


async def test_a_deleted_topic_takes_its_retry_topics_with_it(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a")
        await post.pop()
        await post.expire()
        assert post.broker.topics.find_topic(RETRY) is not None
        reply = await post.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(TOPIC))
        assert reply.code == ResponseCode.SUCCESS
        await post.send(b"b")
        assert (await post.pop()).bodies == [b"b"]


# --- refusals


async def test_bad_requests_are_refused(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a")
        taken = await post.pop()
        assert (await post.pop_reply(count=33)).code == ResponseCode.INVALID_PARAMETER
        assert (await post.pop_reply(queue_id=99)).code == ResponseCode.INVALID_PARAMETER
        assert (await post.pop_reply("g" * 250)).code == ResponseCode.INVALID_PARAMETER
        late = await post.pop_reply(poll_ms=1_000, born_time=post.clock.now_ms() - 2_000)
        assert late.code == ResponseCode.POLLING_TIMEOUT
        (handle,) = taken.handles
        assert (await post.ack(handle._replace(offset=7))).code == ResponseCode.NO_MESSAGE
        assert (await post.ack(handle._replace(queue_id=99))).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await post.ack(handle._replace(revive_queue_id=100))).code == ResponseCode.INVALID_PARAMETER
        header = AckMessage(GROUP, TOPIC, 0, "nonsense", 0)
        assert (await post.call(RequestCode.ACK_MESSAGE, header)).code == ResponseCode.INVALID_PARAMETER
        header = AckMessage(GROUP, "unknown", 0, handle.encode(), 0)
        assert (await post.call(RequestCode.ACK_MESSAGE, header)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_without_the_timer_wheel_there_is_no_pop(tmp_path: Path) -> None:
    async with post_office(tmp_path, store=replace(SMALL_STORE, timer_wheel_enable=False)) as post:
        await post.send(b"a")
        reply = await post.pop_reply()
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert reply.remark is not None
        assert "timerWheelEnable" in reply.remark


# --- who pops what


async def test_a_group_pops_once_it_is_told_to(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a")
        data = ConsumerData(GROUP, message_model=MessageModel.CLUSTERING)
        await post.call(RequestCode.HEART_BEAT, None, HeartbeatData(CLIENT, consumers=(data,)).encode())

        async def assignment(topic: str = TOPIC, strategy: str = "AVG") -> Assignment:
            body = QueryAssignment(topic, GROUP, CLIENT, strategy).encode()
            return Assignment.decode((await post.call(RequestCode.QUERY_ASSIGNMENT, None, body)).body)

        pulled = await assignment()
        assert pulled.mode is RequestMode.PULL
        assert pulled.queues is not None
        assert [queue.queue_id for queue in pulled.queues] == [0, 1, 2, 3]
        mode = RequestModeBody(TOPIC, GROUP, RequestMode.POP)
        reply = await post.call(RequestCode.SET_MESSAGE_REQUEST_MODE, None, mode.encode())
        assert reply.code == ResponseCode.SUCCESS
        popped_queues = await assignment()
        assert popped_queues.mode is RequestMode.POP
        assert popped_queues.queues is not None
        assert [queue.queue_id for queue in popped_queues.queues] == [-1]
        assert (await assignment(strategy="MINE")).queues is None
        assert (await assignment("unknown")).queues is None
        refused = RequestModeBody(RETRY, GROUP, RequestMode.POP).encode()
        refusal = await post.call(RequestCode.SET_MESSAGE_REQUEST_MODE, None, refused)
        assert refusal.code == ResponseCode.NO_PERMISSION
    stored = RequestModesBody.decode((tmp_path / "config" / "messageRequestMode.json").read_bytes())
    assert stored.modes == {TOPIC: {GROUP: mode}}


async def test_the_revive_topic_is_there_from_the_start(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        assert post.broker.topics.topic(REVIVE) == TopicConfig(REVIVE, 8, 8)


# --- offsets set anew


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("is_known", [True, False], ids=["with a heartbeat", "without"])
async def test_a_group_that_pops_goes_on_where_it_was_reset_to(tmp_path: Path, order: bool, is_known: bool) -> None:
    """A waiting pop learns of it at once; acks of earlier pops change nothing. A proxy's clients send no heartbeat."""
    async with post_office(tmp_path) as post:
        await post.send(b"a", b"b", b"c")
        if is_known:
            beat = HeartbeatData(CLIENT, (), (ConsumerData(GROUP, subscriptions=(Subscription(TOPIC, "*"),)),))
            await post.call(RequestCode.HEART_BEAT, body=beat.encode())
        before = await post.pop(queue_id=0, order=order)
        waiting = asyncio.create_task(post.pop(queue_id=0, order=order, poll_ms=60_000))
        await post.until_waiting()
        await post.clock.advance(1)
        reset = ResetOffset(TOPIC, GROUP, 0, queue_id=0, offset=1)
        assert (await post.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == ResponseCode.SUCCESS
        again = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        for handle in before.handles:
            await post.ack(handle)
        assert (before.bodies, again.bodies) == ([b"a", b"b", b"c"], [b"b", b"c"])
        assert post.broker.offsets.find_offset(GROUP, TOPIC, 0) == (1 if order else 3)


# --- a clock that is set


@pytest.mark.parametrize("hours", [3, -3, 100, -100])
async def test_what_was_popped_comes_again_in_true_time_and_what_was_acked_does_not(tmp_path: Path, hours: int) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a", b"b", b"c", b"d")
        taken = await post.pop()
        await post.ack(taken.handles[0])
        await post.pass_time(10_000)
        post.clock.step(hours * 3_600_000)
        await post.pass_time(1_000)
        await post.ack(taken.handles[1])
        await post.change(taken.handles[2], 60_000)
        await post.pass_time(INVISIBLE_MS - 11_000)
        assert (await post.pop_reply()).code == ResponseCode.POLLING_TIMEOUT
        await post.pass_time(REVIVED_MS)
        assert (await post.pop(invisible_ms=200_000)).bodies == [b"d"]
        await post.pass_time(60_000)
        assert (await post.pop(invisible_ms=200_000)).bodies == [b"c"]
        await post.pass_time(60_000)
        assert (await post.pop_reply()).code == ResponseCode.POLLING_TIMEOUT


@pytest.mark.parametrize("hours", [3, -3, 100, -100])
async def test_in_order_what_is_out_stays_out_for_as_long_as_before(tmp_path: Path, hours: int) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"a", b"b")
        taken = await post.pop(count=1, order=True)
        post.clock.step(hours * 3_600_000)
        await post.pass_time(1_000)
        assert (await post.pop_reply(order=True)).code == ResponseCode.POLLING_TIMEOUT
        await post.pass_time(INVISIBLE_MS - 2_000)
        assert (await post.pop_reply(order=True)).code == ResponseCode.POLLING_TIMEOUT
        await post.pass_time(2_000)
        assert (await post.pop(count=1, order=True)).bodies == [b"a"]
        post.clock.step(-hours * 3_600_000)
        await post.pass_time(1_000)
        assert taken.bodies == [b"a"]
        again = await post.pop_reply(order=True)
        assert again.code == ResponseCode.POLLING_TIMEOUT


@pytest.mark.parametrize("hours", [3, -3])
@pytest.mark.parametrize("how", ["popped before", "popped after", "changed after"])
async def test_in_order_a_clock_that_was_set_a_moment_ago_is_noticed(tmp_path: Path, hours: int, how: str) -> None:
    """Before the broker's own look, which comes once a second: else the queue is blocked for hours, or not at all."""
    async with post_office(tmp_path) as post:
        await post.send(b"a", b"b")
        if how == "popped after":
            post.clock.step(hours * 3_600_000)
        taken = await post.pop(count=1, order=True)
        if how != "popped after":
            post.clock.step(hours * 3_600_000)
        if how == "changed after":
            await post.change(taken.handles[0], INVISIBLE_MS)
        assert (await post.pop_reply(order=True)).code == ResponseCode.POLLING_TIMEOUT
        await post.pass_time(INVISIBLE_MS - 1_000)
        assert (await post.pop_reply(order=True)).code == ResponseCode.POLLING_TIMEOUT
        await post.pass_time(2_000)
        assert (await post.pop(count=1, order=True)).bodies == [b"a"]


@pytest.mark.parametrize("hours", [3, -3])
async def test_a_client_with_another_clock_may_wait_as_long_as_any(tmp_path: Path, hours: int) -> None:
    async with post_office(tmp_path) as post:
        await post.send(b"before")
        await post.pop()
        born_ms = post.clock.now_ms() + hours * 3_600_000
        wait = asyncio.ensure_future(post.pop(poll_ms=10_000, born_time=born_ms))
        await post.until_waiting()
        post.clock.step(-hours * 3_600_000)
        await post.pass_time(5_000)
        assert not wait.done()
        await post.send(b"a")
        assert (await asyncio.wait_for(wait, PATIENCE_SECONDS)).bodies == [b"a"]

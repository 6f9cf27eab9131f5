"""What a broker says about itself, asked over the wire."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from cosmodrome.broker.statistics import SAMPLE_MS
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, FlushDiskType, StoreConfig, parse_properties
from cosmodrome.model import Subscription
from cosmodrome.store.message import Durability
from cosmodrome.store.paths import StorePaths
from cosmodrome.testing import FakeClock
from cosmodrome.wire.bodies import BrokerStats, ConsumeStats, KVTable, StatsItem
from cosmodrome.wire.pop import NORMAL, Handle
from cosmodrome.wire.requests import (
    AckMessage,
    ConsumeStatsRequest,
    PopMessage,
    PopReply,
    SendBack,
    TopicHeader,
    UpdateConsumerOffset,
    ViewBrokerStats,
)
from tests.system.cluster import SMALL_STORE
from tests.system.wired import GROUP, Wired, wired

PATHS = ("storePathCommitLog", "storePathConsumeQueue", "storePathIndex", "storeCheckpoint", "abortFile")


async def stats(client: Wired, name: str, key: str) -> StatsItem:
    reply = await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStats(name, key))
    return BrokerStats.decode(bytes(reply.body)).minute


async def test_sends_and_pulls_are_counted(tmp_path: Path) -> None:
    clock = FakeClock()
    async with wired(tmp_path, clock=clock) as client:
        for _ in range(3):
            await client.send("t", b"body")
        await client.heartbeat(Subscription("t"))
        assert len((await client.pull("t")).bodies) == 3
        await clock.advance(SAMPLE_MS)
        assert await stats(client, "TOPIC_PUT_NUMS", "t") == StatsItem(3, 0.3, 1.0)
        assert await stats(client, "GROUP_GET_NUMS", f"t@{GROUP}") == StatsItem(3, 0.3, 3.0)
        sent, got = await stats(client, "QUEUE_PUT_SIZE", "t@0"), await stats(client, "QUEUE_GET_SIZE", f"t@0@{GROUP}")
        assert sent.sum == got.sum == client.broker.store.max_physical_offset
        assert (await stats(client, "BROKER_PUT_NUMS", "DefaultCluster")).sum == 3
        missing = await client.call(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStats("TOPIC_PUT_NUMS", "u"))
        assert (missing.code, missing.remark) == (ResponseCode.SYSTEM_ERROR, "The stats <TOPIC_PUT_NUMS> <u> not exist")


async def test_how_long_a_send_waits_for_the_disk_is_told(tmp_path: Path) -> None:
    store = dataclasses.replace(SMALL_STORE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    clock = FakeClock()
    async with wired(tmp_path, store=store, clock=clock) as client:
        durable = client.broker.store.durable

        async def slow(end: int, *, wait: bool = True) -> Durability:
            await clock.advance(7)
            return await durable(end, wait=wait)

        client.broker.store.durable = slow  # type: ignore[method-assign]
        await client.send("t", b"body")
        await client.send("t", b"body")
        await clock.advance(SAMPLE_MS)
        took = await stats(client, "TOPIC_PUT_LATENCY", "0@t")
    assert (took.sum, took.avgpt) == (14, 7.0)


async def test_how_far_a_group_is_behind(tmp_path: Path) -> None:
    clock = FakeClock()
    async with wired(tmp_path, clock=clock) as client:
        await client.send("t", b"first")
        await clock.advance(1_000)
        await client.send("t", b"second")
        await client.heartbeat(Subscription("t"))
        await client.pull("t", max_msg_nums=1)
        await clock.advance(SAMPLE_MS)
        key = f"0@t@{GROUP}"
        assert (await stats(client, "GROUP_GET_FALL_SIZE", key)).sum == client.broker.store.max_physical_offset
        assert (await stats(client, "GROUP_GET_FALL_TIME", key)).sum == 1_000 + SAMPLE_MS
        assert (await stats(client, "GROUP_GET_LATENCY", key)).avgpt > 0
        await client.pull("t", 1)
        assert (await stats(client, "GROUP_GET_FALL_SIZE", key)).sum == 0
        assert (await stats(client, "GROUP_GET_FALL_TIME", key)).sum == 0
        for unknown in ("", "x@t@g", f"1@t@{GROUP}"):
            query = ViewBrokerStats("GROUP_GET_FALL_SIZE", unknown)
            reply = await client.call(RequestCode.VIEW_BROKER_STATS_DATA, query)
            assert (reply.remark or "").endswith("not exist")


async def test_consume_stats_tell_what_was_pulled_and_not_yet_committed(tmp_path: Path) -> None:
    async with wired(tmp_path) as client:
        for _ in range(5):
            await client.send("t", b"body")
        await client.heartbeat(Subscription("t"))

        async def told() -> tuple[int, int, int]:
            reply = await client.ask(RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest(GROUP, "t"))
            (place,) = ConsumeStats.decode(bytes(reply.body)).offsets.values()
            return place.broker_offset, place.consumer_offset, place.pull_offset

        assert await told() == (5, 0, 0)
        await client.pull("t", max_msg_nums=3)
        assert await told() == (5, 0, 3)
        await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(GROUP, "t", 0, 2))
        assert await told() == (5, 2, 3)
        await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(GROUP, "t", 0, 5))
        assert await told() == (5, 5, 5)
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("t"))
        await client.send("t", b"body")
        assert await told() == (1, 0, 0)


async def test_dead_letters_are_counted(tmp_path: Path) -> None:
    clock = FakeClock()
    async with wired(tmp_path, clock=clock) as client:
        await client.send("t", b"body")
        await client.heartbeat(Subscription("t"))
        await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(0, GROUP, -1, origin_topic="t"))
        await clock.advance(SAMPLE_MS)
        assert (await stats(client, "SNDBCK_PUT_NUMS", f"t@{GROUP}")).sum == 1
        assert (await stats(client, "DLQ_PUT_NUMS", f"t@{GROUP}")).sum == 1
        assert (await stats(client, "SNDBCK2DLQ_TIMES", f"null@t@{GROUP}@SEND_BACK_TO_DLQ")).sum == 1


async def test_pops_and_acks_are_counted(tmp_path: Path) -> None:
    clock = FakeClock()
    async with wired(tmp_path, clock=clock) as client:
        await client.send("t", b"body")
        pop = PopMessage(GROUP, "t", 0, 1, 30_000, 0)
        reply = PopReply.decode(await client.ask(RequestCode.POP_MESSAGE, pop))
        handle = Handle(0, reply.pop_time, reply.invisible_time, reply.revive_qid, NORMAL, "broker-a", 0, 0).encode()
        await client.ask(RequestCode.ACK_MESSAGE, AckMessage(GROUP, "t", 0, handle, 0))
        await clock.advance(SAMPLE_MS)
        for event in ("CK", "ACK", "GET"):
            assert (await stats(client, f"GROUP_{event}_NUMS", f"t@{GROUP}")).sum == 1, event
            assert (await stats(client, f"BROKER_{event}_NUMS", "DefaultCluster")).sum >= 1, event


async def test_the_runtime_info_speaks_of_traffic_and_disk(tmp_path: Path) -> None:
    clock = FakeClock()
    async with wired(tmp_path, clock=clock) as client:
        await client.send("t", b"body")
        await clock.advance(SAMPLE_MS)
        table = KVTable.decode(bytes((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)).table
    assert table["putTps"].split()[0] == "0.1"
    assert (table["msgPutTotalTodayNow"], table["putMessageTimesTotal"]) == ("1", "1")
    assert (table["brokerActive"], table["runtime"]) == ("true", "[ 0 days, 0 hours, 0 minutes, 10 seconds ]")
    assert int(table["commitLogMaxOffset"]) == int(table["putMessageSizeTotal"]) > 0
    assert int(table["earliestMessageTimeStamp"]) == int(table["bootTimestamp"])
    assert 0 < float(table["commitLogDiskRatio"]) < 1


async def test_the_config_makes_the_same_broker_again(tmp_path: Path) -> None:
    async with wired(tmp_path) as client:
        reply = await client.ask(RequestCode.GET_BROKER_CONFIG)
        keys = parse_properties(bytes(reply.body).decode())
        assert BrokerConfig().with_properties(keys) == client.broker.config
        root, made = Path(client.broker.store_config.store_path_root_dir), StoreConfig().with_properties(keys)
        assert StorePaths.of(root, made) == client.broker.store.paths
        assert made.store_path_commit_log == str(root / "commitlog")
        given = {key: value for key, value in keys.items() if key not in PATHS}
        assert StoreConfig().with_properties(given) == client.broker.store_config
        assert "counter" in reply.fields["version"]

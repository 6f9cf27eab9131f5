"""What a broker says about itself, asked over the wire."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from pathlib import Path

from cosmodrome.broker.statistics import SAMPLE_MS, PutTimes
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
    SendMessage,
    TopicHeader,
    UpdateConsumerOffset,
    ViewBrokerStats,
)
from tests.system.cluster import SMALL_STORE
from tests.system.wired import GROUP, Wired, until, wired

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


async def runtime_info(client: Wired) -> dict[str, str]:
    return dict(KVTable.decode(bytes((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)).table)


# What Apache's 4.9.7 and 5.3.3 say; some of it in one of them only.
WHOLE_NUMBERS = (
    *("bootTimestamp", "brokerVersion", "commitLogMaxOffset", "commitLogMinOffset", "dispatchBehindBytes"),
    *("dispatchMaxBuffer", "earliestMessageTimeStamp", "getMessageEntireTimeMax", "pageCacheLockTimeMills"),
    *("msgGetTotalTodayMorning", "msgGetTotalTodayNow", "msgGetTotalYesterdayMorning"),
    *("msgPutTotalTodayMorning", "msgPutTotalTodayNow", "msgPutTotalYesterdayMorning"),
    *("putMessageEntireTimeMax", "putMessageFailedTimes", "putMessageSizeTotal", "putMessageTimesTotal"),
    *("remainTransientStoreBufferNumbs", "startAcceptSendRequestTimeStamp"),
    *("timerCongestNum", "timerOffsetBehind", "timerReadBehind"),
    *("EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity"),
    *(
        f"{kind}ThreadPoolQueue{what}"
        for kind in ("send", "pull", "litePull", "query", "ack")
        for what in ("Size", "Capacity", "HeadWaitTimeMills")
    ),
)
NUMBERS = (
    *("commitLogDiskRatio", "consumeQueueDiskRatio", "putMessageAverageSize", "putLatency99", "putLatency999"),
    *("timerEnqueueTps", "timerDequeueTps"),
)
RATES = ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps", "getTransferedTps")


async def test_the_runtime_info_has_every_key_of_apaches_in_its_form(tmp_path: Path) -> None:
    """Exporters for dashboards read them all, and fail on a single one that is missing or cannot be parsed."""
    async with wired(tmp_path) as client:
        await client.send("t", b"body", DELAY="1")
        await until(lambda: len(client.stored("t")) == 1)
        table = await runtime_info(client)
    assert all(int(table[key]) >= 0 for key in WHOLE_NUMBERS)
    assert all(float(table[key]) >= 0 for key in NUMBERS)
    for key in RATES:
        assert len([float(word) for word in table[key].split(" ")]) == 3, key
    assert table["getTransferredTps"] == table["getTransferedTps"]
    assert re.fullmatch(r"Total : \d+\.\d [KMGTPE]iB, Free : \d+\.\d [KMGTPE]iB\.", table["commitLogDirCapacity"])
    assert re.fullmatch(r"\d+ B|\d+\.\d [KMGTPE]iB", table["remainHowManyDataToFlush"])
    classes = [word.split(":") for word in table["putMessageDistributeTime"].split(" ")]
    assert (len(classes), classes[0][0], classes[-1][0]) == (13, "[<=0ms]", "[10s~]")
    assert table["scheduleMessageOffset_1"] == "1,1"
    assert table["brokerActive"] == "true"


async def test_the_runtime_info_tells_of_timers_and_failed_puts(tmp_path: Path) -> None:
    clock = FakeClock()
    async with wired(tmp_path, clock=clock) as client:
        for number in range(3):
            await client.send("t", b"body", TIMER_DELAY_SEC=str(2 * number + 1))
        table = await runtime_info(client)
        assert (table["timerOffsetBehind"], table["timerCongestNum"]) == ("3", "0")
        while len(client.stored("t")) == 0:
            await clock.advance(500)
            await asyncio.sleep(0.01)
        table = await runtime_info(client)
        assert (table["timerOffsetBehind"], table["timerCongestNum"]) == ("0", "2")
        while float(table["timerDequeueTps"]) == 0:
            await clock.advance(500)
            await asyncio.sleep(0.01)
            table = await runtime_info(client)
        assert float(table["timerEnqueueTps"]) > 0

        header = SendMessage("p", "t", "TBW102", 1, 0, 0, 0, 0, "a\x01" + "x" * 33_000)
        assert (await client.call(RequestCode.SEND_MESSAGE, header, b"b")).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await runtime_info(client))["putMessageFailedTimes"] == "1"


def test_how_long_puts_took_is_told_by_apaches_classes() -> None:
    times = PutTimes()
    times.pass_by(0, 0)
    for took_ms in (1, 9, 10, 499, 500, 9_999, 10_000, 123_456):
        times.note(took_ms)
    times.pass_by(10_000, 1_000)
    assert times.text() == (
        "[<=0ms]:992 [0~10ms]:2 [10~50ms]:1 [50~100ms]:0 [100~200ms]:0 [200~500ms]:1 [500ms~1s]:1 "
        "[1~2s]:0 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:1 [10s~]:2"
    )
    assert (times.quantile(0.99), times.quantile(0.995), times.quantile(0.999)) == (0.0, 10.0, 10_000.0)
    for minute in (1, 2):
        times.pass_by(minute * 60_000, 1_000 + minute)
    assert (times.text().split(" ")[0], times.quantile(0.999), times.max_ms) == ("[<=0ms]:1", 0.0, 123_456)


async def test_the_runtime_info_tells_what_the_start_found_wrong_with_the_log(tmp_path: Path) -> None:
    async with wired(tmp_path) as client:
        for number in range(3):
            await client.send("t", b"body %d" % number)
        root = client.broker.store.paths.root
    file = root / "commitlog" / f"{0:020d}"
    data = file.read_bytes()
    with file.open("r+b") as log:
        log.seek(data.index(b"body 1"))
        log.write(b"rot")
    (root / "abort").write_text("1")  # the power failed
    async with wired(tmp_path) as client:
        table = KVTable.decode(bytes((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)).table
    assert (table["startDamagedParts"], table["startLostMessages"], table["startKeptAsideBytes"]) == ("1", "1", "0")
    assert int(table["startDamagedBytes"]) > 91


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

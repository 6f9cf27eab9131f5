"""What a slave asks of its master, in which order, and what one part that fails costs the others."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import pytest

from cosmodrome.broker.broker import Broker
from cosmodrome.broker.metadata_sync import CHANGES_MS, FIRST_AFTER_MS, HURRY_MS, PERIOD_MS, MetadataSync
from cosmodrome.broker.registration import Master
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, BrokerRole, ReplicationConfig
from cosmodrome.errors import ConnectionFailed
from cosmodrome.model import DataVersion, GroupConfig, TopicConfig
from cosmodrome.net.caller import Caller
from cosmodrome.store.timer_checkpoint import TimerCheckpoint
from cosmodrome.testing import FakeClock
from cosmodrome.testing.daemons import SMALL_STORE
from cosmodrome.wire.bodies import (
    ConsumerOffsetsBody,
    DelayOffsetsBody,
    GroupConfigWrapper,
    KVTable,
    RequestModesBody,
    TimerMetricsBody,
    TopicConfigWrapper,
)
from cosmodrome.wire.command import Command
from cosmodrome.wire.role_requests import AwaitTables, TableVersions
from tests.unit.replication.pairs import until

VERSION = DataVersion(1_700_000_000_000, 7, 0)
ADDRESS = "10.0.0.1:10911"
ONLY_OF_5 = (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, RequestCode.GET_TIMER_METRICS, RequestCode.GET_TIMER_CHECK_POINT)


class FakeMaster:
    """Answers as a master with one topic, one group and offsets does; its log is empty."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.refusals: dict[int, int] = {}  # request code → response code
        self.is_down = False
        self.log_end = 0
        self.tables = TableVersions("1", "1")
        self.changed = asyncio.Event()
        self.more_topics: dict[str, TopicConfig] = {}

    async def call(self, address: str, command: Command, _timeout_ms: float) -> Command:
        assert address == ADDRESS
        if self.is_down:
            raise ConnectionFailed(address, "down")
        self.asked.append(command.code)
        if (refusal := self.refusals.get(command.code)) is not None:
            return command.reply(refusal, remark="not now")
        if command.code == RequestCode.AWAIT_TABLES:
            asked = AwaitTables.decode(command)
            if asked == AwaitTables(self.tables.topic_version, self.tables.group_version, PERIOD_MS):
                await self.changed.wait()
            return command.reply(header=self.tables)
        return command.reply(body=self._bodies()[command.code])

    def _bodies(self) -> dict[int, bytes]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: KVTable({"commitLogMaxOffset": str(self.log_end)}).encode(),
            RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigWrapper(
                dataclasses.replace(VERSION, counter=len(self.more_topics)),
                {"T": TopicConfig("T", 2, 2), **self.more_topics},
            ).encode(),
            RequestCode.GET_ALL_CONSUMER_OFFSET: ConsumerOffsetsBody(VERSION, {"T@g": {0: 5}}).encode(),
            RequestCode.GET_ALL_DELAY_OFFSET: DelayOffsetsBody(VERSION, {3: 17}).encode(),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: GroupConfigWrapper(VERSION, {"g": GroupConfig("g")}).encode(),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: RequestModesBody({}).encode(),
            RequestCode.GET_TIMER_CHECK_POINT: TimerCheckpoint(1_700_000_000_000, 52, 9).encoded(),
            RequestCode.GET_TIMER_METRICS: TimerMetricsBody(VERSION, {"T": (3, 1)}).encode(),
        }


@pytest.fixture
def master() -> FakeMaster:
    return FakeMaster()


@pytest.fixture
async def slave(tmp_path: Path, master: FakeMaster) -> AsyncIterator[Broker]:
    broker = Broker(
        BrokerConfig(broker_id=1, broker_name="b"),
        dataclasses.replace(SMALL_STORE, store_path_root_dir=str(tmp_path)),
        clock=FakeClock(),
        replication=ReplicationConfig(broker_role=BrokerRole.SLAVE),
    )
    broker.metadata_sync = MetadataSync(broker, cast(Caller, master))
    broker.registration.master = Master(ADDRESS, "10.0.0.1:10912")
    yield broker
    broker.lane.close()
    broker.timers.pending.close()
    broker.store.close()


async def test_everything_is_taken_over_in_order(slave: Broker, master: FakeMaster) -> None:
    await slave.metadata_sync.round(ADDRESS)
    assert slave.metadata_sync.rounds == 1
    in_order = [code for code in master.asked if code != RequestCode.GET_BROKER_RUNTIME_INFO]
    assert in_order == [
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_TIMER_CHECK_POINT,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        RequestCode.GET_TIMER_METRICS,
    ]
    assert slave.topics.topic("T").write_queues == 2
    assert slave.offsets.find_offset("g", "T", 0) == 5
    assert slave.delays.body().offsets == {3: 17}
    assert slave.timers.pending.saved_queue_offset == 9
    assert slave.timers.metrics.pending("T") == 3


@pytest.mark.parametrize(
    ("code", "still_there"),
    [
        (RequestCode.GET_ALL_TOPIC_CONFIG, lambda slave: slave.offsets.find_offset("g", "T", 0) == 5),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, lambda slave: slave.delays.body().offsets == {3: 17}),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, lambda slave: slave.offsets.find_offset("g", "T", 0) == 5),
        (RequestCode.GET_TIMER_CHECK_POINT, lambda slave: slave.timers.metrics.pending("T") == 3),
    ],
)
async def test_a_part_that_fails_is_logged_once_and_the_others_go_on(
    slave: Broker,
    master: FakeMaster,
    caplog: pytest.LogCaptureFixture,
    code: RequestCode,
    still_there: Callable[[Broker], bool],
) -> None:
    caplog.set_level("INFO")
    master.refusals[code] = ResponseCode.SYSTEM_ERROR
    for _ in range(2):
        await slave.metadata_sync.round(ADDRESS)
    assert slave.metadata_sync.rounds == 0
    assert still_there(slave)
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert f"{ADDRESS} answered request {int(code)} with 1: not now; trying again" in errors[0]
    master.refusals.clear()
    await slave.metadata_sync.round(ADDRESS)
    assert slave.metadata_sync.rounds == 1
    assert any("taken over from the master again" in line for line in caplog.messages)


async def test_an_older_master_lacks_some_parts_and_that_is_no_error(
    slave: Broker, master: FakeMaster, caplog: pytest.LogCaptureFixture
) -> None:
    for code in ONLY_OF_5:
        master.refusals[code] = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    await slave.metadata_sync.round(ADDRESS)
    assert slave.metadata_sync.rounds == 1
    assert slave.delays.body().offsets == {3: 17}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_how_far_services_are_waits_for_the_log(slave: Broker, master: FakeMaster) -> None:
    master.log_end = 1_000
    clock = slave.clock
    assert isinstance(clock, FakeClock)

    round_ = asyncio.create_task(slave.metadata_sync.round(ADDRESS))
    while not round_.done():
        await clock.advance(PERIOD_MS)
        await asyncio.sleep(0.001)
    assert slave.topics.find_topic("T") is not None
    assert slave.offsets.find_offset("g", "T", 0) is None
    assert slave.delays.body().offsets == {}
    master.asked.clear()
    slave.store.flusher.flushed = 1_000
    await slave.metadata_sync.round(ADDRESS)
    assert RequestCode.GET_ALL_CONSUMER_OFFSET not in master.asked, "what was told before is taken first"
    assert slave.offsets.find_offset("g", "T", 0) == 5
    slave.store.flusher.flushed = 0


async def test_a_master_that_is_away_is_one_line(
    slave: Broker, master: FakeMaster, caplog: pytest.LogCaptureFixture
) -> None:
    master.is_down = True
    for _ in range(3):
        await slave.metadata_sync.round(ADDRESS)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"cannot take over from the master its tables: {ADDRESS}: down; trying again"
    ]


async def test_a_message_of_an_unknown_topic_brings_the_next_round_forward(slave: Broker, master: FakeMaster) -> None:

    clock = slave.clock
    assert isinstance(clock, FakeClock)
    running = asyncio.create_task(slave.metadata_sync.run())
    await clock.advance(FIRST_AFTER_MS - 1)
    assert master.asked == []
    await clock.advance(1)
    while slave.metadata_sync.rounds < 1:  # noqa: ASYNC110  # the table is written in a thread
        await asyncio.sleep(0.001)
    slave.metadata_sync.arrived("T")
    await clock.advance(HURRY_MS)
    await asyncio.sleep(0.01)
    assert slave.metadata_sync.rounds == 1
    slave.metadata_sync.arrived("made-since")
    while slave.metadata_sync.rounds < 2:
        await clock.advance(0)
        await asyncio.sleep(0.001)
    running.cancel()


# --- changes of topics and groups, at once


async def test_a_change_at_the_master_is_taken_over_without_waiting_for_a_round(
    slave: Broker, master: FakeMaster
) -> None:
    clock = cast(FakeClock, slave.clock)
    running = asyncio.create_task(slave.metadata_sync.run())
    try:
        await clock.advance(FIRST_AFTER_MS)
        await until(lambda: slave.metadata_sync.rounds == 1)
        await clock.advance(CHANGES_MS)
        asked = len(master.asked)
        master.tables = TableVersions("2", "1")
        master.more_topics = {"new": TopicConfig("new", 5, 5)}
        master.changed.set()
        await until(lambda: slave.topics.find_topic("new") == TopicConfig("new", 5, 5))
        await until(lambda: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG in master.asked[asked:])
        assert [code for code in master.asked[asked:] if code != RequestCode.AWAIT_TABLES][:2] == [
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        ]
    finally:
        running.cancel()


async def test_a_master_that_knows_no_such_request_is_asked_for_it_rarely(slave: Broker, master: FakeMaster) -> None:
    master.refusals[RequestCode.AWAIT_TABLES] = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    clock = cast(FakeClock, slave.clock)
    running = asyncio.create_task(slave.metadata_sync.run())
    try:
        await clock.advance(FIRST_AFTER_MS)
        for rounds in (1, 2, 3):
            await until(lambda: slave.metadata_sync.rounds == rounds)  # noqa: B023
            assert master.asked.count(RequestCode.AWAIT_TABLES) <= rounds
            await clock.advance(PERIOD_MS)
    finally:
        running.cancel()

"""The slave's side over real sockets: mostly with the real master's side, sometimes with a script."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cosmodrome.config import ReplicationConfig
from cosmodrome.errors import ConnectionFailed, ProtocolError
from cosmodrome.replication.epochs import LogDiverged, LogEpoch, MasterLog
from cosmodrome.replication.follower import RETRY_MS, Follower, FollowerSession, FollowerState
from cosmodrome.replication.packets import REPORT, encode_head
from cosmodrome.store.message import Durability
from cosmodrome.testing import FakeClock
from tests.simulation.replication_lives import FILE_SIZE, FakeLog
from tests.unit.replication.pairs import (
    HOST,
    PATIENCE_SECONDS,
    ROOT,
    answers,
    following,
    leading,
    make_log,
    refuses,
    until,
)

CONFIG = ReplicationConfig(ha_transfer_batch_size=100)
HISTORY = ReplicationConfig(ha_fetch_history=True)


def same(slave: FakeLog, master: FakeLog) -> bool:
    end = master.max_physical_offset
    return slave.max_physical_offset == end and slave.read(slave.begin, end) == master.read(slave.begin, end)


async def test_a_slave_goes_on_where_it_was_and_follows() -> None:
    ours, its = make_log(10), make_log(60)
    assert its.read(0, ours.max_physical_offset) == ours.bytes
    clock = FakeClock()
    async with (
        leading(its, CONFIG, clock) as leader,
        following(ours, f"{HOST}:{leader.port}", CONFIG, clock, answers(its)) as follower,
    ):
        await until(lambda: same(ours, its))
        for _ in range(5):
            its.append()
            leader.appended()
        await until(lambda: same(ours, its))
        await until(lambda: leader.slaves()[0].reported == its.max_physical_offset)
        status = follower.status()
        assert (status.state, status.is_checked, status.problem) == (FollowerState.FOLLOWING, True, "")
        assert status.reported == its.max_physical_offset
    assert follower.status().state is FollowerState.AWAY


async def test_the_log_is_cut_and_the_epochs_are_adopted_before_the_first_report() -> None:
    ours, its = make_log(60), make_log(20)
    its.epochs.begin(its.max_physical_offset, "second", 1)
    for _ in range(3):
        its.append()
    clock = FakeClock()
    async with (
        leading(its, CONFIG, clock) as leader,
        following(ours, f"{HOST}:{leader.port}", CONFIG, clock, answers(its)),
    ):
        await until(lambda: same(ours, its))
        assert ours.epochs.list == its.epochs.list


async def test_the_master_is_asked_after_the_connection_is_there() -> None:
    ours, its, clock = make_log(), make_log(3), FakeClock()
    async with leading(its, CONFIG, clock) as leader:
        seen = []

        async def inquire() -> MasterLog | None:
            await until(lambda: leader.slaves() != [])
            seen.append(leader.slaves()[0].reported)
            return await answers(its)()

        async with following(ours, f"{HOST}:{leader.port}", CONFIG, clock, inquire):
            await until(lambda: same(ours, its))
        assert seen == [-1]


async def test_a_slave_that_syncs_reports_what_is_synced() -> None:
    ours, its, clock = make_log(syncs=True), make_log(3), FakeClock()
    async with (
        leading(its, CONFIG, clock) as leader,
        following(ours, f"{HOST}:{leader.port}", CONFIG, clock, answers(its)),
    ):
        await until(lambda: same(ours, its))
        _, end = its.append()
        waiting = asyncio.create_task(leader.replicated(end))
        leader.appended()
        await until(lambda: same(ours, its))
        assert leader.slaves()[0].reported == 0
        assert not waiting.done()
        ours.sync()
        assert await waiting is Durability.OK


async def test_the_first_report_waits_until_all_of_the_log_is_safe() -> None:
    ours, its, clock = make_log(3, syncs=True), make_log(3), FakeClock()
    async with (
        leading(its, CONFIG, clock) as leader,
        following(ours, f"{HOST}:{leader.port}", CONFIG, clock, answers(its)) as follower,
    ):
        await until(lambda: follower.status().state is FollowerState.HOLDING)
        await clock.advance(CONFIG.ha_send_heartbeat_interval)
        assert leader.slaves()[0].reported == -1
        ours.sync()
        await until(lambda: leader.in_sync_copies() == 2)


@pytest.mark.parametrize("config", [CONFIG, HISTORY])
async def test_an_empty_slave_begins_with_the_last_file_or_with_the_whole_history(config: ReplicationConfig) -> None:
    ours, its, clock = make_log(), make_log(100), FakeClock()
    its.drop_first_file()
    async with (
        leading(its, CONFIG, clock) as leader,
        following(ours, f"{HOST}:{leader.port}", config, clock, answers(its)),
    ):
        await until(lambda: same(ours, its))
    last = its.max_physical_offset - its.max_physical_offset % FILE_SIZE
    assert ours.begin == (FILE_SIZE if config is HISTORY else last)


async def test_the_history_of_a_log_that_begins_at_0_is_asked_for_with_1() -> None:
    ours, its, clock = make_log(), make_log(100), FakeClock()
    async with (
        leading(its, CONFIG, clock) as leader,
        following(ours, f"{HOST}:{leader.port}", HISTORY, clock, answers(its)),
    ):
        await until(lambda: same(ours, its))
        assert ours.begin == 0
        assert leader.slaves()[0].begins == 1


async def test_without_an_answer_about_epochs_the_slave_follows_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, its, clock = make_log(), make_log(3), FakeClock()
    async with (
        leading(its, CONFIG, clock) as leader,
        following(ours, f"{HOST}:{leader.port}", CONFIG, clock, refuses) as follower,
    ):
        await until(lambda: same(ours, its))
        assert not follower.status().is_checked
        next(iter(leader._links)).close("a test")
        await until(lambda: follower.status().state is FollowerState.AWAY)
        its.append()
        await clock.advance(RETRY_MS)
        await until(lambda: same(ours, its))
    assert caplog.text.count("master without epochs") == 1


async def test_a_slave_comes_back_after_five_seconds() -> None:
    ours, its, clock = make_log(), make_log(3), FakeClock()
    asked = 0

    async def inquire() -> MasterLog | None:
        nonlocal asked
        asked += 1
        raise ConnectionFailed("master", "not yet")

    async with (
        leading(its, CONFIG, clock) as leader,
        following(ours, f"{HOST}:{leader.port}", CONFIG, clock, inquire) as follower,
    ):
        await until(lambda: asked == 1)
        await until(lambda: follower.status().problem != "" and follower._link is None)
        await clock.advance(RETRY_MS - 1)
        assert asked == 1
        await clock.advance(1)
        await until(lambda: asked == 2)
        assert leader.in_sync_copies() == 1, "nothing may be reported to a master that did not answer"


async def test_another_master_is_followed_at_once() -> None:
    ours, one, other, clock = make_log(), make_log(3), make_log(40), FakeClock()
    async with (
        leading(one, CONFIG, clock) as first,
        leading(other, CONFIG, clock) as second,
        following(ours, f"{HOST}:{first.port}", CONFIG, clock, answers(other)) as follower,
    ):
        await until(lambda: same(ours, one))
        follower.follow(f"{HOST}:{second.port}")
        await until(lambda: same(ours, other))  # the clock stands still: there was no pause
        await until(lambda: first.slaves() == [])
        follower.follow(None)
        await until(lambda: second.slaves() == [])
        assert follower.status().master is None


@pytest.mark.parametrize("turns", range(12))
async def test_a_slave_that_stops_in_the_midst_of_connecting_ends(turns: int) -> None:
    """uvloop never tells that a connection is lost whose opening was cancelled after `connection_made`."""
    its, clock = make_log(3), FakeClock()
    async with leading(its, CONFIG, clock) as leader:
        follower = Follower(make_log(), CONFIG, clock, answers(its))
        follower.follow(f"{HOST}:{leader.port}")
        running = asyncio.create_task(follower.run())
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait((running,), timeout=PATIENCE_SECONDS)
        assert running.cancelled()
        await until(lambda: leader.slaves() == [])


async def test_nothing_is_appended_after_close() -> None:
    ours, its, clock = make_log(), make_log(3), FakeClock()
    async with (
        leading(its, CONFIG, clock) as leader,
        following(ours, f"{HOST}:{leader.port}", CONFIG, clock, answers(its)) as follower,
    ):
        await until(lambda: same(ours, its))
        its.append()
        leader.appended()
        await follower.close()
        end = ours.max_physical_offset
        assert ours.on_safe is None
        await until(lambda: leader.slaves() == [])
        assert ours.max_physical_offset == end


async def test_a_stale_master_is_refused_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    ours, its, clock = make_log(3), make_log(3), FakeClock()
    ours.epochs.adopt([ROOT, LogEpoch(2, "promoted", 10)])
    asked = 0

    async def inquire() -> MasterLog | None:
        nonlocal asked
        asked += 1
        return await answers(its)()

    async with (
        leading(its, CONFIG, clock) as leader,
        following(ours, f"{HOST}:{leader.port}", CONFIG, clock, inquire) as follower,
    ):
        await until(lambda: "stale" in follower.status().problem and leader.slaves() == [])
        await clock.advance(RETRY_MS)
        await until(lambda: asked == 2 and leader.slaves() == [])
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "the master is stale" in errors[0].message


# --- with a master that is a script


@asynccontextmanager
async def scripted(*sent: bytes) -> AsyncIterator[tuple[str, list[int]]]:
    """A master that sends this after the first report, to everybody; with the first reports it got."""
    firsts: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            firsts.append(REPORT.unpack(await reader.readexactly(REPORT.size))[0])
            for piece in sent:
                writer.write(piece)
                await writer.drain()
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}", firsts


@pytest.mark.parametrize("heartbeat", [True, False])
async def test_a_master_with_another_log_is_tried_slowly_and_named_once(
    heartbeat: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ours, clock = make_log(3), FakeClock()
    packet = encode_head(10_000, 0) if heartbeat else encode_head(10_000, 3) + b"abc"
    async with (
        scripted(packet) as (address, firsts),
        following(ours, address, CONFIG, clock) as follower,
    ):
        for tries in range(1, 4):
            await until(lambda tries=tries: len(firsts) == tries and follower._link is None)  # type: ignore[misc]
            await clock.advance(RETRY_MS - 1)
            assert len(firsts) == tries
            await clock.advance(1)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "move its store folder away" in errors[0].message
    assert firsts[0] == ours.max_physical_offset


async def test_nonsense_ends_the_connection() -> None:
    ours, clock = make_log(3), FakeClock()
    async with (
        scripted(encode_head(ours.max_physical_offset, -5)) as (address, _),
        following(ours, address, CONFIG, clock) as follower,
    ):
        await until(lambda: "-5 bytes" in follower.status().problem)


async def test_a_silent_master_is_left() -> None:
    ours, clock = make_log(3), FakeClock()
    async with (
        scripted() as (address, firsts),
        following(ours, address, CONFIG, clock) as follower,
    ):
        await until(lambda: len(firsts) == 1)
        await clock.advance(CONFIG.ha_housekeeping_interval)
        assert follower.status().state is FollowerState.FOLLOWING
        await clock.advance(1)
        await until(lambda: "haHousekeepingInterval" in follower.status().problem)


@pytest.mark.parametrize("address", ["nowhere", "host:0", "host:99999", ":1", "127.0.0.1:port"])
async def test_an_address_that_is_none_is_a_problem_and_no_more(address: str) -> None:
    async with following(make_log(), address, CONFIG, FakeClock()) as follower:
        await until(lambda: "host:port" in follower.status().problem)


async def test_an_error_of_the_disk_comes_out_of_run() -> None:
    ours, clock = make_log(3), FakeClock()

    def fail(offset: int, data: bytes | memoryview, /) -> None:
        raise OSError("the disk is broken")

    ours.append_raw = fail  # type: ignore[method-assign]
    async with scripted(encode_head(ours.max_physical_offset, 3) + b"abc") as (address, _):
        follower = Follower(ours, CONFIG, clock, refuses)
        follower.follow(address)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(OSError, match="the disk is broken"):
                await follower.run()
        await follower.close()


# --- the session by itself


def session(log: FakeLog, master: MasterLog | None = None, config: ReplicationConfig = CONFIG) -> FollowerSession:
    made = FollowerSession(log, config, 0)
    made.answered(master, 0)
    return made


def test_an_unfinished_record_is_cut_before_the_first_report() -> None:
    log = make_log(3)
    whole = log.max_physical_offset
    log.append_raw(whole, (50).to_bytes(4, "big") + b"half")
    assert session(log).take_report(0) == REPORT.pack(whole)


def test_reports_are_sent_for_something_new_and_now_and_then() -> None:
    log = make_log(3)
    one = session(log)
    assert one.take_report(0) is not None
    assert one.take_report(CONFIG.ha_send_heartbeat_interval - 1) is None
    assert one.take_report(CONFIG.ha_send_heartbeat_interval) == REPORT.pack(log.max_physical_offset)
    record = (20).to_bytes(4, "big") + bytes(16)
    packet = encode_head(log.max_physical_offset, 20) + record
    one.receive(packet[:30], 5_001)
    assert one.take_report(5_001) is None
    one.receive(packet[30:], 5_002)
    assert one.take_report(5_002) == REPORT.pack(log.max_physical_offset)


def test_a_slave_without_bytes_never_takes_its_first_report_back() -> None:
    one = session(make_log(), MasterLog([ROOT], 1_024, 3_000), HISTORY)
    assert one.take_report(0) == REPORT.pack(1_024)
    assert one.take_report(CONFIG.ha_send_heartbeat_interval) == REPORT.pack(1_024)
    with pytest.raises(LogDiverged):
        one.receive(encode_head(2_048, 4) + b"abcd", 1)


def test_an_empty_master_has_no_history() -> None:
    assert session(make_log(), MasterLog([ROOT], 0, 0), HISTORY).take_report(0) == REPORT.pack(0)


def test_bytes_before_the_first_report_are_nonsense() -> None:
    one = FollowerSession(make_log(), CONFIG, 0)
    with pytest.raises(ProtocolError, match="before"):
        one.receive(encode_head(0, 0), 0)

"""The master's side over real sockets, with slaves that are scripts."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from cosmodrome.config import ReplicationConfig
from cosmodrome.net.server import CannotListen
from cosmodrome.replication import leader as leader_module
from cosmodrome.replication.leader import Leader, Sender
from cosmodrome.replication.packets import PACKET, encode_report
from cosmodrome.store.message import Durability
from cosmodrome.testing import FakeClock
from tests.simulation.replication_lives import FILE_SIZE, FakeLog
from tests.turns import Turns
from tests.unit.replication.pairs import HOST, PATIENCE_SECONDS, grow, leading, make_log, until

CONFIG = ReplicationConfig(ha_transfer_batch_size=100)


@dataclass
class Slave:
    """One that does what a test says."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def report(self, offset: int) -> None:
        self.writer.write(encode_report(offset))

    async def packet(self) -> tuple[int, bytes]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            offset, size = PACKET.unpack(await self.reader.readexactly(PACKET.size))
            return offset, await self.reader.readexactly(size)

    async def receive_new(self, leader: Leader, log: FakeLog) -> None:
        """Let the log grow, and check that the next packets bring just that."""
        begin, end = grow(log)
        leader.appended()
        offset, data = await self.packet()
        assert offset == begin
        assert data
        assert data + await self.receive(begin + len(data), end) == log.read(begin, end)

    async def receive(self, begin: int, end: int) -> bytes:
        """What comes up to `end`, checked to be in one piece."""
        data = b""
        while begin + len(data) < end:
            offset, more = await self.packet()
            assert offset == begin + len(data)
            assert len(more) <= CONFIG.ha_transfer_batch_size
            assert not more or offset // FILE_SIZE == (offset + len(more) - 1) // FILE_SIZE, "crosses a file"
            data += more
        return data

    async def receive_any(self, begin: int, end: int) -> bytes:
        """The same, in packets of any size."""
        data = b""
        while begin + len(data) < end:
            offset, more = await self.packet()
            assert offset == begin + len(data)
            data += more
        return data

    async def is_closed(self) -> bool:
        """Wait for the end, whatever comes before it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                await self.reader.read()
            except ConnectionError:
                pass
            return True


@asynccontextmanager
async def slave_of(leader: Leader) -> AsyncIterator[Slave]:
    reader, writer = await asyncio.open_connection(HOST, leader.port)
    try:
        yield Slave(reader, writer)
    finally:
        writer.close()


async def test_a_slave_gets_the_log_from_its_end_and_what_is_appended_after() -> None:
    log = make_log(40)
    async with leading(log, CONFIG, FakeClock()) as leader, slave_of(leader) as slave:
        slave.report(20)
        assert await slave.receive(20, log.max_physical_offset) == log.read(20, log.max_physical_offset)
        begin, end = grow(log)
        leader.appended()
        assert await slave.receive(begin, end) == log.read(begin, end)


async def test_an_empty_slave_gets_the_last_file() -> None:
    log = make_log(60)
    begin = log.max_physical_offset - log.max_physical_offset % FILE_SIZE
    assert begin > FILE_SIZE
    async with leading(log, CONFIG, FakeClock()) as leader, slave_of(leader) as slave:
        slave.report(0)
        assert await slave.receive(begin, log.max_physical_offset) == log.read(begin, log.max_physical_offset)


async def test_nothing_is_sent_before_the_first_report() -> None:
    clock, log = FakeClock(), make_log(5)
    async with leading(log, CONFIG, clock) as leader, slave_of(leader) as slave:
        await until(lambda: len(leader.slaves()) == 1)
        log.append()
        leader.appended()
        await clock.advance(CONFIG.ha_send_heartbeat_interval * 2)
        slave.report(log.max_physical_offset)
        await until(lambda: leader.slaves()[0].reported >= 0)
        await clock.advance(CONFIG.ha_send_heartbeat_interval)
        assert await slave.packet() == (log.max_physical_offset, b"")


async def test_heartbeats_come_when_nothing_else_was_sent_for_so_long() -> None:
    clock, log = FakeClock(), make_log(5)
    async with leading(log, CONFIG, clock) as leader, slave_of(leader) as slave:
        slave.report(log.max_physical_offset)
        await until(lambda: leader.in_sync_copies() == 2)
        await clock.advance(4_000)
        await slave.receive_new(leader, log)
        await clock.advance(CONFIG.ha_send_heartbeat_interval - 1)
        slave.report(log.max_physical_offset)
        await slave.receive_new(leader, log)
        await clock.advance(CONFIG.ha_send_heartbeat_interval - 1)
        await slave.receive_new(leader, log)  # none before it
        await clock.advance(CONFIG.ha_send_heartbeat_interval)
        assert await slave.packet() == (log.max_physical_offset, b"")


async def test_a_silent_slave_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock, log = FakeClock(), make_log(5)
    async with leading(log, CONFIG, clock) as leader, slave_of(leader) as slave:
        slave.report(log.max_physical_offset)
        await until(lambda: leader.in_sync_copies() == 2)
        await clock.advance(CONFIG.ha_housekeeping_interval)
        assert leader.in_sync_copies() == 2
        await clock.advance(1)
        assert await slave.is_closed()
        await until(lambda: leader.slaves() == [])
    assert "slave lost" in caplog.text
    assert "haHousekeepingInterval" in caplog.text


async def test_any_number_of_appends_of_a_turn_is_one_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(1)
    config = ReplicationConfig()
    async with leading(log, config, FakeClock()) as leader, slave_of(leader) as slave:
        slave.report(log.max_physical_offset)
        await until(lambda: leader.in_sync_copies() == 2)
        with Turns() as turns:
            monkeypatch.setattr(Sender, "packet", turns.counting(Sender.packet))
            begin = log.max_physical_offset
            for _ in range(5):
                log.append()
                leader.appended()
            assert turns.total == 0
            assert await slave.packet() == (begin, log.read(begin, log.max_physical_offset))
            assert turns.total == 2  # the packet, and that there is no other


@pytest.mark.parametrize(
    ("report", "reason"),
    [(100_000, "promote that slave"), (1, "begins at"), (-1, "no broker sends this")],
)
async def test_a_slave_whose_place_the_log_has_not_is_refused_and_named_once(
    report: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = make_log(60)
    log.drop_first_file()
    async with leading(log, CONFIG, FakeClock()) as leader:
        for _ in range(3):
            async with slave_of(leader) as slave:
                slave.report(report)
                assert await slave.is_closed()
        assert leader.in_sync_copies() == 1
    refusals = [record for record in caplog.records if "slave refused" in record.message]
    assert len(refusals) == 1
    assert reason in refusals[0].message
    assert refusals[0].levelno == (logging.WARNING if report < 0 else logging.ERROR)


async def test_later_reports_beyond_the_end_are_taken_for_the_end() -> None:
    log = make_log(5)
    async with leading(log, CONFIG, FakeClock()) as leader, slave_of(leader) as slave:
        slave.report(log.max_physical_offset)
        slave.report(10**9)
        await until(lambda: leader.in_sync_copies() == 2)
        begin, end = grow(log)
        waiting = asyncio.create_task(leader.replicated(end))
        leader.appended()
        await slave.receive(begin, end)
        assert not waiting.done()
        slave.report(end)
        assert await waiting is Durability.OK


async def test_a_message_is_safe_when_a_slave_has_reported_it() -> None:
    log = make_log(5)
    async with leading(log, CONFIG, FakeClock()) as leader, slave_of(leader) as slave:
        slave.report(log.max_physical_offset)
        await until(lambda: leader.in_sync_copies() == 2)
        ends = [log.append()[1] for _ in range(3)]
        waiting = []
        for end in ends:
            waiting.append(asyncio.create_task(leader.replicated(end)))
            await asyncio.sleep(0)  # else they would wait together
            await asyncio.sleep(0)
        slave.report(ends[1])
        assert await asyncio.gather(*waiting[:2]) == [Durability.OK] * 2
        assert not waiting[2].done()
        slave.report(ends[2])
        assert await waiting[2] is Durability.OK
        assert leader.safe == ends[2]


async def test_without_a_slave_there_is_no_waiting() -> None:
    log = make_log(5)
    async with leading(log, CONFIG, FakeClock()) as leader:
        assert await leader.replicated(log.max_physical_offset) is Durability.SLAVE_NOT_AVAILABLE


async def test_one_copy_is_safe_at_once() -> None:
    log = make_log(5)
    async with leading(log, ReplicationConfig(in_sync_replicas=1), FakeClock()) as leader:
        assert await leader.replicated(log.max_physical_offset) is Durability.OK


async def test_waiters_end_with_the_last_slave() -> None:
    log = make_log(5)
    async with leading(log, CONFIG, FakeClock()) as leader:
        async with slave_of(leader) as slave:
            slave.report(log.max_physical_offset)
            await until(lambda: leader.in_sync_copies() == 2)
            waiting = asyncio.create_task(leader.replicated(log.append()[1]))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await waiting is Durability.SLAVE_NOT_AVAILABLE


async def test_waiters_end_at_their_deadline_exactly() -> None:
    clock, log = FakeClock(), make_log(5)
    async with leading(log, CONFIG, clock) as leader, slave_of(leader) as slave:
        slave.report(log.max_physical_offset)
        await until(lambda: leader.in_sync_copies() == 2)
        for _ in range(2):  # the second one finds nobody who watches, unless it is woken
            waiting = asyncio.create_task(leader.replicated(log.append()[1]))
            await clock.advance(CONFIG.slave_timeout - 1)
            assert not waiting.done()
            await clock.advance(1)
            assert waiting.done()
            assert await waiting is Durability.FLUSH_SLAVE_TIMEOUT


async def test_a_cancelled_waiter_is_of_no_harm() -> None:
    log = make_log(5)
    async with leading(log, CONFIG, FakeClock()) as leader, slave_of(leader) as slave:
        slave.report(log.max_physical_offset)
        await until(lambda: leader.in_sync_copies() == 2)
        first = asyncio.create_task(leader.replicated(log.append()[1]))
        second = asyncio.create_task(leader.replicated(log.append()[1]))
        await asyncio.sleep(0)
        first.cancel()
        slave.report(log.max_physical_offset)
        assert await second is Durability.OK


async def test_a_slave_that_does_not_read_costs_a_few_packets_and_gets_the_rest_later() -> None:
    log = make_log()
    config = ReplicationConfig(ha_transfer_batch_size=16_384)
    log.log_file_size = 10**9
    log.bytes += bytes(32 * 1024 * 1024)  # more than the system keeps for a socket
    source = _OneFile(log)
    async with leading(source, config, FakeClock()) as leader, slave_of(leader) as slave:
        slave.writer.transport.pause_reading()  # type: ignore[attr-defined]
        slave.report(1)
        link = None
        while link is None or not link._is_paused:
            await asyncio.sleep(0.001)
            link = next(iter(leader._links), None)
        most = (leader_module.PACKETS_AHEAD + 1) * (config.ha_transfer_batch_size + PACKET.size)
        for _ in range(100):
            source.append(1_000)
            leader.appended()
            await asyncio.sleep(0)
            assert link._transport.get_write_buffer_size() <= most
        assert link.sender.next < source.max_physical_offset
        slave.writer.transport.resume_reading()  # type: ignore[attr-defined]
        received = 1
        while received < source.max_physical_offset:
            offset, data = await slave.packet()
            assert offset == received
            received += len(data)


class _OneFile(FakeLog):
    """A log that is one large file."""

    def __init__(self, log: FakeLog) -> None:
        self.__dict__.update(log.__dict__)

    def append(self, size: int = 1) -> tuple[int, int]:
        self.bytes += bytes(size)
        return self.max_physical_offset - size, self.max_physical_offset

    def log_bytes(self, begin: int, size: int) -> memoryview | None:
        end = min(begin + size, self.max_physical_offset)
        return memoryview(self.read(begin, end)) if begin < end else None


async def test_senders_of_one_turn_wait_in_groups_of_a_packet() -> None:
    log, config = make_log(5), ReplicationConfig(ha_transfer_batch_size=100)
    async with leading(log, config, FakeClock()) as leader, slave_of(leader) as slave:
        slave.report(log.max_physical_offset)
        await until(lambda: leader.in_sync_copies() == 2)
        end = log.max_physical_offset
        log.bytes += bytes(250)
        groups = [leader.ask(end + asked) for asked in (10, 60, 109, 110, 200, 250)]
        assert [groups.index(group) for group in groups] == [0, 0, 0, 3, 3, 5]
        assert leader.waiting == 6
        slave.report(end + 110)
        assert await groups[0] is Durability.OK
        assert (groups[3].outcome, leader.waiting) == (None, 3)
        slave.report(end + 250)
        assert await groups[5] is Durability.OK
        assert (groups[3].outcome, leader.waiting) == (Durability.OK, 0)


async def test_a_long_turn_sends_what_is_waited_for_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slave copies the first messages while the master still takes the others, and they go on before the others."""
    log = _OneFile(make_log(5))
    monkeypatch.setattr(leader_module, "EARLY_BYTES", 1_000)
    config = ReplicationConfig(in_sync_replicas=2)
    async with leading(log, config, FakeClock()) as leader, slave_of(leader) as slave:
        begin = log.max_physical_offset
        slave.report(begin)
        await until(lambda: leader.in_sync_copies() == 2)
        groups = []
        for _ in range(4):
            _, end = log.append(600)
            if log.on_append is not None:
                log.on_append()
            groups.append(leader.ask(end))
        assert [groups.index(group) for group in groups] == [0, 0, 0, 3]
        assert leader.slaves()[0].sent == begin + 1_800, "the turn is not over"
        assert await slave.receive_any(begin, end) == log.read(begin, end)
        slave.report(begin + 1_800)
        assert await groups[0] is Durability.OK
        assert groups[3].outcome is None
        slave.report(end)
        assert await groups[3] is Durability.OK


async def test_a_hung_slave_costs_a_send_neither_memory_nor_work(monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log()
    config = ReplicationConfig(ha_transfer_batch_size=16_384)
    log.log_file_size = 10**9
    log.bytes += bytes(32 * 1024 * 1024)  # more than the system keeps for a socket
    source = _OneFile(log)
    async with leading(source, config, FakeClock()) as leader, slave_of(leader) as slave:
        assert source.on_append is None, "without a slave nobody is told"
        slave.writer.transport.pause_reading()  # type: ignore[attr-defined]
        slave.report(1)
        await until(lambda: any(link._is_paused for link in leader._links))
        await asyncio.sleep(0)
        (link,) = leader._links
        unsent, place, sends = link._transport.get_write_buffer_size(), link.sender.next, 0

        def count() -> None:
            nonlocal sends
            sends += 1

        monkeypatch.setattr(leader, "_send", count)
        for _ in range(10_000):
            source.append(1_000)
            if source.on_append is not None:
                source.on_append()
            assert source.on_append is None, "a slave that does not read is of no interest to senders"
            if sends:
                await asyncio.sleep(0)
        assert (link._transport.get_write_buffer_size(), link.sender.next, sends) == (unsent, place, 0)
        assert len(leader._tasks) == 2
        monkeypatch.undo()
        slave.writer.transport.resume_reading()  # type: ignore[attr-defined]
        received = 1
        while received < source.max_physical_offset:
            offset, data = await slave.packet()
            assert offset == received
            received += len(data)
        await until(lambda: source.on_append is not None)


async def test_a_turn_of_the_loop_is_told_of_once_however_many_messages_it_appends() -> None:
    log = make_log(5)
    async with leading(log, CONFIG, FakeClock()) as leader, slave_of(leader) as slave:
        slave.report(log.max_physical_offset)
        await until(lambda: leader.in_sync_copies() == 2)
        begin, told = log.max_physical_offset, 0
        for _ in range(10):
            log.append()
            if log.on_append is not None:
                log.on_append()
                told += 1
        assert told == 1
        assert await slave.receive(begin, log.max_physical_offset) == log.read(begin, log.max_physical_offset)
        assert log.on_append is not None


async def test_flow_control_spreads_a_second_over_the_second() -> None:
    clock, log = FakeClock(), make_log(300)
    config = ReplicationConfig(
        ha_transfer_batch_size=1_000, ha_flow_control_enable=True, max_ha_transfer_byte_in_second=5_000
    )
    async with leading(log, config, clock) as leader, slave_of(leader) as slave:
        slave.report(1)
        await until(lambda: leader.slaves() != [] and leader.slaves()[0].sent == 501)
        for window in range(2, 12):
            await clock.advance(leader_module.FLOW_WINDOW_MS)
            assert leader.slaves()[0].sent == 1 + window * 500 or leader.slaves()[0].sent % FILE_SIZE == 0
        assert leader.slaves()[0].sent <= 1 + 11 * 500


async def test_closing_sends_what_there_is_and_closes_the_slaves() -> None:
    log = make_log(5)
    async with leading(log, CONFIG, FakeClock()) as leader, slave_of(leader) as slave:
        slave.report(log.max_physical_offset)
        await until(lambda: leader.in_sync_copies() == 2)
        begin, end = grow(log)
        waiting = asyncio.create_task(leader.replicated(end))
        await asyncio.sleep(0)
        await leader.close()
        assert await slave.receive(begin, end) == log.read(begin, end)
        assert await slave.is_closed()
        assert await waiting is Durability.SLAVE_NOT_AVAILABLE


async def test_slaves_beyond_the_bound_are_turned_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leader_module, "MAX_SLAVES", 1)
    log = make_log(5)
    async with leading(log, CONFIG, FakeClock()) as leader, slave_of(leader) as first:
        first.report(log.max_physical_offset)
        await until(lambda: leader.in_sync_copies() == 2)
        async with slave_of(leader) as second:
            assert await second.is_closed()
        assert leader.in_sync_copies() == 2
    assert "slave turned away" in caplog.text


async def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        leader = Leader(make_log(), CONFIG, FakeClock())
        with pytest.raises(CannotListen, match="haListenPort"):
            await leader.start(HOST, taken.getsockname()[1])
        await leader.close()


async def test_what_was_deleted_before_it_was_sent_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    log = make_log(60)
    async with leading(log, CONFIG, FakeClock()) as leader, slave_of(leader) as slave:
        slave.report(log.max_physical_offset)
        await until(lambda: leader.in_sync_copies() == 2)
        next(iter(leader._links)).sender.next = 1
        log.drop_first_file()
        leader.appended()
        assert await slave.is_closed()
    assert "was deleted before it was sent" in caplog.text


async def test_slaves_are_shown() -> None:
    log = make_log(10)
    async with leading(log, CONFIG, FakeClock()) as leader, slave_of(leader) as slave:
        slave.report(20)
        end = log.max_physical_offset
        await slave.receive(20, end)
        slave.report(end - 5)
        await until(lambda: leader.slaves()[0].reported == end - 5)
        (status,) = leader.slaves()
        assert (status.begins, status.sent, status.behind_bytes, status.is_in_sync) == (20, end, 5, True)
        assert status.peer == "{}:{}".format(*slave.writer.get_extra_info("sockname"))

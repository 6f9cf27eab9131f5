"""A broker whose log is cleaned, and whose disk fills: asked and answered over the wire."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cosmodrome.broker.broker import Broker
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import KIB, BrokerConfig, StoreConfig
from cosmodrome.mapped_file import MappedFile
from cosmodrome.model import GroupConfig
from cosmodrome.net.caller import Caller
from cosmodrome.testing import FakeClock
from cosmodrome.wire.command import Command
from cosmodrome.wire.properties import encode
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import PopMessage, PullFlag, PullMessage, PullReply, SendMessage, TopicHeader
from tests.system.cluster import running

TIMEOUT_MS = 30_000
PATIENCE_SECONDS = 60
TOPIC, GROUP = "orders", "billing"
MESSAGES = 30
BODY = b"x" * 20_000  # three to a file of the log
# Small files, and no hour in which anything would go by itself: only what is asked for goes.
STORE = StoreConfig(
    mapped_file_size_commit_log=64 * KIB,
    mapped_file_size_consume_queue=10 * 20,
    max_hash_slot_num=50,
    max_index_num=10,
    flush_commit_log_least_pages=0,
    flush_interval_commit_log=10,
    delete_commit_log_files_interval=0,
    delete_consume_queue_files_interval=0,
    clean_resource_interval=50,
    clean_file_forcibly_enable=False,
    disk_max_used_space_ratio=95,
)


class Disk:
    """How full the test says the disk is."""

    used = 0.1

    def __call__(self, _path: Path) -> float:
        return self.used


class Wire:
    """A broker, asked as any client would ask it."""

    def __init__(self, broker: Broker, root: Path, disk: Disk) -> None:
        self.broker, self.disk, self._root = broker, disk, root
        self._caller = Caller()

    async def ask(self, code: int, header: object = None, body: bytes = b"") -> Command:
        request = Command.request(code, header, body)  # type: ignore[arg-type]
        return await self._caller.call(self.broker.address, request, TIMEOUT_MS)

    async def send(self, topic: str = TOPIC, body: bytes = BODY, **properties: str) -> Command:
        kept = encode({"UNIQ_KEY": "u", **properties})
        header = SendMessage(GROUP, topic, "TBW102", 1, 0, 0, 1_700_000_000_000, 0, properties=kept)
        return await self.ask(RequestCode.SEND_MESSAGE, header, body)

    async def fill(self) -> None:
        for number in range(MESSAGES):
            reply = await self.send(body=b"%d" % number + BODY)
            assert reply.code == ResponseCode.SUCCESS, reply.remark
        await until(lambda: self.broker.store.flusher.flushed == self.broker.store.max_physical_offset)

    async def pull(self, offset: int) -> Command:
        header = PullMessage(GROUP, TOPIC, 0, offset, 32, PullFlag.SUBSCRIPTION, 0, 0, subscription="*")
        return await self.ask(RequestCode.PULL_MESSAGE, header)

    def age(self, hours: int) -> None:
        for path in (self._root / "commitlog").iterdir():
            old = path.stat().st_mtime - hours * 3_600
            os.utime(path, (old, old))

    def files(self, folder: str) -> list[str]:
        path = self._root / folder
        return sorted(str(found.relative_to(path)) for found in path.rglob("*") if found.is_file())

    async def close(self) -> None:
        await self._caller.close()


@asynccontextmanager
async def wire(
    root: Path, config: StoreConfig = STORE, clock: FakeClock | None = None, **options: object
) -> AsyncIterator[Wire]:
    disk = Disk()
    broker = Broker(
        BrokerConfig(broker_name="broker-a", listen_port=0, **options),  # type: ignore[arg-type]
        dataclasses.replace(config, store_path_root_dir=str(root)),
        clock=clock,
        used=disk,
    )
    await broker.start()
    async with running(broker.run):
        client = Wire(broker, root, disk)
        try:
            yield client
        finally:
            await client.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110  # what a thread has done is no event
            await asyncio.sleep(0.01)


async def test_expired_messages_go_when_asked_and_consumers_go_on_behind_them(tmp_path: Path) -> None:
    async with wire(tmp_path) as client:
        await client.fill()
        client.age(hours=100)
        before = {folder: client.files(folder) for folder in ("commitlog", "consumequeue", "index")}
        assert (await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == ResponseCode.SUCCESS
        await until(lambda: client.broker.store.min_offset(TOPIC, 0) >= 27)
        await until(lambda: len(client.files("consumequeue")) == 1 and len(client.files("index")) == 1)
        assert {folder for folder, files in before.items() if len(client.files(folder)) < len(files)} == set(before)

        moved = await client.pull(0)
        assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL")
        header = PullReply.decode(moved)
        assert header.next_begin_offset == header.min_offset == 27
        assert header.max_offset == MESSAGES
        found = await client.pull(header.next_begin_offset)
        assert [record.body[:2] for record in decode_records(found.body)] == [b"27", b"28", b"29"]
        assert (await client.send()).code == ResponseCode.SUCCESS

    async with wire(tmp_path) as client:
        assert (client.broker.store.min_offset(TOPIC, 0), client.broker.store.max_offset(TOPIC, 0)) == (27, 31)


async def test_young_messages_stay_though_deletion_is_asked_for(tmp_path: Path) -> None:
    async with wire(tmp_path) as client:
        await client.fill()
        await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
        assert (await client.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == ResponseCode.SUCCESS
        assert client.broker.store.min_offset(TOPIC, 0) == 0


async def test_queues_of_topics_that_are_gone_are_cleaned_and_others_kept(tmp_path: Path) -> None:
    async with wire(tmp_path) as client:
        await client.send("kept")
        await client.send("dropped")
        client.broker.topics.delete("dropped")
        assert (await client.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == ResponseCode.SUCCESS
        assert client.files("consumequeue") == ["kept/0/00000000000000000000"]
        unknown = await client.ask(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader("dropped"))
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_full_disk_refuses_messages_serves_consumers_and_recovers(tmp_path: Path) -> None:
    async with wire(tmp_path) as client:
        await client.send()
        client.disk.used = 0.95
        await until(lambda: client.broker.store.refusal is not None)
        refused = await client.send()
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "the broker's disk is full [CL:  0.95 CQ:  0.95 INDEX:  0.95]" in (refused.remark or "")
        assert (await client.pull(0)).code == ResponseCode.SUCCESS
        client.disk.used = 0.5
        await until(lambda: client.broker.store.refusal is None)
        assert (await client.send()).code == ResponseCode.SUCCESS
        assert len(decode_records((await client.pull(0)).body)) == 2


async def test_what_waited_through_a_stalled_append_is_turned_away_and_what_comes_later_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wire(tmp_path, dataclasses.replace(STORE, os_page_cache_busy_time_out_mills=20)) as client:
        await client.send()
        prepare, stalls = MappedFile.prepare, [True]

        def stall(file: MappedFile, end: int, step: int) -> None:
            if stalls and "commitlog" in str(file.path):
                stalls.pop()
                deadline = asyncio.get_running_loop().time() + 0.3
                while asyncio.get_running_loop().time() < deadline:
                    pass
            prepare(file, end, step)

        monkeypatch.setattr(MappedFile, "prepare", stall)
        large = asyncio.create_task(client.send(body=b"x" * 65_000))
        others = [asyncio.create_task(client.send(body=b"x" * 100)) for _ in range(20)]
        assert (await large).code == ResponseCode.SUCCESS
        replies = await asyncio.gather(*others)
        assert {reply.code for reply in replies} == {ResponseCode.SYSTEM_BUSY}
        assert all((reply.remark or "").startswith(("[PCBUSY_CLEAN_QUEUE]", "[REJECTREQUEST]")) for reply in replies)
        assert (await client.send()).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("slave_read", [True, False])
async def test_who_reads_what_has_left_memory_is_sent_to_a_replica(tmp_path: Path, slave_read: bool) -> None:
    config = dataclasses.replace(STORE, access_message_in_memory_max_ratio=0)
    async with wire(tmp_path, config, slave_read_enable=slave_read) as client:
        client.broker.groups.put(GroupConfig(GROUP, which_broker_when_consume_slowly=3))
        await client.fill()
        slow = PullReply.decode(await client.pull(0))
        assert slow.suggest_which_broker_id == (3 if slave_read else 0)


# What was promised for later

LATER = dataclasses.replace(
    STORE, message_delay_level="1s 1m", timer_roll_window_slot=90, flush_interval_commit_log=500
)
FIRST = f"{0:020d}"
INVISIBLE_MS = 600_000
PROMISES = {
    "undelivered messages of delay levels": {"DELAY": "2"},
    "undelivered timed messages": {"TIMER_DELAY_SEC": "60"},
    "undecided transactions": {
        "TRAN_MSG": "true",
        "PGROUP": GROUP,
        "__transactionId__": "u",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "60",
    },
}


class Later:
    """A broker on a clock that stands still; one message for later lies in the first file of its log, and all of its
    files are old."""

    def __init__(self, client: Wire, clock: FakeClock) -> None:
        self.client, self.clock, self.broker = client, clock, client.broker

    async def prepare(self) -> None:
        for number in range(MESSAGES):
            assert (await self.client.send(body=b"%d" % number + BODY)).code == ResponseCode.SUCCESS
        await self.pass_by(1)
        self.age()

    def age(self) -> None:
        seconds = self.clock.now_ms() / 1_000 - 100 * 3_600
        for file in self.broker.store._log.files:
            os.utime(file.path, (seconds, seconds))

    async def pass_by(self, seconds: int) -> None:
        """Let time pass, and what threads do meanwhile be done."""
        store = self.broker.store
        for _ in range(seconds):
            await self.clock.advance(1_000)
        for _ in range(30):  # as long as an unworthy flush may wait, and those who wait for it
            await self.clock.advance(1_000)
            await asyncio.sleep(0)
        store.flusher.wake()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while store.flusher.flushed < store.max_physical_offset:
                await self.clock.advance(500)
                await asyncio.sleep(0.005)

    async def clean(self) -> list[str]:
        self.broker.store.cleaner.retention.delete_soon()
        await self.broker.store.cleaner.clean()
        return self.client.files("commitlog")

    async def first_gone(self) -> None:
        """Wait until nothing holds the first file of the log any more: progress is saved in threads."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            self.age()
            while FIRST in await self.clean():
                await self.clock.advance(1_000)
                await asyncio.sleep(0.005)
                self.age()


@asynccontextmanager
async def later(root: Path, config: StoreConfig = LATER, **options: object) -> AsyncIterator[Later]:
    clock = FakeClock()
    async with wire(root, config, clock, **options) as client:
        yield Later(client, clock)


@pytest.mark.parametrize("what", PROMISES)
async def test_a_file_stays_until_what_was_promised_is_done(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with later(tmp_path) as waiting:
        assert (await waiting.client.send("for-later", b"later", **PROMISES[what])).code == ResponseCode.SUCCESS
        await waiting.prepare()
        assert FIRST in await waiting.clean()
        assert f'log file kept: file=0 reason="it holds {what} from offset 0 on"' in "\n".join(caplog.messages)
        assert waiting.broker.store.min_offset(TOPIC, 0) == 0

        await waiting.pass_by(70)  # delivered; a producer that nobody can ask about its half is asked about a copy
        await waiting.first_gone()
        assert waiting.broker.store.min_offset(TOPIC, 0) > 0
        if what == "undecided transactions":
            assert len(waiting.broker.transactions) == 1
        else:
            views = waiting.broker.store.read("for-later", 0, 0, 32).views
            assert [record.body for record in decode_records(b"".join(views))] == [b"later"]


async def test_what_the_broker_keeps_of_a_pop_stays_until_the_pop_is_decided(tmp_path: Path) -> None:
    async with later(tmp_path) as waiting:
        client = waiting.client
        assert (await client.send("popped", b"later")).code == ResponseCode.SUCCESS
        await waiting.pass_by(1)
        reply = await client.ask(RequestCode.POP_MESSAGE, PopMessage(GROUP, "popped", 0, 1, INVISIBLE_MS, 0))
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        await waiting.prepare()
        assert FIRST in await waiting.clean()
        await waiting.pass_by(INVISIBLE_MS // 1_000)
        await waiting.first_gone()


async def test_a_nearly_full_disk_does_not_cost_what_was_promised(tmp_path: Path) -> None:
    """Files that would go though they have not expired are kept; at last messages are refused, and the reason named."""
    config = dataclasses.replace(LATER, clean_file_forcibly_enable=True)
    async with later(tmp_path, config) as waiting:
        for number in range(4):
            await waiting.client.send(body=b"%d" % number + BODY)
        kept_from = waiting.broker.store.max_physical_offset
        await waiting.client.send("for-later", b"later", DELAY="2")
        await waiting.prepare()
        waiting.client.disk.used = 0.95
        files = await waiting.clean()
        assert files[0] == f"{STORE.mapped_file_size_commit_log:020d}"  # the one before it could go
        await waiting.broker.store.cleaner.measure()
        refused = await waiting.client.send()
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        expected = f"make room: the log keeps undelivered messages of delay levels from offset {kept_from} on"
        assert expected in (refused.remark or "")
        waiting.client.disk.used = 0.1
        await waiting.broker.store.cleaner.measure()
        await waiting.pass_by(70)
        assert waiting.broker.store.max_offset("for-later", 0) == 1


@pytest.mark.parametrize("what", ["undelivered messages of delay levels", "undelivered timed messages"])
async def test_other_settings_at_the_next_start_do_not_cost_it_either(tmp_path: Path, what: str) -> None:
    async with later(tmp_path) as waiting:
        await waiting.client.send("for-later", b"later", **PROMISES[what])
        await waiting.prepare()
    changed = dataclasses.replace(LATER, message_delay_level="1s", file_reserved_time=1, timer_wheel_enable=False)
    async with later(tmp_path, changed) as waiting:
        waiting.age()
        assert FIRST in await waiting.clean()
    async with later(tmp_path) as waiting:
        await waiting.pass_by(70)
        assert waiting.broker.store.max_offset("for-later", 0) == 1


async def test_what_is_delivered_but_not_on_disk_keeps_its_file(tmp_path: Path) -> None:
    """A power cut may take the copy; then the original is delivered once more."""
    lazy = dataclasses.replace(LATER, flush_commit_log_least_pages=10_000, flush_commit_log_thorough_interval=10**9)
    async with later(tmp_path, lazy) as waiting:
        store, delays = waiting.broker.store, waiting.broker.delays
        await waiting.client.send("for-later", b"later", DELAY="1")
        await waiting.clock.advance(20_000)
        assert store.max_offset("for-later", 0) == 1
        assert delays.needed_from() == 0
        store.flusher.want(store.max_physical_offset)
        await until(lambda: store.flusher.flushed == store.max_physical_offset)
        await waiting.clock.advance(20_000)
        assert delays.needed_from() is None

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
from cosmodrome.model import GroupConfig
from cosmodrome.net.caller import Caller
from cosmodrome.store.mapped_file import MappedFile
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import PullFlag, PullMessage, PullReply, SendMessage, TopicHeader
from tests.system.cluster import running

TIMEOUT_MS = 5_000
PATIENCE_SECONDS = 20
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

    async def send(self, topic: str = TOPIC, body: bytes = BODY) -> Command:
        header = SendMessage(GROUP, topic, "TBW102", 1, 0, 0, 1_700_000_000_000, 0, properties="UNIQ_KEY\x01u\x02")
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
async def wire(root: Path, config: StoreConfig = STORE, **options: object) -> AsyncIterator[Wire]:
    disk = Disk()
    broker = Broker(
        BrokerConfig(broker_name="broker-a", listen_port=0, **options),  # type: ignore[arg-type]
        dataclasses.replace(config, store_path_root_dir=str(root)),
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

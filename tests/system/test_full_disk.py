"""A real disk with 0 bytes free under a real broker: it starts, serves, makes room, refuses, and goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from cosmodrome import Message, PushConsumer, ReceivedMessage
from cosmodrome import Producer as AsyncProducer
from cosmodrome.blocking import Producer
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import FlushDiskType
from cosmodrome.errors import SendFailed
from cosmodrome.net.caller import Caller
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import Record
from tests.system.broker_lives import pull_all
from tests.system.daemons import Daemon
from tests.system.full_disk_lives import CONF, live
from tests.system.small_disk import SmallDisk

SEED = 1
KILLS = 3
LOG_FILE_BYTES = 1024 * 1024
DISK_BYTES = 16 * 1024 * 1024
PATIENCE_SECONDS = 60

pytestmark = pytest.mark.skipif(
    not SmallDisk.is_possible(), reason="no namespaces here; tests/unit/store/test_full_disk.py does it by hand"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


def up(disk: SmallDisk, conf: str = "") -> Daemon:
    if not (disk.path / "broker.conf").exists():
        (disk.path / "broker.conf").write_text(f"{CONF}{conf}")
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    arguments = ("up", "--data", str(disk.mount / "data"), "-c", str(disk.mount / "broker.conf"), *ports)
    return Daemon(*arguments, within=disk.command())


def fill_by_sending(daemon: Daemon, topic: str = "orders") -> tuple[dict[tuple[int, int], bytes], str]:
    """Send until the broker refuses; return what it took, by queue and offset, and its words."""
    taken: dict[tuple[int, int], bytes] = {}
    with Producer(group="filling", namesrv=daemon.address("name server"), max_tries=1) as producer:
        for number in range(DISK_BYTES // 10_000):
            body = b"%d:" % number + os.urandom(10_000)
            try:
                sent = producer.send(Message(topic, body))
            except SendFailed as refusal:
                return taken, str(refusal)
            taken[sent.queue.queue_id, sent.queue_offset] = body
    raise AssertionError("there was room for everything")


def read_all(daemon: Daemon, queues: set[int]) -> dict[tuple[int, int], bytes]:
    async def read() -> list[Record]:
        caller = Caller()
        try:
            return [
                record
                for queue_id in queues
                for record in await pull_all(caller, daemon.address("broker"), "orders", queue_id)
            ]
        finally:
            await caller.close()

    return {(record.queue_id, record.queue_offset): record.body for record in asyncio.run(read())}


def send_until_taken(daemon: Daemon) -> None:
    async def send() -> None:
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            AsyncProducer(group="again", namesrv=daemon.address("name server"), max_tries=1) as producer,
        ):
            while True:
                try:
                    await producer.send(Message("orders", b"after"))
                    return
                except SendFailed:
                    await asyncio.sleep(0.05)

    asyncio.run(send())


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_a_broker_killed_on_a_full_disk_starts_serves_refuses_and_goes_on(
    disk: SmallDisk, flush: FlushDiskType
) -> None:
    disk.fill(DISK_BYTES // 2)
    with up(disk, f"flushDiskType={flush}\n") as daemon:
        taken, refusal = fill_by_sending(daemon)
        assert "service not available now" in refusal
        assert "disk" in refusal
        daemon.kill()
    disk.fill()
    for _ in range(2):
        with up(disk) as daemon:
            served = read_all(daemon, {queue_id for queue_id, _ in taken})
            missing = taken.keys() - served.keys()
            assert len(missing) <= 1, "only the last message may wait for room in its queue"
            assert {place: served[place] for place in taken.keys() - missing} == {
                place: taken[place] for place in taken.keys() - missing
            }
            for topic in ("orders", "new"):
                _, refusal = fill_by_sending(daemon, topic)  # the last file of the log may have had room
                assert "No space left" in refusal or "disk is full" in refusal
            daemon.kill()
            assert disk.free_bytes == 0
    with up(disk) as daemon:
        disk.free()
        send_until_taken(daemon)
        assert taken.items() <= read_all(daemon, {queue_id for queue_id, _ in taken}).items()
        assert daemon.interrupt() == 0, daemon.output


def test_retention_makes_room_on_a_full_disk(disk: SmallDisk) -> None:
    """What was deleted by the file system's measure alone: nothing is old."""
    with up(disk, "diskSpaceCleanForciblyRatio=80\ncleanFileForciblyEnable=true\n") as daemon:
        fill_by_sending(daemon)
        daemon.kill()
    disk.fill()
    with up(disk) as daemon:

        async def ask() -> int:
            caller = Caller()
            try:
                request = Command.request(RequestCode.DELETE_EXPIRED_COMMITLOG)
                return (await caller.call(daemon.address("broker"), request, 10_000)).code
            finally:
                await caller.close()

        assert asyncio.run(ask()) == ResponseCode.SUCCESS
        give_up = time.monotonic() + PATIENCE_SECONDS
        while disk.free_bytes < 2 * LOG_FILE_BYTES:
            assert time.monotonic() < give_up, daemon.output
            time.sleep(0.05)
        send_until_taken(daemon)
        assert daemon.interrupt() == 0, daemon.output


def test_a_store_that_was_closed_in_order_opens_on_a_full_disk(disk: SmallDisk) -> None:
    with up(disk) as daemon:
        send_until_taken(daemon)
        assert daemon.interrupt() == 0
    disk.fill()
    with up(disk) as daemon:
        assert sorted(read_all(daemon, set(range(4))).values()) == [b"after"]
        disk.free()
        send_until_taken(daemon)
        assert daemon.interrupt() == 0, daemon.output


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_a_broker_lives_on_a_small_disk(tmp_path: Path, flush: FlushDiskType) -> None:
    lives = live(tmp_path, flush, SEED, KILLS)
    assert len(lives.known) > KILLS


def test_a_broker_whose_log_is_cut_ends_with_a_sentence_that_the_next_one_repeats(disk: SmallDisk) -> None:
    with up(disk) as daemon:
        send_until_taken(daemon)
        log_file = disk.path / "data/broker-a/commitlog/00000000000000000000"
        size = log_file.stat().st_size
        os.truncate(log_file, 0)
        with pytest.raises(SendFailed), Producer("p", daemon.address("name server"), max_tries=1) as producer:
            producer.send(Message("orders", b"after the cut"))
        assert daemon.exit_code() == 1
        said = "commitlog/00000000000000000000 cannot be used at byte"
        assert f"Error: {disk.mount}/data/broker-a/{said}" in daemon.output
    os.truncate(log_file, size)
    with up(disk) as daemon:
        assert f"the last process that used this store died: {disk.mount}/data/broker-a/{said}" in daemon.output
        send_until_taken(daemon)


SPARSE_INDEX = """
import os, struct, sys
from pathlib import Path
from cosmodrome.store.index_file import HEADER, IndexFile, file_size, key_hash

path = Path(sys.argv[1]) / "20260101000000000"
path.touch()
os.truncate(path, file_size(100_000, 1_000))
with path.open("r+b") as file:
    file.write(HEADER.pack(1, 1, 0, 0, 0, 1))
with (path.parent / "ballast").open("ab", buffering=0) as ballast:
    try:
        while ballast.write(bytes(4096)) == 4096:
            pass
    except OSError:
        pass
index = IndexFile(path, 100_000, 1_000)
for number in range(100):
    assert index.find(key_hash("orders", f"k{number}"), 0, 2**62, 10) == []
try:
    index.put(7, [("k", 0)], 1)
except OSError as error:
    print(error.errno)
(path.parent / "ballast").unlink()
index.put(7, [("k", 5)], 1)
index.close()
assert IndexFile(path, 100_000, 1_000).last_entered == 5
"""


def test_the_holes_of_an_older_index_are_neither_read_nor_written_on_a_full_disk(disk: SmallDisk) -> None:
    """Apache's brokers leave them. On a tmpfs, even a look at one takes room."""
    command = disk.command(sys.executable, "-c", SPARSE_INDEX, str(disk.mount))
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert (done.returncode, done.stdout) == (0, f"{errno.ENOSPC}\n"), done.stderr


def test_the_store_tools_work_on_a_full_disk(disk: SmallDisk) -> None:
    with up(disk) as daemon:
        send_until_taken(daemon)
        daemon.kill()  # a file of the log that was made ahead is left: one hole
    disk.fill()
    for words in (("inspect",), ("verify",), ("repair",)):
        where = (str(disk.mount / "data/broker-a"), "-c", str(disk.mount / "broker.conf"))
        command = disk.command(sys.executable, "-m", "cosmodrome", "store", *words, *where)
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        assert done.returncode in (0, 1), (words, done.returncode, done.stderr)
        assert "Traceback" not in done.stderr


async def test_timed_and_delayed_messages_wait_for_room(disk: SmallDisk) -> None:
    sent, seen, all_seen = set[bytes](), set[bytes](), asyncio.Event()
    with up(disk) as daemon:
        async with AsyncProducer("p", daemon.address("name server"), max_tries=1) as producer:
            for number in range(20):
                body = b"%d" % number
                await producer.send(Message("later", body, delay=timedelta(seconds=1 + number % 3)))
                await producer.send(Message("later", body + b" by level", delay_level=1 + number % 2))
                sent |= {body, body + b" by level"}
        disk.fill()
        await asyncio.sleep(2)  # some are due now, and have no room
        daemon.kill()
    disk.fill()
    with up(disk) as daemon:
        await asyncio.sleep(1)
        disk.free()
        consumer = PushConsumer("g", daemon.address("name server"))

        async def handler(message: ReceivedMessage) -> None:
            seen.add(message.body)
            if sent <= seen:
                all_seen.set()

        consumer.subscribe("later", "*", handler)
        async with consumer, asyncio.timeout(PATIENCE_SECONDS):
            await all_seen.wait()
        assert daemon.interrupt() == 0, daemon.output

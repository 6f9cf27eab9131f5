"""A broker that is offered more than it can take: it says so, stays there for the others, and recovers by itself."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import Message, Producer
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, FlushDiskType, StoreConfig
from cosmodrome.net.caller import Caller
from cosmodrome.wire.command import ONEWAY_BIT, Command
from cosmodrome.wire.frame import FrameDecoder
from cosmodrome.wire.requests import OffsetReply, QueueHeader, SendMessage
from tests.system.cluster import SMALL_STORE
from tests.system.daemons import BROKER_CONF, Daemon
from tests.system.wired import wired

TOPIC = "t"
BUSY = ResponseCode.SYSTEM_BUSY


def send_request(opaque: int, *, oneway: bool = False, body: bytes = b"x" * 100) -> bytes:
    command = Command.request(RequestCode.SEND_MESSAGE, SendMessage("p", TOPIC, "TBW102", 1, 0, 0, 0, 0, ""), body)
    command.opaque = opaque
    command.flag |= ONEWAY_BIT if oneway else 0
    return command.encode()


async def at_once(address: str, *requests: bytes, replies: int) -> list[Command]:
    """Send all requests in one write, so that the broker finds them all in one turn."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"".join(requests))
    found = await _replies(reader, replies)
    writer.close()
    return found


async def _replies(reader: asyncio.StreamReader, count: int) -> list[Command]:
    decoder, found = FrameDecoder(), list[Command]()
    async with asyncio.timeout(30):
        while len(found) < count:
            data = await reader.read(1 << 16)
            assert data, f"closed after {len(found)} replies of {count}"
            decoder.feed(data)
            found += [Command.decode(frame) for frame in iter(decoder.take, None)]
    return found


def slowed(work: Callable[..., Any], seconds: float, times: int) -> Callable[..., Any]:
    """`work`, which holds up the event loop the first so many times."""
    left = [times]

    def slow(*arguments: Any, **more: Any) -> Any:
        if left[0]:
            left[0] -= 1
            time.sleep(seconds)
        return work(*arguments, **more)

    return slow


async def test_what_waited_too_long_for_its_turn_is_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig(broker_name="broker-a", wait_time_mills_in_send_queue=100)
    async with wired(tmp_path, config) as client:
        await client.send(TOPIC, b"first")
        store = client.broker.store
        monkeypatch.setattr(store, "append", slowed(store.append, 0.15, 2))
        await at_once(client.broker.address, send_request(0), replies=1)  # a pause, from which all could recover
        requests = [send_request(number, oneway=number == 2) for number in range(1, 5)]
        replies = {reply.opaque: reply for reply in await at_once(client.broker.address, *requests, replies=3)}
        assert [replies[number].code for number in (1, 3, 4)] == [ResponseCode.SUCCESS, BUSY, BUSY]
        assert (replies[3].remark or "").startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while")
        assert client.broker.overload.turned_away == 3  # the one-way request too, without an answer
        assert len(client.stored(TOPIC)) == 3
        await client.send(TOPIC, b"and again")


async def test_a_stalled_append_turns_away_those_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_config = StoreConfig(**{**_fields(SMALL_STORE), "os_page_cache_busy_time_out_mills": 50})
    async with wired(tmp_path, store=store_config) as client:
        await client.send(TOPIC, b"first")
        log = client.broker.store._log
        monkeypatch.setattr(log, "write", slowed(log.write, 0.1, 1))
        requests = [send_request(number) for number in range(1, 4)]
        replies = {reply.opaque: reply for reply in await at_once(client.broker.address, *requests, replies=3)}
        assert [replies[number].code for number in (1, 2, 3)] == [ResponseCode.SUCCESS, BUSY, BUSY]
        assert (replies[2].remark or "").startswith("[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while")
        await client.send(TOPIC, b"and again")
        assert len(client.stored(TOPIC)) == 3


async def test_only_so_many_sends_wait_for_the_disk(tmp_path: Path) -> None:
    config = BrokerConfig(broker_name="broker-a", send_thread_pool_queue_capacity=2)
    store_config = StoreConfig(**{**_fields(SMALL_STORE), "flush_disk_type": FlushDiskType.SYNC_FLUSH})
    async with wired(tmp_path, config, store_config) as client:
        await client.send(TOPIC, b"first")
        requests = [send_request(number) for number in range(1, 6)]
        replies = {reply.opaque: reply for reply in await at_once(client.broker.address, *requests, replies=5)}
        assert [replies[number].code for number in range(1, 6)] == [ResponseCode.SUCCESS] * 2 + [BUSY] * 3
        assert replies[5].remark == "[OVERLOAD]system busy, start flow control for a while"
        await client.send(TOPIC, b"and again")
        assert client.broker.store.max_offset(TOPIC, 0) == 4


def _fields(config: StoreConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


CONNECTIONS = 60
EACH = 600
MOST_GROWTH_KB = 200 * 1024


async def test_a_flood_is_answered_to_the_last_request_and_leaves_a_healthy_broker(tmp_path: Path) -> None:
    """Everything is offered at once, many times what the broker can do in the time a request may wait."""
    conf = tmp_path / "broker.conf"
    conf.write_text(BROKER_CONF + "waitTimeMillsInSendQueue=20\n")
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--console-port", "0")
    with Daemon("up", "--data", str(tmp_path / "data"), "-c", str(conf), *ports) as daemon:
        address, namesrv = daemon.address("broker"), daemon.address("name server")
        async with Producer("p", namesrv) as producer:
            await producer.send(Message(TOPIC, b"first"))
        before, before_kb = await _count(address), _resident_kb(daemon.pid)
        flood = b"".join(send_request(number) for number in range(1, EACH + 1))
        flooding = [asyncio.create_task(_flood(address, flood)) for _ in range(CONNECTIONS)]
        await _is_there_for_others(address, flooding)
        codes: Counter[int] = sum(await asyncio.gather(*flooding), Counter[int]())
        assert set(codes) <= {ResponseCode.SUCCESS, BUSY}
        assert codes.total() == CONNECTIONS * EACH
        assert codes[BUSY] > 0
        assert codes[ResponseCode.SUCCESS] > 0
        assert _resident_kb(daemon.pid) - before_kb < MOST_GROWTH_KB
        assert await _count(address) - before == codes[ResponseCode.SUCCESS]
        async with Producer("p", namesrv, max_tries=1) as producer:
            for _ in range(10):
                await producer.send(Message(TOPIC, b"calm again"))


async def _flood(address: str, requests: bytes) -> Counter[int]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(requests)
    codes = Counter(reply.code for reply in await _replies(reader, EACH))
    writer.close()
    return codes


async def _is_there_for_others(address: str, flooding: list[asyncio.Task[Counter[int]]]) -> None:
    """While the flood lasts, somebody else asks something and is answered."""
    caller = Caller()
    while not all(flood.done() for flood in flooding):
        request = Command.request(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))
        assert (await caller.call(address, request, 10_000)).code == ResponseCode.SUCCESS
        await asyncio.sleep(0.05)
    await caller.close()


async def _count(address: str) -> int:
    """How many messages queue 0 has, where the flood goes."""
    caller = Caller()
    reply = await caller.call(address, Command.request(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0)), 10_000)
    await caller.close()
    return OffsetReply.decode(reply).offset


def _resident_kb(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1])

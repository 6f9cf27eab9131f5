"""Where offsets are kept."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from cosmodrome import state_file
from cosmodrome.client.instance import Instance
from cosmodrome.client.lifecycle import cancelled
from cosmodrome.client.offsets import BrokerOffsets, LocalOffsets
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import BrokerError, ClientError, StoreError
from cosmodrome.model import MessageQueue
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import UpdateConsumerOffset
from tests.bounded import PATIENCE_SECONDS

QUEUE = MessageQueue("T", "broker-a", 0)
OTHER = MessageQueue("T", "broker-a", 1)


async def test_what_was_committed_is_read_by_the_next_life(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "offsets.json"
    offsets = LocalOffsets(path)
    assert await offsets.read(QUEUE) is None
    await offsets.commit({QUEUE: 7})
    await offsets.commit({OTHER: 9})
    again = LocalOffsets(path)
    assert (await again.read(QUEUE), await again.read(OTHER)) == (7, 9)


async def test_a_file_of_a_java_client_is_read(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(
        '{\n\t"offsetTable":{{\n\t\t"brokerName":"broker-a",\n\t\t"queueId":0,\n\t\t"topic":"T"\n\t}:42\n\t}\n}'
    )
    assert await LocalOffsets(path).read(QUEUE) == 42


async def test_a_torn_file_is_set_aside_for_its_backup(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    offsets = LocalOffsets(path)
    await offsets.commit({QUEUE: 1})
    await offsets.commit({QUEUE: 2})
    path.write_bytes(path.read_bytes()[:10])
    assert await LocalOffsets(path).read(QUEUE) == 1


async def test_a_file_that_cannot_be_read_at_all_is_no_fresh_start(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_bytes(b"not json")
    with pytest.raises(StoreError, match=r"offsets\.json"):
        LocalOffsets(path)


async def test_commits_at_the_same_time_end_with_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    offsets = LocalOffsets(path)
    await asyncio.gather(*(offsets.commit({QUEUE: number, OTHER: number}) for number in range(20)))
    again = LocalOffsets(path)
    assert (await again.read(QUEUE), await again.read(OTHER)) == (19, 19)


async def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    offsets = LocalOffsets(None)
    await offsets.commit({QUEUE: 7})
    assert await offsets.read(QUEUE) == 7
    assert os.listdir(tmp_path) == []


async def test_a_disk_that_refuses_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    offsets = LocalOffsets(blocked / "offsets.json")
    blocked.write_bytes(b"in the way")
    with pytest.raises(ClientError, match="cannot be read"):
        LocalOffsets(blocked / "offsets.json")
    await offsets.commit({QUEUE: 7})
    assert "not saved" in caplog.text
    blocked.unlink()
    await offsets.commit({QUEUE: 7})
    assert await LocalOffsets(blocked / "offsets.json").read(QUEUE) == 7


async def test_a_cancelled_save_does_not_write_over_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a stop, which cancels the regular commits and then says how far it came."""
    path, begun, go_on, ended = tmp_path / "offsets.json", threading.Event(), threading.Event(), threading.Event()
    save = state_file.save

    def save_slowly(*args: Any) -> None:
        is_first = not begun.is_set()
        if is_first:
            begun.set()
            assert go_on.wait(PATIENCE_SECONDS)
        save(*args)
        if is_first:
            ended.set()

    monkeypatch.setattr(state_file, "save", save_slowly)
    offsets = LocalOffsets(path)
    regular = asyncio.create_task(offsets.commit_soon({QUEUE: 1}))
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    try:
        await cancelled([regular])
        last = asyncio.create_task(offsets.commit({QUEUE: 2}))
        await asyncio.wait([last], timeout=0.1)  # it must not get ahead
    finally:
        go_on.set()
    await last
    assert await asyncio.to_thread(ended.wait, PATIENCE_SECONDS)
    assert await LocalOffsets(path).read(QUEUE) == 2


class Brokers:
    """As far as offsets know them. They answer a little later."""

    def __init__(self, refusing: str = "", stored: int | None = None) -> None:
        self.on_connection_lost: list[Any] = []
        self.routes = self.caller = self
        self.told: list[str] = []
        self._refusing = refusing
        self._stored = stored

    def address(self, broker_name: str) -> str:
        return broker_name

    member = address

    async def ask(self, address: str, command: Command, _timeout_ms: int) -> Command:
        if command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            if self._stored is None:
                raise BrokerError(ResponseCode.QUERY_NOT_FOUND, "no offset", address)
            return Command(int(ResponseCode.SUCCESS), {"offset": str(self._stored)})
        queue_id = UpdateConsumerOffset.decode(command).queue_id
        self.told.append(f"{address} {queue_id}")
        await asyncio.sleep(0)
        self.told.append(f"{address} {queue_id} answered")
        if address == self._refusing:
            raise ClientError("refused")
        return command.reply()

    async def oneway(self, address: str, command: Command) -> None:
        self.told.append(f"{address} {UpdateConsumerOffset.decode(command).queue_id} oneway")


def offsets_of(*broker_names: str) -> dict[MessageQueue, int]:
    return {MessageQueue("T", name, queue_id): 5 for name in broker_names for queue_id in range(3)}


@pytest.mark.parametrize("how", [BrokerOffsets.store, BrokerOffsets.commit])
async def test_the_first_offset_of_a_topic_is_stored_before_the_others_are_told(how: Any) -> None:
    brokers = Brokers()
    await how(BrokerOffsets(cast(Instance, brokers), "g"), offsets_of("a"))
    assert len(brokers.told) == 6
    assert brokers.told[1] == f"{brokers.told[0]} answered"


async def test_so_it_is_if_several_tell_offsets_at_once() -> None:
    brokers = Brokers()
    offsets = BrokerOffsets(cast(Instance, brokers), "g")
    await asyncio.gather(*(offsets.commit({queue: offset}) for queue, offset in offsets_of("a", "b").items()))
    for name in ("a", "b"):
        told = [line for line in brokers.told if line.startswith(name)]
        assert len(told) == 6
        assert told[1] == f"{told[0]} answered"


@pytest.mark.parametrize(("stored", "carries"), [(None, False), (0, False), (4, True)])
async def test_pulls_carry_no_first_offset(stored: int | None, carries: bool) -> None:
    """0 may be all that a broker says of a group that it does not know."""
    offsets = BrokerOffsets(cast(Instance, Brokers(stored=stored)), "g")
    assert await offsets.read(QUEUE) == stored
    assert offsets.carry(OTHER, 5) is carries
    await offsets.commit({QUEUE: 6})
    assert offsets.carry(OTHER, 5)


async def test_going_back_is_told_whatever_is_on_its_way() -> None:
    brokers = Brokers(stored=4)
    offsets = BrokerOffsets(cast(Instance, brokers), "g")
    assert await offsets.read(QUEUE) == 4
    assert offsets.carry(QUEUE, 6)  # by a pull that waits in the broker
    await offsets.commit({QUEUE: 4})
    assert brokers.told == ["broker-a 0", "broker-a 0 answered"]
    await offsets.commit_soon({QUEUE: 7})
    await offsets.commit({QUEUE: 4})
    assert brokers.told[2:] == ["broker-a 0 oneway", "broker-a 0", "broker-a 0 answered"]


async def test_going_back_behind_what_a_pull_has_brought_is_told_in_passing_as_well() -> None:
    brokers = Brokers(stored=4)
    offsets = BrokerOffsets(cast(Instance, brokers), "g")
    assert await offsets.read(QUEUE) == 4
    assert offsets.carry(QUEUE, 6)
    offsets.carried(QUEUE, 6)
    await offsets.commit_soon({QUEUE: 4})
    assert brokers.told == ["broker-a 0 oneway"]


async def test_told_in_passing_is_how_far_a_queue_is_when_its_turn_comes() -> None:
    """The first broker may take its time; meanwhile queues are reset, or go to somebody else."""
    first, changed, gone = (MessageQueue("T", name, 0) for name in ("a", "b", "c"))
    progress, told = {first: 5, changed: 9, gone: 9}, []

    class SlowBrokers(Brokers):
        async def ask(self, address: str, command: Command, timeout_ms: int) -> Command:
            told.append((address, UpdateConsumerOffset.decode(command).commit_offset))
            progress[changed] = 2
            progress.pop(gone, None)
            return await super().ask(address, command, timeout_ms)

    await BrokerOffsets(cast(Instance, SlowBrokers()), "g").commit_soon(progress)
    assert told == [("a", 5), ("b", 2)]


async def test_told_in_passing_the_first_offset_is_waited_for_as_well() -> None:
    brokers = Brokers()
    await BrokerOffsets(cast(Instance, brokers), "g").commit_soon(offsets_of("a"))
    assert brokers.told == ["a 0", "a 0 answered", "a 1 oneway", "a 2 oneway"]


async def test_a_broker_that_refuses_an_offset_does_not_keep_it_from_the_others() -> None:
    brokers = Brokers(refusing="a")
    with pytest.raises(ClientError, match="refused"):
        await BrokerOffsets(cast(Instance, brokers), "g").store(offsets_of("a", "b"))
    assert len({told for told in brokers.told if told.endswith("answered")}) == 6

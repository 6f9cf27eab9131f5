"""A table that the disk has no room for: only what depends on it waits."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from cosmodrome import Message, Producer, state_file
from cosmodrome.errors import SendFailed
from tests.system.cluster import running_broker, running_name_server


async def test_a_topic_that_cannot_be_saved_stops_sends_to_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = state_file.save

    def no_room(path: Path, data: bytes) -> None:
        if path.name == "topics.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save(path, data)

    async with (
        running_name_server() as name_server,
        running_broker(tmp_path, name_server.address) as broker,
        Producer("p", name_server.address, max_tries=1) as producer,
    ):
        await producer.send(Message("saved", b"1"))
        monkeypatch.setattr(state_file, "save", no_room)
        for _ in range(2):
            with pytest.raises(SendFailed, match=r"cannot save topics.json: \[Errno 28\] No space left"):
                await producer.send(Message("new", b"lost?"))
            await producer.send(Message("saved", b"2"))
        assert broker.topics.unsaved
        assert all(broker.store.max_offset("new", queue_id) == 0 for queue_id in range(8)), "nothing of it is stored"
        monkeypatch.undo()
        async with asyncio.timeout(60):
            await producer.send(Message("new", b"3"))
        assert not broker.topics.unsaved

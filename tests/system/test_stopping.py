"""A broker that is stopped while its disk is full."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cosmodrome import Message, Producer, state_file
from tests.system.cluster import running_broker, running_name_server


async def test_tables_that_cannot_be_saved_do_not_keep_the_store_from_being_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    async with running_name_server() as name_server:
        async with running_broker(tmp_path, name_server.address) as broker:
            async with Producer("p", name_server.address) as producer:
                sent = await producer.send(Message("orders", b"a"))
            broker.offsets.commit("g", "orders", sent.queue.queue_id, 1)
            monkeypatch.setattr(state_file, "save", full)
        assert "cannot save consumerOffset.json: [Errno 28]" in caplog.text
        assert not (tmp_path / "abort").exists()
        monkeypatch.undo()
        async with running_broker(tmp_path, name_server.address) as broker:
            assert broker.store.max_offset("orders", sent.queue.queue_id) == 1

"""A broker that is stopped while its disk is full: it ends in order, and says what it could not save."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from cosmodrome import Message, Producer, state_file
from cosmodrome.broker.broker import Broker
from cosmodrome.cli import serve
from cosmodrome.cli.main import main
from cosmodrome.errors import SendFailed, StoreError
from cosmodrome.mapped_file import MappedFile
from cosmodrome.store.lock import AbortMark, Exit
from cosmodrome.store.message_store import MessageStore
from tests.system.cluster import running_broker, running_name_server


def full(path: Path, _data: bytes = b"") -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


@asynccontextmanager
async def broken_end(folder: Path, namesrv: str, match: str) -> AsyncIterator[Broker]:
    """A broker whose end says what it could not save."""
    life = running_broker(folder, namesrv)
    broker = await life.__aenter__()
    yield broker
    with pytest.raises(StoreError, match=match):
        await life.__aexit__(None, None, None)


async def test_tables_that_cannot_be_saved_do_not_keep_the_store_from_being_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_name_server() as name_server:
        said = r"has stopped, but .*consumerOffset.json: .*see to the disk first$"
        async with broken_end(tmp_path, name_server.address, said) as broker:
            async with Producer("p", name_server.address) as producer:
                sent = await producer.send(Message("orders", b"a"))
            broker.offsets.commit("g", "orders", sent.queue.queue_id, 1)
            monkeypatch.setattr(state_file, "save", full)
        assert "cannot save consumerOffset.json: [Errno 28]" in caplog.text
        assert not (tmp_path / "abort").exists()
        monkeypatch.undo()
        async with running_broker(tmp_path, name_server.address) as broker:
            assert broker.store.max_offset("orders", sent.queue.queue_id) == 1


async def test_messages_that_have_no_room_in_their_queue_are_in_it_after_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = MappedFile.prepare

    def only_the_log(file: MappedFile, end: int, step: int) -> None:
        if "consumequeue" in str(file.path):
            full(Path(file.path))
        prepare(file, end, step)

    async with running_name_server() as name_server:
        said = r"could not save everything: the store: .*No space left on device"
        async with broken_end(tmp_path, name_server.address, said):
            monkeypatch.setattr(MappedFile, "prepare", only_the_log)
            async with Producer("p", name_server.address) as producer:
                sent = await producer.send(Message("orders", b"a"))
        assert AbortMark(tmp_path / "abort").last_exit() is Exit.KILLED  # memory is not to be doubted
        monkeypatch.undo()
        async with running_broker(tmp_path, name_server.address) as broker:
            assert broker.store.max_offset("orders", sent.queue.queue_id) == 1


async def test_a_broker_whose_disk_failed_does_not_call_that_an_end_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_file: MappedFile) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with running_name_server() as name_server:
        async with (
            broken_end(tmp_path, name_server.address, "the disk failed") as broker,
            Producer("p", name_server.address, max_tries=1) as producer,
        ):
            await producer.send(Message("orders", b"a"))
            monkeypatch.setattr(MappedFile, "sync", broken)
            broker.store.flusher.want(broker.store.max_physical_offset)
            async with asyncio.timeout(30):
                while broker.store.failure is None:  # noqa: ASYNC110  # a failed flush tells nobody
                    await asyncio.sleep(0.01)
            with pytest.raises(SendFailed):
                await producer.send(Message("orders", b"b"))
        assert AbortMark(tmp_path / "abort").last_exit() is Exit.DISK_FAILURE


@pytest.mark.parametrize(
    "command",
    [
        ("up", "--namesrv-port", "0", "--broker-port", "0", "--data"),
        ("broker", "-n", "127.0.0.1:1", "--port", "0", "--store"),
    ],
)
def test_the_command_ends_with_a_sentence_and_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    close = MessageStore.close

    def failing(store: MessageStore) -> None:
        close(store)
        full(tmp_path)

    def told_to_stop() -> asyncio.Event:
        stop = asyncio.Event()
        stop.set()
        return stop

    monkeypatch.setattr(MessageStore, "close", failing)
    monkeypatch.setattr(serve, "_stop_on_signal", told_to_stop)
    done = CliRunner().invoke(main, [*command, str(tmp_path / "data")])
    assert done.exit_code == 1
    last = done.output.splitlines()[-1]
    assert last.startswith("Error: the broker has stopped, but could not save everything: the store: [Errno 28]")
    assert "Traceback" not in done.output

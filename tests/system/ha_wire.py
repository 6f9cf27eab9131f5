"""The network between a master and its slave: it delays, breaks off anywhere, and knows where batches ended."""

from __future__ import annotations

import asyncio
from random import Random

from cosmodrome.replication.packets import PacketReader

CHUNK_BYTES = 65_536
SIZE_BYTES = 4  # a record, and the blank at the end of a file, begins with its size


class Boundaries:
    """Counts the batches of one connection, and those that end within a record. The first one begins with a record."""

    def __init__(self) -> None:
        self.batches = 0
        self.torn = 0
        self._reader = PacketReader()
        self._left = 0  # of the record that has begun
        self._size = b""  # what has come of the next one's size

    def feed(self, data: bytes) -> None:
        self._reader.feed(data)
        while (packet := self._reader.take()) is not None:
            if packet.data:
                self._walk(packet.data)
                self.batches += 1
                self.torn += bool(self._left or self._size)

    def _walk(self, data: bytes) -> None:
        place = 0
        while place < len(data):
            if not self._left:
                part = data[place : place + SIZE_BYTES - len(self._size)]
                self._size, place = self._size + part, place + len(part)
                if len(self._size) < SIZE_BYTES:
                    return
                self._left, self._size = int.from_bytes(self._size, "big") - SIZE_BYTES, b""
                assert self._left > 0, "a record follows a record"
            step = min(self._left, len(data) - place)
            self._left, place = self._left - step, place + step


class HaWire:
    """A port for the slave, behind which is the master of now."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.target: tuple[str, int] | None = None
        self.delay_seconds = 0.0
        self.batches = self.torn_batches = 0
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: dict[asyncio.StreamWriter, bytes] = {}  # what has not been handed on to a slave

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def close(self) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Lose what is under way; of that which the slave has not got, it gets a part."""
        for writer, data in self._held.items():
            writer.write(data[: self._random.randint(0, len(data))])
        self._held.clear()
        for writer in self._ends:
            writer.close()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, from_slave: asyncio.StreamReader, to_slave: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = {to_slave}
        self._ends |= ends
        try:
            if self.target is None:
                return
            from_master, to_master = await asyncio.open_connection(*self.target)
            ends.add(to_master)
            self._ends.add(to_master)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._reports(from_slave, to_master))
                directions.create_task(self._packets(from_master, to_slave))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._ends -= ends
            for writer in ends:
                writer.close()

    async def _reports(self, from_slave: asyncio.StreamReader, to_master: asyncio.StreamWriter) -> None:
        while data := await from_slave.read(CHUNK_BYTES):
            to_master.write(data)
        raise ConnectionResetError("the slave has ended")

    async def _packets(self, from_master: asyncio.StreamReader, to_slave: asyncio.StreamWriter) -> None:
        seen = Boundaries()
        try:
            while data := await from_master.read(CHUNK_BYTES):
                seen.feed(data)
                self._held[to_slave] = data
                await asyncio.sleep(self.delay_seconds)
                self._held.pop(to_slave, None)
                to_slave.write(data)
        finally:
            self.batches, self.torn_batches = self.batches + seen.batches, self.torn_batches + seen.torn
        raise ConnectionResetError("the master has ended")

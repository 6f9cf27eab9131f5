"""The bytes between a master and its slaves, which are Apache's. Readers take any chunking and do no I/O.

slave → master    report:  | log end 8 |
master → slave    packet:  | offset 8 | size 4 | bytes of the log |      size 0: a heartbeat
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from cosmodrome.config import MIB
from cosmodrome.errors import ProtocolError

REPORT = struct.Struct(">q")
PACKET = struct.Struct(">qi")
# The largest batch that haTransferBatchSize allows; a longer one is refused before its bytes are waited for.
MAX_PACKET_BYTES = 16 * MIB
# 72 petabytes: what lies beyond is no place in a log, but the bytes of some other protocol.
MAX_OFFSET = 1 << 56

encode_report = REPORT.pack
encode_head = PACKET.pack


class Packet(NamedTuple):
    """Bytes of the log and the offset of their first; a heartbeat has none."""

    offset: int
    data: bytes


class ReportReader:
    """A parser of what a slave sends."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the reports that are complete with `data`, in order. ProtocolError if one cannot be true."""
        if self._pending:
            data = self._pending + data
        whole = len(data) & ~7
        self._pending = data[whole:]
        reports = [offset for (offset,) in REPORT.iter_unpack(data[:whole])]
        for offset in reports:
            _check_offset(offset, "report")
        return reports


class PacketReader:
    """A parser of what a master sends. A packet is given out when all of it has arrived, as Apache's slave does."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._place = 0  # behind the packets that were taken

    @property
    def pending_bytes(self) -> int:
        """How much has arrived of packets that are not taken yet."""
        return len(self._pending) - self._place

    def feed(self, data: bytes) -> None:
        self._pending += data

    def take(self) -> Packet | None:
        """Return the next packet, or None if bytes of it are missing. ProtocolError if its head cannot be true."""
        place = self._place
        if self.pending_bytes < PACKET.size:
            self._drop_taken()
            return None
        offset, size = PACKET.unpack_from(self._pending, place)
        _check_offset(offset, "packet")
        if not 0 <= size <= MAX_PACKET_BYTES:
            raise ProtocolError(f"a packet of {size} bytes at {offset}, at most {MAX_PACKET_BYTES} are taken")
        begin = place + PACKET.size
        end = begin + size
        if len(self._pending) < end:
            self._drop_taken()
            return None
        self._place = end
        return Packet(offset, bytes(memoryview(self._pending)[begin:end]))

    def _drop_taken(self) -> None:
        if self._place:
            del self._pending[: self._place]
            self._place = 0


def _check_offset(offset: int, what: str) -> None:
    if not 0 <= offset <= MAX_OFFSET:
        raise ProtocolError(f"a {what} with offset {offset}: no broker sends this")

"""Reading ranges of queues from brokers, as Arrow batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa

from cosmodrome.client.pulling import NOTHING_THERE
from cosmodrome.codes import ResponseCode
from cosmodrome.config import MIB
from cosmodrome.errors import BrokerError, CosmodromeError
from cosmodrome.model import Property, Subscription
from cosmodrome.spark.decoding import Records
from cosmodrome.spark.link import MAX_PAUSE_SECONDS, Cluster, may_pass
from cosmodrome.spark.options import SourceOptions
from cosmodrome.spark.planning import Range
from cosmodrome.spark.progress import DataLoss, named
from cosmodrome.spark.pulling import pull_request
from cosmodrome.spark.schema import BatchMaker
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import PullReply

log = logging.getLogger(__name__)

# A batch is handed to Spark at this many rows or bytes, whichever comes first.
BATCH_ROWS = 10_000
BATCH_BYTES = 8 * MIB

_FOUND = ResponseCode.SUCCESS


class RangeReader:
    """Reads ranges one after the other. The next pull is under way while the last one is decoded."""

    def __init__(self, cluster: Cluster, options: SourceOptions, maker: BatchMaker) -> None:
        self._cluster = cluster
        self._options = options
        self._maker = maker

    def batches(self, ranges: Iterable[Range]) -> Iterator[pa.RecordBatch]:
        for wanted in ranges:
            yield from self._batches(wanted)

    def _batches(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        pending: list[bytes] = []
        rows = size = 0
        for body, count in self._pulled(wanted):
            pending.append(body)
            rows += count
            size += len(body)
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield from self._made(wanted, pending)
                pending, rows, size = [], 0, 0
        if pending:
            yield from self._made(wanted, pending)

    def _made(self, wanted: Range, pending: list[bytes]) -> Iterator[pa.RecordBatch]:
        """A batch, unless nothing of what was pulled is wanted."""
        records = Records(pending[0] if len(pending) == 1 else b"".join(pending))
        offsets = records.queue_offsets
        if offsets[0] < wanted.begin or offsets[-1] >= wanted.end:
            records = records.select((offsets >= wanted.begin) & (offsets < wanted.end))
        if tags := self._options.wanted(wanted.queue.topic).tags:  # a broker goes by their hashes
            records = records.select(records.has_property(Property.TAGS, tags))
        if self._options.keys:
            records = records.select(records.has_property(Property.KEYS, self._options.keys))
        if len(records):
            yield self._maker.make(records, wanted.queue.broker_name)

    def _pulled(self, wanted: Range) -> Iterator[tuple[bytes, int]]:
        """Records as they were pulled, and about how many. A pull that fails is repeated from where it was."""
        offset, failures = wanted.begin, 0
        subscription = self._options.wanted(wanted.queue.topic)
        while offset < wanted.end:
            try:
                for body, next_offset in _Pulls(self._cluster, wanted, subscription, self._options, offset):
                    if body:
                        yield body, next_offset - offset
                    offset, failures = next_offset, 0
            except CosmodromeError as error:
                failures += 1
                if failures >= self._options.offset_retries or not may_pass(error):
                    raise
                log.warning("%s; reading on at %d of %s", error, offset, named(wanted.queue))
                pause_seconds = self._options.offset_retry_interval_ms / 1000 * 2 ** (failures - 1)
                time.sleep(min(pause_seconds, MAX_PAUSE_SECONDS))


class _Pulls:
    """The answers to one pull after the other, from `offset` on, until the range is read."""

    def __init__(
        self, cluster: Cluster, wanted: Range, subscription: Subscription, options: SourceOptions, offset: int
    ) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._subscription = subscription
        self._options = options
        self._offset = offset
        self._address = cluster.member(wanted.queue)

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Each body of records with the offset to go on at; the body is empty when nothing there was wanted."""
        address, timeout = self._address, self._options.pull_timeout_ms / 1000
        try:
            peer = self._cluster.peer(address)
            opaque: int | None = peer.send(self._request())
            while opaque is not None:
                reply = peer.fetch(opaque, timeout)
                before, body = self._offset, self._taken(reply)
                opaque = peer.send(self._request()) if self._offset < self._wanted.end else None
                if self._offset > before:
                    yield body, self._offset
        except CosmodromeError:
            self._cluster.drop(address)
            self._cluster.forget_routes()
            raise
        except GeneratorExit:  # nobody will fetch what is still under way
            self._cluster.drop(address)
            raise

    def _request(self) -> Command:
        count = min(self._options.pull_batch_size, self._wanted.end - self._offset)
        return pull_request(self._wanted.queue, self._offset, count, self._subscription)

    def _taken(self, reply: Command) -> bytes:
        """What the answer brings, with our offset moved behind it."""
        if reply.code == _FOUND:
            self._offset = PullReply.decode(reply).next_begin_offset
            return bytes(reply.body)
        if reply.code not in NOTHING_THERE:
            raise BrokerError(reply.code, reply.remark or "", self._address)
        answer = PullReply.decode(reply)
        if reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            self._offset = max(self._offset, answer.next_begin_offset)
        else:
            self._missing(answer)
        return b""

    def _missing(self, answer: PullReply) -> None:
        """Our offset is before the first message, or behind the last one, though the range was there when planned."""
        queue, begin, end = self._wanted.queue, self._offset, self._wanted.end
        there = f"{answer.min_offset} to {answer.max_offset - 1}" if answer.max_offset > answer.min_offset else "none"
        text = f"messages {begin} to {end - 1} of {named(queue)} are gone; it has {there}"
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}. Set the option failOnDataLoss to false to go on with what is there")
        log.warning("%s", text)
        self._offset = min(max(answer.min_offset, begin), end) if answer.min_offset > begin else end

"""Reading ranges of queues from brokers, as Arrow batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from cosmodrome.client.pulling import NOTHING_THERE
from cosmodrome.codes import ResponseCode
from cosmodrome.config import MIB
from cosmodrome.errors import BrokerError, CosmodromeError, DamagedRecord, ProtocolError, RouteNotFound
from cosmodrome.model import ALL_TAGS, MessageQueue, Property, Subscription
from cosmodrome.spark.decoding import Records
from cosmodrome.spark.link import MAX_PAUSE_SECONDS, Cluster, NotReady, may_pass
from cosmodrome.spark.options import SourceOptions
from cosmodrome.spark.planning import Range
from cosmodrome.spark.positions import Positions
from cosmodrome.spark.progress import DataLoss, loss, named
from cosmodrome.spark.pulling import pull_request
from cosmodrome.spark.schema import BatchMaker
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import check_at, claimed_id, cut_records
from cosmodrome.wire.requests import PullReply

log = logging.getLogger(__name__)

# A batch is handed to Spark at this many rows or bytes, whichever comes first.
BATCH_ROWS = 10_000
BATCH_BYTES = 8 * MIB

# How long a queue with a gap is watched: brokers delete messages first, and move the queue's beginning a moment later.
GAP_TRIES = 3
GAP_PAUSE_SECONDS = 0.5

_FOUND = ResponseCode.SUCCESS
_REMOVED = "MESSAGE_WAS_REMOVING"  # so Apache's brokers remark that they have passed over deleted messages
_MAX_DOUBLINGS = 20


class _Pulled(NamedTuple):
    """Records of the offsets from `begin` to before `end`, as a broker sent them."""

    body: bytes
    begin: int
    end: int
    has_damage: bool = False


class RangeReader:
    """Reads ranges one after the other. The next pull is under way while the last one is decoded."""

    def __init__(self, cluster: Cluster, options: SourceOptions, maker: BatchMaker) -> None:
        self._cluster = cluster
        self._options = options
        self._maker = maker
        self._positions = Positions(cluster, options)
        self._with_gaps: set[MessageQueue] = set()  # by nature

    def batches(self, ranges: Iterable[Range]) -> Iterator[pa.RecordBatch]:
        for wanted in ranges:
            yield from self._batches(wanted)

    def _batches(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        pending: list[_Pulled] = []
        rows = size = 0
        for pulled in self._pulled(wanted):
            pending.append(pulled)
            rows += pulled.end - pulled.begin
            size += len(pulled.body)
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield from self._made(wanted, pending)
                pending, rows, size = [], 0, 0
        if pending:
            yield from self._made(wanted, pending)

    def _made(self, wanted: Range, pending: list[_Pulled]) -> Iterator[pa.RecordBatch]:
        """A batch, unless nothing of what was pulled is wanted."""
        records = _sound_records(wanted.queue, pending)
        if records is None:
            pending = [self._mended(wanted.queue, pulled) for pulled in pending]
            records = Records(b"".join([pulled.body for pulled in pending]))
        subscription = self._options.wanted(wanted.queue.topic)
        if subscription.expression == ALL_TAGS and len(records) < sum(pulled.end - pulled.begin for pulled in pending):
            self._check_gaps(wanted.queue, pending)
        offsets = records.queue_offsets
        if len(offsets) and (offsets[0] < wanted.begin or offsets[-1] >= wanted.end):
            records = records.select((offsets >= wanted.begin) & (offsets < wanted.end))
        if tags := subscription.tags:  # a broker goes by their hashes
            records = records.select(records.has_property(Property.TAGS, tags))
        if self._options.keys:
            records = records.select(records.has_property(Property.KEYS, self._options.keys))
        if len(records):
            yield self._maker.make(records, wanted.queue.broker_name)

    def _mended(self, queue: MessageQueue, pulled: _Pulled) -> _Pulled:
        """What was pulled without damaged records; DataLoss if there are any, unless that is allowed."""
        if _sound_records(queue, [pulled]) is not None:
            return pulled
        reasons: list[str] = []
        sound: list[bytes] = []
        pieces = cut_records(pulled.body)
        begin, is_whole = pulled.begin, len(pieces) == pulled.end - pulled.begin
        for number, piece in enumerate(pieces):
            begin, end = (pulled.begin + number, pulled.begin + number + 1) if is_whole else (begin, pulled.end)
            try:
                check_at(piece, 0, len(piece), topic=queue.topic.encode())
                records = _sound_records(queue, [_Pulled(piece, begin, end)])
                if records is None:
                    raise DamagedRecord("it is not of the queue or the offsets that were asked for")
            except ProtocolError as error:
                reasons.append(f"{claimed_id(piece, 0) or '?'}: {error}")
                continue
            sound.append(piece)
            begin = int(records.queue_offsets[0]) + 1
        text = (
            f"messages {pulled.begin} to {pulled.end - 1} of {named(queue)} hold {len(reasons)} damaged ones: "
            f"{', '.join(reasons)}; `cosmodrome store verify` looks for more in the broker's store"
        )
        _lose(text, fail=self._options.fail_on_data_loss)
        return pulled._replace(body=b"".join(sound), has_damage=True)

    def _check_gaps(self, queue: MessageQueue, pending: Sequence[_Pulled]) -> None:
        """Not all that was asked for came, though nothing was filtered. Compacted topics and repaired stores have gaps
        and keep their beginnings; where messages were deleted, the queue begins behind them, if not at once."""
        gap = _first_gap(pending)
        if gap is not None and self._begins_behind(gap[0], queue):
            text = f"messages {gap[0]} to {gap[1] - 1} of {named(queue)} are gone, deleted while they were to be read"
            _lose(text, fail=self._options.fail_on_data_loss)

    def _begins_behind(self, offset: int, queue: MessageQueue) -> bool:
        """Not waited for twice."""
        for left in reversed(range(1 if queue in self._with_gaps else GAP_TRIES)):
            if self._positions.earliest([queue])[queue] > offset:
                return True
            if left:
                time.sleep(GAP_PAUSE_SECONDS)
        self._with_gaps.add(queue)
        return False

    def _pulled(self, wanted: Range) -> Iterator[_Pulled]:
        """What there is in the range. A pull that fails is repeated from where it was."""
        offset, failures = wanted.begin, 0
        subscription = self._options.wanted(wanted.queue.topic)
        while offset < wanted.end:
            try:
                for body, next_offset in _Pulls(self._cluster, wanted, subscription, self._options, offset):
                    if body:
                        yield _Pulled(body, offset, next_offset)
                    offset, failures = next_offset, 0
            except CosmodromeError as error:
                failures += 1
                if failures >= self._options.offset_retries or not may_pass(error):
                    if isinstance(error, (BrokerError, RouteNotFound)) and self._positions.is_gone(wanted.queue):
                        text = (
                            f"messages {offset} to {wanted.end - 1} of {named(wanted.queue)} are gone with their queue"
                        )
                        _lose(text, fail=self._options.fail_on_data_loss)
                        return
                    raise
                log.warning("%s; reading on at %d of %s", error, offset, named(wanted.queue))
                pause_seconds = self._options.offset_retry_interval_ms / 1000 * 2 ** min(failures - 1, _MAX_DOUBLINGS)
                time.sleep(min(pause_seconds, MAX_PAUSE_SECONDS))


def _sound_records(queue: MessageQueue, pending: Sequence[_Pulled]) -> Records | None:
    """All that was pulled; None unless it is what was asked for, and as it was written."""
    try:
        records = Records(pending[0].body if len(pending) == 1 else b"".join([pulled.body for pulled in pending]))
    except ProtocolError:
        return None
    offsets, begin, end = records.queue_offsets, pending[0].begin, pending[-1].end
    are_right = (
        np.all(np.diff(np.concatenate(([begin - 1], offsets, [end]))) > 0)
        and records.are_sound().all()
        and records.are_of_queue(queue.topic, queue.queue_id)
    )
    return records if are_right else None


def _first_gap(pending: Iterable[_Pulled]) -> tuple[int, int] | None:
    """The first offsets that were asked for and did not come, the last one not included."""
    for body, begin, end, has_damage in pending:
        if has_damage:  # told already
            continue
        edges = np.concatenate(([begin - 1], Records(body).queue_offsets, [end]))
        before = np.flatnonzero(np.diff(edges) > 1)
        if before.size:
            return int(edges[before[0]]) + 1, int(edges[before[0] + 1])
    return None


def _lose(text: str, *, fail: bool) -> None:
    """DataLoss, or a warning where that is allowed."""
    if fail:
        raise DataLoss(loss([text]))
    log.warning("%s", text)


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
        self._is_master = cluster.has_master(wanted.queue)

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
        if reply.code != _FOUND and reply.code not in NOTHING_THERE:
            raise BrokerError(reply.code, reply.remark or "", self._address)
        answer = PullReply.decode(reply)
        if reply.code in (_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            self._go_on(answer, reply.remark or "")
        else:
            self._missing(answer)
        return bytes(reply.body) if reply.code == _FOUND else b""

    def _go_on(self, answer: PullReply, remark: str) -> None:
        """To where the broker says. One that stays where it is must not be asked again and again: so answers a slave
        that has nothing more, as it takes its master to be there."""
        queue, begin, end = self._wanted.queue, self._offset, answer.next_begin_offset
        if end <= begin:
            raise NotReady(
                self._address,
                f"it gives nothing of {named(queue)} from {begin} on ({remark}); it has {_extent(answer)}",
            )
        if remark == _REMOVED:
            last = min(end, self._wanted.end) - 1
            text = f"messages {begin} to {last} of {named(queue)} are gone, deleted while they were to be read"
            _lose(text, fail=self._options.fail_on_data_loss)
        self._offset = end

    def _missing(self, answer: PullReply) -> None:
        """Our offset is before the first message, or behind the last one, though the range was there when planned. A
        slave that ends before it has only not got the rest yet."""
        queue, begin, end = self._wanted.queue, self._offset, self._wanted.end
        if begin >= answer.max_offset and not self._is_master:
            raise NotReady(
                self._address,
                f"this slave has not got {named(queue)} from {begin} on yet, or never will; it has {_extent(answer)}",
            )
        text = f"messages {begin} to {end - 1} of {named(queue)} are gone; it has {_extent(answer)}"
        _lose(text, fail=self._options.fail_on_data_loss)
        self._offset = min(max(answer.min_offset, begin), end) if answer.min_offset > begin else end


def _extent(answer: PullReply) -> str:
    """What the answering broker has of the queue."""
    return f"{answer.min_offset} to {answer.max_offset - 1}" if answer.max_offset > answer.min_offset else "none"

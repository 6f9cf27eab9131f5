"""Writing rows as messages, in batches and streams."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from cosmodrome.errors import ConfigError, CosmodromeError
from cosmodrome.model import MessageQueue
from cosmodrome.spark.encoding import Encoder, RowNames, Shipment
from cosmodrome.spark.exactly_once import JOB_SCOPE, Committer, Handle, TaskHalves, halves_of
from cosmodrome.spark.ledger import BrokerLedger
from cosmodrome.spark.link import Cluster
from cosmodrome.spark.pacing import paced
from cosmodrome.spark.pool import connected
from cosmodrome.spark.sending import Sender
from cosmodrome.spark.sink_options import SinkOptions
from cosmodrome.wire.record import parse_offset_msg_id
from cosmodrome.wire.requests import SendReply

log = logging.getLogger(__name__)

# Where Spark tells a task which query and batch it works for.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task did: how many rows it sent, and its half messages, if it sent such."""

    rows: int
    halves: bytes = b""

    def task(self) -> TaskHalves:
        return TaskHalves.decode(self.halves)


class TaskWriter:
    """What both writers do in a task."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._own_scope = f"{JOB_SCOPE}{options.job_id}" if options.job_id else uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Return when every row is acknowledged."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        scope = self._scope(context)
        with connected(self._options.link) as cluster:
            return _Task(cluster, self._options, scope, partition).write(iterator)

    def _scope(self, context: TaskContext | None) -> str:
        """The epoch this task is part of: the same when it is repeated."""
        return self._own_scope

    # --- on the driver

    def _committer(self, cluster: Cluster, *, may_create: bool) -> Committer:
        ledger = BrokerLedger(cluster, self._options, may_create=may_create)
        return Committer(ledger, tries=self._options.send_retries, fail_on_data_loss=self._options.fail_on_data_loss)

    def _commit(self, scope: str, tasks: Sequence[TaskHalves], *, may_create: bool) -> None:
        with connected(self._options.link) as cluster:
            self._committer(cluster, may_create=may_create).commit(scope, uuid.uuid4().hex, tasks)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Roll back what failed tasks leave of their job. Where every task was done, the commit may have failed, and
        what it has decided stands: these half messages are left to the repetition."""
        if not self._options.exactly_once or None not in messages:
            return
        halves = halves_of(_tasks(messages))
        with suppress(CosmodromeError), connected(self._options.link) as cluster:
            self._committer(cluster, may_create=False).roll_back(halves)


class RocketMQWriter(TaskWriter, DataSourceArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once:
            self._commit(self._own_scope, _tasks(messages), may_create=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class RocketMQStreamWriter(TaskWriter, DataSourceStreamArrowWriter):
    def _scope(self, context: TaskContext | None) -> str:
        query_id, batch_id = (
            (context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)) if context else (None, None)
        )
        if query_id and batch_id:
            return f"{query_id}:{batch_id}"
        if self._options.exactly_once:
            raise ConfigError("this Spark does not tell tasks their query and batch; exactlyOnce=true cannot be")
        return self._own_scope

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        tasks = _tasks(messages)
        if not self._options.exactly_once or not tasks:
            return
        scopes = {task.scope for task in tasks}
        if len(scopes) != 1 or not tasks[0].scope.endswith(f":{batchId}"):
            raise ConfigError(f"the tasks of batch {batchId} say they worked for {', '.join(sorted(scopes))}")
        self._commit(tasks[0].scope, tasks, may_create=batchId == 0)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)


def _tasks(messages: Iterable[WriterCommitMessage | None]) -> list[TaskHalves]:
    """In the order of the partitions: in that order messages become visible."""
    found = [message.task() for message in messages if isinstance(message, Written) and message.halves]
    return sorted(found, key=lambda task: task.partition)


class _Task:
    """One task of a write."""

    def __init__(self, cluster: Cluster, options: SinkOptions, scope: str, partition: int) -> None:
        self._cluster = cluster
        self._options = options
        self._scope = scope
        self._partition = partition
        self._rows = 0
        self._handles: list[Handle] = []

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        sender = Sender(self._cluster, self._options, self._stored)
        names = RowNames(self._scope, self._partition) if self._options.idempotent_keys else None
        encoder = Encoder(self._options, names, sender.locate)
        try:
            rate = self._options.max_rows_per_second
            for batch in paced(batches, rate) if rate else batches:
                for shipment in encoder.shipments(batch):
                    sender.send(shipment)
            sender.finish()
        except Exception:
            self._roll_back()
            raise
        if not self._options.exactly_once:
            return Written(self._rows)
        return Written(self._rows, self._task().encode())

    def _task(self) -> TaskHalves:
        return TaskHalves(self._scope, self._partition, tuple(sorted(self._handles)), self._options.group)

    def _stored(self, shipment: Shipment, queue: MessageQueue, reply: SendReply) -> None:
        self._rows += len(shipment.rows)
        if self._options.exactly_once:
            (row,) = shipment.rows
            log_offset = parse_offset_msg_id(reply.msg_id)[2]
            self._handles.append(Handle(row, queue, reply.queue_offset, log_offset))

    def _roll_back(self) -> None:
        """What is known of a failed attempt; the next one sends everything anew."""
        if self._handles:
            log.warning("rolling back %d half messages of a failed task", len(self._handles))
            with suppress(CosmodromeError):
                ledger = BrokerLedger(self._cluster, self._options, may_create=False)
                Committer(ledger, tries=1).roll_back(self._task().halves())

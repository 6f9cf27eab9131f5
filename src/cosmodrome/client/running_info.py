"""What a consumer tells about itself, to its operators and to its own application."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from traceback import StackSummary
from types import FrameType
from typing import Any

from cosmodrome.client.consume_stats import ConsumeStatistics
from cosmodrome.client.process_queue import ProcessQueue
from cosmodrome.clock import Clock
from cosmodrome.codes import OUR_VERSION
from cosmodrome.config import MIB
from cosmodrome.model import ConsumeType, MessageQueue, Subscription
from cosmodrome.wire.bodies import ConsumerRunningInfo, QueueProgress


@dataclass(frozen=True, slots=True)
class Traits:
    """What a consumer is, from its start on."""

    consume_type: ConsumeType
    orderly: bool
    threads: int  # how many handlers may run at the same time
    started_ms: int
    name_servers: Sequence[str]
    settings: Mapping[str, str] = field(default_factory=dict)  # what else it was told, by the names of Java's consumer


def running_info(
    traits: Traits,
    subscriptions: Iterable[Subscription],
    in_process: Mapping[MessageQueue, ProcessQueue],
    statistics: ConsumeStatistics,
    clock: Clock,
    *,
    locked_ms: Callable[[MessageQueue], int | None] = lambda _: None,
    with_stacks: bool = False,
) -> ConsumerRunningInfo:
    """`locked_ms` says since when an orderly consumer has the lock of a queue, if it has.

    What is noted is steady time; it is told as the dates that the clock shows now.
    """
    steady_ms = clock.steady_ms()
    ahead_ms = clock.now_ms() - steady_ms
    subscribed = tuple(subscriptions)
    return ConsumerRunningInfo(
        properties=_properties(traits),
        subscriptions=subscribed,
        queues={
            queue: _progress(queue, process, statistics, locked_ms(queue), ahead_ms)
            for queue, process in in_process.items()
        },
        statuses={one.topic: statistics.status(one.topic, steady_ms) for one in subscribed},
        stacks=stacks() if with_stacks else None,
    )


def _properties(traits: Traits) -> dict[str, str]:
    return {
        **traits.settings,
        "PROP_CLIENT_VERSION": OUR_VERSION.name,
        "PROP_CONSUMEORDERLY": str(traits.orderly).lower(),
        "PROP_CONSUMER_START_TIMESTAMP": str(traits.started_ms),
        "PROP_CONSUME_TYPE": str(traits.consume_type),
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in traits.name_servers),
        "PROP_THREADPOOL_CORE_SIZE": str(traits.threads),
    }


def _progress(
    queue: MessageQueue, process: ProcessQueue, statistics: ConsumeStatistics, locked_ms: int | None, ahead_ms: int
) -> QueueProgress:
    return QueueProgress(
        commit_offset=process.commit_offset,
        cached_count=len(process),
        cached_min_offset=process.commit_offset if process else 0,
        cached_max_offset=process.newest_offset if process else 0,
        cached_mib=process.size_bytes // MIB,
        locked=locked_ms is not None,
        last_lock_timestamp=0 if locked_ms is None else locked_ms + ahead_ms,
        dropped=process.released,
        last_pull_timestamp=statistics.last_pull_ms(queue) + ahead_ms,
        last_consume_timestamp=statistics.last_consume_ms(queue) + ahead_ms,
        flow_control=_flow_control(process, ahead_ms),
    )


def _flow_control(process: ProcessQueue, ahead_ms: int) -> str:
    """Name the limit that holds the queue, and since when; empty if none does."""
    hold = process.hold
    if hold is None:
        return ""
    since = "" if process.held_since_ms is None else f" since={process.held_since_ms + ahead_ms}"
    return (
        f"limit={hold.limit} cached={hold.cached} allowed={hold.allowed}{since} oldest_offset={process.commit_offset}"
    )


def stacks() -> str:
    """Where every task of this loop and every thread of this process is; where Java has its jstack."""
    parts = [
        (f"Task {task.get_name()}", StackSummary.extract(_awaiting(task)))
        for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    ]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        parts.append((f"Thread {names.get(ident, ident)}", traceback.extract_stack(frame)))
    return "\n".join(f"{title}:\n{''.join(stack.format())}" for title, stack in parts)


def _awaiting(task: asyncio.Task[Any]) -> Iterator[tuple[FrameType, int]]:
    """The frames of a task, outermost first, down to what it waits for; `get_stack` shows only the first of them."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            yield frame, frame.f_lineno
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)

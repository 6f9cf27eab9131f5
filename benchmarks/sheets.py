"""The sheets of `make bench`: each puts our broker and Apache's under the same workloads, with the same settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchmarks.workloads import BATCH, BATCHES, SEND, WORKLOADS, Workload, make_batch, send_of
from cosmodrome.wire.frame import BINARY

KIB = 1024
RATES = (2_000, 5_000, 10_000)  # sends per second, all below the saturation of either broker


@dataclass(frozen=True, slots=True)
class Sheet:
    """Workloads that are shown in one table and one chart; `config` goes into the `broker.conf` of all brokers."""

    name: str
    title: str
    workloads: tuple[Workload, ...]
    config: Mapping[str, str] = field(default_factory=dict)


def _at_rate(rate: int) -> Workload:
    title = f"send 128 B, 64 connections, {rate:,}/s"
    return replace(SEND, slug=f"rate-{rate}", title=title, rate=rate)


PATHS = Sheet("paths", "the paths of a message, each by itself", WORKLOADS)
SHEETS = (
    PATHS,
    Sheet(
        "send",
        "sends by size, connections and header",
        (
            *(send_of(body, connections) for body in (128, KIB) for connections in (1, 16, 64)),
            send_of(128, 64, serializer=BINARY),
            send_of(KIB, 64, serializer=BINARY),
            send_of(128, 64, has_keys=True),
            send_of(128, 64, serializer=BINARY, has_keys=True),
            send_of(128, 16, 32),
            send_of(KIB, 16, 32),
            BATCHES,
            replace(
                BATCHES, slug="batch-1kb", title=f"send batches of {BATCH} × 1 KB, 64 × 1", make=make_batch(b"x" * KIB)
            ),
        ),
    ),
    Sheet(
        "flush",
        "sends that wait for the disk (SYNC_FLUSH)",
        tuple(replace(send_of(128, *ways), budget_us=None) for ways in ((1, 1), (16, 1), (64, 1), (16, 32))),
        {"flushDiskType": "SYNC_FLUSH"},
    ),
    Sheet("latency", "latency of sends at a fixed rate, below saturation", tuple(map(_at_rate, RATES))),
)

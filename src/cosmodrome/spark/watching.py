"""How far a stream is behind, out of what Spark reports of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from cosmodrome.spark.progress import behind, from_json
from cosmodrome.spark.sessions import require_spark

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener


def lag(progress: Mapping[str, Any] | None) -> dict[str, int]:
    """How many messages of each topic are still to be read: `lag(query.lastProgress)`."""
    total: dict[str, int] = {}
    for source in (progress or {}).get("sources", ()):
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for topic, count in behind(end, latest).items():
            total[topic] = total.get(topic, 0) + count
    return total


def rows_and_rate(progress: Mapping[str, Any]) -> tuple[int, float]:
    """How many rows a micro-batch read, and how many a second. Spark Connect tells it of each source only."""
    sources = progress.get("sources", ()) if progress.get("numInputRows") is None else (progress,)
    rows = sum(int(source.get("numInputRows") or 0) for source in sources)
    return rows, sum(float(source.get("processedRowsPerSecond") or 0.0) for source in sources)


def _offsets(text: Any) -> dict[Any, int]:
    """Of sources other than ours there are none, whatever their offsets look like."""
    try:
        return from_json(orjson.loads(text) if isinstance(text, str) else text or {})
    except (ValueError, TypeError, AttributeError):
        return {}


def lag_listener(show: Callable[[str], None] = print) -> StreamingQueryListener:
    """Shows rows, rate and lag of every micro-batch: `spark.streams.addListener(lag_listener())`."""
    require_spark(java=False)
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryListener,
    )

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: QueryStartedEvent) -> None:
            return

        def onQueryProgress(self, event: QueryProgressEvent) -> None:
            show(summary(event.progress))

        def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
            return

    return Listener()


def _unnamed(progress: Mapping[str, Any]) -> str:
    """Return what to call a query without a name: the topics that it reads, and the beginning of its id."""
    topics = {queue.topic for source in progress.get("sources", ()) for queue in _offsets(source.get("endOffset"))}
    return f"{', '.join(sorted(topics)) or 'query'} ({str(progress.get('id'))[:8]})"


def summary(progress: Mapping[str, Any]) -> str:
    """One line on a micro-batch."""
    behind_by = ", ".join(f"{topic} {count:,}" for topic, count in sorted(lag(progress).items())) or "nothing"
    rows, rate = rows_and_rate(progress)
    name = progress.get("name") or _unnamed(progress)
    return f"{name}, batch {progress.get('batchId')}: {rows:,} rows, {rate:,.0f} rows/s; behind: {behind_by}"

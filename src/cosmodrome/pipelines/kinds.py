"""The ready pipelines: what each is for, what its file may say, and which function runs it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosmodrome.numbers import parse_int

TEMPLATES = Path(__file__).parent / "templates"

_FILES = ("parquet", "orc", "json", "csv")
_ANY_SOURCE = ("rocketmq", "parquet", "orc", "json", "csv", "text", "rate")
_ANY_SINK = ("rocketmq", "parquet", "orc", "json", "csv", "console", "memory", "noop")


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of one kind of pipeline, and how it is read; ValueError says what it accepts."""

    read: Callable[[Any], Any]
    default: Any = None
    is_path: bool = False


def _nothing(options: Mapping[str, Any]) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Kind:
    """`streams` is None where a pipeline may do either. Of several formats the first is the default."""

    name: str
    summary: str
    function: str
    source_formats: tuple[str, ...] = ()
    sink_formats: tuple[str, ...] = ()
    streams: bool | None = True
    many_sources: bool = False
    has_steps: bool = True
    needs_checkpoint: bool = True
    is_own: bool = False  # a user's: it may do without source and sink, and reads its options itself
    partition_by: tuple[str, ...] = ()
    own_source_options: frozenset[str] = frozenset()  # in lower case
    options: Mapping[str, Option] = field(default_factory=dict)
    # Which options of the sink the pipeline sets when it writes, as its own options say.
    set_on_sink: Callable[[Mapping[str, Any]], Mapping[str, str]] = _nothing

    @property
    def template(self) -> Path:
        return TEMPLATES / f"{self.name}.yaml"


def _number(value: Any) -> int:
    number = None if isinstance(value, bool) else parse_int(_as_text(value))
    if number is None:
        raise ValueError("it must be a whole number, 0 or more")
    return number


def _as_text(value: Any) -> str:
    """Return a value as text; a number too long for that is no number here."""
    try:
        return str(value)
    except ValueError:
        return ""


def _at_least_one(value: Any) -> int:
    if (number := _number(value)) == 0:
        raise ValueError("it must be at least 1")
    return number


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"it must be {' or '.join(allowed)}")
        return str(value)

    return read


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("it must be true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it must be text")
    return value.strip()


def _names(value: Any) -> tuple[str, ...]:
    names = value if isinstance(value, list) else _text(value).split(",")
    return tuple(name for name in map(_text, names) if name)


def _of_redrive(options: Mapping[str, Any]) -> Mapping[str, str]:
    """The name is that of a plan, which each run that sends has of its own."""
    return {"exactlyOnce": str(options["exactlyOnce"]).lower(), "jobId": "redrive"}


_READY = (
    Kind(
        "archive",
        "topics to Parquet by date and topic, exactly once",
        "cosmodrome.pipelines.archive:archive",
        source_formats=("rocketmq",),
        sink_formats=_FILES,
        partition_by=("date", "topic"),
    ),
    Kind(
        "replay",
        "Parquet, or a time range of a topic, to a topic again, at a chosen rate",
        "cosmodrome.pipelines.replay:replay",
        source_formats=("rocketmq", "parquet", "orc"),
        sink_formats=("rocketmq",),
        streams=None,
        needs_checkpoint=False,
        own_source_options=frozenset({"endingtimestamp"}),
        options={
            "rate": Option(_number, 0),
            "tasks": Option(_at_least_one, 1),
            "queues": Option(_one_of("hashed", "same", "any"), "hashed"),
        },
    ),
    Kind(
        "transform",
        "streaming SQL between topics: filters, windows, watermarks, joins",
        "cosmodrome.pipelines.transform:transform",
        source_formats=_ANY_SOURCE,
        sink_formats=_ANY_SINK,
        many_sources=True,
        options={"queues": Option(_one_of("any", "same"), "any")},
    ),
    Kind(
        "store-scan",
        "raw store folders to Parquet, without a broker",
        "cosmodrome.pipelines.store_scan:store_scan",
        source_formats=("rocketmq-store",),
        sink_formats=_FILES,
        streams=False,
        needs_checkpoint=False,
        partition_by=("date", "topic"),
    ),
    Kind(
        "trace-report",
        "latencies, failures and lost messages out of traces, as tables and a page",
        "cosmodrome.pipelines.trace_report:trace_report",
        source_formats=("rocketmq", "parquet", "orc", "rocketmq-store"),
        sink_formats=_FILES,
        streams=False,
        has_steps=False,
        needs_checkpoint=False,
        options={
            "html": Option(_text, "", is_path=True),
            "slowest": Option(_at_least_one, 10),
            "graceSeconds": Option(_number, 60),
        },
    ),
    Kind(
        "dead-letters",
        "what groups have given up: by group, topic and age; and sending it again",
        "cosmodrome.pipelines.dead_letters:dead_letters",
        source_formats=("rocketmq",),
        sink_formats=("rocketmq",),
        streams=False,
        has_steps=False,
        needs_checkpoint=False,
        options={
            "report": Option(_text, "", is_path=True),
            "reportFormat": Option(_one_of(*_FILES), "parquet"),
            "samples": Option(_at_least_one, 3),
            "where": Option(_text, ""),
            "redrive": Option(_flag, False),
            "state": Option(_text, "", is_path=True),
            "exactlyOnce": Option(_flag, True),
        },
        set_on_sink=_of_redrive,
    ),
    Kind(
        "audit",
        "what was produced against what each group consumed: gaps, duplicates, lag",
        "cosmodrome.pipelines.audit:audit",
        source_formats=("rocketmq",),
        sink_formats=_FILES,
        streams=False,
        has_steps=False,
        needs_checkpoint=False,
        options={"groups": Option(_names, ()), "html": Option(_text, "", is_path=True)},
    ),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _READY}


def own_kind(function: str) -> Kind:
    """A user's own pipeline: module:function."""
    formats = tuple(dict.fromkeys((*_ANY_SOURCE, "rocketmq-store")))
    return Kind(
        function,
        "your own",
        function,
        source_formats=formats,
        sink_formats=_ANY_SINK,
        streams=None,
        many_sources=True,
        needs_checkpoint=False,
        is_own=True,
    )

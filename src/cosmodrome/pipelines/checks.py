"""What single kinds of pipelines ask of their files, beyond what all do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import orjson

from cosmodrome.errors import ConfigError
from cosmodrome.model import DLQ_PREFIX

if TYPE_CHECKING:
    from cosmodrome.pipelines.definition import Pipeline

_SPLITTING = frozenset({"minpartitions", "maxrecordsperpartition", "maxtasksperbatch"})
_FILTERS = frozenset({"subexpression", "tags", "sql"})


def check_kind(pipeline: Pipeline) -> None:
    """ConfigError names the key that this kind of pipeline cannot have, or lacks."""
    if (check := _CHECKS.get(pipeline.kind.name)) is not None:
        check(pipeline)


def _check_replay(pipeline: Pipeline) -> None:
    """With two tasks the order of a queue would be lost, and each would send at the whole rate."""
    if pipeline.source.format != "rocketmq":
        return
    one_task = "a topic is replayed by one task, which keeps the order of its queues; leave it out"
    if used := [name for name in pipeline.source.options if name.lower() in _SPLITTING]:
        raise ConfigError(f"source.{used[0]}: {one_task}")
    if pipeline.options["tasks"] != 1:
        raise ConfigError(f"options.tasks: {one_task}")
    if not pipeline.checkpoint:
        raise ConfigError("checkpoint is missing: a folder in which Spark notes how far the replay has come")


def _check_transform(pipeline: Pipeline) -> None:
    if pipeline.options["queues"] == "same" and pipeline.sink is not None and pipeline.sink.format != "rocketmq":
        raise ConfigError(f"options.queues is same: {pipeline.sink.format} has no queues; leave it out")


def _check_dead_letters(pipeline: Pipeline) -> None:
    if pipeline.options["redrive"] and not pipeline.options["state"]:
        raise ConfigError("options.state is missing: a folder that remembers what has been sent again")
    for name, value in pipeline.source.options.items():
        for topic in _named_topics(name.lower(), value):
            if not topic.startswith(DLQ_PREFIX):
                raise ConfigError(
                    f"source.{name}: {topic} has no dead letters; those of the group billing are in {DLQ_PREFIX}billing"
                )


def _named_topics(option: str, value: str) -> list[str]:
    match option:
        case "subscribe" | "topic":
            return [topic.strip() for topic in value.split(",")]
        case "assign":
            return list(orjson.loads(value))
        case _:
            return []


def _check_audit(pipeline: Pipeline) -> None:
    used = [name for name in pipeline.source.options if name.lower() in _FILTERS]
    if pipeline.source.where:
        used.append("where")
    if used:
        raise ConfigError(f"source.{used[0]}: an audit looks at every message; what a filter skips would be a gap")


_CHECKS: Mapping[str, Callable[[Pipeline], None]] = {
    "replay": _check_replay,
    "transform": _check_transform,
    "dead-letters": _check_dead_letters,
    "audit": _check_audit,
}

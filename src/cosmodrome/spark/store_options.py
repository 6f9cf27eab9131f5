"""What a user says in `.option(…)` of the format `rocketmq-store`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import orjson

from cosmodrome.config import StoreConfig
from cosmodrome.errors import ConfigError
from cosmodrome.spark.options import Given, PropertiesAs, flag, instant_ms, one_of, topic_list
from cosmodrome.store.paths import StorePaths


class Mode(StrEnum):
    LOG = "log"  # everything in the commit log, whether a queue knows it or not
    QUEUES = "queues"  # what consumers would see


class OnDamage(StrEnum):
    """What to do about bytes that are no whole record. The torn end of a log that nobody speaks of is none."""

    FAIL = "fail"
    SKIP = "skip"
    REPORT = "report"  # a row for each damaged part, which says what is wrong in the column `damage`


@dataclass(frozen=True, slots=True)
class StoreOptions:
    paths: tuple[str, ...]
    topics: tuple[str, ...] = ()
    stored_from_ms: int | None = None
    stored_before_ms: int | None = None
    mode: Mode = Mode.LOG
    on_damage: OnDamage = OnDamage.FAIL
    properties: PropertiesAs = PropertiesAs.MAP
    metadata_columns: bool = True
    # Of a store whose broker.conf places these elsewhere.
    commit_log: str = ""
    consume_queue: str = ""

    def places(self, root: str) -> StorePaths:
        """Return the places of the parts of one of the stores."""
        config = StoreConfig(store_path_commit_log=self.commit_log, store_path_consume_queue=self.consume_queue)
        return StorePaths.of(Path(root), config)


def store_options(options: Mapping[str, str]) -> StoreOptions:
    """ConfigError says which option cannot be, and why."""
    given = Given(options)
    paths = given.take("path", _path_list, ()) + given.take("paths", _json_paths, ())
    if not paths:
        raise ConfigError("give the option path: a store folder, or several separated by commas")
    made = StoreOptions(
        paths,
        given.take("topics", topic_list, (), "subscribe", "topic"),
        given.take("startingTimestamp", instant_ms, None),
        given.take("endingTimestamp", instant_ms, None),
        given.take("mode", one_of(Mode), Mode.LOG),
        given.take("onDamage", one_of(OnDamage), OnDamage.FAIL),
        given.take("properties", one_of(PropertiesAs), PropertiesAs.MAP),
        given.take("metadataColumns", flag, True),
        given.take("storePathCommitLog", str, ""),
        given.take("storePathConsumeQueue", str, ""),
    )
    given.finish()
    if (made.commit_log or made.consume_queue) and len(paths) > 1:
        raise ConfigError(
            "storePathCommitLog and storePathConsumeQueue are parts of one store; give one path with them"
        )
    begin, end = made.stored_from_ms, made.stored_before_ms
    if begin is not None and end is not None and begin >= end:
        raise ConfigError(f"startingTimestamp ({begin}) is not before endingTimestamp ({end})")
    return made


def _path_list(text: str) -> tuple[str, ...]:
    return tuple(path.strip().removeprefix("file://") for path in text.split(",") if path.strip())


def _json_paths(text: str) -> tuple[str, ...]:
    """What Spark makes of load([…])."""
    paths = orjson.loads(text)
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError("it must be a JSON list of folders")
    return tuple(path.removeprefix("file://") for path in paths)

"""Folders where Spark writes, as its own file system sees them: here, HDFS or an object store."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from cosmodrome.errors import ConfigError
from cosmodrome.pipelines.definition import FILE_FORMATS, Sink
from cosmodrome.pipelines.running import PipelineFailed, explained

log = logging.getLogger(__name__)

_PATTERN = re.compile(r"[\[\]{}*?\\]")


@dataclass(frozen=True, slots=True)
class Files:
    """A folder, asked for by way of the JVM, as Spark reads no folder that begins with _."""

    _spark: SparkSession
    _path: Any  # these are Java's
    _system: Any

    def exists(self) -> bool:
        return bool(self._system.exists(self._path))

    def names(self) -> list[str]:
        """Without what is behind a point."""
        return [status.getPath().getName().partition(".")[0] for status in self._system.listStatus(self._path)]

    def delete(self) -> None:
        self._system.delete(self._path, True)

    def rename(self, target: Files) -> None:
        """Fails if the target is there: the other way to rename would move the folder into it."""
        hadoop = self._spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
        context = hadoop.FileContext.getFileContext(self._path.toUri(), self._system.getConf())
        gateway: Any = self._spark.sparkContext._gateway
        context.rename(self._path, target._path, gateway.new_array(getattr(hadoop, "Options$Rename"), 0))


def literal(path: str) -> str:
    """A path for Spark to read, which takes it for a pattern: what was written to state[1] would not be found there."""
    return _PATTERN.sub(r"\\\g<0>", path)


def files_of(spark: SparkSession, path: str) -> Files | None:
    """None for a client of Spark Connect, which has no JVM."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    place = jvm.org.apache.hadoop.fs.Path(path)
    return Files(spark, place, place.getFileSystem(spark._jsc.hadoopConfiguration()))


@contextmanager
def new_folder(spark: SparkSession, sink: Sink) -> Iterator[Sink]:
    """The sink to write to. With the mode `error` it is a folder beside the sink's, which gets its name when all is
    written: so nothing of a run that fails, or is killed, stands in the way of the next one.

    Its name is of this run alone, so whatever is deleted here was written here.
    """
    if sink.mode != "error" or sink.format not in FILE_FORMATS:
        yield sink
        return
    path = sink.options["path"].rstrip("/")
    beside = f"{path}.unfinished-{uuid.uuid4().hex[:12]}"
    target, unfinished = files_of(spark, path), files_of(spark, beside)
    if target is None or unfinished is None:
        with _told_of(path):
            yield sink
        return
    if target.exists():
        raise _taken(path)
    try:
        yield replace(sink, options={**sink.options, "path": beside})
    except BaseException:
        _delete(unfinished, beside)
        raise
    try:
        unfinished.rename(target)
    except Exception as error:
        raise PipelineFailed(
            f"{explained(error)}; all that was to be written to {path} is in {beside}: rename that folder"
        ) from error


@contextmanager
def _told_of(path: str) -> Iterator[None]:
    try:
        yield
    except AnalysisException as error:
        if error.getCondition() != "PATH_ALREADY_EXISTS":
            raise
        raise _taken(path) from None


def _taken(path: str) -> ConfigError:
    return ConfigError(
        f"sink.path: {path} is there already, and sink.mode is error; name another folder, delete this one, or set "
        "sink.mode to overwrite or append"
    )


def _delete(files: Files, path: str) -> None:
    """Why the run failed is the error to tell, not this one."""
    try:
        files.delete()
    except Exception as error:
        log.warning("%s is left of a run that failed, and can be deleted: %s", path, explained(error))

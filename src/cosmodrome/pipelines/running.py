"""Running a pipeline: a session, its function, and what is told while it runs. Stopping is asked for from outside."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosmodrome.errors import CallTimeout, ConfigError, ConnectionFailed, CosmodromeError
from cosmodrome.pipelines.definition import Pipeline
from cosmodrome.pipelines.outcome import Outcome
from cosmodrome.spark.sessions import ON_TERMINALS, quiet_session, session, without_pandas_warning
from cosmodrome.spark.watching import lag, rows_and_rate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
# Dates and times mean the same wherever a job runs; names of topics are no numbers, even if they look like some.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
_CALL = re.compile(r"^An error occurred while calling \S+\. : (?:[\w.$]+(?:Exception|Error): )?")
# What a worker says of a function that raised: the last place of its traceback, and what came there.
_RAISED = re.compile(
    r"from the Python worker: Traceback.*File \"(?P<file>[^\"]+)\", line (?P<line>\d+)[^\n]*\n"
    r"(?:    [^\n]*\n)*(?P<what>[^\n]+)",
    re.DOTALL,
)
_IS_IT_RUNNING = ". Is it running, and is nameServer right? `cosmodrome up` starts one here."
_UNREACHED = (ConnectionFailed.__name__, CallTimeout.__name__)
_OURS = re.compile(r"cosmodrome(?:\.\w+)*\.(\w+): ([^\n]+)")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*")
_LATE_WORKER = "Python worker failed to connect back."
_WAITED = re.compile(r"Exception thrown in awaitResult:\s*$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_MAX_TEXT = 600


class PipelineFailed(CosmodromeError):
    """Spark gave up; the text says why in a line."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One micro-batch."""

    query: str
    batch: int
    rows: int
    total_rows: int
    rows_per_second: float
    seconds: float
    lag: Mapping[str, int]
    timestamp: str


@dataclass(slots=True)
class _Follower:
    """Tells each micro-batch of a query once. Spark remembers the last hundred."""

    query: StreamingQuery
    name: str
    total_rows: int = 0
    _last: tuple[int, str] = (-1, "")

    def news(self) -> Iterator[Progress]:
        for told in self.query.recentProgress:
            mark = (int(told["batchId"]), str(told["timestamp"]))
            if mark <= self._last:
                continue
            self._last = mark
            rows, rate = rows_and_rate(told)
            self.total_rows += rows
            yield Progress(
                self.name,
                mark[0],
                rows,
                self.total_rows,
                rate,
                float((told["durationMs"] or {}).get("triggerExecution", 0)) / 1000,
                lag(told),
                mark[1],
            )


@dataclass(slots=True)
class Run:
    """A pipeline under way. `tell` gets every micro-batch; `stop` may be called from a signal handler."""

    pipeline: Pipeline
    tell: Callable[[Progress], None]
    _stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        self._stopping.set()

    def run(self, spark: SparkSession) -> Outcome:
        """Return when the pipeline has ended, or was stopped; PipelineFailed when it failed."""
        began = time.monotonic()
        if self.is_stopping:
            return Outcome({"seconds": 0.0})
        with self._interruptible(spark):
            try:
                result = start(spark, self.pipeline)
            except Exception as error:
                if self.is_stopping:
                    return Outcome({"seconds": _since(began)})
                raise explained(error) from error
        if isinstance(result, Outcome):
            return replace(result, numbers={**result.numbers, "seconds": _since(began)})
        return self._followed(list(_queries(result)), began)

    @contextmanager
    def _interruptible(self, spark: SparkSession) -> Iterator[None]:
        """While this thread waits for Spark, another one ends Spark's work when the run is to stop.

        Not the other way round: Spark finds the format of a batch write only in the thread that made the session.
        """
        done = threading.Event()

        def watch() -> None:
            while not done.wait(POLL_SECONDS):
                if self.is_stopping:
                    _interrupt(spark)

        watcher = threading.Thread(target=watch, name="stopping", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def _followed(self, queries: list[StreamingQuery], began: float) -> Outcome:
        followers = [_Follower(query, query.name or self.pipeline.name) for query in queries]
        try:
            self._follow(queries, followers)
        except Exception as error:
            # Who ends a whole process group with SIGTERM ends Spark's JVM before we can tell it to stop.
            if not self.is_stopping:
                raise explained(error) from error
            log.info("Spark was gone before it was told to stop: %s", explained(error))
        return Outcome({"rows": sum(each.total_rows for each in followers), "seconds": _since(began)})

    def _follow(self, queries: list[StreamingQuery], followers: list[_Follower]) -> None:
        try:
            while not self.is_stopping:
                is_active = any(query.isActive for query in queries)  # first: one may fail right behind
                _check(queries)
                if not is_active:
                    break
                self._tell(followers)
                self._stopping.wait(POLL_SECONDS)
        finally:
            for query in queries:
                query.stop()
        self._tell(followers)

    def _tell(self, followers: Iterable[_Follower]) -> None:
        for follower in followers:
            for progress in follower.news():
                self.tell(progress)


def _check(queries: Iterable[StreamingQuery]) -> None:
    """PipelineFailed when one has failed."""
    for query in queries:
        if not query.isActive and (failure := query.exception()) is not None:
            raise explained(failure) from failure


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)


def start(spark: SparkSession, pipeline: Pipeline) -> Any:
    """What the function of the pipeline returns: an outcome, or queries that have begun."""
    from cosmodrome.pipelines.frames import blamed, function

    run = function(pipeline.kind.function, pipeline.folder)
    try:
        return run(spark, pipeline)
    except ConfigError as error:
        raise (ConfigError(f"{pipeline.file}: {error}") if pipeline.file else error) from error.__cause__
    except (ConnectionFailed, CallTimeout) as error:
        raise PipelineFailed(f"{pipeline.kind.name}: {error}{_IS_IT_RUNNING}") from error
    except CosmodromeError:
        raise
    except Exception as error:
        raise PipelineFailed(f"{pipeline.kind.name}: {blamed(error, pipeline.kind.function)}") from error


def _queries(result: Any) -> Iterable[StreamingQuery]:
    if result is None:
        return ()
    return (result,) if hasattr(result, "isActive") else result


def _interrupt(spark: SparkSession) -> None:
    """End what Spark does; its JVM may be gone already, if the signal was for all processes of a terminal."""
    try:
        spark.interruptAll()
    except Exception as error:
        log.info("Spark was gone before it was interrupted: %s", explained(error))


def closed(spark: SparkSession) -> None:
    """End the session, also one whose JVM is gone."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        spark.stop()
    except Exception as error:
        log.info("Spark was gone before its session was ended: %s", explained(error))


def opened(pipeline: Pipeline, master: str | None = None) -> SparkSession:
    """The session of a pipeline; SparkMissing when it cannot be. Modules beside its file are found by workers, too."""
    chosen = master or pipeline.master
    return open_session(pipeline.name, chosen, pipeline.spark, _python_path(pipeline))


def _python_path(pipeline: Pipeline) -> str:
    uses_python = pipeline.kind.is_own or any(step.python for step in pipeline.steps)
    return str(pipeline.folder) if uses_python else ""


def open_session(name: str, master: str, settings: Mapping[str, str], python_path: str = "") -> SparkSession:
    remote = master.startswith("sc://")
    if python_path:
        known = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{python_path}{os.pathsep}{known}" if known else python_path
    without_pandas_warning()
    for repeater in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(repeater).setLevel(logging.CRITICAL)  # they say what we say, with a stack
    try:
        # On the terminal Spark says what a user needs, unless more is asked for with -v.
        if not log.isEnabledFor(logging.INFO):
            return quiet_session(name, master, **{**SETTINGS, **settings})
        return session(name, master, **{**SETTINGS, **({} if remote else ON_TERMINALS), **settings})
    except CosmodromeError:
        raise
    except Exception as error:
        raise explained(error, f"Spark does not start with master {master}") from error


def explained(error: BaseException, what: str = "") -> CosmodromeError:
    """What went wrong, in a line: ours as we said it, Spark's without its stack."""
    if isinstance(error, CosmodromeError):
        return error
    text = str(error)
    ours = _OURS.findall(text)
    told = _STATE.sub("", ours[-1][1]) if ours else _cause_behind_wait(text) or _first_line(text)
    told = told or type(error).__name__
    told = _CALL.sub("", " ".join(told.split()))[:_MAX_TEXT]
    if not ours and (raised := _RAISED.search(text)):
        told = f"a Python function failed: {raised['what']} ({Path(raised['file']).name}, line {raised['line']})"
    if ours and ours[-1][0] in _UNREACHED:
        told += _IS_IT_RUNNING
    if _LATE_WORKER in told:
        told += " Spark gives its Python processes ten seconds to begin: is the machine too busy? Run it again."
    return PipelineFailed(f"{what}: {told}" if what else told)


def _cause_behind_wait(text: str) -> str:
    """Return the first cause where Spark itself only says that another of its threads failed; "" elsewhere."""
    causes = _CAUSE.findall(text) if _WAITED.search(text) else []
    return str(causes[-1]) if causes else ""


def _first_line(text: str) -> str:
    """Up to where Spark begins to show the query plan or a stack."""
    lines: list[str] = []
    for line in text.splitlines():
        if re.match(r"\s*(==|at |'|JVM stacktrace|Traceback|\+-)", line) and lines:
            break
        lines.append(line)
    return " ".join(" ".join(lines).split())

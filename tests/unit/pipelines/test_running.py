"""What Spark's failures look like to a user, and which topics a query names."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from cosmodrome.errors import ConfigError, ConnectionFailed
from cosmodrome.pipelines import frames, running
from cosmodrome.pipelines.definition import load
from cosmodrome.pipelines.frames import blamed
from cosmodrome.pipelines.kinds import KINDS
from cosmodrome.pipelines.querying import own_topics, topics_in
from cosmodrome.pipelines.running import PipelineFailed, Run, explained

_STREAM_FAILURE = """[STREAM_FAILED] Query [id = 5, runId = 6] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_ERROR] Failed when Python streaming source perform initialOffset: Traceback (…):
  File "worker.py", line 1, in main
cosmodrome.errors.ConfigError: the topic nowhere does not exist; create it, or send a first message to it

JVM stacktrace:
org.apache.spark.sql.streaming.StreamingQueryException
\tat org.apache.spark.X"""

_ANALYSIS = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `colour` cannot be resolved. \
Did you mean one of the following? [`body`]. SQLSTATE: 42703; line 1 pos 7;
'Project ['colour]
+- SubqueryAlias input"""

_WORKER_FAILURE = """Job aborted: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most \
recent call last):
  File "/lib/worker.py", line 1, in main
  File "/jobs/my_steps.py", line 7, in <lambda>
    f = F.udf(lambda b: 1 / 0)
                        ~~^~~
ZeroDivisionError: division by zero
 SQLSTATE: 38000
\tat org.apache.spark.X"""


_WAIT_FAILURE = """An error occurred while calling o61.collectToPython.
: org.apache.spark.SparkException: Exception thrown in awaitResult:\x20
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: java.util.concurrent.ExecutionException: java.io.IOException: mkdir of file:/full failed
\tat java.base/java.util.concurrent.FutureTask.report(FutureTask.java:122)
\t... 12 more
Caused by: java.io.IOException: mkdir of file:/full failed: No space left on device
\tat org.apache.hadoop.fs.X"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (_STREAM_FAILURE, "the topic nowhere does not exist; create it, or send a first message to it"),
        ("x\ncosmodrome.spark.progress.DataLoss: messages 1 to 3 are gone\n\tat org.X", "messages 1 to 3 are gone"),
        (
            _ANALYSIS,
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `colour` cannot be resolved. "
            "Did you mean one of the following? [`body`]. SQLSTATE: 42703; line 1 pos 7;",
        ),
        (
            "cosmodrome.errors.ConfigError: the topic is full SQLSTATE: 38000\n=== Streaming Query ===",
            "the topic is full",
        ),
        ("", "RuntimeError"),
        (
            "Python worker failed to connect back.\n\tat org.apache.spark.X",
            "Python worker failed to connect back. Spark gives its Python processes ten seconds to begin: is the "
            "machine too busy? Run it again.",
        ),
        (
            "cosmodrome.errors.ConnectionFailed: 127.0.0.1:1: refused",
            "127.0.0.1:1: refused. Is it running, and is nameServer right? `cosmodrome up` starts one here.",
        ),
        (
            "An error occurred while calling o7.start.\n: java.io.IOException: mkdir of file:/x failed\n\tat java.X",
            "mkdir of file:/x failed",
        ),
        (_WAIT_FAILURE, "mkdir of file:/full failed: No space left on device"),
        ("Exception thrown in awaitResult: ", "Exception thrown in awaitResult:"),
        (_WORKER_FAILURE, "a Python function failed: ZeroDivisionError: division by zero (my_steps.py, line 7)"),
    ],
)
def test_a_failure_is_one_line(text: str, told: str) -> None:
    failure = explained(RuntimeError(text))
    assert isinstance(failure, PipelineFailed)
    assert str(failure) == told


class _Gone:
    """A query whose JVM has been killed."""

    name = "archive"
    isActive = True  # noqa: N815
    recentProgress: tuple[()] = ()  # noqa: N815

    def stop(self) -> None:
        raise RuntimeError("Cannot call methods on a stopped SparkContext.")


class _Session:
    """A session whose JVM has got the signal, too."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def interruptAll(self) -> None:  # noqa: N802
        self.asked.set()
        raise RuntimeError("Cannot call methods on a stopped SparkContext.")


def test_a_run_that_is_to_stop_does_not_mind_that_spark_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(spark: Any, pipeline: Any) -> _Gone:
        run.stop()
        return _Gone()

    monkeypatch.setattr(running, "start", started)
    run = Run(load(KINDS["archive"].template), lambda progress: None)
    assert run.run(cast("Any", _Session())).numbers["rows"] == 0
    assert "rows" not in run.run(cast("Any", _Session())).numbers  # it has been stopped before it began


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_run_interrupted_while_it_starts_says_nothing_of_a_spark_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def started(spark: _Session, pipeline: Any) -> Any:
        run.stop()
        assert spark.asked.wait(10)
        raise RuntimeError("Cannot call methods on a stopped SparkContext.")

    monkeypatch.setattr(running, "start", started)
    run = Run(load(KINDS["archive"].template), lambda progress: None)
    assert set(run.run(cast("Any", _Session())).numbers) == {"seconds"}


def test_a_cluster_that_is_not_there_is_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def audit(spark: Any, pipeline: Any) -> None:
        raise ConnectionFailed("127.0.0.1:9876", "Connection refused")

    monkeypatch.setattr(frames, "function", lambda name, folder: audit)
    with pytest.raises(PipelineFailed, match=r"^audit: 127\.0\.0\.1:9876: .*refused\. Is it running, and .*nameServer"):
        running.start(cast("Any", _Session()), load(KINDS["audit"].template))


def test_our_own_errors_stay_what_they_are() -> None:
    error = ConfigError("sink is missing")
    assert explained(error) is error


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("select * from orders", {"orders": "orders"}),
        (
            "select * from Orders o join `pay-ments` p on o.keys = p.keys",
            {"Orders": "orders", "pay-ments": "pay-ments"},
        ),
        ("select 'orders' from T -- orders\n/* orders */", {"T": "T"}),
        ("select * from t", {"t": "t"}),
        ("select * from `%DLQ%billing`, orders, ORDERS", {"%DLQ%billing": "%DLQ%billing", "orders": "orders"}),
        ("select 1", {}),
        ("with orders_2 as (select 1) select * from orders_2", {}),
    ],
)
def test_the_topics_that_a_query_names(query: str, found: dict[str, str]) -> None:
    assert topics_in(query, ["orders", "pay-ments", "T", "t", "%DLQ%billing"]) == found


def test_two_topics_that_are_one_table_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="names the topics Orders and orders, and to Spark both are one table; ask for"
    ):
        topics_in("select * from Orders union all select * from orders", ["Orders", "orders"])
    assert topics_in("select * from Orders", ["Orders", "orders"]) == {"Orders": "Orders"}
    assert topics_in("select * from ORDERS", ["Orders", "orders"]) == {}
    assert topics_in("select * from ORDERS, orders", ["orders"]) == {"orders": "orders"}


def test_a_session_has_the_name_of_its_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(running, "quiet_session", lambda name, *_, **__: names.append(name))
    running.open_session("orders-to-parquet", "local[1]", {})
    assert names == ["orders-to-parquet"]


def test_topics_of_brokers_are_not_shown() -> None:
    made = ["%DLQ%g", "%RETRY%g", "BenchmarkTest", "SPARK_SINK_COMMITS", "TBW102", "rmq_sys_wheel_timer"]
    topics = [*made, "Shop", "Shop_REPLY_TOPIC", "broker-a", "orders", "payments"]
    assert own_topics(topics, ["broker-a"]) == ["orders", "payments"]


def test_what_java_says_is_told_without_its_stack() -> None:
    said = "An error occurred while calling o1.save.\n: org.apache.spark.SparkException: Task failed.\n\tat org.X"
    assert blamed(Py4JError(said), "cosmodrome.pipelines.store_scan:store_scan") == "Task failed."

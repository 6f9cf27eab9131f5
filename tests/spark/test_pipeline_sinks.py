"""What pipelines ask of their rows before they write, and what a run that fails leaves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cosmodrome.errors import ConfigError, CosmodromeError
from cosmodrome.pipelines.definition import Sink, load
from cosmodrome.pipelines.folders import new_folder
from cosmodrome.pipelines.outcome import Outcome
from cosmodrome.pipelines.running import PipelineFailed, Run
from cosmodrome.testing import Cluster
from tests.spark.helpers import fill, numbered
from tests.unit.store.damage import overwrite

RunPipeline = Callable[[dict[str, Any]], Outcome]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> RunPipeline:
    """Runs a document as the command does: out of a file."""

    def ran(document: dict[str, Any]) -> Outcome:
        file = tmp_path / "job.yaml"
        file.write_text(json.dumps(document))  # JSON is YAML
        return Run(load(file), lambda _: None).run(spark)

    return ran


@pytest.fixture
def store(cluster: Cluster, topic: str, tmp_path: Path) -> Path:
    """A store with 20 messages of the topic, of which one is damaged."""
    fill(cluster, topic, numbered(0, 20))
    hurt = cluster.messages(topic)[7]
    folder = tmp_path / "store"
    shutil.copytree(cluster.brokers[0].folder, folder)
    log_file = min((folder / "commitlog").iterdir())
    raw = log_file.read_bytes()
    overwrite(log_file, raw.index(b"7", hurt.commit_log_offset + 84), b"!")
    return folder


def scan(topic: str, **sink: Any) -> dict[str, Any]:
    return {
        "pipeline": "store-scan",
        "source": {"path": "store", "topics": topic},
        "sink": {"path": "scan", "mode": "error", **sink},
    }


@pytest.mark.usefixtures("store")
def test_a_scan_that_failed_does_not_stop_the_next_one(
    spark: SparkSession, topic: str, run: RunPipeline, tmp_path: Path
) -> None:
    before = set(tmp_path.iterdir()) | {tmp_path / "job.yaml"}
    failing = scan(topic)
    failing["source"]["onDamage"] = "fail"
    with pytest.raises(CosmodromeError, match="onDamage"):
        run(failing)
    assert set(tmp_path.iterdir()) == before
    assert run(scan(topic)).numbers["messages"] == 19
    assert set(tmp_path.iterdir()) == {*before, tmp_path / "scan"}
    assert spark.read.parquet(str(tmp_path / "scan")).count() == 19

    with pytest.raises(ConfigError, match=r"job\.yaml: sink\.path: .*/scan is there already, and sink\.mode is error"):
        run(scan(topic))
    assert spark.read.parquet(str(tmp_path / "scan")).count() == 19


@pytest.mark.usefixtures("store")
def test_a_scan_without_metadata_tells_where_damage_is_all_the_same(
    spark: SparkSession, topic: str, run: RunPipeline, tmp_path: Path
) -> None:
    document = scan(topic)
    document["source"]["metadatacolumns"] = False
    outcome = run(document)
    assert (outcome.numbers["messages"], outcome.numbers["damaged"]) == (19, 1)
    assert outcome.tables[0].rows[0][1] > 0
    columns = set(spark.read.parquet(str(tmp_path / "scan")).columns)
    assert {"body", "file", "properties", "storeTimestamp"} < columns
    assert not {"msgId", "commitLogOffset", "storeHost", "reconsumeTimes", "damage"} & columns
    document["source"]["onDamage"] = "skip"
    assert run({**document, "sink": {"path": "again"}}).numbers["messages"] == 19


def test_what_others_put_there_is_never_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """Nor is what took long to write."""
    sink = Sink("json", {"path": f"{tmp_path}/out/"}, mode="error")
    killed = tmp_path / "out.unfinished-of-another-run"
    killed.mkdir()
    written = []

    def race() -> None:
        with new_folder(spark, sink) as target:
            written.append(target.options["path"])
            spark.range(3).write.json(*written)
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "theirs").write_text("theirs")

    with pytest.raises(PipelineFailed, match=r"all that was to be written to .*/out is in .*/out\.unfinished-\w+: "):
        race()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["theirs"]
    assert spark.read.json(*written).count() == 3
    assert killed.exists()


def test_tables_of_a_report_that_failed_do_not_stop_the_next_one(
    cluster: Cluster, topic: str, run: RunPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cosmodrome.pipelines import reports

    fill(cluster, topic, numbered(0, 5))
    audit = {
        "pipeline": "audit",
        "source": {"nameServer": cluster.namesrv, "subscribe": topic},
        "sink": {"path": "audit", "mode": "error", "format": "csv"},
    }
    sound = reports._kept

    def breaks(section: reports.Section, sink: Sink | None) -> reports.Kept:
        made = sound(section, sink)
        if section.name == "gaps":
            raise OSError("no room")
        return made

    with monkeypatch.context() as patched:
        patched.setattr(reports, "_kept", breaks)
        with pytest.raises(PipelineFailed, match="no room"):
            run(audit)
    assert not list(tmp_path.glob("audit*"))
    outcome = run(audit)
    assert all(Path(file, "_SUCCESS").exists() for file in outcome.files)


def steps(sql: str) -> dict[str, Any]:
    return {"steps": [{"sql": sql}]}


def test_a_column_that_a_sink_needs_is_named_before_the_first_batch(
    cluster: Cluster, topic: str, run: RunPipeline, tmp_path: Path
) -> None:
    source = {"nameServer": cluster.namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    archive = {"pipeline": "archive", "source": source, "sink": {"path": "out"}, "checkpoint": "c"}
    sink = {"nameServer": cluster.namesrv}
    transform = {"pipeline": "transform", "source": source, "sink": sink, "checkpoint": "c"}
    replay = {**transform, "pipeline": "replay", "options": {}}
    dead = {"pipeline": "dead-letters", "sink": sink}
    letters = {"nameServer": cluster.namesrv, "subscribePattern": "%DLQ%.*"}
    for document, told in (
        (archive | steps("select body, topic from input"), "no column date; select it in steps, or set sink.partition"),
        (archive | steps("select body, date from input"), "no column topic; select it in steps, or set sink.partition"),
        (archive | steps("select date, topic from input"), "no column besides date, topic, which are folders; select"),
        (
            {**archive, "sink": {"path": "out", "format": "csv"}},
            r"the column properties is map.*to_json\(properties\) inst",
        ),
        (
            {**archive, "sink": {"path": "out", "format": "csv"}} | steps("select date, topic, body from input"),
            r"the column body is binary; in steps, select cast\(body as string\) or base64\(body\) instead",
        ),
        (transform | steps("select body from input"), "give the option topic, or the rows a column topic"),
        (transform | steps("select topic, 5 as body from input"), "sink: the column body is int; it must be binary or"),
        (transform | steps("select topic, keys from input"), "no column besides those of a message; select what"),
        (
            {**transform, "sink": {**sink, "body": "column"}} | steps("select topic, 5 as x from input"),
            "sink: the rows have no column body; select one in steps, or leave sink.body out",
        ),
        (
            replay | steps("select body from input"),
            "a message needs the column keys, which is not there; in steps, sel",
        ),
        ({**replay, "source": {**source, "properties": "string"}}, "the column properties must be map<string,string>"),
        (
            dead | {"source": {**letters, "properties": "none"}},
            "the column properties must be .*it is not there; leave",
        ),
    ):
        with pytest.raises(ConfigError, match=told) as failure:
            run(document)
        assert str(failure.value).startswith(f"{tmp_path / 'job.yaml'}: ")
        assert "\n" not in str(failure.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("store")
def test_a_column_that_a_table_needs_is_named(
    spark: SparkSession, topic: str, run: RunPipeline, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="no column topic; select it in steps, or set sink"):
        run(scan(topic) | steps("select body, date from input"))
    told = run(scan(topic, partitionBy="date") | steps("select body, date from input where queueOffset < 10"))
    assert (told.numbers["messages"], told.numbers["damaged"]) == (9, 1)  # what was written; what was read
    spark.range(3).write.parquet(str(tmp_path / "numbers"))
    report = {"pipeline": "trace-report", "source": {"format": "parquet", "path": "numbers"}, "sink": {"path": "out"}}
    with pytest.raises(ConfigError, match="the column body must be binary, and it is not there; read traces"):
        run(report)

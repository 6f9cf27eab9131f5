"""What a pipeline's file may say, and what is told when it says something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmodrome.errors import ConfigError
from cosmodrome.pipelines.definition import INPUT, Step, Trigger, Watermark, load, parse
from cosmodrome.pipelines.documents import changed
from cosmodrome.pipelines.kinds import KINDS

HERE = Path("/jobs")
ARCHIVE: dict[str, Any] = {
    "pipeline": "archive",
    "source": {"nameServer": "127.0.0.1:9876", "subscribe": "orders"},
    "sink": {"path": "archive"},
    "checkpoint": "marks",
}
TRANSFORM: dict[str, Any] = {
    "pipeline": "transform",
    "source": {"nameServer": "127.0.0.1:9876", "subscribe": "orders"},
    "sink": {"nameServer": "127.0.0.1:9876", "topic": "totals"},
    "checkpoint": "marks",
}


def refused(document: Any, **more: Any) -> str:
    with pytest.raises(ConfigError) as refusal:
        parse({**document, **more} if isinstance(document, dict) else document, HERE)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize("name", KINDS)
def test_a_template_names_every_option_of_its_pipeline(name: str) -> None:
    text = KINDS[name].template.read_text(encoding="utf-8")
    assert [option for option in KINDS[name].options if f" {option}:" not in text] == []


@pytest.mark.parametrize("name", KINDS)
def test_every_template_is_a_pipeline_with_its_sections(name: str) -> None:
    pipeline = load(KINDS[name].template)
    assert (pipeline.kind.name, pipeline.name) == (name, name)
    assert len(KINDS[name].summary) < 80


def test_the_least_a_pipeline_says() -> None:
    pipeline = parse(ARCHIVE, HERE)
    assert pipeline.name == "archive"
    assert list(pipeline.sources) == [INPUT]
    assert pipeline.source.options["subscribe"] == "orders"
    assert pipeline.sink is not None
    assert (pipeline.sink.format, pipeline.sink.partition_by) == ("parquet", ("date", "topic"))
    assert (pipeline.trigger, pipeline.master) == (Trigger(), "local[*]")


def test_relative_paths_begin_at_the_files_folder() -> None:
    pipeline = parse(ARCHIVE, HERE)
    assert pipeline.checkpoint == "/jobs/marks"
    assert pipeline.sink is not None
    assert pipeline.sink.options["path"] == "/jobs/archive"
    far = parse({**ARCHIVE, "checkpoint": "s3a://bucket/marks", "sink": {"path": "/data"}}, HERE)
    assert far.checkpoint == "s3a://bucket/marks"
    assert far.sink is not None
    assert far.sink.options["path"] == "/data"


def test_steps_triggers_and_watermarks() -> None:
    source = {**TRANSFORM["source"], "watermark": {"column": "at", "delay": "1 minute"}, "schema": "at timestamp"}
    pipeline = parse(
        {
            **TRANSFORM,
            "source": source,
            "steps": [{"sql": "select 1"}, {"name": "rich", "python": "my.steps:enrich"}],
            "trigger": {"processingTime": "10 seconds"},
            "spark": {"sql.shuffle.partitions": 4, "spark.ui.enabled": True, 1: 2},
        },
        HERE,
    )
    assert pipeline.steps == (Step("step1", sql="select 1"), Step("rich", python="my.steps:enrich"))
    assert pipeline.trigger.arguments() == {"processingTime": "10 seconds"}
    assert pipeline.source.watermark == Watermark("at", "1 minute")
    assert pipeline.spark == {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "true", "spark.1": "2"}
    for word in ("availableNow", "once"):
        assert parse({**TRANSFORM, "trigger": word}, HERE).trigger.arguments() == {"availableNow": True}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"sorce": {}}, "sorce is unknown (did you mean source?); there are name, pipeline, source"),
        ({"pipeline": "archiv"}, "there is no such pipeline (did you mean archive?); there are archive, replay"),
        ({"pipeline": None}, "pipeline is missing; it is one of archive"),
        ({"source": None}, "source is missing"),
        ({"source": None, "subscribe": "orders"}, "subscribe is unknown; there are name, pipeline, source"),
        ({"source": "orders"}, "source is 'orders': it must have keys of its own"),
        ({"source": {"nameServer": "x:1", "subscibe": "orders"}}, "source: "),
        (
            {"source": {"nameServer": "x:1", "subscribe": "a", "startingOfsets": "latest"}},
            "did you mean startingOffsets?",
        ),
        ({"source": {"nameServer": "x:1", "subscribe": "a", "endingOffsets": "latest"}}, "a stream has no end"),
        ({"source": {"format": "kafka"}}, "source.format is 'kafka': it must be rocketmq"),
        ({"sources": {}}, "give source or sources, not both"),
        ({"sink": None}, "sink is missing"),
        ({"sink": {"format": "parquet"}}, "sink.path is missing"),
        ({"sink": {"format": "parquet", "path": " "}}, "sink.path is missing"),
        ({"sink": {"format": "parket", "path": "x"}}, "(did you mean parquet?)"),
        ({"sink": {"path": {"a": 1}}}, "sink.path is {a}: it must be text or a number"),
        ({"checkpoint": None}, "checkpoint is missing"),
        (
            {"trigger": "sometimes"},
            "trigger is 'sometimes': it must be availableNow, once, or processingTime: 10 seconds",
        ),
        ({"trigger": {"processingTime": "soon"}}, "it must be a time span such as 10 seconds"),
        ({"master": "lokal"}, "master is 'lokal': it must be local, local[2], local[*], yarn, spark://host:7077"),
        ({"master": "local[0]"}, "master is 'local[0]': it must be local"),
        (
            {"source": {**ARCHIVE["source"], "startingTimestamp": "2030-01-32"}},
            "it must be milliseconds since 1970, or a time such as 2026-11-18T10:00:00Z",
        ),
        ({"source": {**ARCHIVE["source"], "startingOffsets": {"orders": {}}}}, "JSON stands between quotes"),
        ({"spark": ["a"]}, "spark is ['a']: it must have keys of its own"),
        ({"trigger": None}, "trigger is null: give it a value, or leave it out"),
        ({"master": None}, "master is null: give it a value, or leave it out"),
        ({"source": {**ARCHIVE["source"], "subExpression": None}}, "source.subExpression is null: give it a value"),
        ({"sink": {"path": "x", "partitionBy": ["date", None]}}, "sink.partitionBy is ['date', None]: it must be text"),
        ({"sink": {"path": "x", "partitonBy": "tags"}}, "sink.partitonBy is unknown (did you mean partitionBy?)"),
        ({"sink": {"path": "x", "Mode": "error"}}, "sink.Mode is unknown (did you mean mode?)"),
        ({"sink": {"Path": "x"}}, "sink.Path is unknown (did you mean path?)"),
        ({"sink": {"path": "x", "mode": "error"}}, "sink.mode is error: the pipeline archive is a stream, which only"),
        ({"sink": {"path": "x", "mode": "overwrite"}}, "sink.mode is overwrite: the pipeline archive is a stream"),
        ({"options": {"rate": 3}}, "options.rate is unknown; there are none"),
        ({"steps": {"sql": "x"}}, "steps is {sql}: it must be a list"),
        ({"steps": [{"sql": "x", "python": "a:b"}]}, "step 1 must have either sql or python"),
        ({"steps": [{"sgl": "x"}]}, "step 1 has the unknown key sgl"),
        ({"steps": [{"python": "enrich"}]}, "python is module:function"),
        ({"steps": [{"sql": "x", "name": "a b"}]}, "cannot be a view"),
        ({"steps": [{"sql": "x", "name": "input"}]}, "the name input is taken"),
        ({"steps": [{"sql": "x", "name": "a"}, {"sql": "y", "name": "a"}]}, "two steps are named a"),
        ({"name": "${NO_SUCH_NAME}"}, "the environment has no variable NO_SUCH_NAME"),
    ],
)
def test_what_cannot_be_is_named(more: dict[str, Any], text: str) -> None:
    assert text in refused(ARCHIVE, **more)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"sink": {"nameServer": "x:1", "topc": "t"}}, "sink: the option topc is unknown; did you mean topic?"),
        ({"sink": {"nameServer": "x:1", "topic": "t", "mode": "overwrite"}}, "a topic can only be appended to"),
        ({"source": {**TRANSFORM["source"], "watermark": "at"}}, "source.watermark is 'at'"),
        ({"source": None, "sources": {"a b": TRANSFORM["source"]}}, "'a b' cannot be a view"),
        ({"source": None, "sources": {7: TRANSFORM["source"]}}, "7 cannot be a view"),
        ({"source": None, "sources": {"a": {"nameServer": "x:1"}}}, "sources.a: give exactly one of"),
    ],
)
def test_what_a_transformation_cannot_be(more: dict[str, Any], text: str) -> None:
    assert text in refused(TRANSFORM, **more)


REPLAY: dict[str, Any] = {
    "pipeline": "replay",
    "source": {"format": "parquet", "path": "archive"},
    "sink": {"nameServer": "127.0.0.1:9876", "topic": "again"},
}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("Where", "source.Where is unknown (did you mean where?)"),
        ("were", "source.were is unknown (did you mean where?)"),
        ("WHERE", "source.WHERE is unknown (did you mean where?)"),
        ("shema", "source.shema is unknown (did you mean schema?)"),
        ("subscribe", "source.subscribe chooses messages of topics, and the source is parquet files; say with "),
        ("startingTimestamp", "source.startingTimestamp chooses messages of topics"),
        ("endingtimestamp", "source.endingtimestamp chooses messages of topics"),
        ("startingTimestmp", "source.startingTimestmp chooses messages of topics"),
        ("topics", "say with source.where which rows to keep, such as topic = 'orders'"),
    ],
)
def test_what_would_choose_rows_is_never_passed_over(key: str, text: str) -> None:
    """Else Spark, which passes over what it does not know, would send the whole archive."""
    assert text in refused(REPLAY, source={**REPLAY["source"], key: "5"})


_READER_OPTIONS = (
    *("mergeSchema", "recursiveFileLookup", "pathGlobFilter", "modifiedBefore", "modifiedAfter", "ignoreCorruptFiles"),
    *(
        "datetimeRebaseMode",
        "int96RebaseMode",
        "header",
        "inferSchema",
        "enforceSchema",
        "sep",
        "delimiter",
        "encoding",
    ),
    *("charset", "quote", "escape", "comment", "mode", "dateFormat", "timestampFormat", "timestampNTZFormat", "locale"),
    *("multiLine", "lineSep", "nullValue", "emptyValue", "samplingRatio", "columnNameOfCorruptRecord", "maxColumns"),
    *("primitivesAsString", "allowComments", "preferDate", "wholetext", "maxFilesPerTrigger", "maxBytesPerTrigger"),
    *("latestFirst", "fileNameOnly", "maxFileAge", "cleanSource", "sourceArchiveDir", "basePath", "timeZone"),
)
_WRITER_OPTIONS = (
    *("compression", "header", "sep", "quoteAll", "escapeQuotes", "dateFormat", "timestampFormat", "ignoreNullFields"),
    *("maxRecordsPerFile", "partitionOverwriteMode", "parquet.block.size", "orc.bloom.filter.columns", "lineSep"),
    *("retention", "truncate", "numRows", "encoding", "emptyValue", "nullValue", "charToEscapeQuoteEscaping"),
)


def test_options_of_sparks_own_formats_are_handed_on() -> None:
    source = {"format": "csv", "path": "in", **dict.fromkeys(_READER_OPTIONS, "x")}
    sink = {"path": "out", **dict.fromkeys(_WRITER_OPTIONS, "x")}
    made = parse({**TRANSFORM, "source": source, "sink": {**sink, "format": "parquet"}}, HERE)
    assert made.source.options == {"path": "/jobs/in", **dict.fromkeys(_READER_OPTIONS, "x")}
    assert made.sink is not None
    assert made.sink.options == {"path": "/jobs/out", **dict.fromkeys(_WRITER_OPTIONS, "x")}


def test_how_a_table_is_written_means_nothing_to_a_stream_and_the_other_way_round() -> None:
    scan = {"pipeline": "store-scan", "source": {"path": "data"}, "sink": {"path": "scan", "mode": "error"}}
    made = parse(scan, HERE)
    assert made.sink is not None
    assert made.sink.mode == "error"
    assert "sink.outputMode is for streams" in refused(scan, sink={"path": "scan", "outputMode": "complete"})
    assert "sink.Mode is unknown (did you mean mode?)" in refused(scan, sink={"path": "scan", "Mode": "error"})
    files = {"format": "parquet", "path": "out", "mode": "overwrite"}
    assert "sink.mode is overwrite: the pipeline transform is a stream" in refused(TRANSFORM, sink=files)


def test_a_re_drive_may_say_where_its_transactions_are_noted() -> None:
    """It is they that make it exactly once; under which name it sends is its own affair."""
    document: dict[str, Any] = {
        "pipeline": "dead-letters",
        "source": {"nameServer": "x:1", "subscribePattern": "%DLQ%.*"},
        "sink": {"nameServer": "x:1", "commitBroker": "broker-a", "commitTopic": "marks"},
    }
    sink = document["sink"]
    assert parse(document, HERE).sink is not None
    assert parse({**document, "sink": {**sink, "exactlyOnce": True}}, HERE).sink is not None
    assert "commitTopic is for exactlyOnce=true" in refused(document, options={"exactlyOnce": False})
    for contradiction in ({"exactlyonce": False}, {"jobId": "mine"}):
        assert "the pipeline dead-letters sets it itself" in refused(document, sink={**sink, **contradiction})


def test_only_a_topic_has_queues() -> None:
    assert parse({**TRANSFORM, "options": {"queues": "same"}}, HERE).options == {"queues": "same"}
    files = {"format": "parquet", "path": "out"}
    assert "options.queues is same: parquet has no queues" in refused(TRANSFORM, sink=files, options={"queues": "same"})


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_what_is_no_pipeline_at_all(document: Any) -> None:
    assert "a pipeline is a YAML file with the keys: name" in refused(document)


def test_of_a_pipeline_of_ones_own_only_the_frame_is_checked() -> None:
    pipeline = parse({"pipeline": "my.module:job", "options": {"days": 3}}, HERE)
    assert (pipeline.kind.function, pipeline.options, pipeline.sink) == ("my.module:job", {"days": "3"}, None)


def test_a_replay_may_end_and_has_options() -> None:
    document: dict[str, Any] = {
        "pipeline": "replay",
        "source": {"nameServer": "x:1", "subscribe": "a", "startingTimestamp": 5, "endingTimestamp": 9},
        "sink": {"nameServer": "x:1", "topic": "b"},
        "options": {"rate": 100},
        "checkpoint": "marks",
    }
    assert parse(document, HERE).options == {"rate": 100, "tasks": 1, "queues": "hashed"}
    assert "the option endingTimestamp is 'soon'" in refused(
        {**document, "source": {**document["source"], "endingTimestamp": "soon"}}
    )
    assert "options.rate is -1: it must be a whole number" in refused({**document, "options": {"rate": -1}})
    assert "it must be hashed or same or any" in refused({**document, "options": {"queues": "x"}})
    assert "the pipeline replay reads what is there and ends" in refused(
        {**document, "trigger": {"processingTime": "10 seconds"}}
    )
    source = {"nameServer": "x:1", "subscribe": "a", "endingtimestamp": "soon"}
    assert "the option endingTimestamp is 'soon'" in refused({**document, "source": source})
    assert parse(document, HERE).source.option("ENDINGtimestamp") == "9"


@pytest.mark.parametrize("name", ["minPartitions", "maxrecordsperpartition", "maxTasksPerBatch"])
def test_nothing_splits_the_queues_of_a_replay(name: str) -> None:
    """Two tasks would lose the order of a queue, and each would have the whole rate."""
    source = {"nameServer": "x:1", "subscribe": "a"}
    replay = {**REPLAY, "source": source, "checkpoint": "marks"}
    assert parse(replay, HERE).source.options == source
    assert f"source.{name}: a topic is replayed by one task" in refused(replay, source={**source, name: 2})
    assert "options.tasks: a topic is replayed by one task" in refused(replay, options={"tasks": 2})
    assert "checkpoint is missing: a folder in which Spark notes" in refused(replay, checkpoint=None)
    assert parse({**REPLAY, "options": {"tasks": 2}}, HERE).options["tasks"] == 2  # files


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"source": {"subscribe": "orders"}}, "source.subscribe: orders has no dead letters; those of the group"),
        ({"source": {"Topic": "%DLQ%a, %RETRY%a"}}, "source.Topic: %RETRY%a has no dead letters"),
        ({"source": {"assign": '{"orders": {"b": [0]}}'}}, "source.assign: orders has no dead letters"),
        ({"options": {"redrive": True}}, "options.state is missing: a folder that remembers what has been sent again"),
    ],
)
def test_what_dead_letters_cannot_be(more: dict[str, Any], text: str) -> None:
    sink = {"nameServer": "x:1"}
    source = {"nameServer": "x:1", **more.get("source", {"subscribePattern": "%DLQ%.*"})}
    assert text in refused({"pipeline": "dead-letters", "sink": sink, **more, "source": source})


@pytest.mark.parametrize("name", ["subExpression", "tags", "SQL", "where"])
def test_an_audit_has_no_filter(name: str) -> None:
    document: dict[str, Any] = {
        "pipeline": "audit",
        "source": {"nameServer": "x:1", "subscribe": "a"},
        "sink": {"path": "audit"},
    }
    assert parse(document, HERE).kind.name == "audit"
    told = refused(document, source={**document["source"], name: "tags = 'a'" if name in ("SQL", "where") else "a"})
    assert f"source.{name}: an audit looks at every message; what a filter skips would be a gap" in told


def test_several_values_may_be_a_list() -> None:
    source = {**ARCHIVE["source"], "subscribe": ["orders", "payments"]}
    assert parse({**ARCHIVE, "source": source}, HERE).source.options["subscribe"] == "orders,payments"


SCAN: dict[str, Any] = {"pipeline": "store-scan", "source": {"path": "store"}, "sink": {"path": "scan"}}


@pytest.mark.parametrize("name", ["path", "Path", "PATH"])
@pytest.mark.parametrize("given", ["a, /b ,s3a://c", ["a", "/b", "s3a://c"]])
def test_a_scan_has_several_stores(name: str, given: Any) -> None:
    made = parse({**SCAN, "source": {name: given}}, HERE)
    assert made.source.options == {"path": "/jobs/a,/b,s3a://c"}


def test_a_path_of_files_is_one_with_whatever_commas_it_has() -> None:
    made = parse({**SCAN, "sink": {"path": "a,b"}}, HERE)
    assert made.sink is not None
    assert made.sink.options == {"path": "/jobs/a,b"}
    pattern = {"format": "parquet", "path": "{a,b}/topic=orders"}
    assert parse({**REPLAY, "source": pattern}, HERE).source.options == {"path": "/jobs/{a,b}/topic=orders"}
    assert parse({**REPLAY, "source": {**pattern, "path": ["a"]}}, HERE).source.options == {"path": "/jobs/a"}
    several = ["a", "b"]
    assert "source.path is ['a', 'b']: it must be one; a pattern names several folders, such as {a,b}" in refused(
        REPLAY, source={"format": "parquet", "path": several}
    )
    assert "sink.path is ['a', 'b']: it must be one" in refused(SCAN, sink={"path": several})
    assert "sink.path is missing" in refused(SCAN, sink={"path": []})


def test_an_option_stands_there_once_however_it_is_written() -> None:
    assert "source.Path and source.path are the same option; give one of them" in refused(
        SCAN, source={"path": "a", "Path": "b"}
    )
    assert "source.paths is for Spark's load; write path" in refused(SCAN, source={"paths": '["a"]'})
    own = {"pipeline": "my.module:job", "options": {"Day": 1, "day": 2}}  # these are read by whoever wrote it
    assert parse(own, HERE).options == {"Day": "1", "day": "2"}


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"sink": {"path": "~nobody-of-that-name/a"}}, "sink.path"),
        ({"checkpoint": "~nobody-of-that-name/a"}, "checkpoint"),
        ({**SCAN, "source": {"path": ["/a", "~nobody-of-that-name/a"]}}, "source.path"),
        ({"pipeline": "audit", "options": {"html": "~nobody-of-that-name/a"}}, "options.html"),
    ],
)
def test_a_home_that_is_not_there_is_told(more: dict[str, Any], place: str) -> None:
    assert f"{place} is '~nobody-of-that-name/a': " in refused(ARCHIVE, **more)


@pytest.mark.parametrize("pattern", ["a{99999999999}", "(" * 20_000 + ")" * 20_000, "["])
def test_a_pattern_that_cannot_be_is_told(pattern: str) -> None:
    told = refused(ARCHIVE, source={"nameServer": "x:1", "subscribePattern": pattern})
    assert "it is no regular expression" in told


@pytest.mark.parametrize(
    "master", ["local", "local[4]", "local[*]", "local[2,3]", "yarn", "spark://h:1", "k8s://https://h"]
)
def test_where_spark_may_run(master: str) -> None:
    assert parse({**ARCHIVE, "master": master}, HERE).master == master


def test_variables_of_the_environment_are_filled_in() -> None:
    source = {**ARCHIVE["source"], "accessKey": "me", "secretKey": "${SECRET}"}
    assert parse({**ARCHIVE, "source": source}, HERE, {"SECRET": "s3"}).source.options["secretKey"] == "s3"


def test_values_set_from_outside() -> None:
    document = changed(ARCHIVE, "source.subscribe=payments")
    document = changed(document, "source.fetchOffset.numRetries=3")
    document = changed(document, "trigger=availableNow")
    document = changed(document, "spark.sql.shuffle.partitions=2")
    document = changed(document, "sources.orders.subscribe=x")
    assert document["source"] == {**ARCHIVE["source"], "subscribe": "payments", "fetchOffset.numRetries": 3}
    assert document["spark"] == {"sql.shuffle.partitions": 2}
    assert document["sources"] == {"orders": {"subscribe": "x"}}
    assert document["trigger"] == "availableNow"
    assert changed(ARCHIVE, "source.subscribe=%DLQ%billing")["source"]["subscribe"] == "%DLQ%billing"
    assert ARCHIVE["source"]["subscribe"] == "orders"
    with pytest.raises(ConfigError, match="write KEY=VALUE"):
        changed(ARCHIVE, "trigger")


@pytest.mark.parametrize(
    "text",
    [
        *("NO", "off", "on", "y", "True", "FALSE", "007", "01234567", "1_234_567", "0x1F", "0o17", "12:30", "1.10"),
        *("1e3", "+5", "-0", "2026-11-15", "2026-11-15T10:00:00Z", "Null", ".inf", "=", "9" * 5_000),
        *("0", "-7", "42", "1767225600000", "true", "false"),
    ],
)
def test_a_value_is_what_stands_there(tmp_path: Path, text: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "pipeline: archive\nsink: {path: a}\ncheckpoint: c\n"
        f"source: {{nameServer: 'x:1', subscribe: orders, accessKey: me, secretKey: {text}}}"
    )
    assert load(file).source.options["secretKey"] == text
    assert load(file, [f"source.secretKey={text}"]).source.options["secretKey"] == text


@pytest.mark.parametrize("text", ["null", "~", ""])
def test_nothing_is_no_value(tmp_path: Path, text: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "pipeline: archive\nsink: {path: a}\ncheckpoint: c\nsteps:\noptions:\nspark:\n"  # all below is commented out
        f"source:\n  nameServer: x:1\n  subscribe: orders\n  subExpression: {text}\n"
    )
    with pytest.raises(
        ConfigError, match=r"source\.subExpression is null: give it a value, or leave it out; if the text"
    ):
        load(file)
    assert load(file, ["source.subExpression='null'"]).source.options["subExpression"] == "null"


def test_what_several_sources_share_is_written_once(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "pipeline: transform\nsink: {format: noop}\ncheckpoint: c\nsources:\n"
        "  a: &a {nameServer: 'x:1', subscribe: orders}\n  b:\n    <<: *a\n    subscribe: '7'\n"
    )
    assert load(file).sources["b"].options == {"nameServer": "x:1", "subscribe": "7"}


def test_nobody_writes_a_comment_on_a_command_line() -> None:
    assert changed({}, "options.where=tags = 'a' #b") == {"options": {"where": "tags = 'a' #b"}}
    assert changed({}, "options.where=value like 'a: b'") == {"options": {"where": "value like 'a: b'"}}
    assert changed({}, "trigger={processingTime: 1 second} # b") == {"trigger": {"processingTime": "1 second"}}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    path = tmp_path / "bad.yaml"
    path.write_text("a: [1\nb: 2")
    with pytest.raises(ConfigError, match=r"bad.yaml is no YAML: line 2, column 2"):
        load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is no text"):
        load(path)
    path.write_text("sink: {path: a}\nsink: {path: b}")
    with pytest.raises(ConfigError, match=r"is no YAML: line 2, column 1: the key sink stands there twice"):
        load(path)
    for endless in ("[" * 5_000, "a: &a [*a]\npipeline: archive"):
        path.write_text(endless)
        with pytest.raises(ConfigError, match="there is no end to what is in it"):
            load(path)
    path.write_text("? [a, b]\n: 1")
    with pytest.raises(ConfigError, match="is no YAML"):
        load(path)
    path.write_text("!!python/object/apply:os.system ['true']")
    with pytest.raises(ConfigError, match="is no YAML"):
        load(path)


@pytest.mark.parametrize(
    "text",
    [
        *("!!map x", "!!set x", "!!omap x", "!!pairs x", "!!seq x", "!!str {}", "!!int abc", "!!int ''", "!!float abc"),
        *("!!bool abc", "!!timestamp abc", "!!timestamp 2026-13-45", "!!binary ü", "!!binary a", "!!null {}", "!x y"),
    ],
)
def test_a_tag_that_does_not_fit_is_no_yaml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"pipeline: archive\nsource: {text}")
    with pytest.raises(ConfigError, match=r"bad.yaml is no YAML: line 2, column \d+: "):
        load(path)
    path.write_text("pipeline: archive")
    with pytest.raises(ConfigError, match=r"bad.yaml: --set source=!.*: line 1, column 1: "):
        load(path, [f"source={text}"])


_scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates())
_documents = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [*TRANSFORM, "steps", "sources", "trigger", "spark", "options", "sql", "format", "watermark"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(_documents, st.sampled_from(sorted(KINDS)))
def test_any_document_is_a_pipeline_or_refused_in_a_line(document: Any, kind: str) -> None:
    if isinstance(document, dict):
        document = {**document, "pipeline": kind}
    try:
        parse(yaml.safe_load(yaml.safe_dump(document)), HERE)
    except ConfigError:
        pass

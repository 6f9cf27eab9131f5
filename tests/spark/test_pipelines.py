"""The ready pipelines on a real Spark and a real broker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cosmodrome.errors import ConfigError, CosmodromeError
from cosmodrome.model import Message, Property, ReceivedMessage
from cosmodrome.pipelines.definition import Source, parse
from cosmodrome.pipelines.frames import read
from cosmodrome.pipelines.outcome import Outcome
from cosmodrome.pipelines.querying import asked
from cosmodrome.pipelines.replay import FINISHED
from cosmodrome.pipelines.running import SETTINGS, PipelineFailed, Progress, Run
from cosmodrome.spark.encoding import SPARK_ID
from cosmodrome.testing import Cluster
from tests.spark.helpers import BROKER, fill, numbered, send
from tests.unit.store.damage import overwrite

RunPipeline = Callable[[dict[str, Any]], Outcome]


@pytest.fixture
def own(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the settings of pipelines."""
    names = (*SETTINGS, "spark.sql.execution.arrow.maxRecordsPerBatch")
    before = {name: spark.conf.get(name) for name in names}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        if old is not None:
            spark.conf.set(name, old)


@pytest.fixture
def told() -> list[Progress]:
    return []


@pytest.fixture
def run(own: SparkSession, tmp_path: Path, told: list[Progress]) -> RunPipeline:
    def ran(document: dict[str, Any]) -> Outcome:
        return Run(parse(document, tmp_path), told.append).run(own)

    return ran


def archive_of(cluster: Cluster, topics: str, **more: Any) -> dict[str, Any]:
    return {
        "pipeline": "archive",
        "source": {"nameServer": cluster.namesrv, "subscribe": topics, "startingOffsets": "earliest", **more},
        "sink": {"path": "archive"},
        "trigger": "availableNow",
        "checkpoint": "archive-checkpoint",
    }


def test_an_archive_grows_and_is_replayed(
    own: SparkSession, cluster: Cluster, topic: str, run: RunPipeline, told: list[Progress], tmp_path: Path
) -> None:
    other = "42"  # a topic, not a number
    cluster.create_topic(other, queues=1)
    messages = [
        Message(topic, f"{n}".encode(), tags=f"t{n % 2}", keys=f"k{n}", properties={"region": "nördlich"}, flag=n)
        for n in range(40)
    ]
    send(cluster, messages[:20], queue_id=0)
    send(cluster, messages[20:], queue_id=1)
    fill(cluster, other, ["x"])
    archive = archive_of(cluster, f"{topic},{other}", maxOffsetsPerTrigger="15")
    assert run(archive).numbers["rows"] == 41
    assert max(progress.rows for progress in told) == 15
    assert told[-1].lag == {topic: 0, other: 0}
    assert run(archive).numbers["rows"] == 0  # it goes on from its checkpoint
    fill(cluster, topic, ["later"])
    assert run(archive).numbers["rows"] == 1

    rows = own.read.parquet(str(tmp_path / "archive"))
    assert rows.count() == 42
    assert {row.topic for row in rows.select("topic").collect()} == {topic, other}
    stored = [*cluster.messages(topic), *cluster.messages(other)]
    days = {path.name for path in (tmp_path / "archive").glob("date=*")}
    assert days == {
        f"date={datetime.fromtimestamp(message.store_timestamp / 1000, UTC):%Y-%m-%d}" for message in stored
    }

    # Spark would take micro-batches of a new checkpoint for those that the folder has, and leave their messages out.
    with pytest.raises(ConfigError, match="written by a query with another checkpoint"):
        run({**archive, "checkpoint": "new-checkpoint"})

    again = f"{topic}-again"
    cluster.create_topic(again, queues=4)
    replay = {
        "pipeline": "replay",
        "source": {"format": "parquet", "path": "archive", "where": f"topic = '{topic}'"},
        "steps": [{"sql": "select * from input where cast(body as string) <> 'later'"}],
        "sink": {"nameServer": cluster.namesrv, "topic": again},
        "options": {"rate": 400, "tasks": 2},
    }
    assert run(replay).numbers["messages"] == 40
    assert_replayed(cluster, topic, again, 40)


def assert_replayed(cluster: Cluster, topic: str, again: str, count: int) -> None:
    """Everything of the messages that users gave, and the order of each queue; nothing of the first sending."""
    before, after = cluster.messages(topic)[:count], cluster.messages(again)
    first = {message.body: message for message in before}
    assert len(after) == len(first) == count
    for message in after:
        origin = first[message.body]
        assert (message.tags, message.keys, message.flag) == (origin.tags, origin.keys, origin.flag)
        assert message.properties["region"] == "nördlich"
        assert message.msg_id != origin.msg_id
        assert origin.properties.get(Property.UNIQ_KEY) not in message.properties.values()
    for queue_id in (0, 1):
        sent = [message.body for message in before if message.queue.queue_id == queue_id]
        got = sorted((message for message in after if message.body in sent), key=_place)
        assert [message.body for message in got] == sent
        assert len({message.queue.queue_id for message in got}) == 1


def _place(message: ReceivedMessage) -> tuple[int, int]:
    return message.queue.queue_id, message.queue_offset


def test_a_time_range_of_a_topic_is_replayed_once(cluster: Cluster, topic: str, run: RunPipeline) -> None:
    def messages(first: int, last: int) -> list[Message]:
        return [
            # SPARK_ID: as Spark's sink wrote it
            Message(topic, f"{n}".encode(), "t", f"k{n}", {"region": "nördlich", SPARK_ID: f"q:{n}"}, sharding_key="s")
            for n in range(first, last)
        ]

    send(cluster, messages(0, 10), queue_id=0)
    send(cluster, messages(10, 20), queue_id=1)
    end_ms = cluster.messages(topic)[-1].store_timestamp + 1
    cluster.advance(hours=1)
    send(cluster, messages(20, 25))
    again = f"{topic}-again"
    cluster.create_topic(again, queues=2)
    replay = {
        "pipeline": "replay",
        "source": {
            "nameServer": cluster.namesrv,
            "subscribe": topic,
            "endingtimestamp": end_ms,
        },
        "sink": {"nameServer": cluster.namesrv, "topic": again},
        "options": {"queues": "same"},
        "checkpoint": "replay-checkpoint",
    }
    with pytest.raises(ConfigError, match="a message needs the column keys"):
        run({**replay, "steps": [{"sql": "select body from input"}]})
    assert run(replay).notes == ()
    again_told = run(replay)
    assert (again_told.numbers["rows"], again_told.notes) == (0, (FINISHED,))
    assert_replayed(cluster, topic, again, 20)
    for before, after in zip(sorted(cluster.messages(topic), key=_place), cluster.messages(again), strict=False):
        assert before.queue.broker_name == after.queue.broker_name == BROKER
        assert after.properties[Property.SHARDING_KEY] == "s"
        assert after.properties[SPARK_ID] != before.properties[SPARK_ID]


def test_a_replay_into_its_own_topic_ends_with_what_was_there_at_first(
    cluster: Cluster, topic: str, run: RunPipeline, tmp_path: Path
) -> None:
    fill(cluster, topic, numbered(0, 10), queue_id=0)
    fill(cluster, topic, numbered(10, 20), queue_id=1)
    replay = {
        "pipeline": "replay",
        "source": {"nameServer": cluster.namesrv, "subscribe": topic, "maxOffsetsPerTrigger": 12},
        "sink": {"nameServer": cluster.namesrv, "exactlyOnce": True},
        "checkpoint": "replay[1]",
    }
    run(replay)
    last = max((path for path in (tmp_path / "replay[1]" / "commits").iterdir() if path.name.isdecimal()), key=_batch)
    for path in (last, last.with_name(f".{last.name}.crc")):  # as if it had been killed before it noted that
        path.unlink(missing_ok=True)
    told = run(replay)
    assert (int(told.numbers["rows"]) > 0, told.notes) == (True, ())  # its own messages were read, but not sent
    twice = sorted([*range(20), *range(20)])
    assert sorted(int(message.body) for message in cluster.messages(topic)) == twice
    assert run(replay).notes == (FINISHED,)
    assert sorted(int(message.body) for message in cluster.messages(topic)) == twice


def _batch(path: Path) -> int:
    return int(path.name)


def test_steps_do_not_multiply_the_tasks_of_a_replay(
    own: SparkSession, cluster: Cluster, topic: str, run: RunPipeline, tmp_path: Path
) -> None:
    """Each would send at the whole rate."""
    fill(cluster, topic, numbered(0, 12), queue_id=0)
    own.read.format("rocketmq").options(nameServer=cluster.namesrv, subscribe=topic).load().write.parquet(
        str(tmp_path / "files")
    )
    again = f"{topic}-again"
    cluster.create_topic(again, queues=2)
    (tmp_path / "once_each.py").write_text("def once(rows):\n    return rows.dropDuplicates(['queueOffset'])\n")
    replay: dict[str, Any] = {
        "pipeline": "replay",
        "source": {"nameServer": cluster.namesrv, "subscribe": topic},
        "steps": [{"python": "once_each:once"}],
        "sink": {"nameServer": cluster.namesrv, "topic": again},
        "options": {"rate": 1_000},
        "checkpoint": "marks",
    }
    run(replay)
    assert _tasks(cluster.messages(again), 12) == {"0"}
    files = {**replay, "source": {"format": "parquet", "path": "files"}, "options": {"rate": 1_000, "tasks": 2}}
    run({**files, "steps": [{"sql": "select /*+ repartition(4) */ * from input"}]})
    assert _tasks(cluster.messages(again)[12:], 12) == {"0", "1"}


def _tasks(messages: list[ReceivedMessage], count: int) -> set[str]:
    """Those that sent them: they are part of the name that each row has."""
    assert len(messages) == count
    return {message.properties[SPARK_ID].split(":")[-2] for message in messages}


def test_a_transformation_leaves_it_to_the_target_which_queue_a_message_goes_to(
    cluster: Cluster, topic: str, run: RunPipeline
) -> None:
    mine = Message(topic, b"a", "paid", "k", {"region": "north"}, flag=7, sharding_key="s")
    send(cluster, [mine, Message(topic, b"b", "free")], queue_id=1)
    paid = f"{topic}-paid"
    cluster.create_topic(paid, queues=1)
    transform: dict[str, Any] = {
        "pipeline": "transform",
        "source": {"nameServer": cluster.namesrv, "subscribe": topic, "startingOffsets": "earliest"},
        "steps": [{"sql": "select * from input where tags = 'paid'"}],
        "sink": {"nameServer": cluster.namesrv, "topic": paid},
        "trigger": "availableNow",
        "checkpoint": "any",
    }
    run(transform)
    (sent,) = cluster.messages(paid)
    assert (sent.body, sent.tags, sent.keys, sent.flag) == (b"a", "paid", "k", 7)
    assert (sent.properties["region"], sent.properties[Property.SHARDING_KEY]) == ("north", "s")
    assert sent.msg_id != cluster.messages(topic)[0].msg_id

    wide = f"{topic}-wide"
    cluster.create_topic(wide, queues=2)
    sink = {**transform["sink"], "topic": wide}
    run({**transform, "sink": sink, "options": {"queues": "same"}, "checkpoint": "same", "steps": []})
    assert [message.queue.queue_id for message in cluster.messages(wide)] == [1, 1]
    with pytest.raises(PipelineFailed, match="UNIQ_KEY"):  # they would go back to where they came from, without end
        run({**transform, "sink": {"nameServer": cluster.namesrv}, "checkpoint": "back"})


def test_streaming_sql_with_a_join_and_windows(cluster: Cluster, topic: str, run: RunPipeline, tmp_path: Path) -> None:
    payments, totals = f"{topic}-payments", f"{topic}-totals"
    for name in (payments, totals):
        cluster.create_topic(name, queues=1)

    def order(number: int, second: int) -> Message:
        city = "Köln" if number % 2 else "Ulm"
        at = f"2026-01-01T10:{second // 60:02}:{second % 60:02}Z"
        return Message(topic, json.dumps({"id": number, "city": city, "price": 1.5, "at": at}).encode())

    def payment(number: int, second: int) -> Message:
        at = f"2026-01-01T10:{second // 60:02}:{second % 60:02}Z"
        return Message(payments, json.dumps({"orderId": number, "paidAt": at}).encode())

    def source(name: str, schema: str, column: str) -> dict[str, Any]:
        given = {"nameServer": cluster.namesrv, "subscribe": name, "startingOffsets": "earliest", "badJson": "drop"}
        return {**given, "schema": schema, "watermark": {"column": column, "delay": "10 seconds"}}

    (tmp_path / "my_steps.py").write_text("def louder(rows):\n    return rows.withColumn('tags', rows.city)\n")
    transform = {
        "pipeline": "transform",
        "sources": {
            "orders": source(topic, "id long, city string, price double, at timestamp", "at"),
            "payments": source(payments, "orderId long, paidAt timestamp", "paidAt"),
        },
        "steps": [
            {
                "name": "paid",
                "sql": "select o.city, o.price, o.at from orders o join payments p "
                "on o.id = p.orderId and p.paidAt between o.at and o.at + interval 1 minute",
            },
            {
                "sql": "select window.start as minute, city, count(*) as orders, sum(price) as total "
                "from input group by window(at, '1 minute'), city"
            },
            {"python": "my_steps:louder"},
        ],
        "sink": {"nameServer": cluster.namesrv, "topic": totals},
        "trigger": "availableNow",
        "checkpoint": "transform-checkpoint",
    }
    send(cluster, [order(n, n) for n in range(20)] + [Message(topic, b"no json")])
    send(cluster, [payment(n, n + 5) for n in range(0, 20, 2)] + [payment(1, 300)])
    run(transform)
    send(cluster, [order(100, 900), order(101, 901)])  # so late that the first minutes are over
    send(cluster, [payment(101, 902), payment(100, 903)])
    run(transform)
    run(transform)
    got = [(message.tags, json.loads(message.body)) for message in cluster.messages(totals)]
    assert got == [("Ulm", {"minute": "2026-01-01T10:00:00.000Z", "city": "Ulm", "orders": 10, "total": 15.0})]


def test_stores_are_scanned_without_a_broker(
    own: SparkSession, cluster: Cluster, topic: str, run: RunPipeline, tmp_path: Path
) -> None:
    fill(cluster, topic, numbered(0, 50), queue_id=0)
    fill(cluster, topic, numbered(50, 80), queue_id=1)
    stored = cluster.messages(topic)
    folder = tmp_path / "store"
    shutil.copytree(cluster.brokers[0].folder, folder)

    read = own.read.format("rocketmq-store").option("topics", topic)
    rows = read.load(str(folder))
    expected = sorted((m.commit_log_offset, m.queue.queue_id, m.queue_offset, m.msg_id, m.body) for m in stored)
    columns = ("commitLogOffset", "queueId", "queueOffset", "msgId", "body")
    assert sorted((*row[:4], bytes(row.body)) for row in rows.select(*columns).collect()) == expected
    in_queues = read.option("mode", "queues").schema("queueOffset long, file string, body binary").load(str(folder))
    assert sorted(int(row.body) for row in in_queues.collect()) == list(range(80))

    hurt = stored[7]
    (log_file,) = {row.file for row in rows.select("file").collect()}
    raw = Path(log_file).read_bytes()
    overwrite(Path(log_file), raw.index(b"7", hurt.commit_log_offset + 84), b"!")
    scan: dict[str, Any] = {
        "pipeline": "store-scan",
        "source": {"path": "store", "topics": topic, "onDamage": "Report"},
        "sink": {"path": "scan"},
    }
    outcome = run(scan)
    assert (outcome.numbers["messages"], outcome.numbers["damaged"]) == (79, 1)
    ((file, offset, text),) = outcome.tables[0].rows
    assert (file, offset) == (log_file, hurt.commit_log_offset)
    assert "checksum" in text
    written = own.read.parquet(str(tmp_path / "scan"))
    bodies = {message.body for message in stored} - {hurt.body}
    assert {bytes(row.body) for row in written.select("body").collect()} == bodies
    with pytest.raises(CosmodromeError, match="onDamage"):
        run({**scan, "source": {"path": "store", "ondamage": "fail"}, "sink": {"path": "scan-again"}})


def test_topics_are_tables_of_a_query(own: SparkSession, cluster: Cluster, topic: str) -> None:
    send(cluster, [Message(topic, json.dumps({"price": n}).encode(), tags=f"t{n % 2}") for n in range(10)])
    topics = [topic, "other"]
    options = {"nameServer": cluster.namesrv}
    counted = asked(own, f"select tags, count(*) n from `{topic}` group by tags order by tags", topics, options)
    assert [tuple(row) for row in counted.collect()] == [("t0", 5), ("t1", 5)]
    summed = asked(own, f"select sum(price) s, min(value) v from `{topic.upper()}`", topics, options, "price long")
    assert tuple(summed.collect()[0]) == (45, '{"price": 0}')
    with pytest.raises(ConfigError, match=r"there is no topic othr \(did you mean other\?\); there are "):
        asked(own, "select * from othr", topics, options)
    with pytest.raises(ConfigError, match="the query is no SQL"):
        asked(own, "selec 1", topics, options)
    with pytest.raises(ConfigError, match="colour"):
        asked(own, f"select colour from `{topic}`", topics, options)


def test_a_schema_of_files_is_theirs_and_that_of_text_is_of_its_lines(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text('{"id": 1, "value": "a", "body": "b"}\n')
    files = Source("json", {"path": str(path)}, schema="id long, value string, body string")
    assert [tuple(row) for row in read(spark, files, streaming=False).collect()] == [(1, "a", "b")]
    lines = Source("text", {"path": str(path)}, schema="id long, value string")
    assert [tuple(row) for row in read(spark, lines, streaming=False).collect()] == [(1, "a")]


def test_what_fails_is_told_in_a_line(cluster: Cluster, topic: str, run: RunPipeline, tmp_path: Path) -> None:
    with pytest.raises(PipelineFailed, match=r"^the topic nowhere does not exist; create it"):
        run(archive_of(cluster, "nowhere"))
    transform: dict[str, Any] = {
        "pipeline": "transform",
        "source": {"nameServer": cluster.namesrv, "subscribe": topic},
        "steps": [{"sql": "select colour from input"}],
        "sink": {"format": "noop"},
        "checkpoint": "noop",
    }
    with pytest.raises(ConfigError, match=r"^steps: step1: .*colour") as failure:
        run(transform)
    assert "\n" not in str(failure.value)
    (tmp_path / "wrong_steps.py").write_text("def wrong(rows):\n    return {}['x']\n")
    with pytest.raises(ConfigError, match=r"^steps: step1: KeyError: 'x' \(wrong_steps\.py, line 2\)$"):
        run({**transform, "steps": [{"python": "wrong_steps:wrong"}]})
    with pytest.raises(ConfigError, match=r"^schema is 'id lng': .*write names and types"):
        run({**transform, "source": {**transform["source"], "schema": "id lng"}})
    with pytest.raises(ConfigError, match=r"^source\.where is 'colour = 1'"):
        run({**transform, "source": {**transform["source"], "where": "colour = 1"}})
    with pytest.raises(ConfigError, match=r"checkpoint and sink\.path must be folders that can be written"):
        run({**transform, "steps": [], "checkpoint": "wrong_steps.py"})
    with pytest.raises(ConfigError, match="no_such_module:f cannot be used"):
        run({**transform, "steps": [{"python": "no_such_module:f"}]})

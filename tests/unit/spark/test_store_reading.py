"""Store folders as Spark's tasks see them; no Spark, no broker."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, IntegerType, StructType

from cosmodrome.errors import ConfigError, StoreError
from cosmodrome.spark.store_options import StoreOptions, store_options
from cosmodrome.spark.store_reading import Found, LogPart, parts, read_parts
from cosmodrome.spark.store_source import RocketMQStoreSource
from cosmodrome.store.log_walk import walk
from cosmodrome.store.survey import survey
from cosmodrome.store.verification import claimed_end
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire.record import RecordHead
from tests.unit.golden import VERSIONS
from tests.unit.store.damage import FIRST_LOG_FILE, overwrite, stopped_store
from tests.unit.store.kit import crash, message, open_store
from tests.unit.store.test_golden import queues as golden_queues
from tests.unit.store.test_golden import write_log


def read(options: StoreOptions) -> list[Found]:
    return [found for together in parts(options) for found in read_parts(together, options)]


def places(found: list[Found]) -> list[int]:
    return [at for each in found if each.records is not None for at in each.records.commit_log_offsets.tolist()]


def topics(found: list[Found]) -> set[str]:
    return {topic for each in found if each.records is not None for topic in each.records.topics.to_pylist()}


def damages(found: list[Found]) -> list[tuple[int, str]]:
    return [(each.at, each.damage) for each in found if each.records is None]


def options(root: Path, **given: str) -> StoreOptions:
    return store_options({"path": str(root), **given})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    stopped_store(tmp_path)
    return tmp_path


def walked(root: Path) -> list[RecordHead]:
    seen = survey(root)
    return [found for found in walk(seen.log, claimed_end(seen)) if isinstance(found, RecordHead)]


def test_every_record_of_the_log_is_read_once(store: Path) -> None:
    tasks = parts(options(store))
    files = {part.path for (part,) in tasks if isinstance(part, LogPart)}
    assert len(tasks) == len(files) > 1
    found = read(options(store))
    assert places(found) == [head.physical_offset for head in walked(store)]
    assert {each.file for each in found} <= {str(path) for path in (store / "commitlog").iterdir()}


@pytest.mark.parametrize("mode", ["log", "queues"])
def test_parts_that_lie_elsewhere_are_read(store: Path, tmp_path_factory: pytest.TempPathFactory, mode: str) -> None:
    expected = places(read(options(store, mode=mode)))
    other = tmp_path_factory.mktemp("other")
    (store / "commitlog").rename(other / "log")
    (store / "consumequeue").rename(other / "queues")
    elsewhere = {"storePathCommitLog": str(other / "log"), "storePathConsumeQueue": str(other / "queues")}
    assert places(read(options(store, mode=mode, **elsewhere))) == expected != []


def test_queues_hold_what_consumers_see(store: Path) -> None:
    seen = survey(store)
    expected = [
        (queue.topic, queue.queue_id, offset, entry[0])
        for queue in seen.own_queues.values()
        for offset, entry in queue.entries()
    ]
    found = [
        row
        for each in read(options(store, mode="queues"))
        if each.records is not None
        for row in zip(
            each.records.topics.to_pylist(),
            each.records.queue_ids.tolist(),
            each.records.queue_offsets.tolist(),
            each.records.commit_log_offsets.tolist(),
            strict=True,
        )
    ]
    assert found == expected
    assert len(found) < len(walked(store))  # half messages are in no queue


def test_topics_times_and_several_stores(store: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    stopped_store(other, count=10)
    assert topics(read(options(store, topics="orders, topic-1"))) == {"orders", "topic-1"}
    assert topics(read(options(store, mode="queues", topics="topic-2"))) == {"topic-2"}
    both = read(store_options({"path": f"{store}, {other}"}))
    assert len(places(both)) == len(walked(store)) + len(walked(other))
    stored = walked(store)[0].store_timestamp
    assert places(read(options(store, startingTimestamp=str(stored + 1)))) == []
    assert places(read(options(store, endingTimestamp=str(stored)))) == []
    assert len(places(read(options(store, startingTimestamp=str(stored))))) == len(walked(store))


async def test_files_of_another_time_are_not_opened(tmp_path: Path) -> None:
    clock = FakeClock()
    opened = open_store(tmp_path, clock=clock)
    for number in range(6):
        opened.append(message(body=b"%d" % number + bytes(30_000)))
        await clock.advance(86_400_000)
    opened.close()
    times = [head.store_timestamp for head in walked(tmp_path)]
    narrow = options(tmp_path, startingTimestamp=str(times[3]), endingTimestamp=str(times[4]))
    assert len(parts(narrow)) < len(parts(options(tmp_path)))
    assert places(read(narrow)) == [walked(tmp_path)[3].physical_offset]


def test_damage_is_told_skipped_or_raised(store: Path) -> None:
    heads = walked(store)
    hurt = heads[5]
    overwrite(store / FIRST_LOG_FILE, hurt.body_at, b"\xff\xff")
    with pytest.raises(StoreError, match=rf"offset {hurt.physical_offset}: .*onDamage"):
        read(options(store))
    rest = [head.physical_offset for head in heads if head is not hurt]
    assert places(read(options(store, onDamage="skip"))) == rest
    told = read(options(store, onDamage="report"))
    assert places(told) == rest
    ((at, text),) = damages(told)
    assert at == hurt.physical_offset
    assert "checksum" in text
    in_queues = read(options(store, onDamage="report", mode="queues"))
    ((at, text),) = damages(in_queues)
    assert (at, f"of {hurt.topic}/{hurt.queue_id}" in text) == (hurt.physical_offset, True)


def test_damage_up_to_the_end_of_a_file_does_not_hide_the_next_file(store: Path) -> None:
    heads = walked(store)
    second = survey(store).log.files[1]
    hurt = [head for head in heads if head.physical_offset < second.start][-2:]
    begin = hurt[0].physical_offset
    overwrite(store / FIRST_LOG_FILE, begin, b"\xab" * (second.start - begin))
    told = read(options(store, onDamage="report"))
    assert places(told) == [head.physical_offset for head in heads if head not in hurt]
    assert [at for at, _ in damages(told)] == [begin]


def test_a_torn_end_that_nobody_speaks_of_is_no_damage(tmp_path: Path) -> None:
    opened = open_store(tmp_path)
    for number in range(3):
        opened.append(message(body=b"%d" % number))
    crash(opened)
    end = walked(tmp_path)[-1].physical_offset + walked(tmp_path)[-1].size
    overwrite(tmp_path / FIRST_LOG_FILE, end, b"\x00\x00\x01\x00\xda\xa3\x20\xa7torn")
    found = read(options(tmp_path, onDamage="report"))
    assert (len(places(found)), damages(found)) == (3, [])
    overwrite(tmp_path / FIRST_LOG_FILE, walked(tmp_path)[-1].body_at, b"!")  # of this one a queue speaks
    found = read(options(tmp_path, onDamage="report"))
    assert (len(places(found)), len(damages(found))) == (2, 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["log", "queues"])
def test_apaches_stores(tmp_path: Path, version: str, mode: str) -> None:
    write_log(tmp_path, version)
    for (topic, queue_id), data in golden_queues(version).items():
        file = tmp_path / "consumequeue" / topic / str(queue_id) / f"{0:020d}"
        file.parent.mkdir(parents=True)
        file.write_bytes(data)
    heads = walked(tmp_path)
    found = places(read(options(tmp_path, mode=mode)))
    if mode == "log":
        assert found == [head.physical_offset for head in heads]
    else:
        assert set(found) <= {head.physical_offset for head in heads}
        assert len(found) == len(set(found)) > 0


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 60_000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4))
def test_any_damage_costs_only_what_it_hits(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]]
) -> None:
    root = tmp_path_factory.mktemp("store")
    stopped_store(root, count=40)
    for at, data in changes:
        overwrite(root / FIRST_LOG_FILE, at, data)
    assert places(read(options(root, onDamage="skip"))) == [head.physical_offset for head in walked(root)]
    for mode in ("log", "queues"):
        read(options(root, onDamage="report", mode=mode))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "give the option path"),
        ({"path": "x", "mode": "raw"}, "the option mode"),
        ({"path": "x", "onDamge": "skip"}, "did you mean onDamage"),
        ({"path": "x", "startingTimestamp": "5", "endingTimestamp": "5"}, "startingTimestamp .5. is not before"),
        ({"path": "x", "paths": "{}"}, "the option paths"),
        ({"path": "x,y", "storePathCommitLog": "z"}, "are parts of one store"),
    ],
)
def test_options_are_checked(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        store_options(given)


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a store"):
        parts(options(tmp_path))


def table(**given: str) -> pa.Table:
    """As Spark reads it, in this process."""
    source = RocketMQStoreSource(given)
    reader = source.reader(source.schema())
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return pa.Table.from_batches(batches)


def test_rows_have_the_columns_of_messages_and_their_file(store: Path) -> None:
    rows = table(path=str(store))
    heads = walked(store)
    assert rows["commitLogOffset"].to_pylist() == [head.physical_offset for head in heads]
    assert rows["topic"].to_pylist() == [head.topic for head in heads]
    assert rows["queueOffset"].to_pylist() == [head.queue_offset for head in heads]
    assert set(rows["brokerName"].to_pylist()) == {None}
    used = [file for file in survey(store).log.files if file.start <= heads[-1].physical_offset]
    assert set(rows["file"].to_pylist()) == {str(file.path) for file in used}
    assert "damage" not in rows.column_names


def test_damage_is_a_row_that_says_so(store: Path) -> None:
    hurt = walked(store)[5]
    overwrite(store / FIRST_LOG_FILE, hurt.body_at, b"\xff\xff")
    rows = table(path=str(store), onDamage="report", topics=hurt.topic)
    (told,) = [row for row in rows.to_pylist() if row["damage"]]
    assert (told["commitLogOffset"], told["topic"], told["body"]) == (hurt.physical_offset, None, None)
    assert told["file"] == str(store / FIRST_LOG_FILE)
    source = RocketMQStoreSource({"path": str(store), "onDamage": "report"})
    with pytest.raises(ConfigError, match="needs the column damage"):
        source.reader(StructType().add("body", BinaryType()))
    with pytest.raises(ConfigError, match="the column file is int; it must be string"):
        RocketMQStoreSource({"path": str(store)}).reader(StructType().add("file", IntegerType()))

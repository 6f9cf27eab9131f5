"""The register of records that were left out: bounded, and whole after any crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.store.skipped import MAX_KEPT, MAX_LINES, SKIPPED_RECORDS, SkippedRecord, SkippedRecords, read_skipped
from cosmodrome.testing import FakeClock


def register(folder: Path) -> SkippedRecords:
    return SkippedRecords(folder / SKIPPED_RECORDS, FakeClock())


def test_what_is_left_out_is_named_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    skipped = register(tmp_path)
    skipped.add("timers", "rmq_sys_wheel_timer", 0, 17, 4_096, ValueError("REAL_QID is none"))
    now_ms = FakeClock().now_ms()
    expected = SkippedRecord(1, now_ms, "timers", "rmq_sys_wheel_timer", 0, 17, 4_096, "REAL_QID is none")
    assert read_skipped(tmp_path) == [expected]  # a kill loses nothing of it
    assert "record skipped: service=timers topic=rmq_sys_wheel_timer queue=0 offset=17" in caplog.text
    assert skipped.newest == expected


def test_no_record_is_counted_twice_however_often_it_is_met(tmp_path: Path) -> None:
    for _ in range(2):
        skipped = register(tmp_path)
        for _ in range(2):
            skipped.add("delays", "t", 0, 1, 2, "x")
        skipped.close()
    assert (skipped.count, len(read_skipped(tmp_path))) == (1, 1)


def test_it_is_bounded_and_counts_on(tmp_path: Path) -> None:
    skipped = register(tmp_path)
    for offset in range(MAX_LINES + 10):
        skipped.add("delays", "t", 0, offset, offset, "x")
    skipped.close()
    assert skipped.count == MAX_LINES + 10
    assert [record.queue_offset for record in read_skipped(tmp_path)] == list(
        range(MAX_LINES + 10 - MAX_KEPT, MAX_LINES + 10)
    )
    assert len((tmp_path / SKIPPED_RECORDS).read_bytes().splitlines()) < MAX_LINES
    assert register(tmp_path).count == MAX_LINES + 10


@given(cut=st.integers(0, 400), garbage=st.binary(max_size=40))
def test_what_a_crash_tears_costs_only_itself(
    tmp_path_factory: pytest.TempPathFactory, cut: int, garbage: bytes
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    skipped = register(folder)
    for offset in range(3):
        skipped.add("delays", "t", 0, offset, offset, "x")
    skipped.close()
    path = folder / SKIPPED_RECORDS
    data = path.read_bytes()
    path.write_bytes(data[: min(cut, len(data))] + garbage)
    whole = data[:cut].count(b"\n")
    skipped = register(folder)
    skipped.add("timers", "t", 0, 99, 99, "x")
    skipped.close()
    left = [record.queue_offset for record in read_skipped(folder) if record.service in ("delays", "timers")]
    assert left[:whole] == [0, 1, 2][:whole]
    assert left[-1] == 99


def test_a_disk_that_refuses_gets_it_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "config").write_bytes(b"a file where the folder should be")
    skipped = SkippedRecords(tmp_path / "config" / SKIPPED_RECORDS, FakeClock())
    skipped.add("delays", "t", 0, 1, 2, "x")
    assert "trying again" in caplog.text
    (tmp_path / "config").unlink()
    skipped.close()
    assert [record.queue_offset for record in read_skipped(tmp_path / "config")] == [1]


async def test_saving_brings_it_onto_the_disk(tmp_path: Path) -> None:
    skipped = register(tmp_path)
    await skipped.saved()
    skipped.add("delays", "t\ud800\n", -1, 2**70, -(2**70), "x" * 10_000)
    await skipped.saved()
    (record,) = read_skipped(tmp_path)
    assert (record.queue_offset, record.physical_offset, len(record.reason)) == (2**63 - 1, -(2**63), 300)
    skipped.close()


@pytest.mark.parametrize("data", [b"\xff" * 100, b"[]\n{}\n1\n" + b"9" * 5_000, b"{" * 10_000])
def test_a_file_of_garbage_stops_nobody(tmp_path: Path, data: bytes) -> None:
    (tmp_path / SKIPPED_RECORDS).write_bytes(data)
    skipped = register(tmp_path)
    skipped.add("delays", "t", 0, 1, 2, "x")
    skipped.close()
    assert read_skipped(tmp_path)[-1].service == "delays"

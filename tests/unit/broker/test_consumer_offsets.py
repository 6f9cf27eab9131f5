"""Consumer offsets: what was committed last counts, also after a restart."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome.broker.consumer_offsets import ConsumerOffsets
from cosmodrome.testing import FakeClock
from cosmodrome.wire.bodies import ConsumerOffsetsBody

Open = Callable[[], ConsumerOffsets]


@pytest.fixture
def open_offsets(tmp_path: Path) -> Open:
    return lambda: ConsumerOffsets(tmp_path / "consumerOffset.json", FakeClock())


@pytest.fixture
def offsets(open_offsets: Open) -> ConsumerOffsets:
    made = open_offsets()
    made.commit("g", "T", 0, 10)
    made.commit("g", "T", 1, 11)
    made.commit("g", "%RETRY%g", 0, 3)
    made.commit("h", "T", 0, 20)
    return made


def test_an_offset_is_found_by_group_topic_and_queue(offsets: ConsumerOffsets) -> None:
    assert offsets.find_offset("g", "T", 1) == 11
    assert offsets.find_offset("h", "T", 0) == 20
    for unknown in (("h", "T", 1), ("h", "U", 0), ("i", "T", 0)):
        assert offsets.find_offset(*unknown) is None


def test_a_commit_overwrites_also_with_less(offsets: ConsumerOffsets) -> None:
    offsets.commit("g", "T", 0, 2)
    assert offsets.find_offset("g", "T", 0) == 2


async def test_the_same_commit_again_changes_nothing(offsets: ConsumerOffsets) -> None:
    await offsets.saved()
    offsets.commit("g", "T", 0, 10)
    assert not offsets.unsaved
    offsets.commit("g", "T", 0, 12)
    assert offsets.unsaved


def test_topics_of_a_group_and_groups_of_a_topic(offsets: ConsumerOffsets) -> None:
    offsets.commit("gg", "TT", 0, 1)
    assert offsets.of_group("g") == {"T": {0: 10, 1: 11}, "%RETRY%g": {0: 3}}
    assert offsets.groups_of("T") == ["g", "h"]
    assert offsets.of_group("nobody") == {}
    assert offsets.groups_of("nothing") == []


def test_a_deleted_topic_is_forgotten_and_no_other(offsets: ConsumerOffsets) -> None:
    offsets.commit("g", "TT", 0, 1)
    offsets.forget_topic("T")
    assert offsets.groups_of("T") == []
    assert offsets.of_group("g") == {"%RETRY%g": {0: 3}, "TT": {0: 1}}


def test_a_deleted_group_is_forgotten_and_no_other(offsets: ConsumerOffsets) -> None:
    offsets.commit("gg", "T", 0, 1)
    offsets.forget_group("g")
    assert offsets.of_group("g") == {}
    assert offsets.groups_of("T") == ["h", "gg"]


async def test_a_restart_finds_the_same_offsets(offsets: ConsumerOffsets, open_offsets: Open) -> None:
    offsets.commit("g", "T", 2, 2**62)
    await offsets.saved()
    again = open_offsets()
    assert again.of_group("g") == offsets.of_group("g")
    assert again.find_offset("g", "T", 2) == 2**62
    assert again.data_version == offsets.data_version
    again.commit("g", "T", 0, 99)
    assert again.find_offset("g", "T", 0) == 99


async def test_the_file_has_apaches_shape(offsets: ConsumerOffsets, tmp_path: Path) -> None:
    await offsets.saved()
    text = "".join((tmp_path / "consumerOffset.json").read_text().split())
    assert '"T@g":{0:10,1:11}' in text


async def saved_offset(offsets: ConsumerOffsets, open_offsets: Open) -> int | None:
    await offsets.saved()
    return open_offsets().find_offset("g", "T", 0)


def test_what_is_being_saved_is_of_one_moment(offsets: ConsumerOffsets) -> None:
    """A thread encodes it while offsets are committed and forgotten."""
    offsets.commit_ahead("h", "T", 1, 5, log_end=100)
    before, encode = offsets.encoded(), offsets.snapshot()
    offsets.commit("g", "T", 0, 99)
    offsets.commit("g", "T", 2, 1)
    offsets.commit_ahead("h", "T", 0, 21, log_end=200)
    offsets.commit_ahead("h", "T", 1, 6, log_end=200)
    offsets.settle(flushed=100, log_end=200)
    offsets.forget_group("i")
    offsets.forget_topic("%RETRY%g")
    offsets.commit("g", "%RETRY%g", 0, 4)
    assert encode() == before
    later = offsets.snapshot()()
    offsets.commit("g", "T", 0, 100)
    assert ConsumerOffsetsBody.decode(later).offsets["T@g"] == {0: 99, 1: 11, 2: 1}
    assert ConsumerOffsetsBody.decode(offsets.encoded()).offsets["T@g"] == {0: 100, 1: 11, 2: 1}


def test_a_large_table_is_shared_with_the_thread_that_saves_it(offsets: ConsumerOffsets) -> None:
    """To copy all offsets of a million queues takes two seconds, in which nobody is served."""
    for number in range(10_000):
        offsets.commit("g", f"topic-{number}", 0, number)
    tracemalloc.start()
    try:
        snapshot = offsets.snapshot()
        assert tracemalloc.get_traced_memory()[1] < 10_000 * 100
    finally:
        tracemalloc.stop()
    assert ConsumerOffsetsBody.decode(snapshot()).offsets["topic-7@g"] == {0: 7}


async def test_an_offset_is_not_saved_before_what_it_stands_for(offsets: ConsumerOffsets, open_offsets: Open) -> None:
    offsets.commit_ahead("g", "T", 0, 15, log_end=1_000)
    assert offsets.find_offset("g", "T", 0) == 15
    assert await saved_offset(offsets, open_offsets) == 10
    offsets.commit_ahead("g", "T", 0, 18, log_end=2_000)
    offsets.settle(flushed=999, log_end=2_000)
    assert await saved_offset(offsets, open_offsets) == 10
    offsets.settle(flushed=1_000, log_end=2_000)
    assert await saved_offset(offsets, open_offsets) == 15
    offsets.settle(flushed=2_000, log_end=2_000)
    assert await saved_offset(offsets, open_offsets) == 18


async def test_everything_on_disk_settles_everything(offsets: ConsumerOffsets, open_offsets: Open) -> None:
    offsets.commit_ahead("new", "T", 0, 4, log_end=1_000)
    offsets.commit_ahead("new", "T", 0, 6, log_end=1_500)
    await offsets.saved()
    assert open_offsets().find_offset("new", "T", 0) is None
    offsets.settle(flushed=1_500, log_end=1_500)
    await offsets.saved()
    assert open_offsets().find_offset("new", "T", 0) == 6


async def test_whoever_resets_an_offset_means_it_at_once(offsets: ConsumerOffsets, open_offsets: Open) -> None:
    offsets.commit_ahead("g", "T", 0, 15, log_end=1_000)
    offsets.commit("g", "T", 0, 2)
    assert await saved_offset(offsets, open_offsets) == 2
    offsets.settle(flushed=5_000, log_end=5_000)
    assert await saved_offset(offsets, open_offsets) == 2


async def test_a_topic_that_is_gone_leaves_nothing_to_settle(offsets: ConsumerOffsets, open_offsets: Open) -> None:
    offsets.commit_ahead("g", "T", 0, 15, log_end=1_000)
    offsets.forget_topic("T")
    assert await saved_offset(offsets, open_offsets) is None
    offsets.settle(flushed=5_000, log_end=5_000)
    assert await saved_offset(offsets, open_offsets) is None


async def test_a_reset_is_kept_for_the_consumer_that_runs(offsets: ConsumerOffsets, open_offsets: Open) -> None:
    """What it commits before it has heard of the reset is of the time before."""
    offsets.reset("g", "T", 0, 2)
    offsets.commit("g", "T", 0, 12)
    offsets.commit("g", "T", 1, 12)
    assert (offsets.find_offset("g", "T", 0), offsets.find_offset("g", "T", 1)) == (2, 12)
    assert await saved_offset(offsets, open_offsets) == 2
    assert offsets.has_reset("g", "T", 0)
    assert not offsets.has_reset("g", "T", 1)
    assert [offsets.take_reset("g", "T", 0), offsets.take_reset("g", "T", 0)] == [2, None]
    offsets.commit("g", "T", 0, 3)
    assert offsets.find_offset("g", "T", 0) == 3


@pytest.mark.parametrize("forget", ["drop_resets", "forget_group"])
def test_a_reset_nobody_will_hear_of_is_forgotten(offsets: ConsumerOffsets, forget: str) -> None:
    offsets.reset("g", "T", 0, 2)
    offsets.reset("other", "T", 0, 2)
    getattr(offsets, forget)("g")
    assert offsets.take_reset("g", "T", 0) is None
    assert offsets.take_reset("other", "T", 0) == 2

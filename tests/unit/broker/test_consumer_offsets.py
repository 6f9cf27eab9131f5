"""Consumer offsets: what was committed last counts, also after a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome.broker.consumer_offsets import ConsumerOffsets
from cosmodrome.testing import FakeClock

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

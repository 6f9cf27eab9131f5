"""Tables that a slave takes over from its master."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosmodrome.broker.consumer_offsets import ConsumerOffsets
from cosmodrome.broker.delay_offsets import DelayOffsets
from cosmodrome.broker.groups import Groups
from cosmodrome.broker.request_modes import RequestModes
from cosmodrome.broker.tables import SavedTable
from cosmodrome.broker.timer_metrics import TimerMetrics
from cosmodrome.broker.topics import Topics
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import StoreError
from cosmodrome.model import DataVersion, GroupConfig, RequestMode, TopicConfig
from cosmodrome.testing import FakeClock
from cosmodrome.wire.bodies import (
    ConsumerOffsetsBody,
    DelayOffsetsBody,
    GroupConfigWrapper,
    RequestModeBody,
    RequestModesBody,
    TimerMetricsBody,
    TopicConfigWrapper,
)

MASTERS = DataVersion(1_700_000_000_000, 41, 3)


async def saved_again(table: SavedTable) -> bool:
    """Whether there was something to save."""
    was_unsaved = table.unsaved
    await table.saved()
    return was_unsaved


async def test_topics_become_those_of_the_master_with_its_version(tmp_path: Path) -> None:
    told: list[str] = []
    path, config = tmp_path / "topics.json", BrokerConfig(broker_name="b")
    topics = Topics(config, path, FakeClock(), lambda: told.append("told"))
    topics.put(TopicConfig("mine", 1, 1))
    told.clear()
    table = TopicConfigWrapper(MASTERS, {"T": TopicConfig("T", 4, 4), "U": TopicConfig("U", 2, 2)})
    topics.adopt(table)
    assert {topic.name for topic in topics} == {"T", "U"}
    assert topics.data_version == MASTERS
    assert told == ["told"]
    assert await saved_again(topics)
    topics.adopt(table)
    assert told == ["told"]
    assert not await saved_again(topics), "nothing changed"
    again = Topics(config, path, FakeClock(), lambda: None)
    assert again.find_topic("mine") is None
    assert again.topic("T").write_queues == 4


def test_topics_that_cannot_be_served_are_not_taken_over(tmp_path: Path) -> None:
    topics = Topics(BrokerConfig(broker_name="b"), tmp_path / "topics.json", FakeClock(), lambda: None)
    batches = TopicConfig("T", attributes={"queue.type": "BatchCQ"})
    with pytest.raises(StoreError, match="the master's topics: topic T"):
        topics.adopt(TopicConfigWrapper(MASTERS, {"T": batches}))
    assert topics.find_topic("T") is None


async def test_groups_become_those_of_the_master_and_what_apache_keeps_with_them_stays(tmp_path: Path) -> None:
    path = tmp_path / "subscriptionGroup.json"
    groups = Groups(BrokerConfig(), path, FakeClock())
    groups.put(GroupConfig("mine"))
    groups.adopt(GroupConfigWrapper(MASTERS, {"g": GroupConfig("g", retry_max_times=3)}, {"g": {"T": 1}}))
    assert "mine" not in groups
    assert groups.group("g").retry_max_times == 3
    assert await saved_again(groups)
    assert b'"forbiddenTable":{\n\t\t"g":{\n\t\t\t"T":1' in path.read_bytes()


async def test_offsets_of_the_master_win_and_those_it_does_not_have_stay(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    offsets = ConsumerOffsets(path, FakeClock())
    offsets.commit("g", "T", 0, 10)
    offsets.commit("g", "T", 1, 11)
    offsets.commit("only-here", "T", 0, 5)
    table = ConsumerOffsetsBody(MASTERS, {"T@g": {0: 7}, "T@h": {0: 1, 1: 2}})
    list(offsets.adopting(table))
    assert offsets.of_group("g") == {"T": {0: 7, 1: 11}}
    assert offsets.of_group("h") == {"T": {0: 1, 1: 2}}
    assert offsets.groups_of("T") == ["g", "only-here", "h"]
    assert len(offsets) == 5
    assert await saved_again(offsets)
    list(offsets.adopting(table))
    assert not await saved_again(offsets), "nothing changed"
    assert ConsumerOffsets(path, FakeClock()).of_group("g") == {"T": {0: 7, 1: 11}}


async def test_delay_offsets_of_the_master_are_what_a_restart_goes_on_from(tmp_path: Path) -> None:
    path = tmp_path / "delayOffset.json"
    offsets = DelayOffsets(path, FakeClock())
    offsets.move(3, 90)  # of a time as master: not saved, and of no use any more
    offsets.adopt(DelayOffsetsBody(MASTERS, {3: 17, 5: 2}))
    assert (offsets.next(3), offsets.settled(3)) == (17, 17)
    offsets.settle(100, 100)
    assert await saved_again(offsets)
    again = DelayOffsets(path, FakeClock())
    assert (again.next(3), again.next(5)) == (17, 2)


async def test_request_modes_and_the_figures_of_timers_become_those_of_the_master(tmp_path: Path) -> None:
    modes = RequestModes(BrokerConfig(), tmp_path / "messageRequestMode.json", FakeClock())
    modes.put(RequestModeBody("old", "g", RequestMode.POP, 1))
    modes.adopt(RequestModesBody({"T": {"g": RequestModeBody("T", "g", RequestMode.POP, 2)}}))
    assert modes.find("T", "g").mode is RequestMode.POP
    assert modes.find("old", "g").mode is RequestMode.PULL
    assert len(modes) == 1
    metrics = TimerMetrics(tmp_path / "timermetrics", FakeClock())
    metrics.add("old", 4)
    metrics.adopt(TimerMetricsBody(MASTERS, {"T": (3, 1)}))
    assert (metrics.pending("T"), metrics.all_pending, metrics.data_version) == (3, 3, MASTERS)

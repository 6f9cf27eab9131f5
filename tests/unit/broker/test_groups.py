"""Consumer groups: built in, made on demand, and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome.broker.groups import BUILT_IN_GROUPS, Groups
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import GroupNotFound, InvalidParameter
from cosmodrome.model import GroupConfig
from cosmodrome.testing import FakeClock

Open = Callable[..., Groups]


@pytest.fixture
def open_groups(tmp_path: Path) -> Open:
    def opened(*, auto_create: bool = True) -> Groups:
        config = BrokerConfig(broker_name="broker-a", auto_create_subscription_group=auto_create)
        return Groups(config, tmp_path / "subscriptionGroup.json", FakeClock())

    return opened


def test_a_new_broker_has_apaches_own_groups(open_groups: Open) -> None:
    assert [group.name for group in open_groups()] == list(BUILT_IN_GROUPS)
    assert "TOOLS_CONSUMER" in BUILT_IN_GROUPS
    assert "CID_RMQ_SYS_TRANS" in BUILT_IN_GROUPS


def test_asking_for_a_group_makes_it(open_groups: Open) -> None:
    groups = open_groups()
    made = groups.group("g")
    assert made == GroupConfig("g")
    assert groups.find_group("g") is made
    assert groups.group("g") is made


def test_without_auto_creation_only_system_groups_are_made(open_groups: Open) -> None:
    groups = open_groups(auto_create=False)
    assert groups.find_group("g") is None
    with pytest.raises(GroupNotFound, match="g"):
        groups.group("g")
    assert groups.group("CID_RMQ_SYS_NEW").name == "CID_RMQ_SYS_NEW"
    groups.put(GroupConfig("g"))
    assert groups.group("g").name == "g"


@pytest.mark.parametrize("name", ["", "a b", "../x", "a@b", "x" * 256])
def test_an_illegal_name_is_refused(open_groups: Open, name: str) -> None:
    groups = open_groups()
    with pytest.raises(InvalidParameter):
        groups.group(name)
    with pytest.raises(InvalidParameter):
        groups.put(GroupConfig(name))
    assert len(list(groups)) == len(BUILT_IN_GROUPS)


def test_a_group_can_be_changed_and_deleted(open_groups: Open) -> None:
    groups = open_groups(auto_create=False)
    groups.put(GroupConfig("g"))
    version = groups.data_version
    groups.put(GroupConfig("g"))
    assert groups.data_version == version, "nothing changed"
    groups.put(GroupConfig("g", retry_max_times=3))
    assert groups.group("g").retry_max_times == 3
    groups.delete("g")
    assert groups.data_version.counter == version.counter + 2
    groups.delete("g")
    assert groups.data_version.counter == version.counter + 2, "it was deleted already"


async def test_a_restart_finds_the_same_groups(open_groups: Open) -> None:
    groups = open_groups()
    groups.put(GroupConfig("g", consume_enable=False, retry_queues=2, retry_max_times=3, attributes={"a": "b"}))
    groups.delete("TOOLS_CONSUMER")
    await groups.saved()
    again = open_groups()
    assert again.group("g") == groups.group("g")
    assert {group.name for group in again} == {"g", *BUILT_IN_GROUPS}, "what is built in comes back"

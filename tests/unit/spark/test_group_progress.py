"""Telling a group's brokers how far a stream is, though some of them do not hear it."""

from __future__ import annotations

import logging

import pytest

from cosmodrome.codes import RequestCode
from cosmodrome.model import MessageQueue
from cosmodrome.spark import link
from cosmodrome.spark.group import GroupProgress
from cosmodrome.spark.link import Cluster
from cosmodrome.spark.options import LinkOptions
from tests.unit.spark.made_up_cluster import NAME_SERVER, MadeUpCluster, Node
from tests.unit.spark.own_time import set_time

HERE, THERE = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 0)
DELETED = MessageQueue("bygone", "broker-a", 0)
TOLD = RequestCode.UPDATE_CONSUMER_OFFSET


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUpCluster:
    made = MadeUpCluster()
    monkeypatch.setattr(link, "Peer", made.peer)
    return made


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as the test sets it."""
    at = [1_000.0]
    set_time(monkeypatch, "group", monotonic=lambda: at[0])
    return at


@pytest.fixture
def progress() -> GroupProgress:
    return GroupProgress(Cluster(LinkOptions((NAME_SERVER,))), "readers")


def test_a_broker_that_is_gone_keeps_no_other_from_being_told(
    made_up: MadeUpCluster, progress: GroupProgress, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            progress.tell({THERE: 7, HERE: 100})
    assert made_up.count(TOLD, "a:0") == 2, "one to see whether the group is known"
    assert caplog.text.count("the progress of group readers is not told to broker broker-b") == 1
    routes = made_up.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    assert routes <= 4
    progress.tell({THERE: 7, HERE: 101})
    assert made_up.count(TOLD, "a:0") == 3
    made_up.brokers["broker-b"] = {0: "b:0"}
    made_up.nodes["b:0"] = Node()
    progress.tell({THERE: 8, HERE: 101})
    assert made_up.count(TOLD, "b:0") == 0, "it is left alone for a while"
    now[0] += 5.0
    progress.tell({THERE: 8, HERE: 101})
    assert made_up.count(TOLD, "b:0") == 2
    assert made_up.count(TOLD, "a:0") == 3


def test_a_broker_that_cannot_be_reached_is_spoken_of_anew_when_it_has_been_back(
    made_up: MadeUpCluster, progress: GroupProgress, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    for offset in range(8):
        made_up.down = {"a:0"} if offset % 4 else set()
        progress.tell({HERE: offset})
        now[0] += 5.0
    assert caplog.text.count("a:0: refused") == 2


def test_a_topic_that_its_broker_refuses_keeps_no_other_from_being_told(
    made_up: MadeUpCluster, progress: GroupProgress, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    progress.tell({HERE: 1})
    for offset in range(10):
        progress.tell({DELETED: 3, HERE: 10 + offset})
    assert made_up.count(TOLD) == 2 + 10 + 1
    assert caplog.text.count("TOPIC_NOT_EXIST") == 1
    now[0] += 5.0
    progress.tell({DELETED: 3, HERE: 19})
    assert made_up.count(TOLD) == 2 + 10 + 2
    assert caplog.text.count("TOPIC_NOT_EXIST") == 1

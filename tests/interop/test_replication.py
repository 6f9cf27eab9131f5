"""Apache's slaves follow our master, and ours follow theirs: the same bytes, the same topics, the same offsets."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome import Message
from cosmodrome.blocking import Producer
from cosmodrome.model import SendStatus
from interop.apache import ApacheBroker
from interop.lab import Lab
from interop.ours import CosmodromeBroker, CosmodromeNameServer
from interop.setup import SERVER_VERSIONS

COUNT = 300
TOPIC = "replicated"
TIMEOUT_S = 90
LOG_FILE = "0" * 20
SIZES = {"mappedFileSizeCommitLog": 4_194_304}
SLAVE = {**SIZES, "brokerRole": "SLAVE", "brokerId": 1}


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def filled(log: Path) -> bytes:
    return log.read_bytes().rstrip(b"\0") if log.exists() else b""


def same_logs(master: Path, slave: Path) -> bool:
    return filled(master / "commitlog" / LOG_FILE) == filled(slave / "commitlog" / LOG_FILE) != b""


def send(namesrv: str, count: int) -> set[SendStatus]:
    with Producer("p", namesrv) as producer:
        statuses = {
            producer.send(Message(TOPIC, b"%d" % number * 9, keys=f"k{number}")).status for number in range(count)
        }
        producer.send(Message(TOPIC, b"later", delay_level=1))
    return statuses


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_our_slave_follows_apaches_master(lab: Lab, version: str) -> None:
    first, second = lab.fresh_home("master"), lab.fresh_home("slave")
    with (
        CosmodromeNameServer(lab.fresh_home("namesrv")) as namesrv,
        ApacheBroker(version, namesrv.address, first, name="pair", extra={**SIZES, "brokerRole": "SYNC_MASTER"}),
    ):
        send(namesrv.address, COUNT)
        with CosmodromeBroker(namesrv.address, second, "pair", SLAVE):
            until(lambda: same_logs(first / "store", second / "store"), "the logs are not the same")
            topics = second / "store" / "config" / "topics.json"
            until(lambda: topics.exists() and TOPIC in topics.read_text(), "the slave has no topics")


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_apaches_slave_follows_our_master_and_is_waited_for(lab: Lab, version: str) -> None:
    first, second = lab.fresh_home("master"), lab.fresh_home("slave")
    with (
        CosmodromeNameServer(lab.fresh_home("namesrv")) as namesrv,
        CosmodromeBroker(namesrv.address, first, "pair", {**SIZES, "brokerRole": "SYNC_MASTER"}),
    ):
        assert send(namesrv.address, COUNT) == {SendStatus.SLAVE_NOT_AVAILABLE}
        with ApacheBroker(version, namesrv.address, second, name="pair", extra=SLAVE):
            until(lambda: same_logs(first / "store", second / "store"), "the logs are not the same")
            until(lambda: send(namesrv.address, 5) == {SendStatus.SEND_OK}, "the slave does not report")
            until(lambda: same_logs(first / "store", second / "store"), "the logs are not the same")


# Apache 5 takes over its master's tables once a minute only.
ASK_SELDOM = [pytest.param(version, marks=[pytest.mark.full] * version.startswith("5.")) for version in SERVER_VERSIONS]


@pytest.mark.parametrize("version", ASK_SELDOM)
def test_apaches_slave_takes_over_our_masters_tables(lab: Lab, version: str) -> None:
    second = lab.fresh_home("slave")
    with (
        CosmodromeNameServer(lab.fresh_home("namesrv")) as namesrv,
        CosmodromeBroker(namesrv.address, lab.fresh_home("master"), "pair", SIZES),
    ):
        send(namesrv.address, 1)
        with ApacheBroker(version, namesrv.address, second, name="pair", extra=SLAVE):
            topics = second / "store" / "config" / "topics.json"
            until(lambda: topics.exists() and TOPIC in topics.read_text(), "the slave has no topics")

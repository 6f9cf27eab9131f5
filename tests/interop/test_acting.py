"""A slave acts as its master while that is away, and the master comes back: with Apache's 5.x in each of the parts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome import Message
from cosmodrome.blocking import Producer, PushConsumer
from cosmodrome.errors import CosmodromeError
from interop.apache import ApacheBroker, ApacheNameServer
from interop.child import Child
from interop.lab import Lab
from interop.ours import CosmodromeBroker, CosmodromeNameServer
from interop.setup import SERVER_VERSIONS

VERSION = SERVER_VERSIONS[-1]
TOPIC, COUNT, TIMEOUT_S = "acted-for", 40, 90
NAMES = {"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true", "scanNotActiveBrokerInterval": 1_000}
KEYS = {
    "mappedFileSizeCommitLog": 4_194_304,
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "messageDelayLevel": "6s",
    "defaultTopicQueueNums": 2,
}
APACHES = {**KEYS, "inSyncReplicas": 1, "brokerIP2": "127.0.0.1"}


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("namesrv", "master", "slave", "other"),
    [
        pytest.param("apache", "ours", "ours", "apache", id="our pair among Apache's"),
        pytest.param("ours", "apache", "ours", "ours", id="our slave of Apache's master"),
        pytest.param("ours", "ours", "apache", "ours", id="Apache's slave of our master"),
    ],
)
def test_delayed_messages_of_a_dead_master_come(lab: Lab, namesrv: str, master: str, slave: str, other: str) -> None:
    homes = {part: lab.fresh_home(part) for part in ("namesrv", "master", "slave", "other")}

    def broker(part: str, kind: str, name: str, extra: dict[str, object]) -> Child:
        if kind == "ours":
            return CosmodromeBroker(names.address, homes[part], name, {**KEYS, **extra})
        return ApacheBroker(VERSION, names.address, homes[part], name=name, extra={**APACHES, **extra})

    is_apache = namesrv == "apache"
    with (
        ApacheNameServer(VERSION, homes["namesrv"], extra=NAMES)
        if is_apache
        else CosmodromeNameServer(homes["namesrv"], NAMES) as names,
        broker("other", other, "other", {}),
        broker("slave", slave, "pair", {"brokerRole": "SLAVE", "brokerId": 1}),
    ):
        seen: Counter[bytes] = Counter()
        first = broker("master", master, "pair", {"totalReplicas": 2} if master == "apache" else {})
        try:
            until(lambda: has_topic_on_both(names.address), "not both have the topic")
            with Producer("p", names.address) as producer:
                brokers = Counter(
                    producer.send(Message(TOPIC, b"%d" % number, delay_level=1)).queue.broker_name
                    for number in range(COUNT)
                )
            assert brokers["pair"] > 0
            sent = {b"%d" % number for number in range(COUNT)}
            until(lambda: filled(homes["master"]) == filled(homes["slave"]) != b"", "the slave is behind")
            first.kill()
            consumer = PushConsumer("g", names.address)
            consumer.subscribe(TOPIC, "*", lambda message: seen.update([message.body]))
            with consumer:
                until(lambda: seen.keys() >= sent, "not all came while the master was away")
                first = broker("master", master, "pair", {"totalReplicas": 2} if master == "apache" else {})
                with Producer("p", names.address) as producer:
                    until(lambda: sends(producer, Message(TOPIC, b"back")) == {"pair", "other"}, "it takes no messages")
        finally:
            first.kill()
    assert seen.keys() - {b"first", b"back"} == sent


def filled(home: Path) -> bytes:
    log = home / "store" / "commitlog" / ("0" * 20)
    return log.read_bytes().rstrip(b"\0") if log.exists() else b""


def has_topic_on_both(namesrv: str) -> bool:
    """Create the topic on all masters that there are by now; a slave of that name was there before."""
    with Producer("p", namesrv) as producer:
        try:
            producer.create_topic(TOPIC, 2, template="DefaultCluster")
        except CosmodromeError:
            return False
        return sends(producer, Message(TOPIC, b"first")) == {"pair", "other"}


def sends(producer: Producer, message: Message) -> set[str]:
    """Send some; return the brokers that took them."""
    try:
        return {producer.send(message).queue.broker_name for _ in range(8)}
    except CosmodromeError:
        return set()

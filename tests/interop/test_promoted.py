"""Apache's clients go on while a slave is made the master, and back: nothing acknowledged is missing."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from interop.apache import wait_settled
from interop.java import JavaProgram
from interop.ours import CosmodromeNameServer
from interop.replicas import BROKER_NAME, OURS, Replica, send_mixed
from interop.setup import CLIENT_VERSIONS

TOPIC, QUEUES, THREADS, POLL_MS = "promoted", 4, 4, 200
EACH = 40  # messages before, between and after the promotions
PROMOTE_TIMEOUT_S = 60

One = tuple[str, int]  # a sender, and the number of its message


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    with CosmodromeNameServer(tmp_path / "namesrv") as server:
        yield server.address


@pytest.fixture
def pair(tmp_path: Path, namesrv: str) -> Iterator[tuple[Replica, Replica]]:
    with ExitStack() as stack:
        extra = {"inSyncReplicas": 2}
        master = Replica(OURS, "SYNC_MASTER", 0, tmp_path / "first", namesrv, extra)
        slave = Replica(OURS, "SLAVE", 1, tmp_path / "second", namesrv, extra)
        for replica in (master, slave):
            stack.callback(replica.abandon)
            replica.start()
        yield master, slave


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_java_clients_go_on_through_promotions(version: str, pair: tuple[Replica, Replica], namesrv: str) -> None:
    first, second = pair
    wait_settled(lambda: bool(send_mixed(namesrv, TOPIC, 10)), "nothing is stored")
    wait_settled(lambda: first.log_end == second.log_end, "the slave does not follow")
    words: dict[str, object] = {"namesrv": namesrv, "topic": TOPIC}
    reading = {**words, "group": "java-readers", "from": "first", "orderly": True}
    writing = {**words, "group": "java-writers", "brokerName": BROKER_NAME, "queues": QUEUES}
    with JavaProgram(version, "Consume", reading) as consumer:
        consumer.wait_ready()
        with JavaProgram(version, "Outlast", {**writing, "threads": THREADS, "pollMs": POLL_MS}) as producer:
            producer.wait_ready()
            for heir in (second, first):
                producer.wait_messages(len(producer.messages) + EACH)
                promote(namesrv, heir)
            producer.wait_messages(len(producer.messages) + EACH)
            sent = producer.end()
        acknowledged = [one_of(line) for line in sent if line["status"] == "SEND_OK"]
        assert len(acknowledged) > 2 * EACH
        consumer.wait_until(
            lambda: set(acknowledged) <= set(seen(consumer)) or None,
            PROMOTE_TIMEOUT_S,
            "every acknowledged message",
        )
        seen_first = list(dict.fromkeys(seen(consumer)))
    for sender in {sender for sender, _ in acknowledged}:
        numbers = [number for name, number in seen_first if name == sender]
        assert numbers == sorted(numbers), f"{sender} sent in another order"


def promote(namesrv: str, heir: Replica) -> None:
    """Type what an operator types."""
    command = str(Path(sys.executable).with_name("cosmodrome"))
    words = [command, "admin", "promote", BROKER_NAME, "--to", heir.address, "--namesrv", namesrv]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PROMOTE_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{heir.address} is the master of {BROKER_NAME}: SYNC_MASTER" in done.stdout


def one_of(line: dict[str, Any]) -> One:
    return line["sender"], line["number"]


def seen(consumer: JavaProgram) -> list[One]:
    """What the producer's threads sent, in the order in which it came."""
    found = []
    for line in list(consumer.messages):
        sender, _, rest = base64.b64decode(line["body"]).decode().partition(":")
        if sender.startswith("java"):
            found.append((sender, int(rest.partition(":")[0])))
    return found

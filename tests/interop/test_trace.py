"""Traces that Apache's Java clients, both generations, write: read by ours."""

import asyncio
import dataclasses
import time
from collections.abc import Callable

import pytest

from cosmodrome import Message, TransactionProducer, TransactionState
from cosmodrome.client.tracing import find_traces
from cosmodrome.errors import RouteNotFound
from cosmodrome.net.loop import run
from cosmodrome.wire.trace import EndTransaction, Pub, SubAfter, SubBefore, TraceRecord
from interop.java import RUN_TIMEOUT_S, JavaProgram
from interop.lab import Cluster, Lab
from interop.messages import Load, sent_by_java
from interop.setup import CLIENT_VERSIONS

PATIENCE_SECONDS = 60


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_the_life_of_a_java_message(lab: Lab, ours: Cluster, fresh: Callable[[str], str], version: str) -> None:
    topic, group = fresh("topic"), fresh("group")
    load = Load(topic, 3)
    words = {"namesrv": ours.namesrv, **load.java_arguments(), "group": f"{group}-producer", "trace": True}
    # Both stay until everything is found: Java's clients trace when they like, and lose what is left at their end.
    with JavaProgram(version, "Produce", words) as producer:
        producer.wait_line('"done"', RUN_TIMEOUT_S)
        sent = sent_by_java(producer.messages)
        with lab.start(version, "Consume", ours, {"topic": topic, "group": group, "trace": True}):
            lives = [traces(ours.namesrv, one.msg_id, 3) for one in sent]
    for one, found in zip(sent, lives, strict=True):
        (pub,) = [record for record in found if isinstance(record, Pub)]
        (before,) = [record for record in found if isinstance(record, SubBefore)]
        (after,) = [record for record in found if isinstance(record, SubAfter)]
        assert (pub.topic, pub.tags, pub.keys) == (topic, load.tag(one.index), load.key(one.index))
        assert (pub.offset_msg_id, pub.store_host, pub.success) == (one.offset_msg_id, ours.broker_address, True)
        assert (pub.group, before.group, before.retry_times) == (f"{group}-producer", group, 0)
        assert (after.request_id, after.success, after.outcome) == (before.request_id, True, 0)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_a_transaction_leaves_the_same_trace_whoever_decides_it(
    lab: Lab, ours: Cluster, fresh: Callable[[str], str], version: str
) -> None:
    topic, group = fresh("topic"), fresh("group")
    lab.query(ours, version).call("createTopic", addr=ours.broker_address, topic=topic, queues=4)
    words = {"topic": topic, "group": group, "trace": True, "commit": 1, "rollback": 1, "checked": 1}
    with lab.start(version, "Transact", ours, words) as producer:
        states = {line["msgId"]: line["state"] for line in producer.messages}
        javas = [one for msg_id in states for one in ends(ours.namesrv, msg_id)]
    assert [end.state for end in javas] == ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]
    mine = run(our_ends(ours.namesrv, group, topic))
    assert [comparable(end) for end in mine] == [comparable(end) for end in javas]


async def our_ends(namesrv: str, group: str, topic: str) -> list[EndTransaction]:
    ids = []
    async with TransactionProducer(group, namesrv, check=lambda _: TransactionState.UNKNOWN, trace=True) as producer:
        for index, state in enumerate((TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)):
            message = Message(topic, b"body", tags="red", keys=f"key-{index}")
            ids.append((await producer.send_in_transaction(message, saying(state))).sent.msg_id)
    return [end for msg_id in ids for end in await asyncio.to_thread(ends, namesrv, msg_id)]


def saying(state: TransactionState) -> Callable[[Message], TransactionState]:
    return lambda _: state


def ends(namesrv: str, msg_id: str) -> list[EndTransaction]:
    """Those that the producer told by itself; the broker may have asked since."""
    found = traces(namesrv, msg_id, 2)
    return [record for record in found if isinstance(record, EndTransaction) and not record.from_check]


def comparable(end: EndTransaction) -> EndTransaction:
    assert end.transaction_id == end.msg_id
    return dataclasses.replace(end, timestamp=0, msg_id="", transaction_id="")


def traces(namesrv: str, msg_id: str, count: int) -> list[TraceRecord]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    found: list[TraceRecord] = []
    while len(found) < count and time.monotonic() < deadline:
        try:
            found = run(find_traces(msg_id, namesrv=namesrv))
        except RouteNotFound:
            found = []
        time.sleep(0.1)
    return found

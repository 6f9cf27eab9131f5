"""A hundred thousand messages through one `cosmodrome up`: every group gets each of them, once."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome import PushConsumer
from cosmodrome.model import ReceivedMessage
from interop.java import Line
from interop.lab import Cluster, Lab
from interop.messages import Load, index_of
from interop.ours import CosmodromeUp
from interop.setup import CLIENT_VERSIONS

COUNT = 100_000
BODY_BYTES = 1_024
QUEUES = 8
SENDER_THREADS = 16
DELIVERY_TIMEOUT_S = 300

pytestmark = pytest.mark.full

Fresh = Callable[[str], str]
Arrival = tuple[int, int, int, int]  # index, body size, queue id, queue offset


async def test_a_hundred_thousand_messages_reach_every_group_once(lab: Lab, fresh: Fresh, tmp_path: Path) -> None:
    with CosmodromeUp(tmp_path / "up") as up:
        cluster = Cluster("volume", up.namesrv, up.broker_name, up.address)
        load = Load(fresh("topic"), COUNT, BODY_BYTES, tags=("a",), keys="", properties={}, flag=0)
        lab.query(cluster, CLIENT_VERSIONS[0]).call("createTopic", addr=up.address, topic=load.topic, queues=QUEUES)
        mine: list[Arrival] = []
        all_here = asyncio.Event()

        def handler(message: ReceivedMessage) -> None:
            place = message.queue.queue_id, message.queue_offset
            mine.append((index_of(message.body), len(message.body), *place))
            if len(mine) >= COUNT:
                all_here.set()

        consumer = PushConsumer(group=fresh("group"), namesrv=up.namesrv)
        consumer.subscribe(load.topic, "*", handler)
        async with consumer:
            sent, theirs = await asyncio.to_thread(_java_side, lab, cluster, load, fresh)
            await asyncio.wait_for(all_here.wait(), DELIVERY_TIMEOUT_S)

    told = {(line["index"], BODY_BYTES, line["queueId"], line["queueOffset"]) for line in sent}
    assert {index for index, *_ in told} == set(load.indexes)
    for received in (mine, [_arrival(line) for line in theirs]):
        assert Counter(received) == dict.fromkeys(told, 1), "lost, doubled, changed or misplaced messages"


def _java_side(lab: Lab, cluster: Cluster, load: Load, fresh: Fresh) -> tuple[list[Line], list[Line]]:
    """Two consumers of one group share the queues; then the producer sends. What was sent, what both received."""
    words: dict[str, object] = {"topic": load.topic, "group": fresh("group"), "compact": True}
    with (
        lab.start(CLIENT_VERSIONS[0], "Consume", cluster, words) as one,
        lab.start(CLIENT_VERSIONS[1], "Consume", cluster, words) as other,
    ):
        shares = {consumer: consumer.wait_assigned(QUEUES // 2) for consumer in (one, other)}
        assert len({queue for share in shares.values() for queue in share}) == QUEUES
        numbers = {**load.java_arguments(), "group": fresh("group"), "threads": SENDER_THREADS}
        produced = lab.run(CLIENT_VERSIONS[0], "Produce", cluster, numbers, "ROCKETMQ", timeout_s=DELIVERY_TIMEOUT_S)
        assert produced.state == {"done": COUNT, "failed": 0}
        for consumer, share in shares.items():
            consumer.wait_messages(_count_in(produced.messages, share), DELIVERY_TIMEOUT_S)
        return produced.messages, one.end() + other.end()


def _arrival(line: Line) -> Arrival:
    return line["index"], line["size"], line["queueId"], line["queueOffset"]


def _count_in(lines: list[Line], queues: list[str]) -> int:
    """How many of the sent messages lie in these queues, which are given as "broker:queue"."""
    return sum(f"{line['brokerName']}:{line['queueId']}" in queues for line in lines)

"""Producers against a real broker: many sends at once, cancelled at any moment, and batches of any size."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from cosmodrome import ClientConfig, Message, Producer, ProducerOptions, SendResult, select_by_hash
from cosmodrome.client.routes import NEW_TOPIC_QUEUES
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import UnknownTopic
from tests.system.cluster import Cluster, running_broker, running_cluster, running_name_server
from tests.system.wired import PATIENCE_SECONDS, until
from tests.unit.store.kit import bodies

SEEDS = range(4)
TIMEOUT_MS = 2_000 * PATIENCE_SECONDS  # calls that are left behind do not vanish by it while they are waited for


def stored(cluster: Cluster, topic: str) -> list[bytes]:
    queues = [(broker, queue_id) for broker in cluster.brokers for queue_id in range(NEW_TOPIC_QUEUES)]
    return [body for broker, queue_id in queues for body in bodies(broker.store, topic, queue_id)]


def calls_under_way(producer: Producer) -> int:
    links = producer._instance.caller._links.values()
    return sum(len(link.connection._calls) for link in links if link.connection is not None)


@pytest.mark.parametrize("seed", SEEDS)
async def test_sends_cancelled_at_any_moment_leave_nothing_behind(tmp_path: Path, seed: int) -> None:
    dice = Random(seed)
    options = ProducerOptions(max_async_sends=40)
    async with running_cluster(tmp_path, brokers=2) as cluster:
        async with Producer("g", cluster.namesrv, options=options) as producer:
            sends: dict[bytes, asyncio.Future[SendResult]] = {}
            for number in range(400):
                body = b"%d" % number
                message = Message("T", body, sharding_key=dice.choice(["", "k"]))
                if dice.random() < 0.5:
                    await producer.room()
                    sends[body] = producer.send_async(message, timeout_ms=TIMEOUT_MS)
                else:
                    sends[body] = asyncio.ensure_future(producer.send(message, timeout_ms=TIMEOUT_MS))
                if dice.random() < 0.5:
                    asyncio.get_running_loop().call_later(dice.random() / 500, sends[body].cancel)
                if dice.random() < 0.2:
                    await asyncio.sleep(dice.random() / 1_000)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.gather(*sends.values(), return_exceptions=True)
            assert all(send.cancelled() or send.exception() is None for send in sends.values())
            assert (producer._async_sends.count, producer._async_sends._bytes) == (0, 0)
            await until(lambda: calls_under_way(producer) == 0)
            await producer.send(Message("T", b"last"))
        found = stored(cluster, "T")
    answered = {body for body, send in sends.items() if not send.cancelled()}
    assert len(found) == len(set(found))
    assert answered | {b"last"} <= set(found) <= sends.keys() | {b"last"}
    assert 0 < len(answered) < 400


async def test_more_than_a_batch_holds_goes_out_in_several(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, Producer("g", cluster.namesrv) as producer:
        messages = (Message("T", b"%06d" % number + bytes(4_000)) for number in range(2_000))
        results = [result async for result in producer.send_batches(messages, timeout_ms=20_000)]
        found = stored(cluster, "T")
    assert len(results) == 2
    assert sorted(body[:6] for body in found) == [b"%06d" % number for number in range(2_000)]


async def test_a_sharding_key_keeps_the_order(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.send(Message("T", b"first"))
        used = []
        for number in range(20):
            result = await producer.send(Message("T", b"%d" % number, sharding_key="order-7"))
            used.append((result.queue, result.queue_offset))
        message = Message("T", b"x")
        expected = select_by_hash(await producer.publish_queues("T"), message, "order-7")
    assert {queue for queue, _ in used} == {expected}
    assert [offset for _, offset in used] == sorted(offset for _, offset in used)


async def test_a_namespace_keeps_two_worlds_apart(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        for namespace in ("", "staging"):
            async with Producer("g", cluster.namesrv, config=ClientConfig(namespace=namespace)) as producer:
                result = await producer.send(Message("T", namespace.encode() or b"production"))
                assert result.queue.topic == "T"
        assert stored(cluster, "T") == [b"production"]
        assert stored(cluster, "staging%T") == [b"staging"]


async def test_without_automatic_creation_the_error_says_what_to_do(tmp_path: Path) -> None:
    config = BrokerConfig(auto_create_topic_enable=False)
    async with (
        running_name_server() as name_server,
        running_broker(tmp_path, name_server.address, config),
        Producer("g", name_server.address) as producer,
    ):
        with pytest.raises(UnknownTopic, match="create it"):
            await producer.send(Message("T", b"x"))

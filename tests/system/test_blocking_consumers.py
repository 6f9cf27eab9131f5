"""Consuming in threads, without await, from a real broker."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome.blocking import (
    ConsumeFrom,
    CosmodromeError,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    ReceivedMessage,
    RequestProducer,
    TopicReader,
    TransactionProducer,
    TransactionState,
)
from tests.bounded import in_thread
from tests.system.cluster import Cluster, running_cluster

COUNT = 40
PATIENCE_SECONDS = 60


async def on_a_cluster(tmp_path: Path, program: Callable[[Cluster], None]) -> None:
    """Run a program without await, with `COUNT` messages in the topic `orders`."""

    def filled() -> None:
        with Producer("app", cluster.namesrv) as producer:
            for number in range(COUNT):
                producer.send(Message("orders", b"%d" % number))
        program(cluster)

    async with running_cluster(tmp_path) as cluster:
        await in_thread(filled)


def lite(cluster: Cluster, stop_timeout_ms: int = 60_000) -> LitePullConsumer:
    """With a stop that would be noticed if it waited in vain."""
    consumer = LitePullConsumer(
        "billing", cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, stop_timeout_ms=stop_timeout_ms
    )
    consumer.subscribe("orders")
    return consumer


def committed(cluster: Cluster) -> int:
    queues = range(cluster.broker.topics.topic("orders").read_queues)
    return sum(max(cluster.broker.offsets.find_offset("billing", "orders", queue) or 0, 0) for queue in queues)


def expected() -> set[bytes]:
    return {b"%d" % number for number in range(COUNT)}


async def test_going_on_with_the_loop_acknowledges_and_breaking_out_of_it_does_not(tmp_path: Path) -> None:
    def program(cluster: Cluster) -> None:
        seen: list[bytes] = []
        with lite(cluster) as consumer:
            for message in consumer:
                seen.append(message.body)
                if len(seen) == 10:
                    break
        assert committed(cluster) == 9
        with lite(cluster) as consumer:
            for message in consumer:
                seen.append(message.body)
                if len(seen) == COUNT + 1:
                    message.ack()
                    assert not message.open
                    break
        assert set(seen) == expected()
        assert committed(cluster) == COUNT

    await on_a_cluster(tmp_path, program)


async def test_a_loop_that_is_left_gives_its_message_to_the_next_one(tmp_path: Path) -> None:
    def program(cluster: Cluster) -> None:
        with lite(cluster) as consumer:
            stream = iter(consumer)
            left = next(stream)
            del stream
            assert next(iter(consumer)).body == left.body

    await on_a_cluster(tmp_path, program)


async def test_with_message_acknowledges_and_a_block_that_raises_has_it_come_again(tmp_path: Path) -> None:
    def program(cluster: Cluster) -> None:
        with lite(cluster) as consumer:
            stream = consumer.messages(auto_ack=False)
            with pytest.raises(KeyError), next(stream) as failed:
                raise KeyError
            for _ in range(COUNT - 1):
                with next(stream) as message:
                    assert isinstance(message, ReceivedMessage)
                    assert message.queue.topic == "orders"
        assert committed(cluster) == COUNT
        assert cluster.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 1, f"{failed.msg_id} is to come again"

    await on_a_cluster(tmp_path, program)


async def test_several_threads_share_the_messages(tmp_path: Path) -> None:
    def program(cluster: Cluster) -> None:
        seen: list[bytes] = []

        def work() -> None:
            for message in consumer:
                seen.append(message.body)
                if len(seen) >= COUNT:
                    done.set()

        done = threading.Event()
        with lite(cluster) as consumer:
            threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
            for thread in threads:
                thread.start()
            assert done.wait(PATIENCE_SECONDS)
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "the loops end with the consumer"
        assert sorted(seen) == sorted(expected())
        assert committed(cluster) == COUNT

    await on_a_cluster(tmp_path, program)


async def test_a_loop_may_stop_its_own_consumer(tmp_path: Path) -> None:
    def program(cluster: Cluster) -> None:
        consumer = lite(cluster)
        consumer.start()
        began = time.monotonic()
        for message in consumer:
            with message:
                consumer.stop()
        assert time.monotonic() - began < PATIENCE_SECONDS, "it waited for the loop that waited for it"

    await on_a_cluster(tmp_path, program)


async def test_polling_batches_and_seeking(tmp_path: Path) -> None:
    def program(cluster: Cluster) -> None:
        sought: list[MessageQueue] = []
        consumer = lite(cluster)

        @consumer.on_assigned
        def begin_anew(queues: list[MessageQueue]) -> None:
            for queue in queues:
                consumer.seek_to_begin(queue)  # a blocking call: it is not made on the loop
                sought.append(queue)

        with consumer:
            assert sorted(sought) == consumer.assigned_queues
            bodies: set[bytes] = set()
            while len(bodies) < COUNT:
                bodies |= {message.body for message in consumer.poll()}
            consumer.commit()
            assert committed(cluster) == COUNT
            for queue in sought:
                consumer.seek(queue, consumer.min_offset(queue))
            again: set[bytes] = set()
            for batch in consumer.batches(7):
                assert 1 <= len(batch) <= 7
                again |= {message.body for message in batch}
                if len(again) == COUNT:
                    break
        assert bodies == again == expected()

    await on_a_cluster(tmp_path, program)


async def test_pulling_by_hand(tmp_path: Path) -> None:
    def program(cluster: Cluster) -> None:
        told = threading.Event()

        def balanced(topic: str, every: list[MessageQueue], ours: list[MessageQueue]) -> None:
            assert consumer.message_queues_in_balance(topic) == every == ours
            told.set()

        bodies: set[bytes] = set()
        with PullConsumer("billing", cluster.namesrv) as consumer:
            consumer.register_topics(["orders"], balanced)
            for queue in consumer.fetch_subscribe_queues("orders"):
                result = consumer.pull(queue, offset=consumer.fetch_consume_offset(queue) or 0)
                assert result.status is PullStatus.FOUND
                bodies |= {message.body for message in result.messages}
                consumer.update_consume_offset(queue, result.next_begin_offset)
            assert told.wait(PATIENCE_SECONDS)
        assert bodies == expected()
        assert committed(cluster) == COUNT

    await on_a_cluster(tmp_path, program)


async def test_reading_pushing_asking_and_transactions(tmp_path: Path) -> None:
    def program(cluster: Cluster) -> None:
        with TopicReader("orders", namesrv=cluster.namesrv, from_earliest=True) as reader:
            assert {message.body for message in itertools.islice(reader, COUNT)} == expected()
        outcome = {b"kept": TransactionState.COMMIT, b"dropped": TransactionState.ROLLBACK}
        consumer, handled = (
            PushConsumer("answers", cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET),
            set[bytes](),
        )
        asker = RequestProducer("asker", cluster.namesrv)

        @consumer.handles("asked")
        def answer(message: ReceivedMessage) -> None:
            handled.add(message.body)
            if message.body == b"question":
                asker.reply(message, b"answer")

        def check(message: ReceivedMessage) -> TransactionState:
            return TransactionState.UNKNOWN

        with asker, TransactionProducer("payments", cluster.namesrv, check=check) as producer, consumer:
            for body in outcome:
                producer.send_in_transaction(Message("asked", body), lambda message: outcome[message.body])
            assert asker.request(Message("asked", b"question"), timeout_ms=30_000).body == b"answer"
            futures = [asker.request_async(Message("asked", b"question"), timeout_ms=10_000) for _ in range(5)]
            assert {future.result(PATIENCE_SECONDS).body for future in futures} == {b"answer"}
        assert handled == {b"kept", b"question"}

    await on_a_cluster(tmp_path, program)


async def test_sending_without_waiting(tmp_path: Path) -> None:
    def program(cluster: Cluster) -> None:
        seen = threading.Event()
        with Producer("app", cluster.namesrv) as producer:
            futures = [producer.send_async(Message("many", b"%d" % number)) for number in range(500)]
            futures[-1].add_done_callback(lambda future: seen.set())
            assert len({future.result(PATIENCE_SECONDS).msg_id for future in futures}) == 500
            assert seen.wait(PATIENCE_SECONDS)
            with pytest.raises(CosmodromeError, match="body"):
                producer.send_async(Message("many", b"")).result(PATIENCE_SECONDS)
            drawn_in: set[str] = set()

            def messages() -> list[Message]:
                drawn_in.add(threading.current_thread().name)
                return [Message("many", b"x" * 1_000) for _ in range(100)]

            results = list(producer.send_batches((one for _ in "ab" for one in messages()), max_bytes=20_000))
            assert len(results) > 5
            assert drawn_in == {threading.current_thread().name}
            cancelled = producer.send_async(Message("many", b"perhaps"))
            assert cancelled.cancel() or cancelled.done()

    await on_a_cluster(tmp_path, program)

"""The cluster that is shipped for tests: what a test's author does with it, in both faces."""

from __future__ import annotations

import asyncio
import itertools
import queue
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cosmodrome import Message, ReceivedMessage, TransactionProducer, TransactionState, blocking
from cosmodrome.client.lifecycle import MADE_BEFORE_FORK
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import ConfigError, CosmodromeError
from cosmodrome.testing import AsyncCluster, Cluster, VirtualLoop, cluster
from tests.bounded import run_to_end

T = TypeVar("T")
# Whether a cluster's files are gone when it is, and which threads are left.
UP_AND_DOWN = """
import threading
from cosmodrome.testing import cluster

with cluster() as c:
    c.create_topic("orders")
    c.advance(minutes=2)
    folder = c.brokers[0].folder
    assert folder.is_dir()
    assert len(threading.enumerate()) > 2
print(not folder.parent.exists(), [thread.name for thread in threading.enumerate()])
"""
# What a forked process may do with its parent's cluster, and what is left of that when the child has ended.
FORKED = """
import asyncio, os, sys
from cosmodrome import CosmodromeError
from cosmodrome.testing import cluster

with cluster() as c:
    c.create_topic("orders")
    if (child := os.fork()) == 0:
        awaited = lambda: asyncio.run(c.as_async.messages("orders"))
        for use in (lambda: c.messages("orders"), c.producer().start, awaited):
            try:
                use()
            except CosmodromeError as error:
                print(error, flush=True)
        sys.exit()  # leaves the block as well
    print(os.waitpid(child, 0)[1], c.messages("orders"), c.brokers[0].folder.is_dir())
"""
GIVING_UP_MS = 17_100_000  # ten seconds, thirty, one minute … two hours: what sixteen retries wait for


def virtually(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


class TestMessages:
    def test_what_is_sent_is_stored_and_consumed(self) -> None:
        got: queue.Queue[bytes] = queue.Queue()
        with cluster() as c:
            consumer = c.push_consumer("billing")
            consumer.subscribe("orders", "*", lambda message: got.put(message.body))
            with c.producer() as producer, consumer:
                for number in range(5):
                    producer.send(Message("orders", b"%d" % number))
                c.wait_until_consumed("billing", "orders")
            assert bodies(c.messages("orders")) == [b"0", b"1", b"2", b"3", b"4"]
            assert sum(c.committed("billing", "orders").values()) == 5
            assert c.lag("billing", "orders") == 0
            assert c.lag("others", "orders") == 5
        assert sorted(got.queue) == [b"0", b"1", b"2", b"3", b"4"]

    def test_compressed_bodies_are_shown_as_they_were_sent(self) -> None:
        with cluster() as c, c.producer() as producer:
            producer.send(Message("orders", b"x" * 10_000))
            assert bodies(c.messages("orders")) == [b"x" * 10_000]

    def test_topics_have_the_queues_they_are_given_on_every_broker(self) -> None:
        with cluster(brokers=2) as c, c.producer() as producer:
            c.create_topic("orders", queues=3)
            queues = producer.publish_queues("orders")
        assert sorted((one.broker_name, one.queue_id) for one in queues) == [
            (name, queue_id) for name in ("broker-a", "broker-b") for queue_id in range(3)
        ]

    def test_without_automatic_topics_only_those_made_can_be_sent_to(self) -> None:
        with cluster(auto_create_topics=False) as c, c.producer() as producer:
            c.create_topic("orders")
            producer.send(Message("orders", b"1"))
            with pytest.raises(CosmodromeError, match="ordres"):
                producer.send(Message("ordres", b"1"))

    def test_who_never_gets_there_is_told_how_far_it_came(self) -> None:
        with cluster() as c, c.producer() as producer:
            producer.send(Message("orders", b"1"))
            with pytest.raises(TimeoutError, match="group billing still has 1 messages of orders"):
                c.wait_until_consumed("billing", "orders", timeout_seconds=0.05)


class TestTime:
    def test_a_two_hour_delay_takes_two_hours(self) -> None:
        with cluster() as c, c.producer() as producer:
            producer.send(Message("orders", b"late", delay_level=18))
            c.advance(hours=1, minutes=59, seconds=30)  # the time of the world passes, too
            assert c.messages("orders") == []
            c.advance(seconds=30)
            assert bodies(c.messages("orders")) == [b"late"]

    def test_a_delivery_time_is_met(self) -> None:
        with cluster() as c, c.producer() as producer:
            producer.send(Message("orders", b"late", delay=timedelta(hours=1)))
            c.advance(minutes=59, seconds=30)
            assert c.messages("orders") == []
            c.advance(seconds=31)
            assert bodies(c.messages("orders")) == [b"late"]

    def test_sixteen_retries_and_then_a_dead_letter(self) -> None:
        tries: list[tuple[int, int]] = []

        def fail(message: ReceivedMessage) -> None:
            tries.append((message.reconsume_times, c.clock.now_ms()))
            raise ValueError("cannot be handled")

        with cluster() as c:
            consumer = c.push_consumer("billing")
            consumer.subscribe("orders", "*", fail)
            with c.producer() as producer, consumer:
                producer.send(Message("orders", b"1"))
                c.advance_until(lambda: c.dead_letters("billing"))
            assert bodies(c.dead_letters("billing")) == [b"1"]
        assert [times for times, _ in tries] == list(range(17))
        waits_ms = [later - earlier for (_, earlier), (_, later) in itertools.pairwise(tries)]
        for wait_ms, least_ms in zip(waits_ms, [10_000, 30_000, 60_000, 120_000, 180_000, 240_000], strict=False):
            assert least_ms <= wait_ms < least_ms + 20_000
        assert tries[-1][1] - tries[0][1] >= GIVING_UP_MS

    def test_a_handler_in_a_thread_is_waited_for(self) -> None:
        """It uses a blocking producer while time runs ahead."""
        with cluster() as c:
            consumer = c.push_consumer("billing")
            with c.producer() as producer:

                def forward(message: ReceivedMessage) -> None:
                    producer.send(Message("paid", message.body))

                consumer.subscribe("orders", "*", forward)
                with consumer:
                    producer.send(Message("orders", b"1", delay_level=18))
                    c.advance(hours=2)
                    c.advance(seconds=2)
                    assert bodies(c.messages("paid")) == [b"1"]

    def test_a_handler_that_takes_too_long_loses_its_message(self) -> None:
        tries: list[int] = []

        async def hang(message: ReceivedMessage) -> None:
            tries.append(message.reconsume_times)
            if len(tries) == 1:
                await asyncio.sleep(300)

        with cluster() as c:
            c.create_topic("orders")
            consumer = c.push_consumer("billing", consume_timeout_ms=120_000)
            consumer.subscribe("orders", "*", hang)
            with c.producer() as producer, consumer:
                producer.send(Message("orders", b"1"))
                c.advance(minutes=10)
        assert tries == [0, 1]

    def test_a_client_on_a_clock_of_its_own_stays_connected(self) -> None:
        got: queue.Queue[bytes] = queue.Queue()
        with cluster() as c:
            consumer = blocking.PushConsumer("billing", c.namesrv)
            consumer.subscribe("orders", "*", lambda message: got.put(message.body))
            with blocking.Producer("shop", c.namesrv) as producer, consumer:
                producer.send(Message("orders", b"1", delay_level=18))
                c.advance(hours=2)
                assert got.get(timeout=20) == b"1"

    def test_what_never_becomes_true_ends_in_time(self) -> None:
        with cluster() as c, pytest.raises(TimeoutError, match="not true after 3600 s"):
            c.advance_until(lambda: False, hours=1)


class TestTrouble:
    @pytest.mark.parametrize("end", ["restart", "kill"])
    def test_what_was_stored_is_there_after(self, end: str, tmp_path: Path) -> None:
        with cluster(data_dir=tmp_path) as c:
            with c.producer() as producer:
                producer.send(Message("orders", b"1"))
                producer.send(Message("orders", b"2", delay_level=18))
            address = c.brokers[0].address
            if end == "kill":
                c.kill_broker()
                assert not c.brokers[0].running
                c.start_broker()
            else:
                c.restart_broker()
            assert c.brokers[0].address == address
            assert bodies(c.messages("orders")) == [b"1"]
            c.advance(hours=2)
            assert bodies(c.messages("orders")) == [b"1", b"2"]
        assert (tmp_path / "broker-a" / "commitlog").is_dir()

    @pytest.mark.parametrize("down", [Cluster.stop_broker, Cluster.kill_broker])
    def test_nobody_else_gets_the_port_of_a_broker_that_is_down(self, down: Callable[[Cluster], None]) -> None:
        with cluster() as c:
            host, _, port = c.brokers[0].address.rpartition(":")
            down(c)
            with socket.socket() as other:
                with pytest.raises(OSError, match="in use"):
                    other.bind((host, int(port)))
                with pytest.raises(ConnectionRefusedError):
                    other.connect((host, int(port)))
            c.start_broker()

    def test_consumers_go_on_after_a_kill(self) -> None:
        got: queue.Queue[bytes] = queue.Queue()
        with cluster() as c:
            consumer = c.push_consumer("billing")
            consumer.subscribe("orders", "*", lambda message: got.put(message.body))
            with c.producer() as producer, consumer:
                producer.send(Message("orders", b"1"))
                assert got.get(timeout=20) == b"1"
                c.kill_broker()
                c.start_broker()
                c.advance(minutes=1)
                producer.send(Message("orders", b"2"))
                c.advance_until(lambda: not got.empty(), minutes=10)
                while (body := got.get(timeout=20)) != b"2":
                    assert body == b"1"

    def test_files_are_gone_and_threads_have_ended(self) -> None:
        # In a process of its own: clusters of other tests may be up in this one, and start threads when they like.
        ended = subprocess.run([sys.executable, "-c", UP_AND_DOWN], capture_output=True, text=True, timeout=60)
        assert (ended.stdout, ended.stderr) == ("True ['MainThread']\n", "")

    def test_a_forked_process_is_refused_and_its_parent_does_not_notice(self) -> None:
        ended = run_to_end([sys.executable, "-c", FORKED])
        refusal = f"this cluster {MADE_BEFORE_FORK}"
        assert ended.stderr == ""
        assert ended.stdout.splitlines() == [refusal] * 3 + ["0 [] True"]

    def test_a_client_left_behind_says_why_it_is_dead(self) -> None:
        made = cluster()
        producer = made.__enter__().producer()
        producer.start()
        with pytest.warns(ResourceWarning, match="never stopped"):
            made.__exit__(None, None, None)
        with pytest.raises(CosmodromeError, match="the cluster this client was made by is gone"):
            producer.send(Message("orders", b"1"))

    def test_a_cluster_is_entered_once(self) -> None:
        once = cluster()
        with once:
            pass
        with pytest.raises(RuntimeError, match="entered once"), once:
            pass

    def test_one_that_is_entered_twice_goes_on(self) -> None:
        once = cluster()
        with once as c, c.producer() as producer:
            with pytest.raises(RuntimeError, match="entered once"), once:
                pass
            producer.send(Message("orders", b"1"))
            assert bodies(c.messages("orders")) == [b"1"]
            folder = c.brokers[0].folder
        assert not folder.parent.exists()


class TestOptions:
    def test_keys_are_apaches(self) -> None:
        with cluster(config={"brokerName": "b", "autoCreateTopicEnable": False, "maxMessageSize": 1_000}) as c:
            broker = c.brokers[0].broker
            assert (broker.config.broker_name, broker.config.auto_create_topic_enable) == ("b", False)
            assert broker.store_config.max_message_size == 1_000

    def test_or_a_config(self) -> None:
        with cluster(config=BrokerConfig(broker_name="b", transaction_check_max=3)) as c:
            assert c.brokers[0].broker.config.transaction_check_max == 3

    def test_unknown_keys_and_numbers_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="unknown key brokerNmae"):
            cluster(config={"brokerNmae": "b"})
        with pytest.raises(ConfigError, match="storePathCommitLog: a test's brokers keep everything in their own"):
            cluster(config={"storePathCommitLog": "/data/commitlog"})
        with pytest.raises(ConfigError, match="1 to 26 brokers, not 0"):
            cluster(brokers=0)


class TestCoroutines:
    async def test_the_same_on_the_loop_of_the_test(self) -> None:
        async with cluster() as c, c.producer() as producer:
            got: asyncio.Queue[bytes] = asyncio.Queue()

            async def handle(message: ReceivedMessage) -> None:
                await got.put(message.body)

            consumer = c.push_consumer("billing")
            consumer.subscribe("orders", "*", handle)
            async with consumer:
                await producer.send(Message("orders", b"1"))
                await c.wait_until_consumed("billing", "orders")
                assert got.get_nowait() == b"1"
                await producer.send(Message("orders", b"2", delay_level=18))
                await c.advance(hours=2)
                assert bodies(await c.messages("orders")) == [b"1", b"2"]
                await c.wait_until(lambda: not got.empty())

    async def test_one_that_is_entered_twice_goes_on(self) -> None:
        once = cluster()
        async with once as c, c.producer() as producer:
            with pytest.raises(RuntimeError, match="entered once"):
                await once.__aenter__()
            await producer.send(Message("orders", b"1"))
            assert bodies(await c.messages("orders")) == [b"1"]

    def test_in_virtual_time_hours_pass_by_sleeping(self) -> None:
        async def main() -> list[int]:
            async with cluster() as c, c.producer() as producer:
                begin_ms = c.clock.now_ms()
                times_ms: list[int] = []

                async def handle(_message: ReceivedMessage) -> None:
                    times_ms.append(c.clock.now_ms() - begin_ms)

                consumer = c.push_consumer("billing")
                consumer.subscribe("orders", "*", handle)
                async with consumer:
                    await producer.send(Message("orders", b"1"))
                    await producer.send(Message("orders", b"2", delay_level=16))
                    await asyncio.sleep(1_799)
                    assert len(times_ms) == 1
                    await asyncio.sleep(10)
                    return times_ms

        first_ms, second_ms = virtually(main())
        assert first_ms <= 2_000
        assert 1_800_000 <= second_ms <= 1_802_000

    def test_a_transaction_is_asked_about_after_its_time(self) -> None:
        async def main() -> None:
            async with cluster(config={"transactionTimeOut": 60_000}) as c:
                asked_ms: list[int] = []

                def check(_message: ReceivedMessage) -> TransactionState:
                    asked_ms.append(c.clock.now_ms())
                    return TransactionState.COMMIT

                async with c.client(TransactionProducer, "payments", check=check) as producer:
                    begin_ms = c.clock.now_ms()
                    await producer.send_in_transaction(
                        Message("orders", b"1"), lambda _message: TransactionState.UNKNOWN
                    )
                    await asyncio.sleep(59)
                    assert asked_ms == []
                    await c.advance_until(lambda: c.messages("orders"), minutes=5)
                    assert asked_ms[0] - begin_ms >= 60_000

        virtually(main())

    async def test_a_blocking_cluster_may_be_used_by_coroutines(self) -> None:
        with cluster() as c:
            face = c.as_async
            assert isinstance(face, AsyncCluster)
            async with face.producer() as producer:
                await producer.send(Message("orders", b"1"))
            assert len(await face.messages("orders")) == 1

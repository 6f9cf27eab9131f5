"""The pytest plugin, as somebody's test-suite uses it: in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import asyncio
import pytest
from cosmodrome import Message, TransactionProducer, TransactionState
from cosmodrome.testing import AsyncCluster, Cluster


def test_two_hours(rocketmq: Cluster):
    with rocketmq.producer() as producer:
        producer.send(Message("orders", b"1", delay_level=18))
        rocketmq.advance(hours=2)
    assert len(rocketmq.messages("orders")) == 1


def test_it_is_empty_again_and_outlives_a_restart(rocketmq: Cluster):
    assert rocketmq.messages("orders") == []
    with rocketmq.producer() as producer:
        producer.send(Message("orders", b"1"))
    rocketmq.restart_broker()
    assert len(rocketmq.messages("orders")) == 1


@pytest.mark.rocketmq(brokers=2, auto_create_topics=False)
class TestOptions:
    def test_are_taken_from_marks(self, rocketmq: Cluster):
        assert len(rocketmq.brokers) == 2
        assert not rocketmq.brokers[0].broker.config.auto_create_topic_enable

    @pytest.mark.rocketmq(brokers=1)
    def test_of_which_the_nearest_counts(self, rocketmq: Cluster):
        assert len(rocketmq.brokers) == 1
        assert not rocketmq.brokers[0].broker.config.auto_create_topic_enable


def test_one_for_all_has_a_message(rocketmq_session: Cluster):
    with rocketmq_session.producer() as producer:
        producer.send(Message("shared", b"1"))


def test_and_another_test_sees_it(rocketmq_session: Cluster):
    assert len(rocketmq_session.messages("shared")) == 1


class TestVirtual:
    async def test_sixteen_failures(self, rocketmq_virtual: AsyncCluster):
        c = rocketmq_virtual
        tries = []

        async def fail(message):
            tries.append(message.reconsume_times)
            raise ValueError("never")

        consumer = c.push_consumer("billing")
        consumer.subscribe("orders", "*", fail)
        async with c.producer() as producer, consumer:
            await producer.send(Message("orders", b"1"))
            await c.advance_until(lambda: c.dead_letters("billing"))
        assert tries == list(range(17))

    @pytest.mark.rocketmq(config={"transactionTimeOut": 60_000})
    async def test_a_check_back(self, rocketmq_virtual: AsyncCluster):
        c = rocketmq_virtual
        asked = []

        def check(message):
            asked.append(message.body)
            return TransactionState.COMMIT

        async with c.client(TransactionProducer, "payments", check=check) as producer:
            await producer.send_in_transaction(Message("orders", b"1"), lambda message: TransactionState.UNKNOWN)
            await asyncio.sleep(50)
            assert asked == []
            await asyncio.sleep(100)
            assert asked == [b"1"]
            assert len(await c.messages("orders")) == 1


def test_that_fails(rocketmq: Cluster):
    assert rocketmq.messages("orders") == ["something"]


async def test_in_virtual_time_that_fails(rocketmq_virtual: AsyncCluster):
    await asyncio.sleep(600)
    assert await rocketmq_virtual.messages("orders") == ["something"]


def test_that_needs_no_virtual_time(rocketmq_virtual):
    pass
"""

ASYNC = """
import asyncio
import pytest
from cosmodrome import Message

pytestmark = pytest.mark.asyncio


async def test_coroutines(rocketmq):
    async with rocketmq.producer() as producer:
        await producer.send(Message("orders", b"1", delay_level=18))
        await rocketmq.advance(hours=2)
    assert len(await rocketmq.messages("orders")) == 1


async def test_in_virtual_time(rocketmq_virtual):
    async with rocketmq_virtual.producer() as producer:
        await producer.send(Message("orders", b"1", delay_level=3))
        await asyncio.sleep(11)
    assert len(await rocketmq_virtual.messages("orders")) == 1
"""

PATIENCE_SECONDS = 300
WITH_ASYNCIO = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")


def outcome(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    options = ("-W", "error", "-p", "no:cacheprovider", *options)
    return pytester.runpytest_subprocess(*options, timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("options", [WITH_ASYNCIO, ("-p", "no:asyncio")], ids=["with asyncio", "without"])
def test_a_suite_passes_and_fails_as_it_should(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(SUITE)
    result = outcome(pytester, *options)
    result.assert_outcomes(passed=8, failed=2, errors=1)
    result.stdout.fnmatch_lines_random(
        [
            "FAILED *::test_that_fails*",
            "FAILED *::test_in_virtual_time_that_fails*",
            "*rocketmq_virtual is for async def tests; for others rocketmq has advance()*",
        ]
    )


def test_coroutines_on_the_loop_of_pytest_asyncio(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ASYNC)
    result = outcome(pytester, *WITH_ASYNCIO)
    result.assert_outcomes(passed=2)


def test_a_suite_that_does_not_use_it_does_not_pay_for_it() -> None:
    program = (
        "import sys, pytest_cosmodrome; print([name for name in sys.modules if name.split('.')[0] == 'cosmodrome'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

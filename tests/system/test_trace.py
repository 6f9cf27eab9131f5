"""Traces: what clients write down about a message can be read again, through a real broker."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cosmodrome import Message, Producer, PushConsumer, TransactionProducer, TransactionState
from cosmodrome.cli.main import main
from cosmodrome.client.tracing import find_traces
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import RouteNotFound, SendFailed, ServiceNotAvailable
from cosmodrome.model import TRACE_TOPIC, ConsumeFrom, ReceivedMessage
from cosmodrome.store import StoreMessage
from cosmodrome.store.message import Appended
from cosmodrome.wire.trace import EndTransaction, Outcome, Pub, SubAfter, SubBefore, TracedType, TraceRecord
from tests.bounded import in_thread
from tests.system.cluster import running_broker, running_cluster, running_name_server
from tests.system.wired import until

PATIENCE_SECONDS = 30


async def traces(namesrv: str, msg_id: str, count: int) -> list[TraceRecord]:
    """The traces of a message, once there are so many of them."""
    found: list[TraceRecord] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            await asyncio.sleep(0.02)
            with contextlib.suppress(RouteNotFound):  # the topic is made by the first trace
                found = await find_traces(msg_id, namesrv=namesrv)
    return found


async def test_the_life_of_a_message_from_send_to_consumption(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        async with Producer("shop", cluster.namesrv, trace=True) as producer:
            sent = await producer.send(Message("orders", b"body", tags="paid", keys="k1"))
            other = await producer.send(Message("orders", b"later", delay_level=1))
        consumer = PushConsumer("billing", cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, trace=True)
        seen: list[ReceivedMessage] = []
        consumer.subscribe("orders", "paid", seen.append)
        async with consumer:
            await until(lambda: len(seen) == 1)
        found = await traces(cluster.namesrv, sent.msg_id, 3)
        (delayed,) = await traces(cluster.namesrv, other.msg_id, 1)
        trace_topic = cluster.broker.topics.topic(TRACE_TOPIC)
    (pub,) = [record for record in found if isinstance(record, Pub)]
    (before,) = [record for record in found if isinstance(record, SubBefore)]
    (after,) = [record for record in found if isinstance(record, SubAfter)]
    assert (pub.group, pub.topic, pub.tags, pub.keys, pub.body_size) == ("shop", "orders", "paid", "k1", 4)
    assert (pub.offset_msg_id, pub.store_host, pub.success) == (sent.offset_msg_id, cluster.broker.address, True)
    assert (before.group, before.retry_times, before.request_id) == ("billing", 0, after.request_id)
    assert (after.success, after.outcome, after.group) == (True, Outcome.SUCCESS, "billing")
    assert isinstance(delayed, Pub)
    assert delayed.msg_type == TracedType.DELAYED
    assert trace_topic.writable


async def test_failures_are_traced_too(tmp_path: Path) -> None:
    def refuse(_message: ReceivedMessage) -> None:
        raise ValueError("no")

    async with running_cluster(tmp_path) as cluster, Producer("shop", cluster.namesrv) as producer:
        sent = await producer.send(Message("orders", b"body"))
        consumer = PushConsumer("billing", cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, trace=True)
        consumer.subscribe("orders", "*", refuse)
        async with consumer:
            found = await traces(cluster.namesrv, sent.msg_id, 2)
        (after,) = [record for record in found if isinstance(record, SubAfter)]
        assert (after.success, after.outcome) == (False, Outcome.EXCEPTION)


async def test_a_send_that_fails_leaves_a_trace_of_each_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_cluster(tmp_path) as cluster:
        append = cluster.broker.store.append

        def refuse_orders(message: StoreMessage) -> Appended:
            if message.topic == "orders":
                raise ServiceNotAvailable("not now")
            return append(message)

        monkeypatch.setattr(cluster.broker.store, "append", refuse_orders)
        async with Producer("shop", cluster.namesrv, trace=True, max_tries=2) as producer:
            with pytest.raises(SendFailed):
                await producer.send(Message("orders", b"body", keys="k"))
        tries = [record for record in await traces(cluster.namesrv, "k", 2) if isinstance(record, Pub)]
    assert [record.success for record in tries] == [False, False]


async def test_what_becomes_of_a_transaction_is_traced(tmp_path: Path) -> None:
    message = Message("orders", b"body", tags="paid", keys=["k1", "k2"])
    async with running_cluster(tmp_path) as cluster:
        async with TransactionProducer(
            "shop", cluster.namesrv, check=lambda _: TransactionState.COMMIT, trace=True
        ) as producer:
            result = await producer.send_in_transaction(message, lambda _: TransactionState.ROLLBACK)
        found = await traces(cluster.namesrv, result.sent.msg_id, 2)
        address = cluster.broker.address
    (half,) = [record for record in found if isinstance(record, Pub)]
    (end,) = [record for record in found if isinstance(record, EndTransaction)]
    assert half.msg_type == TracedType.TRANSACTION_HALF
    assert (end.group, end.topic, end.tags, end.keys) == ("shop", "orders", "paid", "k1 k2")
    assert (end.state, end.from_check, end.store_host) == ("ROLLBACK_MESSAGE", False, address)
    assert (end.region, end.msg_type, end.transaction_id) == (
        "DefaultRegion",
        TracedType.TRANSACTION_COMMIT,
        result.sent.msg_id,
    )


async def test_one_way_sends_leave_no_trace(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        async with Producer("shop", cluster.namesrv, trace=True) as producer:
            await producer.send_oneway(Message("orders", b"body", keys="silent"))
            await producer.send(Message("orders", b"body", keys="told"))
        await traces(cluster.namesrv, "told", 1)
        assert await find_traces("silent", namesrv=cluster.namesrv) == []


async def test_a_broker_may_ask_not_to_be_traced(tmp_path: Path) -> None:
    config = BrokerConfig(broker_name="broker-a", trace_on=False, trace_topic_enable=True)
    async with running_name_server() as name_server, running_broker(tmp_path, name_server.address, config) as broker:
        async with Producer("shop", name_server.address, trace=True) as producer:
            await producer.send(Message("orders", b"body"))
        assert broker.topics.topic(TRACE_TOPIC).write_queues == 1
        assert broker.store.max_offset(TRACE_TOPIC, 0) == 0


async def test_the_command_tells_a_life_in_order(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        async with Producer("shop", cluster.namesrv, trace=True) as producer:
            sent = await producer.send(Message("orders", b"body", tags="paid", keys="k1"))
        await traces(cluster.namesrv, sent.msg_id, 1)
        shown = await _command("trace", sent.msg_id, "-n", cluster.namesrv)
        assert shown.exit_code == 0, shown.output
        assert "sent to orders tag paid key k1 by group shop, broker 127.0.0.1:" in shown.output
        in_json = await _command("trace", sent.msg_id, "-n", cluster.namesrv, "-o", "json")
        assert '"event":"Pub"' in in_json.output
        nothing = await _command("trace", "0" * 32, "-n", cluster.namesrv)
        assert (nothing.exit_code, "no trace of" in nothing.output) == (1, True)


async def _command(*words: str) -> Result:
    return await in_thread(CliRunner().invoke, main, list(words))

"""SQL92 filters through a real broker: what is asked for, and nothing else, is what comes."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import Message, Producer, PushConsumer, Sql, TopicReader
from cosmodrome.broker.broker import Broker
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import FilterSyntaxError
from cosmodrome.filter.subscriptions import GroupFilters
from cosmodrome.model import ConsumeFrom, ReceivedMessage, Subscription
from cosmodrome.store import queue_reader
from cosmodrome.testing import FakeClock
from cosmodrome.wire.bodies import CheckClientConfig, ConsumerConnection
from cosmodrome.wire.requests import ConsumerGroupHeader, PullFlag
from tests.system.cluster import running_cluster
from tests.system.wired import GROUP, PATIENCE_SECONDS, Pulled, another, until, wired

ONE_QUEUE = BrokerConfig(broker_name="broker-a", default_topic_queue_nums=1)


def sql(condition: str, topic: str = "t", version: int = 1) -> Subscription:
    return Subscription(topic, condition, version=version, expression_type="SQL92")


async def test_a_consumer_gets_what_its_sql_wants(tmp_path: Path) -> None:
    seen: list[ReceivedMessage] = []
    async with running_cluster(tmp_path) as cluster, Producer("p", cluster.namesrv) as producer:
        for price in range(10):
            await producer.send(Message("orders", b"%d" % price, properties={"price": str(price)}))
        consumer = PushConsumer(GROUP, cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("orders", Sql("price > 7"), seen.append)
        async with consumer:
            await until(lambda: len(seen) == 2)
            await producer.send(Message("orders", b"cheap", properties={"price": "1"}))
            await producer.send(Message("orders", b"none"))
            await producer.send(Message("orders", b"dear", properties={"price": "100"}))
            await until(lambda: len(seen) == 3)
    assert sorted(message.body for message in seen) == [b"8", b"9", b"dear"]


async def test_a_reader_may_ask_in_sql_too(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, Producer("p", cluster.namesrv) as producer:
        for price in range(10):
            await producer.send(Message("orders", b"%d" % price, properties={"price": str(price)}))
        reader = TopicReader("orders", Sql("price = 3"), namesrv=cluster.namesrv, from_earliest=True)
        async with asyncio.timeout(PATIENCE_SECONDS), reader:
            assert (await anext(reader)).body == b"3"


def test_a_bad_expression_is_refused_where_it_is_written() -> None:
    with pytest.raises(FilterSyntaxError, match="there is no LIKE"):
        PushConsumer(GROUP, "127.0.0.1:9876").subscribe("orders", Sql("region LIKE 'n%'"), print)


async def test_a_pull_is_told_why_it_has_no_filter(tmp_path: Path) -> None:
    async with wired(tmp_path, ONE_QUEUE) as client:
        await client.send("t", b"x", price="5")
        await client.heartbeat(sql("price LIKE 3", version=3))
        refused = await client.pull("t", sub_version=3)
        assert (refused.code, "LIKE" in refused.remark) == (ResponseCode.FILTER_DATA_NOT_EXIST, True)
        await client.heartbeat(sql("price > 3", version=4))
        assert (await client.pull("t", sub_version=4)).bodies == [b"x"]
        assert (await client.pull("t", sub_version=5)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def test_an_expression_that_comes_with_the_pull(tmp_path: Path) -> None:
    flag = PullFlag.SUBSCRIPTION
    async with wired(tmp_path, ONE_QUEUE) as client:
        for price in ("1", "7"):
            await client.send("t", price.encode(), price=price)
        fields: dict[str, Any] = {"sys_flag": flag, "expression_type": "SQL92"}
        assert (await client.pull("t", subscription="price > 3", **fields)).bodies == [b"7"]
        await client.send(f"%RETRY%{GROUP}", b"again", price="1")
        assert (await client.pull(f"%RETRY%{GROUP}", subscription="price > 3", **fields)).bodies == [b"again"]
        bad = await client.pull("t", subscription="price >", **fields)
        assert (bad.code, "SQL92 expression" in bad.remark) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, True)


@pytest.mark.parametrize("condition", ["price > 3", "price >", ""])
async def test_a_client_learns_before_it_starts_whether_it_may(tmp_path: Path, condition: str) -> None:
    async with wired(tmp_path, ONE_QUEUE) as client:
        body = CheckClientConfig("me", GROUP, sql(condition)).encode()
        reply = await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=body)
        good = condition == "price > 3"
        assert reply.code == (ResponseCode.SUCCESS if good else ResponseCode.SUBSCRIPTION_PARSE_FAILED)


@pytest.mark.parametrize(("again", "bodies"), [(True, [b"dear", b"other"]), (False, [b"cheap", b"dear", b"other"])])
async def test_what_comes_again_is_filtered_where_that_is_wanted(
    tmp_path: Path, again: bool, bodies: list[bytes]
) -> None:
    retry = f"%RETRY%{GROUP}"
    async with wired(tmp_path, dataclasses.replace(ONE_QUEUE, filter_support_retry=again)) as client:
        await client.heartbeat(sql("price > 3"), Subscription(retry, "*", version=1))
        await client.send(retry, b"cheap", price="1", RETRY_TOPIC="t")
        await client.send(retry, b"dear", price="7", RETRY_TOPIC="t")
        await client.send(retry, b"other", RETRY_TOPIC="elsewhere")
        assert (await client.pull(retry, sub_version=1)).bodies == bodies


async def test_a_broker_without_property_filters_says_so(tmp_path: Path) -> None:
    config = BrokerConfig(broker_name="broker-a", enable_property_filter=False)
    async with wired(tmp_path, config) as client:
        await client.send("t", b"x", price="5")
        await client.heartbeat(sql("price > 3"))
        check = CheckClientConfig("me", GROUP, sql("price > 3")).encode()
        replies = [
            await client.pull("t"),
            await client.pull("t", sys_flag=PullFlag.SUBSCRIPTION, subscription="price > 3", expression_type="SQL92"),
            Pulled.of(await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=check)),
        ]
        assert {(reply.code, "does not support" in reply.remark) for reply in replies} == {(1, True)}


async def test_a_waiting_pull_is_answered_by_a_match_and_by_nothing_else(tmp_path: Path) -> None:
    async with wired(tmp_path, ONE_QUEUE) as client:
        await client.send("t", b"0", price="1")
        await client.heartbeat(sql("price > 3"))
        pull = asyncio.ensure_future(client.pull("t", 1))
        for number in range(1, 4):
            await _held(client.broker, pull)
            await client.send("t", b"%d" % number, price="1")
        await _held(client.broker, pull)
        await client.send("t", b"wanted", price="4")
        answer = await pull
        assert (answer.code, answer.bodies, answer.next_offset) == (ResponseCode.SUCCESS, [b"wanted"], 5)


async def test_when_its_time_is_up_a_waiting_pull_goes_on_behind_what_it_did_not_want(tmp_path: Path) -> None:
    clock = FakeClock()
    async with wired(tmp_path, ONE_QUEUE, clock=clock) as client:
        await client.send("t", b"0", price="1")
        await client.heartbeat(sql("price > 3"))
        pull = asyncio.ensure_future(client.pull("t", 1))
        await _held(client.broker, pull)
        await client.send("t", b"1", price="1")
        await _held(client.broker, pull)
        await clock.advance(6_000)
        answer = await pull
        assert (answer.code, answer.next_offset) == (ResponseCode.PULL_NOT_FOUND, 2)


async def _held(broker: Broker, pull: asyncio.Future[Pulled]) -> None:
    await until(lambda: len(broker.long_polls) == 1)
    assert not pull.done()


async def test_one_pull_looks_at_so_many_messages_and_the_next_goes_on_there(tmp_path: Path) -> None:
    async with wired(tmp_path, ONE_QUEUE) as client:
        for number in range(900):
            await client.send("t", b"x", price=str(number))
        await client.heartbeat(sql("price = 899"))
        offset, pulls = 0, 0
        while (answer := await client.pull("t", offset)).code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            assert offset < answer.next_offset <= offset + 800
            offset, pulls = answer.next_offset, pulls + 1
        assert (answer.bodies, answer.next_offset, pulls >= 1) == ([b"x"], 900, True)


async def test_one_pull_filters_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time at all it still gets on, message by message."""
    monkeypatch.setattr(queue_reader, "MATCHING_SECONDS", 0.0)
    async with wired(tmp_path, ONE_QUEUE) as client:
        for number in range(3):
            await client.send("t", b"%d" % number, price=str(number))
        await client.heartbeat(sql("price = 2"))
        answers = [await client.pull("t", offset) for offset in range(3)]
        assert [answer.next_offset for answer in answers] == [1, 2, 3]
        assert answers[2].bodies == [b"2"]


async def test_filters_go_some_time_after_their_group(tmp_path: Path) -> None:
    clock = FakeClock()
    async with wired(tmp_path, ONE_QUEUE, clock=clock) as client:
        client.broker.filters = filters = GroupFilters(dead_kept_ms=15_000)
        await client.heartbeat(sql("price > 3"))
        await client.leave()
        await clock.advance(14_000)
        assert len(filters) == 1
        await clock.advance(11_000)  # they are looked through every ten seconds
        assert len(filters) == 0


async def test_members_that_subscribe_to_different_things_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with wired(tmp_path) as first, another(first) as second:
        await first.heartbeat(Subscription("t", "red", version=1), client_id="first")
        for _ in range(2):
            await second.heartbeat(Subscription("t", "blue", version=1), client_id="second")
        reply = await first.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(GROUP))
        told = ConsumerConnection.decode(bytes(reply.body))
    assert told.disagreement == {"first": "t TAG red", "second": "t TAG blue"}
    warnings = [record.getMessage() for record in caplog.records if "different things" in record.getMessage()]
    assert warnings == [
        f"the members of group {GROUP} subscribe to different things and will miss messages: "
        "first: t TAG red; second: t TAG blue"
    ]

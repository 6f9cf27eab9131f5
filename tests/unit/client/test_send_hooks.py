"""Hooks of a producer, and of every request it makes; and which hooks are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from cosmodrome.client.hooks import MessageType, RpcHook, SendContext, SendHook, SendMode
from cosmodrome.client.lite_pull_consumer import LitePullConsumer
from cosmodrome.client.producer import Producer
from cosmodrome.client.producer_options import ProducerOptions
from cosmodrome.client.push_consumer import PushConsumer
from cosmodrome.client.transactions import TransactionProducer, TransactionState
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import BrokerError, ConfigError, InvalidMessage
from cosmodrome.model import Message, MessageQueue
from cosmodrome.wire import properties as properties_string
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import SendMessage, SendReply
from tests.unit.client.fake_cluster import fake_cluster

SEND = RequestCode.SEND_MESSAGE_V2


class Watching(SendHook):
    def __init__(self) -> None:
        self.before: list[SendContext] = []
        self.after: list[SendContext] = []

    def before_send(self, context: SendContext) -> None:
        assert (context.result, context.error) == (None, None)
        self.before.append(context)

    def after_send(self, context: SendContext) -> None:
        self.after.append(context)


class _Half:
    def before_send(self, context: SendContext) -> None:
        return


class _Async(SendHook):
    async def before_send(self, context: SendContext) -> None:  # type: ignore[override]
        return


async def _forbid_some_day(_context: SendContext) -> None:
    raise PermissionError


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"send_hooks": (_Half(),)}, "has no after_send"),
        ({"send_hooks": Watching()}, "give a list"),
        ({"check_forbidden": print}, "give a list"),
        ({"check_forbidden": ("no",)}, "has no __call__"),
        ({"check_forbidden": (_forbid_some_day,)}, "is async def"),
        ({"send_hooks": (_Async(),)}, "is async def"),
    ],
)
def test_a_hook_that_would_fail_behind_a_stored_message_is_refused_at_once(
    options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        ProducerOptions(**options)


def test_so_is_a_hook_of_requests() -> None:
    hooks: list[Any] = [_Half()]
    with pytest.raises(ConfigError, match=r"rpc_hooks.*before_request"):
        Producer("g", "127.0.0.1:9876", rpc_hooks=hooks)


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
def test_so_are_those_of_consumers(kind: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match=r"consume_hooks.*has no before_consume"):
        kind("g", "127.0.0.1:9876", consume_hooks=[_Half()])
    with pytest.raises(ConfigError, match=r"filter_hooks.*is async def"):
        kind("g", "127.0.0.1:9876", filter_hooks=[_forbid_some_day])


def options_with(*hooks: SendHook, **others: Any) -> ProducerOptions:
    return ProducerOptions(send_hooks=hooks, **others)


async def test_every_way_to_send_is_shown_before_and_after() -> None:
    hook = Watching()
    message = Message("T", b"x")
    async with (
        fake_cluster(T=1) as cluster,
        Producer("g", cluster.namesrv, options=options_with(hook)) as producer,
    ):
        one = await producer.send(message)
        other = await producer.send_async(message)
        await producer.send_oneway(message)
        batch = await producer.send_batch([message, Message("T", b"y")])
    assert [context.mode for context in hook.before] == [SendMode.SYNC, SendMode.ASYNC, SendMode.ONEWAY, SendMode.SYNC]
    assert [context.result for context in hook.after] == [one, other, None, batch]
    assert hook.before == hook.after
    first, *_, last = hook.after
    assert (first.group, first.message, first.msg_id) == ("g", message, one.msg_id)
    assert (first.queue, first.address) == (MessageQueue("T", "broker-a", 0), cluster.broker.address)
    assert (len(last.messages), last.msg_id, last.error) == (2, batch.msg_id, None)


async def test_each_try_is_shown_and_how_it_failed() -> None:
    hook = Watching()
    async with (
        fake_cluster(T=1) as cluster,
        Producer("g", cluster.namesrv, max_tries=2, options=options_with(hook)) as producer,
    ):
        answers = [ResponseCode.SYSTEM_BUSY]
        broker = cluster.broker

        def busy_once(command: Command) -> Command:
            del broker.answers[SEND]
            return command.reply(answers.pop(), remark="no")

        broker.answers[SEND] = busy_once
        result = await producer.send(Message("T", b"x"))
    failed, stored = hook.after
    assert isinstance(failed.error, BrokerError)
    assert (stored.result, stored.error) == (result, None)


async def test_a_cancelled_send_is_shown_as_such() -> None:
    hook = Watching()
    async with (
        fake_cluster(T=1) as cluster,
        Producer("g", cluster.namesrv, options=options_with(hook)) as producer,
    ):
        cluster.broker.answers[SEND] = lambda command: None
        future = producer.send_async(Message("T", b"x"))
        await cluster.broker.asked.wait_for(SEND)
        future.cancel()
        await asyncio.gather(future, return_exceptions=True)
    assert isinstance(hook.after[0].error, asyncio.CancelledError)


async def test_a_hook_may_add_properties_and_keep_its_own_state() -> None:
    ended: list[str] = []

    class Spans(SendHook):
        def before_send(self, context: SendContext) -> None:
            context.properties["span"] = context.state["span"] = "s-1"

        def after_send(self, context: SendContext) -> None:
            ended.append(context.state["span"])

    async with (
        fake_cluster(T=1) as cluster,
        Producer("g", cluster.namesrv, options=options_with(Spans())) as producer,
    ):
        message = Message("T", b"x", properties={"a": "b"})
        await producer.send(message)
        (command,) = cluster.broker.asked.of(SEND)
    sent = properties_string.decode(SendMessage.decode(command).properties or "")
    assert (sent["span"], sent["a"], message.properties, ended) == ("s-1", "b", {"a": "b"}, ["s-1"])


async def test_a_property_a_hook_may_not_set_is_refused() -> None:
    class Greedy(SendHook):
        def before_send(self, context: SendContext) -> None:
            context.properties["UNIQ_KEY"] = "mine"

    async with (
        fake_cluster(T=1) as cluster,
        Producer("g", cluster.namesrv, options=options_with(Greedy())) as producer,
    ):
        with pytest.raises(InvalidMessage, match="RocketMQ's own"):
            await producer.send(Message("T", b"x"))


async def test_a_hook_that_fails_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(SendHook):
        def before_send(self, context: SendContext) -> None:
            raise RuntimeError("before")

        def after_send(self, context: SendContext) -> None:
            raise RuntimeError("after")

    hook = Watching()
    async with (
        fake_cluster(T=1) as cluster,
        Producer("g", cluster.namesrv, options=options_with(Failing(), hook)) as producer,
    ):
        await producer.send(Message("T", b"x"))
    assert (len(hook.before), len(hook.after)) == (1, 1)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["before", "after"]


async def test_what_is_forbidden_is_not_sent_nor_shown() -> None:
    def forbid(context: SendContext) -> None:
        if context.message.tags == "secret":
            raise PermissionError(f"{context.group} may not send that to {context.address}")

    hook = Watching()
    options = options_with(hook, check_forbidden=(forbid,))
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x", tags="public"))
        secret = Message("T", b"x", tags="secret")
        for sending in (producer.send(secret), producer.send_oneway(secret), producer.send_async(secret)):
            with pytest.raises(PermissionError, match="g may not send that"):
                await sending
        assert cluster.broker.asked.count(SEND) == 1
    assert len(hook.before) == 1


# --- every request


class Signing(RpcHook):
    def __init__(self) -> None:
        self.requests: list[tuple[str, int]] = []
        self.replies: list[tuple[str, int, int]] = []

    def before_request(self, address: str, command: Command) -> None:
        command.fields["Signature"] = f"s{command.code}"
        self.requests.append((address, command.code))

    def after_response(self, address: str, command: Command, reply: Command) -> None:
        self.replies.append((address, command.code, reply.code))


async def test_every_request_can_be_signed_and_every_reply_seen() -> None:
    hook = Signing()
    async with fake_cluster(T=1) as cluster:
        async with Producer("g", cluster.namesrv, rpc_hooks=[hook]) as producer:
            await producer.send(Message("T", b"x"))
            await producer.send_oneway(Message("T", b"x"))
            await cluster.broker.asked.wait_for(SEND, 2)
            await cluster.broker.asked.wait_for(RequestCode.HEART_BEAT)
        asked = [*cluster.asked.requests, *cluster.broker.asked.requests]
    assert {command.code for command in asked} >= {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        SEND,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
    }
    assert all(command.fields["Signature"] == f"s{command.code}" for command in asked)
    assert (cluster.namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, 0) in hook.replies
    assert len(hook.replies) == len(hook.requests) - 1  # one-way has none


async def test_a_request_hook_may_refuse() -> None:
    class Refusing(RpcHook):
        def before_request(self, address: str, command: Command) -> None:
            if command.code == SEND:
                raise PermissionError("no key")

    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv, rpc_hooks=[Refusing()]) as producer:
        with pytest.raises(PermissionError, match="no key"):
            await producer.send(Message("T", b"x"))
        assert cluster.broker.asked.count(SEND) == 0


async def test_hooks_are_shown_the_names_of_the_application() -> None:
    hook = Watching()
    config = ClientConfig(namespace="INST")
    async with fake_cluster() as cluster:
        cluster.topics["INST%T"] = 1
        async with Producer("g", cluster.namesrv, options=options_with(hook), config=config) as producer:
            await producer.send(Message("T", b"x"))
    (context,) = hook.after
    assert (context.group, context.queue.topic, context.namespace) == ("g", "T", "INST")


async def test_hooks_see_what_kind_of_message_it_is_in_javas_words() -> None:
    hook = Watching()
    options = ProducerOptions(send_hooks=(hook,))
    async with (
        fake_cluster(T=1) as cluster,
        TransactionProducer(
            "g", cluster.namesrv, check=lambda message: TransactionState.UNKNOWN, options=options
        ) as producer,
    ):
        await producer.send(Message("T", b"x"))
        await producer.send_batch([Message("T", b"x")])
        await producer.send(Message("T", b"x", delay_level=3))
        await producer.send_oneway(Message("T", b"x", delay=timedelta(seconds=5)))
        cluster.broker.answers[RequestCode.END_TRANSACTION] = lambda command: command.reply()
        offset_id = "7F00000100002A9F0000000000000000"
        cluster.broker.answers[SEND] = lambda command: command.reply(header=SendReply(offset_id, 0, 0, "t"))
        await producer.send_in_transaction(Message("T", b"x"), lambda message: TransactionState.COMMIT)
    kinds = [context.message_type for context in hook.before]
    assert kinds == [
        MessageType.NORMAL,
        MessageType.NORMAL,
        MessageType.DELAYED,
        MessageType.DELAYED,
        MessageType.TRANSACTION_HALF,
    ]
    assert [kind.value for kind in MessageType] == ["Normal_Msg", "Trans_Msg_Half", "Delay_Msg"]

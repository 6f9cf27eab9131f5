"""Hooks of a broker, given to it and installed as a package."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import Message, Producer, PullConsumer
from cosmodrome.broker.broker import Broker
from cosmodrome.broker.hooks import BrokerHook, ConsumeContext, SendContext, load_hooks
from cosmodrome.cli import serve
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, NetConfig, ReplicationConfig, SecurityConfig
from cosmodrome.errors import BrokerError, ConfigError
from cosmodrome.model import MessageQueue, Property
from cosmodrome.net.caller import Caller
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import AckMessage, PopMessage, PopReply, PullFlag, SendMessage
from tests.system.cluster import SMALL_STORE, running, running_name_server
from tests.system.wired import Wired, another

PATIENCE_SECONDS = 30

AUDIT = """
from cosmodrome.broker.hooks import BrokerHook

class Audit(BrokerHook):
    def after_send(self, context):
        print("audit:", context.topic, context.queue_id, context.queue_offset, context.success, flush=True)
"""


class Watching(BrokerHook):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def before_send(self, context: SendContext) -> None:
        context.state["began"] = (context.code, context.queue_offset)
        self.told.append(("before_send", dataclasses.replace(context)))

    def after_send(self, context: SendContext) -> None:
        assert context.state["began"] == (None, -1)
        self.told.append(("after_send", context))

    def before_consume(self, context: ConsumeContext) -> None:
        self.told.append(("before_consume", (context, context.records())))

    def after_consume(self, context: ConsumeContext) -> None:
        self.told.append(("after_consume", context))

    def of(self, name: str) -> list[Any]:
        return [context for told, context in self.told if told == name]


@asynccontextmanager
async def hooked(folder: Path, *hooks: object) -> AsyncIterator[tuple[Broker, str]]:
    async with running_name_server() as name_server, asyncio.timeout(PATIENCE_SECONDS):
        config = BrokerConfig(namesrv_addr=name_server.address, listen_port=0)
        broker = Broker(config, dataclasses.replace(SMALL_STORE, store_path_root_dir=str(folder)), hooks=hooks)
        await broker.start()
        async with running(broker.run):
            yield broker, name_server.address


async def test_a_hook_sees_what_is_sent_and_how_it_ends(tmp_path: Path) -> None:
    hook = Watching()
    async with hooked(tmp_path, hook) as (broker, namesrv), Producer("p", namesrv) as producer:
        sent = await producer.send(Message("t", b"one", keys="k", properties={"shop": "K"}))
        batch = await producer.send_batch([Message("t", b"two"), Message("t", b"three")], sent.queue)
        with pytest.raises(BrokerError, match="queueId"):
            await producer.send(Message("t", b"lost"), MessageQueue("t", broker.config.broker_name, 99))
        before, after = hook.of("before_send"), hook.of("after_send")
        assert [one.code for one in before] == [None] * 3
        assert [(one.topic, one.group, bytes(one.body)) for one in before[:1]] == [("t", "p", b"one")]
        assert (before[0].properties["shop"], before[0].properties[Property.UNIQ_KEY]) == ("K", sent.msg_id)
        assert [(one.success, one.is_batch) for one in after] == [(True, False), (True, True), (False, False)]
        assert [(one.msg_id, one.queue_id, one.queue_offset) for one in after[:2]] == [
            (one.offset_msg_id, one.queue.queue_id, one.queue_offset) for one in (sent, batch)
        ]
        assert (after[2].code, "queueId[99]" in after[2].remark) == (ResponseCode.INVALID_PARAMETER, True)


async def test_a_hook_sees_what_is_consumed_and_what_becomes_of_it(tmp_path: Path) -> None:
    hook = Watching()
    async with hooked(tmp_path, hook) as (_, namesrv):
        async with Producer("p", namesrv) as producer:
            sent = await producer.send(Message("t", b"good"))
            await producer.send(Message("t", b"bad"), sent.queue)
        async with PullConsumer("g", namesrv) as consumer:
            good, bad = (await consumer.pull(sent.queue)).messages
            assert (await consumer.pull(sent.queue, offset=2)).messages == []
            consumer.update_consume_offset(sent.queue, 2)
            await consumer.persist_consume_offset()
            await consumer.send_message_back(bad)
    ((given, records),) = hook.of("before_consume")
    assert [(one.body, one.queue_offset) for one in records] == [(b"good", 0), (b"bad", 1)]
    assert (given.group, given.topic, given.queue_id, given.status, given.offset) == (
        "g",
        "t",
        sent.queue.queue_id,
        "FOUND",
        0,
    )
    committed, returned = hook.of("after_consume")
    assert (committed.group, committed.topic, committed.status, committed.offset) == ("g", "t", "COMMITTED", 2)
    assert (returned.group, returned.topic, returned.status) == ("g", "t", "RECONSUME_LATER")
    assert returned.offset == bad.commit_log_offset > good.commit_log_offset


async def test_a_hook_sees_pops_acks_and_commits_that_come_with_pulls(tmp_path: Path) -> None:
    hook = Watching()
    async with hooked(tmp_path, hook) as (broker, namesrv), another(Wired(namesrv, broker, Caller())) as client:
        for _ in range(3):
            await client.send("t", b"x")
        popped = PopReply.decode(await client.ask(RequestCode.POP_MESSAGE, PopMessage("g", "t", 0, 3, 60_000, 0)))
        assert [len(records) for _, records in hook.of("before_consume")] == [3]
        handle = f"0 {popped.pop_time} {popped.invisible_time} {popped.revive_qid} 0 {broker.config.broker_name} 0"
        for offset in range(2):
            await client.ask(RequestCode.ACK_MESSAGE, AckMessage("g", "t", 0, f"{handle} {offset}", offset))
        await client.pull(
            "t", sys_flag=PullFlag.SUBSCRIPTION | PullFlag.COMMIT_OFFSET, commit_offset=1, subscription="*"
        )
    assert [(one.status, one.offset) for one in hook.of("after_consume")] == [
        ("ACKED", 0),
        ("ACKED", 1),
        ("COMMITTED", 1),
    ]


class Failing:
    """Fails whenever it is called, and says it is there by that."""

    def before_send(self, context: SendContext) -> None:
        raise RuntimeError("before")

    def after_send(self, context: SendContext) -> None:
        raise RuntimeError("after")

    def before_consume(self, context: ConsumeContext) -> None:
        raise RuntimeError("given")


async def test_a_hook_that_fails_is_logged_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosmodrome.broker.hooks.FAILURES_PER_LINE", 10)
    hook, count = Watching(), 11
    async with (
        hooked(tmp_path, Failing(), hook) as (broker, namesrv),
        another(Wired(namesrv, broker, Caller())) as client,
    ):
        for _ in range(count):
            await client.send("t", b"x")
        assert len((await client.pull("t", sys_flag=PullFlag.SUBSCRIPTION, subscription="*")).bodies) == count
        assert len(hook.of("after_send")) == count
    failed = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert [line.partition("method=")[2] for line in failed] == [
        "before_send topic=t failures=1",
        "after_send topic=t failures=1",
        f"before_send topic=t failures={count}",
        f"after_send topic=t failures={count}",
        "before_consume topic=t failures=1",
    ]


async def test_a_request_that_makes_no_sense_is_refused_as_without_hooks(tmp_path: Path) -> None:
    hook = Watching()
    async with hooked(tmp_path, hook) as (broker, namesrv), another(Wired(namesrv, broker, Caller())) as client:
        for code in (RequestCode.SEND_MESSAGE, RequestCode.PULL_MESSAGE, RequestCode.ACK_MESSAGE):
            reply = await client.caller.call(broker.address, Command.request(code), 5_000)
            assert reply.code != ResponseCode.SUCCESS
        header = SendMessage("p", "t", "TBW102", 1, 0, 0, 0, 0, "")
        await client.ask(RequestCode.SEND_MESSAGE, header, b"x")
    assert [name for name, _ in hook.told] == ["before_send", "after_send"]


async def test_a_broker_without_hooks_pays_nothing_for_them(tmp_path: Path) -> None:
    async with hooked(tmp_path) as (broker, _):
        assert broker._servers[0]._handler == broker._handle


class Awaited:
    async def before_send(self, context: SendContext) -> None: ...


@pytest.mark.parametrize(("hook", "said"), [(object(), "has none of before_send"), (Awaited(), "no caller awaits it")])
def test_a_hook_that_cannot_be_one_is_refused(tmp_path: Path, hook: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Broker(BrokerConfig(), dataclasses.replace(SMALL_STORE, store_path_root_dir=str(tmp_path)), hooks=[hook])
    assert not any(tmp_path.iterdir())


def install(folder: Path, module: str, source: str, entry: str) -> None:
    """What `pip install` leaves of a package with a broker hook."""
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[cosmodrome.broker_hooks]\n{entry}\n")


@pytest.mark.parametrize("made_by", ["Audit", "make", "hook"])
def test_installed_hooks_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_by: str) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = AUDIT + "\nhook = Audit()\n\ndef make():\n    return hook\n"
    install(tmp_path, "cosmodrome_audit", source, f"audit = cosmodrome_audit:{made_by}")
    try:
        (hook,) = load_hooks()
        assert type(hook).__name__ == "Audit"
    finally:
        sys.modules.pop("cosmodrome_audit", None)


@pytest.mark.parametrize("source", ["raise RuntimeError('no database')", "hook = 1"])
def test_an_installed_hook_that_cannot_be_had_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "cosmodrome_broken", source, "broken = cosmodrome_broken:hook")
    try:
        with pytest.raises(ConfigError, match=r"no database.*uninstall the package|has none of before_send"):
            load_hooks()
    finally:
        sys.modules.pop("cosmodrome_broken", None)


async def test_a_broker_that_is_started_has_the_installed_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packages, store = tmp_path / "packages", tmp_path / "store"
    packages.mkdir()
    install(packages, "cosmodrome_audit", AUDIT, "audit = cosmodrome_audit:Audit")
    monkeypatch.syspath_prepend(packages)
    async with running_name_server() as name_server, asyncio.timeout(PATIENCE_SECONDS):
        config = BrokerConfig(namesrv_addr=name_server.address, listen_port=0)
        setup = serve._BrokerSetup(
            config,
            dataclasses.replace(SMALL_STORE, store_path_root_dir=str(store)),
            NetConfig(),
            ReplicationConfig(),
            SecurityConfig(),
        )
        broker = serve._made(setup)  # as `cosmodrome broker` and `cosmodrome up` make it
        sys.modules.pop("cosmodrome_audit")
        await broker.start()
        async with running(broker.run), Producer("p", name_server.address) as producer:
            sent = await producer.send(Message("t", b"x"))
    assert capsys.readouterr().out == f"audit: t {sent.queue.queue_id} 0 True\n"

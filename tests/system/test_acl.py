"""A broker and a name server with accounts: each request is checked, on every port, and the files may change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cosmodrome import AclHook, ConsumeFrom, LitePullConsumer, Message, Producer, PushConsumer, ReceivedMessage
from cosmodrome.access.gate import Gate
from cosmodrome.broker.broker import Broker
from cosmodrome.cli.main import main
from cosmodrome.clock import SystemClock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import (
    BrokerConfig,
    BrokerRole,
    NameServerConfig,
    NetConfig,
    ReplicationConfig,
    SecurityConfig,
)
from cosmodrome.errors import BrokerError, SendFailed
from cosmodrome.nameserver.server import NameServer
from cosmodrome.net.caller import Caller
from cosmodrome.wire.acl import Credentials
from cosmodrome.wire.bodies import HeartbeatData, KVTable
from cosmodrome.wire.command import Command
from interop.child import free_port
from tests.system.cluster import SMALL_STORE, running
from tests.system.daemons import BROKER_CONF, cosmodrome

PATIENCE_SECONDS = 60
APP, ADMIN = Credentials("orders-app", "hunter2-of-orders"), Credentials("administrator", "hunter2-of-all")
WRONG, STRANGER = Credentials("orders-app", "hunter2-is-wrong"), Credentials("stranger", "hunter2-of-nobody")
ACCOUNTS = f"""
accounts:
- accessKey: {ADMIN.access_key}
  secretKey: {ADMIN.secret_key}
  admin: true
- accessKey: {APP.access_key}
  secretKey: {APP.secret_key}
  topicPerms: [orders=PUB|SUB, audit=PUB]
  groupPerms: [readers=SUB]
"""
INNER = json.dumps({"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def hook(who: Credentials) -> list[AclHook]:
    return [AclHook(who.access_key, who.secret_key)]


@dataclass
class Guarded:
    """A name server and a broker with the same file of accounts."""

    broker: Broker
    name_server: NameServer
    accounts: Path

    async def ask(self, code: int, who: Credentials | None, address: str = "", **fields: str) -> Command:
        caller = Caller()
        command = Command(code, fields)
        if who is not None:
            who.sign(command)
        try:
            return await caller.call(address or self.broker.address, command, 10_000)
        finally:
            await caller.close()

    async def until_reloaded(self, text: str) -> None:
        before = self.gate.reloads
        self.accounts.write_text(text)
        await until(lambda: self.gate.reloads > before)

    @property
    def gate(self) -> Gate:
        gate = self.broker.guard.gate
        assert gate is not None
        return gate


@asynccontextmanager
async def guarded(
    folder: Path, *, port: int = 0, max_failures: int = 300, ha_allowed: str = ""
) -> AsyncIterator[Guarded]:
    accounts = folder / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    config = SecurityConfig(
        acl_enable=True,
        acl_file=str(accounts),
        inner_client_authentication_credentials=INNER,
        max_failed_authentications_per_minute=max_failures,
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        name_server = NameServer(NameServerConfig(listen_port=0), NetConfig(), SystemClock(), config)
        await name_server.start()
        async with running(name_server.run):
            broker = Broker(
                BrokerConfig(broker_name="a", namesrv_addr=name_server.address, listen_port=port),
                replace(SMALL_STORE, store_path_root_dir=str(folder / "store")),
                replication=ReplicationConfig(ha_listen_port=0, ha_allowed_addresses=ha_allowed),
                security=config,
            )
            await broker.start()
            async with running(broker.run):
                yield Guarded(broker, name_server, accounts)


async def test_an_account_sends_and_consumes_what_is_its_own_and_nothing_else(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster:
        namesrv = cluster.name_server.address
        received, complete = list[bytes](), asyncio.Event()

        def handler(message: ReceivedMessage) -> None:
            received.append(message.body)
            if len(received) == 3:
                complete.set()

        made = {"rpc_hooks": hook(APP)}
        async with Producer("p", namesrv, rpc_hooks=hook(APP)) as producer:
            await producer.send(Message("orders", b"one"))
            await producer.send_batch([Message("orders", b"two"), Message("orders", b"three")])
            for topic in ("others", "%RETRY%others"):
                with pytest.raises((SendFailed, BrokerError), match=r"No permission|No topic route"):
                    await producer.send(Message(topic, b"x"))
        consumer = PushConsumer("readers", namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, rpc_hooks=hook(APP))
        consumer.subscribe("orders", "*", handler)
        async with consumer:
            await complete.wait()
        assert sorted(received) == [b"one", b"three", b"two"]
        foreign = PushConsumer("others", namesrv, rpc_hooks=hook(APP))
        foreign.subscribe("orders", "*", handler)
        with pytest.raises(BrokerError, match="group 'others'"):
            async with foreign:
                pass
        async with LitePullConsumer("readers", namesrv, **made) as lite:  # type: ignore[arg-type]
            lite.subscribe("orders")
            await lite.poll()


@pytest.mark.parametrize(
    ("who", "words"),
    [(None, "No accessKey"), (STRANGER, "No acl config for 'stranger'"), (WRONG, "Check signature failed")],
)
async def test_strangers_are_told_so_by_both_daemons_on_every_port(
    tmp_path: Path, who: Credentials | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port(before=2)
    async with guarded(tmp_path, port=port) as cluster:
        for address in (cluster.broker.address, f"127.0.0.1:{port - 2}", cluster.name_server.address):
            for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.HEART_BEAT, 99):
                reply = await cluster.ask(code, who, address)
                assert reply.code == ResponseCode.SYSTEM_ERROR
                assert words in str(reply.remark)
        assert cluster.gate.figures()["failedAuthentications"] == 8
        assert cluster.gate.figures()["requestsDenied"] == 8
    lines = [record.getMessage() for record in caplog.records if "requests denied" in record.getMessage()]
    assert len(lines) == 2  # one of each daemon, however many requests
    assert "hunter2" not in caplog.text


async def test_a_changed_frame_is_denied_and_the_connection_stays(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster:
        caller = Caller()
        good = Command(RequestCode.HEART_BEAT, {}, HeartbeatData("c", producers=("p",)).encode())
        APP.sign(good)
        changed = Command(good.code, good.fields, HeartbeatData("d", producers=("p",)).encode())
        replies = [await caller.call(cluster.broker.address, one, 10_000) for one in (good, changed, good)]
        assert [reply.code for reply in replies] == [0, ResponseCode.SYSTEM_ERROR, 0]
        await caller.close()


async def test_a_long_body_is_checked_as_well(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster:
        caller = Caller()
        for producer, code in (("p", 0), ("p" * 9_000, 0)):
            command = Command(RequestCode.HEART_BEAT, {}, HeartbeatData("c", producers=(producer,)).encode())
            APP.sign(command)
            reply = await caller.call(cluster.broker.address, command, 10_000)
            assert reply.code == code or "signature" not in str(reply.remark)
            command.fields["Signature"] = "x"
            reply = await caller.call(cluster.broker.address, command, 10_000)
            assert "Check signature failed" in str(reply.remark)
        await caller.close()


async def test_accounts_change_while_messages_are_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        guarded(tmp_path) as cluster,
        Producer("p", cluster.name_server.address, rpc_hooks=hook(APP)) as producer,
    ):
        sent, stop = 0, asyncio.Event()

        async def keep_sending() -> None:
            nonlocal sent
            while not stop.is_set():
                await producer.send(Message("orders", b"x"))
                sent += 1

        sending = asyncio.create_task(keep_sending())
        await cluster.until_reloaded(ACCOUNTS + "- {accessKey: newcomer, secretKey: hunter2-of-newcomer}\n")
        assert (
            await cluster.ask(RequestCode.GET_BROKER_RUNTIME_INFO, Credentials("newcomer", "hunter2-of-newcomer"))
        ).code == 0
        cluster.accounts.write_text("accounts: [")  # half a file: the old accounts stay
        await until(lambda: "accounts not changed" in caplog.text)
        assert not sending.done()
        before = sent
        await until(lambda: sent > before)
        stop.set()
        await sending
        await cluster.until_reloaded(ACCOUNTS.partition(f"- accessKey: {APP.access_key}")[0])
        with pytest.raises(SendFailed, match="No acl config for 'orders-app'"):
            await producer.send(Message("orders", b"x"))
    assert "the old ones stay in force" in caplog.text
    assert "hunter2" not in caplog.text


async def test_who_fails_too_often_loses_its_connections(tmp_path: Path) -> None:
    async with guarded(tmp_path, max_failures=2) as cluster:
        caller = Caller()
        command = Command(RequestCode.GET_BROKER_RUNTIME_INFO, {})
        for _ in range(3):
            reply = await caller.call(cluster.broker.address, command, 10_000)
            assert "No accessKey" in str(reply.remark)
        await until(lambda: not caller.is_connected(cluster.broker.address))
        assert (await cluster.ask(RequestCode.GET_BROKER_RUNTIME_INFO, APP)).code == 0
        assert cluster.gate.figures()["connectionsCutOffForFailedAuthentication"] == 1
        await caller.close()


async def test_operators_see_figures_and_no_secrets(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster:
        denied = await cluster.ask(RequestCode.GET_BROKER_CONFIG, APP)
        assert "Need admin permission for request code=26" in str(denied.remark)
        reply = await cluster.ask(RequestCode.GET_BROKER_CONFIG, ADMIN)
        text = bytes(reply.body).decode()
        assert "aclEnable=true" in text
        assert "hunter2" not in text + repr(cluster.broker.security)
        info = KVTable.decode((await cluster.ask(RequestCode.GET_BROKER_RUNTIME_INFO, APP)).body).table
        assert (info["aclAccounts"], info["requestsDenied"], info["failedAuthentications"]) == ("2", "1", "0")


async def test_an_administrator_sees_the_accounts_without_secrets_and_changes_none(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster:
        shown = await cluster.ask(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, ADMIN)
        accounts = json.loads(bytes(shown.body))
        assert [one["accessKey"] for one in accounts["plainAccessConfigs"]] == [ADMIN.access_key, APP.access_key]
        assert accounts["plainAccessConfigs"][1]["topicPerms"] == ["orders=PUB|SUB", "audit=PUB"]
        assert accounts["plainAccessConfigs"][1]["groupPerms"] == ["readers=SUB"]
        version = await cluster.ask(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, ADMIN)
        assert list(json.loads(version.fields["allAclFileVersion"])) == [str(cluster.accounts)]
        assert json.loads(version.fields["version"])["counter"] == 1
        assert "hunter2" not in str(shown.body) + str(version.fields)
        for code in (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, RequestCode.DELETE_ACL_CONFIG):
            refused = await cluster.ask(code, ADMIN, accessKey=APP.access_key)
            assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert "never over the wire" in str(refused.remark)
            assert "Need admin permission" in str((await cluster.ask(code, APP)).remark)
        assert cluster.accounts.read_text() == ACCOUNTS


async def test_an_operator_lists_the_accounts_with_a_verb(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster:
        keys = {"ROCKETMQ_ACCESS_KEY": ADMIN.access_key, "ROCKETMQ_SECRET_KEY": ADMIN.secret_key}
        runner, namesrv = CliRunner(env=keys), cluster.name_server.address

        async def rows(verb: str) -> list[dict[str, object]]:
            shown = await asyncio.to_thread(runner.invoke, main, ["admin", verb, "-n", namesrv, "-o", "json"])
            assert shown.exit_code == 0, shown.output
            assert "hunter2" not in shown.output
            found: list[dict[str, object]] = json.loads(shown.stdout)
            return found

        accounts = await rows("getAclConfig")
        assert [(one["accessKey"], one["admin"]) for one in accounts] == [
            (ADMIN.access_key, True),
            (APP.access_key, False),
        ]
        assert accounts[1]["topicPerms"] == ["orders=PUB|SUB", "audit=PUB"]
        assert [one["key"] for one in await rows("clusterAclConfigVersion")] == [str(cluster.accounts)]


async def test_a_slave_with_an_account_follows_its_guarded_master(tmp_path: Path) -> None:
    async with guarded(tmp_path, ha_allowed="127.0.0.1") as cluster:
        slave = Broker(
            BrokerConfig(broker_name="a", broker_id=1, namesrv_addr=cluster.name_server.address, listen_port=0),
            replace(SMALL_STORE, store_path_root_dir=str(tmp_path / "slave")),
            replication=ReplicationConfig(broker_role=BrokerRole.SLAVE),
            security=cluster.broker.security,
        )
        await slave.start()
        async with running(slave.run), Producer("p", cluster.name_server.address, rpc_hooks=hook(APP)) as producer:
            await producer.send(Message("orders", b"x"))
            master = cluster.broker
            await until(lambda: slave.store.max_physical_offset == master.store.max_physical_offset > 0)
            await until(lambda: slave.topics.find_topic("orders") is not None)


async def test_only_white_addresses_copy_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with guarded(tmp_path) as cluster:
        host, _, port = cluster.broker.ha_address(cluster.broker.replicas).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(bytes(8))
            assert await reader.read(1) == b""
        except ConnectionError:
            pass
        writer.close()
        assert "127.0.0.1 may not copy the log: name it in haAllowedAddresses" in caplog.text


def test_a_start_with_broken_accounts_is_refused(tmp_path: Path) -> None:
    conf, accounts = tmp_path / "broker.conf", tmp_path / "plain_acl.yml"
    conf.write_text(f"{BROKER_CONF}aclEnable=true\naclFile={accounts}\n")
    for text, words in (("", "it is empty"), ("accounts: [{accessKey: administrator}]", "secretKey needs at least 7")):
        accounts.write_text(text)
        done = cosmodrome("broker", "-n", "127.0.0.1:1", "-c", str(conf), "--store", str(tmp_path / "s"), "--port", "0")
        assert (done.returncode, words in done.stderr) == (1, True), done.stderr
    accounts.write_text(ACCOUNTS)
    done = cosmodrome("up", "-c", str(conf), "--data", str(tmp_path / "d"))
    assert (done.returncode, "innerClientAuthenticationCredentials" in done.stderr) == (1, True), done.stderr
    conf.write_text("aclEnable=true\ninnerClientAuthenticationCredentials=hunter2\n")
    done = cosmodrome("up", "-c", str(conf), "--data", str(tmp_path / "d"))
    assert done.returncode == 1
    assert "hunter2" not in done.stderr

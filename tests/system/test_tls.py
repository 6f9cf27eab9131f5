"""Brokers and name servers that speak TLS, on every port of theirs, beside plain connections or instead of them."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import ClientConfig, ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from cosmodrome.broker.broker import Broker
from cosmodrome.clock import SystemClock
from cosmodrome.codes import RequestCode
from cosmodrome.config import (
    BrokerConfig,
    BrokerRole,
    ClientAuth,
    NameServerConfig,
    NetConfig,
    ReplicationConfig,
    SecurityConfig,
    TlsMode,
    parse_properties,
)
from cosmodrome.errors import ConfigError, ConnectionFailed, UntrustedServer
from cosmodrome.nameserver.server import NameServer
from cosmodrome.net import certificates, tls_server
from cosmodrome.net.caller import Caller
from cosmodrome.net.connection import Connection
from cosmodrome.net.server import Server
from cosmodrome.net.tls_server import ServerTls
from cosmodrome.wire.command import Command
from interop.child import free_port
from tests.system.cluster import SMALL_STORE, running
from tests.system.daemons import cosmodrome
from tests.system.tls_files import authority, expired, trusting

PATIENCE_SECONDS = 60


def certified(folder: Path | None = None, **more: Any) -> SecurityConfig:
    folder = folder or authority()
    return SecurityConfig(
        tls_server_cert_path=str(folder / "server.pem"), tls_server_key_path=str(folder / "server.key"), **more
    )


async def echo(_connection: Connection, command: Command) -> Command:
    return command.reply(body=bytes(command.body))


@asynccontextmanager
async def serving(config: SecurityConfig) -> AsyncIterator[tuple[Server, ServerTls]]:
    tls = ServerTls(config, SystemClock())
    server = Server(echo, "127.0.0.1", 0, tls=tls)
    await server.start()
    watching = asyncio.create_task(tls.run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield server, tls
    finally:
        watching.cancel()
        await server.close()


async def ask(address: str, tls: ssl.SSLContext | None, body: bytes = b"x") -> bytes:
    caller = Caller(tls=tls)
    try:
        return bytes((await caller.call(address, Command(1, {}, body), 20_000)).body)
    finally:
        await caller.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_one_port_takes_both_and_makes_a_certificate_where_there_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    async with serving(SecurityConfig()) as (server, tls):
        assert tls.ready is None  # nothing is made before somebody asks
        large = bytes(range(256)) * 8_000
        assert await ask(server.address, None, large) == large
        together = await asyncio.gather(*(ask(server.address, unchecked, large) for _ in range(4)))
        assert together == [large] * 4
        assert tls.figures()["tlsHandshakes"] == 4
        with pytest.raises(UntrustedServer):
            await ask(server.address, trusting(authority()))
    assert caplog.text.count("certificate made in memory") == 1


async def test_a_checked_certificate_leads_to_many_requests_at_once() -> None:
    async with serving(certified()) as (server, tls):
        caller = Caller(tls=trusting(authority()))
        bodies = [bytes([number % 256]) * number * 50 for number in range(200)]
        replies = await asyncio.gather(*(caller.call(server.address, Command(1, {}, body), 20_000) for body in bodies))
        assert [bytes(reply.body) for reply in replies] == bodies
        assert tls.figures()["tlsHandshakes"] == 1
        await caller.close()


async def test_an_enforcing_port_closes_plain_connections(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(certified(tls_server_mode=TlsMode.ENFORCING)) as (server, tls):
        for _ in range(3):
            with pytest.raises(ConnectionFailed):
                await ask(server.address, None)
        assert await ask(server.address, trusting(authority())) == b"x"
        assert tls.figures()["plainConnectionsRefused"] == 3
    assert caplog.text.count("it speaks no TLS, and tls.server.mode=enforcing") == 1


async def test_a_port_without_tls_closes_a_hello() -> None:
    async with serving(SecurityConfig(tls_server_mode=TlsMode.DISABLED)) as (server, _):
        assert await ask(server.address, None) == b"x"
        with pytest.raises(ConnectionFailed, match="no TLS with it"):
            await ask(server.address, trusting(authority()))


async def test_clients_find_out_about_a_server_that_is_not_theirs() -> None:
    async with serving(certified(expired())) as (server, _):
        with pytest.raises(UntrustedServer, match="expired"):
            await ask(server.address, trusting(authority()))
    async with serving(certified(authority("elsewhere", ("10.9.8.7",)))) as (server, _):
        with pytest.raises(UntrustedServer, match=r"self-signed|unable to get"):
            await ask(server.address, trusting(authority()))
        with pytest.raises(UntrustedServer, match="mismatch"):
            await ask(server.address, trusting(authority("elsewhere", ("10.9.8.7",))))
        assert await ask(server.address, trusting(authority("elsewhere", ("10.9.8.7",)), check_host=False)) == b"x"


@pytest.mark.parametrize(("asked", "anonymous"), [(ClientAuth.REQUIRE, False), (ClientAuth.OPTIONAL, True)])
async def test_clients_show_a_certificate_where_one_is_asked_for(asked: ClientAuth, anonymous: bool) -> None:
    trust = str(authority() / "ca.pem")
    config = certified(tls_server_need_client_auth=asked, tls_server_trust_cert_path=trust, tls_server_auth_client=True)
    async with serving(config) as (server, tls):
        assert await ask(server.address, trusting(authority(), client=authority())) == b"x"
        if anonymous:
            assert await ask(server.address, trusting(authority())) == b"x"
        else:
            with pytest.raises(ConnectionFailed):
                await ask(server.address, trusting(authority()))
        stranger = authority("elsewhere", ("10.9.8.7",))
        with pytest.raises(ConnectionFailed):
            await ask(server.address, trusting(authority(), client=stranger))
        assert tls.figures()["tlsHandshakesFailed"] == 1 + (not anonymous)


async def test_a_new_certificate_is_taken_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "live"
    shutil.copytree(expired(), folder)
    async with serving(certified(folder)) as (server, tls):
        kept = Caller(tls=trusting(authority(), check_host=False))
        with pytest.raises(UntrustedServer):
            await kept.connect(server.address, 5_000)
        (folder / "server.pem").write_text("half")
        await until(lambda: "certificate not changed" in caplog.text)
        with pytest.raises(UntrustedServer):  # the old one stays
            await ask(server.address, trusting(authority()))
        for name in ("server.pem", "server.key"):
            shutil.copy(authority() / name, folder / name)
        await until(lambda: tls.reloads == 1)
        assert await ask(server.address, trusting(authority())) == b"x"
        await kept.close()


async def test_nonsense_inside_the_handshake_hurts_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_server, "HANDSHAKE_SECONDS", 0.2)
    async with serving(certified()) as (server, tls):
        for nonsense in (b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" + bytes(70_000)):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(nonsense)
            try:
                while await reader.read(1_000):
                    pass
            except ConnectionError:
                pass
            writer.close()
        assert await ask(server.address, trusting(authority())) == b"x"
        assert tls.figures()["tlsHandshakesFailed"] == 3
        await until(lambda: not server.connections)


async def test_without_the_program_that_makes_certificates_plain_connections_are_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(certificates, "PROGRAM", "no-such-program")
    context = trusting(authority())
    async with serving(SecurityConfig()) as (server, _):
        with pytest.raises(ConnectionFailed):
            await ask(server.address, context)
        assert await ask(server.address, None) == b"x"
    assert "openssl, which is not installed: install it" in caplog.text


async def test_messages_go_through_daemons_that_speak_nothing_but_tls(tmp_path: Path) -> None:
    trust = str(authority() / "ca.pem")
    security = certified(
        tls_server_mode=TlsMode.ENFORCING,
        tls_enable=True,
        tls_client_auth_server=True,
        tls_client_trust_cert_path=trust,
    )
    port, received = free_port(before=2), list[bytes]()
    async with asyncio.timeout(PATIENCE_SECONDS):
        name_server = NameServer(NameServerConfig(listen_port=0), NetConfig(), SystemClock(), security)
        await name_server.start()
        async with running(name_server.run):
            master = new_broker(tmp_path / "master", name_server.address, security, listen_port=port)
            await master.start()
            async with running(master.run):
                slave = new_broker(tmp_path / "slave", name_server.address, security, broker_id=1, listen_port=0)
                await slave.start()
                async with running(slave.run):
                    config = ClientConfig(namesrv=name_server.address, tls=True, tls_ca_file=trust)
                    for vip in (False, True):
                        link = dataclasses.replace(config, vip_channel_enabled=vip)
                        async with Producer("p", config=link) as producer:
                            await producer.send(Message("t", b"x"))
                    consumer = PushConsumer("g", config=config, consume_from=ConsumeFrom.FIRST_OFFSET)

                    def handler(message: ReceivedMessage) -> None:
                        received.append(bytes(message.body))

                    consumer.subscribe("t", "*", handler)
                    async with consumer:
                        await until(lambda: len(received) == 2)
                    await until(lambda: slave.store.max_physical_offset == master.store.max_physical_offset > 0)
                    for address in (name_server.address, master.address, f"127.0.0.1:{port - 2}"):
                        with pytest.raises(ConnectionFailed):
                            await ask(address, None)
                    assert await closes(int(master.ha_address(master.replicas).rpartition(":")[2]), bytes(8))
                    reply = await asked(master.address, RequestCode.GET_BROKER_RUNTIME_INFO, trusting(authority()))
                    assert b'"tlsServerMode":"enforcing"' in bytes(reply.body)


def new_broker(folder: Path, namesrv: str, security: SecurityConfig, *, broker_id: int = 0, listen_port: int) -> Broker:
    role = BrokerRole.SLAVE if broker_id else BrokerRole.ASYNC_MASTER
    return Broker(
        BrokerConfig(broker_name="a", broker_id=broker_id, namesrv_addr=namesrv, listen_port=listen_port),
        dataclasses.replace(SMALL_STORE, store_path_root_dir=str(folder)),
        replication=ReplicationConfig(broker_role=role, ha_listen_port=0, ha_tls_enable=True),
        security=security,
    )


async def asked(address: str, code: int, tls: ssl.SSLContext) -> Command:
    caller = Caller(tls=tls)
    try:
        return await caller.call(address, Command(code, {}), 10_000)
    finally:
        await caller.close()


async def closes(port: int, data: bytes) -> bool:
    """Return whether a plain connection is closed as soon as it says something."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True
    finally:
        writer.close()


# --- settings and commands


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tls.server.mode=on", "write one of disabled, permissive, enforcing"),
        ("tls.server.keyPath=/x", r"tls.server.keyPath must be given together with tls.server.certPath"),
        ("tls.server.need.client.auth=require", "tls.server.trustCertPath must be the CA of your clients"),
        ("tls.server.authClient=true", "else no client is asked for a certificate"),
        ("tls.server.mode=enforcing\ntls.test.mode.enable=false", "tls.server.certPath must be a certificate"),
        ("tls.client.trustCertPath=/x", "the daemon's own calls are plain"),
        ("tls.config.file=/nowhere", "cannot read /nowhere"),
    ],
)
def test_settings_that_would_protect_nothing_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SecurityConfig().with_properties(parse_properties(text))


def test_files_that_make_no_certificate_stop_the_start(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for certificate, words in ((tmp_path / "none.pem", "No such file"), (broken, "no PEM certificate")):
        config = SecurityConfig(tls_server_cert_path=str(certificate), tls_server_key_path=str(broken))
        with pytest.raises(ConfigError, match=words):
            ServerTls(config, SystemClock())
    config = certified(tls_server_need_client_auth=ClientAuth.REQUIRE, tls_server_trust_cert_path=str(broken))
    with pytest.raises(ConfigError, match="is no file of certificates to trust"):
        ServerTls(config, SystemClock())


def test_apaches_file_of_tls_is_read_and_its_password_is_shown_to_nobody(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.certPath=/c\ntls.server.keyPath=/k\ntls.server.keyPassword=hunter2\n")
    config = SecurityConfig().with_properties({"tls.config.file": str(file), "tls.server.certPath": "/other"})
    assert (config.tls_server_cert_path, config.tls_server_key_password) == ("/c", "hunter2")
    assert "hunter2" not in repr(config)
    file.write_text("tls.server.cert=/c\n")
    with pytest.raises(ConfigError, match=r"tls\.properties:1: tls\.server\.cert is no key of TLS"):
        SecurityConfig().with_properties({"tls.config.file": str(file)})


def test_tls_init_makes_what_a_cluster_needs(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    done = cosmodrome("tls", "init", "--dir", str(folder), "--host", "127.0.0.1")
    assert done.returncode == 0, done.stderr
    assert f"tls.server.certPath={folder / 'server.pem'}" in done.stdout
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.glob("*.key")} == dict.fromkeys(
        ("ca.key", "server.key", "client.key"), 0o600
    )
    context = trusting(folder, client=folder)
    assert context.get_ca_certs()
    again = cosmodrome("tls", "init", "--dir", str(folder))
    assert (again.returncode, "is there already" in again.stderr) == (1, True)
    wrong = cosmodrome("tls", "init", "--dir", str(tmp_path / "other"), "--host", "a b")
    assert (wrong.returncode, "no host name" in wrong.stderr) == (1, True)


def test_a_socket_that_says_nothing_is_a_connection_like_any_other() -> None:
    async def work() -> None:
        async with serving(certified()) as (server, _):
            with socket.create_connection(("127.0.0.1", server.port)):
                await until(lambda: len(server.connections) == 1)
            await until(lambda: not server.connections)

    asyncio.run(work())

"""The calling side with TLS: whom it trusts, and that it need not wait for a goodbye."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from cosmodrome.config import ClientConfig, NetConfig, TlsCheck
from cosmodrome.errors import BrokerError, ConfigError, ConnectionFailed, UntrustedServer
from cosmodrome.net.caller import Caller, refuse
from cosmodrome.net.connection import Connection
from cosmodrome.net.tls import client_context, connect_failure
from cosmodrome.wire.command import Command
from tests.bounded import PATIENCE_SECONDS

TIMEOUT_MS = 30_000


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For 127.0.0.1, by nobody but itself; the key lies beside it."""
    made = tmp_path_factory.mktemp("tls") / "server.crt"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=server"
    files = ["-keyout", str(made.with_suffix(".key")), "-out", str(made)]
    for_address = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *for_address, *files], check=True, capture_output=True)
    return made


async def echo(_connection: Connection, command: Command) -> Command:
    return command.reply(fields=command.fields)


@pytest_asyncio.fixture
async def address(certificate: Path) -> AsyncIterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(echo, NetConfig()), "127.0.0.1", 0, ssl=context)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


def caller(certificate: Path | str, check: TlsCheck = TlsCheck.FULL) -> Caller:
    return Caller(refuse, tls=client_context(str(certificate), check))


async def test_a_trusted_server(address: str, certificate: Path) -> None:
    for trusting in (caller(certificate), caller("", TlsCheck.NONE)):
        reply = await trusting.call(address, Command.request(1, fields={"body": "x" * 200_000}), TIMEOUT_MS)
        assert len(reply.fields["body"]) == 200_000
        await trusting.close()


async def test_an_untrusted_server_stays_so_while_it_is_not_tried(address: str) -> None:
    wary = caller("")
    with pytest.raises(UntrustedServer, match="self-signed"):
        await wary.call(address, Command.request(1), TIMEOUT_MS)
    with pytest.raises(UntrustedServer, match="next try in"):
        await wary.call(address, Command.request(1), TIMEOUT_MS)
    await wary.close()


async def test_a_caller_without_tls_is_told_what_may_be_missing(address: str) -> None:
    plain = Caller()
    with pytest.raises(ConnectionFailed, match="TLS only"):
        await plain.call(address, Command.request(1), TIMEOUT_MS)
    await plain.close()


async def test_a_server_without_tls() -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(echo, NetConfig()), "127.0.0.1", 0)
    secure = caller("", TlsCheck.NONE)
    with pytest.raises(ConnectionFailed, match="no TLS with it"):
        await secure.call(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", Command.request(1), TIMEOUT_MS)
    await secure.close()
    server.close()


@pytest.fixture
def silent(certificate: Path) -> Iterator[str]:
    """As Apache's servers: it leaves a connection open until the other side has closed the socket."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            accepted, _ = listening.accept()
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(incoming, outgoing, server_side=True)
            with accepted:
                while data := accepted.recv(65_536):
                    incoming.write(data)
                    try:
                        tls.do_handshake()
                    except ssl.SSLWantReadError:
                        pass
                    accepted.sendall(outgoing.read())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "nobody has closed the connection"


async def test_closing_waits_for_no_goodbye(silent: str, certificate: Path) -> None:
    calling = Caller(
        refuse, config=NetConfig(shutdown_grace_ms=3_600_000), tls=client_context(str(certificate), TlsCheck.FULL)
    )
    await calling.oneway(silent, Command.request(1))
    await calling.close()


def test_what_is_said_of_tls_must_agree() -> None:
    with pytest.raises(ConfigError, match="tls=True"):
        ClientConfig(tls_ca_file="ca.pem")
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        client_context("nowhere.pem", TlsCheck.FULL)


@pytest.mark.parametrize(
    ("code", "remark", "is_lasting"),
    [
        (1, "org.apache.rocketmq.acl.common.AclException: Check signature failed", True),
        (16, "check signature failed.", True),
        (16, "the broker[127.0.0.1] sending message is forbidden", False),
        (1, "something else", False),
        (2, "busy", False),
    ],
)
def test_refusals_that_waiting_does_not_mend(code: int, remark: str, is_lasting: bool) -> None:
    assert BrokerError(code, remark, "127.0.0.1:10911").is_lasting is is_lasting


@pytest.mark.parametrize(
    "text",
    [
        "[Errno 111] Connect call failed ('127.0.0.1', 9876)",
        "Multiple exceptions: [Errno 111] Connect call failed ('::1', 9876, 0, 0), "
        "[Errno 111] Connect call failed ('127.0.0.1', 9876)",
    ],
)
def test_a_refused_connect_is_told_in_the_words_of_the_system(text: str) -> None:
    told = str(connect_failure("localhost:9876", OSError(text), None))
    assert told == "localhost:9876: nothing listens there: [Errno 111] Connection refused"

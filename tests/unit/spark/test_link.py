"""Blocking connections: signed, encrypted, and several requests at a time."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import TlsCheck
from cosmodrome.errors import BrokerError, ConfigError, ConnectionFailed
from cosmodrome.spark.link import Cluster
from cosmodrome.spark.options import LinkOptions
from cosmodrome.wire.acl import SIGNATURE, Credentials
from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import FrameDecoder
from tests.bounded import PATIENCE_SECONDS

Answer = Callable[[Command], Command]


class Peer:
    """Answers two requests at a time, the later one first."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._tls = tls
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            try:
                with (
                    connection if self._tls is None else self._tls.wrap_socket(connection, server_side=True) as wrapped
                ):
                    self._serve(wrapped)
            except OSError:  # the other side did not like our certificate
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        decoder, waiting = FrameDecoder(), list[Command]()
        while data := connection.recv(65_536):
            decoder.feed(data)
            while (frame := decoder.take()) is not None:
                waiting.append(Command.decode(frame))
            if len(waiting) == 2:
                connection.sendall(b"".join(self._answer(command).encode() for command in reversed(waiting)))
                waiting.clear()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "a connection was left open"


def echo(command: Command) -> Command:
    return command.reply(fields=dict(command.fields))


@pytest.fixture
def peers() -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def make(answer: Answer = echo, tls: ssl.SSLContext | None = None) -> Peer:
        made.append(Peer(answer, tls))
        return made[-1]

    yield make
    for peer in made:
        peer.close()


def two(cluster: Cluster, address: str) -> list[Command]:
    codes = (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET)
    return cluster.ask_all([(address, Command.request(code, fields={"n": str(int(code))})) for code in codes])


def test_replies_are_matched_to_requests_that_are_under_way_together(peers: Callable[..., Peer]) -> None:
    cluster = Cluster(LinkOptions(("127.0.0.1:1",)))
    replies = two(cluster, peers().address)
    assert [reply.fields["n"] for reply in replies] == ["30", "31"]
    refusing = peers(lambda command: command.reply(ResponseCode.SYSTEM_BUSY, remark="full"))
    with pytest.raises(BrokerError, match="full"):
        two(cluster, refusing.address)
    cluster.close()


def test_requests_are_signed(peers: Callable[..., Peer]) -> None:
    cluster = Cluster(LinkOptions(("127.0.0.1:1",), "RocketMQ", "12345678", "token"))
    for reply in two(cluster, peers().address):
        unsigned = Command.request(RequestCode.GET_MAX_OFFSET, fields={"n": reply.fields["n"]})
        Credentials("RocketMQ", "12345678", "token").sign(unsigned)
        assert reply.fields == unsigned.fields
        assert reply.fields[SIGNATURE]
    cluster.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For 127.0.0.2, by nobody but itself."""
    made = tmp_path_factory.mktemp("tls") / "broker.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=broker"
    files = ["-keyout", str(made), "-out", str(made.with_suffix(".crt"))]
    for_address = ["-addext", "subjectAltName=IP:127.0.0.2"]
    subprocess.run([*command.split(), *for_address, *files], check=True, capture_output=True)
    made.write_text(made.read_text() + made.with_suffix(".crt").read_text())
    return made


def test_tls(peers: Callable[..., Peer], certificate: Path) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    peer = peers(tls=server)

    def link(check: TlsCheck, ca_file: str = "") -> Cluster:
        return Cluster(LinkOptions(("127.0.0.1:1",), tls=True, tls_ca_file=ca_file, tls_check=check))

    known = str(certificate.with_suffix(".crt"))
    for trusting in (link(TlsCheck.CA, known), link(TlsCheck.NONE)):
        assert [reply.fields["n"] for reply in two(trusting, peer.address)] == ["30", "31"]
        trusting.close()
    with pytest.raises(ConnectionFailed, match="IP address mismatch"):
        two(link(TlsCheck.FULL, known), peer.address)
    with pytest.raises(ConnectionFailed, match="self-signed certificate"):
        two(link(TlsCheck.CA), peer.address)
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        link(TlsCheck.FULL, "/nowhere.pem")

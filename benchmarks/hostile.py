"""How quick a healthy client is beside a peer that sends the name server of `up` the dearest requests there are.

    python -m benchmarks.hostile --seconds 5

Name server and broker share one process and one loop. For each attack: one process that repeats it over a few
connections as fast as it is answered, and here a producer that sends one small message after the other. What may be
looked at on a quiet machine is the 99th percentile of its sends: below 100 ms.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from cosmodrome import CosmodromeError, Message, Producer
from cosmodrome.codes import RequestCode
from cosmodrome.wire import name_server_requests as requests
from cosmodrome.wire.command import Command
from cosmodrome.wire.compression import compress
from cosmodrome.wire.frame import JSON, frame_head
from cosmodrome.wire.header import Header
from tests.system.daemons import Daemon, up

BODY_BYTES = 12_000_000
CONNECTIONS = 3
TOPIC = "healthy"
NONE = "none"


def _register(body: bytes) -> bytes:
    header = requests.RegisterBroker("hostile", "127.0.0.1:1", "C", 0, "")
    return _frame(RequestCode.REGISTER_BROKER, header, body)


def _frame(code: int, header: Header, body: bytes = b"") -> bytes:
    return Command.request(code, header, body).encode()


def _filled(begin: bytes, unit: bytes, end: bytes, size: int = BODY_BYTES) -> bytes:
    return begin + unit * ((size - len(begin) - len(end)) // len(unit)) + end


def _topics(count: int) -> bytes:
    topic = b'"topic-%d":{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicName":"t","writeQueueNums":4}'
    table = b",".join(topic % number for number in range(count))
    return b'{"topicConfigSerializeWrapper":{"dataVersion":{},"topicConfigTable":{%s}}}' % table


def _bomb() -> bytes:
    count = 1_000_000
    return compress(b"\0\0\0\x02{}" + count.to_bytes(4) + b"\0\0\0\x09a 1 1 6 x" * count, 9)[0]


def _lenient_header() -> bytes:
    header = _filled(b"{code:105,extFields:{", b"a:1,", b"a:1}}", 60_000)
    return frame_head(JSON, header, 0) + header


ATTACKS: dict[str, Callable[[], bytes]] = {
    "lenient-list": lambda: _register(_filled(b"[", b"a,", b",a]")),
    "lenient-escapes": lambda: _register(_filled(b"['", b"\\n", b"']")),
    "lenient-comments": lambda: _register(_filled(b"[", b"/**/", b"1,]")),
    "object-keys": lambda: _register(_filled(b"{", b'{"a":1}:1,', b'"a":1}')),
    "empty-objects": lambda: _register(_filled(b"[", b"{},", b"{}]")),
    "values-below-the-bound": lambda: _register(_filled(b"[", b'{"a":{}},', b"{}]", 1_000_000)),
    "deep": lambda: _register(b"[" * BODY_BYTES),
    "long-number": lambda: _register(b"[" + b"1" * BODY_BYTES + b",]"),
    "30000-topics": lambda: _register(_topics(30_000)),
    "compressed-bomb": lambda: _register(_bomb()),
    "kv-values": lambda: _frame(RequestCode.PUT_KV_CONFIG, requests.KvConfig("ns", "k", "v" * 60_000)),
    "lenient-header": _lenient_header,
}


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(0.1, 600), default=5.0, show_default=True, help="Length of one attack."
)
@click.option("--only", type=click.Choice(list(ATTACKS)), multiple=True, help="Only this; may be given again.")
@click.option("--attack", "attacked", nargs=2, hidden=True, help="Be the attacker: NAME ADDRESS.")
def main(seconds: float, only: tuple[str, ...], attacked: tuple[str, str] | None) -> None:
    """Measure the sends of a healthy client beside each attack."""
    if attacked is not None:
        _attack(*attacked)
        return
    for name in (NONE, *(only or ATTACKS)):
        with tempfile.TemporaryDirectory() as folder, up(Path(folder) / "data") as daemon, _attacker(name, daemon):
            took = sorted(asyncio.run(_send(daemon.address("name server"), seconds)))
        p50, p99 = _percentile(took, 0.5), _percentile(took, 0.99)
        click.echo(f"{name:24} {len(took):7} sends   p50 {p50:7.1f} ms   p99 {p99:7.1f} ms   max {took[-1]:7.1f} ms")


def _percentile(took: list[float], share: float) -> float:
    return took[min(int(len(took) * share), len(took) - 1)]


async def _send(namesrv: str, seconds: float) -> list[float]:
    took: list[float] = []
    async with Producer("healthy", namesrv) as producer:
        await producer.send(Message(TOPIC, b"first"))
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            with suppress(CosmodromeError):  # a refusal has its time too
                await producer.send(Message(TOPIC, b"x" * 100))
            took.append((time.perf_counter() - began) * 1_000)
    return took


@contextmanager
def _attacker(name: str, daemon: Daemon) -> Iterator[None]:
    if name == NONE:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.hostile", "--attack", name, daemon.address("name server")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # its request is made
        try:
            yield
        finally:
            process.kill()


def _attack(name: str, address: str) -> None:
    """Until killed: send, wait for the answer, send again; a connection that is closed is made again."""
    request = ATTACKS[name]()
    host, _, port = address.rpartition(":")
    click.echo("ready")
    sys.stdout.flush()
    open_ones: list[socket.socket] = []
    while True:
        while len(open_ones) < CONNECTIONS:
            open_ones.append(socket.create_connection((host, int(port)), 30))
        for connection in list(open_ones):
            try:
                connection.sendall(request)
                alive = bool(connection.recv(65_536))
            except OSError:
                alive = False
            if not alive:
                connection.close()
                open_ones.remove(connection)


if __name__ == "__main__":
    main()

"""`health`, `check`, `top`, `bench` and `debug bundle` on a live cluster."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import cosmodrome.testing
from cosmodrome import ConsumeFrom, Message
from cosmodrome.cli.debug import redacted
from cosmodrome.cli.main import main
from cosmodrome.testing.cluster import Cluster
from tests.bounded import child

PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cosmodrome.testing.cluster() as running:
        running.create_topic("orders", queues=1)
        with running.producer() as producer:
            producer.send(Message("orders", b"1"))
        consumer = running.push_consumer("billing", consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("orders", "*", lambda message: None)
        with consumer:
            running.wait_until_consumed("billing", "orders")
        with running.producer() as producer:
            for _ in range(5):
                producer.send(Message("orders", b"2"))
        yield running


def typed(cluster: Cluster, *words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(main, [*words, "-n", cluster.namesrv])
    assert done.exit_code == code, done.output
    return done


def test_health_names_every_part(cluster: Cluster) -> None:
    parts = json.loads(typed(cluster, "health", "-o", "json").stdout)
    assert [(part["kind"], part["name"], part["healthy"]) for part in parts] == [
        ("name server", cluster.namesrv, True),
        ("broker", "broker-a:0", True),
    ]
    assert typed(cluster, "health", "--watch", "0.2", "--exit-when-healthy").stdout.count("broker-a:0") == 1
    done = CliRunner().invoke(main, ["health", "-n", f"{cluster.namesrv};127.0.0.1:1"])
    assert (done.exit_code, "nothing listens there" in done.stdout) == (1, True)


def test_health_waits_for_a_cluster_and_gives_up() -> None:
    words = ["health", "--exit-when-healthy", "--watch", "0.2", "--timeout", "0.3", "-n", "127.0.0.1:1"]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stdout.count("127.0.0.1:1") >= 2) == (1, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("lag", "-w", "6", "-c", "9"), 0, "OK - lag: billing 5 | 'billing'=5;6;9"),
        (("lag", "-w", "5", "-c", "9"), 1, "WARNING - lag: billing 5"),
        (("lag", "-w", "1", "-c", "5"), 2, "CRITICAL - lag: billing 5"),
        (("lag", "--group", "none"), 3, "UNKNOWN - there is nothing to check: lag"),
        (("lag", "-w", "9", "-c", "5"), 3, "UNKNOWN - --warning 9 is above --critical 5"),
        (("lag", "--wrong"), 3, "UNKNOWN - No such option"),
        (("disk",), 0, "OK - disk used: broker-a:0 0% |"),
        (("replication",), 0, "OK - missing copies: broker-a 0"),
        (("dead-letters",), 0, "OK - dead letters: none 0"),
        (("health",), 0, "OK - 2 name servers and brokers answer"),
    ],
)
def test_a_check_is_one_line_and_an_exit_code(cluster: Cluster, words: tuple[str, ...], code: int, said: str) -> None:
    done = typed(cluster, "check", *words, code=code)
    assert done.stdout.startswith(said), done.output
    assert done.stdout.count("\n") == 1


def test_a_check_of_nothing_that_runs_is_unknown() -> None:
    done = CliRunner().invoke(main, ["check", "lag", "-n", "127.0.0.1:1"])
    assert (done.exit_code, done.stdout.startswith("UNKNOWN - 127.0.0.1:1: nothing listens")) == (3, True)
    done = CliRunner().invoke(main, ["check", "health", "-n", "127.0.0.1:1"])
    assert (done.exit_code, done.stdout.startswith("CRITICAL - name server 127.0.0.1:1")) == (2, True)


def test_top_prints_once_where_there_is_no_terminal(cluster: Cluster) -> None:
    shown = typed(cluster, "top").stdout
    assert "lag 5  brokers 1  groups 1" in shown
    assert "\x1b" not in shown
    assert typed(cluster, "top", "--times", "2", "--every", "0.2").stdout.count("LAG-S") == 2


def test_top_draws_on_a_terminal_and_q_quits(cluster: Cluster) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "cosmodrome", "top", "--every", "30", "-n", cluster.namesrv]
    with child(command, stdin=slave, stdout=slave, stderr=subprocess.STDOUT) as top:
        os.close(slave)
        shown = _read_until(master, b"billing")
        os.write(master, b"q")
        shown += _read_until(master, b"\x1b[?1049l")
        assert top.wait(PATIENCE_SECONDS) == 0
    os.close(master)
    assert shown.startswith(b"\x1b[?1049h")
    assert b"q quits" in shown


def _read_until(terminal: int, wanted: bytes) -> bytes:
    shown = b""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while wanted not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 1)[0]:
            try:
                shown += os.read(terminal, 65_536)
            except OSError:  # how a terminal says that its other end is closed
                break
    return shown


def test_a_bench_is_bounded_and_counts(cluster: Cluster) -> None:
    cluster.create_topic("bench", queues=1)
    words = ("--messages", "50", "--seconds", "20", "-o", "json")
    (sent,) = json.loads(typed(cluster, "bench", "produce", "bench", "--size", "100", *words).stdout)
    assert (sent["kind"], sent["messages"], sent["failed"]) == ("produce", 50, 0)
    assert 0 < sent["p50Ms"] <= sent["p99Ms"] <= sent["maxMs"]
    (read,) = json.loads(typed(cluster, "bench", "consume", "bench", *words).stdout)
    assert (read["messages"], read["p50Ms"]) == (50, None)
    (both,) = json.loads(
        typed(cluster, "bench", "latency", "bench", "--rate", "100", "--messages", "10", "-o", "json").stdout
    )
    assert (both["messages"], both["failed"]) == (10, 0)
    (few,) = json.loads(
        typed(cluster, "bench", "consume", "bench", "--seconds", "0.3", "--messages", "1000", "-o", "json").stdout
    )
    assert few["messages"] == 62, "the two runs that send begin with one more"


def test_a_bundle_has_what_is_needed_and_no_secret(cluster: Cluster, tmp_path: Path) -> None:
    keys = tmp_path / "tools.yml"
    keys.write_text("accessKey: rocketmq-user\nsecretKey: 'top-secret-1'\n")
    log = tmp_path / "broker.log"
    log.write_text("started\nlogin with secretKey=top-secret-2, token: top-secret-3 failed; key top-secret-1\n")
    conf = tmp_path / "broker.conf"
    conf.write_text('brokerName=broker-a\ntls.server.keyPassword=top-secret-4\nuser={"password": "top-secret-5"}\n')
    file = tmp_path / "bundle.zip"
    typed(
        cluster, "debug", "bundle", str(file), "--log", str(log), "-c", str(conf), "--credentials", str(keys)
    )  # fmt: skip
    with zipfile.ZipFile(file) as bundle:
        parts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert set(parts) >= {"doctor.json", "brokers.json", "topics.json", "logs/1-broker.log", "configs/1-broker.conf"}
    assert "group-without-members" in parts["doctor.json"]
    assert "brokerName=broker-a" in parts["configs/1-broker.conf"]
    assert "started" in parts["logs/1-broker.log"]
    assert not any("top-secret" in text for text in parts.values())
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "text",
    [
        "secretKey=SECRET",
        'innerClientAuthenticationCredentials={"accessKey":"SECRET","secretKey":"SECRET"}',
        '"secretKey": "SECRET with \\" a quote"',
        "initAuthenticationUser={password: SECRET}",
        "ROCKETMQ_SECRET_KEY: SECRET",
        "Signature=SECRET,",
        "securityToken = 'SECRET x'",
    ],
)
def test_values_of_secret_names_are_hidden(text: str) -> None:
    assert "SECRET" not in redacted(text).replace("SECRET_KEY", "")

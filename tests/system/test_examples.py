"""Every example runs, and prints what it should."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cosmodrome.testing import Cluster, cluster
from tests.bounded import alarm

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_SECONDS = 120
# What each prints, as regular expressions, line by line.
PRINTED = {
    "assignments": ["alone: 4 queues", "with another: 2 fewer"],
    "async_for": ["order 0, order 1, order 2"],
    "broadcasting": ["one got prices changed", "two got prices changed"],
    "by_config": ["one reads 0", "the other reads 1 2 3"],
    "compression": ["30000 bytes; less than a tenth of it on disk: 1 of 2"],
    "consume_from_time": ["begins with of today"],
    "consume_hooks": ["about to handle an order", "handled, or not: CONSUME_SUCCESS"],
    "consume_lists": ["a list of 5", "a list of 2", "stored 0 1 2 3 4"],
    "control": ["first", "paused", "second", "first again", "failed within the hour: 0"],
    "delay": ["three messages wait", "one was taken back"],
    "errors": [
        "SEND_OK",
        "mend the properties of the message for 'ex-errors': tags, keys and properties must not contain .*",
        "unknown: ConnectionFailed",
        "ConnectionFailed True",
        "too late",
    ],
    "filters": ["fruit: apple melon", "dear: lamp melon"],
    "finding": [
        *["by id: two apples - keys order-17 customer-4"] * 2,
        r"by key: two apples in queue [01] at 0",
        "the queue ends at 1",
    ],
    "guarded": ["let in: SEND_OK"],
    "hooks": ["sent to ex-hooks - SEND_OK", "refused: no sends on sundays"],
    "lite_pull_consumer": ["first second - committed True"],
    "machine_rooms": ["of broker-a in the east, the east reads 4 queues and the west 0"],
    "namespace": [
        "red sent to ex-namespace",
        "blue sent to ex-namespace",
        "brokers call it blue%ex-namespace - for blue",
    ],
    "orderly_commit": ["booking -5 5", "booking -5 5"],
    "orderly_consumer": ["created > bank asked > paid > sent"],
    "pull_consumer": ["found 5"],
    "push_consumer": ["billed order 1 key 1"],
    "push_consumer_blocking": ["billed, order 0, order 1, order 2"],
    "request_reply": ["apples cost 3.50", "pears cost 4.20"],
    "retry": ["try 1", "try 2", "given up: impossible"],
    "send": [r"SEND_OK [0-9A-F]{32} in broker-a at \d+"],
    "send_async": ["100 stored", "called back: SEND_OK"],
    "send_batch": [
        "10 messages in one batch",
        *["4 messages in a batch of at most 4 MB"] * 2,
        "2 messages in a batch of at most 4 MB",
    ],
    "send_blocking": ["SEND_OK 0", "SEND_OK 1", "SEND_OK 2"],
    "send_oneway": ["handed over"],
    "send_options": [
        "7000 bytes, fewer than 500 on disk: True",
        "refused: the topic name 'ex options' is illegal; .*",
    ],
    "send_ordered": [
        r"created in queue (\d) at 0",
        r"paid in queue (\d) at 1",
        r"sent in queue (\d) at 2",
        r"customer 4711 in queue \d",
    ],
    "strategies": ["4 queues shared by two"],
    "topic_reader": ["event 0, event 1, event 2"],
    "trace": ["now type: cosmodrome trace [0-9A-F]{32}"],
    "transaction": ["SEND_OK COMMIT"],
    "transaction_table": ["7 COMMIT"],
    "unsubscribe": ["ex-sports: 2:1", "ex-news: sunny"],
}
TESTED_ELSEWHERE = {"spark_orders", "test_orders"}


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


def test_none_is_left_out() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == PRINTED.keys() | TESTED_ELSEWHERE


@pytest.mark.parametrize("name", PRINTED)
def test_it_prints(
    name: str, node: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", node.namesrv)
    with alarm(PATIENCE_SECONDS):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(PRINTED[name]), printed
    for line, pattern in zip(printed, PRINTED[name], strict=True):
        assert re.fullmatch(pattern, line), printed


def test_the_tests_among_them_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py"]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout

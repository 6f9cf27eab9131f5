"""The recipe of docs/transactions.md: money that is billed once, whenever the producer is killed."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from cosmodrome import ConsumeFrom, Message, PushConsumer, ReceivedMessage, TransactionState
from cosmodrome.config import BrokerConfig
from tests.system.billing import CENTS, load_example
from tests.system.cluster import SMALL_STORE, running_broker, running_name_server

PATIENCE_SECONDS = 180  # seconds of a busy machine; an idle one needs two
# A producer is asked soon and often.
HASTY = BrokerConfig(
    broker_name="broker-a", transaction_time_out=0, transaction_check_interval=100, transaction_check_max=10_000
)


async def test_an_order_is_billed_once_and_its_message_delivered_wherever_the_producer_dies(tmp_path: Path) -> None:
    path = tmp_path / "billing.db"
    received: Counter[str] = Counter()  # by transaction
    orders: Counter[str] = Counter()

    def receive(message: ReceivedMessage) -> None:
        received[message.transaction_id] += 1
        orders[message.keys] += 1

    async with (
        running_name_server() as name_server,
        running_broker(tmp_path / "broker", name_server.address, HASTY, SMALL_STORE) as broker,
    ):
        consumer = PushConsumer("accounting", name_server.address, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("ex-bills", "*", receive)
        lives = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.system.billing", name_server.address),
            env={**os.environ, "BILLING_DATABASE": str(path)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert lives.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), consumer:
                said: list[str] = []
                while "all billed" not in said:
                    line = await lives.stdout.readline()
                    assert line, said
                    said.append(line.decode().rstrip())
                while len(broker.transactions):  # noqa: ASYNC110  # until all are decided; nothing tells
                    await asyncio.sleep(0.01)
                with closing(sqlite3.connect(path)) as db:
                    states = dict(db.execute("select id, state from transactions"))
                    bills = dict(db.execute("select order_id, cents from bills"))
                committed = {id for id, state in states.items() if state == "committed"}
                while not received.keys() >= committed:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                lives.stdin.close()  # type: ignore[union-attr]
                await lives.wait()
        finally:
            if lives.returncode is None:
                lives.kill()
                await lives.wait()
    killed_in = {line.removeprefix("killed ").partition(":")[0] for line in said if line.startswith("killed ")}
    assert killed_in >= {"bill_all", "bill", "before end", "after end"}
    assert len(bills) >= len([line for line in said if line.startswith("killed ")])
    assert set(bills.values()) == {CENTS}
    assert received == dict.fromkeys(committed, 1)
    assert orders == dict.fromkeys(bills, 1)


def test_a_check_that_comes_first_keeps_the_order_from_being_billed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker was told to drop the message: what is still executing must not bill any more."""
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:9876")  # to be restored
    monkeypatch.setenv("BILLING_DATABASE", str(tmp_path / "billing.db"))
    example = load_example("127.0.0.1:9876")
    with closing(example.database()) as db:
        db.executescript(example.TABLES)
    message = Message("ex-bills", b"billed", transaction_id="T1")
    assert example.check(message) is TransactionState.ROLLBACK
    assert example.bill(message, "7", 100) is TransactionState.ROLLBACK
    again = Message("ex-bills", b"billed", transaction_id="T2")
    assert example.bill(again, "7", 100) is TransactionState.COMMIT
    assert [example.check(one) for one in (again, message)] == [TransactionState.COMMIT, TransactionState.ROLLBACK]
    twice = Message("ex-bills", b"billed", transaction_id="T3")
    assert example.bill(twice, "7", 100) is TransactionState.ROLLBACK
    assert example.check(twice) is TransactionState.ROLLBACK
    with closing(example.database()) as db:
        assert db.execute("select * from bills").fetchall() == [("7", 100)]

"""An order that is billed once, and a message that is delivered if it was and only then, by a table in SQLite."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing

from cosmodrome.blocking import Message, ReceivedMessage, TransactionProducer, TransactionState

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
DATABASE = os.environ.get("BILLING_DATABASE") or f"{tempfile.mkdtemp()}/billing.db"
TABLES = """
    create table if not exists bills (order_id text primary key, cents integer not null);
    create table if not exists transactions (id text primary key, state text not null);
"""


def database() -> sqlite3.Connection:
    return sqlite3.connect(DATABASE, timeout=30)


def bill(message: Message, order_id: str, cents: int) -> TransactionState:
    """Bill the order, and write the transaction down, in one transaction of the database."""
    try:
        with closing(database()) as db, db:
            db.execute("insert into transactions values (?, 'committed')", [message.transaction_id])
            db.execute("insert into bills values (?, ?)", [order_id, cents])
    except sqlite3.IntegrityError:  # the order is billed already, or a check was faster: nothing was done here
        return TransactionState.ROLLBACK
    return TransactionState.COMMIT


def check(message: ReceivedMessage) -> TransactionState:
    """Say what became of a transaction. One that is not in the table never will be: its id is taken from now on."""
    with closing(database()) as db, db:
        row = [message.transaction_id]
        db.execute("insert into transactions values (?, 'rolled back') on conflict do nothing", row)
        (state,) = db.execute("select state from transactions where id = ?", row).fetchone()
    return TransactionState.COMMIT if state == "committed" else TransactionState.ROLLBACK


def bill_all(orders: dict[str, int]) -> None:
    """Bill each order that is not billed yet. It may be called again after a crash, and by several at once."""
    with closing(database()) as db, db:
        db.executescript(TABLES)
        billed = {order_id for (order_id,) in db.execute("select order_id from bills")}
    with TransactionProducer("ex-billing", NAMESRV, check=check) as producer:
        for order_id in orders.keys() - billed:
            message = Message("ex-bills", b"billed", keys=order_id)
            result = producer.send_in_transaction(message, bill, order_id, orders[order_id])
            print(order_id, result.state.name)


if __name__ == "__main__":
    bill_all({"7": 1_999})
    bill_all({"7": 1_999})  # as after a restart

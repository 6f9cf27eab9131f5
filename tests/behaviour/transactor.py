"""An application that sends in transactions until it is killed, and the ledger that says what it has done.

    python -m tests.behaviour.transactor NAMESRV GROUP TOPIC LEDGER SEED FIRST

Its transactions have the numbers FIRST, FIRST + 1, …; it prints the number of each that it is about to decide.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path
from random import Random
from threading import Lock

from cosmodrome import Message, ReceivedMessage, TransactionProducer, TransactionState
from cosmodrome.errors import ClientError

SENDERS = 8
MAX_PAUSE_S = 0.01
UNKNOWN_SHARE = 0.3  # of what is decided without telling the broker, who has to ask
ASK_AGAIN_SHARE = 0.1  # of the broker's questions that are not answered
UNDECIDED_SHARE = 0.2  # of what the application gives up on before it has decided
LOCK_TIMEOUT_S = 30


class Ledger:
    """The application's own database: what is in it has happened, whoever is killed next."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, check_same_thread=False)
        self._lock = Lock()
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        with self._database as database:
            database.execute("CREATE TABLE IF NOT EXISTS fates (number INTEGER PRIMARY KEY, state INTEGER NOT NULL)")

    def close(self) -> None:
        self._database.close()

    def settle(self, number: int, state: TransactionState) -> TransactionState:
        """Decide, if nobody has; returns what was decided, once it is on disk."""
        with self._lock:
            with self._database as database:
                database.execute("INSERT OR IGNORE INTO fates VALUES (?, ?)", (number, int(state)))
            (decided,) = self._database.execute("SELECT state FROM fates WHERE number = ?", (number,)).fetchone()
        return TransactionState(decided)

    @property
    def committed(self) -> set[int]:
        return self._numbers(f"WHERE state = {int(TransactionState.COMMIT)}")

    @property
    def decided(self) -> set[int]:
        return self._numbers("")

    def _numbers(self, which: str) -> set[int]:
        with self._lock:
            return {number for (number,) in self._database.execute(f"SELECT number FROM fates {which}")}

    def check(self, message: ReceivedMessage) -> TransactionState:
        """What became of a transaction; one that has not been decided by now never will be."""
        return self.settle(number_of(message), TransactionState.ROLLBACK)


def number_of(message: Message | ReceivedMessage) -> int:
    return int(message.body)


class Application:
    def __init__(self, ledger: Ledger, random: Random) -> None:
        self._ledger = ledger
        self._random = random

    async def execute(self, message: Message) -> TransactionState:
        """Commit, roll back or give up; and then tell the broker or not."""
        print(number_of(message), flush=True)
        await self._pause()
        if self._random.random() < UNDECIDED_SHARE:
            return TransactionState.UNKNOWN
        wanted = self._random.choice((TransactionState.COMMIT, TransactionState.COMMIT, TransactionState.ROLLBACK))
        decided = await asyncio.to_thread(self._ledger.settle, number_of(message), wanted)
        await self._pause()
        return TransactionState.UNKNOWN if self._random.random() < UNKNOWN_SHARE else decided

    async def check(self, message: ReceivedMessage) -> TransactionState:
        if self._random.random() < ASK_AGAIN_SHARE:
            return TransactionState.UNKNOWN
        return await asyncio.to_thread(self._ledger.check, message)

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.random() * MAX_PAUSE_S)


async def main(namesrv: str, group: str, topic: str, ledger: str, seed: str, first: str) -> None:
    application = Application(Ledger(Path(ledger)), Random(f"{seed} {first}"))
    numbers = iter(range(int(first), sys.maxsize))
    async with TransactionProducer(group, namesrv, check=application.check, max_tries=1) as producer:

        async def send() -> None:
            for number in numbers:
                try:
                    await producer.send_in_transaction(Message(topic, str(number).encode()), application.execute)
                except ClientError as error:
                    print(error, file=sys.stderr)

        await asyncio.gather(*(send() for _ in range(SENDERS)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

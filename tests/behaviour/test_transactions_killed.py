"""Applications that are killed in the middle of their transactions: exactly what they committed arrives."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from cosmodrome import Message, TransactionProducer, TransactionState
from interop.child import Child
from interop.lab import OURS
from tests.behaviour.clusters import Cluster
from tests.behaviour.support import Inbox, consumer, fresh, until
from tests.behaviour.transactor import Application, Ledger, number_of

SEED = 5
KILLS = 6
TRANSACTIONS_PER_LIFE = 50, 100
NUMBERS_PER_LIFE = 10_000
LIFE_TIMEOUT_S = 120  # most transactions wait for the disk
LAST = KILLS * NUMBERS_PER_LIFE


async def test_exactly_what_was_committed_arrives(
    cluster: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    topic, group = fresh("topic"), fresh("producer")
    cluster.create_topic(topic, 2)
    random, inbox, ledger = Random(SEED), Inbox(), Ledger(tmp_path / "ledger.sqlite")
    heir = TransactionProducer(group, cluster.namesrv, check=Application(ledger, random).check, max_tries=1)
    async with heir, consumer(cluster, fresh("group"), topic, inbox):
        await heir.publish_queues(topic)  # makes it known to the brokers, who may ask it from now on
        begun: set[int] = set()
        for first in range(0, LAST, NUMBERS_PER_LIFE):
            words = [cluster.namesrv, group, topic, str(tmp_path / "ledger.sqlite"), str(SEED), str(first)]
            begun |= await asyncio.to_thread(live, words, random.randint(*TRANSACTIONS_PER_LIFE), tmp_path / "log")
        await until(lambda: begun <= ledger.decided, lambda: f"undecided {begun - ledger.decided}")
        # By the time that these have been asked about, everything before them has been again.
        for last in (LAST, LAST + 1):
            await heir.send_in_transaction(Message(topic, str(last).encode()), undecided(ledger))
            await until(partial(has_arrived, inbox, last))
        await until(lambda: set(arrived(inbox)) >= ledger.committed, lambda: ledger.committed - set(arrived(inbox)))
    counts, committed, decided = arrived(inbox), ledger.committed, ledger.decided
    ledger.close()
    assert set(counts) == committed
    assert len(committed) > 100
    assert len(decided - committed) > 50
    repeated = {number: count for number, count in counts.items() if count > 1}
    record_property("transactions", len(begun))
    record_property("repeated", len(repeated))
    print(f"{cluster.name}: {len(begun)} begun, {len(committed)} committed, {len(repeated)} of them repeated")
    if cluster.name == OURS:  # Apache's commits once per answer, if one comes after it has asked again
        assert not repeated


def live(words: list[str], transactions: int, log: Path) -> set[int]:
    """Run an application, and kill it in the middle of that many transactions; returns those it began."""
    with Child("transactor", [sys.executable, "-m", "tests.behaviour.transactor", *words], log) as application:
        application.wait_until(
            lambda: True if len(application.lines) >= transactions else None,
            LIFE_TIMEOUT_S,
            f"{transactions} transactions",
        )
        application.kill()
        return set(map(int, application.lines))


def undecided(ledger: Ledger) -> Callable[[Message], TransactionState]:
    """Commit, but leave it to the broker to find out."""

    def execute(message: Message) -> TransactionState:
        ledger.settle(number_of(message), TransactionState.COMMIT)
        return TransactionState.UNKNOWN

    return execute


def has_arrived(inbox: Inbox, number: int) -> bool:
    return number in arrived(inbox)


def arrived(inbox: Inbox) -> Counter[int]:
    return Counter(number_of(message) for message in inbox.messages)

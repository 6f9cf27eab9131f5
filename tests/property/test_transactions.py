"""Whatever happens to a broker, its committed transactions are delivered once and the others never."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cosmodrome.store import Appended
from cosmodrome.testing import FakeClock
from cosmodrome.wire.requests import CheckTransactionState
from tests.unit.broker.exchange import COMMIT, ROLLBACK, UNDECIDED, Exchange
from tests.unit.store.kit import crash

CHECK_INTERVAL_MS = 30_000
# The rounds in which it is immune, those in which it is asked about, and the one that gives it up.
ENOUGH_CHECKS = 3 + 15 + 1

picks = st.integers(min_value=0, max_value=2**31)


@dataclass
class Story:
    """A transaction as its producer knows it."""

    body: bytes
    fate: int
    half: Appended


class Lives(RuleBasedStateMachine):
    """Producers begin and end transactions; the broker checks, stops, is killed, or loses its power."""

    @initialize()
    def begin_first_life(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="transactions-"))
        self.clock = FakeClock()
        self.stories: list[Story] = []
        self.asked: list[tuple[CheckTransactionState, Story]] = []
        self.number = 0
        self.start()

    def start(self) -> None:
        self.exchange = Exchange(self.folder, self.clock)
        self.producer = self.exchange.connect()

    def do(self, step: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(step)

    # --- producers

    @rule(fate=st.sampled_from([COMMIT, ROLLBACK, UNDECIDED]), immune=st.booleans())
    def send(self, fate: int, immune: bool) -> None:
        self.number += 1
        body = b"message %d" % self.number
        properties = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"} if immune else {}
        self.stories.append(Story(body, fate, self.exchange.send(body, **properties)))

    @precondition(lambda self: self.stories)
    @rule(pick=picks)
    def end(self, pick: int) -> None:
        """For the first time or again, in time or late."""
        self.decide(self.stories[pick % len(self.stories)])

    def decide(self, story: Story) -> None:
        if story.fate != UNDECIDED:
            self.do(self.exchange.end(story.half, story.fate))

    @precondition(lambda self: self.asked)
    @rule(pick=picks)
    def answer(self, pick: int) -> None:
        question, story = self.asked.pop(pick % len(self.asked))
        if story.fate != UNDECIDED:
            self.do(self.exchange.end(question, story.fate))

    # --- the broker

    @rule(ms=st.sampled_from([1_000, CHECK_INTERVAL_MS, 5 * CHECK_INTERVAL_MS]))
    def check(self, ms: int) -> None:
        self.do(self.exchange.check_after(ms))
        by_body = {story.body: story for story in self.stories}
        self.asked += [(question, by_body[record.body]) for question, record in self.producer.take()]

    @rule()
    def flush(self) -> None:
        self.do(self.exchange.flush())

    @rule()
    def save(self) -> None:
        self.do(self.exchange.save())

    @rule()
    def stop(self) -> None:
        self.do(self.exchange.stop())
        self.start()

    @rule()
    def kill(self) -> None:
        self.exchange.kill()
        self.start()

    @precondition(lambda self: self.number)
    @rule(share=st.floats(min_value=0, max_value=1))
    def lose_power(self, share: float) -> None:
        """Of what is not flushed, the disk has the first part."""
        store = self.exchange.store
        flushed, end = store.flusher.flushed, store.max_physical_offset
        cut = flushed + int((end - flushed) * share)
        crash(store)
        with (self.folder / "commitlog" / f"{0:020}").open("r+b") as log:
            log.seek(cut)
            log.write(bytes(end - cut))
        self.stories = [story for story in self.stories if story.half.end <= cut]
        self.start()
        left = self.exchange.store.max_physical_offset
        self.asked = [(question, story) for question, story in self.asked if question.commit_log_offset < left]

    # --- what must hold

    @invariant()
    def only_what_was_committed_is_there_and_once(self) -> None:
        if not hasattr(self, "exchange"):
            return
        wanted = {story.body for story in self.stories if story.fate == COMMIT}
        delivered = self.exchange.delivered
        assert set(delivered) <= wanted
        assert delivered.total() == len(delivered)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self.see_to_the_end()
        finally:
            self.exchange.kill()
            self.loop.close()
            shutil.rmtree(self.folder)

    def see_to_the_end(self) -> None:
        for _ in range(ENOUGH_CHECKS):
            self.check(CHECK_INTERVAL_MS)
            while self.asked:
                self.answer(0)
        assert len(self.exchange.transactions) == 0
        given_up = Counter(self.exchange.given_up)
        assert given_up.total() == len(given_up)
        assert {story.body for story in self.stories if story.fate == UNDECIDED} <= set(given_up)
        for story in self.stories:  # also those given up because they were never answered for
            self.decide(story)
        assert self.exchange.delivered == Counter(story.body for story in self.stories if story.fate == COMMIT)


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)

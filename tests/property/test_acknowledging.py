"""Random takers of one queue: nothing unacknowledged is ever passed by a commit, and nothing is lost."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.client.feed import Feed, MessageStream
from cosmodrome.client.process_queue import ProcessQueue
from cosmodrome.client.pulled_message import PulledMessage
from cosmodrome.client.sending_back import LOCAL_RETRY_MS
from cosmodrome.client.watching import Watch
from cosmodrome.model import ReceivedMessage
from cosmodrome.testing import FakeClock
from tests.unit.client.messages import pulled

SENT = 40
STEPS = ["ack", "leave", "fail", "cancel", "poll", "seek", "rebalance", "pause", "resume"]
STEPS += ["fetch"] * 4 + ["take"] * 8 + ["resume"] * 2


class Group:
    """One queue of a group, as its broker sees it, and a consumer that reads it through a feed."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.clock = FakeClock()
        self.committed = 0
        self.done: set[int] = set()  # acknowledged, or back at the broker
        self.refusing = False
        self.feed = Feed(self.clock, self.send_back, Watch("g"))
        self.process = ProcessQueue(0)
        self.loops: list[MessageStream] = []
        self.taken: dict[int, PulledMessage] = {}  # by loop, what its body has
        self.polled: list[PulledMessage] = []

    async def send_back(self, message: ReceivedMessage, _delay_level: int) -> bool:
        if self.refusing:
            return False
        self.note(message)
        return True

    def note(self, message: ReceivedMessage) -> None:
        """The queue may have gone meanwhile; then the acknowledgement is no use."""
        assert isinstance(message, PulledMessage)
        if message.open:
            self.done.add(message.queue_offset)

    async def step(self, name: str) -> None:
        await getattr(self, f"_{name}")()
        commit = self.process.commit_offset
        assert all(offset in self.done for offset in range(commit)), f"{commit} passes what is not done"

    # --- steps

    async def _fetch(self) -> None:
        first = self.process.next_offset
        end = min(first + self.random.randint(1, 5), SENT)
        messages = [pulled(offset=offset) for offset in range(first, end)]
        if messages:
            self.process.put(messages, end)
            self.feed.put(messages, self.process)

    async def _take(self) -> None:
        """A loop, perhaps a new one, asks for its next message: what it had is acknowledged."""
        if not self.loops or self.random.random() < 0.3:
            self.loops.append(self.feed.messages(auto_ack=True))
        loop = self.random.choice(self.loops)
        before = self.taken.pop(id(loop), None)
        if before is not None and before in loop.in_hand:
            self.note(before)
        asking = asyncio.create_task(loop.__anext__())
        await asyncio.sleep(0)
        if asking.done():
            message = asking.result()
            assert message.process is self.process, "handed out of a queue that is gone"
            assert not any(message is other for other in self.taken.values()), "handed out twice"
            self.taken[id(loop)] = message
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    def _in_hand(self) -> PulledMessage | None:
        held = [message for loop in self.loops for message in loop.in_hand]
        return self.random.choice(held) if held else None

    def _forget(self, message: PulledMessage) -> None:
        """Its body did not come to an end."""
        self.taken = {loop: held for loop, held in self.taken.items() if held is not message}

    async def _ack(self) -> None:
        if (message := self._in_hand()) is not None:
            self.note(message)
            async with message:
                pass

    async def _fail(self) -> None:
        if (message := self._in_hand()) is not None:
            self._forget(message)
            self.refusing = self.random.random() < 0.5
            try:
                async with message:
                    raise RuntimeError("told to fail")
            except RuntimeError:
                pass
            if self.refusing:
                await self.clock.advance(LOCAL_RETRY_MS)

    async def _cancel(self) -> None:
        if (message := self._in_hand()) is not None:
            self._forget(message)
            try:
                async with message:
                    raise asyncio.CancelledError
            except asyncio.CancelledError:
                pass

    async def _leave(self) -> None:
        """A break."""
        if self.loops:
            loop = self.loops.pop(self.random.randrange(len(self.loops)))
            self.taken.pop(id(loop), None)
            del loop

    async def _poll(self) -> None:
        for message in self.polled:
            self.note(message)
            message.ack()
        self.polled = self.feed.take_some(3, self)

    async def _seek(self) -> None:
        self._let_go()
        offset = self.random.randint(0, SENT)
        # Where an application seeks is its own choice: all before counts as done, and all behind comes again.
        self.done = set(range(offset))
        self.process = ProcessQueue(offset)

    async def _rebalance(self) -> None:
        """The queue goes away with what is committed, and comes back."""
        self.committed = self.process.commit_offset
        self._let_go()
        self.process = ProcessQueue(self.committed)
        self.done = {offset for offset in self.done if offset < self.committed}

    def _let_go(self) -> None:
        self.process.released = True
        self.feed.ready.drop(self.process)

    async def _pause(self) -> None:
        self.feed.ready.pause([pulled().queue])

    async def _resume(self) -> None:
        self.feed.ready.resume([pulled().queue])

    async def finish(self) -> None:
        """Everybody leaves, and one loop takes all that is left."""
        self.refusing = False
        await self._resume()
        self.loops.clear()
        self.taken.clear()
        await self.clock.advance(LOCAL_RETRY_MS)
        while self.polled or self.feed.ready or self.process.next_offset < SENT:
            await self.step("fetch")
            await self.step("poll")
        await self.feed.drained(0, but_for=None)


@given(st.lists(st.sampled_from(STEPS), min_size=40, max_size=100), st.integers(0, 2**32))
def test_nothing_unacknowledged_is_passed_and_nothing_is_lost(steps: list[str], seed: int) -> None:
    async def run() -> None:
        group = Group(Random(seed))
        for name in steps:
            await group.step(name)
        await group.finish()
        assert group.done == set(range(SENT))
        assert group.process.commit_offset == SENT

    asyncio.run(run())

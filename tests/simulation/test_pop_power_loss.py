"""The power fails at any moment: no message that was on disk and not acked is lost, popped or not."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from cosmodrome.broker.consumer_offsets import ConsumerOffsets
from cosmodrome.broker.groups import Groups
from cosmodrome.broker.pop.messages import ack_message, checkpoint_message, revive_topic
from cosmodrome.broker.pop.revive import Revives
from cosmodrome.broker.topics import Topics
from cosmodrome.config import BrokerConfig
from cosmodrome.model import TopicConfig
from cosmodrome.store import MessageStore
from cosmodrome.testing import FakeClock, FaultyDisk, Moment
from cosmodrome.wire.bodies import Ack, CheckPoint
from cosmodrome.wire.pop import pop_retry_topic
from tests.simulation.power_cuts import Promises, lost
from tests.unit.broker.office import STORE as STORE_CONFIG
from tests.unit.store.kit import STORE as HOST
from tests.unit.store.kit import bodies, kill, message

SEEDS = 10
MAX_SEEDS = 40  # in which a mistake must show
STEPS = 40
TOPIC, GROUP, QUEUE_ID = "orders", "billing", 0
RETRY = pop_retry_topic(TOPIC, GROUP)
CONFIG = BrokerConfig(broker_name="broker-a")
REVIVE = revive_topic(CONFIG.broker_cluster_name)
INVISIBLE_MS = 5_000


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nothing_that_was_not_acked_is_lost_with_the_power(tmp_path: Path, seed: int) -> None:
    assert await lost(tmp_path, seed, _live, _left_after) == set()


async def test_saving_offsets_before_what_they_stand_for_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConsumerOffsets, "commit_ahead", lambda self, *place: self.commit(*place[:4]))
    for seed in range(MAX_SEEDS):
        if await lost(tmp_path / str(seed), seed, _live, _left_after):
            return
    pytest.fail("nothing was lost")


class Shop:
    """Everything that pop needs but the timer wheel: checkpoints and acks are in their queue at once."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.clock = clock
        self.store = MessageStore.open(folder, STORE_CONFIG, clock)
        self.offsets = ConsumerOffsets(folder / "config" / "consumerOffset.json", clock)
        self.topics = Topics(CONFIG, folder / "config" / "topics.json", clock, lambda: None)
        self.topics.put(TopicConfig(TOPIC, 1, 1))
        groups = Groups(CONFIG, folder / "config" / "subscriptionGroup.json", clock)
        self.revives = Revives(
            self.store, self.offsets, self.topics, groups, clock, CONFIG, self.store.append, clock.now_ms
        )

    def pop(self, topic: str, count: int) -> list[tuple[bytes, Ack, int]]:
        """What is taken: each body, its ack, and until when that is in time."""
        start = self.offsets.find_offset(GROUP, topic, QUEUE_ID) or 0
        taken = bodies(self.store, topic)[start : start + count]
        if not taken:
            return []
        offsets = tuple(range(start, start + len(taken)))
        point = CheckPoint(topic, GROUP, QUEUE_ID, start, offsets, self.clock.now_ms(), INVISIBLE_MS, "broker-a")
        end = self.store.append(checkpoint_message(point, REVIVE, 0, point.pop_time_ms, HOST)).end
        self.offsets.commit_ahead(GROUP, topic, QUEUE_ID, start + len(taken), end)
        acks = (Ack(topic, GROUP, QUEUE_ID, start, (at,), point.pop_time_ms, "broker-a") for at in offsets)
        return [(body, ack, point.revive_ms) for body, ack in zip(taken, acks, strict=True)]

    def ack(self, ack: Ack, revive_ms: int) -> None:
        self.store.append(ack_message(ack, REVIVE, 0, revive_ms, self.clock.now_ms(), HOST))

    async def flush(self) -> None:
        self.store.flusher.stop()  # a stopped flusher flushes once and ends
        await self.store.flusher.run()

    async def save(self) -> None:
        self.offsets.settle(self.store.flusher.flushed, self.store.max_physical_offset)
        await self.offsets.saved()


async def _live(home: Path, disk: FaultyDisk, random: Random) -> Promises:
    """From which moment on which messages must come."""
    clock = FakeClock()
    shop = Shop(home, clock)
    sent, acked, on_disk = set[bytes](), set[bytes](), set[bytes]()
    out: list[tuple[bytes, Ack, int]] = []
    promises: Promises = []
    actions = ["send", "pop", "ack", "wait", "flush", "save"]
    for action in random.choices(actions, weights=[4, 4, 2, 2, 2, 4], k=STEPS):
        if action == "send":
            body = b"%d" % len(sent)
            shop.store.append(message(TOPIC, QUEUE_ID, body))
            sent.add(body)
        elif action == "pop":
            out += shop.pop(random.choice([TOPIC, RETRY]), random.randint(1, 4))
        elif action == "ack" and out:
            body, ack, revive_ms = out.pop(random.randrange(len(out)))
            shop.ack(ack, revive_ms)
            acked.add(body)
        elif action == "wait":
            await clock.advance(random.choice([500, INVISIBLE_MS]))
            await shop.revives.round()
        elif action == "flush":
            await shop.flush()
            on_disk = set(sent)
        else:
            await shop.save()
        promises.append((len(disk.moments), on_disk - acked))
        disk.mark(action)
    kill(shop.store)
    return promises


async def _left_after(moment: Moment, folder: Path, random: Random) -> set[bytes]:
    """What the group can still get, if the machine comes back as this moment left it."""
    moment.materialise(folder, random)
    shop = Shop(folder, FakeClock(FakeClock().now_ms() + 2 * STEPS * INVISIBLE_MS))
    await shop.revives.round()
    left = {
        body
        for topic in (TOPIC, RETRY)
        for body in bodies(shop.store, topic)[shop.offsets.find_offset(GROUP, topic, QUEUE_ID) or 0 :]
    }
    await shop.flush()
    shop.store.close()
    return left

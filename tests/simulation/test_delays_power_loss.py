"""The power fails at any moment: no delayed message that was on disk is lost, delivered or not."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from cosmodrome.broker.delay_offsets import DelayOffsets
from cosmodrome.testing import FakeClock, FaultyDisk, Moment
from tests.simulation.power_cuts import Promises, lost
from tests.unit.broker.office import FEW_LEVELS, FEW_LEVELS_MS, Office
from tests.unit.store.kit import bodies

SEEDS = 10
MAX_SEEDS = 40  # in which a mistake must show
STEPS = 30


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_no_delayed_message_is_lost_with_the_power(tmp_path: Path, seed: int) -> None:
    assert await lost(tmp_path, seed, _live, _delivered_after) == set()


async def test_saving_offsets_before_the_messages_are_on_disk_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = DelayOffsets.settle
    monkeypatch.setattr(DelayOffsets, "settle", lambda self, _flushed, log_end: settle(self, log_end, log_end))
    for seed in range(MAX_SEEDS):
        if await lost(tmp_path / str(seed), seed, _live, _delivered_after):
            return
    pytest.fail("nothing was lost")


async def _live(home: Path, disk: FaultyDisk, random: Random) -> Promises:
    """From which moment on which messages are on disk."""
    clock = FakeClock()
    post = Office(home, clock, FEW_LEVELS)
    sent: set[bytes] = set()
    on_disk: Promises = []
    for action in random.choices(["send", "wait", "flush", "save"], weights=[4, 3, 1, 2], k=STEPS):
        if action == "send":
            body = b"%d" % len(sent)
            post.send(body, random.randint(1, len(FEW_LEVELS_MS)))
            sent.add(body)
        elif action == "wait":
            await clock.advance(random.choice([400, 1_000, 5_000]))
        elif action == "flush":
            await post.flush()
            on_disk.append((len(disk.moments), set(sent)))
        else:
            await post.delays.save()
        disk.mark(action)
    await post.kill()
    return on_disk


async def _delivered_after(moment: Moment, folder: Path, random: Random) -> set[bytes]:
    """What is in the topic at last, if the machine comes back as this moment left it."""
    moment.materialise(folder, random)
    clock = FakeClock(FakeClock().now_ms() + 10 * FEW_LEVELS_MS[-1])
    post = Office(folder, clock, FEW_LEVELS)
    await clock.advance(FEW_LEVELS_MS[-1])
    delivered = set(bodies(post.store))
    await post.stop()
    return delivered

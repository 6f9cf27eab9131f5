"""Some rotten stores, and that the audit sees what it is there to see."""

from __future__ import annotations

from random import Random

import pytest

from cosmodrome.store.derived import DerivedFiles
from cosmodrome.store.timer_log import TimerLog
from tests.simulation.rotten_stores import Exit, Outcome, RottenStores, Trial

TRIALS = 12


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> RottenStores:
    return RottenStores(tmp_path_factory.mktemp("rot"), 1)


def test_rot_loses_nothing_but_what_it_hit(stores: RottenStores) -> None:
    trials = [stores.trial(Random(f"1 {number}")) for number in range(TRIALS)]
    assert [str(trial) for trial in trials if trial.outcome is Outcome.WRONG] == []


def test_a_sound_store_is_as_before(stores: RottenStores) -> None:
    for exit_ in Exit:
        assert stores.spoil(exit_, "lock", Random(1)).outcome is Outcome.AS_BEFORE


@pytest.mark.parametrize("part", ["derived files", "timers"])
def test_the_audit_sees_what_is_not_mended(stores: RottenStores, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if part == "timers":
        monkeypatch.setattr(TimerLog, "damage", lambda *_: None)
        found = [spoiled(stores, "timerlog/00000000000000000000", number) for number in range(4)]
    else:
        monkeypatch.setattr(DerivedFiles, "troubles", lambda _: [])
        found = [spoiled(stores, "index/", number) for number in range(4)]
    assert Outcome.WRONG in {trial.outcome for trial in found}


def spoiled(stores: RottenStores, file: str, number: int) -> Trial:
    files = [name for name in stores.files(Exit.CLEAN) if file in name]
    return stores.spoil(Exit.CLEAN, files[number % len(files)], Random(number))

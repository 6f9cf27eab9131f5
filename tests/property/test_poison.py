"""Any properties and bodies in any topic, the system's too: the broker starts, and all other messages are delivered."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cosmodrome.config import FlushDiskType
from cosmodrome.model import HALF_TOPIC, Property
from cosmodrome.wire.record import SysFlag
from tests.simulation.poisoned_lives import (
    BODIES,
    NUMBERS_32,
    PLACES,
    PLAIN,
    PLAUSIBLE,
    SYS_FLAGS,
    TIMES,
    WORDS,
    Life,
    Poison,
    drawn,
    run,
)

# Bodies without digits, for an op that names a half message ends it: that is what an op is for.
any_text = st.text(st.characters(exclude_categories=["Nd"]), max_size=40)
any_properties = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(words) | any_text for name, words in WORDS.items()}
) | st.dictionaries(any_text, any_text, max_size=4)


@st.composite
def poisons(draw: st.DrawFn) -> Poison:
    topic, queue_id = draw(st.sampled_from(PLACES))
    belonging = PLAUSIBLE.get(topic, {}) if draw(st.booleans()) else {}
    return Poison(
        topic,
        queue_id,
        draw(st.sampled_from(BODIES) | any_text.map(lambda text: text.encode(errors="replace"))),
        {**belonging, **draw(any_properties)},
        draw(st.sampled_from(SYS_FLAGS)),
        draw(st.sampled_from(NUMBERS_32)),
        draw(st.sampled_from(TIMES)),
        draw(st.sampled_from(TIMES)),
    )


lives = st.lists(st.builds(Life, st.lists(poisons(), min_size=3, max_size=30), st.booleans()), min_size=1, max_size=2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(lives=lives)
def test_any_poison_costs_itself_only(tmp_path_factory: pytest.TempPathFactory, lives: list[Life]) -> None:
    run(tmp_path_factory.mktemp("poisoned"), lives)


def test_the_half_message_that_kept_brokers_from_starting(tmp_path: Path) -> None:
    """As a client sent it: the broker may take or refuse it, but it starts."""
    asked = {**PLAUSIBLE[HALF_TOPIC], Property.CHECK_IMMUNITY_TIME_IN_SECONDS: "7" * 5_000}
    poison = Poison(PLAIN, 0, b"poison", asked, SysFlag.PREPARED)
    figures = run(tmp_path, [Life([poison] * 3, is_killed) for is_killed in (False, True)])
    assert figures.stored + figures.refused == 6


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_much_poison_costs_itself_only(tmp_path: Path, flush: FlushDiskType) -> None:
    random = Random(f"much {flush}")
    lives = [Life([drawn(random) for _ in range(150)], is_killed) for is_killed in (True, False)]
    figures = run(tmp_path, lives, flush=flush)
    assert figures.skipped > 20
    assert figures.stored > 150

"""Any properties and bodies in any topic, the system's too: the broker starts, and all other messages are delivered."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.poisoned_lives import (
    BODIES,
    NUMBERS_32,
    PLACES,
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


def test_much_poison_costs_itself_only(tmp_path: Path) -> None:
    random = Random(13)
    lives = [Life([drawn(random) for _ in range(150)], is_killed) for is_killed in (True, False)]
    figures = run(tmp_path, lives)
    assert figures.skipped > 20
    assert figures.stored > 150

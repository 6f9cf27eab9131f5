"""What an audit reckons without Spark."""

from __future__ import annotations

import pytest

from cosmodrome.pipelines.audit import missed


@pytest.mark.parametrize(
    ("committed", "first", "lost"), [(5, 10, 5), (10, 10, 0), (12, 10, 0), (0, 0, 0), (None, 10, 0)]
)
def test_what_was_deleted_before_a_group_came_to_it(committed: int | None, first: int, lost: int) -> None:
    assert missed(committed, first) == lost

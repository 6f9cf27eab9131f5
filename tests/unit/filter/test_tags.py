"""Tag expressions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.errors import SubscriptionParseFailed
from cosmodrome.filter.tags import matches, subscription
from cosmodrome.model import Subscription


@pytest.mark.parametrize("expression", ["*", "", " * ", "  "])
def test_no_expression_wants_everything(expression: str) -> None:
    wanted = subscription("T", expression, 7)
    assert wanted == Subscription("T", "*", version=7)
    assert matches(wanted, "paid")
    assert matches(wanted, "")


def test_tags_are_trimmed_and_hashed_as_java_does() -> None:
    wanted = subscription("T", " TagA||TagB ||  ", 1)
    assert wanted.tags == {"TagA", "TagB"}
    assert wanted.codes == {2598919, 2598920}
    assert wanted.expression == " TagA||TagB ||  "


def test_a_message_without_tag_is_not_wanted_by_one_who_asks_for_tags() -> None:
    assert not matches(subscription("T", "a || b", 1), "")


def test_tags_that_share_a_hash_are_told_apart_by_their_text() -> None:
    wanted = subscription("T", "AaAaAa", 1)
    assert wanted.codes == subscription("T", "BBBBBB", 1).codes
    assert not matches(wanted, "BBBBBB")


@pytest.mark.parametrize("expression", ["||", " || || "])
def test_an_expression_without_any_tag_is_refused(expression: str) -> None:
    with pytest.raises(SubscriptionParseFailed, match="names no tag"):
        subscription("T", expression, 1)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="|* \t\n\r\x0b\x0c"), min_size=1), min_size=1))
def test_exactly_the_named_tags_match(tags: list[str]) -> None:
    tags = [tag.strip() or "x" for tag in tags]
    wanted = subscription("T", " || ".join(tags), 1)
    assert all(matches(wanted, tag) for tag in tags)
    assert not matches(wanted, "|")

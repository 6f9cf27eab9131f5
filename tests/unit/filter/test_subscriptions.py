"""The table of registered SQL92 filters."""

from __future__ import annotations

import pytest

from cosmodrome.codes import ResponseCode
from cosmodrome.errors import FilterNotFound, FilterOutdated
from cosmodrome.filter.subscriptions import DEAD_KEPT_MS, GroupFilters
from cosmodrome.model import Subscription

NOW = 1_000_000


def wants(expression: str, version: int, topic: str = "orders") -> Subscription:
    return Subscription(topic, expression, version=version, expression_type="SQL92")


def expression_of(filters: GroupFilters, version: int = 0, topic: str = "orders") -> str:
    return filters.filter(topic, "billing", version).expression


def test_a_registered_filter_is_found_by_topic_and_group() -> None:
    filters = GroupFilters()
    assert filters.register("billing", [wants("a > 1", 5), wants("b = 2", 6, "refunds")], NOW) == []
    assert expression_of(filters, 5) == "a > 1"
    assert expression_of(filters, 6, "refunds") == "b = 2"
    with pytest.raises(FilterNotFound, match="send a heartbeat") as refusal:
        filters.filter("orders", "shipping", 5)
    assert refusal.value.code == ResponseCode.FILTER_DATA_NOT_EXIST
    with pytest.raises(FilterNotFound):
        filters.filter("nothing", "billing", 5)


def test_tags_are_none_of_its_business() -> None:
    filters = GroupFilters()
    filters.register("billing", [Subscription("orders", "paid", version=5)], NOW)
    assert len(filters) == 0
    with pytest.raises(FilterNotFound):
        filters.filter("orders", "billing", 5)


def test_a_pull_that_knows_a_newer_version_is_told_so() -> None:
    filters = GroupFilters()
    filters.register("billing", [wants("a > 1", 5)], NOW)
    assert expression_of(filters, 4) == "a > 1"
    with pytest.raises(FilterOutdated, match="version 5, older than the 6") as refusal:
        filters.filter("orders", "billing", 6)
    assert refusal.value.code == ResponseCode.FILTER_DATA_NOT_LATEST


@pytest.mark.parametrize(
    ("second", "kept"),
    [
        (wants("a > 2", 6), "a > 2"),
        (wants("a > 2", 5), "a > 1"),
        (wants("a > 2", 4), "a > 1"),
        (wants("a > 1", 6), "a > 1"),
    ],
    ids=["newer", "same", "older", "unchanged"],
)
def test_the_newest_version_counts(second: Subscription, kept: str) -> None:
    filters = GroupFilters()
    filters.register("billing", [wants("a > 1", 5)], NOW)
    filters.register("billing", [second], NOW)
    assert expression_of(filters, max(5, second.version)) == kept


def test_a_member_that_is_behind_does_not_turn_the_version_back() -> None:
    filters = GroupFilters()
    filters.register("billing", [wants("a > 1", 5)], NOW)
    filters.register("billing", [wants("a > 1", 4)], NOW)
    assert expression_of(filters, 5) == "a > 1"


def test_a_faulty_expression_is_reported_once_and_replaces_the_one_before() -> None:
    filters = GroupFilters()
    filters.register("billing", [wants("a > 1", 5)], NOW)
    (fault,) = filters.register("billing", [wants("a > > 1", 6)], NOW)
    assert fault.position == 4
    assert filters.register("billing", [wants("a > > 1", 6)], NOW) == []
    with pytest.raises(FilterNotFound, match="character 5"):
        filters.filter("orders", "billing", 6)
    assert filters.register("billing", [wants("a > 1", 7)], NOW) == []
    assert expression_of(filters, 7) == "a > 1"


def test_a_fault_in_one_topic_leaves_the_others_alone() -> None:
    filters = GroupFilters()
    assert len(filters.register("billing", [wants("a >", 5), wants("b = 2", 5, "refunds")], NOW)) == 1
    assert expression_of(filters, 5, "refunds") == "b = 2"


def test_a_group_that_left_is_remembered_for_a_day() -> None:
    filters = GroupFilters()
    filters.register("billing", [wants("a > 1", 5)], NOW)
    filters.unregister("billing", NOW)
    filters.unregister("billing", NOW + 5000)  # it left only once
    filters.clean(NOW + DEAD_KEPT_MS - 1)
    assert expression_of(filters, 5) == "a > 1"
    filters.clean(NOW + DEAD_KEPT_MS)
    assert len(filters) == 0


@pytest.mark.parametrize("version", [4, 5, 6])
def test_a_group_that_came_back_stays(version: int) -> None:
    filters = GroupFilters()
    filters.register("billing", [wants("a > 1", 5)], NOW)
    filters.unregister("billing", NOW)
    filters.register("billing", [wants("a > 1", version)], NOW + 1)
    filters.clean(NOW + 10 * DEAD_KEPT_MS)
    assert expression_of(filters, version) == "a > 1"


def test_whoever_comes_after_a_group_left_brings_its_own_filter() -> None:
    filters = GroupFilters()
    filters.register("billing", [wants("a > 1", 5)], NOW)
    filters.unregister("billing", NOW)
    filters.register("billing", [wants("a > 2", 4)], NOW + 1)  # its clock is behind
    assert expression_of(filters, 4) == "a > 2"


def test_a_topic_that_is_no_longer_subscribed_goes_after_a_day() -> None:
    filters = GroupFilters()
    filters.register("billing", [wants("a > 1", 5), wants("b = 2", 5, "refunds")], NOW)
    filters.register("billing", [wants("a > 1", 5), Subscription("refunds", "paid", version=6)], NOW + 1)
    filters.clean(NOW + 1 + DEAD_KEPT_MS)
    assert expression_of(filters, 5) == "a > 1"
    with pytest.raises(FilterNotFound):
        filters.filter("refunds", "billing", 5)


def test_a_group_unknown_may_leave() -> None:
    filters = GroupFilters()
    filters.unregister("nobody", NOW)
    filters.clean(NOW)
    assert len(filters) == 0

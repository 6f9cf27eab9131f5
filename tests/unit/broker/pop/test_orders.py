"""Orderly pop: when a queue is blocked, where a group goes on, and what the file keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome.broker.pop.orders import FORGOTTEN_AFTER_MS, Orders
from cosmodrome.testing import FakeClock

NOW, INVISIBLE_MS = 1_700_000_000_000, 30_000
PLACE = ("T", "g", 0)

Open = Callable[[], Orders]


@pytest.fixture
def open_orders(tmp_path: Path) -> Open:
    return lambda: Orders(tmp_path / "consumerOrderInfo.json", FakeClock())


@pytest.fixture
def orders(open_orders: Open) -> Orders:
    made = open_orders()
    made.popped(*PLACE, (5, 6, 9), NOW, INVISIBLE_MS, "one")
    return made


def test_a_queue_is_blocked_until_its_messages_are_acked_or_visible(orders: Orders) -> None:
    assert orders.blocked_until(*PLACE, None, NOW) == NOW + INVISIBLE_MS
    assert orders.blocked_until(*PLACE, "two", NOW) == NOW + INVISIBLE_MS
    assert orders.blocked_until(*PLACE, "one", NOW) is None
    assert orders.blocked_until("T", "g", 1, None, NOW) is None
    assert orders.blocked_until(*PLACE, None, NOW + INVISIBLE_MS) is None
    for offset in (5, 6, 9):
        orders.acked(*PLACE, offset, NOW)
    assert orders.blocked_until(*PLACE, None, NOW) is None


def test_a_group_goes_on_at_the_first_message_not_acked(orders: Orders) -> None:
    assert orders.acked(*PLACE, 6, NOW) == 5
    assert orders.acked(*PLACE, 5, NOW) == 9
    assert orders.acked(*PLACE, 9, NOW) == 10


def test_an_ack_of_an_older_pop_changes_nothing_and_one_of_another_message_is_an_error(orders: Orders) -> None:
    assert orders.acked(*PLACE, 5, NOW - 1) is None
    with pytest.raises(KeyError):
        orders.acked(*PLACE, 7, NOW)
    assert orders.acked("T", "other", 0, 7, NOW) == 8


def test_a_message_may_become_visible_at_another_time(orders: Orders) -> None:
    for offset in (6, 9):
        orders.acked(*PLACE, offset, NOW)
    orders.visible_at(*PLACE, 5, NOW, NOW + 100)
    assert orders.blocked_until(*PLACE, None, NOW) == NOW + 100
    orders.visible_at(*PLACE, 5, NOW - 1, NOW + 900)
    assert orders.blocked_until(*PLACE, None, NOW) == NOW + 100


def test_the_answer_tells_how_often_each_message_came_before(orders: Orders) -> None:
    assert orders.popped(*PLACE, (5, 6, 10), NOW + 1, INVISIBLE_MS, "two") == ["0 qo0%5 1", "0 qo0%6 1", "0 0 0"]
    assert orders.popped(*PLACE, (5, 6), NOW + 2, INVISIBLE_MS, "three") == ["0 qo0%5 2", "0 qo0%6 2", "0 0 2"]
    same_attempt = orders.popped(*PLACE, (5, 6), NOW + 3, INVISIBLE_MS, "three")
    assert same_attempt == ["0 qo0%5 2", "0 qo0%6 2", "0 0 2"]


async def test_everything_survives_a_restart(orders: Orders, open_orders: Open) -> None:
    orders.popped(*PLACE, (5, 6, 9), NOW + 1, INVISIBLE_MS, "two")
    orders.acked(*PLACE, 5, NOW + 1)
    orders.visible_at(*PLACE, 6, NOW + 1, NOW + 70_000)
    await orders.saved()
    again = open_orders()
    assert again.encoded() == orders.encoded()
    assert again.blocked_until(*PLACE, "one", NOW) == NOW + 70_000
    assert again.blocked_until(*PLACE, "two", NOW) is None
    assert again.acked(*PLACE, 6, NOW + 1) == 9


def test_apaches_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "consumerOrderInfo.json"
    path.write_text(
        '{"table":{"T@g":{0:{"a":"att2","cm":1,"i":60000,"l":1700000000001,"o":[5,2],"oc":{5:1,7:1},'
        '"ot":{7:1700000090000},"popTime":1700000000001}}}}'
    )
    orders = Orders(path, FakeClock())
    assert orders.blocked_until(*PLACE, None, NOW) == NOW + 90_000
    assert orders.acked(*PLACE, 7, NOW + 1) == 8


def test_what_nobody_needs_is_forgotten(orders: Orders) -> None:
    orders.popped("U", "g", 0, (1,), NOW, INVISIBLE_MS, None)
    orders.clean(lambda topic, group: (topic, group) == ("T", "g"), NOW)
    assert orders.blocked_until("U", "g", 0, None, NOW) is None
    assert orders.blocked_until(*PLACE, None, NOW) is not None
    orders.clean(lambda _topic, _group: True, NOW + FORGOTTEN_AFTER_MS + 1)
    assert orders.blocked_until(*PLACE, None, NOW) is None


def test_what_was_called_back_blocks_nothing_and_its_acks_change_nothing(orders: Orders) -> None:
    orders.call_back(*PLACE, NOW + 1)
    orders.call_back("T", "other", 0, NOW + 1)
    assert orders.blocked_until(*PLACE, None, NOW + 1) is None
    assert orders.acked(*PLACE, 5, NOW) is None
    assert orders.popped(*PLACE, (5, 6), NOW + 1, INVISIBLE_MS, "two") == ["0 0 0"]

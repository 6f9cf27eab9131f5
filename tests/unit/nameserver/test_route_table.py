"""The route table, with the time in our hands: every edge is exact."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cosmodrome.errors import RouteNotFound, SystemBusy
from cosmodrome.model import MEMBER_TOPIC_PREFIX, BrokerData, DataVersion, QueueData, TopicConfig
from cosmodrome.nameserver import route_table
from cosmodrome.nameserver.route_table import Registered, Registration, RouteTable, SmallestChanged

NOW = 1_700_000_000_000
SILENT_MS = 120_000
V1, V2 = DataVersion(1, 1), DataVersion(2, 2)


def table() -> RouteTable:
    return RouteTable(SILENT_MS)


def topics(*names: str, queues: int = 4, perm: int = 6, sys_flag: int = 0) -> dict[str, TopicConfig]:
    return {name: TopicConfig(name, queues, queues, perm, sys_flag=sys_flag) for name in names}


def broker(
    name: str = "a",
    broker_id: int = 0,
    address: str | None = None,
    *,
    cluster: str = "C",
    version: DataVersion = V1,
    carries: dict[str, TopicConfig] | None = None,
    acting_master: bool | None = None,
    silent_after_ms: int | None = None,
) -> Registration:
    address = address or f"{name}{broker_id}:10911"
    return Registration(
        cluster,
        name,
        broker_id,
        address,
        f"ha-{address}",
        acting_master,
        silent_after_ms,
        version,
        topics("T") if carries is None else carries,
    )


def addresses(routes: RouteTable) -> set[str]:
    return {live.address for live in routes.brokers}


def perms(routes: RouteTable, topic: str = "T") -> list[int]:
    return [queue.perm for queue in routes.route(topic).queues]


def test_a_registered_topic_has_a_route() -> None:
    routes = table()
    assert routes.register(broker(), NOW) == Registered()
    route = routes.route("T")
    assert route.queues == (QueueData("a", 4, 4, 6),)
    assert route.brokers == (BrokerData("C", "a", {0: "a0:10911"}),)
    assert route.order_conf is None


def test_an_unknown_topic_has_none() -> None:
    with pytest.raises(RouteNotFound, match="nowhere"):
        table().route("nowhere")


def test_a_route_names_its_groups_in_order() -> None:
    routes = table()
    for name in ("c", "a", "b"):
        routes.register(broker(name), NOW)
    routes.register(broker("d", carries=topics("other")), NOW)
    route = routes.route("T")
    assert [queue.broker_name for queue in route.queues] == ["a", "b", "c"]
    assert [data.broker_name for data in route.brokers] == ["a", "b", "c"]


def test_a_single_topic_is_enough_to_register() -> None:
    """Apache's 5.x refuses a first registration with exactly one topic; there is no reason to."""
    routes = table()
    routes.register(broker(carries=topics("only")), NOW)
    assert routes.all_topics() == ("only",)


# --- silence


def test_a_silent_broker_leaves_the_route_after_two_minutes() -> None:
    routes = table()
    routes.register(broker(), NOW)
    assert routes.expire(NOW + SILENT_MS - 1) == ()
    assert addresses(routes) == {"a0:10911"}
    assert [gone.address for gone in routes.expire(NOW + SILENT_MS)] == ["a0:10911"]
    assert routes.brokers == ()
    assert routes.clusters() == {}
    with pytest.raises(RouteNotFound):
        routes.route("T")


def test_a_broker_may_name_its_own_patience() -> None:
    routes = table()
    routes.register(broker(silent_after_ms=500), NOW)
    routes.register(broker("b"), NOW)
    assert routes.expire(NOW + 499) == ()
    assert [gone.broker_name for gone in routes.expire(NOW + 500)] == ["a"]


@pytest.mark.parametrize("sign_of_life", ["register", "touch"])
def test_a_sign_of_life_starts_the_silence_anew(sign_of_life: str) -> None:
    routes = table()
    routes.register(broker(), NOW)
    if sign_of_life == "register":
        routes.register(broker(), NOW + 1_000)
    else:
        routes.touch("a", "a0:10911", NOW + 1_000)
    assert routes.expire(NOW + SILENT_MS + 999) == ()
    assert len(routes.expire(NOW + SILENT_MS + 1_000)) == 1


def test_touch_tells_the_version_the_broker_registered_with() -> None:
    routes = table()
    assert routes.touch("a", "a0:10911", NOW) is None
    routes.register(broker(version=V1), NOW)
    assert routes.touch("a", "a0:10911", NOW) == V1
    assert routes.touch("a", "elsewhere:1", NOW) is None
    routes.register(broker(version=V2), NOW)
    assert routes.touch("a", "a0:10911", NOW) == V2


# --- leaving


def test_a_topic_lives_as_long_as_one_of_its_brokers() -> None:
    routes = table()
    routes.register(broker("a"), NOW)
    routes.register(broker("b"), NOW)
    routes.unregister("a", "a0:10911")
    assert [data.broker_name for data in routes.route("T").brokers] == ["b"]
    routes.unregister("b", "b0:10911")
    assert routes.all_topics() == ()
    assert routes.unregister("b", "b0:10911") is None


def test_only_the_address_itself_can_be_unregistered() -> None:
    routes = table()
    routes.register(broker(address="new:1"), NOW)
    assert routes.unregister("a", "old:1") is None
    assert addresses(routes) == {"new:1"}


def test_a_lost_connection_takes_its_brokers_along() -> None:
    routes = table()
    routes.register(broker("a"), NOW, connection="one")
    routes.register(broker("b"), NOW, connection="one")
    routes.register(broker("c"), NOW, connection="two")
    assert {gone.broker_name for gone in routes.drop_connection("one")} == {"a", "b"}
    assert addresses(routes) == {"c0:10911"}


def test_a_broker_that_came_back_over_another_connection_stays() -> None:
    routes = table()
    routes.register(broker(), NOW, connection="old")
    routes.register(broker(), NOW, connection="new")
    assert routes.drop_connection("old") == ()
    assert addresses(routes) == {"a0:10911"}


def test_a_slave_keeps_the_group_alive() -> None:
    routes = table()
    routes.register(broker(), NOW)
    routes.register(broker(broker_id=1), NOW)
    routes.unregister("a", "a0:10911")
    assert routes.route("T").brokers == (BrokerData("C", "a", {1: "a1:10911"}),)
    assert perms(routes) == [6]


# --- ids and addresses


def test_a_slave_learns_its_master() -> None:
    routes = table()
    assert routes.register(broker(broker_id=1, carries={}), NOW) == Registered()
    routes.register(broker(), NOW)
    assert routes.register(broker(broker_id=1, carries={}), NOW) == Registered("a0:10911", "ha-a0:10911", 0)
    assert routes.member_group("C", "a").addresses == {0: "a0:10911", 1: "a1:10911"}


def test_an_address_under_another_id_is_moved() -> None:
    routes = table()
    routes.register(broker(broker_id=1, address="x:1"), NOW)
    routes.register(broker(broker_id=0, address="x:1"), NOW)
    assert routes.member_group("C", "a").addresses == {0: "x:1"}


def test_the_last_to_claim_an_id_has_it() -> None:
    routes = table()
    routes.register(broker(address="old:1"), NOW)
    routes.register(broker(address="new:1", carries=topics("T", queues=9)), NOW)
    assert routes.member_group("C", "a").addresses == {0: "new:1"}
    assert routes.route("T").queues[0].write_queues == 9, "another process's topics count even under the same version"


def test_a_holder_of_a_higher_state_version_keeps_its_id() -> None:
    routes = table()
    routes.register(broker(address="elected:1", version=DataVersion(5, 5, state_version=3)), NOW)
    late = broker(address="late:1", version=DataVersion(9, 9, state_version=2), carries=topics("T", queues=9))
    refused = routes.register(late, NOW)
    assert (refused.master_address, refused.master_ha_address, refused.replaced) == (None, None, None)
    assert refused.refusal == ("elected:1 is the master of a with term 3, and late:1 has term 2: it was promoted since")
    assert addresses(routes) == {"elected:1"}
    assert routes.route("T").queues[0].write_queues == 4
    routes.register(broker(address="equal:1", version=DataVersion(1, 1, state_version=3)), NOW)
    assert addresses(routes) == {"equal:1"}


def test_who_takes_an_id_from_another_address_hears_from_whom() -> None:
    routes = table()
    routes.register(broker(address="old:1"), NOW)
    assert routes.register(broker(address="old:1"), NOW).replaced is None
    assert routes.register(broker(address="new:1"), NOW).replaced == "old:1"


def test_a_promotion_is_told_from_two_brokers_that_take_turns() -> None:
    routes = table()
    routes.register(broker(address="old:1", version=DataVersion(1, 1, state_version=1)), NOW)
    promoted = routes.register(broker(address="new:1", version=DataVersion(1, 1, state_version=2)), NOW)
    assert (promoted.replaced, promoted.is_promoted) == ("old:1", True)
    same = routes.register(broker(address="other:1", version=DataVersion(1, 1, state_version=2)), NOW)
    assert (same.replaced, same.is_promoted) == ("new:1", False)
    assert routes.register(broker(broker_id=1, address="s:1"), NOW).master_term == 2, "slaves fence by it"


def test_a_deposed_master_loses_its_old_id_too() -> None:
    routes = table()
    routes.register(broker(broker_id=1, address="x:1"), NOW)
    routes.register(broker(broker_id=0, address="elected:1", version=DataVersion(1, 1, state_version=2)), NOW)
    routes.register(broker(broker_id=0, address="x:1"), NOW)
    assert routes.member_group("C", "a").addresses == {0: "elected:1"}


def test_a_lower_state_version_of_the_same_address_is_no_rival() -> None:
    routes = table()
    routes.register(broker(version=DataVersion(5, 5, state_version=3)), NOW)
    routes.register(broker(version=DataVersion(6, 6, state_version=1), carries=topics("T", queues=9)), NOW)
    assert routes.route("T").queues[0].write_queues == 9


def test_a_group_that_changes_its_cluster_is_in_the_new_one_only() -> None:
    routes = table()
    routes.register(broker(cluster="C1"), NOW)
    routes.register(broker(cluster="C2"), NOW)
    assert routes.clusters() == {"C2": ("a",)}


def test_there_is_room_for_so_many_brokers_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "MAX_BROKERS", 2)
    routes = table()
    routes.register(broker("a"), NOW)
    routes.register(broker("b"), NOW)
    with pytest.raises(SystemBusy):
        routes.register(broker("c"), NOW)
    routes.register(broker("b"), NOW + 1)
    assert len(routes.brokers) == 2


# --- whose topics, and when


def test_topics_are_taken_from_the_master_only() -> None:
    routes = table()
    routes.register(broker(carries=topics("T")), NOW)
    routes.register(broker(broker_id=1, carries=topics("S")), NOW)
    assert routes.all_topics() == ("T",)


@pytest.mark.parametrize(
    ("acting_master", "known"), [(None, ()), (False, ("S",)), (True, ("S",))], ids=["4.9", "5.x", "acting"]
)
def test_without_a_master_the_first_slave_may_speak(acting_master: bool | None, known: tuple[str, ...]) -> None:
    routes = table()
    routes.register(broker(broker_id=1, carries=topics("S"), acting_master=acting_master), NOW)
    routes.register(broker(broker_id=2, carries=topics("S2"), acting_master=acting_master), NOW)
    assert routes.all_topics() == known


def test_an_acting_master_takes_no_new_messages() -> None:
    routes = table()
    routes.register(broker(acting_master=True), NOW)
    routes.register(broker(broker_id=1, acting_master=True), NOW)
    assert perms(routes) == [6]
    routes.unregister("a", "a0:10911")
    assert perms(routes) == [4]
    routes.register(broker(broker_id=1, version=V2, acting_master=True), NOW)
    assert perms(routes) == [4]
    routes.register(broker(acting_master=True), NOW)
    assert perms(routes) == [6], "the master is back"


def test_an_unchanged_version_adds_topics_but_changes_none() -> None:
    routes = table()
    routes.register(broker(version=V1, carries=topics("T", queues=4)), NOW)
    routes.register(broker(version=V1, carries=topics("T", "U", queues=8)), NOW)
    assert routes.route("T").queues[0].read_queues == 4
    assert routes.route("U").queues[0].read_queues == 8


@pytest.mark.parametrize("version", [DataVersion(2, 1), DataVersion(1, 2), DataVersion(1, 1, 1), DataVersion(0, 0)])
def test_any_other_version_changes_topics(version: DataVersion) -> None:
    routes = table()
    routes.register(broker(version=V1, carries=topics("T", queues=4)), NOW)
    routes.register(broker(version=version, carries=topics("T", queues=8)), NOW)
    assert routes.route("T").queues[0].read_queues == 8


def test_topics_a_broker_no_longer_names_stay() -> None:
    routes = table()
    routes.register(broker(version=V1, carries=topics("T", "U")), NOW)
    routes.register(broker(version=V2, carries=topics("T")), NOW)
    assert routes.all_topics() == ("T", "U")


# --- operators


def test_a_wiped_permission_outlives_registrations_that_change_nothing() -> None:
    routes = table()
    routes.register(broker(carries=topics("T", "U")), NOW)
    assert routes.wipe_write_permission("a") == 2
    routes.register(broker(carries=topics("T", "U")), NOW)
    assert perms(routes) == [4]
    assert type(perms(routes)[0]) is int
    assert routes.add_write_permission("a") == 2
    assert perms(routes) == [6]
    routes.wipe_write_permission("a")
    routes.register(broker(version=V2), NOW)
    assert perms(routes) == [6]
    assert perms(routes, "U") == [4]


def test_wiping_touches_one_group_and_every_bit_but_write_stays() -> None:
    routes = table()
    routes.register(broker("a", carries=topics("T", perm=7)), NOW)
    routes.register(broker("b", carries=topics("T", perm=7)), NOW)
    routes.wipe_write_permission("a")
    assert perms(routes) == [5, 7]
    assert routes.wipe_write_permission("nobody") == 0
    assert routes.add_write_permission("nobody") == 0


def test_a_deleted_topic_is_gone_until_it_is_registered_anew() -> None:
    routes = table()
    routes.register(broker(carries=topics("T", "U")), NOW)
    routes.delete_topic("T")
    assert routes.all_topics() == ("U",)
    routes.register(broker(carries=topics("T", "U")), NOW)
    assert routes.all_topics() == ("T", "U")


def test_a_topic_can_be_deleted_in_one_cluster() -> None:
    routes = table()
    routes.register(broker("a", cluster="C1"), NOW)
    routes.register(broker("b", cluster="C2"), NOW)
    routes.delete_topic("T", "C1")
    assert [data.broker_name for data in routes.route("T").brokers] == ["b"]


def test_a_topic_is_registered_only_on_groups_that_live() -> None:
    routes = table()
    routes.register(broker("a", carries={}), NOW)
    routes.register_topic("N", [QueueData("a", 2, 3, 6), QueueData("ghost", 2, 3, 6)])
    assert routes.route("N").queues == (QueueData("a", 2, 3, 6),)


# --- lists


def names_by_flag(routes: RouteTable) -> Iterable[tuple[str, ...]]:
    yield routes.unit_topics()
    yield routes.unit_subscription_topics()
    yield routes.unit_subscription_ununit_topics()


def test_lists_of_topics_and_clusters() -> None:
    routes = table()
    routes.register(broker("b", cluster="C1", carries=topics("T1", "T2")), NOW)
    routes.register(broker("a", cluster="C1", carries=topics("T1")), NOW)
    routes.register(broker("c", cluster="C2", carries=topics("T3")), NOW)
    assert routes.clusters() == {"C1": ("a", "b"), "C2": ("c",)}
    assert list(routes.groups()) == ["a", "b", "c"]
    assert routes.all_topics() == ("T1", "T2", "T3")
    assert routes.topics_by_cluster("C1") == ("T1", "T2")
    assert routes.topics_by_cluster("nowhere") == ()
    assert routes.system_topics() == ("C1", "a", "b", "C2", "c")
    assert routes.member_group("C1", "nobody") == BrokerData("C1", "nobody", {})


def test_unit_topics_are_told_by_their_flags() -> None:
    routes = table()
    carries = {
        **topics("plain"),
        **topics("unit", sys_flag=1),
        **topics("sub", sys_flag=2),
        **topics("both", sys_flag=3),
    }
    routes.register(broker(carries=carries), NOW)
    assert list(names_by_flag(routes)) == [("both", "unit"), ("both", "sub"), ("sub",)]


# --- slaves that act as their master


def acting_table() -> RouteTable:
    routes = RouteTable(silent_after_ms=120_000, supports_acting=True)
    for broker_id in (0, 1, 2):
        routes.register(broker(broker_id=broker_id, acting_master=True), NOW)
    return routes


def test_the_smallest_slave_takes_the_masters_place_in_a_route() -> None:
    routes = acting_table()
    assert routes.route("T").brokers[0].addresses == {0: "a0:10911", 1: "a1:10911", 2: "a2:10911"}
    routes.unregister("a", "a0:10911")
    assert routes.route("T").brokers[0].addresses == {0: "a1:10911", 2: "a2:10911"}
    assert routes.member_group("C", "a").addresses == {1: "a1:10911", 2: "a2:10911"}
    assert routes.copy().route("T").brokers[0].addresses == {0: "a1:10911", 2: "a2:10911"}
    routes.register(broker(acting_master=True), NOW)
    assert routes.route("T").brokers[0].addresses == {0: "a0:10911", 1: "a1:10911", 2: "a2:10911"}


@pytest.mark.parametrize(
    ("supports", "wants", "topic"), [(False, True, "T"), (True, False, "T"), (True, True, MEMBER_TOPIC_PREFIX + "a")]
)
def test_no_slave_is_named_as_master_unless_both_want_it_and_the_topic_is_no_roll_call(
    supports: bool, wants: bool, topic: str
) -> None:
    routes = RouteTable(silent_after_ms=120_000, supports_acting=supports)
    routes.register(broker(broker_id=1, acting_master=wants, carries=topics(topic)), NOW)
    assert routes.route(topic).brokers[0].addresses == {1: "a1:10911"}


def test_brokers_are_told_when_the_smallest_id_changes() -> None:
    routes = acting_table()
    assert routes.take_smallest_changed() == []  # each came with a larger id than those before
    routes.unregister("a", "a2:10911")
    assert routes.take_smallest_changed() == []
    routes.unregister("a", "a0:10911")
    news = SmallestChanged("a", 1, "a1:10911", "a0:10911", None, ("a1:10911",))
    assert routes.take_smallest_changed() == [news]
    routes.register(broker(acting_master=True), NOW)
    news = SmallestChanged("a", 0, "a0:10911", None, "ha-a0:10911", ("a1:10911",))
    assert routes.take_smallest_changed() == [news]
    routes.unregister("a", "a1:10911")
    routes.unregister("a", "a0:10911")
    assert routes.take_smallest_changed() == []  # nobody is left

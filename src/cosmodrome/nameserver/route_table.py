"""Who is alive and which topics they carry. Pure: every change gets the time, nothing here waits or sends."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from cosmodrome.errors import RouteNotFound, SystemBusy
from cosmodrome.model import (
    MASTER_ID,
    MEMBER_TOPIC_PREFIX,
    READ_WRITE,
    BrokerData,
    DataVersion,
    Perm,
    QueueData,
    Route,
    TopicConfig,
    TopicFlag,
)

MAX_BROKERS = 3_000
T = TypeVar("T")

TOPICS_IN_A_ROW = 1_000  # of one registration, in one step


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself. `acting_master` is None for brokers older than 5.0, which do not send it."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    acting_master: bool | None = None
    silent_after_ms: int | None = None
    data_version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration: it tells a slave where its master is. Empty for masters and for refused brokers.

    `refusal` says why a broker was refused, `replaced` which other address had its id until now, and `is_promoted` that
    the newcomer has it by a promotion. `master_term` is the
    term of the master that is known then, unless that is the broker itself.
    """

    master_address: str | None = None
    master_ha_address: str | None = None
    master_term: int | None = None
    refusal: str | None = None
    replaced: str | None = None
    is_promoted: bool = False


@dataclass(frozen=True, slots=True)
class SmallestChanged:
    """News for brokers of one name: which of them has the smallest id now. `left` had it before, if it is gone."""

    broker_name: str
    broker_id: int
    address: str
    left: str | None
    ha_address: str | None
    tell: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """One process that has registered and was heard of recently enough."""

    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    data_version: DataVersion
    silent_after_ms: int
    last_seen_ms: int
    connection: Hashable

    def is_silent(self, now_ms: int) -> bool:
        return now_ms - self.last_seen_ms >= self.silent_after_ms


@dataclass(slots=True)
class _Group:
    """The brokers of one name, and the queues they have. Never empty: it goes with its last broker."""

    name: str
    cluster: str
    acting_master: bool = False
    brokers: dict[int, LiveBroker] = field(default_factory=dict)
    queues: dict[str, QueueData] = field(default_factory=dict)

    def data(self) -> BrokerData:
        addresses = {broker_id: self.brokers[broker_id].address for broker_id in sorted(self.brokers)}
        return BrokerData(self.cluster, self.name, addresses, self.acting_master)

    def at(self, address: str) -> LiveBroker | None:
        return next((broker for broker in self.brokers.values() if broker.address == address), None)

    def set_permission(self, permission: Callable[[int], int]) -> None:
        for _ in self.setting_permission(permission):
            pass

    def setting_permission(self, permission: Callable[[int], int]) -> Iterator[None]:
        for number, (topic, queue) in enumerate(self.queues.items(), 1):
            if number % TOPICS_IN_A_ROW == 0:
                yield
            self.queues[topic] = replace(queue, perm=permission(queue.perm))

    def copy(self) -> _Group:
        return replace(self, brokers=dict(self.brokers), queues=dict(self.queues))


class RouteTable:
    """Broker groups by name; clusters, live brokers and topics are all read off them, so they cannot disagree.

    A topic is known as long as a broker that carries it lives. A broker lives until it unregisters, its connection
    goes, or it has been silent for `silent_after_ms` (or the time it named itself).

    With `supports_acting`, a route names the slave with the smallest id as the master of brokers that want that
    (`enableSlaveActingMaster`) and have none: clients then read there, and ask there what only a master answers.
    """

    def __init__(self, silent_after_ms: int, *, supports_acting: bool = False) -> None:
        self._silent_after_ms = silent_after_ms
        self._supports_acting = supports_acting
        self._groups: dict[str, _Group] = {}
        self._smallest_changed: list[SmallestChanged] = []

    # --- brokers come, stay and go

    def register(self, registration: Registration, now_ms: int, connection: Hashable = None) -> Registered:
        """Take in a broker, or what has changed about it.

        An address has one id in its group: under a new id it leaves the old one. An id belongs to whoever claims it
        last, unless the holder's state version is higher; then the newcomer gets an empty answer, as from Apache.
        """
        return _to_the_end(self.registering(registration, now_ms, connection))

    def registering(
        self, registration: Registration, now_ms: int, connection: Hashable = None
    ) -> Generator[None, None, Registered]:
        """Do the same in steps of so many topics. Between them, brokers may leave; nothing else may change."""
        group = self._group_for(registration)
        smallest_before = min(group.brokers, default=MASTER_ID)
        for broker_id, broker in list(group.brokers.items()):
            if broker.address == registration.address and broker_id != registration.broker_id:
                del group.brokers[broker_id]
        holder = group.brokers.get(registration.broker_id)
        if holder is not None and _outranks(holder, registration):
            return Registered(refusal=_refusal(holder, registration), master_term=_term_of(group))
        self._groups[group.name] = group  # from here on the group has a broker
        group.cluster = registration.cluster
        group.acting_master = bool(registration.acting_master)
        group.brokers[registration.broker_id] = self._live(registration, now_ms, connection)
        if _speaks_for(group, registration):
            yield from _take_topics(group, registration, holder)
        if registration.broker_id < smallest_before and group.brokers:
            self._note_smallest(group, None, registration.ha_address)
        known = _master_of(group, registration.broker_id)
        is_taken = holder is not None and holder.address != registration.address
        if not is_taken or holder is None:
            return known
        is_promoted = registration.data_version.state_version > holder.data_version.state_version
        return replace(known, replaced=holder.address, is_promoted=is_promoted)

    def _group_for(self, registration: Registration) -> _Group:
        group = self._groups.get(registration.broker_name)
        if group is None:
            group = _Group(registration.broker_name, registration.cluster)
        if registration.broker_id not in group.brokers and len(self.brokers) >= MAX_BROKERS:
            raise SystemBusy(f"{MAX_BROKERS} brokers are registered; this name server takes no more")
        return group

    def _live(self, registration: Registration, now_ms: int, connection: Hashable) -> LiveBroker:
        return LiveBroker(
            registration.broker_name,
            registration.broker_id,
            registration.address,
            registration.ha_address,
            registration.data_version,
            registration.silent_after_ms or self._silent_after_ms,
            now_ms,
            connection,
        )

    def unregister(self, broker_name: str, address: str) -> LiveBroker | None:
        """Forget the broker at `address`; None when it was not there."""
        group = self._groups.get(broker_name)
        broker = group.at(address) if group else None
        if broker is not None:
            self._remove(broker)
        return broker

    def drop_connection(self, connection: Hashable) -> tuple[LiveBroker, ...]:
        """Forget the brokers that last registered over `connection`; one that came back over another stays."""
        return self._remove_all(broker for broker in self.brokers if broker.connection == connection)

    def expire(self, now_ms: int) -> tuple[LiveBroker, ...]:
        """Forget the brokers that have been silent too long."""
        return self._remove_all(broker for broker in self.brokers if broker.is_silent(now_ms))

    def _remove_all(self, brokers: Iterable[LiveBroker]) -> tuple[LiveBroker, ...]:
        removed = tuple(brokers)
        for broker in removed:
            self._remove(broker)
        return removed

    def _remove(self, broker: LiveBroker) -> None:
        group = self._groups[broker.broker_name]
        del group.brokers[broker.broker_id]
        if not group.brokers:
            del self._groups[group.name]
        elif group.acting_master and MASTER_ID not in group.brokers:
            group.set_permission(_without_write)  # a slave that acts as master takes no new messages
        if group.brokers and group.acting_master and broker.broker_id < min(group.brokers):
            self._note_smallest(group, broker.address, None)

    def _note_smallest(self, group: _Group, left: str | None, ha_address: str | None) -> None:
        """Note who is to be told: when one left, all; when one came, those that were there, as Apache has it."""
        smallest = min(group.brokers)
        told = (broker_id for broker_id in group.brokers if left or broker_id != smallest or len(group.brokers) == 1)
        tell = tuple(group.brokers[broker_id].address for broker_id in told)
        address = group.brokers[smallest].address
        self._smallest_changed.append(SmallestChanged(group.name, smallest, address, left, ha_address, tell))

    def take_smallest_changed(self) -> list[SmallestChanged]:
        """Return the news since the last call."""
        news, self._smallest_changed = self._smallest_changed, []
        return news

    def touch(self, broker_name: str, address: str, now_ms: int) -> DataVersion | None:
        """Note that the broker is alive; the data version it registered with, or None when it never did."""
        group = self._groups.get(broker_name)
        broker = group.at(address) if group else None
        if group is None or broker is None:
            return None
        group.brokers[broker.broker_id] = replace(broker, last_seen_ms=now_ms)
        return broker.data_version

    # --- changes an operator makes

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add a topic to groups that live; the others are passed over, since their registration will bring it."""
        for queue in queues:
            if group := self._groups.get(queue.broker_name):
                group.queues[topic] = queue

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic everywhere, or in one cluster, until a broker registers it anew."""
        for group in self._groups.values():
            if cluster in (None, group.cluster):
                group.queues.pop(topic, None)

    def wipe_write_permission(self, broker_name: str) -> int:
        """Let producers drain away from a group; how many topics it has."""
        return _to_the_end(self.wiping_write_permission(broker_name))

    def wiping_write_permission(self, broker_name: str) -> Generator[None, None, int]:
        """Do the same in steps of so many topics. Between them, brokers may leave; nothing else may change."""
        return self._setting_permission(broker_name, _without_write)

    def add_write_permission(self, broker_name: str) -> int:
        """Let producers come back. The permission becomes read and write, whatever it was: so does Apache's."""
        return _to_the_end(self.adding_write_permission(broker_name))

    def adding_write_permission(self, broker_name: str) -> Generator[None, None, int]:
        """Do the same in steps, as `wiping_write_permission`."""
        return self._setting_permission(broker_name, lambda _: READ_WRITE)

    def _setting_permission(self, broker_name: str, permission: Callable[[int], int]) -> Generator[None, None, int]:
        group = self._groups.get(broker_name)
        if group is None:
            return 0
        yield from group.setting_permission(permission)
        return len(group.queues)

    # --- questions

    def copy(self) -> RouteTable:
        """Return one that stays as it is, so that a thread may ask it."""
        table = RouteTable(self._silent_after_ms, supports_acting=self._supports_acting)
        table._groups = {name: group.copy() for name, group in self._groups.items()}
        return table

    @property
    def entries(self) -> int:
        """How many topics the groups have, one that several have counted for each."""
        return sum(len(group.queues) for group in self._groups.values())

    @property
    def size(self) -> int:
        """How many broker groups there are."""
        return len(self._groups)

    @property
    def brokers(self) -> tuple[LiveBroker, ...]:
        return tuple(broker for group in self._groups.values() for broker in group.brokers.values())

    def route(self, topic: str) -> Route:
        """Where a topic lives, groups in the order of their names."""
        groups = sorted((g for g in self._groups.values() if topic in g.queues), key=lambda g: g.name)
        if not groups:
            raise RouteNotFound(topic)
        is_raw = not self._supports_acting or topic.startswith(MEMBER_TOPIC_PREFIX)
        return Route(
            tuple(g.queues[topic] for g in groups),
            tuple(g.data() if is_raw else _with_acting_master(g.data(), g.queues[topic]) for g in groups),
        )

    def groups(self) -> dict[str, BrokerData]:
        """Every broker group by its name."""
        return {name: self._groups[name].data() for name in sorted(self._groups)}

    def clusters(self) -> dict[str, tuple[str, ...]]:
        """The names of the groups of every cluster."""
        names: dict[str, list[str]] = {}
        for name in sorted(self._groups):
            names.setdefault(self._groups[name].cluster, []).append(name)
        return {cluster: tuple(names[cluster]) for cluster in sorted(names)}

    def member_group(self, cluster: str, broker_name: str) -> BrokerData:
        """The addresses of one group; none when it is unknown, which Apache's brokers expect to be no error."""
        group = self._groups.get(broker_name)
        return group.data() if group else BrokerData(cluster, broker_name, {})

    def all_topics(self) -> tuple[str, ...]:
        return self._topics(lambda group, queue: True)

    def topics_by_cluster(self, cluster: str) -> tuple[str, ...]:
        return self._topics(lambda group, queue: group.cluster == cluster)

    def system_topics(self) -> tuple[str, ...]:
        """The topics every broker has for its own sake: those named after clusters and groups."""
        return tuple(name for cluster, groups in self.clusters().items() for name in (cluster, *groups))

    def unit_topics(self) -> tuple[str, ...]:
        return self._topics(lambda group, queue: bool(queue.sys_flag & TopicFlag.UNIT))

    def unit_subscription_topics(self) -> tuple[str, ...]:
        """Topics that have subscribers in units."""
        return self._topics(lambda group, queue: bool(queue.sys_flag & TopicFlag.UNIT_SUBSCRIPTION))

    def unit_subscription_ununit_topics(self) -> tuple[str, ...]:
        """Topics that have subscribers in units and are not in units themselves."""
        both = TopicFlag.UNIT | TopicFlag.UNIT_SUBSCRIPTION
        return self._topics(lambda group, queue: queue.sys_flag & both == TopicFlag.UNIT_SUBSCRIPTION)

    def _topics(self, wanted: Callable[[_Group, QueueData], bool]) -> tuple[str, ...]:
        return tuple(sorted({topic for topic, group, queue in self._entries() if wanted(group, queue)}))

    def _entries(self) -> Iterator[tuple[str, _Group, QueueData]]:
        for group in self._groups.values():
            for topic, queue in group.queues.items():
                yield topic, group, queue


def _to_the_end(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def _with_acting_master(brokers: BrokerData, queue: QueueData) -> BrokerData:
    """The brokers with their smallest slave as master if they have none, and the topic is not to be written to."""
    if not brokers.acting_master or MASTER_ID in brokers.addresses or queue.perm & Perm.WRITE:
        return brokers
    smallest = min(brokers.addresses)
    others = {broker_id: address for broker_id, address in brokers.addresses.items() if broker_id != smallest}
    return replace(brokers, addresses={MASTER_ID: brokers.addresses[smallest], **others})


def _outranks(holder: LiveBroker, newcomer: Registration) -> bool:
    """Whether the holder of an id was elected later than another process that claims it."""
    return (
        holder.address != newcomer.address and holder.data_version.state_version > newcomer.data_version.state_version
    )


def _refusal(holder: LiveBroker, newcomer: Registration) -> str:
    role = "the master" if newcomer.broker_id == MASTER_ID else f"the broker with id {newcomer.broker_id}"
    return (
        f"{holder.address} is {role} of {holder.broker_name} with term {holder.data_version.state_version}, and "
        f"{newcomer.address} has term {newcomer.data_version.state_version}: it was promoted since"
    )


def _speaks_for(group: _Group, registration: Registration) -> bool:
    """Whether this broker's topics are the group's: its master's, or without one its first slave's from 5.0 on."""
    if registration.broker_id == MASTER_ID:
        return True
    return registration.acting_master is not None and registration.broker_id == min(group.brokers)


def _take_topics(group: _Group, registration: Registration, holder: LiveBroker | None) -> Iterator[None]:
    """Take over the broker's topics. Those it does not name stay; an unchanged data version only adds new ones,
    so that a wiped permission outlives the registrations of a broker on which nothing has changed."""
    before = holder if holder is not None and holder.address == registration.address else None
    unchanged = before is not None and before.data_version == registration.data_version
    acting = registration.broker_id != MASTER_ID and group.acting_master
    for number, (topic, config) in enumerate(registration.topics.items(), 1):
        if number % TOPICS_IN_A_ROW == 0:
            yield
        if unchanged and topic in group.queues:
            continue
        perm = _without_write(config.perm) if acting else config.perm
        group.queues[topic] = QueueData(group.name, config.read_queues, config.write_queues, perm, config.sys_flag)


def _master_of(group: _Group, broker_id: int) -> Registered:
    master = group.brokers.get(MASTER_ID)
    if broker_id == MASTER_ID or master is None:
        return Registered()
    return Registered(master.address, master.ha_address, _term_of(group))


def _term_of(group: _Group) -> int | None:
    master = group.brokers.get(MASTER_ID)
    return master.data_version.state_version if master is not None else None


def _without_write(perm: int) -> int:
    return perm & ~Perm.WRITE

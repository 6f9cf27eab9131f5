"""Who reads which queue. Each member of a group computes it alone and all must agree, so the rules are Apache's. Pure.

A strategy takes the queues of one topic, the ids of the group's members and the own id, and returns the queues to read.
All members of a group need the same one. The order in which queues and members come does not matter, and whoever is not
among the members gets nothing; only what is set by `ByConfig` holds for anybody.
"""

from __future__ import annotations

import bisect
import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from cosmodrome.errors import ClientError, ConfigError, WrongType
from cosmodrome.model import RETRY_PREFIX, MessageQueue

Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]

VIRTUAL_NODES = 10

T = TypeVar("T")


def check_strategy(strategy: Strategy) -> Strategy:
    """The strategy; WrongType if it cannot be called, or if it is a class, which would be made anew in each round."""
    if isinstance(strategy, type):
        raise WrongType(f"strategy is the class {strategy.__name__}; give one of it: {strategy.__name__}(...)")
    if not callable(strategy):
        raise WrongType(f"strategy is {strategy!r}; it must be a function such as averagely")
    return strategy


def averagely(queues: Sequence[MessageQueue], client_ids: Sequence[str], me: str) -> list[MessageQueue]:
    """Apache's AVG: neighbouring queues in equal shares, the first clients taking one more when it does not divide.

    Every queue has exactly one owner among distinct client ids.
    """
    ordered, members = _in_order(queues), _members(client_ids)
    if me not in members:
        return []
    index = members.index(me)
    share, rest = divmod(len(ordered), len(members))
    start = index * share + min(index, rest)
    return ordered[start : start + share + (index < rest)]


def by_circle(queues: Sequence[MessageQueue], client_ids: Sequence[str], me: str) -> list[MessageQueue]:
    """Apache's AVG_BY_CIRCLE: queues are dealt out like cards."""
    members = _members(client_ids)
    return _in_order(queues)[members.index(me) :: len(members)] if me in members else []


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Apache's CONSISTENT_HASH: a member that comes or goes moves only queues of its own.

    Shares are less even; more virtual nodes make them more so. All members need the same number of them.
    """

    virtual_nodes: int = VIRTUAL_NODES

    def __post_init__(self) -> None:
        if self.virtual_nodes < 1:
            raise ConfigError(f"virtual_nodes={self.virtual_nodes}: without any, nobody gets a queue; say 1 or more")

    def __call__(self, queues: Sequence[MessageQueue], client_ids: Sequence[str], me: str) -> list[MessageQueue]:
        ring = self._ring(client_ids)
        places = sorted(ring)
        return [queue for queue in _in_order(queues) if places and ring[_next(places, _place_of_queue(queue))] == me]

    def _ring(self, client_ids: Iterable[str]) -> dict[int, str]:
        """Place → member. Of two members at one place the later has it; one that is listed twice has more places."""
        ring: dict[int, str] = {}
        before = None
        for client_id in _members(client_ids):
            first = sum(owner == client_id for owner in ring.values()) if client_id == before else 0
            ring |= {_place(f"{client_id}-{number}"): client_id for number in range(first, first + self.virtual_nodes)}
            before = client_id
        return ring


@dataclass(frozen=True, slots=True)
class ByConfig:
    """Apache's CONFIG: this member reads these queues, whoever else is there.

    Who reads a queue that no member names, or that two name, is yours to answer for. The group's retry topic is shared
    evenly unless a queue of it is named: what failed must come back to somebody. In a namespace, name the topic as
    brokers do: "namespace%topic".
    """

    queues: Collection[MessageQueue]

    def __post_init__(self) -> None:
        object.__setattr__(self, "queues", frozenset(self.queues))

    def __call__(self, queues: Sequence[MessageQueue], client_ids: Sequence[str], me: str) -> list[MessageQueue]:
        named = [queue for queue in _in_order(queues) if queue in self.queues]
        if not named and all(queue.topic.startswith(RETRY_PREFIX) for queue in queues):
            return averagely(queues, client_ids, me)
        return named


@dataclass(frozen=True, slots=True)
class ByMachineRoom:
    """Apache's MACHINE_ROOM: equal shares of the queues in these rooms; a broker's room is in its name, "room@broker".

    Nobody reads the queues of other rooms, nor those of a broker whose name has no room.
    """

    rooms: Collection[str]

    def __post_init__(self) -> None:
        if isinstance(self.rooms, str):
            raise ConfigError(f"rooms={self.rooms!r} is one text; give a list of them: [{self.rooms!r}]")
        object.__setattr__(self, "rooms", frozenset(self.rooms))

    def __call__(self, queues: Sequence[MessageQueue], client_ids: Sequence[str], me: str) -> list[MessageQueue]:
        members = _members(client_ids)
        if me not in members:
            return []
        index = members.index(me)
        ordered = [queue for queue in _in_order(queues) if room_of_broker(queue.broker_name) in self.rooms]
        share = len(ordered) // len(members)
        left_over = ordered[len(members) * share :]
        return ordered[index * share : (index + 1) * share] + left_over[index : index + 1]


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Apache's MACHINE_ROOM_NEARBY: the members of a room share its queues, by the strategy `inner`.

    The queues of a room without a member are shared by all. Both functions must know everybody's room.
    """

    room_of_queue: Callable[[MessageQueue], str]
    room_of_client: Callable[[str], str]
    inner: Strategy = averagely

    def __post_init__(self) -> None:
        check_strategy(self.inner)

    def __call__(self, queues: Sequence[MessageQueue], client_ids: Sequence[str], me: str) -> list[MessageQueue]:
        if me not in client_ids:
            return []
        queues_in, members_in = _by_room(queues, self.room_of_queue), _by_room(client_ids, self.room_of_client)
        my_room = self.room_of_client(me)
        near = self.inner(queues_in[my_room], members_in[my_room], me) if my_room in queues_in else []
        empty_rooms = sorted(queues_in.keys() - members_in.keys(), key=_utf16_order)
        return [*near, *chain.from_iterable(self.inner(queues_in[room], client_ids, me) for room in empty_rooms)]


def _by_room(things: Iterable[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    rooms = defaultdict[str, list[T]](list)
    for thing in things:
        room = room_of(thing)
        if not room:
            raise ClientError(f"no machine room is known for {thing}; the room functions must name one for everybody")
        rooms[room].append(thing)
    return rooms


def room_of_broker(broker_name: str) -> str | None:
    """What is before the one @ in the name; those at its end do not count."""
    parts = broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None


def _place_of_queue(queue: MessageQueue) -> int:
    return _place(f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]")


def _place(key: str) -> int:
    """On the ring: the first four bytes of the MD5, whose part here is to spread and not to protect."""
    digest = hashlib.md5(key.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _next(places: Sequence[int], place: int) -> int:
    """The first at or after the place, going round."""
    return places[bisect.bisect_left(places, place) % len(places)]


def _in_order(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    return sorted(queues, key=lambda queue: (queue.topic, _utf16_order(queue.broker_name), queue.queue_id))


def _members(client_ids: Iterable[str]) -> list[str]:
    return sorted(client_ids, key=_utf16_order)


def _utf16_order(text: str) -> bytes:
    """Java compares UTF-16 code units, Python code points; they differ beyond the basic plane."""
    return text.encode("utf-16-be", "surrogatepass")

"""The consumer groups of this broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from cosmodrome import state_file
from cosmodrome.broker.tables import SavedTable
from cosmodrome.clock import Clock
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import GroupNotFound, LimitReached, NoPermission
from cosmodrome.model import READER_GROUP, SYSTEM_GROUP_PREFIX, GroupConfig, check_group
from cosmodrome.wire.bodies import GroupConfigWrapper

log = logging.getLogger(__name__)

BUILT_IN_GROUPS = (
    READER_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


# Under these the broker keeps how far its own services are: with transactions, and with what was popped.
OWN_GROUPS = frozenset({"CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_REVIVE_GROUP"})


def check_open(name: str) -> None:
    """Refuse what would move the offsets of the broker's own services, so that they skip or repeat their work."""
    if name in OWN_GROUPS:
        raise NoPermission(f"group[{name}] is the broker's own: no client consumes in its name or moves its offsets")


class Groups(SavedTable):
    """Group name → config. With autoCreateSubscriptionGroup, asking for an unknown group makes it."""

    def __init__(self, config: BrokerConfig, path: Path, clock: Clock) -> None:
        super().__init__(path, clock)
        self._limit = config.max_subscription_groups
        self._auto_create = config.auto_create_subscription_group
        self._groups: dict[str, GroupConfig] = {}
        self._forbidden: Mapping[str, Mapping[str, int]] = {}  # obeyed by Apache only, but never dropped from its file
        stored = state_file.load(path, GroupConfigWrapper.decode)
        if stored is not None:
            self._groups.update(stored.groups)
            self._forbidden = stored.forbidden
            self.data_version = stored.data_version
        for name in BUILT_IN_GROUPS:
            if name not in self._groups:
                self.put(GroupConfig(name))

    def use_config(self, config: BrokerConfig) -> None:
        """Obey a config that was changed."""
        self._auto_create = config.auto_create_subscription_group

    def __iter__(self) -> Iterator[GroupConfig]:
        return iter(self._groups.values())

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def find_known(self, name: str) -> GroupConfig | None:
        """The group if it is there; it is not made."""
        return self._groups.get(name)

    def find_group(self, name: str, *, is_limited: bool = True) -> GroupConfig | None:
        """The group, made now if that is allowed; None if it is not. LimitReached when there are too many."""
        found = self._groups.get(name)
        if found is None and (self._auto_create or name.startswith(SYSTEM_GROUP_PREFIX)):
            check_group(name)
            if is_limited:
                self.check_room(name)
            return self.put(GroupConfig(name))
        return found

    def check_room(self, name: str) -> None:
        """Refuse a group more when there are too many."""
        if name not in self._groups and len(self._groups) >= self._limit:
            raise LimitReached(
                f"group {name} is not made: there are {len(self._groups)}, "
                f"and maxSubscriptionGroups allows {self._limit}"
            )

    def group(self, name: str) -> GroupConfig:
        """Return the group in whose name a client comes."""
        if name in OWN_GROUPS:
            check_open(name)
        found = self._groups.get(name) or self.find_group(name)
        if found is None:
            raise GroupNotFound(name)
        return found

    def put(self, config: GroupConfig) -> GroupConfig:
        check_group(config.name)
        if self._groups.get(config.name) != config:
            log.info("group %s", config)
            self._groups[config.name] = config
            self.changed()
        return config

    def adopt(self, table: GroupConfigWrapper) -> None:
        """Take over the groups of a slave's master; those that it does not have are gone."""
        if table.data_version != self.data_version:
            self._groups = dict(table.groups)
            self._forbidden = table.forbidden
            self.replaced(table.data_version)

    def delete(self, name: str) -> None:
        """Delete a group; one that is not there, or no longer, is deleted already."""
        if self._groups.pop(name, None) is not None:
            log.info("group %s deleted", name)
            self.changed()

    def encoded(self) -> bytes:
        return self.snapshot()()

    def snapshot(self) -> Callable[[], bytes]:
        return partial(GroupConfigWrapper(self.data_version, dict(self._groups), self._forbidden).encode, pretty=True)

"""The role that a broker was given while it ran, kept in `config/brokerRole.json` for its next starts.

    in its file      given while it ran      in its file at the next start      starts as
    master           slave 1                 master, as before                  slave 1
    slave 1          master                  slave 1, as before                 master
    master           slave 1                 anything but a master              what the file says, from now on

What an operator wrote counts from the moment it is written; what stood there before a broker was promoted or demoted
does not count again. So the file of a demoted master, which nobody changed, makes no second master.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

from cosmodrome import state_file
from cosmodrome.config import BrokerConfig, BrokerRole, ReplicationConfig
from cosmodrome.errors import ProtocolError, StoreError
from cosmodrome.model import MASTER_ID

log = logging.getLogger(__name__)

BROKER_ROLE = "brokerRole.json"
MAX_TERM = 2**62  # no promotions of ours get there: a higher one is nonsense of a peer


class Role(NamedTuple):
    """What a broker is to its name: the master, with id 0, or a slave."""

    broker_role: BrokerRole
    broker_id: int

    @property
    def is_slave(self) -> bool:
        return self.broker_role is BrokerRole.SLAVE

    def is_like(self, other: Role) -> bool:
        """Return whether both are the master, whatever it waits for, or both the same slave."""
        return self.is_slave == other.is_slave and self.broker_id == other.broker_id

    def __str__(self) -> str:
        return f"slave {self.broker_id}" if self.is_slave else "the master"


class _Given(NamedTuple):
    """The contents of the file: the role given last, what the broker's own file said then, and the term it had seen."""

    role: Role
    configured: Role
    term: int


class Roles:
    """The role to start with, and the file that remembers one given at run time. StoreError if it cannot be read."""

    def __init__(self, folder: Path, configured: Role) -> None:
        self._path = folder / BROKER_ROLE
        self._configured = configured
        try:
            self._given = state_file.load(self._path, _parse, is_progress=True)  # an empty one is none
        except StoreError as error:
            raise StoreError(
                f"{error}. It says whether this broker is the master of its name now; without it, the broker starts as "
                "its file says: move it away only if that is right"
            ) from error
        self._is_outdated = self._given is not None and not self._given.configured.is_like(configured)

    @property
    def role(self) -> Role:
        """The role that counts."""
        if self._given is None or self._is_outdated or self._given.role.is_like(self._configured):
            return self._configured
        return self._given.role

    @property
    def term(self) -> int:
        """The highest term that was known when a role was given; 0 if none was."""
        return self._given.term if self._given is not None else 0

    def started(self) -> None:
        """Say it if the role is not that of the file, and forget what an operator has overruled since."""
        if self._is_outdated:
            try:
                self.give(self._configured, self.term)
            except OSError as error:
                log.error("cannot save %s: %s; change brokerRole no more until the disk has room", self._path, error)
        elif not self.role.is_like(self._configured):
            log.warning(
                "this broker is %s, as it became while it ran, and not %s, as it is configured: set brokerRole=%s and "
                "brokerId=%d, or promote another one with `cosmodrome admin promote`",
                self.role,
                self._configured,
                self.role.broker_role,
                self.role.broker_id,
            )

    def give(self, role: Role, term: int) -> None:
        """Remember a role, durably; OSError when the disk refuses, and then the one before counts."""
        self._save(_Given(role, self._configured, max(term, self.term)))

    def _save(self, given: _Given) -> None:
        """Write the file twice: its `.bak` must not make a master of one that was demoted."""
        data = json.dumps(
            {
                "brokerRole": given.role.broker_role,
                "brokerId": given.role.broker_id,
                "configuredRole": given.configured.broker_role,
                "configuredId": given.configured.broker_id,
                "term": given.term,
            },
            indent=1,
        ).encode()
        state_file.save(self._path, data)
        self._given, self._is_outdated = given, False
        try:
            state_file.save(self._path, data)
        except OSError as error:
            log.error("cannot save %s twice: %s; its .bak says what was before", self._path, error)


def role_of(config: BrokerConfig, replication: ReplicationConfig) -> Role:
    """Return the role that two configs say."""
    return Role(replication.broker_role, config.broker_id)


def with_role(
    config: BrokerConfig, replication: ReplicationConfig, role: Role
) -> tuple[BrokerConfig, ReplicationConfig]:
    """Return both configs for another role. BadSetting if their other keys do not fit it."""
    return (
        dataclasses.replace(config, broker_id=role.broker_id),
        dataclasses.replace(replication, broker_role=role.broker_role),
    )


def _parse(data: bytes) -> _Given:
    table = json.loads(data)
    role = Role(BrokerRole(table["brokerRole"]), _number(table, "brokerId"))
    configured = Role(BrokerRole(table["configuredRole"]), _number(table, "configuredId"))
    for one in (role, configured):
        if one.is_slave == (one.broker_id == MASTER_ID):
            raise ProtocolError(f"{one.broker_role} with the id {one.broker_id}")
    return _Given(role, configured, _number(table, "term"))


def _number(table: dict[str, Any], name: str) -> int:
    number = table[name]
    if type(number) is not int or not 0 <= number < 2**63:
        raise ProtocolError(f"{name} is {number!r:.40}")
    return number

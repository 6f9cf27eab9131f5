"""Headers of the requests between brokers of one name about which is the master, and what it has. Codes and fields are
our own."""

from __future__ import annotations

from cosmodrome.wire.header import Header, header


@header
class RoleReply(Header):
    """The answer to each of these requests: a broker's role, and how far its copy of the log is."""

    broker_name: str
    broker_id: int
    broker_role: str
    term: int  # the highest that it has seen
    log_end: int  # what is as safe there as its flush promises
    broker_addr: str
    ha_server_addr: str = ""  # where it serves slaves, if it is a master
    master_addr: str = ""  # whom it follows, or last followed, if it is a slave
    master_role: str = ""  # what that one said to be, if it is one of ours
    is_following: bool = False
    no_messages: str = ""  # why it takes none, though it is a master


@header
class HandOver(Header):
    """HAND_OVER_BROKER, to a master: let the slave at `broker_addr` be the master, and follow it."""

    broker_addr: str
    timeout_millis: int  # for the slave to have the whole log
    broker_role: str = ""  # of the new master; empty: that of this one
    broker_id: int = 1  # of this one, if that at `broker_addr` is the master already


@header
class Promote(Header):
    """PROMOTE_BROKER, to a slave: be the master.

    A master that hands over gives its own address and a `token`, which WITHDRAW_PROMOTION names.
    """

    broker_role: str = ""  # empty: what its master was
    seen_term: int = 0  # the new one must be higher
    token: str = ""
    master_addr: str = ""
    is_force: bool = False  # though its master may live


@header
class WithdrawPromotion(Header):
    """WITHDRAW_PROMOTION: do not become master for this token, now or later. The answer says which of both it is."""

    token: str


@header
class AwaitTables(Header):
    """AWAIT_TABLES, to a master: answer once topics or groups are not of these versions any more, or time is up."""

    topic_version: str
    group_version: str
    timeout_millis: int


@header
class TableVersions(Header):
    """The answer: the versions that the tables have. They are to be compared, and say nothing else."""

    topic_version: str
    group_version: str

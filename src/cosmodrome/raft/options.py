"""Times and limits of one Raft member."""

from __future__ import annotations

from dataclasses import dataclass

from cosmodrome.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftOptions:
    """Every time and limit, once. All members of a group should have the same."""

    heartbeat_ms: int = 300
    election_min_ms: int = 1_000  # silence of the leader after which an election may begin
    election_max_ms: int = 2_000
    retry_ms: int = 600  # without an answer, what was sent is taken for lost
    transfer_ms: int = 1_000  # a transfer of leadership that takes longer is given up
    preferred_leader: str = ""  # the leader hands over to this member when it has caught up
    preferred_check_ms: int = 1_000

    max_batch_bytes: int = 256 * KIB  # of the entries of one message
    max_bulk_bytes: int = 4 * MIB  # the same for a follower that is far behind
    far_behind_entries: int = 10_000
    max_in_flight_messages: int = 64  # per follower, sent and not answered
    max_pending_entries: int = 10_000  # proposed, not committed
    max_pending_bytes: int = 64 * MIB
    max_pending_reads: int = 10_000
    caught_up_entries: int = 1_000  # who is further behind becomes neither a voter nor the leader

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, int) and value <= 0:
                raise ConfigError(f"{name} is {value}; it must be above 0")
        if not self.heartbeat_ms < self.election_min_ms <= self.election_max_ms:
            raise ConfigError(
                f"heartbeat_ms {self.heartbeat_ms}, election_min_ms {self.election_min_ms}, election_max_ms "
                f"{self.election_max_ms}: a heartbeat must come more often than the shortest election time-out, and "
                "the shortest must not be above the longest"
            )

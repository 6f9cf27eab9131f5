"""Bodies in which brokers of one name tell each other, and operators, about the copies of their log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Self

from cosmodrome.wire.bodies.fields import Body, Fields, Json


class EpochEntry(NamedTuple):
    """One stretch of a log that one master wrote. `id` is ours; Apache's brokers tell none."""

    term: int
    id: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class EpochsBody(Body):
    """GET_BROKER_EPOCH_CACHE: who wrote which stretch of a broker's log. `min_offset` and the ids are ours."""

    cluster: str
    broker_name: str
    broker_id: int
    epochs: tuple[EpochEntry, ...]
    max_offset: int
    min_offset: int = 0

    def to_json(self) -> Json:
        return {
            "brokerId": self.broker_id,
            "brokerName": self.broker_name,
            "clusterName": self.cluster,
            "epochList": [
                {"endOffset": entry.end, "epoch": entry.term, "id": entry.id, "startOffset": entry.begin}
                for entry in self.epochs
            ],
            "maxOffset": self.max_offset,
            "minOffset": self.min_offset,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        entries = (
            EpochEntry(item.int64("epoch"), item.text("id"), item.int64("startOffset"), item.int64("endOffset"))
            for item in fields.objects("epochList")
        )
        return cls(
            fields.text("clusterName"),
            fields.text("brokerName"),
            fields.int64("brokerId"),
            tuple(entries),
            fields.int64("maxOffset"),
            fields.int64("minOffset"),
        )


@dataclass(frozen=True, slots=True)
class SlaveOfMaster:
    """One slave, as its master sees it."""

    address: str
    ack_offset: int = 0
    behind: int = 0
    in_sync: bool = False
    bytes_per_second: int = 0
    begin: int = 0

    def to_json(self) -> Json:
        return {
            "addr": self.address,
            "diff": self.behind,
            "inSync": self.in_sync,
            "slaveAckOffset": self.ack_offset,
            "transferFromWhere": self.begin,
            "transferredByteInSecond": self.bytes_per_second,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            fields.text("addr"),
            fields.int64("slaveAckOffset"),
            fields.int64("diff"),
            fields.flag("inSync"),
            fields.int64("transferredByteInSecond"),
            fields.int64("transferFromWhere"),
        )


@dataclass(frozen=True, slots=True)
class MasterOfSlave:
    """How a slave follows its master."""

    master_address: str = ""
    max_offset: int = 0
    bytes_per_second: int = 0
    last_read_ms: int = 0
    last_write_ms: int = 0
    master_flush_offset: int = 0
    is_connected: bool = False

    def to_json(self) -> Json:
        return {
            "activated": self.is_connected,
            "lastReadTimestamp": self.last_read_ms,
            "lastWriteTimestamp": self.last_write_ms,
            "masterAddr": self.master_address,
            "masterFlushOffset": self.master_flush_offset,
            "maxOffset": self.max_offset,
            "transferredByteInSecond": self.bytes_per_second,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            fields.text("masterAddr"),
            fields.int64("maxOffset"),
            fields.int64("transferredByteInSecond"),
            fields.int64("lastReadTimestamp"),
            fields.int64("lastWriteTimestamp"),
            fields.int64("masterFlushOffset"),
            fields.flag("activated"),
        )


@dataclass(frozen=True, slots=True)
class HaStatusBody(Body):
    """GET_BROKER_HA_STATUS: a master's slaves, or how a slave follows."""

    is_master: bool
    master_offset: int = 0
    slaves: tuple[SlaveOfMaster, ...] = ()
    follows: MasterOfSlave = field(default_factory=MasterOfSlave)

    def to_json(self) -> Json:
        return {
            "haClientRuntimeInfo": self.follows.to_json(),
            "haConnectionInfo": [slave.to_json() for slave in self.slaves],
            "inSyncSlaveNums": sum(slave.in_sync for slave in self.slaves),
            "master": self.is_master,
            "masterCommitLogMaxOffset": self.master_offset,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            fields.flag("master"),
            fields.int64("masterCommitLogMaxOffset"),
            tuple(SlaveOfMaster.from_fields(item) for item in fields.objects("haConnectionInfo")),
            MasterOfSlave.from_fields(fields.object("haClientRuntimeInfo")),
        )

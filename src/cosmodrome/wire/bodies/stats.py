"""VIEW_BROKER_STATS_DATA: how much came in some time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from cosmodrome.wire.bodies.fields import Body, Fields, Json


@dataclass(frozen=True, slots=True)
class StatsItem:
    """In all, per second, and per request."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0

    def to_json(self) -> Json:
        return {"avgpt": self.avgpt, "sum": self.sum, "tps": self.tps}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(fields.int64("sum"), fields.real("tps"), fields.real("avgpt"))


@dataclass(frozen=True, slots=True)
class BrokerStats(Body):
    minute: StatsItem
    hour: StatsItem
    day: StatsItem

    def to_json(self) -> Json:
        return {
            "statsDay": self.day.to_json(),
            "statsHour": self.hour.to_json(),
            "statsMinute": self.minute.to_json(),
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        minute, hour, day = (
            StatsItem.from_fields(fields.object(name)) for name in ("statsMinute", "statsHour", "statsDay")
        )
        return cls(minute, hour, day)

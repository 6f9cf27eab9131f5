"""The VIP channel: brokers listen a second time, two ports below the first, for everything but pulls."""

from __future__ import annotations

from cosmodrome.codes import RequestCode
from cosmodrome.net.caller import Caller
from cosmodrome.numbers import MAX_PORT, parse_int
from cosmodrome.wire.command import Command

_DISTANCE = 2
# What Java's clients send there. Heartbeats, pulls, the ends of transactions and all for name servers stay on the port.
_REQUESTS = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
    }
)


class VipCaller(Caller):
    """Takes requests that may go there to the VIP channel of the broker that they are for."""

    async def call(
        self, address: str, command: Command, timeout_ms: float, connect_timeout_ms: float | None = None
    ) -> Command:
        place = vip_address(address) if command.code in _REQUESTS else address
        return await super().call(place, command, timeout_ms, connect_timeout_ms)

    async def oneway(self, address: str, command: Command) -> None:
        goes_there = command.code in _REQUESTS and command.code != RequestCode.UNLOCK_BATCH_MQ
        await super().oneway(vip_address(address) if goes_there else address, command)

    def back_off_ms(self, address: str) -> float:
        return super().back_off_ms(vip_address(address))


def vip_address(address: str) -> str:
    """Return the VIP address of the broker at this address; the address itself if there can be none."""
    host, _, port = address.rpartition(":")
    number = parse_int(port, low=_DISTANCE + 1, high=MAX_PORT)
    return address if number is None else f"{host}:{number - _DISTANCE}"

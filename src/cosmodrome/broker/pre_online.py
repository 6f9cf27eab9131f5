"""A master that comes back: before it serves, it takes back how far the slave is that acted for it.

For each slave that a name server knows, smallest id first: tell it to make way, which it answers when its services have
ended; see up to where both logs are the same; take over consumer offsets, delay offsets and the timer checkpoint, each
no further than that place in the log. Progress is never set back. A slave that does not answer is asked again until the
name servers forget it. Another master that is registered may be this one before it died: it gets the time to be
forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from cosmodrome.broker.acting import find_members
from cosmodrome.codes import Language, RequestCode, ResponseCode
from cosmodrome.errors import ClientError, ProtocolError, RequestError, StoreError
from cosmodrome.model import MASTER_ID
from cosmodrome.net.caller import Caller
from cosmodrome.numbers import parse_int
from cosmodrome.replication.epochs import LogEpoch, common_end
from cosmodrome.store.message_store import MessageStore
from cosmodrome.store.timer_checkpoint import TimerCheckpoint
from cosmodrome.wire import fastjson
from cosmodrome.wire.bodies import ConsumerOffsetsBody, DelayOffsetsBody, EpochsBody, KVTable
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.name_server_requests import ExchangeHaInfo

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)

CALL_TIMEOUT_MS = 10_000  # the slave ends its services meanwhile
RETRY_MS = 1_000

T = TypeVar("T")


def known_to(store: MessageStore, log_end: int, topic: str, queue_id: int, offset: int) -> int:
    """Return `offset`, or how many messages of a queue lie before `log_end` if those are fewer."""
    low, high = store.min_offset(topic, queue_id), min(offset, store.max_offset(topic, queue_id))
    while low < high:
        middle = (low + high) // 2
        entry = store.entry(topic, queue_id, middle)
        if entry is not None and entry[0] < log_end:
            low = middle + 1
        else:
            high = middle
    return max(high, 0)


class PreOnline:
    """The way of a master from its start to its service; `taken_from` are the slaves it has taken something from."""

    def __init__(self, broker: Broker, caller: Caller) -> None:
        self._broker = broker
        self._caller = caller
        self._problem: str | None = None
        self._other_since_ms: int | None = None
        self.taken_from: dict[int, str] = {}

    async def run(self) -> None:
        """Return when this master may serve."""
        while True:
            try:
                if await self._is_ready():
                    return
            except (ClientError, RequestError, ProtocolError, StoreError) as error:
                self._note(str(error))
            await self._broker.clock.sleep(RETRY_MS)

    async def _is_ready(self) -> bool:
        config = self._broker.config
        members = await find_members(self._caller, config)
        if members is None:
            self._note("no name server answers")
            return False
        other = members.get(MASTER_ID, self._broker.address)
        if other != self._broker.address and self._may_be_forgotten():
            self._note(f"{other} is registered as the master; if it is dead, the name servers will forget it")
            return False
        if other != self._broker.address:
            log.warning("%s is the master of %s: nothing is taken from its slaves", other, config.broker_name)
            return True
        for broker_id in sorted(members.keys() - {MASTER_ID} - self.taken_from.keys()):
            await self._take_from(broker_id, members[broker_id])
            self.taken_from[broker_id] = members[broker_id]
        return True

    def _may_be_forgotten(self) -> bool:
        """Whether another master that is registered may be this broker in its life before, at another address."""
        clock, config = self._broker.clock, self._broker.config
        if self._other_since_ms is None:
            self._other_since_ms = clock.steady_ms()
        return clock.steady_ms() - self._other_since_ms <= config.broker_not_active_timeout_millis

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            log.error(
                "this master of %s does not serve yet, since it cannot ask its slaves how far they are: %s; trying "
                "again. skipPreOnline=true lets it serve without that: what a slave delivered comes again",
                self._broker.config.broker_name,
                problem,
            )
        self._problem = problem

    async def _take_from(self, broker_id: int, slave: str) -> None:
        broker = self._broker
        here = ExchangeHaInfo(broker.registration.ha_address, broker.store.max_physical_offset, broker.address)
        await self._ask(slave, RequestCode.EXCHANGE_BROKER_HA_INFO, here)
        log_end = await self._common_end(slave)
        if log_end is None:
            log.warning("nothing is taken back from slave %d at %s: it has another log", broker_id, slave)
            return

        def known(topic: str, queue_id: int, offset: int) -> int:
            return known_to(broker.store, log_end, topic, queue_id, offset)

        offsets = await self._table(slave, RequestCode.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetsBody.decode)
        delays = await self._table(slave, RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsetsBody.decode)
        timers = await self._table(slave, RequestCode.GET_TIMER_CHECK_POINT, TimerCheckpoint.of_master)
        # Only now, that all is here: nothing is half taken over.
        await broker.lane.run(broker.offsets.taking_back(offsets, known))
        await broker.delays.take_back(delays, known)
        broker.timers.take_back(timers, known)
        broker.transactions.recover_again()
        await broker.offsets.saved()
        log.info("taken back from slave %d at %s: how far groups and services are", broker_id, slave)

    async def _common_end(self, slave: str) -> int | None:
        """Return up to where this log and the slave's are the same; None if they have nothing in common."""
        store = self._broker.store
        reply = await self._caller.call(slave, Command.request(RequestCode.GET_BROKER_EPOCH_CACHE), CALL_TIMEOUT_MS)
        if reply.code == ResponseCode.SUCCESS:
            body = EpochsBody.decode(reply.body)
            if not (body.max_offset and store.max_physical_offset):
                return 0  # one of them is new
            epochs = [LogEpoch(entry.term, entry.id, entry.begin) for entry in body.epochs]
            return common_end(store.epochs.list, store.max_physical_offset, epochs, body.max_offset)
        if reply.language == Language.PYTHON:
            raise RequestError(f"{slave} does not tell its epochs: {reply.remark}")
        table = await self._table(slave, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable.decode)  # Apache's has none
        end = parse_int(table.table.get("commitLogMaxOffset"))
        return None if end is None else min(end, store.max_physical_offset)

    async def _ask(self, slave: str, code: RequestCode, header: Header | None = None) -> bytes:
        reply = await self._caller.call(slave, Command.request(code, header), CALL_TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            raise RequestError(f"{slave} answered request {code:d} with {reply.code}: {reply.remark}")
        return bytes(reply.body)

    async def _table(self, slave: str, code: RequestCode, decode: Callable[[bytes], T]) -> T:
        """Decode a table, which may be long, beside the loop."""
        body = await self._ask(slave, code)

        def read() -> T:
            with fastjson.lenient_up_to(fastjson.PEERS_LENIENT_BYTES):
                return decode(body)

        return await self._broker.lane.aside(read)

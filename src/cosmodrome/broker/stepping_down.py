"""A master that steps down by itself: another one was promoted since, and lacks nothing that this one has.

    master ──name servers hold to another one, for two looks──► stale ──its log is a beginning of the other's──► slave
                                                                  └──it has bytes that the other lacks──► stale

A stale master takes no messages already. Whether what only it has may be cut off, an operator decides
(`cosmodrome admin demote`); where there is no such byte, there is nothing to decide.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cosmodrome.broker.acting import find_members
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import ClientError, ProtocolError, RequestError
from cosmodrome.model import MASTER_ID
from cosmodrome.net.caller import Caller
from cosmodrome.replication.epochs import LogEpoch, common_end
from cosmodrome.wire.bodies import EpochsBody
from cosmodrome.wire.command import Command
from cosmodrome.wire.role_requests import HandOver

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)

LOOK_MS = 5_000
ASK_MS = 3_000
STEP_DOWN_MS = 10_000  # for the disk to take the log first


class SteppingDown:
    """Looks now and then whether this master is stale and may become a slave."""

    def __init__(self, broker: Broker, caller: Caller) -> None:
        self._broker = broker
        self._caller = caller
        self._problem = ""  # why it does not step down, as it was logged last

    async def run(self) -> None:
        """Look until the broker is a slave."""
        broker, was_stale = self._broker, False
        while True:
            await broker.clock.sleep(LOOK_MS)
            is_stale = broker.registration.conflict is not None
            if is_stale and was_stale:  # not one that an operator demotes just now
                await self._look()
            elif not is_stale:
                self._problem = ""
            was_stale = is_stale

    async def _look(self) -> None:
        broker = self._broker
        try:
            members = await find_members(self._caller, broker.config) or {}
            master = members.get(MASTER_ID)
            if master is None or master == broker.address:
                return
            await self._check_log(master)
            free_id = next(one for one in range(1, len(members) + 2) if one not in members)
            log.warning(
                "stale master steps down: broker=%s master=%s id=%d; it has nothing that the master lacks",
                broker.config.broker_name,
                master,
                free_id,
            )
            await broker.promotion.hand_over(HandOver(master, STEP_DOWN_MS, broker_id=free_id))
        except (ClientError, ProtocolError, RequestError) as error:
            if (problem := str(error)) != self._problem:
                self._problem = problem
                log.warning("stale master does not step down by itself: %s", problem)

    async def _check_log(self, master: str) -> None:
        """RequestError unless this log is a beginning of the master's: its epochs say so."""
        store = self._broker.store
        reply = await self._caller.call(master, Command.request(RequestCode.GET_BROKER_EPOCH_CACHE), ASK_MS)
        if reply.code != ResponseCode.SUCCESS:
            raise RequestError(f"{master} does not tell its epochs: {reply.remark}")
        body = EpochsBody.decode(reply.body)
        if (body.broker_name, body.broker_id) != (self._broker.config.broker_name, MASTER_ID):
            raise RequestError(f"{master} is not the master of {self._broker.config.broker_name}")
        theirs = [LogEpoch(entry.term, entry.id, entry.begin) for entry in body.epochs]
        begin, end = store.min_physical_offset, store.max_physical_offset
        common = common_end(store.epochs.list, end, theirs, body.max_offset)
        lacking = end - max(begin if common is None else common, begin)
        if lacking > 0:
            raise RequestError(
                f"it has {lacking} bytes that {master} lacks; `cosmodrome admin demote {self._broker.address}` keeps "
                "them aside"
            )

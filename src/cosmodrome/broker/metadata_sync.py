"""The tables that a slave takes over from its master beside the log: topics, offsets, groups, delivery progress.

Strictly the slave asks; a master takes nothing from a slave. None of it runs ahead of the slave's log: how far groups
and services are is taken over once everything is on this disk that the master's log held when it was asked. A slave
that becomes a master so repeats a little, and leaves nothing out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from cosmodrome.clock import sleep_unless
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerRole
from cosmodrome.errors import ClientError, ProtocolError, RequestError, StoreError
from cosmodrome.net.caller import Caller
from cosmodrome.numbers import parse_int
from cosmodrome.store.timer_checkpoint import TimerCheckpoint
from cosmodrome.wire import fastjson
from cosmodrome.wire.bodies import (
    ConsumerOffsetsBody,
    DelayOffsetsBody,
    GroupConfigWrapper,
    KVTable,
    RequestModesBody,
    TimerMetricsBody,
    TopicConfigWrapper,
)
from cosmodrome.wire.command import Command
from cosmodrome.wire.role_requests import AwaitTables, TableVersions

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)

FIRST_AFTER_MS = 3_000
PERIOD_MS = 10_000
GROUP_PERIOD_MS = 1_000  # in a Raft group: what a new leader does not know of offsets is delivered again
HURRY_MS = 500  # after the log brought a message of a topic that is not known
CHANGES_MS = 50  # between two changes of topics and groups that are taken over
CALL_TIMEOUT_MS = 3_000
LOOK_AT_LOG_MS = 100

T = TypeVar("T")
Apply = Callable[[], Awaitable[None]]


class _Unreachable(Exception):
    """The master does not answer: no other part would be answered either."""


class MetadataSync:
    """Asks the master for its tables, 3 s after the start and then every 10 s; for topics and groups when they change.

    A part that fails is logged, once for as long as it fails the same way, and the others go on.
    """

    def __init__(self, broker: Broker, caller: Caller) -> None:
        self._broker = broker
        self._caller = caller
        self._held: list[Apply] = []  # what waits until the log is here up to `_held_until`
        self._held_until = 0
        self._problems: dict[str, str] = {}  # part → how it failed last
        self._unknown = asyncio.Event()
        self._taking = asyncio.Lock()  # of two answers, the later one counts
        self.rounds = 0  # in which every part went well
        self.master_role = ""  # what the master says to be; Apache's says nothing

    async def run(self) -> None:
        is_in_group = self._broker.group is not None
        await self._broker.clock.sleep(HURRY_MS if is_in_group else FIRST_AFTER_MS)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_rounds())
            tasks.create_task(self._watch())

    async def _watch(self) -> None:
        """Take over topics and groups as soon as a master of ours says that they have changed.

        A promotion forgets what the master had not told: a topic would come back with no more queues than had messages.
        """
        clock, told = self._broker.clock, TableVersions("", "")
        while True:
            master = self._broker.registration.master
            rest_ms = PERIOD_MS  # an older master, or Apache's, which knows no such request
            if master is not None:
                asked = AwaitTables(told.topic_version, told.group_version, PERIOD_MS)
                command = Command.request(RequestCode.AWAIT_TABLES, asked)
                try:
                    reply = await self._caller.call(master.address, command, PERIOD_MS + CALL_TIMEOUT_MS)
                    if reply.code == ResponseCode.SUCCESS:
                        before, told = told, TableVersions.decode(reply)
                        rest_ms = 0 if told != before else CHANGES_MS
                    elif reply.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                        rest_ms = HURRY_MS
                except (ClientError, ProtocolError, RequestError):  # the rounds say so
                    rest_ms = HURRY_MS
            elif self._broker.group is not None:
                rest_ms = HURRY_MS
            if not rest_ms and master is not None and master == self._broker.registration.master:
                try:
                    await self._part("its topics", self._topics, master.address)
                    await self._part("groups", self._groups, master.address)
                except _Unreachable:
                    told = TableVersions("", "")
                rest_ms = CHANGES_MS
            await clock.sleep(rest_ms)

    async def _run_rounds(self) -> None:
        clock = self._broker.clock
        period_ms = GROUP_PERIOD_MS if self._broker.group is not None else PERIOD_MS
        while True:
            self._unknown.clear()
            if (master := self._broker.registration.master) is not None:
                await self.round(master.address)
            await clock.sleep(HURRY_MS)
            await sleep_unless(self._unknown, clock, period_ms - HURRY_MS)

    def arrived(self, topic: str) -> None:
        """Ask the master soon if the log brought a message of an unknown topic: consumers cannot read it before."""
        if self._broker.topics.find_topic(topic) is None:
            self._unknown.set()

    @property
    def problems(self) -> list[str]:
        """What could not be taken over the last time, and why."""
        return [f"{what}: {problem}" for what, problem in self._problems.items()]

    async def round(self, master: str) -> None:
        """Take over everything once."""
        try:
            await self._round(master)
        except _Unreachable as error:
            self._note("its tables", str(error))
            if self._broker.group is not None:  # another one leads by now, or will
                self._broker.registration.forget_master()
        else:
            self._note("its tables", None)
            self.rounds += not self._problems

    async def _round(self, master: str) -> None:
        deleted_below = await self._part("the end of its log", self._log_end, master)
        if self._broker.group is not None and not self.master_role:
            raise _Unreachable(f"{master} does not lead the group any more")
        topics = await self._part("its topics", self._topics, master)
        if not self._held:
            await self._part("consumer offsets", self._consumer_offsets, master)
            await self._part("delay offsets", self._delay_offsets, master)
            await self._part("timer checkpoint", self._timer_checkpoint, master)
            end = await self._part("the end of its log", self._log_end, master) if self._held else None
            if end is None:
                self._held.clear()
            else:
                self._held_until = end
        await self._part("groups", self._groups, master)
        await self._part("request modes", self._request_modes, master)
        await self._part("timer metrics", self._timer_metrics, master)
        if topics is not None and deleted_below is not None and await self._has_log(deleted_below):
            await self._part("deleted topics", lambda _: self._drop_queues(topics, deleted_below), master)
        if self._held and await self._has_log(self._held_until):
            await self._part("how far its groups and services are", self._apply_held, master)

    async def _part(self, what: str, part: Callable[[str], Awaitable[T]], master: str) -> T | None:
        try:
            result = await part(master)
        except ClientError as error:
            raise _Unreachable(str(error)) from error
        except (RequestError, ProtocolError, StoreError, OSError) as error:
            self._note(what, str(error))
            return None
        self._note(what, None)
        return result

    def _note(self, what: str, problem: str | None) -> None:
        before = self._problems.get(what)
        if problem is None:
            if self._problems.pop(what, None) is not None:
                log.info("taken over from the master again: %s", what)
        elif problem != before:
            self._problems[what] = problem
            is_usual = self._broker.group is not None and before is not None
            log.log(
                logging.DEBUG if is_usual else logging.ERROR,
                "cannot take over from the master %s: %s; trying again",
                what,
                problem,
            )

    async def _ask(self, master: str, code: RequestCode) -> bytes | None:
        """The body of the master's answer; None from an older master, which has no such thing."""
        reply = await self._caller.call(master, Command.request(code), CALL_TIMEOUT_MS)
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        if reply.code != ResponseCode.SUCCESS:
            raise RequestError(f"{master} answered request {code:d} with {reply.code}: {reply.remark}")
        return bytes(reply.body)

    async def _decoded(self, master: str, code: RequestCode, decode: Callable[[bytes], T]) -> T | None:
        """Decode a table, which may be long, beside the loop."""
        body = await self._ask(master, code)
        if body is None:
            return None

        def read() -> T:
            with fastjson.lenient_up_to(fastjson.PEERS_LENIENT_BYTES):
                return decode(body)

        return await self._broker.lane.aside(read)

    # --- the parts

    async def _log_end(self, master: str) -> int:
        table = await self._decoded(master, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable.decode)
        end = parse_int(table.table.get("commitLogMaxOffset")) if table is not None else None
        if end is None:
            raise ProtocolError(f"{master} does not say where its log ends")
        role = table.table.get("brokerRole", "") if table is not None else ""
        self.master_role = role if role in (BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER) else ""
        return end

    async def _topics(self, master: str) -> TopicConfigWrapper | None:
        async with self._taking:
            return await self._take_topics(master)

    async def _take_topics(self, master: str) -> TopicConfigWrapper | None:
        table = await self._decoded(master, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigWrapper.decode)
        if table is not None:
            self._broker.topics.adopt(table)
            await self._broker.topics.saved()
        return table

    async def _drop_queues(self, topics: TopicConfigWrapper, below: int) -> None:
        """Drop the queues of topics that the master has deleted, unless it has made them again meanwhile."""
        broker = self._broker
        for name in broker.store.topics():
            if name not in topics.topics and not broker.topics.is_system(name):
                broker.store.forget_topic(name, below)
                await broker.lane.turn()

    async def _groups(self, master: str) -> None:
        async with self._taking:
            await self._take_groups(master)

    async def _take_groups(self, master: str) -> None:
        decode = GroupConfigWrapper.decode
        table = await self._decoded(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, decode)
        if table is not None:
            self._broker.groups.adopt(table)
            await self._broker.groups.saved()

    async def _request_modes(self, master: str) -> None:
        table = await self._decoded(master, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, RequestModesBody.decode)
        if table is not None:
            self._broker.request_modes.adopt(table)
            await self._broker.request_modes.saved()

    async def _timer_metrics(self, master: str) -> None:
        table = await self._decoded(master, RequestCode.GET_TIMER_METRICS, TimerMetricsBody.decode)
        if table is not None:
            await self._broker.timers.adopt_metrics(table)

    # --- those that must not run ahead of the log

    async def _consumer_offsets(self, master: str) -> None:
        table = await self._decoded(master, RequestCode.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetsBody.decode)

        async def apply() -> None:
            assert table is not None
            await self._broker.lane.run(self._broker.offsets.adopting(table))
            await self._broker.offsets.saved()

        if table is not None:
            self._held.append(apply)

    async def _delay_offsets(self, master: str) -> None:
        table = await self._decoded(master, RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsetsBody.decode)
        if table is not None:
            self._held.append(lambda: self._broker.delays.adopt(table))

    async def _timer_checkpoint(self, master: str) -> None:
        body = await self._ask(master, RequestCode.GET_TIMER_CHECK_POINT)
        if body is not None:
            checkpoint = TimerCheckpoint.of_master(body)
            self._held.append(lambda: self._broker.timers.adopt(checkpoint))

    async def _apply_held(self, _master: str) -> None:
        held, self._held = self._held, []
        if self._broker.acting.is_acting:  # it has gone on from what the master told before
            return
        for apply in held:
            await apply()

    async def _has_log(self, end: int) -> bool:
        """Return once this broker's log is on disk up to `end`; False if that takes longer than a round may."""
        store, clock = self._broker.store, self._broker.clock
        deadline_ms = clock.steady_ms() + PERIOD_MS
        store.flusher.want(end)
        while store.flusher.flushed < end:
            if store.flusher.failure is not None or clock.steady_ms() >= deadline_ms:
                return False
            await clock.sleep(LOOK_AT_LOG_MS)
            store.flusher.want(end)
        return True

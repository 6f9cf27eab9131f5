"""Telling the name servers what this broker has: when it starts, whenever a topic changes, and every 30 s.

Their answers say which topics are orderly, to a slave where its master is, and to a master whether another one of its
name was promoted since: then this one is stale, and must take no messages.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cosmodrome.clock import Clock, sleep_unless
from cosmodrome.codes import Language, RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import ClientError, ProtocolError, RequestError
from cosmodrome.model import MASTER_ID
from cosmodrome.net.caller import Caller
from cosmodrome.wire.bodies import KVTable, RegisterBrokerBody, decode_route
from cosmodrome.wire.command import Command
from cosmodrome.wire.name_server_requests import BrokerHeader, GetRoute, RegisterBroker, RegisterBrokerReply

log = logging.getLogger(__name__)

COALESCE_MS = 200  # after a change was told, those of this time are told together: each names every topic
MAX_QUIET_MS = 2_000
ENCODED_AT_ONCE = 2_000  # topics, in some milliseconds
RETRY_MS = 1_000  # a name server that did not answer is tried again this soon
SEARCH_MS = 5_000  # a slave that has no master asks this often
MIN_PERIOD_MS, MAX_PERIOD_MS = 10_000, 60_000
UNREGISTER_TIMEOUT_MS = 3_000
ANNOUNCE_TIMEOUT_MS = 3_000


@dataclass(frozen=True, slots=True)
class Master:
    """Addresses of a slave's master, from a name server: for requests, and for the copy of its log."""

    address: str
    ha_address: str


async def _encoded(body: RegisterBrokerBody) -> bytes:
    """Encode what a name server is told, beside the loop if that takes long."""
    if len(body.topics) <= ENCODED_AT_ONCE:
        return body.encode()
    return await asyncio.to_thread(body.encode)


class Registration:
    """Registers with every name server on its own, so that one that is down does not keep the others waiting."""

    def __init__(
        self,
        config: BrokerConfig,
        caller: Caller,
        clock: Clock,
        body: Callable[[], RegisterBrokerBody],
        on_orderly: Callable[[Iterable[str]], None],
        on_master: Callable[[Master], None] = lambda _: None,
        on_conflict: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._broker_id = config.broker_id
        self._caller = caller
        self._clock = clock
        self._address = ""
        self._body = body
        self._on_orderly = on_orderly
        self._on_master = on_master
        self._on_conflict = on_conflict
        self.ha_address = ""
        self.master: Master | None = None  # of a slave, once a name server has named it
        self.is_searching: Callable[[], bool] = lambda: False  # whether a slave has no master that it can follow
        self.seen_term = 0  # the highest that a name server has told of a master of this name
        self._conflicts: dict[str, str] = {}  # name server → which other master it holds to
        self._period_ms = min(max(config.register_name_server_period, MIN_PERIOD_MS), MAX_PERIOD_MS)
        self._changed = {name_server: asyncio.Event() for name_server in config.name_servers}
        self._reachable = dict.fromkeys(config.name_servers, True)
        self._version = 0  # of our topics
        self._told = dict.fromkeys(config.name_servers, -1)  # the version each name server has
        self._turns = {name_server: asyncio.Lock() for name_server in config.name_servers}

    def use(self, address: str, ha_address: str = "") -> None:
        """Set the addresses to register."""
        self._address = address
        self.ha_address = ha_address or address

    async def start(self, address: str, ha_address: str = "") -> None:
        """Register `address` everywhere once, whatever the outcome; `run` keeps it registered."""
        self.use(address, ha_address)
        await self.announce()

    def become(self, broker_id: int, ha_address: str = "", master: Master | None = None) -> None:
        """Register with this id from the next time on; with `announce`, that is now. A slave may know its master."""
        self._broker_id, self.ha_address = broker_id, ha_address or self._address
        self.master = master
        self._conflicts.clear()
        self.topics_changed()

    def forget_master(self) -> None:
        """Let the next answer of a name server say who the master is."""
        self.master = None

    @property
    def conflict(self) -> str | None:
        """Return which other broker is the master of this name, if a name server holds to one."""
        return next(iter(self._conflicts.values()), None)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name_server in self._changed:
                tasks.create_task(self._follow(name_server))

    def topics_changed(self) -> None:
        """Tell every name server soon; changes made until then travel together."""
        self._version += 1
        for event in self._changed.values():
            event.set()

    async def announce(self) -> None:
        """Tell every name server now and return when all have answered or failed. Those who ask while a registration
        is under way share the next."""
        await asyncio.gather(*(self._tell(name_server, ANNOUNCE_TIMEOUT_MS) for name_server in self._changed))

    async def _follow(self, name_server: str) -> None:
        changed = self._changed[name_server]
        quiet_until_ms = 0
        while True:
            await self._wait(name_server, changed)
            is_sign_of_life = not changed.is_set()
            if changed.is_set():
                await self._clock.sleep(quiet_until_ms - self._clock.steady_ms())
                quiet_until_ms = self._clock.steady_ms() + COALESCE_MS
                changed.clear()
            began_ms = self._clock.steady_ms()
            await self._tell(name_server, self._config.register_broker_timeout_mills, again=is_sign_of_life)
            # What takes long, since there are so many topics, is done a quarter of the time only.
            now_ms = self._clock.steady_ms()
            quiet_until_ms = max(quiet_until_ms, now_ms + min(3 * (now_ms - began_ms), MAX_QUIET_MS))

    async def _wait(self, name_server: str, changed: asyncio.Event) -> None:
        """Return when the next registration is due. That may be sooner than at first: a slave can lose its master."""
        began_ms = self._clock.steady_ms()
        while not changed.is_set():
            left_ms = began_ms + self._wait_ms(name_server) - self._clock.steady_ms()
            if left_ms <= 0:
                return
            await sleep_unless(changed, self._clock, min(left_ms, SEARCH_MS))

    def _wait_ms(self, name_server: str) -> int:
        if not self._reachable[name_server]:
            return RETRY_MS
        is_urgent = name_server in self._conflicts or self.is_searching()
        return min(self._period_ms, SEARCH_MS) if is_urgent else self._period_ms

    async def _tell(self, name_server: str, timeout_ms: int, *, again: bool = False) -> None:
        """Register, unless the name server has heard meanwhile of everything there was to tell."""
        wanted = self._version
        async with self._turns[name_server]:
            if again or self._told[name_server] < wanted:
                version = self._version
                await self._register(name_server, timeout_ms)
                if self._reachable[name_server]:
                    self._told[name_server] = version
                    if version == self._version:
                        self._changed[name_server].clear()

    async def _register(self, name_server: str, timeout_ms: int) -> None:
        body = await _encoded(self._body())
        broker_id = self._broker_id
        is_acting = self._config.enable_slave_acting_master
        header = RegisterBroker(
            self._config.broker_name,
            self._address,
            self._config.broker_cluster_name,
            broker_id,
            ha_server_addr=self.ha_address,
            heartbeat_timeout_millis=self._config.broker_not_active_timeout_millis if is_acting else None,
            enable_acting_master=True if is_acting else None,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        request = Command.request(RequestCode.REGISTER_BROKER, header, body)
        try:
            reply = await self._caller.call(name_server, request, timeout_ms)
        except ClientError as error:
            self._note(name_server, str(error))
            return
        if reply.code != ResponseCode.SUCCESS:
            self._note(name_server, f"answered {reply.code}: {reply.remark}")
            return
        self._note(name_server, None)
        if broker_id != self._broker_id:
            return  # the answer is to the broker of before
        try:
            self._learn(RegisterBrokerReply.decode(reply), reply.body)
            if broker_id == MASTER_ID:
                conflict = await self._conflict(name_server, reply, timeout_ms)
                if broker_id == self._broker_id:
                    self._note_conflict(name_server, conflict)
        except (ProtocolError, RequestError) as error:
            log.warning("answer to the registration not understood: name_server=%s error=%s", name_server, error)

    def _learn(self, reply: RegisterBrokerReply, body: bytes | memoryview) -> None:
        """Name servers that know of no master, or of no orderly topics, change nothing."""
        self.seen_term = max(self.seen_term, reply.master_term or 0)
        if reply.master_addr:
            master = Master(reply.master_addr, reply.ha_server_addr or "")
            if master != self.master:
                log.info("master found: address=%s ha=%s", master.address, master.ha_address)
            self.master = master
            self._on_master(master)
        if body:
            self._on_orderly(KVTable.decode(body).table)

    async def _conflict(self, name_server: str, reply: Command, timeout_ms: int) -> str | None:
        """Return which other broker a name server holds to be the master of this name; None if it is this one.

        Ours say so in their answer. Apache's answer a refusal as they answer everything, so they are asked again.
        """
        if reply.language == Language.PYTHON:
            return reply.remark
        request = Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(self._config.broker_name, True))
        try:
            route = await self._caller.call(name_server, request, timeout_ms)
            if route.code != ResponseCode.SUCCESS:  # some names of brokers are no names of topics
                return None
            brokers = decode_route(bytes(route.body)).brokers
        except (ClientError, ProtocolError):
            return self._conflicts.get(name_server)
        for broker in brokers:
            address = broker.addresses.get(MASTER_ID, self._address)
            if broker.broker_name == self._config.broker_name and address != self._address:
                return f"{address} is the master of {broker.broker_name}"
        return None

    def _note_conflict(self, name_server: str, conflict: str | None) -> None:
        before = self.conflict
        if conflict:
            self._conflicts[name_server] = conflict
        else:
            self._conflicts.pop(name_server, None)
        if before != self.conflict:
            self._on_conflict(self.conflict)

    def _note(self, name_server: str, problem: str | None) -> None:
        """Log a name server's coming and going, not every round."""
        was_reachable = self._reachable[name_server]
        self._reachable[name_server] = problem is None
        if problem and was_reachable:
            log.warning("cannot register with name server %s: %s; trying on", name_server, problem)
        elif not problem and not was_reachable:
            log.info("registered with name server %s again", name_server)

    async def leave(self) -> None:
        """Unregister everywhere, so that clients turn elsewhere at once."""
        await asyncio.gather(*(self._unregister(name_server) for name_server in self._changed))

    async def _unregister(self, name_server: str) -> None:
        config = self._config
        header = BrokerHeader(config.broker_name, self._address, config.broker_cluster_name, self._broker_id)
        try:
            request = Command.request(RequestCode.UNREGISTER_BROKER, header)
            await self._caller.call(name_server, request, UNREGISTER_TIMEOUT_MS)
        except ClientError as error:
            log.info("name server %s did not hear us leave: %s", name_server, error)

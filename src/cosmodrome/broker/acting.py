"""A slave that acts as its master while that is away: what it delivers, where it stands, and when it makes way.

    following ──the master is gone, and no smaller slave lives──► acting ──the master, or a smaller slave, is there──► …

What must hold: the slave adds nothing to its log, which is its master's. What it delivers goes to another master
(`escape`), and counts only once that has answered. The master takes back how far the slave is before it serves
(`pre_online`); it tells the slave first, and the slave answers when its services have ended. A slave that hears of no
master after that acts again: what it delivered in between comes twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cosmodrome.clock import sleep_unless
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import ClientError, ProtocolError
from cosmodrome.model import MASTER_ID
from cosmodrome.net.caller import Caller
from cosmodrome.wire.bodies import ClusterInfo, MemberGroup, encode_data_version
from cosmodrome.wire.command import Command
from cosmodrome.wire.name_server_requests import BrokerHeader, BrokerHeartbeat, GetMemberGroup

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)

ASK_TIMEOUT_MS = 3_000
NEWS_TOGETHER_MS = 20  # whoever sends news all the time makes no work of it

Members = Mapping[int, str]  # id → address


def acts(own_id: int, members: Members, *, is_following: bool, now_ms: int, rests_until_ms: int) -> bool:
    """Return whether a slave must act as its master. Pure.

    A master that still sends its log lives, whatever a name server says. One that has asked the slave to make way gets
    the time to register.
    """
    if is_following or now_ms < rests_until_ms:
        return False
    return own_id == min({*members, own_id})


async def find_members(caller: Caller, config: BrokerConfig) -> dict[int, str] | None:
    """Ask every name server who lives of this broker's name; None if none of them answers.

    Who is known to any of them counts: a master that one has lost may live.
    """
    answers = await asyncio.gather(*(_ask(caller, config, address) for address in config.name_servers))
    known = [members for members in answers if members is not None]
    if not known:
        return None
    return {broker_id: address for members in known for broker_id, address in members.items()}


async def _ask(caller: Caller, config: BrokerConfig, name_server: str) -> Members | None:
    header = GetMemberGroup(config.broker_cluster_name, config.broker_name)
    try:
        request = Command.request(RequestCode.GET_BROKER_MEMBER_GROUP, header)
        reply = await caller.call(name_server, request, ASK_TIMEOUT_MS)
        if reply.code == ResponseCode.SUCCESS:
            return MemberGroup.decode(reply.body).addresses if reply.body else {}
        if reply.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        reply = await caller.call(name_server, Command.request(RequestCode.GET_BROKER_CLUSTER_INFO), ASK_TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            return None
        brokers = ClusterInfo.decode(bytes(reply.body)).brokers.get(config.broker_name)  # a name server of Apache 4
        return brokers.addresses if brokers is not None else {}
    except (ClientError, ProtocolError) as error:
        log.debug("name server %s does not tell the brokers of %s: %s", name_server, config.broker_name, error)
        return None


class Acting:
    """The heartbeats of a broker with `enableSlaveActingMaster`, and a slave's service in place of its master."""

    def __init__(self, broker: Broker, caller: Caller) -> None:
        self._broker = broker
        self._caller = caller
        self._news = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._serving: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None  # that of `_serving` that has been told to end
        self._heard_ms = broker.clock.steady_ms()  # when a name server answered last
        self._rests_until_ms = 0
        self.turns = 0  # how often it began to act

    @property
    def is_acting(self) -> bool:
        return self._serving is not None

    def figures(self) -> dict[str, object]:
        """Return the figures for brokerStatus; their keys are our own."""
        if not self._broker.config.enable_slave_acting_master:
            return {}
        return {
            "actsAsMaster": str(self.is_acting).lower(),
            "actedAsMasterTimes": self.turns,
            "messagesEscaped": self._broker.escapes.sent,
        }

    # --- life

    async def run(self) -> None:
        """Send heartbeats and look who lives, for as long as the broker runs, if the config says so."""
        if not self._broker.config.enable_slave_acting_master:
            await asyncio.Event().wait()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._heartbeats())
            tasks.create_task(self._looks())

    def wake(self) -> None:
        """Look soon: a name server says that something has changed."""
        self._news.set()

    async def make_way(self) -> None:
        """End the services for a master that comes back, and rest until it must have registered."""
        config, clock = self._broker.config, self._broker.clock
        self._rests_until_ms = clock.steady_ms() + config.broker_not_active_timeout_millis
        await self._end("the master comes back")

    async def _heartbeats(self) -> None:
        config = self._broker.config
        while True:
            if self._broker.is_online:
                await asyncio.gather(*(self._beat(address) for address in config.name_servers))
            await self._broker.clock.sleep(config.broker_heartbeat_interval)

    async def _beat(self, name_server: str) -> None:
        """Tell a name server that this broker lives; whether it was heard, the next look shows."""
        config, address = self._broker.config, self._broker.address
        if config.compatible_with_old_name_srv:
            which = BrokerHeader(config.broker_name, address, config.broker_cluster_name, config.broker_id)
            body = encode_data_version(self._broker.registration_version)
            command = Command.request(RequestCode.QUERY_DATA_VERSION, which, body, oneway=True)
        else:
            header = BrokerHeartbeat(config.broker_name, address, config.broker_cluster_name, config.broker_id)
            command = Command.request(RequestCode.BROKER_HEARTBEAT, header, oneway=True)
        try:
            async with asyncio.timeout(config.send_heartbeat_timeout_millis / 1000):
                await self._caller.oneway(name_server, command)
        except (ClientError, TimeoutError) as error:
            log.debug("heartbeat not sent: name_server=%s error=%s", name_server, error)

    async def _looks(self) -> None:
        config, clock = self._broker.config, self._broker.clock
        while True:
            self._news.clear()
            if self._broker.is_online:
                await self._look()
            await sleep_unless(self._news, clock, config.sync_broker_member_group_period)
            await clock.sleep(NEWS_TOGETHER_MS)

    async def _look(self) -> None:
        broker, config = self._broker, self._broker.config
        members, now_ms = await find_members(self._caller, config), broker.clock.steady_ms()
        if members is None:
            if now_ms - self._heard_ms >= config.broker_not_active_timeout_millis:
                await self._end("no name server answers, so a master that comes back could not find this slave")
            return
        self._heard_ms = now_ms
        if config.broker_id not in members:
            broker.registration.topics_changed()  # forgotten: register again
        if not broker.is_slave:
            return
        if MASTER_ID not in members:
            broker.registration.master = None
        else:
            self._rests_until_ms = 0
            if broker.registration.master is None:
                broker.registration.topics_changed()  # the answer says where the master is
        is_wanted = acts(
            config.broker_id,
            members,
            is_following=broker.replicas.is_connected,
            now_ms=now_ms,
            rests_until_ms=self._rests_until_ms,
        )
        if is_wanted and self._serving is None and self._tasks is not None:
            self._serving = self._tasks.create_task(self._serve())
        elif not is_wanted:
            await self._end("the master is back, or a smaller slave is")

    # --- in the master's place

    async def _end(self, why: str) -> None:
        if self._serving is None:
            return
        serving = self._serving
        if self._leaving is not serving:  # once: a second cancellation would keep it from noting how far it is
            self._leaving = serving
            log.warning("no longer acting as the master of %s: %s", self._broker.config.broker_name, why)
            serving.cancel()
        await asyncio.wait({serving})

    async def _serve(self) -> None:
        config = self._broker.config
        self.turns += 1
        log.warning(
            "acting as the master of %s: %s",
            config.broker_name,
            "what is due is delivered through other masters"
            if config.enable_remote_escape
            else "queues are locked and read; enableRemoteEscape is false, so nothing is delivered",
        )
        try:
            if config.enable_remote_escape:
                await self._deliver()
            else:
                await asyncio.get_running_loop().create_future()
        finally:
            self._serving = None

    async def _deliver(self) -> None:
        broker = self._broker
        broker.delays.begin_again()
        broker.transactions.recover_again()
        broker.timers.begin_acting(broker.revives.note_timed)
        broker.revives.begin_acting(lambda: broker.timers.has_set_all)
        try:
            async with asyncio.TaskGroup() as tasks:
                for service in self._services():
                    tasks.create_task(service)
        finally:
            broker.revives.end_acting()
            await broker.timers.end_acting()
            await broker.delays.save()
            await broker.transactions.save()

    def _services(self) -> Iterator[Coroutine[Any, Any, None]]:
        broker = self._broker
        yield broker.delays.run()
        yield broker.timers.run()
        yield broker.transactions.run_acting(broker.escapes.put_half)
        yield broker.revives.run()

"""What name servers hear, and how often."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from cosmodrome.broker.registration import COALESCE_MS, MIN_PERIOD_MS, RETRY_MS, Registration
from cosmodrome.codes import RequestCode
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import ConnectionFailed
from cosmodrome.model import DataVersion, TopicConfig
from cosmodrome.net.caller import Caller
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire.bodies import RegisterBrokerBody
from cosmodrome.wire.command import Command

NAME_SERVER = "127.0.0.1:9876"


class NameServer:
    """Answers registrations when it is let to, and remembers how many topics each had."""

    def __init__(self) -> None:
        self.topics: list[int] = []
        self.open = asyncio.Event()
        self.open.set()
        self.is_down = False

    async def call(self, address: str, command: Command, _timeout_ms: float) -> Command:
        if command.code == RequestCode.REGISTER_BROKER:
            self.topics.append(len(RegisterBrokerBody.decode(command.body, version=0).topics))
        await self.open.wait()
        if self.is_down:
            raise ConnectionFailed(address, "down")
        return command.reply()


class Broker:
    """Topics, and a registration that tells of them."""

    def __init__(self) -> None:
        self.clock, self.name_server = FakeClock(), NameServer()
        self._topics: dict[str, TopicConfig] = {}
        config = BrokerConfig(namesrv_addr=NAME_SERVER, register_name_server_period=MIN_PERIOD_MS)
        self.registration = Registration(config, cast(Caller, self.name_server), self.clock, self._body)

    def _body(self) -> RegisterBrokerBody:
        return RegisterBrokerBody(DataVersion(), dict(self._topics))

    def make_topic(self) -> None:
        name = f"topic-{len(self._topics)}"
        self._topics[name] = TopicConfig(name, 1, 1)
        self.registration.topics_changed()


@asynccontextmanager
async def running() -> AsyncIterator[Broker]:
    broker = Broker()
    await broker.registration.start("127.0.0.1:10911")
    task = asyncio.create_task(broker.registration.run())
    try:
        yield broker
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_broker_shows_that_it_lives() -> None:
    async with running() as broker:
        await broker.clock.advance(3 * MIN_PERIOD_MS)
        assert broker.name_server.topics == [0, 0, 0, 0]


async def test_a_topic_is_told_at_once_and_those_made_right_after_it_together() -> None:
    async with running() as broker:
        for _ in range(1_000):
            broker.make_topic()
            await broker.clock.advance(0)
        assert broker.name_server.topics == [0, 1]
        await broker.clock.advance(COALESCE_MS)
        assert broker.name_server.topics == [0, 1, 1_000]
        await broker.clock.advance(COALESCE_MS)
        broker.make_topic()
        await broker.clock.advance(0)
        assert broker.name_server.topics == [0, 1, 1_000, 1_001]


async def test_who_waits_for_the_name_servers_shares_registrations_and_none_is_repeated() -> None:
    async with running() as broker:
        broker.name_server.open.clear()
        waiting = []
        for _ in range(100):
            broker.make_topic()
            waiting.append(asyncio.create_task(broker.registration.announce()))
            await asyncio.sleep(0)
        await broker.clock.advance(0)
        assert len(broker.name_server.topics) == 2
        assert not any(task.done() for task in waiting)
        broker.name_server.open.set()
        await asyncio.gather(*waiting)
        assert broker.name_server.topics[2:] == [100]
        await broker.clock.advance(COALESCE_MS)
        assert broker.name_server.topics[2:] == [100]


async def test_a_name_server_that_was_down_hears_everything_when_it_is_back() -> None:
    async with running() as broker:
        broker.name_server.is_down = True
        broker.make_topic()
        await broker.registration.announce()
        broker.name_server.is_down = False
        broker.name_server.topics.clear()
        await broker.clock.advance(max(COALESCE_MS, RETRY_MS))
        assert broker.name_server.topics[0] == 1

"""What name servers hear, and how often."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from cosmodrome.broker.registration import COALESCE_MS, MIN_PERIOD_MS, RETRY_MS, SEARCH_MS, Master, Registration
from cosmodrome.codes import Language, RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import ConnectionFailed
from cosmodrome.model import BrokerData, DataVersion, Route, TopicConfig
from cosmodrome.net.caller import Caller
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire.bodies import KVTable, RegisterBrokerBody, encode_route
from cosmodrome.wire.command import Command
from cosmodrome.wire.name_server_requests import RegisterBroker, RegisterBrokerReply

NAME_SERVER = "127.0.0.1:9876"


class NameServer:
    """Answers registrations when it is let to, and remembers how many topics each had."""

    def __init__(self) -> None:
        self.topics: list[int] = []
        self.ids: list[int] = []
        self.open = asyncio.Event()
        self.open.set()
        self.is_down = False
        self.reply = RegisterBrokerReply()
        self.body = b""
        self.remark: str | None = None
        self.language = int(Language.PYTHON)
        self.route: Route | None = None

    async def call(self, address: str, command: Command, _timeout_ms: float) -> Command:
        if command.code == RequestCode.REGISTER_BROKER:
            self.topics.append(len(RegisterBrokerBody.decode(command.body, version=0).topics))
            self.ids.append(RegisterBroker.decode(command).broker_id)
        await self.open.wait()
        if self.is_down:
            raise ConnectionFailed(address, "down")
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if self.route is None:
                return command.reply(ResponseCode.TOPIC_NOT_EXIST)
            return command.reply(body=encode_route(self.route, quoted_keys=True))
        reply = command.reply(header=self.reply, body=self.body, remark=self.remark)
        reply.language = self.language
        return reply


class Broker:
    """Topics, and a registration that tells of them."""

    def __init__(self) -> None:
        self.clock, self.name_server = FakeClock(), NameServer()
        self._topics: dict[str, TopicConfig] = {}
        config = BrokerConfig(namesrv_addr=NAME_SERVER, register_name_server_period=MIN_PERIOD_MS)
        self.orderly: list[set[str]] = []
        self.conflicts: list[str | None] = []
        self.masters: list[Master] = []
        self.registration = Registration(
            config,
            cast(Caller, self.name_server),
            self.clock,
            self._body,
            lambda names: self.orderly.append(set(names)),
            self.masters.append,
            self.conflicts.append,
        )

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


async def test_a_name_server_that_answers_says_which_topics_are_orderly() -> None:
    async with running() as broker:
        assert broker.orderly == []
        broker.name_server.body = KVTable({"t": "broker-a:4", "u": "broker-a:1"}).encode()
        await broker.clock.advance(MIN_PERIOD_MS)
        assert broker.orderly == [{"t", "u"}]


async def test_a_slave_keeps_the_master_it_was_told_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with running() as broker:
        assert broker.registration.master is None
        broker.name_server.reply = RegisterBrokerReply("10.0.0.1:10912", "10.0.0.1:10911")
        await broker.clock.advance(MIN_PERIOD_MS)
        broker.name_server.reply = RegisterBrokerReply()
        await broker.clock.advance(MIN_PERIOD_MS)
        assert broker.registration.master == Master("10.0.0.1:10911", "10.0.0.1:10912")
        broker.name_server.reply = RegisterBrokerReply("10.0.0.2:10912", "10.0.0.2:10911")
        await broker.clock.advance(2 * MIN_PERIOD_MS)
        assert broker.registration.master == Master("10.0.0.2:10911", "10.0.0.2:10912")
    assert [line for line in caplog.messages if "master" in line] == [
        "master found: address=10.0.0.1:10911 ha=10.0.0.1:10912",
        "master found: address=10.0.0.2:10911 ha=10.0.0.2:10912",
    ]


async def test_a_broker_that_changes_its_role_registers_so_and_heeds_no_answer_to_what_it_was() -> None:
    async with running() as broker:
        registration, server = broker.registration, broker.name_server
        server.remark = "10.0.0.2:1 is the master of b with term 2"
        server.open.clear()
        await broker.clock.advance(MIN_PERIOD_MS)  # a registration as master is under way
        registration.become(1, "127.0.0.1:2", Master("10.0.0.2:1", "10.0.0.2:2"))
        server.reply = RegisterBrokerReply("10.0.0.2:2", "10.0.0.2:1", 5)
        server.open.set()
        await registration.announce()
        assert broker.conflicts == [], "a slave is in conflict with no master"
        assert server.ids == [0, 0, 1]
        assert registration.seen_term == 5
        assert broker.masters == [Master("10.0.0.2:1", "10.0.0.2:2")]


async def test_a_slave_without_a_master_asks_more_often_until_it_has_one() -> None:
    async with running() as broker:
        broker.registration.is_searching = lambda: not broker.masters
        await broker.clock.advance(MIN_PERIOD_MS)  # the wait that was under way
        heard = len(broker.name_server.topics)
        await broker.clock.advance(SEARCH_MS)
        assert len(broker.name_server.topics) == heard + 1
        broker.name_server.reply = RegisterBrokerReply("10.0.0.1:10912", "10.0.0.1:10911")
        await broker.clock.advance(SEARCH_MS)
        assert broker.masters == [Master("10.0.0.1:10911", "10.0.0.1:10912")]
        heard = len(broker.name_server.topics)
        await broker.clock.advance(SEARCH_MS)
        assert len(broker.name_server.topics) == heard


async def test_a_slave_that_loses_its_master_does_not_wait_for_its_next_registration() -> None:
    async with running() as broker:
        is_lost = False
        broker.registration.is_searching = lambda: is_lost
        heard = len(broker.name_server.topics)
        await broker.clock.advance(MIN_PERIOD_MS - 2 * SEARCH_MS + 1)
        is_lost = True
        await broker.clock.advance(SEARCH_MS)
        assert len(broker.name_server.topics) == heard + 1
        await broker.clock.advance(SEARCH_MS)
        assert len(broker.name_server.topics) == heard + 2


async def test_a_master_that_is_stale_hears_it_and_hears_when_that_is_over() -> None:
    async with running() as broker:
        broker.name_server.remark = "10.0.0.2:1 is the master of b with term 2"
        await broker.clock.advance(MIN_PERIOD_MS)
        assert broker.conflicts == ["10.0.0.2:1 is the master of b with term 2"]
        await broker.clock.advance(SEARCH_MS)
        assert len(broker.conflicts) == 1, "once, not in every round"
        broker.name_server.remark = None
        await broker.clock.advance(SEARCH_MS)
        assert broker.conflicts[1:] == [None]


async def test_a_master_asks_apaches_name_server_whether_it_was_refused() -> None:
    async with running() as broker:
        server, name = broker.name_server, broker.registration._config.broker_name
        server.language = int(Language.JAVA)
        await broker.clock.advance(MIN_PERIOD_MS)
        assert broker.conflicts == [], "it does not know the topic of the broker's name"
        server.route = Route((), (BrokerData("C", name, {0: "127.0.0.1:10911", 1: "10.0.0.2:1"}),))
        await broker.clock.advance(MIN_PERIOD_MS)
        assert broker.conflicts == []
        server.route = Route(
            (), (BrokerData("C", name, {0: "10.0.0.2:1"}), BrokerData("C", "other", {0: "10.0.0.3:1"}))
        )
        await broker.clock.advance(MIN_PERIOD_MS)
        assert broker.conflicts == [f"10.0.0.2:1 is the master of {name}"]


async def test_an_answer_that_makes_no_sense_does_not_end_the_registrations(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as broker:
        broker.name_server.body = b"{"
        await broker.clock.advance(2 * MIN_PERIOD_MS)
        assert broker.name_server.topics == [0, 0, 0]
        assert broker.orderly == []
    assert "answer to the registration not understood: name_server=127.0.0.1:9876" in caplog.messages[-1]

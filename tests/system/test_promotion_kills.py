"""A kill -9 of either broker at any point of a promotion: no two take messages, and nothing acknowledged is missing."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cosmodrome import Message, Producer
from cosmodrome.broker import promotion
from cosmodrome.broker.broker import Broker
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, BrokerRole, ReplicationConfig
from cosmodrome.errors import ClientError
from cosmodrome.net.caller import Caller
from cosmodrome.testing.kill import copy, cut_off_broker
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.role_requests import HandOver, Promote, RoleReply
from tests.system.cluster import SMALL_STORE, running_name_server
from tests.system.test_slaves import NAME, TOPIC, until

MESSAGES = 5


@dataclass
class Life:
    """One of the two, with the same file in each of its lives."""

    folder: Path
    config: BrokerConfig
    replication: ReplicationConfig
    broker: Broker = field(init=False)
    _stop: asyncio.Event = field(init=False)
    _ended: asyncio.Task[None] = field(init=False)

    async def start(self) -> None:
        store = dataclasses.replace(SMALL_STORE, store_path_root_dir=str(self.folder))
        self.broker = Broker(self.config, store, replication=self.replication)
        await self.broker.start()
        port = int(self.broker.address.rpartition(":")[2])
        self.config = dataclasses.replace(self.config, listen_port=port, vip_listener_enable=False)
        self._stop = asyncio.Event()
        self._ended = asyncio.create_task(self.broker.run(self._stop))

    async def stop(self) -> None:
        self._stop.set()
        await self._ended

    async def kill(self) -> None:
        """As by kill -9: the files are as they are at this instant."""
        left = self.folder.with_name(f"{self.folder.name}.killed")
        left.mkdir()
        copy(self.folder, left)
        cut_off_broker(self.broker)
        await self.stop()
        shutil.rmtree(self.folder)
        left.rename(self.folder)

    @property
    def takes_messages(self) -> bool:
        return not self.broker.is_slave and self.broker.store.refusal is None


@dataclass
class Pair:
    """Both brokers, and who asks them."""

    namesrv: str
    master: Life
    slave: Life
    caller: Caller

    async def ask(self, life: Life, code: RequestCode, header: Header) -> Command:
        return await self.caller.call(life.broker.address, Command.request(code, header), 30_000)


@asynccontextmanager
async def running_pair(folder: Path) -> AsyncIterator[Pair]:
    async with running_name_server() as name_server:
        config = BrokerConfig(broker_name=NAME, default_topic_queue_nums=1, listen_port=0)
        config = dataclasses.replace(config, namesrv_addr=name_server.address)
        master = ReplicationConfig(broker_role=BrokerRole.SYNC_MASTER, ha_listen_port=0)
        slave = ReplicationConfig(broker_role=BrokerRole.SLAVE, ha_listen_port=0)
        pair = Pair(
            name_server.address,
            Life(folder / "master", config, master),
            Life(folder / "slave", dataclasses.replace(config, broker_id=1), slave),
            Caller(),
        )
        await pair.master.start()
        await pair.slave.start()
        try:
            yield pair
        finally:
            await pair.caller.close()
            await asyncio.gather(pair.master.stop(), pair.slave.stop())


@pytest.mark.parametrize("is_done", [False, True], ids=["when asked", "when answered"])
@pytest.mark.parametrize("code", [RequestCode.GET_BROKER_ROLE, RequestCode.PROMOTE_BROKER])
@pytest.mark.parametrize("victim", ["master", "slave"])
async def test_a_kill_leaves_at_most_one_master_and_every_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str, code: RequestCode, is_done: bool
) -> None:
    monkeypatch.setattr(promotion, "ASK_AGAIN_MS", 10)
    async with running_pair(tmp_path) as pair:
        killed: Life = getattr(pair, victim)
        await until(lambda: pair.slave.broker.replicas.is_following)
        async with Producer("p", pair.namesrv) as producer:
            for number in range(MESSAGES):
                assert (await producer.send(Message(TOPIC, b"%d" % number))).status.name == "SEND_OK"
        killing: list[asyncio.Task[None]] = []

        def kill_at(answer: Callable[[], Awaitable[RoleReply]]) -> Callable[[], Awaitable[RoleReply]]:
            async def dying() -> RoleReply:
                if killing or pair.master.broker.promotion.resting is None:
                    return await answer()
                state = await answer() if is_done else None
                killing.append(asyncio.create_task(killed.kill()))
                if killed is pair.master:
                    await asyncio.Event().wait()
                await asyncio.wait(killing)
                return state or await answer()

            return dying

        asks = pair.master.broker.promotion._ask

        async def ask(address: str, asked: RequestCode, header: Header | None = None, ms: int = 3_000) -> RoleReply:
            async def answer() -> RoleReply:
                return await asks(address, asked, header, ms)

            return await (kill_at(answer) if asked == code else answer)()

        monkeypatch.setattr(pair.master.broker.promotion, "_ask", ask)
        heir = HandOver(pair.slave.broker.address, 10_000)
        handing = asyncio.create_task(pair.ask(pair.master, RequestCode.HAND_OVER_BROKER, heir))
        await until(lambda: bool(killing))
        await killing[0]
        await killed.start()
        with suppress(ClientError):
            await handing
        both = (pair.master, pair.slave)
        assert sum(life.takes_messages for life in both) <= 1
        if not any(life.takes_messages for life in both):
            await until(lambda: pair.master.broker.promotion.resting is None)
        assert sum(life.takes_messages for life in both) <= 1
        if not any(life.takes_messages for life in both):
            reply = await pair.ask(pair.slave, RequestCode.PROMOTE_BROKER, Promote())
            assert reply.code == ResponseCode.SUCCESS, reply.remark
        (master,) = (life for life in both if life.takes_messages)
        assert master.broker.store.max_offset(TOPIC, 0) == MESSAGES
        async with Producer("p", pair.namesrv) as producer:
            await producer.send(Message(TOPIC, b"after"))
        assert sum(life.takes_messages for life in both) == 1

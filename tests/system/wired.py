"""A broker and a client that speaks to it command by command, for what no library client does on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cosmodrome.broker.broker import Broker
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, StoreConfig
from cosmodrome.model import Subscription
from cosmodrome.net.caller import Caller
from cosmodrome.net.connection import Handler
from cosmodrome.wire.bodies import ConsumerData, HeartbeatData
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.properties import encode
from cosmodrome.wire.record import Record, decode_records
from cosmodrome.wire.requests import PullFlag, PullMessage, PullReply, SendMessage, UnregisterClient
from tests.system.cluster import SMALL_STORE, running_broker, running_name_server

PATIENCE_SECONDS = 30
CALL_TIMEOUT_MS = 10_000
GROUP = "g"


@dataclass
class Pulled:
    code: int
    next_offset: int
    bodies: list[bytes]
    remark: str

    @classmethod
    def of(cls, reply: Command) -> Pulled:
        remark = reply.remark or ""
        if "nextBeginOffset" not in reply.fields:
            return cls(reply.code, -1, [], remark)
        records = decode_records(bytes(reply.body)) if reply.code == ResponseCode.SUCCESS else []
        return cls(reply.code, PullReply.decode(reply).next_begin_offset, [record.body for record in records], remark)


@dataclass
class Wired:
    """One client on one connection. `broker` is looked into where the wire has no question for it."""

    namesrv: str
    broker: Broker
    caller: Caller

    async def call(self, code: RequestCode, header: Header | None = None, body: bytes = b"") -> Command:
        return await self.caller.call(self.broker.address, Command.request(code, header, body), CALL_TIMEOUT_MS)

    async def ask(self, code: RequestCode, header: Header | None = None, body: bytes = b"") -> Command:
        reply = await self.call(code, header, body)
        assert reply.code == ResponseCode.SUCCESS, reply
        return reply

    async def send(self, topic: str, body: bytes, *, queue_id: int = 0, **properties: str) -> Command:
        header = SendMessage("p", topic, "TBW102", 1, queue_id, 0, 0, 0, encode(properties))
        return await self.ask(RequestCode.SEND_MESSAGE, header, body)

    async def pull(self, topic: str, offset: int = 0, **fields: object) -> Pulled:
        """Queue 0 of the topic, for the group, held if there is nothing; `fields` are the header's."""
        given: dict[str, object] = {
            "max_msg_nums": 32,
            "sys_flag": PullFlag.SUSPEND,
            "commit_offset": 0,
            "suspend_timeout_millis": 5_000,
        }
        header = PullMessage(GROUP, topic, 0, offset, **{**given, **fields})  # type: ignore[arg-type]
        return Pulled.of(await self.call(RequestCode.PULL_MESSAGE, header))

    async def heartbeat(
        self, *subscriptions: Subscription, group: str = GROUP, producer: str = "", client_id: str = "me"
    ) -> None:
        consumers = (ConsumerData(group, subscriptions=subscriptions),) if subscriptions else ()
        body = HeartbeatData(client_id, (producer,) if producer else (), consumers)
        await self.ask(RequestCode.HEART_BEAT, body=body.encode())

    async def leave(self, group: str = GROUP, client_id: str = "me") -> None:
        await self.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClient(client_id, consumer_group=group))

    def stored(self, topic: str, queue_id: int = 0) -> list[Record]:
        return decode_records(b"".join(self.broker.store.read(topic, queue_id, 0, 32).views))


@asynccontextmanager
async def wired(
    folder: Path,
    config: BrokerConfig | None = None,
    store: StoreConfig = SMALL_STORE,
    clock: Clock | None = None,
) -> AsyncIterator[Wired]:
    async with (
        running_name_server() as name_server,
        running_broker(folder, name_server.address, config, store, clock) as broker,
        another(Wired(name_server.address, broker, Caller())) as first,
    ):
        yield first


@asynccontextmanager
async def another(to: Wired, handler: Handler | None = None) -> AsyncIterator[Wired]:
    """One more client of the same broker; `handler` answers what the broker asks of it."""
    caller = Caller(handler) if handler is not None else Caller()
    try:
        yield Wired(to.namesrv, to.broker, caller)
    finally:
        await caller.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110  # what is waited for tells nobody
            await asyncio.sleep(0.01)

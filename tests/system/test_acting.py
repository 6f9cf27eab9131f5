"""A slave that acts as its master: two broker names, one with a slave, in the test's own process."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cosmodrome.broker.answer import unsupported
from cosmodrome.broker.broker import Broker
from cosmodrome.client.name_servers import NameServers
from cosmodrome.clock import SystemClock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, BrokerRole, NameServerConfig, NetConfig, ReplicationConfig
from cosmodrome.model import HALF_TOPIC, DataVersion, MessageQueue, Perm, TopicConfig
from cosmodrome.nameserver.server import NameServer
from cosmodrome.net.caller import Caller
from cosmodrome.store.timer_checkpoint import TimerCheckpoint
from cosmodrome.wire.bodies import DelayOffsetsBody, KVTable, LockBatch
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.name_server_requests import ExchangeHaInfo
from cosmodrome.wire.pop import marked_topic
from cosmodrome.wire.properties import encode
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import (
    AckMessage,
    PopMessage,
    SendMessage,
    UpdateConsumerOffset,
)
from cosmodrome.wire.role_requests import Promote
from tests.system.cluster import SMALL_STORE, running, running_broker
from tests.system.replicated import Node
from tests.system.test_pop import popped

A, B, TOPIC, GROUP = "broker-a", "broker-b", "orders", "billing"
PATIENCE_SECONDS = 40
SLAVE = ReplicationConfig(broker_role=BrokerRole.SLAVE)
STORE = dataclasses.replace(SMALL_STORE, message_delay_level="2s")
ACTING = BrokerConfig(
    default_topic_queue_nums=1,
    enable_slave_acting_master=True,
    enable_remote_escape=True,
    broker_heartbeat_interval=100,
    sync_broker_member_group_period=100,
    broker_not_active_timeout_millis=3_000,
    transaction_check_interval=500,
    transaction_time_out=500,
    revive_interval=200,
)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110  # another connection's bytes are no event
            await asyncio.sleep(0.02)


@dataclass
class Cluster:
    folder: Path
    namesrv: str
    caller: Caller = field(default_factory=Caller)
    config: BrokerConfig = ACTING

    def broker(self, name: str, broker_id: int = 0) -> AbstractAsyncContextManager[Broker]:
        config = dataclasses.replace(self.config, broker_name=name, broker_id=broker_id)
        replication = SLAVE if broker_id else None
        folder = self.folder / f"{name}-{broker_id}"
        return running_broker(folder, self.namesrv, config, STORE, replication=replication)

    async def ask(self, broker: Broker, code: RequestCode, header: Header | None = None, body: bytes = b"") -> Command:
        reply = await self.caller.call(broker.address, Command.request(code, header, body), 10_000)
        assert reply.code == ResponseCode.SUCCESS, reply
        return reply

    async def served(self, address: str, code: RequestCode, header: Header | None = None, body: bytes = b"") -> Command:
        """Ask until the broker serves."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                reply = await self.caller.call(address, Command.request(code, header, body), 10_000)
                if reply.code == ResponseCode.SUCCESS:
                    return reply
                assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE, reply
                await asyncio.sleep(0.05)

    async def log_end(self, address: str) -> int:
        reply = await self.served(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return int(KVTable.decode(reply.body).table["commitLogMaxOffset"])

    async def send(self, broker: Broker, body: bytes, **properties: str) -> None:
        header = SendMessage("p", TOPIC, "TBW102", 1, 0, 0, 0, 0, encode(properties))
        await self.ask(broker, RequestCode.SEND_MESSAGE, header, body)

    async def pop(self, broker: Broker, invisible_ms: int, ack: set[bytes]) -> None:
        """Pop everything, and ack some of it."""
        header = PopMessage(GROUP, TOPIC, -1, 32, invisible_ms, 1_000)
        taken = popped(await self.ask(broker, RequestCode.POP_MESSAGE, header), broker.config.broker_name)
        for record, handle in zip(taken.records, taken.handles, strict=True):
            if record.body in ack:
                topic = marked_topic(TOPIC, GROUP, handle.retry)
                await self.ask(
                    broker,
                    RequestCode.ACK_MESSAGE,
                    AckMessage(GROUP, topic, handle.queue_id, handle.encode(), handle.offset),
                )


@asynccontextmanager
async def name_server(config: NameServerConfig | None = None) -> AsyncIterator[NameServer]:
    config = config or NameServerConfig(support_acting_master=True, notify_min_broker_id_changed=True)
    server = NameServer(dataclasses.replace(config, listen_port=0), NetConfig(), SystemClock())
    await server.start()
    async with running(server.run):
        yield server


@asynccontextmanager
async def running_cluster(folder: Path, config: BrokerConfig = ACTING) -> AsyncIterator[Cluster]:
    async with name_server() as server:
        cluster = Cluster(folder, server.address, config=config)
        try:
            yield cluster
        finally:
            await cluster.caller.close()


def bodies(broker: Broker, topic: str = TOPIC) -> Counter[bytes]:
    """All messages of a topic's queues."""
    found: Counter[bytes] = Counter()
    for queue_id in broker.store.queues(topic):
        offset = 0
        while (result := broker.store.read(topic, queue_id, offset, 32)).views:
            found.update(record.body for view in result.views for record in decode_records(view))
            offset = result.next_offset
    return found


async def has_followed(slave: Broker, master: Broker) -> None:
    await until(lambda: slave.registration.master is not None)
    await until(lambda: slave.store.max_physical_offset == master.store.max_physical_offset)
    rounds = slave.metadata_sync.rounds
    await slave.metadata_sync.round(master.address)
    assert slave.metadata_sync.rounds > rounds


async def test_what_a_dead_master_owes_is_delivered_elsewhere_and_not_again(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, cluster.broker(B) as other, cluster.broker(A, 1) as slave:
        other.topics.put(TopicConfig(TOPIC, 1, 1))
        async with cluster.broker(A) as master:
            await until(lambda: master.is_online)
            await cluster.send(master, b"popped and acked")
            await cluster.send(master, b"popped")
            await cluster.pop(master, 4_000, {b"popped and acked"})
            await cluster.send(master, b"delayed", DELAY="1", KEYS="k")
            await cluster.send(master, b"timed", TIMER_DELAY_MS="3000")
            await cluster.send(master, b"half", TRAN_MSG="true", PGROUP="p", UNIQ_KEY="u1")
            await cluster.ask(master, RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("g", TOPIC, 0, 1))
            await has_followed(slave, master)
            assert not slave.acting.is_acting
            before = bodies(master)
        await until(lambda: slave.acting.is_acting)
        end = slave.store.max_physical_offset
        retry = f"%RETRY%{GROUP}_{TOPIC}"
        await until(lambda: bodies(other) == {b"delayed": 1, b"timed": 1})
        await until(lambda: bodies(other, retry) == {b"popped": 1})
        await until(lambda: bodies(other, HALF_TOPIC)[b"half"] > 0)
        second = slave.timers.delivered_ms
        await until(lambda: slave.timers.delivered_ms > second)  # of a second that is not over, all comes again
        await cluster.ask(slave, RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("g", TOPIC, 0, 2))
        assert slave.store.max_physical_offset == end  # it wrote nothing itself
        escaped = slave.escapes.sent
        async with cluster.broker(A) as master:
            await until(lambda: master.is_online)
            assert not slave.acting.is_acting
            assert slave.escapes.sent == escaped == 4
            await cluster.send(master, b"new", DELAY="1")
            await until(lambda: b"new" in bodies(master))
            assert bodies(master) == before + Counter({b"new": 1})
            assert master.delays.progress()[1] == (2, 2)
            assert len(master.transactions) == 0
            assert master.offsets.find_offset("g", TOPIC, 0) == 2
            await until(lambda: master.timers.unset == 0)
            assert bodies(master, retry) == {}
            await until(lambda: slave.store.max_physical_offset == master.store.max_physical_offset)
            assert bodies(other) == {b"delayed": 1, b"timed": 1}
            assert bodies(other, retry) == {b"popped": 1}


async def test_the_route_names_the_slave_and_forbids_sends_until_the_master_is_back(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, cluster.broker(A, 1) as slave:
        names = NameServers(cluster.caller, (cluster.namesrv,), 5_000)
        async with cluster.broker(A) as master:
            await until(lambda: master.is_online)
            await cluster.send(master, b"x")
            await has_followed(slave, master)
        await until(lambda: slave.acting.is_acting)
        route = await names.route(TOPIC)
        assert dict(route.brokers[0].addresses) == {0: slave.address}
        assert [queue.perm for queue in route.queues] == [Perm.READ]
        locks = LockBatch("ordered", "me", (MessageQueue(TOPIC, A, 0),))
        await cluster.ask(slave, RequestCode.LOCK_BATCH_MQ, body=locks.encode())
        assert slave.locks.is_orderly("ordered", slave.clock.steady_ms())
        async with cluster.broker(A) as master:
            await until(lambda: master.is_online)
            await until(lambda: slave.registration.master is not None)
            route = await names.route(TOPIC)
            assert dict(route.brokers[0].addresses) == {0: master.address, 1: slave.address}
            assert [queue.perm for queue in route.queues] == [Perm.READ | Perm.WRITE]


@pytest.mark.parametrize("why", ["no escape", "no other broker"])
async def test_what_no_other_broker_takes_waits_for_the_master(tmp_path: Path, why: str) -> None:
    config = dataclasses.replace(ACTING, enable_remote_escape=why != "no escape")
    async with running_cluster(tmp_path, config) as cluster, cluster.broker(A, 1) as slave:
        async with cluster.broker(A) as master:
            await until(lambda: master.is_online)
            await cluster.send(master, b"delayed", DELAY="1")
            await cluster.send(master, b"half", TRAN_MSG="true", PGROUP="p", UNIQ_KEY="u1")
            await has_followed(slave, master)
        await until(lambda: slave.acting.is_acting)
        due = slave.store.timeline.now_ms() + 2_000
        await until(lambda: slave.store.timeline.now_ms() > due)
        assert slave.escapes.sent == 0
        assert slave.delays.progress().get(1, (0, 1)) == (0, 1)
        async with cluster.broker(A) as master:
            await until(lambda: bodies(master) == {b"delayed": 1})
            assert len(master.transactions) == 1


async def test_a_master_that_takes_over_serves_nothing_until_its_slave_has_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_cluster(tmp_path) as cluster, cluster.broker(A, 1) as slave:
        async with cluster.broker(A) as master:
            await until(lambda: master.is_online)
            await cluster.send(master, b"x")
            await has_followed(slave, master)
        await until(lambda: slave.acting.is_acting)
        answers = dict(slave.processors)
        slave.processors = answers | {RequestCode.GET_ALL_DELAY_OFFSET: unsupported}
        async with cluster.broker(A) as master:
            await until(lambda: "does not serve yet" in caplog.text)
            assert not master.is_online
            send = Command.request(RequestCode.SEND_MESSAGE, SendMessage("p", TOPIC, "TBW102", 1, 0, 0, 0, 0, ""), b"y")
            reply = await cluster.caller.call(master.address, send, 5_000)
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert reply.remark is not None
            assert "takes over from its slaves" in reply.remark
            slave.processors = answers
            await until(lambda: master.is_online)
            await cluster.send(master, b"y")


async def test_a_slave_that_made_way_acts_again_if_no_master_registers(tmp_path: Path) -> None:
    config = dataclasses.replace(ACTING, broker_not_active_timeout_millis=500)
    async with running_cluster(tmp_path, config) as cluster, cluster.broker(A, 1) as slave:
        await until(lambda: slave.acting.is_acting)
        gone = ExchangeHaInfo("127.0.0.1:1", 0, "127.0.0.1:1")
        await cluster.ask(slave, RequestCode.EXCHANGE_BROKER_HA_INFO, gone)
        assert not slave.acting.is_acting
        await until(lambda: slave.acting.turns == 2)


async def test_of_two_slaves_the_smaller_one_acts(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, cluster.broker(A, 2) as second:
        await until(lambda: second.acting.is_acting)
        async with cluster.broker(A, 1) as first:
            await until(lambda: first.acting.is_acting and not second.acting.is_acting)
        await until(lambda: second.acting.is_acting)


async def test_a_master_alone_serves_at_once_and_says_how_it_stands(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, cluster.broker(A) as master:
        await until(lambda: master.is_online)
        reply = await cluster.ask(master, RequestCode.GET_BROKER_RUNTIME_INFO)
        figures = KVTable.decode(reply.body).table
        assert (figures["actsAsMaster"], figures["messagesEscaped"]) == ("false", "0")
        where = ExchangeHaInfo.decode(await cluster.ask(master, RequestCode.EXCHANGE_BROKER_HA_INFO))
        assert (where.master_address, where.master_ha_address) == (master.address, master.registration.ha_address)


async def test_a_killed_master_loses_nothing_that_its_slave_had(tmp_path: Path) -> None:
    """kill -9 of a master process, with messages that are due right then; then it comes back."""
    keys = (
        "enableSlaveActingMaster=true\nenableRemoteEscape=true\nbrokerHeartbeatInterval=100\n"
        "brokerNotActiveTimeoutMillis=3000\nmessageDelayLevel=1s\n"
    )
    sent = {b"%d" % number for number in range(80)}
    async with running_cluster(tmp_path) as cluster, cluster.broker(B) as other, cluster.broker(A, 1) as slave:
        other.topics.put(TopicConfig(TOPIC, 1, 1))
        node = Node(tmp_path / "master", cluster.namesrv, "ASYNC_MASTER", keys)
        try:
            await asyncio.to_thread(node.start)
            assert node.daemon is not None
            for body in sent:
                header = SendMessage("p", TOPIC, "TBW102", 1, 0, 0, 0, 0, encode({"DELAY": "1"}))
                await cluster.served(node.address, RequestCode.SEND_MESSAGE, header, body)
            end = await cluster.log_end(node.address)
            await until(lambda: slave.store.max_physical_offset >= end)
            await asyncio.to_thread(node.kill)
            await until(lambda: slave.acting.is_acting)
            await until(lambda: bodies(other).keys() | bodies(slave).keys() == sent)
            await asyncio.to_thread(node.start)
            await until(lambda: slave.registration.master is not None)
            end = await cluster.log_end(node.address)
            await until(lambda: slave.store.max_physical_offset >= end)
            assert slave.acting.turns <= 2  # it may have begun before the master was there at all
        finally:
            node.close()
        everywhere = bodies(other) + bodies(slave)
    assert everywhere.keys() == sent
    assert max(everywhere.values()) <= 2  # what the master delivered last, and its slave had not heard of yet


async def test_after_a_cut_of_its_log_a_slave_is_no_further_than_its_queues(tmp_path: Path) -> None:
    """Else the messages that come to these places next would be left out when it acts, or is promoted."""
    async with running_cluster(tmp_path) as cluster, cluster.broker(A, 1) as slave:
        slave.offsets.commit("g", TOPIC, 0, 12)
        await slave.delays.adopt(DelayOffsetsBody(DataVersion(), {1: 5}))
        await slave.timers.adopt(TimerCheckpoint(read_ms=1_000, queue_offset=7))
        slave.store.on_cut()
        assert slave.offsets.find_offset("g", TOPIC, 0) == 0
        assert slave.delays.progress() == {1: (0, 0)}
        assert slave.timers.pending.checkpoint.queue_offset == 0


async def test_a_master_waits_for_the_other_one_to_be_forgotten_and_no_longer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = dataclasses.replace(ACTING, broker_not_active_timeout_millis=1_500)
    async with running_cluster(tmp_path, config) as cluster, cluster.broker(A) as master:
        await until(lambda: master.is_online)
        elsewhere = dataclasses.replace(cluster, folder=tmp_path / "elsewhere")
        async with elsewhere.broker(A) as second:
            await until(lambda: f"{master.address} is registered as the master" in caplog.text)
            assert not second.is_online
            await until(lambda: second.is_online)
            assert f"{master.address} is the master of {A}" in caplog.text


async def test_a_slave_that_acts_can_be_promoted_and_goes_on_where_it_is(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, cluster.broker(B) as other, cluster.broker(A, 1) as slave:
        other.topics.put(TopicConfig(TOPIC, 1, 1))
        async with cluster.broker(A) as master:
            await until(lambda: master.is_online)
            await cluster.send(master, b"delayed", DELAY="1")
            await has_followed(slave, master)
        await until(lambda: bodies(other) == {b"delayed": 1})
        assert slave.acting.is_acting
        await cluster.ask(slave, RequestCode.PROMOTE_BROKER, Promote("ASYNC_MASTER", is_force=True))
        assert not slave.acting.is_acting
        await cluster.send(slave, b"new", DELAY="1")
        await until(lambda: bodies(slave) == {b"new": 1})
        assert bodies(other) == {b"delayed": 1}

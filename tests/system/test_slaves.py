"""A master and a slave in the test's own process: what the slave has, serves, refuses and takes over."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cosmodrome import Message, Producer
from cosmodrome.broker.broker import Broker
from cosmodrome.broker.metadata_sync import MetadataSync
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, BrokerRole, FlushDiskType, ReplicationConfig, StoreConfig
from cosmodrome.errors import ConfigError
from cosmodrome.model import GroupConfig, TopicConfig
from cosmodrome.net.caller import Caller
from cosmodrome.store.message import Durability
from cosmodrome.wire.bodies import EpochsBody, HaStatusBody, KVTable
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import (
    OffsetReply,
    PullFlag,
    PullMessage,
    PullReply,
    QueryConsumerOffset,
    QueueHeader,
    UpdateConsumerOffset,
)
from tests.system.cluster import SMALL_STORE, running_broker, running_name_server

NAME = "broker-a"
TOPIC = "orders"
PATIENCE_SECONDS = 30
SLAVE = ReplicationConfig(broker_role=BrokerRole.SLAVE)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110  # another connection's bytes are no event
            await asyncio.sleep(0.01)


@dataclass
class Pair:
    """A master, its slave, and somebody who asks them."""

    namesrv: str
    master: Broker
    slave: Broker
    caller: Caller

    async def ask(self, broker: Broker, command: Command) -> Command:
        return await self.caller.call(broker.address, command, 5_000)

    async def caught_up(self) -> None:
        await until(lambda: self.slave.store.max_physical_offset == self.master.store.max_physical_offset)

    async def sync(self) -> None:
        """Take over the master's tables now, not at the next round."""
        rounds = self.slave.metadata_sync.rounds
        await self.slave.metadata_sync.round(self.master.address)
        assert self.slave.metadata_sync.rounds == rounds + 1

    async def send(self, count: int = 1, **properties: str) -> None:
        async with Producer("p", self.namesrv) as producer:
            for number in range(count):
                await producer.send(Message(TOPIC, b"%d" % number, keys=f"key-{number}", properties=properties))


@asynccontextmanager
async def running_pair(
    folder: Path,
    master: ReplicationConfig | None = None,
    slave: ReplicationConfig = SLAVE,
    store: StoreConfig = SMALL_STORE,
    config: BrokerConfig | None = None,
) -> AsyncIterator[Pair]:
    config = config or BrokerConfig(broker_name=NAME, default_topic_queue_nums=1)
    async with running_name_server() as name_server:
        namesrv = name_server.address
        async with (
            running_broker(folder / "master", namesrv, config, store, replication=master) as leads,
            running_broker(
                folder / "slave", namesrv, dataclasses.replace(config, broker_id=1), store, replication=slave
            ) as follows,
        ):
            caller = Caller()
            try:
                yield Pair(namesrv, leads, follows, caller)
            finally:
                await caller.close()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with running_pair(tmp_path) as found:
        yield found


def pull(offset: int, group: str = "g", queue_id: int = 0, **fields: int) -> Command:
    flags = int(PullFlag.SUBSCRIPTION) | fields.pop("flags", 0)
    request = PullMessage(group, TOPIC, queue_id, offset, 32, flags, fields.pop("commit", 0), 0, "*")
    return Command.request(RequestCode.PULL_MESSAGE, request)


# --- the log


async def test_a_slave_has_the_bytes_of_its_master_and_serves_them(pair: Pair) -> None:
    await pair.send(20)
    await pair.caught_up()
    logs = [(broker._root / "commitlog" / ("0" * 20)).read_bytes() for broker in (pair.master, pair.slave)]
    assert logs[0] == logs[1]
    await pair.sync()
    served = [await pair.ask(broker, pull(0)) for broker in (pair.master, pair.slave)]
    assert [reply.code for reply in served] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS]
    assert bytes(served[0].body) == bytes(served[1].body)


async def test_a_slave_answers_for_its_queues_and_finds_messages_by_key(pair: Pair) -> None:
    await pair.send(5)
    await pair.caught_up()
    asked = Command.request(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))
    assert OffsetReply.decode(await pair.ask(pair.slave, asked)).offset == 5
    assert [len(pair.slave.store.find_by_key(TOPIC, f"key-{number}", 8, 0, 2**62)) for number in range(5)] == [1] * 5


async def test_both_say_how_far_they_are(pair: Pair) -> None:
    await pair.send(3)
    await pair.caught_up()
    await until(lambda: bool(pair.master.replicas.slaves()))
    await until(lambda: pair.master.replicas.slaves()[0].behind_bytes == 0)
    end = pair.master.store.max_physical_offset
    ask = Command.request(RequestCode.GET_BROKER_HA_STATUS)
    leads = HaStatusBody.decode((await pair.ask(pair.master, ask)).body)
    assert (leads.is_master, leads.master_offset, leads.slaves[0].ack_offset) == (True, end, end)
    assert leads.slaves[0].in_sync
    ask = Command.request(RequestCode.GET_BROKER_HA_STATUS)
    follows = HaStatusBody.decode((await pair.ask(pair.slave, ask)).body)
    assert not follows.is_master
    assert follows.follows.is_connected
    assert follows.follows.master_address == pair.master.registration.ha_address
    tables = {}
    for broker in (pair.master, pair.slave):
        reply = await pair.ask(broker, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        tables[broker.replication.broker_role] = KVTable.decode(reply.body).table
    assert tables[BrokerRole.ASYNC_MASTER]["slavesInSync"] == "1"
    assert tables[BrokerRole.SLAVE]["replicationState"] == "following"
    assert tables[BrokerRole.SLAVE]["masterAddr"] == pair.master.address
    assert tables[BrokerRole.SLAVE]["logEpoch"] == tables[BrokerRole.ASYNC_MASTER]["logEpoch"]


async def test_a_slave_compares_its_log_with_the_masters_epochs(pair: Pair) -> None:
    await pair.send(1)
    await pair.caught_up()
    reply = await pair.ask(pair.master, Command.request(RequestCode.GET_BROKER_EPOCH_CACHE))
    body = EpochsBody.decode(reply.body)
    assert (body.broker_name, body.broker_id, body.max_offset) == (NAME, 0, pair.master.store.max_physical_offset)
    assert [entry.id for entry in body.epochs] == [epoch.id for epoch in pair.master.store.epochs.list]
    assert pair.slave.store.epochs.list == pair.master.store.epochs.list


# --- what a slave refuses


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (RequestCode.SEND_MESSAGE_V2, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.SEND_BATCH_MESSAGE, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.SEND_REPLY_MESSAGE_V2, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.POP_MESSAGE, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.ACK_MESSAGE, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.END_TRANSACTION, ResponseCode.SLAVE_NOT_AVAILABLE),
        (RequestCode.RECALL_MESSAGE, ResponseCode.SLAVE_NOT_AVAILABLE),
        (RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, ResponseCode.SYSTEM_ERROR),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, ResponseCode.SYSTEM_ERROR),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_slave_refuses_what_would_write_and_names_the_master(
    pair: Pair, code: RequestCode, expected: ResponseCode
) -> None:
    await until(lambda: pair.slave.registration.master is not None)
    reply = await pair.ask(pair.slave, Command.request(code))
    assert reply.code == expected
    assert reply.remark is not None
    assert reply.remark.endswith(f"ask its master, {pair.master.address}")
    assert pair.slave.store.max_physical_offset == pair.master.store.max_physical_offset


# --- pulls at a slave


async def test_a_pull_at_a_slave_commits_nothing(pair: Pair) -> None:
    await pair.send(3)
    await pair.caught_up()
    await pair.sync()
    for broker, kept in ((pair.master, 2), (pair.slave, None)):
        await pair.ask(broker, pull(0, flags=int(PullFlag.COMMIT_OFFSET), commit=2))
        assert broker.offsets.find_offset("g", TOPIC, 0) == kept


async def test_an_offset_that_a_slave_does_not_have_is_asked_again_not_corrected(pair: Pair) -> None:
    await pair.send(3)
    await pair.caught_up()
    await pair.sync()
    moved = await pair.ask(pair.master, pull(50))
    assert (moved.code, PullReply.decode(moved).next_begin_offset) == (ResponseCode.PULL_OFFSET_MOVED, 0)
    kept = await pair.ask(pair.slave, pull(50))
    assert (kept.code, PullReply.decode(kept).next_begin_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 50)
    assert PullReply.decode(kept).suggest_which_broker_id == 0


async def test_with_offset_check_in_slave_the_offset_is_corrected_there_too(tmp_path: Path) -> None:
    checks = dataclasses.replace(SLAVE, offset_check_in_slave=True)
    async with running_pair(tmp_path, slave=checks) as pair:
        await pair.send(3)
        await pair.caught_up()
        await pair.sync()
        moved = await pair.ask(pair.slave, pull(50))
        assert (moved.code, PullReply.decode(moved).next_begin_offset) == (ResponseCode.PULL_OFFSET_MOVED, 0)


# --- offsets and tables


async def test_a_slave_takes_over_topics_groups_and_offsets(pair: Pair) -> None:
    await pair.send(4)
    pair.master.groups.put(GroupConfig("g", retry_max_times=3))
    pair.master.offsets.commit("g", TOPIC, 0, 2)
    pair.master.topics.put(TopicConfig("extra", 3, 3))
    await pair.sync()
    slave = pair.slave
    assert slave.topics.topic("extra").write_queues == 3
    assert slave.groups.group("g").retry_max_times == 3
    assert slave.offsets.find_offset("g", TOPIC, 0) == 2
    assert b"extra" in (slave._root / "config" / "topics.json").read_bytes()


async def test_an_offset_told_to_a_slave_stays_until_the_master_knows_better(pair: Pair) -> None:
    await pair.send(4)
    await pair.sync()
    commit = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("g", TOPIC, 0, 3))
    assert (await pair.ask(pair.slave, commit)).code == ResponseCode.SUCCESS
    query = Command.request(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset("g", TOPIC, 0))
    assert OffsetReply.decode(await pair.ask(pair.slave, query)).offset == 3
    await pair.sync()
    assert pair.slave.offsets.find_offset("g", TOPIC, 0) == 3
    assert pair.master.offsets.find_offset("g", TOPIC, 0) is None, "a master takes nothing from a slave"
    pair.master.offsets.commit("g", TOPIC, 0, 1)
    await pair.sync()
    assert pair.slave.offsets.find_offset("g", TOPIC, 0) == 1


async def test_a_topic_deleted_at_the_master_loses_its_queues_at_the_slave(pair: Pair) -> None:
    await pair.send(4)
    await pair.caught_up()
    await pair.sync()
    assert pair.slave.store.max_offset(TOPIC, 0) == 4
    for broker in (pair.master,):
        broker.topics.delete(TOPIC)
        broker.store.delete_topic(TOPIC)
    await pair.sync()
    assert pair.slave.store.queues(TOPIC) == []
    await pair.send(1)
    await pair.caught_up()
    await pair.sync()
    assert pair.slave.store.max_offset(TOPIC, 0) == 1


async def test_offsets_wait_for_the_log_they_speak_of(pair: Pair) -> None:
    await pair.send(2)
    await pair.caught_up()
    sync, store = pair.slave.metadata_sync, pair.slave.store
    flushed = store.flusher.flushed
    pair.master.offsets.commit("g", TOPIC, 0, 2)
    store.append_raw = lambda _offset, _data: None  # type: ignore[method-assign,assignment]
    await pair.send(1)
    pair.master.offsets.commit("g", TOPIC, 0, 3)
    round_ = asyncio.create_task(sync.round(pair.master.address))
    await until(lambda: bool(sync._held_until))
    assert sync._held_until == pair.master.store.max_physical_offset > flushed
    assert pair.slave.offsets.find_offset("g", TOPIC, 0) is None
    round_.cancel()


# --- what sends wait for


async def test_a_sync_master_waits_for_its_slave(tmp_path: Path) -> None:
    sync = ReplicationConfig(broker_role=BrokerRole.SYNC_MASTER)
    store = dataclasses.replace(SMALL_STORE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    async with running_pair(tmp_path, master=sync, store=store) as pair, Producer("p", pair.namesrv) as producer:
        await until(lambda: pair.master.replicas.slaves() != [])
        await until(
            lambda: pair.master.replicas._leader is not None and pair.master.replicas._leader.in_sync_copies() == 2
        )
        sent = await producer.send(Message(TOPIC, b"x"))
        assert sent.status.name == "SEND_OK"
        assert pair.slave.store.flusher.flushed >= int(sent.offset_msg_id[-16:], 16)


@pytest.mark.parametrize(
    ("disk", "copies", "told"),
    [
        (Durability.OK, Durability.OK, Durability.OK),
        (Durability.OK, Durability.SLAVE_NOT_AVAILABLE, Durability.SLAVE_NOT_AVAILABLE),
        (Durability.OK, Durability.FLUSH_SLAVE_TIMEOUT, Durability.FLUSH_SLAVE_TIMEOUT),
        (Durability.FLUSH_DISK_TIMEOUT, Durability.OK, Durability.FLUSH_DISK_TIMEOUT),
        (Durability.FLUSH_DISK_TIMEOUT, Durability.FLUSH_SLAVE_TIMEOUT, Durability.FLUSH_DISK_TIMEOUT),
    ],
)
async def test_of_disk_and_replicas_the_disk_is_told_first(
    tmp_path: Path, disk: Durability, copies: Durability, told: Durability
) -> None:
    sync = ReplicationConfig(broker_role=BrokerRole.SYNC_MASTER)
    store = dataclasses.replace(SMALL_STORE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    async with (
        running_name_server() as name_server,
        running_broker(tmp_path, name_server.address, store=store, replication=sync) as broker,
    ):

        async def of_the_disk(_end: int, *, wait: bool = True) -> Durability:
            return disk

        async def of_replicas(_end: int) -> Durability:
            return copies

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.store, "durable", of_the_disk)
            patch.setattr(broker.replicas, "replicated", of_replicas)
            assert await broker.durable(0) is told
            assert await broker.durable(0, wait=False) is disk, "whoever does not wait hears of no slaves"


async def test_a_sync_master_without_a_slave_says_so(tmp_path: Path) -> None:
    sync = ReplicationConfig(broker_role=BrokerRole.SYNC_MASTER)
    async with (
        running_name_server() as name_server,
        running_broker(tmp_path, name_server.address, replication=sync) as broker,
        Producer("p", name_server.address) as producer,
    ):
        sent = await producer.send(Message(TOPIC, b"x"))
        assert sent.status.name == "SLAVE_NOT_AVAILABLE"
        assert broker.store.max_offset(TOPIC, sent.queue.queue_id) == 1, "it is stored"


async def test_with_too_few_copies_in_sync_nothing_is_stored(tmp_path: Path) -> None:
    sync = ReplicationConfig(broker_role=BrokerRole.SYNC_MASTER, min_in_sync_replicas=2)
    async with (
        running_name_server() as name_server,
        running_broker(tmp_path, name_server.address, replication=sync) as broker,
    ):
        caller = Caller()
        end = broker.store.max_physical_offset
        fields = {"a": "p", "b": "TBW102", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
        reply = await caller.call(
            broker.address, Command.request(RequestCode.SEND_MESSAGE_V2, None, b"x", fields=fields), 5_000
        )
        await caller.close()
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert reply.remark == "in-sync replicas not enough: 1 in sync, and minInSyncReplicas is 2"
        assert broker.store.max_physical_offset == end


# --- roles


def test_a_role_and_an_id_that_do_not_fit_are_refused_in_python_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="brokerRole=SLAVE needs a brokerId of 1 or more"):
        Broker(BrokerConfig(), dataclasses.replace(SMALL_STORE, store_path_root_dir=str(tmp_path)), replication=SLAVE)


async def test_the_port_for_slaves_that_is_in_use_is_told_with_its_key(tmp_path: Path) -> None:
    async with running_name_server() as name_server:
        taken = ReplicationConfig(ha_listen_port=name_server.port)
        with pytest.raises(ConfigError, match=r"in use.*; this is the port for slaves: set another with haListenPort"):
            async with running_broker(tmp_path, name_server.address, replication=taken):
                pass


async def test_a_promoted_slave_has_the_topics_of_its_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(_sync: MetadataSync, _master: str) -> None: ...

    monkeypatch.setattr(MetadataSync, "round", nothing)
    async with running_pair(tmp_path) as pair:
        await pair.send(3)
        await pair.caught_up()
        assert pair.slave.topics.find_topic(TOPIC) is None, "its master has told nothing of it"
    async with running_name_server() as name_server:
        config = BrokerConfig(broker_name=NAME)
        async with running_broker(tmp_path / "slave", name_server.address, config) as promoted:
            assert promoted.topics.topic(TOPIC).write_queues == 1
            assert promoted.store.epochs.term == 2
            assert promoted.store.max_offset(TOPIC, 0) == 3


async def test_a_master_that_was_replaced_by_a_promoted_slave_takes_no_messages(tmp_path: Path) -> None:
    config = BrokerConfig(broker_name=NAME)
    async with (
        running_name_server() as name_server,
        running_broker(tmp_path / "old", name_server.address, config) as old,
    ):
        await old.registration.announce()
        async with running_broker(tmp_path / "new", name_server.address, config) as new:
            while new.store.epochs.term <= old.store.epochs.term:
                new.store.epochs.begin(0, 0, new_term=True)
            new.registration.topics_changed()
            await new.registration.announce()
            old.registration.topics_changed()
            await old.registration.announce()
            assert old.store.refusal is not None
            assert f"{new.address} is the master of {NAME} with term 2" in old.store.refusal
            assert new.store.refusal is None
        old.registration.topics_changed()
        await old.registration.announce()
        assert old.store.refusal is None

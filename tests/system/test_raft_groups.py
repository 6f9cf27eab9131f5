"""Raft groups as a user starts them: members die, stop and lose their folders, and what was acknowledged stays."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import Message, MessageQueue, Producer, PushConsumer, ReceivedMessage
from cosmodrome.broker.broker import Broker
from cosmodrome.cli.raft_processes import free_ports
from cosmodrome.config import BrokerConfig, RaftConfig
from cosmodrome.errors import ClientError, ConfigError
from cosmodrome.raft.node import RoleChange
from cosmodrome.raft.state import Role
from cosmodrome.testing.daemons import SMALL_STORE, running, running_name_server
from cosmodrome.wire import fastjson
from tests.system.daemons import cosmodrome, cosmodrome_json, up
from tests.system.raft_members import (
    MEMBERS,
    all_equal,
    all_known,
    check,
    kill,
    leader,
    namesrv,
    processes,
    sending,
    until,
)


async def test_a_killed_leader_takes_nothing_acknowledged_with_it(tmp_path: Path) -> None:
    with up(tmp_path, "--replicas", "3") as daemon:
        async with sending(daemon, "orders") as sends:
            await sends.more(50)
            for _ in range(2):
                kill(daemon, await leader(daemon))
                await sends.more(50)
                await all_known(daemon)
        await check(daemon, "orders", sends.acknowledged)
        await all_equal(daemon)
        assert await asyncio.to_thread(daemon.interrupt) == 0
    with up(tmp_path, "--replicas", "3") as daemon:
        await check(daemon, "orders", sends.acknowledged)


async def test_a_stopped_leader_a_lost_folder_and_the_death_of_all_lose_nothing(tmp_path: Path) -> None:
    with up(tmp_path, "--replicas", "3") as daemon:
        async with sending(daemon, "orders") as sends:
            await sends.more(30)
            stopped = await leader(daemon)
            pid = processes(daemon)[stopped]
            os.kill(pid, signal.SIGSTOP)
            try:
                await sends.more(30)
            finally:
                os.kill(pid, signal.SIGCONT)
            await all_known(daemon)
            leads = await leader(daemon)
            emptied = next(member for member in MEMBERS if member != leads)
            kill(daemon, emptied)
            shutil.rmtree(tmp_path / f"broker-a-{emptied}")
            await sends.more(30)
            await all_known(daemon)
            for pid in processes(daemon).values():
                os.kill(pid, signal.SIGKILL)
            await sends.more(30)
        await all_equal(daemon)
        await check(daemon, "orders", sends.acknowledged)


async def test_a_group_goes_on_where_it_was_under_a_new_leader(tmp_path: Path) -> None:
    with up(tmp_path, "--replicas", "3") as daemon:
        async with Producer(group="senders", namesrv=namesrv(daemon)) as producer:
            bodies = [b"before %d" % number for number in range(20)]
            for body in bodies:
                await producer.send(Message("bills", body))
            assert sorted(await consumed(namesrv(daemon), 20)) == sorted(bodies)
            await until("every member knows the offsets", partial(offsets_known, tmp_path, 20))
            kill(daemon, await leader(daemon))
            later = [b"after %d" % number for number in range(20)]
            for body in later:
                await send_somehow(producer, body)
            got = await consumed(namesrv(daemon), 20)
            assert set(later) <= set(got)
            assert not set(bodies) & set(got), "it begins where the group was"


async def send_somehow(producer: Producer, body: bytes) -> None:
    """Send a message again until it is acknowledged, as an application does."""
    async with asyncio.timeout(60):
        while True:
            try:
                await producer.send(Message("bills", body))
                return
            except ClientError:
                await asyncio.sleep(0.05)


async def consumed(address: str, count: int) -> list[bytes]:
    """Consume as one member of a group until so many messages have come."""
    got: list[bytes] = []
    enough = asyncio.Event()

    def handle(message: ReceivedMessage) -> None:
        got.append(message.body)
        if len(set(got)) >= count:
            enough.set()

    consumer = PushConsumer(group="billing", namesrv=address)
    consumer.subscribe("bills", "*", handle)
    async with consumer, asyncio.timeout(60):
        await enough.wait()
    return got


async def offsets_known(folder: Path, count: int) -> bool:
    """Return whether the tables of all members on disk say that the group has consumed so much."""
    for member in MEMBERS:
        try:
            table: Any = fastjson.loads((folder / f"broker-a-{member}/config/consumerOffset.json").read_bytes())
        except OSError:
            return False
        if sum(table["offsetTable"].get("bills@billing", {}).values()) < count:
            return False
    return True


async def test_an_operator_sees_the_members_and_moves_the_leadership(tmp_path: Path) -> None:
    with up(tmp_path, "--replicas", "3") as daemon:
        assert "Raft group of 3 brokers: broker-a led from " in daemon.output
        address = ("--namesrv", namesrv(daemon))
        assert cosmodrome_json("send", "orders", "first", *address)[0]["status"] == "SEND_OK"
        await all_known(daemon)
        old = await leader(daemon)
        new = next(member for member in MEMBERS if member != old)
        done = cosmodrome("admin", "transferLeader", "-b", "broker-a", "--to", new, *address)
        assert re.search(rf"broker-a +{new} +\d+\n", done.stdout), done.stderr
        assert await leader(daemon) == new
        shown = cosmodrome("admin", "raftStatus", "-b", "broker-a", *address).stdout
        assert len(re.findall(r"broker-a +\d", shown)) == len(MEMBERS)
        refused = cosmodrome("admin", "promote", "broker-a", *address)
        assert refused.returncode == 1
        assert "is a member of a Raft group, which elects its master" in refused.stderr
        unknown = cosmodrome("admin", "transferLeader", "-b", "broker-a", "--to", "n7", *address)
        assert "no member n7 of broker-a; its members are n0, n1, n2" in unknown.stderr
        assert await asyncio.to_thread(daemon.interrupt) == 0


def single(folder: Path, address: str, port: int) -> Broker:
    """Return a broker that is a group of its own."""
    raft = RaftConfig(is_enabled=True, group="g", peers=f"n0-127.0.0.1:{port}", self_id="n0")
    config = BrokerConfig(broker_name="broker-a", namesrv_addr=address, listen_port=0)
    return Broker(config, replace(SMALL_STORE, store_path_root_dir=str(folder)), raft=raft)


async def test_the_port_of_the_members_that_is_in_use_is_told_with_its_key(tmp_path: Path) -> None:
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with taken, running_name_server() as name_server:
        broker = single(tmp_path, name_server.address, taken.sockets[0].getsockname()[1])
        with pytest.raises(ConfigError, match="the port for the members of its group: dLegerPeers says so of n0"):
            await broker.start()
        broker.store.close()
        assert broker.group is not None
        broker.group.member.close()


async def test_a_group_of_one_serves_what_it_has_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_name_server() as name_server:
        for life in range(2):
            broker = single(tmp_path, name_server.address, *free_ports("127.0.0.1", 1))
            await broker.start()
            async with running(broker.run), Producer(group="p", namesrv=name_server.address) as producer:
                assert broker.group_role is not None
                async with asyncio.timeout(60):
                    await broker.group_role.leading()
                sent = await producer.send(Message("orders", b"%d" % life), MessageQueue("orders", "broker-a", 0))
                assert sent.queue_offset == life
                assert broker.store.max_offset("orders", 0) == life + 1, "an acknowledged message is visible"
                term = broker.registration_version.state_version
                assert term == broker.group_role.term == life + 1
                assert broker.group is not None
                monkeypatch.setattr(broker.group.member.node, "_reported", RoleChange(Role.FOLLOWER, term + 1, "n1"))
                assert broker.registration_version.state_version == term, "it does not take its successor's place"
                monkeypatch.undo()

"""What a peer asks of the name server costs the loop it shares with a broker no disk and no long work."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import state_file
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, NameServerConfig
from cosmodrome.errors import InvalidParameter, ServiceNotAvailable, SystemBusy
from cosmodrome.model import DataVersion, TopicConfig
from cosmodrome.nameserver import bodies
from cosmodrome.nameserver.kv import MAX_WAITING, KvConfigs, KvLimits
from cosmodrome.nameserver.processors import FEW_BROKERS, PROCESSORS
from cosmodrome.nameserver.route_table import TOPICS_IN_A_ROW, Registration, RouteTable
from cosmodrome.net.caller import Caller
from cosmodrome.testing import FakeClock
from cosmodrome.wire import name_server_requests as requests
from cosmodrome.wire.bodies import KVTable, RegisterBrokerBody, TopicList
from cosmodrome.wire.bodies.registration import MAX_TOPICS
from cosmodrome.wire.compression import compress
from cosmodrome.wire.header import Header
from tests.turns import Turns
from tests.unit.nameserver.test_name_server import Peer, registration, serving, topics_body

# --- a guard


class _Watch:
    """Notes what is asked of files on this thread by code of the name server. A hook of the interpreter stays for good,
    so it is told when to look."""

    EVENTS = ("open", "os.", "fcntl.", "shutil.", "pathlib.", "tempfile.")

    def __init__(self) -> None:
        self.thread = 0
        self.seen: list[str] = []
        sys.addaudithook(self._look)

    def _look(self, event: str, args: tuple[Any, ...]) -> None:
        if threading.get_ident() != self.thread or not event.startswith(self.EVENTS):
            return
        frame = sys._getframe(1)
        while frame is not None:  # by hand: the module traceback reads files itself
            if "/cosmodrome/nameserver/" in frame.f_code.co_filename:
                self.seen.append(f"{event} {args!r:.80} in {frame.f_code.co_qualname}")
                return
            frame = frame.f_back  # type: ignore[assignment]


_watch: list[_Watch] = []


@pytest.fixture
def watch() -> _Watch:
    if not _watch:
        _watch.append(_Watch())
    _watch[0].seen.clear()
    return _watch[0]


async def test_while_it_serves_no_file_is_touched_on_the_loop(
    tmp_path: Path, watch: _Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, synced_here = threading.get_ident(), []
    fsync = os.fsync

    def noted(fd: int) -> None:
        if watch.thread:
            synced_here.append(threading.get_ident() == here)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    path = tmp_path / "kvConfig.json"
    async with serving({"kv_config_path": str(path)}) as peer:
        watch.thread = here
        try:
            await peer.register()
            await peer.kv("ORDER_TOPIC_CONFIG", "T", "a:4")
            await peer.kv("ns", "k", "v")
            await peer.register(topics=("V",))
            await peer.ask_well(RequestCode.DELETE_KV_CONFIG, requests.KvConfig("ns", "k"))
            for code in PROCESSORS:  # whatever it makes of a request without fields
                await peer.ask(code)
                await peer.ask(code, requests.KvConfig("ns", "k", "w"), b"{}")
        finally:
            watch.thread = 0
    assert watch.seen == []
    assert synced_here
    assert not any(synced_here)
    assert KvConfigs(path).value("ORDER_TOPIC_CONFIG", "T") == "a:4"


def test_the_guard_sees(watch: _Watch, tmp_path: Path) -> None:
    watch.thread = threading.get_ident()
    try:
        KvConfigs(tmp_path / "kvConfig.json")
    finally:
        watch.thread = 0
    assert watch.seen


# --- KV settings


class Disk:
    """A disk that is slow, or full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.saves = 0
        self._began = threading.Event()
        self.error: OSError | None = None
        self._save = state_file.save
        monkeypatch.setattr(state_file, "save", self.save)

    async def is_busy(self) -> None:
        """Return when something is being saved."""
        await asyncio.to_thread(self._began.wait, 60)

    def save(self, path: Path, data: bytes) -> None:
        self.saves += 1
        self._began.set()
        assert self.go_on.wait(60)
        if self.error is not None:
            raise self.error
        self._save(path, data)


async def test_a_value_is_answered_for_and_seen_when_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    async with serving({"kv_config_path": str(tmp_path / "kv.json")}) as peer:
        puts = [asyncio.ensure_future(peer.kv("ns", f"k{number}", "v")) for number in range(50)]
        await disk.is_busy()
        reply = await peer.ask(RequestCode.GET_KV_CONFIG, requests.KvConfig("ns", "k0"))  # it serves meanwhile
        assert reply.code == ResponseCode.QUERY_NOT_FOUND
        assert not any(put.done() for put in puts)
        disk.go_on.set()
        await asyncio.gather(*puts)
        assert disk.saves < 10  # what comes while the file is written shares the next write
    assert len(KvConfigs(tmp_path / "kv.json").namespace("ns")) == 50


async def test_a_disk_that_refuses_is_told_and_nothing_of_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.go_on.set()
    async with serving({"kv_config_path": str(tmp_path / "kv.json")}) as peer:
        await peer.kv("ns", "k", "1")
        disk.error = OSError(errno.ENOSPC, "no space left")
        reply = await peer.ask(RequestCode.PUT_KV_CONFIG, requests.KvConfig("ns", "k", "2"))
        assert reply.code == ServiceNotAvailable("").code
        assert "kv.json: no space left; see to the disk, and try again" in (reply.remark or "")
        disk.error = None
        await peer.kv("other", "k", "3")
        assert peer.server.kv.value("ns", "k") == "1"
    assert KvConfigs(tmp_path / "kv.json").namespace("ns") == {"k": "1"}


async def test_an_order_that_nobody_waits_for_any_more_is_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    configs = KvConfigs(tmp_path / "kv.json")
    asked = asyncio.create_task(configs.put("ns", "k", "v"))
    await disk.is_busy()
    asked.cancel()
    deleted = asyncio.create_task(configs.delete("ns", "k"))  # in order, though nobody sees the key yet
    await asyncio.sleep(0)
    disk.go_on.set()
    await deleted
    await configs.settled()
    assert configs.find("ns", "k") is None
    assert disk.saves == 2


@pytest.mark.parametrize(
    ("namespace", "key", "value", "told"),
    [
        ("ns", "k", "é" * 6, "the value has 12 bytes, and kvConfigMaxValueSize allows 10"),
        ("n" * 1025, "k", "v", "the namespace has 1025 bytes; a KV config takes 1024"),
        ("ns", "k" * 1025, "v", "the key has 1025 bytes; a KV config takes 1024"),
    ],
)
async def test_what_is_too_long_is_refused(namespace: str, key: str, value: str, told: str) -> None:
    configs = KvConfigs(limits=KvLimits(value_bytes=10))
    with pytest.raises(InvalidParameter, match=told):
        await configs.put(namespace, key, value)


async def test_all_together_have_a_bound() -> None:
    configs = KvConfigs(limits=KvLimits(bytes=20))
    await configs.put("ns", "a", "123456789")
    await configs.put("ns", "b", "123456789")
    with pytest.raises(SystemBusy, match="holds 20 bytes, and 20 are allowed; delete some entries first, or set"):
        await configs.put("ns", "c", "")
    await configs.put("ns", "a", "987654321")
    await configs.delete("ns", "b")
    await configs.put("ns", "c", "123456789")
    assert configs.namespace("ns") == {"a": "987654321", "c": "123456789"}


async def test_only_so_many_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    configs = KvConfigs(tmp_path / "kv.json")
    puts = [asyncio.create_task(configs.put("ns", f"k{number}", "v")) for number in range(2 * MAX_WAITING + 5)]
    await disk.is_busy()
    refused = [put for put in puts if put.done()]
    assert len(refused) >= 5
    disk.go_on.set()
    done = await asyncio.gather(*puts, return_exceptions=True)
    assert {type(error) for error in done} == {type(None), SystemBusy}
    assert "wait for the disk" in str(refused[0].exception())


# --- registrations


def table(topics: int) -> dict[str, TopicConfig]:
    return {f"topic-{number}": TopicConfig(f"topic-{number}", 4, 4) for number in range(topics)}


def test_topics_are_taken_in_steps() -> None:
    routes = RouteTable(silent_after_ms=1_000)
    body = table(3 * TOPICS_IN_A_ROW)
    steps = routes.registering(Registration("C", "a", 0, "127.0.0.1:1", topics=body), 0)
    assert sum(1 for _ in steps) == 3
    assert len(routes.all_topics()) == 3 * TOPICS_IN_A_ROW


@pytest.mark.parametrize("change", ["wiping_write_permission", "adding_write_permission"])
def test_permissions_are_set_in_steps(change: str) -> None:
    routes = RouteTable(silent_after_ms=1_000)
    routes.register(Registration("C", "a", 0, "127.0.0.1:1", topics=table(3 * TOPICS_IN_A_ROW)), 0)
    assert sum(1 for _ in getattr(routes, change)("a")) == 3


LISTS = (
    (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None),
    (RequestCode.GET_TOPICS_BY_CLUSTER, requests.TopicsByCluster("C")),
    (RequestCode.GET_UNIT_TOPIC_LIST, None),
    (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, None),
    (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, None),
    (RequestCode.GET_KVLIST_BY_NAMESPACE, requests.KvNamespace("N")),
)


@pytest.mark.parametrize(("code", "header"), LISTS)
async def test_long_lists_are_made_beside_the_loop_one_after_the_other(
    code: RequestCode, header: Header | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 39,000 topics, a dozen who asked again and again kept a healthy client waiting for 1.7 s."""
    threads, copies = set(), []
    in_hand = 0
    kind = KVTable if isinstance(header, requests.KvNamespace) else TopicList
    encode, copy = kind.encode, RouteTable.copy

    def noted(body: Any) -> bytes:
        nonlocal in_hand
        in_hand = 0
        threads.add(threading.current_thread().name.partition("_")[0])
        return encode(body)

    def counted(routes: RouteTable) -> RouteTable:
        nonlocal in_hand
        in_hand += 1
        copies.append(in_hand)
        return copy(routes)

    async with serving() as peer:
        await peer.register(topics=tuple(table(2_000)))
        await asyncio.gather(*(peer.kv("N", f"k{number}", "v") for number in range(20)))
        monkeypatch.setattr(kind, "encode", noted)
        monkeypatch.setattr(RouteTable, "copy", counted)
        await asyncio.gather(*(peer.ask_well(code, header) for _ in range(10)))
    assert threads == {"lane"}
    assert copies == ([1] * 10 if kind is TopicList else [])


async def test_a_long_body_is_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    decode = RegisterBrokerBody.decode

    def noted(data: bytes, *, version: int) -> RegisterBrokerBody:
        threads.append(threading.current_thread().name)
        return decode(data, version=version)

    monkeypatch.setattr(RegisterBrokerBody, "decode", noted)
    async with serving() as peer:
        await peer.register(topics=("T",))
        await peer.register(topics=tuple(table(1_000)))
        small = topics_body("T", compressed=True)
        await peer.ask_well(RequestCode.REGISTER_BROKER, registration(), small)
    assert [name.partition("_")[0] for name in threads] == ["MainThread", "lane", "lane"]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"max_request_body_size": 5_000}, "maxRequestBodySize allows 5000"),
        (
            {"max_request_body_values": 500},
            "more values than the 500 that the name server's maxRequestBodyValues allows",
        ),
    ],
)
async def test_a_body_that_is_too_large_is_refused_and_the_rest_served(config: dict[str, int], told: str) -> None:
    async with serving(config) as peer:
        reply = await peer.ask(RequestCode.REGISTER_BROKER, registration(), topics_body(*table(100)))
        assert reply.code == ResponseCode.INVALID_PARAMETER
        assert told in (reply.remark or "")
        assert peer.server.routes.brokers == ()
        await peer.register()


async def test_a_broker_may_have_so_many_topics() -> None:
    count = (MAX_TOPICS + 1).to_bytes(4)
    version = json.dumps({"counter": 1, "timestamp": 1}).encode()
    body = compress(len(version).to_bytes(4) + version + count + b"\0" * (MAX_TOPICS + 100), 1)[0]
    async with serving() as peer:
        reply = await peer.ask(RequestCode.REGISTER_BROKER, registration(), body)
        assert f"a registration of {MAX_TOPICS + 1} topics; at most {MAX_TOPICS}" in (reply.remark or "")


@pytest.mark.parametrize("code", [RequestCode.QUERY_DATA_VERSION, RequestCode.UPDATE_NAMESRV_CONFIG])
async def test_other_bodies_are_small(code: int) -> None:
    async with serving() as peer:
        await peer.register()
        header = requests.BrokerHeader("a", "127.0.0.1:10911", "C", 0)
        reply = await peer.ask(code, header, b" " * (bodies.SMALL_BODY_BYTES + 1))
        assert reply.code == ResponseCode.INVALID_PARAMETER
        assert f"at most {bodies.SMALL_BODY_BYTES} are read" in (reply.remark or "")


async def test_changes_of_the_table_are_made_in_the_order_they_come(peer_of_one: Peer) -> None:
    """A broker that registers much and leaves at once is gone, though reading takes longer than leaving."""
    peer = peer_of_one
    big = peer.ask(RequestCode.REGISTER_BROKER, registration(), topics_body(*table(5_000)))
    leave = peer.ask(RequestCode.UNREGISTER_BROKER, requests.BrokerHeader("a", "127.0.0.1:10911", "C", 0))
    replies = await asyncio.gather(big, leave)
    assert [reply.code for reply in replies] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS]
    assert peer.server.routes.brokers == ()


@pytest.fixture
async def peer_of_one() -> Any:
    async with serving(clock=FakeClock()) as peer:
        yield peer


def test_a_broker_with_as_many_topics_as_it_may_have_can_register() -> None:
    """Dead letter topics come on top of `maxTopics`, so there may be some more."""
    count = BrokerConfig().max_topics + BrokerConfig().max_subscription_groups // 10
    attributes = {"message.type": "NORMAL", "queue.type": "SimpleCQ"}
    topics = {f"topic-{number}": TopicConfig(f"topic-{number}", 8, 8, attributes=attributes) for number in range(count)}
    body = RegisterBrokerBody(DataVersion(), topics).encode()
    limits = NameServerConfig()
    assert len(body) <= limits.max_request_body_size
    assert not bodies._has_more_values(body, limits.max_request_body_values)


# --- many brokers


@pytest.mark.parametrize(
    ("code", "header", "looks"),
    [
        (RequestCode.GET_BROKER_CLUSTER_INFO, None, "groups"),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, requests.GetRoute("T"), "route"),
        (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, None, "system_topics"),
    ],
)
async def test_of_answers_that_look_at_many_brokers_one_is_made_in_a_turn(
    monkeypatch: pytest.MonkeyPatch, code: int, header: Header | None, looks: str
) -> None:
    async with serving() as peer:
        for number in range(FEW_BROKERS + 1):
            await peer.register(f"broker-{number}")
        with Turns() as turns:
            monkeypatch.setattr(RouteTable, looks, turns.counting(getattr(RouteTable, looks)))
            await asyncio.gather(*(peer.ask_well(code, header) for _ in range(50)))
        assert (turns.total, turns.most) == (50, 1)


async def test_of_many_brokers_that_are_lost_at_once_one_leaves_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a connection over which none has registered looks at no broker when it goes."""
    async with serving() as peer:
        await peer.register("stays")
        callers = [Caller() for _ in range(2 * FEW_BROKERS)]
        for number, caller in enumerate(callers):
            if number % 2:
                await Peer(peer.server, caller).register(f"broker-{number}")
            else:
                await Peer(peer.server, caller).ask_well(RequestCode.GET_BROKER_CLUSTER_INFO)
        with Turns() as turns:
            monkeypatch.setattr(RouteTable, "drop_connection", turns.counting(RouteTable.drop_connection))
            await asyncio.gather(*(caller.close() for caller in callers))
            while turns.total < FEW_BROKERS:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert (turns.total, turns.most) == (FEW_BROKERS, 1)
        assert [broker.broker_name for broker in peer.server.routes.brokers] == ["stays"]


async def test_large_order_topics_are_encoded_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each broker is told of all of them when it registers."""
    encode, threads = KVTable.encode, set()

    def noted(self: KVTable) -> bytes:
        threads.add(threading.get_ident())
        return encode(self)

    async with serving({"return_order_topic_config_to_broker": True}) as peer:
        for number in range(20):
            await peer.kv("ORDER_TOPIC_CONFIG", f"t{number}", "broker-a:8")
        monkeypatch.setattr(KVTable, "encode", noted)
        reply = await peer.register()
        assert len(KVTable.decode(reply.body).table) == 20
    assert threads
    assert threading.get_ident() not in threads

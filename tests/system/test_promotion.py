"""Brokers that change their roles while they run: nothing acknowledged is missing, and no two take messages."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from cosmodrome import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from cosmodrome.broker import metadata_sync, promotion, stepping_down
from cosmodrome.broker.broker import Broker
from cosmodrome.broker.roles import Role, Roles, role_of
from cosmodrome.client import routes
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, BrokerRole, ReplicationConfig
from cosmodrome.errors import RequestError, SendFailed
from cosmodrome.model import GroupConfig, TopicConfig
from cosmodrome.net.caller import Caller
from cosmodrome.store.message import StoreMessage
from cosmodrome.testing.kill import cut_off_broker
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.requests import PullFlag
from cosmodrome.wire.role_requests import HandOver, Promote, RoleReply, WithdrawPromotion
from tests.system.cluster import running_broker, running_name_server
from tests.system.test_slaves import NAME, SLAVE, TOPIC, Pair, pull, running_pair, until

MASTER = ReplicationConfig(broker_role=BrokerRole.SYNC_MASTER)
TIMEOUT_MS = 5_000
CALL_MS = 30_000


async def ask(pair: Pair, broker: Broker, code: RequestCode, header: Header | None = None) -> Command:
    return await pair.caller.call(broker.address, Command.request(code, header), CALL_MS)


async def handed_over(pair: Pair, old: Broker, new: Broker, timeout_ms: int = TIMEOUT_MS) -> RoleReply:
    reply = await ask(pair, old, RequestCode.HAND_OVER_BROKER, HandOver(new.address, timeout_ms))
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return RoleReply.decode(reply)


async def follows(slave: Broker) -> None:
    await until(lambda: slave.replicas.is_following)


@asynccontextmanager
async def following_pair(folder: Path, config: BrokerConfig | None = None) -> AsyncIterator[Pair]:
    async with running_pair(folder, MASTER, config=config) as pair:
        await follows(pair.slave)
        yield pair


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with following_pair(tmp_path) as found:
        yield found


def takes_messages(broker: Broker) -> bool:
    return not broker.is_slave and broker.store.refusal is None


async def test_a_master_hands_over_and_comes_back_while_clients_go_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "RETRY_INTERVAL_MS", 20)
    acknowledged: list[bytes] = []
    consumed: list[bytes] = []
    stop = asyncio.Event()

    async def produce() -> None:
        async with Producer("p", pair.namesrv) as producer:
            while not stop.is_set():
                body = b"%d" % len(acknowledged)
                try:
                    result = await producer.send(Message(TOPIC, body))
                except SendFailed:  # until the route names the master of now
                    await asyncio.sleep(0)
                    continue
                if result.status.name == "SEND_OK":
                    acknowledged.append(body)

    async def handle(message: ReceivedMessage) -> None:
        consumed.append(message.body)

    consumer = PushConsumer("readers", pair.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, orderly=True)
    consumer.subscribe(TOPIC, "*", handle)
    producing = asyncio.create_task(produce())
    async with consumer:
        first, second = pair.master, pair.slave
        for old, new in ((first, second), (second, first), (first, second), (second, first)):
            count = len(acknowledged)
            await until(lambda count=count: len(acknowledged) > count + 20)  # type: ignore[misc]
            state = await handed_over(pair, old, new)
            assert (state.broker_role, state.broker_id) == ("SLAVE", 1)
            assert takes_messages(new)
            assert not takes_messages(old)
            await follows(old)
        stop.set()
        await producing
        await until(lambda: set(consumed) >= set(acknowledged))
    assert first.store.epochs.term == 5
    seen = list(dict.fromkeys(consumed))
    assert [body for body in seen if body in set(acknowledged)] == acknowledged, "in the order of the queue"
    await pair.caught_up()
    logs = [(broker._root / "commitlog" / ("0" * 20)).read_bytes() for broker in (pair.master, pair.slave)]
    assert logs[0] == logs[1]


async def test_a_master_goes_on_if_its_slave_cannot_catch_up(tmp_path: Path) -> None:
    slow = ReplicationConfig(ha_flow_control_enable=True, max_ha_transfer_byte_in_second=1)
    async with running_pair(tmp_path, slow) as pair:
        await follows(pair.slave)
        await pair.send(3)
        flusher, end = pair.master.store.flusher, pair.master.store.max_physical_offset
        flusher.want(end)
        await until(lambda: flusher.flushed == end)
        timers, services = pair.master.timers, pair.master.promotion._services
        refused = await ask(pair, pair.master, RequestCode.HAND_OVER_BROKER, HandOver(pair.slave.address, 50))
        assert f"{pair.slave.address} is not promoted: it was not ready in 50 ms; it has " in (refused.remark or "")
        assert (refused.remark or "").endswith(f"{pair.master.address} takes messages again")
        assert takes_messages(pair.master)
        assert pair.slave.is_slave
        assert pair.master.roles.role.broker_id == 0, "also at the next start"
        assert not any(service.done() for service in pair.master.promotion._services)
        assert all(service.done() for service in services)
        assert pair.master.has_services
        assert pair.master.timers is not timers
        await pair.send(1)
        assert pair.master.store.max_offset(TOPIC, 0) == 4


async def test_a_resting_master_refuses_messages_and_topics_and_serves_what_it_has(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.send(2)
    resting, go_on = asyncio.Event(), asyncio.Event()
    caught_up = pair.master.promotion._caught_up

    async def hold(request: HandOver) -> None:
        resting.set()
        await go_on.wait()
        await caught_up(request)

    monkeypatch.setattr(pair.master.promotion, "_caught_up", hold)
    handing = asyncio.create_task(handed_over(pair, pair.master, pair.slave))
    await resting.wait()
    sent = await ask(pair, pair.master, RequestCode.SEND_MESSAGE_V2)
    assert sent.code == ResponseCode.SERVICE_NOT_AVAILABLE, "which clients try elsewhere"
    assert f"{pair.master.address} hands {NAME} over to {pair.slave.address}" in (sent.remark or "")
    assert (await ask(pair, pair.master, RequestCode.UPDATE_AND_CREATE_TOPIC)).code == ResponseCode.SYSTEM_ERROR
    assert (await pair.ask(pair.master, pull(0))).code == ResponseCode.SUCCESS
    again = await ask(pair, pair.master, RequestCode.HAND_OVER_BROKER, HandOver(pair.slave.address, TIMEOUT_MS))
    assert "changes its role already" in (again.remark or "")
    assert (await pair.ask(pair.master, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))).code == 0
    go_on.set()
    await handing
    assert takes_messages(pair.slave)


async def test_what_a_master_knew_last_is_taken_over(pair: Pair) -> None:
    await pair.send(5)
    pair.master.offsets.commit("readers", TOPIC, 0, 3)
    pair.master.topics.put(TopicConfig("made-last", 3, 3))
    pair.master.groups.put(GroupConfig("told-last"))
    await handed_over(pair, pair.master, pair.slave)
    assert pair.slave.offsets.find_offset("readers", TOPIC, 0) == 3
    assert pair.slave.topics.topic("made-last").read_queues == 3
    assert "told-last" in pair.slave.groups
    assert pair.slave.store.max_offset(TOPIC, 0) == 5


async def test_held_pulls_are_answered_by_a_master_that_steps_down(pair: Pair) -> None:
    await pair.send(1)
    held = pull(1, flags=int(PullFlag.SUSPEND))
    held.fields["suspendTimeoutMillis"] = "60000"
    waiting = asyncio.create_task(pair.caller.call(pair.master.address, held, CALL_MS))
    await until(lambda: len(pair.master.long_polls) == 1)
    await handed_over(pair, pair.master, pair.slave)
    assert (await waiting).code == ResponseCode.PULL_NOT_FOUND


async def test_what_waits_at_a_master_is_delivered_by_the_one_it_hands_over_to(tmp_path: Path) -> None:
    async with following_pair(tmp_path, BrokerConfig(broker_name=NAME, default_topic_queue_nums=1)) as pair:
        async with Producer("p", pair.namesrv) as producer:
            await producer.send(Message(TOPIC, b"delayed", delay_level=1))
            await producer.send(Message(TOPIC, b"timed", delay=timedelta(seconds=1)))
        await handed_over(pair, pair.master, pair.slave)
        await until(lambda: pair.slave.store.max_offset(TOPIC, 0) == 2)
        await follows(pair.master)
        await until(lambda: pair.master.store.max_offset(TOPIC, 0) == 2)
        await handed_over(pair, pair.slave, pair.master)
        assert pair.master.delays.progress()[1] == (1, 1), "none is delivered again"


async def test_a_living_master_is_not_replaced_without_its_consent(pair: Pair) -> None:
    refused = await ask(pair, pair.slave, RequestCode.PROMOTE_BROKER, Promote())
    assert f"follows {pair.master.address}, which lives: it must hand over" in (refused.remark or "")
    pair.slave.replicas.cut_off()
    await until(lambda: not pair.slave.replicas.is_following)
    refused = await ask(pair, pair.slave, RequestCode.PROMOTE_BROKER, Promote())
    assert f"{pair.master.address}, the master of {pair.slave.address}, lives" in (refused.remark or "")
    assert pair.slave.is_slave


async def test_a_slave_takes_over_from_a_dead_master_with_a_term_above_all(pair: Pair) -> None:
    async with Producer("p", pair.namesrv) as producer:
        for number in range(20):
            assert (await producer.send(Message(TOPIC, b"%d" % number))).status.name == "SEND_OK"
        pair.slave.registration.seen_term = 6  # as a name server told
        cut_off_broker(pair.master)
        await until(lambda: not pair.slave.replicas.is_following)
        reply = await ask(pair, pair.slave, RequestCode.PROMOTE_BROKER, Promote())
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        state = RoleReply.decode(reply)
        assert (state.broker_role, state.broker_id, state.term) == ("SYNC_MASTER", 0, 7)
        assert pair.slave.topics.find_topic(TOPIC) is not None, "made again, for its master had not told of it"
        assert pair.slave.store.max_offset(TOPIC, 0) == 20
        again = await ask(pair, pair.slave, RequestCode.PROMOTE_BROKER, Promote())
        assert RoleReply.decode(again).term == 7, "asked twice, it is promoted once"


async def test_a_topic_and_a_group_that_were_just_made_outlive_their_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slave hears of them when they change, not with its next round: a topic made again from its queues would have
    as many as had messages."""
    monkeypatch.setattr(metadata_sync, "FIRST_AFTER_MS", 0)
    monkeypatch.setattr(metadata_sync, "PERIOD_MS", 600_000)
    async with following_pair(tmp_path) as pair:
        await until(lambda: pair.slave.metadata_sync.rounds == 1 and pair.master.topics.watchers == 1)
        pair.master.topics.put(TopicConfig("new", 7, 7))
        pair.master.groups.put(GroupConfig("readers", retry_max_times=3))
        await until(lambda: pair.slave.groups.find_known("readers") is not None)
        await until(lambda: pair.slave.topics.find_topic("new") is not None)
        cut_off_broker(pair.master)
        forced = await ask(pair, pair.slave, RequestCode.PROMOTE_BROKER, Promote(is_force=True))
        assert forced.code == ResponseCode.SUCCESS, forced.remark
        assert pair.slave.topics.find_topic("new") == TopicConfig("new", 7, 7)
        found = pair.slave.groups.find_known("readers")
        assert found is not None
        assert found.retry_max_times == 3


async def test_a_stale_master_follows_the_one_that_was_promoted_by_force(pair: Pair) -> None:
    await pair.send(2)
    forced = await ask(pair, pair.slave, RequestCode.PROMOTE_BROKER, Promote(is_force=True))
    assert forced.code == ResponseCode.SUCCESS, forced.remark
    pair.master.store.fence(None)
    host = pair.master.packed_address
    pair.master.store.append(StoreMessage(TOPIC, 0, b"only here", "", 0, 0, 0, host, host))
    state = await handed_over(pair, pair.master, pair.slave)
    assert (state.broker_role, state.broker_id) == ("SLAVE", 1)
    await follows(pair.master)
    assert pair.master.store.max_offset(TOPIC, 0) == 2
    assert list((pair.master._root / "commitlog.bad").iterdir()), "what only it had is kept aside"
    await pair.send(1)
    await pair.caught_up()


async def test_a_stale_master_that_has_nothing_of_its_own_steps_down_by_itself(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stepping_down, "LOOK_MS", 20)
    looking = asyncio.create_task(stepping_down.SteppingDown(pair.master, pair.caller).run())
    try:
        await pair.send(2)
        forced = await ask(pair, pair.slave, RequestCode.PROMOTE_BROKER, Promote(is_force=True))
        assert forced.code == ResponseCode.SUCCESS, forced.remark
        pair.master.registration.topics_changed()
        await until(lambda: pair.master.is_slave)
        await follows(pair.master)
    finally:
        looking.cancel()
    await pair.send(1)
    await pair.caught_up()
    assert not (pair.master._root / "commitlog.bad").exists(), "nothing was cut"
    assert any("stale master steps down: broker=broker-a" in line for line in caplog.messages)


async def test_a_stale_master_with_messages_of_its_own_waits_for_an_operator(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stepping_down, "LOOK_MS", 20)
    host = pair.master.packed_address
    await pair.send(2)
    await pair.caught_up()
    pair.master.replicas.cut_off()
    pair.master.store.append(StoreMessage(TOPIC, 0, b"only here", "", 0, 0, 0, host, host))
    looking = asyncio.create_task(stepping_down.SteppingDown(pair.master, pair.caller).run())
    try:
        forced = await ask(pair, pair.slave, RequestCode.PROMOTE_BROKER, Promote(is_force=True))
        assert forced.code == ResponseCode.SUCCESS, forced.remark
        pair.master.registration.topics_changed()
        await until(lambda: any("bytes that" in line and "admin demote" in line for line in caplog.messages))
        assert not pair.master.is_slave
        assert not takes_messages(pair.master)
    finally:
        looking.cancel()


async def test_roles_given_at_run_time_count_at_the_next_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with following_pair(tmp_path) as pair:
        await pair.send(3)
        await handed_over(pair, pair.master, pair.slave)
        await follows(pair.master)
    config = BrokerConfig(broker_name=NAME, default_topic_queue_nums=1)
    async with running_name_server() as name_server:
        namesrv = name_server.address
        async with running_broker(tmp_path / "master", namesrv, config, replication=MASTER) as old:
            assert (
                "this broker is slave 1, as it became while it ran, and not the master, as it is configured"
                in caplog.text
            )
            assert old.is_slave, "though no name server knows another master"
            assert not takes_messages(old)
            as_slave = dataclasses.replace(config, broker_id=1)
            async with running_broker(tmp_path / "slave", namesrv, as_slave, replication=SLAVE) as new:
                assert takes_messages(new)
                assert new.store.epochs.term == 2, "it goes on with its term"
                again = Pair(namesrv, new, old, Caller())
                old.registration.topics_changed()  # to hear of its master now, and not within five seconds
                await follows(old)
                await again.send(1)
                await again.caught_up()
                assert [one.store.max_offset(TOPIC, 0) for one in (old, new)] == [4, 4]
                await again.caller.close()


# --- when it is not known how the promotion ended


Answer = Callable[[], Awaitable[RoleReply]]


def script(
    monkeypatch: pytest.MonkeyPatch,
    broker: Broker,
    rules: Mapping[RequestCode, Callable[[Answer], Awaitable[RoleReply]]],
) -> None:
    """Let what a broker asks about roles go wrong, by its code."""
    asks = broker.promotion._ask
    monkeypatch.setattr(promotion, "ASK_AGAIN_MS", 1)

    async def ask_or_fail(address: str, code: RequestCode, header: Header | None = None, ms: int = 3_000) -> RoleReply:
        async def answer() -> RoleReply:
            return await asks(address, code, header, ms)

        return await rules[code](answer) if code in rules else await answer()

    monkeypatch.setattr(broker.promotion, "_ask", ask_or_fail)


async def lose_answer(answer: Answer) -> RoleReply:
    await answer()
    raise RequestError("the answer is lost")


async def lose_request(_answer: Answer) -> RoleReply:
    raise RequestError("the request is lost")


async def test_a_master_steps_down_though_the_answer_of_the_promoted_one_is_lost(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, pair.master, {RequestCode.PROMOTE_BROKER: lose_answer})
    await handed_over(pair, pair.master, pair.slave)
    assert takes_messages(pair.slave)
    assert pair.master.is_slave


async def test_a_master_goes_on_only_when_the_slave_has_said_that_it_will_not_lead(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    delayed: list[Answer] = []

    async def delay(answer: Answer) -> RoleReply:
        delayed.append(answer)
        raise RequestError("the connection is lost")

    async def withdraw(answer: Answer) -> RoleReply:
        nonlocal tries
        tries += 1
        assert not takes_messages(pair.master), "nobody knows yet"
        return await (lose_request if tries < 5 else answer_now)(answer)

    async def answer_now(answer: Answer) -> RoleReply:
        return await answer()

    script(
        monkeypatch,
        pair.master,
        {RequestCode.PROMOTE_BROKER: delay, RequestCode.WITHDRAW_PROMOTION: withdraw},
    )
    refused = await ask(pair, pair.master, RequestCode.HAND_OVER_BROKER, HandOver(pair.slave.address, TIMEOUT_MS))
    assert f"{pair.slave.address} is not promoted: the connection is lost" in (refused.remark or "")
    assert takes_messages(pair.master)
    with pytest.raises(RequestError, match="stays a slave: the promotion was withdrawn"):
        await delayed[0]()  # it comes late
    assert pair.slave.is_slave
    await follows(pair.slave)
    await pair.send(1)


async def test_a_master_that_ends_while_nobody_knows_starts_as_a_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following_pair(tmp_path) as pair:
        lost = {RequestCode.PROMOTE_BROKER: lose_request, RequestCode.WITHDRAW_PROMOTION: lose_request}
        script(monkeypatch, pair.master, lost)
        handing = asyncio.create_task(
            ask(pair, pair.master, RequestCode.HAND_OVER_BROKER, HandOver(pair.slave.address, TIMEOUT_MS))
        )
        await until(lambda: pair.master.roles.role.is_slave)
        root, config, replication = pair.master._root, pair.master.config, pair.master.replication
        assert Roles(root / "config", role_of(config, replication)).role == (BrokerRole.SLAVE, 1)
        handing.cancel()


@pytest.mark.parametrize("who", ["master", "slave"])
async def test_a_disk_that_takes_no_note_leaves_the_roles_as_they_are(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    def refuse(_role: Role, _term: int) -> None:
        raise OSError(28, "No space left on device")

    broker: Broker = getattr(pair, who)
    monkeypatch.setattr(broker.roles, "give", refuse)
    refused = await ask(pair, pair.master, RequestCode.HAND_OVER_BROKER, HandOver(pair.slave.address, TIMEOUT_MS))
    assert "the disk does not take the note" in (refused.remark or "")
    assert takes_messages(pair.master)
    assert pair.slave.is_slave
    await follows(pair.slave)
    await pair.send(1)


async def test_a_slave_that_cannot_serve_slaves_stays_one(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        slave = dataclasses.replace(SLAVE, ha_listen_port=taken.getsockname()[1])
        async with running_pair(tmp_path, MASTER, slave) as pair:
            await follows(pair.slave)
            refused = await ask(
                pair, pair.master, RequestCode.HAND_OVER_BROKER, HandOver(pair.slave.address, TIMEOUT_MS)
            )
            assert f"{pair.slave.address} cannot serve slaves: cannot listen on" in (refused.remark or "")
            assert takes_messages(pair.master)
            await follows(pair.slave)
            await pair.send(1)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (HandOver("127.0.0.1:1", 0), "timeoutMillis must be 1 to 600000"),
        (HandOver("127.0.0.1:1", 10, "SLAVE"), "write SYNC_MASTER or ASYNC_MASTER"),
        (HandOver("nowhere", 10), "nowhere does not answer"),
    ],
)
async def test_nonsense_is_refused_and_changes_nothing(pair: Pair, header: HandOver, problem: str) -> None:
    refused = await ask(pair, pair.master, RequestCode.HAND_OVER_BROKER, header)
    assert problem in (refused.remark or "")
    assert takes_messages(pair.master)
    assert (await ask(pair, pair.slave, RequestCode.HAND_OVER_BROKER, header)).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("heir", "problem"),
    [
        (RoleReply("other", 1, "SLAVE", 1, 0, "h:1"), "is broker 1 of other, and no slave of"),
        (RoleReply(NAME, -1, "SLAVE", 1, 0, "h:1"), "is broker -1 of"),
        (RoleReply(NAME, 2, "SLAVE", 1, 0, "h:1", master_addr="m:1", is_following=True), "follows m:1, so it has not"),
        (RoleReply(NAME, 2, "SLAVE", 1, 0, "h:1"), "follows no master now"),
        (RoleReply(NAME, 0, "SYNC_MASTER", 1, 0, "h:1"), "says that it is the master of"),
    ],
)
async def test_a_master_hands_over_to_its_own_slave_only(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, heir: RoleReply, problem: str
) -> None:
    async def claim(_answer: Answer) -> RoleReply:
        return heir

    script(monkeypatch, pair.master, {RequestCode.GET_BROKER_ROLE: claim})
    refused = await ask(pair, pair.master, RequestCode.HAND_OVER_BROKER, HandOver("h:1", TIMEOUT_MS))
    assert problem in (refused.remark or "")
    assert takes_messages(pair.master)


async def test_a_withdrawn_promotion_is_not_done_later(pair: Pair) -> None:
    state = RoleReply.decode(await ask(pair, pair.slave, RequestCode.WITHDRAW_PROMOTION, WithdrawPromotion("t")))
    assert state.broker_role == "SLAVE"
    refused = await ask(
        pair, pair.slave, RequestCode.PROMOTE_BROKER, Promote(token="t", master_addr=pair.master.address)
    )
    assert "the promotion was withdrawn" in (refused.remark or "")
    await follows(pair.slave)

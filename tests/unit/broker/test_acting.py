"""Who acts for a master, where its messages go, and what a master takes back: decisions, without sockets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cosmodrome.broker.acting import acts, find_members
from cosmodrome.broker.consumer_offsets import ConsumerOffsets
from cosmodrome.broker.escape import Escapes, Target, half_to_send, others, targets, to_send
from cosmodrome.broker.pop.ledger import AcksOfActing
from cosmodrome.broker.pop.messages import REVIVE_GROUP, is_ack
from cosmodrome.broker.pre_online import known_to
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import ConfigError, ConnectionFailed, ServiceNotAvailable
from cosmodrome.model import BrokerData, QueueData, Route
from cosmodrome.net.caller import Caller
from cosmodrome.store.message import StoreMessage
from cosmodrome.testing import FakeClock
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import Ack, CheckPoint, ClusterInfo, ConsumerOffsetsBody, MemberGroup, encode_route
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import SysFlag, pack_host
from cosmodrome.wire.requests import SendMessage
from tests.unit.store.kit import message, open_store

HOST = pack_host("127.0.0.1", 1)


# --- who acts


@pytest.mark.parametrize(
    ("own_id", "members", "is_following", "rests_until_ms", "expected"),
    [
        (1, {1: "a"}, False, 0, True),
        (1, {}, False, 0, True),  # forgotten by the name server, as the master is
        (1, {0: "m", 1: "a"}, False, 0, False),
        (2, {1: "a", 2: "b"}, False, 0, False),
        (2, {2: "b", 3: "c"}, False, 0, True),
        (1, {1: "a"}, True, 0, False),  # the master sends its log: it lives
        (1, {1: "a"}, False, 11, False),  # it has made way for a master that has yet to register
        (1, {1: "a"}, False, 10, True),
    ],
)
def test_the_smallest_living_slave_acts(
    own_id: int, members: dict[int, str], is_following: bool, rests_until_ms: int, expected: bool
) -> None:
    assert acts(own_id, members, is_following=is_following, now_ms=10, rests_until_ms=rests_until_ms) is expected


class Answers(Caller):
    """A caller whose peers are functions."""

    def __init__(self, peers: dict[str, Callable[[Command], Command]]) -> None:
        super().__init__()
        self.peers = peers
        self.asked: list[tuple[str, int]] = []

    async def call(
        self, address: str, command: Command, timeout_ms: float, connect_timeout_ms: float | None = None
    ) -> Command:
        self.asked.append((address, command.code))
        if address not in self.peers:
            raise ConnectionFailed(address, "nobody is there")
        return self.peers[address](command)


def member_group(members: dict[int, str]) -> Callable[[Command], Command]:
    return lambda command: command.reply(body=MemberGroup("DefaultCluster", "a", members).encode())


def apache_4(members: dict[int, str]) -> Callable[[Command], Command]:
    def answer(command: Command) -> Command:
        if command.code == RequestCode.GET_BROKER_MEMBER_GROUP:
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        info = ClusterInfo({"a": BrokerData("DefaultCluster", "a", members)}, {"DefaultCluster": ("a",)})
        return command.reply(body=info.encode())

    return answer


async def test_who_is_known_to_any_name_server_counts() -> None:
    config = BrokerConfig(broker_name="a", namesrv_addr="n1:1;n2:1;n3:1;n4:1")
    refuses = lambda command: command.reply(ResponseCode.SYSTEM_ERROR)  # noqa: E731
    caller = Answers({"n1:1": member_group({1: "s"}), "n2:1": apache_4({0: "m", 1: "s"}), "n4:1": refuses})
    assert await find_members(caller, config) == {0: "m", 1: "s"}
    assert await find_members(Answers({"n4:1": refuses}), config) is None


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"enable_remote_escape": True}, "enableRemoteEscape"),
        ({"enable_slave_acting_master": True, "broker_not_active_timeout_millis": 900}, "brokerNotActiveTimeoutMillis"),
        ({"broker_heartbeat_interval": 0}, "brokerHeartbeatInterval"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, bool | int], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        dataclasses.replace(BrokerConfig(broker_name="a"), **settings)  # type: ignore[arg-type]


# --- where messages go


def route(**perms: int) -> Route:
    return Route(
        tuple(QueueData(name, 2, 2, perm) for name, perm in perms.items()),
        tuple(BrokerData("C", name, {0: f"{name}:1"}) for name in perms),
    )


def test_targets_are_masters_of_other_names_that_take_messages() -> None:
    found = route(c=6, a=6, b=4, d=2)
    slaves_only = BrokerData("C", "e", {1: "e:1"})
    found = Route((*found.queues, QueueData("e", 2, 2, 6)), (*found.brokers, slaves_only))
    assert targets(found, "a") == [Target("c", "c:1", 2), Target("d", "d:1", 2)]
    info = ClusterInfo({"a": found.brokers[1], "b": found.brokers[2], "e": slaves_only}, {"C": ("a", "b", "e")})
    assert others(info, "C", "a") == [Target("b", "b:1", 1)]
    assert others(info, "D", "a") == []


def stored(**properties: str) -> StoreMessage:
    sys_flag = SysFlag.COMPRESSED | SysFlag.COMMIT | SysFlag.BORN_V6
    return StoreMessage("orders", 0, b"x", props.encode(properties), 3, sys_flag, 5, HOST, HOST, 2)


def test_a_delivered_message_asks_for_no_delay_and_no_transaction_again() -> None:
    sent = to_send(stored(DELAY="3", TIMER_DELIVER_MS="9", TRAN_MSG="true", KEYS="k", REAL_TOPIC="orders"))
    assert props.decode(sent.properties) == {"KEYS": "k", "REAL_TOPIC": "orders"}
    assert sent.sys_flag == SysFlag.COMPRESSED
    assert (sent.flag, sent.born_timestamp, sent.reconsume_times) == (3, 5, 2)


def test_a_half_message_begins_its_transaction_anew() -> None:
    half = stored(
        TRAN_MSG="true", PGROUP="p", REAL_TOPIC="orders", REAL_QID="0", TRANSACTION_CHECK_TIMES="4", DELAY="2"
    )
    sent = half_to_send(dataclasses.replace(half, topic="RMQ_SYS_TRANS_HALF_TOPIC"), "orders")
    assert sent.topic == "orders"
    assert props.decode(sent.properties) == {"TRAN_MSG": "true", "PGROUP": "p", "DELAY": "2"}
    assert sent.sys_flag == SysFlag.COMPRESSED | SysFlag.PREPARED


def replies(code: ResponseCode, sent: list[Command]) -> Callable[[Command], Command]:
    def answer(command: Command) -> Command:
        sent.append(command)
        return command.reply(code)

    return answer


def escaping(answers: Sequence[ResponseCode], sent: list[Command]) -> tuple[Escapes, Answers]:
    config = BrokerConfig(broker_name="a", namesrv_addr="n:1")
    names = [f"b{number}" for number in range(len(answers))]
    table = encode_route(route(**dict.fromkeys(names, 6)), quoted_keys=True)
    caller = Answers({"n:1": lambda command: command.reply(body=table)})
    caller.peers |= {f"{name}:1": replies(code, sent) for name, code in zip(names, answers, strict=True)}
    return Escapes(config, caller, FakeClock()), caller


@pytest.mark.parametrize(
    ("answers", "is_stored"),
    [
        ([ResponseCode.SUCCESS], True),
        ([ResponseCode.SLAVE_NOT_AVAILABLE], True),
        ([ResponseCode.FLUSH_SLAVE_TIMEOUT], True),
        ([ResponseCode.FLUSH_DISK_TIMEOUT], False),
        ([ResponseCode.NO_PERMISSION], False),
        ([ResponseCode.MESSAGE_ILLEGAL], False),  # another broker's limit is no reason to leave the message out
        ([ResponseCode.SYSTEM_BUSY, ResponseCode.SUCCESS], True),
    ],
)
async def test_a_message_counts_as_delivered_once_another_master_has_it(
    answers: list[ResponseCode], is_stored: bool
) -> None:
    sent: list[Command] = []
    escapes, _ = escaping(answers, sent)
    if is_stored:
        await escapes.put(stored(DELAY="3"))
    else:
        with pytest.raises(ServiceNotAvailable, match="no other master took a message of orders"):
            await escapes.put(stored(DELAY="3"))
    assert escapes.sent == is_stored
    assert len(sent) == len(answers)
    header = SendMessage.decode(sent[-1])
    assert (header.topic, header.properties, header.reconsume_times) == ("orders", "", 2)
    assert header.max_reconsume_times == 3  # no dead letter yet, whatever the other broker's limit


async def test_without_another_master_a_message_waits_and_retries_go_to_any() -> None:
    config = BrokerConfig(broker_name="a", namesrv_addr="n:1")
    info = ClusterInfo({"b": BrokerData("DefaultCluster", "b", {0: "b:1"})}, {"DefaultCluster": ("a", "b")})
    sent: list[Command] = []

    def names(command: Command) -> Command:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return command.reply(body=info.encode())
        return command.reply(ResponseCode.TOPIC_NOT_EXIST)

    escapes = Escapes(config, Answers({"n:1": names, "b:1": replies(ResponseCode.SUCCESS, sent)}), FakeClock())
    with pytest.raises(ServiceNotAvailable, match="no other master of the cluster takes messages of orders"):
        await escapes.put(stored())
    with pytest.raises(ServiceNotAvailable, match="takes messages of %RETRY%g_orders"):
        await escapes.put(dataclasses.replace(stored(), topic="%RETRY%g_orders"), "orders")
    await escapes.put(dataclasses.replace(stored(), topic="%RETRY%g"))
    assert [SendMessage.decode(command).topic for command in sent] == ["%RETRY%g"]


async def test_routes_are_asked_for_again_after_a_while_and_after_a_failure() -> None:
    sent: list[Command] = []
    escapes, caller = escaping([ResponseCode.SUCCESS], sent)
    await escapes.put(stored())
    await escapes.put(stored())
    assert [address for address, _ in caller.asked] == ["n:1", "b0:1", "b0:1"]
    caller.peers["b0:1"] = replies(ResponseCode.SYSTEM_ERROR, sent)
    for _ in range(2):
        with pytest.raises(ServiceNotAvailable):
            await escapes.put(stored())
    assert [address for address, _ in caller.asked][3:] == ["b0:1", "n:1", "b0:1"]


# --- what a master takes back


def test_an_offset_is_known_no_further_than_both_logs_are_the_same(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    ends = [store.append(message("orders", 0, b"%d" % number)).end for number in range(5)]
    for both in range(5):
        assert known_to(store, ends[both], "orders", 0, 9) == both + 1
        assert known_to(store, ends[both] - 1, "orders", 0, 9) == both + 1  # the record begins before that
    assert known_to(store, 0, "orders", 0, 9) == 0
    assert known_to(store, ends[-1], "orders", 0, 2) == 2
    assert known_to(store, ends[-1], "nowhere", 0, 2) == 0
    store.close()


def test_consumer_offsets_are_taken_back_as_far_as_they_are_known_and_never_set_back(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path / "consumerOffset.json", FakeClock())
    for topic, offset in (("ahead", 5), ("behind", 5)):
        offsets.commit("g", topic, 0, offset)
    table = {"ahead@g": {0: 7}, "behind@g": {0: 3}, "beyond@g": {0: 99}, f"revive@{REVIVE_GROUP}": {0: 99}}
    for _ in offsets.taking_back(ConsumerOffsetsBody(offsets.data_version, table), lambda t, q, o: min(o, 10)):
        pass
    assert [offsets.find_offset("g", topic, 0) for topic in ("ahead", "behind", "beyond")] == [7, 5, 10]
    # That is the last decided record, not the next one: of ten, the tenth.
    assert offsets.find_offset(REVIVE_GROUP, "revive", 0) == 9


def test_after_a_cut_no_group_is_beyond_its_queue(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path / "consumerOffset.json", FakeClock())
    offsets.commit("g", "orders", 0, 12)
    offsets.commit("g", "orders", 1, 3)
    offsets.fit(lambda topic, queue_id: 10)
    assert [offsets.find_offset("g", "orders", queue_id) for queue_id in (0, 1)] == [10, 3]


def test_acks_in_the_wheel_are_remembered_by_their_checkpoint() -> None:
    acks = AcksOfActing(lambda: True)
    acks.add(Ack("orders", "g", 0, 4, (5,), 1_000, "a"))
    acks.add(Ack("orders", "g", 0, 4, (4, 6), 1_000, "a", is_batch=True))
    assert acks.of(CheckPoint("orders", "g", 0, 4, (4, 5, 6, 7), 1_000, 60_000, "a")) == {4, 5, 6}
    assert acks.of(CheckPoint("orders", "g", 0, 4, (4,), 1_001, 60_000, "a")) == set()


@pytest.mark.parametrize(
    ("topic", "tag", "expected"),
    [
        ("rmq_sys_REVIVE_LOG_C", "ack", True),
        ("rmq_sys_REVIVE_LOG_C", "bAck", True),
        ("rmq_sys_REVIVE_LOG_C", "ck", False),
        ("orders", "ack", False),
    ],
)
def test_acks_are_put_also_if_a_slave_has_passed_them(topic: str, tag: str, expected: bool) -> None:
    """A checkpoint that the slave had no time to decide still needs them."""
    assert is_ack(props.encode({"REAL_TOPIC": topic, "TAGS": tag})) is expected

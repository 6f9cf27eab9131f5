"""Whatever numbers a request holds, the broker starts again: nothing goes into a file that no start could read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest

from cosmodrome.broker.answer import PROCESSORS
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.model import TopicConfig
from cosmodrome.wire import requests
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header, camel_case
from cosmodrome.wire.pop import Handle
from cosmodrome.wire.requests import ChangeInvisibleTime, CreateTopic, PopMessage, PopReply
from tests.system.wired import CALL_TIMEOUT_MS, Wired, wired

TOPIC, GROUP = "orders", "g"
CONFIG = BrokerConfig(broker_name="broker-a", recall_message_enable=True)
EXTREMES = (-1, 2**31 - 1, 2**31, -(2**31) - 1, 2**40, 2**63 - 1, -(2**63))
# What no request of a test may do: wait for long, or take the topic away.
PLAIN = {"suspendTimeoutMillis": "1", "pollTime": "1", "bornTime": "0", "maxMsgNums": "8", "queueId": "0", "e": "0"}
LEFT_OUT = {RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.CLEAN_UNUSED_TOPIC}


def header_classes() -> list[type[Header]]:
    found = [one for one in vars(requests).values() if isinstance(one, type) and issubclass(one, Header)]
    return [one for one in found if dataclasses.is_dataclass(one)]


def wire_names(cls: type[Header]) -> Iterator[tuple[str, bool]]:
    """Every name of a field, and whether it is a number."""
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        is_number = "int" in str(hints[field.name])
        for name in (field.metadata.get("name") or camel_case(field.name), field.metadata.get("short")):
            if name:
                yield name, is_number


NUMBERS = sorted({name for cls in header_classes() for name, is_number in wire_names(cls) if is_number})
TEXTS = sorted({name for cls in header_classes() for name, is_number in wire_names(cls) if not is_number})


def fields() -> dict[str, str]:
    """Every field that any request has, as a sound one."""
    texts = {name: TOPIC if name.lower().endswith("topic") or name == "b" else GROUP for name in TEXTS}
    handle = Handle(0, 1, 1_000, 0, "0", "broker-a", 0, 0).encode()
    return {
        **dict.fromkeys(NUMBERS, "0"),
        **texts,
        "extraInfo": handle,
        "perm": "6",
        "order": "true",
        "attributes": "",
        **PLAIN,
    }


def set_aside(folder: Path) -> list[Path]:
    return list(folder.rglob("*.bad*"))


@pytest.mark.parametrize("number", EXTREMES)
async def test_any_number_in_any_request_is_survived_by_the_next_start(tmp_path: Path, number: int) -> None:
    async with wired(tmp_path, CONFIG) as broker:
        broker.broker.topics.put(TopicConfig(TOPIC, 1, 1))
        await broker.send(TOPIC, b"b")
        for code in sorted(set(PROCESSORS) - LEFT_OUT):
            for name in NUMBERS:
                made = {"topic": f"t-{name}"} if code == RequestCode.UPDATE_AND_CREATE_TOPIC else {}
                request = Command.request(code, None, b"{}")
                request.fields.update({**fields(), **made, name: str(number)})
                reply = await broker.caller.call(broker.broker.address, request, CALL_TIMEOUT_MS)
                assert "internal error" not in (reply.remark or ""), (code, name)
    async with wired(tmp_path, CONFIG) as broker:
        assert broker.broker.topics.find_topic(TOPIC) is not None
        assert set_aside(tmp_path) == []


async def test_a_topic_that_no_start_could_read_again_is_refused(tmp_path: Path) -> None:
    """Its flag has 32 bits in the table; two changes later the backup would have had it, too."""
    async with wired(tmp_path, CONFIG) as broker:
        for name in ("a", "b"):
            request = CreateTopic(name, 1, 1, 6, topic_sys_flag=2**40)
            reply = await broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, request)
            assert (reply.code, "topicSysFlag" in (reply.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
            assert broker.broker.topics.find_topic(name) is None


async def test_a_group_that_no_start_could_read_again_is_refused(tmp_path: Path) -> None:
    """What Apache calls its retry policy may be any JSON; in the table it lies three levels deeper."""
    async with wired(tmp_path, CONFIG) as broker:
        for name, depth, is_kept in (("a", 62, False), ("b", 61, False), ("c", 50, True)):
            policy = "[" * depth + "]" * depth
            body = f'{{"groupName":"{name}","groupRetryPolicy":{{"x":{policy}}}}}'
            reply = await broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body.encode())
            assert reply.code == (ResponseCode.SUCCESS if is_kept else ResponseCode.INVALID_PARAMETER)
            assert (name in broker.broker.groups) == is_kept
    async with wired(tmp_path, CONFIG) as broker:
        assert "c" in broker.broker.groups


async def test_no_message_popped_in_order_is_out_for_longer_than_a_file_can_say(tmp_path: Path) -> None:
    async with wired(tmp_path, CONFIG) as broker:
        await broker.send(TOPIC, b"b")
        pop = PopMessage(GROUP, TOPIC, 0, 1, 60_000, 0, order=True)
        far = dataclasses.replace(pop, invisible_time=2**63 - 1)
        assert (await broker.call(RequestCode.POP_MESSAGE, far)).code == ResponseCode.MESSAGE_ILLEGAL
        popped = PopReply.decode(await broker.ask(RequestCode.POP_MESSAGE, pop))
        handle = Handle(0, popped.pop_time, 60_000, popped.revive_qid, "0", "broker-a", 0, 0).encode()
        longer = ChangeInvisibleTime(GROUP, TOPIC, 0, handle, 0, 2**63 - 1)
        reply = await broker.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, longer)
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    async with wired(tmp_path, CONFIG) as broker:
        assert set_aside(tmp_path) == []
        assert broker.broker.pops.orders.blocked_until(TOPIC, GROUP, 0, None, popped.pop_time) is not None


async def test_only_groups_that_may_be_there_ack(tmp_path: Path) -> None:
    """Each name is counted in the statistics, and in order also in the table of offsets."""
    async with wired(tmp_path, dataclasses.replace(CONFIG, max_subscription_groups=20)) as broker:
        await broker.send(TOPIC, b"b")
        assert {await ack(broker, f"group-{number}") for number in range(100)} == {
            ResponseCode.SUCCESS,
            ResponseCode.INVALID_PARAMETER,
        }
        assert await ack(broker, "a@b\n") == ResponseCode.INVALID_PARAMETER
        assert len(list(broker.broker.groups)) == 20


async def ack(broker: Wired, group: str) -> int:
    handle = Handle(0, 1, 1_000, 999, "0", "broker-a", 0, 0).encode()
    return (await broker.call(RequestCode.ACK_MESSAGE, requests.AckMessage(group, TOPIC, 0, handle, 0))).code

"""Topics and groups made, changed and deleted over the wire: what is not kept is refused, the rest may be repeated."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import StoreError
from cosmodrome.model import GroupConfig, TopicConfig
from cosmodrome.wire.bodies import TopicConfigBody
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import CreateTopic, DeleteGroup, TopicHeader
from tests.system.cluster import SMALL_STORE, running_broker
from tests.system.wired import Wired, wired

TOPIC = "orders"


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[Wired]:
    async with wired(tmp_path, BrokerConfig(broker_name="broker-a")) as there:
        yield there


async def create(client: Wired, attributes: str | None, topic: str = TOPIC) -> Command:
    request = CreateTopic(topic, 1, 1, 6, "TBW102", attributes=attributes)
    return await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, request)


async def attributes_of(client: Wired) -> dict[str, str]:
    reply = await client.ask(RequestCode.GET_TOPIC_CONFIG, TopicHeader(TOPIC))
    return dict(TopicConfigBody.decode(bytes(reply.body)).topic.attributes)


# --- attributes of topics


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ("+queue.type=BatchCQ", "SimpleCQ"),
        ("+cleanup.policy=COMPACTION", "DELETE"),
        ("+message.type=nonsense", "TRANSACTION"),
        ("+reserve.time=3600000", "fileReservedTime"),
        ("+reserve.time=" + "9" * 5_000, "fileReservedTime"),
        ("+nonsense=1", "'nonsense'"),
        ("+message.type=FIFO,+nonsense=1", "'nonsense'"),
        ("+message.type=FIFO,+message.type=DELAY", "twice"),
        ("-message.type", "message.type"),
        ("message.type=FIFO", "neither"),
        ("+message.type", "neither"),
        ("-message.type=FIFO", "neither"),
        ("+=FIFO", "neither"),
        ("+message-type=FIFO", "neither"),
        ("+", "neither"),
    ],
)
async def test_an_attribute_that_is_not_kept_is_refused(client: Wired, changes: str, word: str, is_known: bool) -> None:
    if is_known:
        client.broker.topics.put(TopicConfig(TOPIC, 3, 3, attributes={"queue.type": "SimpleCQ"}))
    before = client.broker.topics.find_topic(TOPIC)
    reply = await create(client, changes)
    assert (reply.code, word in (reply.remark or "")) == (ResponseCode.INVALID_PARAMETER, True), reply
    assert client.broker.topics.find_topic(TOPIC) == before


async def test_attributes_are_set_kept_and_removed(client: Wired) -> None:
    whole = "+message.type=FIFO,+queue.type=SimpleCQ,+cleanup.policy=DELETE,+reserve.time=-1"
    steps = [
        (whole, {"message.type": "FIFO", "queue.type": "SimpleCQ", "cleanup.policy": "DELETE", "reserve.time": "-1"}),
        (whole, {"message.type": "FIFO", "queue.type": "SimpleCQ", "cleanup.policy": "DELETE", "reserve.time": "-1"}),
        ("-reserve.time", {"message.type": "FIFO", "queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}),
        ("+message.type=DELAY", {"message.type": "DELAY", "queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}),
        (None, {"message.type": "DELAY", "queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}),
    ]
    for changes, wanted in steps:
        assert (await create(client, changes)).code == ResponseCode.SUCCESS
        assert await attributes_of(client) == wanted
    for changes, word in (("-queue.type", "for good"), ("-reserve.time", "no attribute")):
        reply = await create(client, changes)
        assert (reply.code, word in (reply.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)


async def save_topic(folder: Path, attributes: dict[str, str]) -> Path:
    """The table of a broker that obeyed these attributes."""
    async with running_broker(folder, "", BrokerConfig(broker_name="broker-a"), SMALL_STORE) as broker:
        broker.topics.put(TopicConfig(TOPIC, 1, 1, attributes=attributes))
    path = folder / "config" / "topics.json"
    assert json.loads(path.read_bytes())["topicConfigTable"][TOPIC]["attributes"] == attributes
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "attributes", [{"queue.type": "BatchCQ"}, {"cleanup.policy": "COMPACTION"}, {"lite.topic": "true"}]
)
async def test_a_store_with_topics_of_a_kind_that_is_not_kept_is_not_opened(
    tmp_path: Path, attributes: dict[str, str]
) -> None:
    path = await save_topic(tmp_path, attributes)
    before = files_of(tmp_path)
    with pytest.raises(StoreError) as refusal:
        async with running_broker(tmp_path, "", BrokerConfig(broker_name="broker-a"), SMALL_STORE):
            pass
    for words in (str(path), f"topic {TOPIC}", next(iter(attributes)), "Delete the topics with"):
        assert words in str(refusal.value)
    assert files_of(tmp_path) == before


async def test_a_store_with_an_attribute_that_harms_nothing_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await save_topic(tmp_path, {"message.type": "nonsense", "reserve.time": "3600000"})
    async with wired(tmp_path, BrokerConfig(broker_name="broker-a")) as client:
        assert await attributes_of(client) == {"message.type": "nonsense", "reserve.time": "3600000"}
        client.broker.topics.mark_orderly([TOPIC])
        assert (await create(client, "-message.type,+reserve.time=-1")).code == ResponseCode.SUCCESS
        assert await attributes_of(client) == {"reserve.time": "-1"}
    assert caplog.text.count("topic attribute without effect: topic=orders") == 2


# --- static topics


async def test_a_static_topic_is_refused_in_words(client: Wired) -> None:
    reply = await client.call(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, CreateTopic(TOPIC, 1, 1, 6, "TBW102"), b"{}")
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert reply.remark is not None
    for words in ("513 not supported", "static topics", "updateTopic"):
        assert words in reply.remark


@pytest.mark.parametrize("table", [b'{"topicQueueMappingInfoMap":{}}', b"", b"nonsense", None])
async def test_a_store_without_static_topics_is_opened(tmp_path: Path, table: bytes | None) -> None:
    path = tmp_path / "config" / "topicQueueMapping.json"
    path.parent.mkdir()
    if table is not None:
        path.write_bytes(table)
    async with running_broker(tmp_path, "", BrokerConfig(broker_name="broker-a"), SMALL_STORE):
        pass


async def test_a_store_with_static_topics_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topicQueueMapping.json"
    path.parent.mkdir()
    path.write_bytes(b'{"dataVersion":{},"topicQueueMappingInfoMap":{"orders":{"topic":"orders","currIdMap":{0:0}}}}')
    before = files_of(tmp_path)
    with pytest.raises(StoreError, match=r"topicQueueMapping\.json: orders: static topics are not supported"):
        async with running_broker(tmp_path, "", BrokerConfig(broker_name="broker-a"), SMALL_STORE):
            pass
    assert files_of(tmp_path) == before


# --- groups


async def test_deleting_a_group_may_be_repeated(client: Wired) -> None:
    client.broker.groups.put(GroupConfig("billing"))
    for _ in range(2):
        await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("billing"))
        assert "billing" not in client.broker.groups


async def test_deleting_a_group_that_is_gone_still_forgets_its_offsets(client: Wired) -> None:
    client.broker.offsets.commit("billing", TOPIC, 0, 7)
    await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("billing", clean_offset=True))
    assert client.broker.offsets.find_offset("billing", TOPIC, 0) is None

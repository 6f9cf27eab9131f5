"""The words of the system: which names are legal, and what the small classes promise."""

from __future__ import annotations

import pytest

from cosmodrome.errors import BrokerError, InvalidParameter
from cosmodrome.model import (
    BrokerData,
    DataVersion,
    Message,
    MessageQueue,
    Property,
    ReceivedMessage,
    TopicConfig,
    check_group,
    check_topic,
    dead_letter_topic,
    retry_topic,
)


@pytest.mark.parametrize("name", ["T", "a-b_c", "%RETRY%g", "ns%T", "a|b", "0", "x" * 127, "%DLQ%" + "x" * 250])
def test_legal_topics(name: str) -> None:
    assert check_topic(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../../x",
        "a/b",
        "a\\b",
        "a.b",
        "a b",
        "a\n",
        "\n",
        "ä",
        "٣",
        "a\0",
        "x" * 128,
        "%DLQ%" + "x" * 251,
    ],
)
def test_illegal_topics(name: str) -> None:
    with pytest.raises(InvalidParameter, match="topic name"):
        check_topic(name)


def test_groups_have_the_same_letters_and_up_to_255_of_them() -> None:
    assert check_group("g" * 255) == "g" * 255
    for name in ("", "a@b", "../g", "g" * 256):
        with pytest.raises(InvalidParameter, match="group name"):
            check_group(name)


def test_derived_topics() -> None:
    assert (retry_topic("g"), dead_letter_topic("g")) == ("%RETRY%g", "%DLQ%g")


def test_queues_sort_by_topic_then_broker_then_number() -> None:
    queues = [
        MessageQueue("U", "a", 0),
        MessageQueue("T", "b", 0),
        MessageQueue("T", "a", 10),
        MessageQueue("T", "a", 9),
    ]
    assert [(q.topic, q.broker_name, q.queue_id) for q in sorted(queues)] == [
        ("T", "a", 9),
        ("T", "a", 10),
        ("T", "b", 0),
        ("U", "a", 0),
    ]


def test_messages_do_not_share_their_properties() -> None:
    one, other = Message("T", b""), Message("T", b"")
    one.properties["a"] = "b"
    assert other.properties == {}


def test_a_received_message_is_known_by_its_producers_id_or_its_place() -> None:
    def received(properties: dict[str, str]) -> ReceivedMessage:
        queue = MessageQueue("T", "a", 0)
        return ReceivedMessage("T", b"", properties, 0, 0, queue, 0, 0, 0, "", 0, "", 0, "place", 0)

    assert received({}).msg_id == "place"
    full = received({Property.UNIQ_KEY: "id", Property.TAGS: "t", Property.KEYS: "k l"})
    assert (full.msg_id, full.tags, full.keys) == ("id", "t", "k l")
    assert (received({}).tags, received({}).keys) == ("", "")


def test_a_data_version_moves_on() -> None:
    version = DataVersion(1_000, 3, 7)
    assert version.next(2_000) == DataVersion(2_000, 4, 7)
    assert version != DataVersion(1_000, 3, 8)


@pytest.mark.parametrize(("perm", "rights"), [(0, ""), (1, "i"), (2, "w"), (4, "r"), (6, "rw"), (7, "rwi")])
def test_permissions_are_bits(perm: int, rights: str) -> None:
    topic = TopicConfig("T", perm=perm)
    found = "r" * topic.readable + "w" * topic.writable + "i" * topic.inheritable
    assert found == rights


def test_the_master_has_id_0() -> None:
    assert BrokerData("c", "a", {0: "h:1", 1: "h:2"}).master == "h:1"
    assert BrokerData("c", "a", {1: "h:2"}).master is None


def test_a_refusal_names_its_code_even_if_it_is_unknown() -> None:
    assert "17 TOPIC_NOT_EXIST: gone" in str(BrokerError(17, "gone", "h:1"))
    assert "4711 ?: odd" in str(BrokerError(4711, "odd", "h:1"))

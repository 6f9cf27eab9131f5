"""Bodies with tables by message queue: read fast or tolerantly, they are the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.model import MessageQueue
from cosmodrome.wire.bodies import ConsumeOffset, ConsumeStats, ConsumeStatsList, TopicOffset, TopicStats
from cosmodrome.wire.bodies.fields import Fields

NAMES = st.sampled_from(["orders", "a|b%", 'x"y', "back\\slash", '{"brokerName":"b"}:', "日本"]) | st.text(
    st.characters(exclude_categories=("Cs", "Cc")), max_size=8
)
QUEUES = st.builds(MessageQueue, NAMES, NAMES, st.integers(0, 2**31 - 1))
STATS = st.builds(
    ConsumeStats, st.dictionaries(QUEUES, st.builds(ConsumeOffset, st.integers(0, 9), st.integers(0, 9)), max_size=3)
)


@given(st.dictionaries(NAMES, st.lists(STATS, min_size=1, max_size=2).map(tuple), max_size=3), st.booleans())
def test_the_progress_of_groups_is_read_as_it_was_written(
    groups: dict[str, tuple[ConsumeStats, ...]], is_told: bool
) -> None:
    body = ConsumeStatsList("127.0.0.1:1", groups, dict.fromkeys(groups, ("me",)) if is_told else None)
    data = body.encode()
    assert ConsumeStatsList.decode(data) == body
    assert ConsumeStatsList.from_fields(Fields.parse(data)) == body, "as slowly as other keys are read"


@given(st.dictionaries(QUEUES, st.builds(TopicOffset, st.integers(0, 9), st.integers(0, 9)), max_size=3))
def test_the_offsets_of_a_topic_are_read_as_they_were_written(offsets: dict[MessageQueue, TopicOffset]) -> None:
    assert TopicStats.decode(TopicStats(offsets).encode()) == TopicStats(offsets)


def test_keys_in_another_order_are_read_as_well() -> None:
    text = b'{"offsetTable":{{"topic":"t","queueId":1,"brokerName":"b"}:{"maxOffset":5,"minOffset":2}}}'
    assert TopicStats.decode(text).offsets == {MessageQueue("t", "b", 1): TopicOffset(2, 5)}

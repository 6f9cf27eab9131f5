"""SQL92 filters as Apache's Java clients, both generations, use them."""

from collections.abc import Callable

import pytest

from interop.lab import Cluster, Lab
from interop.messages import Load, seen_by_java
from interop.setup import CLIENT_VERSIONS

Fresh = Callable[[str], str]


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_a_java_consumer_gets_what_its_sql_wants_of_what_was_and_of_what_comes(
    lab: Lab, ours: Cluster, fresh: Fresh, version: str
) -> None:
    topic, group = fresh("topic"), fresh("group")
    old = Load(topic, 20, properties={"price": "%d"})
    lab.run(version, "Produce", ours, {**old.java_arguments(), "group": f"{group}-producer"})
    words: dict[str, object] = {"topic": topic, "group": group, "sql": "price >= 18 AND TAGS IS NOT NULL"}
    with lab.start(version, "Consume", ours, words) as consumer:
        consumer.wait_messages(2)
        new = Load(topic, 4, first=16, properties={"price": "%d"})
        lab.run(version, "Produce", ours, {**new.java_arguments(), "group": f"{group}-producer"})
        consumer.wait_messages(4)
        seen = [seen_by_java(line).index for line in consumer.end()]
    assert sorted(seen) == [18, 18, 19, 19]


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_a_java_consumer_with_a_bad_expression_does_not_start(
    lab: Lab, ours: Cluster, fresh: Fresh, version: str
) -> None:
    topic, group = fresh("topic"), fresh("group")
    lab.run(version, "Produce", ours, {**Load(topic, 1).java_arguments(), "group": f"{group}-producer"})
    ours.settle(topic)  # a consumer asks about its expression only the brokers that it knows
    with pytest.raises(Exception, match="SQL92 expression"):
        lab.start(version, "Consume", ours, {"topic": topic, "group": group, "sql": "price LIKE 'x'"})

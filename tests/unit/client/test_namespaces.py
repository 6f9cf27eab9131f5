"""Names inside a namespace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.client.namespaces import unwrap_queue, unwrap_topic, wrap_group, wrap_queue, wrap_topic
from cosmodrome.model import SYSTEM_TOPICS, MessageQueue, dead_letter_topic, retry_topic

NAMES = st.text("abcXYZ019_-", min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("orders", "INST%orders"),
        ("%RETRY%g", "%RETRY%INST%g"),
        ("%DLQ%g", "%DLQ%INST%g"),
        ("INST%orders", "INST%orders"),
        ("%RETRY%INST%g", "%RETRY%INST%g"),
        ("OTHER%orders", "INST%OTHER%orders"),
        ("TBW102", "TBW102"),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        ("SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("", ""),
    ],
)
def test_names_are_wrapped_as_java_wraps_them(name: str, wrapped: str) -> None:
    assert wrap_topic("INST", name) == wrap_group("INST", name) == wrapped


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("INST%orders", "orders"),
        ("%RETRY%INST%g", "%RETRY%g"),
        ("%DLQ%INST%g", "%DLQ%g"),
        ("OTHER%orders", "OTHER%orders"),
        ("INSTANT%orders", "INSTANT%orders"),
        ("%RETRY%OTHER%g", "%RETRY%OTHER%g"),
        ("TBW102", "TBW102"),
        ("orders", "orders"),
        ("", ""),
    ],
)
def test_only_the_own_namespace_is_taken_off(name: str, bare: str) -> None:
    assert unwrap_topic("INST", name) == bare


@given(NAMES, NAMES, st.sampled_from([str, retry_topic, dead_letter_topic]))
def test_what_was_wrapped_comes_back_and_wrapping_twice_is_wrapping_once(namespace: str, name: str, kind: type) -> None:
    topic = kind(name)
    wrapped = wrap_topic(namespace, topic)
    assert unwrap_topic(namespace, wrapped) == topic
    assert wrap_topic(namespace, wrapped) == wrapped
    assert retry_topic(wrap_group(namespace, name)) == wrap_topic(namespace, retry_topic(name))


@given(st.one_of(NAMES, st.sampled_from(sorted(SYSTEM_TOPICS))))
def test_without_a_namespace_nothing_changes(name: str) -> None:
    assert wrap_topic("", name) == unwrap_topic("", name) == wrap_group("", name) == name


def test_queues_are_wrapped_by_their_topic() -> None:
    queue = MessageQueue("orders", "broker-a", 3)
    wrapped = wrap_queue("INST", queue)
    assert wrapped == MessageQueue("INST%orders", "broker-a", 3)
    assert unwrap_queue("INST", wrapped) == queue
    assert wrap_queue("", queue) is queue

"""Names inside a namespace, by the rules of Apache's clients. Pure.

    orders → INST%orders          %RETRY%billing → %RETRY%INST%billing          TBW102 → TBW102

Brokers know nothing of namespaces: they see only the wrapped names. Names of the system's own topics and groups stay,
and so does a name that is wrapped already. Without a namespace nothing changes.
"""

from __future__ import annotations

import dataclasses

from cosmodrome.model import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    MessageQueue,
    ReceivedMessage,
)

SEPARATOR = "%"


def wrap_topic(namespace: str, topic: str) -> str:
    """The topic as brokers know it."""
    return _wrap(namespace, topic)


def unwrap_topic(namespace: str, topic: str) -> str:
    """The topic as the application knows it; a topic of another namespace stays as it is."""
    prefix, bare = _split(topic)
    wrapped = namespace + SEPARATOR
    if not namespace or not bare.startswith(wrapped) or _is_system(topic):
        return topic
    return prefix + bare.removeprefix(wrapped)


def wrap_group(namespace: str, group: str) -> str:
    """The producer or consumer group as brokers know it. Its retry topic is `retry_topic` of this."""
    return _wrap(namespace, group)


def wrap_queue(namespace: str, queue: MessageQueue) -> MessageQueue:
    return dataclasses.replace(queue, topic=wrap_topic(namespace, queue.topic)) if namespace else queue


def unwrap_queue(namespace: str, queue: MessageQueue) -> MessageQueue:
    return dataclasses.replace(queue, topic=unwrap_topic(namespace, queue.topic)) if namespace else queue


def unwrap_message(namespace: str, message: ReceivedMessage) -> None:
    """From now on its names are those the application knows: of its topic, and of the queue it was read from."""
    if namespace:
        message.topic = unwrap_topic(namespace, message.topic)
        message.queue = unwrap_queue(namespace, message.queue)


def _wrap(namespace: str, name: str) -> str:
    prefix, bare = _split(name)
    if not namespace or not name or _is_system(name) or bare.startswith(namespace + SEPARATOR):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{bare}"


def _split(name: str) -> tuple[str, str]:
    """A name without its retry or dead-letter prefix, and that prefix."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def _is_system(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith((SYSTEM_PREFIX, SYSTEM_GROUP_PREFIX))

"""The same behaviour through `cosmodrome.blocking`, from plain threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from cosmodrome.blocking import (
    ConsumeFrom,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RequestProducer,
    SendResult,
    SendStatus,
    TopicReader,
    TransactionProducer,
    TransactionState,
)
from cosmodrome.errors import InvalidMessage
from tests.behaviour.clusters import Cluster
from tests.behaviour.support import ASK_INTERVAL_S, PATIENCE_S, SEND_TIMEOUT_MS, Inbox, bodies, fresh
from tests.bounded import in_time


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s"
        time.sleep(ASK_INTERVAL_S)


def consumer(cluster: Cluster, topic: str, handler: Callable[[ReceivedMessage], None]) -> PushConsumer:
    made = PushConsumer(fresh("group"), cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
    made.subscribe(topic, "*", handler)
    return made


def test_threads_send_in_every_way_and_all_arrives(cluster: Cluster) -> None:
    topic, inbox, sent = fresh("topic"), Inbox(), bodies(60)
    queues = cluster.create_topic(topic)
    with Producer(fresh("producer"), cluster.namesrv) as producer, ThreadPoolExecutor(8) as threads:
        assert list(producer.publish_queues(topic)) == queues
        results = list(
            threads.map(lambda body: producer.send(Message(topic, body), timeout_ms=SEND_TIMEOUT_MS), sent[:20])
        )
        results += [future.result() for future in [producer.send_async(Message(topic, body)) for body in sent[20:40]]]
        for body in sent[40:50]:
            producer.send_oneway(Message(topic, body))
        batch = producer.send_batch([Message(topic, body) for body in sent[50:]])
        with pytest.raises(InvalidMessage, match="empty"):
            producer.send(Message(topic, b""))
    assert {result.status for result in [*results, batch]} == {SendStatus.SEND_OK}
    with consumer(cluster, topic, inbox):
        wait_until(lambda: len(inbox.messages) >= len(sent))
    assert inbox.sorted == sorted(sent)


def test_a_handler_may_send(cluster: Cluster) -> None:
    questions, answers = fresh("topic"), fresh("topic")
    for topic in (questions, answers):
        cluster.create_topic(topic, 2)
    inbox, sent = Inbox(), bodies(10)
    with Producer(fresh("producer"), cluster.namesrv) as producer:

        def forward(message: ReceivedMessage) -> None:
            producer.send(Message(answers, message.body), timeout_ms=SEND_TIMEOUT_MS)

        with consumer(cluster, questions, forward), consumer(cluster, answers, inbox):
            for body in sent:
                producer.send(Message(questions, body), timeout_ms=SEND_TIMEOUT_MS)
            wait_until(lambda: len(inbox.messages) >= len(sent))
    assert inbox.sorted == sorted(sent)


def test_conversations(cluster: Cluster) -> None:
    """A transaction, a request and its answer, and a reader, each without await."""
    topic, asked = fresh("topic"), fresh("topic")
    for name in (topic, asked):
        cluster.create_topic(name, 1)
    inbox = Inbox()
    fates = {b"commit": TransactionState.COMMIT, b"rollback": TransactionState.ROLLBACK}

    def check(message: ReceivedMessage) -> TransactionState:
        """A broker that is slow may ask about what has been decided, too."""
        return TransactionState.COMMIT if message.body == b"checked" else TransactionState.UNKNOWN

    with TransactionProducer(fresh("producer"), cluster.namesrv, check=check) as producer:
        for body in (*fates, b"checked"):
            fate = fates.get(body, TransactionState.UNKNOWN)
            assert producer.send_in_transaction(Message(topic, body), lambda _, fate=fate: fate).state is fate
        with consumer(cluster, topic, inbox):
            wait_until(lambda: len(inbox.messages) >= 2)
    assert inbox.sorted == [b"checked", b"commit"]
    with RequestProducer(fresh("producer"), cluster.namesrv) as both:
        with consumer(cluster, asked, lambda message: both.reply(message, message.body.upper())):
            answer = both.request(Message(asked, b"hello"), timeout_ms=PATIENCE_S * 1_000)
        assert answer.body == b"HELLO"
    with TopicReader(topic, namesrv=cluster.namesrv, from_earliest=True) as reader:
        assert in_time(lambda: sorted(message.body for message in islice(reader, 2))) == inbox.sorted


def test_a_callback_is_told_the_result(cluster: Cluster) -> None:
    topic, told, done = fresh("topic"), [], threading.Event()
    cluster.create_topic(topic, 1)

    def tell(result: SendResult | BaseException) -> None:
        told.append(result)
        done.set()

    with Producer(fresh("producer"), cluster.namesrv) as producer:
        producer.send_async(Message(topic, b"a"), callback=tell)
        assert done.wait(PATIENCE_S)
    (result,) = told
    assert isinstance(result, SendResult)


def test_taking_messages_one_by_one_and_by_hand(cluster: Cluster) -> None:
    topic, group, sent = fresh("topic"), fresh("group"), bodies(6)
    (queue,) = cluster.create_topic(topic, 1)
    with Producer(fresh("producer"), cluster.namesrv) as producer:
        for body in sent:
            producer.send(Message(topic, body), timeout_ms=SEND_TIMEOUT_MS)
    member = LitePullConsumer(group, cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
    member.subscribe(topic)
    found: list[bytes] = []

    def take_three() -> None:
        for message in member:
            if message.body == sent[3]:
                break  # this one is not acknowledged
            found.append(message.body)

    def pull_the_others() -> None:
        while len(found) < len(sent):
            found.extend(message.body for message in puller.pull_block_if_not_found(queue, offset=len(found)).messages)

    with member:
        in_time(take_three)
    with PullConsumer(group, cluster.namesrv) as puller:
        assert puller.fetch_subscribe_queues(topic) == [queue]
        assert puller.fetch_consume_offset(queue) == 3
        in_time(pull_the_others)
    assert found == sent

"""Consuming in order: what is sent with one key is handled in that order, whatever fails and whoever leaves."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from cosmodrome import ClientConfig, Message, OrderlyStatus, Producer, ReceivedMessage, RetryLater, SuspendQueue
from cosmodrome.model import dead_letter_topic
from tests.behaviour.clusters import Cluster
from tests.behaviour.support import SEND_TIMEOUT_MS, Inbox, bodies, consumer, fresh, owned, send_bodies, until

KEYS = 6
PER_KEY = 15
PATIENT = ClientConfig(rebalance_interval_ms=3_600_000)


async def send_by_key(cluster: Cluster, topic: str, numbers: range = range(PER_KEY)) -> None:
    """Messages `key:number`, the keys in turn."""
    async with Producer(fresh("producer"), cluster.namesrv) as producer:
        for number in numbers:
            for key in range(KEYS):
                message = Message(topic, f"{key}:{number}".encode(), sharding_key=str(key))
                await producer.send(message, timeout_ms=SEND_TIMEOUT_MS)


def by_key(handled: Iterable[bytes]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for body in handled:
        key, _, number = body.decode().partition(":")
        found[key].append(int(number))
    return found


def all_in_order(numbers: range = range(PER_KEY)) -> dict[str, list[int]]:
    return {str(key): list(numbers) for key in range(KEYS)}


async def test_each_key_comes_in_order_one_at_a_time(cluster: Cluster) -> None:
    topic, inbox = fresh("topic"), Inbox()
    cluster.create_topic(topic, 3)
    running: set[int] = set()

    async def handle(message: ReceivedMessage) -> None:
        assert message.queue.queue_id not in running
        running.add(message.queue.queue_id)
        await asyncio.sleep(0.001)
        inbox(message)
        running.remove(message.queue.queue_id)

    async with consumer(cluster, fresh("group"), topic, handle, orderly=True):
        await send_by_key(cluster, topic)
        await until(lambda: len(inbox.messages) >= KEYS * PER_KEY)
    assert by_key(inbox.bodies) == all_in_order()


async def test_a_plain_function_and_a_list_in_order(cluster: Cluster) -> None:
    topic, inbox, sizes = fresh("topic"), Inbox(), []
    cluster.create_topic(topic, 3)

    def handle(messages: list[ReceivedMessage]) -> None:
        sizes.append(len(messages))
        for message in messages:
            inbox(message)

    await send_by_key(cluster, topic)
    async with consumer(cluster, fresh("group"), topic, handle, orderly=True):
        await until(lambda: len(inbox.messages) >= KEYS * PER_KEY)
    assert by_key(inbox.bodies) == all_in_order()
    assert max(sizes) > 1


async def test_what_fails_holds_up_its_queue_and_no_other(cluster: Cluster) -> None:
    """By raising, by asking for a pause, by a status; and the handler hears how often it was tried."""
    topic, inbox = fresh("topic"), Inbox()
    cluster.create_topic(topic, 1)
    tries: list[tuple[bytes, int]] = []
    failures: dict[tuple[bytes, int], Exception] = {
        (b"body-1", 0): RuntimeError("not now"),
        (b"body-1", 1): SuspendQueue(50),
        (b"body-3", 0): RetryLater(),
    }

    async def handle(message: ReceivedMessage) -> OrderlyStatus:
        tries.append((message.body, message.reconsume_times))
        if (failure := failures.get(tries[-1])) is not None:
            raise failure
        if tries[-1] == (b"body-4", 0):
            return OrderlyStatus.SUSPEND
        inbox(message)
        return OrderlyStatus.SUCCESS

    sent = bodies(6)
    await send_bodies(cluster, topic, sent)
    async with consumer(cluster, fresh("group"), topic, handle, orderly=True, suspend_ms=20):
        await until(lambda: len(inbox.messages) >= len(sent))
    assert inbox.bodies == sent
    assert tries == [
        (b"body-0", 0),
        *((b"body-1", times) for times in range(3)),
        (b"body-2", 0),
        *((b"body-3", times) for times in range(2)),
        *((b"body-4", times) for times in range(2)),
        (b"body-5", 0),
    ]


async def test_what_fails_too_often_is_a_dead_letter_and_the_rest_goes_on(cluster: Cluster) -> None:
    topic, group, inbox, dead = fresh("topic"), fresh("group"), Inbox(), Inbox()
    cluster.create_topic(topic, 1)
    cluster.create_group(group, retry_max_times=2)
    tries: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        if message.body == b"body-1":
            tries.append(message.reconsume_times)
            raise RuntimeError("never")
        inbox(message)

    async with (
        consumer(cluster, group, topic, handle, orderly=True, suspend_ms=20, max_reconsume_times=2),
        consumer(cluster, fresh("group"), dead_letter_topic(group), dead),
    ):
        await send_bodies(cluster, topic, bodies(3))
        await inbox.has([b"body-0", b"body-2"])
        await dead.has([b"body-1"])
    assert tries == [0, 1, 2]


async def test_a_handler_commits_and_rolls_back(cluster: Cluster) -> None:
    """Whoever comes next goes on behind the last commit."""
    topic, group, inbox = fresh("topic"), fresh("group"), Inbox()
    cluster.create_topic(topic, 1)
    rolled_back = False

    def handle(message: ReceivedMessage) -> OrderlyStatus:
        nonlocal rolled_back
        inbox(message)
        if message.body == b"body-1":
            return OrderlyStatus.COMMIT
        if message.body == b"body-3" and not rolled_back:
            rolled_back = True
            return OrderlyStatus.ROLLBACK
        return OrderlyStatus.SUCCESS

    sent = bodies(5)
    await send_bodies(cluster, topic, sent)
    async with consumer(cluster, group, topic, handle, orderly=True, auto_commit=False, suspend_ms=20):
        await until(lambda: len(inbox.messages) >= 7)
    assert inbox.bodies == sent[:4] + sent[2:]
    again = Inbox()
    async with consumer(cluster, group, topic, again, orderly=True):
        await again.has(sent[2:])


async def test_order_outlives_members_that_join_and_leave(cluster: Cluster) -> None:
    """A member that is killed is not replaced for a minute: so long its locks live in every broker."""
    topic, group = fresh("topic"), fresh("group")
    queues = cluster.create_topic(topic, 4)
    inbox = Inbox()  # of both, for nobody handles a queue before the other has let go of it

    async def handle(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.001)
        inbox(message)

    sending = asyncio.create_task(send_by_key(cluster, topic, range(5)))
    async with consumer(cluster, group, topic, handle, orderly=True, config=PATIENT) as staying:
        async with consumer(cluster, group, topic, handle, orderly=True, config=PATIENT) as joining:
            await until(lambda: len(owned(staying, topic)) == len(owned(joining, topic)) == 2)
            await sending
            await send_by_key(cluster, topic, range(5, 10))
        await send_by_key(cluster, topic, range(10, PER_KEY))
        await until(lambda: owned(staying, topic) == queues)
        await until(lambda: len(inbox.messages) >= KEYS * PER_KEY)
    assert by_key(inbox.bodies) == all_in_order()

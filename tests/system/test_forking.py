"""A process that is forked while it has clients: they stay the parent's, and children make their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.cluster import running_cluster
from tests.system.programs import ran

REFUSAL = "was made before a fork, and only the parent process can use it; create it after the fork"

# What every program below begins with: clients that were used, and one that is not started yet.
CLIENTS = """
import os, sys
from cosmodrome import CosmodromeError
from cosmodrome.blocking import Message, Producer, PushConsumer, TopicReader

namesrv = sys.argv[1]
producer, idle = Producer("app", namesrv), Producer("app", namesrv)
consumer, reader = PushConsumer("billing", namesrv), TopicReader("orders", namesrv=namesrv)
consumer.subscribe("orders", "*", lambda message: None)
producer.start()
producer.send(Message("orders", b"before"))
consumer.start()
reader.start()

def use_all():
    for use in (
        lambda: producer.send(Message("orders", b"child")),
        lambda: producer.send_async(Message("orders", b"child")),
        lambda: producer.client_id,
        lambda: consumer.subscribe("orders", "*", print),
        lambda: consumer.handles("orders")(print),
        lambda: consumer.assigned_queues,
        lambda: next(iter(reader)),
        lambda: idle.start(),
    ):
        try:
            use()
        except CosmodromeError as error:
            print(error, flush=True)
    for client in (producer, consumer, reader, idle):
        client.stop()
    with Producer("app", namesrv) as own:
        print(own.send(Message("orders", b"child")).status.name, flush=True)
"""
GO_ON = """
assert producer.running and len(consumer.assigned_queues) > 0
producer.send(Message("orders", b"after"))
assert any(message.body == b"after" for message in reader)
for client in (reader, consumer, producer):
    client.stop()
print("the parent goes on", flush=True)
"""
FORK = """
if (child := os.fork()) == 0:
    use_all()
    sys.exit()  # with all that the end of an interpreter does
assert os.waitpid(child, 0)[1] == 0
"""
MULTIPROCESSING = """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=use_all)
child.start()
child.join()
assert child.exitcode == 0
"""


@pytest.mark.parametrize("fork", [FORK, MULTIPROCESSING], ids=["os.fork", "multiprocessing"])
async def test_what_a_child_inherits_refuses_at_once_and_its_parent_does_not_notice(fork: str, tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        *refusals, own, parent = await ran(CLIENTS + fork + GO_ON, cluster.namesrv)
    assert refusals == [f"this client {REFUSAL}"] * 8
    assert own == "SEND_OK"
    assert parent == "the parent goes on"


async def test_a_child_that_leaves_the_block_of_its_parents_client_does_no_harm(tmp_path: Path) -> None:
    program = """
    import os, sys
    from cosmodrome.blocking import Message, Producer

    with Producer("app", sys.argv[1]) as producer:
        producer.send(Message("orders", b"before"))
        if (child := os.fork()) == 0:
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        print(producer.send(Message("orders", b"after")).status.name)
    """
    async with running_cluster(tmp_path) as cluster:
        assert await ran(program, cluster.namesrv) == ["SEND_OK"]


async def test_workers_forked_in_advance_make_their_own_clients(tmp_path: Path) -> None:
    program = """
    import os, sys
    from cosmodrome import CosmodromeError
    from cosmodrome.blocking import Message, Producer

    producer = Producer("app", sys.argv[1])  # as a module does that is loaded before the fork
    producer.start()
    producer.send(Message("orders", b"master"))

    def serve(number):
        try:
            producer.send(Message("orders", b"inherited"))
        except CosmodromeError:
            with Producer("app", sys.argv[1]) as own:
                sent = [own.send(Message("orders", b"%d" % number)) for _ in range(50)]
                line = " ".join([own.client_id, *(one.msg_id for one in sent)])
                os.write(1, line.encode() + b"\\n")  # in one piece: four of them write

    def fork(number):
        if (child := os.fork()) == 0:
            serve(number)
            sys.exit()
        return child

    for child in [fork(number) for number in range(4)]:
        assert os.waitpid(child, 0)[1] == 0
    producer.send(Message("orders", b"master"))
    producer.stop()
    """
    async with running_cluster(tmp_path) as cluster:
        workers = [line.split() for line in await ran(program, cluster.namesrv)]
        queues = range(cluster.broker.topics.topic("orders").write_queues)
        stored = sum(cluster.broker.store.max_offset("orders", queue) for queue in queues)
    assert stored == 4 * 50 + 2
    assert len({client_id for client_id, *_ in workers}) == 4
    assert len({msg_id for _, *msg_ids in workers for msg_id in msg_ids}) == 200


async def test_async_clients_refuse_too(tmp_path: Path) -> None:
    program = """
    import asyncio, os, sys, threading
    from cosmodrome import CosmodromeError, Message, Producer, PushConsumer, TopicReader

    namesrv = sys.argv[1]

    async def main():
        async def handler(message): ...
        consumer = PushConsumer("billing", namesrv)
        consumer.subscribe("orders", "*", handler)
        idle = Producer("app", namesrv)
        async with Producer("app", namesrv) as producer, TopicReader("orders", namesrv=namesrv) as reader:
            await producer.send(Message("orders", b"before"))
            await consumer.start()
            if (child := os.fork()) == 0:
                thread = threading.Thread(target=asyncio.run, args=[use_all(producer, consumer, reader, idle)])
                thread.start()
                thread.join()
                os._exit(0)  # anything else would go on with the parent's event loop
            assert (await asyncio.to_thread(os.waitpid, child, 0))[1] == 0
            print((await producer.send(Message("orders", b"after"))).status.name, len(consumer.assigned_queues) > 0)
            await consumer.stop()

    async def subscribe(consumer):
        consumer.subscribe("orders", "*", print)

    async def use_all(producer, consumer, reader, idle):
        for use in (
            lambda: producer.send(Message("orders", b"child")),
            lambda: producer.start(),
            lambda: consumer.start(),
            lambda: anext(reader),
            lambda: idle.start(),
            lambda: subscribe(consumer),
        ):
            try:
                await use()
            except CosmodromeError as error:
                print(error, flush=True)
        for client in (producer, consumer, reader, idle):
            await client.stop()
        async with Producer("app", namesrv) as own:
            print((await own.send(Message("orders", b"child"))).status.name, flush=True)

    asyncio.run(main())
    """
    async with running_cluster(tmp_path) as cluster:
        *refusals, own, parent = await ran(program, cluster.namesrv)
    assert len(refusals) == 6
    assert all(refusal.endswith(REFUSAL) for refusal in refusals)
    assert own == "SEND_OK"
    assert parent == "SEND_OK True"

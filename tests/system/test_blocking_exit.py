"""Programs that end without stopping their clients, or are interrupted: they end, and keep quiet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.cluster import Cluster, running_cluster
from tests.system.programs import ended, ran

UNSTOPPED = """
import asyncio, sys, threading, time
from cosmodrome.blocking import ConsumeFrom, Message, Producer, PushConsumer

namesrv = sys.argv[1]
producer = Producer("app", namesrv)
producer.start()
producer.send(Message("orders", b"first"))
called = threading.Event()
consumer = PushConsumer("billing", namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)

def consume_by(handler):
    consumer.subscribe("orders", "*", handler)
    consumer.start()
    for number in range(100):
        producer.send(Message("orders", b"%d" % number))
    assert called.wait(30)
"""
SITUATIONS = {
    "nothing under way": "",
    "a handler that hangs": """
def handler(message):
    called.set()
    time.sleep(3600)
consume_by(handler)
""",
    "a coroutine handler that hangs": """
async def handler(message):
    called.set()
    await asyncio.sleep(3600)
consume_by(handler)
""",
    "handlers that send": """
def handler(message):
    called.set()
    producer.send(Message("passed-on", message.body))
consume_by(handler)
""",
    "daemon threads that send": """
def send():
    while True:
        producer.send(Message("orders", b"x"))
        called.set()
for _ in range(4):
    threading.Thread(target=send, daemon=True).start()
assert called.wait(30)
""",
    "threads that send": """
def send():
    for _ in range(200):
        producer.send(Message("orders", b"x"))
for _ in range(4):
    threading.Thread(target=send).start()
""",
    "threads that send much": """
def send():
    threading.main_thread().join()
    assert producer.send(Message("orders", b"x" * 100_000)).status.name == "SEND_OK"
threading.Thread(target=send).start()
""",
    "a transaction that hangs": """
def execute(message):
    called.set()
    time.sleep(3600)
from cosmodrome.blocking import TransactionProducer
transactions = TransactionProducer("payments", namesrv, check=execute)
transactions.start()
threading.Thread(target=transactions.send_in_transaction, args=(Message("orders", b"x"), execute), daemon=True).start()
assert called.wait(30)
""",
    "sends nobody waits for": """
for _ in range(500):
    producer.send_async(Message("orders", b"x"))
""",
    "a stop at the very end": """
import atexit
atexit.register(producer.stop)
""",
}


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_a_program_that_does_not_stop_its_clients_ends_all_the_same(situation: str, tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        assert await ran(UNSTOPPED + SITUATIONS[situation] + "print('end')", cluster.namesrv) == ["end"]
        assert retried(cluster) == 0, "an end of the program is no failure of its handlers"


def retried(cluster: Cluster) -> int:
    return cluster.broker.store.max_offset("%RETRY%billing", 0)


async def test_whoever_asks_for_warnings_is_told_what_was_not_stopped(tmp_path: Path) -> None:
    program = "consume_by(lambda message: called.set())"
    async with running_cluster(tmp_path) as cluster:
        done = await ended(UNSTOPPED + program, cluster.namesrv, options=("-W", "default::ResourceWarning"))
    assert done.returncode == 0
    for name in ("Producer", "PushConsumer"):
        assert done.stderr.count(f"ResourceWarning: {name} ") == 1, done.stderr
    assert "was never stopped; use `with`, or stop()" in done.stderr


async def test_an_error_of_the_program_is_all_that_is_shown(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        done = await ended(UNSTOPPED + "raise KeyError('mine')", cluster.namesrv)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "KeyError: 'mine'"
    assert done.stderr.count("Traceback") == 1


async def test_ctrl_c_ends_a_call_that_waits_and_the_client_goes_on(tmp_path: Path) -> None:
    program = """
    import os, signal, sys, threading
    from cosmodrome.blocking import Message, Producer, TopicReader

    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run in the background, where it is ignored
    with Producer("app", sys.argv[1]) as producer, TopicReader("quiet", namesrv=sys.argv[1]) as reader:
        for _ in range(20):
            try:
                threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
                while True:
                    producer.send(Message("orders", b"x"))
            except KeyboardInterrupt:
                pass
        try:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            next(iter(reader))
        except KeyboardInterrupt:
            print("interrupted")
        print(producer.send(Message("orders", b"y")).status.name)
    """
    async with running_cluster(tmp_path) as cluster:
        assert await ran(program, cluster.namesrv) == ["interrupted", "SEND_OK"]


async def test_ctrl_c_ends_a_call_whichever_thread_gets_the_signal(tmp_path: Path) -> None:
    program = """
    import os, signal, sys, threading
    from cosmodrome.blocking import TopicReader

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with TopicReader("quiet", namesrv=sys.argv[1]) as reader:
        try:
            killer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            killer.start()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # of this thread alone
            next(iter(reader))
        except KeyboardInterrupt:
            print("interrupted")
    """
    async with running_cluster(tmp_path) as cluster:
        assert await ran(program, cluster.namesrv) == ["interrupted"]


async def test_an_error_shows_where_it_comes_from_and_who_asked(tmp_path: Path) -> None:
    program = """
    import sys, traceback
    from cosmodrome.blocking import CosmodromeError, Message, Producer

    def my_function(producer):
        producer.send(Message("orders", b""))

    with Producer("app", sys.argv[1]) as producer:
        try:
            my_function(producer)
        except CosmodromeError as error:
            print(*(frame.name for frame in traceback.extract_tb(error.__traceback__)))
    """
    async with running_cluster(tmp_path) as cluster:
        (frames,) = await ran(program, cluster.namesrv)
    assert frames.split()[:2] == ["<module>", "my_function"]
    assert "send" in frames.split()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_both_event_loops_and_nothing_is_written_anywhere(loop: str, tmp_path: Path) -> None:
    """With warnings to log: a topic that does not exist, a handler that fails, a broker that is not there."""
    program = """
    import asyncio, logging, sys, uvloop
    from cosmodrome import ConsumeFrom, CosmodromeError, Message, Producer, PushConsumer, TopicReader

    namesrv = sys.argv[1]

    async def main():
        bodies, failed = set(), asyncio.Event()

        async def handler(message):
            if message.body == b"bad" and not failed.is_set():
                failed.set()
                raise ValueError(message.body)
            bodies.add(message.body)

        consumer = PushConsumer("billing", namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("orders", "*", handler)
        async with Producer("app", namesrv) as producer, Producer("app", "127.0.0.1:1") as lost:
            await producer.send(Message("orders", b"1"))
            try:
                await lost.send(Message("orders", b"2"), timeout_ms=500)
            except CosmodromeError:
                bodies.add(b"lost")
            async with consumer, TopicReader("orders", namesrv=namesrv, from_earliest=True) as reader:
                await producer.send(Message("orders", b"bad"))
                await producer.send_oneway(Message("orders", b"3"))
                read = {(await anext(reader)).body for _ in range(3)}
                await failed.wait()
                while not bodies >= {b"1", b"3"}:
                    await asyncio.sleep(0.01)
        return sorted(bodies), sorted(read)

    factory = uvloop.new_event_loop if sys.argv[2] == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        print(*runner.run(main()))
    assert not logging.getLogger().handlers
    """
    home = tmp_path / "home"
    home.mkdir()
    async with running_cluster(tmp_path / "store") as cluster:
        (line,) = await ran(program, cluster.namesrv, loop, home=home)
    assert line == "[b'1', b'3', b'lost'] [b'1', b'3', b'bad']"
    assert list(home.iterdir()) == []

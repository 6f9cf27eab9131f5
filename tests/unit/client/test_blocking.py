"""The blocking face: the same client, for threads."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import queue
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

import pytest

import cosmodrome
from cosmodrome import blocking, testing
from cosmodrome.blocking import (
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
    SendContext,
    SendHook,
    SendResult,
    TransactionProducer,
    TransactionState,
)
from cosmodrome.client.blocking import face
from cosmodrome.client.lifecycle import Startable
from cosmodrome.codes import RequestCode
from cosmodrome.errors import ClientError, InvalidMessage
from cosmodrome.model import MessageQueue, ReceivedMessage
from cosmodrome.wire import properties as properties_string
from tests.bounded import in_thread
from tests.unit.client.fake_cluster import PATIENCE_SECONDS, FakeCluster, fake_cluster


async def test_every_way_of_sending() -> None:
    def use(namesrv: str) -> None:
        with Producer(group="g", namesrv=namesrv) as producer:
            queue = MessageQueue("T", "broker-a", 1)
            assert producer.publish_queues("T")[1] == queue
            assert producer.send(Message("T", b"a"), queue).queue == queue
            assert (
                producer.send(Message("T", b"b"), selector=lambda queues, message, arg: queues[arg], arg=1).queue
                == queue
            )
            assert producer.send_batch([Message("T", b"c"), Message("T", b"d")], queue).queue == queue
            producer.send_oneway(Message("T", b"e"), queue)
            with pytest.raises(InvalidMessage):
                producer.send(Message("T", b""))
        with pytest.raises(ClientError, match="stopped"):
            producer.send(Message("T", b"x"))

    async with fake_cluster(T=2) as cluster:
        await in_thread(use, cluster.namesrv)
        assert [one.body for one in cluster.broker.queues["T", 1]] == [b"a", b"b", b"c", b"d", b"e"]


async def test_threads_may_share_a_producer() -> None:
    def use(namesrv: str) -> None:
        with Producer("g", namesrv) as producer, ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: producer.send(Message("T", b"%d" % number)), range(200)))

    async with fake_cluster(T=1) as cluster:
        await in_thread(use, cluster.namesrv)
        assert {one.body for one in cluster.broker.queues["T", 0]} == {b"%d" % number for number in range(200)}


async def test_stopping_waits_for_what_waits_for_room() -> None:
    def use(namesrv: str) -> None:
        with Producer("g", namesrv, options=ProducerOptions(max_async_bytes=1_000)) as producer:
            futures = [producer.send_async(Message("T", b"%03d" % number * 100)) for number in range(50)]
        assert [future.exception() for future in futures] == [None] * 50

    async with fake_cluster(T=1) as cluster:
        await in_thread(use, cluster.namesrv)
        assert len({one.body for one in cluster.broker.queues["T", 0]}) == 50


async def test_a_message_may_be_changed_as_soon_as_its_send_has_begun() -> None:
    def use(namesrv: str) -> None:
        message = Message("T", b"")
        with Producer("g", namesrv) as producer:
            for number in range(200):
                message.body = b"%d" % number
                message.properties["number"] = str(number)
                producer.send_async(message)

    async with fake_cluster(T=1) as cluster:
        await in_thread(use, cluster.namesrv)
        stored = {(one.body, properties_string.find(one.properties, "number")) for one in cluster.broker.queues["T", 0]}
    assert stored == {(b"%d" % number, str(number)) for number in range(200)}


async def test_hooks_see_the_context_of_the_thread_that_called() -> None:
    request: ContextVar[str] = ContextVar("request")
    seen: list[tuple[bytes, str]] = []

    class Hook(SendHook):
        def before_send(self, context: SendContext) -> None:
            seen.append((context.message.body, request.get()))

    def use(namesrv: str) -> None:
        def send(number: int) -> None:
            request.set(f"request {number}")
            producer.send(Message("T", b"%d" % number))

        with Producer("g", namesrv, options=ProducerOptions(send_hooks=(Hook(),))) as producer:
            threads = [threading.Thread(target=send, args=[number], daemon=True) for number in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)

    async with fake_cluster(T=1) as cluster:
        await in_thread(use, cluster.namesrv)
    assert sorted(seen) == [(b"%d" % number, f"request {number}") for number in range(10)]


async def test_a_handler_may_send_what_it_received_onward() -> None:
    def use(cluster: FakeCluster, loop: asyncio.AbstractEventLoop) -> None:
        passed_on, producer = threading.Event(), Producer("g", cluster.namesrv)

        def pass_on(message: ReceivedMessage) -> None:
            producer.send(Message("U", message.body))
            passed_on.set()

        consumer = PushConsumer("c", cluster.namesrv)
        consumer.subscribe("T", "*", pass_on)
        with producer, consumer:
            assert consumer.assigned_queues == [MessageQueue("T", "broker-a", 0)]
            asyncio.run_coroutine_threadsafe(cluster.broker.append("T", 0, b"x"), loop).result(PATIENCE_SECONDS)
            assert passed_on.wait(PATIENCE_SECONDS)

    async with fake_cluster(T=1, U=1) as cluster:
        await in_thread(use, cluster, asyncio.get_running_loop())
        assert [one.body for one in cluster.broker.queues["U", 0]] == [b"x"]
        assert cluster.broker.offsets["c", "T", 0] == 1


async def test_a_blocking_call_on_the_clients_own_loop_is_refused_instead_of_hanging() -> None:
    refusals: list[str] = []

    def use(cluster: FakeCluster, loop: asyncio.AbstractEventLoop) -> None:
        refused, producer = threading.Event(), Producer("g", cluster.namesrv)

        async def handler(message: ReceivedMessage) -> None:
            try:
                producer.send(Message("T", b"y"))
            except ClientError as error:
                refusals.append(str(error))
                refused.set()

        consumer = PushConsumer("c", cluster.namesrv)
        consumer.subscribe("T", "*", handler)
        with producer, consumer:
            asyncio.run_coroutine_threadsafe(cluster.broker.append("T", 0, b"x"), loop).result(PATIENCE_SECONDS)
            assert refused.wait(PATIENCE_SECONDS)

    async with fake_cluster(T=1) as cluster:
        await in_thread(use, cluster, asyncio.get_running_loop())
    assert "would wait for itself" in refusals[0]


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_a_handler_that_exits_has_failed_and_ends_no_client(is_coroutine: bool) -> None:
    def exits(message: ReceivedMessage) -> None:
        sys.exit("bad config")

    async def exits_later(message: ReceivedMessage) -> None:
        sys.exit("bad config")

    def use(cluster: FakeCluster, loop: asyncio.AbstractEventLoop) -> None:
        consumer = PushConsumer("c", cluster.namesrv)
        consumer.subscribe("T", "*", exits_later if is_coroutine else exits)
        with Producer("g", cluster.namesrv) as producer, consumer:
            producer.send(Message("T", b"x"))
            sent_back = cluster.broker.asked.wait_for(RequestCode.CONSUMER_SEND_MSG_BACK)
            asyncio.run_coroutine_threadsafe(sent_back, loop).result(PATIENCE_SECONDS)
            producer.send(Message("U", b"goes on"))

    async with fake_cluster(T=1, U=1) as cluster:
        cluster.broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: command.reply()
        await in_thread(use, cluster, asyncio.get_running_loop())
        assert cluster.broker.offsets["c", "T", 0] == 1


@pytest.mark.parametrize(("is_coroutine", "raised"), [(False, RuntimeError), (True, SystemExit)])
async def test_an_execute_that_exits_ends_no_client(is_coroutine: bool, raised: type[BaseException]) -> None:
    def exits(message: object) -> TransactionState:
        sys.exit("bad config")

    async def exits_later(message: object) -> TransactionState:
        sys.exit("bad config")

    def use(namesrv: str) -> None:
        with TransactionProducer("g", namesrv, check=exits) as producer:
            with pytest.raises(raised, match="bad config"):
                producer.send_in_transaction(Message("T", b"x"), exits_later if is_coroutine else exits)
            producer.send(Message("T", b"goes on"))

    async with fake_cluster(T=1) as cluster:
        await in_thread(use, cluster.namesrv)


async def test_every_producer_has_room_for_as_many_sends_as_its_options_say() -> None:
    """Those of one that nobody answers are not in the way of another's."""

    def use(cluster: FakeCluster) -> None:
        few = Producer("few", cluster.namesrv, options=ProducerOptions(max_async_sends=2))
        many = Producer("many", cluster.namesrv, options=ProducerOptions(max_async_sends=1_500))
        one_more: queue.SimpleQueue[Future[SendResult]] = queue.SimpleQueue()

        def send(producer: Producer) -> Future[SendResult]:
            return producer.send_async(Message("T", b"x"), timeout_ms=PATIENCE_SECONDS * 1_000)

        with few, many:
            cluster.broker.answers[RequestCode.SEND_MESSAGE_V2] = lambda _command: None
            sends = [*(send(many) for _ in range(1_500)), *(send(few) for _ in range(2))]
            waiting = threading.Thread(target=lambda: one_more.put(send(few)), daemon=True)
            waiting.start()
            with pytest.raises(queue.Empty):
                one_more.get(timeout=0.05)
            assert sends.pop().cancel()
            sends.append(one_more.get(timeout=PATIENCE_SECONDS))
            assert [future.cancel() for future in sends] == [True] * 1_502

    async with fake_cluster(T=1) as cluster:
        await in_thread(use, cluster)


def test_every_public_name_has_a_blocking_twin_with_the_same_parameters() -> None:
    assert set(blocking.__all__) == set(cosmodrome.__all__) - {"__version__"}
    for name, kind in client_classes().items():
        face = getattr(blocking, name)
        assert face is not kind, f"blocking.{name} is the async one"
        assert inspect.signature(face) == inspect.signature(kind)
        for member in public_members(kind):
            twin = inspect.getattr_static(face, member, None)
            assert twin is not None, f"blocking.{name} has no {member}"
            assert not inspect.iscoroutinefunction(twin)
            if inspect.isfunction(ours := getattr(kind, member)):
                assert inspect.signature(twin).parameters == inspect.signature(ours).parameters, f"{name}.{member}"
            assert twin.__doc__ or not getattr(kind, member).__doc__


@pytest.mark.parametrize(("asynchronous", "plain"), [("__aenter__", "__enter__"), ("__aiter__", "__iter__")])
def test_what_can_be_entered_or_iterated_can_be_without_await(asynchronous: str, plain: str) -> None:
    for name, kind in client_classes().items():
        assert hasattr(kind, asynchronous) == hasattr(getattr(blocking, name), plain), f"{name}.{plain}"


def client_classes() -> dict[str, type[Startable]]:
    exported = {name: getattr(cosmodrome, name) for name in cosmodrome.__all__}
    return {name: one for name, one in exported.items() if inspect.isclass(one) and issubclass(one, Startable)}


def public_members(kind: type) -> set[str]:
    """Apart from those by which a membership tells its consumer which queues to hold."""
    return {member for member in dir(kind) if not member.startswith("_")} - {"held", "acquire", "release"}


@pytest.mark.parametrize("module", [cosmodrome, blocking, testing])
def test_public_names_and_their_methods_are_documented(module: ModuleType) -> None:
    for name in set(module.__all__) - {"__version__"}:
        public = getattr(module, name)
        assert public.__doc__, name
        assert not public.__doc__.startswith(f"{name}("), f"{name} has only what dataclasses say"
        for member, value in vars(public).items() if inspect.isclass(public) else ():
            if not member.startswith("_") and (callable(value) or inspect.isdatadescriptor(value)):
                assert inspect.getdoc(value) or inspect.ismemberdescriptor(value), f"{name}.{member}"


def test_properties_can_only_be_read() -> None:
    producer = blocking.Producer("app", "127.0.0.1:9876")
    with pytest.raises(AttributeError):
        setattr(producer, "running", True)  # noqa: B010
    assert "Whether it was started" in pydoc.render_doc(blocking.Producer)


def test_type_checkers_see_the_parameters_and_results_of_the_async_class(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        from cosmodrome.blocking import Message, Producer, PushConsumer, ReceivedMessage, TopicReader

        with Producer("g", "localhost:9876", max_tries=2) as producer:
            reveal_type(producer)
            reveal_type(producer.client_id)
            reveal_type(producer.send(Message("T", b""), timeout_ms=1))
            reveal_type(producer.send_async(Message("T", b"")))
            producer.send("T")
            producer.send(Message("T", b""), timeout=1)
        Producer(5)
        reveal_type([one for one in TopicReader("T")])
        consumer = PushConsumer("g")
        reveal_type(consumer.assigned_queues)
        consumer.subscribe("T")

        @consumer.handles("T")
        def handler(message: ReceivedMessage) -> int:
            return 1

        reveal_type(handler)
        """)
    )
    seen = [line.partition(": ")[2] for line in mypy(program).splitlines()]
    assert [line.removeprefix("note: Revealed type is ") for line in seen if line.startswith("note: Revealed")] == [
        '"cosmodrome.client.blocking.producers.Producer"',
        '"str"',
        '"cosmodrome.model.SendResult"',
        '"concurrent.futures._base.Future[cosmodrome.model.SendResult]"',
        '"list[cosmodrome.model.ReceivedMessage]"',
        '"list[cosmodrome.model.MessageQueue]"',
        '"def (message: cosmodrome.model.ReceivedMessage) -> int"',
    ]
    assert [line.rpartition("[")[2] for line in seen if line.startswith("error")] == [
        "arg-type]",
        "call-arg]",
        "arg-type]",
        "call-overload]",
    ]


def mypy(program: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(program.parent), "--no-error-summary", str(program)]
    root = Path(cosmodrome.__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=root).stdout


async def test_a_call_inside_a_running_loop_warns_once_for_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face, "_warned", set())
    producer, consumer = Producer("g", "127.0.0.1:1"), PushConsumer("g", "127.0.0.1:1")

    def send() -> None:
        with pytest.raises(ClientError, match="not started"):
            producer.send(Message("T", b"x"))

    with pytest.warns(RuntimeWarning, match=r"blocking\.Producer\.send is .* use cosmodrome\.Producer with") as warned:
        send()
    send()  # a second warning would be an error
    assert [warning.filename for warning in warned] == [__file__]
    told = pytest.warns(RuntimeWarning, match=r"PushConsumer\.start is .* use cosmodrome\.PushConsumer with")
    with told, pytest.raises(ClientError, match="no subscription"):
        consumer.start()


async def test_a_call_in_a_thread_or_on_the_client_s_own_loop_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face, "_warned", set())
    producer = Producer("g", "127.0.0.1:1")

    async def call_it() -> None:
        producer.send(Message("T", b"x"))

    def use() -> None:
        with pytest.raises(ClientError, match="not started"):
            producer.send(Message("T", b"x"))
        with pytest.raises(ClientError, match="use a def handler"):
            producer._thread.run(call_it)

    await in_thread(use)
    assert face._warned == set()

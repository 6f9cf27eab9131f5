"""Our clients at servers that want a key and a signature of everybody, and speak nothing but TLS: Apache's and ours."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import random
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql.types import StructType

from cosmodrome import (
    AclHook,
    ClientConfig,
    ConsumeFrom,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    TopicReader,
    TransactionProducer,
    TransactionState,
    blocking,
)
from cosmodrome.cli.main import main
from cosmodrome.client.tracing import find_traces
from cosmodrome.codes import RequestCode
from cosmodrome.config import MIB, TlsCheck
from cosmodrome.errors import BrokerError, ConnectionFailed, CosmodromeError, SendFailed, UntrustedServer
from cosmodrome.model import MASTER_ID
from cosmodrome.spark.batch import RocketMQReader
from cosmodrome.spark.link import Cluster as Link
from cosmodrome.spark.options import source_options
from cosmodrome.spark.sink import RocketMQWriter
from cosmodrome.spark.sink_options import sink_options
from cosmodrome.wire.bodies import ConsumeStats
from cosmodrome.wire.requests import ConsumeStatsRequest
from interop.apache import ApacheBroker, ApacheNameServer
from interop.guards import Account, Certificate, Guard
from interop.java import mqadmin
from interop.lab import OURS
from interop.our_client import SEND_TIMEOUT_MS
from interop.ours import CosmodromeBroker, CosmodromeNameServer
from interop.setup import SERVER_VERSIONS
from tests.bounded import run_to_end

TOPIC, ORDERED, ROWS = "orders", "orders-in-order", "orders-from-spark"
READERS, KEEPERS, LITE = "orders-readers", "orders-keepers", "orders-lite"
TRACES = "RMQ_SYS_TRACE_TOPIC"
ADMIN = Account("rocketmq2", "the-secret-of-all", is_admin=True)
APP = Account("orders-app", "the-secret-of-orders", topics=(TOPIC, ORDERED, TRACES), groups=(READERS, KEEPERS, LITE))
# Brokers ask about a transaction soon, and keep traces. Apache 5 also sees soon that one has ended.
SETTINGS = {
    "transactionTimeOut": 3_000,
    "transactionCheckInterval": 500,
    "transactionOpBatchInterval": 100,
    "traceTopicEnable": "true",
}
LIMIT_S = 120
REFUSED_WITHIN_S = 20  # none of these is worth a long wait
SPARK_TIMEOUT_S = 240


@dataclass(frozen=True, slots=True)
class Guarded:
    """One name server and one broker behind it; both want TLS, and the broker knows two accounts."""

    namesrv: str
    ca_file: str
    home: Path

    @property
    def config(self) -> ClientConfig:
        link = ClientConfig(namesrv=self.namesrv, tls=True, tls_ca_file=self.ca_file)
        return dataclasses.replace(link, persist_offset_interval_ms=200, call_timeout_ms=SEND_TIMEOUT_MS)

    def as_app(self, **more: Any) -> dict[str, Any]:
        """What every client of the application is made with."""
        return {"rpc_hooks": [AclHook(APP.access_key, APP.secret_key)], "config": self.config, **more}

    def spark_options(self, account: Account = ADMIN) -> dict[str, str]:
        keys = {"accessKey": account.access_key, "secretKey": account.secret_key}
        return {"nameServer": self.namesrv, **keys, "tls": "true", "tlsCaFile": self.ca_file}

    def has_consumed_all(self) -> bool:
        """Whether the broker says so of READERS."""
        link = Link(source_options({**self.spark_options(), "subscribe": TOPIC}, streaming=False).link)
        try:
            (broker,) = link.brokers().values()
            reply = link.ask(broker[MASTER_ID], RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest(READERS, TOPIC))
        finally:
            link.close()
        offsets = ConsumeStats.decode(bytes(reply.body)).offsets.values()
        return all(queue.consumer_offset == queue.broker_offset for queue in offsets)

    @property
    def cli_options(self) -> list[str]:
        return ["-n", self.namesrv, "--tls", "--tls-ca-file", self.ca_file]

    def keys_file(self, account: Account) -> str:
        file = self.home / f"{account.access_key}.yml"
        file.write_text(f"accessKey: {account.access_key}\nsecretKey: {account.secret_key}\n")
        return str(file)


@pytest.fixture(scope="module", params=[*SERVER_VERSIONS, OURS])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    version, home = request.param, tmp_path_factory.mktemp("guarded")
    guard = Guard((ADMIN, APP), Certificate.made(home, "server"))
    name_server: ApacheNameServer | CosmodromeNameServer
    broker: ApacheBroker | CosmodromeBroker
    if version == OURS:
        name_server = CosmodromeNameServer(home / "namesrv", guard=guard)
    else:
        name_server = ApacheNameServer(version, home / "namesrv", guard=guard)
    try:
        if version == OURS:
            settings = {key: value for key, value in SETTINGS.items() if key != "transactionOpBatchInterval"}
            broker = CosmodromeBroker(name_server.address, home / "broker", extra=settings, guard=guard)
        else:
            broker = ApacheBroker(version, name_server.address, home / "broker", extra=SETTINGS, guard=guard)
        try:
            if version.startswith("5."):
                make_account(version, name_server.address, broker.address, guard, home / "broker")
            assert guard.certificate is not None
            yield Guarded(name_server.address, str(guard.certificate.certificate), home)
        finally:
            broker.kill()
    finally:
        name_server.kill()


def make_account(version: str, namesrv: str, broker: str, guard: Guard, home: Path) -> None:
    """As an operator of 5.x does it; 4.x reads its accounts from a file."""
    defines = guard.written_to(home / "conf")
    resources = [*(f"Topic:{topic}" for topic in APP.topics), *(f"Group:{group}" for group in APP.groups)]
    for verb, words in (
        ("createUser", ["-u", APP.access_key, "-p", APP.secret_key, "-t", "Normal"]),
        ("createAcl", ["-s", f"User:{APP.access_key}", "-r", ",".join(resources), "-a", "Pub,Sub,Get", "-d", "Allow"]),
    ):
        mqadmin(version, [verb, "-n", namesrv, "-b", broker, *words], "success", home, defines)


def run(work: Coroutine[Any, Any, None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    asyncio.run(within())


# --- what an account may do


def test_messages_in_all_their_ways(guarded: Guarded) -> None:
    large = random.Random(1).randbytes(MIB)
    wanted = {b"sent", b"oneway", b"one of two", b"two of two", b"committed", b"asked about", b"fails once", large}

    async def work() -> None:
        received: list[bytes] = []
        complete = asyncio.Event()

        def handler(message: ReceivedMessage) -> None:
            if message.body == b"fails once" and message.reconsume_times == 0:
                raise RetryLater(delay_level=1)
            received.append(message.body)
            if wanted <= set(received):
                complete.set()

        consumer = PushConsumer(READERS, **guarded.as_app(consume_from=ConsumeFrom.FIRST_OFFSET, trace=True))
        consumer.subscribe(TOPIC, "*", handler)
        async with Producer("orders-producer", **guarded.as_app(trace=True)) as producer:
            first = Message(TOPIC, b"sent", tags="new", keys="ü 7", properties={"stadt": "köln"})
            sent = await producer.send(first, timeout_ms=SEND_TIMEOUT_MS)
            await producer.send_oneway(Message(TOPIC, b"oneway"))
            batch = [Message(TOPIC, b"one of two"), Message(TOPIC, b"two of two")]
            await producer.send_batch(batch, timeout_ms=SEND_TIMEOUT_MS)
            await producer.send(Message(TOPIC, large), timeout_ms=SEND_TIMEOUT_MS)
            await producer.send(Message(TOPIC, b"fails once"), timeout_ms=SEND_TIMEOUT_MS)
            async with consumer:
                async with TransactionProducer("orders-payer", check=lambda _: COMMIT, **guarded.as_app()) as payer:
                    await payer.send_in_transaction(Message(TOPIC, b"committed"), lambda _: COMMIT)
                    await payer.send_in_transaction(Message(TOPIC, b"asked about"), lambda _: TransactionState.UNKNOWN)
                    await complete.wait()
                # Apache may ask about a transaction twice, and then commits it twice.
                while not await asyncio.to_thread(guarded.has_consumed_all):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        assert sorted(set(received)) == sorted(wanted)
        traced = find_traces(sent.msg_id, **guarded.as_app())
        while not await traced:
            traced = find_traces(sent.msg_id, **guarded.as_app())

    run(work())
    with blocking.PullConsumer(READERS, **guarded.as_app()) as reader:
        queues = reader.fetch_subscribe_queues(TOPIC)
        stored = {queue: reader.fetch_consume_offset(queue, from_store=True) for queue in queues}
        assert stored == {queue: reader.max_offset(queue) for queue in queues}


COMMIT = TransactionState.COMMIT


def test_in_order_and_by_hand(guarded: Guarded) -> None:
    bodies = [f"{number}".encode() for number in range(20)]
    with blocking.Producer("orders-producer", **guarded.as_app()) as producer:
        for body in bodies:
            producer.send(Message(ORDERED, body), selector=in_first_queue, timeout_ms=SEND_TIMEOUT_MS)

    async def work() -> None:
        received: list[bytes] = []
        complete = asyncio.Event()

        def handler(message: ReceivedMessage) -> None:
            received.append(message.body)
            if len(received) == len(bodies):
                complete.set()

        made = guarded.as_app(consume_from=ConsumeFrom.FIRST_OFFSET)
        keeper = PushConsumer(KEEPERS, orderly=True, **made)
        keeper.subscribe(ORDERED, "*", handler)
        async with keeper:
            await complete.wait()
        assert received == bodies
        async with LitePullConsumer(LITE, **made) as lite:
            lite.subscribe(ORDERED)
            pulled: list[bytes] = []
            while len(pulled) < len(bodies):
                pulled += [message.body for message in await lite.poll()]
            await lite.commit()
            assert pulled == bodies
            assert len(bodies) in [await lite.committed(queue) for queue in await lite.fetch_message_queues(ORDERED)]

    run(work())


def in_first_queue(queues: Sequence[MessageQueue], _message: Message, _arg: object) -> MessageQueue:
    return queues[0]


def test_what_is_not_allowed(guarded: Guarded) -> None:
    with (
        blocking.Producer("orders-producer", **guarded.as_app()) as producer,
        pytest.raises(SendFailed, match=r"not-for-us.*not-for-us"),
    ):
        producer.send(Message("not-for-us", b"x"))
    with blocking.Producer("orders-producer", **guarded.as_app()) as producer:
        producer.send(Message(TOPIC, b"makes the topic"), timeout_ms=SEND_TIMEOUT_MS)
    consumer = blocking.PushConsumer("not-our-group", **guarded.as_app())
    consumer.subscribe(TOPIC, "*", print)
    with pytest.raises(BrokerError, match="not-our-group"), consumer:
        pass


# --- commands


def shown_json(runner: CliRunner, guarded: Guarded, *words: str) -> str:
    done = runner.invoke(main, ["find", "orders-by-hand", *words, "-o", "json", *guarded.cli_options])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_commands(guarded: Guarded) -> None:
    keys = {"ROCKETMQ_ACCESS_KEY": ADMIN.access_key, "ROCKETMQ_SECRET_KEY": ADMIN.secret_key}
    runner = CliRunner(env=keys)
    sent = runner.invoke(main, ["send", "orders-by-hand", "from a shell", "--key", "k-1", *guarded.cli_options])
    assert sent.exit_code == 0, sent.output
    by_file = ["--credentials", guarded.keys_file(ADMIN), *guarded.cli_options]
    shown = CliRunner().invoke(main, ["tail", "orders-by-hand", "--from", "earliest", "--limit", "1", *by_file])
    assert "from a shell" in shown.output
    offset_id = json.loads(shown_json(runner, guarded, "--begin", "2020-01-01"))["offsetMsgId"]
    for words in (["--key", "k-1"], ["--id", offset_id]):
        found = runner.invoke(main, ["find", "orders-by-hand", *words, *guarded.cli_options])
        assert (found.exit_code, "12 bytes: from a shell" in found.output) == (0, True), found.output
    untraced = CliRunner().invoke(main, ["trace", "k-1", *by_file])
    assert "no trace of k-1" in untraced.output
    wrong = Account(ADMIN.access_key, APP.secret_key)
    for command in (["send", TOPIC, "x"], ["tail", "orders-by-hand"], ["trace", "k-1"]):
        refused = CliRunner().invoke(main, [*command, *guarded.cli_options, "--credentials", guarded.keys_file(wrong)])
        assert refused.exit_code == 1, refused.output
        assert "ignature" in refused.output
        assert wrong.secret_key not in refused.output


# --- Spark


# With 4.9.7 a whole Spark meets in test_spark_source every day.
@pytest.mark.parametrize(
    "guarded",
    [pytest.param(SERVER_VERSIONS[0], marks=pytest.mark.full), SERVER_VERSIONS[1]],
    indirect=True,
    scope="module",
)
def test_spark_reads_and_writes(guarded: Guarded) -> None:
    """A whole Spark, as its commands start it: a query, and a stream from one topic to another."""
    with blocking.Producer("orders-producer", **guarded.as_app()) as producer:
        producer.send(Message(TOPIC, b"for spark", tags="spark"), timeout_ms=SEND_TIMEOUT_MS)
    job = guarded.home / "copy.yaml"
    lines = [f"{name}: {value}" for name, value in guarded.spark_options().items() if name != "secretKey"]
    link = "".join(f"  {line}\n" for line in [*lines, "secretKey: ${ROCKETMQ_SECRET_KEY}"])
    job.write_text(
        f"name: copy\npipeline: transform\nmaster: local[2]\ncheckpoint: copy-checkpoint\ntrigger: availableNow\n"
        f"source:\n{link}  subscribe: {TOPIC}\n  startingOffsets: earliest\n  subExpression: spark\n"
        f"steps:\n  - sql: select body, keys, tags from input\n"
        f"sink:\n{link}  format: rocketmq\n  topic: {ROWS}\n"
    )
    written = in_spark("pipeline", "run", str(job))
    query = f"select value, tags from `{ROWS}`"
    shown = in_spark("sql", query, "--master", "local[2]", "-o", "json", *guarded.cli_options)
    assert '{"value":"for spark","tags":"spark"}' in shown
    assert ADMIN.secret_key not in written + shown


def in_spark(*words: str) -> str:
    keys = {"ROCKETMQ_ACCESS_KEY": ADMIN.access_key, "ROCKETMQ_SECRET_KEY": ADMIN.secret_key}
    command = [sys.executable, "-m", "cosmodrome", "-v", *words]
    done = run_to_end(command, SPARK_TIMEOUT_S, env={**os.environ, **keys})
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


# --- who is not let in


@dataclass(frozen=True, slots=True)
class Stranger:
    """A client that lacks something, and what it is told."""

    kind: type[CosmodromeError]
    words: str
    account: Account | None = APP
    tls: bool = True
    knows_certificate: bool = True

    def client(self, guarded: Guarded) -> dict[str, Any]:
        hooks = [AclHook(self.account.access_key, self.account.secret_key)] if self.account else []
        ca_file = guarded.ca_file if self.knows_certificate and self.tls else ""
        return {"rpc_hooks": hooks, "config": ClientConfig(namesrv=guarded.namesrv, tls=self.tls, tls_ca_file=ca_file)}

    def spark_options(self, guarded: Guarded) -> dict[str, str]:
        options = guarded.spark_options(self.account or APP)
        missing = {"accessKey", "secretKey"} if self.account is None else set()
        missing |= {"tls", "tlsCaFile"} if not self.tls else set() if self.knows_certificate else {"tlsCaFile"}
        return {name: value for name, value in options.items() if name not in missing}


WRONG_SECRET = "not-the-secret-of-orders"
STRANGERS = {
    "with a wrong secret": Stranger(BrokerError, "ignature", Account(APP.access_key, WRONG_SECRET)),
    "nobody knows": Stranger(BrokerError, "stranger", Account("stranger", WRONG_SECRET)),
    "without a key": Stranger(BrokerError, "accessKey|username", None),
    "without TLS": Stranger(ConnectionFailed, "TLS only", tls=False),
    "without the certificate": Stranger(UntrustedServer, "self-signed", knows_certificate=False),
}


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=list(STRANGERS))
def test_strangers_are_told_soon(guarded: Guarded, stranger: Stranger, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = []

    async def refused(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        with pytest.raises((stranger.kind, SendFailed), match=stranger.words) as error:
            async with asyncio.timeout(REFUSED_WITHIN_S):
                await work()
        told.append(f"{error.value!r} {error.value}")

    async def work() -> None:
        made = stranger.client(guarded)
        told.append(repr(made))
        async with Producer("orders-producer", **made) as producer:
            await refused(lambda: producer.send(Message(TOPIC, b"x")))
            if stranger.tls:
                await refused(lambda: producer.send_batch([Message(TOPIC, b"x")]))
        if not stranger.tls:
            return  # to consumers it looks like a name server that is away, and they wait for it
        pushed, pulled = PushConsumer(READERS, **made), LitePullConsumer(LITE, **made)
        pushed.subscribe(TOPIC, "*", print)
        pulled.subscribe(TOPIC)
        await refused(pushed.start)
        await refused(pulled.start)
        await refused(TopicReader(TOPIC, **made).start)

    run(work())
    given = stranger.spark_options(guarded)
    tries = "1000" if stranger.tls else "2"  # who wants TLS looks like one that starts anew, and is tried again
    reading = source_options({**given, "subscribe": TOPIC, "fetchOffset.numRetries": tries}, streaming=False)
    writing = sink_options({**given, "topic": TOPIC, "sendRetries": tries}, streaming=False)
    rows = pa.record_batch({"body": pa.array(["x"])})
    for work_in_spark in (
        lambda: RocketMQReader(reading, StructType().add("body", "binary")).partitions(),
        lambda: RocketMQWriter(writing).write(iter([rows])),
    ):
        with pytest.raises((stranger.kind, SendFailed), match=stranger.words) as error:
            work_in_spark()
        told.append(f"{error.value!r} {error.value}")
    told += [repr(reading), repr(writing), caplog.text]
    for secret in (APP.secret_key, WRONG_SECRET):
        assert secret not in "\n".join(told)


def test_a_certificate_need_not_be_checked(guarded: Guarded) -> None:
    config = ClientConfig(namesrv=guarded.namesrv, tls=True, tls_check=TlsCheck.NONE)
    with blocking.Producer("orders-producer", **guarded.as_app(config=config)) as producer:
        producer.send(Message(TOPIC, b"unchecked"), timeout_ms=SEND_TIMEOUT_MS)

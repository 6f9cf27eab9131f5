"""A master and a slave as processes: what is acknowledged, what a kill -9 leaves, and what a promotion goes on with."""

from __future__ import annotations

import asyncio
import json
import subprocess
from datetime import timedelta
from pathlib import Path

from cosmodrome import Message, Producer, PullConsumer
from cosmodrome.client.transactions import TransactionProducer, TransactionState
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import ConnectionFailed
from cosmodrome.model import MessageQueue
from cosmodrome.wire.command import Command
from cosmodrome.wire.pop import pop_retry_topic
from cosmodrome.wire.requests import PopMessage
from tests.system.daemons import cosmodrome
from tests.system.replicated import MASTER, NAME, SLAVE, TOPIC, replicated, until


async def test_a_slave_has_every_byte_refuses_writes_and_catches_up_after_a_kill(tmp_path: Path) -> None:
    async with replicated(tmp_path) as pair, Producer("p", pair.namesrv) as producer:
        master, slave = pair.nodes
        alone = await pair.send(producer, 1)
        assert [result.status.name for result in alone] == ["SLAVE_NOT_AVAILABLE"]
        slave.start()
        await pair.connected(master)
        assert {result.status.name for result in await pair.send(producer, 200)} == {"SEND_OK"}
        assert await pair.max_offset(slave) == 201
        refused = await pair.ask(slave, Command.request(RequestCode.SEND_MESSAGE_V2, body=b"x"))
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert f"ask its master, {master.address}" in (refused.remark or "")
        await pair.knows_topic(slave)
        assert await pair.bodies(slave) == await pair.bodies(master)

        slave.hang()
        hung = await pair.send(producer, 1)
        assert [result.status.name for result in hung] == ["FLUSH_SLAVE_TIMEOUT"]
        slave.go_on()
        await pair.connected(master)
        slave.kill()

        async def is_gone() -> bool:
            return (await pair.figures(master))["slaves"] == "0"

        await until(is_gone)
        assert {result.status.name for result in await pair.send(producer, 50)} == {"SLAVE_NOT_AVAILABLE"}
        slave.start()
        await pair.connected(master)
        assert {result.status.name for result in await pair.send(producer, 1)} == {"SEND_OK"}
        await pair.knows_topic(slave)
        assert await pair.bodies(slave) == await pair.bodies(master)
        await pair.connected(master)
        slave.stop()
        master.stop()
        assert slave.log_files == master.log_files


async def test_a_promoted_slave_has_what_was_acknowledged_and_the_old_master_follows_it(tmp_path: Path) -> None:
    async with replicated(tmp_path) as pair, Producer("p", pair.namesrv) as producer:
        old, new = pair.nodes
        new.start()
        await pair.connected(old)
        await pair.send(producer, 100)
        new.hang()
        unreplicated = await pair.send(producer, 3)
        assert {result.status.name for result in unreplicated} == {"FLUSH_SLAVE_TIMEOUT"}
        old.kill()
        new.kill()
        assert len(pair.acknowledged) == 100

        new.role = MASTER
        new.start()
        assert await pair.term(new) == 2
        assert set(pair.acknowledged.values()) <= set(await pair.bodies(new))
        after = await pair.send(producer, 20)
        assert {result.status.name for result in after} == {"SLAVE_NOT_AVAILABLE"}

        old.role = SLAVE
        old.start()
        old.process.wait_for("log cut")
        await pair.connected(new)
        assert {result.status.name for result in await pair.send(producer, 1)} == {"SEND_OK"}
        await pair.knows_topic(old)
        assert await pair.bodies(old) == await pair.bodies(new)
        kept = b"".join(path.read_bytes() for path in (old.folder / "commitlog.bad").iterdir())
        assert kept, "what only the old master had is kept aside"
        await pair.connected(new)
        old.stop()
        new.stop()
        assert old.log_files == new.log_files


async def test_a_stale_master_that_comes_back_takes_no_messages(tmp_path: Path) -> None:
    async with replicated(tmp_path) as pair, Producer("p", pair.namesrv) as producer:
        old, new = pair.nodes
        new.start()
        await pair.connected(old)
        await pair.send(producer, 5)
        old.kill()
        new.kill()
        new.role = MASTER
        new.start()
        old.start()  # with its old file: nobody told it
        assert "this master of broker-a is stale, and takes no messages" in old.process.output
        refused = await pair.ask(old, send_command())
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert f"{new.address} is the master of {NAME} with term 2" in (refused.remark or "")
        assert {result.queue.broker_name for result in await pair.send(producer, 3)} == {NAME}
        assert await pair.max_offset(new) == 8


def send_command() -> Command:
    fields = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    return Command.request(RequestCode.SEND_MESSAGE_V2, None, b"x", fields=fields)


async def test_a_consumer_goes_on_at_the_slave_and_its_offsets_survive(tmp_path: Path) -> None:
    async with replicated(tmp_path) as pair, Producer("p", pair.namesrv) as producer:
        master, slave = pair.nodes
        await pair.send(producer, 40)
        queue = MessageQueue(TOPIC, NAME, 0)
        async with PullConsumer("readers", pair.namesrv) as consumer:
            consumer.update_consume_offset(queue, 10)
            await consumer.persist_consume_offset(queue)

            async def is_told() -> bool:
                return await consumer.fetch_consume_offset(queue, from_store=True) == 10

            await until(is_told)
            slave.start()
            await pair.connected(master)
            await pair.knows_offset(slave, "readers", 10)
            master.kill()

            async def is_served() -> bool:
                try:
                    pulled = await consumer.pull(queue, "*", 10, 32)
                except ConnectionFailed:  # until the route says that only the slave is left
                    return False
                return [message.queue_offset for message in pulled.messages[:1]] == [10]

            await until(is_served)
            assert await consumer.fetch_consume_offset(queue, from_store=True) == 10, "as the master knew it"
            consumer.update_consume_offset(queue, 25)
            await consumer.persist_consume_offset(queue)

            async def is_told_to_the_slave() -> bool:
                return await consumer.fetch_consume_offset(queue, from_store=True) == 25

            await until(is_told_to_the_slave)
        slave.stop()
        slave.role = MASTER
        slave.start()
        async with PullConsumer("readers", pair.namesrv) as consumer:
            assert await consumer.fetch_consume_offset(queue, from_store=True) == 25


async def test_what_waited_at_the_old_master_is_delivered_by_the_new_one(tmp_path: Path) -> None:
    quick = "transactionCheckInterval=500\ntransactionTimeOut=500\nmessageDelayLevel=1s 8s\n"
    async with replicated(tmp_path, extra=quick) as pair, Producer("p", pair.namesrv) as producer:
        old, new = pair.nodes
        await pair.send(producer, 1)
        await producer.send(Message(TOPIC, b"delivered before", delay_level=1))
        await producer.send(Message("popped", b"out"))

        async def is_delivered() -> bool:
            return await pair.max_offset(old) == 2

        await until(is_delivered)
        new.start()
        await pair.connected(old)
        await pair.knows_topic(new)
        asked = asyncio.Event()

        def check(_message: object) -> TransactionState:
            asked.set()
            return TransactionState.COMMIT

        async with TransactionProducer("bank", pair.namesrv, check=check) as bank:
            await bank.send_in_transaction(Message(TOPIC, b"half"), lambda _message: TransactionState.UNKNOWN)
            await producer.send(Message(TOPIC, b"delayed", delay_level=2))
            await producer.send(Message(TOPIC, b"timed", delay=timedelta(seconds=8)))
            popped = await pair.ask(
                old, Command.request(RequestCode.POP_MESSAGE, PopMessage("g", "popped", -1, 1, 8_000, 0))
            )
            assert popped.code == ResponseCode.SUCCESS
            await pair.connected(old)
            old.kill()
            new.stop()
            new.role = MASTER
            new.start()

            async def is_all_there() -> bool:
                comes_again = await pair.max_offset(new, pop_retry_topic("popped", "g")) == 1
                return comes_again and {b"half", b"delayed", b"timed"} <= set(await pair.bodies(new))

            await until(is_all_there)
        bodies = await pair.bodies(new)
        assert sorted(bodies[:2]) == [b"0", b"delivered before"]
        assert bodies.count(b"delivered before") == 1, "the old master had delivered it"


async def promote(namesrv: str, *options: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(cosmodrome, "admin", "promote", NAME, "--namesrv", namesrv, *options)


async def test_a_slave_is_promoted_while_it_runs_when_its_master_was_killed(tmp_path: Path) -> None:
    async with replicated(tmp_path) as pair, Producer("p", pair.namesrv) as producer:
        old, new = pair.nodes
        new.start()
        await pair.connected(old)
        await pair.send(producer, 50)
        old.hang()
        refused = await promote(pair.namesrv)
        assert refused.returncode == 1
        assert f"knows {old.address} as the master of {NAME}, and it cannot be asked" in refused.stderr
        old.kill()
        done = await promote(pair.namesrv, "-o", "json")
        assert done.returncode == 0, done.stderr
        assert "takes over alone: what only the old master had is not on it" in done.stderr
        assert json.loads(done.stdout) == {
            "brokerName": NAME,
            "master": new.address,
            "brokerRole": MASTER,
            "term": 2,
            "before": "",
            "slave": "",
        }
        assert set(pair.acknowledged.values()) <= set(await pair.bodies(new))
        old.start()  # with its old file
        assert "this master of broker-a is stale, and takes no messages" in old.process.output
        await pair.send(producer, 3)
        demoted = await asyncio.to_thread(cosmodrome, "admin", "demote", old.address, "--namesrv", pair.namesrv)
        assert demoted.returncode == 0, demoted.stderr
        follows = f"{old.address} is slave 1 of {NAME}: it follows {new.address}, SYNC_MASTER with term 2\n"
        assert demoted.stdout == follows
        await pair.connected(new)
        assert {result.status.name for result in await pair.send(producer, 1)} == {"SEND_OK"}
        assert await pair.max_offset(new) == await pair.max_offset(old) == 54


def test_up_is_no_place_for_a_slave(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerRole=SLAVE\nbrokerId=1\n")
    done = cosmodrome("up", "--data", str(tmp_path / "data"), "-c", str(conf))
    assert done.returncode != 0
    assert "brokerRole=SLAVE is refused: the name server that `cosmodrome up` starts knows no master" in done.stderr

"""Messages that are looked up, from Python and with `cosmodrome find`."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from cosmodrome import Message, MessageQueue, Producer, PullConsumer
from cosmodrome.blocking import Producer as BlockingProducer
from cosmodrome.cli.main import main
from cosmodrome.client.finding import Finder
from cosmodrome.client.instance import Instance
from cosmodrome.clock import SystemClock
from cosmodrome.config import ClientConfig
from tests.system.cluster import running_cluster
from tests.system.daemons import up

PATIENCE_SECONDS = 30


async def test_topics_are_made_and_messages_found_from_python(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, brokers=2) as cluster,
        asyncio.timeout(PATIENCE_SECONDS),
        Producer("p", cluster.namesrv) as producer,
        PullConsumer("g", cluster.namesrv) as consumer,
    ):
        await producer.create_topic("orders", 2, attributes={"message.type": "NORMAL"})
        queues = await producer.publish_queues("orders")
        assert sorted(queues) == [MessageQueue("orders", f"broker-{x}", number) for x in "ab" for number in range(2)]
        assert await consumer.earliest_msg_store_time(queues[0]) == -1
        sent = [
            await producer.send(Message("orders", b"%d" % number, keys=["all", f"k{number}"]), queue)
            for number, queue in enumerate(queues)
        ]
        for client in (producer, consumer):
            found = await client.query_message("orders", "all")
            assert sorted(one.body for one in found) == [b"0", b"1", b"2", b"3"]
            (second,) = await client.query_message("orders", "k1", found[0].store_timestamp, found[-1].store_timestamp)
            assert (second.body, second.queue) == (b"1", sent[1].queue)
            assert await client.query_message("orders", "k1", 0, found[0].store_timestamp - 1) == []
            for message_id in (sent[2].msg_id, sent[2].offset_msg_id):
                viewed = await client.view_message("orders", message_id)
                assert (viewed.body, viewed.queue, viewed.msg_id) == (b"2", sent[2].queue, sent[2].msg_id)
            assert await client.earliest_msg_store_time(sent[3].queue) == next(
                one.store_timestamp for one in found if one.queue == sent[3].queue
            )
            assert await client.search_offset(queues[0], found[-1].store_timestamp + 1) == 1


async def test_a_time_range_goes_over_all_queues_and_pulls(tmp_path: Path) -> None:
    """More messages in a queue than a pull brings, the first of them too early and the last too late."""
    async with running_cluster(tmp_path) as cluster, asyncio.timeout(PATIENCE_SECONDS):
        times: list[int] = []
        async with Producer("p", cluster.namesrv) as producer:
            await producer.create_topic("t", 2)
            for queue in await producer.publish_queues("t"):
                for _ in range(70):
                    result = await producer.send(Message("t", b"x"), queue)
                    times.append((await producer.view_message("t", result.offset_msg_id)).store_timestamp)
        instance = Instance(ClientConfig(namesrv=cluster.namesrv), SystemClock(), None)
        instance.start()
        try:
            finder = Finder(instance)
            for begin_ms, end_ms in ((0, 2**62), (times[5], times[-5]), (times[-1], times[0]), (times[30], times[80])):
                found = await finder.between("t", begin_ms, end_ms, 1_000)
                assert [one.store_timestamp for one in found.all()] == [
                    at for at in sorted(times) if begin_ms <= at <= end_ms
                ]
            assert len((await finder.between("t", 0, 2**62, 99)).messages) == 99
        finally:
            await instance.stop()


def find(*words: str) -> Result:
    """In this process: a dozen of its own would take seconds to start."""
    return CliRunner().invoke(main, ["find", *words])


def found_json(*words: str) -> list[dict[str, Any]]:
    done = find(*words, "-o", "json")
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_the_command_finds(tmp_path: Path) -> None:
    with up(tmp_path) as daemon:
        namesrv = daemon.address("name server")
        with BlockingProducer("p", namesrv) as producer:
            first = producer.send(
                Message(
                    "orders", b"a" * 3_000, tags="paid", keys=["o-1", "eu"], properties={"shop": "K\xf6ln \x1b[31m"}
                )
            )
            second = producer.send(Message("orders", b"\xff\xfe", keys="o-2"), first.queue)
            stored_ms = producer.view_message("orders", second.offset_msg_id).store_timestamp
        access = ("-n", namesrv)

        shown = find("orders", "--id", first.msg_id, *access)
        assert (shown.exit_code, shown.stderr) == (0, "")
        place = f"{first.queue.broker_name}/{first.queue.queue_id}@0"
        assert shown.stdout.startswith(f"orders {place}\n")
        for line in (
            f"  id           {first.msg_id}\n",
            f"  offset id    {first.offset_msg_id}\n",
            "  tag          paid\n",
            "  keys         o-1 eu\n",
            r"shop=Köln \x1b[31m",
            "  body         3000 bytes: " + "a" * 1_000 + " … cut after 1000 characters; -o json shows all\n",
        ):
            assert line in shown.stdout
        (whole,) = found_json("orders", "--at", place, *access)
        assert (whole["body"], whole["msgId"]) == ("a" * 3_000, first.msg_id)
        (raw,) = found_json("orders", "--key", "o-2", *access)
        assert (raw["bodyBase64"], raw["offsetMsgId"]) == ("//4=", second.offset_msg_id)

        since = datetime.fromtimestamp(stored_ms / 1000, UTC).isoformat()
        assert second.msg_id in {one["msgId"] for one in found_json("orders", "--begin", since, *access)}
        limited = find("orders", "--end", since, "--limit", "1", *access)
        assert (limited.exit_code, limited.stdout.count(" offset id ")) == (0, 1)
        assert limited.stderr == "there are more; --limit shows more than 1\n"

        for words, said in (
            (("--key", "o-3"), "topic orders has no message with the key o-3 in its index, stored at these times"),
            (("--id", "7F" * 16), "is it deleted, or elsewhere?"),
            (("--at", place.replace("@0", "@7")), "has no offset 7; it keeps 0 to 1"),
            (("--begin", "2100-01-01T00:00Z"), "topic orders has no message that was stored at these times"),
        ):
            nothing = find("orders", *words, *access)
            assert (nothing.exit_code, nothing.stdout) == (1, "")
            assert said in nothing.stderr
            assert nothing.stderr.count("\n") == 1
        unknown = find("nowhere", "--key", "k", *access)
        assert (unknown.exit_code, "No topic route info" in unknown.stderr) == (1, True)

"""Verbs that send messages."""

from __future__ import annotations

import time
from typing import Any

import click

from cosmodrome.admin import Admin
from cosmodrome.cli.admin.common import Answer, topic_option, verb
from cosmodrome.cli.formats import Column, Schema
from cosmodrome.client.producer import Producer
from cosmodrome.errors import ClientError
from cosmodrome.model import Message, MessageQueue, SendResult

BOOLEAN = click.BOOL
GROUP = "cosmodrome-admin"
MAX_MESSAGES = 1_000_000
SENT = Schema(
    "message",
    (
        Column("brokerName", "The broker.", "BROKER"),
        Column("queueId", "The queue.", "QUEUE", right=True),
        Column("queueOffset", "The message's offset.", "OFFSET", right=True),
        Column("status", "How safe it is."),
        Column("msgId", "Its id.", "ID"),
        Column("rtMs", "How long it took, in ms.", "MS", right=True),
        Column("problem", "Why it was not sent.", wide=True),
    ),
)
ROUND = Schema(
    "broker",
    (
        Column("cluster", "The cluster."),
        Column("brokerName", "The broker.", "BROKER"),
        Column("rtMs", "How long a send took on average, in ms.", "MS", right=True),
        Column("success", "Messages that were sent.", right=True),
        Column("failed", "Messages that were not.", right=True),
        Column("room", "The machine room given by -m.", wide=True),
    ),
)


def _row(result: SendResult, took_ms: float) -> dict[str, Any]:
    return {
        "brokerName": result.queue.broker_name,
        "queueId": result.queue.queue_id,
        "queueOffset": result.queue_offset,
        "status": str(result.status),
        "msgId": result.msg_id,
        "rtMs": took_ms,
    }


async def _timed(producer: Producer, message: Message, queue: MessageQueue) -> dict[str, Any]:
    begun = time.perf_counter()
    try:
        result = await producer.send(message, queue=queue)
    except ClientError as error:
        took_ms = (time.perf_counter() - begun) * 1000
        return {
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "status": "FAILED",
            "rtMs": took_ms,
            "problem": str(error),
        }
    return _row(result, (time.perf_counter() - begun) * 1000)


def _producer(admin: Admin, *, trace: bool = False) -> Producer:
    return Producer(GROUP, config=admin.config, rpc_hooks=admin.rpc_hooks, trace=trace)


async def _writable(admin: Admin, topic: str, broker: str = "") -> list[MessageQueue]:
    route = await admin.topic_route(topic)
    return [
        MessageQueue(topic, one.broker_name, queue_id)
        for one in sorted(route.queues, key=lambda one: one.broker_name)
        if broker in ("", one.broker_name)
        for queue_id in range(one.write_queues)
    ]


def _failures(rows: list[dict[str, Any]]) -> str:
    failed = [row for row in rows if row["status"] == "FAILED"]
    return f"{len(failed)} of {len(rows)} messages were not sent: {failed[0]['problem']}" if failed else ""


@verb(SENT)
@topic_option
@click.option("-p", "--body", required=True, help="The body, as text.")
@click.option("-k", "--key", "keys", default="", help="Its keys, separated by spaces.")
@click.option("-c", "--tags", "tag", default="", help="Its tag.")
@click.option("-b", "--broker", default="", help="To this broker, by name; needs -i.")
@click.option("-i", "--qid", "queue_id", type=click.IntRange(0), help="To this queue; needs -b.")
@click.option("-m", "--msgTraceEnable", "trace", type=BOOLEAN, default=False, help="Trace it.")
async def send_message(
    admin: Admin, topic: str, body: str, keys: str, tag: str, broker: str, queue_id: int | None, trace: bool
) -> Answer:
    """Send one message."""
    if bool(broker) != (queue_id is not None):
        raise click.UsageError("a queue is named by its broker and its id: give -b and -i together")
    queue = MessageQueue(topic, broker, queue_id) if queue_id is not None else None
    async with _producer(admin, trace=trace) as producer:
        begun = time.perf_counter()
        result = await producer.send(Message(topic, body.encode(), tags=tag, keys=keys), queue=queue)
        return Answer([_row(result, (time.perf_counter() - begun) * 1000)])


@verb(SENT)
@click.option("-b", "--brokerName", "broker", required=True, help="The broker's name; its own topic gets the messages.")
@click.option("-s", "--messageSize", "size", type=click.IntRange(1), default=128, show_default=True, help="Bytes.")
@click.option("-c", "--count", type=click.IntRange(1, MAX_MESSAGES), default=50, show_default=True, help="Messages.")
async def send_msg_status(admin: Admin, broker: str, size: int, count: int) -> Answer:
    """Send messages to one broker, and show how long each took."""
    return await _send_round(admin, broker, broker, size, count)


async def _send_round(admin: Admin, topic: str, broker: str, size: int, count: int) -> Answer:
    queues = await _writable(admin, topic, broker)
    if not queues:
        raise ClientError(f"topic {topic} has no queue to write to; topicRoute shows what it has")
    async with _producer(admin) as producer:
        message = Message(topic, b"a" * size)
        rows = [await _timed(producer, message, queues[number % len(queues)]) for number in range(count)]
    if all(row["status"] == "FAILED" for row in rows):
        raise ClientError(_failures(rows))
    return Answer(rows, note=_failures(rows))


@verb(SENT)
@topic_option
@click.option("-a", "--amount", "count", type=click.IntRange(1, MAX_MESSAGES), default=100, show_default=True)
@click.option("-s", "--size", type=click.IntRange(1), default=128, show_default=True, help="Bytes.")
async def check_msg_send_rt(admin: Admin, topic: str, count: int, size: int) -> Answer:
    """Send messages to the queues of a topic in turn, and show how long each took; the average is a note."""
    answer = await _send_round(admin, topic, "", size, count)
    times = [float(row["rtMs"]) for row in answer.rows]
    average = sum(times) / len(times)
    answer.note = f"average {average:.2f} ms" + (f"; {answer.note}" if answer.note else "")
    return answer


@verb(ROUND, with_interval=True)
@click.option("-a", "--amount", "count", type=click.IntRange(1, MAX_MESSAGES), default=100, show_default=True)
@click.option("-s", "--size", type=click.IntRange(1), default=128, show_default=True, help="Bytes.")
@click.option("-c", "--cluster", default="", help="This cluster only.")
@click.option("-m", "--machineRoom", "room", default="", help="A name that each row gets.")
async def cluster_rt(admin: Admin, count: int, size: int, cluster: str, room: str) -> Answer:
    """Send messages to the own topic of each broker, and show how long they took. --watch SECONDS repeats it."""
    rows = []
    async with _producer(admin) as producer:
        for node in await admin.targets(cluster=cluster):
            queues = await _writable(admin, node.broker_name, node.broker_name)
            message = Message(node.broker_name, b"a" * size)
            sent = [await _timed(producer, message, queues[number % len(queues)]) for number in range(count)]
            good = [row for row in sent if row["status"] != "FAILED"]
            rows.append(
                {
                    "cluster": node.cluster,
                    "brokerName": node.broker_name,
                    "rtMs": sum(row["rtMs"] for row in good) / len(good) if good else 0.0,
                    "success": len(good),
                    "failed": len(sent) - len(good),
                    "room": room,
                }
            )
    return Answer(rows)

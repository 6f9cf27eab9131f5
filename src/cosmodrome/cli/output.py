"""Showing results: text for people, JSON for scripts."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import click
import orjson

from cosmodrome.model import ReceivedMessage, SendResult


def echo_json(value: dict[str, Any]) -> None:
    click.echo(orjson.dumps(value).decode())


def send_result_json(result: SendResult) -> dict[str, Any]:
    return {
        "status": str(result.status),
        "msgId": result.msg_id,
        "offsetMsgId": result.offset_msg_id,
        "topic": result.queue.topic,
        "brokerName": result.queue.broker_name,
        "queueId": result.queue.queue_id,
        "queueOffset": result.queue_offset,
        **({"recallHandle": result.recall_handle} if result.recall_handle else {}),
    }


def send_result_text(result: SendResult) -> str:
    queue = result.queue
    return (
        f"{result.status} {queue.topic} {queue.broker_name}/{queue.queue_id}@{result.queue_offset} id {result.msg_id}"
    )


def message_json(message: ReceivedMessage) -> dict[str, Any]:
    """Every field of a message; a body that is no text is given in base64 under another name."""
    value: dict[str, Any] = {
        "topic": message.topic,
        "brokerName": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "flag": message.flag,
        "reconsumeTimes": message.reconsume_times,
        "bornTimestamp": message.born_timestamp,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_timestamp,
        "storeHost": message.store_host,
    }
    try:
        value["body"] = message.body.decode()
    except UnicodeDecodeError:
        value["bodyBase64"] = base64.b64encode(message.body).decode()
    return value


def message_text(message: ReceivedMessage) -> str:
    stored = datetime.fromtimestamp(message.store_timestamp / 1000, UTC).astimezone()
    place = f"{message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}"
    labels = [f"tag={message.tags}" if message.tags else "", f"key={message.keys}" if message.keys else ""]
    body = message.body.decode(errors="backslashreplace")
    return " ".join(filter(None, [f"{stored:%H:%M:%S.%f}"[:-3], place, *labels, body]))

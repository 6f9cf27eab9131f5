"""Verbs that look at stored messages. Nothing is consumed, and no group is moved."""

from __future__ import annotations

import asyncio
import base64
import codecs
import dataclasses
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import click

from cosmodrome.admin import Admin, Unanswered
from cosmodrome.cli.admin.common import Answer, broker_option, moment, topic_option, verb
from cosmodrome.cli.formats import Column, Schema
from cosmodrome.cli.output import message_json
from cosmodrome.client.finding import END_OF_TIME_MS, Found
from cosmodrome.client.producer import Producer
from cosmodrome.client.subscribing import subscription
from cosmodrome.client.tracing import find_traces
from cosmodrome.errors import ClientError, InvalidArgument, ProtocolError, RouteNotFound
from cosmodrome.filter.tags import matches
from cosmodrome.model import ALL_TAGS, TRACE_TOPIC, Message, MessageQueue, Property, ReceivedMessage
from cosmodrome.wire.record import parse_offset_msg_id

BOOLEAN = click.BOOL
LIMIT = 1_000
MESSAGE = Schema(
    "message",
    (
        Column("topic", "Its topic.", wide=True),
        Column("brokerName", "Its broker.", "BROKER"),
        Column("queueId", "Its queue.", "QUEUE", right=True),
        Column("queueOffset", "Its offset in the queue.", "OFFSET", right=True),
        Column("msgId", "Its unique id, else its offset id.", "ID"),
        Column("offsetMsgId", "Its place: the broker's address and the offset in its log.", "OFFSET-ID", wide=True),
        Column("tags", "Its tag."),
        Column("keys", "Its keys, with spaces between them."),
        Column("storeTimestamp", "When it was stored, in ms since 1970.", "STORED"),
        Column("storeHost", "Where it was stored.", hidden=True),
        Column("bornTimestamp", "When it was sent, in ms since 1970.", "BORN", wide=True),
        Column("bornHost", "Where it was sent.", "FROM", wide=True),
        Column("reconsumeTimes", "How often it was delivered in vain.", "TRIES", right=True, wide=True),
        Column("properties", "All its properties.", hidden=True),
        Column("flag", "The flag of its sender.", hidden=True),
        Column("body", "Its body, if that is text."),
        Column("bodyBase64", "Its body in base64, if it is no text.", hidden=True),
        Column("consumed", "Groups of its topic, and whether each has consumed it.", wide=True),
    ),
)
PLACE = Schema(
    "id",
    (
        Column("msgId", "The id.", "ID"),
        Column("address", "The broker that stored the message."),
        Column("offset", "The message's place in that broker's log.", right=True),
    ),
)
TRACE = Schema(
    "event",
    (
        Column("event", "What happened: Pub, SubBefore, SubAfter, EndTransaction or Recall."),
        Column("timestamp", "When, in ms since 1970."),
        Column("group", "The group of the client."),
        Column("clientHost", "The client.", "CLIENT"),
        Column("topic", "The topic.", wide=True),
        Column("costMs", "How long it took, in ms.", "MS", right=True),
        Column("success", "Whether it went well.", "OK"),
        Column("details", "Everything that was traced.", hidden=True),
    ),
)
ENTRY = Schema(
    "entry",
    (
        Column("brokerName", "The broker.", "BROKER"),
        Column("queueId", "The queue.", "QUEUE", right=True),
        Column("index", "The entry's offset.", right=True),
        Column("physicalOffset", "Where its message lies in the log.", "LOG-OFFSET", right=True),
        Column("size", "The size of its message, in bytes.", right=True),
        Column("tagsCode", "The hash of its tag, or when it is due.", "TAGS-CODE", right=True),
        Column("wanted", "Whether the group of -g wants it."),
        Column("problem", "Why the entry cannot be shown.", wide=True),
    ),
)


def charset(text: str) -> str:
    """Return the name of an encoding that Python knows."""
    try:
        return codecs.lookup(text).name
    except LookupError:
        raise click.BadParameter(f"{text!r} is no encoding; write UTF-8 or GBK, for example") from None


def message_row(message: ReceivedMessage, *, with_body: bool = True, encoding: str = "utf-8") -> dict[str, Any]:
    """Return a message as a row of MESSAGE."""
    row = message_json(message)
    if encoding != "utf-8":
        try:
            row["body"] = message.body.decode(encoding)
            row.pop("bodyBase64", None)
        except UnicodeDecodeError:
            row.pop("body", None)
            row["bodyBase64"] = base64.b64encode(message.body).decode()
    if not with_body:
        row.pop("body", None)
        row.pop("bodyBase64", None)
    return row


def _answer(found: Found, *, more: bool = False, rows: Iterable[dict[str, Any]] | None = None) -> Answer:
    failures = [Unanswered("a broker", getattr(one, "address", ""), str(one)) for one in found.failures]
    note = f"there are more: --limit shows more than {LIMIT}" if more else ""
    return Answer([message_row(one) for one in found.messages] if rows is None else rows, failures, note)


async def _with_groups(admin: Admin, message: ReceivedMessage, encoding: str = "utf-8") -> dict[str, Any]:
    """Return the row of a message, with the groups that have consumed it and those that have not."""
    groups = await admin.topic_groups(message.topic)
    place = (message.queue.broker_name, message.queue.queue_id)

    async def state(group: str) -> str:
        progress = await admin.group_progress(group, message.topic)
        offsets = {(one.broker_name, one.queue_id): one.consumer_offset for one in progress.queues}
        return "CONSUMED" if offsets.get(place, 0) > message.queue_offset else "NOT_CONSUME_YET"

    states = await asyncio.gather(*map(state, groups))
    return {**message_row(message, encoding=encoding), "consumed": dict(zip(groups, states, strict=True))}


_FORMAT = click.option("-f", "--bodyFormat", "encoding", type=charset, default="utf-8", help="Of the body: GBK.")


@verb(MESSAGE)
@topic_option
@_FORMAT
@click.option("-i", "--msgId", "message_ids", required=True, help="Ids, separated by commas.")
@click.option("-s", "--sendMessage", "resend", type=BOOLEAN, default=False, help="Send each message again.")
@click.option("-g", "--consumerGroup", "group", default="", help="With -d: the group of the consumer.")
@click.option("-d", "--clientId", "client_id", default="", help="Have this consumer handle the message now.")
async def query_msg_by_id(
    admin: Admin, topic: str, encoding: str, message_ids: str, resend: bool, group: str, client_id: str
) -> Answer:
    """Show the messages with these ids; send them again, or have one consumer of a group handle them."""
    if bool(group) != bool(client_id):
        raise click.UsageError("a consumer is named by its group and its client id: give -g and -d together")
    messages = [await admin.message_by_id(topic, one.strip()) for one in message_ids.split(",") if one.strip()]
    notes = []
    if resend:
        async with Producer("cosmodrome-admin", config=admin.config, rpc_hooks=admin.rpc_hooks) as producer:
            for message in messages:
                result = await producer.send(_copy(message))
                notes.append(f"{message.msg_id} was sent again as {result.msg_id}")
    if client_id:
        for message in messages:
            handled = await admin.consume_directly(group, client_id, topic, message.offset_msg_id)
            notes.append(f"{message.offset_msg_id} at {client_id}: {handled.result} in {handled.spent_ms} ms")
    return Answer([await _with_groups(admin, message, encoding) for message in messages], note="; ".join(notes))


def _copy(message: ReceivedMessage) -> Message:
    """Return a message to send with the same body, tag, keys and user properties."""
    own = {value for name, value in vars(Property).items() if not name.startswith("_")}
    properties = {name: value for name, value in message.properties.items() if name not in own}
    keys = message.keys.split() if message.keys else []
    return Message(message.topic, message.body, message.tags, keys, properties, message.flag)


@verb(MESSAGE)
@topic_option
@click.option("-k", "--msgKey", "key", required=True, help="The key.")
@click.option("-b", "--beginTimestamp", "begin", type=moment, default="0", help="Stored then or later.")
@click.option("-e", "--endTimestamp", "end", type=moment, default=str(END_OF_TIME_MS // 10_000), help="Or earlier.")
@click.option("-m", "--maxNum", "limit", type=click.IntRange(1), default=64, show_default=True, help="At most.")
async def query_msg_by_key(admin: Admin, topic: str, key: str, begin: int, end: int, limit: int) -> Answer:
    """List the newest messages with a key, the oldest first. Of one key a broker gives 64."""
    return _answer(await admin.messages_by_key(topic, key, begin, end, limit))


@verb(MESSAGE)
@topic_option
@click.option("-i", "--msgId", "message_id", required=True, help="The unique id.")
@click.option("-a", "--showAll", "every", is_flag=True, help="All of them, where a send was repeated.")
@click.option("-g", "--consumerGroup", "group", default="", help="With -d: the group of the consumer.")
@click.option("-d", "--clientId", "client_id", default="", help="Have this consumer handle the message now.")
async def query_msg_by_unique_key(
    admin: Admin, topic: str, message_id: str, every: bool, group: str, client_id: str
) -> Answer:
    """Show the message with a unique id, and which groups have consumed it."""
    if bool(group) != bool(client_id):
        raise click.UsageError("a consumer is named by its group and its client id: give -g and -d together")
    found = await admin.messages_by_unique_key(topic, message_id)
    if not found.messages and not found.failures:
        raise ClientError(f"topic {topic} has no message with the unique id {message_id}")
    messages = found.messages if every else found.messages[-1:]
    note = ""
    if client_id and messages:
        result = await admin.consume_directly(group, client_id, topic, messages[-1].offset_msg_id)
        note = f"{message_id} at {client_id}: {result.result} in {result.spent_ms} ms"
    rows = [await _with_groups(admin, message) for message in messages]
    answer = _answer(found, rows=rows)
    return dataclasses.replace(answer, note=note)


@verb(MESSAGE, own_o=("offset", click.IntRange(0)))
@topic_option
@click.option("-b", "--brokerName", "broker", required=True, help="The broker's name.")
@click.option("-i", "--queueId", "queue_id", required=True, type=click.IntRange(0), help="The queue.")
@click.option("--offset", type=click.IntRange(0), help="The offset in the queue.")
@_FORMAT
async def query_msg_by_offset(
    admin: Admin, topic: str, broker: str, queue_id: int, offset: int | None, encoding: str
) -> Answer:
    """Show the message at an offset of a queue."""
    if offset is None:
        raise click.UsageError("say which message: -o OFFSET")
    message = await admin.message_at(MessageQueue(topic, broker, queue_id), offset)
    return Answer([message_row(message, encoding=encoding)])


@verb(TRACE)
@click.option("-i", "--msgId", "message_id", required=True, help="The message's id.")
@click.option("-t", "--traceTopic", "topic", default=TRACE_TOPIC, show_default=True, help="Where the traces are.")
@click.option("-b", "--beginTimestamp", "begin", type=moment, default="0", help="Traced then or later.")
@click.option("-e", "--endTimestamp", "end", type=moment, default=str(END_OF_TIME_MS // 10_000), help="Or earlier.")
@click.option("-c", "--maxNum", "limit", type=click.IntRange(1), default=64, show_default=True, help="At most.")
async def query_msg_trace_by_id(admin: Admin, message_id: str, topic: str, begin: int, end: int, limit: int) -> Answer:
    """Show who sent a message, and who consumed it, if its clients are traced."""
    try:
        records = await find_traces(message_id, topic=topic, rpc_hooks=admin.rpc_hooks, config=admin.config)
    except RouteNotFound:
        records = []
    wanted = [one for one in records if begin <= one.timestamp <= end]
    if not wanted:
        raise ClientError(
            f"no trace of {message_id} in {topic}; its producer and consumers must be traced (trace=True)"
        )
    rows = []
    for record in sorted(wanted, key=lambda one: one.timestamp)[-limit:]:
        details = dataclasses.asdict(record)
        rows.append(
            {
                "event": type(record).__name__,
                "timestamp": record.timestamp,
                "group": details.get("group", ""),
                "clientHost": details.get("client_host", ""),
                "topic": details.get("topic", ""),
                "costMs": details.get("cost_ms"),
                "success": details.get("success"),
                "details": {
                    name: value if isinstance(value, int | bool) else str(value) for name, value in details.items()
                },
            }
        )
    return Answer(rows)


@verb(PLACE)
@click.option("-i", "--messageId", "--msgId", "message_ids", required=True, help="Offset ids, separated by commas.")
async def decode_message_id(_admin: Admin, message_ids: str) -> Answer:
    """Show the broker and the place that an offset message id names. No cluster is asked."""
    rows = []
    for one in filter(None, (part.strip() for part in message_ids.split(","))):
        try:
            ip, port, offset = parse_offset_msg_id(one)
        except ProtocolError as error:
            raise InvalidArgument(f"{one} is no offset message id: {error}") from error
        rows.append({"msgId": one, "address": f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}", "offset": offset})
    return Answer(rows)


@verb(ENTRY)
@topic_option
@click.option("-q", "--queue", "queue_id", required=True, type=click.IntRange(0), help="The queue.")
@click.option("-i", "--index", required=True, type=click.IntRange(0), help="The first entry.")
@click.option("-c", "--count", type=click.IntRange(1, 1_000), default=10, show_default=True, help="How many.")
@click.option("-g", "--consumer", "group", default="", help="Show what this connected group wants.")
@broker_option
async def query_cq(admin: Admin, topic: str, queue_id: int, index: int, count: int, group: str, broker: str) -> Answer:
    """Show entries of a consume queue."""
    found = await admin.queue_entries(topic, queue_id, index, count, broker=broker, group=group)
    page = found.page
    first = max(index, page.min_offset)
    rows = [
        {
            "brokerName": found.node.broker_name,
            "queueId": queue_id,
            "index": first + number,
            "physicalOffset": entry.physical_offset,
            "size": entry.size,
            "tagsCode": entry.tags_code,
            "wanted": entry.is_wanted if group else None,
            "problem": entry.message,
        }
        for number, entry in enumerate(page.entries)
    ]
    return Answer(rows, note=f"the queue has entries {page.min_offset} to {page.max_offset - 1}")


def _wanted(messages: Iterable[ReceivedMessage], topic: str, expression: str) -> list[ReceivedMessage]:
    chosen = subscription(topic, expression, 0)
    return [one for one in messages if expression == ALL_TAGS or matches(chosen, one.tags)]


_EXPRESSION = click.option("-s", "--subExpression", "expression", default=ALL_TAGS, help="Tags: TagA || TagB.")
_CHARSET = click.option("-c", "--charsetName", "encoding", type=charset, default="utf-8", help="Of the bodies: GBK.")
_LIMIT = click.option("--limit", type=click.IntRange(1), default=LIMIT, show_default=True, help="Look at so many.")
_BEGIN = click.option("-b", "--beginTimestamp", "begin", type=moment, default="0", help="Stored then or later.")
_END = click.option(
    "-e", "--endTimestamp", "end", type=moment, default=str(END_OF_TIME_MS // 10_000), help="Stored then or earlier."
)


@verb(MESSAGE)
@topic_option
@_EXPRESSION
@_BEGIN
@_END
@click.option("-d", "--printBody", "with_body", type=BOOLEAN, default=True, help="With the bodies.")
@_CHARSET
@_LIMIT
async def print_msg(
    admin: Admin, topic: str, expression: str, begin: int, end: int, with_body: bool, encoding: str, limit: int
) -> Answer:
    """Print the messages of a topic, the oldest first."""
    found = await admin.messages_between(topic, begin, end, limit + 1)
    shown = _wanted(found.messages[:limit], topic, expression)
    rows = [message_row(one, with_body=with_body, encoding=encoding) for one in shown]
    return _answer(found, more=len(found.messages) > limit, rows=rows)


@verb(MESSAGE)
@topic_option
@click.option("-a", "--brokerName", "broker", required=True, help="The broker's name.")
@click.option("-i", "--queueId", "queue_id", required=True, type=click.IntRange(0), help="The queue.")
@_EXPRESSION
@_BEGIN
@_END
@click.option("-p", "--printMsg", "_print", type=BOOLEAN, default=True, help="As mqadmin's: messages are printed.")
@click.option("-d", "--printBody", "with_body", type=BOOLEAN, default=True, help="With the bodies.")
@click.option("-f", "--calculate", "by_tag", type=BOOLEAN, default=False, help="Count the messages by tag, as a note.")
@_CHARSET
@_LIMIT
async def print_msg_by_queue(
    admin: Admin,
    topic: str,
    broker: str,
    queue_id: int,
    expression: str,
    begin: int,
    end: int,
    _print: bool,
    with_body: bool,
    by_tag: bool,
    encoding: str,
    limit: int,
) -> Answer:
    """Print the messages of a queue, the oldest first; with -f true, count them by tag."""
    found = await admin.queue_messages(MessageQueue(topic, broker, queue_id), begin, end, limit + 1)
    shown = _wanted(found.messages[:limit], topic, expression)
    rows = [message_row(one, with_body=with_body, encoding=encoding) for one in shown] if _print else []
    answer = _answer(found, more=len(found.messages) > limit, rows=rows)
    if by_tag:
        counts = json.dumps(dict(Counter(one.tags for one in shown).most_common()))
        answer.note = f"by tag: {counts}" + (f"; {answer.note}" if answer.note else "")
    return answer


@verb(MESSAGE, own_o=("offset", click.IntRange(0)))
@topic_option
@click.option("-b", "--brokerName", "broker", default="", help="On this broker only.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(0), help="On this queue only; needs -b.")
@click.option("--offset", type=click.IntRange(0), help="From this offset on; needs -b and -i.")
@click.option("-s", "--beginTimestamp", "begin", type=moment, default="0", help="Stored then or later.")
@_END
@click.option("-c", "--MessageNumber", "count", type=click.IntRange(1), default=128, show_default=True, help="So many.")
async def consume_message(
    admin: Admin, topic: str, broker: str, queue_id: int | None, offset: int | None, begin: int, end: int, count: int
) -> Answer:
    """Print messages from an offset or a time on. No group is joined, and none is moved."""
    if queue_id is not None and not broker:
        raise click.UsageError("a queue is one broker's: name the broker, too (-b)")
    if offset is not None and queue_id is None:
        raise click.UsageError("an offset is one queue's: name the queue, too (-i)")
    if queue_id is not None:
        queue = MessageQueue(topic, broker, queue_id)
        return _answer(await admin.queue_messages(queue, begin, end, count, offset=offset))
    if not broker:
        return _answer(await admin.messages_between(topic, begin, end, count))
    queues = [one for one in (await admin.topic_route(topic)).queues if one.broker_name == broker]
    if not queues:
        raise ClientError(f"broker {broker} does not have topic {topic}; topicRoute shows which do")
    parts = await asyncio.gather(
        *(
            admin.queue_messages(MessageQueue(topic, broker, one), begin, end, count)
            for one in range(queues[0].read_queues)
        )
    )
    messages = sorted((one for part in parts for one in part.messages), key=lambda one: one.store_timestamp)
    return _answer(Found(messages[:count], [one for part in parts for one in part.failures]))

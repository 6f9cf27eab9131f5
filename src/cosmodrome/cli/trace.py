"""`cosmodrome trace`."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

import click

from cosmodrome.cli.access import Access, access_options, hints_at_start
from cosmodrome.cli.options import output_option
from cosmodrome.cli.output import echo_json, one_line
from cosmodrome.client.tracing import find_traces
from cosmodrome.errors import RouteNotFound
from cosmodrome.model import TRACE_TOPIC, check_topic
from cosmodrome.net.loop import run
from cosmodrome.wire.trace import EndTransaction, Outcome, Pub, Recall, SubAfter, SubBefore, TracedType, TraceRecord


@click.command()
@click.argument("msg_id")
@click.option("--topic", default=TRACE_TOPIC, show_default=True, help="Where the traces are.")
@access_options
@output_option
def trace(msg_id: str, topic: str, access: Access, output: str) -> None:
    """Show the life of the message MSG_ID: who sent it, where it went, who consumed it. A key of the message will do.

    Clients write it down if they are told to: in Python with trace=True, in Java with enableMsgTrace.
    """
    check_topic(topic)
    try:
        with hints_at_start():
            records = run(find_traces(msg_id, topic=topic, rpc_hooks=access.rpc_hooks, config=access.config))
    except RouteNotFound:
        records = []
    if not records:
        raise click.ClickException(
            f"no trace of {msg_id} in {topic}. Are its producer and consumers traced (trace=True)? "
            "A trace may be a few seconds behind; and give the message id, not the offset id."
        )
    for record in sorted(records, key=lambda record: (record.timestamp, isinstance(record, SubAfter))):
        if output == "json":
            echo_json({"event": type(record).__name__, **_fields(record)})
        else:
            click.echo(one_line(f"{_time(record.timestamp)}  {_told(record)}"))


def _fields(record: TraceRecord) -> dict[str, Any]:
    return {_camel_case(name): value for name, value in dataclasses.asdict(record).items()}


def _camel_case(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _time(timestamp: int) -> str:
    return f"{datetime.fromtimestamp(timestamp / 1000):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def _told(record: TraceRecord) -> str:
    match record:
        case Pub():
            # Stored, but not as safely as the broker promises: the trace of such a send has an id, and no success.
            unsafely = "sent, not yet safe," if record.offset_msg_id else "not sent"
            what = "sent" if record.success else unsafely
            kind = "" if record.msg_type == TracedType.NORMAL else f", {_name(TracedType, record.msg_type)}"
            labels = (f" tag {record.tags}" if record.tags else "") + (f" key {record.keys}" if record.keys else "")
            return (
                f"{what} to {record.topic}{labels} by group {record.group}, broker {record.store_host}, "
                f"{record.body_size} bytes in {record.cost_ms} ms{kind}"
            )
        case SubBefore():
            return f"handed to group {record.group}, try {record.retry_times + 1}"
        case SubAfter():
            what = "consumed" if record.success else "failed"
            if not (record.success and record.outcome == Outcome.SUCCESS):
                what = f"{what} ({_name(Outcome, record.outcome)})"
            return f"{what} by group {record.group} in {record.cost_ms} ms"
        case EndTransaction():
            asked = ", when asked by the broker" if record.from_check else ""
            return f"transaction of group {record.group} ended: {record.state}{asked}"
        case Recall():
            return f"{'taken back' if record.success else 'not taken back'} by group {record.group}"


def _name(kind: type[Outcome] | type[TracedType], value: int) -> str:
    known = {member.value: member.name for member in kind}
    return known.get(value, str(value)).lower().replace("_", " ")

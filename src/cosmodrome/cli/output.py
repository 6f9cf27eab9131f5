"""Showing results: text for people, JSON for scripts."""

from __future__ import annotations

import base64
import logging
import os
import select
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from cosmodrome.errors import CosmodromeError

if TYPE_CHECKING:
    from cosmodrome.model import ReceivedMessage, SendResult

log = logging.getLogger(__name__)

_PIPE_COLUMNS = 200  # of a table that goes into a file or another program
# What would move the cursor, colour the screen or give a terminal orders; lines may end as they like.
_ORDERS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
# What would show text in another order than it has, or on another line.
_ORDERS |= {code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))}
_LINE_ORDERS = _ORDERS | {ord("\n"): "\\n", ord("\t"): "\\t", ord("\r"): "\\r"}
_JSON_ORDERS = {code: f"\\u{code:04x}" for code in _ORDERS if code > 0x1F}  # the others are escaped in any JSON


@contextmanager
def errors_told() -> Iterator[None]:
    """End the command with one line and exit code 1 when something goes wrong; a traceback means a bug.

    When the reader of its output has left, as `head` does after its lines, the command ends with exit code 0.
    """
    try:
        yield
    except (CosmodromeError, OSError) as error:
        cause = error.__cause__ if isinstance(error, CosmodromeError) else error
        if isinstance(cause, BrokenPipeError) and reader_is_gone():
            discard_output()
            raise click.exceptions.Exit(0) from None
        log.debug("command failed", exc_info=True)
        if isinstance(error, OSError):
            _flush_or_discard()
        raise click.ClickException(visible(str(error))) from error


def _flush_or_discard() -> None:
    """Write what is left of the output. Where that fails, as on a full disk, Python would fail again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_output()


def reader_is_gone() -> bool:
    """Return whether standard output is a pipe or a terminal whose other end is closed."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    except (OSError, ValueError):  # a test's stream, or one closed in this process
        return False


def discard_output() -> None:
    """Point standard output at the null device, with what is left to write."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def visible(text: str) -> str:
    """Text of a message, for a terminal: it shows what would command it."""
    return text.replace("\r\n", "\n").translate(_ORDERS)


def one_line(text: str) -> str:
    """As `visible`, in one line: no message can look like two, nor like something that this command says."""
    return text.translate(_LINE_ORDERS)


class LogFormatter(logging.Formatter):
    """A formatter for lines: what peers sent can neither command a terminal nor pass for a line of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # its name in `logging`
        return one_line(super().formatMessage(record))


def table(columns: Iterable[str], rows: Iterable[Iterable[object]], title: str = "", right: Iterable[int] = ()) -> Any:
    """One that folds what is too wide. The columns with the numbers `right` hold figures."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE, title=title or None, title_justify="left")
    for number, column in enumerate(columns):
        made.add_column(Text(one_line(column)), overflow="fold", justify="right" if number in right else "left")
    for row in rows:
        made.add_row(*(Text("" if cell is None else one_line(str(cell))) for cell in row))
    return made


def echo_tables(*tables: Any) -> None:
    from rich.console import Console

    class Printer(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich itself would exit with code 1

    console = Printer(width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
    for each in tables:
        console.print(each)


def echo_json(value: dict[str, Any]) -> None:
    click.echo(json_text(value))


def json_text(value: Any, *, indent: bool = False) -> str:
    """Return a value as JSON that cannot command a terminal."""
    import orjson  # here: help and commands that print text do without

    return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None).decode().translate(_JSON_ORDERS)


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


def message_text(message: ReceivedMessage, *, raw: bool = False) -> str:
    """A message in one line; `raw` shows its text as it is, whatever that does to a terminal."""
    stored = datetime.fromtimestamp(message.store_timestamp / 1000, UTC).astimezone()
    place = f"{message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}"
    labels = [f"tag={message.tags}" if message.tags else "", f"key={message.keys}" if message.keys else ""]
    body = message.body.decode(errors="backslashreplace")
    text = " ".join(filter(None, [f"{stored:%H:%M:%S.%f}"[:-3], place, *labels, body]))
    return text if raw else one_line(text)

"""`cosmodrome send TOPIC - --lines`: one message for each line of standard input."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from typing import IO

import click

from cosmodrome.cli.access import Access
from cosmodrome.cli.output import echo_json, one_line, send_result_json
from cosmodrome.client.producer import Producer
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import Message, SendStatus

MAX_UNDER_WAY = 64


class Bulk:
    """The sending of many lines: at most MAX_UNDER_WAY at once, and so many in a second if a rate is asked for."""

    def __init__(self, template: Message, separator: str, rate: float | None, timeout_ms: int, output: str) -> None:
        self._template = template
        self._separator = separator.encode(errors="surrogateescape")
        self._rate = rate
        self._timeout_ms = timeout_ms
        self._output = output
        self.sent = 0
        self.unsafe = 0  # stored, but not as safely as the broker promises
        self.failed = 0

    async def run(self, access: Access, group: str, lines: IO[bytes]) -> None:
        """Send every line; what fails is said with its number, and the others go on."""
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        under_way: set[asyncio.Task[None]] = set()
        async with Producer(group, rpc_hooks=access.rpc_hooks, config=access.config) as producer:
            number = 0
            while (text := await loop.run_in_executor(None, _next_line, lines)) is not None:
                number += 1
                if self._rate:
                    await asyncio.sleep(max(began + (number - 1) / self._rate - time.monotonic(), 0))
                task = asyncio.create_task(self._send(producer, number, text))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                if len(under_way) >= MAX_UNDER_WAY:
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            if under_way:
                await asyncio.wait(under_way)
        seconds = max(time.monotonic() - began, 1e-6)
        if self._output == "text":
            unsafe = f", {self.unsafe} of them not as safe as promised" if self.unsafe else ""
            click.echo(f"{self.sent} messages sent{unsafe}, {self.failed} failed, in {seconds:.1f} s")

    def message_of(self, line: bytes) -> Message:
        """Return the message of a line; the key stands before the separator, if there is one."""
        key, found, body = line.partition(self._separator) if self._separator else (b"", b"", line)
        if not found:
            return dataclasses.replace(self._template, body=line)
        keys = [*self._template.keys, *key.decode(errors="surrogateescape").split()]
        return dataclasses.replace(self._template, body=body, keys=keys)

    async def _send(self, producer: Producer, number: int, line: bytes) -> None:
        try:
            result = await producer.send(self.message_of(line), timeout_ms=self._timeout_ms)
        except CosmodromeError as error:
            self.failed += 1
            click.echo(one_line(f"message {number}: {error}"), err=True)
            return
        self.sent += 1
        self.unsafe += result.status is not SendStatus.SEND_OK
        if self._output != "text":
            echo_json(send_result_json(result))


def _next_line(lines: IO[bytes]) -> bytes | None:
    """Return the next line that is not empty; None at the end."""
    while line := lines.readline():
        if text := line.rstrip(b"\r\n"):
            return text
    return None


def send_lines(bulk: Bulk, access: Access, group: str) -> None:
    """Send standard input; exit with 1 if a line was not sent."""
    from cosmodrome.net.loop import run

    run(bulk.run(access, group, sys.stdin.buffer))
    if bulk.failed:
        raise click.exceptions.Exit(1)

"""`cosmodrome top`: brokers, rates and lag, live."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator

import click

from cosmodrome.admin.door import Admin
from cosmodrome.admin.results import AllProgress, BrokerTables
from cosmodrome.cli.access import Access, access_options, hints_at_start
from cosmodrome.cli.asking import problems
from cosmodrome.cli.brokers import BROKERS, broker_rows
from cosmodrome.cli.formats import Column, Row, Schema, table_lines
from cosmodrome.cli.groups import lag_seconds
from cosmodrome.cli.output import one_line
from cosmodrome.cli.shared import is_system_group
from cosmodrome.errors import CosmodromeError
from cosmodrome.net.loop import run

GROUPS = Schema(
    "group",
    (
        Column("group", "The name."),
        Column("lag", "Messages that it has not consumed.", right=True),
        Column("change", "How lag changed since the last look.", "+/-", right=True),
        Column("lagSeconds", "How old the last message is that it consumed.", "LAG-S", right=True),
        Column("tps", "Messages that it consumes in a second.", right=True),
    ),
)
ENTER, LEAVE, HOME, CLEAR_LINE, CLEAR_BELOW = (
    "\x1b[?1049h\x1b[?25l",
    "\x1b[?25h\x1b[?1049l",
    "\x1b[H",
    "\x1b[K",
    "\x1b[J",
)
QUIT = frozenset(b"qQ\x03")


@click.command()
@click.option(
    "--every", type=click.FloatRange(min=0.2), default=2.0, show_default=True, metavar="SECONDS", help="Look so often."
)
@click.option("--times", type=click.IntRange(1), help="Stop after so many looks.  [default: q; 1 if it is no terminal]")
@access_options
def top(every: float, times: int | None, access: Access) -> None:
    """Show brokers, rates and lag live; q quits. The groups that are farthest behind stand first.

    When the output is no terminal, it is printed once, without control characters.
    """
    is_live = sys.stdout.isatty() and sys.stdin.isatty()
    looks = times or (0 if is_live else 1)
    with hints_at_start():
        run(_show(access, every, looks, is_live=is_live))


async def _show(access: Access, every: float, looks: int, *, is_live: bool) -> None:
    """Look and draw until there were so many looks, 0 for no end, or until q."""
    before: dict[str, int] = {}
    shown = 0
    async with Admin(rpc_hooks=access.rpc_hooks, config=access.config) as admin:
        with _screen() if is_live else contextlib.nullcontext():
            while True:
                try:
                    lines, before = await _look(admin, before)
                except CosmodromeError as error:
                    if not is_live or not shown:
                        raise
                    lines = [one_line(str(error))]
                _draw(lines, is_live=is_live)
                shown += 1
                if shown == looks or (is_live and _is_quit(every)):
                    return
                if not is_live:
                    time.sleep(every)  # noqa: ASYNC251  # nothing else runs


async def _look(admin: Admin, before: dict[str, int]) -> tuple[list[str], dict[str, int]]:
    figures, settings = await admin.broker_runtime(), await admin.broker_config()
    progress = await admin.all_progress()
    lags = {one.group: one.lag for one in progress.groups}
    return screen(figures, settings, progress, before, int(time.time() * 1_000)), lags


def screen(
    figures: BrokerTables, settings: BrokerTables, progress: AllProgress, before: dict[str, int], now_ms: int
) -> list[str]:
    """Return the lines of one look: totals, brokers, groups by lag, and who did not answer."""
    brokers = broker_rows(figures, settings)
    groups = sorted((one for one in progress.groups if not is_system_group(one.group)), key=lambda one: -one.lag)
    made: list[Row] = [
        {
            "group": one.group,
            "lag": one.lag,
            "change": f"{one.lag - before[one.group]:+d}" if one.group in before else None,
            "lagSeconds": max((lag_seconds(queue, now_ms) or 0 for queue in one.queues), default=0),
            "tps": one.tps,
        }
        for one in groups
    ]
    come, gone = (sum(float(row.get(key) or 0) for row in brokers) for key in ("putTps", "getTps"))
    lag = sum(one.lag for one in groups)
    title = f"in {come:.1f}/s  out {gone:.1f}/s  lag {lag}  brokers {len(brokers)}  groups {len(groups)}"
    return [
        title,
        "",
        *table_lines(BROKERS, brokers, wide=False),
        "",
        *table_lines(GROUPS, made, wide=False),
        *map(one_line, problems({*figures.unanswered, *progress.unanswered})),
    ]


def _draw(lines: list[str], *, is_live: bool) -> None:
    if not is_live:
        click.echo("\n".join(lines))
        return
    width, height = shutil.get_terminal_size()
    head = [f"cosmodrome top  {time.strftime('%H:%M:%S')}  q quits  {lines[0]}", *lines[1:]]
    text = "".join(f"{line[:width]}{CLEAR_LINE}\r\n" for line in head[: height - 1])
    sys.stdout.write(f"{HOME}{text}{CLEAR_BELOW}")
    sys.stdout.flush()


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """The other screen of the terminal, with keys read one by one; all is put back in the end."""
    keyboard = sys.stdin.fileno()
    saved = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    sys.stdout.write(ENTER)
    try:
        yield
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(keyboard, termios.TCSADRAIN, saved)


def _is_quit(seconds: float) -> bool:
    """Wait so long for a key; return whether it was q."""
    keyboard = sys.stdin.fileno()
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([keyboard], [], [], left)[0]:
            pressed = os.read(keyboard, 64)
            if not pressed or set(pressed) & QUIT:
                return True
    return False

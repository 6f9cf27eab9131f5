"""Percent formats for messages, as kcat has them: `%t %p %o %k %s\\n`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime

import click

from cosmodrome.cli.output import one_line
from cosmodrome.model import ReceivedMessage

Piece = Callable[[ReceivedMessage], str]

# The letter, its meaning, and the value.
DIRECTIVES: dict[str, tuple[str, Piece]] = {
    "t": ("topic", lambda m: m.topic),
    "b": ("broker", lambda m: m.queue.broker_name),
    "p": ("queue", lambda m: str(m.queue.queue_id)),
    "o": ("offset in the queue", lambda m: str(m.queue_offset)),
    "k": ("keys", lambda m: m.keys),
    "g": ("tag", lambda m: m.tags),
    "s": ("body", lambda m: m.body.decode(errors="backslashreplace")),
    "S": ("size of the body in bytes", lambda m: str(len(m.body))),
    "T": ("time when it was stored, in ms since 1970", lambda m: str(m.store_timestamp)),
    "D": ("time when it was stored, as a date", lambda m: _date(m.store_timestamp)),
    "B": ("time when it was sent, in ms since 1970", lambda m: str(m.born_timestamp)),
    "i": ("message id", lambda m: m.msg_id),
    "I": ("offset message id", lambda m: m.offset_msg_id),
    "h": ("properties as NAME=VALUE, separated by commas", lambda m: ",".join(f"{k}={v}" for k, v in _pairs(m))),
    "r": ("how often it was tried before", lambda m: str(m.reconsume_times)),
}
_PART = re.compile(r"%\{([^}]*)\}|%(.?)|\\(.?)|([^%\\]+)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


class PercentFormat:
    """A format whose mistakes are found when it is made. Values cannot break lines unless `raw` is asked for."""

    def __init__(self, text: str) -> None:
        self._pieces: list[str | Piece] = [_piece(match) for match in _PART.finditer(text)]

    def render(self, message: ReceivedMessage, *, raw: bool = False) -> str:
        """Return the text for one message; nothing is added, not even a line's end."""
        values = (piece if isinstance(piece, str) else _shown(piece(message), raw) for piece in self._pieces)
        return "".join(values)


def help_text() -> str:
    """Return what each directive stands for."""
    lines = [f"  %{letter}  {meaning}" for letter, (meaning, _) in DIRECTIVES.items()]
    return "\n".join([*lines, "  %{NAME}  the property NAME", "  %%  a percent sign", r"  \n \t \\  as in C"])


def _piece(match: re.Match[str]) -> str | Piece:
    name, letter, escaped, literal = match.groups()
    if literal is not None:
        return literal
    if name is not None:
        return lambda message: message.properties.get(name, "")
    if letter is not None:
        if letter == "%":
            return "%"
        if letter not in DIRECTIVES:
            raise click.BadParameter(f"%{letter} is unknown; -f help lists what there is")
        return DIRECTIVES[letter][1]
    if escaped not in _ESCAPES:
        raise click.BadParameter(rf"\{escaped} is unknown; write \n, \t, \r, \0 or \\")
    return _ESCAPES[escaped]


def _shown(value: str, raw: bool) -> str:
    return value if raw else one_line(value)


def _date(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1_000):%Y-%m-%dT%H:%M:%S.%f}"[:-3]


def _pairs(message: ReceivedMessage) -> list[tuple[str, str]]:
    return sorted(message.properties.items())

"""Messages between the members of a group in bytes.

    | version 1 | kind 1 | size of group 2 | of source 2 | of target 2 | term 8 | group | source | target |
    | numbers | rest |

The numbers are those of the message's kind, in the order of its fields. The rest are entries as they lie on disk, or
the members of a base. A message of another group, or of another version, is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from cosmodrome.errors import ProtocolError
from cosmodrome.raft.entries import EntryRun
from cosmodrome.raft.messages import (
    AppendReject,
    AppendRequest,
    AppendResponse,
    Base,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ResetRequest,
    StaleTerm,
    TakeLeadership,
    VoteRequest,
    VoteResponse,
)
from cosmodrome.raft.quorum import Membership

VERSION = 1
_HEAD = struct.Struct(">BBHHHq")


class _Kind(NamedTuple):
    """How the messages of one type are written."""

    number: int
    type: type[Any]
    numbers: struct.Struct
    split: Callable[[Any], tuple[tuple[int, ...], bytes | memoryview]]
    join: Callable[[tuple[str, str, int], tuple[int, ...], memoryview], Message]


def _plain(number: int, message_type: type[Any], numbers: str) -> _Kind:
    """Return the kind of a message whose fields are all numbers."""

    def join(begin: tuple[str, str, int], fields: tuple[int, ...], rest: memoryview) -> Message:
        if rest:
            raise ProtocolError(f"{len(rest)} bytes follow a {message_type.__name__}")
        message: Message = message_type(*begin, *fields)
        return message

    return _Kind(number, message_type, struct.Struct(numbers), lambda message: (message[3:], b""), join)


def _split_append(message: AppendRequest) -> tuple[tuple[int, ...], bytes | memoryview]:
    entries = message.entries
    if entries and not isinstance(entries, EntryRun):
        raise TypeError("entries travel as they lie in the log")
    raw = entries.raw if isinstance(entries, EntryRun) else b""
    return (message.prev_index, message.prev_term, message.commit), raw


def _join_append(begin: tuple[str, str, int], fields: tuple[int, ...], rest: memoryview) -> Message:
    prev_index, prev_term, commit = fields
    return AppendRequest(*begin, prev_index, prev_term, EntryRun.parse(rest) if rest else (), commit)


def _split_reset(message: ResetRequest) -> tuple[tuple[int, ...], bytes | memoryview]:
    base = message.base
    return (base.index, base.term, base.place), base.members.encode()


def _join_reset(begin: tuple[str, str, int], fields: tuple[int, ...], rest: memoryview) -> Message:
    index, term, place = fields
    if place < 0:
        raise ProtocolError(f"a log cannot begin at {place}")
    return ResetRequest(*begin, Base(index, term, Membership.decode(bytes(rest)), place))


_KINDS = (
    _plain(1, VoteRequest, ">qq??"),
    _plain(2, VoteResponse, ">??"),
    _Kind(3, AppendRequest, struct.Struct(">qqq"), _split_append, _join_append),
    _plain(4, AppendResponse, ">q"),
    _plain(5, AppendReject, ">qqq"),
    _plain(6, Heartbeat, ">qq"),
    _plain(7, HeartbeatResponse, ">q"),
    _Kind(8, ResetRequest, struct.Struct(">qqq"), _split_reset, _join_reset),
    _plain(9, TakeLeadership, ">"),
    _plain(10, StaleTerm, ">"),
)
_BY_TYPE = {kind.type: kind for kind in _KINDS}
_BY_NUMBER = {kind.number: kind for kind in _KINDS}


def encode(group: str, message: Message) -> bytes:
    """Return the bytes of a message; its entries are copied, for what lies in the log may be cut off meanwhile."""
    kind = _BY_TYPE[type(message)]
    numbers, rest = kind.split(message)
    names = group.encode(), message.source.encode(), message.target.encode()
    head = _HEAD.pack(VERSION, kind.number, *map(len, names), message.term)
    return b"".join((head, *names, kind.numbers.pack(*numbers), rest))


def decode(group: str, data: bytes | memoryview) -> Message:
    """Return the message that `encode` wrote for this group; ProtocolError for anything else."""
    view = memoryview(data).toreadonly()
    try:
        version, number, group_size, source_size, target_size, term = _HEAD.unpack_from(view)
        if version != VERSION or (kind := _BY_NUMBER.get(number)) is None:
            raise ProtocolError(f"a message of version {version} and kind {number} between members is not known here")
        names, at = [], _HEAD.size
        for size in (group_size, source_size, target_size):
            names.append(str(view[at : at + size], "utf-8"))
            at += size
        numbers = kind.numbers.unpack_from(view, at)
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"a message of {len(view)} bytes between members cannot be read: {error}") from error
    if names[0] != group:
        raise ProtocolError(f"a member of group {names[0]!r} sent a message to a member of group {group!r}")
    if term < 0 or any(value < -1 for value in numbers):
        raise ProtocolError(f"a {kind.type.__name__} holds a number that no member has: term {term}, {numbers}")
    return kind.join((names[1], names[2], term), numbers, view[at + kind.numbers.size :])

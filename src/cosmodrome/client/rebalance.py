"""Who reads which queue. Each member of a group computes it alone and all must agree, so the rule is Apache's. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cosmodrome.model import MessageQueue


def averagely(queues: Iterable[MessageQueue], client_ids: Iterable[str], me: str) -> list[MessageQueue]:
    """Apache's AVG: neighbouring queues in equal shares, the first clients taking one more when it does not divide.

    Every queue has exactly one owner among distinct client ids. A client that is not in the list gets nothing.
    """
    ordered = sorted(queues)
    members = sorted(client_ids, key=_utf16_order)
    if me not in members:
        return []
    index = members.index(me)
    share, rest = divmod(len(ordered), len(members))
    start = index * share + min(index, rest)
    return ordered[start : start + share + (index < rest)]


def by_circle(queues: Iterable[MessageQueue], client_ids: Iterable[str], me: str) -> list[MessageQueue]:
    """Apache's AVG_BY_CIRCLE: queues are dealt out like cards."""
    members = sorted(client_ids, key=_utf16_order)
    return sorted(queues)[members.index(me) :: len(members)] if me in members else []


def _utf16_order(text: str) -> bytes:
    """Java compares UTF-16 code units, Python code points; they differ beyond the basic plane."""
    return text.encode("utf-16-be", "surrogatepass")

"""Tag expressions: `*`, `paid`, `paid || refunded`.

A broker compares only the hash codes of tags, and different tags may share one (AaAaAa and BBBBBB), so a consumer
compares the text again. A message has at most one tag.
"""

from __future__ import annotations

from cosmodrome.errors import SubscriptionParseFailed
from cosmodrome.model import ALL_TAGS, Subscription
from cosmodrome.wire.java import java_hash

_SEPARATOR = "||"


def subscription(topic: str, expression: str, version: int) -> Subscription:
    """What `expression` asks of `topic`; SubscriptionParseFailed when it names no tag at all."""
    if expression.strip() in ("", ALL_TAGS):
        return Subscription(topic, ALL_TAGS, version=version)
    tags = frozenset(tag for part in expression.split(_SEPARATOR) if (tag := part.strip()))
    if not tags:
        raise SubscriptionParseFailed(f"{expression!r} names no tag; write *, or tags like: paid || refunded")
    return Subscription(topic, expression, tags, frozenset(map(java_hash, tags)), version)


def chooses(wanted: Subscription) -> bool:
    """Whether it depends on a message's tag if it is wanted; if not, what a broker sends is what is wanted."""
    return wanted.expression != ALL_TAGS and wanted.expression_type == "TAG"


def matches(wanted: Subscription, tag: str) -> bool:
    """Whether a message with this tag ("" for none) is wanted; one chosen in another way has been chosen already."""
    return tag in wanted.tags or not chooses(wanted)

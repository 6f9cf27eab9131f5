"""Showing what is consumed to the hooks and to the trace."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cosmodrome.client import hooks
from cosmodrome.client.hooks import ConsumeContext, ConsumeHook, FilterContext, FilterMessageHook
from cosmodrome.client.process_queue import ProcessQueue
from cosmodrome.client.results import outcome_of
from cosmodrome.client.tracing import Consuming, Tracer
from cosmodrome.model import ReceivedMessage

log = logging.getLogger(__name__)


class Watched:
    """Messages of one queue that the application has in hand."""

    __slots__ = ("_context", "_hooks", "_tracing")

    def __init__(self, tracing: Consuming | None, context: ConsumeContext, hooks: Sequence[ConsumeHook]) -> None:
        self._tracing = tracing
        self._context = context
        self._hooks = hooks

    def ended(self, error: BaseException | None = None) -> None:
        context, outcome = self._context, outcome_of(error)
        if self._tracing is not None:
            self._tracing.ended(outcome, error is None)
        context.outcome = outcome
        context.success = error is None
        context.status = "CONSUME_SUCCESS" if error is None else "RECONSUME_LATER"
        context.error = error
        hooks.tell([hook.after_consume for hook in self._hooks], context)


class Watch:
    def __init__(
        self, group: str, namespace: str = "", tracer: Tracer | None = None, consume_hooks: Sequence[ConsumeHook] = ()
    ) -> None:
        self.group = group
        self._namespace = namespace
        self._tracer = tracer
        self._hooks = consume_hooks

    def begin(self, message: ReceivedMessage) -> Watched | None:
        """The application is given this; None if nobody watches."""
        if self._tracer is None and not self._hooks:
            return None
        messages = [message]
        tracing = None if self._tracer is None else self._tracer.consuming(messages)
        context = ConsumeContext(self.group, messages, message.queue, self._namespace)
        hooks.tell([hook.before_consume for hook in self._hooks], context)
        return Watched(tracing, context, self._hooks)


def filtered(
    hooks: Sequence[FilterMessageHook], group: str, messages: list[ReceivedMessage], process: ProcessQueue
) -> list[ReceivedMessage]:
    """What all hooks leave; the rest counts as consumed. A hook that fails leaves out nothing."""
    if not hooks:
        return messages
    wanted, kept = messages, {message.queue_offset for message in messages}
    for hook in hooks:
        try:
            left = list(hook(FilterContext(group, [*wanted], messages[0].queue)))
            kept = {message.queue_offset for message in left}  # fails as well if something else is returned
        except Exception:
            log.exception("the hook %r failed", hook)
        else:
            wanted = left
    process.finish(message for message in messages if message.queue_offset not in kept)
    return wanted

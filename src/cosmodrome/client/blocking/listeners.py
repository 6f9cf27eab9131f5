"""Plain functions that are told of something. They run in threads, so they may use a blocking client."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from cosmodrome.client.settings import listening
from cosmodrome.client.threads import DaemonThreads

log = logging.getLogger(__name__)

Listener = Callable[..., Any]


def in_thread(listener: Listener) -> Listener:
    """An async function that has `listener` called in a thread, one call after the other, and waits for it."""
    if inspect.iscoroutinefunction(listening(listener, awaited=True)):
        return listener
    turn = asyncio.Lock()

    async def told(*args: Any) -> None:
        async with turn:
            thread = DaemonThreads(1, "cosmodrome-listener")
            try:
                await asyncio.get_running_loop().run_in_executor(thread, listener, *args)
            finally:
                thread.shutdown()

    return told


def in_thread_unawaited(listener: Listener) -> Callable[..., None]:
    """The same for those who do not wait for what they tell: what it raises is logged."""
    told = in_thread(listener)
    telling: set[asyncio.Task[None]] = set()

    def tell(*args: Any) -> None:
        task = asyncio.get_running_loop().create_task(_logged(told(*args), listener))
        telling.add(task)
        task.add_done_callback(telling.discard)

    return tell


async def _logged(told: Coroutine[Any, Any, None], listener: Listener) -> None:
    try:
        await told
    except Exception:
        log.exception("the listener %r failed", listener)

"""How commands ask a cluster: one `Admin` for each command, and a line for each broker that did not answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from cosmodrome.admin.door import Admin
from cosmodrome.admin.results import Unanswered
from cosmodrome.cli.access import Access, hints_at_start
from cosmodrome.net.loop import run

T = TypeVar("T")


def ask(access: Access, question: Callable[[Admin], Awaitable[T]]) -> T:
    """Return what `question` makes of an `Admin`."""

    async def asked() -> T:
        async with Admin(rpc_hooks=access.rpc_hooks, config=access.config) as admin:
            return await question(admin)

    with hints_at_start():
        return run(asked())


def problems(unanswered: Iterable[Unanswered]) -> list[str]:
    """Return one sentence for each broker that did not answer."""
    return [f"no answer from {one.broker_name or one.address} ({one.address}): {one.reason}" for one in unanswered]

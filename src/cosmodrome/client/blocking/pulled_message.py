"""A message that its taker acknowledges, without await."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from cosmodrome.client import pulled_message
from cosmodrome.client.blocking.face import calls, shows, waits
from cosmodrome.client.blocking.loop_thread import LoopThread
from cosmodrome.model import ReceivedMessage


class PulledMessage(ReceivedMessage):
    """A message of a `LitePullConsumer`: `with message:` acknowledges it at the end of the block.

    If the block raises, the broker delivers the message again later, as `RetryLater` says if that is what was raised.
    """

    __slots__ = ("_behind", "_thread")

    def __init__(self, thread: LoopThread, behind: pulled_message.PulledMessage) -> None:
        super().__init__(*(getattr(behind, name) for name in _FIELDS))
        self._thread = thread
        self._behind = behind

    ack = calls(pulled_message.PulledMessage.ack)
    open = shows(pulled_message.PulledMessage, lambda behind: behind.open)
    retry = waits(pulled_message.PulledMessage.retry)

    def __enter__(self) -> Self:
        self._thread.run_for_thread(self._behind.__aenter__)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.run(self._behind.__aexit__, error_type, error, traceback)


_FIELDS = tuple(ReceivedMessage.__dataclass_fields__)

"""A message that its taker acknowledges."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from cosmodrome.client.described import BROKER_DECIDES_DELAY, note_failure, reason_of
from cosmodrome.client.process_queue import ProcessQueue
from cosmodrome.client.watching import Watched
from cosmodrome.errors import RetryLater
from cosmodrome.model import ReceivedMessage


class Keeper(Protocol):
    """Whom a message goes back to that is not done."""

    def entered(self, message: PulledMessage) -> None: ...

    def left(self, message: PulledMessage) -> None: ...

    def put_back(self, message: PulledMessage) -> None:
        """Give it to whoever asks next."""
        ...

    async def refuse(self, message: PulledMessage, delay_level: int) -> None:
        """Have the broker deliver it again later."""
        ...


class Receipt(NamedTuple):
    """What the messages of one pull have in common."""

    process: ProcessQueue
    keeper: Keeper


class PulledMessage(ReceivedMessage):
    """A message of a `LitePullConsumer`, which can be acknowledged by itself.

        async with message:
            ...

    acknowledges it at the end of the block. If the block raises, the broker delivers the message again later, as
    `RetryLater` says if that is what was raised; if the block is cancelled, this consumer gives the message to whoever
    asks next. What was raised goes on.
    """

    __slots__ = ("_receipt", "_watched", "holder")

    def fetched(self, receipt: Receipt) -> None:
        """It is here, and nobody's yet."""
        self._receipt = receipt
        self._watched: Watched | None = None

    def taken(self, holder: object | None, watched: Watched | None) -> None:
        """`holder` acknowledges it by going on; without one, or once it is entered, it is acknowledged by itself."""
        self.holder = holder
        self._watched = watched

    @property
    def process(self) -> ProcessQueue:
        """What its consumer holds of its queue."""
        return self._receipt.process

    @property
    def open(self) -> bool:
        """Whether it is still to be acknowledged, and here."""
        process = self._receipt.process
        return not process.released and self.queue_offset in process

    def ack(self) -> None:
        """It is done: its offset may be committed. Once is enough; if its queue went to somebody else, it is no use."""
        process = self._receipt.process
        if not process.released:
            process.finish((self,))
        self.unwatch(None)

    def unwatch(self, error: BaseException | None) -> None:
        """It is out of the application's hands; told once, however often it is called."""
        if self._watched is not None:
            self._watched.ended(error)
            self._watched = None

    async def retry(self, delay_level: int = BROKER_DECIDES_DELAY) -> None:
        """Have the broker deliver it again, after the delay of this level; with 0 the broker takes a longer one each
        time, and with -1 it goes to the dead letters at once."""
        self.holder = None
        self.unwatch(RetryLater(delay_level=delay_level))
        keeper = self._receipt.keeper
        try:
            await keeper.refuse(self, delay_level)
        except asyncio.CancelledError:
            keeper.put_back(self)
            raise

    async def __aenter__(self) -> Self:
        self.holder = None
        self._receipt.keeper.entered(self)
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.ack()
            elif isinstance(error, Exception):
                self.unwatch(error)
                note_failure([self], reason_of(error))
                await self.retry(error.delay_level if isinstance(error, RetryLater) else BROKER_DECIDES_DELAY)
            else:
                self.unwatch(error)
                self._receipt.keeper.put_back(self)
        finally:
            self._receipt.keeper.left(self)

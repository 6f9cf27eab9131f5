"""How a blocking class is made from an async one: by naming what it shows.

    class Producer(Face[producer.Producer]):
        @like(producer.Producer)
        def __init__(self) -> None: ...

        client_id = shows(producer.Producer, lambda behind: behind.client_id)
        send = waits(producer.Producer.send)

Parameters, defaults, documentation and the type of the result stay those of the async class, for type checkers as well.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Concatenate, Generic, Never, NoReturn, ParamSpec, Self, TypeVar, cast

from cosmodrome.client.blocking.listeners import in_thread
from cosmodrome.client.blocking.loop_thread import LoopThread
from cosmodrome.client.handlers import Handler
from cosmodrome.client.lifecycle import Startable

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
S = TypeVar("S", bound=Startable)
H = TypeVar("H", bound=Handler)

_SUBMITTED = """As `{name}` of the async class, from any thread: a future to wait for, or to add a callback to.

It waits itself only while too much is under way. Callbacks run on the client's event loop: they must not block.
"""


def like(make: Callable[P, Startable]) -> Callable[[Callable[[Any], None]], Callable[Concatenate[Any, P], None]]:
    """A constructor with the parameters of the async class, which makes one to put behind the face."""

    def replace(_empty: Callable[[Any], None]) -> Callable[Concatenate[Any, P], None]:
        def __init__(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:  # noqa: N807
            self._put_behind(make(*args, **kwargs))

        return functools.wraps(cast(Any, make).__init__)(__init__)

    return replace


def waits(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """A coroutine method, run on the loop and waited for."""
    name = method.__name__

    @functools.wraps(method)
    def wait(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if asyncio._get_running_loop() is not None:
            _warn_of_loop(self, name)
        return cast(R, self._thread.run(getattr(self._behind, name), *args, **kwargs))

    return wait


def submits(
    method: Callable[Concatenate[Any, P], Awaitable[R]],
    later: Callable[Concatenate[Any, P], Callable[[], Awaitable[R]]],
) -> Callable[Concatenate[Any, P], Future[R]]:
    """A method whose result is awaited while the caller goes on, once there is room for it in `_room`: a future.

    `later` is the same in two steps. The first is done at once, since the caller may change what it gave; the second
    on the loop.
    """
    name = method.__name__

    def submit(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        begin = later(self._behind, *args, **kwargs)
        return cast("Future[R]", self._thread.submit(self._room, self._behind._in_turn, begin))

    functools.update_wrapper(submit, method)
    signature = inspect.signature(method)
    submit.__doc__ = _SUBMITTED.format(name=name)
    submit.__signature__ = signature.replace(  # type: ignore[attr-defined]
        return_annotation=str(signature.return_annotation).replace("asyncio.", "")
    )
    return submit


def calls(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A plain method; called on the loop, since nothing of the async side is made for several threads."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self._thread.run(_called, getattr(self._behind, name), *args, **kwargs))

    return call


def decorates(
    method: Callable[Concatenate[Any, P], Callable[[H], H]],
) -> Callable[Concatenate[Any, P], Callable[[H], H]]:
    """A plain method that returns a decorator; what is decorated is handed over on the loop."""
    name = method.__name__

    @functools.wraps(method)
    def decorator(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Callable[[H], H]:
        register = getattr(self._behind, name)(*args, **kwargs)
        return lambda decorated: cast(H, self._thread.run(_called, register, decorated))

    return decorator


def listens(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A plain method whose last argument is a listener; a `def` is called in a thread."""
    name = method.__name__

    @functools.wraps(method)
    def listen(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        given = inspect.signature(getattr(self._behind, name)).bind(*args, **kwargs)
        listener = given.arguments["listener"]
        given.arguments["listener"] = in_thread(listener)
        returned = self._thread.run(_called, getattr(self._behind, name), *given.args, **given.kwargs)
        return cast(R, None if returned is None else listener)

    return listen


def iterates(method: Callable[Concatenate[Any, P], AsyncIterator[R]]) -> Callable[Concatenate[Any, P], Iterator[R]]:
    """A plain method that returns an async iterator, such as `__aiter__`."""
    name = method.__name__

    @functools.wraps(method)
    def iterate(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        behind = self._thread.run_for_thread(_called, getattr(self._behind, name), *args, **kwargs)
        return Iterating(self._thread, behind)

    return iterate


class Iterating(Iterator[R]):
    """An async iterator, one item after the other. Whoever drops it, in whatever thread, closes it on the loop."""

    def __init__(self, thread: LoopThread, behind: AsyncIterator[R]) -> None:
        self._thread = thread
        self._behind = behind

    def __next__(self) -> R:
        try:
            return self._thread.run(_next, self._behind)
        except StopAsyncIteration:
            raise StopIteration from None
        except BaseException:  # as by Ctrl-C; if there was an item, nobody has it
            self._close()
            raise

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if (close := getattr(self._behind, "close", None)) is not None:
            self._thread.post(close)


class shows(Generic[A, R]):  # noqa: N801
    """A property, read on the loop."""

    def __init__(self, of: type[A], look: Callable[[A], R]) -> None:
        self._of = of
        self._look = look

    def __set_name__(self, _owner: type, name: str) -> None:
        self.__doc__ = getattr(self._of, name).__doc__

    def __get__(self, face: Any, _owner: type | None = None) -> R:
        if face is None:
            return cast(R, self)
        return cast(R, face._thread.run(_called, self._look, face._behind))

    def __set__(self, _face: Any, _value: Never) -> NoReturn:
        """That it is there makes `help` show it among the properties."""
        raise AttributeError("it can only be read")


class Face(Generic[S]):
    """An async object, and the thread whose loop it runs on."""

    _behind: S
    _thread: LoopThread

    def _put_behind(self, behind: S) -> None:
        self._behind = behind
        self._thread = LoopThread.shared()

    running = shows(Startable, lambda behind: behind.running)  # type: ignore[type-abstract]
    start = waits(Startable.start)

    def stop(self) -> None:
        """Stop; twice is harmless. In a forked process it does nothing: the client is its parent's, who goes on."""
        if not self._thread.is_dead:
            self._thread.run_for_thread(self._behind.stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


_warned: set[type] = set()  # classes of which the process was warned


def _warn_of_loop(face: Any, name: str) -> None:
    """Warn once for each class that a call blocks the event loop of its caller; the client's own loop refuses it."""
    kind = type(face)
    if kind in _warned or face._thread.is_own:
        return
    _warned.add(kind)
    warnings.warn(
        f"cosmodrome.blocking.{kind.__name__}.{name} is called inside a running event loop, which stands still "
        f"meanwhile; use cosmodrome.{kind.__name__} with await there, or call this one in a thread",
        RuntimeWarning,
        stacklevel=3,
    )


async def _called(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return function(*args, **kwargs)


async def _next(iterator: AsyncIterator[R]) -> R:
    return await anext(iterator)

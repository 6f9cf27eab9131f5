"""The billing example, killed at every step: `python -m tests.system.billing NAMESRV`, with BILLING_DATABASE.

Every life is a fork of this process that bills one order and is killed before the n-th line of the example that it
executes, in whatever thread; two more are killed before and after the broker is told. The last life bills what is left,
and answers the broker's questions until its input ends. Each life writes the place where it was killed.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from cosmodrome import blocking
from cosmodrome.client.producer_options import ProducerOptions
from cosmodrome.client.transactions import TransactionProducer

EXAMPLE = Path(__file__).parents[2] / "examples" / "transaction_table.py"
CENTS = 100
PATIENCE_MS = 30_000
LOOP_THREAD = "cosmodrome-client"


def load_example(namesrv: str) -> Any:
    os.environ["NAMESRV_ADDR"] = namesrv
    spec = importlib.util.spec_from_file_location("transaction_table", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    patient = ProducerOptions(send_timeout_ms=PATIENCE_MS)  # the machine may be busy
    vars(module)["TransactionProducer"] = functools.partial(blocking.TransactionProducer, options=patient)
    return module


def die(place: str) -> None:
    os.write(1, f"killed {place}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


def die_before_line(number: int) -> None:
    lines = count(1)

    def on_line(frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line" and next(lines) == number:
            die(f"{frame.f_code.co_name}:{frame.f_lineno}")
        return on_line

    def on_call(frame: FrameType, _event: str, _arg: Any) -> Any:
        if threading.current_thread().name == LOOP_THREAD:
            sys.settrace(None)  # the example is not executed there, and tracing takes its time
        return on_line if frame.f_code.co_filename == str(EXAMPLE) else None

    threading.settrace(on_call)
    sys.settrace(on_call)


def die_before_the_broker_is_told() -> None:
    async def end(*_: Any) -> None:
        die("before end")

    setattr(TransactionProducer, "_end", end)  # noqa: B010


def die_after_the_broker_is_told() -> None:
    told: Any = TransactionProducer._end

    async def end(*args: Any) -> None:
        await told(*args)
        die("after end")

    setattr(TransactionProducer, "_end", end)  # noqa: B010


def is_killed(life: Callable[[], None]) -> bool:
    """Run a life in a fork; False if it ended by itself, and well."""
    child = os.fork()
    if not child:
        life()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.waitstatus_to_exitcode(status) == 0, "a life failed"
    return False


def main() -> None:
    (namesrv,) = sys.argv[1:]
    example = load_example(namesrv)
    orders: dict[str, int] = {}

    def life(prepare: Callable[[], None]) -> Callable[[], None]:
        orders[f"order-{len(orders)}"] = CENTS
        return lambda: (prepare(), example.bill_all(dict([list(orders.items())[-1]])))[-1]  # type: ignore[func-returns-value]

    assert is_killed(life(die_before_the_broker_is_told))
    assert is_killed(life(die_after_the_broker_is_told))
    for number in count(1):
        if not is_killed(life(lambda number=number: die_before_line(number))):  # type: ignore[misc]
            break
    example.bill_all(orders)
    print("all billed", flush=True)
    with example.TransactionProducer("ex-billing", namesrv, check=example.check):
        sys.stdin.read()


if __name__ == "__main__":
    main()

"""Groups with Java and Python members, each a process of its own that may be killed, while messages flow."""

import asyncio
import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cosmodrome import Message, MessageQueue, Producer
from cosmodrome.net.loop import run
from interop.child import Child
from interop.java import CLIENT_OPTIONS, IMPATIENT, READY_TIMEOUT_S, java_command
from interop.messages import body
from interop.our_client import SEND_TIMEOUT_MS
from interop.setup import Build
from interop.strategies import our_strategy

SETTLE_TIMEOUT_S = 60
LEAVE_TIMEOUT_S = 30
POLL_S = 0.02
DRAIN_POLL_S = 0.5
SEND_EVERY_S = 0.004
SEND_SELDOM_S = 0.1
# A fence is this many messages to each queue; when they are through, what was sent before them is, too.
FENCE_ROUNDS = 3
QUIET_MESSAGES = 150
ORDERLY_PAUSE_MS = 1  # so that there is work left when one is killed

Strategies = Mapping[str, str]  # group → strategy


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message given to a handler; the clock is the same in all processes of a machine."""

    group: str
    index: int
    queue: str
    at_ns: int


class Member(Child):
    """A process that is a member of each of its groups."""

    def __init__(self, name: str, command: Sequence[str], log: Path, strategies: Strategies) -> None:
        self.strategies = strategies
        self.client_id = ""
        self.assigned: dict[str, frozenset[str]] = {}
        self.deliveries: list[Delivery] = []
        super().__init__(name, command, log, {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})

    def take(self, line: str) -> None:
        if not line.endswith("}"):  # cut by a kill
            return
        super().take(line)
        content = json.loads(line)
        if "index" in content:
            self.deliveries.append(Delivery(content["group"], content["index"], content["queue"], content["at"]))
        elif "assigned" in content:
            self.assigned[content["group"]] = frozenset(content["assigned"])
        else:
            self.client_id = content["clientId"]


class Sending(ABC):
    """A thread that sends messages while members come and go."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._sent = 0
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="sender", daemon=True)

    @property
    def sent(self) -> int:
        if self._failure is not None:
            raise self._failure
        return self._sent

    def wait_sent(self, count: int, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        wait_until(lambda: self.sent >= count, lambda: f"{self.sent} of {count} messages are sent", timeout_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(SETTLE_TIMEOUT_S)

    def _main(self) -> None:
        try:
            run(self._run())
        except BaseException as failure:
            self._failure = failure

    async def _run(self) -> None:
        async with Producer("sender", self._namesrv) as producer:
            await self._send(producer)

    @abstractmethod
    async def _send(self, producer: Producer) -> None: ...


class Sender(Sending):
    """Sends messages to the queues in turn until stopped, and knows where each went."""

    def __init__(self, namesrv: str, topic: str) -> None:
        super().__init__(namesrv)
        self.queues: list[str] = []  # by index
        self._topic = topic

    async def _send(self, producer: Producer) -> None:
        while not self._stopping.is_set():
            result = await producer.send(Message(self._topic, body(self._sent)), timeout_ms=SEND_TIMEOUT_MS)
            self.queues.append(queue_name(result.queue))
            self._sent += 1
            await asyncio.sleep(SEND_EVERY_S)


class OrderedSender(Sending):
    """Sends messages 0 to count: message i has key i modulo keys, and all of a key go to one queue, in order.

    The first half goes at once, the rest slowly until told to hurry: there is work for a member that starts late, too.
    """

    def __init__(self, namesrv: str, queues: Sequence[MessageQueue], keys: int, count: int) -> None:
        super().__init__(namesrv)
        self._queues = queues
        self._keys = keys
        self._count = count
        self._hurrying = threading.Event()

    def hurry(self) -> None:
        self._hurrying.set()

    async def _send(self, producer: Producer) -> None:
        await asyncio.gather(*(self._send_lane(producer, number) for number in range(len(self._queues))))

    async def _send_lane(self, producer: Producer, number: int) -> None:
        queue = self._queues[number]
        for index in range(self._count):
            if index % self._keys % len(self._queues) == number and not self._stopping.is_set():
                await producer.send(Message(queue.topic, body(index)), queue, timeout_ms=SEND_TIMEOUT_MS)
                self._sent += 1
                if self._sent >= self._count // 2 and not self._hurrying.is_set():
                    await asyncio.sleep(SEND_SELDOM_S)


class MixedGroups:
    """Members that come, go and are killed, what they were given, and the times when nothing changed."""

    def __init__(self, namesrv: str, queues: Sequence[MessageQueue], fresh_home: Callable[[str], Path]) -> None:
        self.members: list[Member] = []
        self._changes: list[tuple[int, str]] = []
        self._quiet: list[tuple[int, int]] = []
        self._namesrv = namesrv
        self._queues = queues
        self._fresh_home = fresh_home
        self._gone: list[Member] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # --- who is there

    def start_java(self, version: str, instance: str, strategies: Strategies, *, orderly: bool = False) -> Member:
        home = self._fresh_home("member")
        properties = {"user.home": str(home), **(IMPATIENT if orderly else {})}
        command = java_command(Build("client", version), "interop.Members", properties, CLIENT_OPTIONS)
        return self._start(f"java {version} {instance}", command, home, instance, strategies, orderly)

    def start_ours(self, instance: str, strategies: Strategies, *, orderly: bool = False) -> Member:
        command = [sys.executable, "-m", "interop.member"]
        return self._start(f"python {instance}", command, self._fresh_home("member"), instance, strategies, orderly)

    def wait_ready(self) -> None:
        for member in self.members:
            member.wait_line('"ready"', READY_TIMEOUT_S)

    def leave(self, member: Member) -> None:
        self._changed("leave")
        self._forget(member)
        member.finish(LEAVE_TIMEOUT_S)

    def kill(self, member: Member) -> None:
        self._changed("kill")
        self._forget(member)
        member.kill()

    def _start(
        self, name: str, command: Sequence[str], home: Path, instance: str, strategies: Strategies, orderly: bool
    ) -> Member:
        words = [f"namesrv={self._namesrv}", f"topic={self._queues[0].topic}", f"instance={instance}"]
        words += [f"orderly={str(orderly).lower()}", f"pauseMs={ORDERLY_PAUSE_MS if orderly else 0}"]
        words += [f"strategy.{group}={text}" for group, text in strategies.items()]
        self._changed("join")
        member = Member(name, [*command, *words], home / "stderr.log", strategies)
        self._stack.callback(member.kill)
        self.members.append(member)
        return member

    def _forget(self, member: Member) -> None:
        self.members.remove(member)
        self._gone.append(member)

    # --- what they have

    def wait_settled(self, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Until each member has the queues that its strategy gives it among those who are there now."""
        self._wait(self._unsettled, timeout_s)

    def wait_received(self, sender: Sender) -> None:
        """Until what is sent from now on for a while, and all before it, has been given to its owners."""
        last = sender.sent + FENCE_ROUNDS * len(self._queues)
        sender.wait_sent(last)
        self._wait(lambda: self._missing(sender.queues[:last]))

    def wait_all_received(self, count: int, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Until messages 0 to count have been given to every group. Asked seldom, for it looks at all of them."""
        wanted = {*range(count)}

        def missing() -> str:
            lacks = {group: len(wanted - {one.index for one in self.deliveries(group)}) for group in self.groups}
            return f"groups lack messages: {lacks}" if any(lacks.values()) else ""

        self._wait(missing, timeout_s, DRAIN_POLL_S)

    def stay_quiet(self, sender: Sender) -> None:
        """Settle, and then keep still for a while: in this time, every message has one owner, who is given it once.

        Two fences: of messages that are handled at the same time, the earlier may come a little later.
        """
        self.wait_settled()
        self.wait_received(sender)
        self.wait_received(sender)
        start_ns, last = time.monotonic_ns(), sender.sent + QUIET_MESSAGES
        sender.wait_sent(last)
        self._wait(lambda: self._missing(sender.queues[:last]))
        assert not self._unsettled(), self._unsettled()
        self._quiet.append((start_ns, time.monotonic_ns()))

    @property
    def _everybody(self) -> list[Member]:
        return [*self.members, *self._gone]

    def deliveries(self, group: str) -> list[Delivery]:
        """All of them, in the order of time."""
        found = [one for member in self._everybody for one in member.deliveries if one.group == group]
        return sorted(found, key=lambda delivery: delivery.at_ns)

    def repeated(self, group: str) -> list[Delivery]:
        """The deliveries of messages that had been delivered before."""
        deliveries = self.deliveries(group)
        first = {delivery.index: delivery for delivery in reversed(deliveries)}
        return [delivery for delivery in deliveries if delivery is not first[delivery.index]]

    def was_quiet(self, at_ns: int) -> bool:
        return any(start_ns <= at_ns <= end_ns for start_ns, end_ns in self._quiet)

    def change_before(self, at_ns: int) -> str:
        """What had happened last: "join", "leave" or "kill"."""
        return next(what for changed_ns, what in reversed(self._changes) if changed_ns <= at_ns)

    def _changed(self, what: str) -> None:
        self._changes.append((time.monotonic_ns(), what))

    @property
    def groups(self) -> list[str]:
        return [*self.members[0].strategies]

    def owners(self, group: str) -> Counter[str]:
        """How many members say that they have the queue."""
        return Counter(queue for member in self.members for queue in member.assigned.get(group, ()))

    def _unsettled(self) -> str:
        client_ids = [member.client_id for member in self.members]
        for member in self.members:
            for group, text in member.strategies.items():
                wanted = frozenset(map(queue_name, our_strategy(text)(self._queues, client_ids, member.client_id)))
                has = member.assigned.get(group, frozenset())
                if has != wanted:
                    return f"{member.name} should have {sorted(wanted)} in {group}, and has {sorted(has)}"
        return ""

    def _missing(self, sent: Iterable[str]) -> str:
        """Of the messages whose queue somebody has."""
        wanted = [*enumerate(sent)]
        for group in self.groups:
            owned = self.owners(group)
            received = {delivery.index for delivery in self.deliveries(group)}
            if missing := [index for index, queue in wanted if queue in owned and index not in received]:
                return f"{group} lacks {len(missing)} messages: {missing[:10]}"
        return ""

    def _wait(self, problem: Callable[[], str], timeout_s: float = SETTLE_TIMEOUT_S, every_s: float = POLL_S) -> None:
        there = [member.name for member in self.members]
        wait_until(lambda: not problem(), lambda: f"{problem()}; there are {there}", timeout_s, every_s)


def wait_until(
    is_so: Callable[[], bool],
    problem: Callable[[], str],
    timeout_s: float = SETTLE_TIMEOUT_S,
    every_s: float = POLL_S,
) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"after {timeout_s} s: {problem()}"
        time.sleep(every_s)


def queue_name(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"

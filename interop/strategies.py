"""Allocation strategies as one text that both sides read (interop.Strategies at Apache's): name, colon, setting."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from cosmodrome import ByConfig, ByMachineRoom, ConsistentHash, MachineRoomNearby, MessageQueue, averagely, by_circle
from cosmodrome.client.rebalance import Strategy
from interop.child import Child
from interop.java import CLIENT_OPTIONS, java_command
from interop.setup import Build

ROOMS = ("east", "west", "north")
ANSWER_TIMEOUT_S = 120


def our_strategy(text: str) -> Strategy:
    name, _, setting = text.partition(":")
    match name:
        case "AVG":
            return averagely
        case "AVG_BY_CIRCLE":
            return by_circle
        case "CONSISTENT_HASH":
            return ConsistentHash(int(setting))
        case "CONFIG":
            return ByConfig(_queues(setting))
        case "MACHINE_ROOM":
            return ByMachineRoom([unquote(room) for room in setting.split(",")])
        case "MACHINE_ROOM_NEARBY":
            return MachineRoomNearby(room_of_queue, room_of_client, our_strategy(setting))
    raise ValueError(f"no strategy {text}")


def by_config(queues: Iterable[MessageQueue]) -> str:
    return f"CONFIG:{_text(queues)}"


def room_of_queue(queue: MessageQueue) -> str:
    return ROOMS[queue.queue_id % len(ROOMS)]


def room_of_client(client_id: str) -> str:
    """Of "ip@room-rest"; empty when it is not of that shape."""
    room, dash, _ = client_id.partition("@")[2].partition("-")
    return room if dash else ""


@dataclass(frozen=True, slots=True)
class Question:
    strategy: str
    queues: Sequence[MessageQueue]
    client_ids: Sequence[str]
    me: str

    def line(self) -> str:
        return "\t".join([self.strategy, _text(self.queues), ",".join(map(quote, self.client_ids)), quote(self.me)])


def ask_apache(version: str, questions: Sequence[Question], home: Path) -> list[list[str] | None]:
    """The queues Apache's strategy gives, as "topic/broker/queue"; None where it refuses."""
    command = java_command(Build("client", version), "interop.Allocate", {}, CLIENT_OPTIONS)
    with Child(f"Allocate {version}", command, home / f"Allocate-{version}.log") as running:
        for question in questions:
            running.write(question.line())
        running.finish(ANSWER_TIMEOUT_S)
        answers = [json.loads(line).get("queues") for line in running.lines]
    if len(answers) != len(questions):
        raise running.error(f"answered {len(answers)} of {len(questions)} lines")
    return answers


def _text(queues: Iterable[MessageQueue]) -> str:
    return ",".join(f"{quote(queue.topic)}/{quote(queue.broker_name)}/{queue.queue_id}" for queue in queues)


def _queues(text: str) -> list[MessageQueue]:
    names = (item.split("/") for item in text.split(",") if item)
    return [MessageQueue(unquote(topic), unquote(broker), int(queue_id)) for topic, broker, queue_id in names]

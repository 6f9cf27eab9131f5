"""Our allocation strategies beside Apache's own classes: the same members, the same queues, the same answer."""

from collections import Counter
from pathlib import Path
from random import Random
from urllib.parse import quote

import pytest

from cosmodrome import MessageQueue
from cosmodrome.errors import ClientError
from interop.setup import CLIENT_VERSIONS
from interop.strategies import ROOMS, Question, ask_apache, by_config, our_strategy

QUESTIONS = 6_000
# Beyond the basic plane UTF-16's order is not that of code points; "@" and what is around it decides about rooms.
BROKERS = (
    "broker-a",
    "broker-b",
    *(f"{room}@broker" for room in ROOMS),
    "east@",
    "@broker",
    "@",
    "a@east@b",
    "east@b@@",
    "east@\U0001f600",
    "east@\ue000",
    "grün@b",
)
INSTANCES = ("1", "4711#99", "\U0001f600-2", "\ue000-2", *(f"{room}-{number}" for room in ROOMS for number in range(4)))
NESTABLE = (
    "AVG",
    "AVG_BY_CIRCLE",
    "CONSISTENT_HASH:10",
    "CONSISTENT_HASH:1",
    "MACHINE_ROOM:east,west",
    "MACHINE_ROOM:",
)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
@pytest.mark.parametrize("seed", [1, 2])
def test_our_strategies_answer_as_apaches_do(version: str, seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    questions = [question(random) for _ in range(QUESTIONS)]
    ends = Counter[str]()
    for asked, theirs in zip(questions, ask_apache(version, questions, tmp_path), strict=True):
        ours = answer(asked)
        assert ours == expected(asked, theirs), asked
        ends["refused" if ours is None else "some" if ours else "none"] += 1
    # The generator must keep drawing every kind, or the agreement says little.
    assert min(ends["refused"], ends["none"]) > QUESTIONS / 50, ends
    assert ends["some"] > QUESTIONS / 4, ends


def answer(asked: Question) -> list[str] | None:
    try:
        mine = our_strategy(asked.strategy)(asked.queues, asked.client_ids, asked.me)
    except ClientError:
        return None
    return sorted(map(name, mine)) if is_config(asked) else [*map(name, mine)]


def expected(asked: Question, theirs: list[str] | None) -> list[str] | None:
    """Apache's CONFIG answers with all that is set, in any order and whatever is asked; we with what there is of it."""
    if theirs is None or not is_config(asked):
        return theirs
    return sorted({*theirs} & {*map(name, asked.queues)})


def is_config(asked: Question) -> bool:
    return asked.strategy.startswith("CONFIG")


def name(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def question(random: Random) -> Question:
    brokers = random.sample(BROKERS, random.randint(1, 4))
    queues = [MessageQueue("topic", broker, number) for broker in brokers for number in range(random.randint(1, 9))]
    client_ids = [f"10.0.0.{random.randint(1, 3)}@{name}" for name in random.choices(INSTANCES, k=random.randint(1, 9))]
    if random.random() < 0.7:  # otherwise one may be there twice, as it is while it connects anew
        client_ids = [*dict.fromkeys(client_ids)]
    random.shuffle(queues)
    me = random.choice(client_ids) if random.random() < 0.95 else "10.9.9.9@east-stranger"
    return Question(strategy(random, queues), queues, client_ids, me)


def strategy(random: Random, queues: list[MessageQueue]) -> str:
    kind = random.randrange(5)
    if kind == 0:
        elsewhere = [MessageQueue("topic", "away", 0), MessageQueue("other", queues[0].broker_name, 0)]
        return by_config(random.sample([*queues, *elsewhere], random.randint(1, len(queues))))
    if kind == 1:
        rooms = random.sample([*ROOMS, "grün", ""], random.randint(1, 3))
        return f"MACHINE_ROOM:{','.join(map(quote, rooms))}"
    if kind == 2:
        return f"MACHINE_ROOM_NEARBY:{random.choice(NESTABLE)}"
    return random.choice(NESTABLE)

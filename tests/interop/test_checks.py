"""What all cases rest on, without servers: the comparison accepts what is right and catches every kind of damage, and
no process outlives the run that started it."""

import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interop.apache import wait_settled
from interop.child import Child
from interop.groups import group, place
from interop.messages import Load, Seen, Sent, body, check_arrived, check_same, index_of, offset_msg_id

BROKER = "127.0.0.1:10911"
LOAD = Load("topic", count=3)


def arrived() -> list[Seen]:
    return [
        Seen(
            topic=LOAD.topic,
            body=LOAD.body(index),
            tags=LOAD.tag(index),
            keys=LOAD.key(index),
            properties={**LOAD.user_properties(index), "UNIQ_KEY": f"ID{index}", "KEYS": LOAD.key(index)},
            flag=LOAD.flag,
            msg_id=f"ID{index}",
            offset_msg_id=offset_msg_id(BROKER, 100 * index),
            queue_id=0,
            queue_offset=index,
            commit_log_offset=100 * index,
            store_host=BROKER,
            born_timestamp=1,
            store_timestamp=2,
            reconsume_times=0,
        )
        for index in LOAD.indexes
    ]


def told() -> list[Sent]:
    return [Sent(seen.index, seen.msg_id, seen.offset_msg_id, "a", 0, seen.queue_offset) for seen in arrived()]


def test_what_is_right_is_accepted() -> None:
    check_arrived(LOAD, arrived(), told(), BROKER)
    check_arrived(LOAD, list(reversed(arrived())), [], BROKER)
    check_same(arrived(), list(reversed(arrived())))


@pytest.mark.parametrize(
    "damage",
    [
        {"topic": "other"},
        {"body": b"body-1-x"},
        {"body": b"body-1"},
        {"body": b"body-2-"},
        {"tags": "red"},
        {"keys": "key-2 shared"},
        {"properties": {"UNIQ_KEY": "ID1"}},
        {"properties": {**arrived()[1].properties, "extra": "1"}},
        {"properties": {**arrived()[1].properties, "colour": "gr?n 1 ?"}},
        {"flag": 0},
        {"msg_id": "ID2"},
        {"offset_msg_id": offset_msg_id(BROKER, 101)},
        {"queue_id": 1},
        {"queue_offset": 2},
        {"commit_log_offset": 101},
        {"store_host": "127.0.0.1:10912"},
        {"store_timestamp": 0},
        {"reconsume_times": 1},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_a_damaged_message_is_caught(damage: dict[str, Any]) -> None:
    seen = arrived()
    seen[1] = replace(seen[1], **damage)
    with pytest.raises(AssertionError):
        check_arrived(LOAD, seen, told(), BROKER)


@pytest.mark.parametrize(
    "change",
    [lambda seen: seen[1:], lambda seen: [*seen, seen[0]], lambda seen: []],
    ids=["lost", "doubled", "nothing"],
)
def test_lost_and_doubled_messages_are_caught(change: Callable[[list[Seen]], list[Seen]]) -> None:
    for results in (told(), []):
        with pytest.raises(AssertionError):
            check_arrived(LOAD, change(arrived()), results, BROKER)


def test_a_body_tells_its_index_only_when_whole() -> None:
    assert index_of(body(12)) == 12
    assert index_of(body(12, 100)) == 12
    with pytest.raises(AssertionError):
        index_of(body(12, 100)[:-1] + b"?")


def test_all_that_ask_the_shared_apache_brokers_are_in_one_worker_and_begin_first() -> None:
    asks = re.compile(r"^from interop\.lab import .*(ALL|APACHE)_CLUSTERS", re.MULTILINE)
    files = [file for file in Path(__file__).parent.glob("test_*.py") if asks.search(file.read_text())]
    cases = [f"tests/interop/{file.name}::test_it[{version}]" for file in files for version in ("4.9.7", "5.3.3")]
    assert len({*map(group, cases)}) == 1
    assert {*map(place, cases)} == {0}
    others = ["tests/interop/test_pop.py::test_it", "tests/behaviour/test_groups.py::test_it[apache-4.9.7]"]
    assert min(map(place, others)) > 0
    assert len({group(cases[0]), *map(group, others)}) == 3


PARENT = """
import sys
from pathlib import Path
from interop.child import Child
from interop.groups import group, place
print(Child("child", ["sleep", "600"], Path(sys.argv[1])).pid, flush=True)
sys.stdin.read()
"""


def test_a_child_ends_with_the_process_that_started_it_however_that_ends(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with Child("parent", [sys.executable, "-c", PARENT, str(tmp_path / "child.log")], tmp_path / "log", env) as parent:
        child = int(parent.wait_line("", 60))
        # Until it has become what it was started for, it has not yet asked to end with its parent.
        wait_settled(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n", f"{child} does not sleep")
        os.kill(parent.pid, signal.SIGKILL)
        wait_settled(lambda: not is_running(child), f"{child} runs")


def is_running(pid: int) -> bool:
    """Tell whether a process does something still: one that ended stays in the table until its parent asks how."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

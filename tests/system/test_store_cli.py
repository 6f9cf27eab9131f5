"""`cosmodrome store` on what a real broker wrote, typed as a user would."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cosmodrome.blocking import Producer
from cosmodrome.cli import store as store_commands
from cosmodrome.cli.main import main
from cosmodrome.model import Message
from cosmodrome.store.skipped import MAX_KEPT, SKIPPED_RECORDS, SkippedRecords
from cosmodrome.testing import FakeClock
from tests.system.daemons import BROKER_CONF, Daemon, cosmodrome, cosmodrome_json, up

COUNT = 300


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The folder of a broker that took 300 messages and left in order."""
    with up(tmp_path) as daemon:
        send(daemon.address("name server"))
        assert daemon.interrupt() == 0
    return tmp_path / "broker-a"


def send(namesrv: str) -> None:
    with Producer(group="p", namesrv=namesrv) as producer:
        for number in range(COUNT):
            topic = "orders" if number % 3 else "audit"
            producer.send(Message(topic, b"body %d." % number, tags=f"t{number % 4}", keys=f"k{number}"))


def served(store: Path) -> set[str]:
    """Every body that a broker on this store hands out."""
    (inspected,) = cosmodrome_json("store", "inspect", str(store))
    counts = {topic["topic"]: sum(map(served_from, topic["queues"])) for topic in inspected["topics"]}
    bodies: set[str] = set()
    with up(store.parent) as daemon:
        namesrv = ("--namesrv", daemon.address("name server"))
        for topic in ("orders", "audit"):
            limit = str(counts[topic])
            bodies |= {
                message["body"]
                for message in cosmodrome_json("tail", topic, "--from", "earliest", "--limit", limit, *namesrv)
            }
        assert daemon.interrupt() == 0
    return bodies


def served_from(queue: dict[str, Any]) -> int:
    return int(queue["maxOffset"]) - int(queue["minOffset"])


def all_bodies() -> set[str]:
    return {f"body {number}." for number in range(COUNT)}


def state(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def spoil_queue(store: Path) -> None:
    overwrite(store / "consumequeue" / "orders" / "0" / f"{0:020d}", 20, bytes(20))


def spoil_index(store: Path) -> None:
    (file,) = (store / "index").iterdir()
    overwrite(file, 40, b"\x7f\xff\xff\xff")


def spoil_body(store: Path, body: bytes) -> None:
    file = store / "commitlog" / f"{0:020d}"
    overwrite(file, file.read_bytes().index(body), b"B")


def test_inspect_shows_what_is_there(store: Path) -> None:
    shown = cosmodrome("store", "inspect", str(store))
    assert shown.returncode == 0, shown.stderr
    assert f"{store}: clean exit" in shown.stdout
    assert "1 file of 4,194,304 bytes" in shown.stdout
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["orders", "4", "200"] in [row[:3] for row in rows]
    assert ["audit", "4", "100"] in [row[:3] for row in rows]
    (inspected,) = cosmodrome_json("store", "inspect", str(store))
    topics = {topic["topic"]: topic for topic in inspected["topics"]}
    assert (topics["orders"]["messages"], topics["audit"]["messages"]) == (200, 100)
    log = inspected["log"]
    assert 0 < log["firstStoreTimestamp"] <= topics["orders"]["firstStoreTimestamp"]
    assert topics["audit"]["lastStoreTimestamp"] <= log["lastStoreTimestamp"] == inspected["index"][-1]["endTimestamp"]
    assert sum(index["entries"] for index in inspected["index"]) == 2 * COUNT  # a unique key and one of its own
    assert "topics.json" in [file["name"] for file in inspected["config"]]


def test_verify_lists_what_is_wrong(store: Path) -> None:
    sound = cosmodrome("store", "verify", str(store))
    assert (sound.returncode, sound.stderr) == (0, "")
    assert f"{store}: sound; walked 300 records" in sound.stdout
    spoil_queue(store)
    spoil_index(store)
    spoil_body(store, b"body 100.")
    wrong = cosmodrome("store", "verify", str(store))
    assert wrong.returncode == 1
    for expected in (
        "queues: orders/0, offset 1: a record of the log has no entry",
        "index: index/",
        "the record here does not match its checksum",
        " problems; walked 299 records",
    ):
        assert expected in wrong.stdout
    as_json = cosmodrome("store", "verify", str(store), "-o", "json")
    assert as_json.returncode == 1
    found = json.loads(as_json.stdout)
    assert (found["sound"], found["records"]) == (False, 299)
    assert {problem["area"] for problem in found["problems"]} == {"queues", "index", "log"} == set(found["counts"])


def test_repair_brings_back_all_that_the_log_holds(store: Path) -> None:
    spoil_queue(store)
    spoil_index(store)
    spoiled = state(store)
    dry = cosmodrome("store", "repair", str(store))
    assert dry.returncode == 0, dry.stderr
    assert "would: rename consumequeue to consumequeue.bad" in dry.stdout
    assert dry.stdout.endswith("nothing was changed; --write does it\n")
    (planned,) = cosmodrome_json("store", "repair", str(store))
    assert [f"would: {step}" for step in planned["steps"]] == [
        line for line in dry.stdout.splitlines() if line.startswith("would: ")
    ]
    assert state(store) == spoiled
    done = cosmodrome("store", "repair", str(store), "--write")
    assert done.returncode == 0, done.stderr
    assert f"{store}: sound; walked 300 records" in done.stdout
    assert cosmodrome("store", "verify", str(store)).returncode == 0
    again = cosmodrome("store", "repair", str(store), "--write")
    assert (again.returncode, again.stdout) == (0, f"{store}: nothing that a repair could mend\n")
    assert served(store) == all_bodies()


def test_repair_loses_only_the_damaged_message(store: Path) -> None:
    spoil_body(store, b"body 100.")
    (repaired,) = cosmodrome_json("store", "repair", str(store), "--write")
    assert (repaired["sound"], repaired["records"]) == (True, 300)  # an empty record took the place
    kept = b"".join(path.read_bytes() for path in (store / "commitlog.bad").iterdir())
    assert b"Body 100." in kept
    # The filler in the queue counts as an offset, so the broker has one message less to give than there are offsets.
    (inspected,) = cosmodrome_json("store", "inspect", str(store))
    (orders,) = (topic for topic in inspected["topics"] if topic["topic"] == "orders")
    with up(store.parent) as daemon:
        namesrv = ("--namesrv", daemon.address("name server"))
        limit = str(orders["messages"] - 1)
        shown = cosmodrome_json("tail", "orders", "--from", "earliest", "--limit", limit, *namesrv)
    expected = {f"body {number}." for number in range(COUNT) if number % 3 and number != 100}
    assert {message["body"] for message in shown} == expected


def test_a_store_in_use_is_only_inspected(tmp_path: Path) -> None:
    with up(tmp_path) as daemon:
        send(daemon.address("name server"))
        store = str(tmp_path / "broker-a")
        shown = cosmodrome("store", "inspect", store)
        assert shown.returncode == 0, shown.stderr
        assert "in use, or its last broker died" in shown.stdout
        assert "2 with 8 queues and 300 messages" in shown.stdout
        for arguments in (("verify",), ("repair",), ("repair", "--write", "--rebuild")):
            done = cosmodrome("store", arguments[0], store, *arguments[1:])
            assert done.returncode == 1
            assert "is in use by a broker; stop it first" in done.stderr
        assert daemon.interrupt() == 0
    assert cosmodrome("store", "verify", store).returncode == 0


def test_a_log_on_another_disk_is_used_checked_and_missed(tmp_path: Path) -> None:
    """The disk is not mounted at one start; what it holds is served again afterwards."""
    disk, store, conf = tmp_path / "disk", tmp_path / "broker-a", tmp_path / "elsewhere.conf"
    conf.write_text(f"{BROKER_CONF}storePathCommitLog={disk / 'log'}\n")
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--console-port", "0")
    command = ("up", "--data", str(tmp_path), "-c", str(conf), *ports)
    with Daemon(*command) as daemon:
        send(daemon.address("name server"))
        assert daemon.interrupt() == 0
    assert not (store / "commitlog").exists()
    assert list((disk / "log").iterdir())
    assert cosmodrome("store", "verify", str(store), "-c", str(conf)).returncode == 0
    missed = cosmodrome("store", "verify", str(store))
    assert missed.returncode == 1
    assert "if storePathCommitLog puts it elsewhere, give the broker's -c broker.conf" in missed.stderr

    disk.rename(tmp_path / "unmounted")
    before = state(store)
    refused = cosmodrome(*command)
    assert refused.returncode == 1
    assert f"the commit log is gone: {disk / 'log'} does not exist" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert state(store) == before
    (tmp_path / "unmounted").rename(disk)
    with Daemon(*command) as daemon:
        namesrv = ("--namesrv", daemon.address("name server"))
        shown = cosmodrome_json("tail", "audit", "--from", "earliest", "--limit", "100", *namesrv)
        assert len(shown) == 100
        assert daemon.interrupt() == 0

    shutil.rmtree(disk)
    repair = ("store", "repair", str(store), "-c", str(conf), "--accept-empty-log")
    planned = cosmodrome(*repair)
    assert planned.returncode == 0, planned.stderr
    assert "would: rename" in planned.stdout
    assert "nothing was changed; --write does it" in planned.stdout
    assert cosmodrome(*repair, "--write").returncode == 0
    with Daemon(*command) as daemon:
        assert daemon.interrupt() == 0


def test_errors_say_what_to_do_without_a_traceback(store: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    other = tmp_path / "other.conf"
    other.write_text("mappedFileSizeCommitLog=1048576\n")
    cases = {
        (str(tmp_path / "missing"),): "there is no folder",
        (str(tmp_path / "broker.conf"),): "there is no folder",
        (str(tmp_path / "empty"),): "is not a store: it has no folder commitlog",
        (str(tmp_path),): f"did you mean {store}?",
        ("x" * 300,): "File name too long",
    }
    for verb in ("inspect", "verify", "repair"):
        for arguments, expected in cases.items():
            done = cosmodrome("store", verb, *arguments)
            assert done.returncode == 1, done
            assert expected in done.stderr
            assert "Traceback" not in done.stderr
    assert cosmodrome("store", "verify").returncode == 2
    refused = cosmodrome("store", "repair", str(store), "--rebuild", "-c", str(other))
    assert refused.returncode == 1
    assert "has 4194304 bytes and should have 1048576" in refused.stderr


def test_what_the_system_forbids_is_told_in_one_line(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, because nothing is forbidden to a tester who is root."""

    def forbidden(path: Path, _paths: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(store_commands, "inspect_store", forbidden)
    done = CliRunner().invoke(main, ["store", "inspect", str(store)])
    assert done.exit_code == 1
    assert done.output == (
        f"Error: [Errno 13] Permission denied: '{store}'; run this as the user that runs the broker\n"
    )


# --- records that were left out


def test_records_that_were_left_out_are_listed(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    empty = CliRunner().invoke(main, ["store", "skipped", str(tmp_path)])
    assert (empty.exit_code, empty.output) == (0, f"{tmp_path}: no record was left out\n")
    register = SkippedRecords(tmp_path / "config" / SKIPPED_RECORDS, FakeClock())
    for offset in range(MAX_KEPT + 1):
        register.add("timers", "rmq_sys_wheel_timer", 0, offset, 4_096 + offset, "REAL_QID is '999' \x1b[31m")
    shown = CliRunner().invoke(main, ["store", "skipped", str(tmp_path)])
    assert shown.exit_code == 0
    assert "rmq_sys_wheel_timer/0@1000" in shown.output
    assert "rmq_sys_wheel_timer/0@0 " not in shown.output
    assert "\x1b" not in shown.output
    assert shown.output.endswith("and 1 before them\n")
    (listed,) = cosmodrome_json("store", "skipped", str(tmp_path))
    assert (listed["count"], len(listed["records"])) == (MAX_KEPT + 1, MAX_KEPT)
    assert listed["records"][0] == {
        "number": 2,
        "timeMs": FakeClock().now_ms(),
        "service": "timers",
        "topic": "rmq_sys_wheel_timer",
        "queueId": 0,
        "queueOffset": 1,
        "physicalOffset": 4_097,
        "reason": "REAL_QID is '999' \x1b[31m",
    }
    inspected = CliRunner().invoke(main, ["store", "inspect", str(tmp_path)])
    assert f"records left out: 1,001; `cosmodrome store skipped {tmp_path}` lists them" in inspected.output
    register.close()


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["store", "skipped", str(tmp_path / "nowhere")])
    assert (told.exit_code, "is no folder" in told.output) == (1, True)

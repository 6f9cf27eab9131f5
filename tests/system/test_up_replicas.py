"""`cosmodrome up --replicas 2`: a master and a slave with one command."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from tests.system.daemons import cosmodrome, cosmodrome_json, up


def log_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "commitlog").iterdir())}


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_each_master_has_a_slave_and_all_end_in_order(tmp_path: Path) -> None:
    with up(tmp_path, "--brokers", "2", "--replicas", "2") as daemon:
        assert "and 1 more, each with a slave" in daemon.output
        namesrv = ("--namesrv", daemon.address("name server"))
        sent = [cosmodrome_json("send", "orders", f"{number}", *namesrv)[0] for number in range(6)]
        assert {one["status"] for one in sent} == {"SEND_OK"}
        assert daemon.interrupt() == 0
    stored = {name: log_of(tmp_path / name) for name in ("broker-a", "broker-b")}
    assert any(b"orders" in content for files in stored.values() for content in files.values())
    for name, files in stored.items():
        assert log_of(tmp_path / f"{name}-slave") == files


def test_a_master_goes_on_without_its_slave_and_says_so_in_each_answer(tmp_path: Path) -> None:
    with up(tmp_path, "--replicas", "2") as daemon:
        namesrv = ("--namesrv", daemon.address("name server"))
        (slave,) = children(daemon.pid)
        os.kill(slave, signal.SIGKILL)
        daemon.wait_for("the slave of broker-a ended")
        assert cosmodrome_json("send", "orders", "alone", *namesrv)[0]["status"] == "SLAVE_NOT_AVAILABLE"
        tail = cosmodrome("tail", "orders", "--from", "earliest", "--limit", "1", *namesrv)
        assert tail.stdout.rstrip().endswith("alone")
        assert daemon.interrupt() == 1, "the slave was killed"
    with up(tmp_path, "--replicas", "2") as daemon:
        namesrv = ("--namesrv", daemon.address("name server"))
        assert cosmodrome_json("send", "orders", "together", *namesrv)[0]["status"] == "SEND_OK"
    assert log_of(tmp_path / "broker-a-slave") == log_of(tmp_path / "broker-a")


def test_a_slave_that_was_promoted_is_the_master_of_the_next_run(tmp_path: Path) -> None:
    with up(tmp_path, "--replicas", "2") as daemon:
        namesrv, first = ("--namesrv", daemon.address("name server")), daemon.address("broker")
        assert cosmodrome_json("send", "orders", "before", *namesrv)[0]["status"] == "SEND_OK"
        done = cosmodrome("admin", "promote", "broker-a", *namesrv)
        assert f"{first} takes no messages until " in done.stderr
        assert re.fullmatch(rf"\S+ is the master of broker-a: SYNC_MASTER, term 2; {first} is slave 1\n", done.stdout)
        assert daemon.interrupt() == 0
    with up(tmp_path, "--replicas", "2") as daemon:
        assert "this broker is slave 1, as it became while it ran" in daemon.output
        sent = cosmodrome_json("send", "orders", "after", "--namesrv", daemon.address("name server"))
        assert sent[0]["brokerName"] == "broker-a"
        assert daemon.interrupt() == 0
    kept = b"".join(log_of(tmp_path / "broker-a-slave").values())
    assert kept.index(b"before") < kept.index(b"after")

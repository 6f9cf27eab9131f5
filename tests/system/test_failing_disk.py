"""A disk that fails under a real broker: what it says, how it ends, and that no acknowledged message is lost."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome import Message
from cosmodrome.blocking import Producer
from cosmodrome.errors import ConnectionFailed, SendFailed
from cosmodrome.store.lock import AbortMark, Exit
from cosmodrome.testing.faulty_disk import Kind
from tests.system.daemons import BROKER_CONF, Daemon
from tests.system.small_disk import SmallDisk
from tests.system.test_full_disk import read_all, up

MESSAGES = 2_000  # more than the files that are there when the disk fails can take
QUEUES = range(4)
EVERYTHING = frozenset(Kind) - {Kind.PAUSE}
READ_ONLY = EVERYTHING - {Kind.OPEN, Kind.SYNC}

Places = dict[tuple[int, int], bytes]


def broker(folder: Path, flush: str, within: tuple[str, ...] = ()) -> Daemon:
    (folder / "broker.conf").write_text(
        f"{BROKER_CONF}flushDiskType={flush}\ndefaultTopicQueueNums={len(QUEUES)}\nflushConsumerOffsetInterval=200\n"
    )
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    arguments = ("up", "--data", str(folder / "data"), "-c", str(folder / "broker.conf"), *ports)
    return Daemon(*arguments, within=within)


def send_until_refused(daemon: Daemon, fail: Callable[[], None]) -> tuple[Places, str]:
    """Send some messages, let the disk fail, and go on; return what was acknowledged, and how the end was told."""
    taken: Places = {}
    with Producer(group="p", namesrv=daemon.address("name server"), max_tries=1) as producer:
        for number in range(MESSAGES):
            if number == 20:
                fail()
            body = b"%d:" % number + os.urandom(10_000)
            try:
                sent = producer.send(Message("orders", body))
            except SendFailed as refusal:
                return taken, str(refusal)
            taken[sent.queue.queue_id, sent.queue_offset] = body
    raise AssertionError("the disk failed, and nothing said so")


@pytest.mark.parametrize(
    ("flush", "code", "kinds"),
    [
        ("ASYNC_FLUSH", errno.EIO, frozenset({Kind.SYNC})),
        ("SYNC_FLUSH", errno.EIO, frozenset({Kind.SYNC})),
        ("ASYNC_FLUSH", errno.EIO, frozenset({Kind.WRITE})),
        ("SYNC_FLUSH", errno.EIO, EVERYTHING),
        ("ASYNC_FLUSH", errno.EROFS, READ_ONLY),
    ],
)
def test_a_disk_that_fails_is_told_and_ends_with_a_code(
    tmp_path: Path, flush: str, code: int, kinds: frozenset[Kind]
) -> None:
    launcher = (sys.executable, "-m", "tests.system.failing_disk", str(tmp_path), str(code), ",".join(kinds))
    with broker(tmp_path, flush, launcher) as daemon:
        taken, refusal = send_until_refused(daemon, lambda: os.kill(daemon.pid, signal.SIGUSR1))
        assert "service not available now: the disk failed" in refusal, refusal
        served = read_all(daemon, set(QUEUES))
        assert taken.items() <= served.items(), "it serves what it has"
        assert daemon.interrupt() == 1
        daemon.exit_code()
    last = daemon.output.splitlines()[-1]
    assert last.startswith("Error: the broker has stopped, but could not save everything: "), daemon.output
    assert "Traceback" not in daemon.output
    mark = AbortMark(tmp_path / "data/broker-a/abort").last_exit()
    assert mark is (Exit.DISK_FAILURE if Kind.WRITE not in kinds else Exit.KILLED)
    with broker(tmp_path, flush) as daemon:
        assert taken.items() <= read_all(daemon, set(QUEUES)).items()
        assert daemon.interrupt() == 0, daemon.output


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """A limit of the process, in place of a disk: from then on there is no next file."""
    with broker(tmp_path, "ASYNC_FLUSH") as daemon:

        def limit() -> None:
            subprocess.run(["prlimit", "--pid", str(daemon.pid), "--fsize=1000"], check=True)

        taken, refusal = send_until_refused(daemon, limit)
        assert "service not available now" in refusal
        assert "File too large" in refusal
        assert daemon.interrupt() == 1
        daemon.exit_code()
    assert daemon.output.splitlines()[-1].startswith("Error: the broker has stopped, but could not save everything: ")
    assert "Traceback" not in daemon.output
    with broker(tmp_path, "ASYNC_FLUSH") as daemon:
        assert taken.items() <= read_all(daemon, set(QUEUES)).items()


def test_a_store_that_is_taken_away(tmp_path: Path) -> None:
    with broker(tmp_path, "ASYNC_FLUSH") as daemon:
        send_until_refused(daemon, lambda: shutil.rmtree(tmp_path / "data/broker-a"))
        assert daemon.interrupt() == 1
        daemon.exit_code()
    assert daemon.output.splitlines()[-1].startswith("Error: the broker has stopped, but could not save everything: ")
    assert "Traceback" not in daemon.output


def test_a_body_that_cannot_be_read_while_it_is_sent_is_told(tmp_path: Path) -> None:
    """The head is there, and the kernel copies the body into the socket: it says EFAULT where we would get SIGBUS."""
    with broker(tmp_path, "ASYNC_FLUSH") as daemon:
        with Producer(group="p", namesrv=daemon.address("name server"), max_tries=1) as producer:
            sent = producer.send(Message("orders", os.urandom(500_000)))
        log_file = tmp_path / "data/broker-a/commitlog/00000000000000000000"
        os.truncate(log_file, 100_000)
        with pytest.raises(ConnectionFailed):
            read_all(daemon, {sent.queue.queue_id})
        assert daemon.interrupt() == 1
        daemon.exit_code()
    assert f"{log_file} was cut by another program" in daemon.output or f"{log_file} cannot be used" in daemon.output


@pytest.mark.parametrize("end", ["store taken away", "killed"])
def test_the_end_of_one_broker_of_several_is_told_with_a_code(tmp_path: Path, end: str) -> None:
    (tmp_path / "broker.conf").write_text(BROKER_CONF)
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    arguments = ("up", "--data", str(tmp_path), "-c", str(tmp_path / "broker.conf"), "--brokers", "2", *ports)
    with Daemon(*arguments) as daemon:
        if end == "killed":
            (child,) = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
            os.kill(int(child), signal.SIGKILL)
            code = -signal.SIGKILL
        else:
            send_until_refused(daemon, lambda: shutil.rmtree(tmp_path / "broker-b"))
            daemon.interrupt()
            code = 1
        assert daemon.exit_code() == 1, daemon.output
    assert daemon.output.splitlines()[-1] == f"Error: broker-b ended with code {code}; what it said is above"
    assert "Traceback" not in daemon.output


@pytest.mark.skipif(not SmallDisk.is_possible(), reason="no namespaces here")
def test_a_read_only_disk_is_told_at_the_start(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", 8 * 1024 * 1024) as disk:
        with up(disk) as daemon:
            assert daemon.interrupt() == 0
        disk.set_read_only()
        data = disk.mount / "data"
        for folder, words in (
            (data, ("up", "--data", str(data))),
            (data / "broker-a", ("broker", "-n", "127.0.0.1:1", "--store", str(data / "broker-a"))),
            (data / "namesrv", ("namesrv", "--kv-config", str(data / "namesrv/kvConfig.json"))),
        ):
            command = disk.command(sys.executable, "-m", "cosmodrome", *words)
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr == f"Error: {folder} cannot be used: Read-only file system\n"


def test_output_on_a_full_disk_stops_no_daemon(tmp_path: Path) -> None:
    """`up > file` where the file has no room: nothing is said, and everything is served."""
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "cosmodrome",
                "up",
                "--data",
                str(tmp_path),
                "--namesrv-port",
                "0",
                "--broker-port",
                "0",
            ],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert process.stderr is not None
    try:
        assert "standard output has no room for: name server on" in process.stderr.readline()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0

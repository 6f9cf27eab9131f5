"""What a user types, against real processes."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cosmodrome.blocking import Producer
from cosmodrome.model import Message
from tests.bounded import child, line_of
from tests.system.daemons import BROKER_CONF, PATIENCE_SECONDS, Daemon, cosmodrome, cosmodrome_json, up


def test_a_first_message(tmp_path: Path) -> None:
    with up(tmp_path) as daemon:
        namesrv = ("--namesrv", daemon.address("name server"))
        sent = cosmodrome("send", "hello", "Hello, world", "--tag", "greeting", "--key", "1", *namesrv)
        assert sent.returncode == 0, sent.stderr
        assert sent.stdout.startswith("SEND_OK hello broker-a/")
        (second,) = cosmodrome_json("send", "hello", '{"id": 2}', "--property", "shop=Köln", *namesrv)
        shown = cosmodrome("tail", "hello", "--from", "earliest", "--limit", "2", *namesrv)
        assert shown.returncode == 0, shown.stderr
        assert "tag=greeting key=1 Hello, world" in shown.stdout
        messages = cosmodrome_json("tail", "hello", "--from", "earliest", "--limit", "2", *namesrv)
        by_body = {message["body"]: message for message in messages}
        received = by_body['{"id": 2}']
        assert {key: received[key] for key in ("msgId", "offsetMsgId", "queueId", "queueOffset")} == {
            key: second[key] for key in ("msgId", "offsetMsgId", "queueId", "queueOffset")
        }
        assert received["properties"]["shop"] == "Köln"
        assert cosmodrome("send", "coloured", "\x1b[31mred\nor two", *namesrv).returncode == 0
        shown = cosmodrome("tail", "coloured", "--from", "earliest", "--limit", "1", *namesrv)
        assert shown.stdout.endswith(r" \x1b[31mred\nor two" "\n")
        shown = cosmodrome("tail", "coloured", "--from", "earliest", "--limit", "1", "--raw", *namesrv)
        assert shown.stdout.endswith(" \x1b[31mred\nor two\n")
        assert daemon.interrupt() == 0
        daemon.wait_for("stopped")


def test_a_body_from_standard_input_and_filters_by_tag_and_by_sql(tmp_path: Path) -> None:
    with up(tmp_path) as daemon:
        namesrv = ("--namesrv", daemon.address("name server"))
        for tag in ("a", "b", "c"):
            assert cosmodrome("send", "t", "-", "--tag", tag, *namesrv, stdin=f"body of {tag}").returncode == 0
        shown = cosmodrome_json("tail", "t", "--from", "earliest", "--limit", "2", "--tag", "a || c", *namesrv)
        assert {message["body"] for message in shown} == {"body of a", "body of c"}
        shown = cosmodrome_json("tail", "t", "--from", "earliest", "--limit", "1", "--sql", "TAGS = 'b'", *namesrv)
        assert [message["body"] for message in shown] == ["body of b"]
        both = cosmodrome("tail", "t", "--tag", "a", "--sql", "TAGS = 'b'", *namesrv)
        assert (both.returncode, "not both" in both.stderr) == (2, True)


def test_acknowledged_messages_survive_kill_9(tmp_path: Path) -> None:
    """The page cache outlives the process, so this holds for ASYNC_FLUSH too."""
    expected = []
    for round_number in range(3):
        with up(tmp_path) as daemon:
            namesrv = daemon.address("name server")
            with Producer(group="p", namesrv=namesrv) as producer:
                for index in range(200):
                    result = producer.send(Message("t", b"%d-%d" % (round_number, index), keys=f"k{index}"))
                    expected.append((result.queue.queue_id, result.queue_offset, f"{round_number}-{index}"))
            daemon.kill()
    with up(tmp_path) as daemon:
        limit = str(len(expected))
        namesrv = daemon.address("name server")
        shown = cosmodrome_json("tail", "t", "--from", "earliest", "--limit", limit, "--namesrv", namesrv)
    assert sorted((m["queueId"], m["queueOffset"], m["body"]) for m in shown) == sorted(expected)


def test_brokers_register_with_every_name_server(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=broker-x\nbrokerClusterName=C\nlistenPort=0\nflushDiskType=SYNC_FLUSH\n{BROKER_CONF}")
    kept = [str(tmp_path / f"{name}.json") for name in ("one", "two")]
    any_port = ("namesrv", "--port", "0", "--kv-config")
    with Daemon(*any_port, kept[0]) as one, Daemon(*any_port, kept[1]) as two:
        addresses = [daemon.address("name server") for daemon in (one, two)]
        store = str(tmp_path / "store")
        with Daemon("broker", "-n", ";".join(addresses), "-c", str(conf), "--store", store) as broker:
            assert "broker-x" in broker.output
            (sent,) = cosmodrome_json("send", "t", "body", "--namesrv", addresses[0])
            assert sent["brokerName"] == "broker-x"
            (shown,) = cosmodrome_json("tail", "t", "--from", "earliest", "--limit", "1", "--namesrv", addresses[1])
            assert (shown["body"], shown["msgId"]) == ("body", sent["msgId"])
            assert broker.interrupt() == 0


@pytest.mark.parametrize(
    ("first", "expected"), [("", {"broker-a", "broker-b"}), ("brokerName=broker-b\n", {"broker-b", "broker-c"})]
)
def test_several_brokers_behind_one_name_server(tmp_path: Path, first: str, expected: set[str]) -> None:
    conf = tmp_path / "named.conf"
    conf.write_text(first + BROKER_CONF)
    with up(tmp_path, "--brokers", "2", "-c", str(conf)) as daemon:
        namesrv = daemon.address("name server")
        names = set()
        for index in range(24):  # the topic spreads to both brokers once both have registered it
            (sent,) = cosmodrome_json("send", f"t{index}", "body", "--namesrv", namesrv)
            names.add(sent["brokerName"])
            if len(names) == 2:
                break
        assert names == expected
        assert daemon.interrupt() == 0


def test_who_is_no_name_server_is_not_waited_for_but_a_topic_is(tmp_path: Path) -> None:
    with up(tmp_path) as daemon:
        namesrv = daemon.address("name server")
        asked = cosmodrome("tail", "later", "--namesrv", daemon.address("broker broker-a"))
        assert (asked.returncode, asked.stderr.count("\n")) == (1, 1), asked.stderr
        assert "Is it a name server?" in asked.stderr
        command = [sys.executable, "-m", "cosmodrome", "tail", "later", "--limit", "1", "--namesrv", namesrv]
        with child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
            assert "waiting for later" in line_of(tail.stderr)
            assert cosmodrome("send", "later", "Hello", "--namesrv", namesrv).returncode == 0
            shown, said = tail.communicate(timeout=PATIENCE_SECONDS)
            assert (tail.returncode, shown.endswith(" Hello\n"), said) == (0, True, "")


def test_errors_say_what_to_do_without_a_traceback(tmp_path: Path) -> None:
    bad_conf = tmp_path / "bad.conf"
    bad_conf.write_text("brokerNmae=x\n")
    odd_conf = tmp_path / "odd.conf"
    odd_conf.write_text("listenPort=many\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cases = {
            ("namesrv", "--port", port): "cannot listen on 127.0.0.1",
            ("broker", "-n", "nowhere"): "is not an address",
            ("broker",): "the broker needs a name server",
            ("broker", "-n", "127.0.0.1:1", "-c", str(bad_conf)): "unknown key brokerNmae",
            ("broker", "-n", "127.0.0.1:1", "-c", str(odd_conf)): "listenPort=many: write a whole number",
            ("send", "../x", "body"): "topic name '../x' is illegal",
            ("send", "t", ""): "body is empty",
            ("send", "t", "body", "--namesrv", "127.0.0.1:1"): "Is it running?",
            ("tail", "t", "--namesrv", "127.0.0.1:1"): "Is it running?",
            ("trace", "7F000001", "--namesrv", "127.0.0.1:1"): "Is it running?",
        }
        for arguments, expected in cases.items():
            done = cosmodrome(*arguments)
            assert done.returncode == 1, (arguments, done)
            assert expected in done.stderr
            assert done.stderr.count("\n") == 1, done.stderr
    assert cosmodrome("send", "t").returncode == 2
    assert cosmodrome("send", "t", "b", "--property", "x").returncode == 2


def test_a_store_is_opened_by_one_broker_only(tmp_path: Path) -> None:
    with up(tmp_path) as daemon:
        store = str(tmp_path / "broker-a")
        conf = str(tmp_path / "broker.conf")
        namesrv = daemon.address("name server")
        done = cosmodrome("broker", "-n", namesrv, "--port", "0", "--store", store, "-c", conf)
        assert done.returncode == 1
        assert "in use by another broker" in done.stderr
        assert "Traceback" not in done.stderr

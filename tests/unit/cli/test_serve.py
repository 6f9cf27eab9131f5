"""What the daemons say when they cannot start, and what they are called."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from cosmodrome.broker.broker import Broker
from cosmodrome.cli import serve
from cosmodrome.cli.broker_processes import other_names
from cosmodrome.cli.main import main
from cosmodrome.cli.serve import MAX_BROKERS, _usable
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.nameserver.kv import KvConfigs
from cosmodrome.nameserver.server import NameServer
from cosmodrome.net import addresses
from cosmodrome.net.addresses import Interface
from cosmodrome.net.caller import Caller
from cosmodrome.wire.command import Command
from cosmodrome.wire.name_server_requests import KvConfig

UP = ("up", "--namesrv-port", "0", "--broker-port", "0", "--data")
BROKER = ("broker", "-n", "127.0.0.1:1", "--port", "0", "--store")
NAMESRV = ("namesrv", "--port", "0", "--kv-config")


def invoked(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ([*UP, "{file}"], "{file}"),
        ([*UP, "{file}/data"], "{file}/data"),
        ([*BROKER, "{file}/store"], "{file}/store"),
        ([*NAMESRV, "{file}/kvConfig.json"], "{file}"),
    ],
)
def test_a_file_is_no_folder(tmp_path: Path, words: list[str], folder: str) -> None:
    file = tmp_path / "notes.txt"
    file.touch()
    done = invoked(*(word.format(file=file) for word in words))
    assert (done.exit_code, done.output) == (1, f"Error: {folder.format(file=file)} cannot be used: {file} is a file\n")


@pytest.mark.parametrize("words", [[*UP, "/proc/x"], [*BROKER, "/proc/x"], [*NAMESRV, "/proc/x/kvConfig.json"]])
def test_a_folder_that_cannot_be_made(words: list[str]) -> None:
    done = invoked(*words)
    assert (done.exit_code, done.output) == (1, "Error: /proc/x cannot be used: No such file or directory\n")


@pytest.mark.parametrize("words", [[*UP, "{data}"], [*BROKER, "{data}"], [*NAMESRV, "{data}/kvConfig.json"]])
def test_a_read_only_folder_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """Refused by hand: whoever is root may write anywhere."""

    def refused(**_options: Any) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "tmp1234"))

    monkeypatch.setattr(serve, "TemporaryFile", refused)
    done = invoked(*(word.format(data=tmp_path) for word in words))
    assert (done.exit_code, done.output) == (1, f"Error: {tmp_path} cannot be used: Permission denied\n")


def test_a_full_disk_is_left_to_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_options: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "tmp1234"))

    monkeypatch.setattr(serve, "TemporaryFile", full)
    with _usable(tmp_path):
        pass


def test_a_file_in_the_place_of_a_part_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "commitlog").touch()
    done = invoked(*BROKER, str(tmp_path))
    assert done.exit_code == 1
    assert done.output == f"Error: {tmp_path} cannot be used: {tmp_path / 'commitlog'} is a file\n"


def test_no_two_brokers_have_one_name() -> None:
    assert other_names("broker-a", 2) == ["broker-b", "broker-c"]
    assert other_names("broker-b", 2) == ["broker-c", "broker-d"]
    for first in ("broker-a", "broker-z", "mine"):
        names = [first, *other_names(first, MAX_BROKERS - 1)]
        assert len(set(names)) == MAX_BROKERS


@pytest.mark.parametrize("replicas", ["4", "6", "7"])
def test_up_starts_groups_of_three_and_five_only(tmp_path: Path, replicas: str) -> None:
    done = invoked(*UP, str(tmp_path / "data"), "--replicas", replicas)
    assert done.exit_code == 1
    assert f"--replicas {replicas} is refused: a Raft group has 3 or 5 members" in done.output
    assert not (tmp_path / "data").exists()


def test_up_makes_the_members_of_its_groups_itself(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("dLegerSelfId=n0\n")
    done = invoked(*UP, str(tmp_path / "data"), "--replicas", "3", "-c", str(conf))
    assert done.exit_code == 1
    assert "dLegerSelfId=n0 is refused: `cosmodrome up --replicas 3` makes the members of a Raft group" in done.output


@pytest.mark.parametrize(("setting", "words"), [("haListenPort=4711", ["--replicas", "2"]), ("brokerRole=SLAVE", [])])
def test_up_refuses_what_is_for_one_broker_alone(tmp_path: Path, setting: str, words: list[str]) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{setting}\n{'brokerId=1' if 'SLAVE' in setting else ''}\n")
    done = invoked(*UP, str(tmp_path / "data"), "-c", str(conf), *words)
    assert (done.exit_code, f"{conf}:1: {setting} is refused" in done.output) == (1, True), done.output
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("tls.server.mode=enforcing", "its broker needs tls.enable=true"),
        ("tls.server.mode=enforcing\ntls.enable=true", "needs haTlsEnable=true"),
        ("aclEnable=true", "innerClientAuthenticationCredentials"),
        ("aclEnable=true\ninnerClientAuthenticationCredentials={}", "needs haAllowedAddresses: set it to"),
    ],
)
def test_up_refuses_security_that_keeps_its_own_brokers_out(tmp_path: Path, lines: str, words: str) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{lines}\n")
    done = invoked(*UP, str(tmp_path / "data"), "-c", str(conf), "--replicas", "2")
    assert (done.exit_code, words in done.output) == (1, True), done.output
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("command", [[*BROKER, "{store}"], [*UP, "{store}"]])
def test_a_setting_that_cannot_be_kept_stops_the_start(tmp_path: Path, command: list[str]) -> None:
    store, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text("brokerName=b\nauthenticationEnabled=true\n", encoding="utf-8")
    done = invoked(*(word.format(store=store) for word in command), "-c", str(conf))
    assert (done.exit_code, done.output) == (
        1,
        f"Error: {conf}:2: authenticationEnabled=true is refused: this version has no users of its own, so every "
        "client would be let in. Remove the key or set authenticationEnabled=false; aclEnable=true checks the accounts "
        "of plain_acl.yml\n",
    )
    assert not store.exists()


# --- the name server's file and its settings


async def put_setting(address: str) -> None:
    caller = Caller()
    try:
        command = Command.request(RequestCode.PUT_KV_CONFIG, KvConfig("ns", "k", "v"))
        assert (await caller.call(address, command, 5_000)).code == ResponseCode.SUCCESS
    finally:
        await caller.close()


class Serving:
    """`cosmodrome namesrv` in this process, asked once when it says that it is ready, and stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.asked: list[NameServer] = []
        self._monkeypatch = monkeypatch
        monkeypatch.chdir(folder)

    def run(self, *words: str) -> Result:
        async def once(server: NameServer, _stop: asyncio.Event) -> None:
            self.asked.append(server)
            stop = asyncio.Event()
            running = asyncio.create_task(run(server, stop))
            try:
                await put_setting(server.address)
            finally:
                stop.set()
                await running

        run = NameServer.run
        with self._monkeypatch.context() as patch:
            patch.setattr(NameServer, "run", once)
            return invoked("namesrv", *words)


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Serving:
    return Serving(monkeypatch, tmp_path)


def test_settings_are_kept_on_disk_without_being_told_where(serving: Serving, tmp_path: Path) -> None:
    done = serving.run("--port", "0")
    assert done.exit_code == 0, done.output
    port = serving.asked[0].port
    kept = Path("cosmodrome-data", f"namesrv-{port}", "kvConfig.json")
    assert done.output == f"KV settings in {kept}\nname server on 127.0.0.1:{port}: ready; Ctrl-C stops\nstopped\n"
    assert KvConfigs(tmp_path / kept).value("ns", "k") == "v"


def test_the_usual_port_has_the_usual_place() -> None:
    assert serve._default_kv_config(9876) == Path("cosmodrome-data", "namesrv", "kvConfig.json")


def test_a_default_place_that_cannot_be_used_is_said(serving: Serving, tmp_path: Path) -> None:
    (tmp_path / "cosmodrome-data").touch()
    done = serving.run("--port", "0")
    assert done.exit_code == 1
    assert done.output.endswith("cannot be used: cosmodrome-data is a file\n")


def test_a_name_server_obeys_its_file_and_the_command_line_more(serving: Serving, tmp_path: Path) -> None:
    """conf/namesrv.conf with Apache's keys."""
    conf = tmp_path / "namesrv.conf"
    conf.write_text(
        "listenPort=1\norderMessageEnable=true\nscanNotActiveBrokerInterval=5000\nkvConfigPath=kept.json\n"
        "serverWorkerThreads=8\nclientRequestThreadPoolNums=8\nrocketmqHome=/opt\nconfigBlackList=orderMessageEnable\n"
        "serverChannelMaxIdleTimeSeconds=60\n",
        encoding="utf-8",
    )
    done = serving.run("-c", str(conf), "--port", "0")
    assert done.exit_code == 0, done.output
    config = serving.asked[0].config
    assert (config.listen_port, config.order_message_enable, config.scan_not_active_broker_interval) == (0, True, 5_000)
    assert done.output.startswith("KV settings in kept.json\n")
    assert KvConfigs(tmp_path / "kept.json").value("ns", "k") == "v"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("enableControllerInNamesrv=true", "is refused: this version has no controller"),
        ("tls.server.ciphers=x", "does not know that key of TLS"),
        ("enableTopicList=false", "lists its topics to everyone"),
        ("brokerName=b", "brokerName is a key of another program"),
        ("listenPort=x", "listenPort=x: write a whole number"),
        ("scanNotActiveBrokerInterval=0", "scanNotActiveBrokerInterval must be at least 1 ms"),
        ("orderMesageEnable=true", "did you mean orderMessageEnable?"),
    ],
)
def test_what_a_name_server_cannot_keep_stops_its_start(
    serving: Serving, tmp_path: Path, line: str, words: str
) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text(f"# mine\n{line}\n", encoding="utf-8")
    done = serving.run("-c", str(conf), "--port", "0")
    assert (done.exit_code, serving.asked) == (1, [])
    assert done.output.startswith(f"Error: {conf}:2: ")
    assert words in done.output


# --- the address that clients are told


@pytest.mark.parametrize(
    ("line", "told", "because"),
    [
        ("", "127.0.0.9", "brokerIP1 in the file of -c sets another"),
        ("brokerIP1=127.0.0.8", "127.0.0.8", "as brokerIP1 says"),
    ],
)
def test_who_listens_everywhere_says_where_clients_are_told_to_come(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    line: str,
    told: str,
    because: str,
) -> None:
    """On a machine whose only address is one of its own loop, which is worth a warning."""
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{line}\nmappedFileSizeCommitLog=1048576\nmaxHashSlotNum=100\nmaxIndexNum=400\n", encoding="utf-8")
    monkeypatch.setattr(addresses, "interfaces", lambda: [Interface("lo", "127.0.0.9")])
    registered: dict[str, str] = {}

    async def stopped_at_once(broker: Broker, _stop: asyncio.Event) -> None:
        registered[broker.address] = broker.config.namesrv_addr
        stop = asyncio.Event()
        stop.set()
        await run(broker, stop)

    run = Broker.run
    monkeypatch.setattr(Broker, "run", stopped_at_once)
    done = invoked(*UP, str(tmp_path / "data"), "--host", "0.0.0.0", "-c", str(conf))
    assert done.exit_code == 0, done.output
    first, second = done.output.splitlines()[:2]
    assert first == f"listening on every address of this machine; clients connect to {told}: {because}"
    ((address, name_server),) = registered.items()
    assert second.startswith(f"name server on {name_server}, broker broker-a on {address}, ")
    assert (address.partition(":")[0], name_server.partition(":")[0]) == (told, "127.0.0.9")
    assert f"clients on other machines cannot reach the advertised address {told}; set brokerIP1" in caplog.text


def test_up_listens_where_the_file_says_unless_the_command_line_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("bindAddress=127.0.0.3\nmappedFileSizeCommitLog=1048576\nmaxHashSlotNum=100\nmaxIndexNum=400\n")
    bound: list[str] = []

    async def stopped_at_once(broker: Broker, _stop: asyncio.Event) -> None:
        bound.append(broker.address.partition(":")[0] + " " + broker.config.namesrv_addr.partition(":")[0])
        stop = asyncio.Event()
        stop.set()
        await run(broker, stop)

    run = Broker.run
    monkeypatch.setattr(Broker, "run", stopped_at_once)
    for flags in ([], ["--host", "127.0.0.4"]):
        done = invoked(*UP, str(tmp_path / "data"), "-c", str(conf), *flags)
        assert done.exit_code == 0, done.output
    assert bound == ["127.0.0.3 127.0.0.3", "127.0.0.4 127.0.0.4"]


def test_up_does_not_leave_the_name_servers_of_its_file_unasked(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# mine\nnamesrvAddr=10.0.0.1:9876\n")
    done = invoked(*UP, str(tmp_path / "data"), "-c", str(conf))
    assert (done.exit_code, done.output) == (
        1,
        f"Error: {conf}:2: namesrvAddr=10.0.0.1:9876 is refused: `cosmodrome up` starts a name server of its own. "
        "Remove the key, or start `cosmodrome broker` with this file\n",
    )


# --- ports


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["namesrv", "--kv-config", "{folder}/kv.json", "--port", "{port}"], "--host, --port or listenPort"),
        (["broker", "-n", "127.0.0.1:1", "--store", "{folder}", "--port", "{port}"], "--host, --port or listenPort"),
        (["up", "--data", "{folder}", "--namesrv-port", "{port}"], "--host or --namesrv-port"),
        (
            ["up", "--data", "{folder}", "--namesrv-port", "0", "--broker-port", "{port}"],
            "--host, --broker-port or listenPort",
        ),
    ],
)
def test_a_port_in_use_is_told_with_who_has_it_and_what_chooses_another(
    tmp_path: Path, words: list[str], options: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = invoked(*(word.format(folder=tmp_path, port=port) for word in words))
    me = f"(process {os.getpid()})"
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: cannot listen on 127.0.0.1:{port}: the port is in use by ")
    assert f"{me}; choose another with {options}" in done.output
    assert done.output.count("\n") == 1


def test_an_address_of_another_machine_is_told(tmp_path: Path) -> None:
    done = invoked("namesrv", "--kv-config", str(tmp_path / "kv.json"), "--port", "0", "--host", "198.51.100.7")
    assert (done.exit_code, done.output) == (
        1,
        "Error: cannot listen on 198.51.100.7:0: this machine has no such address; "
        "choose another with --host, --port or listenPort in the file of -c\n",
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["namesrv", "--port", "x"], "'x' is not a valid integer range"),
        (["namesrv", "--port", "70000"], "70000 is not in the range 0<=x<=65535"),
        (["broker", "-p", "9876"], "No such option"),
        (["namesrv", "-p", "9876"], "No such option"),
    ],
)
def test_a_mistake_with_the_port_option_is_a_sentence(words: list[str], told: str) -> None:
    done = invoked(*words)
    assert done.exit_code == 2
    assert told in done.output

"""`cosmodrome up`, `cosmodrome namesrv` and `cosmodrome broker`: the daemons, in the foreground."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import signal
import string
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import click

from cosmodrome import state_file
from cosmodrome.broker.broker import Broker
from cosmodrome.broker.hooks import load_hooks
from cosmodrome.cli.options import PORT, config_option, host_option, name_server_config_option
from cosmodrome.cli.output import discard_output
from cosmodrome.clock import SystemClock
from cosmodrome.config import (
    DEFAULT_BROKER_PORT,
    DEFAULT_CONSOLE_PORT,
    DEFAULT_NAMESRV_PORT,
    BrokerConfig,
    NameServerConfig,
    NetConfig,
    StoreConfig,
    check_keys,
    read_properties,
)
from cosmodrome.disk import DEFAULT_FILE_MODE, NO_ROOM, use_file_mode
from cosmodrome.errors import ConfigError, CosmodromeError, StoreError
from cosmodrome.nameserver.server import NameServer
from cosmodrome.net.addresses import EVERY_ADDRESS, advertised_host
from cosmodrome.net.loop import run
from cosmodrome.net.server import CannotListen
from cosmodrome.properties_file import place
from cosmodrome.store.memory_faults import tell_memory_faults

log = logging.getLogger(__name__)

BROKER_PORT_STEP = 10  # a broker's neighbours belong to it: two below for old clients, one above for replication
BROKER_START_SECONDS = 60
MAX_BROKERS = 26
DEFAULT_BROKER_NAME = "broker-a"
DEFAULT_DATA_DIR = "cosmodrome-data"
_BROKER_CONFIGS = (BrokerConfig, StoreConfig, NetConfig)


@click.command()
@click.option("--data", "data_dir", default=DEFAULT_DATA_DIR, show_default=True, help="Folder that keeps everything.")
@host_option
@click.option("--namesrv-port", type=PORT, default=DEFAULT_NAMESRV_PORT, show_default=True)
@click.option("--broker-port", type=PORT, help=f"Port of the first broker.  [default: {DEFAULT_BROKER_PORT}]")
@click.option(
    "--console-port",
    type=PORT,
    default=DEFAULT_CONSOLE_PORT,
    show_default=True,
    help="Kept for the web console, which is not part of this version: nothing is started.",
)
@click.option("--brokers", type=click.IntRange(1, MAX_BROKERS), default=1, show_default=True, help="Broker processes.")
@config_option
def up(
    data_dir: str,
    host: str | None,
    namesrv_port: int,
    broker_port: int | None,
    console_port: int,
    brokers: int,
    config_file: str | None,
) -> None:
    """Start a name server and a broker in one process. Ctrl-C stops both cleanly."""
    properties = _properties(config_file, *_BROKER_CONFIGS)
    if given := properties.get("namesrvAddr"):
        raise ConfigError(
            f"{place(properties, 'namesrvAddr')}namesrvAddr={given} is refused: `cosmodrome up` starts a name server "
            "of its own. Remove the key, or start `cosmodrome broker` with this file"
        )
    data = Path(data_dir)
    setup = _broker_setup(
        properties,
        {"bind_address": host, "listen_port": broker_port},
        store=None if "storePathRootDir" in properties else str(data / DEFAULT_BROKER_NAME),
    )
    namesrv_config = NameServerConfig(
        bind_address=setup.broker.bind_address,
        listen_port=namesrv_port,
        kv_config_path=str(data / "namesrv" / "kvConfig.json"),
    )
    run(_up(namesrv_config, setup, brokers, data, config_file))


async def _up(
    namesrv_config: NameServerConfig, setup: _BrokerSetup, brokers: int, data: Path, config_file: str | None
) -> None:
    started = time.monotonic()
    use_file_mode(setup.store.file_mode)
    stop = _stop_on_signal()
    with _usable(data):
        name_server = NameServer(namesrv_config, setup.net, SystemClock())
    with _listening("--host or --namesrv-port"):
        await name_server.start()
    setup = setup._replace(broker=dataclasses.replace(setup.broker, namesrv_addr=name_server.address))
    stop_name_server = asyncio.Event()
    serving = asyncio.create_task(name_server.run(stop_name_server))
    try:
        broker = _made(setup)
        with _listening("--host, --broker-port or listenPort in the file of -c"):
            await broker.start()
        others = _BrokerProcesses(setup.broker, brokers - 1, data, config_file, stop)
        async with others:
            _echo_open(setup.broker)
            _say(_ready_text(name_server.address, broker, data, brokers, time.monotonic() - started))
            async with broker.watchdog.watching():
                await broker.run(stop)
    finally:
        stop_name_server.set()  # last, so that the brokers could say goodbye
        await serving
    others.check()
    _say("stopped")


def _say(text: str) -> None:
    """Print a line; a daemon whose output lies on a full disk serves all the same."""
    try:
        click.echo(text)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        discard_output()
        log.warning("standard output has no room for: %s", text)


def _echo_open(broker: BrokerConfig) -> None:
    """Print the address that clients get, where the broker chose it from several."""
    if broker.bind_address in EVERY_ADDRESS:
        host, source = broker.broker_ip1, "as brokerIP1 says"
        if not host:
            host, source = advertised_host(broker.bind_address), "brokerIP1 in the file of -c sets another"
        _say(f"listening on every address of this machine; clients connect to {host}: {source}")


def _ready_text(name_server: str, broker: Broker, data: Path, brokers: int, seconds: float) -> str:
    others = f" and {brokers - 1} more" if brokers > 1 else ""
    first = f"broker {broker.config.broker_name} on {broker.address}{others}"
    here = "" if name_server == f"127.0.0.1:{DEFAULT_NAMESRV_PORT}" else f" --namesrv {name_server}"
    return "\n".join(
        (
            f"name server on {name_server}, {first}, data in {data}",
            f"ready after {seconds:.2f} s; Ctrl-C stops. A first message, from another terminal:",
            f"  cosmodrome send hello 'Hello, world' --tag greeting --key 1{here}",
            f"  cosmodrome tail hello --from earliest --limit 1{here}",
        )
    )


@click.command()
@name_server_config_option
@host_option
@click.option("--port", type=PORT, help=f"Port to listen on.  [default: {DEFAULT_NAMESRV_PORT}]")
@click.option(
    "--kv-config",
    type=click.Path(dir_okay=False),
    help="File that keeps the KV settings.  [default: cosmodrome-data/namesrv/kvConfig.json, "
    f"cosmodrome-data/namesrv-PORT/kvConfig.json on a port other than {DEFAULT_NAMESRV_PORT}]",
)
def namesrv(config_file: str | None, host: str | None, port: int | None, kv_config: str | None) -> None:
    """Start a name server. What the command line says wins over the config file."""
    properties = _properties(config_file, NameServerConfig, NetConfig)
    flags: dict[str, Any] = {"bind_address": host, "listen_port": port, "kv_config_path": kv_config}
    config = NameServerConfig().with_properties(properties)
    config = dataclasses.replace(config, **{key: value for key, value in flags.items() if value is not None})
    run(_namesrv(config, NetConfig().with_properties(properties)))


async def _namesrv(config: NameServerConfig, net: NetConfig) -> None:
    use_file_mode(DEFAULT_FILE_MODE)
    stop = _stop_on_signal()
    name_server = _made_name_server(config, net)
    with _listening("--host, --port or listenPort in the file of -c"):
        await name_server.start()
    if not config.kv_config_path:  # only now is the port known, and with it the place
        try:
            kv_config = _default_kv_config(name_server.port)
            with _usable(kv_config.parent):
                name_server.keep_settings(kv_config)
        except StoreError:
            stop.set()
            await name_server.run(stop)
            raise
    _say(f"KV settings in {name_server.config.kv_config_path}")
    _say(f"name server on {name_server.address}: ready; Ctrl-C stops")
    await name_server.run(stop)
    _say("stopped")


def _default_kv_config(port: int) -> Path:
    """Return the place of a name server's settings: two of them in one folder are kept apart by their ports."""
    folder = "namesrv" if port == DEFAULT_NAMESRV_PORT else f"namesrv-{port}"
    return Path(DEFAULT_DATA_DIR, folder, "kvConfig.json")


@click.command()
@click.option("-n", "--namesrv", envvar="NAMESRV_ADDR", metavar="HOST:PORT[;…]", help="Name servers to register with.")
@config_option
@click.option("--store", type=click.Path(file_okay=False), help="Store folder; one that Apache wrote will do.")
@host_option
@click.option("--port", type=PORT, help=f"Port to listen on.  [default: {DEFAULT_BROKER_PORT}]")
@click.option("--name", help=f"The broker's name.  [default: {DEFAULT_BROKER_NAME}]")
def broker(
    namesrv: str | None,
    config_file: str | None,
    store: str | None,
    host: str | None,
    port: int | None,
    name: str | None,
) -> None:
    """Start a broker. What the command line says wins over the config file."""
    flags = {"namesrv_addr": namesrv, "bind_address": host, "listen_port": port, "broker_name": name}
    setup = _broker_setup(_properties(config_file, *_BROKER_CONFIGS), flags, store=store)
    if not setup.broker.name_servers:
        raise ConfigError(
            "the broker needs a name server: -n host:port, NAMESRV_ADDR, or namesrvAddr in the config file"
        )
    run(_broker(setup))


async def _broker(setup: _BrokerSetup) -> None:
    use_file_mode(setup.store.file_mode)
    stop = _stop_on_signal()
    serving = _made(setup)
    with _listening("--host, --port or listenPort in the file of -c"):
        await serving.start()
    _echo_open(setup.broker)
    _say(f"broker {setup.broker.broker_name} on {serving.address}: ready; Ctrl-C stops")
    async with serving.watchdog.watching():
        await serving.run(stop)
    _say("stopped")


def _properties(
    config_file: str | None, *configs: type[BrokerConfig | StoreConfig | NameServerConfig | NetConfig]
) -> dict[str, str]:
    if config_file is None:
        return {}
    properties = read_properties(Path(config_file))
    check_keys(properties, *configs)
    return properties


class _BrokerSetup(NamedTuple):
    """Everything a broker is made of, in the order it takes it."""

    broker: BrokerConfig
    store: StoreConfig
    net: NetConfig


def _broker_setup(properties: dict[str, str], flags: dict[str, Any], *, store: str | None) -> _BrokerSetup:
    """Defaults ← file ← flags."""
    given = {key: value for key, value in flags.items() if value is not None}
    config = BrokerConfig(broker_name=DEFAULT_BROKER_NAME).with_properties(properties)
    config = dataclasses.replace(config, **given)
    store_config = StoreConfig(store_path_root_dir=str(Path(DEFAULT_DATA_DIR) / config.broker_name))
    store_config = store_config.with_properties(properties)
    if store is not None:
        store_config = dataclasses.replace(store_config, store_path_root_dir=store)
    return _BrokerSetup(config, store_config, NetConfig().with_properties(properties))


def _made(setup: _BrokerSetup) -> Broker:
    hooks = load_hooks()
    tell_memory_faults()
    with _usable(Path(setup.store.store_path_root_dir)):
        return Broker(*setup, hooks=hooks)


def _made_name_server(config: NameServerConfig, net: NetConfig) -> NameServer:
    if not config.kv_config_path:
        return NameServer(config, net, SystemClock())
    with _usable(Path(config.kv_config_path).parent):
        return NameServer(config, net, SystemClock())


@contextmanager
def _listening(options: str) -> Iterator[None]:
    """Name the options that choose another address or port, where the one that was chosen cannot be had."""
    try:
        yield
    except CannotListen as error:
        raise CannotListen(error.host, error.port, error.reason, f"choose another with {options}") from error


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """What the system refuses is said in one line; and at the start, not when the first file is to be written."""
    try:
        _try_out(folder)
        yield
    except CosmodromeError:
        raise  # some are an OSError, too
    except FileExistsError as error:
        raise StoreError(f"{folder} cannot be used: {error.filename} is a file") from error
    except OSError as error:
        where = "" if error.filename in (None, str(folder)) else f": {error.filename}"
        raise StoreError(f"{folder} cannot be used: {error.strerror or error}{where}") from error


def _try_out(folder: Path) -> None:
    """OSError if no file can be made in the folder, which is made if need be."""
    state_file.make_folder(folder)
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno != errno.ENOSPC:  # a store knows how to live on a full disk
            raise OSError(error.errno, error.strerror, str(folder)) from None  # else it names a file nobody knows


def _stop_on_signal() -> asyncio.Event:
    """Set by the first Ctrl-C or SIGTERM; a second Ctrl-C ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return stop


class _BrokerProcesses:
    """The brokers of `up --brokers N` beyond the first: one process each, so that each has a core of its own."""

    def __init__(
        self, first: BrokerConfig, count: int, data: Path, config_file: str | None, stop: asyncio.Event
    ) -> None:
        self._first = first
        self._count = count
        self._data = data
        self._config_file = config_file
        self._stop = stop
        self._watching: list[asyncio.Task[None]] = []
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def __aenter__(self) -> None:
        try:
            for index, name in enumerate(_other_names(self._first.broker_name)[: self._count], 1):
                await self._start(index, name)
        except BaseException:
            await self.__aexit__()
            raise

    async def _start(self, index: int, name: str) -> None:
        first_port = self._first.listen_port
        port = first_port + index * BROKER_PORT_STEP if first_port else 0
        arguments = ["broker", "-n", self._first.namesrv_addr, "--name", name, "--port", str(port)]
        arguments += ["--host", self._first.bind_address, "--store", str(self._data / name)]
        if self._config_file is not None:
            arguments += ["-c", self._config_file]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cosmodrome", *arguments, stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        self._processes[name] = process
        await _wait_ready(process, name)
        self._watching.append(asyncio.create_task(self._watch(process, name)))

    async def _watch(self, process: asyncio.subprocess.Process, name: str) -> None:
        code = await process.wait()
        if not self._stop.is_set():
            log.error("%s ended with code %d; stopping", name, code)
            self._stop.set()

    async def __aexit__(self, *_error: object) -> None:
        processes = self._processes.values()
        for process in processes:
            if process.returncode is None:
                process.terminate()
        await asyncio.gather(*(process.wait() for process in processes), *self._watching)

    def check(self) -> None:
        """StoreError if one of them did not end as it should: the code of this process says so, too."""
        codes = {name: process.returncode for name, process in self._processes.items() if process.returncode}
        if codes:
            told = ", ".join(f"{name} ended with code {code}" for name, code in codes.items())
            raise StoreError(f"{told}; what it said is above")


def _other_names(first: str) -> list[str]:
    """Names for brokers beside the first, whose own the config file may have chosen. Its folder is broker-a, always."""
    names = [f"broker-{letter}" for letter in (*string.ascii_lowercase[1:], "aa")]
    return [name for name in names if name != first]


async def _wait_ready(process: asyncio.subprocess.Process, name: str) -> None:
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), BROKER_START_SECONDS)
    except TimeoutError:
        line = b""
    if b"ready" not in line:
        raise ConfigError(f"{name} did not start; its messages are above")

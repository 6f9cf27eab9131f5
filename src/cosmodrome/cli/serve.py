"""`cosmodrome up`, `cosmodrome namesrv` and `cosmodrome broker`: the daemons, in the foreground."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import signal
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
from cosmodrome.cli.broker_processes import DEFAULT_BROKER_NAME, FOLLOWS, BrokerProcesses
from cosmodrome.cli.options import PORT, config_option, host_option, name_server_config_option
from cosmodrome.cli.output import discard_output
from cosmodrome.cli.raft_processes import EXAMPLE, GROUP_SIZES, LEADS, RaftProcesses
from cosmodrome.clock import SystemClock
from cosmodrome.config import (
    DEFAULT_BROKER_PORT,
    DEFAULT_CONSOLE_PORT,
    DEFAULT_NAMESRV_PORT,
    BadSetting,
    BrokerConfig,
    BrokerRole,
    NameServerConfig,
    NetConfig,
    RaftConfig,
    ReplicationConfig,
    SecurityConfig,
    StoreConfig,
    TlsMode,
    check_keys,
    check_raft,
    check_role,
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

MAX_BROKERS = 26
DEFAULT_DATA_DIR = "cosmodrome-data"
_BROKER_CONFIGS = (BrokerConfig, StoreConfig, NetConfig, ReplicationConfig, SecurityConfig, RaftConfig)


@click.command()
@click.option("--data", "data_dir", default=DEFAULT_DATA_DIR, show_default=True, help="Folder that keeps everything.")
@host_option
@click.option("--namesrv-port", type=PORT, default=DEFAULT_NAMESRV_PORT, show_default=True)
@click.option(
    "--broker-port",
    type=PORT,
    help=f"Port of the first broker; slaves use the one above it.  [default: {DEFAULT_BROKER_PORT}]",
)
@click.option(
    "--console-port",
    type=PORT,
    default=DEFAULT_CONSOLE_PORT,
    show_default=True,
    help="Kept for the web console, which is not part of this version: nothing is started.",
)
@click.option("--brokers", type=click.IntRange(1, MAX_BROKERS), default=1, show_default=True, help="Masters to start.")
@click.option(
    "--replicas",
    type=click.IntRange(1, None),
    default=1,
    show_default=True,
    help="Copies of each message. With 2, each master has a slave in a process of its own, and answers a send when the "
    "slave has the message, unless brokerRole in the file of -c says otherwise. With 3 or 5, they form a Raft group: "
    "they elect their master, and another one when it dies.",
)
@config_option
def up(
    data_dir: str,
    host: str | None,
    namesrv_port: int,
    broker_port: int | None,
    console_port: int,
    brokers: int,
    replicas: int,
    config_file: str | None,
) -> None:
    """Start a name server and a broker in one process. Ctrl-C stops both cleanly."""
    if replicas > 2 and replicas not in GROUP_SIZES:
        raise ConfigError(
            f"--replicas {replicas} is refused: a Raft group has 3 or 5 members, for an even number survives no more "
            "deaths than the odd one below it. Use --replicas 3"
        )
    properties = _properties(config_file, *_BROKER_CONFIGS)
    if given := properties.get("namesrvAddr"):
        raise ConfigError(
            f"{place(properties, 'namesrvAddr')}namesrvAddr={given} is refused: `cosmodrome up` starts a name server "
            "of its own. Remove the key, or start `cosmodrome broker` with this file"
        )
    if given := next((key for key in properties if key in RaftConfig.attributes_by_key()), None):
        raise ConfigError(
            f"{place(properties, given)}{given}={properties[given]} is refused: `cosmodrome up --replicas 3` makes the "
            "members of a Raft group itself. Remove the key, or start `cosmodrome broker` with this file"
        )
    data = Path(data_dir)
    _check_alone(properties, brokers * replicas)
    role = BrokerRole.SYNC_MASTER if replicas == 2 and "brokerRole" not in properties else None
    setup = _broker_setup(
        properties,
        {"bind_address": host, "listen_port": broker_port},
        role=role,
        store=None if "storePathRootDir" in properties else str(data / DEFAULT_BROKER_NAME),
    )
    if setup.replication.is_slave:
        raise ConfigError(
            f"{place(properties, 'brokerRole')}brokerRole=SLAVE is refused: the name server that `cosmodrome up` "
            "starts knows no master. Start `cosmodrome broker` with this file"
        )
    _check_own_credentials(setup.security)
    if replicas > 1:
        _check_slaves(setup)
    namesrv_config = NameServerConfig(
        bind_address=setup.broker.bind_address,
        listen_port=namesrv_port,
        kv_config_path=str(data / "namesrv" / "kvConfig.json"),
    )
    wanted = _Processes(brokers, replicas, data, config_file)
    run(_up_groups(namesrv_config, setup, properties, wanted) if replicas > 2 else _up(namesrv_config, setup, wanted))


def _check_alone(properties: dict[str, str], count: int) -> None:
    """Refuse a file that gives several brokers the same port for slaves."""
    if count > 1 and properties.get("haListenPort", "-1") not in ("-1", "0"):
        raise ConfigError(
            f"{place(properties, 'haListenPort')}haListenPort={properties['haListenPort']} is refused: it would be the "
            "port of several brokers. Remove the key: each takes the port above its own"
        )


def _check_own_credentials(security: SecurityConfig) -> None:
    """Refuse a name server that would not let its own broker in."""
    if security.tls_server_mode is TlsMode.ENFORCING and not security.calls_use_tls:
        raise ConfigError(
            "tls.server.mode=enforcing is for the name server of `cosmodrome up`, too, so its broker needs "
            "tls.enable=true"
        )
    if security.acl_enable and not security.inner_client_authentication_credentials.strip():
        raise ConfigError(
            "aclEnable=true guards the name server of `cosmodrome up`, too, so its broker needs an account: set "
            'innerClientAuthenticationCredentials={"accessKey": "…", "secretKey": "…"} to one with admin: true'
        )


def _check_slaves(setup: _BrokerSetup) -> None:
    """Refuse masters that would not let their own slaves copy the log."""
    if setup.security.acl_enable and not setup.replication.ha_allowed_addresses.strip():
        raise ConfigError(
            "--replicas 2 with aclEnable=true needs haAllowedAddresses: set it to the address of the slaves, which is "
            f"{advertised_host(setup.broker.bind_address)}"
        )
    if setup.security.tls_server_mode is TlsMode.ENFORCING and not setup.replication.ha_tls_enable:
        raise ConfigError("--replicas 2 with tls.server.mode=enforcing needs haTlsEnable=true: slaves speak TLS, too")


class _Processes(NamedTuple):
    """The brokers that `up` starts, in all."""

    brokers: int
    replicas: int
    data: Path
    config_file: str | None


async def _up(namesrv_config: NameServerConfig, setup: _BrokerSetup, wanted: _Processes) -> None:
    started = time.monotonic()
    use_file_mode(setup.store.file_mode)
    stop = _stop_on_signal()
    with _usable(wanted.data):
        name_server = NameServer(namesrv_config, setup.net, SystemClock(), setup.security)
    with _listening("--host or --namesrv-port"):
        await name_server.start()
    setup = setup._replace(broker=dataclasses.replace(setup.broker, namesrv_addr=name_server.address))
    stop_name_server = asyncio.Event()
    serving = asyncio.create_task(name_server.run(stop_name_server))
    try:
        broker = _made(setup)
        with _listening("--host, --broker-port or listenPort in the file of -c"):
            await broker.start()
        serving_broker = asyncio.create_task(_serve(broker, stop))
        others = BrokerProcesses(
            setup.broker,
            setup.replication.broker_role,
            brokers=wanted.brokers,
            replicas=wanted.replicas,
            data=wanted.data,
            config_file=wanted.config_file,
            stop=stop,
        )
        try:
            async with others:
                _echo_open(setup.broker)
                _say(_ready_text(name_server.address, broker, wanted, time.monotonic() - started))
                await serving_broker
        finally:
            stop.set()
            await serving_broker
    finally:
        stop_name_server.set()  # last, so that the brokers could say goodbye
        await serving
    others.check()
    _say("stopped")


async def _up_groups(
    namesrv_config: NameServerConfig, setup: _BrokerSetup, properties: dict[str, str], wanted: _Processes
) -> None:
    """Serve the name server here, and each member of the Raft groups in a process of its own."""
    started = time.monotonic()
    check_raft(EXAMPLE, setup.store, setup.broker, setup.replication, setup.security)
    use_file_mode(setup.store.file_mode)
    stop = _stop_on_signal()
    with _usable(wanted.data):
        name_server = NameServer(namesrv_config, setup.net, SystemClock(), setup.security)
    with _listening("--host or --namesrv-port"):
        await name_server.start()
    setup = setup._replace(broker=dataclasses.replace(setup.broker, namesrv_addr=name_server.address))
    stop_name_server = asyncio.Event()
    serving = asyncio.create_task(name_server.run(stop_name_server))
    groups = RaftProcesses(
        setup.broker, properties, groups=wanted.brokers, members=wanted.replicas, data=wanted.data, stop=stop
    )
    try:
        async with groups:
            _echo_open(setup.broker)
            _say(_groups_text(name_server.address, groups.leaders, wanted, time.monotonic() - started))
            await stop.wait()
    finally:
        stop.set()
        stop_name_server.set()  # last, so that the brokers could say goodbye
        await serving
    _say("stopped")


def _groups_text(name_server: str, leaders: dict[str, str], wanted: _Processes, seconds: float) -> str:
    led = ", ".join(f"{name} led from {address}" for name, address in leaders.items())
    return "\n".join(
        (
            f"name server on {name_server}, Raft group of {wanted.replicas} brokers: {led}; data in {wanted.data}",
            *_first_steps(name_server, seconds),
        )
    )


def _first_steps(name_server: str, seconds: float) -> tuple[str, ...]:
    here = "" if name_server == f"127.0.0.1:{DEFAULT_NAMESRV_PORT}" else f" --namesrv {name_server}"
    return (
        f"ready after {seconds:.2f} s; Ctrl-C stops. A first message, from another terminal:",
        f"  cosmodrome send hello 'Hello, world' --tag greeting --key 1{here}",
        f"  cosmodrome tail hello --from earliest --limit 1{here}",
    )


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


async def _serve(broker: Broker, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. A broker that fails stops all others."""
    try:
        async with broker.watchdog.watching():
            await broker.run(stop)
    finally:
        stop.set()


def _ready_text(name_server: str, broker: Broker, wanted: _Processes, seconds: float) -> str:
    others = f" and {wanted.brokers - 1} more" if wanted.brokers > 1 else ""
    if wanted.replicas > 1:
        others += ", each with a slave" if wanted.brokers > 1 else " with a slave"
    first = f"broker {broker.config.broker_name} on {broker.address}{others}"
    return "\n".join(
        (f"name server on {name_server}, {first}, data in {wanted.data}", *_first_steps(name_server, seconds))
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
    properties = _properties(config_file, NameServerConfig, NetConfig, SecurityConfig)
    flags: dict[str, Any] = {"bind_address": host, "listen_port": port, "kv_config_path": kv_config}
    config = NameServerConfig().with_properties(properties)
    config = dataclasses.replace(config, **{key: value for key, value in flags.items() if value is not None})
    security = SecurityConfig().with_properties(properties)
    run(_namesrv(config, NetConfig().with_properties(properties), security))


async def _namesrv(config: NameServerConfig, net: NetConfig, security: SecurityConfig) -> None:
    use_file_mode(DEFAULT_FILE_MODE)
    stop = _stop_on_signal()
    name_server = _made_name_server(config, net, security)
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
@click.option(
    "--name", help=f"The broker's name, which a master and its slaves share.  [default: {DEFAULT_BROKER_NAME}]"
)
@click.option("--role", type=click.Choice([*BrokerRole]), help="Master or slave.  [default: ASYNC_MASTER]")
@click.option(
    "--id", "broker_id", type=click.IntRange(min=0), help="0 for a master, 1 or more for a slave.  [default: 0]"
)
def broker(
    namesrv: str | None,
    config_file: str | None,
    store: str | None,
    host: str | None,
    port: int | None,
    name: str | None,
    role: str | None,
    broker_id: int | None,
) -> None:
    """Start a broker. What the command line says wins over the config file."""
    flags = {"namesrv_addr": namesrv, "bind_address": host, "listen_port": port, "broker_name": name}
    flags["broker_id"] = broker_id
    properties = _properties(config_file, *_BROKER_CONFIGS)
    setup = _broker_setup(properties, flags, role=BrokerRole(role) if role is not None else None, store=store)
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
    role = f", slave {serving.config.broker_id} of that name" if serving.is_slave else ""
    if serving.group is not None:
        role = f", member {setup.raft.self_id} of Raft group {setup.raft.group}"
    _say(f"broker {setup.broker.broker_name} on {serving.address}{role}: ready; Ctrl-C stops")
    telling = asyncio.create_task(_tell_role(serving)) if serving.is_slave else None
    try:
        await _serve(serving, stop)
    finally:
        if telling is not None:
            telling.cancel()
    _say("stopped")


async def _tell_role(slave: Broker) -> None:
    """Print when a slave has found its master for the first time, and each time a member of a group leads."""
    while slave.group_role is not None:
        term = await slave.group_role.leading()
        _say(f"broker {slave.config.broker_name} on {slave.address} {LEADS} its Raft group: term {term}")
    master = await slave.replicas.following()
    _say(f"slave {slave.config.broker_name}:{slave.config.broker_id} {FOLLOWS} the master at {master}")


def _properties(
    config_file: str | None,
    *configs: type[
        BrokerConfig | StoreConfig | NameServerConfig | NetConfig | ReplicationConfig | SecurityConfig | RaftConfig
    ],
) -> dict[str, str]:
    if config_file is None:
        return {}
    properties = read_properties(Path(config_file))
    check_keys(properties, *configs)
    return properties


class _BrokerSetup(NamedTuple):
    """Everything a broker is made of."""

    broker: BrokerConfig
    store: StoreConfig
    net: NetConfig
    replication: ReplicationConfig
    security: SecurityConfig
    raft: RaftConfig = RaftConfig()


def _broker_setup(
    properties: dict[str, str], flags: dict[str, Any], *, role: BrokerRole | None, store: str | None
) -> _BrokerSetup:
    """Defaults ← file ← flags."""
    given = {key: value for key, value in flags.items() if value is not None}
    config = BrokerConfig(broker_name=DEFAULT_BROKER_NAME).with_properties(properties)
    config = dataclasses.replace(config, **given)
    store_config = StoreConfig(store_path_root_dir=str(Path(DEFAULT_DATA_DIR) / config.broker_name))
    store_config = store_config.with_properties(properties)
    if store is not None:
        store_config = dataclasses.replace(store_config, store_path_root_dir=store)
    replication = ReplicationConfig().with_properties(properties)
    if role is not None:
        replication = dataclasses.replace(replication, broker_role=role)
    net, security = NetConfig().with_properties(properties), SecurityConfig().with_properties(properties)
    raft = RaftConfig().with_properties(properties)
    try:
        check_raft(raft, store_config, config, replication, security)
        if not raft.is_enabled:
            check_role(config, replication)
    except BadSetting as error:
        key = error.key if error.key in properties else "brokerRole"
        raise BadSetting(error.key, place(properties, key) + str(error)) from error
    return _BrokerSetup(config, store_config, net, replication, security, raft)


def _made(setup: _BrokerSetup) -> Broker:
    hooks = load_hooks()
    tell_memory_faults()
    with _usable(Path(setup.store.store_path_root_dir)):
        return Broker(
            setup.broker,
            setup.store,
            setup.net,
            hooks=hooks,
            replication=setup.replication,
            security=setup.security,
            raft=setup.raft,
        )


def _made_name_server(config: NameServerConfig, net: NetConfig, security: SecurityConfig) -> NameServer:
    if not config.kv_config_path:
        return NameServer(config, net, SystemClock(), security)
    with _usable(Path(config.kv_config_path).parent):
        return NameServer(config, net, SystemClock(), security)


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

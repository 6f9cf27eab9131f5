"""How commands reach a cluster: its name servers, and what it asks of its clients."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from cosmodrome.cli.options import contexts_path, namesrv_option
from cosmodrome.cli.output import visible
from cosmodrome.client.acl import AclHook
from cosmodrome.client.hooks import RpcHook
from cosmodrome.codes import ResponseCode
from cosmodrome.config import ClientConfig, TlsCheck, read_properties
from cosmodrome.errors import BrokerError, CallTimeout, ConfigError, ConnectionFailed
from cosmodrome.wire.acl import Credentials

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from cosmodrome.cli.contexts import Context

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Access:
    """What `access_options` say."""

    config: ClientConfig
    credentials: Credentials | None = None

    @property
    def rpc_hooks(self) -> list[RpcHook]:
        keys = self.credentials
        return [AclHook(keys.access_key, keys.secret_key, keys.security_token)] if keys is not None else []

    @property
    def spark_options(self) -> dict[str, str]:
        config, keys = self.config, self.credentials
        options = {"nameServer": config.namesrv}
        if keys is not None:
            given = {
                "accessKey": keys.access_key,
                "secretKey": keys.secret_key,
                "securityToken": keys.security_token,
            }
            options |= {name: value for name, value in given.items() if value}
        if config.tls:
            options |= {"tls": "true", "tlsCheck": config.tls_check.value}
        if config.tls_ca_file:
            options["tlsCaFile"] = config.tls_ca_file
        return options


def _complete_contexts(_context: click.Context, _option: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the contexts whose names begin with `begun`, for the completion of shells."""
    from click.shell_completion import CompletionItem

    from cosmodrome.cli.contexts import load

    try:
        known = load().by_name
    except ConfigError:
        return []
    return [CompletionItem(name, help=one.namesrv) for name, one in sorted(known.items()) if name.startswith(begun)]


_OPTIONS = (
    namesrv_option,
    click.option(
        "--context",
        "context_name",
        envvar="COSMODROME_CONTEXT",
        metavar="NAME",
        shell_complete=_complete_contexts,
        help="Reach the cluster of this context (`cosmodrome context`).  [default: the one in use, if any]",
    ),
    click.option(
        "--credentials",
        "credentials_file",
        envvar="ROCKETMQ_CREDENTIALS",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="For brokers with ACL: a file with accessKey and secretKey, such as Apache's conf/tools.yml "
        "(or set ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY).",
    ),
    click.option("--tls", is_flag=True, help="Speak TLS with name servers and brokers."),
    click.option("--tls-ca-file", metavar="FILE", default="", help="Whom to trust, else whom this machine trusts."),
    click.option(
        "--tls-check",
        type=click.Choice([check.value for check in TlsCheck]),
        default=TlsCheck.FULL.value,
        show_default=True,
        help="What is checked of a certificate: ca leaves out the address, none everything.",
    ),
)
# Secrets come from files and the environment alone: everyone on a machine can read the arguments of its programs.
_ENVIRONMENT = {
    "accessKey": "ROCKETMQ_ACCESS_KEY",
    "secretKey": "ROCKETMQ_SECRET_KEY",
    "securityToken": "ROCKETMQ_SECURITY_TOKEN",
}


def access_options(command: Callable[..., R]) -> Callable[..., R]:
    """Options of a command that talks to a cluster; it gets them as `access`."""

    @functools.wraps(command)
    def with_access(
        *args: Any,
        namesrv: str,
        context_name: str | None,
        credentials_file: Path | None,
        tls: bool,
        tls_ca_file: str,
        tls_check: str,
        **kwargs: Any,
    ) -> R:
        if not tls and (tls_ca_file or tls_check != TlsCheck.FULL):
            raise click.UsageError("--tls-ca-file and --tls-check are for --tls")
        name, context = _context(context_name)
        if context is not None:
            if not _is_given("namesrv"):
                namesrv = context.namesrv
            if credentials_file is None and context.credentials and not any(_from_environment().values()):
                credentials_file = Path(context.credentials)
            if not tls and context.tls:
                tls, tls_ca_file = True, context.tls_ca_file
                tls_check = context.tls_check or tls_check
            click.echo(visible(f"context {name}: {namesrv}"), err=True)
        config = ClientConfig(namesrv=namesrv, tls=tls, tls_ca_file=tls_ca_file, tls_check=TlsCheck(tls_check))
        return command(*args, access=Access(config, _credentials(credentials_file)), **kwargs)

    for option in reversed(_OPTIONS):
        with_access = option(with_access)
    return with_access


def _context(name: str | None) -> tuple[str, Context | None]:
    """Return the context that is named, else the one in use unless name servers are given; None if there is none."""
    if name is None and (_is_given("namesrv") or not os.path.exists(contexts_path())):  # no import
        return "", None
    from cosmodrome.cli.contexts import load

    contexts = load()
    name = name or contexts.current
    return name, contexts.named(name) if name else None


def _is_given(option: str) -> bool:
    """Return whether an option is on the command line or in the environment."""
    source = click.get_current_context().get_parameter_source(option)
    return source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


@contextmanager
def hints_at_start() -> Iterator[None]:
    """Where nobody answers, perhaps nobody was started; and who knows no topics is perhaps a broker."""
    try:
        with _said_by_the_error():
            yield
    except (ConnectionFailed, CallTimeout) as error:
        if error.is_lasting:
            raise
        raise click.ClickException(f"{error}. Is it running? `cosmodrome up` starts one here.") from error
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise click.ClickException(f"{error}. Is it a name server? `cosmodrome up` starts one here.") from error


@contextmanager
def _said_by_the_error() -> Iterator[None]:
    """The error that ends a command says what the warnings before it say: they are for -v, and for a good end."""
    root = logging.getLogger()
    if root.isEnabledFor(logging.INFO):
        yield
        return
    held: dict[int, logging.LogRecord] = {}  # once each, however many handlers are shown it

    def hold(record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR:
            held[id(record)] = record
        return record.levelno >= logging.ERROR

    handlers = root.handlers[:]
    for handler in handlers:
        handler.addFilter(hold)
    try:
        yield
    except Exception:
        held.clear()
        raise
    finally:
        for handler in handlers:
            handler.removeFilter(hold)
        for record in held.values():
            root.handle(record)


def _credentials(file: Path | None) -> Credentials | None:
    """The file's, else the environment's; ConfigError when a half of them is missing."""
    given = _read(file) if file is not None else _from_environment()
    if file is None and not any(given.values()):
        return None
    try:
        return Credentials(given.get("accessKey", ""), given.get("secretKey", ""), given.get("securityToken", ""))
    except ConfigError as error:
        raise ConfigError(f"{file or 'ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY'}: {error}") from None


def _from_environment() -> dict[str, str]:
    return {name: os.environ.get(variable, "") for name, variable in _ENVIRONMENT.items()}


def _read(file: Path) -> dict[str, str]:
    """Lines of `name: value` or `name=value`, which both YAML's simplest form and Java's properties have."""
    return {name: _unquoted(value) for name, value in read_properties(file).items()}


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value

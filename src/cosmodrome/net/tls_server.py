"""TLS of the listening side, on the port of the plain protocol: the first byte of a connection tells which it is.

    ──first byte──┬─ 0x16, and not disabled ──► handshake ──► requests inside TLS
                  └─ any other ──► plain requests; closed if enforcing

A plain connection pays for one look at its first read and nothing after. The bytes of TLS go through memory, so that
both event loops behave alike.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, cast

from cosmodrome.clock import Clock
from cosmodrome.config import ClientAuth, SecurityConfig, TlsMode
from cosmodrome.errors import ConfigError
from cosmodrome.net.certificates import NoCertificateMaker, self_signed

log = logging.getLogger(__name__)

HELLO: Final = 0x16  # the first byte of a TLS connection; a frame begins with 0x00 to 0x04
HANDSHAKE_SECONDS: Final = 10.0
READ_BYTES: Final = 64 * 1024
LOOK_EVERY_MS: Final = 1_000  # for changed files
LOG_EVERY_MS: Final = 10_000  # one line for the connections of one kind that failed meanwhile


class Upgradable(Protocol):
    """A protocol that goes on with another transport when its connection turns out to speak TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, error: Exception | None) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def use_transport(self, transport: asyncio.Transport) -> None: ...


class ServerTls:
    """The certificate of a daemon and the modes of its ports; one for all of them.

    ConfigError, when it is made, if the files of the config make no context.
    """

    def __init__(self, config: SecurityConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self.mode = config.tls_server_mode
        self._files = tuple(
            Path(name)
            for name in (config.tls_server_cert_path, config.tls_server_key_path, config.tls_server_trust_cert_path)
            if name
        )
        self.ready: ssl.SSLContext | None = None
        self._making: asyncio.Task[ssl.SSLContext | None] | None = None
        if self.mode is not TlsMode.DISABLED and config.tls_server_cert_path:
            self.ready = _context(config)
        self._seen = self._read = self._look()
        self._failed: Counter[str] = Counter()
        self._told: dict[str, tuple[float, int]] = {}
        self.handshakes = 0
        self.reloads = 0

    def around(self, factory: Callable[[], Upgradable]) -> Callable[[], asyncio.Protocol]:
        """Return the factory of a listener whose connections may speak TLS."""
        if self.mode is TlsMode.DISABLED:
            return cast(Callable[[], asyncio.Protocol], factory)
        return lambda: cast(asyncio.Protocol, FirstByte(factory(), self))

    async def context(self) -> ssl.SSLContext | None:
        """Return the context of the certificate. Without one, a certificate is made; None if that is not possible."""
        if self.ready is None:
            if not self._config.tls_test_mode_enable:
                self.failed("certificate", "TLS needs a certificate: set tls.server.certPath and tls.server.keyPath")
                return None
            if self._making is None:
                self._making = asyncio.create_task(self._make())
            return await asyncio.shield(self._making)
        return self.ready

    async def _make(self) -> ssl.SSLContext | None:
        try:
            self.ready = await asyncio.to_thread(self_signed, lambda paths: _context(self._config, paths))
            log.info("certificate made in memory: it is signed by itself; clients cannot check it")
        except (NoCertificateMaker, ConfigError, OSError) as error:
            self.failed("certificate", str(error))
        finally:
            self._making = None
        return self.ready

    # --- what fails

    def failed(self, kind: str, reason: str, peer: str = "") -> None:
        """Count a connection that does not come about, and log it, each kind once in a while."""
        self._failed[kind] += 1
        now_ms = self._clock.steady_ms()
        last_ms, count = self._told.get(kind, (now_ms - LOG_EVERY_MS, 0))
        count += 1
        if now_ms - last_ms >= LOG_EVERY_MS:
            log.warning("connections closed: peer=%s kind=%s count=%d: %s", peer or "-", kind, count, reason)
            last_ms, count = now_ms, 0
        self._told[kind] = (last_ms, count)

    def figures(self) -> dict[str, object]:
        """Return figures by their names in the runtime info."""
        return {
            "tlsServerMode": self.mode.value,
            "tlsHandshakes": self.handshakes,
            "tlsHandshakesFailed": self._failed["handshake"],
            "plainConnectionsRefused": self._failed["plain"],
            "tlsCertificateReloads": self.reloads,
        }

    # --- the files

    def _look(self) -> tuple[object, ...]:
        seen: list[object] = []
        for path in self._files:
            with suppress(OSError):
                status = path.stat()
                seen.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(seen)

    async def run(self) -> None:
        """Take another certificate when its files have changed and rest, until cancelled; connections stay."""
        while True:
            await self._clock.sleep(LOOK_EVERY_MS)
            if self.ready is None or not self._files:
                continue
            before, self._seen = self._seen, self._look()
            if self._seen == self._read or self._seen != before:
                continue
            self._read = self._seen
            try:
                self.ready = await asyncio.to_thread(_context, self._config)
            except (ConfigError, OSError) as error:
                log.error("certificate not changed: %s; the old one stays in use", error)
            else:
                self.reloads += 1
                log.info("certificate read again: %s", self._config.tls_server_cert_path)


def _context(config: SecurityConfig, paths: tuple[str, str] | None = None) -> ssl.SSLContext:
    """Return the context of a certificate: `paths` of the certificate and its key, else those of the config."""
    certificate, key = paths or (config.tls_server_cert_path, config.tls_server_key_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    load_certificate(context, certificate, key, config.tls_server_key_password, "tls.server")
    if config.tls_server_need_client_auth is not ClientAuth.NONE:
        optional = config.tls_server_need_client_auth is ClientAuth.OPTIONAL
        context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
        load_trusted(context, config.tls_server_trust_cert_path, "tls.server.trustCertPath")
    return context


def client_context_of(config: SecurityConfig) -> ssl.SSLContext | None:
    """Return the context of a daemon's own calls; None if they are plain."""
    if not config.calls_use_tls:
        return None
    context = ssl.create_default_context()
    context.check_hostname = False  # brokers are known by addresses that certificates seldom name; Apache's ask neither
    if not config.tls_client_auth_server:
        context.verify_mode = ssl.CERT_NONE
        log.warning("certificates of name servers and brokers are not checked; set tls.client.authServer=true")
    elif config.tls_client_trust_cert_path:
        load_trusted(context, config.tls_client_trust_cert_path, "tls.client.trustCertPath")
    if config.tls_client_cert_path:
        key, password = config.tls_client_key_path, config.tls_client_key_password
        load_certificate(context, config.tls_client_cert_path, key, password, "tls.client")
    return context


def load_certificate(context: ssl.SSLContext, certificate: str, key: str, password: str, side: str) -> None:
    """Give the context its own certificate; ConfigError names the files."""
    try:
        # Without a password OpenSSL would ask the terminal for one.
        context.load_cert_chain(certificate, key or None, password=password or (lambda: b""))
    except (OSError, ssl.SSLError) as error:
        reason = "no PEM certificate with its key, or the password does not fit"
        if isinstance(error, ssl.SSLError):
            reason = f"{reason} ({error.reason or 'unreadable'})"
        else:
            reason = error.strerror or str(error)
        raise ConfigError(f"{side}.certPath={certificate} and {side}.keyPath={key}: {reason}") from None


def load_trusted(context: ssl.SSLContext, path: str, key: str) -> None:
    """Give the context the certificates that it trusts; ConfigError names the file."""
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{key}={path} is no file of certificates to trust (PEM): {error}") from None


class FirstByte(asyncio.Protocol):
    """A connection until its first bytes are there; then it is plain, or goes on as a `TlsLink`."""

    def __init__(self, protocol: Upgradable, tls: ServerTls) -> None:
        self._protocol = protocol
        self._tls = tls
        self._transport: asyncio.Transport
        self._link: TlsLink | None = None
        self._held = b""
        self._is_waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_waiting:
            self._held += data
        elif data[0] == HELLO:
            context = self._tls.ready
            if context is not None:
                self._begin(context, data)
            else:
                self._is_waiting, self._held = True, data
                self._transport.pause_reading()
                self._waiting = asyncio.ensure_future(self._begin_later())
        elif self._tls.mode is TlsMode.ENFORCING:
            self._tls.failed("plain", "it speaks no TLS, and tls.server.mode=enforcing", _peer(self._transport))
            self._transport.abort()
        else:
            self._transport.set_protocol(cast(asyncio.Protocol, self._protocol))
            self._protocol.data_received(data)

    async def _begin_later(self) -> None:
        context = await self._tls.context()
        if self._transport.is_closing():
            return
        if context is None:
            self._transport.abort()
            return
        self._is_waiting = False
        self._transport.resume_reading()
        self._begin(context, self._held)

    def _begin(self, context: ssl.SSLContext, data: bytes) -> None:
        self._link = TlsLink(self._transport, self._protocol, context, self._tls)
        self._transport.set_protocol(self._link)
        self._protocol.use_transport(self._link.transport)
        self._link.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


class TlsLink(asyncio.Protocol):
    """The server's side of TLS between a socket and a protocol. Its `transport` is what the protocol writes to."""

    def __init__(self, raw: asyncio.Transport, protocol: Upgradable, context: ssl.SSLContext, tls: ServerTls) -> None:
        self._raw = raw
        self._protocol = protocol
        self._tls = tls
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_open = False
        self._early: list[bytes] = []  # written before the handshake is done
        self.transport = TlsTransport(self, raw, context)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(HANDSHAKE_SECONDS, self._fail, "the handshake takes too long")

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if self.is_open or self._shake_hands():
            self._read()

    def _shake_hands(self) -> bool:
        try:
            self.object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._flush()  # the alert that tells the peer
            self._fail(getattr(error, "verify_message", "") or error.reason or str(error))
            return False
        self._deadline.cancel()
        self.is_open = True
        self._tls.handshakes += 1
        early, self._early = self._early, []
        for data in early:
            self.write(data)
        self._flush()
        return True

    def _fail(self, reason: str) -> None:
        self._deadline.cancel()
        self._tls.failed("handshake", f"no TLS with it: {reason}", _peer(self._raw))
        self._raw.close()

    def _read(self) -> None:
        read = self.object.read
        parts = []
        is_over = False
        try:
            while part := read(READ_BYTES):
                parts.append(part)
            is_over = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            is_over = True
        except ssl.SSLError as error:
            self._tls.failed("broken", f"its TLS is broken: {error.reason or error}", _peer(self._raw))
            self._raw.abort()
            return
        if self._outgoing.pending:  # keys that the peer asked for
            self._flush()
        if parts:
            self._protocol.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if is_over and not self._raw.is_closing():
            self._raw.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send; what is written before the handshake waits for its end."""
        if self._raw.is_closing():
            return
        if not self.is_open:
            self._early.append(bytes(data))
            return
        rest = memoryview(data).cast("B")
        try:
            while rest:
                rest = rest[self.object.write(rest) :]
        except ssl.SSLError as error:
            self._tls.failed("broken", f"its TLS is broken: {error.reason or error}", _peer(self._raw))
            self._raw.abort()
            return
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def say_goodbye(self) -> None:
        """Tell the peer that nothing more comes; its own goodbye is not waited for."""
        if self.is_open:
            with suppress(ssl.SSLError):
                self.object.unwrap()
            self._flush()

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._deadline.cancel()
        self._protocol.connection_lost(error)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


class TlsTransport(asyncio.Transport):
    """The transport of a protocol inside TLS: it writes through a `TlsLink`, and all else is the socket's own."""

    def __init__(self, link: TlsLink, raw: asyncio.Transport, context: ssl.SSLContext) -> None:
        super().__init__()
        self._link = link
        self._raw = raw
        self._context = context
        self.write = link.write  # type: ignore[method-assign]  # one call less for each reply

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self._link.write(b"".join(list_of_data))

    def close(self) -> None:
        self._link.say_goodbye()
        self._raw.close()

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def is_reading(self) -> bool:
        return self._raw.is_reading()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._context
        if name == "ssl_object":
            return self._link.object
        if name == "peercert":
            return self._link.object.getpeercert() if self._link.is_open else default
        return self._raw.get_extra_info(name, default)


def _peer(transport: asyncio.Transport) -> str:
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "?"

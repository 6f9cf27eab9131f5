"""How the calling side speaks TLS."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl

from cosmodrome.config import TlsCheck
from cosmodrome.errors import ConfigError, ConnectionFailed, UntrustedServer


def client_context(ca_file: str, check: TlsCheck) -> ssl.SSLContext:
    """Without a file, whoever this machine trusts is trusted; ConfigError when the file holds no certificates."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{ca_file!r} is no file of certificates to trust (PEM): {error}") from error
    context.check_hostname = check is TlsCheck.FULL
    if check is TlsCheck.NONE:
        context.verify_mode = ssl.CERT_NONE
    return context


# asyncio repeats each address of the name it has tried. uvloop says what the system says, and so do we.
_CONNECT_CALL = re.compile(r"(\[Errno (\d+)\]) Connect call failed")


def connect_failure(address: str, error: Exception, tls: ssl.SSLContext | None) -> ConnectionFailed:
    """What went wrong with a connect, in our words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"its certificate is not trusted ({error.verify_message}); name a file with its CA, or check less"
        return UntrustedServer(address, reason)
    if isinstance(error, ssl.SSLError):
        return ConnectionFailed(address, f"no TLS with it: {error.reason or error}")
    if tls is not None and isinstance(error, (ConnectionResetError, ConnectionAbortedError)):
        return ConnectionFailed(address, "no TLS with it: it closed the connection instead")
    if isinstance(error, socket.gaierror):
        return ConnectionFailed(address, f"its host is not known: {error}")
    text = str(error)
    if found := _CONNECT_CALL.search(text):
        text = f"{found[1]} {os.strerror(int(found[2]))}"
    if isinstance(error, ConnectionRefusedError) or (found and int(found[2]) == errno.ECONNREFUSED):
        text = f"nothing listens there: {text}"
    return ConnectionFailed(address, text or "no answer to the connect")

"""Certificates of a test: a CA that is trusted, what it signed, and one that ended long ago."""

from __future__ import annotations

import ssl
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from cosmodrome.net.certificates import make_authority


@cache
def authority(name: str = "ca", hosts: tuple[str, ...] = ("127.0.0.1", "localhost")) -> Path:
    """Return the folder of an authority, made once for all tests."""
    folder = Path(mkdtemp(prefix="cosmodrome-test-")) / name
    make_authority(folder, hosts, 30)
    return folder


@cache
def expired() -> Path:
    """Return a folder with a certificate for a server of the authority, of which the time is over."""
    ca, folder = authority(), Path(mkdtemp(prefix="cosmodrome-test-"))
    extensions = folder / "ext"
    extensions.write_text("subjectAltName=IP:127.0.0.1\n")
    _openssl(
        "req",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=old",
        "-keyout",
        folder / "server.key",
        "-out",
        folder / "csr",
    )
    signed = ("-CA", ca / "ca.pem", "-CAkey", ca / "ca.key", "-set_serial", "77", "-extfile", extensions)
    _openssl("x509", "-req", "-in", folder / "csr", *signed, "-days", "-1", "-out", folder / "server.pem")
    return folder


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def trusting(ca: Path, *, client: Path | None = None, check_host: bool = True) -> ssl.SSLContext:
    """Return a client's context that trusts an authority, and shows the certificate of `client`."""
    context = ssl.create_default_context(cafile=str(ca / "ca.pem"))
    context.check_hostname = check_host
    if client is not None:
        context.load_cert_chain(client / "client.pem", client / "client.key")
    return context

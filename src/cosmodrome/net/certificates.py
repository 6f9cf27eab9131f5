"""Certificates made here: one signed by itself, in memory, and a small CA for a first try. The `openssl` program makes
them; no secret is among its arguments."""

from __future__ import annotations

import ipaddress
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from cosmodrome.errors import ConfigError, CosmodromeError

PROGRAM: Final = "openssl"
TIMEOUT_SECONDS: Final = 30
SELF_SIGNED_DAYS: Final = 365
_CURVE: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

T = TypeVar("T")


class NoCertificateMaker(CosmodromeError):
    """A certificate is to be made, and the program that makes certificates is not installed or fails."""


def self_signed(use: Callable[[tuple[str, str]], T]) -> T:
    """Return what `use` makes of the files of a new certificate and its key, which are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="cosmodrome-tls-") as name:  # for this user alone
        certificate, key = Path(name, "server.crt"), Path(name, "server.key")
        words = ["req", "-x509", *_CURVE, "-days", str(SELF_SIGNED_DAYS), "-subj", "/CN=cosmodrome"]
        names = alternative_names(["localhost", "127.0.0.1"])
        _run([*words, "-addext", names, "-keyout", str(key), "-out", str(certificate)])
        return use((str(certificate), str(key)))


def alternative_names(hosts: Sequence[str]) -> str:
    """Return the extension that names the hosts of a certificate; ConfigError for what is no host."""
    names = []
    for host in hosts:
        try:
            names.append(f"IP:{ipaddress.ip_address(host)}")
        except ValueError:
            if not host or not all(part.isalnum() for part in host.replace("-", "").replace("*.", "").split(".")):
                raise ConfigError(f"{host!r} is no host name and no IP address") from None
            names.append(f"DNS:{host}")
    return f"subjectAltName={','.join(names)}"


def make_authority(folder: Path, hosts: Sequence[str], days: int) -> dict[str, Path]:
    """Make a CA with a certificate for a server and one for a client, and return the files by what they are.

    ConfigError if one of the files is there already: nothing is overwritten.
    """
    files = {
        "ca key": folder / "ca.key",
        "ca": folder / "ca.pem",
        "server key": folder / "server.key",
        "server": folder / "server.pem",
        "client key": folder / "client.key",
        "client": folder / "client.pem",
    }
    names = alternative_names(hosts or ["localhost", "127.0.0.1", socket.gethostname()])
    if found := [str(path) for path in files.values() if path.exists()]:
        raise ConfigError(f"{', '.join(found)} is there already: choose another folder, or move it away")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as name:
        making = Path(name)
        ca, ca_key = making / "ca.pem", making / "ca.key"
        subject = ["-subj", "/CN=Cosmodrome CA", "-days", str(days)]
        usage = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        _run(["req", "-x509", *_CURVE, *subject, *usage, "-keyout", str(ca_key), "-out", str(ca)])
        for who, extensions in (
            ("server", [names, "extendedKeyUsage=serverAuth,clientAuth"]),
            ("client", ["extendedKeyUsage=clientAuth"]),
        ):
            request, file = making / f"{who}.csr", making / f"{who}.ext"
            file.write_text("\n".join(["basicConstraints=CA:FALSE", *extensions]) + "\n")
            key = making / f"{who}.key"
            _run(["req", *_CURVE, "-subj", f"/CN=cosmodrome {who}", "-keyout", str(key), "-out", str(request)])
            signed = ["-CA", str(ca), "-CAkey", str(ca_key), "-CAcreateserial", "-days", str(days)]
            target = ["-extfile", str(file), "-out", str(making / f"{who}.pem")]
            _run(["x509", "-req", "-in", str(request), *signed, *target])
        for path in files.values():
            (making / path.name).chmod(0o600 if path.suffix == ".key" else 0o644)
            (making / path.name).rename(path)
    return files


def _run(words: Sequence[str]) -> None:
    """Run the program to its end; NoCertificateMaker says why it did not work."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise NoCertificateMaker(
            "certificates are made by the program openssl, which is not installed: install it (apt install openssl), "
            "or set tls.server.certPath and tls.server.keyPath to files of your own"
        )
    try:
        done = subprocess.run(
            [program, *words],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            umask=0o077,  # keys are for this user alone from their first byte on
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCertificateMaker(f"openssl cannot be run: {error}") from None
    if done.returncode:
        raise NoCertificateMaker(f"openssl failed: {done.stderr.strip()[-500:]}")

"""The address that clients on other machines reach a server by, read from this machine's interfaces.

Nothing is sent to find it: the kernel's tables say which interface leads to other networks.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from cosmodrome.errors import ConfigError

EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})
LOOPBACK = "127.0.0.1"

_SIOCGIFADDR = 0x8915  # of Linux: the first IPv4 address of an interface
_ROUTES = Path("/proc/net/route")
_V6_ADDRESSES = Path("/proc/net/if_inet6")
_NAME_BYTES = 16
# Interfaces of containers and virtual machines on this machine; others do not reach them.
_INNER = ("docker", "br-", "veth", "virbr", "cni", "flannel", "lxc", "podman", "vmnet")


@dataclass(frozen=True, slots=True)
class Interface:
    """One address of this machine."""

    name: str
    address: str
    leads_out: bool = False  # the default route goes through it


def advertised_host(bind_address: str) -> str:
    """Return the address that clients reach a server by which listens on `bind_address`.

    That is the address itself. For every address it is the one of the interface that leads to other networks, else any
    that others may reach, else 127.0.0.1. ConfigError when a host name has no address.
    """
    if bind_address not in EVERY_ADDRESS:
        return _resolved(bind_address)
    wanted = 6 if bind_address == "::" else 4
    found = [one for one in interfaces() if ipaddress.ip_address(one.address).version == wanted]
    return min(found, key=_distance).address if found else LOOPBACK


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def _resolved(host: str) -> str:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        try:
            return socket.gethostbyname(host)
        except OSError as error:
            raise ConfigError(
                f"{host} has no address: {error.strerror or error}; name an address of this machine"
            ) from error
    return host


def _distance(interface: Interface) -> tuple[bool, bool, bool, bool, str]:
    """Order addresses: those that other machines reach come first."""
    address = ipaddress.ip_address(interface.address)
    inner = interface.name.startswith(_INNER)
    return address.is_loopback, address.is_link_local, not interface.leads_out, inner, interface.name


def interfaces() -> list[Interface]:
    """Return the addresses of this machine, as far as the system tells them."""
    leading_out = _default_interfaces()
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{_NAME_BYTES}s240x", name.encode()[: _NAME_BYTES - 1])
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
            except OSError:  # it has no IPv4 address, or this is not Linux
                continue
            found.append(Interface(name, socket.inet_ntoa(answer[20:24]), name in leading_out))
    return (found or _by_host_name()) + _v6_interfaces(leading_out)


def _by_host_name() -> list[Interface]:
    try:
        return [Interface("", address) for address in socket.gethostbyname_ex(socket.gethostname())[2]]
    except OSError:
        return []


def _default_interfaces() -> set[str]:
    rows = [line.split() for line in _lines(_ROUTES)[1:]]
    return {row[0] for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"}


def _v6_interfaces(leading_out: set[str]) -> list[Interface]:
    rows = [line.split() for line in _lines(_V6_ADDRESSES)]
    return [
        Interface(row[5], str(ipaddress.IPv6Address(int(row[0], 16))), row[5] in leading_out)
        for row in rows
        if len(row) == 6
    ]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []

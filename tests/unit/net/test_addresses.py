"""The address that clients are told, from lists of interfaces as machines have them."""

from __future__ import annotations

import ipaddress
import socket
from typing import NoReturn

import pytest

from cosmodrome.errors import ConfigError
from cosmodrome.net import addresses
from cosmodrome.net.addresses import Interface, advertised_host, interfaces, is_loopback

LO = Interface("lo", "127.0.0.1")
ETH = Interface("eth0", "10.1.2.3", leads_out=True)
DOCKER = Interface("docker0", "172.17.0.1")
SECOND = Interface("eth1", "192.168.0.9")
SELF_GIVEN = Interface("eth2", "169.254.7.7")
LO6 = Interface("lo", "::1")
ETH6 = Interface("eth0", "fd00::2", leads_out=True)
LINK6 = Interface("eth0", "fe80::1", leads_out=True)


@pytest.mark.parametrize(
    ("found", "bound", "told"),
    [
        ([LO, DOCKER, SECOND, ETH], "0.0.0.0", "10.1.2.3"),
        ([LO, DOCKER, SECOND], "0.0.0.0", "192.168.0.9"),
        ([LO, SELF_GIVEN, DOCKER], "0.0.0.0", "172.17.0.1"),
        ([LO, SELF_GIVEN], "", "169.254.7.7"),
        ([LO], "0.0.0.0", "127.0.0.1"),
        ([], "0.0.0.0", "127.0.0.1"),
        ([LO, ETH, LO6, LINK6, ETH6], "::", "fd00::2"),
        ([LO, LO6, LINK6, ETH6, ETH], "0.0.0.0", "10.1.2.3"),
        ([ETH], "192.168.0.9", "192.168.0.9"),
        ([ETH], "localhost", "127.0.0.1"),
    ],
)
def test_clients_are_told_the_address_they_can_reach(
    monkeypatch: pytest.MonkeyPatch, found: list[Interface], bound: str, told: str
) -> None:
    monkeypatch.setattr(addresses, "interfaces", lambda: found)
    assert advertised_host(bound) == told


def test_a_name_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_host: str) -> NoReturn:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    with pytest.raises(
        ConfigError, match="broker-x has no address: Name or service not known; name an address of this"
    ):
        advertised_host("broker-x")


def test_this_machine_has_addresses() -> None:
    found = interfaces()
    assert "127.0.0.1" in {one.address for one in found}
    assert all(ipaddress.ip_address(one.address) for one in found)


def test_a_loopback_address_is_known() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("10.0.0.1", "fd00::2", "broker.example")))

"""White addresses: every way in which plain_acl.yml may write them."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.access.addresses import NO_ADDRESS, parse_addresses
from cosmodrome.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("10.10.103.5", ["10.10.103.5"], ["10.10.103.6", "10.10.103.55", "::1"]),
        ("192.168.1-5.*", ["192.168.1.0", "192.168.5.255"], ["192.168.0.9", "192.168.6.9", "192.169.1.1"]),
        ("10.10.*.7", ["10.10.0.7", "10.10.255.7"], ["10.10.0.8"]),
        ("10.0.0.{1,12}", ["10.0.0.1", "10.0.0.12"], ["10.0.0.2", "10.0.0.121"]),
        ("10.0.0.1, 10.0.1.{2,3}", ["10.0.0.1", "10.0.1.3"], ["10.0.0.2", "10.0.1.1"]),
        ("*", ["1.2.3.4", "fe80::1", "?"], []),
        ("*.*.*.*", ["1.2.3.4"], []),
        ("", [], ["1.2.3.4", "::1", "?"]),
        ("1050:0000:0000:0000:0005:0600:300c:*", ["1050::5:600:300c:1"], ["1050::5:600:300d:1", "10.5.0.1"]),
        ("fe80::1-ff", ["fe80::1", "fe80::ff", "fe80::7%eth0"], ["fe80::100", "fe81::1"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "0.0.0.1"]),
        ("10.0.0.1", ["::ffff:10.0.0.1"], ["::ffff:10.0.0.2"]),
    ],
)
def test_a_pattern_has_these_addresses_and_no_others(pattern: str, inside: list[str], outside: list[str]) -> None:
    addresses = parse_addresses([pattern])
    assert [host for host in inside + outside if host in addresses] == inside


@pytest.mark.parametrize(
    "pattern",
    ["10.0.0", "10.0.0.256", "10.0.0.5-1", "10.0.0.1.1", "host", "10.0.0.{1", "1::2::3", "12345::1", "10.0.0.-", "-1"],
)
def test_what_is_no_pattern_is_refused_with_an_example(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"is no white address; write one such as 192\.168\.0\.1"):
        parse_addresses([pattern])


@given(st.ip_addresses(), st.ip_addresses())
def test_an_address_written_out_has_itself_alone(
    one: ipaddress.IPv4Address | ipaddress.IPv6Address, other: ipaddress.IPv4Address | ipaddress.IPv6Address
) -> None:
    addresses = parse_addresses([str(one)])
    assert str(one) in addresses
    assert (str(other) in addresses) == (_plain(one) == _plain(other))


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> object:
    return (address.version == 6 and address.ipv4_mapped) or address


@given(st.text(max_size=40))
def test_any_text_is_a_pattern_or_an_error_of_ours(text: str) -> None:
    try:
        addresses = parse_addresses([text])
    except ConfigError:
        return
    assert "?" not in addresses or addresses.has_all
    assert (addresses is NO_ADDRESS) == (not text.replace(",", "").strip())

"""Signatures are those of Apache's AclClientRPCHook (4.9.8), which wrote the ones below."""

from __future__ import annotations

import pytest

from cosmodrome.client.acl import AclHook
from cosmodrome.codes import RequestCode
from cosmodrome.errors import ConfigError
from cosmodrome.wire.acl import SIGNATURE, Credentials
from cosmodrome.wire.command import Command


def request(body: bytes = b"") -> Command:
    fields = {"topic": "orders", "queueId": "3", "a": "z", "Zeta": "über"}
    return Command.request(RequestCode.PULL_MESSAGE, body=body, fields=fields)


@pytest.mark.parametrize(
    ("token", "body", "signature"),
    [
        ("", b"", "UrVyOd3K0tS7Ym9FlD23UKnU9xQ="),
        ("", "body ü".encode(), "t/Q8mX1dUm+z6wq6MpUbUCbpdeQ="),
        ("token-1", b"", "vUaIHSkHcL12KE0HXvj6YpJLATg="),
        ("token-1", "body ü".encode(), "FlGW2w2jft4EQktgEe5MS9aSobU="),
    ],
)
def test_signatures_are_apaches(token: str, body: bytes, signature: str) -> None:
    command = request(body)
    AclHook("RocketMQ", "12345678", token).before_request("127.0.0.1:10911", command)
    assert command.fields["AccessKey"] == "RocketMQ"
    assert command.fields.get("SecurityToken", "") == token
    assert command.fields[SIGNATURE] == signature


def test_a_request_may_be_signed_again() -> None:
    command = request()
    credentials = Credentials("RocketMQ", "12345678")
    credentials.sign(command)
    first = command.fields[SIGNATURE]
    credentials.sign(command)
    assert command.fields[SIGNATURE] == first


def test_half_a_pair_of_keys_is_refused_and_the_secret_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="secret key"):
        Credentials("RocketMQ", "")
    assert "12345678" not in repr(Credentials("RocketMQ", "12345678"))

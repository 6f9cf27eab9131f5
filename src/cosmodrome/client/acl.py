"""Requests of a client signed with its access key: give the hook as `rpc_hooks`."""

from __future__ import annotations

from cosmodrome.client.hooks import RpcHook
from cosmodrome.errors import WrongType
from cosmodrome.wire.acl import Credentials
from cosmodrome.wire.command import Command


class AclHook(RpcHook):
    """Producer("orders-app", rpc_hooks=[AclHook("RocketMQ", "12345678")])"""

    def __init__(self, access_key: str, secret_key: str, security_token: str = "") -> None:
        if not all(isinstance(text, str) for text in (access_key, secret_key, security_token)):
            raise WrongType("access key, secret key and token of an AclHook must be text")  # which is not for logs
        self._credentials = Credentials(access_key, secret_key, security_token)

    def before_request(self, address: str, command: Command) -> None:
        self._credentials.sign(command)

"""Talking to name servers and brokers from a Spark process, which is synchronous anyway: plain blocking sockets.

The same commands and codecs as the client's, without its event loop. A link is not shared between threads or processes.
"""

from __future__ import annotations

import itertools
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from cosmodrome.client.routes import subscribe_queues, topic_route
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import MIB
from cosmodrome.errors import (
    BrokerError,
    CallTimeout,
    ClientError,
    ConnectionFailed,
    CosmodromeError,
    RouteNotFound,
)
from cosmodrome.model import MASTER_ID, MessageQueue, Route
from cosmodrome.net.tls import client_context, connect_failure
from cosmodrome.numbers import MAX_PORT, parse_int
from cosmodrome.spark.options import LinkOptions
from cosmodrome.wire.acl import Credentials
from cosmodrome.wire.bodies import ClusterInfo, TopicList, decode_route
from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import MAX_FRAME_BYTES, FrameDecoder
from cosmodrome.wire.header import Header
from cosmodrome.wire.name_server_requests import GetRoute

log = logging.getLogger(__name__)

CALL_TIMEOUT_SECONDS = 10.0
CONNECT_TIMEOUT_SECONDS = 3.0
RETRY_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 2.0
_READ_BYTES = MIB
_PASSING = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE})

T = TypeVar("T")


class NotReady(ClientError):
    """A member of a broker group has not got yet what is asked for, or does not give it; another one may, or it itself
    in a moment."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address


class Peer:
    """One connection. A request may be sent ahead, and its reply fetched later; replies come in any order."""

    def __init__(self, address: str, credentials: Credentials | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._credentials = credentials
        try:
            self._socket = _open(address, tls)
        except (OSError, ValueError, OverflowError) as error:
            raise connect_failure(address, error, tls) from error
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)
        self._opaques = itertools.count(1)
        self._replies: dict[int, Command] = {}
        self._heard = tls is not None  # who speaks TLS with us takes it

    def send(self, command: Command) -> int:
        """Send a request; the number to fetch its reply by."""
        command.opaque = next(self._opaques)
        if self._credentials is not None:
            self._credentials.sign(command)
        try:
            self._socket.sendall(command.encode())
        except OSError as error:
            raise ConnectionFailed(self.address, str(error)) from error
        return command.opaque

    def fetch(self, opaque: int, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> Command:
        deadline = time.monotonic() + timeout_seconds
        while opaque not in self._replies:
            self._receive(deadline, timeout_seconds)
        return self._replies.pop(opaque)

    def _receive(self, deadline: float, timeout_seconds: float) -> None:
        left = deadline - time.monotonic()
        try:
            self._socket.settimeout(max(left, 0.001))
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            raise CallTimeout(self.address, timeout_seconds * 1000) from None
        except OSError as error:
            raise ConnectionFailed(self.address, str(error)) from error
        if not data:
            hint = "" if self._heard else " before the peer said anything; does it take TLS only?"
            raise ConnectionFailed(self.address, f"the connection was closed{hint}")
        self._heard = True
        self._decoder.feed(data)
        while (frame := self._decoder.take()) is not None:
            command = Command.decode(frame)
            if command.is_response:  # what brokers tell their clients is not for us
                self._replies[command.opaque] = command

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()


def _open(address: str, tls: ssl.SSLContext | None) -> socket.socket:
    host, _, port = address.rpartition(":")
    host, number = host.strip("[]"), parse_int(port, high=MAX_PORT)
    if not host or number is None:
        raise ConnectionFailed(address, "is not an address; write host:port")
    opened = socket.create_connection((host, number), CONNECT_TIMEOUT_SECONDS)
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened if tls is None else tls.wrap_socket(opened, server_hostname=host)
    except BaseException:
        opened.close()
        raise


class Cluster:
    """Brokers behind name servers. Connections are made when first needed, and dropped when they fail."""

    def __init__(self, options: LinkOptions) -> None:
        self._name_servers = list(options.name_servers)
        keys = (options.access_key, options.secret_key, options.security_token)
        self._credentials = Credentials(*keys) if options.access_key else None
        self._tls = client_context(options.tls_ca_file, options.tls_check) if options.tls else None
        self._peers: dict[str, Peer] = {}
        self._brokers: dict[str, dict[int, str]] = {}

    def peer(self, address: str) -> Peer:
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = Peer(address, self._credentials, self._tls)
        return peer

    def drop(self, address: str) -> None:
        """The connection failed, or holds replies that nobody wants any more."""
        if (peer := self._peers.pop(address, None)) is not None:
            peer.close()

    def close(self) -> None:
        for address in list(self._peers):
            self.drop(address)

    def call(self, address: str, command: Command, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> Command:
        """The peer's reply, whatever its code."""
        try:
            peer = self.peer(address)
            return peer.fetch(peer.send(command), timeout_seconds)
        except CosmodromeError:
            self.drop(address)
            raise

    def ask(self, address: str, code: int, header: Header | None = None, body: bytes = b"") -> Command:
        """The peer's reply, or BrokerError when it refuses."""
        reply = self.call(address, Command.request(code, header, body))
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerError(reply.code, reply.remark or "", address)
        return reply

    def call_all(self, requests: Sequence[tuple[str, Command]]) -> list[Command]:
        """The replies, whatever their codes, to requests that are all under way at once."""
        try:
            sent = [(self.peer(address), self.peer(address).send(command)) for address, command in requests]
            return [peer.fetch(opaque) for peer, opaque in sent]
        except CosmodromeError:
            for address, _ in requests:
                self.drop(address)
            raise

    def ask_all(self, requests: Sequence[tuple[str, Command]]) -> list[Command]:
        """The replies to requests that are all under way at once, or BrokerError for the first that is refused."""
        replies = self.call_all(requests)
        for (address, _), reply in zip(requests, replies, strict=True):
            if reply.code != ResponseCode.SUCCESS:
                raise BrokerError(reply.code, reply.remark or "", address)
        return replies

    # --- routes

    def route(self, topic: str) -> Route:
        """Where the topic lives; RouteNotFound when the name server does not know it."""
        header = GetRoute(topic, accept_standard_json_only=True)
        try:
            reply = self._ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        except BrokerError as refusal:
            if refusal.code == ResponseCode.TOPIC_NOT_EXIST:
                raise RouteNotFound(topic) from None
            raise
        route = decode_route(bytes(reply.body))
        self._brokers.update({broker.broker_name: dict(broker.addresses) for broker in route.brokers})
        return route

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The readable queues of a topic, in order."""
        return subscribe_queues(topic, topic_route(topic, self.route(topic)).route)

    def topics(self) -> list[str]:
        reply = self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None)
        return sorted(TopicList.decode(bytes(reply.body)).topics)

    def brokers(self) -> dict[str, dict[int, str]]:
        """The addresses of every broker that the name server knows, by name and id."""
        known = {name: dict(broker.addresses) for name, broker in self._info().brokers.items()}
        self._brokers.update(known)
        return known

    def clusters(self) -> dict[str, tuple[str, ...]]:
        """The names of all brokers, by cluster."""
        return dict(self._info().clusters)

    def _info(self) -> ClusterInfo:
        return ClusterInfo.decode(bytes(self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO, None).body))

    def _ask_name_server(self, code: int, header: Header | None) -> Command:
        failure: ClientError | None = None
        for address in list(self._name_servers):
            try:
                return self.ask(address, code, header)
            except (ConnectionFailed, CallTimeout) as error:
                failure = error
                self._name_servers.append(self._name_servers.pop(0))
        assert failure is not None
        raise failure

    def master(self, queue: MessageQueue) -> str:
        """Where the queue's master is; the topic's route is asked for if that is not known."""
        return self._member(queue, masters_only=True)

    def member(self, queue: MessageQueue) -> str:
        """Where the queue can be read: the master, or whoever is there."""
        return self._member(queue, masters_only=False)

    def _member(self, queue: MessageQueue, *, masters_only: bool) -> str:
        if queue.broker_name not in self._brokers:
            self.route(queue.topic)
        members = self._brokers.get(queue.broker_name, {})
        if MASTER_ID in members:
            return members[MASTER_ID]
        if members and not masters_only:
            return members[min(members)]
        self._brokers.pop(queue.broker_name, None)
        raise ConnectionFailed(queue.broker_name, "no route names this broker")

    def has_master(self, queue: MessageQueue) -> bool:
        """Whether the last route that names the queue's broker has a master."""
        return MASTER_ID in self._brokers.get(queue.broker_name, {})

    def forget_routes(self) -> None:
        self._brokers.clear()

    def patiently(self, work: Callable[[], T], tries: int, pause_seconds: float = RETRY_PAUSE_SECONDS) -> T:
        """Do `work`, again after a pause when brokers cannot be reached or are busy; pauses double."""
        for left in reversed(range(tries)):
            try:
                return work()
            except CosmodromeError as error:
                if not left or not may_pass(error):
                    raise
                log.warning("%s; trying again in %.1f s", error, pause_seconds)
                self.forget_routes()
                time.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 2, MAX_PAUSE_SECONDS)
        raise AssertionError("tries is at least 1")


def may_pass(error: CosmodromeError) -> bool:
    """A broker that starts anew has no route for a moment."""
    if error.is_lasting:
        return False
    if isinstance(error, BrokerError):
        return error.code in _PASSING
    return isinstance(error, (ConnectionFailed, CallTimeout, RouteNotFound, NotReady))

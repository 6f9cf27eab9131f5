"""What the name server does for each request code: a plain function that answers, or raises its refusal."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from cosmodrome.codes import RequestCode, Version
from cosmodrome.config import NameServerConfig, parse_properties
from cosmodrome.errors import ConfigError, InvalidParameter, MissingField, NoPermission, RequestError
from cosmodrome.nameserver.bodies import read_body, small_body
from cosmodrome.nameserver.kv import ORDER_TOPIC_CONFIG
from cosmodrome.nameserver.route_table import Registration, RouteTable
from cosmodrome.net.connection import Connection
from cosmodrome.wire import name_server_requests as requests
from cosmodrome.wire.bodies import (
    ClusterInfo,
    KVTable,
    MemberGroup,
    RegisterBrokerBody,
    TopicList,
    decode_data_version,
    decode_route,
    encode_data_version,
    encode_route,
)
from cosmodrome.wire.command import Command

if TYPE_CHECKING:
    from cosmodrome.nameserver.server import NameServer

log = logging.getLogger(__name__)

Processor = Callable[["NameServer", Connection, Command], Command | Awaitable[Command]]

# All that a peer may change while we run. Nothing that names a file, an address or a limit belongs here.
SETTABLE_KEYS = frozenset({"orderMessageEnable", "returnOrderTopicConfigToBroker"})

MANY = 1_000  # topics; more are listed beside the loop
FEW_BROKERS = 20  # of more, answers that look at all of them are made one in a turn of the loop
FEW_VALUES = 10  # of KV settings, each perhaps as long as kvConfigMaxValueSize; more are encoded beside the loop
_CRC_MASK = 0x7FFFFFFF

T = TypeVar("T")

# --- brokers


async def register_broker(server: NameServer, connection: Connection, command: Command) -> Command:
    """REGISTER_BROKER: take in a broker and its topics, step by step; tell a slave where its master is."""
    request = requests.RegisterBroker.decode(command)
    async with server.changes:
        registration = await _registration(server, request, command)
        if connection.closed:  # nobody would notice that it is gone
            return command.reply()
        server.registering_over(connection)
        steps = server.routes.registering(registration, server.clock.steady_ms(), connection)
        registered = await _in_steps(server, steps)
    server.tell_smallest()
    if registered.refusal is not None:
        log.error("registration refused: broker=%s: %s", registration.broker_name, registered.refusal)
    if registered.replaced is not None:
        log.warning(
            "broker promoted: broker=%s id=%d address=%s before=%s"
            if registered.is_promoted
            else "broker replaced: broker=%s id=%d address=%s before=%s; if both run, stop one of them",
            registration.broker_name,
            registration.broker_id,
            registration.address,
            registered.replaced,
        )
    reply = requests.RegisterBrokerReply(
        registered.master_ha_address, registered.master_address, registered.master_term
    )
    return command.reply(header=reply, body=await _order_topics(server), remark=registered.refusal)


async def _in_steps(server: NameServer, steps: Generator[None, None, T]) -> T:
    """Return what `steps` end with; others have their turns between them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await server.lane.turn()


def _check_crc(body: bytes, crc: int) -> None:
    if crc and crc != zlib.crc32(body) & _CRC_MASK:
        raise RequestError("crc32 not match: the registration was damaged on its way")


async def _registration(server: NameServer, request: requests.RegisterBroker, command: Command) -> Registration:
    registration = Registration(
        cluster=request.cluster_name,
        broker_name=request.broker_name,
        broker_id=request.broker_id,
        address=request.broker_addr,
        ha_address=request.ha_server_addr,
        acting_master=request.enable_acting_master,
        silent_after_ms=request.heartbeat_timeout_millis,
    )
    if not command.body:
        return registration

    def decode(data: bytes) -> RegisterBrokerBody:
        _check_crc(data, request.body_crc32)
        return RegisterBrokerBody.decode(data, version=command.version)

    body = await read_body(server, command, decode)
    return replace(registration, data_version=body.data_version, topics=body.topics)


async def _order_topics(server: NameServer) -> bytes:
    """The orderly topics as a broker wants them told; no body at all when there are none."""
    table = server.kv.find_namespace(ORDER_TOPIC_CONFIG)
    if table is None or not server.config.return_order_topic_config_to_broker:
        return b""
    return await _encoded(server, table)


async def _encoded(server: NameServer, table: Mapping[str, str]) -> bytes:
    """A namespace as JSON: a large one is encoded beside the loop, one answer after the other."""
    if len(table) <= FEW_VALUES:
        return KVTable(table).encode()
    async with server.listing:
        return await server.lane.aside(KVTable(dict(table)).encode)


async def unregister_broker(server: NameServer, connection: Connection, command: Command) -> Command:
    """UNREGISTER_BROKER: a broker says goodbye."""
    request = requests.BrokerHeader.decode(command)
    async with server.changes:
        server.routes.unregister(request.broker_name, request.broker_addr)
    server.tell_smallest()
    return command.reply()


def query_data_version(server: NameServer, connection: Connection, command: Command) -> Command:
    """QUERY_DATA_VERSION: does the broker have to register anew? The question itself is a sign of life."""
    request = requests.BrokerHeader.decode(command)
    asked = decode_data_version(small_body(command))
    stored = server.routes.touch(request.broker_name, request.broker_addr, server.clock.steady_ms())
    body = encode_data_version(stored) if stored else b""
    return command.reply(header=requests.DataVersionReply(changed=stored != asked), body=body)


def broker_heartbeat(server: NameServer, connection: Connection, command: Command) -> Command:
    """BROKER_HEARTBEAT: a sign of life and nothing else."""
    request = requests.BrokerHeartbeat.decode(command)
    server.routes.touch(request.broker_name, request.broker_addr, server.clock.steady_ms())
    return command.reply()


def broker_member_group(server: NameServer, connection: Connection, command: Command) -> Command:
    """GET_BROKER_MEMBER_GROUP: the addresses of one broker group."""
    request = requests.GetMemberGroup.decode(command)
    group = server.routes.member_group(request.cluster_name, request.broker_name)
    return command.reply(body=MemberGroup(group.cluster, group.broker_name, group.addresses).encode())


async def _one_in_a_turn(server: NameServer) -> None:
    """Return when an answer that looks at all brokers may be made."""
    if server.routes.size > FEW_BROKERS:
        await server.lane.turn()


async def cluster_info(server: NameServer, connection: Connection, command: Command) -> Command:
    """GET_BROKER_CLUSTER_INFO: every broker group and cluster."""
    await _one_in_a_turn(server)
    return command.reply(body=ClusterInfo(server.routes.groups(), server.routes.clusters()).encode())


async def wipe_write_permission(server: NameServer, connection: Connection, command: Command) -> Command:
    """WIPE_WRITE_PERM_OF_BROKER: producers stop choosing this broker group."""
    request = requests.WritePermission.decode(command)
    async with server.changes:
        count = await _in_steps(server, server.routes.wiping_write_permission(request.broker_name))
    return command.reply(header=requests.WipeWritePermissionReply(count))


async def add_write_permission(server: NameServer, connection: Connection, command: Command) -> Command:
    """ADD_WRITE_PERM_OF_BROKER: producers may choose this broker group again."""
    request = requests.WritePermission.decode(command)
    async with server.changes:
        count = await _in_steps(server, server.routes.adding_write_permission(request.broker_name))
    return command.reply(header=requests.AddWritePermissionReply(count))


# --- topics


async def route(server: NameServer, connection: Connection, command: Command) -> Command:
    """GET_ROUTEINFO_BY_TOPIC: where a topic lives, in the JSON dialect the asker reads."""
    request = requests.GetRoute.decode(command)
    await _one_in_a_turn(server)
    found = server.routes.route(request.topic)
    if server.config.order_message_enable:
        found = replace(found, order_conf=server.kv.find(ORDER_TOPIC_CONFIG, request.topic))
    standard_json = request.accept_standard_json_only or command.version >= Version.V4_9_4
    return command.reply(body=encode_route(found, quoted_keys=standard_json))


async def register_topic(server: NameServer, connection: Connection, command: Command) -> Command:
    """REGISTER_TOPIC_IN_NAMESRV: one topic on brokers that are already here."""
    request = requests.RegisterTopic.decode(command)
    if command.body:
        async with server.changes:
            route = await read_body(server, command, decode_route)
            server.routes.register_topic(request.topic, route.queues)
    return command.reply()


async def delete_topic(server: NameServer, connection: Connection, command: Command) -> Command:
    """DELETE_TOPIC_IN_NAMESRV: forget a topic, everywhere or in one cluster."""
    request = requests.DeleteTopicInNameServer.decode(command)
    async with server.changes:
        server.routes.delete_topic(request.topic, request.cluster_name or None)
    return command.reply()


async def _topics_of(server: NameServer, command: Command, topics: Callable[[RouteTable], tuple[str, ...]]) -> Command:
    """Answer with the names of topics: many are sorted and encoded beside the loop, one answer after the other."""
    if server.routes.entries <= MANY:
        return command.reply(body=TopicList(topics(server.routes)).encode())
    async with server.listing:  # of those who ask at once, only one has a copy
        table = server.routes.copy()
        return command.reply(body=await server.lane.aside(lambda: TopicList(topics(table)).encode()))


async def all_topics(server: NameServer, connection: Connection, command: Command) -> Command:
    return await _topics_of(server, command, RouteTable.all_topics)


async def topics_by_cluster(server: NameServer, connection: Connection, command: Command) -> Command:
    cluster = requests.TopicsByCluster.decode(command).cluster
    return await _topics_of(server, command, lambda routes: routes.topics_by_cluster(cluster))


async def system_topics(server: NameServer, connection: Connection, command: Command) -> Command:
    """GET_SYSTEM_TOPIC_LIST_FROM_NS: with the address of one broker, which is asked for its own next."""
    await _one_in_a_turn(server)
    address = next((broker.address for broker in server.routes.brokers), None)
    return command.reply(body=TopicList(server.routes.system_topics(), address).encode())


async def unit_topics(server: NameServer, connection: Connection, command: Command) -> Command:
    return await _topics_of(server, command, RouteTable.unit_topics)


async def unit_subscription_topics(server: NameServer, connection: Connection, command: Command) -> Command:
    return await _topics_of(server, command, RouteTable.unit_subscription_topics)


async def unit_subscription_ununit_topics(server: NameServer, connection: Connection, command: Command) -> Command:
    return await _topics_of(server, command, RouteTable.unit_subscription_ununit_topics)


# --- key-value config


async def put_kv_config(server: NameServer, connection: Connection, command: Command) -> Command:
    """PUT_KV_CONFIG: answered when it is on disk."""
    request = requests.KvConfig.decode(command)
    if request.value is None:
        raise MissingField("KvConfig", "value")
    await server.kv.put(request.namespace, request.key, request.value)
    return command.reply()


def get_kv_config(server: NameServer, connection: Connection, command: Command) -> Command:
    request = requests.KvConfig.decode(command)
    value = server.kv.value(request.namespace, request.key)
    return command.reply(header=requests.KvConfigReply(value))


async def delete_kv_config(server: NameServer, connection: Connection, command: Command) -> Command:
    """DELETE_KV_CONFIG: answered when it is on disk."""
    request = requests.KvConfig.decode(command)
    await server.kv.delete(request.namespace, request.key)
    return command.reply()


async def kv_namespace(server: NameServer, connection: Connection, command: Command) -> Command:
    """GET_KVLIST_BY_NAMESPACE: every key and value of one namespace."""
    request = requests.KvNamespace.decode(command)
    return command.reply(body=await _encoded(server, server.kv.namespace(request.namespace)))


# --- its own config


def get_config(server: NameServer, connection: Connection, command: Command) -> Command:
    """GET_NAMESRV_CONFIG: the config as properties text."""
    return command.reply(body=_properties_text(server.config).encode())


def update_config(server: NameServer, connection: Connection, command: Command) -> Command:
    """UPDATE_NAMESRV_CONFIG: change what may be changed, all or nothing, until the next start."""
    properties = parse_properties(_text(command))
    for key in properties:
        if key not in SETTABLE_KEYS:
            raise NoPermission(f"{key} cannot be changed over the wire; only {', '.join(sorted(SETTABLE_KEYS))} can")
        if key in server.config.config_black_list.split(";"):
            raise NoPermission(f"{key} cannot be changed over the wire: configBlackList names it")
    try:
        server.config = server.config.with_properties(properties)
    except ConfigError as error:
        raise InvalidParameter(str(error)) from error
    return command.reply()


def _text(command: Command) -> str:
    try:
        return small_body(command).decode()
    except UnicodeDecodeError as error:
        raise InvalidParameter("the config is not UTF-8 text") from error


def _properties_text(config: NameServerConfig) -> str:
    return "".join(f"{key}={_escaped(getattr(config, name))}\n" for key, name in config.attributes_by_key().items())


def _escaped(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


PROCESSORS: dict[int, Processor] = {
    RequestCode.PUT_KV_CONFIG: put_kv_config,
    RequestCode.GET_KV_CONFIG: get_kv_config,
    RequestCode.DELETE_KV_CONFIG: delete_kv_config,
    RequestCode.GET_KVLIST_BY_NAMESPACE: kv_namespace,
    RequestCode.REGISTER_BROKER: register_broker,
    RequestCode.UNREGISTER_BROKER: unregister_broker,
    RequestCode.QUERY_DATA_VERSION: query_data_version,
    RequestCode.BROKER_HEARTBEAT: broker_heartbeat,
    RequestCode.GET_BROKER_MEMBER_GROUP: broker_member_group,
    RequestCode.GET_BROKER_CLUSTER_INFO: cluster_info,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_write_permission,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: add_write_permission,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: route,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: register_topic,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: all_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: topics_by_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: unit_subscription_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: unit_subscription_ununit_topics,
    RequestCode.UPDATE_NAMESRV_CONFIG: update_config,
    RequestCode.GET_NAMESRV_CONFIG: get_config,
}

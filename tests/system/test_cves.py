"""What Apache's brokers and name servers once let every peer do, asked of ours; docs/security.md has the table."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path

import pytest

from cosmodrome.broker.broker import Broker
from cosmodrome.broker.hot_config import HOT_KEYS
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, NameServerConfig, NetConfig, ReplicationConfig, SecurityConfig, StoreConfig
from cosmodrome.nameserver.processors import SETTABLE_KEYS
from cosmodrome.nameserver.server import NameServer
from cosmodrome.net.caller import Caller
from cosmodrome.wire.command import Command
from tests.system.cluster import running_broker, running_name_server

SEND = {"a": "p", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
OUTSIDE = "../../../../outside"
# What a key may be about that no peer changes: files, programs, addresses, limits, credentials, TLS.
DANGEROUS = {"path", "file", "dir", "home", "addr", "address", "port", "listen", "max", "limit", "num", "nums"}
DANGEROUS |= {"acl", "auth", "credentials", "tls", "secret", "class", "plugin", "provider", "server", "host", "name"}
WORD = re.compile("[A-Z]?[a-z]+")
# They turn a service of the broker on or off, whatever their names look like.
HARMLESS = frozenset(
    {
        "serverLoadBalancerEnable",
        "useServerSideResetOffset",
        "transactionCheckMax",
        "fileReservedTime",
        "brokerPermission",
    }
)


@pytest.fixture
async def daemons(tmp_path: Path) -> AsyncIterator[tuple[NameServer, Broker]]:
    async with running_name_server() as name_server, running_broker(tmp_path / "store", name_server.address) as broker:
        yield name_server, broker


async def ask(address: str, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
    caller = Caller()
    try:
        return await caller.call(address, Command(code, fields, body), 10_000)
    finally:
        await caller.close()


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


async def test_cve_2019_17572_no_topic_is_made_outside_the_store(
    daemons: tuple[NameServer, Broker], tmp_path: Path
) -> None:
    _, broker = daemons
    before = {path for path in files_of(tmp_path) if not path.startswith("store")}
    topic = {
        "topic": OUTSIDE,
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }
    group = json.dumps({"groupName": OUTSIDE}).encode()
    retried = f"RETRY_TOPIC\x01{OUTSIDE}\x02REAL_TOPIC\x01{OUTSIDE}\x02REAL_QID\x010\x02DELAY\x011"
    for code, header, body in (
        (RequestCode.SEND_MESSAGE_V2, {**SEND, "b": OUTSIDE}, b"x"),
        (RequestCode.SEND_MESSAGE_V2, {**SEND, "b": f"%RETRY%{OUTSIDE}"}, b"x"),
        (RequestCode.SEND_BATCH_MESSAGE, {**SEND, "b": OUTSIDE, "m": "true"}, b"x"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {**topic, "defaultTopic": "TBW102"}, b""),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group),
        (RequestCode.SEND_MESSAGE_V2, {**SEND, "b": "t", "i": retried}, b"x"),
    ):
        await ask(broker.address, code, header, body)
        assert broker.topics.find_topic(OUTSIDE) is None
    assert {path for path in files_of(tmp_path) if not path.startswith("store")} == before
    assert not [path for path in files_of(tmp_path) if "outside" in path]


@pytest.mark.parametrize(
    "key",
    [
        "rocketmqHome",
        "filterServerNums",
        "storePathRootDir",
        "brokerConfigPath",
        "aclEnable",
        "aclFile",
        "tls.server.mode",
    ],
)
async def test_cve_2023_33246_a_broker_changes_no_path_and_runs_nothing(
    daemons: tuple[NameServer, Broker], key: str
) -> None:
    _, broker = daemons
    before = (broker.config, broker.store_config, broker.security)
    command = "-c $@|sh . echo touch /tmp/owned;"
    reply = await ask(
        broker.address, RequestCode.UPDATE_BROKER_CONFIG, {}, f"brokerPermission=4\n{key}={command}".encode()
    )
    assert reply.code == ResponseCode.NO_PERMISSION
    assert (broker.config, broker.store_config, broker.security) == before


@pytest.mark.parametrize("key", ["configStorePath", "kvConfigPath", "rocketmqHome", "aclEnable", "tls.server.mode"])
async def test_cve_2023_37582_a_name_server_changes_no_path(daemons: tuple[NameServer, Broker], key: str) -> None:
    name_server, _ = daemons
    before = name_server.config
    body = f"orderMessageEnable=true\n{key}=/tmp/owned".encode()
    reply = await ask(name_server.address, RequestCode.UPDATE_NAMESRV_CONFIG, {}, body)
    assert reply.code == ResponseCode.NO_PERMISSION
    assert name_server.config == before


def test_no_key_that_may_be_changed_names_a_file_an_address_a_limit_or_a_secret() -> None:
    assert not [key for key in HOT_KEYS - HARMLESS if {word.lower() for word in WORD.findall(key)} & DANGEROUS]
    assert not (HOT_KEYS | SETTABLE_KEYS) & set(SecurityConfig.attributes_by_key())
    assert not (HOT_KEYS | SETTABLE_KEYS) & set(NetConfig.attributes_by_key())
    assert not (HOT_KEYS | SETTABLE_KEYS) & set(ReplicationConfig.attributes_by_key())


def test_every_key_that_sounds_like_a_secret_is_one() -> None:
    for config in (BrokerConfig, NameServerConfig, NetConfig, ReplicationConfig, SecurityConfig, StoreConfig):
        for one in fields(config):
            if any(word in one.name for word in ("password", "secret", "credential")):
                assert one.metadata.get("is_secret"), one.name
                assert not one.repr, one.name

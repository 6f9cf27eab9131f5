"""Settings that cannot be kept stop the start; every key of Apache's is obeyed, harmless or refused by a sentence."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cosmodrome.apache_keys import BROKER_HARMLESS, NAME_SERVER_HARMLESS, OLD_NAMES
from cosmodrome.config import (
    BrokerConfig,
    BrokerRole,
    NameServerConfig,
    NetConfig,
    ReplicationConfig,
    SecurityConfig,
    StoreConfig,
    check_keys,
    check_role,
    read_properties,
)
from cosmodrome.errors import ConfigError
from cosmodrome.promises import BROKER_PROMISES, NAME_SERVER_PROMISES
from cosmodrome.testing import cluster

BROKER = (BrokerConfig, StoreConfig, NetConfig, ReplicationConfig, SecurityConfig)
NAME_SERVER = (NameServerConfig, NetConfig, SecurityConfig)

MASTER = {"brokerClusterName": "DefaultCluster", "brokerName": "a", "brokerId": "0", "brokerRole": "ASYNC_MASTER"}
RETENTION = {"deleteWhen": "04", "fileReservedTime": "48", "flushDiskType": "ASYNC_FLUSH"}
SLAVE = {**MASTER, "brokerId": "1", "brokerRole": "SLAVE"}
QUORUM = {"totalReplicas": "2", "inSyncReplicas": "2", "minInSyncReplicas": "1", "enableAutoInSyncReplicas": "true"}
IN_CONTAINER = {
    **MASTER,
    **QUORUM,
    "brokerRole": "SYNC_MASTER",
    "haListenPort": "10912",
    "slaveReadEnable": "true",
    "brokerHeartbeatInterval": "1000",
    "brokerNotActiveTimeoutMillis": "5000",
    "sendHeartbeatTimeoutMillis": "1000",
    "enableSlaveActingMaster": "true",
}
CONTAINER = {"listenPort": "10811", "fetchNamesrvAddrByAddressServer": "false", "brokerConfigPaths": "/a:/b"}
UNDER_CONTROLLER = {**SLAVE, "brokerId": "-1", "enableControllerMode": "true", "controllerAddr": "h:9878"}
UNDER_CONTROLLER |= {"allAckInSyncStateSet": "true"}
CONTROLLER = {"controllerDLegerGroup": "g", "controllerDLegerPeers": "n0-h:1", "controllerDLegerSelfId": "n0"}


def refusal(properties: dict[str, str], *configs: type) -> str:
    with pytest.raises(ConfigError) as refused:
        check_keys(properties, *(configs or BROKER))
    return str(refused.value)


# --- what is asked for and cannot be kept


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("authenticationEnabled", "true", "every client would be let in"),
        ("authorizationEnabled", "TRUE", "every client would be let in"),
        ("authConfigPath", "/auth", "every client would be let in"),
        ("tls.server.certpath", "/pem", "does not know that key of TLS"),
        ("tlsServerCertPath", "/pem", "does not know that key of TLS"),
        ("totalReplicas", "2", "as many copies as inSyncReplicas says"),
        ("allAckInSyncStateSet", "true", "as many copies as inSyncReplicas says"),
        ("enableAutoInSyncReplicas", "true", "as many copies as inSyncReplicas says"),
        ("duplicationEnable", "true", "a master or a slave, never both"),
        ("enableControllerMode", "true", "no controller"),
        ("storeType", "defaultRocksDB", "in files below storePathRootDir"),
        ("messageStorePlugIn", "x.TieredMessageStore", "in files below storePathRootDir"),
        ("tieredStorageLevel", "FORCE", "in files below storePathRootDir"),
        ("enableCompaction", "true", "compacts no topics"),
        ("enableLmq", "true", "does not write or read that part"),
        ("metricsExporterType", "PROM", "a dashboard would stay empty"),
        ("rejectPullConsumerEnable", "true", "does not tell pull consumers"),
        ("supportActingMaster", "true", "cosmodrome namesrv -c FILE"),
    ],
)
def test_a_promise_that_cannot_be_kept_is_refused_with_its_reason_and_a_way_out(key: str, value: str, why: str) -> None:
    for sentence in (refusal({key: value}), _refused_by_the_config(key, value)):
        assert sentence.startswith(f"{key}={value} is refused: ")
        assert why in sentence
        assert "Remove the key" in sentence


def _refused_by_the_config(key: str, value: str) -> str:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig().with_properties({key: value})
    return str(refused.value)


def test_a_value_that_asks_for_nothing_is_accepted() -> None:
    off = {key: promise.off[0] for key, promise in BROKER_PROMISES.items() if promise.off}
    off |= {key: "" for key, promise in BROKER_PROMISES.items() if not promise.off}
    check_keys(off, *BROKER)
    assert BrokerConfig(broker_name="b").with_properties(off) == BrokerConfig(broker_name="b")
    check_keys({"aclEnable": " FALSE ", "storeType": "Default"}, *BROKER)
    off = {key: promise.off[0] if promise.off else "" for key, promise in NAME_SERVER_PROMISES.items()}
    check_keys(off, *NAME_SERVER)


def test_the_same_through_python_is_the_same() -> None:
    with pytest.raises(ConfigError, match="storeType=x is refused"):
        BrokerConfig().with_properties({"storeType": "x"})
    with pytest.raises(ConfigError, match="brokerId must be 0 for a master, 1 or more for a slave"):
        BrokerConfig().with_properties({"brokerId": "-1"})
    with pytest.raises(ConfigError, match="totalReplicas=2 is refused"), cluster(config={"totalReplicas": 2}):
        pass


@pytest.mark.parametrize("key", ["initAuthenticationUser", "tls.server.keypassword", "objectStoreSecretKey"])
def test_no_refusal_repeats_a_secret(key: str) -> None:
    told = refusal({key: "hunter2-hunter2"})
    assert told.startswith(f"{key}=… is refused")
    assert "hunter2" not in told


def test_every_mistake_of_a_file_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# mine\ntotalReplicas=2\nbrokerNme=b\nduplicationEnable=true\n", encoding="utf-8")
    lines = refusal(read_properties(path)).splitlines()
    assert [line.partition(" ")[0] for line in lines] == [f"{path}:2:", f"{path}:4:", f"{path}:3:"]
    assert lines[2].endswith(
        "unknown key brokerNme: neither Apache RocketMQ nor Cosmodrome has it; did you mean brokerName?"
    )


# --- the whole list


def test_no_key_is_both_harmless_and_a_promise() -> None:
    assert not BROKER_HARMLESS & BROKER_PROMISES.keys()
    assert not NAME_SERVER_HARMLESS & NAME_SERVER_PROMISES.keys()


@pytest.mark.parametrize("key", ["sendMessageThreadPoolNums", "serverWorkerThreads", "transientStorePoolEnable"])
def test_a_key_that_tunes_the_insides_of_apaches_broker_is_accepted_and_named(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        check_keys({"brokerName": "b", key: "8", "highSpeedMode": "true"}, *BROKER)
    assert [record.getMessage() for record in caplog.records] == [
        f"settings accepted without effect: {key}=8, highSpeedMode=true"
    ]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("brokerIp1", "brokerIP1"),
        ("listenport", "listenPort"),
        ("aclEnabled", "aclEnable"),
        ("namesrvAdr", "namesrvAddr"),
    ],
)
def test_a_typing_error_is_told_with_what_was_meant(typed: str, meant: str) -> None:
    assert refusal({typed: "1"}).endswith(f"has it; did you mean {meant}?")


def test_a_key_like_no_other_is_told_without_a_guess() -> None:
    assert refusal({"zzz": "1"}) == "unknown key zzz: neither Apache RocketMQ nor Cosmodrome has it"


# --- names of older versions


def test_old_names_are_obeyed() -> None:
    check_keys({"mapedFileSizeCommitLog": "1048576", "mapedFileSizeConsumeQueue": "300000"}, *BROKER)
    store = StoreConfig().with_properties({"mapedFileSizeCommitLog": "1048576", "mapedFileSizeConsumeQueue": "300000"})
    assert (store.mapped_file_size_commit_log, store.mapped_file_size_consume_queue) == (1_048_576, 300_000)
    assert not BrokerConfig().with_properties({"serverLoadBalancerEnabled": "false"}).server_load_balancer_enable


def test_an_old_name_beside_the_new_one_is_refused() -> None:
    old, new = "mapedFileSizeCommitLog", "mappedFileSizeCommitLog"
    assert refusal({old: "1", new: "2"}) == f"{old} is the old name of {new}, which is given too: remove {old}"


def test_a_key_that_no_later_version_has_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        check_keys({"checkTransactionMessageEnable": "false"}, *BROKER)
    assert "checkTransactionMessageEnable=false (brokers always ask producers about open transactions)" in caplog.text


def test_every_old_name_leads_to_a_key_that_is_known() -> None:
    ours = {key for config in BROKER for key in config.attributes_by_key()}
    assert set(OLD_NAMES.values()) <= ours | BROKER_HARMLESS | BROKER_PROMISES.keys()


def test_the_old_name_of_the_gap_of_slaves_is_obeyed() -> None:
    assert ReplicationConfig().with_properties({"haSlaveFallbehindMax": "7"}).ha_max_gap_not_in_sync == 7


# --- roles


@pytest.mark.parametrize(
    ("role", "broker_id", "why"),
    [
        (BrokerRole.SLAVE, 0, "brokerRole=SLAVE needs a brokerId of 1 or more"),
        (BrokerRole.ASYNC_MASTER, 1, "brokerId=1 is a slave's"),
        (BrokerRole.SYNC_MASTER, 2, "brokerId=2 is a slave's"),
    ],
)
def test_an_id_that_is_not_one_of_the_role_is_refused(role: BrokerRole, broker_id: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_role(BrokerConfig(broker_id=broker_id), ReplicationConfig(broker_role=role))


@pytest.mark.parametrize(("role", "broker_id"), [("SLAVE", 1), ("SLAVE", 7), ("ASYNC_MASTER", 0), ("SYNC_MASTER", 0)])
def test_an_id_of_the_role_is_taken(role: str, broker_id: int) -> None:
    check_role(BrokerConfig(broker_id=broker_id), ReplicationConfig().with_properties({"brokerRole": role}))


# --- the files that come with Apache's brokers, by the keys they set


@pytest.mark.parametrize("extra", [{}, {"brokerName": "broker-trace"}])
def test_a_master_without_slaves_starts(extra: dict[str, str]) -> None:
    """conf/broker.conf, 2m-noslave/*.properties and the masters of 2m-2s-async."""
    properties = {**MASTER, **RETENTION, **extra}
    check_keys(properties, *BROKER)
    assert BrokerConfig().with_properties(properties).broker_name == properties["brokerName"]


@pytest.mark.parametrize("properties", [{**MASTER, "brokerRole": "SYNC_MASTER"}, SLAVE])
def test_masters_and_slaves_of_a_pair_start(properties: dict[str, str]) -> None:
    """conf/2m-2s-sync/*.properties, and the slaves of 2m-2s-async."""
    check_keys({**properties, **RETENTION}, *BROKER)
    replication = ReplicationConfig().with_properties(properties)
    check_role(BrokerConfig().with_properties(properties), replication)
    assert replication.broker_role == properties["brokerRole"]


@pytest.mark.parametrize(
    ("properties", "refused"),
    [
        pytest.param(
            IN_CONTAINER,
            ["totalReplicas", "enableAutoInSyncReplicas"],
            id="broker in a container",
        ),
        pytest.param(CONTAINER, ["brokerConfigPaths"], id="container"),
        pytest.param(
            UNDER_CONTROLLER,
            ["enableControllerMode", "controllerAddr", "allAckInSyncStateSet"],
            id="broker of a controller",
        ),
        pytest.param(CONTROLLER, [*CONTROLLER], id="controller"),
    ],
)
def test_apaches_other_brokers_are_refused_for_what_they_ask(properties: dict[str, str], refused: list[str]) -> None:
    lines = refusal(properties).splitlines()
    assert sorted(line.partition("=")[0] for line in lines) == sorted(refused)
    assert all(" is refused: " in line for line in lines)


@pytest.mark.parametrize(
    ("properties", "refused"),
    [
        pytest.param({"clusterTest": "true", "supportActingMaster": "true"}, ["clusterTest"], id="cluster test"),
        pytest.param(
            {"listenPort": "9876", "enableControllerInNamesrv": "true", **CONTROLLER},
            ["enableControllerInNamesrv", *CONTROLLER],
            id="controller in the name server",
        ),
        pytest.param({"brokerRole": "SLAVE"}, ["brokerRole is a key of another program"], id="a broker's file"),
    ],
)
def test_apaches_name_servers_are_refused_for_what_they_ask(properties: dict[str, str], refused: list[str]) -> None:
    lines = refusal(properties, *NAME_SERVER).splitlines()
    assert all(any(line.startswith(start) for line in lines) for start in refused)
    assert len(lines) == len(refused)

"""The keys of a Raft group: what Apache's file says is taken, and what contradicts a group is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cosmodrome.config import (
    BadSetting,
    BrokerConfig,
    BrokerRole,
    RaftConfig,
    ReplicationConfig,
    SecurityConfig,
    StoreConfig,
    check_keys,
    check_raft,
)
from cosmodrome.errors import ConfigError

# conf/dledger/broker-n0.conf of Apache, without what every broker has.
APACHES = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "RaftNode00",
    "dLegerPeers": "n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913",
    "dLegerSelfId": "n1",
}


def test_apaches_file_is_understood() -> None:
    check_keys(APACHES, BrokerConfig, StoreConfig, RaftConfig)
    raft = RaftConfig().with_properties({**APACHES, "preferredLeaderId": "n2"})
    assert raft.members == {"n0": "127.0.0.1:40911", "n1": "127.0.0.1:40912", "n2": "127.0.0.1:40913"}
    assert (raft.broker_id, raft.preferred_leader) == (2, "n2")
    check_raft(raft, StoreConfig(), BrokerConfig(), ReplicationConfig(), SecurityConfig())


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("dLegerGroup", "", "needs dLegerGroup"),
        ("dLegerPeers", "", "needs dLegerPeers"),
        ("dLegerSelfId", "", "needs dLegerSelfId"),
        ("dLegerSelfId", "n7", "not among the members of dLegerPeers: n0, n1, n2"),
        ("preferredLeaderId", "n7", "not among the members of dLegerPeers"),
        ("dLegerPeers", "n1-127.0.0.1:1;a-127.0.0.1:2", "each id is n and a number"),
        ("dLegerPeers", "n1-127.0.0.1:1;n1-127.0.0.1:2", "twice"),
        ("dLegerPeers", "n0-127.0.0.1:1;n1-127.0.0.1:1", "twice"),
        ("dLegerPeers", "n1-127.0.0.1", "has no port"),
        ("storePathDLedgerCommitLog", "/a,/b", "Name one path"),
        ("enableDLegerCommitLog", "false", "in a Raft group only"),
    ],
)
def test_a_group_that_cannot_be_is_refused_with_its_key(key: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        RaftConfig().with_properties({**APACHES, key: value})


@pytest.mark.parametrize(
    ("key", "store", "broker", "replication", "security"),
    [
        ("brokerRole", {}, {}, {"broker_role": BrokerRole.SLAVE}, {}),
        ("brokerId", {}, {"broker_id": 1}, {}, {}),
        ("haListenPort", {}, {}, {"ha_listen_port": 10912}, {}),
        ("haMasterAddress", {}, {}, {"ha_master_address": "127.0.0.1:10912"}, {}),
        ("haFetchHistory", {}, {}, {"ha_fetch_history": True}, {}),
        ("haTlsEnable", {}, {}, {"ha_tls_enable": True}, {}),
        ("inSyncReplicas", {}, {}, {"in_sync_replicas": 2}, {}),
        ("minInSyncReplicas", {}, {}, {"min_in_sync_replicas": 2, "in_sync_replicas": 0}, {}),
        ("enableSlaveActingMaster", {}, {"enable_slave_acting_master": True}, {}, {}),
        ("enabledAppendPropCRC", {"enabled_append_prop_crc": True}, {}, {}, {}),
        ("storePathCommitLog", {"store_path_commit_log": "/logs"}, {}, {}, {}),
        ("aclEnable", {}, {}, {}, {"acl_enable": True}),
    ],
)
def test_what_contradicts_a_group_is_refused_by_name(
    key: str,
    store: dict[str, object],
    broker: dict[str, object],
    replication: dict[str, object],
    security: dict[str, object],
) -> None:
    raft = RaftConfig().with_properties(APACHES)
    configs = (
        replace(StoreConfig(), **store),  # type: ignore[arg-type]
        replace(BrokerConfig(), **broker),  # type: ignore[arg-type]
        replace(ReplicationConfig(), **replication),  # type: ignore[arg-type]
        replace(SecurityConfig(), **security),  # type: ignore[arg-type]
    )
    with pytest.raises(BadSetting, match=f"{key} is refused together with enableDLegerCommitLog=true") as refused:
        check_raft(raft, *configs)
    assert refused.value.key == key
    check_raft(RaftConfig(), *configs)

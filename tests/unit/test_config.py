"""Configs: Apache's keys and defaults, Apache's properties files, and clear words about what can't work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.config import (
    MIB,
    BrokerConfig,
    ClientConfig,
    FlushDiskType,
    NameServerConfig,
    NetConfig,
    StoreConfig,
    parse_addresses,
    parse_properties,
    read_properties,
    read_store_config,
)
from cosmodrome.errors import ConfigError


def test_defaults_are_apaches() -> None:
    store, broker, net = StoreConfig(), BrokerConfig(), NetConfig()
    assert store.mapped_file_size_commit_log == 1024 * MIB
    assert store.mapped_file_size_consume_queue == 6_000_000
    assert (store.max_message_size, store.flush_disk_type) == (4 * MIB, FlushDiskType.ASYNC_FLUSH)
    assert (broker.listen_port, broker.default_topic_queue_nums, broker.broker_cluster_name) == (
        10_911,
        8,
        "DefaultCluster",
    )
    assert (net.max_frame_bytes, net.idle_seconds, net.connect_timeout_ms) == (16 * MIB, 120, 3_000)
    assert NameServerConfig().listen_port == 9_876


# --- Apache's keys


def test_apaches_keys_set_our_fields() -> None:
    properties = {
        "brokerName": "east@b-1",
        "brokerIP1": "10.0.0.1",
        "listenPort": " 10921 ",
        "autoCreateTopicEnable": "FALSE",
        "flushDiskType": "SYNC_FLUSH",
        "serverChannelMaxIdleTimeSeconds": "60",
    }
    broker = BrokerConfig().with_properties(properties)
    assert (broker.broker_name, broker.broker_ip1, broker.listen_port) == ("east@b-1", "10.0.0.1", 10_921)
    assert broker.auto_create_topic_enable is False
    assert StoreConfig().with_properties(properties).flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert NetConfig().with_properties(properties).idle_seconds == 60
    assert ClientConfig().with_properties(properties) == ClientConfig()


def test_what_is_not_mentioned_stays() -> None:
    config = BrokerConfig(broker_name="b", region_id="eu")
    assert config.with_properties({"brokerName": "c"}) == BrokerConfig(broker_name="c", region_id="eu")


@pytest.mark.parametrize(
    ("config", "properties", "words"),
    [
        (BrokerConfig(), {"listenPort": "many"}, "listenPort=many: write a whole number"),
        (BrokerConfig(), {"listenPort": "65536"}, "listenPort must be 0 to 65535"),
        (BrokerConfig(), {"autoCreateTopicEnable": "yes"}, "autoCreateTopicEnable=yes: write true or false"),
        (BrokerConfig(), {"brokerIP1": "0.0.0.0"}, "brokerIP1 must be an IP address that clients reach"),
        (BrokerConfig(), {"brokerIP1": "broker-a.local"}, "brokerIP1 must be an IP address that clients reach"),
        (BrokerConfig(), {"brokerName": "a/b"}, "brokerName must be letters, digits"),
        (BrokerConfig(), {"brokerClusterName": ""}, "brokerClusterName must be letters, digits"),
        (BrokerConfig(), {"brokerId": "one"}, "brokerId=one: write a whole number"),
        (BrokerConfig(), {"defaultTopicQueueNums": "0"}, "defaultTopicQueueNums must be 1 to 65535"),
        (StoreConfig(), {"flushDiskType": "NEVER"}, "flushDiskType=NEVER: write one of ASYNC_FLUSH, SYNC_FLUSH"),
        (StoreConfig(), {"mappedFileSizeCommitLog": "1024"}, "mappedFileSizeCommitLog must be at least"),
        (StoreConfig(), {"maxMessageSize": str(16 * MIB)}, "maxMessageSize must be"),
        (StoreConfig(), {"maxHashSlotNum": "0"}, "maxHashSlotNum must be at least 1"),
        (StoreConfig(), {"maxIndexNum": "1"}, "maxIndexNum must be at least 2"),
        (StoreConfig(), {"mappedFileSizeConsumeQueue": "19"}, "mappedFileSizeConsumeQueue must be at least 20"),
        (NameServerConfig(), {"listenPort": "-1"}, "listenPort must be 0 to 65535"),
        (NetConfig(), {"serverChannelMaxIdleTimeSeconds": "0"}, "serverChannelMaxIdleTimeSeconds must be at least 1"),
    ],
)
def test_a_setting_that_cannot_work_is_named_with_what_would(
    config: Any, properties: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        config.with_properties(properties)
    assert words in str(refused.value)


# --- addresses


def test_delay_levels_are_times_in_their_order() -> None:
    assert StoreConfig().delays_ms[:3] == (1_000, 5_000, 10_000)
    assert (len(StoreConfig().delays_ms), StoreConfig().delays_ms[-1]) == (18, 7_200_000)
    config = StoreConfig().with_properties({"messageDelayLevel": " 2s  3m 4h 5d "})
    assert config.delays_ms == (2_000, 180_000, 14_400_000, 432_000_000)


@pytest.mark.parametrize("text", ["", "1", "1s,5s", "s", "1s 5x", "-1s", "1.5s", "1s5s"])
def test_what_is_no_list_of_delay_levels_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel must be times such as 1s"):
        StoreConfig(message_delay_level=text)


def test_addresses_are_separated_by_semicolons_or_commas() -> None:
    assert parse_addresses(" a:1 ; 10.0.0.1:9876,[::1]:80;") == ("a:1", "10.0.0.1:9876", "[::1]:80")
    assert parse_addresses("") == ()
    assert BrokerConfig(namesrv_addr="a:1;b:2").name_servers == ("a:1", "b:2")
    assert ClientConfig(namesrv="a:1").name_servers == ("a:1",)


def test_a_client_rests_between_its_rounds() -> None:
    with pytest.raises(ConfigError, match="persist_offset_interval_ms must be a whole number, at least 1"):
        ClientConfig(persist_offset_interval_ms=0)


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:0", "a:65536", "a:x", "a:-1", "a:1;b", "a:²"])
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address; write host:port"):
        parse_addresses(text)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("rocketmq://host", "leave out rocketmq://"),
        ("a:1;http://host:9876", "leave out http://"),
        ("host", "it has no port; name servers usually listen on 9876, brokers on 10911"),
        ("host:", "it has no port"),
        (":9876", "it has no host"),
        ("host:98760", "ports go from 1 to 65535, not to 98760"),
        ("host:name", "its port 'name' is not a number"),
        ("host:9876/", "nothing may follow the port"),
        ("a:1 b:2", "there is a space in it"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(text: str, mistake: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_addresses(text)
    assert str(refused.value).endswith(f"separated by ';': {mistake}")


# --- properties files


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1\nb = 2\r\nc:3\nd 4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("# comment\n! comment\n\n   \t\n  a=1", {"a": "1"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a = 1   ", {"a": "1"}),
        ("a=one \\\n    two", {"a": "one two"}),
        ("a=back\\\\\nb=2", {"a": "back\\", "b": "2"}),
        ("a\\=b=1\na\\ b=2", {"a=b": "1", "a b": "2"}),
        ("a=\\u00e4\\t\\n\\x", {"a": "ä\t\nx"}),
        ("path=C:\\\\store", {"path": "C:\\store"}),
        ("a=1 # no comment", {"a": "1 # no comment"}),
        ("# a comment ends with its line \\\na=1", {"a": "1"}),
        ("<!--\n  a licence = in XML\n-->\na=1", {"a": "1"}),
        ("<!-- one line -->\na=1", {"a": "1"}),
    ],
)
def test_properties_are_read_like_java_does(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties(text) == pairs


@given(st.text(st.sampled_from("ab=: \t\f\\#!\r\nu0\x0b\x1c\u2028\xa0"), max_size=40))
def test_any_text_is_a_properties_file(text: str) -> None:
    assert all(isinstance(key, str) for key in parse_properties(text))


@given(st.dictionaries(st.from_regex("[a-zA-Z0-9.]{1,8}", fullmatch=True), st.from_regex("[!-~]{0,8}", fullmatch=True)))
def test_plain_pairs_come_back(pairs: dict[str, str]) -> None:
    text = "\n".join(f"{key} = {value}".replace("\\", "\\\\") for key, value in pairs.items())
    assert parse_properties(text) == pairs


def test_a_file_is_read_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    with pytest.raises(ConfigError, match=r"cannot read .*broker\.conf"):
        read_properties(path)
    path.write_text("brokerName=b\n", encoding="utf-8")
    assert read_properties(path) == {"brokerName": "b"}
    path.write_bytes(b"a=\xff")
    with pytest.raises(ConfigError, match=r"cannot read .*broker\.conf"):
        read_properties(path)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"\xef\xbb\xbfbrokerName=b\r\n")
    assert read_properties(path) == {"brokerName": "b"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("listenPort=x", 1),
        ("# a\n\nlistenPort=x\n", 3),
        ("a=1\\\n  2\nlistenPort=x", 3),
        ("a=1\r\nlistenPort = x\r\n", 2),
    ],
)
def test_a_value_that_cannot_work_is_named_with_its_file_and_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(ConfigError) as refused:
        BrokerConfig().with_properties(read_properties(path))
    assert str(refused.value) == f"{path}:{line}: listenPort=x: write a whole number"


def test_a_range_that_is_left_is_named_with_its_line_and_in_the_files_own_spelling(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=b\nmapedFileSizeCommitLog=1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"broker\.conf:2: mappedFileSizeCommitLog must be at least"):
        StoreConfig().with_properties(read_properties(path))


def test_a_tool_takes_of_a_slaves_file_what_it_says_of_the_store(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerRole=SLAVE\nbrokerId=1\naclEnable=true\nstorePathCommitLog=/fast/log\n", encoding="utf-8")
    assert read_store_config(path).store_path_commit_log == "/fast/log"


def test_a_tool_refuses_a_mistyped_key_for_it_would_look_at_another_folder(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerId=0\nstorePathComitLog=/fast/log\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"broker\.conf:2: unknown key storePathComitLog.*storePathCommitLog\?"):
        read_store_config(path)

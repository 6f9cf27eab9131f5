"""Every default of every daemon, once, with its unit.

A config is a frozen dataclass, checked when made. `with_properties` lays Apache's properties over one: keys are the
attribute names in camelCase, or the alias a field declares. A key that asks for what this version cannot keep is
refused, and so is an unknown key; `docs/configuration.md` has the lists.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import logging
import re
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self, get_type_hints

from cosmodrome.apache_keys import BROKER_HARMLESS, NAME_SERVER_HARMLESS, OLD_NAMES, RETIRED
from cosmodrome.errors import ConfigError
from cosmodrome.model import RequestMode
from cosmodrome.numbers import MAX_LONG, MAX_PORT, parse_int, read_int, shown
from cosmodrome.promises import BROKER_PROMISES, NAME_SERVER_PROMISES, SECURITY_PROMISES, Promise, find_promise
from cosmodrome.properties_file import Properties, place
from cosmodrome.properties_file import parse_properties as parse_properties
from cosmodrome.properties_file import read_properties as read_properties

log = logging.getLogger(__name__)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

DEFAULT_NAMESRV_PORT = 9876
DEFAULT_BROKER_PORT = 10911
DEFAULT_CONSOLE_PORT = 8780

# Messages of a batch: the header of its answer names each, with up to 57 characters, and has 256 KiB.
MAX_BATCH = 4_500
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


class FlushDiskType(StrEnum):
    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(StrEnum):
    """The part that a broker has within the group of its name."""

    ASYNC_MASTER = "ASYNC_MASTER"  # answers a send without waiting for slaves
    SYNC_MASTER = "SYNC_MASTER"  # answers a send when enough slaves have the message
    SLAVE = "SLAVE"  # follows the master's log and takes no messages of its own


class TlsMode(StrEnum):
    """The connections that a server takes."""

    DISABLED = "disabled"  # plain ones
    PERMISSIVE = "permissive"  # both
    ENFORCING = "enforcing"  # those with TLS


class ClientAuth(StrEnum):
    """The certificate that a server asks of its clients."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


class TlsCheck(StrEnum):
    """What a server's certificate must be."""

    FULL = "full"  # known, and made for the address it is reached at
    CA = "ca"  # known
    NONE = "none"


def alias(name: str, default: Any) -> Any:
    """A field whose Apache key is not simply its name in camelCase."""
    return field(default=default, metadata={"alias": name})


def secret(name: str | None = None) -> Any:
    """A text that is shown to nobody: not in a repr, not in an error, not over the wire."""
    return field(default="", repr=False, metadata={"is_secret": True, "alias": name})


class BadSetting(ConfigError):
    """A value that its key does not take."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


class _FromProperties:
    """Shared by the configs below: building one from Apache's keys."""

    _promises: ClassVar[Mapping[str, Promise]] = {}

    @classmethod
    def attributes_by_key(cls) -> dict[str, str]:
        """Apache's key → our attribute."""
        return {
            f.metadata.get("alias") or _camel_case(f.name): f.name
            for f in dataclasses.fields(cls)  # type: ignore[arg-type]
        }

    @classmethod
    def values_from(cls, properties: Mapping[str, str]) -> dict[str, Any]:
        """The attributes that `properties` set, converted to their types; other keys are left to other configs."""
        types = get_type_hints(cls)
        attributes = cls.attributes_by_key()
        return {
            attributes[name]: _convert(name, text, types[attributes[name]])
            for key, text in properties.items()
            if (name := OLD_NAMES.get(key, key)) in attributes
        }

    def with_properties(self, properties: Mapping[str, str]) -> Self:
        """Return a copy with the values of Apache's keys; ConfigError names the line of a value that cannot work."""
        _raise_all(_broken_promises(properties, self._promises))
        try:
            return dataclasses.replace(self, **self.values_from(properties))  # type: ignore[type-var]
        except BadSetting as error:
            spelled = next((key for key in properties if OLD_NAMES.get(key, key) == error.key), error.key)
            raise BadSetting(error.key, place(properties, spelled) + str(error)) from error


@dataclass(frozen=True, slots=True)
class NetConfig(_FromProperties):
    """Limits of one listening or calling side."""

    max_frame_bytes: int = 16 * MIB
    idle_seconds: int = alias("serverChannelMaxIdleTimeSeconds", 120)
    connect_timeout_ms: int = 3_000
    # A peer that stops reading: its requests are paused above the high-water mark, and it is dropped when the
    # buffer has not drained below it for this long, or when late answers push it past the hard limit.
    write_high_water_bytes: int = 1 * MIB
    write_limit_bytes: int = 64 * MIB
    stalled_peer_ms: int = 30_000
    max_in_flight: int = 65_535
    max_handlers_per_connection: int = 4_096
    reconnect_initial_ms: int = 50
    reconnect_max_ms: int = 5_000
    shutdown_grace_ms: int = 5_000
    # Sums over all connections of a daemon; keys of our own. docs/durability.md, "Hostile peers", tells about them.
    max_connections: int = 50_000
    max_connections_per_host: int = 20_000
    max_unfinished_bytes: int = 256 * MIB  # of frames that are not whole
    loop_busy_warning_ms: int = 200  # a request that takes longer is logged
    frame_timeout_ms: int = 60_000  # from the first byte of a frame to the last
    max_unsent_bytes: int = 512 * MIB  # for peers that do not read
    max_waiting_bytes: int = 512 * MIB  # of requests that wait for a disk or their turn

    def __post_init__(self) -> None:
        _require(self.idle_seconds > 0, "serverChannelMaxIdleTimeSeconds", "at least 1")
        for name in ("max_connections", "max_connections_per_host", "frame_timeout_ms", "loop_busy_warning_ms"):
            _require(getattr(self, name) > 0, _camel_case(name), "at least 1")
        _require(64 * KIB <= self.max_frame_bytes <= 64 * MIB, "maxFrameBytes", "65536 bytes to 64 MiB")
        for name in ("max_unfinished_bytes", "max_waiting_bytes"):
            least = self.max_frame_bytes
            _require(getattr(self, name) >= least, _camel_case(name), f"at least maxFrameBytes, which is {least}")
        least = self.write_limit_bytes
        _require(self.max_unsent_bytes >= least, "maxUnsentBytes", f"at least writeLimitBytes, which is {least}")


@dataclass(frozen=True, slots=True)
class StoreConfig(_FromProperties):
    """The message store; names and defaults are Apache's MessageStoreConfig."""

    store_path_root_dir: str = "store"
    # Parts that lie elsewhere than below the root; empty: below it. Apache 4.9 and 5 obey the first only.
    store_path_commit_log: str = ""
    store_path_consume_queue: str = ""
    store_path_index: str = ""
    store_checkpoint: str = ""
    abort_file: str = ""
    read_only_commit_log_store_paths: str = ""
    store_file_mode: str = "640"  # a key of our own: the mode of new files, in octal; folders add the right to enter
    mapped_file_size_commit_log: int = 1 * GIB
    mapped_file_size_consume_queue: int = 300_000 * 20
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    max_message_size: int = 4 * MIB
    # A checksum over each whole record, among its properties: 20 bytes more, which Java's clients show to their users.
    enabled_append_prop_crc: bool = alias("enabledAppendPropCRC", False)
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    flush_consume_queue_thorough_interval: int = 60_000
    sync_flush_timeout: int = 5_000
    os_page_cache_busy_time_out_mills: int = 1_000
    max_transfer_bytes_on_message_in_memory: int = 256 * KIB
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 * KIB
    max_transfer_count_on_message_in_disk: int = 8
    max_filter_message_size: int = 16_000
    access_message_in_memory_max_ratio: int = 40
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    flush_delay_offset_interval: int = 10_000
    # Delivery at any time. Apache allows 3 days unless told otherwise; we allow 40.
    timer_wheel_enable: bool = True
    timer_max_delay_sec: int = 40 * 86_400
    timer_roll_window_slot: int = 2 * 86_400
    timer_flush_interval_ms: int = 1_000
    timer_congest_num_each_slot: int = 2**31 - 1
    mapped_file_size_timer_log: int = 100 * MIB
    # Looking for rot; keys of our own. Every record is read again within the interval, 0: never.
    scrub_interval_hours: int = 168
    scrub_mebibytes_per_second: int = 8
    # Retention. Ratios are percent of the disk.
    delete_when: str = "04"
    file_reserved_time: int = 72
    clean_resource_interval: int = 10_000
    delete_file_batch_max: int = 10
    delete_commit_log_files_interval: int = 100
    delete_consume_queue_files_interval: int = 100
    redelete_hanged_file_interval: int = 120_000
    disk_max_used_space_ratio: int = 75
    disk_space_clean_forcibly_ratio: int = 85
    disk_space_warning_level_ratio: int = 90
    clean_file_forcibly_enable: bool = True

    def __post_init__(self) -> None:
        _require(not _PATH_SPLITTER.search(self.store_path_commit_log), "storePathCommitLog", _ONE_FOLDER)
        _require(not self.read_only_commit_log_store_paths.strip(), "readOnlyCommitLogStorePaths", _NO_FOLDERS)
        _require(bool(_FILE_MODE.fullmatch(self.store_file_mode)), "storeFileMode", _FILE_MODES)
        _require(self.mapped_file_size_commit_log >= 64 * KIB, "mappedFileSizeCommitLog", "at least 65536 bytes")
        _require(self.mapped_file_size_consume_queue >= 20, "mappedFileSizeConsumeQueue", "at least 20 bytes")
        _require(self.max_hash_slot_num > 0, "maxHashSlotNum", "at least 1")
        _require(self.max_index_num > 1, "maxIndexNum", "at least 2")
        _require(0 < self.max_message_size <= 15 * MIB, "maxMessageSize", "1 byte to 15 MiB")
        _require(_are_delays(self.message_delay_level), "messageDelayLevel", "times such as 1s 10m 2h, one per level")
        _require(self.flush_delay_offset_interval > 0, "flushDelayOffsetInterval", "at least 1 ms")
        _require(self.timer_max_delay_sec > 0, "timerMaxDelaySec", "at least 1 second")
        _require(self.timer_roll_window_slot >= 2, "timerRollWindowSlot", "at least 2 seconds")
        _require(self.timer_flush_interval_ms > 0, "timerFlushIntervalMs", "at least 1 ms")
        _require(self.timer_congest_num_each_slot > 0, "timerCongestNumEachSlot", "at least 1")
        _require(self.mapped_file_size_timer_log >= 4 * KIB, "mappedFileSizeTimerLog", "at least 4096 bytes")
        _require(0 <= self.scrub_interval_hours <= 87_600, "scrubIntervalHours", "0 to 87600 hours")
        _require(0 < self.scrub_mebibytes_per_second <= 1_024, "scrubMebibytesPerSecond", "1 to 1024 MiB/s")
        _require(_are_hours(self.delete_when), "deleteWhen", "hours of the day (00 to 23), separated by ;")
        _require(self.file_reserved_time > 0, "fileReservedTime", "at least 1 hour")
        _require(self.clean_resource_interval > 0, "cleanResourceInterval", "at least 1 ms")
        _require(self.delete_file_batch_max > 0, "deleteFileBatchMax", "at least 1")
        _require(self.os_page_cache_busy_time_out_mills > 0, "osPageCacheBusyTimeOutMills", "at least 1 ms")
        for name in ("disk_max_used_space_ratio", "disk_space_clean_forcibly_ratio", "disk_space_warning_level_ratio"):
            _require(0 < getattr(self, name) <= 100, _camel_case(name), "1 to 100 percent")

    @property
    def file_mode(self) -> int:
        return int(self.store_file_mode, 8)

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """How long a message of delay level 1, 2, … waits."""
        return parse_delays(self.message_delay_level)

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of the day, in local time, at which expired files go."""
        return frozenset(read_int(hour.strip()) for hour in self.delete_when.split(";") if hour.strip())


@dataclass(frozen=True, slots=True)
class BrokerConfig(_FromProperties):
    """One broker; names and defaults are Apache's BrokerConfig."""

    _promises: ClassVar = BROKER_PROMISES
    broker_name: str = field(default_factory=socket.gethostname)
    broker_cluster_name: str = "DefaultCluster"
    broker_id: int = 0
    broker_ip1: str = alias("brokerIP1", "")
    broker_ip2: str = alias("brokerIP2", "")  # where slaves find this master; empty: where clients do
    bind_address: str = "127.0.0.1"
    listen_port: int = DEFAULT_BROKER_PORT
    namesrv_addr: str = ""
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    broker_permission: int = 6
    auto_create_topic_enable: bool = True
    default_topic_queue_nums: int = 8
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    long_polling_enable: bool = True
    vip_listener_enable: bool = True  # a key of our own: Apache's brokers always have it
    short_polling_time_mills: int = 1_000
    notify_consumer_ids_changed_enable: bool = True
    flush_consumer_offset_interval: int = 5_000
    register_name_server_period: int = 30_000
    register_broker_timeout_mills: int = 24_000
    channel_expired_timeout: int = 120_000
    slave_read_enable: bool = False
    # Bounds of what peers may ask for; keys of our own. docs/durability.md, "Hostile peers", says what each prevents.
    max_request_body_size: int = 8 * MIB  # of requests that bring no message
    max_request_body_values: int = 300_000
    max_messages_per_batch: int = MAX_BATCH
    max_keys_per_message: int = 1_000
    max_groups_per_connection: int = 4_096
    max_group_memberships: int = 1_000_000  # of all connections together
    max_subscriptions_per_group: int = 4_096
    max_topics: int = 40_000
    max_subscription_groups: int = 20_000
    max_consumer_offsets: int = 1_000_000  # one for each queue of each group
    max_request_modes: int = 100_000
    max_queue_locks: int = 200_000
    max_pop_orders: int = 20_000  # queues popped in order
    max_queues_in_stats: int = 100_000  # in one answer
    max_filter_characters: int = 4 * MIB  # of all SQL92 expressions of all groups
    max_pull_hold: int = alias("maxPullHold", 100_000)
    max_pull_hold_per_queue: int = 10_000
    store_reply_message_enable: bool = True
    use_server_side_reset_offset: bool = True  # else consumers are told to reset their offsets themselves
    # How long a request may wait for its turn before it is turned away, in ms, by its kind.
    broker_fast_failure_enable: bool = True
    wait_time_mills_in_send_queue: int = 200
    wait_time_mills_in_pull_queue: int = 5_000
    wait_time_mills_in_lite_pull_queue: int = 5_000
    wait_time_mills_in_heartbeat_queue: int = 31_000
    wait_time_mills_in_transaction_queue: int = 3_000
    wait_time_mills_in_ack_queue: int = 3_000
    wait_time_mills_in_admin_broker_queue: int = 5_000
    send_thread_pool_queue_capacity: int = 10_000  # sends that wait for the disk
    enable_property_filter: bool = True  # SQL92 filters; Apache's brokers refuse them unless told otherwise
    filter_support_retry: bool = False  # SQL92 filters for messages that come again, too
    recall_message_enable: bool = False
    allow_recall_when_broker_not_writeable: bool = True
    reject_transaction_message: bool = False
    transaction_time_out: int = 6_000
    transaction_check_max: int = 15
    transaction_check_interval: int = 30_000
    # Pop consumption
    revive_queue_num: int = 8
    revive_interval: int = 1_000
    pop_polling_size: int = 1_024
    max_pop_polling_size: int = 100_000
    pop_from_retry_probability: int = 20  # percent
    enable_retry_topic_v2: bool = False
    retrieve_message_from_pop_retry_topic_v1: bool = True
    pop_response_return_actual_retry_topic: bool = False
    server_load_balancer_enable: bool = True
    default_message_request_mode: RequestMode = RequestMode.PULL
    default_pop_share_queue_num: int = -1
    # A slave that acts as its master while that is away
    enable_slave_acting_master: bool = False
    enable_remote_escape: bool = False  # what it delivers goes to another master; else it delivers nothing
    broker_heartbeat_interval: int = 1_000
    send_heartbeat_timeout_millis: int = 1_000
    broker_not_active_timeout_millis: int = 10_000  # silence after which name servers forget a broker
    sync_broker_member_group_period: int = 1_000
    skip_pre_online: bool = False  # a master serves at once and takes nothing back from the slave that acted for it
    compatible_with_old_name_srv: bool = True

    def __post_init__(self) -> None:
        _require(bool(_BROKER_NAME.fullmatch(self.broker_name)), "brokerName", "letters, digits and . _ @ -")
        _require(bool(_NAME.fullmatch(self.broker_cluster_name)), "brokerClusterName", "letters, digits and . _ -")
        _require(0 <= self.listen_port <= 65_535, "listenPort", "0 to 65535")
        _require(0 <= self.broker_id <= MAX_LONG, "brokerId", "0 for a master, 1 or more for a slave")
        _require(_is_reachable(self.broker_ip1), "brokerIP1", "an IP address that clients reach, such as 10.0.0.1")
        _require(_is_reachable(self.broker_ip2), "brokerIP2", "an IP address that slaves reach, such as 10.0.0.1")
        _require(0 < self.default_topic_queue_nums <= 65_535, "defaultTopicQueueNums", "1 to 65535")
        for name in (one.name for one in dataclasses.fields(self) if one.name.startswith("wait_time_mills_in_")):
            _require(getattr(self, name) > 0, _camel_case(name), "at least 1 ms")
        _require(0 < self.max_messages_per_batch <= MAX_BATCH, "maxMessagesPerBatch", f"1 to {MAX_BATCH}")
        for name in _BROKER_BOUNDS:
            _require(getattr(self, name) > 0, _camel_case(name), "at least 1")
        _require(self.send_thread_pool_queue_capacity > 0, "sendThreadPoolQueueCapacity", "at least 1")
        _require(self.transaction_time_out >= 0, "transactionTimeOut", "0 ms or more")
        _require(self.transaction_check_max > 0, "transactionCheckMax", "at least 1")
        _require(self.transaction_check_interval > 0, "transactionCheckInterval", "at least 1 ms")
        _require(0 < self.revive_queue_num < 999, "reviveQueueNum", "1 to 998")
        _require(self.revive_interval > 0, "reviveInterval", "at least 1 ms")
        for name in _ACTING_TIMES:
            _require(getattr(self, name) > 0, _camel_case(name), "at least 1 ms")
        _require(
            not self.enable_slave_acting_master
            or self.broker_not_active_timeout_millis > self.broker_heartbeat_interval,
            "brokerNotActiveTimeoutMillis",
            f"more than brokerHeartbeatInterval, which is {self.broker_heartbeat_interval}: else name servers forget a "
            "broker that lives",
        )
        _require(
            self.enable_slave_acting_master or not self.enable_remote_escape,
            "enableRemoteEscape",
            "false, or enableSlaveActingMaster=true beside it: only a slave that acts as its master delivers for it",
        )

    @property
    def name_servers(self) -> tuple[str, ...]:
        return parse_addresses(self.namesrv_addr)


@dataclass(frozen=True, slots=True)
class ReplicationConfig(_FromProperties):
    """Copies of the log on other brokers; names are those of Apache's MessageStoreConfig."""

    _promises: ClassVar = BROKER_PROMISES
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    ha_listen_port: int = -1  # 0: any free port; -1: the port above listenPort, as Apache 4 has it
    ha_master_address: str = ""  # empty: the address that the name server tells
    ha_allowed_addresses: str = ""  # a key of our own: addresses that may copy the log; patterns as in plain_acl.yml
    ha_tls_enable: bool = False  # a key of our own: a slave speaks TLS with its master's port for slaves
    ha_send_heartbeat_interval: int = 5_000
    ha_housekeeping_interval: int = 20_000  # silence after which a connection is closed
    ha_transfer_batch_size: int = 32 * KIB
    ha_max_gap_not_in_sync: int = 256 * MIB  # bytes that a slave may be behind and still count as in sync
    ha_flow_control_enable: bool = False
    max_ha_transfer_byte_in_second: int = 100 * MIB
    # A key of our own: an empty slave fetches the master's whole log, not only its last file.
    ha_fetch_history: bool = False
    offset_check_in_slave: bool = False  # a slave tells consumers that their offset is none of the queue's
    slave_timeout: int = 3_000  # how long a send waits for slaves
    # Copies that a SYNC_MASTER waits for, its own included. 0: two. Apache 5 counts 1, which waits for none.
    in_sync_replicas: int = 0
    min_in_sync_replicas: int = 1  # with fewer copies in sync, a SYNC_MASTER refuses messages

    def __post_init__(self) -> None:
        _require(-1 <= self.ha_listen_port <= 65_535, "haListenPort", "-1 to 65535")
        if self.ha_master_address:
            parse_addresses(self.ha_master_address)
        for name in ("ha_send_heartbeat_interval", "ha_housekeeping_interval", "slave_timeout"):
            _require(getattr(self, name) > 0, _camel_case(name), "at least 1 ms")
        _require(64 <= self.ha_transfer_batch_size <= 16 * MIB, "haTransferBatchSize", "64 bytes to 16 MiB")
        _require(self.ha_max_gap_not_in_sync > 0, "haMaxGapNotInSync", "at least 1 byte")
        _require(self.max_ha_transfer_byte_in_second > 0, "maxHaTransferByteInSecond", "at least 1 byte")
        _require(0 <= self.in_sync_replicas <= MAX_REPLICAS, "inSyncReplicas", f"0 to {MAX_REPLICAS}")
        _require(0 < self.min_in_sync_replicas <= MAX_REPLICAS, "minInSyncReplicas", f"1 to {MAX_REPLICAS}")
        least = self.min_in_sync_replicas
        _require(
            self.copies >= least or self.broker_role is not BrokerRole.SYNC_MASTER,
            "inSyncReplicas",
            f"at least minInSyncReplicas, which is {least}",
        )

    @property
    def copies(self) -> int:
        """How many brokers, this one included, must have a message before a SYNC_MASTER answers."""
        return self.in_sync_replicas or 2

    @property
    def is_slave(self) -> bool:
        return self.broker_role is BrokerRole.SLAVE


@dataclass(frozen=True, slots=True)
class RaftConfig(_FromProperties):
    """A broker's place in a Raft group; names are those of Apache's MessageStoreConfig."""

    _promises: ClassVar = BROKER_PROMISES
    is_enabled: bool = alias("enableDLegerCommitLog", False)
    group: str = alias("dLegerGroup", "")
    peers: str = alias("dLegerPeers", "")  # n0-host:port;n1-host:port;n2-host:port
    self_id: str = alias("dLegerSelfId", "")
    preferred_leader: str = alias("preferredLeaderId", "")
    store_path: str = alias("storePathDLedgerCommitLog", "")  # empty: storePathRootDir

    def __post_init__(self) -> None:
        if not self.is_enabled:
            given = {"dLegerGroup": self.group, "dLegerPeers": self.peers, "dLegerSelfId": self.self_id}
            given |= {"preferredLeaderId": self.preferred_leader, "storePathDLedgerCommitLog": self.store_path}
            for key, value in given.items():
                if value:
                    raise BadSetting(
                        key,
                        f"{key}={value} is refused: it has a meaning in a Raft group only. Set "
                        f"enableDLegerCommitLog=true, or remove {key}",
                    )
            return
        for key, value in {"dLegerGroup": self.group, "dLegerPeers": self.peers, "dLegerSelfId": self.self_id}.items():
            if not value:
                raise BadSetting(
                    "enableDLegerCommitLog", f"enableDLegerCommitLog=true needs {key}: see docs/raft.md for an example"
                )
        members = self.members
        for key, value in {"dLegerSelfId": self.self_id, "preferredLeaderId": self.preferred_leader}.items():
            if value and value not in members:
                raise BadSetting(key, f"{key}={value} is not among the members of dLegerPeers: {', '.join(members)}")
        if "," in self.store_path:
            raise BadSetting(
                "storePathDLedgerCommitLog",
                f"storePathDLedgerCommitLog={self.store_path} is refused: this version keeps the log of a group in one "
                "folder. Name one path",
            )

    @property
    def members(self) -> dict[str, str]:
        """Each member's id and address. BadSetting if dLegerPeers names none, or not all are clear."""
        members: dict[str, str] = {}
        for peer in filter(None, (part.strip() for part in self.peers.split(";"))):
            member, dash, address = peer.partition("-")
            if not dash or not _MEMBER.fullmatch(member):
                raise BadSetting(
                    "dLegerPeers",
                    f"dLegerPeers has the member {peer!r}: write n0-host:port;n1-host:port;n2-host:port, where each id "
                    "is n and a number",
                )
            parse_addresses(address)
            if member in members or address in members.values():
                raise BadSetting("dLegerPeers", f"dLegerPeers names {peer} twice: each member has an id and an address")
            members[member] = address
        return members

    @property
    def broker_id(self) -> int:
        """The id of this broker while another member leads; Apache's rule, too."""
        return read_int(self.self_id[1:]) + 1


_MEMBER = re.compile(r"n[0-9]{1,9}")


def check_raft(
    raft: RaftConfig,
    store: StoreConfig,
    config: BrokerConfig,
    replication: ReplicationConfig,
    security: SecurityConfig,
) -> None:
    """Refuse what contradicts a Raft group, which chooses its master itself and keeps its own log."""
    if not raft.is_enabled:
        return
    usual, plain = ReplicationConfig(), BrokerConfig()
    refused = {
        "brokerRole": (replication.is_slave, "the members of a group elect their master"),
        "brokerId": (
            config.broker_id not in (0, -1),
            "the master of a group has 0, and the others follow dLegerSelfId",
        ),
        "haListenPort": (replication.ha_listen_port != usual.ha_listen_port, "a group copies its log by itself"),
        "haMasterAddress": (replication.ha_master_address != "", "a group elects its master"),
        "haFetchHistory": (replication.ha_fetch_history, "a group copies its whole log by itself"),
        "haTlsEnable": (replication.ha_tls_enable, "members of this version speak to each other in the clear"),
        "inSyncReplicas": (replication.in_sync_replicas != usual.in_sync_replicas, "a group waits for its majority"),
        "minInSyncReplicas": (replication.min_in_sync_replicas != 1, "a group waits for its majority"),
        "enableSlaveActingMaster": (
            config.enable_slave_acting_master != plain.enable_slave_acting_master,
            "a group elects another master when one is away",
        ),
        "enabledAppendPropCRC": (store.enabled_append_prop_crc, "entries of a group have a checksum of their own"),
        "aclEnable": (security.acl_enable, "members of this version do not check who speaks to their port"),
        "storePathCommitLog": (
            store.store_path_commit_log != "",
            "the log of a group lies in storePathDLedgerCommitLog",
        ),
    }
    for key, (is_given, why) in refused.items():
        if is_given:
            raise BadSetting(key, f"{key} is refused together with enableDLegerCommitLog=true: {why}. Remove {key}")


def check_role(config: BrokerConfig, replication: ReplicationConfig) -> None:
    """Refuse a broker's id that is not one of its role: the master of a name has 0, its slaves have 1 and more."""
    role, broker_id = replication.broker_role, config.broker_id
    if role is BrokerRole.SLAVE and broker_id == 0:
        raise BadSetting(
            "brokerId",
            "brokerRole=SLAVE needs a brokerId of 1 or more: 0 is the master's. Set brokerId=1, and another number for "
            f"each further slave of {config.broker_name}",
        )
    if role is not BrokerRole.SLAVE and broker_id != 0:
        raise BadSetting(
            "brokerId",
            f"brokerId={broker_id} is a slave's: the master of a name has 0. Set brokerRole=SLAVE, or remove brokerId",
        )


MAX_REPLICAS = 64


@dataclass(frozen=True, slots=True)
class NameServerConfig(_FromProperties):
    """The name server; names and defaults are Apache's NamesrvConfig."""

    _promises: ClassVar = NAME_SERVER_PROMISES
    bind_address: str = "127.0.0.1"
    listen_port: int = DEFAULT_NAMESRV_PORT
    kv_config_path: str = ""  # without it KV settings live as long as the process; `cosmodrome namesrv` has a default
    scan_not_active_broker_interval: int = 10_000
    broker_silent_ms: int = 120_000
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
    support_acting_master: bool = False  # routes name a slave in place of its master while that is away
    notify_min_broker_id_changed: bool = False  # brokers of a name are told when its smallest id changes
    config_black_list: str = ""  # keys that cannot be changed over the wire, separated by ;
    # Bounds of what peers may send; keys of our own. Sizes are in bytes.
    kv_config_max_entries: int = 100_000
    kv_config_max_value_size: int = 64 * KIB
    kv_config_max_size: int = 8 * MIB  # of all keys and values together
    max_request_body_size: int = 16 * MIB  # of registrations
    max_request_body_values: int = 500_000  # of a registration; a topic is ten, or more with attributes

    def __post_init__(self) -> None:
        _require(0 <= self.listen_port <= 65_535, "listenPort", "0 to 65535")
        _require(self.scan_not_active_broker_interval > 0, "scanNotActiveBrokerInterval", "at least 1 ms")
        _require(self.broker_silent_ms > 0, "brokerSilentMs", "at least 1 ms")
        _require(0 < self.kv_config_max_entries <= 1_000_000, "kvConfigMaxEntries", "1 to 1000000")
        _require(0 < self.kv_config_max_value_size <= 128 * KIB, "kvConfigMaxValueSize", "1 to 131072 bytes")
        _require(0 < self.kv_config_max_size <= 8 * MIB, "kvConfigMaxSize", "1 to 8388608 bytes")  # it fits a frame
        _require(0 < self.max_request_body_size <= 16 * MIB, "maxRequestBodySize", "1 to 16777216 bytes")
        _require(0 < self.max_request_body_values <= 10_000_000, "maxRequestBodyValues", "1 to 10000000")


@dataclass(frozen=True, slots=True)
class SecurityConfig(_FromProperties):
    """The clients that are let in, by brokers and name servers alike. Nothing of it can be changed while they run."""

    _promises: ClassVar = SECURITY_PROMISES
    acl_enable: bool = False
    rocketmq_home: str = ""  # the folder above conf/plain_acl.yml and conf/acl; empty: as ROCKETMQ_HOME says
    acl_file: str = ""  # a key of our own: the file of accounts, in place of conf/plain_acl.yml
    # The account with which a broker or name server asks others: {"accessKey": "…", "secretKey": "…"}
    inner_client_authentication_credentials: str = secret()
    max_failed_authentications_per_minute: int = 300  # of one address, before its connections are closed
    # TLS of the ports. Without a certificate one is made in memory, unless tls.test.mode.enable=false.
    tls_server_mode: TlsMode = field(default=TlsMode.PERMISSIVE, metadata={"alias": "tls.server.mode"})
    tls_test_mode_enable: bool = alias("tls.test.mode.enable", True)
    tls_config_file: str = alias("tls.config.file", "")  # a properties file with the keys that begin with tls.
    tls_server_cert_path: str = alias("tls.server.certPath", "")
    tls_server_key_path: str = alias("tls.server.keyPath", "")
    tls_server_key_password: str = secret("tls.server.keyPassword")
    tls_server_need_client_auth: ClientAuth = field(
        default=ClientAuth.NONE, metadata={"alias": "tls.server.need.client.auth"}
    )
    tls_server_auth_client: bool = alias("tls.server.authClient", False)
    tls_server_trust_cert_path: str = alias("tls.server.trustCertPath", "")
    # TLS of the daemon's own calls, to name servers and other brokers.
    tls_enable: bool = alias("tls.enable", False)
    use_tls: bool = alias("useTLS", False)  # the same, by another name
    tls_client_auth_server: bool = alias("tls.client.authServer", False)
    tls_client_trust_cert_path: str = alias("tls.client.trustCertPath", "")
    tls_client_cert_path: str = alias("tls.client.certPath", "")
    tls_client_key_path: str = alias("tls.client.keyPath", "")
    tls_client_key_password: str = secret("tls.client.keyPassword")

    @property
    def calls_use_tls(self) -> bool:
        return self.tls_enable or self.use_tls

    @classmethod
    def values_from(cls, properties: Mapping[str, str]) -> dict[str, Any]:
        """As of any config; those of TLS also from the file that tls.config.file names, which win as with Apache."""
        values = super(SecurityConfig, cls).values_from(properties)
        if not (path := values.get("tls_config_file")):
            return values
        of_the_file = read_properties(Path(path))
        known = {key for key in cls.attributes_by_key() if key.startswith("tls.") and key != "tls.config.file"}
        if strange := [place(of_the_file, key) + f"{key} is no key of TLS" for key in of_the_file if key not in known]:
            raise ConfigError("\n".join(strange))
        return values | super(SecurityConfig, cls).values_from(of_the_file)

    def _check_tls(self) -> None:
        for side in ("server", "client"):
            certificate, key = (getattr(self, f"tls_{side}_{part}_path") for part in ("cert", "key"))
            _require(bool(certificate or not key), f"tls.{side}.keyPath", f"given together with tls.{side}.certPath")
            _require(bool(key or not certificate), f"tls.{side}.certPath", f"given together with tls.{side}.keyPath")
        asks = self.tls_server_need_client_auth is not ClientAuth.NONE
        trusts, path = bool(self.tls_server_trust_cert_path), "tls.server.trustCertPath"
        _require(
            trusts or not asks, path, "the CA of your clients if tls.server.need.client.auth asks for certificates"
        )
        _require(
            asks or not self.tls_server_auth_client,
            "tls.server.authClient",
            "false, or tls.server.need.client.auth=require beside it: else no client is asked for a certificate",
        )
        _require(
            self.tls_server_mode is not TlsMode.ENFORCING
            or self.tls_test_mode_enable
            or bool(self.tls_server_cert_path),
            "tls.server.certPath",
            "a certificate if tls.server.mode=enforcing and tls.test.mode.enable=false",
        )
        for key in ("cert", "trust_cert"):
            given = getattr(self, f"tls_client_{key}_path")
            _require(
                self.calls_use_tls or not given,
                f"tls.client.{_camel_case(key)}Path",
                "given together with tls.enable=true: without it the daemon's own calls are plain",
            )

    def __post_init__(self) -> None:
        self._check_tls()
        least = self.max_failed_authentications_per_minute
        _require(least > 0, "maxFailedAuthenticationsPerMinute", "at least 1")
        _require(self.acl_enable or not self.acl_file, "aclFile", "given together with aclEnable=true")


_OF_A_BROKER = (BrokerConfig, StoreConfig, NetConfig, ReplicationConfig, SecurityConfig, RaftConfig)
_ACTING_TIMES = (
    "broker_heartbeat_interval",
    "send_heartbeat_timeout_millis",
    "broker_not_active_timeout_millis",
    "sync_broker_member_group_period",
)
_BROKER_BOUNDS = (
    "max_request_body_size",
    "max_request_body_values",
    "max_messages_per_batch",
    "max_keys_per_message",
    "max_groups_per_connection",
    "max_group_memberships",
    "max_subscriptions_per_group",
    "max_filter_characters",
    "max_topics",
    "max_subscription_groups",
    "max_consumer_offsets",
    "max_request_modes",
    "max_queue_locks",
    "max_pop_orders",
    "max_queues_in_stats",
    "max_pull_hold",
    "max_pull_hold_per_queue",
)
_TEXTS = ("instance_name", "unit_name", "namespace", "trace_topic", "tls_ca_file")
_INTERVALS = (
    "poll_route_interval_ms",
    "heartbeat_interval_ms",
    "persist_offset_interval_ms",
    "rebalance_interval_ms",
    "call_timeout_ms",
)


@dataclass(frozen=True, slots=True)
class ClientConfig(_FromProperties):
    """Producers and consumers; defaults are those of Apache's Java client.

    `namesrv` is "host:port", several separated by ";", or the "http://…" address of a page that says so.
    """

    namesrv: str = ""
    instance_name: str = "DEFAULT"
    unit_name: str = ""
    unit_mode: bool = False  # brokers mark the topics that its clients make and consume
    namespace: str = ""
    poll_route_interval_ms: int = 30_000
    heartbeat_interval_ms: int = 30_000
    persist_offset_interval_ms: int = 5_000
    rebalance_interval_ms: int = 20_000
    call_timeout_ms: int = 3_000
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    vip_channel_enabled: bool = False
    tls: bool = False
    tls_ca_file: str = ""  # whom to trust, else whom this machine trusts
    tls_check: TlsCheck = TlsCheck.FULL

    def __post_init__(self) -> None:
        for name in _TEXTS:
            _require(isinstance(getattr(self, name), str), name, "text")
        _require(isinstance(self.tls, bool), "tls", "True or False")
        _require(isinstance(self.unit_mode, bool), "unit_mode", "True or False")
        _require(isinstance(self.vip_channel_enabled, bool), "vip_channel_enabled", "True or False")
        _require(self.tls or not self.tls_ca_file, "tls_ca_file", "given together with tls=True")
        _require(self.tls_check in [*TlsCheck], "tls_check", "one of " + ", ".join(TlsCheck))
        object.__setattr__(self, "tls_check", TlsCheck(self.tls_check))  # may be given by its value
        for name in _INTERVALS:
            interval_ms = getattr(self, name)
            _require(isinstance(interval_ms, int) and interval_ms > 0, name, "a whole number, at least 1")

    @property
    def name_servers(self) -> tuple[str, ...]:
        """Those that are named; none if they are to be looked up."""
        return () if self.namesrv_page else parse_addresses(self.namesrv)

    @property
    def namesrv_page(self) -> str | None:
        """Where to look up the name servers; a unit has a page of its own."""
        if not isinstance(self.namesrv, str) or not self.namesrv.startswith(("http://", "https://")):
            return None
        return f"{self.namesrv}-{self.unit_name}?nofix=1" if self.unit_name else self.namesrv


_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")
_BROKER_NAME = re.compile(r"[A-Za-z0-9._@-]{1,255}")  # "room@broker" says where it stands


def parse_addresses(text: str) -> tuple[str, ...]:
    """`host:port;host:port` as a tuple; ConfigError names the part that is not an address."""
    if not isinstance(text, str):
        raise ConfigError(f"{text!r} is not an address; write 'host:port', several separated by ';' in one text")
    addresses = tuple(part.strip() for part in re.split(r"[;,]", text) if part.strip())
    for address in addresses:
        mistake = _address_mistake(address)
        if mistake is not None:
            raise ConfigError(f"{address!r} is not an address; write host:port, several separated by ';': {mistake}")
    return addresses


def _address_mistake(address: str) -> str | None:
    """Return what is wrong with the text of an address, in words; None if nothing is."""
    if "://" in address:
        return f"leave out {address.partition('://')[0]}://"
    if "/" in address:
        return "nothing may follow the port"
    if any(map(str.isspace, address)):
        return "there is a space in it"
    host, colon, port = address.rpartition(":")
    if not colon:
        return (
            f"it has no port; name servers usually listen on {DEFAULT_NAMESRV_PORT}, brokers on {DEFAULT_BROKER_PORT}"
        )
    if not host:
        return "it has no host"
    if not (port.isascii() and port.isdecimal()):
        return f"its port {shown(port)} is not a number" if port else "it has no port"
    number = parse_int(port, low=1, high=MAX_PORT)
    return None if number is not None else f"ports go from 1 to {MAX_PORT}, not to {port:.20}"


def properties_text(*configs: _FromProperties) -> str:
    """Return configs as the properties file that makes them, without their secrets."""
    lines = []
    for config in configs:
        secrets = {f.name for f in dataclasses.fields(config) if f.metadata.get("is_secret")}  # type: ignore[arg-type]
        for key, name in config.attributes_by_key().items():
            if name in secrets:
                continue
            value = getattr(config, name)
            lines.append(f"{key}={str(value).lower() if isinstance(value, bool) else value}\n")
    return "".join(sorted(lines))


def as_properties(settings: Mapping[str, str]) -> str:
    """Return keys and values as a properties file, with Java's escapes."""
    return "".join(f"{_escaped(key, ' =:#!')}={_escaped(value, ' ')}\n" for key, value in settings.items())


def _escaped(text: str, others: str) -> str:
    """Escape backslashes and ends of lines, and `others`: all of them in a key, those that lead a value."""
    for mark, written in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"), ("\f", "\\f")):
        text = text.replace(mark, written)
    if others == " ":
        return f"\\{text}" if text.startswith(" ") else text
    return "".join(f"\\{letter}" if letter in others else letter for letter in text)


def check_keys(properties: Mapping[str, str], *configs: type[_FromProperties]) -> None:
    """Refuse every key that asks for what this version cannot keep, and every unknown key, in one error.

    Keys that only tune the insides of Apache's programs are accepted, and named in one line of the log.
    """
    problems, idle = judge_keys(properties, *configs)
    _raise_all(problems)
    if idle:
        log.info("settings accepted without effect: %s", ", ".join(idle))


def judge_keys(properties: Mapping[str, str], *configs: type[_FromProperties]) -> tuple[list[str], list[str]]:
    """Return a sentence for each key that stops a start, and each setting that is accepted without effect."""
    for_name_server = NameServerConfig in configs
    promises = NAME_SERVER_PROMISES if for_name_server else BROKER_PROMISES
    harmless = NAME_SERVER_HARMLESS if for_name_server else BROKER_HARMLESS
    ours = {key for config in configs for key in config.attributes_by_key()}
    strange, idle = _strange_keys(properties, ours, promises, harmless)
    return _broken_promises(properties, promises, ours) + strange, idle


def read_store_config(path: Path) -> StoreConfig:
    """Read from a broker's file what it says of the store, for tools that only read and repair files.

    Such a tool keeps no promise of a broker, so it takes the file of an Apache slave too. An unknown key is an error.
    """
    properties = read_properties(path)
    ours = {key for config in _OF_A_BROKER for key in config.attributes_by_key()}
    _raise_all(_strange_keys(properties, ours, BROKER_PROMISES, BROKER_HARMLESS)[0])
    of_the_store = Properties(properties.source)
    for key, value in properties.items():
        if OLD_NAMES.get(key, key) in StoreConfig.attributes_by_key():
            of_the_store.add(key, value, properties.lines[key])
    return StoreConfig().with_properties(of_the_store)


def _strange_keys(
    properties: Mapping[str, str], ours: set[str], promises: Mapping[str, Promise], harmless: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return a sentence for each key that is unknown or given twice, and each setting that has no effect."""
    problems, idle = [], []
    for key, value in properties.items():
        name = OLD_NAMES.get(key, key)
        if name != key and name in properties:
            problems.append(
                f"{place(properties, key)}{key} is the old name of {name}, which is given too: remove {key}"
            )
        elif name in ours or find_promise(promises, name) is not None:
            continue
        elif name in harmless or name in RETIRED:
            idle.append(f"{key}={value}" + (f" ({RETIRED[name]})" if name in RETIRED else ""))
        else:
            problems.append(place(properties, key) + _unknown(key, {*ours, *promises, *harmless}))
    return problems, idle


def _broken_promises(
    properties: Mapping[str, str], promises: Mapping[str, Promise], ours: set[str] | None = None
) -> list[str]:
    """Return a sentence for each key that asks for what this version cannot keep; keys that a config obeys are kept."""
    if ours is None:
        ours = {key for config in _OF_A_BROKER for key in config.attributes_by_key()}
    problems = []
    for key, value in properties.items():
        name = OLD_NAMES.get(key, key)
        promise = find_promise(promises, name) if name not in ours else None
        refusal = promise.refusal(key, value) if promise is not None else None
        if refusal is not None:
            problems.append(place(properties, key) + refusal)
    return problems


def _raise_all(problems: list[str]) -> None:
    if problems:
        raise ConfigError("\n".join(problems))


def _unknown(key: str, known: set[str]) -> str:
    everywhere = {*BROKER_HARMLESS, *BROKER_PROMISES, *NAME_SERVER_PROMISES}
    for config in (*_OF_A_BROKER, NameServerConfig):
        everywhere |= config.attributes_by_key().keys()
    if key in everywhere:
        return f"{key} is a key of another program or part: it has no effect here. Remove it"
    by_lower_case = {name.lower(): name for name in known}
    close = difflib.get_close_matches(key.lower(), by_lower_case, n=1, cutoff=0.75)
    hint = f"; did you mean {by_lower_case[close[0]]}?" if close else ""
    return f"unknown key {key}: neither Apache RocketMQ nor Cosmodrome has it{hint}"


def _camel_case(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _convert(key: str, text: str, kind: Any) -> Any:
    text = text.strip()
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise BadSetting(key, f"{key}={text}: write true or false")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError as error:
        raise BadSetting(key, f"{key}={text}: {_expected(kind)}") from error


def _expected(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "write one of " + ", ".join(kind)
    return "write a whole number"


def parse_delays(text: str) -> tuple[int, ...]:
    """The milliseconds of each level of `1s 10m 2h 1d`; ValueError for anything else."""
    if not _DELAYS.fullmatch(text):
        raise ValueError(f"{text!r} is not a list of times")
    return tuple(int(level[:-1]) * _DELAY_UNIT_MS[level[-1]] for level in text.split())


_DELAYS = re.compile(r"\s*[0-9]{1,9}[smhd](?:\s+[0-9]{1,9}[smhd])*\s*")
_DELAY_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _is_reachable(host: str) -> bool:
    """Return whether `host` is empty or the address of one host, as messages must name it."""
    try:
        return not host or not ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _are_delays(text: str) -> bool:
    return bool(_DELAYS.fullmatch(text))


_PATH_SPLITTER = re.compile(r"[,:]")
_FILE_MODE = re.compile("0?6[0246][0246]", re.ASCII)
_FILE_MODES = "octal digits from 600 to 666, such as 640; nobody executes files of a store"
_ONE_FOLDER = "one folder: a log spread over several (separated by , or :) is not supported; move its files into one"
_NO_FOLDERS = "empty: a log spread over several folders is not supported; move its files into storePathCommitLog"


def _are_hours(text: str) -> bool:
    hours = [hour.strip() for hour in text.split(";") if hour.strip()]
    return bool(hours) and all(parse_int(hour, high=23) is not None for hour in hours)


def _require(holds: bool, key: str, accepted: str) -> None:
    if not holds:
        raise BadSetting(key, f"{key} must be {accepted}")

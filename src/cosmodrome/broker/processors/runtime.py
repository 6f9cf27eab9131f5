"""What a broker says about itself: its configuration, its figures, how it is doing."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from typing import TYPE_CHECKING

from cosmodrome.broker.hot_config import change_config
from cosmodrome.broker.statistics import Rate
from cosmodrome.broker.topics import TIMER_TOPIC
from cosmodrome.codes import OUR_VERSION
from cosmodrome.config import KIB, StoreConfig, parse_properties, properties_text
from cosmodrome.errors import InvalidParameter, RequestError
from cosmodrome.net.connection import Connection
from cosmodrome.numbers import MAX_INT, parse_int
from cosmodrome.store import Recovered
from cosmodrome.wire.bodies import BrokerStats, KVTable, StatsItem, encode_data_version
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import BrokerConfigReply, ViewBrokerStats

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

_FALL_TIME = "GROUP_GET_FALL_TIME"
_NO_LIMIT = 2**31 - 1  # as Apache tells it: requests wait in no queue before a thread, only sends for the disk
MAX_CONFIG_BYTES = 64 * KIB  # of a change
_UNITS = "KMGTPE"
_BEHIND = ("GROUP_GET_FALL_SIZE", _FALL_TIME)


async def view_stats(broker: Broker, _connection: Connection, command: Command) -> Command:
    """VIEW_BROKER_STATS_DATA: one figure over the last minute, hour and day."""
    request = ViewBrokerStats.decode(command)
    name, key = request.stats_name, request.stats_key
    rates = _behind(broker, name, key) if name in _BEHIND else broker.statistics.view(name, key)
    if rates is None:
        raise RequestError(f"The stats <{request.stats_name}> <{request.stats_key}> not exist")
    return command.reply(body=BrokerStats(*(StatsItem(*rate) for rate in rates)).encode())


def _behind(broker: Broker, name: str, key: str) -> tuple[Rate, Rate, Rate] | None:
    """How far a group is behind the newest message, in bytes of the log or in milliseconds, at this moment."""
    queue, _, rest = key.partition("@")
    topic, _, group = rest.partition("@")
    queue_id = parse_int(queue, high=MAX_INT)
    reached = None if queue_id is None else broker.statistics.reached(topic, queue_id, group)
    if queue_id is None or reached is None:
        return None
    store, value = broker.store, 0
    last = store.entry(topic, queue_id, reached - 1)
    if last is not None and reached < store.max_offset(topic, queue_id):
        value = store.max_physical_offset - last[0]
        if name == _FALL_TIME:
            value = broker.clock.now_ms() - store.timeline.redated(store.store_time(topic, queue_id, reached - 1))
    return Rate(value), Rate(value), Rate(value)


async def get_config(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_BROKER_CONFIG: every key this broker obeys, with its value, as a properties file."""
    text = properties_text(broker.config, _with_paths(broker), broker.replication, broker.security)
    version = encode_data_version(broker.topics.data_version).decode()
    return command.reply(header=BrokerConfigReply(version), body=text.encode())


async def update_config(broker: Broker, _connection: Connection, command: Command) -> Command:
    """Handle UPDATE_BROKER_CONFIG: obey other values until the next start; all keys are changed, or none."""
    if len(command.body) > MAX_CONFIG_BYTES:
        raise InvalidParameter(f"a change of the config has at most {MAX_CONFIG_BYTES} bytes")
    try:
        text = bytes(command.body).decode()
    except UnicodeDecodeError as error:
        raise InvalidParameter("the config is not UTF-8 text") from error
    change_config(broker, parse_properties(text))
    return command.reply()


def _with_paths(broker: Broker) -> StoreConfig:
    """The store's config with the places of its parts, also of those that lie where they lie by default."""
    paths = broker.store.paths
    return dataclasses.replace(
        broker.store_config,
        store_path_commit_log=str(paths.commit_log),
        store_path_consume_queue=str(paths.consume_queue),
        store_path_index=str(paths.index),
        store_checkpoint=str(paths.checkpoint),
        abort_file=str(paths.abort),
    )


async def get_runtime_info(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_BROKER_RUNTIME_INFO: the figures that mqadmin and dashboards show."""
    table = {**_life(broker), **_traffic(broker), **_waiting(broker), **_rot(broker), **await _disk(broker)}
    table |= broker.replicas.figures() | broker.acting.figures()
    table |= broker.guard.figures() | broker.tls.figures() | broker.books.figures()
    return command.reply(body=KVTable({name: str(value) for name, value in table.items()}).encode())


def _life(broker: Broker) -> dict[str, object]:
    now_ms = broker.clock.steady_ms()
    return {
        "brokerActive": "true",
        "brokerVersionDesc": OUR_VERSION.name,
        "brokerVersion": int(OUR_VERSION),
        "bootTimestamp": broker.clock.now_ms() - (now_ms - broker.statistics.born_ms),
        "runtime": _span_text(now_ms - broker.statistics.born_ms),
    }


def _traffic(broker: Broker) -> dict[str, object]:
    statistics, store = broker.statistics, broker.store
    put, got, missed = statistics.put_all, statistics.got_all, statistics.missed_all
    found = statistics.per_second(got, lambda amount: amount.times)
    misses = statistics.per_second(missed, lambda amount: amount.times)
    table: dict[str, object] = {
        "putTps": _rates_text(statistics.per_second(put, lambda amount: amount.messages)),
        "getFoundTps": _rates_text(found),
        "getMissTps": _rates_text(misses),
        "getTotalTps": _rates_text([a + b for a, b in zip(found, misses, strict=True)]),
        # Apache's 4.9 and the tools made for it spell it with one r.
        **dict.fromkeys(
            ("getTransferredTps", "getTransferedTps"),
            _rates_text(statistics.per_second(got, lambda amount: amount.messages)),
        ),
        "getMessageEntireTimeMax": round(statistics.longest_get_ms),
        "putMessageTimesTotal": store.messages_put,
        "putMessageSizeTotal": store.bytes_put,
        "putMessageFailedTimes": store.puts_failed,
        "putMessageEntireTimeMax": statistics.put_times.max_ms,
        "putMessageDistributeTime": statistics.put_times.text(),
        "putLatency99": f"{statistics.put_times.quantile(0.99):.2f}",
        "putLatency999": f"{statistics.put_times.quantile(0.999):.2f}",
        "putMessageAverageSize": store.bytes_put / store.messages_put if store.messages_put else 0.0,
    }
    return {**table, **statistics.mornings, **_queues(broker)}


def _queues(broker: Broker) -> dict[str, object]:
    """Apache's queues before its threads; here only sends that wait for the disk wait at all."""
    config = broker.config
    table: dict[str, object] = {}
    for kind in ("send", "pull", "litePull", "query", "ack"):
        table[f"{kind}ThreadPoolQueueSize"] = broker.store.flusher.waiters if kind == "send" else 0
        table[f"{kind}ThreadPoolQueueHeadWaitTimeMills"] = 0
        table[f"{kind}ThreadPoolQueueCapacity"] = (
            config.send_thread_pool_queue_capacity if kind == "send" else _NO_LIMIT
        )
    return {
        **table,
        "EndTransactionQueueSize": 0,
        "EndTransactionThreadPoolQueueCapacity": _NO_LIMIT,
        "remainTransientStoreBufferNumbs": _NO_LIMIT,
        "startAcceptSendRequestTimeStamp": 0,
        "pageCacheLockTimeMills": 0,
        "requestsTurnedAway": broker.overload.turned_away,
        "skippedRecords": broker.store.skipped.count,
    }


def _waiting(broker: Broker) -> dict[str, object]:
    """What waits for its time: in the timer wheel, and in the queue of each delay level."""
    timers, statistics = broker.timers, broker.statistics
    behind_ms = broker.store.timeline.now_ms() - timers.delivered_ms if timers.is_enabled else 0
    left = statistics.per_second(statistics.timed_out_all, lambda amount: amount.times)[0]
    return {
        "timerReadBehind": max(behind_ms, 0) // 1_000,
        "timerOffsetBehind": timers.unset if timers.is_enabled else 0,
        "timerCongestNum": timers.metrics.all_pending,
        "timerEnqueueTps": statistics.put_tps(TIMER_TOPIC),
        "timerDequeueTps": left,
        **{
            f"scheduleMessageOffset_{level}": f"{done},{end}" for level, (done, end) in broker.delays.progress().items()
        },
    }


def _rot(broker: Broker) -> dict[str, object]:
    """What was found to be damaged since the start; keys of our own."""
    rot, scrub = broker.store.rot, broker.store.scrub.state
    return {
        "scrubPlace": -1 if scrub.place is None else scrub.place,
        "scrubRounds": scrub.rounds,
        "scrubLastEnd": scrub.last_end_ms,
        "damagedRecords": rot.records,
        "damagedQueueEntries": rot.entries,
        "rebuiltQueueEntries": rot.rebuilt,
        "damagedIndexFiles": rot.index_files,
    }


async def _disk(broker: Broker) -> dict[str, object]:
    store = broker.store
    await store.cleaner.measure()
    shares = store.cleaner.shares
    total, _, free = await asyncio.to_thread(shutil.disk_usage, broker.store_config.store_path_root_dir)
    return {
        "commitLogMinOffset": store.min_physical_offset,
        "commitLogMaxOffset": store.max_physical_offset,
        "commitLogDiskRatio": shares.get("CL", 0.0),
        "consumeQueueDiskRatio": shares.get("CQ", 0.0),
        "earliestMessageTimeStamp": store.first_timestamp,
        "dispatchBehindBytes": store.dispatch_behind_bytes,
        "dispatchMaxBuffer": 0,  # nothing is buffered between log and queues
        "commitLogDirCapacity": f"Total : {_size_text(total)}, Free : {_size_text(free)}.",
        "remainHowManyDataToFlush": _size_text(store.max_physical_offset - store.flusher.flushed),
        **_damage(store.recovered),
    }


def _damage(recovered: Recovered) -> dict[str, object]:
    """What the last start found wrong with the log."""
    return {
        "startDamagedParts": recovered.damaged_parts,
        "startDamagedBytes": recovered.damaged_bytes,
        "startLostMessages": recovered.lost_messages,
        "startCutBytes": recovered.cut_bytes,
        "startKeptAsideBytes": recovered.kept_aside_bytes,
    }


def _size_text(size: int) -> str:
    """A number of bytes as Apache writes it: tools for dashboards read the unit."""
    if size < KIB:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    return f"{size / KIB**power:.1f} {_UNITS[power - 1]}iB"


def _rates_text(rates: list[float]) -> str:
    return " ".join(str(rate) for rate in rates)


def _span_text(ms: int) -> str:
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"

"""The broker: wires the parts together and gives processors what they need."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

from cosmodrome.access.guard import Guard
from cosmodrome.broker.acting import Acting
from cosmodrome.broker.answer import PRE_ONLINE_PROCESSORS, PROCESSORS, SLAVE_PROCESSORS, answer, refuse
from cosmodrome.broker.assignments import TopicQueues
from cosmodrome.broker.clients import Clients
from cosmodrome.broker.consumer_offsets import ConsumerOffsets
from cosmodrome.broker.delays import Delays
from cosmodrome.broker.escape import Escapes
from cosmodrome.broker.groups import Groups
from cosmodrome.broker.hooks import Hooks
from cosmodrome.broker.long_polls import TAKEN_STEP, HeldPull, LongPolls
from cosmodrome.broker.metadata_sync import MetadataSync
from cosmodrome.broker.overload import Overload
from cosmodrome.broker.pop.polls import ANY_QUEUE, HeldPop, PollKey
from cosmodrome.broker.pop.pops import Pops
from cosmodrome.broker.pop.revive import Revives
from cosmodrome.broker.pre_online import PreOnline
from cosmodrome.broker.promotion import Promotion
from cosmodrome.broker.queue_locks import QueueLocks
from cosmodrome.broker.raft_group import GroupRole, RaftGroup, RaftReplicas
from cosmodrome.broker.redirect import redirect
from cosmodrome.broker.registration import Registration
from cosmodrome.broker.replicas import Replicas
from cosmodrome.broker.request_modes import RequestModes
from cosmodrome.broker.roles import Role, Roles, role_of, with_role
from cosmodrome.broker.settling import Settling
from cosmodrome.broker.statistics import SAMPLE_MS, Statistics
from cosmodrome.broker.stepping_down import SteppingDown
from cosmodrome.broker.tables import SavedTable
from cosmodrome.broker.timers import Timers
from cosmodrome.broker.topics import TIMER_TOPIC, Topics, check_tables
from cosmodrome.broker.transactions import Transactions
from cosmodrome.clock import Clock, SystemClock
from cosmodrome.codes import RequestCode
from cosmodrome.config import (
    KIB,
    BadSetting,
    BrokerConfig,
    NetConfig,
    RaftConfig,
    ReplicationConfig,
    SecurityConfig,
    StoreConfig,
    check_raft,
    check_role,
)
from cosmodrome.errors import (
    ConfigError,
    FlushTimeout,
    NoPermission,
    RequestCodeNotSupported,
    ServiceNotAvailable,
    StoreError,
)
from cosmodrome.filter.subscriptions import GroupFilters
from cosmodrome.model import REVIVE_PREFIX, SCHEDULE_TOPIC, DataVersion, Perm, Property, TopicConfig
from cosmodrome.net.addresses import EVERY_ADDRESS, advertised_host, is_loopback
from cosmodrome.net.books import Books
from cosmodrome.net.caller import caller_of
from cosmodrome.net.connection import Answering, Connection, Handler
from cosmodrome.net.lane import Lane, steps_of
from cosmodrome.net.server import CannotListen, Server
from cosmodrome.net.tls_server import ServerTls, client_context_of
from cosmodrome.net.watchdog import Watchdog
from cosmodrome.store.cleaner import DiskUsed, disk_used
from cosmodrome.store.message import Appended, Durability, StoreMessage
from cosmodrome.store.message_store import MessageStore
from cosmodrome.troubles import Trouble
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import RegisterBrokerBody
from cosmodrome.wire.command import Command
from cosmodrome.wire.ids import UniqueIds
from cosmodrome.wire.record import pack_host
from cosmodrome.wire.requests import ConsumerGroupHeader

log = logging.getLogger(__name__)

POLL_SWEEP_MS = 500
CLIENT_SCAN_MS = 10_000
# After an append that stalled: what came meanwhile is read in the next turn, and by a connection that rested two later.
CALM_TURNS = 3
MEMBERS_TOLD = 20  # of a group that disagrees, in its line of the log
NOTICES_STEP = 200  # sent in one step
LEAVING_STEP = 50  # groups that are told of a member's leave in one step
CLOCK_LOOK_MS = 1_000
# The second listener is so far below the first. Java's clients up to 4.4 send there unless told otherwise.
VIP_DISTANCE = 2
NOT_FOR_VIP = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    }
)

Waiter = asyncio.Future[None]
Held = HeldPull[Waiter] | HeldPop[Waiter]


class Broker:
    """One broker process.

        broker = Broker(config, store_config)
        await broker.start()                  # serves; `address` is known
        await broker.run(stop)                # until the event `stop` is set

    Its `hooks` watch what is sent and consumed: see `cosmodrome.broker.hooks`.
    Everything happens on one event loop; what blocks (syncing, making and deleting files) goes to threads.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        net_config: NetConfig | None = None,
        clock: Clock | None = None,
        used: DiskUsed = disk_used,
        *,
        hooks: Sequence[object] = (),
        replication: ReplicationConfig | None = None,
        security: SecurityConfig | None = None,
        raft: RaftConfig | None = None,
    ) -> None:
        self._served = Hooks(hooks).around(self._handle) if hooks else self._handle
        self.clock: Clock = clock or SystemClock()
        self._clock_unsaved = Trouble(log, "cannot save how the machine's clock was set", self.clock)
        self._net_config = net_config or NetConfig()
        self.security = security or SecurityConfig()
        self.guard = Guard(self.security, self.clock)
        self.tls, self._client_tls = ServerTls(self.security, self.clock), client_context_of(self.security)
        self.store_config = store_config
        self._root = Path(store_config.store_path_root_dir)
        replication = replication or ReplicationConfig()
        if replication.ha_tls_enable and self._client_tls is None:
            raise BadSetting("haTlsEnable", "haTlsEnable=true needs tls.enable=true, whose keys say what is trusted")
        self._admits_slave = self.guard.admits_slave(replication.ha_allowed_addresses)
        self.group: RaftGroup | None = None
        role = role_of(config, replication)
        if raft is not None and raft.is_enabled:
            check_raft(raft, store_config, config, replication, self.security)
            self.group = RaftGroup(raft, store_config, self.clock, config.bind_address)
            self.store_config = store_config = self.group.store_config
            role = self.group.role
            config = dataclasses.replace(config, broker_id=role.broker_id)
            replication = dataclasses.replace(replication, broker_role=role.broker_role)
        check_role(config, replication)
        self.roles = Roles(self._root / "config", role)
        self.config, self.replication = config, replication
        self.take_role(self.roles.role)
        config = self.config
        check_tables(self._root / "config")
        self.store = MessageStore.open(
            self._root,
            store_config,
            self.clock,
            self._arrived,
            used,
            follows=self.is_slave and self.group is None,
            entries=self.group.open if self.group is not None else None,
        )
        self.store.on_stall = self._stalled
        self.roles.started()
        self._caller = caller_of(self._net_config, self.guard.sign, self._client_tls)
        self.max_reply_bytes = self._net_config.max_frame_bytes - 64 * KIB  # the header is in the frame, too
        self.lane = Lane()
        self._to_notify: dict[str, None] = {}  # groups whose members must rebalance
        self._is_notifying = False
        self._is_looking = False  # for pulls that may go on
        self._short_polls = 0  # pulls beyond what may be held
        self.registration = Registration(
            config,
            self._caller,
            self.clock,
            self._registration_body,
            lambda names: self.topics.mark_orderly(names),
            lambda master: self.replicas.master_found(master),
            self._conflict_noted,
        )
        self.use_replicas(self.new_replicas())
        self.metadata_sync = self.new_metadata_sync()
        self.promotion = Promotion(self, self._caller)
        self.group_role = GroupRole(self, self.group) if self.group is not None else None
        self.escapes = Escapes(config, self._caller, self.clock)
        self.acting = Acting(self, self._caller)
        # Whether the broker serves: a master may have to take over from its slaves first.
        self.is_online = self.is_slave or not config.enable_slave_acting_master or config.skip_pre_online
        if not self.is_online:
            self.processors = PRE_ONLINE_PROCESSORS
        self._load_tables(self._root / "config")
        self._make_pops(self._root / "config")
        self.make_services()
        self.store.on_cut = self._log_cut
        if self.is_slave and self.group is None:  # a group shows more of its log soon, and cuts nothing it has shown
            self._log_cut()
        self.statistics = Statistics(config.broker_cluster_name, self.clock.steady_ms(), self.topics.is_system)
        self.overload = Overload(config, store_config.os_page_cache_busy_time_out_mills)
        self.books = Books(self._net_config)
        self._servers = [self._new_server(self._served, config.listen_port)]
        if config.vip_listener_enable and config.listen_port > VIP_DISTANCE:  # 0 is any port: no client looks below it
            self._servers.append(self._new_server(self._handle_vip, config.listen_port - VIP_DISTANCE))
        # What a send adds to every message, made once.
        self.stored_properties = props.encode(
            {
                Property.MSG_REGION: config.region_id,
                Property.TRACE_ON: "true" if config.trace_on else "false",
                Property.CLUSTER: config.broker_cluster_name,
            }
        )

    def take_role(self, role: Role) -> None:
        """Be the master, or a slave, in what is answered. BadSetting, with nothing changed, if other keys forbid it."""
        self.config, self.replication = with_role(self.config, self.replication, role)
        self.is_slave = role.is_slave
        self.processors = SLAVE_PROCESSORS if role.is_slave else PROCESSORS

    def new_replicas(self, replication: ReplicationConfig | None = None) -> Replicas:
        """Return what serves slaves, or follows a master, as the role says."""
        replication = replication or self.replication
        if self.group is not None:
            return RaftReplicas(self.config, replication, self.store, self.group)
        client_tls = self._client_tls if replication.ha_tls_enable else None
        ports = (self._admits_slave, self.tls, client_tls)
        return Replicas(self.config, replication, self.store, self.clock, self._caller, self.registration, *ports)

    def use_replicas(self, replicas: Replicas) -> None:
        """Let sends wait for these copies from now on."""
        self.replicas = replicas
        # Whether an answer waits for anything: the disk, or replicas. A send looks at nothing else.
        self.promises = self.store.group_commit or replicas.is_waited_for

    def new_metadata_sync(self) -> MetadataSync:
        """Return what takes over a master's tables, with nothing taken yet."""
        return MetadataSync(self, self._caller)

    def _new_server(self, handler: Handler, port: int) -> Server:
        on_close = self._connection_lost
        host, books = self.config.bind_address, self.books
        handler = self.guard.around(handler)
        return Server(handler, host, port, config=self._net_config, on_close=on_close, books=books, tls=self.tls)

    def _load_tables(self, folder: Path) -> None:
        """What processors look things up in; some of it outlives the broker, in `folder`."""
        config = self.config
        self.topics = Topics(config, folder / "topics.json", self.clock, self.registration.topics_changed)
        if self.store.was_following and not self.is_slave:
            self.restore_topics()
        self.settling = Settling(self.topics, self.lane)
        self.groups = Groups(config, folder / "subscriptionGroup.json", self.clock)
        self.offsets = ConsumerOffsets(folder / "consumerOffset.json", self.clock, config.max_consumer_offsets)
        self.request_modes = RequestModes(config, folder / "messageRequestMode.json", self.clock)
        self.topic_queues = TopicQueues(config, self._caller, self.topics, self.clock, self.lane)
        self.filters = GroupFilters(limit=config.max_filter_characters) if config.enable_property_filter else None
        self.clients = Clients(
            config.channel_expired_timeout, config.max_groups_per_connection, config.max_group_memberships
        )
        self.locks = QueueLocks(limit=config.max_queue_locks)
        self.long_polls: LongPolls[Waiter] = LongPolls(config.max_pull_hold, config.max_pull_hold_per_queue)

    def restore_topics(self) -> None:
        """Make topics for the queues of a promoted slave that it had no topic of: its master died before it told."""
        for name in self.store.topics():
            if self.topics.find_topic(name) is None:
                count = max(self.store.queues(name), default=0) + 1
                log.warning("topic restored: topic=%s queues=%d; the old master had told nothing of it", name, count)
                self.topics.put(TopicConfig(name, count, count))

    def _make_pops(self, folder: Path) -> None:
        self.pops = Pops(self.config, folder, self.clock, self._wake, self._wake_in_steps)
        timeline = self.store.timeline
        timeline.on_step.append(self.pops.orders.clock_was_set)
        if timeline.stepped_at_start_ms:
            self.pops.orders.clock_was_set(timeline.stepped_at_start_ms)

    def make_services(self) -> None:
        """What delivers messages later, or again, as the files say how far it is; at a start, and in another role."""
        config, store_config, folder = self.config, self.store_config, self._root / "config"
        self.has_services, self._are_a_slaves = True, self.is_slave
        self.delays = Delays(
            self.store,
            store_config.delays_ms,
            folder / "delayOffset.json",
            self.clock,
            self._deliver,
            save_every_ms=store_config.flush_delay_offset_interval,
        )
        self.timers = Timers(
            self.store, store_config, self._root, self.clock, self._deliver_timed, of_slave=self.is_slave
        )
        self.transactions = Transactions(
            self.store,
            self.offsets,
            self.topics,
            self.clients,
            self.clock,
            config,
            reserved_hours=store_config.file_reserved_time,
            put=self._put_delivered,
            redirect=lambda message: redirect(self, message),
            durable=lambda end, wait: self.durable(end, wait=wait),
        )
        self.revives = Revives(
            self.store,
            self.offsets,
            self.topics,
            self.groups,
            self.clock,
            config,
            put=self._put_delivered,
            delivered_ms=lambda: self.timers.delivered_ms,
            escape=self.escapes.put,
        )
        self.store.cleaner.needs = {
            "undelivered messages of delay levels": self.delays.needed_from,
            "undelivered timed messages": self.timers.needed_from,
            "undecided transactions": self.transactions.needed_from,
            "records of undecided pops": self.revives.needed_from,
        }

    # --- life

    async def start(self) -> None:
        """Serve, and tell the name servers; from here on `address` is known. Then await `run`."""
        await self._listen()
        host = self.config.broker_ip1 or advertised_host(self.config.bind_address)
        if host != self.config.bind_address and self.config.bind_address.startswith("127."):
            log.warning(
                "clients are told to come to %s, but only %s is bound; set bindAddress", host, self.config.bind_address
            )
        if is_loopback(host) and self.config.bind_address in EVERY_ADDRESS:
            log.warning("clients on other machines cannot reach the advertised address %s; set brokerIP1", host)
        port = self._servers[0].port
        self.address = f"{host}:{port}"
        self.packed_address = pack_host(host, port)
        self.unique_ids = UniqueIds(self.packed_address[:4], os.getpid())
        self.registration.use(self.address, self.ha_address(self.replicas))
        if self.is_online and self.group is None:
            await self.registration.announce()
        log.info(
            "broker %s serves on %s as %s, store in %s",
            self.config.broker_name,
            self.address,
            self.replication.broker_role,
            self._root,
        )

    def ha_address(self, replicas: Replicas) -> str:
        """Return where slaves are served, or would be."""
        host = self.config.broker_ip2 or self.address.rpartition(":")[0]
        return f"{host}:{replicas.port or replicas.wanted_port(self._servers[0].port)}"

    async def serve_slaves(self, replicas: Replicas) -> None:
        """Listen for slaves, if these replicas are a master's. CannotListen if that is not possible."""
        await replicas.start(self.config.bind_address, self._servers[0].port)

    async def _listen(self) -> None:
        main, *vip = self._servers
        await main.start()
        try:
            for server in vip:
                await server.start()
        except CannotListen as error:
            await main.close()
            raise ConfigError(
                f"cannot listen on {error.host}:{error.port}: {error.reason}; this is the VIP listener of port "
                f"{main.port}: choose another listenPort, or set vipListenerEnable=false if no client has "
                "vipChannelEnabled"
            ) from error
        try:
            await self.serve_slaves(self.replicas)
        except CannotListen as error:
            await asyncio.gather(*(server.close() for server in self._servers))
            raise ConfigError(
                f"cannot listen on {error.host}:{error.port}: {error.reason}; this is the port for slaves: set another "
                "with haListenPort"
            ) from error
        if self.group is not None:
            await self._join_group(self.group)

    async def _join_group(self, group: RaftGroup) -> None:
        try:
            await group.member.listen()
        except CannotListen as error:
            await asyncio.gather(*(server.close() for server in self._servers))
            raise ConfigError(
                f"cannot listen on {error.host}:{error.port}: {error.reason}; this is the port for the members of its "
                f"group: dLegerPeers says so of {group.config.self_id}"
            ) from error

    async def run(self, stop: asyncio.Event) -> None:
        """Keep serving until `stop` is set, then close. A background part that fails ends the broker loudly.

        StoreError, when all is closed, for what could not be saved at the end.
        """
        unsaved: list[str] = []
        save_every_ms = self.config.flush_consumer_offset_interval
        async with asyncio.TaskGroup() as tasks:
            flushing = tasks.create_task(self.store.flusher.run())
            member = tasks.create_task(self.group.member.run()) if self.group is not None else None
            serving = tasks.create_task(self._serve())
            parts = (
                serving,
                tasks.create_task(self.store.preallocator.run()),
                tasks.create_task(self.store.cleaner.run()),
                *((tasks.create_task(self.store.scrub.run()),) if self.group is None else ()),
                tasks.create_task(self._turns("waking held requests", POLL_SWEEP_MS, self._wake_expired)),
                tasks.create_task(self._turns("looking for silent clients", CLIENT_SCAN_MS, self._watch_clients)),
                tasks.create_task(self._turns("taking figures", SAMPLE_MS, self._sample)),
                tasks.create_task(self._turns("looking at the clock", CLOCK_LOOK_MS, self._watch_clock)),
                tasks.create_task(self._turns("saving tables", save_every_ms, self._save_all)),
                tasks.create_task(self.guard.run()),
                tasks.create_task(self.tls.run()),
            )
            try:
                await stop.wait()
            finally:
                for part in parts:
                    part.cancel()
                unsaved += await self._stop_serving()
                if self.group_role is not None:
                    await self.group_role.leave()
                await asyncio.wait({serving})  # now nothing is delivered any more
                self.store.flusher.stop()
                await flushing
                await self.replicas.close()
                unsaved += await self.close_services()
                if self.group is not None and member is not None:
                    self.group.member.stop()
                    await asyncio.wait({member})
                unsaved += self._close_store()
                if self.group is not None:
                    self.group.member.close()
        log.info("broker %s stopped", self.config.broker_name)
        if unsaved:
            raise StoreError(
                f"the broker has stopped, but could not save everything: {'; '.join(dict.fromkeys(unsaved))}. The next "
                "start reads the end of the log and may deliver the last messages again; see to the disk first"
            )

    async def close_services(self) -> list[str]:
        """Save how far the services are, which have ended; return what could not be saved."""
        if not self.has_services:
            return []
        self.has_services = False
        self.store.cleaner.needs = {"a broker that changes its role": lambda: self.store.min_physical_offset}
        if self._are_a_slaves:  # how far its master is was saved when it was taken over
            self.timers.pending.close()
            return []
        unsaved = await self.delays.save()  # by now what they delivered is on disk
        self._settle_offsets()
        unsaved += await self.transactions.save()
        unsaved += await self.timers.close()
        return unsaved

    async def _serve(self) -> None:
        """Run the services of this broker's role, and stay registered; a master takes over from its slaves first."""
        if not self.is_online:
            await PreOnline(self, self._caller).run()
            self.is_online, self.processors = True, PROCESSORS
            log.info("broker %s serves as the master now", self.config.broker_name)
            await self.registration.announce()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stay_registered())
            tasks.create_task(self.promotion.run())
            if self.group_role is not None:
                tasks.create_task(self.group_role.run())
                tasks.create_task(self.group_role.keep_master())

    async def _stay_registered(self) -> None:
        """Register again and again, once the role is known: a member of a Raft group waits for a leader."""
        if self.group_role is not None:
            await self.group_role.is_known.wait()
        await self.registration.run()

    def services_of_role(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the services of this broker's role: a master delivers what waits, a slave follows its master."""
        yield self.acting.run()
        if self.is_slave:
            yield self.replicas.run()
            yield self.metadata_sync.run()
            return
        yield self.delays.run()
        yield self.timers.run()
        yield self.transactions.run()
        yield self.revives.run()
        yield SteppingDown(self, self._caller).run()

    def _close_store(self) -> list[str]:
        """Close the store; return what went wrong with its disk, now or before."""
        failure = self.store.failure
        try:
            self.store.close()
        except OSError as error:
            return [f"the store: {error}"]
        return [failure] if failure is not None else []

    async def _stop_serving(self) -> list[str]:
        """Leave the name servers, answer what is in hand, then put the tables on disk; return which could not be."""
        await self.registration.leave()
        await self.stop_listening()
        await self._caller.close()
        self._settle_offsets()
        self.pops.orders.clean(self._is_known, self.store.timeline.today_ms())
        unsaved = []
        for table in self._tables():
            try:
                await table.saved()
            except ServiceNotAvailable as error:  # the store must be closed in order all the same
                log.error("%s; groups may get their last messages again", error)
                unsaved.append(str(error))
        return unsaved

    @property
    def watchdog(self) -> Watchdog:
        """What tells of requests that keep the event loop busy; to be run by the process that has the loop."""
        return self.books.watchdog

    async def stop_listening(self) -> None:
        """Answer what is in hand and close every connection."""
        for waiting in (self.long_polls.take_all(), self.pops.close()):
            _wake(waiting)
        self.topics.wake_watchers()
        await asyncio.gather(*(server.close() for server in self._servers))
        self.lane.close()

    # --- what processors use

    def check_permission(self, perm: int) -> None:
        """Refuse what `brokerPermission` does not allow."""
        if self.replicas.least_copies and perm == Perm.WRITE:
            self.replicas.check_copies()
        if not self.config.broker_permission & perm:
            what = "sending" if perm == Perm.WRITE else "pulling"
            raise NoPermission(f"the broker[{self.address}] {what} message is forbidden")

    def append(self, message: StoreMessage) -> Appended:
        """Store a message of the broker's own making where its properties send it; when it is safe is not said."""
        redirect(self, message)
        return self._append_counted(message)

    async def put(self, message: StoreMessage) -> Appended:
        """Store a message of the broker's own making: where its properties send it, and as safely as a sent one.

        A message that is stored, but not on a slave in time, counts as stored: else the caller would put it again.
        """
        if self.replicas.least_copies:
            self.replicas.check_copies()
        appended = self.append(message)
        if self.promises:
            wait = props.find(message.properties, Property.WAIT) != "false"
            if await self.durable(appended.end, wait=wait) is Durability.FLUSH_DISK_TIMEOUT:
                raise FlushTimeout("FLUSH_DISK_TIMEOUT: the disk did not answer in time")
        return appended

    async def durable(self, end: int, *, wait: bool = True) -> Durability:
        """The promise: return once everything below `end` is on this disk and on as many replicas as configured, or
        the time for that is up. It waits for both together; if both fail, it returns the outcome of the disk."""
        if not (wait and self.replicas.is_waited_for):
            return await self.store.durable(end, wait=wait)
        replicas = self.replicas.replicated(end)
        disk = await self.store.durable(end)  # without group commit it only knows if the disk has failed
        copies = await replicas
        return copies if disk is Durability.OK else disk

    async def arrival(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        codes: frozenset[int] | None,
        hold_ms: int,
        owner: Hashable = None,
    ) -> None:
        """Return when a wanted message arrived at or after `offset`, or when `hold_ms` are over.

        With too many pulls already held, return after the time of short polling: one that is answered at once asks
        again at once.
        """
        waiter: Waiter = asyncio.get_running_loop().create_future()
        deadline_ms = self.clock.steady_ms() + hold_ms
        if self.long_polls.hold(HeldPull(topic, queue_id, offset, codes, deadline_ms, waiter, owner)):
            await waiter
        elif self._short_polls < self.config.max_pull_hold:
            self._short_polls += 1
            try:
                await self.clock.sleep(min(hold_ms, self.config.short_polling_time_mills))
            finally:
                self._short_polls -= 1

    def reset_offset(self, group: str, topic: str, queue_id: int, offset: int, *, is_read: bool) -> None:
        """Set a group's offset. If its members read the topic, they learn of it when they next ask for messages.

        What is out of an orderly pop is called back, so that it neither blocks the queue nor moves the offset.
        """
        (self.offsets.reset if is_read else self.offsets.commit)(group, topic, queue_id, offset)
        self.pops.orders.call_back(topic, group, queue_id, self.store.timeline.today_ms())
        self._wake(self.long_polls.take_queue(topic, queue_id))
        self.pops.more(PollKey(topic, group, queue_id))
        self.pops.more(PollKey(topic, group, ANY_QUEUE))

    def member_left(self, group: str) -> None:
        """Tell those who stay; when nobody does, the group's filters and resets are no longer needed."""
        if self.clients.find_consumers(group) is None:
            self.offsets.drop_resets(group)
            if self.filters is not None:
                self.filters.unregister(group, self.clock.steady_ms())
        self.watch_agreement(group)
        self.notify_members(group)

    def watch_agreement(self, group: str) -> None:
        """Log it when the members of a group begin or cease to subscribe to different things."""
        consumers = self.clients.find_consumers(group)
        if consumers is None or not consumers.take_disagreement_change():
            return
        if not (differing := consumers.disagreement):
            log.info("the members of group %s subscribe to the same again", group)
            return
        told = "; ".join(f"{client_id}: {wants}" for client_id, wants in islice(differing.items(), MEMBERS_TOLD))
        log.warning("the members of group %s subscribe to different things and will miss messages: %s", group, told)

    def notify_members(self, group: str) -> None:
        """Tell a group's members to rebalance, if both the broker and the group want that.

        They are told soon, in steps, and once of everything that happens until then: a group of thousands whose
        members come one after the other would otherwise cost millions of notices.
        """
        self._to_notify[group] = None
        if not self._is_notifying:
            self._is_notifying = True
            self.lane.start(self._notifying())

    def _notifying(self) -> Iterator[None]:
        try:
            yield
            sent = 0
            while self._to_notify:
                group = next(iter(self._to_notify))
                del self._to_notify[group]
                for connection in self._members_to_notify(group):
                    notice = ConsumerGroupHeader(group)
                    connection.send(Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, notice, oneway=True))
                    sent += 1
                    if sent % NOTICES_STEP == 0:
                        yield
        finally:
            self._is_notifying = False

    def _members_to_notify(self, group: str) -> list[Connection]:
        consumers = self.clients.find_consumers(group)
        config = self.groups.find_known(group)
        if consumers is None or config is None or consumers.broadcasting:
            return []
        if not (self.config.notify_consumer_ids_changed_enable and config.notify_consumer_ids_changed_enable):
            return []
        return [cast(Connection, connection) for connection in consumers.members]

    # --- inside

    def _handle(self, connection: Connection, command: Command) -> Answering:
        overload, waited_ms, store = self.overload, connection.waited_ms, self.store
        sends_waiting = store.flusher.waiters + self.replicas.waiters if self.promises else 0
        if waited_ms >= overload.patience_ms or store.is_page_cache_busy or sends_waiting >= overload.send_capacity:
            refusal = overload.refusal(
                command.code,
                waited_ms,
                connection.turn_before_ms,
                page_cache_busy=store.is_page_cache_busy,
                sends_waiting=sends_waiting,
            )
            if refusal is not None:
                overload.note(refusal, self.clock.steady_ms())
                return refuse(command, refusal)
        return answer(self, connection, command)

    def _handle_vip(self, connection: Connection, command: Command) -> Answering:
        if command.code in NOT_FOR_VIP:
            return refuse(command, RequestCodeNotSupported(command.code))
        return self._served(connection, command)

    def _put_delivered(self, message: StoreMessage) -> Appended:
        """A message whose time has come is not looked at again: it still says which delay it had."""
        message.store_host = self.packed_address
        return self._append_counted(message)

    def _deliver(self, message: StoreMessage) -> Appended | Awaitable[None]:
        """Put a message whose time has come where it belongs; a slave that acts as its master sends it elsewhere."""
        return self.escapes.put(message) if self.is_slave else self._put_delivered(message)

    def _deliver_timed(self, message: StoreMessage) -> Appended | Awaitable[None]:
        """The same for a message out of the timer wheel; one that is too far ahead for one turn goes back behind the
        others."""
        if message.topic != TIMER_TOPIC:
            self.statistics.timed_out()
        if self.is_slave and message.topic.startswith(REVIVE_PREFIX):
            return self.revives.decide_timed(message)
        return self._deliver(message)

    def _append_counted(self, message: StoreMessage) -> Appended:
        appended = self.store.append(message)
        self.statistics.put(message.topic, message.queue_id, 1, appended.size, self.store.append_ms)
        return appended

    def _arrived(self, topic: str, queue_id: int, next_offset: int, tags_code: int) -> None:
        if self.is_slave:
            self.metadata_sync.arrived(topic)
        if topic == SCHEDULE_TOPIC:
            self.delays.arrived(queue_id)
        polls = self.long_polls
        if pulls := polls.take_arrived(topic, queue_id, next_offset, tags_code):
            self._wake(pulls)
        elif polls.arrived and not self._is_looking:
            self._is_looking = True
            self._wake_in_steps(self._looking())
        pops = self.pops
        if pops.polls.topics or pops.notifications.topics:  # nearly every send finds nobody
            pops.arrived(topic, queue_id, tags_code)

    def _log_cut(self) -> None:
        """Let no group and no service be beyond the end of its queue: other messages will come there."""
        self.offsets.fit(self.store.max_offset)
        if self.has_services:
            self.delays.begin_again()
            self.timers.fit()

    def _stalled(self) -> None:
        """The loop stood still in an append. What came in meanwhile is read in the next turn, and turned away."""
        self._calm_in(CALM_TURNS)

    def _calm_in(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._calm_in, turns - 1)
        else:
            self.store.calm()

    def _wake(self, waiting: Sequence[Held]) -> None:
        """Let pulls and pops go on: a few now, and of many so many in each turn."""
        if len(waiting) <= TAKEN_STEP:
            _wake(waiting)
        else:
            self._wake_in_steps(steps_of(waiting, TAKEN_STEP))

    def _wake_in_steps(self, steps: Iterable[Sequence[Held]]) -> None:
        self.lane.start(map(_wake, steps))

    def _looking(self) -> Iterator[list[HeldPull[Waiter]]]:
        """Look for pulls that may go on. The first step does nothing, since it is part of a send."""
        yield []
        try:
            yield from self.long_polls.looking()
        finally:
            self._is_looking = False

    async def _turns(self, what: str, period_ms: int, turn: Callable[[], Awaitable[None]]) -> None:
        """Take a turn every so often. One that fails, also in a way nobody thought of, must not end the broker: what
        it met, a message or a peer, would be there again after the next start. A disk that fails does end it."""
        trouble = Trouble(log, f"{what} failed", self.clock)
        while True:
            await self.clock.sleep(period_ms)
            try:
                await turn()
                trouble.over()
            except ServiceNotAvailable as error:
                trouble.met(error)
            except (OSError, MemoryError):
                raise
            except Exception:
                log.exception("%s failed; trying again", what)

    async def _wake_expired(self) -> None:
        await self.lane.run(map(_wake, self.long_polls.expiring(self.clock.steady_ms())))
        await self.lane.run(map(_wake, self.pops.expiring()))

    async def _watch_clients(self) -> None:
        await self.lane.run(self._drop_silent())

    def _drop_silent(self) -> Iterator[None]:
        now_ms = self.clock.steady_ms()
        yield from self.locks.expiring(now_ms)
        if self.filters is not None:
            self.filters.clean(now_ms)
        for silent in self.clients.looking_for_silent(now_ms):
            for connection in silent:
                assert isinstance(connection, Connection)
                log.info("closing %s: no heartbeat for %d ms", connection.peer, self.config.channel_expired_timeout)
                connection.close()
            yield

    def _connection_lost(self, connection: Connection) -> None:
        if isinstance(connection.error, OSError) and connection.error.errno == errno.EFAULT:
            self.store.memory_failed()
        self.lane.start(self._leaving(connection))

    def _leaving(self, connection: Connection) -> Iterator[None]:
        """Let a connection leave its groups, and tell them, in steps. One that is in many waits for its turn first, for
        many such connections may be lost at once."""
        if self.clients.count_of(connection) > LEAVING_STEP:
            yield
        for number, group in enumerate(self.clients.drop(connection), 1):
            self.member_left(group)
            if number % LEAVING_STEP == 0:
                yield

    @property
    def registration_version(self) -> DataVersion:
        """The version of the topics that name servers are told; a promotion raises it."""
        term = self.store.epochs.term if self.group_role is None else self.group_role.term
        return dataclasses.replace(self.topics.data_version, state_version=term)

    def _registration_body(self) -> RegisterBrokerBody:
        return RegisterBrokerBody(self.registration_version, {config.name: config for config in self.topics})

    def _conflict_noted(self, conflict: str | None) -> None:
        """Take no messages while another master of this name, promoted since, lives: they would be lost with it."""
        if conflict is None:
            log.warning("no other master of %s any more: messages are taken again", self.config.broker_name)
            self.update_fence()
            return
        if self.group is not None:  # a leader that has lost its group commits nothing, and finds out soon
            log.warning("another member of the group may lead: %s", conflict)
            return
        if self.promotion.resting:  # it hands over, and finds out itself who is the master
            return
        log.error(
            "this master of %s is stale, and takes no messages: %s. Make it a slave with `cosmodrome admin demote %s`, "
            "or stop it and start it with brokerRole=SLAVE and brokerId=1; what only it has is then kept aside",
            self.config.broker_name,
            conflict,
            self.address,
        )
        self.update_fence()

    def update_fence(self) -> None:
        """Take no messages while another one is the master, or is about to be."""
        conflict = self.registration.conflict
        stale = f"{conflict}; this broker must become its slave" if conflict is not None else None
        if self.group is not None:
            stale = None
        self.store.fence(self.promotion.resting or stale)

    def let_go(self) -> None:
        """Answer the pulls and pops that are held, and forget who has which queue: the new master is asked for both."""
        self.locks = QueueLocks(limit=self.config.max_queue_locks)
        self._wake(self.long_polls.take_all())
        for polls in (self.pops.polls, self.pops.notifications):
            self._wake(polls.take_all())

    async def _watch_clock(self) -> None:
        """Notice soon that the machine's clock was set, and remember it."""
        timeline = self.store.timeline
        timeline.look()
        if timeline.unsaved:
            try:
                await asyncio.to_thread(timeline.save)
                self._clock_unsaved.over()
            except OSError as error:
                self._clock_unsaved.met(error)

    async def _sample(self) -> None:
        for _ in self.statistics.sampling(self.clock.steady_ms(), self.clock.now_ms()):
            await asyncio.sleep(0)

    async def _save_all(self) -> None:
        """Keep the files close behind the tables."""
        await self.store.skipped.saved()  # before anybody says how far it is
        self._settle_offsets()
        self.pops.orders.clean(self._is_known, self.store.timeline.today_ms())
        for table in self._tables():
            await table.saved()

    def _tables(self) -> tuple[SavedTable, ...]:
        return self.topics, self.groups, self.offsets, self.pops.orders, self.request_modes

    def _settle_offsets(self) -> None:
        self.offsets.settle(self.store.flusher.flushed, self.store.max_physical_offset)

    def _is_known(self, topic: str, group: str) -> bool:
        return self.topics.find_topic(topic) is not None and group in self.groups


def _wake(waiting: Sequence[Held]) -> None:
    for held in waiting:
        if not held.waiter.done():
            held.waiter.set_result(None)

"""Where a group's offsets are kept: in the brokers, or in a file of a consumer that gets everything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cosmodrome import state_file
from cosmodrome.client.described import described_queue
from cosmodrome.client.instance import Instance, stable_client_id
from cosmodrome.client.one_owner import OneOwner
from cosmodrome.client.own_offsets import OffsetStore, OwnOffsets
from cosmodrome.client.pulling import pull
from cosmodrome.client.time_search import first_since
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import BrokerError, ClientError, ConfigError, CosmodromeError, ProtocolError
from cosmodrome.model import ALL_TAGS, MASTER_ID, RETRY_PREFIX, ConsumeFrom, MessageModel, MessageQueue
from cosmodrome.wire.bodies import ResetOffsets
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.record import head_at
from cosmodrome.wire.requests import (
    OffsetReply,
    PullFlag,
    PullMessage,
    QueryConsumerOffset,
    QueueHeader,
    SearchOffset,
    UpdateConsumerOffset,
)

log = logging.getLogger(__name__)

OFFSET_TIMEOUT_MS = 5_000
# Where ConsumeFrom.TIMESTAMP starts unless told otherwise.
DEFAULT_LOOK_BACK_MS = 30 * 60 * 1_000

Offsets = Mapping[MessageQueue, int]
_Place = tuple[str, str]


class OffsetKeeper(Protocol):
    def open(self) -> None:
        """Begin to keep offsets; ClientError if another consumer keeps its own in the same place."""
        ...

    def close(self) -> None:
        """End it, after the last offset was stored; twice is harmless."""
        ...

    async def read(self, queue: MessageQueue) -> int | None:
        """What is stored for the group, None if nothing is; CosmodromeError if that can't be found out."""
        ...

    def carry(self, queue: MessageQueue, offset: int) -> bool:
        """Whether the pull that is about to ask a master is to bring this offset along."""
        ...

    def carried(self, queue: MessageQueue, offset: int) -> None:
        """A pull brought this offset along and was answered."""
        ...

    async def store(self, offsets: Offsets) -> None:
        """Return once the offsets are stored; CosmodromeError says why one is not."""
        ...

    async def commit(self, offsets: Offsets) -> None:
        """Return once the offsets are stored; say in the log which are not, and why."""
        ...

    async def commit_soon(self, offsets: Offsets) -> None:
        """Store the offsets without waiting for an answer; a loss is made up for by what comes later.

        Each is looked up just before it is told: the mapping may change meanwhile, and lose some.
        """
        ...


def _place(queue: MessageQueue) -> _Place:
    """Of a group's offsets of a topic in one broker."""
    return queue.topic, queue.broker_name


class BrokerOffsets:
    """In the broker that has the queue; what it has already is not told again.

    While its master is away a slave keeps them, for whoever begins to read there. A master that comes back may have
    lost some, so it is told again. As long as a broker is not known to have an offset of the topic, one is told before
    the others: of a group's first offsets that come at once, Apache's 4.9 keeps some only.
    """

    def __init__(self, instance: Instance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._confirmed: dict[MessageQueue, int] = {}  # what the broker is known to have
        self._told: dict[MessageQueue, int] = {}  # the same, or newer and on its way
        self._begun: set[_Place] = set()  # where the broker is known to have an offset
        self._beginning: dict[_Place, asyncio.Event] = {}  # where the first one is on its way
        instance.on_connection_lost += [self._confirmed.clear, self._told.clear, self._begun.clear]

    def open(self) -> None:
        """Brokers keep offsets of any number of members."""

    def close(self) -> None:
        """Nothing is held."""

    async def read(self, queue: MessageQueue) -> int | None:
        header = QueryConsumerOffset(self._group, queue.topic, queue.queue_id)
        self._forget(queue)
        try:
            offset = await ask_offset(self._instance, queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except BrokerError as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        if offset < 0:
            return None
        self._confirmed[queue] = self._told[queue] = offset
        if offset > 0:  # 0 is also said of a group that has none, if the queue is young
            self._begun.add(_place(queue))
        return offset

    def _forget(self, queue: MessageQueue) -> None:
        """Others may have told the broker since."""
        self._confirmed.pop(queue, None)
        self._told.pop(queue, None)

    def carry(self, queue: MessageQueue, offset: int) -> bool:
        if _place(queue) not in self._begun:
            return False
        self._on_its_way(queue, offset)
        return True

    def carried(self, queue: MessageQueue, offset: int) -> None:
        self._confirmed[queue] = offset

    def _on_its_way(self, queue: MessageQueue, offset: int) -> None:
        """Until it is answered, nobody knows what the broker has."""
        for known in (self._confirmed, self._told):
            if known.get(queue) != offset:
                known.pop(queue, None)

    async def store(self, offsets: Offsets) -> None:
        await self._tell(self._store, offsets)

    async def commit(self, offsets: Offsets) -> None:
        new = {queue: offset for queue, offset in offsets.items() if self._confirmed.get(queue) != offset}
        await self._tell(self._commit, new)

    async def _tell(self, store: Callable[[MessageQueue, int], Awaitable[None]], offsets: Offsets) -> None:
        told = await asyncio.gather(*(store(*offset) for offset in offsets.items()), return_exceptions=True)
        for error in told:
            if error is not None:
                raise error

    async def _commit(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self._store(queue, offset)
        except CosmodromeError as error:
            log.warning("offset not committed: %s offset=%d error=%s", self._named(queue), offset, error)
        except Exception:  # a hook may raise anything
            log.exception("offset not committed: %s offset=%d", self._named(queue), offset)

    async def _store(self, queue: MessageQueue, offset: int) -> None:
        place = _place(queue)
        if (beginning := self._beginning.get(place)) is not None:
            await beginning.wait()  # for its end, whether it succeeded or not
        elif place not in self._begun:
            self._beginning[place] = beginning = asyncio.Event()
            try:
                await self._store_now(queue, offset)
            finally:
                del self._beginning[place]
                beginning.set()
            return
        await self._store_now(queue, offset)

    async def _store_now(self, queue: MessageQueue, offset: int) -> None:
        address = self._instance.member(queue.broker_name)
        self._on_its_way(queue, offset)
        try:
            await self._instance.ask(address, self._request(queue, offset), OFFSET_TIMEOUT_MS)
        except BrokerError as refusal:
            if refusal.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            # Apache 5 makes a group at its first heartbeat, which an offset may overtake.
            await self._instance.announced(address, OFFSET_TIMEOUT_MS)
            await self._instance.ask(address, self._request(queue, offset), OFFSET_TIMEOUT_MS)
        if self._is_master(queue, address):
            self._told[queue] = self._confirmed[queue] = offset
            self._begun.add(_place(queue))

    def _is_master(self, queue: MessageQueue, address: str) -> bool:
        return address == self._instance.routes.address(queue.broker_name)

    async def commit_soon(self, offsets: Offsets) -> None:
        begun = set(self._begun)
        for queue in list(offsets):
            offset = offsets.get(queue)
            if offset is None or self._told.get(queue) == offset:
                continue
            if _place(queue) not in begun:
                begun.add(_place(queue))
                await self._commit(queue, offset)
                continue
            try:
                address = self._instance.member(queue.broker_name)
                self._on_its_way(queue, offset)
                await self._instance.caller.oneway(address, self._request(queue, offset, oneway=True))
            except ClientError as error:
                log.warning("offset not committed: %s offset=%d error=%s", self._named(queue), offset, error)
            else:
                if self._is_master(queue, address):
                    self._told[queue] = offset

    def _named(self, queue: MessageQueue) -> str:
        return described_queue(self._group, queue)

    def _request(self, queue: MessageQueue, offset: int, *, oneway: bool = False) -> Command:
        header = UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)
        return Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header, oneway=oneway)


class LocalOffsets:
    """In a file, in the layout of Java's offsets.json, replaced as a whole; the state before it is kept as `.bak`.

    Without a path they are kept in memory only. While it is open, no other consumer may open the same file.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._offsets: dict[MessageQueue, int] = {}
        if path is not None:
            self._offsets |= _load(path)
        self._saved = dict(self._offsets)
        self._saving = asyncio.Lock()
        self._owner = None if path is None else OneOwner(path)

    def open(self) -> None:
        if self._path is not None and self._owner is not None:
            self._owner.take()
            self._offsets |= _load(self._path)  # another consumer may have had it since
            self._saved = dict(self._offsets)

    def close(self) -> None:
        if self._owner is not None:
            self._owner.free()

    async def read(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def carry(self, queue: MessageQueue, offset: int) -> bool:
        return False

    def carried(self, queue: MessageQueue, offset: int) -> None:
        raise AssertionError("no pull carries what a broker does not keep")

    async def store(self, offsets: Offsets) -> None:
        self._offsets.update(offsets)
        if self._path is not None:
            # Whoever is cancelled leaves a thread behind that still writes; nobody may write beside it.
            await asyncio.shield(asyncio.create_task(self._save(self._path)))

    async def _save(self, path: Path) -> None:
        async with self._saving:
            state = dict(self._offsets)
            if state == self._saved:
                return
            try:
                await asyncio.to_thread(state_file.save, path, ResetOffsets(state).encode())
            except OSError as error:
                raise ClientError(f"{path}: {error}") from error
            self._saved = state

    async def commit(self, offsets: Offsets) -> None:
        try:
            await self.store(offsets)
        except ClientError as error:
            log.warning("offsets not saved: %s", error)

    commit_soon = commit


def _load(path: Path) -> Offsets:
    try:
        stored = state_file.load(path, ResetOffsets.decode)
    except OSError as error:
        raise ClientError(f"the offsets file cannot be read: {error}") from error
    return {} if stored is None else stored.offsets


def offset_keeper(
    model: MessageModel,
    instance: Instance,
    group: str,
    config: ClientConfig,
    *,
    file: Path | str | None,
    folder: Path | str | None,
    store: OffsetStore | None,
) -> OffsetKeeper:
    """Return where a consumer of this model keeps its offsets: its own store, its brokers, a file, or memory only."""
    if sum(given is not None for given in (file, folder, store)) > 1:
        raise ConfigError("offsets_file, offsets_dir and offset_store are three places for offsets; give one of them")
    if store is not None:
        return OwnOffsets(store, config.namespace)
    if model is MessageModel.CLUSTERING:
        if file is not None or folder is not None:
            name = "offsets_dir" if file is None else "offsets_file"
            raise ConfigError(f"{name} is for broadcasting; a group that shares its messages keeps them in brokers")
        return BrokerOffsets(instance, group)
    if folder is not None:
        file = Path(folder).expanduser() / stable_client_id(instance.ip, config) / group / "offsets.json"
    if file is None:
        log.warning("offsets kept in memory only, a restart forgets them: group=%s; give offsets_dir", group)
    return LocalOffsets(None if file is None else Path(file))


@dataclass(frozen=True, slots=True)
class StartRule:
    """Where a group begins on a queue for which no offset is stored."""

    consume_from: ConsumeFrom
    timestamp_ms: int | None = None

    async def offset(self, instance: Instance, queue: MessageQueue, group: str, clock: Clock) -> int:
        """Retry topics are read whole, except by timestamp."""
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        by_timestamp = self.consume_from is ConsumeFrom.TIMESTAMP
        if by_timestamp and not is_retry:
            since_ms = clock.now_ms() - DEFAULT_LOOK_BACK_MS if self.timestamp_ms is None else self.timestamp_ms
            return await offset_at(instance, queue, since_ms, group)
        if by_timestamp or (self.consume_from is ConsumeFrom.LAST_OFFSET and not is_retry):
            return await max_offset(instance, queue)
        return 0


async def max_offset(instance: Instance, queue: MessageQueue) -> int:
    """Behind the newest message of the queue."""
    return await ask_offset(instance, queue, RequestCode.GET_MAX_OFFSET, QueueHeader(queue.topic, queue.queue_id))


async def min_offset(instance: Instance, queue: MessageQueue) -> int:
    """Of the oldest message of the queue that is still there."""
    return await ask_offset(instance, queue, RequestCode.GET_MIN_OFFSET, QueueHeader(queue.topic, queue.queue_id))


async def offset_at(instance: Instance, queue: MessageQueue, timestamp_ms: int, group: str) -> int:
    """Of the first message of the queue that was stored at that time or later. It is looked for in the group's name."""
    newest = await max_offset(instance, queue)
    header = SearchOffset(queue.topic, queue.queue_id, timestamp_ms)
    hint = await ask_offset(instance, queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    search = first_since(timestamp_ms, hint, max(newest, 0))  # Apache says -1 of a queue it does not know
    try:
        offset = next(search)
        while True:
            offset = search.send(await _store_time(instance, queue, offset, group))
    except StopIteration as found:
        return int(found.value)


async def _store_time(instance: Instance, queue: MessageQueue, offset: int, group: str) -> int | None:
    """When the message there was stored; None when it is gone."""

    def request_to(_broker_id: int) -> PullMessage:
        where = (queue.topic, queue.queue_id, offset)
        return PullMessage(group, *where, 1, PullFlag.SUBSCRIPTION, 0, 0, subscription=ALL_TAGS)

    answer = await pull(instance, queue, MASTER_ID, request_to, OFFSET_TIMEOUT_MS)
    if answer.reply.code != ResponseCode.SUCCESS:
        return None
    body = answer.reply.body
    try:
        return head_at(body, 0, len(body)).store_timestamp
    except ProtocolError as error:
        log.error("no store time at offset %d of %s, the one behind it is asked: %s", offset, queue, error)
        return await _store_time(instance, queue, max(offset + 1, answer.offsets.next_begin_offset), group)


async def ask_offset(instance: Instance, queue: MessageQueue, code: RequestCode, header: Header) -> int:
    address = instance.member(queue.broker_name)
    reply = await instance.ask(address, Command.request(code, header), OFFSET_TIMEOUT_MS)
    return OffsetReply.decode(reply).offset

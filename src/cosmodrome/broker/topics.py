"""The topics of this broker: who may send where, and which come into being by themselves."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from cosmodrome import state_file
from cosmodrome.broker.pop.messages import revive_topic
from cosmodrome.broker.tables import SavedTable
from cosmodrome.broker.topic_attributes import problem_of, stops_start
from cosmodrome.clock import Clock
from cosmodrome.config import MIB, BrokerConfig
from cosmodrome.errors import (
    InvalidParameter,
    LimitReached,
    NoPermission,
    ServiceNotAvailable,
    StoreError,
    TopicNotFound,
)
from cosmodrome.model import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    MAX_QUEUES,
    MEMBER_TOPIC_PREFIX,
    NOT_SENDABLE_TOPICS,
    OFFSET_MOVED_EVENT,
    OP_HALF_TOPIC,
    READ_WRITE,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    Perm,
    TopicConfig,
    TopicFlag,
    check_topic,
    dead_letter_topic,
    is_broker_only,
    retry_topic,
)
from cosmodrome.wire import fastjson
from cosmodrome.wire.bodies import TopicConfigWrapper

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMER_TOPIC = "rmq_sys_wheel_timer"

MAX_ENCODED_BYTES = 15 * MIB  # all topics travel to name servers in one frame, of 16 MiB at most
DELAY_LEVELS = 18
BENCHMARK_QUEUES = 1_024
CLUSTER_TOPIC_QUEUES = 16


def check_config(config: TopicConfig) -> None:
    """Refuse a topic with an illegal name, number of queues or permission."""
    check_topic(config.name)
    if not (0 <= config.read_queues <= MAX_QUEUES and 0 <= config.write_queues <= MAX_QUEUES):
        raise InvalidParameter(f"topic {config.name}: queue counts must be 0 to {MAX_QUEUES}")
    if not 0 <= config.perm <= (Perm.READ | Perm.WRITE | Perm.INHERIT):
        raise InvalidParameter(f"topic {config.name}: perm {config.perm} is not one of 0 to 7")


class Topics(SavedTable):
    """Topic name → config. `on_change` is called after every change, so that name servers hear of it."""

    def __init__(self, config: BrokerConfig, path: Path, clock: Clock, on_change: Callable[[], None]) -> None:
        super().__init__(path, clock)
        self._config = config
        self._on_change = on_change
        self._topics: dict[str, TopicConfig] = {}
        self._encoded_bytes = 0  # of all topics, about
        self._leaving: Counter[str] = Counter()  # topic → how many delete its queues
        self.made: dict[str, int] = {}  # topic → the change that made or changed it, since all were on disk
        self._open: set[str] = set()  # of those, what clients have been let send to
        stored = state_file.load(path, TopicConfigWrapper.decode)
        if stored is not None:
            self._topics.update(stored.topics)
            _refuse_others(path, stored.topics.values())
            for topic, _, problem in _problems(stored.topics.values()):
                log.warning("topic attribute without effect: topic=%s file=%s: %s", topic.name, path, problem)
            self._encoded_bytes = sum(map(_encoded_bytes, self._topics.values()))
            self.data_version = stored.data_version
        self.add_reserved()

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    @contextmanager
    def leaving(self, names: Collection[str]) -> Iterator[None]:
        """Let topics of these names not be made in the block, while their queues are deleted in steps: what was sent
        to the new topic could go into an old queue, and with it."""
        self._leaving.update(names)
        try:
            yield
        finally:
            self._leaving -= Counter(names)

    def is_unsaved(self, name: str) -> bool:
        """The topic was made or changed, and that is not on disk yet. Other topics' changes are no matter."""
        if not self.made:
            return False
        if not self.unsaved:
            self.made.clear()
            return False
        return self.made.get(name, 0) > self._changes_on_disk

    def check_room(self, name: str) -> None:
        """Refuse a topic more when there are too many, or when they would not fit into a registration."""
        if name in self._topics:
            return
        if name in self._leaving:
            raise ServiceNotAvailable(f"topic {name} is being deleted; try again in a moment")
        limit = self._config.max_topics
        if len(self._topics) >= limit:
            raise LimitReached(f"topic {name} is not made: there are {len(self._topics)}, and maxTopics allows {limit}")
        if self._encoded_bytes > MAX_ENCODED_BYTES:
            raise LimitReached(
                f"topic {name} is not made: the {len(self._topics)} topics that are there take {self._encoded_bytes} "
                "bytes, and a name server takes no more at once. Delete some"
            )

    def find_topic(self, name: str) -> TopicConfig | None:
        return self._topics.get(name)

    def topic(self, name: str) -> TopicConfig:
        found = self._topics.get(name)
        if found is None:
            raise TopicNotFound(name)
        return found

    def sendable(self, name: str, template: str, queues_wanted: int, unit_mode: bool = False) -> TopicConfig:
        """The topic to send to, created from `template` when it may be; a client of a unit marks what it creates."""
        found = self._topics.get(name)
        if name not in self._open:  # whatever was sent to before is
            self._check_open(name)
        if found is None:
            check_topic(name)
            found = self._create_in_send(name, template, queues_wanted, unit_mode)
        return check_writable(found)

    def _check_open(self, name: str) -> None:
        if is_broker_only(name) and not self._is_for_traces(name):
            raise NoPermission(f"Sending message to topic[{name}] is forbidden: only the broker itself writes to it.")
        if name in self._topics:
            self._open.add(name)

    def _create_in_send(self, name: str, template_name: str, queues_wanted: int, unit_mode: bool) -> TopicConfig:
        self.check_room(name)
        template = self._topics.get(template_name)
        unit_flag = TopicFlag.UNIT_SUBSCRIPTION if name.startswith(RETRY_PREFIX) else TopicFlag.UNIT
        flag = int(unit_flag) if unit_mode else 0
        if template is not None and template.inheritable and self._may_inherit(template_name):
            queues = max(1, min(queues_wanted, template.write_queues))
            perm = template.perm & ~Perm.INHERIT
            return self.put(TopicConfig(name, queues, queues, perm, sys_flag=template.sys_flag | flag))
        if name.startswith(RETRY_PREFIX):
            return self.put(TopicConfig(name, 1, 1, sys_flag=flag))
        raise TopicNotFound(name)

    def use_config(self, config: BrokerConfig) -> None:
        """Obey a config that was changed; the template of new topics is made if they are now made automatically."""
        self._config = config
        if config.auto_create_topic_enable and AUTO_CREATE_TOPIC not in self._topics:
            queues = config.default_topic_queue_nums
            self.put(TopicConfig(AUTO_CREATE_TOPIC, queues, queues, READ_WRITE | Perm.INHERIT))

    def _may_inherit(self, template_name: str) -> bool:
        return self._config.auto_create_topic_enable or template_name != AUTO_CREATE_TOPIC

    def ensure_retry_topic(self, group: str, queues: int, unit_mode: bool = False) -> TopicConfig:
        name = retry_topic(group)
        flag = int(TopicFlag.UNIT_SUBSCRIPTION) if unit_mode else 0
        found = self._topics.get(name)
        if found is None:
            self.check_room(check_topic(name))
            found = self.put(TopicConfig(name, queues, queues, sys_flag=flag))
        return found

    def ensure_dead_letter_topic(self, group: str) -> TopicConfig:
        name = dead_letter_topic(group)
        found = self._topics.get(name)
        if found is None and name in self._leaving:
            raise ServiceNotAvailable(f"topic {name} is being deleted; try again in a moment")
        return found or self.put(TopicConfig(check_topic(name), 1, 1))

    def put(self, config: TopicConfig) -> TopicConfig:
        """Create or replace a topic; putting what is there already changes nothing."""
        check_config(config)
        if (before := self._topics.get(config.name)) != config:
            log.info("topic %s", config)
            self._encoded_bytes += _encoded_bytes(config) - (_encoded_bytes(before) if before is not None else 0)
            self._topics[config.name] = config
            self.changed()
            self.made[config.name] = self._changes
            self._on_change()
        return config

    def adopt(self, table: TopicConfigWrapper) -> None:
        """Take over the topics of a slave's master; those that it does not have are gone."""
        if table.data_version == self.data_version:
            return
        _refuse_others("the master's topics", table.topics.values())
        for name in [*(self._topics.keys() - table.topics.keys())]:
            log.info("topic %s deleted: the master has it no more", name)
        self._topics = dict(table.topics)
        self._encoded_bytes = sum(map(_encoded_bytes, self._topics.values()))
        self._open.clear()
        self.made.clear()
        self.replaced(table.data_version)
        self._on_change()

    def mark_orderly(self, names: Iterable[str]) -> None:
        """Note that these topics are orderly, as far as they are here; none ceases to be by being left out."""
        for name in names:
            known = self._topics.get(name)
            if known is not None and not known.order:
                self.put(dataclasses.replace(known, order=True))

    def delete(self, name: str) -> None:
        self._open.discard(name)
        if (gone := self._topics.pop(name, None)) is not None:
            self._encoded_bytes -= _encoded_bytes(gone)
            self.made.pop(name, None)
            log.info("topic %s deleted", name)
            self.changed()
            self._on_change()

    def is_system(self, name: str) -> bool:
        return (
            name in SYSTEM_TOPICS
            or name.startswith(SYSTEM_PREFIX)
            or name in (self._config.broker_cluster_name, self._config.broker_name, self._reply_topic)
        )

    def _is_for_traces(self, name: str) -> bool:
        """Return whether an operator chose this name for traces; not if the broker keeps something else in it."""
        own = (*NOT_SENDABLE_TOPICS, TIMER_TOPIC, revive_topic(self._config.broker_cluster_name))
        return name == self._config.msg_trace_topic_name and name not in own

    @property
    def _reply_topic(self) -> str:
        return f"{self._config.broker_cluster_name}_REPLY_TOPIC"

    def add_reserved(self) -> None:
        """Add the topics every Apache broker has. A stored one keeps its settings; only the queue counts of TBW102
        follow the config. What it permits is the operator's: without INHERIT, no topic is made by a send."""
        for config in self._reserved():
            stored = self._topics.get(config.name)
            if not _is_topic_name(config.name):
                log.warning("no topic %s: a broker or cluster may be called so, a topic may not", config.name)
            elif stored is None:
                self.put(config)
            elif config.name == AUTO_CREATE_TOPIC:
                queues = config.write_queues
                self.put(dataclasses.replace(stored, read_queues=queues, write_queues=queues))
                if not stored.inheritable:
                    log.warning(
                        "automatic topic creation is off: topic=%s perm=%d file=%s",
                        stored.name,
                        stored.perm,
                        self._path,
                    )

    def _reserved(self) -> Iterator[TopicConfig]:
        config = self._config
        inherited = READ_WRITE | Perm.INHERIT
        cluster_perm = inherited if config.cluster_topic_enable else Perm.INHERIT
        broker_perm = READ_WRITE if config.broker_topic_enable else Perm.INHERIT
        if config.auto_create_topic_enable:
            queues = config.default_topic_queue_nums
            yield TopicConfig(AUTO_CREATE_TOPIC, queues, queues, inherited)
        yield TopicConfig(config.broker_cluster_name, CLUSTER_TOPIC_QUEUES, CLUSTER_TOPIC_QUEUES, cluster_perm)
        yield TopicConfig(config.broker_name, 1, 1, broker_perm)
        if config.enable_slave_acting_master:
            yield TopicConfig(MEMBER_TOPIC_PREFIX + config.broker_name, 1, 1, Perm.INHERIT)
        if config.trace_topic_enable:
            yield TopicConfig(config.msg_trace_topic_name, 1, 1)
        yield TopicConfig(BENCHMARK_TOPIC, BENCHMARK_QUEUES, BENCHMARK_QUEUES)
        yield TopicConfig(SCHEDULE_TOPIC, DELAY_LEVELS, DELAY_LEVELS)
        yield TopicConfig(revive_topic(config.broker_cluster_name), config.revive_queue_num, config.revive_queue_num)
        for name in (
            SELF_TEST_TOPIC,
            OFFSET_MOVED_EVENT,
            self._reply_topic,
            HALF_TOPIC,
            OP_HALF_TOPIC,
            TIMER_TOPIC,
        ):
            yield TopicConfig(name, 1, 1)

    def encoded(self) -> bytes:
        return self.snapshot()()

    def snapshot(self) -> Callable[[], bytes]:
        return partial(TopicConfigWrapper(self.data_version, dict(self._topics)).encode, pretty=True)


def _encoded_bytes(topic: TopicConfig) -> int:
    """About what a topic takes in a registration."""
    attributes = sum(len(key) + len(value) + 6 for key, value in topic.attributes.items())
    return 2 * len(topic.name) + 160 + attributes


def check_tables(folder: Path) -> None:
    """StoreError if the stored tables have topics that this version cannot serve; bad files are left to `Topics`.

    It comes before the store is opened, and changes nothing: a recovery would write to the queues of such topics.
    """
    stored = _read(folder / "topics.json", TopicConfigWrapper.decode)
    if stored is not None:
        _refuse_others(folder / "topics.json", stored.topics.values())
    mappings = _read(folder / "topicQueueMapping.json", fastjson.loads)
    static = mappings.get("topicQueueMappingInfoMap") if isinstance(mappings, dict) else None
    if static:
        raise StoreError(
            f"{folder / 'topicQueueMapping.json'}: {', '.join(map(str, static))}: static topics are not supported. "
            "Their offsets are not those of the queues here, so groups would skip messages or get them again. Delete "
            "the topics with the broker that made them"
        )


def _read(path: Path, parse: Callable[[bytes], T]) -> T | None:
    try:
        return parse(path.read_bytes())
    except Exception:  # there is none, or whatever a parser makes of garbage
        return None


def _refuse_others(where: Path | str, topics: Iterable[TopicConfig]) -> None:
    """Refuse topics whose attributes say that their files, or the lives of their messages, are others than here."""
    refused = [f"topic {topic.name}: {problem}" for topic, name, problem in _problems(topics) if stops_start(name)]
    if refused:
        raise StoreError(
            f"{where}: {'; '.join(refused)}. Delete the topics with the broker that made them, or take the attributes "
            "out of the file if it was never used"
        )


def _problems(topics: Iterable[TopicConfig]) -> Iterator[tuple[TopicConfig, str, str]]:
    """The attributes that are not kept: topic, name, and why."""
    for topic in topics:
        for name, value in topic.attributes.items():
            if problem := problem_of(name, value):
                yield topic, name, problem


def check_writable(topic: TopicConfig) -> TopicConfig:
    if not topic.writable:
        raise NoPermission(f"the topic[{topic.name}] sending message is forbidden")
    return topic


def _is_topic_name(name: str) -> bool:
    try:
        check_topic(name)
    except InvalidParameter:
        return False
    return True

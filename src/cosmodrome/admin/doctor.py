"""Checks of a cluster. Pure: facts in, findings out; `facts` gathers, and `docs/doctor.md` lists the findings."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from cosmodrome.admin.facts import BrokerFacts, Facts
from cosmodrome.admin.results import Consumers, GroupProgress
from cosmodrome.model import (
    CHECK_MAX_TIME_TOPIC,
    DLQ_PREFIX,
    MASTER_ID,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    ConsumeType,
    MessageModel,
    MessageQueue,
)
from cosmodrome.numbers import parse_int

CLOCK_SKEW_MS = 5_000  # a broker tells its uptime in whole seconds
DISK_NEAR = 0.05  # this much of the disk before files are deleted early
GROWTH_MIN = 10  # messages by which a group falls back while doctor looks
JAVA_QUEUE_MESSAGES = 1_000  # pullThresholdForQueue of Java's clients
JAVA_QUEUE_MIB = 100
LOCK_RENEWED_MS = 60_000  # a lock that is not renewed for so long is another's
STEADY_GROWTH_MS = 10_000  # a sample of this length makes growth likely

_UPTIME = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_ACL_KEYS = ("aclEnable", "authenticationEnabled", "authorizationEnabled")
_DAMAGE = {
    "damagedRecords": "records of the log whose checksum does not match",
    "damagedQueueEntries": "damaged entries of queues",
    "skippedRecords": "records that the broker could not use and left out",
    "startDamagedParts": "damaged parts of the log at the last start",
    "startLostMessages": "messages lost at the last start",
}


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"  # messages are refused, not delivered or in danger
    WARNING = "warning"  # it will be, or something waits for an operator
    NOTE = "note"  # nothing is wrong


class Sure(StrEnum):
    """How sure a finding is."""

    CERTAIN = "certain"  # the cluster says so itself
    LIKELY = "likely"  # another cause would be unusual
    POSSIBLE = "possible"  # it may be over in a moment


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be: where, what was seen, what it means, and the command that mends it."""

    name: str
    severity: Severity
    sure: Sure
    subject: str
    seen: str
    means: str
    mend: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, the worst first; `left_out` names what was too much to look at."""

    findings: tuple[Finding, ...]
    brokers: int
    topics: int
    groups: int
    left_out: tuple[str, ...] = ()

    @property
    def is_well(self) -> bool:
        """Return whether nothing is wrong; notes do not count."""
        return all(one.severity is Severity.NOTE for one in self.findings)


def diagnose(facts: Facts) -> Diagnosis:
    """Return the findings of every check."""
    order = list(Severity)
    found = sorted(
        (one for check in CHECKS for one in check(facts)),
        key=lambda one: (order.index(one.severity), one.name, one.subject),
    )
    topics = {one.config.name for one in facts.topics}
    return Diagnosis(
        tuple(found), len(facts.brokers) + len(facts.silent), len(topics), len(facts.progress), facts.left_out
    )


# --- name servers and addresses


def _name_servers(facts: Facts) -> Iterator[Finding]:
    for server in facts.name_servers:
        if server.problem:
            yield Finding(
                "name-server-silent",
                Severity.ERROR,
                Sure.CERTAIN,
                f"name server {server.address}",
                f"It does not answer: {server.problem}.",
                "Clients that know only this one find no routes; brokers cannot tell it of changes.",
                "cosmodrome namesrv",
            )
    answered = [server for server in facts.name_servers if not server.problem]
    if answered and not any(server.brokers for server in answered):
        yield Finding(
            "no-brokers",
            Severity.ERROR,
            Sure.CERTAIN,
            "cluster",
            "No broker is registered.",
            "Nothing can be sent or received.",
            f"cosmodrome broker -n '{';'.join(server.address for server in answered)}' -c broker.conf",
        )


def _two_masters(facts: Facts) -> Iterator[Finding]:
    masters: dict[str, set[str]] = {}
    for server in facts.name_servers:
        for node in server.brokers:
            if node.broker_id == MASTER_ID:
                masters.setdefault(node.broker_name, set()).add(node.address)
    for broker in facts.brokers:
        if broker.role is not None and broker.role.broker_id == MASTER_ID:
            masters.setdefault(broker.node.broker_name, set()).add(broker.node.address)
    for name, addresses in sorted(masters.items()):
        if len(addresses) > 1:
            stale = _stale(facts, addresses)
            yield Finding(
                "two-masters",
                Severity.ERROR,
                Sure.CERTAIN,
                f"broker {name}",
                f"{' and '.join(sorted(addresses))} both are its master.",
                "Both take messages under the same offsets: the one that becomes a slave of the other loses its own.",
                f"cosmodrome admin demote {stale}",
            )


def _stale(facts: Facts, addresses: set[str]) -> str:
    """Return the master with the lowest term, and with the shortest log of those."""
    roles = {one.node.address: one.role for one in facts.brokers if one.role is not None}
    known = [address for address in sorted(addresses) if address in roles]
    return min(known, key=lambda one: (roles[one].term, roles[one].log_end)) if known else sorted(addresses)[-1]


def _unreachable(facts: Facts) -> Iterator[Finding]:
    for one in facts.silent:
        subject = f"broker {one.broker.broker_name} at {one.broker.address}"
        if one.broker.code:
            yield Finding(
                "broker-refuses",
                Severity.ERROR,
                Sure.CERTAIN,
                subject,
                f"It answers, and refuses with {one.broker.code}: {one.broker.reason}.",
                "It cannot be looked at with these keys; clients without a key are refused as well.",
                "give --credentials FILE of an account that is admin",
            )
            continue
        if one.elsewhere:
            host = one.elsewhere.rpartition(":")[0]
            yield Finding(
                "behind-nat",
                Severity.ERROR,
                Sure.CERTAIN,
                subject,
                f"It advertises an address that is not reached from here, but answers at {one.elsewhere}.",
                "Name servers hand out the advertised address, so clients out here cannot send to it or read from it.",
                f"set brokerIP1={host} in its broker.conf and restart it",
            )
            continue
        yield Finding(
            "broker-unreachable",
            Severity.ERROR,
            Sure.CERTAIN,
            subject,
            f"It is registered and does not answer: {one.broker.reason}.",
            _unreachable_means(one.broker.address),
            "start it, open its port, or set brokerIP1 in its broker.conf to an address that clients reach",
        )


def _unreachable_means(address: str) -> str:
    text = "Messages cannot be sent to it or read from it from here."
    try:
        host = ipaddress.ip_address(address.rpartition(":")[0])
    except ValueError:
        return text
    if host.is_loopback:
        return f"{text} Its address means every client's own machine: nobody elsewhere reaches it."
    return (
        f"{text} Its address is of a private network, and may be reached from inside only." if host.is_private else text
    )


def _routes(facts: Facts) -> Iterator[Finding]:
    names = {one.config.name for one in facts.topics}
    on: dict[str, set[str]] = {}
    for one in facts.topics:
        on.setdefault(one.config.name, set()).add(one.node.broker_name)
    for topic in sorted(names - facts.routed_topics):
        yield Finding(
            "no-route",
            Severity.ERROR,
            Sure.LIKELY,
            f"topic {topic}",
            f"{', '.join(sorted(on[topic]))} has it, and the name server does not know it.",
            "Clients cannot find it. Perhaps it was deleted at the name server alone; brokers register again in 30 s.",
            f"cosmodrome topics create {topic}",
        )
    for group, members in sorted(facts.members.items()):
        for subscription in members.subscriptions:
            topic = subscription.topic
            if topic not in names and topic not in facts.routed_topics and not topic.startswith(RETRY_PREFIX):
                yield Finding(
                    "no-route",
                    Severity.ERROR,
                    Sure.CERTAIN,
                    f"topic {topic}",
                    f"Group {group} subscribes to it, and no broker has it.",
                    "The group receives nothing of it until it is created.",
                    f"cosmodrome topics create {topic}",
                )


# --- brokers


def _clocks(facts: Facts) -> Iterator[Finding]:
    for broker in facts.brokers:
        uptime = _UPTIME.fullmatch(broker.figures.get("runtime", ""))
        born_ms = parse_int(broker.figures.get("bootTimestamp", ""))
        if uptime is None or born_ms is None:
            continue
        days, hours, minutes, seconds = map(int, uptime.groups())
        up_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000
        ahead_ms = born_ms + up_ms - broker.asked_ms
        if abs(ahead_ms) > CLOCK_SKEW_MS:
            side = "ahead of" if ahead_ms > 0 else "behind"
            yield Finding(
                "clock-skew",
                Severity.WARNING,
                Sure.LIKELY,
                _named(broker),
                f"Its clock is {abs(ahead_ms) / 1_000:.0f} s {side} the one here.",
                "Delays, retention, searches by time and lag in seconds are wrong by as much.",
                "chronyc makestep    # on the machine whose clock is wrong; let NTP keep it",
            )


def _disks(facts: Facts) -> Iterator[Finding]:
    for broker in facts.brokers:
        used = _real(broker.figures.get("commitLogDiskRatio", ""))
        cleaned_at = (_number(broker.settings, "diskMaxUsedSpaceRatio") or 75) / 100
        refused_at = (_number(broker.settings, "diskSpaceWarningLevelRatio") or 90) / 100
        folder = broker.settings.get("storePathRootDir", "the store's folder")
        kept = broker.settings.get("fileReservedTime", "?")
        if used >= refused_at:
            yield Finding(
                "disk-full",
                Severity.ERROR,
                Sure.CERTAIN,
                _named(broker),
                f"{used:.0%} of its disk is used; from {refused_at:.0%} on it takes no messages.",
                "Sends fail, and the oldest messages are deleted whether they were consumed or not.",
                f"make room in {folder}, or lower fileReservedTime (now {kept} h)",
            )
        elif used >= cleaned_at - DISK_NEAR:
            yield Finding(
                "disk-near-limit",
                Severity.WARNING,
                Sure.CERTAIN,
                _named(broker),
                f"{used:.0%} of its disk is used; from {cleaned_at:.0%} on old files are deleted before their time.",
                "Groups that are far behind lose messages soon.",
                f"make room in {folder}, or lower fileReservedTime (now {kept} h)",
            )


def _copies(facts: Facts) -> Iterator[Finding]:
    for broker in facts.brokers:
        if broker.settings.get("brokerRole") != "SYNC_MASTER" or broker.copies is None:
            continue
        in_sync = 1 + sum(slave.in_sync for slave in broker.copies.slaves)
        needed = max(_number(broker.settings, "inSyncReplicas") or 0, 2)
        if in_sync < needed:
            yield Finding(
                "sync-master-without-slave",
                Severity.ERROR,
                Sure.CERTAIN,
                _named(broker),
                f"A SYNC_MASTER with {in_sync} of {needed} copies, its own included.",
                "Producers get SLAVE_NOT_AVAILABLE or FLUSH_SLAVE_TIMEOUT; messages have fewer copies than asked for.",
                f"cosmodrome broker --name {broker.node.broker_name} --role SLAVE --id 1 -c slave.conf",
            )


def _access(facts: Facts) -> Iterator[Finding]:
    by_cluster: dict[str, list[BrokerFacts]] = {}
    for broker in facts.brokers:
        if broker.settings:
            by_cluster.setdefault(broker.node.cluster, []).append(broker)
    for cluster, brokers in sorted(by_cluster.items()):
        for key in _ACL_KEYS:
            closed = sorted({_named(one) for one in brokers if one.settings.get(key) == "true"})
            open_ = sorted({_named(one) for one in brokers if one.settings.get(key, "false") == "false"})
            if closed and open_:
                yield Finding(
                    "acl-half-enabled",
                    Severity.ERROR,
                    Sure.CERTAIN,
                    f"cluster {cluster}",
                    f"{key} is true on {', '.join(closed)} and not on {', '.join(open_)}.",
                    "Without a key, all topics that the open brokers have can be read and written.",
                    f"set {key}=true in broker.conf of {', '.join(open_)} and restart",
                )
    for broker in facts.brokers:
        checks, asks = (broker.settings.get(key) == "true" for key in ("authorizationEnabled", "authenticationEnabled"))
        if checks and not asks:
            yield Finding(
                "acl-half-enabled",
                Severity.ERROR,
                Sure.CERTAIN,
                _named(broker),
                "authorizationEnabled is true and authenticationEnabled is not.",
                "Permissions are checked of names that nobody has proven.",
                "set authenticationEnabled=true in its broker.conf and restart it",
            )


def _stores(facts: Facts) -> Iterator[Finding]:
    for broker in facts.brokers:
        counts = {key: _number(broker.figures, key) or 0 for key in _DAMAGE}
        if any(counts.values()):
            seen = "; ".join(f"{count} {_DAMAGE[key]}" for key, count in counts.items() if count)
            yield Finding(
                "store-not-sound",
                Severity.ERROR,
                Sure.CERTAIN,
                _named(broker),
                f"Its store has {seen}.",
                "Its disk or file system changes what was written; consumers are not given damaged messages.",
                f"cosmodrome store verify {broker.settings.get('storePathRootDir', 'DIR')}",
            )


# --- groups


def _groups(facts: Facts) -> Iterator[Finding]:
    for group, progress in sorted(facts.progress.items()):
        members = facts.members.get(group)
        if group.startswith(SYSTEM_GROUP_PREFIX) or members is None:
            continue
        if not members.clients:
            if progress.lag:
                yield _without_members(progress)
            continue
        yield from _growing(facts, progress)
    for _, members in sorted(facts.members.items()):
        if members.disagreement:
            yield _disagreeing(members)
        yield from _idle_members(facts, members)


def _without_members(progress: GroupProgress) -> Finding:
    return Finding(
        "group-without-members",
        Severity.WARNING,
        Sure.CERTAIN,
        f"group {progress.group}",
        f"{progress.lag} messages wait for it, and no member of it is connected.",
        "They wait until a member comes, or are deleted when they are old enough.",
        f"start a consumer of the group, or forget it: cosmodrome groups delete {progress.group}",
    )


def _growing(facts: Facts, progress: GroupProgress) -> Iterator[Finding]:
    before = facts.earlier.get(progress.group)
    growth = _behind(progress) - _behind(before) if before is not None else 0
    if growth < GROWTH_MIN or not facts.sample_ms:
        return
    yield Finding(
        "lag-growing",
        Severity.WARNING,
        Sure.LIKELY if facts.sample_ms >= STEADY_GROWTH_MS else Sure.POSSIBLE,
        f"group {progress.group}",
        f"It is {progress.lag} messages behind, and {growth} more after {facts.sample_ms / 1_000:.1f} s.",
        "More is sent than the group consumes; if it stays so, messages are delivered later and later.",
        f"add members, or handle messages faster; cosmodrome groups describe {progress.group}",
    )


def _behind(progress: GroupProgress) -> int:
    """Return the messages that no member has been given: members commit only every few seconds."""
    return sum(max(one.broker_offset - max(one.pull_offset, one.consumer_offset), 0) for one in progress.queues)


def _disagreeing(members: Consumers) -> Finding:
    wants = "; ".join(f"{client} wants {text}" for client, text in sorted(members.disagreement.items())[:3])
    return Finding(
        "inconsistent-subscriptions",
        Severity.ERROR,
        Sure.CERTAIN,
        f"group {members.group}",
        f"Its members subscribe to different things: {wants}.",
        "The last heartbeat wins: members get what others asked for, and pass over what they did not ask for.",
        "give members with other subscriptions a group of their own, and restart them",
    )


def _idle_members(facts: Facts, members: Consumers) -> Iterator[Finding]:
    if members.message_model is MessageModel.BROADCASTING or members.consume_type is ConsumeType.POP:
        return
    for subscription in members.subscriptions:
        topic = subscription.topic
        if topic.startswith(RETRY_PREFIX):
            continue
        queues = sum(one.config.read_queues for one in facts.topics if one.config.name == topic and one.config.readable)
        if queues and len(members.clients) > queues:
            yield Finding(
                "more-members-than-queues",
                Severity.WARNING,
                Sure.CERTAIN,
                f"group {members.group}",
                f"{len(members.clients)} members share the {queues} queues of {topic}.",
                f"{len(members.clients) - queues} of them get nothing.",
                f"cosmodrome topics alter {topic} --queues {len(members.clients)} --yes",
            )


def _held_queues(facts: Facts) -> Iterator[Finding]:
    for (group, client), info in sorted(facts.running.items()):
        held, told = [], ""
        for queue, state in sorted(info.queues.items()):
            if state.flow_control:
                told = told or state.flow_control
            elif state.cached_count >= JAVA_QUEUE_MESSAGES or state.cached_mib >= JAVA_QUEUE_MIB:
                told = told or f"{state.cached_count} messages, {state.cached_mib} MiB"
            else:
                continue
            held.append(_place(queue))
        if held:
            yield Finding(
                "queue-held",
                Severity.WARNING,
                Sure.CERTAIN if told.startswith("limit=") else Sure.LIKELY,
                f"group {group}",
                f"{client} holds as much as it may of {_listed(held)}: {told}.",
                "It asks for no more until its handlers are done with what it holds: they are slow, or they hang.",
                f"cosmodrome groups describe {group}    # then look at the stacks of {client}",
            )


def _locks(facts: Facts) -> Iterator[Finding]:
    """Yield orderly groups with queues that wait and that no member owns; every member must have answered."""
    for group, members in sorted(facts.members.items()):
        infos = [facts.running.get((group, client.client_id)) for client in members.clients]
        told = [info for info in infos if info is not None and info.properties.get("PROP_CONSUMEORDERLY") == "true"]
        if not told or len(told) < len(infos) or group not in facts.progress:
            continue
        owned = {
            queue
            for info in told
            for queue, state in info.queues.items()
            if state.locked and facts.now_ms - state.last_lock_timestamp < LOCK_RENEWED_MS
        }
        topics = {one.topic for one in members.subscriptions if not one.topic.startswith(RETRY_PREFIX)}
        waiting = [
            _place(queue)
            for one in facts.progress[group].queues
            if one.lag and one.topic in topics
            for queue in [MessageQueue(one.topic, one.broker_name, one.queue_id)]
            if queue not in owned
        ]
        if waiting:
            yield Finding(
                "orderly-lock-stuck",
                Severity.ERROR,
                Sure.LIKELY,
                f"group {group}",
                f"Messages wait in {_listed(waiting)}, and no member of the orderly group has the lock of it.",
                "Another client has the lock. A client that left without a goodbye loses it within a minute; "
                "one that hangs keeps it.",
                f"cosmodrome groups describe {group}    # restart the member that does not answer",
            )


def _place(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# --- messages that wait for an operator


def _waiting(facts: Facts) -> Iterator[Finding]:
    for topic, count in sorted(facts.stored.items()):
        if count and topic.startswith(DLQ_PREFIX):
            group = topic.removeprefix(DLQ_PREFIX)
            yield Finding(
                "dead-letters",
                Severity.WARNING,
                Sure.CERTAIN,
                f"group {group}",
                f"{count} messages that it has failed to handle as often as it may.",
                "Nothing delivers them again by itself; they are deleted when they are old enough.",
                f"cosmodrome dlq read {group}",
            )
        elif count and topic == CHECK_MAX_TIME_TOPIC:
            yield Finding(
                "transactions-never-ended",
                Severity.WARNING,
                Sure.CERTAIN,
                f"topic {topic}",
                f"{count} half messages whose producers never said commit or rollback, though asked again and again.",
                "They are not delivered. Producers of the group are gone, or do not answer when they are asked.",
                f"cosmodrome tail {topic} --from earliest",
            )


# --- helpers


def _named(broker: BrokerFacts) -> str:
    node = broker.node
    return f"broker {node.broker_name}" + (f" (slave {node.broker_id})" if node.broker_id != MASTER_ID else "")


def _number(table: Mapping[str, str], key: str) -> int | None:
    return parse_int(table.get(key, ""))


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _name_servers,
    _two_masters,
    _unreachable,
    _routes,
    _clocks,
    _disks,
    _copies,
    _access,
    _stores,
    _groups,
    _held_queues,
    _locks,
    _waiting,
)

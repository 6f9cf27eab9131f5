"""Java and Python members of one orderly group keep the order of every key, whoever comes, goes or is killed."""

from collections.abc import Callable, Iterable

import pytest

from cosmodrome import MessageQueue
from interop.lab import IN_EAST, Lab
from interop.mixed import Delivery, Member, MixedGroups, OrderedSender, wait_until
from interop.setup import CLIENT_VERSIONS

COUNT = 100_000
QUEUES = 16
KEYS = 64
AT_WORK = 300
# A killed member's locks live for a minute in a broker.
DRAIN_TIMEOUT_S = 150

pytestmark = pytest.mark.full

Fresh = Callable[[str], str]


@pytest.mark.parametrize("name", IN_EAST)
def test_the_order_of_every_key_holds(lab: Lab, fresh: Fresh, capsys: pytest.CaptureFixture[str], name: str) -> None:
    cluster, topic, group = lab.cluster(name), fresh("topic"), fresh("group")
    old, new = CLIENT_VERSIONS
    lab.query(cluster, new).call("createTopic", addr=cluster.broker_address, topic=topic, queues=QUEUES)
    queues = [MessageQueue(topic, cluster.broker_name, number) for number in range(QUEUES)]
    strategies = {group: "AVG_BY_CIRCLE"}

    with MixedGroups(cluster.namesrv, queues, lab.fresh_home) as groups:
        with OrderedSender(cluster.namesrv, queues, KEYS, COUNT) as sender:
            sender.wait_sent(COUNT // 2, DRAIN_TIMEOUT_S)
            java = groups.start_java(old, "java-0", strategies, orderly=True)
            python = groups.start_ours("python-0", strategies, orderly=True)
            leaver = groups.start_ours("python-1", strategies, orderly=True)
            for member in (java, python, leaver):
                wait_at_work(member)
            groups.kill(java)
            groups.kill(python)
            wait_at_work(groups.start_java(new, "java-1", strategies, orderly=True))
            sender.hurry()
            groups.leave(leaver)
            groups.start_ours("python-2", strategies, orderly=True)
            sender.wait_sent(COUNT, DRAIN_TIMEOUT_S)
        groups.wait_ready()
        groups.wait_settled(DRAIN_TIMEOUT_S)
        groups.wait_all_received(COUNT, DRAIN_TIMEOUT_S)

        restarts, repeated = check_order(groups.deliveries(group)), len(groups.repeated(group))
        with capsys.disabled():
            print(f"\n{name}: {COUNT} messages, {repeated} again, in {restarts} restarts of a key", end="")


def wait_at_work(member: Member) -> None:
    """Until it has handled some messages more."""
    wanted = len(member.deliveries) + AT_WORK
    wait_until(
        lambda: len(member.deliveries) >= wanted,
        lambda: f"{member.name} has handled {len(member.deliveries)} messages",
        DRAIN_TIMEOUT_S,
    )


def check_order(deliveries: Iterable[Delivery]) -> int:
    """Within a key, what comes is the next one, or one that came before and from which it goes on: how often that."""
    last: dict[int, int] = {}
    restarts = 0
    for delivery in deliveries:
        key = delivery.index % KEYS
        wanted = last.get(key, key - KEYS) + KEYS
        assert delivery.index <= wanted, f"{delivery} came before {wanted} of the same key"
        restarts += delivery.index < wanted
        last[key] = delivery.index
    return restarts

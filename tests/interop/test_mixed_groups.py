"""Java and Python members in one group share the queues, whoever comes, goes or is killed, at any broker."""

from collections import Counter
from collections.abc import Callable

import pytest

from cosmodrome import MessageQueue
from interop.lab import IN_EAST, Lab
from interop.mixed import MixedGroups, Sender
from interop.setup import CLIENT_VERSIONS
from interop.strategies import by_config

QUEUES = 12
SEATS = 4
SHARED = {
    "avg": "AVG",
    "circle": "AVG_BY_CIRCLE",
    "hash": "CONSISTENT_HASH:10",
    "room": "MACHINE_ROOM:east,west",
    "nearby": "MACHINE_ROOM_NEARBY:AVG",
}
CONFIG = "config"

Fresh = Callable[[str], str]


@pytest.mark.parametrize("name", [IN_EAST[0], *(pytest.param(name, marks=pytest.mark.full) for name in IN_EAST[1:])])
def test_every_queue_has_one_owner_and_no_message_is_lost(
    lab: Lab, fresh: Fresh, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    cluster, topic, prefix = lab.cluster(name), fresh("topic"), fresh("group")
    old, new = CLIENT_VERSIONS
    lab.query(cluster, new).call("createTopic", addr=cluster.broker_address, topic=topic, queues=QUEUES)
    queues = [MessageQueue(topic, cluster.broker_name, number) for number in range(QUEUES)]

    def strategies(seat: int) -> dict[str, str]:
        """By config the queues are tied to seats, and one that is empty has no reader until somebody sits down."""
        mine = by_config(queues[seat::SEATS])
        return {f"{prefix}-{group}": text for group, text in {**SHARED, CONFIG: mine}.items()}

    with MixedGroups(cluster.namesrv, queues, lab.fresh_home) as groups, Sender(cluster.namesrv, topic) as sender:

        def settle() -> None:
            groups.wait_ready()
            groups.stay_quiet(sender)
            for group in groups.groups:
                owners = groups.owners(group)
                assert {*owners.values()} == {1}, (group, owners)
                assert group.endswith(CONFIG) or len(owners) == QUEUES, (group, owners)

        java = groups.start_java(old, "east-java-0", strategies(0))
        python = groups.start_ours("west-python-1", strategies(1))
        settle()
        groups.start_java(new, "west-java-2", strategies(2))
        doomed = groups.start_ours("east-python-3", strategies(3))
        settle()
        groups.leave(python)
        settle()
        groups.kill(java)
        settle()
        groups.kill(doomed)
        settle()
        groups.start_java(old, "north-java-0", strategies(0))
        groups.start_ours("north-python-1", strategies(1))
        groups.start_ours("west-python-3", strategies(3))
        settle()
        sender.stop()
        groups.wait_all_received(sender.sent)

        for group in groups.groups:
            repeated = groups.repeated(group)
            assert not [delivery for delivery in repeated if groups.was_quiet(delivery.at_ns)]
            times = Counter(groups.change_before(delivery.at_ns) for delivery in repeated)
            with capsys.disabled():
                print(f"\n{name} {group}: {sender.sent} messages, {len(repeated)} again, after a {dict(times)}", end="")

"""A slave follows a master that the other project wrote, byte for byte, through kills of either side."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from interop.apache import wait_settled
from interop.messages import index_of
from interop.our_client import receive_ours
from interop.ours import CosmodromeNameServer
from interop.replicas import OURS, Replica, check_equal, send_mixed, wait_level
from interop.setup import SERVER_VERSIONS

COUNT, MANY = 4_000, 100_000
TOPIC = "mixed"
TABLES_TIMEOUT_S = 120

# Who is master, and who follows it.
PAIRS = [
    pytest.param(*pair, id=f"{pair[0]}-then-{pair[1]}")
    for version in SERVER_VERSIONS
    for pair in ((OURS, version), (version, OURS))
]
both_ways = pytest.mark.parametrize(("master_kind", "slave_kind"), PAIRS)
Pair = Callable[[str, str], tuple[Replica, Replica]]


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with CosmodromeNameServer(tmp_path_factory.mktemp("namesrv")) as server:
        yield server.address


@pytest.fixture
def pair(tmp_path: Path, namesrv: str) -> Iterator[Pair]:
    """Make a master and a slave, which are not started yet."""
    with ExitStack() as stack:

        def make(master_kind: str, slave_kind: str) -> tuple[Replica, Replica]:
            master = Replica(master_kind, "ASYNC_MASTER", 0, tmp_path / "master", namesrv)
            slave = Replica(slave_kind, "SLAVE", 1, tmp_path / "slave", namesrv)
            for replica in (master, slave):
                stack.callback(replica.abandon)
            return master, slave

        yield make


@both_ways
def test_a_slave_has_its_masters_bytes_and_serves_them(
    pair: Pair, namesrv: str, master_kind: str, slave_kind: str
) -> None:
    """But for Apache 5's slaves: they take over topics once a minute only, which is for the longer test."""
    master, slave = pair(master_kind, slave_kind)
    follow_through_kills(master, slave, namesrv, COUNT, reads=slave_kind != SERVER_VERSIONS[-1])


@pytest.mark.full
def test_a_slave_of_apache_5_serves_what_our_master_took(pair: Pair, namesrv: str) -> None:
    master, slave = pair(OURS, SERVER_VERSIONS[-1])
    follow_through_kills(master, slave, namesrv, COUNT + 1, reads=True)


@pytest.mark.full
@both_ways
def test_a_slave_has_the_bytes_of_a_hundred_thousand_messages(
    pair: Pair, namesrv: str, master_kind: str, slave_kind: str
) -> None:
    master, slave = pair(master_kind, slave_kind)
    follow_through_kills(master, slave, namesrv, MANY, reads=False)


def follow_through_kills(master: Replica, slave: Replica, namesrv: str, count: int, *, reads: bool) -> None:
    """Send; kill the slave, then the master, while messages come; compare the logs; read all at the slave alone."""
    topic = f"{TOPIC}-{master.kind}-{slave.kind}-{count}".replace(".", "-")
    master.start()
    acknowledged = send_mixed(namesrv, topic, 10)  # the topic is there, and the log has begun, when the slave comes
    slave.start()
    sent: list[int] = []
    sender = threading.Thread(target=lambda: sent.extend(send_mixed(namesrv, topic, count)))
    sender.start()
    wait_settled(lambda: slave.log_end > 50_000, "the slave does not follow")
    slave.kill()
    slave.start()
    begun = slave.log_end
    wait_settled(lambda: slave.log_end > begun or not sender.is_alive(), "the slave does not follow after its kill")
    master.kill()
    master.start()
    sender.join()
    sent += send_mixed(namesrv, topic, 50)
    end = wait_level(master, slave)
    slave.stop()
    master.stop()
    check_equal(master, slave, end)
    if not reads:
        return

    master.start()
    slave.start()
    wait_level(master, slave)
    wait_settled(lambda: slave.knows(topic), "the slave does not take over the topic", TABLES_TIMEOUT_S)
    master.kill()
    wanted = Counter([*acknowledged, *sent])
    received = Counter(index_of(one.body) for one in receive_ours(namesrv, "slave-reader", topic, wanted.total()))
    assert not wanted - received, "acknowledged messages are missing at the slave"

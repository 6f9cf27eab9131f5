"""Our broker under Apache's name server, and Apache's broker under ours."""

import time
from collections.abc import Callable

import pytest

from interop.apache import ApacheBroker, ApacheNameServer, cluster_info
from interop.lab import APACHE_BROKER_UNDER_OURS, OUR_BROKER_UNDER_APACHE, Lab
from interop.messages import Load, check_arrived, check_same, seen_by_java, sent_by_java
from interop.our_client import receive_ours, send_ours
from interop.ours import CosmodromeBroker, CosmodromeNameServer
from interop.setup import CLIENT_VERSIONS, SERVER_VERSIONS

COUNT = 20
GONE_TIMEOUT_S = 60
ASK_INTERVAL_S = 0.1

Fresh = Callable[[str], str]

MIXED = (*OUR_BROKER_UNDER_APACHE, *APACHE_BROKER_UNDER_OURS)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
@pytest.mark.parametrize("cluster_name", MIXED)
def test_java_and_we_meet_on_a_mixed_cluster(lab: Lab, fresh: Fresh, cluster_name: str, version: str) -> None:
    cluster = lab.cluster(cluster_name)
    by_java, by_us = Load(fresh("topic"), COUNT), Load(fresh("topic"), COUNT)
    produced = lab.run(version, "Produce", cluster, {**by_java.java_arguments(), "group": fresh("group")})
    sent_by_us = send_ours(cluster.namesrv, fresh("group"), by_us)
    for load, sent in ((by_java, sent_by_java(produced.messages)), (by_us, sent_by_us)):
        words: dict[str, object] = {"topic": load.topic, "group": fresh("group"), "count": COUNT}
        javas = [seen_by_java(line) for line in lab.run(version, "Consume", cluster, words).messages]
        mine = receive_ours(cluster.namesrv, fresh("group"), load.topic, COUNT)
        check_arrived(load, javas, sent, cluster.broker_address)
        check_same(mine, javas)


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_our_broker_leaves_apaches_name_server_when_it_stops(lab: Lab, version: str) -> None:
    with ApacheNameServer(version, lab.fresh_home("namesrv")) as namesrv:
        with CosmodromeBroker(namesrv.address, lab.fresh_home("broker"), name="leaving-broker"):
            pass
        wait_gone(namesrv.address, "leaving-broker")


def test_apaches_broker_leaves_our_name_server_when_it_dies(lab: Lab) -> None:
    with CosmodromeNameServer(lab.fresh_home("namesrv")) as namesrv:
        broker = ApacheBroker(SERVER_VERSIONS[0], namesrv.address, lab.fresh_home("broker"), name="dying-broker")
        broker.kill()
        wait_gone(namesrv.address, "dying-broker")


def wait_gone(namesrv: str, broker: str) -> None:
    """A name server tells nobody when a broker leaves, so it is asked again until the deadline."""
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while broker.encode() in cluster_info(namesrv):
        assert time.monotonic() < deadline, f"{broker} is still registered"
        time.sleep(ASK_INTERVAL_S)

"""The harness against itself: Apache's client and broker only. What fails here is no fault of Cosmodrome's."""

from collections.abc import Callable

import pytest

from interop.lab import APACHE_CLUSTERS, Lab
from interop.messages import Load, check_arrived, seen_by_java, sent_by_java
from interop.setup import CLIENT_VERSIONS


@pytest.mark.parametrize(("cluster_name", "version"), list(zip(APACHE_CLUSTERS, CLIENT_VERSIONS, strict=True)))
def test_a_java_message_crosses_apaches_own_broker(
    lab: Lab, fresh: Callable[[str], str], cluster_name: str, version: str
) -> None:
    cluster = lab.cluster(cluster_name)
    load = Load(fresh("topic"), count=20)
    produced = lab.run(version, "Produce", cluster, {**load.java_arguments(), "group": fresh("group")})
    consumed = lab.run(version, "Consume", cluster, {"topic": load.topic, "group": fresh("group"), "count": load.count})
    seen = [seen_by_java(line) for line in consumed.messages]
    check_arrived(load, seen, sent_by_java(produced.messages), cluster.broker_address)

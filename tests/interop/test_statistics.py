"""What brokers say about themselves, asked by Apache's admin client: ours under the names that Apache's use."""

import time
from collections.abc import Callable

import pytest

from interop.apache import wait_dispatched
from interop.java import Query
from interop.lab import APACHE_CLUSTERS, Cluster, Lab
from interop.messages import Load
from interop.setup import CLIENT_VERSIONS

SAMPLED_WITHIN_SECONDS = 45
# What we say and Apache's brokers do not.
OUR_OWN_FIGURES = {
    *("requestsTurnedAway", "skippedRecords"),
    # Damage: docs/durability.md.
    *("damagedRecords", "damagedQueueEntries", "rebuiltQueueEntries", "damagedIndexFiles"),
    *("scrubRounds", "scrubPlace", "scrubLastEnd"),
    *("startDamagedParts", "startDamagedBytes", "startLostMessages", "startCutBytes", "startKeptAsideBytes"),
    # Copies of the log: docs/replication.md.
    *("brokerRole", "haListenPort", "logEpoch", "logTerm", "slaves", "slavesInSync", "slaveBehindBytesMax"),
    "sendsWaitingForSlaves",
    # Connections and TLS: docs/security.md.
    *("connections", "connectionsTurnedAway", "plainConnectionsRefused", "waitingRequestBytes", "unsentReplyBytes"),
    *("unfinishedFrameBytes", "tlsServerMode", "tlsHandshakes", "tlsHandshakesFailed", "tlsCertificateReloads"),
}
# The ratio by folder, and levels in which something was delayed.
OF_SOME_BROKERS = ("commitLogDiskRatio_", "scheduleMessageOffset_")
# Apache 4.9 and 5.3 no longer have keys for some places of a store.
OUR_OWN_KEYS = {
    *("abortFile", "maxPullHold", "readOnlyCommitLogStorePaths", "storeCheckpoint", "storePathConsumeQueue"),
    *("storePathIndex", "vipListenerEnable"),
    *("haFetchHistory", "haMasterAddress"),  # the second is Apache's, which shows it only where it is set
    *("scrubIntervalHours", "scrubMebibytesPerSecond", "storeFileMode"),
    # Bounds of what peers may ask for.
    *("maxRequestBodySize", "maxRequestBodyValues", "maxGroupsPerConnection", "maxGroupMemberships"),
    *("maxSubscriptionsPerGroup", "maxFilterCharacters", "maxPullHoldPerQueue"),
    *("maxTopics", "maxSubscriptionGroups", "maxConsumerOffsets", "maxRequestModes", "maxQueueLocks"),
    *("maxPopOrders", "maxQueuesInStats", "maxMessagesPerBatch", "maxKeysPerMessage"),
    *("aclFile", "haAllowedAddresses", "haTlsEnable", "maxFailedAuthenticationsPerMinute"),
    # Apache takes these from the command line of its JVM, and does not show them.
    *("tls.config.file", "tls.enable", "tls.test.mode.enable", "tls.server.mode", "tls.server.need.client.auth"),
    *("tls.server.authClient", "tls.server.certPath", "tls.server.keyPath", "tls.server.trustCertPath"),
    *("tls.client.authServer", "tls.client.certPath", "tls.client.keyPath", "tls.client.trustCertPath"),
}


@pytest.fixture(params=CLIENT_VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def query(lab: Lab, ours: Cluster, version: str) -> Query:
    return lab.query(ours, version)


def test_figures_and_keys_have_apaches_names(lab: Lab, ours: Cluster, query: Query, version: str) -> None:
    """Every figure of each of Apache's, for exporters stop at one that is missing; and keys of the newest."""
    figures = set(query.call("runtimeInfo", addr=ours.broker_address)) - OUR_OWN_FIGURES
    known: set[str] = set()
    for apache in map(lab.cluster, APACHE_CLUSTERS):
        wait_dispatched(apache.broker_address)  # Apache 4 has no figures in the first second after its start
        theirs = set(lab.query(apache, version).call("runtimeInfo", addr=apache.broker_address))
        known |= theirs
        assert {name for name in theirs if not name.startswith(OF_SOME_BROKERS)} <= figures, apache.name
    assert {name for name in figures if not name.startswith(OF_SOME_BROKERS)} <= known
    newest = lab.cluster(APACHE_CLUSTERS[-1])
    keys = set(lab.query(newest, version).call("brokerConfig", addr=newest.broker_address))
    unknown = sorted(set(query.call("brokerConfig", addr=ours.broker_address)) - OUR_OWN_KEYS - keys)
    assert not unknown, " ".join(unknown)


def test_what_was_sent_is_counted(
    lab: Lab, ours: Cluster, query: Query, fresh: Callable[[str], str], version: str
) -> None:
    load = Load(fresh("topic"), 4)
    lab.run(version, "Produce", ours, {**load.java_arguments(), "group": fresh("group")})
    deadline = time.monotonic() + SAMPLED_WITHIN_SECONDS
    words = {"addr": ours.broker_address, "figure": "TOPIC_PUT_NUMS", "key": load.topic}
    # A sample may fall between two of the messages; the next one has them all.
    while not (answer := query.ask("stats", **words))["ok"] or answer["result"] < load.count:
        assert time.monotonic() < deadline, f"the broker samples every ten seconds, but {answer}"
        time.sleep(0.2)
    assert answer["result"] == load.count

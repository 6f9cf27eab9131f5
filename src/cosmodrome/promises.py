"""Apache's keys that ask for what this version cannot keep: each stops the start, unless its value asks for nothing.

A broker that is asked to check access keys and checks none is open, and its operator does not notice. So a key moves
from here to a config only together with the code that obeys it;
`docs/decisions/0007-a-setting-not-kept-stops-the-start.md`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Keys whose values no error or log line repeats.
_SECRET = re.compile("secret|password|credentials|accesskey|authenticationuser", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Promise:
    """A thing asked for by any value but those of `off`; an empty value asks for nothing, always."""

    off: tuple[str, ...]
    why: str
    advice: str = ""

    def refusal(self, key: str, value: str) -> str | None:
        """Return the sentence that refuses `key=value`, or None if the value asks for nothing."""
        if value.strip().lower() in ("", *(off.lower() for off in self.off)):
            return None
        remedy = f"Remove the key or set {key}={self.off[0]}" if self.off else "Remove the key"
        shown = "…" if _SECRET.search(key) else value.strip()
        return f"{key}={shown} is refused: {self.why}. {remedy}{self.advice}"


def _group(why: str, advice: str = "", /, **offs: str) -> dict[str, Promise]:
    """Promises that fail for one reason, by key. Their values that ask for nothing are separated by spaces."""
    return {key: Promise(tuple(off.split()), why, advice) for key, off in offs.items()}


_ACCESS = (
    "this version has no users of its own, so every client would be let in",
    "; aclEnable=true checks the accounts of plain_acl.yml",
)
_TLS = ("this version does not know that key of TLS", "; docs/security.md has those it knows")
_COPIES = (
    "this version waits for as many copies as inSyncReplicas says, and adapts that number to nothing",
    "; with brokerRole=SYNC_MASTER, inSyncReplicas=2 waits for one slave and inSyncReplicas=3 for two",
)
_TLS_PREFIXES = ("tls.", "tlsserver", "tlsclient")
_ELECTION = ("this version has no controller; brokers that elect their master are a Raft group, see docs/raft.md",)
_ELSEWHERE = ("this version keeps the whole store in files below storePathRootDir",)
_UNSEALED = (
    "this version checks the checksum over a whole record wherever there is one, and gives up no record that has none",
)
_FORMAT = ("this version does not write or read that part of a store",)

SECURITY_PROMISES = {
    **_group(*_ACCESS, authenticationEnabled="false", authorizationEnabled="false"),
    **_group(*_ACCESS, migrateAuthFromV1Enabled="false", authConfigPath="", initAuthenticationUser=""),
    **_group(*_ACCESS, authenticationWhitelist="", authorizationWhitelist=""),
    **_group(*_ACCESS, authenticationProvider="", authenticationMetadataProvider="", authenticationStrategy=""),
    **_group(*_ACCESS, authorizationProvider="", authorizationMetadataProvider="", authorizationStrategy=""),
    **_group("this version connects without a proxy", socksProxyConfig="{}"),
}

_CONTROLLER = {
    **_group(*_ELECTION, enableControllerInNamesrv="false", controllerType="", controllerStorePath=""),
    **_group(*_ELECTION, controllerDLegerGroup="", controllerDLegerPeers="", controllerDLegerSelfId=""),
    **_group(*_ELECTION, enableElectUncleanMaster="false", jRaftGroupId="", jRaftServerId=""),
    **_group(*_ELECTION, jRaftInitConf="", jRaftControllerRPCAddr=""),
}

_METRICS = _group(
    "this version exports no metrics, so a dashboard would stay empty; `mqadmin` shows a broker's figures",
    metricsExporterType="DISABLE 0",
)

BROKER_PROMISES: Mapping[str, Promise] = {
    **SECURITY_PROMISES,
    **_CONTROLLER,
    **_METRICS,
    **_group(*_COPIES, totalReplicas="1", allAckInSyncStateSet="false", enableAutoInSyncReplicas="false"),
    **_group(
        "a broker of this version is a master or a slave, never both",
        "; a slave has brokerRole=SLAVE",
        duplicationEnable="false",
    ),
    **_group(
        "this version deletes files by what its own store takes of the disk, and knows of no other's",
        replicasPerDiskPartition="1",
    ),
    **_group(*_ELECTION, asyncLearner="false", lockInStrictMode="false"),
    **_group(*_ELECTION, enableControllerMode="false", controllerAddr="", fetchControllerAddrByDnsLookup="false"),
    **_group(*_ELECTION, storePathEpochFile="", storePathBrokerIdentity=""),
    **_group(
        "this version has no broker container; start one `cosmodrome broker` for each file",
        brokerConfigPaths="",
        inBrokerContainer="false",
    ),
    **_group(*_ELSEWHERE, storeType="default", messageStorePlugIn="", tieredStorageLevel="DISABLE 0"),
    **_group(*_ELSEWHERE, tieredBackendServiceProvider="", tieredMetadataServiceProvider="", tieredStoreFilePath=""),
    **_group(*_ELSEWHERE, objectStoreEndpoint="", objectStoreBucket="", objectStoreAccessKey=""),
    **_group(*_ELSEWHERE, objectStoreSecretKey=""),
    **_group(*_ELSEWHERE, rocksdbCQDoubleWriteEnable="false", popConsumerKVServiceEnable="false"),
    **_group(*_ELSEWHERE, popConsumerKVServiceInit="false", configManagerVersion="v1"),
    **_group(*_FORMAT, enableLmq="false", enableMultiDispatch="false", enableConsumeQueueExt="false"),
    **_group(*_FORMAT, timerPrecisionMs="1000"),
    **_group(*_UNSEALED, forceVerifyPropCRC="false"),
    **_group("this version compacts no topics: each keeps all its messages", enableCompaction="false"),
    **_group(
        "this version does not slow down groups that read old messages",
        coldDataFlowControlEnable="false",
        coldCtrStrategyEnable="false",
        disableConsumeIfConsumerReadSlowly="false",
    ),
    **_group("this version does not limit unacknowledged pops", enablePopMessageThreshold="false"),
    **_group("this version does not tell pull consumers from push consumers", rejectPullConsumerEnable="false"),
    **_group("this version takes a group's subscriptions from its members only", useStaticSubscription="false"),
    **_group("this version has no filter servers; SQL92 filters run in the broker", filterServerNums="0"),
    **_group("this version cannot stop taking timed messages", timerStopEnqueue="false"),
    **_group(
        "this version serves from its first moment to its stop",
        startAcceptSendRequestTimeStamp="0",
        disappearTimeAfterStart="-1",
    ),
    **_group(
        "a broker of this version learns its name servers from namesrvAddr only; set namesrvAddr=host:port",
        fetchNamesrvAddrByAddressServer="false",
        fetchNameSrvAddrByDnsLookup="false",
    ),
    **_group(
        "this is a key of the name server, which has a file of its own: `cosmodrome namesrv -c FILE`",
        kvConfigPath="",
        orderMessageEnable="false",
        returnOrderTopicConfigToBroker="true",
        supportActingMaster="false",
        clusterTest="false",
        needWaitForService="false",
        notifyMinBrokerIdChanged="false",
        deleteTopicWithBrokerRegistration="false",
        enableTopicList="true",
        enableAllTopicList="true",
    ),
}

NAME_SERVER_PROMISES: Mapping[str, Promise] = {
    **SECURITY_PROMISES,
    **_CONTROLLER,
    **_METRICS,
    **_group("this version asks no other cluster for topics it does not know", clusterTest="false"),
    **_group("this version answers from its first moment", needWaitForService="false"),
    **_group(
        "this version forgets a topic when it is deleted or its brokers leave",
        deleteTopicWithBrokerRegistration="false",
    ),
    **_group("this version lists its topics to everyone", enableTopicList="true", enableAllTopicList="true"),
    **_group(
        "this version does not save settings that are changed while it runs; the file of -c sets them at the start",
        configStorePath="",
    ),
}


def find_promise(promises: Mapping[str, Promise], key: str) -> Promise | None:
    """Return the promise that `key` asks for; each key of TLS asks for encryption, whatever its name."""
    if key not in promises and key.lower().startswith(_TLS_PREFIXES):
        return Promise((), *_TLS)
    return promises.get(key)

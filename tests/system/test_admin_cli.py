"""Every verb of `cosmodrome admin` on one live cluster: what it prints, what it changes, and what it only would."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cosmodrome.testing
from cosmodrome import Message
from cosmodrome.cli.admin import admin as admin_group
from cosmodrome.cli.admin.common import moment
from cosmodrome.cli.admin.verbs import NOT_HERE, VERBS
from cosmodrome.cli.formats import Schema
from cosmodrome.cli.main import main
from cosmodrome.model import ConsumeFrom, MessageQueue
from cosmodrome.testing import Cluster

TOPIC, GROUP, CLUSTER = "orders", "billing", "DefaultCluster"
QUEUES = 2
# test_promotion.py, test_raft_groups.py, test_acl.py
ELSEWHERE = {"promote", "demote", "raftStatus", "transferLeader", "getAclConfig", "clusterAclConfigVersion"}
DRY = {
    "deleteTopic",
    "deleteSubGroup",
    "deleteKvConfig",
    "resetOffsetByTime",
    "resetOffsetByTimeOld",
    "skipAccumulatedMessage",
    "cloneGroupOffset",
    "cleanExpiredCQ",
    "cleanUnusedTopic",
    "deleteExpiredCommitLog",
}


class Shell:
    """A cluster with two brokers, a topic with four messages in each of four queues, and a connected consumer."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.broker = cluster.brokers[0].name
        self.address = cluster.brokers[0].address
        with cluster.producer("shop") as producer:
            producer.create_topic(TOPIC, QUEUES)
            producer.create_topic("posted", QUEUES)
            sent = [
                producer.send(
                    Message(TOPIC, b"%d" % number, tags="paid" if number % 2 else "open", keys="k"),
                    queue=MessageQueue(TOPIC, broker.name, queue_id),
                )
                for broker in cluster.brokers
                for queue_id in range(QUEUES)
                for number in range(4)
            ]
        self.first = sent[0]

    def call(self, *words: str) -> Result:
        return CliRunner().invoke(main, ["admin", words[0], "-n", self.cluster.namesrv, *words[1:]])

    def json(self, *words: str) -> list[dict[str, Any]]:
        result = self.call(*words, "-o", "json")
        assert result.exit_code == 0, result.output
        rows: list[dict[str, Any]] = json.loads(result.stdout)
        return rows


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with cosmodrome.testing.cluster(brokers=2) as cluster:
        made = Shell(cluster, tmp_path_factory.mktemp("files"))
        consumer = cluster.push_consumer(GROUP, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe(TOPIC, "*", lambda message: None)
        with consumer, cluster.producer("shop") as producer:
            producer.send(Message("posted", b"1"))  # brokers know a producer by its first message
            cluster.wait_until_consumed(TOPIC, GROUP)
            cluster.advance(seconds=10)  # offsets are stored every few seconds
            yield made


def words_of(shell: Shell) -> dict[str, list[str]]:
    """Return words that make each verb do something on the cluster; those that destroy come without --yes."""
    topics, groups = shell.folder / "topics.json", shell.folder / "groups.json"
    topics.write_text('[{"topicName": "listed", "readQueueNums": 2, "writeQueueNums": 2}]')
    groups.write_text('[{"groupName": "listed"}]')
    offset_id, message_id = shell.first.offset_msg_id, shell.first.msg_id
    place, topic, group = ["-b", shell.address], ["-t", TOPIC], ["-g", GROUP]
    return {
        "topicList": [],
        "topicRoute": topic,
        "topicStatus": topic,
        "topicClusterList": topic,
        "updateTopic": [*place, "-t", "made", "-r", "3", "-w", "3"],
        "updateTopicList": ["-c", CLUSTER, "-f", str(topics)],
        "updateTopicPerm": [*place, *topic, "-p", "6"],
        "deleteTopic": ["-c", CLUSTER, *topic],
        "updateOrderConf": [*topic, "-m", "put", "-v", f"{shell.broker}:2"],
        "allocateMQ": [*topic, "-i", "10.0.0.1,10.0.0.2"],
        "statsAll": topic,
        "updateSubGroup": [*place, *group, "-r", "5"],
        "updateSubGroupList": ["-c", CLUSTER, "-f", str(groups)],
        "deleteSubGroup": ["-c", CLUSTER, *group],
        "getConsumerConfig": group,
        "setConsumeMode": [*place, *topic, *group, "-m", "PULL"],
        "consumerProgress": group,
        "consumerConnection": group,
        "consumerStatus": group,
        "consumer": group,
        "producerConnection": ["-g", "shop", *topic],
        "producer": [],
        "resetOffsetByTime": [*group, *topic, "-s", "0"],
        "resetOffsetByTimeOld": [*group, *topic, "-s", "0"],
        "skipAccumulatedMessage": [*group, *topic],
        "cloneGroupOffset": ["-s", GROUP, "-d", "audit", *topic],
        "getConsumerStatus": [*group, *topic],
        "clusterList": ["-m"],
        "brokerStatus": place,
        "brokerConsumeStats": place,
        "getBrokerConfig": place,
        "updateBrokerConfig": [*place, "-k", "shortPollingTimeMills", "-v", "900"],
        "wipeWritePerm": ["-b", shell.broker],
        "addWritePerm": ["-b", shell.broker],
        "cleanExpiredCQ": place,
        "cleanUnusedTopic": place,
        "deleteExpiredCommitLog": place,
        "sendMsgStatus": ["-b", shell.broker, "-c", "2"],
        "haStatus": [],
        "getBrokerEpoch": ["-b", shell.broker],
        "timerMetrics": place,
        "getNamesrvConfig": [],
        "updateNamesrvConfig": ["-k", "orderMessageEnable", "-v", "true"],
        "updateKvConfig": ["-s", "space", "-k", "key", "-v", "value"],
        "deleteKvConfig": ["-s", "space", "-k", "key"],
        "queryMsgById": [*topic, "-i", offset_id],
        "queryMsgByKey": [*topic, "-k", "k"],
        "queryMsgByUniqueKey": [*topic, "-i", message_id],
        "queryMsgByOffset": [*topic, "-b", shell.broker, "-i", "0", "-o", "1"],
        "queryMsgTraceById": ["-i", message_id],
        "queryCq": [*topic, "-q", "0", "-i", "0", *place],
        "printMsg": topic,
        "printMsgByQueue": [*topic, "-a", shell.broker, "-i", "0"],
        "consumeMessage": [*topic, "-b", shell.broker, "-i", "0", "-o", "2"],
        "decodeMessageId": ["-i", offset_id],
        "sendMessage": ["-t", "posted", "-p", "body"],
        "checkMsgSendRT": ["-t", "posted", "-a", "2"],
        "clusterRT": ["-a", "2", "-c", CLUSTER],
        "exportMetadata": ["-c", CLUSTER, "-f", str(shell.folder / "export")],
        "exportConfigs": ["-c", CLUSTER, "-f", str(shell.folder / "export")],
        "exportMetrics": ["-c", CLUSTER, "-f", str(shell.folder / "export")],
    }


def schema_of(verb: str) -> Schema:
    """Return the columns that a verb prints with --format help, by their keys."""
    module = import_module(f"cosmodrome.cli.admin.{VERBS[verb].module}")
    schemas = {one.name: one for one in vars(module).values() if isinstance(one, Schema)}
    told = CliRunner().invoke(main, ["admin", verb, "--format", "help"])
    assert told.exit_code == 0, told.output
    (name,) = [name for name in schemas if told.stdout.startswith(f"Each {name} is one row")]
    return schemas[name]


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - ELSEWHERE))
def test_each_verb_answers_with_the_rows_of_its_schema(shell: Shell, verb: str) -> None:
    words = words_of(shell)[verb]
    if verb == "queryMsgTraceById":
        result = shell.call(verb, *words)
        assert result.exit_code == 1
        assert "must be traced" in result.stderr
        return
    if verb == "deleteKvConfig":
        shell.json("updateKvConfig", *words, "-v", "value")
    rows = shell.json(verb, *words)
    assert rows or verb == "timerMetrics"
    columns = [column.key for column in schema_of(verb).columns]
    assert all(list(row) == columns for row in rows)
    table = shell.call(verb, *words)
    assert table.exit_code == 0, table.output
    assert len(table.stdout.splitlines()) == len(rows) + 1, "one line for each row, below the titles"


def test_every_verb_has_a_case_here(shell: Shell) -> None:
    assert words_of(shell).keys() == VERBS.keys() - ELSEWHERE


def state(shell: Shell) -> object:
    """Return everything that a destroying verb could change."""
    progress = shell.json("consumerProgress", "-g", GROUP, "-t", TOPIC)
    return (
        [
            (row["brokerName"], row["queueId"], row["minOffset"], row["maxOffset"])
            for row in shell.json("topicStatus", "-t", TOPIC)
        ],
        [row["consumerOffset"] for row in progress],
        shell.json("getConsumerConfig", "-g", GROUP),
    )


@pytest.mark.parametrize("verb", sorted(DRY - {"deleteKvConfig"}))
def test_what_destroys_is_only_shown_without_yes(shell: Shell, verb: str) -> None:
    before = state(shell)
    result = shell.call(verb, *words_of(shell)[verb])
    assert result.exit_code == 0, result.output
    assert "--yes" in result.stderr
    assert state(shell) == before
    assert all(row["done"] is False for row in shell.json(verb, *words_of(shell)[verb]))


def test_a_dry_run_exists_for_each_verb_with_yes() -> None:
    with_yes = set()
    for verb in VERBS:
        told = CliRunner().invoke(main, ["admin", verb, "--help"])
        assert told.exit_code == 0
        with_yes |= {verb} if "--yes" in told.stdout else set()
    assert with_yes - {"updateOrderConf"} == DRY


def test_topics_are_made_changed_and_deleted(shell: Shell) -> None:
    shell.json("updateTopic", "-c", CLUSTER, "-t", "life", "-r", "4", "-w", "4", "-o", "true")
    route = shell.json("topicRoute", "-t", "life")
    assert [(row["readQueues"], row["writeQueues"], row["perm"]) for row in route] == [(4, 4, 6)] * 2
    conf = shell.json("updateOrderConf", "-t", "life", "-m", "get")[0]["orderConf"]
    assert conf == ";".join(f"{broker.name}:4" for broker in shell.cluster.brokers)
    shell.json("updateTopic", "-b", shell.address, "-t", "life", "-w", "2")
    shell.json("updateTopicPerm", "-b", shell.address, "-t", "life", "-p", "4")
    route = shell.json("topicRoute", "-t", "life")
    assert [(row["readQueues"], row["writeQueues"], row["perm"]) for row in route] == [(4, 2, 4), (4, 4, 6)]
    assert all(row["done"] for row in shell.json("deleteTopic", "-c", CLUSTER, "-t", "life", "--yes"))
    assert "life" not in [row["topic"] for row in shell.json("topicList")]
    gone = shell.call("topicRoute", "-t", "life")
    assert gone.exit_code == 1


def test_a_group_is_made_changed_and_deleted(shell: Shell) -> None:
    place = ["-c", CLUSTER]
    shell.json("updateSubGroup", *place, "-g", "life", "-r", "3", "-o", "true")
    shell.json("updateSubGroup", *place, "-g", "life", "-s", "false")
    for row in shell.json("getConsumerConfig", "-g", "life"):
        assert (row["retryMaxTimes"], row["consumeMessageOrderly"], row["consumeEnable"]) == (3, True, False)
    shell.json("deleteSubGroup", *place, "-g", "life", "-r", "true", "--yes")
    gone = shell.call("getConsumerConfig", "-g", "life")
    assert gone.exit_code == 1
    assert "updateSubGroup -g life" in gone.stderr


def test_offsets_of_an_absent_group_are_cloned_moved_and_skipped(shell: Shell) -> None:
    shell.json("updateSubGroup", "-c", CLUSTER, "-g", "audit")
    words = ["-g", "audit", "-t", TOPIC]

    def offsets() -> list[int]:
        return [row["consumerOffset"] for row in shell.json("consumerProgress", *words)]

    shell.json("cloneGroupOffset", "-s", GROUP, "-d", "audit", "-t", TOPIC, "--yes")
    assert offsets() == [4] * 4
    back = shell.json("resetOffsetByTime", *words, "-s", "0", "--yes")
    assert [(row["before"], row["offset"], row["done"]) for row in back] == [(4, 0, True)] * 4
    one = ["-b", shell.broker, "-q", "1"]
    shell.json("resetOffsetByTime", *words, *one, "-o", "3", "--yes")
    assert sorted(offsets()) == [0, 0, 0, 3]
    planned = shell.json("skipAccumulatedMessage", *words)
    done = shell.json("skipAccumulatedMessage", *words, "--yes")
    assert [row["offset"] for row in planned] == [row["offset"] for row in done] == offsets()
    assert offsets() == [4] * 4


def test_a_plan_that_only_goes_back_is_what_is_done(shell: Shell) -> None:
    shell.json("updateSubGroup", "-c", CLUSTER, "-g", "careful")
    words = ["-g", "careful", "-t", TOPIC]
    shell.json("resetOffsetByTime", *words, "-s", "0", "--yes")
    planned = shell.json("resetOffsetByTime", *words, "-s", "now", "-f", "false")
    done = shell.json("resetOffsetByTime", *words, "-s", "now", "-f", "false", "--yes")
    assert [row["offset"] for row in planned] == [row["offset"] for row in done] == [0] * 4


def test_a_message_is_handled_by_one_consumer_and_sent_again(shell: Shell) -> None:
    (client,) = {row["clientId"] for row in shell.json("consumerConnection", "-g", GROUP)}
    asked = ["-t", TOPIC, "-i", shell.first.offset_msg_id]
    handled = shell.call("queryMsgById", *asked, "-g", GROUP, "-d", client)
    assert handled.exit_code == 0, handled.output
    assert "CR_SUCCESS" in handled.stderr
    (row,) = shell.json("queryMsgById", *asked)
    assert (row["body"], row["consumed"][GROUP]) == ("0", "CONSUMED")
    shell.json("updateTopic", "-c", CLUSTER, "-t", "resent", "-w", "1", "-r", "1")
    (sent,) = shell.json("sendMessage", "-t", "resent", "-p", "once", "-c", "tag", "-k", "key")
    again = shell.call("queryMsgById", "-t", "resent", "-i", sent["msgId"], "-s", "true")
    assert again.exit_code == 0, again.output
    assert [(row["body"], row["tags"]) for row in shell.json("printMsg", "-t", "resent")] == [("once", "tag")] * 2


def test_messages_are_printed_by_tag_queue_and_offset(shell: Shell) -> None:
    assert len(shell.json("printMsg", "-t", TOPIC, "-s", "paid")) == 8
    counted = shell.call("printMsgByQueue", "-t", TOPIC, "-a", shell.broker, "-i", "0", "-f", "true", "-p", "false")
    assert 'by tag: {"open": 2, "paid": 2}' in counted.stderr
    rows = shell.json("consumeMessage", "-t", TOPIC, "-b", shell.broker, "-i", "0", "-o", "2", "-c", "1")
    assert [row["queueOffset"] for row in rows] == [2]
    few = shell.call("printMsg", "-t", TOPIC, "--limit", "3")
    assert "--limit" in few.stderr


def test_a_group_that_consumed_nothing_is_said_to_have(shell: Shell) -> None:
    told = shell.call("consumerProgress", "-g", "nobody-knows-it")
    assert (told.exit_code, len(told.stdout.splitlines())) == (0, 1)
    assert "has consumed nothing" in told.stderr


def test_a_body_is_read_in_its_encoding(shell: Shell) -> None:
    shell.json("updateTopic", "-c", CLUSTER, "-t", "encoded", "-w", "1", "-r", "1")
    with shell.cluster.producer("encoder") as producer:
        producer.send(Message("encoded", "中文".encode("gbk")))
    assert [row["body"] for row in shell.json("printMsg", "-t", "encoded", "-c", "GBK")] == ["中文"]
    assert [row["body"] for row in shell.json("printMsg", "-t", "encoded")] == [None]
    (row,) = shell.json("printMsg", "-t", "encoded")
    place = ["-b", row["brokerName"], "-i", "0", "-o", "0", "-f", "gbk"]
    assert shell.json("queryMsgByOffset", "-t", "encoded", *place)[0]["body"] == "中文"
    assert shell.json("queryMsgById", "-t", "encoded", "-i", row["msgId"], "-f", "gbk")[0]["body"] == "中文"
    assert shell.call("printMsg", "-t", "encoded", "-c", "no-such").exit_code == 2


def test_what_is_done_with_yes_is_not_done_again_and_again(shell: Shell) -> None:
    refused = shell.call("skipAccumulatedMessage", "-g", GROUP, "-t", TOPIC, "--yes", "--watch", "1")
    assert refused.exit_code == 2
    assert "again and again" in refused.stderr


def test_the_list_of_verbs_imports_no_client() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from cosmodrome.cli.main import main; "
        "told = CliRunner().invoke(main, ['admin', '--help']); assert 'topicList' in told.output; "
        "print(*(name for name in sys.modules if name.startswith(('cosmodrome.client', 'cosmodrome.admin'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def test_what_is_exported_can_be_imported(shell: Shell, tmp_path: Path) -> None:
    shell.json("exportMetadata", "-c", CLUSTER, "-f", str(tmp_path))
    topics = {one["topicName"] for one in json.loads((tmp_path / "topics.json").read_text())}
    groups = {one["groupName"] for one in json.loads((tmp_path / "groups.json").read_text())}
    assert TOPIC in topics
    assert GROUP in groups
    assert not {"TBW102", "SCHEDULE_TOPIC_XXXX", shell.broker, CLUSTER} & topics
    shell.json("updateTopicList", "-c", CLUSTER, "-f", str(tmp_path / "topics.json"))
    shell.json("updateSubGroupList", "-c", CLUSTER, "-f", str(tmp_path / "groups.json"))


def test_a_setting_that_cannot_be_changed_is_refused_with_the_way(shell: Shell) -> None:
    refused = shell.call("updateBrokerConfig", "-b", shell.address, "-k", "storePathRootDir", "-v", "/tmp")
    assert refused.exit_code == 1
    assert "start the broker again" in refused.stderr


def test_write_permission_is_wiped_and_given_back(shell: Shell) -> None:
    def perms() -> dict[str, int]:
        return {row["brokerName"]: row["perm"] for row in shell.json("topicRoute", "-t", TOPIC)}

    shell.json("wipeWritePerm", "-b", shell.broker)
    assert perms()[shell.broker] == 4
    shell.json("addWritePerm", "-b", shell.broker)
    assert perms()[shell.broker] == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["updateTopic", "-t", "x"], "-b HOST:PORT for one broker"),
        (["updateTopic", "-t", "x", "-b", "a:1", "-c", "C"], "say where"),
        (["updateTopic", "-t", "x", "-c", "C", "-a", "message.type"], "+key=value"),
        (["resetOffsetByTime", "-g", "g", "-t", "t"], "say from where"),
        (["resetOffsetByTime", "-g", "g", "-t", "t", "-s", "soon"], "write now"),
        (["resetOffsetByTime", "-g", "g", "-t", "t", "-o", "7"], "name the queue"),
        (["queryMsgByOffset", "-t", "t", "-b", "b", "-i", "0", "-o", "x"], "x"),
        (["sendMessage", "-t", "t", "-p", "b", "-b", "b"], "-b and -i together"),
        (["topicstatus"], "did you mean topicStatus"),
        (["noSuchThing"], "lists them"),
    ],
)
def test_misuse_ends_with_exit_code_2_and_says_what_to_write(shell: Shell, words: list[str], said: str) -> None:
    result = CliRunner().invoke(
        main, ["admin", words[0], *(["-n", shell.cluster.namesrv] if words[1:] else []), *words[1:]]
    )
    assert result.exit_code == 2, result.output
    assert said in re.sub(r"\s+", " ", result.stderr)


@pytest.mark.parametrize("verb", sorted(NOT_HERE))
def test_a_verb_that_is_not_here_says_why(verb: str) -> None:
    result = CliRunner().invoke(main, ["admin", verb, "-x", "1"])
    assert result.exit_code == 2
    assert NOT_HERE[verb][:20] in re.sub(r"\s+", " ", result.stderr)


def test_without_a_verb_all_are_listed_by_subject() -> None:
    told = CliRunner().invoke(main, ["admin"])
    for verb, entry in VERBS.items():
        assert f"  {verb} " in told.output
        assert f"{entry.subject}:" in told.output


def test_a_time_is_read_as_mqadmin_writes_it() -> None:
    assert moment("now") == -1
    assert moment("1700000000000") == 1_700_000_000_000
    assert moment("2030-01-31T09:00:00Z") == moment("2030-01-31T10:00:00+01:00")
    assert moment("2030-01-31#09:00:00:500") - moment("2030-01-31#09:00:00:000") == 500


def test_the_table_of_verbs_in_the_docs_is_that_of_the_command() -> None:
    text = (Path(__file__).parents[2] / "docs" / "admin.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", text, re.MULTILINE))
    assert rows == {name: verb.help for name, verb in VERBS.items()} | {
        name: f"not here: {reason}" for name, reason in NOT_HERE.items()
    }
    assert admin_group.name == "admin"

"""What Spark's tasks and driver do in a write, on Apache's brokers: those commit a half message as often as told."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from cosmodrome.model import HALF_TOPIC
from cosmodrome.spark.batch import RocketMQReader
from cosmodrome.spark.exactly_once import Verdict
from cosmodrome.spark.ledger import BrokerLedger
from cosmodrome.spark.link import Cluster as Link
from cosmodrome.spark.options import source_options
from cosmodrome.spark.sink import RocketMQWriter
from cosmodrome.spark.sink_options import SinkOptions, sink_options
from interop.lab import ALL_CLUSTERS, Cluster, Lab
from tests.spark.mortal import die_in_commit

ROWS = 60

Fresh = Callable[[str], str]


def options(cluster: Cluster, topic: str, **more: str) -> SinkOptions:
    return sink_options({"nameServer": cluster.namesrv, "topic": topic, **more}, streaming=False)


def rows() -> pa.RecordBatch:
    numbers = [str(number) for number in range(ROWS)]
    keys = [f"key-{number}" for number in numbers]
    sharding = [f"shard-{int(number) % 5}" for number in numbers]
    return pa.record_batch({"body": pa.array(numbers), "keys": pa.array(keys), "shardingKey": pa.array(sharding)})


def found(cluster: Cluster, topic: str) -> list[int]:
    cluster.settle(topic)
    given = source_options({"nameServer": cluster.namesrv, "subscribe": topic}, streaming=False)
    reader = RocketMQReader(given, StructType().add("body", "binary"))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return sorted(int(body) for batch in batches for body in batch.column(0).to_pylist())


@pytest.mark.parametrize("cluster_name", ALL_CLUSTERS)
def test_rows_arrive(lab: Lab, fresh: Fresh, cluster_name: str) -> None:
    cluster, topic = lab.cluster(cluster_name), fresh("topic")
    assert RocketMQWriter(options(cluster, topic)).write(iter([rows(), rows()])).rows == 2 * ROWS
    assert found(cluster, topic) == sorted([*range(ROWS)] * 2)


@pytest.mark.parametrize("dies_after", [0, 23])
@pytest.mark.parametrize("cluster_name", ALL_CLUSTERS)
def test_rows_arrive_once_though_the_driver_dies(lab: Lab, fresh: Fresh, cluster_name: str, dies_after: int) -> None:
    cluster, topic = lab.cluster(cluster_name), fresh("topic")
    RocketMQWriter(options(cluster, topic)).write(iter([pa.record_batch({"body": pa.array(["1000"])})]))
    given = options(cluster, topic, exactlyOnce="true", jobId=topic)
    die_in_commit(given, [RocketMQWriter(given).write(iter([rows()]))], dies_after)
    assert found(cluster, topic) == [*range(dies_after), 1000]
    again = RocketMQWriter(given)
    repeated = again.write(iter([rows()]))
    again.commit([repeated])
    assert found(cluster, topic) == [*range(ROWS), 1000]
    last = RocketMQWriter(given)
    last.commit([last.write(iter([rows()]))])
    assert found(cluster, topic) == [*range(ROWS), 1000]

    link = Link(given.link)
    ledger = BrokerLedger(link, given, may_create=False)
    halves = repeated.task().halves()
    assert not any(ledger.is_gone(half) for half in halves[:3]), HALF_TOPIC
    assert ledger.is_gone(halves[0]._replace(log_offset=2**40))
    assert ledger.end([halves[0]._replace(log_offset=2**40)], Verdict.COMMIT).refused
    link.close()

"""Which schemas a user may ask for."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, StringType, StructField, StructType

from cosmodrome.errors import ConfigError
from cosmodrome.spark.options import PropertiesAs
from cosmodrome.spark.schema import check_projection
from cosmodrome.spark.source import RocketMQSource

MAP, TEXT = PropertiesAs.MAP, PropertiesAs.STRING
STRINGS = MapType(StringType(), StringType())


def column(name: str, kind: object, *, nullable: bool = True) -> StructType:
    return StructType([StructField(name, kind, nullable)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "properties", "problem"),
    [
        (column("BODY", BinaryType()), MAP, "there is no column BODY"),
        (column("body", BinaryType()).add("body", BinaryType()), MAP, "has the column body more than once"),
        (column("queueId", LongType()), MAP, "the column queueId is bigint; it must be int"),
        (column("queueOffset", IntegerType()), MAP, "the column queueOffset is int; it must be bigint$"),
        (column("body", BinaryType(), nullable=False), MAP, "the column body is NOT NULL"),
        (
            column("properties", MapType(StringType(), StringType(), False)),
            MAP,
            "without nulls; it must be .* with nulls",
        ),
        (column("properties", STRINGS), TEXT, "properties is string, but the schema has properties map<string,string>"),
        (column("properties", STRINGS), PropertiesAs.NONE, "properties is none, but the schema has properties"),
    ],
)
def test_what_cannot_be(schema: StructType, properties: PropertiesAs, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_projection(schema, properties)


def test_what_can_be() -> None:
    for kind in (STRINGS, StringType()):
        check_projection(column("properties", kind), MAP)
    check_projection(column("properties", StringType()), TEXT)


def test_a_schema_has_a_column() -> None:
    """Spark would count no rows."""
    with pytest.raises(ConfigError, match="the schema names no column"):
        RocketMQSource({"nameServer": "a:1", "subscribe": "orders"}).reader(StructType([]))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"maxOffsetsPerTrigger": "5", "tls": "perhaps"}, "the option tls is 'perhaps'"),
        ({"option.subscribe": "orders"}, "use CREATE TEMPORARY VIEW"),
    ],
)
def test_options_are_checked_with_the_schema(options: dict[str, str], problem: str) -> None:
    given = {"nameServer": "a:1", "subscribe": "orders"}
    with pytest.raises(ConfigError, match=problem):
        RocketMQSource({**given, **options}).schema()
    for fine in ({"endingOffsets": "latest"}, {"maxOffsetsPerTrigger": "5"}):
        assert "body" in RocketMQSource({**given, **fine}).schema().names

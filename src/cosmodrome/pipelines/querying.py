"""One query over topics: those that it names are its tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from cosmodrome.errors import ConfigError
from cosmodrome.model import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX, SYSTEM_TOPICS
from cosmodrome.pipelines.definition import Source, hint
from cosmodrome.pipelines.running import explained
from cosmodrome.spark.link import Cluster
from cosmodrome.spark.options import Given, link_options
from cosmodrome.spark.sink_options import COMMIT_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Text and comments are passed over; a name is a word, or anything between backticks.
_WORDS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/|`([^`]+)`|(\w+)", re.DOTALL)
_SYSTEM_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX, SYSTEM_PREFIX)
_REPLY_SUFFIX = "_REPLY_TOPIC"
_SHOWN_NAMES = 20


def all_topics(options: Mapping[str, str]) -> list[str]:
    """All there are; ConnectionFailed when no name server answers."""
    with closing(Cluster(link_options(Given(options)))) as cluster:
        return cluster.topics()


def topics_in(query: str, topics: Iterable[str]) -> dict[str, str]:
    """The topics that a query names, by the word it uses. Tables have names without case; topics differ by it."""
    exact = set(topics)
    by_lower: dict[str, list[str]] = {}
    for topic in sorted(exact):
        by_lower.setdefault(topic.lower(), []).append(topic)
    found: dict[str, str] = {}
    for match in _WORDS.finditer(query):
        word = match[1] or match[2]
        if not word or word.lower() in map(str.lower, found):
            continue
        if word in exact:
            found[word] = word
        elif len(alike := by_lower.get(word.lower(), [])) == 1:
            found[word] = alike[0]
    return found


def asked(
    spark: SparkSession, query: str, topics: Iterable[str], options: Mapping[str, str], schema: str = ""
) -> DataFrame:
    """The answer, which is not read yet; ConfigError says what is wrong with the query."""
    from pyspark.errors import AnalysisException, ParseException

    from cosmodrome.pipelines.frames import read

    for word, topic in topics_in(query, topics).items():
        source = Source(options={**options, "subscribe": topic}, schema=schema)
        read(spark, source, streaming=False).createOrReplaceTempView(f"`{word}`")
    try:
        return spark.sql(query)
    except ParseException as error:
        raise ConfigError(f"the query is no SQL: {explained(error)}") from None
    except AnalysisException as error:
        if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            name = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")
            raise ConfigError(_no_topic(name, topics, own_topics(topics, _brokers(options)))) from None
        raise ConfigError(str(explained(error))) from None


def own_topics(topics: Iterable[str], brokers: Iterable[str]) -> list[str]:
    """Without those that are made for brokers and Spark: some are named after a broker or its cluster."""
    given = list(topics)
    clusters = {topic.removesuffix(_REPLY_SUFFIX) for topic in given if topic.endswith(_REPLY_SUFFIX)}
    made = {*SYSTEM_TOPICS, COMMIT_TOPIC, *brokers, *clusters, *(f"{name}{_REPLY_SUFFIX}" for name in clusters)}
    return [topic for topic in given if topic not in made and not topic.startswith(_SYSTEM_PREFIXES)]


def _brokers(options: Mapping[str, str]) -> list[str]:
    with closing(Cluster(link_options(Given(options)))) as cluster:
        return list(cluster.brokers())


def _no_topic(name: str, topics: Iterable[str], own: Sequence[str]) -> str:
    shown = ", ".join(own[:_SHOWN_NAMES]) + (", …" if len(own) > _SHOWN_NAMES else "")
    return f"there is no topic {name}{hint(name, topics)}; there are {shown or 'none'}"

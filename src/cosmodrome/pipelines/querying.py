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
    """The topics that a query names, by the word it uses. Tables have names without case; topics differ by it, so
    ConfigError refuses a query that names two which are one to Spark."""
    exact = set(topics)
    by_lower: dict[str, list[str]] = {}
    for topic in sorted(exact):
        by_lower.setdefault(topic.lower(), []).append(topic)
    found: dict[str, str] = {}  # words by what they are in lower case
    for match in _WORDS.finditer(query):
        word = match[1] or match[2]
        if not word:
            continue
        known = found.setdefault(word.lower(), word)
        if known != word and {known, word} <= exact:
            raise ConfigError(
                f"the query names the topics {known} and {word}, and to Spark both are one table; ask for each in a "
                "query of its own"
            )
        if word in exact:
            found[word.lower()] = word
    meant = {word: _topic(word, exact, by_lower) for word in found.values()}
    return {word: topic for word, topic in meant.items() if topic is not None}


def _topic(word: str, exact: set[str], by_lower: Mapping[str, Sequence[str]]) -> str | None:
    if word in exact:
        return word
    alike = by_lower.get(word.lower(), ())
    return alike[0] if len(alike) == 1 else None


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

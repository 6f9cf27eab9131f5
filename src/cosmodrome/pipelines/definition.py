"""A pipeline as its YAML file says it: source, steps, sink, trigger, checkpoint. Checked before Spark starts. Pure."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from cosmodrome.errors import ConfigError, CosmodromeError
from cosmodrome.pipelines.checks import check_kind
from cosmodrome.pipelines.documents import changed, problem_of, read_document
from cosmodrome.pipelines.kinds import KINDS, Kind, own_kind
from cosmodrome.spark.options import instant_ms, source_options
from cosmodrome.spark.sink_options import sink_options
from cosmodrome.spark.store_options import store_options

T = TypeVar("T")
D = TypeVar("D")

INPUT = "input"  # the view with what the step before made
FILE_FORMATS = frozenset({"parquet", "orc", "json", "csv", "text"})
STORE_FORMAT = "rocketmq-store"

_KEYS = (
    "name",
    "pipeline",
    "source",
    "sources",
    "steps",
    "sink",
    "trigger",
    "checkpoint",
    "master",
    "spark",
    "options",
)
# Of these, nothing may be said: what stands below may be commented out, and what must be there is told as missing.
_MAY_BE_EMPTY = frozenset({"pipeline", "source", "sources", "steps", "sink", "checkpoint", "spark", "options"})
_SOURCE_KEYS = ("format", "schema", "badJson", "watermark", "where")
_SINK_KEYS = ("format", "partitionBy", "mode", "outputMode", "body")
# Options that choose messages of topics and stores. Files know none of them, and Spark would read all there is.
_CHOICES = (
    *("subscribe", "subscribePattern", "assign", "topic", "topics", "subExpression", "tags", "sql"),
    *(f"{side}{what}" for side in ("starting", "ending") for what in ("Offsets", "Timestamp", "OffsetsByTimestamp")),
    "startingOffsetsByTimestampStrategy",
)
_SEVERAL = "; a pattern names several folders, such as {a,b}"
_LIKENESS = 0.85  # of a slip: Spark's own dateFormat and mergeSchema are less like format and schema
_NOTHING: dict[str, Any] = {}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_INTERVAL = re.compile(r"\d+ +(millisecond|second|minute|hour|day|week)s?", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_MASTER = re.compile(r"local(\[(\*|[1-9]\d*)(, *\d+)?\])?|local-cluster\[.+\]|yarn|[a-z][a-z0-9]*://.+")
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


@dataclass(frozen=True, slots=True)
class Watermark:
    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from. With a `schema`, bodies are JSON, and its fields are columns."""

    format: str = "rocketmq"
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str = ""
    bad_json: str = "nulls"
    watermark: Watermark | None = None
    where: str = ""

    def option(self, name: str) -> str | None:
        """Spark does not mind how options are written: in upper or lower case."""
        return next((value for given, value in self.options.items() if given.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class Step:
    """One of `sql` and `python` is set. The result is the view `name`."""

    name: str
    sql: str = ""
    python: str = ""


@dataclass(frozen=True, slots=True)
class Sink:
    format: str = "rocketmq"
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    mode: str = "append"
    output_mode: str = "append"
    body: str = ""  # json: rows become JSON bodies, unless there is a column body


@dataclass(frozen=True, slots=True)
class Trigger:
    """When micro-batches begin: all that is there and then stop, or every so often."""

    available_now: bool = False
    processing_time: str = ""

    def arguments(self) -> dict[str, Any]:
        if self.available_now:
            return {"availableNow": True}
        return {"processingTime": self.processing_time} if self.processing_time else {}


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    kind: Kind
    sources: Mapping[str, Source]
    steps: tuple[Step, ...]
    sink: Sink | None
    trigger: Trigger
    checkpoint: str
    master: str
    spark: Mapping[str, str]
    options: Mapping[str, Any]
    folder: Path
    file: Path | None = None  # it was read from

    @property
    def source(self) -> Source:
        """Of a pipeline that has one."""
        (only,) = self.sources.values()
        return only


def load(path: Path, changes: Iterable[str] = ()) -> Pipeline:
    """The pipeline of a file, with `changes` such as source.subscribe=orders; ConfigError in one line."""
    import yaml

    try:
        given = read_document(path.read_text(encoding="utf-8"))
        for change in changes:
            given = changed(given, change)
        return replace(parse(given, path.resolve().parent, os.environ), file=path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text; a pipeline is a YAML file") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {problem_of(error)}") from None
    except RecursionError:
        raise ConfigError(f"{path}: there is no end to what is in it; a pipeline needs three levels") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(given: Any, folder: Path, environment: Mapping[str, str] | None = None) -> Pipeline:
    """What a document says. Relative paths are those of its `folder`: a job must not depend on where it is started."""
    document = _Section("", _substituted(given, environment or {}), _KEYS, _MAY_BE_EMPTY)
    document.check_known()
    kind = document.take("pipeline", _kind, None)
    if kind is None:
        raise ConfigError(f"pipeline is missing; it is one of {', '.join(KINDS)}, or your own module:function")
    trigger = document.take("trigger", _trigger, Trigger())
    options = _options(document, kind, folder)
    pipeline = Pipeline(
        name=document.take("name", _text, kind.name),
        kind=kind,
        sources=_sources(document, kind, folder),
        steps=document.take("steps", _steps, ()),
        sink=_sink(document, kind, folder, options),
        trigger=trigger,
        checkpoint=_resolved("checkpoint", document.take("checkpoint", _text, ""), folder),
        master=document.take("master", checked_master, "local[*]"),
        spark=document.take("spark", _conf, {}),
        options=options,
        folder=folder,
    )
    _check(pipeline)
    return pipeline


def _check(pipeline: Pipeline) -> None:
    kind = pipeline.kind
    taken = [step.name for step in pipeline.steps if step.name in pipeline.sources or step.name == INPUT]
    if taken:
        raise ConfigError(f"steps: the name {taken[0]} is taken by a source; choose another")
    if pipeline.steps and not kind.has_steps:
        raise ConfigError(f"steps: the pipeline {kind.name} has none; take the pipeline transform for your own")
    if kind.needs_checkpoint and not pipeline.checkpoint:
        raise ConfigError("checkpoint is missing: a folder in which Spark notes how far the pipeline has come")
    if kind.streams is not True and not kind.is_own and pipeline.trigger.processing_time:
        raise ConfigError(f"trigger: the pipeline {kind.name} reads what is there and ends; leave it out")
    check_kind(pipeline)


# --- sections


class _Section:
    """A mapping of the document. Each key is taken once; what is left are options for Spark, or nothing."""

    def __init__(self, name: str, given: Any, keys: Collection[str], may_be_empty: Collection[str] = ()) -> None:
        self._prefix = f"{name}." if name else ""
        if not isinstance(given, dict):
            what = f"{name} must have keys" if name else "a pipeline is a YAML file with the keys"
            raise ConfigError(f"{what}: {', '.join(keys)}")
        self._given = {str(key): value for key, value in given.items() if value is not None}
        self._keys = keys
        for key in map(str, given):
            if key not in self._given and key not in may_be_empty:
                raise ConfigError(
                    f"{self._prefix}{key} is null: give it a value, or leave it out; if the text null is meant, put it "
                    "between quotes"
                )

    def has(self, key: str) -> bool:
        return key in self._given

    def take(self, key: str, read: Callable[[Any], T], default: D) -> T | D:
        value = self._given.pop(key, None)
        if value is None:
            return default
        try:
            return read(value)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self._prefix}{key} is {_short(value)}: {error}") from None

    def rest(self) -> dict[str, str]:
        """What is left: options for Spark."""
        return {key: self._option(key, value) for key, value in self._given.items()}

    def located(self, folder: Path, *, is_store: bool, remedy: str = "") -> dict[str, str]:
        """What is left, with its paths as they are seen from anywhere. Those of stores are separated by commas; files
        have one, in which a comma is a character like others."""
        self._check_once()
        options = self.rest()
        for key in [key for key in options if key.lower() == "path"]:
            given = self._given[key]
            paths = list(map(_text, given)) if isinstance(given, list) else [options[key]]
            if len(paths) > 1 and not is_store:
                raise ConfigError(f"{self._prefix}{key} is {_short(given)}: it must be one{remedy}")
            if is_store:
                paths = [part.strip() for path in paths for part in path.split(",")]
            del options[key]
            options["path"] = ",".join(_resolved(f"{self._prefix}{key}", path, folder) for path in paths)
        return options

    def _check_once(self) -> None:
        """Formats do not mind upper and lower case, and would take one of two."""
        spelled: dict[str, str] = {}
        for key in self._given:
            if (other := spelled.setdefault(key.lower(), key)) != key:
                raise ConfigError(
                    f"{self._prefix}{key} and {self._prefix}{other} are the same option; give one of them"
                )

    def _option(self, key: str, value: Any) -> str:
        try:
            return _option(key, value)
        except ValueError as error:
            raise ConfigError(f"{self._prefix}{key} is {_short(value)}: {error}") from None

    def check_known(self) -> None:
        for key in self._given:
            if key not in self._keys:
                known = ", ".join(self._keys) or "none"
                raise ConfigError(f"{self._prefix}{key} is unknown{hint(key, self._keys)}; there are {known}")

    def check_left(self, keys: Iterable[str]) -> None:
        """What is left must not be meant for one of these: Spark passes over options that it does not know."""
        for key in self._given:
            if (near := _near(key, keys)) not in (None, key):
                raise ConfigError(f"{self._prefix}{key} is unknown (did you mean {near}?)")

    def refuse_choices(self, what: str) -> None:
        for key in self._given:
            if _near(key, _CHOICES):
                raise ConfigError(
                    f"{self._prefix}{key} chooses messages of topics, and the source is {what}; say with "
                    f"{self._prefix}where which rows to keep, such as topic = 'orders'"
                )


def _near(word: str, known: Iterable[str]) -> str | None:
    """What it is but for upper and lower case, or but for a slip."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), by_lower, 1, _LIKENESS)
    return by_lower[near[0]] if near else None


def hint(word: str, known: Iterable[str]) -> str:
    """` (did you mean …?)` when something known is like it."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), by_lower, 1)
    return f" (did you mean {by_lower[near[0]]}?)" if near else ""


def _sources(document: _Section, kind: Kind, folder: Path) -> dict[str, Source]:
    one, many = document.has("source"), document.has("sources")
    if one and many:
        raise ConfigError("give source or sources, not both")
    if not one and not many:
        if kind.source_formats and not kind.is_own:
            raise ConfigError("source is missing: where the rows come from")
        return {}
    if not kind.source_formats:
        raise ConfigError(f"source: the pipeline {kind.name} has none")
    if many and not kind.many_sources:
        raise ConfigError(f"sources: the pipeline {kind.name} has one source; write source")
    if one:
        given = document.take("source", _mapping, _NOTHING)
        return {INPUT: _source("source", given, kind, folder)}
    named = document.take("sources", _mapping, _NOTHING)
    if not named:
        raise ConfigError("sources is empty; name a view and say where its rows come from")
    for name in named:
        if not _NAME.fullmatch(str(name)) or name == INPUT:
            raise ConfigError(f"sources: {name!r} cannot be a view; use letters, digits and _, but not {INPUT}")
    return {name: _source(f"sources.{name}", section, kind, folder) for name, section in named.items()}


def _source(place: str, given: Any, kind: Kind, folder: Path) -> Source:
    section = _Section(place, given, (*_SOURCE_KEYS, "and the options of its format"))
    formats = kind.source_formats
    form = section.take("format", _choice(formats), formats[0])
    made = Source(
        format=form,
        schema=section.take("schema", _text, ""),
        bad_json=section.take("badJson", _choice(("nulls", "drop", "fail")), "nulls"),
        watermark=section.take("watermark", _watermark, None),
        where=section.take("where", _text, ""),
        options=section.located(folder, is_store=form == STORE_FORMAT, remedy=_SEVERAL),
    )
    section.check_left((*_SOURCE_KEYS, *_path_of(made.format)))
    if made.format in FILE_FORMATS:
        section.refuse_choices(f"{made.format} files")
    if made.format in FILE_FORMATS and not made.options.get("path"):
        raise ConfigError(f"{place}.path is missing: the folder of the {made.format} files")
    if made.watermark is not None and kind.streams is False:
        raise ConfigError(f"{place}.watermark is for streams; the pipeline {kind.name} reads what is there")
    options = {name: value for name, value in made.options.items() if name.lower() not in kind.own_source_options}
    if made.format == "rocketmq":
        _checked(place, lambda streaming: source_options(options, streaming=streaming), kind)
        if len(options) < len(made.options):
            _checked(place, lambda _: source_options(made.options, streaming=False), kind)
    elif made.format == STORE_FORMAT:
        if made.option("paths") is not None:  # JSON, of which no path would be resolved
            raise ConfigError(f"{place}.paths is for Spark's load; write path, with commas between several")
        _checked(place, lambda _: store_options(options), kind)
    return made


def _sink(document: _Section, kind: Kind, folder: Path, own_options: Mapping[str, Any]) -> Sink | None:
    given = document.take("sink", _mapping, _NOTHING)
    formats = kind.sink_formats
    if not formats:
        if given:
            raise ConfigError(f"sink: the pipeline {kind.name} has none")
        return None
    if not given and kind.is_own:
        return None
    if not given:
        raise ConfigError("sink is missing: where the rows go")
    section = _Section("sink", given, (*_SINK_KEYS, "and the options of its format"))
    made = Sink(
        format=section.take("format", _choice(formats), formats[0]),
        partition_by=section.take("partitionBy", _columns, kind.partition_by),
        mode=section.take("mode", _choice(("append", "overwrite", "error")), "append"),
        output_mode=section.take("outputMode", _choice(("append", "update", "complete")), "append"),
        body=section.take("body", _choice(("json", "column")), "json"),
        options=section.located(folder, is_store=False),
    )
    section.check_left((*_SINK_KEYS, *_path_of(made.format)))
    if made.format in FILE_FORMATS and not made.options.get("path"):
        raise ConfigError(f"sink.path is missing: the folder for the {made.format} files")
    if made.mode != "append" and made.format == "rocketmq":
        raise ConfigError(f"sink.mode is {made.mode}: a topic can only be appended to")
    if made.mode != "append" and kind.streams is True:
        raise ConfigError(f"sink.mode is {made.mode}: the pipeline {kind.name} is a stream, which only appends")
    if made.output_mode != "append" and kind.streams is False:
        raise ConfigError(f"sink.outputMode is for streams; the pipeline {kind.name} reads what is there")
    if made.format == "rocketmq":
        options = _with_set(made.options, kind, own_options)
        _checked("sink", lambda streaming: sink_options(options, streaming=streaming), kind)
    return made


def _path_of(form: str) -> tuple[str, ...]:
    """Who checks the options of our own formats knows better what is like `path`."""
    return ("path",) if form in FILE_FORMATS else ()


def _with_set(options: Mapping[str, str], kind: Kind, own_options: Mapping[str, Any]) -> dict[str, str]:
    """With those that the pipeline sets when it writes: what goes with them may be given, what contradicts them not."""
    added = kind.set_on_sink(own_options)
    by_lower = {name.lower(): value for name, value in added.items()}
    for name, value in options.items():
        if value.lower() != by_lower.get(name.lower(), value.lower()):
            raise ConfigError(f"sink.{name}: the pipeline {kind.name} sets it itself; leave it out")
    return {**options, **added}


def _checked(place: str, check: Callable[[bool], object], kind: Kind) -> None:
    """Options for streams, for tables, or for either."""
    refusals = []
    for streaming in (True, False) if kind.streams is None else (kind.streams,):
        try:
            check(streaming)
        except CosmodromeError as error:
            refusals.append(error)
        else:
            return
    raise ConfigError(f"{place}: {refusals[0]}")


def _options(document: _Section, kind: Kind, folder: Path) -> dict[str, Any]:
    section = _Section("options", document.take("options", _mapping, _NOTHING), tuple(kind.options))
    if kind.is_own:
        return dict(section.rest())
    section.check_known()
    made = {}
    for name, option in kind.options.items():
        value = section.take(name, option.read, option.default)
        made[name] = _resolved(f"options.{name}", value, folder) if option.is_path else value
    return made


def _resolved(place: str, path: str, folder: Path) -> str:
    try:
        return path if not path or _URI.match(path) else str(folder / Path(path).expanduser())
    except (RuntimeError, ValueError):
        raise ConfigError(f"{place} is {path!r}: there is no such home folder") from None


def _substituted(value: Any, environment: Mapping[str, str]) -> Any:
    """`${NAME}` is that variable of the environment: passwords need not be in the file."""
    if isinstance(value, dict):
        return {key: _substituted(inner, environment) for key, inner in value.items()}
    if isinstance(value, list):
        return [_substituted(inner, environment) for inner in value]
    if not isinstance(value, str):
        return value

    def replacement(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise ConfigError(f"${{{match[1]}}}: the environment has no variable {match[1]}; set it")
        return environment[match[1]]

    return _VARIABLE.sub(replacement, value)


# --- values


def _kind(value: Any) -> Kind:
    text = _text(value)
    if _FUNCTION.fullmatch(text):
        return own_kind(text)
    if text not in KINDS:
        raise ValueError(f"there is no such pipeline{hint(text, KINDS)}; there are {', '.join(KINDS)}")
    return KINDS[text]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise ValueError("it must be text or a number")
    return str(value).strip()


def _option(key: str, value: Any) -> str:
    """As Spark takes it: several values with commas between them."""
    if isinstance(value, list):
        return ",".join(map(_text, value))
    if isinstance(value, dict):
        raise ValueError("it must be text or a number; JSON stands between quotes")
    text = _text(value)
    # A time without a zone is this machine's, also where Spark runs on another.
    return str(instant_ms(text)) if key.lower().endswith("timestamp") and _DATE.match(text) else text


def checked_master(value: Any) -> str:
    """Where Spark runs; ValueError if it is no such place. Spark itself would show its stack."""
    text = _text(value)
    if not _MASTER.fullmatch(text):
        raise ValueError("it must be local, local[2], local[*], yarn, spark://host:7077, k8s://… or sc://host")
    return text


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it must have keys of its own")
    return value


def _conf(value: Any) -> dict[str, str]:
    """Spark's settings: `spark.` may be left out."""
    return {
        name if name.startswith("spark.") else f"spark.{name}": _text(setting)
        for name, setting in ((str(key), setting) for key, setting in _mapping(value).items())
    }


def _columns(value: Any) -> tuple[str, ...]:
    names = value if isinstance(value, list) else _text(value).split(",")
    return tuple(name for name in map(_text, names) if name)


def _choice(allowed: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        text = _text(value)
        if text not in allowed:
            raise ValueError(f"it must be {' or '.join(allowed)}{hint(text, allowed)}")
        return text

    return read


def _interval(value: Any) -> str:
    text = _text(value)
    if not _INTERVAL.fullmatch(text):
        raise ValueError("it must be a time span such as 10 seconds or 5 minutes")
    return text


def _trigger(value: Any) -> Trigger:
    if isinstance(value, dict) and list(value) == ["processingTime"]:
        return Trigger(processing_time=_interval(value["processingTime"]))
    if value in ("availableNow", "once"):
        return Trigger(available_now=True)
    raise ValueError("it must be availableNow, once, or processingTime: 10 seconds")


def _watermark(value: Any) -> Watermark:
    given = _mapping(value)
    if set(given) != {"column", "delay"}:
        raise ValueError("it must be like {column: at, delay: 10 minutes}")
    return Watermark(_text(given["column"]), _interval(given["delay"]))


def _steps(value: Any) -> tuple[Step, ...]:
    if not isinstance(value, list):
        raise ValueError("it must be a list of sql or python steps")
    steps = tuple(_step(number, each) for number, each in enumerate(value, 1))
    names = [step.name for step in steps]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two steps are named {twice[0]}")
    return steps


def _step(number: int, value: Any) -> Step:
    if not isinstance(value, dict):
        raise ValueError(f"step {number} must have the key sql or python")
    for key in value:
        if key not in ("name", "sql", "python"):
            raise ValueError(f"step {number} has the unknown key {key}; there are name, sql and python")
    if ("sql" in value) == ("python" in value):
        raise ValueError(f"step {number} must have either sql or python")
    step = Step(_text(value.get("name", f"step{number}")), _text(value.get("sql", "")), _text(value.get("python", "")))
    if not _NAME.fullmatch(step.name):
        raise ValueError(f"the name {step.name!r} of step {number} cannot be a view; use letters, digits and _")
    if not step.sql and not step.python:
        raise ValueError(f"step {number} is empty")
    if step.python and not _FUNCTION.fullmatch(step.python):
        raise ValueError(f"step {number} is {step.python!r}; python is module:function")
    return step


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, dict) else "{" + ", ".join(map(str, value)) + "}"
    return text if len(text) <= 60 else f"{text[:57]}..."

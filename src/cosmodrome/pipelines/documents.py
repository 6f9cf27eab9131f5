"""The YAML of a pipeline's file and of `--set`. Options are text, so a value is what stands there. Pure."""

from __future__ import annotations

import re
from typing import Any

from cosmodrome.errors import ConfigError

# PyYAML follows YAML 1.1, where the tag NO is false, the topic 007 is 7 and the key 01234567 is octal. These words and
# numbers are the ones that are written as they are read; whatever else there is, is text.
_MEANINGS = {
    "bool": r"true|false",
    "int": r"0|-?[1-9][0-9]{0,30}",
    "null": r"~|null|",
    "merge": r"<<",
}
_RESOLVERS = {None: [(f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{text})\Z")) for kind, text in _MEANINGS.items()]}
_NO_YAML = ("", "%", "@", "`")  # what begins with these is text, as in --set source.subscribe=%DLQ%billing
_IN_BRACKETS = ("[", "{", '"', "'")


def read_document(text: str) -> Any:
    """What YAML says; yaml.YAMLError if a key stands there twice, as one of the two would be silently left out."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        yaml_implicit_resolvers = _RESOLVERS

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            """PyYAML lets through what int() and its like raise of `!!int abc`."""
            try:
                return super().construct_object(node, deep)
            except (ValueError, LookupError, AttributeError, ArithmeticError):
                kind = node.tag.rpartition(":")[2]
                raise yaml.MarkedYAMLError(None, None, f"{node.value!r:.60} is no {kind}", node.start_mark) from None

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():  # `!!map x` is refused below
                name = str(key.value)
                if name in seen:
                    raise yaml.MarkedYAMLError(None, None, f"the key {name} stands there twice", key.start_mark)
                seen.add(name)
            made: dict[Any, Any] = super().construct_mapping(node, deep)
            return made

    return yaml.load(text, Loader)


def problem_of(error: Any) -> str:
    """What a yaml.YAMLError complains of, and where."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "it makes no sense"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark is not None else str(problem)


def changed(given: Any, change: str) -> Any:
    """The document with one value set: `sink.path=/data`; of `sources` the view's name comes second."""
    import yaml

    path, equals, text = change.partition("=")
    if not path or not equals:
        raise ConfigError(f"--set {change}: write KEY=VALUE, such as source.subscribe=orders")
    first, _, rest = path.partition(".")
    names = [first, *(rest.split(".", 1) if first == "sources" else [rest])] if rest else [first]
    try:
        value = text if _is_plain(text) else read_document(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {change}: {problem_of(error)}") from None
    return _with(given if isinstance(given, dict) else {}, names, value)


def _is_plain(text: str) -> bool:
    """Nobody writes a comment on a command line, or a mapping without its braces: `tags = 'a' #b` and `value like
    '%x: 1%'` are values to their ends."""
    return text[:1] in _NO_YAML or (text[:1] not in _IN_BRACKETS and (" #" in text or ":" in text))


def _with(section: dict[str, Any], names: list[str], value: Any) -> dict[str, Any]:
    first, *rest = names
    inner = section.get(first)
    return {**section, first: _with(inner if isinstance(inner, dict) else {}, rest, value) if rest else value}

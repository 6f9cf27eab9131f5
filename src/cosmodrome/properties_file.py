"""Java's properties files: pairs of key and value, each of which knows its line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from cosmodrome.errors import ConfigError


class Properties(dict[str, str]):
    """The pairs of a properties text. Of a key given twice the last value counts."""

    def __init__(self, source: str = "") -> None:
        super().__init__()
        self.source = source  # the file's name; empty for text from elsewhere
        self.lines: dict[str, int] = {}
        self.overruled: list[tuple[str, int]] = []  # keys and lines whose values do not count

    def add(self, key: str, value: str, line: int) -> None:
        if key in self.lines:
            self.overruled.append((key, self.lines[key]))
        self[key] = value
        self.lines[key] = line


def place(properties: Mapping[str, str], key: str) -> str:
    """Return `broker.conf:7: `, to put before an error about `key`; empty if the pairs come from no file."""
    if isinstance(properties, Properties) and properties.source and key in properties.lines:
        return f"{properties.source}:{properties.lines[key]}: "
    return ""


def read_properties(path: Path) -> Properties:
    """Read Apache's properties file; ConfigError says why it cannot be read."""
    try:
        return parse_properties(path.read_text(encoding="utf-8-sig"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def parse_properties(text: str, source: str = "") -> Properties:
    """Parse Java properties text. XML comments, with which some of Apache's own files begin, are passed over."""
    pairs = Properties(source)
    is_comment = False
    for number, line in _logical_lines(text):
        is_comment = is_comment or line.startswith("<!--")
        if is_comment:
            is_comment = "-->" not in line
            continue
        match = _KEY_VALUE.fullmatch(line)
        assert match is not None, "every non-empty line is a key with an optional value"
        pairs.add(_unescape(match[1]), _unescape(match[2]).strip(), number)
    return pairs


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line that says something, with its number: a line that ends in `\\` goes on in the next."""
    numbered = enumerate(_LINE_END.split(text), 1)
    for number, first in numbered:
        line = first.lstrip(_BLANKS)
        if not line or line[0] in "#!":
            continue
        while _CONTINUED.search(line):
            following = next(numbered, None)
            if following is None:
                break
            line = line[:-1] + following[1].lstrip(_BLANKS)
        yield number, line


_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\r|\n")
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")
_KEY_VALUE = re.compile(r"((?:\\.|[^\\=:\s])*\\?)(?:\s*[=:]\s*|\s+|$)(.*)")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(replace, text)

"""JSON as Apache's fastjson speaks it.

Reading accepts what Java, Go and Node send: strict JSON, and beyond it integer keys without quotes, objects as keys,
single quotes, barewords, spare commas, comments, a byte order mark, raw control characters. Writing yields what all of
them read: compact, integer keys without quotes, message queues as raw object keys.

Reading takes time linear in the input and does not recurse over it; any input yields a value or a ProtocolError.
Values hold neither NaN nor infinities, and their strings can always be encoded.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import orjson

from cosmodrome.errors import ProtocolError
from cosmodrome.model import MessageQueue

MAX_DEPTH: Final = 64
MAX_SIZE_BYTES: Final = 64 * 1024 * 1024
# About a second's work. Strict JSON and tables of integers cost much less and do not count.
MAX_TOKENS: Final = 2_000_000
# Of a peer's request that is not strict JSON: some thirty milliseconds. No client sends so much of it.
PEERS_LENIENT_BYTES: Final = 256 * 1024
# What all references of one document may copy together.
MAX_REFERRED_VALUES: Final = 100_000
# Resolved references may nest one document's depth inside another's.
_MAX_WRITTEN_DEPTH: Final = 2 * MAX_DEPTH


_lenient: ContextVar[tuple[int, int] | None] = ContextVar("lenient", default=None)


@contextmanager
def lenient_up_to(size_bytes: int, tokens: int = MAX_TOKENS) -> Iterator[None]:
    """Read nothing larger in here that is not strict JSON: it costs ten times as much, most of it in Python."""
    before = _lenient.set((size_bytes, tokens))
    try:
        yield
    finally:
        _lenient.reset(before)


class ObjectKey:
    """An object that stands where a key should: frozen, and equal to another whatever the order of its fields."""

    __slots__ = ("fields", "text")

    def __init__(self, fields: dict[Any, Any]) -> None:
        self.fields = fields
        members = sorted(f"{_key_text(key)}:{_text(value, 1, False)}" for key, value in fields.items())
        # Compared as text, for its hash is seeded: no peer can make up keys that all collide.
        self.text = f"{{{','.join(members)}}}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectKey) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"ObjectKey({self.text})"


def loads(data: bytes | bytearray | memoryview) -> Any:
    """The value; integer keys without quotes become ints, object keys `ObjectKey`s. Nothing at all is None."""
    if len(data) > MAX_SIZE_BYTES:
        raise ProtocolError(f"JSON of {len(data)} bytes; at most {MAX_SIZE_BYTES} are read")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        limit, tokens = _lenient.get() or (MAX_SIZE_BYTES, MAX_TOKENS)
        if len(data) > limit:
            raise ProtocolError(
                f"{len(data)} bytes that are not strict JSON ({error}); at most {limit} of such are read"
            ) from None
        text = str(data, "utf-8", "replace")
        value = _parse(text, tokens)
        return _resolve(value) if "$ref" in text else value
    raw = bytes(data)
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return _resolve(value) if b"$ref" in raw else value


class IntKeys(Mapping[int, Any]):
    """A table whose keys are written without quotes, in a tenth of the time that a dict with integer keys takes."""

    __slots__ = ("_table",)

    def __init__(self, table: Mapping[int, Any]) -> None:
        self._table = table

    def __getitem__(self, key: int) -> Any:
        return self._table[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def encoded(self) -> orjson.Fragment:
        members = [b"%d:%b" % (key, orjson.dumps(value, _plain)) for key, value in self._table.items()]
        return orjson.Fragment(b"{%b}" % b",".join(members))


def dumps(value: Any, *, pretty: bool = False) -> bytes:
    """The value's JSON; `pretty` indents with tabs, as Apache writes its config files.

    An object whose only key is "$ref" is written empty: every fastjson reader would take it for a reference.
    """
    if not pretty:
        try:
            raw = orjson.dumps(value, _plain, orjson.OPT_PASSTHROUGH_DATACLASS)
            if b'"$ref"' not in raw:
                return raw
        except orjson.JSONEncodeError:  # keys that are not strings, most often
            pass
    return _text(value, 0, pretty).encode()


# Reading


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [child for child in level if type(child) in (dict, list)]
        if not containers:
            return
        level = [child for one in containers for child in (one.values() if type(one) is dict else one)]
    raise _too_deep()


def _too_deep() -> ProtocolError:
    return ProtocolError(f"JSON nested deeper than {MAX_DEPTH}")


# Every text matches in one way only, so a failure costs no more than a second look at each character. (Possessive
# repeats would say the same, but Python 3.11.0 to 3.11.4, Debian 12's among them, get captures in them wrong.)
_TOKEN = re.compile(
    r"""(?:[ \t\r\n\f\b\ufeff] | //[^\n]*(?:\n|\Z) | /\*[^*]*(?:\*(?!/)[^*]*)*\*/ )*
    (?: ([{}\[\]:,])
      | "([^"\\]*(?:\\.[^"\\]*)*)"
      | '([^'\\]*(?:\\.[^'\\]*)*)'
      | (-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)[BSLFD]?
      | ([^\W0-9][\w$]* | \$[\w$]*)
      | (\Z) )""",
    re.VERBOSE | re.DOTALL,
)
_PUNCTUATION, _DOUBLE, _SINGLE, _NUMBER, _WORD, _END = range(1, 7)
# The bulk of what is not strict JSON: tables of offsets.
_INT_PAIRS = re.compile(r"(?:[ \t\r\n]*-?[0-9]{1,18}:-?[0-9]{1,18},)+")
_WORDS = {"true": True, "false": False, "null": None, "undefined": None, "NaN": None, "Infinity": None}
_MAX_INT_DIGITS = 20


def _parse(text: str, max_tokens: int) -> Any:
    builder = _Builder()
    position = 0
    for _ in range(max_tokens):
        if builder.state == _KEY and (pairs := _INT_PAIRS.match(text, position)):
            builder.add_pairs(pairs[0])
            position = pairs.end()
        token = _TOKEN.match(text, position)
        if token is not None and token.lastindex == _END and builder.finished:
            return builder.result
        if token is None or not builder.take(token):
            raise ProtocolError(f"not JSON at character {position}: {text[position : position + 20]!r}")
        position = token.end()
    raise ProtocolError(f"JSON of more than {max_tokens} tokens that is not strict JSON")


_VALUE, _KEY, _COLON, _AFTER, _DONE = range(5)


class _Builder:
    """Token by token to the value. `state` is what may come next; an end of file before any token is None."""

    __slots__ = ("_containers", "_keys", "result", "state")

    def __init__(self) -> None:
        self.state = _VALUE
        self.result: Any = None
        self._containers: list[Any] = []  # the open ones, outermost first
        self._keys: list[Any] = []  # for each of them the key that waits for its value

    @property
    def finished(self) -> bool:
        return self.state == _DONE or (self.state == _VALUE and not self._containers)

    def take(self, token: re.Match[str]) -> bool:
        """Whether the token may stand here."""
        if token.lastindex == _PUNCTUATION:
            return self._take_punctuation(token[1])
        if self.state == _VALUE and token.lastindex != _END:
            self._place(_scalar(token))
            return True
        if self.state == _KEY and token.lastindex != _END:
            self._keys[-1] = _key(token)
            self.state = _COLON
            return True
        return False

    def add_pairs(self, pairs: str) -> None:
        target = self._containers[-1]
        for pair in pairs[:-1].split(","):
            key, _, value = pair.partition(":")
            target[int(key)] = int(value)

    def _take_punctuation(self, mark: str) -> bool:
        if mark == ",":
            return self._take_comma()
        if mark == ":":
            expected = self.state == _COLON
            self.state = _VALUE
            return expected
        if mark in "{[":
            return self._open(mark)
        return self._close(dict if mark == "}" else list)

    def _take_comma(self) -> bool:
        """Spare ones do no harm: `[1,,2,]` is `[1,2]`."""
        if not self._containers or self.state == _COLON:
            return False
        in_object = type(self._containers[-1]) is dict
        if in_object and self.state == _VALUE:
            return False
        self.state = _KEY if in_object else _VALUE
        return True

    def _open(self, mark: str) -> bool:
        if self.state == _KEY and mark == "{":
            self._keys[-1] = _Builder  # says that what closes next is a key, not a value
        elif self.state != _VALUE:
            return False
        if len(self._containers) == MAX_DEPTH:
            raise _too_deep()
        self._containers.append({} if mark == "{" else [])
        self._keys.append(None)
        self.state = _KEY if mark == "{" else _VALUE
        return True

    def _close(self, kind: type) -> bool:
        between = self.state in (_AFTER, _KEY) if kind is dict else self.state in (_AFTER, _VALUE)
        if not between or not self._containers or type(self._containers[-1]) is not kind:
            return False
        self._keys.pop()
        closed = self._containers.pop()
        if self._keys and self._keys[-1] is _Builder:
            self._keys[-1] = ObjectKey(closed)
            self.state = _COLON
        else:
            self._place(closed)
        return True

    def _place(self, value: Any) -> None:
        if not self._containers:
            self.result, self.state = value, _DONE
            return
        container = self._containers[-1]
        if type(container) is list:
            container.append(value)
        else:
            container[self._keys[-1]] = value
        self.state = _AFTER


def _scalar(token: re.Match[str]) -> Any:
    text = token[token.lastindex or 0]
    if token.lastindex == _NUMBER:
        return _number(text)
    if token.lastindex == _WORD:
        return _WORDS.get(text, text)
    return _unescape(text)


def _key(token: re.Match[str]) -> int | str:
    text = token[token.lastindex or 0]
    if token.lastindex == _NUMBER:
        number = _number(text)
        return number if type(number) is int else text
    return text if token.lastindex == _WORD else _unescape(text)


def _number(text: str) -> int | float:
    if len(text) <= _MAX_INT_DIGITS and text.lstrip("-").isdigit():
        return int(text)
    number = float(text)
    if math.isinf(number):
        raise ProtocolError("a number in JSON is out of range")
    return number


_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = dict(zip("\"'\\/bfFnrtv01234567", "\"'\\/\b\f\f\n\r\t\v\0\1\2\3\4\5\6\7", strict=True))
_SURROGATE = re.compile("[\ud800-\udfff]")


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    try:
        text = _ESCAPE.sub(_escaped, text)
    except KeyError as escape:
        raise ProtocolError(f"a string in JSON holds the unknown escape \\{escape.args[0]}") from None
    if _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _escaped(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES[code]


# References: fastjson writes an object it has written before as {"$ref":"$.path"}


_STEP = re.compile(r"\.((?:[^.\[\]\\]|\\.)+)|\[([0-9]{1,9})\]", re.DOTALL)


def _resolve(root: Any) -> Any:
    """`root` with each reference replaced by a copy of what it names, or by {} if that cannot be found.

    Copies keep the value a tree: nobody who walks it can be led in circles or through one part a million times.
    """
    if _is_reference(root):
        return {}
    budget = [MAX_REFERRED_VALUES]
    pending = [root]
    while pending:
        container = pending.pop()
        if type(container) not in (dict, list):
            continue
        for key, child in container.items() if type(container) is dict else enumerate(container):
            if _is_reference(child):
                container[key] = _copy(_referred(root, child["$ref"]), 0, budget)
            else:
                pending.append(child)
    return root


def _is_reference(value: Any) -> bool:
    return type(value) is dict and len(value) == 1 and type(value.get("$ref")) is str


def _referred(root: Any, path: str) -> Any:
    node, position = root, 1
    if not path.startswith("$"):
        return {}
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            return {}
        name, index = step.groups()
        try:
            node = node[int(index)] if name is None else node[re.sub(r"\\(.)", r"\1", name)]
        except (LookupError, TypeError):
            return {}
        position = step.end()
    return node


def _copy(value: Any, depth: int, budget: list[int]) -> Any:
    budget[0] -= 1
    if budget[0] < 0:
        raise ProtocolError(f"references in JSON name more than {MAX_REFERRED_VALUES} values")
    if type(value) not in (dict, list):
        return value
    if _is_reference(value) or depth == MAX_DEPTH:
        return {}
    if type(value) is dict:
        return {key: _copy(child, depth + 1, budget) for key, child in value.items()}
    return [_copy(child, depth + 1, budget) for child in value]


# Writing


def _plain(value: Any) -> Any:
    """What orjson does not know, in words that it does."""
    match value:
        case MessageQueue(topic, broker_name, queue_id):
            return {"brokerName": broker_name, "queueId": queue_id, "topic": topic}
        case set() | frozenset():
            return sorted(value)
        case bytes() | bytearray() | memoryview():
            return b64encode(value).decode()
        case IntKeys():
            return value.encoded()
        case Mapping():
            return dict(value)
        case ObjectKey():
            return value.fields
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _text(value: Any, depth: int, pretty: bool) -> str:
    if depth > _MAX_WRITTEN_DEPTH:
        raise ValueError(f"a value nested deeper than {_MAX_WRITTEN_DEPTH} has no JSON form here")
    if type(value) is str:
        return _quoted(value)
    if type(value) is int:
        return str(value)
    if isinstance(value, MessageQueue | ObjectKey):
        return _key_text(value)
    if isinstance(value, Mapping):
        if len(value) == 1 and "$ref" in value:
            return "{}"
        colon = [f"{_key_text(key)}:{_text(child, depth + 1, pretty)}" for key, child in value.items()]
        return _enclosed("{", colon, "}", depth, pretty)
    if isinstance(value, list | tuple | set | frozenset):
        children = sorted(value) if isinstance(value, set | frozenset) else value
        return _enclosed("[", [_text(child, depth + 1, pretty) for child in children], "]", depth, pretty)
    return orjson.dumps(value, _plain).decode()


def _enclosed(opening: str, members: list[str], closing: str, depth: int, pretty: bool) -> str:
    if not pretty or not members:
        return f"{opening}{','.join(members)}{closing}"
    line = "\n" + "\t" * (depth + 1)
    return f"{opening}{line}{(',' + line).join(members)}{line[:-1]}{closing}"


def _key_text(key: Any) -> str:
    match key:
        case str():
            return _quoted(key)
        case int():
            return str(int(key))
        case MessageQueue(topic, broker_name, queue_id):
            return f'{{"brokerName":{_quoted(broker_name)},"queueId":{queue_id},"topic":{_quoted(topic)}}}'
        case ObjectKey(text=text):
            return str(text)
    raise TypeError(f"{type(key).__name__} cannot be a key in JSON")


def _quoted(text: str) -> str:
    try:
        return orjson.dumps(text).decode()
    except orjson.JSONEncodeError:  # half a surrogate pair
        return orjson.dumps(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")).decode()

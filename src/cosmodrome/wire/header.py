"""Typed headers: a dataclass per request or reply, with its wire names.

    @header
    class GetMaxOffset(Header):
        topic: str
        queue_id: int                          # "queueId" on the wire
        committed: bool = True                 # optional: has a default
        broker_name: str | None = wire("bname", default=None)

A field without default is required. Decoding converts text to the field's type; encoding leaves None out. Both
functions are compiled once per class, as dataclasses compile `__init__`, because they run for every message; a class
compiles them at its first use, for a program uses few of these classes and would wait for all of them at its start.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from cosmodrome.errors import InvalidParameter, MissingField
from cosmodrome.native import wire as _native
from cosmodrome.numbers import MIN_LONG, read_int

if TYPE_CHECKING:
    from cosmodrome.wire.command import Command

T = TypeVar("T", bound="Header")
Decode = Callable[[Mapping[str, str]], Any]
Encode = Callable[[Any], dict[str, str]]


class Header:
    """What every typed header can do."""

    __slots__ = ()
    _decode: ClassVar[Decode]
    _encode: ClassVar[Encode]
    _codec: ClassVar[Any] = None

    @classmethod
    def decode(cls, command: Command) -> Self:
        """This header out of a command's fields; MissingField or InvalidParameter when they don't make one."""
        if command.raw is not None:  # native code has not looked at its fields yet
            codec = cls._codec or cls.codec()
            decoded: Self | None = codec.read(command)
            if decoded is not None:
                return decoded
        return cls._decode(command.fields)  # type: ignore[no-any-return]

    @classmethod
    def codec(cls) -> Any:
        """Return the native twin of `decode` and `fields`, made at its first use."""
        if cls._codec is None:
            cls._codec = compile_codec(cls, _wire_names(cls))
        return cls._codec

    def fields(self) -> dict[str, str]:
        """The wire form, all values text."""
        return type(self)._encode(self)

    # Once for all classes: a dataclass would compile both for each of them.

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _names(type(self)))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in _names(type(self)))
        return f"{type(self).__qualname__}({values})"


def wire(name: str, *, default: Any = dataclasses.MISSING, short: str | None = None) -> Any:
    """A field whose wire name is not its own in camelCase; `short` is its name in lettered (V2) headers."""
    return dataclasses.field(default=default, metadata={"name": name, "short": short})


@dataclass_transform(field_specifiers=(wire,))
def header(cls: type[T]) -> type[T]:
    made: type[T] = dataclasses.dataclass(slots=True, repr=False, eq=False)(cls)

    def decode(fields: Mapping[str, str]) -> Any:
        made._decode = compile_decode(made, _wire_names(made))
        return made._decode(fields)

    def encode(self: Any) -> dict[str, str]:
        made._encode = compile_encode(made, _wire_names(made))
        return made._encode(self)

    made._decode, made._encode = decode, encode  # each replaces itself when it is called
    made._codec = None  # not that of a class it extends
    return made


def _names(cls: type[Header]) -> Iterable[str]:
    return (f.name for f in dataclasses.fields(cls))  # type: ignore[arg-type]


def _wire_names(cls: type[Header]) -> dict[str, str]:
    return {f.name: f.metadata.get("name") or camel_case(f.name) for f in dataclasses.fields(cls)}  # type: ignore[arg-type]


def camel_case(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def short_names(cls: type[Header]) -> dict[str, str]:
    """Attribute → letter, for the headers that have a lettered form."""
    return {f.name: f.metadata["short"] for f in dataclasses.fields(cls)}  # type: ignore[arg-type]


def compile_decode(cls: type[Header], names: Mapping[str, str]) -> Decode:
    """A function from wire fields to an instance. It sets the slots itself: `__init__` would cost as much again."""
    hints = get_type_hints(cls)
    lines, defaults = [], {}
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        value = _FROM_TEXT[_plain(hints[f.name])].format("text")
        if f.default is dataclasses.MISSING:
            lines.append(f"text = fields[{names[f.name]!r}]; self.{f.name} = {value}")
        else:
            defaults[f"default_{f.name}"] = f.default
            lines.append(f"text = get({names[f.name]!r})")
            lines.append(f"self.{f.name} = {value} if text is not None else default_{f.name}")
    body = "\n        ".join(lines)
    source = f"""
def decode(fields):
    get = fields.get
    self = new(cls)
    try:
        {body}
    except KeyError as missing:
        raise MissingField({cls.__name__!r}, missing.args[0]) from None
    except ValueError as error:
        raise InvalidParameter(f"{cls.__name__}: {{error}}") from None
    return self
"""
    decode: Decode = _compiled(source, "decode", cls=cls, new=object.__new__, **defaults)
    return decode


def compile_codec(cls: type[Header], names: Mapping[str, str]) -> Any:
    """Return a native codec of the header under these names; there must be native code."""
    assert _native is not None, "the native part is not used"
    hints = get_type_hints(cls)
    fields = [
        (
            f.name,
            names[f.name],
            _plain(hints[f.name]),
            f.default is dataclasses.MISSING,
            _is_optional(hints[f.name]),
            None if f.default is dataclasses.MISSING else f.default,
        )
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
    ]
    return _native.HeaderCodec(cls, fields)


def compile_encode(cls: type[Header], names: Mapping[str, str]) -> Encode:
    """A function from an instance to wire fields."""
    hints = get_type_hints(cls)
    required, optional = [], []
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        text = _TO_TEXT[_plain(hints[f.name])].format(f"self.{f.name}")
        if _is_optional(hints[f.name]):
            optional.append(f"    if self.{f.name} is not None:\n        fields[{names[f.name]!r}] = {text}")
        else:
            required.append(f"{names[f.name]!r}: {text}")
    body = "\n".join(optional)
    source = f"def encode(self):\n    fields = {{{', '.join(required)}}}\n{body}\n    return fields\n"
    encode: Encode = _compiled(source, "encode")
    return encode


# Queue ids, counts, flags: most numbers of a header are found here, at a third of the cost of reading them.
_SMALL = {str(number): number for number in range(1_000)}

# Java's numbers have at most 64 bits, and a larger one would go through here into files that cannot hold it. `int`
# itself reads what is nearly always there: 1 to 18 digits, at half the cost of a call.
_FROM_TEXT = {
    str: "{0}",
    int: "(number if (number := small({0})) is not None"
    " else int({0}) if {0}.isdigit() and {0}.isascii() and len({0}) < 19 else read_long({0}))",
    bool: '({0}.lower() == "true")',
}
_TO_TEXT = {str: "{0}", int: "str({0})", bool: '("true" if {0} else "false")'}


def _compiled(source: str, name: str, **names: Any) -> Any:
    known = {"MissingField": MissingField, "InvalidParameter": InvalidParameter, "read_long": _read_long}
    namespace: dict[str, Any] = {**known, "small": _SMALL.get, **names}
    exec(source, namespace)  # our own text, made of attribute names of classes in this package
    return namespace[name]


def _read_long(text: str) -> int:
    return read_int(text, low=MIN_LONG)


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _plain(hint: Any) -> type:
    """`int` of `int | None`."""
    if _is_optional(hint):
        (hint,) = (arm for arm in get_args(hint) if arm is not type(None))
    assert hint in _FROM_TEXT, f"a header field is str, int or bool, not {hint}"
    plain: type = hint
    return plain

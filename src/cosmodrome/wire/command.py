"""Commands: requests and replies, with JSON or binary headers.

A reply carries its request's opaque number and the response bit, and is encoded the way the request was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from cosmodrome.codes import OUR_VERSION, Language, ResponseCode
from cosmodrome.errors import ProtocolError
from cosmodrome.native import wire as _native
from cosmodrome.numbers import read_int
from cosmodrome.wire import binary_header, fastjson
from cosmodrome.wire.frame import BINARY, JSON, MAX_HEADER_BYTES, Frame, frame_head
from cosmodrome.wire.header import Header

RESPONSE_BIT: Final = 1
ONEWAY_BIT: Final = 2

_LANGUAGES: Final = {member.name: member.value for member in Language}
_LANGUAGE_NAMES: Final = {member.value: member.name for member in Language}
_OUR_LANGUAGE: Final = int(Language.PYTHON)
_OTHER_LANGUAGE: Final = int(Language.OTHER)
_OUR_VERSION: Final = int(OUR_VERSION)
_MAX_INT32: Final = 0x7FFFFFFF
_SUCCESS: Final = int(ResponseCode.SUCCESS)
# At worst some ten milliseconds, for headers are read on the event loop.
MAX_LENIENT_HEADER_BYTES: Final = 64 * 1024
MAX_LENIENT_HEADER_TOKENS: Final = 2_000

# Decoding and replying set the slots themselves: they run for every message, and `__init__` with its defaults costs
# half a microsecond.
_new: Final = object.__new__


class Command:
    """One request or reply. `fields` are always text, whatever the peer sent.

    Native code neither reads nor writes `fields`: a typed header is made from the bytes of the frame (`raw`, from
    `fields_at` on), and a typed `header` becomes the bytes of a reply. They come into being when they are asked for,
    and count from then on.
    """

    __slots__ = (
        "_fields",
        "body",
        "code",
        "fields_at",
        "flag",
        "header",
        "language",
        "opaque",
        "raw",
        "remark",
        "serializer",
        "version",
    )
    _fields: dict[str, str] | None
    raw: bytes | None
    header: Header | None

    def __init__(
        self,
        code: int,
        fields: dict[str, str],
        body: bytes | memoryview = b"",
        *,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        language: int = _OUR_LANGUAGE,
        version: int = _OUR_VERSION,
        serializer: int = JSON,
    ) -> None:
        self.code = code
        self._fields = fields
        self.body = body
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.language = language
        self.version = version
        self.serializer = serializer
        self.raw = self.header = None

    @property
    def fields(self) -> dict[str, str]:
        fields = self._fields
        return fields if fields is not None else self._make_fields()

    @fields.setter
    def fields(self, fields: dict[str, str]) -> None:
        self._fields = fields
        self.raw = self.header = None

    def _make_fields(self) -> dict[str, str]:
        """Read the fields of a command that native code decoded, or make those of a reply; they count from now on."""
        if self.raw is not None:
            fields = Command._decode(self.serializer, self.raw, self.body).fields
        else:
            fields = self.header.fields() if self.header is not None else {}
        self.fields = fields
        return fields

    def __repr__(self) -> str:
        kind = "reply" if self.is_response else "oneway" if self.is_oneway else "request"
        remark = f", remark={self.remark!r}" if self.remark else ""
        return f"<{kind} {self.code} opaque={self.opaque} {self.fields}{remark} body={len(self.body)} B>"

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_BIT)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_BIT)

    @classmethod
    def request(
        cls,
        code: int,
        header: Header | None = None,
        body: bytes | memoryview = b"",
        *,
        oneway: bool = False,
        fields: dict[str, str] | None = None,
        serializer: int = JSON,
    ) -> Command:
        """A request; `fields` are extras beside the typed header. The connection gives it its opaque number."""
        texts = header.fields() if header is not None else {}
        if fields:
            texts.update(fields)
        return cls(int(code), texts, body, flag=ONEWAY_BIT if oneway else 0, serializer=serializer)

    def reply(
        self,
        code: int = _SUCCESS,
        header: Header | None = None,
        body: bytes | memoryview = b"",
        *,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
    ) -> Command:
        reply = _new(Command)
        reply.raw = reply.header = None
        if _native is not None and header is not None and not fields:
            reply.header, reply._fields = header, None
        else:
            texts = header.fields() if header is not None else {}
            if fields:
                texts.update(fields)
            reply._fields = texts
        reply.code, reply.opaque, reply.flag, reply.version = code, self.opaque, RESPONSE_BIT, _OUR_VERSION
        reply.body, reply.serializer = body, self.serializer
        reply.language, reply.remark = _OUR_LANGUAGE, remark
        return reply

    def head(self) -> bytes:
        """The encoded command without its body, so that a large body need not be copied behind it."""
        header = self.header
        if header is not None and _native is not None:
            head: bytes | None = _native.head(self, header.codec(), len(self.body))
            if head is not None:
                return head
        encoded = _encode_json(self) if self.serializer == JSON else _encode_binary(self)
        if len(encoded) > MAX_HEADER_BYTES:
            raise ProtocolError(f"a header of {len(encoded)} bytes does not fit a frame")
        return frame_head(self.serializer, encoded, len(self.body))

    def encode(self) -> bytes:
        return b"".join((self.head(), self.body))

    @classmethod
    def decode(cls, frame: Frame) -> Command:
        """The command in a frame, or ProtocolError."""
        return decode(frame)

    @staticmethod
    def _decode(serializer: int, header: bytes, body: bytes | memoryview) -> Command:
        if serializer == JSON:
            return _decode_json(header, body)
        if serializer == BINARY:
            return _decode_binary(header, body)
        raise ProtocolError(f"unknown header type {serializer}; JSON is 0, ROCKETMQ is 1")


def _decode_frame(frame: Frame) -> Command:
    return Command._decode(*frame)


# The command in a frame, or ProtocolError.
decode: Callable[[Frame], Command] = _decode_frame
if _native is not None:
    _native.know(Command, _LANGUAGES)
    decode = _native.decode


def _encode_json(command: Command) -> bytes:
    header: dict[str, Any] = {
        "code": command.code,
        "extFields": command.fields,
        "flag": command.flag,
        "language": _LANGUAGE_NAMES.get(command.language, "OTHER"),
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    if command.remark is not None:
        header["remark"] = command.remark
    return orjson.dumps(header)


def _decode_json(header: bytes, body: bytes | memoryview) -> Command:
    try:
        values = orjson.loads(header)
    except orjson.JSONDecodeError:
        values = _lenient(header)
    if type(values) is not dict:
        raise ProtocolError("the header is not a JSON object")
    get = values.get
    fields = get("extFields")
    if fields is None:
        fields = {}
    elif type(fields) is not dict:
        raise ProtocolError("extFields is not a JSON object")
    else:
        try:
            "".join(fields.values())  # the quickest way to see that all are text
        except TypeError:
            fields = _as_text(fields)
    code, opaque, flag, version = get("code", 0), get("opaque", 0), get("flag", 0), get("version", 0)
    plain = type(code) is type(opaque) is type(flag) is type(version) is int
    if not (plain and 0 <= code | flag | version <= _MAX_INT32 and -_MAX_INT32 <= opaque <= _MAX_INT32):
        code, opaque, flag, version = map(_int32, (code, opaque, flag, version))
    command = _new(Command)
    command.code, command.opaque, command.flag, command.version = code, opaque, flag, version
    command._fields, command.body, command.serializer = fields, body, JSON
    command.raw = command.header = None
    command.language = _language(get("language"))
    remark = get("remark")
    command.remark = remark if remark is None or type(remark) is str else _json_text(remark)
    return command


def _lenient(header: bytes) -> Any:
    """What strict JSON refuses and fastjson reads, where even a field's name may be a number."""
    with fastjson.lenient_up_to(MAX_LENIENT_HEADER_BYTES, MAX_LENIENT_HEADER_TOKENS):
        values = fastjson.loads(header)
    if isinstance(values, dict) and isinstance(values.get("extFields"), dict):
        values["extFields"] = _as_text(values["extFields"])
    return values


def _as_text(fields: dict[Any, Any]) -> dict[str, str]:
    """Node sends numbers and booleans; they become what Java would have sent."""
    return {
        str(key): value if type(value) is str else _json_text(value)
        for key, value in fields.items()
        if value is not None
    }


def _json_text(value: Any) -> str:
    try:
        return fastjson.dumps(value).decode()
    except ValueError as error:
        raise ProtocolError(f"a header field has no text: {error}") from error


def _int32(value: Any) -> int:
    """fastjson's idea of an int: a number, or text that holds one."""
    if type(value) is not int:
        try:
            value = read_int(value, low=-_MAX_INT32 - 1) if type(value) is str else int(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ProtocolError(f"{value!r:.40} is not a number") from error
    if not -_MAX_INT32 - 1 <= value <= _MAX_INT32:
        raise ProtocolError(f"{value!r:.40} does not fit 32 bits")
    return int(value)


def _language(name: Any) -> int:
    """A name in any case, an ordinal, or nothing at all, which Java reads as JAVA."""
    if type(name) is str:
        known = _LANGUAGES.get(name)
        return known if known is not None else _LANGUAGES.get(name.upper(), _OTHER_LANGUAGE)
    if name is None:
        return int(Language.JAVA)
    number = _int32(name)
    return number if number in _LANGUAGE_NAMES else _OTHER_LANGUAGE


def _encode_binary(command: Command) -> bytes:
    return binary_header.encode(
        command.code,
        command.language,
        command.version,
        command.opaque,
        command.flag,
        command.remark,
        command.fields,
    )


def _decode_binary(header: bytes, body: bytes | memoryview) -> Command:
    code, language, version, opaque, flag, remark, fields = binary_header.decode(header)
    command = _new(Command)
    command.code, command.opaque, command.flag, command.version = code, opaque, flag, version
    command._fields, command.body, command.serializer = fields, body, BINARY
    command.raw = command.header = None
    command.language, command.remark = language, remark
    return command

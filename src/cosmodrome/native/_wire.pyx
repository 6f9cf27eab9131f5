# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Commands and typed headers, straight from and to the bytes of a frame: the native twin of `wire.command` and `wire.header`.

Every function reads and writes only what is usual; for anything else it returns None, and the pure code decides. No byte
is looked at before its place is known to be inside the header.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_Clear
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    #include <structmember.h>

    /* Where the objects of a class keep the slot of this name; -1 if it is no slot. */
    static Py_ssize_t slot_place(PyObject *descriptor) {
        if (Py_TYPE(descriptor) != &PyMemberDescr_Type) return -1;
        PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
        return member->type == T_OBJECT_EX ? member->offset : -1;
    }
    #define slot_of(object, place) (*(PyObject **)((char *)(object) + (place)))
    static PyObject *blank_of(PyObject *cls) { return ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, 0); }
    static PyObject *tuple_of(PyObject *cls, Py_ssize_t size) {
        return ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, size);
    }
    static int is_of(PyObject *object, PyObject *cls) { return Py_TYPE(object) == (PyTypeObject *)cls; }
    """
    Py_ssize_t slot_place(object descriptor)
    PyObject *slot_of(PyObject *thing, Py_ssize_t place)
    PyObject *blank_of(object cls)
    PyObject *tuple_of(object cls, Py_ssize_t size)
    bint is_of(PyObject *thing, PyObject *cls)

cdef extern from *:
    """
    #ifndef SOURCE_CHECKSUM
    #define SOURCE_CHECKSUM 0
    #endif
    """
    unsigned long SOURCE_CHECKSUM

SOURCE = SOURCE_CHECKSUM  # of this file, when it was compiled

cdef extern from "Python.h":
    PyObject *PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors)
    const char *PyUnicode_AsUTF8AndSize(PyObject *text, Py_ssize_t *size)
    PyObject *PyLong_FromLongLong(long long number)
    long long PyLong_AsLongLong(PyObject *number)
    bint PyLong_CheckExact(PyObject *thing)
    bint PyLong_Check(PyObject *thing)
    bint PyUnicode_CheckExact(PyObject *thing)
    bint PyUnicode_Check(PyObject *thing)
    bint PyBytes_CheckExact(PyObject *thing)
    bint PyByteArray_CheckExact(PyObject *thing)
    char *PyByteArray_AS_STRING(PyObject *thing)
    Py_ssize_t PyByteArray_GET_SIZE(PyObject *thing)
    bint PyTuple_Check(PyObject *thing)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *thing)
    PyObject *PyTuple_GET_ITEM(PyObject *thing, Py_ssize_t index)
    void PyTuple_SET_ITEM(PyObject *thing, Py_ssize_t index, PyObject *item)
    PyObject *PyErr_Occurred()
    void Py_XDECREF(PyObject *thing)
    PyObject *Py_True
    PyObject *Py_False
    PyObject *Py_None

ctypedef const unsigned char *Bytes

DEF TEXT = 0
DEF NUMBER = 1
DEF TRUTH = 2
DEF MAX_FIELDS = 40
DEF JSON = 0
DEF BINARY = 1
DEF MAX_DIGITS = 18
DEF SCRATCH = 4096
DEF MAX_VALUE = 65536

# What scanning a JSON text found in it.
DEF ESCAPED = 1
DEF NOT_ASCII = 2

cdef struct Field:
    const unsigned char *name
    Py_ssize_t size
    Py_ssize_t place
    int kind
    bint required  # a header without it is refused
    bint optional  # None leaves it out


# --- JSON texts

# 0: itself; 1: ends the text; 2: begins an escape; 3: may not stand there; 4: a part of a longer character.
cdef unsigned char _KINDS[256]
cdef int _number
for _number in range(256):
    _KINDS[_number] = 3 if _number < 0x20 else 4 if _number >= 0x80 else 0
_KINDS[b'"'] = 1
_KINDS[b"\\"] = 2


cdef inline Bytes _scan(Bytes at, Bytes end, int *found) noexcept nogil:
    """The closing quote of a text that begins at `at`, and what is in between; NULL if it is none."""
    cdef unsigned char kind
    found[0] = 0
    while at < end:
        kind = _KINDS[at[0]]
        if kind == 0:
            at += 1
        elif kind == 1:
            return at
        elif kind == 2:
            found[0] |= ESCAPED
            if end - at < 2:
                return NULL
            at += 2  # the escape itself is looked at when it is read
        elif kind == 4:
            found[0] |= NOT_ASCII
            at += 1
        else:
            return NULL
    return NULL


cdef inline int _hex(unsigned char digit) noexcept nogil:
    if c'0' <= digit <= c'9':
        return digit - c'0'
    if c'a' <= digit <= c'f':
        return digit - c'a' + 10
    if c'A' <= digit <= c'F':
        return digit - c'A' + 10
    return -1


cdef Py_ssize_t _unescape(Bytes at, Bytes end, unsigned char *to) noexcept nogil:
    """The size of the text in `to`, which has as much room as the escaped one takes; -1 for an escape that is none, or
    of what is not ASCII."""
    cdef unsigned char *begin = to
    cdef unsigned char letter
    cdef int high, low
    while at < end:
        letter = at[0]
        if letter != c'\\':
            to[0] = letter
            to += 1
            at += 1
            continue
        if end - at < 2:
            return -1
        letter = at[1]
        at += 2
        if letter == c'u':
            if end - at < 4 or at[0] != c'0' or at[1] != c'0':
                return -1
            high, low = _hex(at[2]), _hex(at[3])
            if high < 0 or high > 7 or low < 0:
                return -1
            to[0] = <unsigned char>(high << 4 | low)
            at += 4
        elif letter == c'"' or letter == c'\\' or letter == c'/':
            to[0] = letter
        elif letter == c'n':
            to[0] = 10
        elif letter == c't':
            to[0] = 9
        elif letter == c'r':
            to[0] = 13
        elif letter == c'b':
            to[0] = 8
        elif letter == c'f':
            to[0] = 12
        else:
            return -1
        to += 1
    return to - begin


cdef inline Bytes _blanks(Bytes at, Bytes end) noexcept nogil:
    while at < end and (at[0] == 32 or at[0] == 10 or at[0] == 13 or at[0] == 9):
        at += 1
    return at


cdef inline bint _is(Bytes at, Py_ssize_t size, const char *text, Py_ssize_t text_size) noexcept nogil:
    return size == text_size and memcmp(at, text, <size_t>size) == 0


cdef PyObject *_value(int kind, Bytes at, Py_ssize_t size) noexcept:
    """The value of a field, a new reference; NULL, and no error, if it is unusual."""
    cdef long long number = 0
    cdef Py_ssize_t index
    cdef PyObject *made
    if kind == TEXT:
        made = PyUnicode_DecodeUTF8(<const char *>at, size, NULL)
    elif kind == NUMBER:
        if not 0 < size <= MAX_DIGITS:
            return NULL
        for index in range(size):
            if not c'0' <= at[index] <= c'9':
                return NULL
            number = number * 10 + (at[index] - c'0')
        made = PyLong_FromLongLong(number)
    elif _is(at, size, "true", 4):
        made = Py_True
        Py_INCREF(<object>made)
    elif _is(at, size, "false", 5):
        made = Py_False
        Py_INCREF(<object>made)
    else:
        return NULL
    if made is NULL:
        PyErr_Clear()
    return made


cdef class HeaderCodec:
    """The fields of one class of typed headers: name, place in its objects, kind."""

    cdef object _cls
    cdef list _kept  # the names that `_fields` points to
    cdef list _defaults
    cdef Field _fields[MAX_FIELDS]
    cdef Py_ssize_t _count
    cdef unsigned long long _required

    def __init__(self, cls, list fields):
        """`fields` are (attribute, wire name, kind, is required, is optional, default) in the order of the class."""
        cdef Py_ssize_t index
        if len(fields) > MAX_FIELDS:
            raise ValueError(f"{cls.__name__} has more than {MAX_FIELDS} fields")
        self._cls, self._kept, self._defaults, self._count, self._required = cls, [], [], len(fields), 0
        for index, (attribute, name, kind, required, optional, default) in enumerate(fields):
            raw = name.encode()
            self._kept.append(raw)
            self._defaults.append(default)
            self._fields[index].name = <const unsigned char *>PyBytes_AS_STRING(raw)
            self._fields[index].size = PyBytes_GET_SIZE(raw)
            self._fields[index].place = slot_place(cls.__dict__[attribute])
            self._fields[index].kind = {str: TEXT, int: NUMBER, bool: TRUTH}[kind]
            self._fields[index].required = required
            self._fields[index].optional = optional
            if self._fields[index].place < 0:
                raise TypeError(f"{cls.__name__}.{attribute} is no slot")
            if required:
                self._required |= 1ull << index

    cdef Py_ssize_t _find(self, Bytes name, Py_ssize_t size, Py_ssize_t guess) noexcept:
        """The number of the field of this name; -1 if there is none. Most come in the order of the class."""
        cdef Py_ssize_t step, index = guess
        for step in range(self._count):
            if index >= self._count:
                index = 0
            if self._fields[index].size == size and memcmp(self._fields[index].name, name, <size_t>size) == 0:
                return index
            index += 1
        return -1

    cdef bint _finish(self, PyObject *made, unsigned long long seen):
        """Set what was not there to its default; False if it has none."""
        cdef Py_ssize_t index
        cdef PyObject *default
        if seen & self._required != self._required:
            return False
        for index in range(self._count):
            if not seen >> index & 1:
                default = <PyObject *>self._defaults[index]
                Py_INCREF(<object>default)
                _fill(made, self._fields[index].place, default)
        return True

    cdef bint _read_json(self, PyObject *made, Bytes at, Bytes end) noexcept:
        """Fill in the fields of a JSON object, whose form `decode` has seen to be right."""
        cdef unsigned char scratch[SCRATCH]
        cdef unsigned long long seen = 0
        cdef Py_ssize_t index, guess = 0, size
        cdef Bytes name
        cdef Bytes stop
        cdef PyObject *value
        cdef int found, name_found
        at = _blanks(at + 1, end)
        while at[0] != c'}':
            name = at + 1
            stop = _scan(name, end, &name_found)
            if stop is NULL or name_found:
                return False
            index = self._find(name, stop - name, guess)
            at = _blanks(stop + 1, end)  # the colon
            at = _blanks(at + 1, end) + 1
            stop = _scan(at, end, &found)
            if stop is NULL:
                return False
            if index >= 0:
                if seen >> index & 1:
                    return False
                guess = index + 1
                if found & ESCAPED:
                    if stop - at > SCRATCH:
                        return False
                    size = _unescape(at, stop, scratch)
                    value = _value(self._fields[index].kind, scratch, size) if size >= 0 else NULL
                else:
                    value = _value(self._fields[index].kind, at, stop - at)
                if value is NULL:
                    return False
                seen |= 1ull << index
                _fill(made, self._fields[index].place, value)
            at = _blanks(stop + 1, end)
            if at[0] == c',':
                at = _blanks(at + 1, end)
        return self._finish(made, seen)

    cdef bint _read_binary(self, PyObject *made, Bytes at, Bytes end) noexcept:
        """Fill in the fields of a binary header, whose sizes `decode` has seen to be right."""
        cdef unsigned long long seen = 0
        cdef Py_ssize_t index, guess = 0, size
        cdef PyObject *value
        while at < end:
            size = at[0] << 8 | at[1]
            at += 2
            index = self._find(at, size, guess)
            at += size
            size = _i32(at)
            at += 4
            if index >= 0 and size > 0:  # Java reads an empty value as none at all
                if seen >> index & 1:
                    return False
                guess = index + 1
                value = _value(self._fields[index].kind, at, size)
                if value is NULL:
                    return False
                seen |= 1ull << index
                _fill(made, self._fields[index].place, value)
            at += size
        return self._finish(made, seen)

    def read(self, command):
        """The typed header of a command that `decode` made; None if the pure code must read it."""
        cdef PyObject *source = <PyObject *>command
        cdef PyObject *raw
        cdef PyObject *made
        cdef Bytes begin
        cdef Py_ssize_t size, at
        cdef bint read
        if not is_of(source, <PyObject *>_command):
            return None
        raw = slot_of(source, _raw_at)
        if raw is NULL or not PyBytes_CheckExact(raw):
            return None
        begin, size = <Bytes>PyBytes_AS_STRING(<object>raw), PyBytes_GET_SIZE(<object>raw)
        at = <Py_ssize_t>PyLong_AsLongLong(slot_of(source, _fields_at))
        if not 0 < at <= size:
            return None
        made = blank_of(self._cls)
        if made is NULL:
            raise MemoryError
        if slot_of(source, _serializer_at) == <PyObject *>_json:
            read = self._read_json(made, begin + at, begin + size)
        else:
            read = self._read_binary(made, begin + at, begin + size)
        result = <object>made
        Py_DECREF(result)
        return result if read else None

    cdef bint _write(self, Writer *out, PyObject *header, bint binary) noexcept:
        """Put the fields behind each other: those that are always there first, as the pure code does."""
        cdef Py_ssize_t index, written = 0
        cdef Field *field
        cdef int optional
        for optional in range(2):
            for index in range(self._count):
                field = &self._fields[index]
                if field.optional == optional:
                    if not _write_field(out, field, slot_of(header, field.place), binary, &written):
                        return False
        return True


cdef inline void _fill(PyObject *made, Py_ssize_t place, PyObject *value) noexcept:
    """Put a new reference into a slot that is still empty."""
    (<PyObject **>(<char *>made + place))[0] = value


cdef inline Py_ssize_t _i32(Bytes at) noexcept nogil:
    return <int>(<unsigned int>at[0] << 24 | <unsigned int>at[1] << 16 | <unsigned int>at[2] << 8 | at[3])


# --- frames

DEF PREFIX_SIZE = 8
DEF MAX_HEADER_BYTES = 256 * 1024

cdef object _frame = None
cdef object _refuse = None


def know_frames(frame, refuse):
    """Learn the class of frames, and what refuses a prefix that cannot be right."""
    global _frame, _refuse
    _frame, _refuse = frame, refuse


cdef class FrameDecoder:
    """The native twin of `wire.frame.FrameDecoder`."""

    cdef Py_ssize_t _max_size
    cdef Py_ssize_t _position
    cdef readonly object _data  # bytes, or a bytearray while a frame is not whole
    cdef readonly Py_ssize_t pending_bytes

    def __init__(self, Py_ssize_t max_frame_bytes=16 * 1024 * 1024):
        self._max_size = max_frame_bytes - 4
        self._data = b""
        self._position = self.pending_bytes = 0

    def feed(self, data):
        if not PyBytes_CheckExact(<PyObject *>data):
            data = bytes(data)
        if not self.pending_bytes:
            self._data = data
            self._position = 0
            self.pending_bytes = PyBytes_GET_SIZE(data)
            return
        self.pending_bytes += PyBytes_GET_SIZE(data)
        pending = self._data
        if PyByteArray_CheckExact(<PyObject *>pending):
            del pending[:self._position]
            pending += data
        else:
            self._data = bytearray(pending[self._position:]) + data
        self._position = 0

    def take(self):
        """The next whole frame, or None until more bytes come."""
        cdef Bytes at
        cdef Py_ssize_t have, size, header_size
        cdef PyObject *made
        cdef object data = self._data
        if self.pending_bytes < PREFIX_SIZE:
            return None
        if PyBytes_CheckExact(<PyObject *>data):
            at, have = <Bytes>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
        else:
            at, have = <Bytes>PyByteArray_AS_STRING(<PyObject *>data), PyByteArray_GET_SIZE(<PyObject *>data)
        if have - self._position != self.pending_bytes:
            raise AssertionError("the bytes of a frame are not all here")
        at += self._position
        size = _i32(at)
        header_size = at[5] << 16 | at[6] << 8 | at[7]
        if not 4 + header_size <= size <= self._max_size or header_size > MAX_HEADER_BYTES:
            raise _refuse(at[:PREFIX_SIZE], size, header_size, self._max_size)
        if self.pending_bytes < size + 4:
            return None
        made = tuple_of(_frame, 3)
        if made is NULL:
            raise MemoryError
        frame = <object>made
        Py_DECREF(frame)
        _set_item(made, 0, at[4])
        _set_item(made, 1, PyBytes_FromStringAndSize(<char *>at + PREFIX_SIZE, header_size))
        _set_item(made, 2, PyBytes_FromStringAndSize(<char *>at + PREFIX_SIZE + header_size, size - 4 - header_size))
        self._position += 4 + size
        self.pending_bytes -= 4 + size
        return frame


cdef inline void _set_item(PyObject *made, Py_ssize_t index, object item) noexcept:
    Py_INCREF(item)
    PyTuple_SET_ITEM(made, index, <PyObject *>item)


# --- commands

cdef object _command = None
cdef object _decode_pure = None
cdef object _languages = {}
cdef object _language_names = {}
cdef object _json = 0
cdef object _binary = 1
cdef Py_ssize_t _body_at, _code_at, _flag_at, _language_at, _opaque_at, _remark_at, _serializer_at, _version_at
cdef Py_ssize_t _raw_at, _fields_at, _header_at, _table_at


def know(command, languages):
    """Learn the class of commands and the names of languages."""
    global _command, _decode_pure, _languages, _language_names
    global _body_at, _code_at, _flag_at, _language_at, _opaque_at, _remark_at, _serializer_at, _version_at
    global _raw_at, _fields_at, _header_at, _table_at
    places = [
        slot_place(command.__dict__[name])
        for name in "body code flag language opaque remark serializer version raw fields_at header _fields".split()
    ]
    if min(places) < 0:
        raise TypeError("a command keeps all it has in slots")
    _body_at, _code_at, _flag_at, _language_at, _opaque_at, _remark_at, _serializer_at, _version_at = places[:8]
    _raw_at, _fields_at, _header_at, _table_at = places[8:]
    _command, _decode_pure, _languages = command, command._decode, languages
    _language_names = {number: name.encode() for name, number in languages.items()}


cdef inline void _set(PyObject *made, Py_ssize_t place, object value) noexcept:
    Py_INCREF(value)
    _fill(made, place, <PyObject *>value)


cdef object _made(
    long long code, object language, long long version, long long opaque, long long flag, object serializer,
    bytes header, Py_ssize_t fields_at, object body,
):
    cdef PyObject *made = blank_of(_command)
    if made is NULL:
        raise MemoryError
    _fill(made, _code_at, PyLong_FromLongLong(code))
    _fill(made, _version_at, PyLong_FromLongLong(version))
    _fill(made, _opaque_at, PyLong_FromLongLong(opaque))
    _fill(made, _flag_at, PyLong_FromLongLong(flag))
    _fill(made, _fields_at, PyLong_FromLongLong(fields_at))
    _set(made, _language_at, language)
    _set(made, _serializer_at, serializer)
    _set(made, _raw_at, header)
    _set(made, _body_at, body)
    _set(made, _remark_at, None)
    _set(made, _header_at, None)
    _set(made, _table_at, None)
    result = <object>made
    Py_DECREF(result)
    return result


def decode(frame):
    """The command of a frame, its fields unread; what is unusual the pure code reads."""
    cdef PyObject *parts = <PyObject *>frame
    cdef object command = None, header
    if not PyTuple_Check(parts) or PyTuple_GET_SIZE(parts) != 3:
        raise TypeError("a frame has three parts")
    header = <object>PyTuple_GET_ITEM(parts, 1)
    if PyBytes_CheckExact(<PyObject *>header):
        if PyTuple_GET_ITEM(parts, 0) == <PyObject *>_json:
            command = _decode_json(header, <object>PyTuple_GET_ITEM(parts, 2))
        elif PyTuple_GET_ITEM(parts, 0) == <PyObject *>_binary:
            command = _decode_binary(header, <object>PyTuple_GET_ITEM(parts, 2))
    return _decode_pure(*frame) if command is None else command


DEF SEEN_CODE = 1
DEF SEEN_FLAG = 2
DEF SEEN_OPAQUE = 4
DEF SEEN_VERSION = 8
DEF SEEN_LANGUAGE = 16
DEF SEEN_FIELDS = 32
DEF SEEN_SERIALIZER = 64


cdef object _decode_json(bytes header, object body):
    cdef Bytes begin = <Bytes>PyBytes_AS_STRING(header)
    cdef Bytes end = begin + PyBytes_GET_SIZE(header)
    cdef Bytes at = _blanks(begin, end)
    cdef Bytes name
    cdef Bytes stop
    cdef Bytes language = NULL
    cdef Py_ssize_t size, language_size = 0, fields_at = 0
    cdef long long code = 0, flag = 0, opaque = 0, version = 0, number
    cdef int found, one, seen = 0
    if at >= end or at[0] != c'{':
        return None
    at = _blanks(at + 1, end)
    while True:
        if at >= end or at[0] != c'"':
            return None
        name = at + 1
        stop = _scan(name, end, &found)
        if stop is NULL or found:
            return None
        size = stop - name
        at = _blanks(stop + 1, end)
        if at >= end or at[0] != c':':
            return None
        at = _blanks(at + 1, end)
        if at >= end:
            return None
        if at[0] == c'{':
            one = SEEN_FIELDS
            if not _is(name, size, "extFields", 9):
                return None
            fields_at = at - begin
            at = _past_fields(at, end)
            if at is NULL:
                return None
        elif at[0] == c'"':
            stop = _scan(at + 1, end, &found)
            if stop is NULL or found:
                return None
            if _is(name, size, "language", 8):
                one, language, language_size = SEEN_LANGUAGE, at + 1, stop - at - 1
            elif _is(name, size, "serializeTypeCurrentRPC", 23):
                one = SEEN_SERIALIZER
            else:
                return None
            at = stop + 1
        else:
            at = _past_number(at, end, &number)
            if at is NULL:
                return None
            if _is(name, size, "code", 4):
                one, code = SEEN_CODE, number
            elif _is(name, size, "flag", 4):
                one, flag = SEEN_FLAG, number
            elif _is(name, size, "opaque", 6):
                one, opaque = SEEN_OPAQUE, number
            elif _is(name, size, "version", 7):
                one, version = SEEN_VERSION, number
            else:
                return None
        if seen & one:
            return None
        seen |= one
        at = _blanks(at, end)
        if at >= end:
            return None
        if at[0] == c'}':
            break
        if at[0] != c',':
            return None
        at = _blanks(at + 1, end)
    if _blanks(at + 1, end) != end or code < 0 or flag < 0 or version < 0 or not fields_at or language is NULL:
        return None
    number = -1
    known = _languages.get(language[:language_size].decode())
    if known is None:
        return None
    return _made(code, known, version, opaque, flag, _json, header, fields_at, body)


cdef Bytes _past_number(Bytes at, Bytes end, long long *number) noexcept nogil:
    """Behind an integer of at most 31 bits as strict JSON writes it; NULL if it is none."""
    cdef long long value = 0
    cdef Py_ssize_t digits = 0
    cdef bint negative = at[0] == c'-'
    if negative:
        at += 1
    if at < end and at[0] == c'0' and (negative or (end - at > 1 and c'0' <= at[1] <= c'9')):
        return NULL
    while at < end and c'0' <= at[0] <= c'9' and digits < 11:
        value = value * 10 + (at[0] - c'0')
        at += 1
        digits += 1
    if not 0 < digits < 11 or value > 0x7FFFFFFF:
        return NULL
    number[0] = -value if negative else value
    return at


cdef Bytes _past_fields(Bytes at, Bytes end) noexcept nogil:
    """Behind an object whose names and values are all texts, and which is sure to be right; else NULL."""
    cdef int found
    at = _blanks(at + 1, end)
    if at < end and at[0] == c'}':
        return at + 1
    while True:
        if at >= end or at[0] != c'"':
            return NULL
        at = _scan(at + 1, end, &found)
        if at is NULL or found:
            return NULL
        at = _blanks(at + 1, end)
        if at >= end or at[0] != c':':
            return NULL
        at = _blanks(at + 1, end)
        if at >= end or at[0] != c'"':
            return NULL
        at = _past_value(at + 1, end)
        if at is NULL:
            return NULL
        at = _blanks(at, end)
        if at >= end:
            return NULL
        if at[0] == c'}':
            return at + 1
        if at[0] != c',':
            return NULL
        at = _blanks(at + 1, end)


cdef inline Bytes _past_value(Bytes at, Bytes end) noexcept nogil:
    """Behind the closing quote of a text in ASCII or sound UTF-8 whose escapes are known; else NULL."""
    cdef unsigned char kind, letter
    cdef Py_ssize_t size
    while at < end:
        kind = _KINDS[at[0]]
        if kind == 0:
            at += 1
        elif kind == 1:
            return at + 1
        elif kind == 2:
            if end - at < 2:
                return NULL
            letter = at[1]
            at += 2
            if letter == c'u':
                if end - at < 4 or at[0] != c'0' or at[1] != c'0' or not 0 <= _hex(at[2]) <= 7 or _hex(at[3]) < 0:
                    return NULL
                at += 4
            elif not (
                letter == c'"' or letter == c'\\' or letter == c'/' or letter == c'n' or letter == c't'
                or letter == c'r' or letter == c'b' or letter == c'f'
            ):
                return NULL
        elif kind == 4:
            size = _character(at, end)
            if not size:
                return NULL
            at += size
        else:
            return NULL
    return NULL


cdef Py_ssize_t _character(Bytes at, Bytes end) noexcept nogil:
    """How many bytes of sound UTF-8 a character that is not ASCII takes; 0 if it is none."""
    cdef unsigned char first = at[0], second
    cdef Py_ssize_t size = 2 if 0xC2 <= first <= 0xDF else 3 if 0xE0 <= first <= 0xEF else 4 if 0xF0 <= first <= 0xF4 else 0
    cdef Py_ssize_t index
    if not size or end - at < size:
        return 0
    for index in range(1, size):
        if at[index] & 0xC0 != 0x80:
            return 0
    second = at[1]
    if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
        return 0
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return 0
    return size


cdef object _decode_binary(bytes header, object body):
    cdef Bytes begin = <Bytes>PyBytes_AS_STRING(header)
    cdef Bytes end = begin + PyBytes_GET_SIZE(header)
    cdef Bytes at
    cdef Py_ssize_t size, index
    if end - begin < 21 or _i32(begin + 13) != 0 or _i32(begin + 17) != end - begin - 21:
        return None
    at = begin + 21
    while at < end:
        if end - at < 2:
            return None
        size = at[0] << 8 | at[1]
        at += 2
        if size > 0x7FFF or end - at < size + 4:
            return None
        for index in range(size):
            if at[index] >= 0x80:
                return None
        at += size
        size = _i32(at)
        at += 4
        if size < 0 or end - at < size:
            return None
        while size > 0:
            if at[0] < 0x80:
                at += 1
                size -= 1
                continue
            index = _character(at, end)
            if not index or index > size:
                return None
            at += index
            size -= index
    return _made(
        <short>(begin[0] << 8 | begin[1]), begin[2], <short>(begin[3] << 8 | begin[4]), _i32(begin + 5), _i32(begin + 9),
        _binary, header, 21, body,
    )


# --- writing

DEF ROOM = 8192

cdef struct Writer:
    unsigned char *at
    unsigned char *end


cdef inline bint _put(Writer *out, const void *data, Py_ssize_t size) noexcept nogil:
    if out.end - out.at < size:
        return False
    memcpy(out.at, data, <size_t>size)
    out.at += size
    return True


cdef inline Py_ssize_t _digits(long long number, unsigned char *to) noexcept nogil:
    """How many characters a number takes, which are put into the 20 bytes of `to`."""
    cdef unsigned char reversed_[20]
    cdef Py_ssize_t size = 0, index
    cdef bint negative = number < 0
    cdef unsigned long long left = 0 - <unsigned long long>number if negative else <unsigned long long>number
    while True:
        reversed_[size] = <unsigned char>(48 + left % 10)
        left //= 10
        size += 1
        if not left:
            break
    if negative:
        reversed_[size] = c'-'
        size += 1
    for index in range(size):
        to[index] = reversed_[size - 1 - index]
    return size


cdef inline void _put_i32(unsigned char *to, Py_ssize_t number) noexcept nogil:
    to[0], to[1], to[2], to[3] = number >> 24 & 0xFF, number >> 16 & 0xFF, number >> 8 & 0xFF, number & 0xFF


cdef bint _needs_no_escape(Bytes text, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(size):
        if 0 < _KINDS[text[index]] < 4:
            return False
    return True


cdef bint _put_number(Writer *out, long long number) noexcept nogil:
    cdef unsigned char digits[20]
    return _put(out, digits, _digits(number, digits))


cdef bint _write_field(Writer *out, Field *field, PyObject *value, bint binary, Py_ssize_t *written) noexcept:
    """Put one field, unless it is None; False if it is unusual."""
    cdef unsigned char digits[20]
    cdef unsigned char size_bytes[6]
    cdef const unsigned char *text
    cdef Py_ssize_t size = 0
    if value is NULL:
        return False
    if value == Py_None:
        return field.optional
    if field.kind == TEXT:
        if not PyUnicode_CheckExact(value):
            return False
        text = <const unsigned char *>PyUnicode_AsUTF8AndSize(value, &size)
        if text is NULL:
            PyErr_Clear()
            return False
        if not binary and not _needs_no_escape(text, size):
            return False
    elif field.kind == NUMBER:
        if not PyLong_CheckExact(value):
            return False
        number = PyLong_AsLongLong(value)
        if number == -1 and PyErr_Occurred() is not NULL:
            PyErr_Clear()
            return False
        size = _digits(number, digits)
        text = digits
    elif value == Py_True:
        text, size = <const unsigned char *>"true", 4
    elif value == Py_False:
        text, size = <const unsigned char *>"false", 5
    else:
        return False
    if binary:
        size_bytes[0], size_bytes[1] = field.size >> 8, field.size & 0xFF
        if not (_put(out, size_bytes, 2) and _put(out, field.name, field.size)):
            return False
        _put_i32(size_bytes, size)
        return _put(out, size_bytes, 4) and _put(out, text, size)
    if written[0] and not _put(out, ",", 1):
        return False
    written[0] += 1
    return (
        _put(out, '"', 1) and _put(out, field.name, field.size) and _put(out, '":"', 3)
        and _put(out, text, size) and _put(out, '"', 1)
    )


cdef bint _number_of(PyObject *command, Py_ssize_t place, long long *number) noexcept:
    cdef PyObject *value = slot_of(command, place)
    if value is NULL or not PyLong_Check(value):
        return False
    number[0] = PyLong_AsLongLong(value)
    if number[0] == -1 and PyErr_Occurred() is not NULL:
        PyErr_Clear()
        return False
    return -0x80000000ll <= number[0] <= 0x7FFFFFFF


def head(command, HeaderCodec codec not None, Py_ssize_t body_size):
    """The frame's head of a command with a typed header, whose codec this is; None if the pure code must write it."""
    cdef unsigned char room[ROOM]
    cdef Writer out
    cdef PyObject *source = <PyObject *>command
    cdef PyObject *header
    cdef PyObject *remark
    cdef const unsigned char *text = NULL
    cdef Py_ssize_t text_size = 0, size
    cdef long long code, flag, language, opaque, version
    cdef bint binary
    cdef unsigned char *fields
    if not is_of(source, <PyObject *>_command):
        return None
    header, remark = slot_of(source, _header_at), slot_of(source, _remark_at)
    if header is NULL or not is_of(header, <PyObject *>codec._cls) or remark is NULL:
        return None
    if not (
        _number_of(source, _code_at, &code) and _number_of(source, _flag_at, &flag)
        and _number_of(source, _language_at, &language) and _number_of(source, _opaque_at, &opaque)
        and _number_of(source, _version_at, &version)
    ):
        return None
    binary = slot_of(source, _serializer_at) != <PyObject *>_json
    if remark != Py_None:
        if not PyUnicode_Check(remark):
            return None
        text = <const unsigned char *>PyUnicode_AsUTF8AndSize(remark, &text_size)
        if text is NULL:
            PyErr_Clear()
            return None
        if not binary and not _needs_no_escape(text, text_size):
            return None
    out.at, out.end = room + 8, room + ROOM
    if binary:
        if slot_of(source, _serializer_at) != <PyObject *>_binary:
            return None
        if not (-0x8000 <= code <= 0x7FFF and 0 <= language <= 0xFF and -0x8000 <= version <= 0x7FFF):
            return None
        out.at[0], out.at[1], out.at[2] = code >> 8 & 0xFF, code & 0xFF, language & 0xFF
        out.at[3], out.at[4] = version >> 8 & 0xFF, version & 0xFF
        _put_i32(out.at + 5, opaque)
        _put_i32(out.at + 9, flag)
        _put_i32(out.at + 13, text_size)
        out.at += 17
        if text_size and not _put(&out, text, text_size):
            return None
        fields = out.at
        if not _put(&out, "\0\0\0\0", 4) or not codec._write(&out, header, True):
            return None
        _put_i32(fields, out.at - fields - 4)
    else:
        name = _language_names.get(language, b"OTHER")
        if not (
            _put(&out, '{"code":', 8) and _put_number(&out, code) and _put(&out, ',"extFields":{', 14)
            and codec._write(&out, header, False)
            and _put(&out, '},"flag":', 9) and _put_number(&out, flag)
            and _put(&out, ',"language":"', 13) and _put(&out, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
            and _put(&out, '","opaque":', 11) and _put_number(&out, opaque)
            and _put(&out, ',"serializeTypeCurrentRPC":"JSON","version":', 44) and _put_number(&out, version)
        ):
            return None
        if remark != Py_None and not (
            _put(&out, ',"remark":"', 11) and _put(&out, text, text_size) and _put(&out, '"', 1)
        ):
            return None
        if not _put(&out, "}", 1):
            return None
    size = out.at - room - 8
    if body_size > 0x7FFFFFFF - size - 4:
        return None
    _put_i32(room, 4 + size + body_size)
    _put_i32(room + 4, size)
    room[4] = 1 if binary else 0
    return PyBytes_FromStringAndSize(<char *>room, out.at - room)

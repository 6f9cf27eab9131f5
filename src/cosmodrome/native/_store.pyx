# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records, and the entries that lead to them: the native twin of parts of `wire.record`, `wire.batch` and `store`.

Each function first looks at everything that it needs. What is unusual (a file that must be made or opened, a damaged
slot, properties that are not plain) it leaves to the pure code before the first byte is written. What it writes, it
writes in the order of the pure code, for a kill may come between any two steps.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_Clear
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from zlib import crc32 as _crc32

cdef extern from *:
    """
    #include <stdatomic.h>
    #include <stdint.h>
    #include <structmember.h>
    #ifndef SOURCE_CHECKSUM
    #define SOURCE_CHECKSUM 0
    #endif

    static Py_ssize_t slot_place(PyObject *descriptor) {
        if (Py_TYPE(descriptor) != &PyMemberDescr_Type) return -1;
        PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
        return member->type == T_OBJECT_EX ? member->offset : -1;
    }
    #define slot_of(object, place) (*(PyObject **)((char *)(object) + (place)))
    static int is_of(PyObject *object, PyObject *cls) { return Py_TYPE(object) == (PyTypeObject *)cls; }
    static PyObject *tuple_of(PyObject *cls, Py_ssize_t size) { return ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, size); }
    /* Each in one step: a kill leaves the old number or the new one. */
    static inline void store_32(unsigned char *to, uint32_t number) { *(volatile uint32_t *)to = __builtin_bswap32(number); }
    static inline void store_64(unsigned char *to, uint64_t number) { *(volatile uint64_t *)to = __builtin_bswap64(number); }
    /* What stands before is in memory before what stands behind, whatever a compiler would like. */
    static inline void step(void) { atomic_signal_fence(memory_order_seq_cst); }
    """
    unsigned long SOURCE_CHECKSUM
    Py_ssize_t slot_place(object descriptor)
    PyObject *slot_of(PyObject *thing, Py_ssize_t place)
    bint is_of(PyObject *thing, PyObject *cls)
    PyObject *tuple_of(object cls, Py_ssize_t size)
    void store_32(unsigned char *to, uint32_t number) nogil
    void store_64(unsigned char *to, uint64_t number) nogil
    void step() nogil
    uint32_t __builtin_bswap32(uint32_t number) nogil
    uint64_t __builtin_bswap64(uint64_t number) nogil

cdef extern from "Python.h":
    PyObject *PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors)
    const char *PyUnicode_AsUTF8AndSize(PyObject *text, Py_ssize_t *size)
    PyObject *PyLong_FromLongLong(long long number)
    long long PyLong_AsLongLong(PyObject *number)
    bint PyLong_Check(PyObject *thing)
    bint PyUnicode_CheckExact(PyObject *thing)
    bint PyBytes_CheckExact(PyObject *thing)
    bint PyList_CheckExact(PyObject *thing)
    Py_ssize_t PyList_GET_SIZE(PyObject *thing)
    PyObject *PyList_GET_ITEM(PyObject *thing, Py_ssize_t index)
    bint PyTuple_Check(PyObject *thing)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *thing)
    PyObject *PyTuple_GET_ITEM(PyObject *thing, Py_ssize_t index)
    void PyTuple_SET_ITEM(PyObject *thing, Py_ssize_t index, PyObject *item)
    PyObject *PyErr_Occurred()
    void Py_XDECREF(PyObject *thing)
    void Py_XINCREF(PyObject *thing)
    PyObject *Py_True
    PyObject *Py_None

SOURCE = SOURCE_CHECKSUM  # of this file, when it was compiled

ctypedef const unsigned char *Bytes

DEF HEAD_SIZE = 88
DEF MAX_PROPERTIES = 32767
DEF MAX_MESSAGES = 128
DEF MAX_KEYS = 256
DEF ENTRY_SIZE = 20
DEF INDEX_HEADER_SIZE = 40
DEF COUNTS_AT = 32
DEF MAX_SECONDS = 0x7FFFFFFF
DEF SEAL = b"__CRC32#"
DEF BATCH_HEAD = 20


cdef inline void _put_32(unsigned char *to, int64_t number) noexcept nogil:
    cdef uint32_t turned = __builtin_bswap32(<uint32_t>number)
    memcpy(to, &turned, 4)


cdef inline void _put_64(unsigned char *to, int64_t number) noexcept nogil:
    cdef uint64_t turned = __builtin_bswap64(<uint64_t>number)
    memcpy(to, &turned, 8)


cdef inline int32_t _get_32(Bytes at) noexcept nogil:
    cdef uint32_t number
    memcpy(&number, at, 4)
    return <int32_t>__builtin_bswap32(number)


cdef inline bint _number(PyObject *value, int64_t *number) noexcept:
    """Read an int of 64 bits; False, and no error, if it is none."""
    if value is NULL or not PyLong_Check(value):
        return False
    number[0] = PyLong_AsLongLong(value)
    if number[0] == -1 and PyErr_Occurred() is not NULL:
        PyErr_Clear()
        return False
    return True


cdef inline bint _text(PyObject *value, Bytes *text, Py_ssize_t *size) noexcept:
    """The UTF-8 of a text; False, and no error, if it has none."""
    if value is NULL or not PyUnicode_CheckExact(value):
        return False
    text[0] = <Bytes>PyUnicode_AsUTF8AndSize(value, size)
    if text[0] is NULL:
        PyErr_Clear()
        return False
    return True


# --- records

cdef struct Shared:
    # What all records of a call have in common.
    Bytes topic
    Py_ssize_t topic_size
    int64_t queue_id
    int64_t sys_flag
    int64_t born_timestamp
    int64_t store_timestamp
    int64_t reconsume_times
    int64_t prepared_offset
    Bytes born_host
    Bytes store_host


cdef inline bint _is_32(int64_t number) noexcept nogil:
    return -0x80000000ll <= number <= 0x7FFFFFFF


cdef bint _share(
    Shared *shared, object topic, object queue_id, object sys_flag, object born_timestamp, object born_host,
    object store_timestamp, object store_host, object reconsume_times, object prepared_offset,
) noexcept:
    """Whether all of it is plain: IPv4 hosts, a topic of the usual length, numbers that fit."""
    if not (
        PyBytes_CheckExact(<PyObject *>topic) and PyBytes_CheckExact(<PyObject *>born_host)
        and PyBytes_CheckExact(<PyObject *>store_host)
    ):
        return False
    shared.topic, shared.topic_size = <Bytes>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)
    if shared.topic_size > 127 or PyBytes_GET_SIZE(born_host) != 8 or PyBytes_GET_SIZE(store_host) != 8:
        return False
    shared.born_host, shared.store_host = <Bytes>PyBytes_AS_STRING(born_host), <Bytes>PyBytes_AS_STRING(store_host)
    if not (
        _number(<PyObject *>queue_id, &shared.queue_id) and _number(<PyObject *>sys_flag, &shared.sys_flag)
        and _number(<PyObject *>born_timestamp, &shared.born_timestamp)
        and _number(<PyObject *>store_timestamp, &shared.store_timestamp)
        and _number(<PyObject *>reconsume_times, &shared.reconsume_times)
        and _number(<PyObject *>prepared_offset, &shared.prepared_offset)
    ):
        return False
    shared.sys_flag &= ~0x30
    return _is_32(shared.queue_id) and _is_32(shared.sys_flag) and _is_32(shared.reconsume_times)


cdef bint _is_sealed(Bytes at, Py_ssize_t size) noexcept nogil:
    """Whether another record's seal may be among the properties."""
    cdef Bytes begin = at
    cdef Bytes end = at + size
    while at < end:
        at = <Bytes>memchr(at, c'#', <size_t>(end - at))
        if at is NULL:
            return False
        if at - begin >= 7 and memcmp(at - 7, <const char *>SEAL, 8) == 0:
            return True
        at += 1
    return False


cdef inline void _write_record(
    unsigned char *to, Shared *shared, Py_ssize_t size, uint32_t crc, int64_t flag, int64_t queue_offset,
    int64_t physical_offset, Bytes body, Py_ssize_t body_size, Bytes properties, Py_ssize_t properties_size,
) noexcept nogil:
    """Lay out one record in `size` bytes."""
    _put_32(to, size)
    _put_32(to + 4, 0xDAA320A7)
    _put_32(to + 8, crc & 0x7FFFFFFF)
    _put_32(to + 12, shared.queue_id)
    _put_32(to + 16, flag)
    _put_64(to + 20, queue_offset)
    _put_64(to + 28, physical_offset)
    _put_32(to + 36, shared.sys_flag)
    _put_64(to + 40, shared.born_timestamp)
    memcpy(to + 48, shared.born_host, 8)
    _put_64(to + 56, shared.store_timestamp)
    memcpy(to + 64, shared.store_host, 8)
    _put_32(to + 72, shared.reconsume_times)
    _put_64(to + 76, shared.prepared_offset)
    _put_32(to + 84, body_size)
    memcpy(to + HEAD_SIZE, body, <size_t>body_size)
    to += HEAD_SIZE + body_size
    to[0] = <unsigned char>shared.topic_size
    memcpy(to + 1, shared.topic, <size_t>shared.topic_size)
    to += 1 + shared.topic_size
    to[0], to[1] = <unsigned char>(properties_size >> 8), <unsigned char>(properties_size & 0xFF)
    memcpy(to + 2, properties, <size_t>properties_size)


def encode_record(
    topic, body, properties, queue_id, flag, sys_flag, born_timestamp, born_host, store_timestamp, store_host,
    queue_offset, physical_offset, reconsume_times, prepared_offset,
):
    """One record that is not sealed; None if the pure code must encode it."""
    cdef Shared shared
    cdef int64_t number, place, own_flag
    cdef Py_ssize_t size, body_size, properties_size
    cdef Bytes raw
    if not _share(
        &shared, topic, queue_id, sys_flag, born_timestamp, born_host, store_timestamp, store_host, reconsume_times,
        prepared_offset,
    ):
        return None
    if not (PyBytes_CheckExact(<PyObject *>body) and PyBytes_CheckExact(<PyObject *>properties)):
        return None
    if not (
        _number(<PyObject *>flag, &own_flag) and _number(<PyObject *>queue_offset, &number)
        and _number(<PyObject *>physical_offset, &place)
    ):
        return None
    raw, properties_size, body_size = <Bytes>PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties), PyBytes_GET_SIZE(body)
    if not _is_32(own_flag) or properties_size > MAX_PROPERTIES or body_size > 0x7FFF0000 or _is_sealed(raw, properties_size):
        return None
    size = HEAD_SIZE + 3 + body_size + shared.topic_size + properties_size
    crc = <uint32_t>_crc32(body)
    data = PyBytes_FromStringAndSize(NULL, size)
    _write_record(
        <unsigned char *>PyBytes_AS_STRING(data), &shared, size, crc, own_flag, number, place,
        <Bytes>PyBytes_AS_STRING(body), body_size, raw, properties_size,
    )
    return data


def encode_records(
    topic, items, queue_id, sys_flag, born_timestamp, born_host, store_timestamp, store_host, queue_offset,
    physical_offset, reconsume_times,
):
    """Records side by side, none of them sealed, and their bounds; None if the pure code must encode them."""
    cdef Shared shared
    cdef int64_t number, place, flag
    cdef Py_ssize_t index, count, total = 0
    cdef Py_ssize_t sizes[MAX_MESSAGES]
    cdef Py_ssize_t raw_sizes[MAX_MESSAGES]
    cdef Bytes raws[MAX_MESSAGES]
    cdef PyObject *item
    cdef PyObject *body
    cdef unsigned char *to
    if not PyList_CheckExact(<PyObject *>items) or not 0 < PyList_GET_SIZE(<PyObject *>items) <= MAX_MESSAGES:
        return None
    if not _share(
        &shared, topic, queue_id, sys_flag, born_timestamp, born_host, store_timestamp, store_host, reconsume_times, 0
    ):
        return None
    if not (_number(<PyObject *>queue_offset, &number) and _number(<PyObject *>physical_offset, &place)):
        return None
    count = PyList_GET_SIZE(<PyObject *>items)
    for index in range(count):
        item = PyList_GET_ITEM(<PyObject *>items, index)
        if not PyTuple_Check(item) or PyTuple_GET_SIZE(item) != 3:
            return None
        body = PyTuple_GET_ITEM(item, 1)
        if not PyBytes_CheckExact(body) or not _number(PyTuple_GET_ITEM(item, 0), &flag) or not _is_32(flag):
            return None
        if not _text(PyTuple_GET_ITEM(item, 2), &raws[index], &raw_sizes[index]):
            return None
        if raw_sizes[index] > MAX_PROPERTIES or _is_sealed(raws[index], raw_sizes[index]):
            return None
        sizes[index] = HEAD_SIZE + 3 + PyBytes_GET_SIZE(<object>body) + shared.topic_size + raw_sizes[index]
        total += sizes[index]
        if total > 0x7FFF0000:
            return None
    data = PyBytes_FromStringAndSize(NULL, total)
    to = <unsigned char *>PyBytes_AS_STRING(data)
    bounds = [place]
    for index in range(count):
        item = PyList_GET_ITEM(<PyObject *>items, index)
        own_body = <object>PyTuple_GET_ITEM(item, 1)
        crc = <uint32_t>_crc32(own_body)
        _number(PyTuple_GET_ITEM(item, 0), &flag)
        _write_record(
            to, &shared, sizes[index], crc, flag, number + index, place, <Bytes>PyBytes_AS_STRING(own_body),
            PyBytes_GET_SIZE(own_body), raws[index], raw_sizes[index],
        )
        to += sizes[index]
        place += sizes[index]
        bounds.append(place)
    return data, bounds


def decode_batch(body, cls, Py_ssize_t most):
    """The items of a batch, of the class `cls`; None if the pure code must read it, for it is unusual or damaged."""
    cdef Bytes at
    cdef Bytes end
    cdef Py_ssize_t size, body_size, properties_size
    cdef PyObject *item
    cdef PyObject *part
    if not PyBytes_CheckExact(<PyObject *>body):
        return None
    at = <Bytes>PyBytes_AS_STRING(body)
    end = at + PyBytes_GET_SIZE(body)
    items = []
    while at < end:
        if end - at < BATCH_HEAD + 2:
            return None
        size, body_size = _get_32(at), _get_32(at + 16)
        if not 0 <= body_size <= size - BATCH_HEAD - 2 or size > end - at:
            return None
        properties_size = at[BATCH_HEAD + body_size] << 8 | at[BATCH_HEAD + body_size + 1]
        if BATCH_HEAD + 2 + body_size + properties_size != size or properties_size > MAX_PROPERTIES or len(items) >= most:
            return None
        item = tuple_of(cls, 3)
        if item is NULL:
            raise MemoryError
        made = <object>item
        Py_DECREF(made)
        part = PyLong_FromLongLong(_get_32(at + 12))
        PyTuple_SET_ITEM(item, 0, part)
        own_body = PyBytes_FromStringAndSize(<char *>at + BATCH_HEAD, body_size)
        Py_INCREF(own_body)
        PyTuple_SET_ITEM(item, 1, <PyObject *>own_body)
        part = PyUnicode_DecodeUTF8(<char *>at + BATCH_HEAD + 2 + body_size, properties_size, "replace")
        if part is NULL:
            raise MemoryError
        PyTuple_SET_ITEM(item, 2, part)
        items.append(made)
        at += size
    return items


# --- properties and hashes

cdef object _find_pure = None
cdef object _hash_pure = None


def know_texts(find, java_hash):
    """Learn the twins of `find` and `java_hash`, which take what is unusual."""
    global _find_pure, _hash_pure
    _find_pure = find if find is not None else _find_pure
    _hash_pure = java_hash if java_hash is not None else _hash_pure


def find(raw, name):
    """The value of one property; the last that is not empty counts."""
    cdef Bytes at
    cdef Bytes end
    cdef Bytes item_end
    cdef Bytes mark
    cdef Bytes wanted
    cdef Bytes value = NULL
    cdef Py_ssize_t size = 0, wanted_size = 0, value_size = 0
    if not (_text(<PyObject *>raw, &at, &size) and _text(<PyObject *>name, &wanted, &wanted_size)):
        return _find_pure(raw, name)
    end = at + size
    while at < end:
        item_end = <Bytes>memchr(at, 2, <size_t>(end - at))
        if item_end is NULL:
            item_end = end
        if item_end - at > wanted_size + 1 and at[wanted_size] == 1 and memcmp(at, wanted, <size_t>wanted_size) == 0:
            mark = <Bytes>memchr(at, 1, <size_t>(item_end - at))
            if mark == at + wanted_size:
                value, value_size = mark + 1, item_end - mark - 1
        at = item_end + 1
    return None if value is NULL else <object>_decoded(value, value_size)


cdef object _decoded(Bytes at, Py_ssize_t size):
    cdef PyObject *made = PyUnicode_DecodeUTF8(<const char *>at, size, NULL)
    if made is NULL:
        raise MemoryError  # it was made of a text
    text = <object>made
    Py_DECREF(text)
    return text


def java_hash(text, seed=0):
    """`String.hashCode()` behind a text whose hash is `seed`."""
    cdef Bytes at
    cdef Py_ssize_t size = 0
    cdef int64_t before
    cdef uint32_t code
    cdef bint is_ascii = True
    if not (_number(<PyObject *>seed, &before) and _text(<PyObject *>text, &at, &size)) or size == 0:
        return _hash_pure(text, seed)
    code = _hash(<uint32_t>before, at, size, &is_ascii)
    return <int32_t>code if is_ascii else _hash_pure(text, seed)


# --- queue and index

cdef struct Key:
    uint32_t code
    int64_t offset

cdef struct Message:
    int64_t offset
    int64_t size
    int64_t tags_code

cdef struct IndexPlace:
    PyObject *file
    int64_t slots
    int64_t count
    int64_t used_slots
    int64_t entries_at
    int64_t prepared
    int64_t begin

cdef Py_ssize_t _queue_step = 0
cdef object _queue_class = None, _file_class = None, _index_class = None, _index_file_class = None
cdef Py_ssize_t _q_files, _q_max_offset, _q_topic
cdef Py_ssize_t _f_map, _f_position, _f_prepared, _f_size, _f_used, _f_dirty
cdef Py_ssize_t _i_last, _i_entries, _i_indexed
cdef Py_ssize_t _x_slots, _x_entries_at, _x_prepared, _x_map, _x_begin, _x_end, _x_begin_offset, _x_end_offset, _x_used
cdef Py_ssize_t _x_count


def know(queue_class, file_class, index_class, index_file_class, queue_step):
    """Learn the classes of queues, files and the index, where they keep what they have, and by how much queues grow."""
    global _queue_step
    global _queue_class, _file_class, _index_class, _index_file_class
    global _q_files, _q_max_offset, _q_topic, _f_map, _f_position, _f_prepared, _f_size, _f_used, _f_dirty
    global _i_last, _i_entries, _i_indexed
    global _x_slots, _x_entries_at, _x_prepared, _x_map, _x_begin, _x_end, _x_begin_offset, _x_end_offset, _x_used
    global _x_count
    _q_files, _q_max_offset, _q_topic = _places(queue_class, "_files max_offset topic_bytes")
    _f_map, _f_position, _f_prepared, _f_size, _f_used, _f_dirty = _places(
        file_class, "map position prepared size used dirty"
    )
    _i_last, _i_entries, _i_indexed = _places(index_class, "_last _entries indexed")
    (
        _x_slots, _x_entries_at, _x_prepared, _x_map, _x_begin, _x_end, _x_begin_offset, _x_end_offset, _x_used, _x_count
    ) = _places(
        index_file_class,
        "_slots _entries_at _prepared _map begin_timestamp end_timestamp begin_offset end_offset _used_slots count",
    )
    _queue_class, _file_class, _index_class, _index_file_class = queue_class, file_class, index_class, index_file_class
    _queue_step = queue_step


def _places(cls, names):
    places = [slot_place(cls.__dict__[name]) for name in names.split()]
    if min(places) < 0:
        raise TypeError(f"{cls.__name__} keeps in slots what native code needs")
    return places


cdef inline uint32_t _hash(uint32_t code, Bytes at, Py_ssize_t size, bint *is_ascii) noexcept nogil:
    """Java's hash of ASCII text behind a text whose hash is `code`."""
    cdef Py_ssize_t index
    cdef unsigned char together = 0
    for index in range(size):
        together |= at[index]
        code = 31 * code + at[index]
    if together & 0x80:
        is_ascii[0] = False
    return code


cdef inline bint _is(Bytes at, Py_ssize_t size, const char *text, Py_ssize_t text_size) noexcept nogil:
    return size == text_size and memcmp(at, text, <size_t>size) == 0


cdef bint _look(PyObject *properties, int64_t offset, uint32_t seed, Key *keys, Py_ssize_t *count, int64_t *tags_code) noexcept:
    """Add what a message can be found by to `keys`, and tell its tag's hash; False if its properties are unusual."""
    cdef Bytes at
    cdef Bytes end
    cdef Bytes item_end
    cdef Bytes mark
    cdef Bytes unique = NULL
    cdef Bytes named = NULL
    cdef Bytes tags = NULL
    cdef Py_ssize_t size = 0, name_size, value_size, unique_size = 0, named_size = 0, tags_size = 0
    cdef bint is_ascii = True
    if not _text(properties, &at, &size):
        return False
    end = at + size
    while at < end:
        item_end = <Bytes>memchr(at, 2, <size_t>(end - at))
        if item_end is NULL:
            item_end = end
        mark = <Bytes>memchr(at, 1, <size_t>(item_end - at))
        if mark is not NULL and item_end - mark > 1:
            name_size, value_size = mark - at, item_end - mark - 1
            if name_size == 8 and memcmp(at, <const char *>b"UNIQ_KEY", 8) == 0:
                unique, unique_size = mark + 1, value_size
            elif name_size == 4 and memcmp(at, <const char *>b"KEYS", 4) == 0:
                named, named_size = mark + 1, value_size
            elif name_size == 4 and memcmp(at, <const char *>b"TAGS", 4) == 0:
                tags, tags_size = mark + 1, value_size
        at = item_end + 1
    tags_code[0] = <int32_t>_hash(0, tags, tags_size, &is_ascii) if tags is not NULL else 0
    if unique is not NULL and not _add_key(unique, unique_size, offset, seed, keys, count, &is_ascii):
        return False
    if named is not NULL:
        end = named + named_size
        while named < end:
            mark = <Bytes>memchr(named, 32, <size_t>(end - named))
            if mark is NULL:
                mark = end
            if mark > named and not _add_key(named, mark - named, offset, seed, keys, count, &is_ascii):
                return False
            named = mark + 1
    return is_ascii


cdef inline bint _add_key(
    Bytes at, Py_ssize_t size, int64_t offset, uint32_t seed, Key *keys, Py_ssize_t *count, bint *is_ascii
) noexcept nogil:
    cdef uint32_t code
    if count[0] >= MAX_KEYS:
        return False
    code = _hash(seed, at, size, is_ascii)
    if <int32_t>code < 0:
        code = <uint32_t>(-<int64_t><int32_t>code) & <uint32_t>0x7FFFFFFF
    keys[count[0]].code, keys[count[0]].offset = code, offset
    count[0] += 1
    return True


cdef bint _find_index(PyObject *index, Key *keys, Py_ssize_t count, IndexPlace *place) noexcept:
    """Whether the last file of the index takes these keys as it is."""
    cdef PyObject *file
    cdef int64_t entries, indexed
    if not is_of(index, <PyObject *>_index_class):
        return False
    file = slot_of(index, _i_last)
    if file is NULL or not is_of(file, <PyObject *>_index_file_class):
        return False
    place.file = file
    if not (
        _number(slot_of(index, _i_entries), &entries) and _number(slot_of(index, _i_indexed), &indexed)
        and _number(slot_of(file, _x_slots), &place.slots) and _number(slot_of(file, _x_entries_at), &place.entries_at)
        and _number(slot_of(file, _x_prepared), &place.prepared) and _number(slot_of(file, _x_begin), &place.begin)
        and _number(slot_of(file, _x_used), &place.used_slots) and _number(slot_of(file, _x_count), &place.count)
    ):
        return False
    return (
        keys[0].offset > indexed and place.slots > 0 and 1 < place.count <= entries - count
        and place.entries_at == INDEX_HEADER_SIZE + place.slots * 4
    )


cdef void _write_index(unsigned char *data, IndexPlace *place, Key *keys, Py_ssize_t count, int64_t seconds) noexcept nogil:
    """Put each entry behind the last, and then into its slot: a chain never leads nowhere."""
    cdef Py_ssize_t number
    cdef unsigned char *slot
    cdef unsigned char *entry = data + place.entries_at + place.count * ENTRY_SIZE
    cdef int32_t before
    for number in range(count):
        slot = data + INDEX_HEADER_SIZE + keys[number].code % place.slots * 4
        before = _get_32(slot)
        if before <= 0:
            before = 0
            place.used_slots += 1
        _put_32(entry, keys[number].code)
        _put_64(entry + 4, keys[number].offset)
        _put_32(entry + 12, seconds)
        _put_32(entry + 16, before)
        step()
        store_32(slot, <uint32_t>(place.count + number))
        step()
        entry += ENTRY_SIZE
    place.count += count


cdef inline void _set(PyObject *thing, Py_ssize_t place, PyObject *value) noexcept:
    """Put a new reference into a slot."""
    cdef PyObject *before = slot_of(thing, place)
    (<PyObject **>(<char *>thing + place))[0] = value
    Py_XDECREF(before)


cdef bint _enter(
    PyObject *index, PyObject *queue, int64_t queue_offset, Message *messages, Py_ssize_t count, Key *keys,
    Py_ssize_t key_count, int64_t timestamp,
) except -1:
    """Write the keys and then the queue's entries; False before anything is written if the pure code must do it.

    Room for them is made first, as the pure code would make it.
    """
    cdef PyObject *files = slot_of(queue, _q_files)
    cdef PyObject *file
    cdef int64_t max_offset, position, size, prepared, seconds = 0, last
    cdef Py_buffer queue_buffer, index_buffer
    cdef IndexPlace place
    cdef Py_ssize_t number
    cdef unsigned char *to
    cdef bint is_indexing = index != Py_None and key_count > 0, fits = True
    cdef PyObject *made[6]
    if files is NULL or not PyList_CheckExact(files) or PyList_GET_SIZE(files) == 0:
        return False
    file = PyList_GET_ITEM(files, PyList_GET_SIZE(files) - 1)
    if not is_of(file, <PyObject *>_file_class):
        return False
    if not (
        _number(slot_of(queue, _q_max_offset), &max_offset) and _number(slot_of(file, _f_position), &position)
        and _number(slot_of(file, _f_size), &size) and _number(slot_of(file, _f_prepared), &prepared)
    ):
        return False
    if queue_offset != max_offset or not 0 <= position <= size - count * ENTRY_SIZE:
        return False
    if slot_of(file, _f_map) is NULL or slot_of(file, _f_map) == Py_None:
        return False
    if is_indexing and not _find_index(index, keys, key_count, &place):
        return False
    try:
        if prepared < position + count * ENTRY_SIZE:
            (<object>file).prepare(position + count * ENTRY_SIZE, _queue_step)
        if is_indexing and place.prepared < place.entries_at + (place.count + key_count) * ENTRY_SIZE:
            (<object>place.file)._prepare(place.entries_at + (place.count + key_count) * ENTRY_SIZE)
    except OSError:
        return False  # the pure code finds no room either, and says so where it belongs
    if slot_of(file, _f_dirty) != Py_True:
        (<object>queue)._mark(<object>file)
    try:
        PyObject_GetBuffer(<object>slot_of(file, _f_map), &queue_buffer, PyBUF_WRITABLE)
    except (BufferError, TypeError, ValueError):
        return False
    if queue_buffer.len < position + count * ENTRY_SIZE:
        PyBuffer_Release(&queue_buffer)
        return False
    if is_indexing:
        try:
            PyObject_GetBuffer(<object>slot_of(place.file, _x_map), &index_buffer, PyBUF_WRITABLE)
        except (BufferError, TypeError, ValueError):
            PyBuffer_Release(&queue_buffer)
            return False
        fits = index_buffer.len >= place.entries_at + (place.count + key_count) * ENTRY_SIZE
        for number in range(key_count):
            if fits and _get_32(<Bytes>index_buffer.buf + INDEX_HEADER_SIZE + keys[number].code % place.slots * 4) >= place.count:
                fits = False
    if fits:
        made[0], made[1] = PyLong_FromLongLong(position + count * ENTRY_SIZE), PyLong_FromLongLong(queue_offset + count)
        fits = made[0] is not NULL and made[1] is not NULL
    if not fits:
        if is_indexing:
            PyBuffer_Release(&index_buffer)
        PyBuffer_Release(&queue_buffer)
        return False
    if is_indexing:
        if 0 < place.begin < timestamp:
            seconds = min((timestamp - place.begin) // 1000, MAX_SECONDS)
        last = keys[key_count - 1].offset
        to = <unsigned char *>index_buffer.buf
        _write_index(to, &place, keys, key_count, seconds)
        # The counts last and in one step: they say which entries there are.
        _put_64(to + 8, timestamp)
        _put_64(to + 24, last)
        step()
        store_64(to + COUNTS_AT, <uint64_t>(<uint32_t>place.used_slots) << 32 | <uint32_t>place.count)
        step()
        _set(place.file, _x_count, PyLong_FromLongLong(place.count))
        _set(place.file, _x_used, PyLong_FromLongLong(place.used_slots))
        _set(place.file, _x_end, PyLong_FromLongLong(timestamp))
        _set(place.file, _x_end_offset, PyLong_FromLongLong(last))
        _set(index, _i_indexed, PyLong_FromLongLong(last))
        PyBuffer_Release(&index_buffer)
    to = <unsigned char *>queue_buffer.buf + position
    for number in range(count):
        _put_64(to, messages[number].offset)
        _put_32(to + 8, messages[number].size)
        _put_64(to + 12, messages[number].tags_code)
        to += ENTRY_SIZE
    step()
    Py_XINCREF(Py_True)
    _set(file, _f_used, Py_True)
    _set(file, _f_position, made[0])
    _set(queue, _q_max_offset, made[1])
    PyBuffer_Release(&queue_buffer)
    return True


cdef inline bint _seed(PyObject *queue, uint32_t *seed) noexcept:
    """The hash of what stands before each key of the queue's topic; False if the topic is not ASCII."""
    cdef PyObject *topic
    cdef bint is_ascii = True
    if not is_of(queue, <PyObject *>_queue_class):
        return False
    topic = slot_of(queue, _q_topic)
    if topic is NULL or not PyBytes_CheckExact(topic):
        return False
    seed[0] = 31 * _hash(0, <Bytes>PyBytes_AS_STRING(<object>topic), PyBytes_GET_SIZE(<object>topic), &is_ascii) + c'#'
    return is_ascii


def enter(index, queue, queue_offset, physical_offset, size, timestamp, properties):
    """Enter one record into index and queue, and return its tags code; None if the pure code must do it."""
    cdef Key keys[MAX_KEYS]
    cdef Py_ssize_t key_count = 0
    cdef Message message
    cdef int64_t number, stored
    cdef uint32_t seed
    if not _seed(<PyObject *>queue, &seed):
        return None
    if not (
        _number(<PyObject *>queue_offset, &number) and _number(<PyObject *>physical_offset, &message.offset)
        and _number(<PyObject *>size, &message.size) and _number(<PyObject *>timestamp, &stored)
    ):
        return None
    if not _look(<PyObject *>properties, message.offset, seed, keys, &key_count, &message.tags_code):
        return None
    if not _enter(<PyObject *>index, <PyObject *>queue, number, &message, 1, keys, key_count, stored):
        return None
    return message.tags_code


def enter_batch(index, queue, queue_offset, bounds, timestamp, properties):
    """Enter records side by side, and return their tags codes; None if the pure code must do it."""
    cdef Key keys[MAX_KEYS]
    cdef Message messages[MAX_MESSAGES]
    cdef Py_ssize_t key_count = 0, count, at
    cdef int64_t number, stored, end
    cdef uint32_t seed
    if not (PyList_CheckExact(<PyObject *>bounds) and PyTuple_Check(<PyObject *>properties)):
        return None
    count = PyTuple_GET_SIZE(<PyObject *>properties)
    if not 0 < count <= MAX_MESSAGES or PyList_GET_SIZE(<PyObject *>bounds) != count + 1 or not _seed(<PyObject *>queue, &seed):
        return None
    if not (_number(<PyObject *>queue_offset, &number) and _number(<PyObject *>timestamp, &stored)):
        return None
    for at in range(count):
        if not (
            _number(PyList_GET_ITEM(<PyObject *>bounds, at), &messages[at].offset)
            and _number(PyList_GET_ITEM(<PyObject *>bounds, at + 1), &end)
        ):
            return None
        messages[at].size = end - messages[at].offset
        if not _look(
            PyTuple_GET_ITEM(<PyObject *>properties, at), messages[at].offset, seed, keys, &key_count, &messages[at].tags_code
        ):
            return None
    if not _enter(<PyObject *>index, <PyObject *>queue, number, messages, count, keys, key_count, stored):
        return None
    return [messages[at].tags_code for at in range(count)]
